//! A report as workflow commands of GitHub Actions (docs.github.com, "Workflow commands"), which annotate lines of files.

use crate::check::report::{Report, file_and_line};
use crate::check::{Finding, Severity};
use crate::unseen::escaped;

pub(super) fn text(report: &Report) -> String {
    let findings = report.findings().iter().map(annotation);
    let unchecked = report.unchecked.iter().map(|unchecked| {
        let message = format!(
            "{}: {}",
            escaped(&unchecked.name),
            escaped(&unchecked.reason)
        );
        format!("::warning title=not checked::{}\n", escaped_data(&message))
    });
    findings.chain(unchecked).collect()
}

fn annotation(finding: &Finding) -> String {
    let command = match finding.severity {
        Severity::Info => "notice",
        Severity::Warning => "warning",
        Severity::Error => "error",
    };
    let place = finding.place.as_ref().and_then(file_and_line);
    let place = place.map(|(file, line)| format!("file={},line={line},", escaped_property(file)));
    let sql = finding.remedies.iter().map(|remedy| &*remedy.sql);
    let message = format!("{}: {}", escaped(&finding.object), escaped(&finding.reason));
    let message: Vec<&str> = std::iter::once(message.as_str()).chain(sql).collect();
    format!(
        "::{command} {}title={}::{}\n",
        place.unwrap_or_default(),
        finding.rule,
        escaped_data(&message.join("\n"))
    )
}

fn escaped_data(text: &str) -> String {
    text.replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

fn escaped_property(text: &str) -> String {
    escaped_data(text).replace(':', "%3A").replace(',', "%2C")
}
