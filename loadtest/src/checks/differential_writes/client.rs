//! Sends requests to larder.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::time::timeout;

const ANSWER_MAX: Duration = Duration::from_secs(30);
const HEADERS_MAX: usize = 32;

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
            let socket = TcpSocket::new_v4()?;
            socket.bind(SocketAddr::new(self.own.into(), 0))?;
            let mut stream = socket.connect(self.larder).await?;
            // larder closes first; its port must not wait for late packets after each of these.
            stream.set_zero_linger()?;
            stream.write_all(request.as_bytes()).await?;
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).await?;
            parse(&bytes)
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

fn parse(bytes: &[u8]) -> anyhow::Result<Answer> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) = response.parse(bytes)? else {
        anyhow::bail!("closed without an answer");
    };
    let mut answer = Answer {
        status: response.code.context("an answer without a status")?,
        ..Answer::default()
    };
    let mut is_chunked = false;
    for header in response.headers.iter() {
        let value = String::from_utf8_lossy(header.value);
        match &*header.name.to_ascii_lowercase() {
            "etag" => answer.etag = value.into_owned(),
            "location" => answer.location = value.into_owned(),
            "transfer-encoding" => is_chunked = true,
            _ => {}
        }
    }
    let body = &bytes[head..];
    let body = if is_chunked {
        joined(body)?
    } else {
        body.to_vec()
    };
    answer.body = String::from_utf8(body)?;
    if answer.status == 100 {
        return parse(&bytes[head..]);
    }
    Ok(answer)
}

/// A chunked body without its chunks' heads (RFC 9112, section 7.1).
fn joined(mut rest: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let status =
            httparse::parse_chunk_size(rest).map_err(|_| anyhow::anyhow!("a bad chunk"))?;
        let httparse::Status::Complete((head, size)) = status else {
            anyhow::bail!("a body without an end");
        };
        let end = head + usize::try_from(size)?;
        ensure!(rest.len() >= end + 2, "a chunk without an end");
        if size == 0 {
            return Ok(body);
        }
        body.extend_from_slice(&rest[head..end]);
        rest = &rest[end + 2..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_joined() {
        let bytes = b"HTTP/1.1 200 OK\r\nETag: \"a\"\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
        let answer = parse(bytes).unwrap();
        assert_eq!(
            (answer.status, &*answer.etag, &*answer.body),
            (200, "\"a\"", "abc")
        );
        assert!(parse(&bytes[..bytes.len() - 8]).is_err());
    }
}
