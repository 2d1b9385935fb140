//! `larder explain`: what the tiers of a running larder know of one key, through its admin address.

use std::io::Write;

use anyhow::Context;
use hyper::Method;
use serde_json::Value;

use crate::cli::ExplainArgs;
use crate::commands::admin::{AdminClient, document_path};
use crate::commands::output::print;
use crate::commands::status::units::{bytes, span};
use crate::config::Config;
use crate::unseen::escaped;

/// Prints what the tiers know of the key, to `out`.
///
/// # Errors
/// [`ConfigError`](crate::config::ConfigError) for a token that can't be read; no response, or one that refuses.
pub async fn run(config: &Config, args: &ExplainArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let path = document_path("explain", &args.resource, Some(&args.key));
    let client = AdminClient::new(config)?;
    let answer = client.request(Method::GET, &path).await?;
    let explanation = serde_json::from_str(&answer);
    let explanation = explanation.context("the admin address answers no JSON")?;
    print(out, &text(&explanation))?;
    Ok(())
}

/// A line for each thing that is known. Members that the larder does not send are left out.
fn text(explanation: &Value) -> String {
    let member = |name: &str| escaped(explanation[name].as_str().unwrap_or_default());
    let mut lines = vec![
        ("resource", member("resource")),
        ("key", member("key")),
        ("memory", entry(&explanation["memory"], "read")),
        ("disk", entry(&explanation["disk"], "written")),
        ("answers", answers(explanation)),
    ];
    lines.extend(invalidated(explanation).map(|text| ("invalidated", text)));
    if explanation["position"].is_string() {
        lines.push(("position", member("position")));
    }
    let lines = lines.iter();
    lines
        .map(|(name, text)| format!("{name:<12} {text}\n"))
        .collect()
}

/// The entry of a tier, which was `made` some time ago.
fn entry(entry: &Value, made: &str) -> String {
    let Some(found) = entry["found"].as_bool() else {
        return "no entry".to_owned();
    };
    let mut parts = vec![if found {
        "a document".to_owned()
    } else {
        "known to be absent".to_owned()
    }];
    let age = entry["age_seconds"].as_f64();
    parts.extend(age.map(|age| format!("{made} {} ago", span(age))));
    if found {
        parts.extend(entry["bytes"].as_u64().map(bytes));
    }
    let texts = [("entity tag", "etag"), ("owner", "owner")];
    for (what, name) in texts {
        let text = entry[name].as_str();
        parts.extend(text.map(|text| format!("{what} {}", escaped(text))));
    }
    parts.join(", ")
}

/// Whether the tiers answer requests for the key.
fn answers(explanation: &Value) -> String {
    if let Some(reason) = explanation["uncached"].as_str() {
        return format!("PostgreSQL alone: {}", escaped(reason));
    }
    match explanation["fresh"].as_bool() {
        Some(true) => "the tiers that have an entry, else PostgreSQL".to_owned(),
        Some(false) => "PostgreSQL alone: the tiers are not known to be fresh".to_owned(),
        None => "not known".to_owned(),
    }
}

/// How often the key was invalidated, and when and why it last was.
fn invalidated(explanation: &Value) -> Option<String> {
    let times = explanation["generation"].as_u64();
    let times = times.map(|times| format!("{times} times, counted with other keys of its group"));
    let last = &explanation["invalidated"];
    let ago = last["seconds_ago"].as_f64();
    let ago = ago.map(|ago| format!("last {} ago", span(ago)));
    let text = |name: &str| last[name].as_str().map(escaped);
    let via = text("via").map(|via| format!("via {via}"));
    let extent = text("extent").map(|extent| format!("extent {extent}"));
    let known: Vec<String> = [times, ago, via, extent].into_iter().flatten().collect();
    (!known.is_empty()).then(|| known.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_known_is_told_and_hostile_text_escaped() {
        let explanation = json!({
            "resource": "items", "key": "a\u{202e}\u{1b}[2Jb",
            "memory": {"found": true, "age_seconds": 2.25, "owner": "\u{7}anna", "bytes": 2048, "etag": "\"ab\""},
            "disk": {"found": false, "age_seconds": 90.0, "owner": null, "bytes": 0, "etag": null},
            "generation": 3, "fresh": true, "uncached": null, "position": "7:7:",
            "invalidated": {"seconds_ago": 0.5, "extent": "key", "via": "bell"}
        });
        let expected = "\
resource     items
key          a\\u{202e}\\u{1b}[2Jb
memory       a document, read 2.2 s ago, 2.0 KiB, entity tag \"ab\", owner \\u{7}anna
disk         known to be absent, written 1m 30s ago
answers      the tiers that have an entry, else PostgreSQL
invalidated  3 times, counted with other keys of its group, last 500 ms ago, via bell, extent key
position     7:7:
";
        assert_eq!(text(&explanation), expected);
    }

    #[test]
    fn members_may_be_missing() {
        let explanation = json!({
            "resource": "items", "key": "1", "memory": null, "disk": null, "generation": 0, "fresh": false,
            "uncached": "row security", "position": null
        });
        let expected = "\
resource     items
key          1
memory       no entry
disk         no entry
answers      PostgreSQL alone: row security
invalidated  0 times, counted with other keys of its group
";
        assert_eq!(text(&explanation), expected);
        assert!(text(&json!(null)).contains("answers      not known\n"));
    }
}
