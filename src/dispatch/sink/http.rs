//! Requests as Standard Webhooks 1.0 has them (standardwebhooks.com).

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use reqwest::Client;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::auth::{read_file, web_client};
use crate::dispatch::batch::{DueRow, request_id};
use crate::dispatch::definition::DispatchDefinition;
use crate::dispatch::sink::Answer;
use crate::dispatch::sink::signature::{SigningKey, signatures};
use crate::resource::definition::Mistake;

/// The most bytes of a response that are read. A longer one names no row.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// A web server that takes rows.
pub(in crate::dispatch) struct HttpSink {
    client: Client,
    url: String,
    headers: HeaderMap,
    keys: Vec<SigningKey>,
    /// `larder.NAME.due`
    event: String,
}

impl HttpSink {
    /// Reads the keys. Blocks on the file system.
    pub(super) fn new(definition: &DispatchDefinition) -> Result<Self, Mistake> {
        let sink = &definition.sink;
        let refused =
            |key: &str, message: String| definition.mistake(&format!("sink.{key}"), message);
        let keys = match &sink.secret_file {
            None => {
                let keys = sink
                    .secret
                    .iter()
                    .map(|secret| SigningKey::parse(secret.expose()));
                let keys = keys.collect::<Result<_, _>>();
                keys.map_err(|error| refused("secret", error.to_string()))?
            }
            Some(path) => read_keys(path).map_err(|message| refused("secret_file", message))?,
        };
        let client = web_client(sink.timeout)
            .pool_max_idle_per_host(sink.concurrency)
            .build()
            .map_err(|error| refused("url", error.to_string()))?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let agent = HeaderValue::from_static(concat!("larder/", env!("CARGO_PKG_VERSION")));
        headers.insert(USER_AGENT, agent);
        for (name, value) in &sink.headers {
            let name = HeaderName::from_bytes(name.as_bytes());
            let value = HeaderValue::from_str(value.expose());
            if let (Ok(name), Ok(mut value)) = (name, value) {
                value.set_sensitive(true);
                headers.insert(name, value);
            }
        }
        Ok(Self {
            client,
            url: sink
                .url
                .as_ref()
                .map_or_else(String::new, |url| url.expose().to_owned()),
            headers,
            keys,
            event: format!("larder.{}.due", definition.name.value),
        })
    }

    pub(super) async fn send(&self, rows: &[DueRow]) -> (Answer, String) {
        let now = SystemTime::now();
        let body = self.body(rows, now);
        let ids: Vec<&str> = rows.iter().map(|row| &*row.id).collect();
        let id = request_id(&ids);
        let seconds = now
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let mut request = self.client.post(&self.url).headers(self.headers.clone());
        request = request.header(ID, &id).header(TIMESTAMP, seconds);
        if !self.keys.is_empty() {
            request = request.header(SIGNATURE, signatures(&self.keys, &id, seconds, &body));
        }
        match request.body(body).send().await {
            Ok(response) => {
                let status = response.status();
                (answer(response).await, status.as_u16().to_string())
            }
            Err(error) if error.is_connect() => {
                (Answer::Unreachable(told(error)), "error".to_owned())
            }
            Err(error) => {
                let status = if error.is_timeout() {
                    "timeout"
                } else {
                    "error"
                };
                (Answer::Failed(told(error)), status.to_owned())
            }
        }
    }

    fn body(&self, rows: &[DueRow], now: SystemTime) -> Vec<u8> {
        let bytes: usize = rows.iter().map(|row| row.element.len() + 1).sum();
        let mut body = Vec::with_capacity(bytes + 100);
        let timestamp = humantime::format_rfc3339_seconds(now);
        let head = format!(
            r#"{{"type":"{}","timestamp":"{timestamp}","data":["#,
            self.event
        );
        body.extend_from_slice(head.as_bytes());
        for (number, row) in rows.iter().enumerate() {
            if number > 0 {
                body.push(b',');
            }
            body.extend_from_slice(&row.element);
        }
        body.extend_from_slice(b"]}");
        body
    }
}

