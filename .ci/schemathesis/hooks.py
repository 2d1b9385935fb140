"""What OpenAPI can't say of a request that is to be accepted."""

import json
import re
import uuid
from urllib.parse import urlencode

import schemathesis

# Members that tell the objects of an array apart.
CHILD_KEYS = ("empNo", "id")
TOKEN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[0-9]{1,18}")
PAGE = ("limit", "after", "note")
# hyper refuses a URI of 64 KiB by itself, without a body; from 48 KiB on larder does, as documented.
QUERY_BYTES_MAX = 60 << 10


def without_repeated_keys(value, seen=None, level=()):
    """Leaves out objects whose key another object of their level has, in whichever array: they are rows of one table."""
    seen = set() if seen is None else seen
    if isinstance(value, dict):
        return {name: without_repeated_keys(member, seen, (*level, name)) for name, member in value.items()}
    if not isinstance(value, list):
        return value
    kept = []
    for item in value:
        if isinstance(item, dict):
            # 7 and 7.0 are equal, so they are one key here too.
            keys = {(level, name, item[name]) for name in CHILD_KEYS if isinstance(item.get(name), (int, float, str))}
            if keys & seen:
                continue
            seen |= keys
        kept.append(without_repeated_keys(item, seen, level))
    return kept


def with_plain_numbers(value):
    """42.0 is an integer to JSON Schema; in a list of keys larder takes only 42."""
    if isinstance(value, dict):
        return {name: with_plain_numbers(member) for name, member in value.items()}
    if isinstance(value, list):
        return [with_plain_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@schemathesis.hook
def filter_query(context, query):
    return len(urlencode(query or {}, doseq=True, errors="replace")) <= QUERY_BYTES_MAX


@schemathesis.hook
def before_call(context, case, **kwargs):
    if case.meta is None:
        return
    if not case.meta.generation.mode.is_positive:
        # What is no number may still be a value of the alias, which no schema can say.
        if case.path in ("/regions", "/regions:batch") and case.query.get("by") == "title":
            case.query.pop("by")
        return
    # Values are drawn that are of no pattern, and more than once: one key for two requests is refused.
    if not TOKEN.fullmatch(str(case.headers.get("Larder-Token", ""))):
        case.headers.pop("Larder-Token", None)
    if "Idempotency-Key" in case.headers:
        case.headers["Idempotency-Key"] = str(uuid.uuid4())
    # It is for one document.
    if isinstance(case.body, list):
        case.headers.pop("Idempotency-Key", None)
    # An empty list of repeated parameters is sent as none.
    if case.query.get("key") == []:
        case.query.pop("key")
    # Documents are asked for by their keys or as a page.
    if "keys" in case.query or "key" in case.query:
        for name in PAGE:
            case.query.pop(name, None)
    # A thousand of each are too many together.
    if "keys" in case.query:
        case.query.pop("key", None)
    # Keys of any text are values of the alias.
    if case.path in ("/regions", "/regions:batch"):
        case.query.pop("by", None)
        if case.path.endswith(":batch") or "keys" in case.query or "key" in case.query:
            case.query["by"] = "title"
    case.body = without_repeated_keys(case.body)
    if case.path.endswith(":batch"):
        case.body = with_plain_numbers(case.body)


@schemathesis.serializer("application/x-ndjson")
def to_lines(ctx, value):
    # What is no list must stay wrong.
    lines = value if isinstance(value, list) else [[value]]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


@schemathesis.deserializer("application/x-ndjson")
def from_lines(ctx, response):
    return [json.loads(line) for line in response.content.splitlines()]
