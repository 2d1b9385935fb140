//! `loadtest bench dispatch`: what `larder dispatch` delivers in a second, next to the loop that it replaces.
//!
//! The reference has as many connections. Each takes one slot after the other: it reads the due rows, then updates them by
//! their ids. Both work on a new copy of the same rows in each turn.

mod queues;
mod sink;

use std::path::PathBuf;
use std::process::Stdio;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Row};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::bench::benchmark::{Benchmark, RunArgs, Setup, Turn};
use crate::bench::dispatch::queues::{Queue, Queues};
use crate::bench::dispatch::sink::HttpSink;
use crate::harness::postgres::Postgres;
use crate::harness::process::{cpu_time, ended_cpu_time};
use crate::harness::run_directory::RunDirectory;
use crate::harness::session::SqlSession;
use crate::harness::tools::Measured;
use crate::report::benchmark_report::{Group, Measurement};
use crate::report::results::RunEnvironment;

const CONNECTIONS: u32 = 4;
const CONNECTIONS_MAX: usize = 40;
const WORKERS: u32 = 20;
const TIME_ZONES: u32 = 24;
/// Updating one row at a time is slow, so it gets the rows of so many slots.
const SLOTS_ONE_BY_ONE: u32 = 10;
/// Of a run that ends when nothing is due.
const ONCE_MAX: Duration = Duration::from_secs(900);
/// The last argument ends it when nothing is due.
const ONCE: [&str; 4] = ["dispatch", "--admin", "127.0.0.1:0", "--once"];
/// Tables lie in memory, and no checkpoint falls into a turn.
const SETTINGS: [(&str, &str); 4] = [
    ("shared_buffers", "2GB"),
    ("max_wal_size", "16GB"),
    ("checkpoint_timeout", "1h"),
    ("autovacuum_naptime", "10s"),
];
const COLUMNS: &str = "id, notify_after, partner, stream, widget, worker_id, timezone, os, browser, country, language, endpoint";

/// What is measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct DispatchArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Rows of the table.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1_000..))]
    rows: u32,
    /// Which groups.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Question::DEFAULT.to_vec())]
    groups: Vec<Question>,
}

/// What a group asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Question {
    /// All rows are due, once.
    All,
    /// Ten rows of a hundred are due, once.
    Tenth,
    /// One row of a hundred is due, once.
    Hundredth,
    /// Rows are due again at once, for the time of a turn, without and with a transaction that holds a snapshot.
    Snapshot,
    /// Nothing is due for the time of a turn.
    Idle,
    /// Jobs of one slot, which are deleted, next to queues.
    Jobs,
}

impl Question {
    const DEFAULT: [Self; 4] = [Self::All, Self::Tenth, Self::Hundredth, Self::Idle];

    fn name(self) -> &'static str {
        match self {
            Self::All => "all rows due",
            Self::Tenth => "10 % due",
            Self::Hundredth => "1 % due",
            Self::Snapshot => "1 % due all the time",
            Self::Idle => "nothing due",
            Self::Jobs => "jobs",
        }
    }

    /// A condition of the rows that are due.
    fn due_sql(self) -> &'static str {
        match self {
            Self::All | Self::Jobs => "true",
            Self::Tenth => "id % 10 = 0",
            Self::Hundredth | Self::Snapshot => "id % 100 = 0",
            Self::Idle => "false",
        }
    }

    fn cases(self) -> &'static [Case] {
        const BY_SLOT: Case = case("dispatch, index without due", Layout::Slot, Way::Dispatch);
        const BY_DUE: Case = case("dispatch, index with due", Layout::Due, Way::Dispatch);
        const REFERENCE: Case = case("reference", Layout::Due, Way::Reference);
        const ROWS: Case = case("one update a row", Layout::Due, Way::OneByOne);
        const HTTP: Case = case("dispatch to a web server", Layout::Slot, Way::Http);
        const RESOURCE: Case = case("dispatch, also a resource", Layout::Slot, Way::Resource);
        const FREE: Case = case("no snapshot held", Layout::Due, Way::Dispatch);
        const HELD: Case = case("a snapshot held", Layout::Due, Way::Held);
        const JOBS: Case = case("dispatch", Layout::Jobs, Way::Jobs);
        const GRAPHILE: Case = case(
            "graphile-worker",
            Layout::Jobs,
            Way::Queue(Queue::GraphileWorker),
        );
        const PG_BOSS: Case = case("pg-boss", Layout::Jobs, Way::Queue(Queue::PgBoss));
        const RIVER: Case = case("River", Layout::Jobs, Way::Queue(Queue::River));
        const PGMQ: Case = case("pgmq", Layout::Jobs, Way::Queue(Queue::Pgmq));
        match self {
            Self::All => &[BY_SLOT, BY_DUE, REFERENCE, ROWS, HTTP, RESOURCE],
            Self::Tenth | Self::Hundredth => &[BY_SLOT, BY_DUE, REFERENCE],
            Self::Snapshot => &[FREE, HELD],
            Self::Idle => &[BY_DUE],
            Self::Jobs => &[JOBS, GRAPHILE, PG_BOSS, RIVER, PGMQ],
        }
    }

    /// Cases whose figures are divided by each other.
    fn pairs(self) -> &'static [(usize, usize)] {
        match self {
            Self::All => &[(0, 2), (0, 3), (4, 0), (5, 0)],
            Self::Tenth | Self::Hundredth => &[(0, 2), (1, 2)],
            Self::Snapshot => &[(1, 0)],
            Self::Idle => &[],
            Self::Jobs => &[(0, 1), (0, 2), (0, 3), (0, 4)],
        }
    }
}

