//! Sends requests to larder.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use tokio::time::timeout;

use crate::harness::http::HttpConnection;

const ANSWER_MAX: Duration = Duration::from_secs(30);

/// An answer of larder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// Empty if there is none.
    pub(super) etag: String,
    /// Empty if there is none.
    pub(super) location: String,
    pub(super) body: String,
}

/// A client of larder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    /// The address of larder.
    pub(super) larder: SocketAddr,
    /// larder's limits are those of one client for each address.
    pub(super) own: Ipv4Addr,
}

impl Client {
    /// Sends a request on a connection of its own, and reads the whole answer.
    pub(super) async fn send(self, request: &str) -> anyhow::Result<Answer> {
        let exchange = async {
            let mut connection = HttpConnection::connect_from(self.own, self.larder).await?;
            connection.reset_at_end()?;
            connection.send(request.as_bytes()).await?;
            let answer = connection.receive().await?;
            Ok(Answer {
                status: answer.status,
                etag: answer.etag.to_owned(),
                location: answer.location.to_owned(),
                body: String::from_utf8(answer.body.to_vec())?,
            })
        };
        let answered = timeout(ANSWER_MAX, exchange).await;
        answered.context("no answer in time")?
    }

    /// Reads a document.
    pub(super) async fn get(self, path: &str) -> anyhow::Result<Answer> {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        self.send(&request).await
    }
}
