//! Requests of commands to a running larder, through its admin address.
//!
//! They are sent as written. A client with URLs by the WHATWG's standard, such as reqwest, would take the keys `.` and
//! `..` for parts of the path, however they are encoded.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, bail};
use axum::body::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST, HeaderValue};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::config::{Config, ConfigError};
use crate::http::admin::token::configured;

/// The longest wait for a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Sent as they are: a comma is between the parts of a key, and `%2C` is one within a part.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b',')
    .remove(b'%');

/// The admin address did not respond.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no response from the admin address {0}")]
pub struct NoResponse(SocketAddr);

/// Sends requests to the configured admin address with the configured token.
pub(super) struct AdminClient {
    address: SocketAddr,
    bearer: Option<HeaderValue>,
}

/// A response of any status.
pub(super) struct AdminResponse {
    pub(super) is_success: bool,
    status: u16,
    pub(super) body: String,
}

impl AdminClient {
    /// Reads the token, and sends nothing yet.
    ///
    /// # Errors
    /// [`ConfigError`] for a token that can't be read.
    pub(super) fn new(config: &Config) -> anyhow::Result<Self> {
        let mut address = config.admin;
        if address.ip().is_unspecified() {
            address.set_ip(if address.is_ipv4() {
                Ipv4Addr::LOCALHOST.into()
            } else {
                Ipv6Addr::LOCALHOST.into()
            });
        }
        let token = configured(&config.auth).map_err(ConfigError::from)?;
        let bearer = token.map(|token| {
            let bearer = HeaderValue::from_bytes(&[b"Bearer ".as_slice(), &token].concat());
            bearer.context("the admin token can't be sent in a header")
        });
        Ok(Self {
            address,
            bearer: bearer.transpose()?,
        })
    }

    /// The address that it sends requests to.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The body of a response that succeeds.
    ///
    /// # Errors
    /// [`NoResponse`]; a response that refuses, with the detail of its problem.
    pub(super) async fn request(&self, method: Method, path: &str) -> anyhow::Result<String> {
        let AdminResponse {
            is_success,
            status,
            body,
        } = self.send(method, path).await?;
        if is_success {
            return Ok(body);
        }
        let address = self.address;
        let problem: serde_json::Value = serde_json::from_str(&body).unwrap_or_default();
        match problem["detail"].as_str() {
            Some(detail) => bail!("{address} answers {status}: {detail}"),
            None => bail!("{address} answers {status}"),
        }
    }

    /// A response of any status.
    ///
    /// # Errors
    /// [`NoResponse`] after [`RESPONSE_TIMEOUT`] at the latest; the path is too long.
    pub(super) async fn send(&self, method: Method, path: &str) -> anyhow::Result<AdminResponse> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.address.to_string());
        let bearer = self.bearer.iter();
        let request = bearer.fold(request, |request, bearer| {
            request.header(AUTHORIZATION, bearer)
        });
        let request = request.body(Empty::new());
        let request = request.context("the resource and the key make no path")?;
        let sent = timeout(RESPONSE_TIMEOUT, self.exchange(request)).await;
        let sent = sent.context("timed out").and_then(|sent| sent);
        sent.context(NoResponse(self.address))
    }

    async fn exchange(&self, request: Request<Empty<Bytes>>) -> anyhow::Result<AdminResponse> {
        let socket = TcpStream::connect(self.address).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
        let exchange = async move {
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            anyhow::Ok(AdminResponse {
                is_success: status.is_success(),
                status: status.as_u16(),
                body: String::from_utf8_lossy(&body).into_owned(),
            })
        };
        // The connection ends when the sender is dropped; its errors are those of the exchange, too.
        let (_ended, response) = tokio::join!(connection, exchange);
        response
    }
}

/// The path where the admin address does `what` with a document, or without a key with all documents of the resource.
pub(super) fn document_path(what: &str, resource: &str, key: Option<&str>) -> String {
    let encoded = |text| utf8_percent_encode(text, ENCODED);
    let key = key.map(|key| format!("/{}", encoded(key)));
    format!("/{what}/{}{}", encoded(resource), key.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sent_as_they_stand_in_paths() {
        for (key, path) in [
            ("7,N%2CO", "/purge/items/7,N%2CO"),
            ("a/b c?#", "/purge/items/a%2Fb%20c%3F%23"),
            ("é", "/purge/items/%C3%A9"),
            ("", "/purge/items/"),
            ("..", "/purge/items/.."),
        ] {
            assert_eq!(document_path("purge", "items", Some(key)), path);
        }
        assert_eq!(document_path("purge", "a/b", None), "/purge/a%2Fb");
    }
}
