//! The body of an answer, which counts its bytes as unsent until hyper has written them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

use crate::server::UnsentBytes;

/// A body whose parts count as unsent until they are written or dropped.
pub(super) struct CountedBody<B> {
    body: B,
    unsent: Option<UnsentBytes>,
    /// Set while the answer is still being made.
    _in_progress: Option<Arc<AtomicBool>>,
}

impl<B: HttpBody> CountedBody<B> {
    pub(super) fn new(
        body: B,
        mut unsent: Option<UnsentBytes>,
        in_progress: Arc<AtomicBool>,
    ) -> Self {
        // A body of unknown length is still being made, perhaps from a request that has not ended either.
        let is_being_made = body.size_hint().exact().is_none();
        if let Some(unsent) = &mut unsent {
            unsent.add(body.size_hint().lower().saturating_add(1));
        }
        Self {
            body,
            unsent,
            _in_progress: is_being_made.then_some(in_progress),
        }
    }
}

struct CountedPart {
    bytes: Bytes,
    _unsent: UnsentBytes,
}

impl AsRef<[u8]> for CountedPart {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for CountedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        let frame = Pin::new(&mut this.body).poll_frame(context);
        let Some(unsent) = &mut this.unsent else {
            return frame;
        };
        if frame.is_pending() {
            unsent.clear();
        }
        let mut part = |bytes: Bytes| CountedPart {
            _unsent: unsent.split_off(bytes.len() as u64),
            bytes,
        };
        frame.map_ok(|frame| frame.map_data(|bytes| Bytes::from_owner(part(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
