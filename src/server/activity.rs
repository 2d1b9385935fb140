//! What has happened on a connection, and what it is told.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::Poll;

use futures_util::task::AtomicWaker;

/// This share of what is unsent over HTTP/2 has to be taken within `write_timeout`.
const UNSENT_SHARE: u64 = 64;
/// And so many bytes at least.
const TAKEN_BYTES_MIN: u64 = 1 << 10;

/// Where the server is in its life.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Serving,
    Draining,
}

/// What a connection has been told.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Order {
    /// End after the answers at hand.
    Drain = 1,
    /// End at once, if nothing has happened since.
    Close = 2,
    /// End at once, if no request has been read since.
    CloseHead = 3,
    /// End at once, if the client has not taken enough since.
    CloseUnsent = 4,
}

/// What has happened on a connection, and what it is told.
pub struct Activity {
    /// One reference more for each request that was read and whose answer is being made; whether it was told to drain.
    answering: Arc<AtomicBool>,
    /// Bytes of answers over HTTP/2 that are not written, since the client says how much may come; and one more for each
    /// answer that has not ended.
    unsent: Arc<AtomicU64>,
    /// The socket has no place for what has to be written.
    pub(crate) full: AtomicBool,
    /// Answers are kept back, so that they can be sent together with what may follow.
    pub(crate) holds: AtomicBool,
    /// Requests read, and writes that the client's side took; over HTTP/2 requests alone, since a client has its pings
    /// and settings answered whatever it asks or takes.
    pub(crate) steps: AtomicU64,
    /// Bytes that the client's side took.
    pub(crate) sent: AtomicU64,
    /// Twice the requests read, and one more while the head of the next is awaited: before the first request, and once
    /// anything came after the last answer.
    pub(crate) head: AtomicU64,
    /// There was a request over HTTP/2, where much else may come besides.
    multiplexed: AtomicBool,
    /// What `steps` or `head` is if nothing has happened since it was told to close; what `sent` is if enough has.
    pub(crate) expected: AtomicU64,
    /// An [`Order`], or 0.
    order: AtomicU8,
    /// Wakes the connection for its order.
    pub(crate) waker: AtomicWaker,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            answering: Arc::default(),
            unsent: Arc::default(),
            full: AtomicBool::default(),
            holds: AtomicBool::default(),
            steps: AtomicU64::default(),
            sent: AtomicU64::default(),
            head: AtomicU64::new(1),
            multiplexed: AtomicBool::default(),
            expected: AtomicU64::default(),
            order: AtomicU8::default(),
            waker: AtomicWaker::default(),
        }
    }
}

// Only the connection's own task counts, so that nothing is lost though it is loaded and stored.
impl Activity {
    /// A request was read. Whoever makes its answer keeps what this returns: by then, whether to drain.
    pub(crate) fn answer(&self) -> Arc<AtomicBool> {
        self.step();
        let head = self.head.load(Ordering::Relaxed);
        self.head
            .store((head | 1).wrapping_add(1), Ordering::Relaxed);
        Arc::clone(&self.answering)
    }

    /// Something was read.
    pub(crate) fn receive(&self) {
        let head = self.head.load(Ordering::Relaxed);
        self.head.store(head | 1, Ordering::Relaxed);
    }

    /// So many bytes were written: what came before belonged to a request that is being answered.
    pub(crate) fn send(&self, bytes: usize) {
        let sent = self.sent.load(Ordering::Relaxed);
        self.sent
            .store(sent.wrapping_add(bytes as u64), Ordering::Relaxed);
        if !self.is_multiplexed() {
            self.step();
        }
        let head = self.head.load(Ordering::Relaxed);
        if head > 1 {
            self.head.store(head & !1, Ordering::Relaxed);
        }
    }

