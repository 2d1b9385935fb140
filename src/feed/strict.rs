//! The passes that strict reads wait for.
//!
//! Passes are numbered as they begin. A strict read reflects all that had committed when it arrived once a pass is applied
//! that began later and was *verified*: it has found out whether definitions had changed, although its snapshot may be that
//! of the pass before.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// The shortest time between the starts of two passes that strict reads ask for.
const PASS_INTERVAL_MIN: Duration = Duration::from_millis(2);
/// After a pass so many times its length go by until strict reads get the next one: they take a quarter of the feed's
/// server process at most.
const PAUSE_SHARE: u32 = 3;

/// The numbers of passes, shared by the feed and the strict reads that wait.
#[derive(Debug, Default)]
pub struct StrictPasses {
    /// The number of the last pass that has begun.
    begun: AtomicU64,
    /// Strict reads that wait.
    waiting: AtomicUsize,
    /// The highest number of a pass that a strict read waits for.
    wanted: AtomicU64,
    requested: Notify,
}

/// A strict read that waits: passes that begin are verified.
#[derive(Debug)]
pub struct WaitingRead<'p> {
    passes: &'p StrictPasses,
    /// The number of the last pass that had begun when the wait began.
    pub begun: u64,
}

impl Drop for WaitingRead<'_> {
    fn drop(&mut self) {
        self.passes.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl StrictPasses {
    /// Begins to wait for a pass that has not begun yet, and asks the feed for one.
    pub fn wait(&self) -> WaitingRead<'_> {
        // Before the number, so that the pass after it knows that it is wanted.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let begun = self.begun.load(Ordering::SeqCst);
        if self.wanted.fetch_max(begun + 1, Ordering::SeqCst) <= begun {
            self.requested.notify_one();
        }
        WaitingRead {
            passes: self,
            begun,
        }
    }

    /// Begins a pass. Returns its number, and whether a strict read may wait for it.
    pub(crate) fn begin(&self) -> (u64, bool) {
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        (number, self.waiting.load(Ordering::SeqCst) > 0)
    }

    /// Waits until a strict read wants a pass that has not begun.
    pub(super) async fn wanted(&self) {
        while self.wanted.load(Ordering::SeqCst) <= self.begun.load(Ordering::SeqCst) {
            self.requested.notified().await;
        }
    }
}

/// When strict reads get the next pass, after one that ran from `began` to `ended`.
pub(super) fn next_strict(began: Instant, ended: Instant) -> Instant {
    let length = ended.duration_since(began);
    (began + PASS_INTERVAL_MIN).max(ended + length * PAUSE_SHARE)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_pass_that_had_begun_is_not_the_one_that_is_waited_for() {
        let passes = StrictPasses::default();
        assert_eq!(passes.begin(), (1, false));
        let first = passes.wait();
        assert_eq!(first.begun, 1);
        assert!(passes.wanted().now_or_never().is_some());
        assert_eq!(passes.begin(), (2, true));
        assert!(passes.wanted().now_or_never().is_none(), "it has begun");
        let second = passes.wait();
        drop(first);
        assert_eq!(second.begun, 2);
        assert!(passes.wanted().now_or_never().is_some());
        assert_eq!(passes.begin(), (3, true));
        drop(second);
        assert_eq!(passes.begin(), (4, false));
    }

    #[test]
    fn strict_reads_take_a_quarter_of_the_time_at_most() {
        let began = Instant::now();
        let after = |microseconds| began + Duration::from_micros(microseconds);
        assert_eq!(next_strict(began, after(100)), after(2_000));
        assert_eq!(next_strict(began, after(5_000)), after(20_000));
    }
}
