//! The body of a request, with a limit on how long its client may take.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

/// The average rate that a client has to reach once `body_timeout` is used up, as in Apache's `RequestReadTimeout`.
const LEAST_BYTES_PER_SECOND: u64 = 500;

/// The client sends its body too slowly.
#[derive(Debug, thiserror::Error)]
#[error("the request body arrived too slowly")]
pub struct BodyTimeout;

/// The body of a request.
///
/// It fails with [`BodyTimeout`] once larder has waited for the client for `body_timeout` in total. Each 500 bytes that
/// arrive add a second, up to `body_timeout`. Time in which larder does not read the body does not count.
pub struct RequestBody {
    body: Incoming,
    /// Set if the body is dropped before its end.
    is_unread: Option<Arc<AtomicBool>>,
    /// `None` if the body is empty.
    pace: Option<Box<Pace>>,
}

struct Pace {
    /// How long larder still waits for the client.
    left: Duration,
    /// `body_timeout`.
    most: Duration,
    /// Bytes that have not been turned into time yet.
    bytes: u64,
    /// Since when larder waits for the client, and the end of that wait.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl RequestBody {
    pub(super) fn new(body: Incoming, timeout: Duration) -> Self {
        let pace = (!body.is_end_stream()).then(|| {
            Box::new(Pace {
                left: timeout,
                most: timeout,
                bytes: 0,
                waiting: None,
            })
        });
        let is_unread = pace.is_some().then(Arc::default);
        Self {
            body,
            is_unread,
            pace,
        }
    }

    /// Whether the body was dropped before its end, once it was; `None` if it is empty.
    pub(super) fn is_unread(&self) -> Option<Arc<AtomicBool>> {
        self.is_unread.clone()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some(is_unread) = &self.is_unread
            && !self.body.is_end_stream()
        {
            is_unread.store(true, Ordering::Relaxed);
        }
    }
}

impl Pace {
    fn poll_timeout(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let left = self.left;
        let (_, timeout) = self
            .waiting
            .get_or_insert_with(|| (Instant::now(), Box::pin(sleep(left))));
        timeout.as_mut().poll(context)
    }

    fn count(&mut self, bytes: usize) {
        if let Some((since, _)) = self.waiting.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
        self.bytes += bytes as u64;
        let earned = Duration::from_secs(self.bytes / LEAST_BYTES_PER_SECOND);
        self.left = (self.left + earned).min(self.most);
        self.bytes %= LEAST_BYTES_PER_SECOND;
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let frame = Pin::new(&mut this.body).poll_frame(context);
        if let Poll::Ready(None) = frame {
            this.is_unread = None;
        }
        let Some(pace) = &mut this.pace else {
            return frame.map_err(Into::into);
        };
        if frame.is_pending() {
            ready!(pace.poll_timeout(context));
            return Poll::Ready(Some(Err(BodyTimeout.into())));
        }
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            pace.count(frame.data_ref().map_or(0, Bytes::len));
        }
        frame.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