/// Reads keys, one a line.
fn read_keys(path: &Path) -> Result<Vec<SigningKey>, String> {
    let told = |error: &str| format!("{} {error}", path.display());
    let bytes = read_file(path, "secret_file").map_err(|mistake| told(&mistake.message))?;
    let text = std::str::from_utf8(&bytes).map_err(|_| told("is not UTF-8"))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let keys = lines.map(SigningKey::parse).collect::<Result<Vec<_>, _>>();
    let keys = keys.map_err(|error| told(&format!("has a line that is no secret: {error}")))?;
    if keys.is_empty() {
        return Err(told("contains no secret"));
    }
    Ok(keys)
}

/// Returns the causes of an error, without the URL, which may contain a password.
fn told(error: reqwest::Error) -> String {
    let error = anyhow::Error::from(error.without_url());
    format!("{error:#}")
}

async fn answer(response: reqwest::Response) -> Answer {
    let status = response.status();
    let pause = retry_after(response.headers());
    match status {
        status if status.is_success() => read_failed(response).await,
        StatusCode::GONE => Answer::Gone("the sink answers 410 Gone".to_owned()),
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => {
            Answer::Unavailable(format!("the sink answers {status}"), pause)
        }
        status => Answer::Failed(format!("the sink answers {status}")),
    }
}

/// Reads the seconds of `Retry-After`. A date is not obeyed: the clocks may differ.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers
        .get(RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()?;
    Some(Duration::from_secs(seconds.min(24 * 60 * 60)))
}

/// What some programs begin a text with; readers of JSON may ignore it (RFC 8259, section 8.1).
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Reads what a response to a request that succeeded names in `{"failed":[{"id":…,"error":…}]}`. Any other body names
/// nothing; one that breaks off might have named rows.
async fn read_failed(mut response: reqwest::Response) -> Answer {
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(part)) if body.len() + part.len() > RESPONSE_BYTES_MAX => {
                return Answer::Delivered(Vec::new());
            }
            Ok(Some(part)) => body.extend_from_slice(&part),
            Ok(None) => return Answer::Delivered(failed(&body)),
            Err(error) => return Answer::Failed(told(error)),
        }
    }
}

fn failed(body: &[u8]) -> Vec<(String, String)> {
    #[derive(Deserialize)]
    struct Body<'b> {
        #[serde(borrow)]
        failed: Vec<&'b RawValue>,
    }
    #[derive(Deserialize)]
    struct Row<'b> {
        id: String,
        #[serde(borrow)]
        error: Option<&'b RawValue>,
    }
    let body = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body);
    let Ok(body) = serde_json::from_slice::<Body<'_>>(body) else {
        return Vec::new();
    };
    let rows = body.failed.iter().filter_map(|row| {
        let Row { id, error } = serde_json::from_str(row.get()).ok()?;
        let error = error.map_or("the sink refuses the row", RawValue::get);
        // A text that was cut may end with half of a character: JSON, but no string of Unicode.
        let text = serde_json::from_str(error).unwrap_or_else(|_| error.to_owned());
        Some((id, text))
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_documented_body_names_rows() {
        let named = failed(br#"{"failed":[{"id":"a","error":"no"},{"id":"b"},{"error":"x"},7]}"#);
        let refuses = "the sink refuses the row".to_owned();
        assert_eq!(
            named,
            [("a".to_owned(), "no".to_owned()), ("b".to_owned(), refuses)]
        );
        let cut =
            "\u{feff}{\"ms\":1e400,\"failed\":[{\"id\":\"a\",\"error\":\"too long: \\ud83d\"}]}";
        let told = r#""too long: \ud83d""#.to_owned();
        assert_eq!(failed(cut.as_bytes()), [("a".to_owned(), told)]);
        for body in [
            "",
            "ok",
            "[]",
            "{}",
            r#"{"failed":{"id":"a"}}"#,
            r#"{"failed":null}"#,
        ] {
            assert!(failed(body.as_bytes()).is_empty(), "{body}");
        }
    }

    #[test]
    fn a_pause_is_in_seconds_and_bounded() {
        for (text, seconds) in [
            ("7", Some(7)),
            (" 7 ", Some(7)),
            ("99999999", Some(86_400)),
            ("-1", None),
            ("Fri, 31 Dec 1999 23:59:59 GMT", None),
        ] {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]);
            assert_eq!(
                retry_after(&headers),
                seconds.map(Duration::from_secs),
                "{text}"
            );
        }
    }
}
