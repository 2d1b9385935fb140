//! What writers have committed, and what readers may see of it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use testkit::http::HttpConnection;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::harness::session::SqlSession;

const WRITE_PAUSE: Duration = Duration::from_millis(20);
const READ_PAUSE: Duration = Duration::from_millis(2);
/// After a request without an answer.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// So many failures of writes are kept.
const FAILURES_MAX: usize = 10;

/// The revisions of each item that were committed, with the moments of their acknowledgements.
pub(super) struct Ledger {
    items: Vec<Mutex<Vec<(Instant, u64)>>>,
    max_staleness: Duration,
    writes: Mutex<WriteCounts>,
}

/// What became of writes.
#[derive(Debug, Default)]
pub(super) struct WriteCounts {
    pub(super) committed: u64,
    pub(super) failed: Vec<String>,
}

impl Ledger {
    pub(super) fn new(items: usize, max_staleness: Duration) -> Self {
        Self {
            items: (0..items).map(|_| Mutex::default()).collect(),
            max_staleness,
            writes: Mutex::default(),
        }
    }

    /// Notes what became of the write that gave an item a revision.
    fn note(&self, item: usize, revision: u64, written: sqlx::Result<()>) {
        let mut writes = lock(&self.writes);
        match written {
            Ok(()) => {
                writes.committed += 1;
                lock(&self.items[item]).push((Instant::now(), revision));
            }
            Err(error) if writes.failed.len() < FAILURES_MAX => {
                writes.failed.push(error.to_string());
            }
            Err(_) => {}
        }
    }

    /// The oldest revision that a read which began at `began` may show.
    fn revision_min(&self, item: usize, began: Instant) -> u64 {
        let revisions = lock(&self.items[item]);
        let known = revisions
            .iter()
            .rev()
            .find(|(at, _)| *at + self.max_staleness < began);
        known.map_or(0, |(_, revision)| *revision)
    }

    /// What became of the writes since this was called last.
    pub(super) fn take_writes(&self) -> WriteCounts {
        std::mem::take(&mut *lock(&self.writes))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client of PostgreSQL that alone writes its items.
pub(super) struct ItemWriter {
    ledger: Arc<Ledger>,
    session: SqlSession,
    items: Vec<usize>,
    rng: fastrand::Rng,
}

impl ItemWriter {
    pub(super) fn new(
        ledger: Arc<Ledger>,
        session: SqlSession,
        items: Vec<usize>,
        rng: fastrand::Rng,
    ) -> Self {
        Self {
            ledger,
            session,
            items,
            rng,
        }
    }

    /// Gives one item after the other its next revision, until `stop`.
    pub(super) async fn run(mut self, stop: watch::Receiver<bool>) {
        let mut revision = 0;
        while !*stop.borrow() {
            revision += 1;
            let item = self.items[self.rng.usize(..self.items.len())];
            let sql = format!("update item set revision = {revision} where id = {item}");
            let written = self.session.run(&sql).await;
            self.ledger.note(item, revision, written);
            sleep(WRITE_PAUSE).await;
        }
    }
}

/// What the readers of one larder have seen since this was taken last.
#[derive(Debug, Default)]
pub(super) struct NodeCounts {
    answers: AtomicU64,
    stale: AtomicU64,
    refused: AtomicU64,
    unanswered: AtomicU64,
}

/// The same as numbers.
pub(super) struct TakenCounts {
    pub(super) answers: u64,
    pub(super) stale: u64,
    /// Other answers than 200.
    pub(super) refused: u64,
    pub(super) unanswered: u64,
}

impl NodeCounts {
    pub(super) fn take(&self) -> TakenCounts {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        TakenCounts {
            answers: take(&self.answers),
            stale: take(&self.stale),
            refused: take(&self.refused),
            unanswered: take(&self.unanswered),
        }
    }
}

/// A client of one larder.
pub(super) struct ItemReader {
    ledger: Arc<Ledger>,
    counts: Arc<NodeCounts>,
    target: SocketAddr,
    rng: fastrand::Rng,
}

impl ItemReader {
    pub(super) fn new(
        ledger: Arc<Ledger>,
        counts: Arc<NodeCounts>,
        target: SocketAddr,
        rng: fastrand::Rng,
    ) -> Self {
        Self {
            ledger,
            counts,
            target,
            rng,
        }
    }

    /// Reads one item after the other, until `stop`.
    pub(super) async fn run(mut self, stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            if let Ok(mut connection) = HttpConnection::connect(self.target).await {
                while !*stop.borrow() && self.read(&mut connection).await.is_ok() {
                    sleep(READ_PAUSE).await;
                }
            }
            self.counts.unanswered.fetch_add(1, Ordering::Relaxed);
            sleep(RETRY_PAUSE).await;
        }
    }

    /// Reads an item and judges the answer.
    async fn read(&mut self, connection: &mut HttpConnection) -> anyhow::Result<()> {
        let item = self.rng.usize(..self.ledger.items.len());
        let began = Instant::now();
        let answer = connection.get(format!("/items/{item}")).await?;
        if answer.status != 200 {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let body = answer.text();
        let (_, revision) = body.split_once("\"revision\":").context("no revision")?;
        let revision: u64 = revision.trim_end_matches('}').trim().parse()?;
        self.counts.answers.fetch_add(1, Ordering::Relaxed);
        let revision_min = self.ledger.revision_min(item, began);
        if revision < revision_min {
            self.counts.stale.fetch_add(1, Ordering::Relaxed);
            println!("stale: item {item} was answered with {revision}, not {revision_min}: {body}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_read_must_show_what_was_committed_before_max_staleness() {
        let ledger = Ledger::new(1, Duration::from_secs(1));
        lock(&ledger.items[0]).push((Instant::now(), 1));
        sleep(Duration::from_millis(900)).await;
        lock(&ledger.items[0]).push((Instant::now(), 2));
        assert_eq!(ledger.revision_min(0, Instant::now()), 0);
        sleep(Duration::from_millis(200)).await;
        assert_eq!(ledger.revision_min(0, Instant::now()), 1);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(ledger.revision_min(0, Instant::now()), 2);
    }
}
