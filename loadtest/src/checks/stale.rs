//! `loadtest stale`: load, faults one after the other with quiet times between, and a verdict.

pub(crate) mod report;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use larder::clock::Boottime;
use tokio::time::Instant;

use crate::checks::faults::Faults;
use crate::checks::faults::{Fault, Injection};
use crate::checks::stale::report::{Report, Span};
use crate::harness::stage::readers::{Swept, sweep};
use crate::harness::stage::{Stage, StageConfig};
use crate::workload::NOTES;
use crate::workload::record::Phase;

/// As shipped.
pub(crate) const MAX_STALENESS: Duration = Duration::from_secs(1);
const KEYS_PER_PLOT: u32 = 1_000;
/// About half of the documents fit.
const MEMORY_BYTES: u64 = 3 << 20;
/// Of all writers together.
const COMMITS_PER_SECOND: f64 = 120.0;

/// Tiers fill, the disk tier by its batches.
const WARM_UP: Duration = Duration::from_secs(3);
const FIRST_QUIET: Duration = Duration::from_secs(4);
/// Between two faults.
const SETTLING: Duration = Duration::from_millis(500);
const QUIET: Duration = Duration::from_millis(700);
/// The last reads and the end of everything.
const CLOSING: Duration = Duration::from_secs(4);
/// A fault that takes longer is broken.
const FAULT_TIMEOUT: Duration = Duration::from_secs(90);

/// How long, and what goes wrong meanwhile.
#[derive(Args, Clone, Debug)]
pub(crate) struct StaleArgs {
    /// How long to check; every fault once takes about 230 s.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(5..))]
    pub(crate) seconds: u64,
    /// Names of faults, separated by commas; or all, or none.
    #[arg(long, value_name = "LIST", default_value = "all")]
    pub(crate) faults: Faults,
    /// Fail where fewer reads were checked.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) reads: u64,
}

/// Whether everything held.
pub(crate) async fn run(args: &StaleArgs, binary: PathBuf, seed: u64) -> anyhow::Result<bool> {
    let config = StageConfig {
        notes: NOTES,
        ..config(binary, seed)
    };
    println!("seed {seed}; starting PostgreSQL and larder");
    let mut stage = Stage::set(&config).await?;
    let ends = Instant::now() + Duration::from_secs(args.seconds);
    stage.load(&config)?;
    let mut campaign = Campaign {
        stage,
        ends: ends - CLOSING,
        spans: Vec::new(),
        progress: progress(args.seconds)?,
    };
    campaign.stage.stay(Phase::Settling, WARM_UP).await;
    campaign.stage.stay(Phase::Quiet, FIRST_QUIET).await;
    let outcome = campaign.rounds(&args.faults.list).await;
    campaign.progress.finish_and_clear();
    let Campaign {
        mut stage, spans, ..
    } = campaign;
    if outcome.is_ok() {
        close(&stage).await?;
    }
    let measured = stage.measured(&config).await?;
    let report = Report {
        args: args.clone(),
        seed,
        elapsed: Boottime::now().since(stage.record.began),
        measured,
        spans,
        broken: outcome.err().map(|error| format!("{error:#}")),
        record: std::sync::Arc::clone(&stage.record),
        interference: std::sync::Arc::clone(&stage.interference),
    };
    let held = report.print();
    if report.broken.is_none() {
        stage.strike().await?;
    }
    Ok(held)
}

/// A stage as `stale` sets it.
pub(crate) fn config(binary: PathBuf, seed: u64) -> StageConfig {
    StageConfig {
        binary,
        seed,
        max_staleness: MAX_STALENESS,
        keys_per_plot: KEYS_PER_PLOT,
        notes: 0,
        memory_bytes: MEMORY_BYTES,
        notify: true,
        proxied: true,
        commits_per_second: COMMITS_PER_SECOND,
        faults: Fault::ALL.len(),
    }
}

/// Nobody writes any more: what is read once `max_staleness` has passed must be the last of everything.
pub(crate) async fn close(stage: &Stage) -> anyhow::Result<Swept> {
    stage.record.enter(Phase::Settling);
    let still = stage.all_plots().await;
    stage.hold(1.1).await;
    let keys = 1..=stage.record.keys();
    let swept = sweep(&stage.record, stage.larder.config.listen, keys).await?;
    drop(still);
    Ok(swept)
}

struct Campaign {
    stage: Stage,
    ends: Instant,
    spans: Vec<Span>,
    progress: ProgressBar,
}

impl Campaign {
    /// All of `faults` in a random order, again and again for as long as time allows.
    async fn rounds(&mut self, faults: &[Fault]) -> anyhow::Result<()> {
        let mut faults = faults.to_vec();
        // What can't be done here is tried once.
        let mut first = true;
        while !faults.is_empty() && Instant::now() < self.ends {
            self.stage.rng.shuffle(&mut faults);
            let mut possible = Vec::new();
            for fault in &faults {
                if Instant::now() + self.expected(*fault, first) >= self.ends {
                    continue;
                }
                if self.once(*fault).await? {
                    possible.push(*fault);
                }
            }
            if possible.is_empty() {
                break;
            }
            first = false;
            faults = possible;
        }
        let rest = self.ends.saturating_duration_since(Instant::now());
        self.stage.stay(Phase::Quiet, rest).await;
        Ok(())
    }

    /// How long the fault took the last time.
    fn expected(&self, fault: Fault, first: bool) -> Duration {
        let last = self.spans.iter().rev().find(|span| span.fault == fault);
        match last {
            Some(span) => span.took() + SETTLING + QUIET,
            None if first => Duration::ZERO,
            None => Duration::MAX / 4,
        }
    }

    /// One fault and the quiet time after it. Returns whether this machine can do it.
    async fn once(&mut self, fault: Fault) -> anyhow::Result<bool> {
        let number = Fault::ALL.iter().position(|other| *other == fault);
        let stage = &mut self.stage;
        stage.record.enter(Phase::Fault(number.unwrap_or_default()));
        let began = Boottime::now();
        self.progress.set_message(fault.name());
        let injecting = tokio::time::timeout(FAULT_TIMEOUT, fault.inject(stage)).await;
        let injection = match injecting {
            Ok(Ok(injection)) => injection,
            Ok(Err(error)) => Injection::Failed(format!("{error:#}")),
            Err(_) => Injection::Failed(format!("it takes more than {FAULT_TIMEOUT:?}")),
        };
        let mended = stage.mend().await;
        let recovery = mended.with_context(|| format!("after fault {}", fault.name()))?;
        let span = Span {
            fault,
            began,
            ended: Boottime::now(),
            recovery,
            injection: injection.clone(),
            impact: stage.interference.take(),
        };
        let reads = stage.record.reads();
        let (line, offences) = (span.line(stage.record.began), stage.record.offences());
        self.progress.suspend(|| println!("{line}"));
        self.progress
            .set_position(span.ended.since(stage.record.began).as_secs());
        self.progress
            .set_message(format!("{reads} reads, {offences} stale"));
        self.spans.push(span);
        stage.stay(Phase::Settling, SETTLING).await;
        stage.stay(Phase::Quiet, QUIET).await;
        Ok(injection == Injection::Done)
    }
}

/// Hidden where stderr is no terminal.
fn progress(seconds: u64) -> anyhow::Result<ProgressBar> {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} s  {msg}")?;
    Ok(ProgressBar::new(seconds).with_style(style))
}
