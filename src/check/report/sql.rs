//! The statements of a report, for psql.

use crate::check::report::Report;
use crate::unseen::escaped;

pub(super) fn text(report: &Report) -> String {
    let mut text = String::from("-- Run it with psql, outside of a transaction.\n");
    for finding in report.findings() {
        text.push_str(&format!(
            "\n-- {} {}: {}\n",
            finding.rule,
            escaped(&finding.object),
            escaped(&finding.reason)
        ));
        for remedy in &finding.remedies {
            if let Some(lock) = remedy.lock {
                text.push_str(&format!("-- takes {lock}\n"));
            }
            text.push_str(remedy.sql.trim_end());
            text.push('\n');
        }
    }
    for unchecked in &report.unchecked {
        text.push_str(&format!(
            "-- not checked: {}: {}\n",
            escaped(&unchecked.name),
            escaped(&unchecked.reason)
        ));
    }
    text
}
