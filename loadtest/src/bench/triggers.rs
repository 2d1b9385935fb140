//! `loadtest bench triggers`: what larder costs transactions that write to its tables.
//!
//! A table with larder's triggers and a larder that follows it, against a copy of the table without: commits of 16
//! clients that update single rows, with `synchronous_commit` on and off, and one statement that updates every row.

use anyhow::{Context, ensure};
use clap::Args;
use tokio::time::Instant;

use crate::bench::benchmark::{Benchmark, RunArgs, Setup, Turn};
use crate::harness::demo::Demo;
use crate::harness::larder::Larder;
use crate::harness::session::SqlSession;
use crate::harness::tools::Measured;
use crate::harness::tools::pgbench::{self, Pgbench, PgbenchRun};
use crate::report::benchmark_report::{Group, Measurement};
use crate::report::results::RunEnvironment;

const CLIENTS: usize = 16;
const THREADS: usize = 2;
/// Of a dept in the demo.
const EMPS: u32 = 10;
/// The keys of a dept's emps begin at so many times its own.
const EMP_KEYS: u32 = 100_000;
/// With triggers, and without.
const TABLES: [&str; 2] = ["emp", "plain"];
const SETTINGS: [&str; 2] = ["on", "off"];

/// How large the tables are.
#[derive(Args, Clone, Debug)]
pub(crate) struct TriggersArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Depts of ten emps each; the emps are updated.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) depts: u32,
}

/// Two tables of one PostgreSQL, and a larder that follows one of them.
pub(crate) struct Triggers {
    depts: u32,
    session: SqlSession,
    pgbench: Pgbench,
    larder: Larder,
    demo: Demo,
}

impl Benchmark for Triggers {
    const NAME: &'static str = "triggers";
    type Args = TriggersArgs;

    fn run_args(args: &TriggersArgs) -> &RunArgs {
        &args.run
    }

    async fn prepare(
        args: &TriggersArgs,
        setup: Setup<'_>,
        environment: &mut RunEnvironment,
    ) -> anyhow::Result<Self> {
        let mut demo = Demo::start_durable(setup.binary, args.depts, CLIENTS, setup.seed).await?;
        let directory = demo.run_directory.directory().to_owned();
        let pgbench = Pgbench::new(&directory, None, THREADS, demo.url())?;
        environment.version(pgbench.program(), "--version").await;
        let mut larder = Larder::new(demo.config("larder", setup.binary, None)?)?;
        larder.start_ready().await?;
        let mut session = SqlSession::new(demo.url(), 0)?;
        session
            .run("create table plain (like emp including all); insert into plain table emp")
            .await?;
        for table in TABLES {
            session.run(&format!("vacuum analyze {table}")).await?;
            let script = format!(
                "\\set d random(1, {})\n\\set k random(0, {})\n\
                 update {table} set sal = sal + 1 where empno = :d * {EMP_KEYS} + :k;\n",
                args.depts,
                EMPS - 1
            );
            pgbench.write_script(&format!("{table}.sql"), &script)?;
        }
        Ok(Self {
            depts: args.depts,
            session,
            pgbench,
            larder,
            demo,
        })
    }

    fn conditions(&self) -> String {
        format!(
            "A table of {} rows with larder's triggers and a larder that follows it, and a copy without either; PostgreSQL, \
             larder and pgbench on any core, fsync on.",
            self.rows()
        )
    }

    fn groups(&self) -> Vec<Group> {
        let [with, without] = ["triggers", "none"].map(str::to_owned);
        let group = |name: String, unit: &str| Group {
            name,
            unit: unit.to_owned(),
            cases: vec![with.clone(), without.clone()],
            pairs: vec![(with.clone(), without.clone())],
            layers: Vec::new(),
        };
        let commits = |setting: &str| {
            let name = format!("synchronous_commit {setting}");
            group(name, "commits/s")
        };
        let mut groups = SETTINGS.map(commits).to_vec();
        groups.push(group(
            format!("update of {} rows", self.rows()),
            "statements/s",
        ));
        groups
    }

    async fn turn(&mut self, turn: Turn) -> anyhow::Result<Measurement> {
        let table = TABLES[turn.case];
        let (measured, command) = match SETTINGS.get(turn.group) {
            Some(setting) => {
                let invocation = self.pgbench.invocation(&PgbenchRun {
                    script: &format!("{table}.sql"),
                    clients: CLIENTS,
                    seconds: turn.seconds,
                    setting: &format!("synchronous_commit={setting}"),
                    variables: &[],
                });
                let (report, progress) = invocation.run_both().await?;
                let measured = pgbench::parse(&report, &progress, CLIENTS)?;
                (measured, Some(invocation.shown()))
            }
            None => (self.update_all(table).await?, None),
        };
        Ok(Measurement {
            measured,
            command,
            ..Measurement::default()
        })
    }

    /// Whether larder follows the one table and not the other.
    async fn verify(&mut self) -> anyhow::Result<()> {
        let sql = "select relname::text from pg_trigger join pg_class on pg_class.oid = tgrelid \
            where tgname like 'larder%' and relname in ('emp', 'plain') group by relname";
        let with = self.session.texts(sql).await?;
        ensure!(with == ["emp"], "larder's triggers are on {with:?}");
        self.larder.ready().await
    }

    async fn shutdown(mut self) -> anyhow::Result<()> {
        self.larder.terminate().await?;
        self.demo.stop().await;
        Ok(())
    }
}

impl Triggers {
    fn rows(&self) -> u32 {
        self.depts * EMPS
    }

    /// One statement, after what the one before has left is taken away.
    async fn update_all(&mut self, table: &str) -> anyhow::Result<Measured> {
        self.session.run(&format!("vacuum {table}")).await?;
        self.session.run("checkpoint").await?;
        let began = Instant::now();
        let updated = self
            .session
            .affected(&format!("update {table} set sal = sal + 1"))
            .await
            .context("updating every row")?;
        let seconds = began.elapsed().as_secs_f64();
        ensure!(
            updated == u64::from(self.rows()),
            "{updated} rows were updated instead of {}",
            self.rows()
        );
        Ok(Measured {
            requests: 1,
            per_second: 1.0 / seconds,
            mean_ms: seconds * 1e3,
            ..Measured::default()
        })
    }
}
