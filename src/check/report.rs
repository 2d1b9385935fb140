//! The report of `larder check` in its formats.

mod github;
mod human;
mod json;
mod sarif;
mod sql;

use serde::Serialize;

use crate::check::{Finding, Ignored, Rule, Severity};
use crate::resource::definition::Place;
use crate::resource::sql::printable;
use crate::unseen::escaped_json;

/// What a check has found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    findings: Vec<Finding>,
    /// What could not be checked.
    pub unchecked: Vec<Unchecked>,
    /// What larder's role may not see.
    pub skipped: Vec<Skipped>,
}

/// Something that could not be checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unchecked {
    /// What it is: the name of a statement, of a rule.
    pub name: String,
    /// What leads to it.
    #[serde(skip)]
    pub place: Option<Place>,
    /// Why.
    pub reason: String,
}

/// Something that was left out, since larder's role may not see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// What it is.
    pub name: String,
    /// The statement that would let larder's role see it.
    pub grant: String,
}

/// How a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Human,
    /// An object of the schema in docs/check.schema.json.
    Json,
    /// SARIF 2.1.0 (OASIS).
    Sarif,
    /// Workflow commands of GitHub Actions, which annotate lines.
    Github,
    /// The statements alone, for psql.
    Sql,
}

impl Report {
    /// Adds findings.
    pub fn add(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.findings.extend(findings);
    }

    /// Leaves out what is `ignored`, and brings the rest into the order in which it is reported: errors first, then by rule,
    /// object and reason. Equal findings are reported once, and SQL has no characters that are not seen.
    pub fn finish(&mut self, ignored: &[Ignored]) {
        let is_reported =
            |finding: &Finding| !ignored.iter().any(|ignored| ignored.covers(finding));
        self.findings.retain(is_reported);
        // What has to be installed stays in the order in which it can be.
        let object = |finding: &Finding| match finding.rule {
            Rule::Triggers => None,
            _ => Some((finding.object.clone(), finding.reason.clone())),
        };
        let key = |finding: &Finding| {
            (
                std::cmp::Reverse(finding.severity),
                finding.rule,
                object(finding),
            )
        };
        self.findings.sort_by_cached_key(key);
        self.findings.dedup();
        let findings = self.findings.iter_mut();
        let remedies = findings.flat_map(|finding| &mut finding.remedies);
        let grants = self.skipped.iter_mut().map(|skipped| &mut skipped.grant);
        for sql in remedies.map(|remedy| &mut remedy.sql).chain(grants) {
            *sql = printable(sql);
        }
    }

    /// Those that were found.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Whether all could be checked.
    pub fn is_complete(&self) -> bool {
        self.unchecked.is_empty()
    }

    /// Whether a finding is at least as bad as `severity`.
    pub fn has(&self, severity: Severity) -> bool {
        let mut findings = self.findings.iter();
        findings.any(|finding| finding.severity >= severity)
    }

    /// The report as `format` has it.
    pub fn text(&self, format: Format) -> String {
        match format {
            Format::Human => human::text(self),
            Format::Json => escaped_json(&json::text(self)).into_owned(),
            Format::Sarif => escaped_json(&sarif::text(self)).into_owned(),
            Format::Github => github::text(self),
            Format::Sql => sql::text(self),
        }
    }
}