/// A way to deliver rows.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    layout: Layout,
    way: Way,
}

/// A case.
const fn case(name: &'static str, layout: Layout, way: Way) -> Case {
    Case { name, layout, way }
}

/// The index of the table, and how full its pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Due,
    Slot,
    /// A table of jobs instead.
    Jobs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Reference,
    OneByOne,
    Dispatch,
    Http,
    /// The table is one of a resource, too.
    Resource,
    /// A transaction holds a snapshot meanwhile.
    Held,
    /// Rows are deleted.
    Jobs,
    Queue(Queue),
}

/// A PostgreSQL with the rows, and a web server.
pub(crate) struct DispatchBenchmark {
    args: DispatchArgs,
    binary: PathBuf,
    session: SqlSession,
    sink: HttpSink,
    /// Only if they are asked for.
    queues: Option<Queues>,
    postgres: Postgres,
    run_directory: RunDirectory,
}

impl Benchmark for DispatchBenchmark {
    const NAME: &'static str = "dispatch";
    type Args = DispatchArgs;

    fn run_args(args: &DispatchArgs) -> &RunArgs {
        &args.run
    }

    async fn prepare(
        args: &DispatchArgs,
        setup: Setup<'_>,
        _environment: &mut RunEnvironment,
    ) -> anyhow::Result<Self> {
        let mut run_directory = RunDirectory::new()?;
        let postgres =
            Postgres::start_sized(&mut run_directory, CONNECTIONS_MAX, &SETTINGS).await?;
        let mut session = SqlSession::new(postgres.url(), 0)?;
        session.run(&template_sql(args.rows)).await?;
        let mut queues = None;
        if args.groups.contains(&Question::Jobs) {
            queues = Some(Queues::prepare(run_directory.directory()).await?);
        }
        Ok(Self {
            queues,
            args: args.clone(),
            binary: setup.binary.to_owned(),
            session,
            sink: HttpSink::start().await?,
            postgres,
            run_directory,
        })
    }

    fn conditions(&self) -> String {
        format!(
            "{} rows in {} slots, {CONNECTIONS} connections, batches of 8000; fsync on, the table in shared_buffers; larder, \
             PostgreSQL and the web server on any core. The rate is that from the first statement that moved rows to the last \
             one, for jobs that of the process; CPU time is larder's for each row, with its start.",
            self.args.rows,
            WORKERS * TIME_ZONES
        )
    }

    fn groups(&self) -> Vec<Group> {
        let groups = self.args.groups.iter().map(|question| {
            let cases = question.cases();
            let name = |place: usize| cases[place].name.to_owned();
            let pairs = question.pairs().iter();
            Group {
                name: question.name().to_owned(),
                unit: "rows/s".to_owned(),
                cases: (0..cases.len()).map(name).collect(),
                pairs: pairs
                    .map(|(one, other)| (name(*one), name(*other)))
                    .collect(),
                layers: Vec::new(),
            }
        });
        groups.collect()
    }

