//! `loadtest compare`: larder and other servers by turns in one run, on one core each, and their ratios.

mod case;
mod scopes;
mod servers;

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use tokio::process::Child;

use crate::bench::benchmark::{Benchmark, CoreArgs, RunArgs, Setup, Turn, connections};
use crate::bench::compare::case::{ComparedCase, Endpoint};
use crate::bench::other_servers::OtherServer;
use crate::harness::demo::{Demo, WarmTier};
use crate::harness::larder::Larder;
use crate::harness::process::{self, Meter};
use crate::harness::tools::pgbench::{self, Pgbench, PgbenchRun};
use crate::harness::tools::wrk::{self, Wrk, WrkRun};
use crate::report::benchmark_report::{Group, Measurement};
use crate::report::results::RunEnvironment;

/// Of each case, before anything is noted.
const WARM_UP_SECONDS: u64 = 1;
const TAGS_FILE: &str = "tags";

/// What is compared, and how often.
#[derive(Args, Clone, Debug)]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) cores: CoreArgs,
    /// Documents, each of a dept and ten emps, about 1.7 kB.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) depts: u32,
    /// The one tier in use, a larder for each.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "memory"
    )]
    pub(crate) tiers: Vec<WarmTier>,
    /// Connections at once; in each round, all these numbers have their turns.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "128", value_parser = connections)]
    pub(crate) connections: Vec<usize>,
    /// Requests that wrk sends at once on a connection.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000))]
    pub(crate) pipeline: usize,
    /// Ask the first larder also by If-None-Match.
    #[arg(long)]
    pub(crate) not_modified: bool,
    /// Ask for documents also by an alias, with a key, and as their owner, all from memory.
    #[arg(long)]
    pub(crate) scopes: bool,
    /// Another binary of larder, compared with this one tier by tier.
    #[arg(long, value_name = "PATH")]
    pub(crate) against: Option<PathBuf>,
    /// Other servers, where they are installed: nginx with one document ready-made, nginx with a file for each
    /// document, Varnish in front of larder.
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',')]
    pub(crate) with: Vec<OtherServer>,
}

/// All that is compared, running side by side; the idle cost next to nothing.
pub(crate) struct Compare {
    args: CompareArgs,
    cases: Vec<ComparedCase>,
    seed: u64,
    wrk: Wrk,
    pgbench: Option<Pgbench>,
    /// Of servers and tools.
    cores: BTreeSet<usize>,
    larders: Vec<(Larder, WarmTier)>,
    servers: Vec<Child>,
    demo: Demo,
}

impl Benchmark for Compare {
    const NAME: &'static str = "compare";
    type Args = CompareArgs;

    fn run_args(args: &CompareArgs) -> &RunArgs {
        &args.run
    }

    async fn prepare(
        args: &CompareArgs,
        setup: Setup<'_>,
        environment: &mut RunEnvironment,
    ) -> anyhow::Result<Self> {
        let clients = args.connections.iter().copied().max().unwrap_or(1);
        let pgbench_clients = if args.tiers.contains(&WarmTier::None) {
            clients
        } else {
            0
        };
        let demo = Demo::start(setup.binary, args.depts, pgbench_clients, setup.seed).await?;
        if args.scopes {
            scopes::add_owner(&demo).await?;
        }
        let wrk = Wrk::new(
            demo.run_directory.directory(),
            &args.cores.tool_cores,
            args.depts,
        )?;
        environment.version(wrk.program(), "--version").await;
        let mut compare = Self {
            args: args.clone(),
            cases: Vec::new(),
            seed: setup.seed,
            wrk,
            pgbench: None,
            cores: process::cores(&args.cores.all())?,
            larders: Vec::new(),
            servers: Vec::new(),
            demo,
        };
        compare.add_all(setup.binary, environment).await?;
        for case in 0..compare.cases.len() {
            let connections = args.connections.first().copied().unwrap_or(1);
            compare
                .measure(case, connections, WARM_UP_SECONDS, setup.seed)
                .await?;
        }
        Ok(compare)
    }

    fn conditions(&self) -> String {
        let CompareArgs {
            cores,
            depts,
            pipeline,
            ..
        } = &self.args;
        format!(
            "Servers on core {}, the tool on core {}, PostgreSQL on any; {depts} depts, random keys, {pipeline} requests \
             at once on a connection.",
            cores.server_cores, cores.tool_cores
        )
    }

    /// One for each number of connections.
    fn groups(&self) -> Vec<Group> {
        let cases = self.cases.iter().map(|case| case.name.clone()).collect();
        let mut pairs = Vec::new();
        for one in &self.cases {
            let others = self.cases.iter().filter(|other| one.is_divided_by(other));
            pairs.extend(others.map(|other| (one.name.clone(), other.name.clone())));
        }
        let group = Group {
            name: String::new(),
            unit: "requests/s".to_owned(),
            cases,
            pairs,
            layers: Vec::new(),
        };
        let with_name = |connections: &usize| Group {
            name: format!("{connections} connections"),
            ..group.clone()
        };
        self.args.connections.iter().map(with_name).collect()
    }

    async fn turn(&mut self, turn: Turn) -> anyhow::Result<Measurement> {
        let connections = self.args.connections[turn.group];
        let seed = self.seed.wrapping_add(turn.round as u64 + 1);
        self.measure(turn.case, connections, turn.seconds, seed)
            .await
    }

    /// Whether each larder still answers with the right documents out of its tier.
    async fn verify(&mut self) -> anyhow::Result<()> {
        for (larder, tier) in &self.larders {
            self.demo.check(larder.config.listen, *tier).await?;
        }
        Ok(())
    }

    async fn shutdown(mut self) -> anyhow::Result<()> {
        for server in &mut self.servers {
            server.kill().await?;
        }
        for (larder, _) in &mut self.larders {
            larder.terminate().await?;
        }
        self.demo.stop().await;
        Ok(())
    }
}

impl Compare {
    async fn measure(
        &self,
        case: usize,
        connections: usize,
        seconds: u64,
        seed: u64,
    ) -> anyhow::Result<Measurement> {
        let case = &self.cases[case];
        let invocation = match case.endpoint {
            Endpoint::Http(target, request) => self.wrk.invocation(&WrkRun {
                target,
                connections,
                seconds,
                pipeline: self.args.pipeline,
                seed,
                request,
            }),
            Endpoint::Statement(statement) => {
                let pgbench = self.pgbench.as_ref().context("no pgbench")?;
                pgbench.invocation(&PgbenchRun {
                    script: statement.file(),
                    clients: connections,
                    seconds,
                    setting: "TimeZone=UTC",
                    variables: &[],
                })
            }
        };
        let meter = Meter::start(case.pid, &self.cores)?;
        let (output, progress) = invocation.run_both().await?;
        let cost = meter.stop()?;
        let measured = match case.endpoint {
            Endpoint::Statement(_) => pgbench::parse(&output, &progress, connections),
            Endpoint::Http(..) => wrk::parse(&output),
        };
        let mut measured = measured.with_context(|| format!("{}\n{output}", invocation.shown()))?;
        if self.args.pipeline > 1 {
            // wrk notes one time for all that it sent at once, and corrects it as if each had been sent alone.
            measured.times = None;
        }
        Ok(Measurement {
            cpu_micros: cost.micros_per(measured.requests),
            others: Some(cost.others),
            command: Some(invocation.shown()),
            measured,
            ..Measurement::default()
        })
    }
}
