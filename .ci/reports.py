"""Validates the reports of `larder check` in a directory: JSON by docs/check.schema.json, SARIF by its own schema.

SchemaStore's edition of the SARIF schema is in the package `schemastore`, as a response in a cache of requests.
"""

import json
import pathlib
import pickletools
import sqlite3
import sys
import sysconfig

import jsonschema_rs

SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif_schema():
    cache = pathlib.Path(sysconfig.get_path("purelib"), "schemastore", "cache.sqlite")
    for (response,) in sqlite3.connect(cache).execute("select value from responses"):
        # Nothing is unpickled: the body is the only string of bytes in a response, and its address is a string.
        values = [value for _, value, _ in pickletools.genops(response)]
        if SARIF not in values:
            continue
        body = next(value for value in values if isinstance(value, bytes))
        # The pattern of languages has a bracket too many to be a regular expression.
        return json.loads(body.replace(b"]?$", b"?$"))
    sys.exit(f"{cache} does not have {SARIF}")


def main(directory):
    own = json.loads(pathlib.Path("docs/check.schema.json").read_text())
    count = 0
    for kind, schema in (("json", own), ("sarif", sarif_schema())):
        validator = jsonschema_rs.validator_for(schema, validate_formats=True)
        for report in sorted(pathlib.Path(directory).glob(f"*.{kind}")):
            for error in validator.iter_errors(json.loads(report.read_text())):
                sys.exit(f"{report.name}: {error}")
            count += 1
    print(f"{count} reports are valid")
    if not count:
        sys.exit("there are no reports")


main(*sys.argv[1:])
