//! Bytes over a TCP socket that no HTTP client would send: heads that are no HTTP, several requests at once.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use httparse::Status;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::http::Answer;

/// For what is received until the server closes.
const READ_MAX: Duration = Duration::from_secs(30);
const HEADERS_MAX: usize = 64;

/// Sends `bytes` and returns what is received until the server closes.
///
/// # Errors
/// The server can't be reached, or it doesn't close in time.
pub async fn exchange(address: SocketAddr, bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    // The server closes first; the port must not wait for late packets.
    stream.set_zero_linger()?;
    // A server that has refused the head need not read the rest.
    stream.write_all(bytes).await.ok();
    read_all(&mut stream).await
}

/// Returns what is received until the server closes.
///
/// # Errors
/// It doesn't close in time.
pub async fn read_all(stream: &mut TcpStream) -> anyhow::Result<Vec<u8>> {
    let mut received = Vec::new();
    // A reset ends it, too.
    let read = timeout(READ_MAX, stream.read_to_end(&mut received)).await;
    read.map(drop)
        .with_context(|| format!("not closed after {:?}", String::from_utf8_lossy(&received)))?;
    Ok(received)
}

/// Parses an answer whose body is all that comes after the head.
///
/// # Errors
/// The head is not whole, or it is no HTTP.
pub fn parse(received: &[u8]) -> anyhow::Result<Answer> {
    let mut fields = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let Status::Complete(head) = response.parse(received)? else {
        bail!("closed without an answer");
    };
    let mut headers = HeaderMap::new();
    for field in response.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes())?;
        headers.append(name, HeaderValue::from_bytes(field.value)?);
    }
    Ok(Answer {
        status: response.code.context("no status")?,
        headers,
        body: received[head..].to_vec().into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_heads_are_parsed() {
        let answer = b"HTTP/1.1 404 Not Found\r\nA: b\r\nA: c\r\n\r\nrest";
        let parsed = parse(answer).unwrap();
        assert_eq!((parsed.status, &*parsed.text()), (404, "rest"));
        assert_eq!(parsed.headers.get_all("a").iter().count(), 2);
        for length in 0..answer.len() - "rest".len() {
            assert!(parse(&answer[..length]).is_err(), "{length}");
        }
        assert!(parse(b"SMTP ready\r\n\r\n").is_err());
    }
}
