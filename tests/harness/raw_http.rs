//! HTTP over a real socket; what fails, fails the test.

use std::net::SocketAddr;
use std::time::Duration;

use testkit::http::{self, Request};
use testkit::raw;
use tokio::net::TcpStream;

use crate::harness::service::TestResponse;

const ANSWER_MAX: Duration = Duration::from_secs(30);

/// One request on a connection of its own.
pub(crate) async fn fetch(address: SocketAddr, method: &'static str, path: &str) -> TestResponse {
    send(address, Request::new(method, path)).await
}

/// As [`fetch`], with headers and a body.
pub(crate) async fn send(address: SocketAddr, request: Request) -> TestResponse {
    let answer = http::fetch(address, request, ANSWER_MAX).await;
    answer.unwrap().into()
}

/// Sends `bytes`, which no HTTP client would send, and returns what is received until the server closes.
pub(crate) async fn exchange(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    raw::exchange(address, bytes).await.unwrap()
}

/// Returns what is received until the server closes.
pub(crate) async fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    raw::read_all(stream).await.unwrap()
}

/// Parses a whole response, whose body is all that comes after the head.
pub(crate) fn parse(received: &[u8]) -> TestResponse {
    raw::parse(received).unwrap().into()
}
