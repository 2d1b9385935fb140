//! What has happened on a connection, and what it is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use futures_util::task::AtomicWaker;

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
}

/// What has happened on a connection, and what it is told.
#[derive(Default)]
pub(super) struct Progress {
    /// One reference more for each request that was read and whose answer is being made.
    answering: Arc<()>,
    /// The socket has no place for what has to be written.
    pub(super) full: AtomicBool,
    /// Answers are kept back, so that they can be sent together with what may follow.
    pub(super) holds: AtomicBool,
    /// Requests read, and writes that the client's side took.
    pub(super) steps: AtomicU64,
    /// Steps at which it was told to close.
    pub(super) idle_at: AtomicU64,
    /// An [`Order`], or 0.
    order: AtomicU8,
    /// Wakes the connection for its order.
    pub(super) waker: AtomicWaker,
}

impl Progress {
    /// A request was read. Whoever makes its answer keeps what this returns.
    pub(super) fn answer(&self) -> Arc<()> {
        self.step();
        Arc::clone(&self.answering)
    }

    /// Only the connection's own task calls this, so that no step is lost.
    pub(super) fn step(&self) {
        let steps = self.steps.load(Ordering::Relaxed);
        self.steps.store(steps.wrapping_add(1), Ordering::Relaxed);
    }

    pub(super) fn order(&self, order: Order) {
        self.order.store(order as u8, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn is_told(&self, order: Order) -> bool {
        self.order.load(Ordering::Acquire) == order as u8
    }

    pub(super) fn is_idle(&self, stage: Stage) -> bool {
        let steps = self.steps.load(Ordering::Relaxed);
        steps == self.idle_at.load(Ordering::Relaxed) && !self.owes(stage)
    }

    /// Whether the client still has something to get. Draining has a bound of its own, so whoever reads slowly, which
    /// the kernel tells only now and then, is cut off by that alone.
    pub(super) fn owes(&self, stage: Stage) -> bool {
        Arc::strong_count(&self.answering) > 1
            || (stage == Stage::Draining && self.full.load(Ordering::Relaxed))
    }
}