    async fn turn(&mut self, turn: Turn) -> anyhow::Result<Measurement> {
        let question = self.args.groups[turn.group];
        let case = question.cases()[turn.case];
        if let Way::Queue(queue) = case.way {
            return self.queue(queue).await;
        }
        self.session.run(&table_sql(case.layout, question)).await?;
        for command in ["vacuum analyze subscriber", "checkpoint"] {
            self.session.run(command).await?;
        }
        let mut measurement = match case.way {
            Way::Reference | Way::OneByOne => {
                let moved = self.reference(case.way).await?;
                delivered(moved, self.span().await?, Duration::ZERO)
            }
            _ if matches!(question, Question::Snapshot | Question::Idle) => {
                self.for_a_while(case.way, question, turn.seconds).await?
            }
            way => {
                let (moved, took, cpu) = self.once(way).await?;
                // Jobs are gone.
                let took = if way == Way::Jobs {
                    took
                } else {
                    self.span().await?
                };
                delivered(moved, took, cpu)
            }
        };
        let updates = "select n_tup_hot_upd * 100.0 / greatest(n_tup_upd, 1) from pg_stat_user_tables where relname = 'subscriber'";
        let hot = self.session.texts(updates).await?;
        let hot = hot.first().and_then(|text| text.parse().ok());
        measurement
            .figures
            .push(("HOT %".to_owned(), hot.context("no share of HOT updates")?));
        Ok(measurement)
    }

    /// Whether the last turn left no row that was due.
    async fn verify(&mut self) -> anyhow::Result<()> {
        let late =
            "select count(*)::text from subscriber where notify_after < now() - interval '1 min'";
        let late = self.session.texts(late).await?;
        ensure!(late == ["0"], "{late:?} rows are still due");
        Ok(())
    }

    async fn shutdown(self) -> anyhow::Result<()> {
        self.postgres.stop().await;
        drop(self.run_directory);
        Ok(())
    }
}

/// The rows that each turn copies.
fn template_sql(rows: u32) -> String {
    format!(
        "create unlogged table template as select n::int8 as id, n % 1000 as partner, n % 100 as stream, n % 7 as widget, \
         (n % {WORKERS})::int2 as worker_id, (n / {WORKERS} % {TIME_ZONES})::int2 as timezone, (n % 5)::int2 as os, \
         (n % 9)::int2 as browser, 'NO' as country, 'nb' as language, rpad('https://push.example/' || n, 255, 'x') as endpoint \
         from generate_series(1, {rows}) n"
    )
}

/// Makes the table anew.
fn table_sql(layout: Layout, question: Question) -> String {
    let (fillfactor, index) = match layout {
        Layout::Due => (100, "worker_id, timezone, notify_after"),
        Layout::Slot => (45, "worker_id, timezone"),
        Layout::Jobs => (100, "notify_after, id"),
    };
    format!(
        "drop schema if exists larder cascade; drop table if exists subscriber; \
         create table subscriber (id int8 primary key, notify_after timestamptz, partner int8 not null, stream int8 not null, \
         widget int8 not null, worker_id int2 not null, timezone int2 not null, os int2 not null, browser int2 not null, \
         country text not null, language text not null, endpoint text not null) with (fillfactor = {fillfactor}); \
         insert into subscriber ({COLUMNS}) select id, now() + case when {due} then '-1 min' else '10 years' end::interval, \
         partner, stream, widget, worker_id, timezone, os, browser, country, language, endpoint from template; \
         create index on subscriber ({index})",
        due = question.due_sql(),
    )
}

