//! The body of an answer, counted while its parts are not written.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

use crate::server::Unsent;

/// A body whose parts hold on to `unsent` until they are written or given up.
pub(super) struct Counted<B> {
    body: B,
    unsent: Option<Unsent>,
    /// Where the answer is still being made.
    _answering: Option<Arc<AtomicBool>>,
}

impl<B: HttpBody> Counted<B> {
    pub(super) fn new(body: B, mut unsent: Option<Unsent>, answering: Arc<AtomicBool>) -> Self {
        // What comes part by part is still being made, maybe of a request that has not ended either.
        let is_being_made = body.size_hint().exact().is_none();
        if let Some(unsent) = &mut unsent {
            unsent.add(body.size_hint().lower().saturating_add(1));
        }
        Self {
            body,
            unsent,
            _answering: is_being_made.then_some(answering),
        }
    }
}

struct Part {
    bytes: Bytes,
    _unsent: Unsent,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Counted<B> {
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
            unsent.forget();
        }
        let mut part = |bytes: Bytes| Part {
            _unsent: unsent.part(bytes.len() as u64),
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
