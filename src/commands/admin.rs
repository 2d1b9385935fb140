//! Requests of commands to a running larder, through its admin address.
//!
//! They are sent as written. A client with URLs by the WHATWG's standard, such as reqwest, would take the keys `.` and
//! `..` for parts of the path, however they are encoded.

use std::future::pending;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use axum::body::Bytes;
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
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
/// No response of larder is as long: it comes from another program.
const RESPONSE_MEBIBYTES_MAX: usize = 64;
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
    /// [`ConfigError`] for a token that can't be read or sent.
    pub(super) fn new(config: &Config) -> anyhow::Result<Self> {
        let mut address = config.admin;
        if address.ip().is_unspecified() {
            address.set_ip(if address.is_ipv4() {
                Ipv4Addr::LOCALHOST.into()
            } else {
                Ipv6Addr::LOCALHOST.into()
            });
        }
        Ok(Self {
            address,
            bearer: configured(&config.auth).map_err(ConfigError::from)?,
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
    /// [`NoResponse`] after [`RESPONSE_TIMEOUT`] at the latest, and of a response without end; the path is too long.
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
            let body = Limited::new(response.into_body(), RESPONSE_MEBIBYTES_MAX << 20);
            let body = body.collect().await.map_err(|error| {
                if error.is::<LengthLimitError>() {
                    anyhow!("a response of more than {RESPONSE_MEBIBYTES_MAX} MiB is not larder's")
                } else {
                    anyhow!(error)
                }
            })?;
            let body = body.to_bytes();
            anyhow::Ok(AdminResponse {
                is_success: status.is_success(),
                status: status.as_u16(),
                body: String::from_utf8_lossy(&body).into_owned(),
            })
        };
        // Its errors are those of the exchange, too; it ends with that, even if the server sends more.
        let connection = async move {
            let _ended = connection.await;
            pending().await
        };
        tokio::select! {
            response = exchange => response,
            response = connection => response,
        }
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

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

    #[tokio::test]
    async fn a_response_without_end_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = AdminClient {
            address: listener.local_addr().unwrap(),
            bearer: None,
        };
        let endless = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            assert!(socket.read(&mut request).await.unwrap() > 0);
            let head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n";
            socket.write_all(head).await.unwrap();
            while socket.write_all(&[b' '; 1 << 16]).await.is_ok() {}
        });
        let error = client.send(Method::GET, "/status").await.err().unwrap();
        let told = format!("{error:#}");
        assert!(told.ends_with("more than 64 MiB is not larder's"), "{told}");
        endless.await.unwrap();
    }
}