/// The file and the line of a place, if it is in a file.
fn file_and_line(place: &Place) -> Option<(&str, usize)> {
    (place.line > 0).then_some((&*place.origin, place.line))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use clap::ValueEnum;
    use serde_json::Value;

    use super::*;
    use crate::check::{IndexCost, Remedy};
    use crate::unseen::is_unseen;

    fn report() -> Report {
        let mut report = Report::default();
        let finding = |rule, severity, object: &str| {
            Finding::new(rule, severity, object.to_owned(), "it is slow".to_owned())
        };
        report.add([
            finding(Rule::UnusedIndex, Severity::Info, "public.b"),
            finding(Rule::MissingIndex, Severity::Warning, "public.it's, a\nb%"),
            finding(Rule::Rights, Severity::Error, "public.c"),
            finding(Rule::Rights, Severity::Error, "public.c"),
        ]);
        report.findings[1].place = Some(Place {
            origin: Arc::from("shop,1.toml"),
            line: 7,
            key: "resource[0]".to_owned(),
        });
        report.findings[1].plan_line = Some("Seq Scan on b".to_owned());
        report.findings[1].remedies = vec![Remedy {
            sql: "create index concurrently on b (a);".to_owned(),
            lock: Some("SHARE UPDATE EXCLUSIVE"),
        }];
        report.findings[1].cost = Some(IndexCost {
            bytes: 3 << 20,
            bytes_per_row: 24,
        });
        report.unchecked.push(Unchecked {
            name: "list".to_owned(),
            place: None,
            reason: "timeout".to_owned(),
        });
        report.finish(&[]);
        report
    }

    #[test]
    fn the_worst_comes_first_and_once() {
        let report = report();
        let rules: Vec<Rule> = report.findings.iter().map(|finding| finding.rule).collect();
        assert_eq!(rules, [Rule::Rights, Rule::MissingIndex, Rule::UnusedIndex]);
        assert!(report.has(Severity::Error) && report.has(Severity::Info));
        assert!(!report.is_complete());
    }

    #[test]
    fn what_is_ignored_is_left_out() {
        let ignored = |text: &str| {
            let mut report = report();
            report.finish(&[Ignored::parse(text).unwrap()]);
            report.findings.len()
        };
        assert_eq!(ignored("rights"), 2);
        assert_eq!(ignored("rights:public.c"), 2);
        assert_eq!(ignored("rights:public.d"), 3);
        assert!(Ignored::parse("right").unwrap_err().contains("no rule"));
    }

    #[test]
    fn github_escapes_what_would_end_a_command() {
        let text = report().text(Format::Github);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[0].starts_with("::error title=rights::"));
        assert!(lines[1].starts_with("::warning file=shop%2C1.toml,line=7,title=missing-index::"));
        assert!(lines[1].contains(r"a\nb%25"));
    }

    #[test]
    fn json_and_sarif_name_each_finding() {
        let json: Value = serde_json::from_str(&report().text(Format::Json)).unwrap();
        assert_eq!(json["version"], 1);
        assert_eq!(json["complete"], false);
        assert_eq!(json["findings"][1]["line"], 7);
        assert_eq!(json["findings"][1]["cost"]["bytes"], 3 << 20);
        let sarif: Value = serde_json::from_str(&report().text(Format::Sarif)).unwrap();
        let run = &sarif["runs"][0];
        assert_eq!(sarif["version"], "2.1.0");
        assert_eq!(run["results"].as_array().unwrap().len(), 3);
        let result = &run["results"][1];
        let rule = result["ruleIndex"].as_u64().unwrap() as usize;
        assert_eq!(run["tool"]["driver"]["rules"][rule]["id"], result["ruleId"]);
        let again: Value = serde_json::from_str(&report().text(Format::Sarif)).unwrap();
        assert_eq!(
            result["partialFingerprints"],
            again["runs"][0]["results"][1]["partialFingerprints"]
        );
    }

    #[test]
    fn names_do_not_control_a_terminal() {
        let name = "a\nb\u{1b}[2Jc\u{9b}\u{202e}";
        let mut report = Report::default();
        let mut finding = Finding::new(Rule::Rights, Severity::Error, name.into(), name.into());
        finding.plan_line = Some(name.to_owned());
        let sql = format!("grant select on \"{name}\" to b;");
        finding.remedies.push(Remedy { sql, lock: None });
        report.add([finding]);
        report.unchecked.push(Unchecked {
            name: name.to_owned(),
            place: None,
            reason: name.to_owned(),
        });
        report.skipped.push(Skipped {
            name: name.to_owned(),
            grant: format!("grant usage on schema \"{name}\" to b;"),
        });
        report.finish(&[]);
        for format in Format::value_variants() {
            let text = report.text(*format);
            let is_obeyed = |c: char| c != '\n' && is_unseen(c);
            assert!(!text.contains(is_obeyed), "{format:?}: {text:?}");
            let is_forged = |line: &str| line.starts_with('b');
            assert!(!text.lines().any(is_forged), "{format:?}: {text}");
        }
    }

    #[test]
    fn two_mistakes_of_one_line_have_different_fingerprints() {
        let mistake = |reason: &str| {
            let key = "resource[0].table".to_owned();
            let finding = Finding::new(Rule::Unfit, Severity::Error, key, reason.to_owned());
            let mut report = Report::default();
            report.add([finding]);
            let sarif: Value = serde_json::from_str(&report.text(Format::Sarif)).unwrap();
            sarif["runs"][0]["results"][0]["partialFingerprints"].clone()
        };
        assert_eq!(mistake("it has no key"), mistake("it has no key"));
        assert_ne!(mistake("it has no key"), mistake("it is a view"));
    }

    /// psql runs what is no comment.
    #[test]
    fn sql_has_nothing_but_comments_and_statements() {
        let text = report().text(Format::Sql);
        let mut rest = text
            .lines()
            .filter(|line| !line.starts_with("--") && !line.is_empty());
        assert_eq!(rest.next(), Some("create index concurrently on b (a);"));
        assert_eq!(rest.next(), None);
    }

    #[test]
    fn people_read_plan_statement_and_cost() {
        let text = report().text(Format::Human);
        for part in [
            "shop,1.toml:7",
            "Seq Scan on b",
            "3.0 MiB",
            "24 B",
            "list: timeout",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
