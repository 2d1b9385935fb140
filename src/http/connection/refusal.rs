//! Requests that hyper refuses by itself, since it can't parse their head: larder's answer takes the place of hyper's.
//!
//! hyper calls no service for such a request. It writes an answer without a body and ends the connection. That answer
//! follows all others of the connection, and is the only one with its status that has no `Content-Type`, so it can be found
//! in what hyper writes. Over HTTP/2, h2 answers 431 without a body, or resets the stream.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http::problem::Problem;

/// hyper's answer has the status line and the fields `connection`, `content-length` and `date`: 130 bytes at most.
const ANSWER_BYTES_MAX: usize = 192;
const HEAD_END: &[u8] = b"\r\n\r\n";

/// A socket that replaces hyper's answer to a request whose head can't be parsed.
pub(super) struct RefusingSocket<S, F> {
    socket: S,
    /// Is told the status of the answer and the length of its body.
    refused: F,
    answer: Option<PendingAnswer>,
}

/// An answer that takes the place of hyper's.
struct PendingAnswer {
    bytes: Vec<u8>,
    written: usize,
    /// The length of hyper's answer.
    replaced: usize,
}

impl<S: AsyncWrite + Unpin, F: Fn(StatusCode, usize) + Unpin> RefusingSocket<S, F> {
    pub(super) fn new(socket: S, refused: F) -> Self {
        Self {
            socket,
            refused,
            answer: None,
        }
    }

    /// Writes `slices`, or the answer that takes the place of the one in the last of them.
    fn poll_replace(
        &mut self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
        last: &[u8],
        found: FoundRefusal,
    ) -> Poll<io::Result<usize>> {
        let before: usize =
            slices.iter().map(|slice| slice.len()).sum::<usize>() - last.len() + found.at;
        // What hyper has not written of other answers yet; it then calls again with the rest.
        if before > 0 {
            let first = slices.iter().find(|slice| !slice.is_empty());
            let first = first.map_or(&[][..], |slice| &slice[..before.min(slice.len())]);
            return Pin::new(&mut self.socket).poll_write(context, first);
        }
        let refused = &self.refused;
        let answer = self.answer.get_or_insert_with(|| {
            let (bytes, body_bytes) = answer(found.status, last);
            refused(found.status, body_bytes);
            PendingAnswer {
                bytes,
                written: 0,
                replaced: last.len(),
            }
        });
        while answer.written < answer.bytes.len() {
            let rest = &answer.bytes[answer.written..];
            match ready!(Pin::new(&mut self.socket).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                bytes => answer.written += bytes,
            }
        }
        Poll::Ready(Ok(answer.replaced))
    }
}

/// hyper's answer to a request that it refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FoundRefusal {
    /// Where it begins in the text that it ends.
    at: usize,
    status: StatusCode,
}

/// Finds hyper's answer at the end of `written`.
fn find(written: &[u8]) -> Option<FoundRefusal> {
    if !written.ends_with(HEAD_END) {
        return None;
    }
    let start = written.len().saturating_sub(ANSWER_BYTES_MAX);
    let tail = &written[start..];
    let at = tail.windows(7).rposition(|window| window == b"HTTP/1.")?;
    let head = str::from_utf8(&tail[at..]).ok()?;
    let status = head
        .get(9..12)?
        .parse()
        .ok()
        .and_then(|code| StatusCode::from_u16(code).ok())?;
    let is_refusal = matches!(
        status,
        StatusCode::BAD_REQUEST
            | StatusCode::URI_TOO_LONG
            | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
    );
    // No text of a document has these lines: JSON has no line breaks within strings.
    let mut lines = head.trim_end().lines().skip(1);
    let is_hypers = |line: &str| {
        ["connection: close", "content-length: 0"].contains(&line) || line.starts_with("date: ")
    };
    let is_refusal =
        is_refusal && head.contains("\r\ncontent-length: 0\r\n") && lines.all(is_hypers);
    is_refusal.then_some(FoundRefusal {
        at: start + at,
        status,
    })
}