impl DispatchBenchmark {
    /// Starts larder.
    fn larder(&self, way: Way, question: Question, arguments: &[&str]) -> anyhow::Result<Child> {
        let slots = "partition = [\"worker_id\", \"timezone\"]";
        let rest = match (way, question) {
            (Way::Jobs, _) => "delete = true\nbatch = 1000".to_owned(),
            // The most that a table of a resource may have.
            (Way::Resource, _) => format!("{slots}\ninterval = \"24h\"\nbatch = 5000"),
            (_, Question::Snapshot) => format!("{slots}\ninterval = \"1s\""),
            _ => format!("{slots}\ninterval = \"24h\""),
        };
        let sink = match way {
            Way::Http => format!("type = \"http\"\nurl = \"http://{}/\"", self.sink.address),
            _ => "type = \"discard\"".to_owned(),
        };
        let resource = match way {
            Way::Resource => "[[resource]]\nname = \"subscribers\"\ntable = \"subscriber\"\n",
            _ => "",
        };
        let toml = format!(
            "[database]\nurl = \"{}\"\n{resource}[[dispatch]]\nname = \"subscribers\"\ntable = \"subscriber\"\ndue = \"notify_after\"\n\
             {rest}\nconnections = {CONNECTIONS}\n[dispatch.sink]\n{sink}\n",
            self.postgres.url()
        );
        let directory = self.run_directory.directory();
        std::fs::write(directory.join("larder.toml"), toml)?;
        let log = std::fs::File::create(directory.join("log"))?;
        let child = Command::new(&self.binary)
            .args(arguments)
            .current_dir(directory)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn();
        child.with_context(|| format!("{} can't be run", self.binary.display()))
    }

    /// Dispatches until nothing is due; returns how many rows were, the time with larder's start, and
    /// its CPU time.
    async fn once(&mut self, way: Way) -> anyhow::Result<(u64, Duration, Duration)> {
        if way == Way::Resource {
            let installed = self
                .larder(way, Question::All, &["install"])?
                .wait()
                .await?;
            ensure!(installed.success(), "larder install: {installed}");
        }
        let wanted = self.due().await?;
        let (before, began) = (ended_cpu_time()?, Instant::now());
        let mut child = self.larder(way, Question::All, &ONCE)?;
        let status = timeout(ONCE_MAX, child.wait()).await;
        let status = status.context("the dispatch does not end")??;
        let took = began.elapsed();
        let log = self.run_directory.directory().join("log");
        ensure!(
            status.success(),
            "{status}: {}",
            std::fs::read_to_string(log)?
        );
        ensure!(self.due().await? == 0, "rows are still due");
        Ok((wanted, took, ended_cpu_time()? - before))
    }

    /// Fills a queue in a new database, and works it off.
    async fn queue(&mut self, queue: Queue) -> anyhow::Result<Measurement> {
        for command in ["drop database if exists queue", "create database queue"] {
            self.session.run(command).await?;
        }
        let (server, _) = self
            .postgres
            .url()
            .rsplit_once('/')
            .context("a URL without a database")?;
        let (url, jobs) = (format!("{server}/queue?sslmode=disable"), self.args.rows);
        let queues = self
            .queues
            .as_ref()
            .context("the queues are not prepared")?;
        queues.fill(queue, &url, jobs).await?;
        self.session.run("checkpoint").await?;
        Ok(delivered(
            jobs.into(),
            queues.work(queue, &url, jobs).await?,
            Duration::ZERO,
        ))
    }

    /// Dispatches rows that are due again a second later.
    async fn for_a_while(
        &mut self,
        way: Way,
        question: Question,
        seconds: u64,
    ) -> anyhow::Result<Measurement> {
        let mut holding = SqlSession::new(self.postgres.url(), 1)?;
        if way == Way::Held {
            holding
                .run("begin isolation level repeatable read; select count(*) from pg_class")
                .await?;
        }
        let mut child = self.larder(way, question, &ONCE[..3])?;
        let pid = Pid::from_raw(i32::try_from(child.id().context("larder has ended")?)?);
        // The start is not measured.
        sleep(Duration::from_secs(2)).await;
        let (updates, cpu, began) = (self.updates().await?, cpu_time(pid)?, Instant::now());
        let mut parts = Vec::new();
        let mut before = updates;
        for _ in 0..10 {
            sleep(Duration::from_secs_f64(seconds as f64 / 10.0)).await;
            let now = self.updates().await?;
            parts.push(now - before);
            before = now;
        }
        let (took, cpu) = (began.elapsed(), cpu_time(pid)? - cpu);
        kill(pid, Signal::SIGTERM)?;
        let status = timeout(ONCE_MAX, child.wait()).await??;
        ensure!(status.success(), "{status}");
        let mut measurement = delivered(before - updates, took, cpu);
        measurement.is_excused = question == Question::Idle;
        let share = cpu.as_secs_f64() / took.as_secs_f64();
        measurement
            .figures
            .push(("% of a core".to_owned(), share * 100.0));
        if let [first, .., last] = parts.as_slice() {
            let figure = *last as f64 / (*first).max(1) as f64;
            measurement
                .figures
                .push(("last tenth / first".to_owned(), figure));
        }
        Ok(measurement)
    }