    /// What the body of an answer keeps where answers are multiplexed, as over HTTP/2. Elsewhere the socket alone tells
    /// what is unsent.
    pub(crate) fn unsent(&self, multiplexed: bool) -> Option<Unsent> {
        multiplexed.then(|| {
            self.multiplexed.store(true, Ordering::Relaxed);
            Unsent {
                bytes: 0,
                all: Arc::clone(&self.unsent),
            }
        })
    }

    /// Whether the client is to be told that its next answer is the last: over HTTP/1.1 it may have sent a request
    /// that was not read yet, which is lost where the connection just ends. HTTP/2 has GOAWAY.
    pub(crate) fn announces_end(&self) -> bool {
        let asked = self.steps.load(Ordering::Relaxed) > 0;
        asked && !self.is_multiplexed()
    }

    fn is_multiplexed(&self) -> bool {
        self.multiplexed.load(Ordering::Relaxed)
    }

    fn step(&self) {
        let steps = self.steps.load(Ordering::Relaxed);
        self.steps.store(steps.wrapping_add(1), Ordering::Relaxed);
    }

    pub(crate) fn order(&self, order: Order) {
        if order == Order::Drain {
            self.answering.store(true, Ordering::Relaxed);
        }
        self.order.store(order as u8, Ordering::Release);
        self.waker.wake();
    }

    pub(crate) fn is_told(&self, order: Order) -> bool {
        self.order.load(Ordering::Acquire) == order as u8
    }

    /// What `future` gives, unless the connection is to close before.
    pub(crate) async fn unless_closed<F: Future>(&self, future: F) -> Option<F::Output> {
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
    pub(crate) fn must_close(&self, stage: Stage) -> bool {
        let expected = self.expected.load(Ordering::Relaxed);
        let same = |counted: &AtomicU64| counted.load(Ordering::Relaxed) == expected;
        let still = (self.is_told(Order::Close) && same(&self.steps))
            || (self.is_told(Order::CloseHead) && same(&self.head));
        let stuck = self.is_told(Order::CloseUnsent)
            && self.is_unsent()
            && self.sent.load(Ordering::Relaxed) < expected;
        stuck || (still && !self.owes(stage))
    }

    /// Whether a head is awaited and nothing else.
    pub(crate) fn awaits_head(&self) -> bool {
        self.head.load(Ordering::Relaxed) & 1 == 1 && !self.is_multiplexed()
    }

    /// Whether the client still has something to get. Draining has a bound of its own, so whoever reads slowly, which
    /// the kernel tells only now and then, is cut off by that alone.
    pub(crate) fn owes(&self, stage: Stage) -> bool {
        Arc::strong_count(&self.answering) > 1 || (stage == Stage::Draining && self.is_unsent())
    }

    /// Whether there is an answer that the client does not take.
    pub(crate) fn is_unsent(&self) -> bool {
        self.full.load(Ordering::Relaxed) || self.unsent.load(Ordering::Relaxed) > 0
    }

    /// Bytes that a client with unsent answers has to take within the time for that. Over HTTP/2 they are a share of
    /// what waits for it: to let much wait costs the client that it takes much, and its pings alone are too few.
    pub(crate) fn least_to_take(&self) -> u64 {
        if !self.is_multiplexed() {
            return 1;
        }
        let share = self.unsent.load(Ordering::Relaxed) / UNSENT_SHARE;
        share.max(TAKEN_BYTES_MIN)
    }
}

/// Bytes of an answer over HTTP/2 that are not written.
pub(crate) struct Unsent {
    bytes: u64,
    all: Arc<AtomicU64>,
}

impl Unsent {
    /// Counts `bytes` more.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.all.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts none any more: what there is was taken, and the client owes nothing for what is still to come.
    pub(crate) fn forget(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = 0;
    }

    /// What a part of so many bytes keeps; a body of a length that was not known has more than was counted.
    pub(crate) fn part(&mut self, bytes: u64) -> Self {
        self.add((bytes + 1).saturating_sub(self.bytes));
        self.bytes -= bytes;
        Self {
            bytes,
            all: Arc::clone(&self.all),
        }
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        self.forget();
    }
}
