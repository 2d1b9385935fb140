//! The state as a table: what is wrong first, then feed, tiers, change log, nodes and resources, or dispatches.
//!
//! A larder of another version may send other members: those that are missing are left out.

use serde_json::Value;

use crate::commands::status::units::{bytes, share, span};
use crate::unseen::escaped;

/// The `title`, and below it the JSON of `/status` for people.
pub(super) fn text(title: &str, status: &Value) -> String {
    let mut lines = vec![title.to_owned()];
    lines.extend(faults(status));
    lines.push(String::new());
    lines.extend(feed(&status["feed"]));
    lines.extend(source(status));
    lines.extend(change_log(&status["feed"]["log"]));
    lines.extend(nodes(&status["feed"]["log"]));
    lines.extend(started(status));
    let tables = [tiers(status), resources(status), dispatches(status)];
    for table in tables.into_iter().filter(|table| table.len() > 1) {
        lines.push(String::new());
        lines.extend(table);
    }
    lines.push(String::new());
    lines.join("\n")
}

/// What is wrong, the worst first.
fn faults(status: &Value) -> Vec<String> {
    let faults = status["faults"].as_array().into_iter().flatten();
    let lines = faults.flat_map(|fault| {
        let severity = string(&fault["severity"]).unwrap_or_default();
        let message = string(&fault["message"]).unwrap_or_default();
        let lasting = fault["seconds"].as_f64();
        let lasting = lasting.map(|seconds| format!(" (for {})", span(seconds)));
        let remedy = string(&fault["remedy"]);
        let first = format!(
            "{:<8} {message}{}",
            severity.to_uppercase(),
            lasting.unwrap_or_default()
        );
        [first]
            .into_iter()
            .chain(remedy.map(|remedy| format!("{:<8} {remedy}", "")))
    });
    lines.collect()
}

fn feed(feed: &Value) -> Option<String> {
    let fresh = feed["fresh"].as_bool()?;
    let mut parts = vec![if fresh { "fresh" } else { "behind" }.to_owned()];
    let age = feed["age_seconds"].as_f64();
    parts.extend(age.map(|age| format!("last pass {} ago", span(age))));
    parts.extend(string(&feed["position"]).map(|position| format!("position {position}")));
    parts.extend(string(&feed["lost"]).map(|reason| format!("lost: {reason}")));
    Some(line("feed", &parts))
}

fn source(status: &Value) -> Option<String> {
    let source = status["source"].as_object()?;
    let lost = |name: &str| source.get(name).and_then(string);
    let mut parts = Vec::new();
    let feed_lost = status["feed"]["lost"].is_string();
    match (lost("reads_lost"), lost("writes_lost")) {
        // Requests may not have needed PostgreSQL since then.
        (None, None) if feed_lost => {
            parts.push("reads and writes are not known to fail".to_owned())
        }
        (None, None) => parts.push("reads and writes work".to_owned()),
        (reads, writes) => {
            parts.extend(reads.map(|reason| format!("reads are lost: {reason}")));
            parts.extend(writes.map(|reason| format!("writes are lost: {reason}")));
        }
    }
    let pools = status["source"]["connections"]
        .as_array()
        .into_iter()
        .flatten();
    parts.extend(pools.map(|pool| {
        let name = string(&pool["pool"]).unwrap_or_default();
        let number = |member: &str| shown(pool[member].as_u64());
        format!(
            "{name}: {} connections used, {} idle",
            number("used"),
            number("idle")
        )
    }));
    let waiting = status["source_waiting_keys"].as_u64();
    parts.extend(waiting.map(|keys| format!("{keys} keys wait")));
    Some(line("PostgreSQL", &parts))
}

fn change_log(log: &Value) -> Option<String> {
    let mut parts = vec![bytes(log["bytes"].as_u64()?)];
    let rows = log["rows_estimated"].as_u64();
    parts.extend(rows.map(|rows| format!("about {rows} rows")));
    let node = &log["oldest_node"];
    if let (Some(name), Some(seen)) = (string(&node["name"]), node["seen_seconds_ago"].as_f64()) {
        parts.push(format!("kept for {name}, seen {} ago", span(seen)));
    }
    let transaction = &log["oldest_transaction"];
    if let Some(age) = transaction["age_seconds"].as_f64() {
        let process = transaction["pid"]
            .as_i64()
            .map(|pid| format!("of process {pid}"));
        let prepared = string(&transaction["prepared"]).map(|name| format!("prepared as {name}"));
        let which = process.or(prepared).unwrap_or_default();
        parts.push(format!("oldest transaction {which}: {}", span(age)));
    }
    Some(line("change log", &parts))
}

