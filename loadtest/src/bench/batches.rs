//! `loadtest bench batches`: do hits in memory stall while the disk tier writes batches?
//!
//! wrk reads some documents out of memory, by turns in quiet and while other documents are read for the first time in
//! lists of a hundred. A larder without a disk tier has the same turns: what reading from PostgreSQL costs the hits by
//! itself.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;

use crate::bench::benchmark::{Benchmark, CoreArgs, RunArgs, Setup, Turn};
use crate::bench::lists::{LIST_KEYS, read_lists};
use crate::harness::demo::Demo;
use crate::harness::larder::Larder;
use crate::harness::metrics::MetricSamples;
use crate::harness::process::{self, Meter};
use crate::harness::tools::wrk::{self, Wrk, WrkRequest, WrkRun};
use crate::report::benchmark_report::{Group, Measurement};
use crate::report::results::RunEnvironment;

/// Documents that are hits.
const HOT: u32 = 4_000;
const CONNECTIONS: usize = 64;
/// For all documents.
const MEMORY_BYTES: u64 = 4 << 30;
/// How long the writer to disk waits for more.
const LINGER: &str = "100ms";
const LINGERED: Duration = Duration::from_secs(1);
const TIERS: [&str; 2] = ["memory,disk", "memory"];
const CASES: [&str; 4] = [
    "disk, quiet",
    "disk, filling",
    "memory, quiet",
    "memory, filling",
];

/// How many documents are filled meanwhile.
#[derive(Args, Clone, Debug)]
pub(crate) struct BatchesArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) cores: CoreArgs,
    /// Documents; each is filled once.
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) depts: u32,
    /// Documents read for the first time in a second.
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    pub(crate) rate: u32,
}

/// A larder with a disk tier and one without.
pub(crate) struct Batches {
    args: BatchesArgs,
    seed: u64,
    wrk: Wrk,
    cores: BTreeSet<usize>,
    larders: Vec<Larder>,
    /// Documents that were filled, besides those that are hits.
    filled: u32,
    demo: Demo,
}

impl Benchmark for Batches {
    const NAME: &'static str = "batches";
    type Args = BatchesArgs;

    fn run_args(args: &BatchesArgs) -> &RunArgs {
        &args.run
    }

    async fn prepare(
        args: &BatchesArgs,
        setup: Setup<'_>,
        environment: &mut RunEnvironment,
    ) -> anyhow::Result<Self> {
        let rounds = u64::try_from(args.run.rounds)?;
        let wanted = u64::from(HOT) + rounds * u64::from(cold(args.rate, args.run.seconds)?);
        ensure!(
            wanted <= u64::from(args.depts),
            "{rounds} rounds fill {wanted} documents; give more --depts, or a lower --rate"
        );
        let mut demo = Demo::start(setup.binary, args.depts, 0, setup.seed).await?;
        let wrk = Wrk::new(demo.run_directory.directory(), &args.cores.tool_cores, HOT)?;
        environment.version(wrk.program(), "--version").await;
        let mut larders = Vec::new();
        for tiers in TIERS {
            let name = tiers.replace(',', "-");
            let mut config = demo.config(&name, setup.binary, Some(&args.cores.server_cores))?;
            config.arguments = vec!["--tiers".to_owned(), tiers.to_owned()];
            config.memory_bytes = MEMORY_BYTES;
            let linger = ("LARDER_DISK__LINGER".to_owned(), LINGER.to_owned());
            config.environment.push(linger);
            let mut larder = Larder::new(config)?;
            larder.start_ready().await?;
            environment.commands.push(larder.shown());
            read_lists(larder.config.listen, 1..=HOT, None).await?;
            larders.push(larder);
        }
        Ok(Self {
            args: args.clone(),
            seed: setup.seed,
            wrk,
            cores: process::cores(&args.cores.all())?,
            larders,
            filled: 0,
            demo,
        })
    }

    fn conditions(&self) -> String {
        let cores = &self.args.cores;
        format!(
            "Servers on core {}, wrk on core {}, PostgreSQL on any; {CONNECTIONS} connections ask for {HOT} documents in \
             memory; while a tier fills, {} others are read for the first time in a second; the disk tier's writer waits \
             {LINGER} for more.",
            cores.server_cores, cores.tool_cores, self.args.rate
        )
    }

