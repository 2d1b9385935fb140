//! `loadtest bench reads`: what other requests for documents in memory cost next to a `GET` of each over HTTP/1.1, and
//! what a storm of invalidations does to these.
//!
//! The storm is measured next to the very same changes of a table that larder does not watch, since any writer takes time
//! of the cores. Each connection asks for the same random keys one after the other, as h2load does it.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use nix::unistd::Pid;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::bench::benchmark::{Benchmark, CoreArgs, RunArgs, Setup, Turn};
use crate::bench::lists::{LIST_KEYS, list_path, read_lists};
use crate::harness::demo::{Demo, WarmTier};
use crate::harness::larder::Larder;
use crate::harness::metrics::MetricSamples;
use crate::harness::process::{self, Meter};
use crate::harness::session::SqlSession;
use crate::harness::tools::Invocation;
use crate::harness::tools::h2load::{self, H2load};
use crate::report::benchmark_report::{Group, Measurement};
use crate::report::results::RunEnvironment;

/// Keys that are drawn, in whole lists.
const KEYS: usize = 10_000;
const SINGLE_FILE: &str = "single";
const LISTS_FILE: &str = "lists";
/// Documents that one statement of the storm changes, and such statements in a second.
const STORM_DOCUMENTS: u32 = 2_000;
const STORM_PER_SECOND: u32 = 10;
/// Of the changes in a second, what the writer has to reach.
const STORM_SHARE_MIN: f64 = 0.5;

/// How many documents there are.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReadsArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) cores: CoreArgs,
    /// Documents that are asked for; as many others are changed by the storm.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(10_000..=10_000_000))]
    pub(crate) depts: u32,
}

/// How documents are asked for.
struct ReadCase {
    name: &'static str,
    file: &'static str,
    arguments: &'static str,
    /// Of each answer.
    documents: u64,
    /// The table that is changed meanwhile.
    table: Option<&'static str>,
}

const fn case(name: &'static str, arguments: &'static str) -> ReadCase {
    ReadCase {
        name,
        file: SINGLE_FILE,
        arguments,
        documents: 1,
        table: None,
    }
}

const CASES: [ReadCase; 6] = [
    case("GET", "--h1 -c128"),
    case("HTTP/2", "-c1 -m100"),
    case("304", "--h1 -c128 -H if-none-match:*"),
    ReadCase {
        file: LISTS_FILE,
        documents: LIST_KEYS as u64,
        ..case("lists of 100", "--h1 -c128")
    },
    ReadCase {
        table: Some("unwatched"),
        ..case("other table changes", "--h1 -c128")
    },
    ReadCase {
        table: Some("dept"),
        ..case("storm", "--h1 -c128")
    },
];

/// One larder with all documents in memory.
pub(crate) struct Reads {
    args: ReadsArgs,
    h2load: H2load,
    rng: fastrand::Rng,
    cores: BTreeSet<usize>,
    pid: Pid,
    /// Beside the changes of larder's table, and beside those of the other.
    changes: [ChangeCounts; 2],
    larder: Larder,
    demo: Demo,
}

impl Benchmark for Reads {
    const NAME: &'static str = "reads";
    type Args = ReadsArgs;

    fn run_args(args: &ReadsArgs) -> &RunArgs {
        &args.run
    }

    async fn prepare(
        args: &ReadsArgs,
        setup: Setup<'_>,
        environment: &mut RunEnvironment,
    ) -> anyhow::Result<Self> {
        let cores = &args.cores;
        let mut demo = Demo::start(setup.binary, 2 * args.depts, 1, setup.seed).await?;
        let directory = demo.run_directory.directory().to_owned();
        let h2load = H2load::new(&directory, &cores.tool_cores)?;
        environment.version(h2load.program(), "--version").await;
        let larder = demo
            .larder(
                "larder",
                setup.binary,
                WarmTier::Memory,
                &cores.server_cores,
            )
            .await?;
        environment.commands.push(larder.shown());
        let mut session = SqlSession::new(demo.url(), 0)?;
        let sql =
            "create table unwatched (like dept including all); insert into unwatched table dept";
        session.run(sql).await?;
        for table in ["dept", "unwatched"] {
            session.run(&format!("vacuum analyze {table}")).await?;
        }
        let mut reads = Self {
            args: args.clone(),
            h2load,
            rng: fastrand::Rng::with_seed(setup.seed),
            cores: process::cores(&cores.all())?,
            pid: larder.pid()?,
            changes: [ChangeCounts::default(); 2],
            larder,
            demo,
        };
        reads.write_addresses()?;
        Ok(reads)
    }

    fn conditions(&self) -> String {
        let ReadsArgs { cores, depts, .. } = &self.args;
        format!(
            "larder on core {}, h2load on core {}, PostgreSQL on any; {depts} documents in memory, and as many that change: \
             {} of them in a second, {STORM_DOCUMENTS} by a statement. Figures are of documents.",
            cores.server_cores,
            cores.tool_cores,
            STORM_DOCUMENTS * STORM_PER_SECOND
        )
    }

    fn groups(&self) -> Vec<Group> {
        let names = CASES.map(|case| case.name.to_owned());
        let [get, .., control, storm] = names.clone();
        let others = names.iter().filter(|name| **name != get);
        let mut pairs: Vec<_> = others.map(|name| (name.clone(), get.clone())).collect();
        pairs.push((storm, control));
        vec![Group {
            name: "documents in memory".to_owned(),
            unit: "documents/s".to_owned(),
            cases: names.to_vec(),
            pairs,
            layers: Vec::new(),
        }]
    }

