//! Bodies of responses that are complete in memory.

use std::convert::Infallible;
use std::iter;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

/// Bytes that are sent without copying, with one frame for each part.
#[derive(Debug, Default)]
pub struct FullBody {
    part: Bytes,
    rest: vec::IntoIter<Bytes>,
    /// The number of bytes that were not returned yet.
    bytes: u64,
}

impl FullBody {
    /// A body of one part.
    pub(super) fn new(part: Bytes) -> Self {
        Self {
            bytes: part.len() as u64,
            part,
            rest: Vec::new().into_iter(),
        }
    }

    /// A body of several parts, one after the other.
    pub(super) fn from_parts(parts: Vec<Bytes>) -> Self {
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        let mut rest = parts.into_iter();
        Self {
            bytes,
            part: rest.next().unwrap_or_default(),
            rest,
        }
    }

    /// The only part, or the first one.
    pub(super) fn part(&self) -> &Bytes {
        &self.part
    }

    /// The parts that were not returned yet, none of them empty.
    pub(super) fn into_parts(self) -> impl Iterator<Item = Bytes> {
        let parts = iter::once(self.part).chain(self.rest);
        parts.filter(|part| !part.is_empty())
    }
}

impl HttpBody for FullBody {
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
        let part = std::mem::take(&mut self.part);
        self.bytes -= part.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(part))))
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
    async fn parts_come_in_order_and_none_is_empty() {
        let parts = vec!["ab".into(), Bytes::new(), "cde".into(), Bytes::new()];
        let mut body = FullBody::from_parts(parts);
        for (left, part) in [(5, "ab"), (3, "cde")] {
            assert!(!body.is_end_stream());
            assert_eq!(body.size_hint().exact(), Some(left));
            let frame = body.frame().await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), part);
        }
        assert!(body.is_end_stream());
        assert!(body.frame().await.is_none());
        assert!(FullBody::default().is_end_stream());
    }
}
