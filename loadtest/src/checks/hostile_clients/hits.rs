//! Latencies of hits at a low, fixed rate over one connection.

use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::time::{Instant, sleep};

use crate::harness::demo::documents::Checker;

/// The time between two hits.
const INTERVAL: Duration = Duration::from_millis(4);
/// A p99 of fewer hits depends on a few of them.
const HITS_MIN: usize = 250;

/// How long each hit took.
pub(super) struct Latencies {
    sorted: Vec<Duration>,
}

impl Latencies {
    pub(super) fn count(&self) -> usize {
        self.sorted.len()
    }

    /// # Errors
    /// Too few hits.
    pub(super) fn p99(&self) -> anyhow::Result<Duration> {
        let count = self.count();
        ensure!(count >= HITS_MIN, "only {count} hits");
        let hit = self.sorted.get(count * 99 / 100);
        hit.copied().context("no hits")
    }
}

/// Reads documents for so long.
///
/// A hit that is due while the one before it is not answered counts from the time when it was due: a pause of larder
/// delays each hit that clients would have sent meanwhile. If this program itself is late, the hit counts from the time when
/// it was sent.
///
/// # Errors
/// A wrong answer, or one out of another tier.
pub(super) async fn measure(
    checker: &mut Checker,
    duration: Duration,
) -> anyhow::Result<Latencies> {
    let mut due = Instant::now();
    let until = due + duration;
    let mut sorted = Vec::new();
    while due < until {
        if Instant::now() < due {
            sleep(due - Instant::now()).await;
            due = Instant::now();
        }
        ensure!(checker.check().await?, "an answer out of another tier");
        sorted.push(due.elapsed());
        due += INTERVAL;
    }
    sorted.sort_unstable();
    Ok(Latencies { sorted })
}