    async fn turn(&mut self, turn: Turn) -> anyhow::Result<Measurement> {
        let case = &CASES[turn.case];
        let invocation = self
            .h2load
            .invocation(case.file, turn.seconds, case.arguments);
        let Some(table) = case.table else {
            return self.measure(&invocation, case.documents).await;
        };
        // All documents that change are in memory at the beginning.
        let others = self.args.depts + 1..=2 * self.args.depts;
        read_lists(self.larder.config.listen, others, None).await?;
        let (began, before) = (Instant::now(), self.invalidations().await?);
        let rows = Cell::new(0);
        let rng = self.rng.fork();
        let mut measurement = tokio::select! {
            measurement = self.measure(&invocation, case.documents) => measurement?,
            ended = self.change(table, rng, &rows) => {
                ended?;
                bail!("the writer has ended");
            }
        };
        let changes = ChangeCounts {
            rows: rows.get(),
            invalidated: self.invalidations().await? - before,
            took: began.elapsed(),
        };
        measurement.note = Some(changes.text());
        self.changes[usize::from(table != "dept")].add(changes);
        Ok(measurement)
    }

    /// Whether the changes of larder's table invalidated documents, those of the other did not, and both were as many as
    /// they should be.
    async fn verify(&mut self) -> anyhow::Result<()> {
        let wanted = STORM_SHARE_MIN * f64::from(STORM_DOCUMENTS * STORM_PER_SECOND);
        let [storm, control] = self.changes;
        ensure!(
            storm.per_second() >= wanted && control.per_second() >= wanted,
            "fewer than {wanted} rows changed in a second: storm: {}, other table: {}",
            storm.text(),
            control.text()
        );
        ensure!(
            storm.invalidated > 0.0 && control.invalidated < storm.invalidated / 100.0,
            "storm: {}, other table: {}",
            storm.text(),
            control.text()
        );
        Ok(())
    }

    async fn shutdown(mut self) -> anyhow::Result<()> {
        self.larder.terminate().await?;
        self.demo.stop().await;
        Ok(())
    }
}

impl Reads {
    /// The addresses of random documents, one by one and in lists.
    fn write_addresses(&mut self) -> anyhow::Result<()> {
        let keys: Vec<u32> = (0..KEYS)
            .map(|_| self.rng.u32(1..=self.args.depts))
            .collect();
        let target = self.larder.config.listen;
        let (mut single, mut lists) = (String::new(), String::new());
        for key in &keys {
            writeln!(single, "http://{target}/depts/{key}")?;
        }
        for list in keys.chunks(LIST_KEYS as usize) {
            writeln!(lists, "http://{target}{}", list_path(list.iter().copied()))?;
        }
        let directory = self.demo.run_directory.directory();
        std::fs::write(directory.join(SINGLE_FILE), single)?;
        Ok(std::fs::write(directory.join(LISTS_FILE), lists)?)
    }

    async fn measure(
        &self,
        invocation: &Invocation,
        documents: u64,
    ) -> anyhow::Result<Measurement> {
        let meter = Meter::start(Some(self.pid), &self.cores)?;
        let output = invocation.run().await?;
        let cost = meter.stop()?;
        let mut measured =
            h2load::parse(&output).with_context(|| format!("{}\n{output}", invocation.shown()))?;
        measured.requests *= documents;
        // Far below 2^52, so the cast is exact.
        measured.per_second *= documents as f64;
        Ok(Measurement {
            cpu_micros: cost.micros_per(measured.requests),
            others: Some(cost.others),
            command: Some(invocation.shown()),
            measured,
            ..Measurement::default()
        })
    }

    /// Changes documents' rows in `table` until it is dropped, and counts them in `rows`.
    async fn change(
        &self,
        table: &str,
        mut rng: fastrand::Rng,
        rows: &Cell<u64>,
    ) -> anyhow::Result<()> {
        let mut session = SqlSession::new(self.demo.url(), 0)?;
        let mut pace = interval(Duration::from_secs(1) / STORM_PER_SECOND);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let depts = self.args.depts;
        loop {
            pace.tick().await;
            let first = rng.u32(depts + 1..=2 * depts + 1 - STORM_DOCUMENTS);
            let last = first + STORM_DOCUMENTS - 1;
            let sql = format!(
                "update {table} set loc = clock_timestamp()::text where deptno between {first} and {last}"
            );
            rows.set(rows.get() + session.affected(&sql).await?);
        }
    }

    async fn invalidations(&self) -> anyhow::Result<f64> {
        MetricSamples::of(&self.larder)
            .await?
            .sum("larder_invalidations_total")
    }
}

/// What was changed meanwhile, and what larder invalidated for it.
#[derive(Clone, Copy, Debug, Default)]
struct ChangeCounts {
    rows: u64,
    invalidated: f64,
    took: Duration,
}

impl ChangeCounts {
    fn add(&mut self, other: Self) {
        self.rows += other.rows;
        self.invalidated += other.invalidated;
        self.took += other.took;
    }

    /// Rows in a second.
    fn per_second(&self) -> f64 {
        // Far below 2^52, so the cast is exact.
        self.rows as f64 / self.took.as_secs_f64()
    }

    fn text(&self) -> String {
        format!(
            "{:.0} rows changed and {:.0} documents invalidated in a second",
            self.per_second(),
            self.invalidated / self.took.as_secs_f64()
        )
    }
}
