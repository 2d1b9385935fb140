//! A report as SARIF, the Static Analysis Results Interchange Format 2.1.0 (OASIS, 2020).

use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use crate::check::report::{Report, file_and_line};
use crate::check::{Finding, Rule, Severity};

/// The schema that the standard names.
const SCHEMA: &str =
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json";

pub(super) fn text(report: &Report) -> String {
    let rules = Rule::ALL.map(|rule| {
        json!({
            "id": rule.id(),
            "shortDescription": {"text": rule.summary()}
        })
    });
    let unchecked = report.unchecked.iter().map(|unchecked| {
        json!({
            "level": "warning",
            "message": {"text": format!("not checked: {}: {}", unchecked.name, unchecked.reason)}
        })
    });
    let sarif = json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "larder",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules
            }},
            "invocations": [{
                "executionSuccessful": report.is_complete(),
                "toolExecutionNotifications": Value::from_iter(unchecked)
            }],
            "results": report.findings().iter().map(result).collect::<Vec<_>>()
        }]
    });
    format!("{sarif:#}\n")
}

fn result(finding: &Finding) -> Value {
    let level = match finding.severity {
        Severity::Info => "note",
        Severity::Warning => "warning",
        Severity::Error => "error",
    };
    let index = Rule::ALL.iter().position(|rule| *rule == finding.rule);
    let place = finding.place.as_ref().and_then(file_and_line);
    let physical = place.map(|(file, line)| {
        json!({
            "artifactLocation": {"uri": uri(file)},
            "region": {"startLine": line}
        })
    });
    let mut location = json!({
        "logicalLocations": [{"fullyQualifiedName": finding.object}]
    });
    if let Some(physical) = physical {
        location["physicalLocation"] = physical;
    }
    json!({
        "ruleId": finding.rule.id(),
        "ruleIndex": index,
        "level": level,
        "message": {"text": message(finding)},
        "locations": [location],
        "partialFingerprints": {"larder/v1": fingerprint(finding)}
    })
}

fn message(finding: &Finding) -> String {
    let sql = finding.remedies.iter().map(|remedy| &*remedy.sql);
    let parts = [format!("{}: {}", finding.object, finding.reason)];
    let parts = parts.iter().map(String::as_str);
    let plan = finding.plan_line.as_deref();
    parts.chain(plan).chain(sql).collect::<Vec<_>>().join("\n")
}

/// The same for a finding whatever the line is at which it is found, and whatever the statistics say. Nothing but their text tells
/// two mistakes of one key apart.
fn fingerprint(finding: &Finding) -> String {
    let sql = finding.remedies.iter().map(|remedy| &*remedy.sql);
    let parts = [finding.rule.id(), &finding.object];
    let mistake = (finding.rule == Rule::Unfit).then_some(finding.reason.as_str());
    let parts: Vec<&str> = parts.into_iter().chain(sql).chain(mistake).collect();
    format!("{:016x}", xxh3_64(parts.join("\0").as_bytes()))
}

/// A relative reference, or for an absolute path a URL.
fn uri(file: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let encoded = |byte: u8| {
        if plain(byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    let path: String = file.bytes().map(encoded).collect();
    if path.starts_with('/') {
        format!("file://{path}")
    } else {
        path
    }
}
