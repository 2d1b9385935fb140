//! A line of the access log.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::SystemTime;

use axum::http::{Uri, Version};
use serde::{Serialize, Serializer};

use crate::auth::config::MASK;
use crate::http::middleware::access_log::AccessLogFormat;
use crate::resource::page::PARAMETERS;
use crate::unseen::escaped_json;

/// Longer texts are cut.
const TEXT_BYTES_MAX: usize = 1 << 10;
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// The content of a line.
#[derive(Serialize)]
pub(super) struct LogLine {
    #[serde(serialize_with = "as_rfc3339")]
    pub(super) time: SystemTime,
    pub(super) client: IpAddr,
    pub(super) user: Option<String>,
    pub(super) method: String,
    pub(super) target: String,
    #[serde(serialize_with = "as_debug")]
    pub(super) version: Version,
    pub(super) status: u16,
    /// The length of the body, if it is known before the body is sent.
    pub(super) bytes: Option<u64>,
    /// Time from the parsed request to the complete head of the response.
    pub(super) seconds: f64,
    /// `Cache-Status`.
    pub(super) cache: Option<String>,
    pub(super) referer: Option<String>,
    pub(super) agent: Option<String>,
}

impl LogLine {
    /// Adds the line to `out`.
    pub(super) fn write(&self, format: AccessLogFormat, out: &mut String) {
        match format {
            // Texts and numbers always serialise.
            AccessLogFormat::Json => {
                let json = simd_json::to_string(self).unwrap_or_default();
                out.push_str(&escaped_json(&json));
            }
            AccessLogFormat::Combined => self.write_combined(out),
        }
        out.push('\n');
    }

    fn write_combined(&self, out: &mut String) {
        let user = self.user.as_deref().filter(|user| !user.is_empty());
        let user = escaped(user).replace(' ', "\\x20");
        let bytes = self.bytes.map_or("-".to_owned(), |bytes| bytes.to_string());
        // Writing to a string can't fail.
        write!(
            out,
            "{} - {user} [{}] \"{} {} {:?}\" {} {bytes} \"{}\" \"{}\"",
            self.client,
            time(self.time),
            escaped(Some(&self.method)),
            escaped(Some(&self.target)),
            self.version,
            self.status,
            escaped(self.referer.as_deref()),
            escaped(self.agent.as_deref()),
        )
        .unwrap_or_default();
    }
}

fn as_rfc3339<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&humantime::format_rfc3339_micros(*time))
}

fn as_debug<S: Serializer>(version: &Version, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{version:?}"))
}

/// `22/Nov/2026:12:00:00 +0000`.
fn time(time: SystemTime) -> String {
    // 2026-11-22T12:00:00Z
    let text = humantime::format_rfc3339_seconds(time).to_string();
    let part = |range: std::ops::Range<usize>| text.get(range).unwrap_or_default();
    let month = part(5..7).parse::<usize>().ok();
    let month = month.and_then(|month| MONTHS.get(month.checked_sub(1)?));
    let month = month.unwrap_or(&"-");
    format!(
        "{}/{month}/{}:{} +0000",
        part(8..10),
        part(0..4),
        part(11..19)
    )
}

/// The path and query. Only larder's own parameters keep their values: others may contain a secret that was sent by
/// mistake, and filters contain values of the tables.
pub(super) fn target(uri: &Uri) -> String {
    let path = cut(uri.path());
    let Some(query) = uri.query() else {
        return path.to_owned();
    };
    let pair = |pair: &str| match pair.split_once('=') {
        Some((name, _)) if PARAMETERS.contains(&name) => pair.to_owned(),
        Some((name, _)) => format!("{name}={MASK}"),
        None if pair.is_empty() => String::new(),
        None => MASK.to_owned(),
    };
    let pairs: Vec<String> = cut(query).split('&').map(pair).collect();
    format!("{path}?{}", pairs.join("&"))
}

/// The beginning of `text`.
pub(super) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

/// Escapes a text that stands between quotes, as Apache does, so that a request can't end the quotes or the line.
fn escaped(text: Option<&str>) -> String {
    let Some(text) = text else {
        return "-".to_owned();
    };
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend(['\\', char::from(byte)]),
            b' '..=b'~' => out.push(char::from(byte)),
            _ => write!(out, "\\x{byte:02x}").unwrap_or_default(),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn line() -> LogLine {
        LogLine {
            time: SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_348_800),
            client: "192.0.2.1".parse().unwrap(),
            user: None,
            method: "GET".to_owned(),
            target: target(&Uri::from_static(
                "/depts?limit=2&loc=eq.X&access_token=secret",
            )),
            version: Version::HTTP_11,
            status: 200,
            bytes: Some(1_650),
            seconds: 0.000_5,
            cache: Some("larder; hit; detail=memory".to_owned()),
            referer: None,
            agent: Some("a \"quoted\"\nagent é".to_owned()),
        }
    }

    fn written(line: &LogLine, format: AccessLogFormat) -> String {
        let mut text = String::new();
        line.write(format, &mut text);
        text
    }

    #[test]
    fn a_combined_line_is_as_apache_writes_it() {
        let anna = LogLine {
            user: Some("anna b".to_owned()),
            bytes: None,
            ..line()
        };
        assert_eq!(
            written(&line(), AccessLogFormat::Combined),
            "192.0.2.1 - - [22/Nov/2026:12:00:00 +0000] \
             \"GET /depts?limit=2&loc=***&access_token=*** HTTP/1.1\" 200 1650 \"-\" \
             \"a \\\"quoted\\\"\\x0aagent \\xc3\\xa9\"\n"
        );
        let anna = written(&anna, AccessLogFormat::Combined);
        assert!(anna.starts_with("192.0.2.1 - anna\\x20b ["), "{anna}");
        assert!(anna.contains(" 200 - "), "{anna}");
    }

    #[test]
    fn a_json_line_reads_back() {
        let line = LogLine {
            referer: Some("\u{202e}\u{9b}".to_owned()),
            ..line()
        };
        let text = written(&line, AccessLogFormat::Json);
        assert!(text.ends_with("}\n") && text.matches('\n').count() == 1);
        assert!(text.contains(r"\u202e\u009b"), "{text}");
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["time"], "2026-11-22T12:00:00.000000Z");
        assert_eq!(read["agent"], "a \"quoted\"\nagent é");
        assert_eq!(read["referer"], "\u{202e}\u{9b}");
        assert_eq!(read["cache"], "larder; hit; detail=memory");
        assert_eq!(read["bytes"], 1_650);
        assert_eq!(read["user"], serde_json::Value::Null);
    }

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(cut(&"é".repeat(TEXT_BYTES_MAX)).len(), TEXT_BYTES_MAX);
        assert_eq!(cut("short"), "short");
    }
}
