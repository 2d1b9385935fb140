//! The body of an answer whose bytes are all there.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

/// The longest frame. hyper copies frames into a buffer that it keeps as long as the connection, up to the largest that
/// it ever held, and stops gathering once it holds `accept`'s bound.
const FRAME_BYTES_MAX: usize = 32 << 10;

/// Bytes that are sent as they are, in frames of a bounded length.
#[derive(Debug, Default)]
pub struct Whole {
    part: Bytes,
    rest: vec::IntoIter<Bytes>,
    /// Not yet handed on.
    bytes: u64,
}

impl Whole {
    /// A body of one part.
    pub(super) fn new(part: Bytes) -> Self {
        Self {
            bytes: part.len() as u64,
            part,
            rest: Vec::new().into_iter(),
        }
    }

    /// A body of several parts, one after the other.
    pub(super) fn of(parts: Vec<Bytes>) -> Self {
        Self {
            bytes: parts.iter().map(|part| part.len() as u64).sum(),
            part: Bytes::new(),
            rest: parts.into_iter(),
        }
    }
}

impl HttpBody for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        while self.part.is_empty() {
            match self.rest.next() {
                Some(part) => self.part = part,
                None => return Poll::Ready(None),
            }
        }
        let length = self.part.len().min(FRAME_BYTES_MAX);
        let frame = self.part.split_to(length);
        self.bytes -= length as u64;
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn parts_come_in_order_in_frames_of_a_bounded_length() {
        let long = Bytes::from(vec![b'x'; 3 * FRAME_BYTES_MAX + 1]);
        let parts = vec!["a".into(), Bytes::new(), long.clone(), "b".into()];
        let mut body = Whole::of(parts);
        let mut received = Vec::new();
        let mut left = long.len() as u64 + 2;
        while !body.is_end_stream() {
            assert_eq!(body.size_hint().exact(), Some(left));
            let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(!frame.is_empty() && frame.len() <= FRAME_BYTES_MAX);
            left -= frame.len() as u64;
            received.extend_from_slice(&frame);
        }
        assert!(body.frame().await.is_none());
        assert_eq!(received, [b"a".as_slice(), &long, b"b"].concat());
    }
}