fn nodes(log: &Value) -> Option<String> {
    let nodes = log["other_nodes"].as_array()?.iter();
    let nodes: Vec<String> = nodes
        .map(|node| {
            let name = string(&node["name"]).unwrap_or_default();
            let version = string(&node["version"]);
            let version = version.map(|version| format!(", version {version}"));
            let seen = node["seen_seconds_ago"].as_f64();
            let seen = seen.map(|seen| format!(", seen {} ago", span(seen)));
            [Some(name), version, seen].into_iter().flatten().collect()
        })
        .collect();
    (!nodes.is_empty()).then(|| format!("{:<11} {}", "other nodes", nodes.join("; ")))
}

fn started(status: &Value) -> Option<String> {
    let version = string(&status["version"]).map(|version| format!("version {version}"));
    let started = status["started_seconds_ago"].as_f64();
    let started = started.map(|ago| format!("started {} ago", span(ago)));
    let changed = &status["definition_changed"];
    let changed_ago = changed["seconds_ago"].as_f64();
    let changed = string(&changed["resource"]).zip(changed_ago);
    let changed = changed.map(|(resource, ago)| format!("{resource} changed {} ago", span(ago)));
    let parts: Vec<String> = [version, started, changed].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| line("larder", &parts))
}

/// A row for each tier, below their heads.
fn tiers(status: &Value) -> Vec<String> {
    let heads = ["tier", "in use", "entries", "bytes", "max", "hits"];
    let mut rows = vec![heads.map(ToOwned::to_owned).to_vec()];
    for name in ["memory", "disk"] {
        let tier = &status[name];
        if let Some(in_use) = tier["in_use"].as_bool() {
            let number = |member: &str| tier[member].as_u64();
            rows.push(vec![
                name.to_owned(),
                yes_or_no(in_use),
                shown(number("entries")),
                number("bytes").map_or_else(unknown, bytes),
                number("bytes_max").map_or_else(unknown, bytes),
                shown(number("hits")),
            ]);
        }
    }
    columns(&rows)
}

/// A line for each resource below their heads, those that are not ready first with the reason.
fn resources(status: &Value) -> Vec<String> {
    let mut resources: Vec<&Value> = status["resources"]
        .as_array()
        .into_iter()
        .flatten()
        .collect();
    resources.sort_by_key(|resource| resource["ready"].as_bool());
    let heads = [
        "resource",
        "ready",
        "lookups",
        "hit ratio",
        "in memory",
        "5xx",
    ];
    let mut rows = vec![heads.map(ToOwned::to_owned).to_vec()];
    let mut reasons = vec![None];
    for resource in resources {
        let number = |member: &str| resource[member].as_u64();
        let hits = number("hits_memory").unwrap_or(0) + number("hits_disk").unwrap_or(0);
        rows.push(vec![
            string(&resource["name"]).unwrap_or_default(),
            resource["ready"].as_bool().map_or_else(unknown, yes_or_no),
            shown(number("lookups")),
            share(hits, number("lookups").unwrap_or(0)),
            shown(number("memory_entries")),
            shown(number("server_errors")),
        ]);
        let uncached = string(&resource["uncached"]);
        let uncached = uncached.map(|reason| format!("not cached: {reason}"));
        reasons.push(string(&resource["unfit"]).or(uncached));
    }
    let lines = columns(&rows).into_iter().zip(reasons);
    lines
        .map(|(line, reason)| match reason {
            Some(reason) => format!("{line}  {reason}"),
            None => line,
        })
        .collect()
}

/// A line for each dispatch below their heads.
fn dispatches(status: &Value) -> Vec<String> {
    let heads = [
        "dispatch",
        "state",
        "breaker",
        "slots",
        "lag",
        "rows/s",
        "delivered",
        "dead letters",
    ];
    let mut rows = vec![heads.map(ToOwned::to_owned).to_vec()];
    for dispatch in status["dispatches"].as_array().into_iter().flatten() {
        let is = |member: &str| dispatch[member].as_bool() == Some(true);
        let state = if is("gone") {
            "gone"
        } else if is("paused") {
            "paused"
        } else {
            "running"
        };
        // Without an index on the due moment no lag is known.
        let lag = dispatch["lag_seconds"]
            .as_f64()
            .filter(|_| is("due_indexed"));
        let rate = dispatch["rate"].as_f64();
        rows.push(vec![
            string(&dispatch["name"]).unwrap_or_default(),
            state.to_owned(),
            string(&dispatch["breaker"]).unwrap_or_else(unknown),
            shown(dispatch["slots"].as_u64()),
            lag.map_or_else(unknown, span),
            rate.map_or_else(unknown, |rate| format!("{rate:.0}")),
            shown(dispatch["delivered"].as_u64()),
            shown(dispatch["database"]["dead_letters"].as_u64()),
        ]);
    }
    columns(&rows)
}

