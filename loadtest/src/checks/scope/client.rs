//! A client that sends requests with any headers, and reads whole answers in any encoding.

use std::fmt::Write;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;
use tokio::time::timeout;

use crate::harness::http::HttpConnection;

const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Of the brotli decoder.
const BUFFER_BYTES: usize = 4096;

/// A request.
#[derive(Clone, Debug, Default)]
pub(super) struct Request {
    pub(super) method: &'static str,
    /// Path and query.
    pub(super) target: String,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: String,
}

/// An answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// Names in lower case, in the order in which they came.
    pub(super) headers: Vec<(String, String)>,
    /// Decoded, but for a part of an encoded body.
    pub(super) body: Vec<u8>,
}

impl Request {
    pub(super) fn new(method: &'static str, target: String) -> Self {
        Self {
            method,
            target,
            ..Self::default()
        }
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers
            .find(|(known, _)| *known == name)
            .map(|(_, value)| &**value)
    }

    pub(super) fn bytes(&self) -> String {
        let Self {
            method,
            target,
            headers,
            body,
        } = self;
        let mut text = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n");
        for (name, value) in headers {
            // Writing to a string can't fail.
            let _infallible = write!(text, "{name}: {value}\r\n");
        }
        if !matches!(*method, "GET" | "HEAD") {
            let _infallible = write!(text, "Content-Length: {}\r\n", body.len());
        }
        text + "\r\n" + body.as_str()
    }

    /// How a reader sees it.
    pub(super) fn shown(&self) -> String {
        let Self {
            method,
            target,
            headers,
            body,
        } = self;
        let headers = headers
            .iter()
            .map(|(name, value)| format!("\n  {name}: {value}"));
        format!("{method} {target}{}\n  {body}", headers.collect::<String>())
    }
}

impl Answer {
    /// The value of a header; empty if there is none.
    pub(super) fn header(&self, name: &str) -> &str {
        let mut headers = self.headers.iter();
        headers
            .find(|(known, _)| known == name)
            .map_or("", |(_, value)| value)
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// How a reader sees it.
    pub(super) fn shown(&self) -> String {
        let headers = self
            .headers
            .iter()
            .map(|(name, value)| format!("\n  {name}: {value}"));
        let (headers, body) = (
            headers.collect::<String>(),
            String::from_utf8_lossy(&self.body),
        );
        format!("{}{headers}\n  {}", self.status, body.trim_end())
    }
}

/// A client with one connection, which is opened when it is needed.
pub(super) struct Client {
    larder: SocketAddr,
    /// larder's limits are those of one client for each address.
    own: Ipv4Addr,
    connection: Option<HttpConnection>,
}

impl Client {
    /// Clients of different numbers below 200 are different clients for larder.
    pub(super) fn new(larder: SocketAddr, number: usize) -> Self {
        Self {
            larder,
            own: Ipv4Addr::new(127, 0, 1, u8::try_from(number % 200).unwrap_or(0)),
            connection: None,
        }
    }

    /// Sends a request and reads its answer.
    ///
    /// # Errors
    /// Larder does not answer, or not in time. The connection is closed then.
    pub(super) async fn send(&mut self, request: &Request) -> anyhow::Result<Answer> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => HttpConnection::connect_from(self.own, self.larder).await?,
        };
        let exchanged = timeout(ANSWER_MAX, exchange(&mut connection, request)).await;
        let answer = exchanged.context("no answer in time")??;
        if answer.header("connection") != "close" {
            self.connection = Some(connection);
        }
        Ok(answer)
    }
}

async fn exchange(connection: &mut HttpConnection, request: &Request) -> anyhow::Result<Answer> {
    connection.send(request.bytes().as_bytes()).await?;
    let received = match request.method {
        "HEAD" => connection.receive_head().await?,
        _ => connection.receive().await?,
    };
    let head = std::str::from_utf8(received.head)?;
    let lines = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let headers = lines.map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
    let mut answer = Answer {
        status: received.status,
        headers: headers.collect(),
        body: received.body.to_vec(),
    };
    if answer.status != 206 && !answer.body.is_empty() {
        let decoded = decode(answer.header("content-encoding"), &answer.body);
        answer.body = decoded.with_context(|| answer.shown())?;
    }
    Ok(answer)
}

fn decode(encoding: &str, body: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut decoded = Vec::new();
    match encoding {
        "" => decoded = body.to_vec(),
        "gzip" => {
            flate2::read::MultiGzDecoder::new(body).read_to_end(&mut decoded)?;
        }
        "br" => {
            brotli::Decompressor::new(body, BUFFER_BYTES).read_to_end(&mut decoded)?;
        }
        "zstd" => decoded = zstd::decode_all(body)?,
        other => anyhow::bail!("encoding {other}"),
    }
    Ok(decoded)
}
