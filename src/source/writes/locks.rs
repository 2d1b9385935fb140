//! How a write waits for locks that others hold, so that no transaction of theirs is ended for it.
//!
//! Of transactions that wait for each other PostgreSQL ends the one that has waited for `deadlock_timeout`, 1 s unless
//! it is set otherwise. So a write gives way long before: it takes the locks of its tables first, waits for a lock at
//! most 50 ms, and rolls back and tries again where it does not get it. While it pauses it holds nothing. A write that
//! has held locks for 450 ms waits for no more of them: if it needs one, it gives way. It may still run for long, as
//! with a document of many rows. Each bound is below half of the default, so that whoever waits for a lock of larder's
//! has it before PostgreSQL looks for a deadlock. Where `deadlock_timeout` is set below 500 ms, that does not hold.
//!
//! What remains: one statement that runs for longer than that goes on to wait 50 ms for a lock, and so do bulk writes,
//! which hold their locks to their end. If others wait for those, and larder for one of theirs, PostgreSQL's look has
//! to fall into these 50 ms to end their transaction; afterwards larder's ends. What users' triggers wait for, rows,
//! advisory locks or tables, counts as larder's.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// For each lock, of a table or of a row.
pub(super) const LOCK_TIMEOUT: &str = "set local lock_timeout = 50; ";

/// Once locks have been held for [`HOLDING_MAX`]: the shortest there is, as 0 stands for no bound.
pub(super) const NO_LOCK_TIMEOUT: &str = "set local lock_timeout = 1";

/// From the first lock to the last one that is waited for.
pub(super) const HOLDING_MAX: Duration = Duration::from_millis(450);

/// Between attempts. Each but the first waits twice as long as the one before, to this.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// What a transaction does if it has not got a lock in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockRetry {
    /// It is rolled back and begun again, for as long as a statement may take.
    Always,
    /// The same for a lock of a table. A lock of a row concerns one document, and the others share the transaction.
    TableOnly,
    /// It fails: the client has sent what it wrote as a stream. It takes long, so each wait is as short as the first.
    Never,
}

/// The pauses between the attempts of a write, until its time is over.
pub(super) struct Pauses {
    until: Instant,
    next: Duration,
}

impl Pauses {
    pub(super) fn until(until: Instant) -> Self {
        Self {
            until,
            next: PAUSE_MIN,
        }
    }

    /// Waits for the next attempt; false at once where there is no time for one.
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
        let mut pauses = Pauses::until(begun + Duration::from_secs(1));
        let mut ends = Vec::new();
        while pauses.pause().await {
            ends.push(begun.elapsed().as_millis());
        }
        assert_eq!(ends, [10, 30, 70, 150, 310, 510, 710, 910]);
    }
}
