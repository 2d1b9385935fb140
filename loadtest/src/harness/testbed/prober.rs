//! The invalidation lag: how long after a commit a document that was hot in memory still shows what was before it.
//!
//! Reads begin at a fixed rate, whether or not those before are answered: the lag is when a read had to begin to show
//! the commit, not how long reads wait under load.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use larder::clock::Boottime;
use testkit::http::HttpConnection;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::harness::session::SqlSession;
use crate::workload::counters::{Durations, ReadResult};
use crate::workload::history::Digest;
use crate::workload::record::{ReadAnswer, Record, RunPhase};
use crate::workload::viewer::Viewer;
use crate::workload::{Plot, revised_root};

const PAUSE: Duration = Duration::from_millis(30);
/// Reads that warm a document up before it changes.
const WARMING_MAX: u32 = 20;
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// From the start of a read to the start of the next.
const READ_INTERVAL: Duration = Duration::from_millis(1);
/// The most reads in flight; a read that is due then is left out.
const LOOKS_MAX: usize = 64;

/// Measures the lag in quiet times, again and again.
pub(crate) struct LagProber {
    pub(crate) record: Arc<Record>,
    pub(crate) plot: Arc<Mutex<Plot>>,
    pub(crate) session: SqlSession,
    pub(crate) targets: watch::Receiver<Vec<SocketAddr>>,
    pub(crate) rng: fastrand::Rng,
    pub(crate) lags: Durations,
}

impl LagProber {
    /// Runs until the load is to end.
    pub(crate) async fn run(mut self) -> Durations {
        let record = Arc::clone(&self.record);
        let mut connections = Vec::new();
        while !record.stopping() {
            if record.phase() == RunPhase::Quiet {
                // A measurement during which a fault began does not count.
                match self.probe(&mut connections).await {
                    Ok(lag) if record.phase() == RunPhase::Quiet => self.lags.note(lag),
                    Ok(_) => {}
                    Err(_) => connections.clear(),
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.lags
    }

    /// From the acknowledgement of a commit to the beginning of the first read that shows it.
    async fn probe(&mut self, connections: &mut Vec<HttpConnection>) -> anyhow::Result<Duration> {
        let target = self.targets.borrow().first().copied();
        let target = target.context("no larder")?;
        while connections.len() < LOOKS_MAX {
            let mut connection = HttpConnection::connect(target).await?;
            connection.answer_max = ANSWER_MAX;
            connections.push(connection);
        }
        let plot = Arc::clone(&self.plot);
        let mut plot = plot.lock().await;
        let change = revised_root(&plot, self.record.revision(), &mut self.rng);
        let change = change.context("no document to change")?;
        let touched = plot.touched(&change);
        let made = touched.first().context("nothing changed")?;
        let mut warming = 0;
        loop {
            let connection = connections.pop().context("no connection")?;
            let read = timed_read(connection, made.key, Arc::clone(&self.record)).await?;
            connections.push(read.connection);
            if read.result == ReadResult::Memory {
                break;
            }
            warming += 1;
            ensure!(warming < WARMING_MAX, "memory does not keep it");
        }
        self.session
            .transact(&mut plot, change, &self.record)
            .await?;
        let committed = Boottime::now();
        let shown = self.shown(connections, made.key, made.digest).await?;
        Ok(shown.since(committed))
    }

    /// When the first read began that shows `digest`.
    async fn shown(
        &self,
        connections: &mut Vec<HttpConnection>,
        key: u32,
        digest: Digest,
    ) -> anyhow::Result<Boottime> {
        let began = Boottime::now();
        let mut interval = tokio::time::interval(READ_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reads = JoinSet::new();
        let mut shown: Option<Boottime> = None;
        while shown.is_none() || !reads.is_empty() {
            let ended = tokio::select! {
                Some(read) = reads.join_next() => Some(read??),
                _ = interval.tick(), if shown.is_none() => None,
            };
            match ended {
                Some(TimedRead {
                    connection,
                    began,
                    digest: seen,
                    ..
                }) => {
                    if seen == digest {
                        shown = Some(shown.map_or(began, |first| first.min(began)));
                    }
                    connections.push(connection);
                }
                None => {
                    let since = Boottime::now().since(began);
                    ensure!(since < ANSWER_MAX, "it does not show");
                    if let Some(connection) = connections.pop() {
                        reads.spawn(timed_read(connection, key, Arc::clone(&self.record)));
                    }
                }
            }
        }
        shown.context("no read shows it")
    }
}

/// A read and its connection.
struct TimedRead {
    connection: HttpConnection,
    began: Boottime,
    result: ReadResult,
    digest: Digest,
}

async fn timed_read(
    mut connection: HttpConnection,
    key: u32,
    record: Arc<Record>,
) -> anyhow::Result<TimedRead> {
    let viewer = Viewer::Staff;
    let request = viewer.get(format!("/roots/{key}"));
    let began = Boottime::now();
    let answer = connection.send(&request).await?;
    let cache_status = answer.header("cache-status");
    let result = ReadResult::of(answer.status, cache_status);
    ensure!(result.is_answer(), "no answer");
    record.judge(&ReadAnswer {
        key,
        viewer,
        began,
        phase: RunPhase::Quiet,
        cache_status,
        body: (answer.status == 200).then_some(&answer.body),
    });
    let digest = match answer.status {
        200 => Digest::of(&answer.body),
        _ => Digest::ABSENT,
    };
    Ok(TimedRead {
        connection,
        began,
        result,
        digest,
    })
}
