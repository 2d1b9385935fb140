//! `loadtest stale`: load, faults one after the other with quiet times between, and a report.

pub(crate) mod report;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use larder::clock::Boottime;
use tokio::time::Instant;

use crate::checks::faults::FaultList;
use crate::checks::faults::{Fault, Injection};
use crate::checks::stale::report::{FaultSpan, StaleReport};
use crate::harness::progress;
use crate::harness::testbed::readers::{SweepCounts, sweep};
use crate::harness::testbed::{Testbed, TestbedConfig};
use crate::workload::NOTES;
use crate::workload::record::RunPhase;

/// The default.
pub(crate) const MAX_STALENESS: Duration = Duration::from_secs(1);
const KEYS_PER_PLOT: u32 = 1_000;
/// About half of the documents fit.
const MEMORY_BYTES: u64 = 3 << 20;
/// Commits of all writers together.
const COMMITS_PER_SECOND: f64 = 120.0;

/// For the tiers to fill.
const WARM_UP: Duration = Duration::from_secs(3);
const FIRST_QUIET: Duration = Duration::from_secs(4);
/// After each fault, before the quiet time.
const SETTLING: Duration = Duration::from_millis(500);
const QUIET: Duration = Duration::from_millis(700);
/// For the last reads and for stopping everything.
const CLOSING: Duration = Duration::from_secs(4);
/// For one fault.
const FAULT_TIMEOUT: Duration = Duration::from_secs(90);

/// How long the check runs, and which faults it injects.
#[derive(Args, Clone, Debug)]
pub(crate) struct StaleArgs {
    /// How long to check; every fault once takes about 230 s.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(5..))]
    pub(crate) seconds: u64,
    /// Names of faults, separated by commas; or all, or none.
    #[arg(long, value_name = "LIST", default_value = "all")]
    pub(crate) faults: FaultList,
    /// Fail if fewer reads were checked.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) reads: u64,
}

/// Whether everything held.
pub(crate) async fn run(args: &StaleArgs, binary: PathBuf, seed: u64) -> anyhow::Result<bool> {
    let config = TestbedConfig {
        notes: NOTES,
        ..config(binary, seed)
    };
    println!("seed {seed}; starting PostgreSQL and larder");
    let mut testbed = Testbed::start(&config).await?;
    let ends = Instant::now() + Duration::from_secs(args.seconds);
    testbed.load(&config)?;
    let progress = progress(args.seconds)?;
    progress::show(&progress);
    let mut schedule = FaultSchedule {
        testbed,
        ends: ends - CLOSING,
        spans: Vec::new(),
        progress,
    };
    schedule
        .testbed
        .run_phase(RunPhase::Settling, WARM_UP)
        .await;
    schedule
        .testbed
        .run_phase(RunPhase::Quiet, FIRST_QUIET)
        .await;
    let outcome = schedule.rounds(&args.faults.list).await;
    schedule.progress.finish_and_clear();
    let FaultSchedule {
        mut testbed, spans, ..
    } = schedule;
    if outcome.is_ok() {
        close(&testbed).await?;
    }
    let measured = testbed.measured(&config).await?;
    let report = StaleReport {
        args: args.clone(),
        seed,
        elapsed: Boottime::now().since(testbed.record.began),
        measured,
        spans,
        broken: outcome.err().map(|error| format!("{error:#}")),
        record: std::sync::Arc::clone(&testbed.record),
        interference: std::sync::Arc::clone(&testbed.interference),
    };
    let held = report.print();
    if report.broken.is_none() {
        testbed.shutdown().await?;
    }
    Ok(held)
}

/// The configuration of the testbed of `stale`.
pub(crate) fn config(binary: PathBuf, seed: u64) -> TestbedConfig {
    TestbedConfig {
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

/// Stops all writers; after `max_staleness` every document must be the last version.
pub(crate) async fn close(testbed: &Testbed) -> anyhow::Result<SweepCounts> {
    testbed.record.enter(RunPhase::Settling);
    let still = testbed.all_plots().await;
    testbed.hold(1.1).await;
    let keys = 1..=testbed.record.keys();
    let swept = sweep(&testbed.record, testbed.larder.config.listen, keys).await?;
    drop(still);
    Ok(swept)
}

struct FaultSchedule {
    testbed: Testbed,
    ends: Instant,
    spans: Vec<FaultSpan>,
    progress: ProgressBar,
}

impl FaultSchedule {
    /// Injects all `faults` in a random order, again and again while there is time.
    async fn rounds(&mut self, faults: &[Fault]) -> anyhow::Result<()> {
        let mut faults = faults.to_vec();
        // Faults that are impossible here are tried once.
        let mut first = true;
        while !faults.is_empty() && Instant::now() < self.ends {
            self.testbed.rng.shuffle(&mut faults);
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
        self.testbed.run_phase(RunPhase::Quiet, rest).await;
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
        let testbed = &mut self.testbed;
        testbed
            .record
            .enter(RunPhase::Fault(number.unwrap_or_default()));
        let began = Boottime::now();
        self.progress.set_message(fault.name());
        let injecting = tokio::time::timeout(FAULT_TIMEOUT, fault.inject(testbed)).await;
        let injection = match injecting {
            Ok(Ok(injection)) => injection,
            Ok(Err(error)) => Injection::Failed(format!("{error:#}")),
            Err(_) => Injection::Failed(format!("it takes more than {FAULT_TIMEOUT:?}")),
        };
        let recovered = testbed.recover().await;
        let recovery = recovered.with_context(|| format!("after fault {}", fault.name()))?;
        let span = FaultSpan {
            fault,
            began,
            ended: Boottime::now(),
            recovery,
            injection: injection.clone(),
            impact: testbed.interference.take_impact(),
        };
        let reads = testbed.record.reads();
        let (line, violations) = (span.line(testbed.record.began), testbed.record.violations());
        println!("{line}");
        self.progress
            .set_position(span.ended.since(testbed.record.began).as_secs());
        self.progress
            .set_message(format!("{reads} reads, {violations} stale"));
        self.spans.push(span);
        testbed.run_phase(RunPhase::Settling, SETTLING).await;
        testbed.run_phase(RunPhase::Quiet, QUIET).await;
        Ok(injection == Injection::Done)
    }
}

/// Hidden where stderr is no terminal.
fn progress(seconds: u64) -> anyhow::Result<ProgressBar> {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} s  {msg}")?;
    Ok(ProgressBar::new(seconds).with_style(style))
}
