//! A small HTTP/1.1 client: keep-alive, pipelining, and answers that borrow the buffer.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const HEADERS_MAX: usize = 32;
const READ_BYTES: usize = 64 * 1024;
/// Longer than any answer of larder.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// A connection with its receive buffer.
pub(crate) struct HttpConnection {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Bytes before this have been returned already.
    taken: usize,
    /// The body of the last answer, if it was sent in chunks.
    joined: Vec<u8>,
}

/// An answer, valid until the next one is received.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HttpAnswer<'a> {
    pub(crate) status: u16,
    /// Empty where there is none.
    pub(crate) cache_status: &'a str,
    /// Empty where there is none.
    pub(crate) etag: &'a str,
    /// Empty where there is none.
    pub(crate) location: &'a str,
    /// The status line and the header fields.
    pub(crate) head: &'a [u8],
    pub(crate) body: &'a [u8],
    /// Head and body.
    pub(crate) whole: &'a [u8],
}

/// The ranges of an answer's parts, from its beginning.
#[derive(Debug, PartialEq, Eq)]
struct AnswerParts {
    status: u16,
    cache_status: Range<usize>,
    etag: Range<usize>,
    location: Range<usize>,
    /// With the sizes of chunks, if there are any.
    body: Range<usize>,
    /// The contents of the chunks; `None` if the body has a length.
    chunks: Option<Vec<Range<usize>>>,
}

impl HttpConnection {
    pub(crate) async fn connect(address: SocketAddr) -> std::io::Result<Self> {
        Self::new(TcpStream::connect(address).await?)
    }

    /// The same from the address `local`, which is a client of its own for larder's limits.
    pub(crate) async fn connect_from(
        local: Ipv4Addr,
        address: SocketAddr,
    ) -> std::io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(local.into(), 0))?;
        Self::new(socket.connect(address).await?)
    }

    fn new(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            buffer: Vec::with_capacity(READ_BYTES),
            taken: 0,
            joined: Vec::new(),
        })
    }

    /// Resets the connection when it is dropped, so that its port need not wait for late packets.
    pub(crate) fn reset_at_end(&self) -> std::io::Result<()> {
        self.stream.set_zero_linger()
    }

    pub(crate) async fn send(&mut self, requests: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(requests).await
    }

    /// Waits until the server closes the connection, or sends something without a request.
    pub(crate) async fn closed(&self) {
        self.stream.peek(&mut [0]).await.ok();
    }

    /// Frees the buffer: this connection will be idle.
    pub(crate) fn forget_buffer(&mut self) {
        self.buffer = Vec::new();
        self.taken = 0;
        self.joined = Vec::new();
    }

    /// Receives the next answer.
    pub(crate) async fn receive(&mut self) -> anyhow::Result<HttpAnswer<'_>> {
        self.receive_with(true).await
    }

    /// Receives the next answer, which is one to `HEAD`: it has the length of a body, and none.
    pub(crate) async fn receive_head(&mut self) -> anyhow::Result<HttpAnswer<'_>> {
        self.receive_with(false).await
    }

    async fn receive_with(&mut self, has_body: bool) -> anyhow::Result<HttpAnswer<'_>> {
        let parts = loop {
            if let Some(parts) = parse(&self.buffer[self.taken..], has_body)? {
                break parts;
            }
            if self.taken > 0 {
                self.buffer.drain(..self.taken);
                self.taken = 0;
            }
            ensure!(
                self.buffer.len() < ANSWER_BYTES_MAX,
                "an answer without an end"
            );
            self.buffer.reserve(READ_BYTES);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                bail!("closed by larder");
            }
        };
        let answer = &self.buffer[self.taken..];
        self.taken += parts.body.end;
        let body = match parts.chunks {
            Some(chunks) => {
                self.joined.clear();
                for chunk in chunks {
                    self.joined.extend_from_slice(&answer[chunk]);
                }
                &self.joined
            }
            None => &answer[parts.body.clone()],
        };
        Ok(HttpAnswer {
            status: parts.status,
            cache_status: std::str::from_utf8(&answer[parts.cache_status])?,
            etag: std::str::from_utf8(&answer[parts.etag])?,
            location: std::str::from_utf8(&answer[parts.location])?,
            head: &answer[..parts.body.start],
            body,
            whole: &answer[..parts.body.end],
        })
    }
}

