//! A report as JSON, of the schema in `docs/check.schema.json`.

use serde_json::{Value, json};

use crate::check::Finding;
use crate::check::report::{Report, file_and_line};

/// Changes if a member changes its meaning or disappears; members may be added without.
const VERSION: u32 = 1;

pub(super) fn text(report: &Report) -> String {
    let report = json!({
        "version": VERSION,
        "complete": report.is_complete(),
        "findings": report.findings().iter().map(finding).collect::<Vec<_>>(),
        "unchecked": report.unchecked,
        "skipped": report.skipped,
    });
    format!("{report:#}\n")
}

fn finding(finding: &Finding) -> Value {
    let place = finding.place.as_ref();
    let (file, line) = place.and_then(file_and_line).unzip();
    let remedies = finding.remedies.iter();
    let remedies = remedies.map(|remedy| json!({"sql": remedy.sql, "lock": remedy.lock}));
    let cost = finding
        .cost
        .map(|cost| json!({"bytes": cost.bytes, "bytesPerRow": cost.bytes_per_row}));
    json!({
        "id": finding.rule.id(),
        "severity": finding.severity.as_str(),
        "object": finding.object,
        "file": file,
        "line": line,
        "key": place.map(|place| &place.key),
        "reason": finding.reason,
        "plan": finding.plan_line,
        "remedies": Value::from_iter(remedies),
        "cost": cost,
        "unproven": finding.is_unproven,
    })
}