/// The rows with their cells below each other: the first column begins, others end at one place.
fn columns(rows: &[Vec<String>]) -> Vec<String> {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(place, (cell, &width))| match place {
            0 => format!("{cell:<width$}"),
            _ => format!("  {cell:>width$}"),
        });
        cells.collect()
    };
    rows.iter().map(line).collect()
}

fn line(name: &str, parts: &[String]) -> String {
    format!("{name:<11} {}", parts.join(", "))
}

fn string(value: &Value) -> Option<String> {
    value.as_str().map(escaped)
}

fn shown(number: Option<u64>) -> String {
    number.map_or_else(unknown, |number| number.to_string())
}

fn yes_or_no(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}

fn unknown() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_wrong_comes_first() {
        let status = json!({
            "faults": [{"severity": "error", "message": "It \u{1b}[2J broke", "remedy": "Mend it.", "seconds": 61.0}],
            "feed": {"position": "7:7:", "age_seconds": 0.012, "fresh": true, "lost": null, "log": {
                "bytes": 2048, "rows_estimated": 3,
                "oldest_node": {"name": "n", "seen_seconds_ago": 2.0, "position": "7:7:"},
                "oldest_transaction": {"pid": 12, "prepared": null, "age_seconds": 5.0},
                "other_nodes": [{"name": "m", "seen_seconds_ago": 3.0}]}},
            "source": {"reads_lost": null, "writes_lost": "no host",
                       "connections": [{"pool": "reads", "used": 1, "idle": 2}]},
            "source_waiting_keys": 4,
            "memory": {"in_use": true, "entries": 10, "bytes": 1024, "bytes_max": 4096, "hits": 9},
            "disk": null,
            "resources": [
                {"name": "depts", "ready": true, "unfit": null, "uncached": null, "lookups": 10, "hits_memory": 9,
                 "hits_disk": 0, "memory_entries": 10, "server_errors": 3},
                {"name": "x", "ready": false, "unfit": "no table", "uncached": null, "lookups": 0, "hits_memory": 0,
                 "hits_disk": 0, "memory_entries": 0}]
        });
        let expected = "\
larder at a: not ready
ERROR    It \\u{1b}[2J broke (for 1m 1s)
         Mend it.

feed        fresh, last pass 12 ms ago, position 7:7:
PostgreSQL  writes are lost: no host, reads: 1 connections used, 2 idle, 4 keys wait
change log  2.0 KiB, about 3 rows, kept for n, seen 2.0 s ago, oldest transaction of process 12: 5.0 s
other nodes m, seen 3.0 s ago

tier    in use  entries    bytes      max  hits
memory     yes       10  1.0 KiB  4.0 KiB     9

resource  ready  lookups  hit ratio  in memory  5xx
x            no        0          -          0    -  no table
depts       yes       10     90.0 %         10    3
";
        assert_eq!(text("larder at a: not ready", &status), expected);
    }

    #[test]
    fn dispatches_are_a_table_of_their_own() {
        let status = json!({
            "version": "1.2.3", "started_seconds_ago": 3.0,
            "dispatches": [
                {"name": "subscribers", "paused": true, "breaker": "closed", "gone": false, "slots": 4, "lag_seconds": 61.0,
                 "due_indexed": true, "delivered": 1234, "rate": 99.6, "database": {"dead_letters": 2}},
                {"name": "b", "paused": false, "breaker": "half-open", "gone": false, "slots": 0, "lag_seconds": 0.0,
                 "due_indexed": false, "delivered": 0, "rate": 0.0}]
        });
        let expected = "\
larder at a: ready

larder      version 1.2.3, started 3.0 s ago

dispatch       state    breaker  slots    lag  rows/s  delivered  dead letters
subscribers   paused     closed      4  1m 1s     100       1234             2
b            running  half-open      0      -       0          0             -
";
        assert_eq!(text("larder at a: ready", &status), expected);
    }

    /// Reads are known to be lost when one has failed.
    #[test]
    fn while_the_feed_is_lost_reads_are_not_said_to_work() {
        let told = |lost: Option<&str>| {
            text(
                "t",
                &json!({"feed": {"fresh": true, "lost": lost}, "source": {}}),
            )
        };
        assert!(told(None).contains("\nPostgreSQL  reads and writes work\n"));
        let told = told(Some("refused"));
        assert!(
            told.contains("\nPostgreSQL  reads and writes are not known to fail\n"),
            "{told}"
        );
    }

    #[test]
    fn members_may_be_missing() {
        let text = text(
            "t",
            &json!({"feed": {"fresh": false, "log": null}, "resources": [{"name": "a"}]}),
        );
        assert!(text.contains("feed        behind\n"), "{text}");
        assert!(
            text.contains("a             -        -          -          -    -\n"),
            "{text}"
        );
    }
}