    /// The time from the first statement that moved rows to the last one: their due moments tell it, and the start of a
    /// process is no part of it.
    async fn span(&mut self) -> anyhow::Result<Duration> {
        let span = "select extract(epoch from max(notify_after) - min(notify_after))::text from subscriber \
                    where notify_after between now() + interval '12 h' and now() + interval '2 days'";
        let span = self.session.texts(span).await?;
        Ok(Duration::from_secs_f64(
            span.first().context("no row was moved")?.parse()?,
        ))
    }

    async fn due(&mut self) -> anyhow::Result<u64> {
        let due = "select count(*)::text from subscriber where notify_after <= now()";
        self.count(due).await
    }

    /// Updates of the table, of sessions that have told theirs.
    async fn updates(&mut self) -> anyhow::Result<u64> {
        let updates =
            "select n_tup_upd::text from pg_stat_user_tables where relname = 'subscriber'";
        self.count(updates).await
    }

    async fn count(&mut self, sql: &str) -> anyhow::Result<u64> {
        let counted = self.session.texts(sql).await?;
        Ok(counted.first().context("nothing was counted")?.parse()?)
    }

    /// Reads the due rows of one slot after the other, and updates them by their ids; returns how many.
    async fn reference(&self, way: Way) -> anyhow::Result<u64> {
        let slots = if way == Way::OneByOne {
            SLOTS_ONE_BY_ONE
        } else {
            WORKERS * TIME_ZONES
        };
        let next = Arc::new(AtomicU32::new(0));
        let options = PgConnectOptions::from_str(self.postgres.url())?.disable_statement_logging();
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(options.connect().await?);
        }
        let (mut tasks, mut moved) = (JoinSet::new(), 0);
        for mut connection in connections {
            let next = Arc::clone(&next);
            tasks.spawn(async move {
                let mut moved = 0;
                loop {
                    let slot = next.fetch_add(1, Ordering::Relaxed);
                    if slot >= slots {
                        return anyhow::Ok(moved);
                    }
                    moved += move_slot(&mut connection, slot, way).await?;
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            moved += ended??;
        }
        Ok(moved)
    }
}

/// Moves the due rows of a slot; returns how many.
async fn move_slot(connection: &mut PgConnection, slot: u32, way: Way) -> anyhow::Result<u64> {
    let due = "select * from subscriber where worker_id = $1 and timezone = $2 and notify_after <= now() \
               order by notify_after limit 8000";
    let update = match way {
        Way::OneByOne => {
            "update subscriber set notify_after = now() + interval '24 h' where id = $1"
        }
        _ => "update subscriber set notify_after = now() + interval '24 h' where id = any($1)",
    };
    let (worker, zone) = (
        i16::try_from(slot % WORKERS)?,
        i16::try_from(slot / WORKERS)?,
    );
    let mut moved = 0;
    loop {
        let select = sqlx::query(due).bind(worker).bind(zone);
        let rows = select.fetch_all(&mut *connection).await?;
        if rows.is_empty() {
            return Ok(moved);
        }
        let ids = rows.iter().map(|row| row.try_get("id"));
        let ids = ids.collect::<sqlx::Result<Vec<i64>>>()?;
        moved += ids.len() as u64;
        if way == Way::OneByOne {
            for id in ids {
                sqlx::query(update)
                    .bind(id)
                    .execute(&mut *connection)
                    .await?;
            }
        } else {
            sqlx::query(update)
                .bind(ids)
                .execute(&mut *connection)
                .await?;
        }
    }
}

/// So many rows, delivered in this time.
fn delivered(rows: u64, took: Duration, cpu: Duration) -> Measurement {
    Measurement {
        measured: Measured {
            requests: rows,
            // Counts are far below 2^52, so the cast is exact.
            per_second: rows as f64 / took.as_secs_f64(),
            mean_ms: took.as_secs_f64() * 1e3,
            ..Measured::default()
        },
        cpu_micros: (!cpu.is_zero()).then(|| cpu.as_secs_f64() * 1e6 / rows.max(1) as f64),
        ..Measurement::default()
    }
}