    fn groups(&self) -> Vec<Group> {
        let pair = |one: usize, other: usize| (CASES[one].to_owned(), CASES[other].to_owned());
        vec![Group {
            name: format!("hits in memory, {CONNECTIONS} connections"),
            unit: "requests/s".to_owned(),
            cases: CASES.map(str::to_owned).to_vec(),
            pairs: vec![pair(1, 0), pair(3, 2), pair(1, 3)],
            layers: Vec::new(),
        }]
    }

    async fn turn(&mut self, turn: Turn) -> anyhow::Result<Measurement> {
        let larder = &self.larders[turn.case / 2];
        let target = larder.config.listen;
        let invocation = self.wrk.invocation(&WrkRun {
            target,
            connections: CONNECTIONS,
            seconds: turn.seconds,
            pipeline: 1,
            seed: self.seed.wrapping_add(turn.round as u64),
            request: WrkRequest::DOCUMENTS,
        });
        // Both larders fill the same documents in a round.
        let cold = cold(self.args.rate, turn.seconds)?;
        let first = HOT + u32::try_from(turn.round)? * cold + 1;
        let is_filling = turn.case % 2 == 1;
        let before = FilledCounts::by(larder).await?;
        let fill = async {
            if is_filling {
                let pace = Duration::from_secs(1) * LIST_KEYS / self.args.rate;
                read_lists(target, first..=first + cold - 1, Some(pace)).await?;
            }
            anyhow::Ok(())
        };
        let measure = async {
            let meter = Meter::start(Some(larder.pid()?), &self.cores)?;
            let output = invocation.run().await?;
            anyhow::Ok((output, meter.stop()?, FilledCounts::by(larder).await?))
        };
        let (measured, filled) = tokio::join!(measure, fill);
        filled.context("filling")?;
        let (output, cost, after) = measured?;
        if is_filling {
            self.filled = self.filled.max(first + cold - 1 - HOT);
        }
        let measured = wrk::parse(&output)?;
        Ok(Measurement {
            cpu_micros: cost.micros_per(measured.requests),
            others: Some(cost.others),
            command: Some(invocation.shown()),
            note: Some(after.since(&before)),
            measured,
            ..Measurement::default()
        })
    }

    /// Whether all documents that were filled are in memory, and on disk where there is a disk tier.
    async fn verify(&mut self) -> anyhow::Result<()> {
        tokio::time::sleep(LINGERED).await;
        let wanted = f64::from(HOT + self.filled);
        for (larder, tiers) in self.larders.iter().zip(TIERS) {
            let written = FilledCounts::by(larder).await?;
            let disk = if tiers.contains("disk") { wanted } else { 0.0 };
            ensure!(
                written.memory >= wanted && written.entries >= disk,
                "--tiers {tiers}: of {wanted} documents {} are in memory, and {} were written to disk",
                written.memory,
                written.entries
            );
        }
        Ok(())
    }

    async fn shutdown(mut self) -> anyhow::Result<()> {
        for larder in &mut self.larders {
            larder.terminate().await?;
        }
        self.demo.stop().await;
        Ok(())
    }
}

/// Documents that are filled in a turn, in whole lists: for a second more than wrk's turn, as wrk first makes its
/// requests.
fn cold(rate: u32, seconds: u64) -> anyhow::Result<u32> {
    let lists = u64::from(rate / LIST_KEYS) * (seconds + 1);
    Ok(u32::try_from(lists)?.saturating_mul(LIST_KEYS))
}

/// What a larder's tiers have taken in.
struct FilledCounts {
    /// Entries in memory.
    memory: f64,
    /// Entries written to disk, and in how many batches.
    entries: f64,
    batches: f64,
}

impl FilledCounts {
    async fn by(larder: &Larder) -> anyhow::Result<Self> {
        let metrics = MetricSamples::of(larder).await?;
        Ok(Self {
            memory: metrics.sum("larder_tier_entries{tier=\"memory\"}")?,
            entries: metrics.sum("larder_disk_batch_entries_sum")?,
            batches: metrics.sum("larder_disk_batch_entries_count")?,
        })
    }

    fn since(&self, before: &Self) -> String {
        format!(
            "{} documents filled, {} entries written to disk in {} batches",
            self.memory - before.memory,
            self.entries - before.entries,
            self.batches - before.batches
        )
    }
}
