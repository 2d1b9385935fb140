//! The body of a request, with a bound on how long its client may take.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

/// What a client has to send, on the average, once `body_timeout` is used up; as Apache's `RequestReadTimeout` has it.
const LEAST_BYTES_PER_SECOND: u64 = 500;

/// The client sends its body too slowly.
#[derive(Debug, thiserror::Error)]
#[error("the request body arrived too slowly")]
pub struct BodyTimeout;

/// The body of a request.
///
/// It ends in [`BodyTimeout`] where the client has let it wait for `body_timeout`; each 500 bytes that come give a second
/// back. Time in which nobody reads it does not count.
pub struct RequestBody {
    body: Incoming,
    /// `None` where there is nothing to come.
    pace: Option<Box<Pace>>,
}

struct Pace {
    /// What the client may still use.
    left: Duration,
    /// What was allowed from the beginning.
    most: Duration,
    bytes: u64,
    /// Since when the client is waited for, and when that ends.
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
        Self { body, pace }
    }
}

impl Pace {
    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let left = self.left;
        let (_, late) = self
            .waiting
            .get_or_insert_with(|| (Instant::now(), Box::pin(sleep(left))));
        late.as_mut().poll(context)
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
        let Some(pace) = &mut this.pace else {
            return frame.map_err(Into::into);
        };
        if frame.is_pending() {
            ready!(pace.poll_late(context));
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
