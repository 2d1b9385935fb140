//! A report for people.

use bytesize::ByteSize;

use crate::check::report::{Report, file_and_line};
use crate::check::{Finding, Severity};
use crate::unseen::escaped;

/// A longer statement is not shown.
const LINES_MAX: usize = 12;

pub(super) fn text(report: &Report) -> String {
    let mut text = String::new();
    for finding in report.findings() {
        add(&mut text, finding);
    }
    for unchecked in &report.unchecked {
        text.push_str(&format!(
            "not checked: {}: {}\n",
            escaped(&unchecked.name),
            escaped(&unchecked.reason)
        ));
    }
    for skipped in &report.skipped {
        text.push_str(&format!(
            "skipped: {}; {}\n",
            escaped(&skipped.name),
            escaped(&skipped.grant)
        ));
    }
    let count = |severity| {
        let findings = report.findings().iter();
        findings
            .filter(|finding| finding.severity == severity)
            .count()
    };
    text.push_str(&format!(
        "errors: {}, warnings: {}, infos: {}, not checked: {}\n",
        count(Severity::Error),
        count(Severity::Warning),
        count(Severity::Info),
        report.unchecked.len()
    ));
    text
}

fn add(text: &mut String, finding: &Finding) {
    let place = finding.place.as_ref().and_then(file_and_line);
    let place = place.map(|(file, line)| format!(" ({file}:{line})"));
    text.push_str(&format!(
        "{} {} {}{}: {}\n",
        finding.severity.as_str(),
        finding.rule,
        escaped(&finding.object),
        place.unwrap_or_default(),
        escaped(&finding.reason)
    ));
    if let Some(line) = &finding.plan_line {
        text.push_str(&format!("  plan: {}\n", escaped(line)));
    }
    if let Some(cost) = finding.cost {
        text.push_str(&format!(
            "  cost: {}, and {} for each row that is written\n",
            ByteSize(cost.bytes),
            ByteSize(cost.bytes_per_row)
        ));
    }
    if finding.is_unproven {
        text.push_str("  unproven: no hypothetical index was tried\n");
    }
    for remedy in &finding.remedies {
        let lines = remedy.sql.lines().count();
        if lines > LINES_MAX {
            text.push_str(&format!("  {lines} lines of SQL: see --format sql\n"));
            continue;
        }
        for line in remedy.sql.lines() {
            text.push_str(&format!("  {line}\n"));
        }
        if let Some(lock) = remedy.lock {
            text.push_str(&format!("  -- takes {lock}\n"));
        }
    }
    text.push('\n');
}
