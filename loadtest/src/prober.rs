//! The invalidation lag: how long after a commit a document that was hot in memory still shows what was before it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use larder::clock::Boottime;
use tokio::sync::{Mutex, watch};

use crate::history::Digest;
use crate::http::Wire;
use crate::record::{Phase, Read, Record};
use crate::tally::{Durations, Way};
use crate::workload::{Plot, revised_root};
use crate::writers::Session;

const PAUSE: Duration = Duration::from_millis(30);
/// Reads that warm a document up before it changes.
const WARMING_MAX: u32 = 20;
const PATIENCE: Duration = Duration::from_secs(5);

/// Measures in quiet times, over and over.
pub(crate) struct Prober {
    pub(crate) record: Arc<Record>,
    pub(crate) plot: Arc<Mutex<Plot>>,
    pub(crate) session: Session,
    pub(crate) targets: watch::Receiver<Vec<SocketAddr>>,
    pub(crate) rng: fastrand::Rng,
    pub(crate) lags: Durations,
}

impl Prober {
    /// Runs until everybody is to end.
    pub(crate) async fn run(mut self) -> Durations {
        let record = Arc::clone(&self.record);
        while !record.stopping() {
            if record.phase() == Phase::Quiet {
                // What a fault has overtaken says nothing.
                if let Ok(lag) = self.probe().await
                    && record.phase() == Phase::Quiet
                {
                    self.lags.note(lag);
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.lags
    }

    /// From the acknowledgement of a commit to the beginning of the first read that shows it.
    async fn probe(&mut self) -> anyhow::Result<Duration> {
        let target = self.targets.borrow().first().copied();
        let mut wire = Wire::connect(target.context("no larder")?).await?;
        let plot = Arc::clone(&self.plot);
        let mut plot = plot.lock().await;
        let change = revised_root(&plot, self.record.revision(), &mut self.rng);
        let change = change.context("no document to change")?;
        let touched = plot.touched(&change);
        let made = touched.first().context("nothing changed")?;
        let mut warming = 0;
        while self.read(&mut wire, made.key).await?.way != Way::Memory {
            warming += 1;
            ensure!(warming < WARMING_MAX, "memory does not keep it");
        }
        self.session
            .transact(&mut plot, change, &self.record)
            .await?;
        let committed = Boottime::now();
        loop {
            ensure!(
                Boottime::now().since(committed) < PATIENCE,
                "it does not show"
            );
            let seen = self.read(&mut wire, made.key).await?;
            if seen.digest == made.digest {
                return Ok(seen.began.since(committed));
            }
        }
    }

    async fn read(&self, wire: &mut Wire, key: u32) -> anyhow::Result<Seen> {
        let request = format!("GET /roots/{key} HTTP/1.1\r\nHost: larder\r\n\r\n");
        let began = Boottime::now();
        wire.send(request.as_bytes()).await?;
        let answer = tokio::time::timeout(PATIENCE, wire.receive()).await??;
        let way = Way::of(answer.status, answer.cache_status);
        ensure!(way.is_answer(), "no answer");
        self.record.judge(&Read {
            key,
            began,
            phase: Phase::Quiet,
            cache_status: answer.cache_status,
            body: (answer.status == 200).then_some(answer.body),
        });
        let digest = match answer.status {
            200 => Digest::of(answer.body),
            _ => Digest::ABSENT,
        };
        Ok(Seen { began, way, digest })
    }
}

struct Seen {
    began: Boottime,
    way: Way,
    digest: Digest,
}