/// The answer with a problem that has the status line and the date of hyper's; and the length of its body.
fn answer(status: StatusCode, replaced: &[u8]) -> (Vec<u8>, usize) {
    let problem = match status {
        StatusCode::URI_TOO_LONG => Problem::URI_TOO_LONG,
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => Problem::HEAD_TOO_LARGE,
        _ => Problem::MALFORMED_HEAD,
    };
    // Texts and numbers always serialise.
    let body = simd_json::to_vec(&problem.body()).unwrap_or_default();
    let replaced = String::from_utf8_lossy(replaced);
    let mut lines = replaced.lines();
    let mut head = String::from(lines.next().unwrap_or_default());
    let length = format!("content-length: {}", body.len());
    let kept = lines.filter(|line| line.starts_with("date:"));
    let added = [
        "connection: close",
        "content-type: application/problem+json",
        &length,
    ];
    for line in kept.chain(added) {
        head.push_str("\r\n");
        head.push_str(line);
    }
    head.push_str("\r\n\r\n");
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(&body);
    (bytes, body.len())
}

impl<S: AsyncRead + Unpin, F: Unpin> AsyncRead for RefusingSocket<S, F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin, F: Fn(StatusCode, usize) + Unpin> AsyncWrite for RefusingSocket<S, F> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let last = slices.iter().rev().find(|slice| !slice.is_empty());
        let last = last.map_or(&[][..], |slice| &**slice);
        match find(last) {
            Some(found) => self.poll_replace(context, slices, last, found),
            None => Pin::new(&mut self.socket).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::io::AsyncWriteExt;

    use super::*;

    const HYPERS: &str = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\
                          date: Wed, 25 Nov 2026 14:00:00 GMT\r\n\r\n";

    #[test]
    fn only_hypers_own_answer_is_found() {
        let found =
            |text: &str| find(text.as_bytes()).map(|found| (found.at, found.status.as_u16()));
        assert_eq!(found(HYPERS), Some((0, 400)));
        let before = "HTTP/1.1 304 Not Modified\r\ndate: Wed\r\n\r\n";
        assert_eq!(
            found(&format!("{before}{HYPERS}")),
            Some((before.len(), 400))
        );
        assert_eq!(found(&format!("0\r\n\r\n{HYPERS}")), Some((5, 400)));
        for status in ["414 URI Too Long", "431 Request Header Fields Too Large"] {
            assert!(found(&HYPERS.replace("400 Bad Request", status)).is_some());
        }
        for others in [
            "",
            "\r\n\r\n",
            before,
            &HYPERS[..HYPERS.len() - 1],
            &format!("{HYPERS}{before}"),
            &HYPERS.replace("400 Bad Request", "404 Not Found"),
            &HYPERS.replace("date:", "content-type: application/problem+json\r\ndate:"),
            &HYPERS.replace("content-length: 0", "content-length: 1"),
            "[\"HTTP/1.1 400 Bad Request\"]\r\n0\r\n\r\n",
            "[\"HTTP/1.1 400 Bad Request\"\r\n,1]\r\n\r\n",
        ] {
            assert_eq!(found(others), None, "{others}");
        }
    }

    #[tokio::test]
    async fn the_answer_is_replaced_however_little_is_written_at_a_time() {
        for room in [1, 7, 64, 4096] {
            let (near, mut far) = tokio::io::duplex(room);
            let calls = Cell::new(None);
            let mut socket = RefusingSocket::new(near, |status: StatusCode, bytes| {
                assert!(calls.replace(Some((status.as_u16(), bytes))).is_none());
            });
            let written = format!("HTTP/1.1 200 OK\r\n\r\nbody{HYPERS}");
            let writing = async {
                socket.write_all(written.as_bytes()).await.unwrap();
                socket.shutdown().await.unwrap();
            };
            let mut received = String::new();
            let reading = tokio::io::AsyncReadExt::read_to_string(&mut far, &mut received);
            let (_, read) = tokio::join!(writing, reading);
            read.unwrap();
            let (first, rest) = received.split_at("HTTP/1.1 200 OK\r\n\r\nbody".len());
            assert!(first.ends_with("body"));
            let (head, body) = rest.split_once("\r\n\r\n").unwrap();
            assert!(
                head.starts_with(
                    "HTTP/1.1 400 Bad Request\r\ndate: Wed, 25 Nov 2026 14:00:00 GMT\r\n"
                ),
                "{head}"
            );
            assert!(
                head.ends_with(&format!("content-length: {}", body.len())),
                "{head}"
            );
            let problem: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(problem["status"], 400);
            assert_eq!(calls.get(), Some((400, body.len())));
        }
    }
}
