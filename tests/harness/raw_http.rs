//! HTTP requests as bytes, over a real socket.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::service::TestResponse;

/// A server that neither answers nor closes within this time fails the test.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Sends `bytes` and returns what is received until the server closes.
pub(crate) async fn exchange(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // A server that has refused the head need not read the rest.
    stream.write_all(bytes).await.ok();
    read_all(&mut stream).await
}

/// Returns what is received until the server closes.
pub(crate) async fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    let read = tokio::time::timeout(READ_TIMEOUT, stream.read_to_end(&mut received)).await;
    if read.is_err() {
        panic!("not closed after {:?}", String::from_utf8_lossy(&received));
    }
    received
}

/// One request on a connection of its own.
pub(crate) async fn fetch(address: SocketAddr, method: &str, path: &str) -> TestResponse {
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    parse(&exchange(address, request.as_bytes()).await)
}

/// Parses a whole response.
pub(crate) fn parse(received: &[u8]) -> TestResponse {
    let text = String::from_utf8(received.to_vec()).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap();
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(':').unwrap();
        headers.append(
            HeaderName::from_bytes(name.as_bytes()).unwrap(),
            HeaderValue::from_str(value.trim()).unwrap(),
        );
    }
    TestResponse {
        status: StatusCode::from_bytes(status.as_bytes()).unwrap(),
        headers,
        bytes: body.as_bytes().to_vec(),
        body: body.to_owned(),
    }
}
