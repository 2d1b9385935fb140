//! `loadtest bench posts`: what documents cost that are written through larder, next to the same rows by plain SQL.
//!
//! `POST` of one document of 11 rows at a time by 64 clients, against pgbench with as many that run the same two inserts
//! as one prepared transaction for each document. Then many documents as one NDJSON stream, against `COPY` of the same
//! rows into the same tables with their triggers and indexes.

mod documents;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use nix::unistd::Pid;
use testkit::http::{HttpConnection, Request};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::bench::benchmark::{Benchmark, RunArgs, Setup, Turn};
use crate::bench::posts::documents::{CopyFiles, bulk_request, document, inserts};
use crate::harness::demo::Demo;
use crate::harness::larder::Larder;
use crate::harness::process::{self, Meter, find_program};
use crate::harness::session::SqlSession;
use crate::harness::tools::pgbench::{self, Pgbench, PgbenchRun};
use crate::harness::tools::{Invocation, Latencies, Measured};
use crate::report::benchmark_report::{Group, Measurement};
use crate::report::results::RunEnvironment;
use crate::workload::counters::Durations;

const DEPTS: u32 = 1_000;
const CLIENTS: usize = 64;
const THREADS: usize = 2;
/// Rows of a document: a dept and ten emps.
const ROWS: u64 = 11;
const PSQL_INSTALL: &str = "on Debian: apt-get install postgresql-client";
const SCRIPT: &str = "insert.sql";
/// Keys of a turn; the demo's are below the first.
const TURN_KEYS: u64 = 200_000_000;
/// Of one client within a turn.
const CLIENT_KEYS: u64 = 1_000_000;
/// Of a bulk write.
const BULK_MAX: Duration = Duration::from_secs(240);
/// For what larder keeps of the documents.
const MEMORY_BYTES: u64 = 4 << 30;

/// How many documents a stream has.
#[derive(Args, Clone, Debug)]
pub(crate) struct PostsArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Documents of an NDJSON stream.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) bulk: u64,
}

/// Places of groups and cases in [`Benchmark::groups`].
const SINGLE: usize = 0;
const LARDER: usize = 0;

/// One larder, and the PostgreSQL that it writes to.
pub(crate) struct Posts {
    bulk: u64,
    session: SqlSession,
    pgbench: Pgbench,
    psql: PathBuf,
    /// The first key of the last turn.
    key: u64,
    /// Documents that were acknowledged.
    written: u64,
    pid: Pid,
    larder: Larder,
    demo: Demo,
}

impl Benchmark for Posts {
    const NAME: &'static str = "posts";
    type Args = PostsArgs;

    fn run_args(args: &PostsArgs) -> &RunArgs {
        &args.run
    }

    async fn prepare(
        args: &PostsArgs,
        setup: Setup<'_>,
        environment: &mut RunEnvironment,
    ) -> anyhow::Result<Self> {
        let psql = find_program("psql", PSQL_INSTALL)?;
        let mut demo = Demo::start_durable(setup.binary, DEPTS, CLIENTS, setup.seed).await?;
        let directory = demo.run_directory.directory().to_owned();
        let pgbench = Pgbench::new(&directory, None, THREADS, demo.url())?;
        environment.version(pgbench.program(), "--version").await;
        pgbench.write_script(SCRIPT, &inserts())?;
        let mut config = demo.config("larder", setup.binary, None)?;
        config.memory_bytes = MEMORY_BYTES;
        let mut larder = Larder::new(config)?;
        larder.start_ready().await?;
        environment.commands.push(larder.shown());
        Ok(Self {
            bulk: args.bulk,
            session: SqlSession::new(demo.url(), 0)?,
            pgbench,
            psql,
            key: 0,
            written: 0,
            pid: larder.pid()?,
            larder,
            demo,
        })
    }

    fn conditions(&self) -> String {
        format!(
            "Documents of a dept and ten emps, {CLIENTS} connections, or {} documents in one stream; synchronous_commit and \
             fsync on; larder, PostgreSQL and clients on any core. CPU time is larder's for each document, or row.",
            self.bulk
        )
    }

    fn groups(&self) -> Vec<Group> {
        let group = |name: &str, unit: &str, cases: [&str; 2]| {
            let [one, other] = cases.map(str::to_owned);
            Group {
                name: name.to_owned(),
                unit: unit.to_owned(),
                cases: vec![one.clone(), other.clone()],
                pairs: vec![(one, other)],
                layers: Vec::new(),
            }
        };
        vec![
            group("one at a time", "documents/s", ["POST", "pgbench"]),
            group("many at once", "rows/s", ["NDJSON", "COPY"]),
        ]
    }

    async fn turn(&mut self, turn: Turn) -> anyhow::Result<Measurement> {
        self.key += TURN_KEYS;
        match (turn.group, turn.case) {
            (SINGLE, LARDER) => self.post(Duration::from_secs(turn.seconds)).await,
            (SINGLE, _) => self.insert(turn.seconds).await,
            (_, LARDER) => self.post_stream().await,
            (_, _) => self.copy().await,
        }
    }

    /// Whether every document that was acknowledged is there with all its rows.
    async fn verify(&mut self) -> anyhow::Result<()> {
        let counted = |table: &str| {
            format!(
                "select count(*)::text from {table} where deptno >= {TURN_KEYS} and deptno % 2 = 0"
            )
        };
        let mut found = Vec::new();
        for table in ["dept", "emp"] {
            found.extend(self.session.texts(&counted(table)).await?);
        }
        let wanted = [self.written, self.written * (ROWS - 1)].map(|count| count.to_string());
        ensure!(
            found == wanted,
            "larder acknowledged {wanted:?} depts and emps, and there are {found:?}"
        );
        Ok(())
    }

