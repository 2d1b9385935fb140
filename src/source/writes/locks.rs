//! How a write waits for locks, so that PostgreSQL aborts no other transaction because of it.
//!
//! PostgreSQL aborts the transaction of a deadlock that has waited for `deadlock_timeout`, which is 1 s by default. So
//! a write gives up long before: it first locks its tables, waits for each lock at most 50 ms, and if it does not get
//! one, it rolls back and tries again. It holds no locks while it pauses. A write that has held locks for 450 ms waits
//! for no further lock: if it needs one that is held, it gives up. It may still run for long, for example with a
//! document of many rows. Both limits are below half of the default, so that a transaction that waits for larder gets
//! its lock before PostgreSQL searches for a deadlock. That does not hold if `deadlock_timeout` is below 500 ms.
//!
//! What remains: one statement that runs for longer than 450 ms still waits 50 ms for a lock, and so do bulk writes,
//! which hold their locks until they end. If another transaction waits for those, and larder for one of its locks,
//! PostgreSQL aborts the other transaction only if it searches within these 50 ms; after them larder's transaction has
//! ended. The locks that users' triggers wait for, of rows, tables or advisory ones, count as larder's.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// For each lock, of a table or of a row.
pub(super) const LOCK_TIMEOUT: &str = "set local lock_timeout = 50; ";

/// After [`LOCKS_HELD_MAX`]: the shortest timeout, as 0 stands for none.
pub(super) const MINIMAL_LOCK_TIMEOUT: &str = "set local lock_timeout = 1";

/// How long a transaction that holds locks may wait for further ones.
pub(super) const LOCKS_HELD_MAX: Duration = Duration::from_millis(450);

/// The first pause between attempts, and the longest. Each is twice as long as the one before.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// What a transaction does if it does not get a lock in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockRetry {
    /// It is rolled back and repeated, for as long as a statement may take.
    Always,
    /// It is repeated only for a lock of a table. A lock of a row concerns one of the documents that share the
    /// transaction.
    TableOnly,
    /// It fails, since the client sent its documents as a stream, which is not kept. It may take long, so every wait
    /// for a lock stays at 50 ms.
    Never,
}

/// The pauses between the attempts of a write, until its time is over.
pub(super) struct AttemptPauses {
    until: Instant,
    next: Duration,
}

impl AttemptPauses {
    pub(super) fn until(until: Instant) -> Self {
        Self {
            until,
            next: PAUSE_MIN,
        }
    }

    /// Waits before the next attempt. Returns false at once if the time is over before that.
    pub(super) async fn pause(&mut self) -> bool {
        if Instant::now() + self.next > self.until {
            return false;
        }
        sleep(self.next).await;
        self.next = (self.next * 2).min(PAUSE_MAX);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_and_end_with_the_time() {
        let begun = Instant::now();
        let mut pauses = AttemptPauses::until(begun + Duration::from_secs(1));
        let mut ends = Vec::new();
        while pauses.pause().await {
            ends.push(begun.elapsed().as_millis());
        }
        assert_eq!(ends, [10, 30, 70, 150, 310, 510, 710, 910]);
    }
}
