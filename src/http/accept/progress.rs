//! What has happened on a connection, and what it is told.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll};

use axum::body::{Bytes, HttpBody};
use axum::http::Version;
use futures_util::task::AtomicWaker;
use hyper::body::{Frame, SizeHint};

/// Where the server is in its life.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Serving,
    Draining,
}

/// What a connection has been told.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Order {
    /// End after the answers at hand.
    Drain = 1,
    /// End at once, if nothing has happened since.
    Close = 2,
    /// End at once, if no request has been read since.
    CloseHead = 3,
}

/// What has happened on a connection, and what it is told.
pub(super) struct Progress {
    /// One reference more for each request that was read and whose answer is being made; whether it was told to drain.
    answering: Arc<AtomicBool>,
    /// The same for each answer over HTTP/2, and each part of it, that is not written: the client says how much may
    /// come.
    unsent: Arc<()>,
    /// The socket has no place for what has to be written.
    pub(super) full: AtomicBool,
    /// Answers are kept back, so that they can be sent together with what may follow.
    pub(super) holds: AtomicBool,
    /// Requests read, and writes that the client's side took.
    pub(super) steps: AtomicU64,
    /// Twice the requests read, and one more while the head of the next is awaited: before the first request, and once
    /// anything came after the last answer.
    pub(super) head: AtomicU64,
    /// There was a request over HTTP/2, where much else may come besides.
    multiplexed: AtomicBool,
    /// What `steps` or `head` is if nothing has happened since it was told to close.
    pub(super) expected: AtomicU64,
    /// An [`Order`], or 0.
    order: AtomicU8,
    /// Wakes the connection for its order.
    pub(super) waker: AtomicWaker,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            answering: Arc::default(),
            unsent: Arc::default(),
            full: AtomicBool::default(),
            holds: AtomicBool::default(),
            steps: AtomicU64::default(),
            head: AtomicU64::new(1),
            multiplexed: AtomicBool::default(),
            expected: AtomicU64::default(),
            order: AtomicU8::default(),
            waker: AtomicWaker::default(),
        }
    }
}

// Only the connection's own task counts, so that nothing is lost though it is loaded and stored.
impl Progress {
    /// A request was read. Whoever makes its answer keeps what this returns: by then, whether to drain.
    pub(super) fn answer(&self) -> Arc<AtomicBool> {
        self.step();
        let head = self.head.load(Ordering::Relaxed);
        self.head
            .store((head | 1).wrapping_add(1), Ordering::Relaxed);
        Arc::clone(&self.answering)
    }

    /// Something was read.
    pub(super) fn receive(&self) {
        let head = self.head.load(Ordering::Relaxed);
        self.head.store(head | 1, Ordering::Relaxed);
    }

    /// Something was written: what came before belonged to a request that is being answered.
    pub(super) fn send(&self) {
        self.step();
        let head = self.head.load(Ordering::Relaxed);
        if head > 1 {
            self.head.store(head & !1, Ordering::Relaxed);
        }
    }

    /// What the body of an answer over `version` keeps. Over HTTP/1.1 the socket alone tells what is unsent.
    pub(super) fn unsent(&self, version: Version) -> Option<Arc<()>> {
        (version == Version::HTTP_2).then(|| {
            self.multiplexed.store(true, Ordering::Relaxed);
            Arc::clone(&self.unsent)
        })
    }

    /// Whether the client is to be told that its next answer is the last: over HTTP/1.1 it may have sent a request
    /// that was not read yet, which is lost where the connection just ends. HTTP/2 has GOAWAY.
    pub(super) fn announces_end(&self) -> bool {
        let asked = self.steps.load(Ordering::Relaxed) > 0;
        asked && !self.multiplexed.load(Ordering::Relaxed)
    }

    fn step(&self) {
        let steps = self.steps.load(Ordering::Relaxed);
        self.steps.store(steps.wrapping_add(1), Ordering::Relaxed);
    }

    pub(super) fn order(&self, order: Order) {
        if order == Order::Drain {
            self.answering.store(true, Ordering::Relaxed);
        }
        self.order.store(order as u8, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn is_told(&self, order: Order) -> bool {
        self.order.load(Ordering::Acquire) == order as u8
    }

    /// What `future` gives, unless the connection is to close before.
    pub(super) async fn unless_closed<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        poll_fn(|context| {
            self.waker.register(context.waker());
            match future.as_mut().poll(context) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending if self.must_close(Stage::Serving) => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// Whether it is to end at once: it was told so, and nothing has happened since.
    pub(super) fn must_close(&self, stage: Stage) -> bool {
        let expected = self.expected.load(Ordering::Relaxed);
        let same = |counted: &AtomicU64| counted.load(Ordering::Relaxed) == expected;
        let still = (self.is_told(Order::Close) && same(&self.steps))
            || (self.is_told(Order::CloseHead) && same(&self.head));
        still && !self.owes(stage)
    }

    /// Whether a head is awaited and nothing else.
    pub(super) fn awaits_head(&self) -> bool {
        let multiplexed = self.multiplexed.load(Ordering::Relaxed);
        self.head.load(Ordering::Relaxed) & 1 == 1 && !multiplexed
    }

    /// Whether the client still has something to get. Draining has a bound of its own, so whoever reads slowly, which
    /// the kernel tells only now and then, is cut off by that alone.
    pub(super) fn owes(&self, stage: Stage) -> bool {
        Arc::strong_count(&self.answering) > 1 || (stage == Stage::Draining && self.is_unsent())
    }

    /// Whether there is an answer that the client does not take.
    pub(super) fn is_unsent(&self) -> bool {
        self.full.load(Ordering::Relaxed) || Arc::strong_count(&self.unsent) > 1
    }
}

/// A body whose parts hold on to `unsent` until they are written or given up.
pub(super) struct Counted<B> {
    pub(super) body: B,
    pub(super) unsent: Option<Arc<()>>,
}

struct Part {
    bytes: Bytes,
    _unsent: Arc<()>,
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
        let frame = Pin::new(&mut self.body).poll_frame(context);
        let Some(unsent) = &self.unsent else {
            return frame;
        };
        let part = |bytes| Part {
            bytes,
            _unsent: Arc::clone(unsent),
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
