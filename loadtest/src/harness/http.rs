//! Single requests to servers that may not answer.

use std::net::SocketAddr;
use std::time::Duration;

use testkit::http::{Request, fetch};

const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Sends `GET path` on a connection of its own; returns the status and the body.
pub(crate) async fn get(address: SocketAddr, path: &str) -> anyhow::Result<(u16, String)> {
    send(address, Request::get(path)).await
}

/// Sends a request on a connection of its own; returns the status and the body.
pub(crate) async fn send(address: SocketAddr, request: Request) -> anyhow::Result<(u16, String)> {
    let answer = fetch(address, request, ANSWER_MAX).await?;
    Ok((answer.status, answer.text().into_owned()))
}