    async fn shutdown(mut self) -> anyhow::Result<()> {
        self.larder.terminate().await?;
        self.demo.stop().await;
        Ok(())
    }
}

impl Posts {
    /// Clients that each write one document after the other. Larder's documents have even keys.
    async fn post(&mut self, duration: Duration) -> anyhow::Result<Measurement> {
        let target = self.larder.config.listen;
        let mut connections = Vec::with_capacity(CLIENTS);
        for _ in 0..CLIENTS {
            connections.push(HttpConnection::connect(target).await?);
        }
        let meter = Meter::start(Some(self.pid), &process::cores("0")?)?;
        let began = Instant::now();
        let mut clients = JoinSet::new();
        for (number, connection) in (0..).zip(connections) {
            let first = self.key + number * CLIENT_KEYS;
            clients.spawn(post_until(connection, first, began + duration));
        }
        let mut latencies = Durations::new()?;
        while let Some(client) = clients.join_next().await {
            latencies.add(&client??)?;
        }
        let seconds = began.elapsed().as_secs_f64();
        let cost = meter.stop()?;
        let requests = latencies.count();
        self.written += requests;
        Ok(Measurement {
            measured: Measured {
                requests,
                errors: 0,
                // Counts are far below 2^52, so the cast is exact.
                per_second: requests as f64 / seconds,
                mean_ms: latencies.mean().as_secs_f64() * 1e3,
                times: Some(quantiles(&latencies)),
            },
            cpu_micros: cost.micros_per(requests),
            ..Measurement::default()
        })
    }

    async fn insert(&self, seconds: u64) -> anyhow::Result<Measurement> {
        let invocation = self.pgbench.invocation(&PgbenchRun {
            script: SCRIPT,
            clients: CLIENTS,
            seconds,
            setting: "synchronous_commit=on",
            variables: &[("n", 0), ("first", self.key)],
        });
        let (report, progress) = invocation.run_both().await?;
        Ok(Measurement {
            measured: pgbench::parse(&report, &progress, CLIENTS)?,
            command: Some(invocation.shown().replace(&self.key.to_string(), "$FIRST")),
            ..Measurement::default()
        })
    }

    async fn post_stream(&mut self) -> anyhow::Result<Measurement> {
        let request = bulk_request(self.key, self.bulk);
        let mut connection = HttpConnection::connect(self.larder.config.listen).await?;
        connection.answer_max = BULK_MAX;
        let meter = Meter::start(Some(self.pid), &process::cores("0")?)?;
        let began = Instant::now();
        let answer = connection.send(&request).await?;
        ensure!(answer.status == 201, "POST: {}", answer.shown());
        let took = began.elapsed();
        let cost = meter.stop()?;
        self.written += self.bulk;
        Ok(Measurement {
            cpu_micros: cost.micros_per(self.bulk * ROWS),
            ..self.of_rows(took)
        })
    }

    async fn copy(&self) -> anyhow::Result<Measurement> {
        let directory = self.demo.run_directory.directory();
        let files = CopyFiles::write(directory, self.key, self.bulk)?;
        let commands = [
            "begin".to_owned(),
            format!(
                "\\copy dept (deptno, dname, loc) from {} csv",
                files.dept.display()
            ),
            format!(
                "\\copy emp (empno, ename, job, mgr, hiredate, sal, comm, deptno) from {} csv",
                files.emp.display()
            ),
            "commit".to_owned(),
        ];
        let mut arguments = vec![self.demo.url().to_owned(), "-q".to_owned()];
        arguments.extend(["-v", "ON_ERROR_STOP=1"].map(str::to_owned));
        for command in commands {
            arguments.extend(["-c".to_owned(), command]);
        }
        let invocation = Invocation {
            program: self.psql.clone(),
            arguments,
            cores: None,
            directory: directory.to_owned(),
        };
        let began = Instant::now();
        invocation.run().await?;
        Ok(self.of_rows(began.elapsed()))
    }

    /// All rows of a stream, written in this time.
    fn of_rows(&self, took: Duration) -> Measurement {
        let rows = self.bulk * ROWS;
        Measurement {
            measured: Measured {
                requests: rows,
                // Counts are far below 2^52, so the cast is exact.
                per_second: rows as f64 / took.as_secs_f64(),
                mean_ms: took.as_secs_f64() * 1e3,
                ..Measured::default()
            },
            ..Measurement::default()
        }
    }
}

fn quantiles(latencies: &Durations) -> Latencies {
    let ms = |latency: Duration| latency.as_secs_f64() * 1e3;
    Latencies {
        p50_ms: ms(latencies.quantile(0.5)),
        p90_ms: ms(latencies.quantile(0.9)),
        p99_ms: ms(latencies.quantile(0.99)),
        max_ms: ms(latencies.max()),
    }
}

/// Writes documents with keys from `first` on; returns how long each took.
async fn post_until(
    mut connection: HttpConnection,
    first: u64,
    until: Instant,
) -> anyhow::Result<Durations> {
    let mut latencies = Durations::new()?;
    let mut keys = (first..first + CLIENT_KEYS).step_by(2);
    while Instant::now() < until {
        let body = document(keys.next().context("no keys are left")?);
        let request = Request::new("POST", "/depts").with_body("application/json", body);
        let began = Instant::now();
        let answer = connection.send(&request).await?;
        ensure!(answer.status == 201, "POST: {}", answer.shown());
        latencies.note(began.elapsed());
    }
    Ok(latencies)
}
