//! The files of `contrib`, and what of them is changed so that a check takes seconds.

use anyhow::{Context, ensure};
use serde_json::Value;

pub(super) const RULES: &str = include_str!("../../../../contrib/prometheus/rules.yml");
pub(super) const TESTS: &str = include_str!("../../../../contrib/prometheus/rules.test.yml");
const DASHBOARD: &str = include_str!("../../../../contrib/grafana/larder.json");

/// A range of samples: several scrapes.
const RANGE: &str = "[6s]";
/// How long a condition has to last.
const LASTING: &str = "for: 2s";

/// What would take too long: a feed without passes for 10 s, and a log of 256 MiB.
const LIMITS: [(&str, &str); 2] = [
    (
        "larder_feed_age_seconds > 10",
        "larder_feed_age_seconds > 3",
    ),
    (
        "larder_change_log_bytes > 268435456",
        "larder_change_log_bytes > 1048576",
    ),
];

/// A query of the dashboard.
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) query: String,
}

/// The rules with short times.
///
/// # Errors
/// A limit of [`LIMITS`] is not in them.
pub(super) fn hastened(rules: &str) -> anyhow::Result<String> {
    let lines = rules.lines().map(|line| {
        let indent = line.len() - line.trim_start().len();
        let text = match line.trim_start() {
            text if text.starts_with("for: ") => LASTING.to_owned(),
            text => with_ranges(text),
        };
        format!("{}{text}\n", " ".repeat(indent))
    });
    let mut text: String = lines.collect();
    for (limit, lower) in LIMITS {
        ensure!(text.contains(limit), "no rule has {limit}");
        text = text.replace(limit, lower);
    }
    Ok(text)
}

/// Replaces ranges such as `[15m]`.
fn with_ranges(text: &str) -> String {
    let mut replaced = String::new();
    let mut rest = text;
    while let Some((before, range)) = rest.split_once('[') {
        replaced.push_str(before);
        let (duration, after) = range.split_once(']').unwrap_or((range, ""));
        let is_duration = duration.ends_with(['s', 'm', 'h'])
            && duration.starts_with(|first: char| first.is_ascii_digit());
        if is_duration {
            replaced.push_str(RANGE);
        } else {
            replaced.push('[');
            replaced.push_str(&range[..range.len() - after.len()]);
        }
        rest = after;
    }
    replaced.push_str(rest);
    replaced
}

/// All queries of the dashboard, for every instance.
pub(super) fn panels() -> anyhow::Result<Vec<Panel>> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).context("larder.json")?;
    let panels = dashboard["panels"].as_array().context("no panels")?;
    let mut queries = Vec::new();
    for panel in panels {
        let title = panel["title"].as_str().context("a panel without a title")?;
        let Some(targets) = panel["targets"].as_array() else {
            ensure!(panel["type"] == "row", "{title} has no query");
            continue;
        };
        for target in targets {
            let query = target["expr"].as_str().context(title.to_owned())?;
            let query = query.replace("[$__rate_interval]", RANGE);
            let query = with_ranges(&query.replace("$instance", ".*"));
            ensure!(
                !query.contains('$'),
                "{title} has an unknown variable: {query}"
            );
            queries.push(Panel {
                title: title.to_owned(),
                query,
            });
        }
    }
    Ok(queries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shortened_and_nothing_else() {
        let rules = "  - alert: A\n    expr: rate(a[5m]) > b[1] and rate(c[1h]) > 10\n    for: 15m\n    x: resources[].y\n";
        let text = format!("{rules}{}\n{}\n", LIMITS[0].0, LIMITS[1].0);
        let hastened = hastened(&text).unwrap();
        let expected = "  - alert: A\n    expr: rate(a[6s]) > b[1] and rate(c[6s]) > 10\n    for: 2s\n    x: resources[].y\n";
        assert_eq!(
            hastened,
            format!("{expected}{}\n{}\n", LIMITS[0].1, LIMITS[1].1)
        );
    }

    #[test]
    fn the_files_are_understood() {
        let rules = hastened(RULES).unwrap();
        assert!(!rules.contains("m]") && !rules.contains("h]"), "{rules}");
        assert!(panels().unwrap().len() > 30);
    }
}