/// Finds the parts of the first answer in `bytes`, which has a body unless it is to `HEAD`; `None` while it is incomplete.
fn parse(bytes: &[u8], has_body: bool) -> anyhow::Result<Option<AnswerParts>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) = response.parse(bytes)? else {
        return Ok(None);
    };
    let status = response.code.context("an answer without a status")?;
    let (mut length, mut is_chunked) = (None, false);
    let (mut cache_status, mut etag, mut location) = (0..0, 0..0, 0..0);
    for header in response.headers.iter() {
        // The value is a part of `bytes`.
        let start = header.value.as_ptr() as usize - bytes.as_ptr() as usize;
        let place = start..start + header.value.len();
        if header.name.eq_ignore_ascii_case("content-length") {
            length = Some(std::str::from_utf8(header.value)?.parse::<usize>()?);
        } else if header.name.eq_ignore_ascii_case("cache-status") {
            cache_status = place;
        } else if header.name.eq_ignore_ascii_case("etag") {
            etag = place;
        } else if header.name.eq_ignore_ascii_case("location") {
            location = place;
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            is_chunked = true;
        }
    }
    // Answers to HEAD, 204 and 304 have no body, whatever their length says (RFC 9110, section 6.4.1).
    let (end, chunks) = if !has_body || matches!(status, 204 | 304) {
        (head, None)
    } else if is_chunked {
        let Some((end, chunks)) = parse_chunks(bytes, head)? else {
            return Ok(None);
        };
        (end, Some(chunks))
    } else {
        (head + length.context("an answer without a length")?, None)
    };
    Ok((bytes.len() >= end).then_some(AnswerParts {
        status,
        cache_status,
        etag,
        location,
        body: head..end,
        chunks,
    }))
}

/// The end of a chunked body that begins at `start`, and what its chunks contain (RFC 9112, section 7.1); `None` while it is
/// incomplete.
fn parse_chunks(bytes: &[u8], start: usize) -> anyhow::Result<Option<(usize, Vec<Range<usize>>)>> {
    let (mut at, mut chunks) = (start, Vec::new());
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        let status =
            httparse::parse_chunk_size(rest).map_err(|_| anyhow::anyhow!("a bad chunk"))?;
        let httparse::Status::Complete((head, size)) = status else {
            return Ok(None);
        };
        let begin = at + head;
        let end = begin + usize::try_from(size)?;
        // A line ends each chunk.
        at = end + 2;
        if size == 0 {
            return Ok((bytes.len() >= at).then_some((at, chunks)));
        }
        chunks.push(begin..end);
    }
}

/// `GET path` on a connection of its own: the status and the body.
pub(crate) async fn get(address: SocketAddr, path: &str) -> anyhow::Result<(u16, String)> {
    get_with(address, path, "").await
}

/// As [`get`], with header lines.
pub(crate) async fn get_with(
    address: SocketAddr,
    path: &str,
    headers: &str,
) -> anyhow::Result<(u16, String)> {
    let exchange = async {
        let mut connection = HttpConnection::connect(address).await?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
        connection.send(request.as_bytes()).await?;
        let answer = connection.receive().await?;
        let body = String::from_utf8_lossy(answer.body).into_owned();
        Ok((answer.status, body))
    };
    tokio::time::timeout(Duration::from_secs(2), exchange).await?
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[u8] = b"HTTP/1.1 200 OK\r\nCache-Status: larder; hit; detail=memory\r\n\
        ETag: \"a\"\r\ncontent-length: 3\r\n\r\nabcHTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";

    #[test]
    fn answers_are_found_one_after_the_other() {
        let first = parse(TWO, true).unwrap().unwrap();
        assert_eq!(first.status, 200);
        assert_eq!(&TWO[first.cache_status], b"larder; hit; detail=memory");
        assert_eq!(&TWO[first.etag], b"\"a\"");
        assert_eq!(&TWO[first.body.clone()], b"abc");
        let second = parse(&TWO[first.body.end..], true).unwrap().unwrap();
        assert_eq!((second.status, second.body.len()), (404, 0));
    }

    const CHUNKED: &[u8] =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";

    #[test]
    fn chunks_are_found() {
        let parts = parse(CHUNKED, true).unwrap().unwrap();
        let chunks: Vec<&[u8]> = parts
            .chunks
            .unwrap()
            .into_iter()
            .map(|chunk| &CHUNKED[chunk])
            .collect();
        assert_eq!(chunks, [&b"ab"[..], b"c"]);
        assert_eq!(parts.body.end, CHUNKED.len());
    }

    #[test]
    fn answers_without_a_body_end_with_their_head() {
        let to_head = parse(TWO, false).unwrap().unwrap();
        assert_eq!((to_head.status, to_head.body.len()), (200, 0));
        assert!(TWO[to_head.body.end..].starts_with(b"abc"));
        let unchanged = b"HTTP/1.1 304 Not Modified\r\ncontent-length: 3\r\n\r\n";
        let unchanged = parse(unchanged, true).unwrap().unwrap();
        assert_eq!((unchanged.status, unchanged.body.len()), (304, 0));
    }

    #[test]
    fn an_answer_that_is_not_whole_is_waited_for() {
        for answer in [TWO, CHUNKED] {
            let whole = parse(answer, true).unwrap().unwrap().body.end;
            for length in 0..whole {
                assert_eq!(parse(&answer[..length], true).unwrap(), None);
            }
        }
        assert!(parse(b"SMTP ready\r\n\r\n", true).is_err());
    }
}
