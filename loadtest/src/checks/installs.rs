//! `loadtest installs`: larder comes, changes and goes beside writers that take the tables in every order. Does any of
//! their transactions fail, or wait long for it?
//!
//! Writers change rows of their own and lock no table in a mode that conflicts with each other, so without larder none
//! of them fails or waits.

mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::checks::installs::writer::{RowWriter, WriterTotals};
use crate::harness::free_address;
use crate::harness::interference::{DELAY_MAX, Impact, Interference};
use crate::harness::larder::{Larder, LarderConfig};
use crate::harness::postgres::Postgres;
use crate::harness::run_directory::RunDirectory;
use crate::harness::session::SqlSession;
use crate::report::statistics::Spread;
use crate::workload::{RESOURCE, SCHEMA, TABLES};

const CONNECTIONS_MAX: usize = 60;
const MEMORY_BYTES: u64 = 3 << 20;
/// The largest share of its time that a writer may wait for larder.
const WAITED_SHARE_MAX: f64 = 0.02;
/// Short, so that triggers which no configuration needs any more are removed during the run.
const RETENTION: &str = "1s";
/// For one operation; if it gets no lock until then, larder's log says so.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// For changes of a table's definition that do not make writers wait.
const LOCK_TIMEOUT: &str = "set lock_timeout = '50ms'";
const RETRY_PAUSE: Duration = Duration::from_millis(300);
/// Functions that are called by enabled triggers of larder's, with their tables.
const CALLED: &str = "select distinct c.relname || ' ' || p.proname \
    from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_proc p on p.oid = t.tgfoid \
    where p.pronamespace = to_regnamespace('larder') and c.relnamespace = 'public'::regnamespace \
      and t.tgenabled = 'A' and t.tgparentid = 0";

/// What larder does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InstallOperation {
    /// Into a database without schema larder, by starting larder or by `larder install`.
    Install,
    /// Attaches a table below another, which then needs triggers of another form.
    Attach,
    /// Restarts larder with another `keys_per_statement`; the triggers of the previous one are removed.
    Reconfigure,
    Uninstall,
}

impl InstallOperation {
    /// In this order, again and again.
    const ALL: [Self; 4] = [
        Self::Install,
        Self::Attach,
        Self::Reconfigure,
        Self::Uninstall,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Install => "install",
            Self::Attach => "attach",
            Self::Reconfigure => "reconfigure",
            Self::Uninstall => "uninstall",
        }
    }
}

/// How many operations, beside how many writers.
#[derive(Args, Clone, Debug)]
pub(crate) struct InstallsArgs {
    /// Installs, attaches, reconfigurations and uninstalls together.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) count: usize,
    /// Connections that write all the time.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = RangedU64ValueParser::<usize>::new().range(1..=40))]
    pub(crate) writers: usize,
}

/// Whether no writer failed or waited too long.
pub(crate) async fn run(args: &InstallsArgs, binary: PathBuf, seed: u64) -> anyhow::Result<bool> {
    println!("seed {seed}");
    let mut testbed = InstallTestbed::set(binary, seed).await?;
    for number in 0..args.writers {
        let sql = writer::rows(number);
        testbed.session.run(&sql).await?;
    }
    let interference = Arc::new(Interference::default());
    let mut watch = JoinSet::new();
    let url = testbed.postgres.url().to_owned();
    watch.spawn(Arc::clone(&interference).watch(url.clone()));
    let stop = watch::channel(false).0;
    let mut writers = JoinSet::new();
    for number in 0..args.writers {
        let session = SqlSession::new(&url, 0)?.watched(&interference);
        let writer = RowWriter::new(number, session, testbed.rng.fork());
        writers.spawn(writer.run(stop.subscribe()));
    }
    let began = Instant::now();
    let mut took = Vec::new();
    let mut outcome = Ok(());
    for number in 0..args.count {
        let operation = InstallOperation::ALL[number % InstallOperation::ALL.len()];
        let began = Instant::now();
        outcome = testbed.operate(operation).await;
        if outcome.is_err() {
            break;
        }
        took.push((operation, began.elapsed()));
    }
    stop.send_replace(true);
    let elapsed = began.elapsed();
    let written: Vec<WriterTotals> = writers.join_all().await;
    let impact = interference.take_impact();
    interference.print();
    let report = InstallReport {
        elapsed,
        shares: shares(&interference, &written, elapsed),
        written,
        took,
        impact,
    };
    let held = report.print();
    outcome?;
    testbed.shutdown().await?;
    Ok(held)
}

/// The share of each writer's time that it waited for larder.
fn shares(interference: &Interference, written: &[WriterTotals], elapsed: Duration) -> Vec<f64> {
    let share = |written: &WriterTotals| {
        let waited: Duration = interference.waited(&written.pids).iter().sum();
        waited.as_secs_f64() / elapsed.as_secs_f64()
    };
    written.iter().map(share).collect()
}

/// PostgreSQL, and a larder that runs or is stopped.
struct InstallTestbed {
    session: SqlSession,
    larder: Larder,
    rng: fastrand::Rng,
    /// The table that has a parent.
    attached: Option<&'static str>,
    installs: u32,
    postgres: Postgres,
    /// Dropped last.
    run_directory: RunDirectory,
}

impl InstallTestbed {
    async fn set(binary: PathBuf, seed: u64) -> anyhow::Result<Self> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut run_directory = RunDirectory::new()?;
        let postgres = Postgres::start(&mut run_directory, CONNECTIONS_MAX).await?;
        let mut session = SqlSession::new(postgres.url(), 0)?;
        session.run(SCHEMA).await?;
        let larder = Larder::new(LarderConfig {
            binary,
            directory: run_directory.directory().join("larder"),
            listen: free_address(&mut rng)?,
            admin: free_address(&mut rng)?,
            url: postgres.url().to_owned(),
            listen_url: postgres.url().to_owned(),
            memory_bytes: MEMORY_BYTES,
            settings: settings(1),
            arguments: Vec::new(),
            cores: None,
            environment: Vec::new(),
        })?;
        Ok(Self {
            session,
            larder,
            rng,
            attached: None,
            installs: 0,
            postgres,
            run_directory,
        })
    }

    async fn operate(&mut self, operation: InstallOperation) -> anyhow::Result<()> {
        match operation {
            InstallOperation::Install => self.install().await,
            InstallOperation::Attach => self.attach().await,
            InstallOperation::Reconfigure => self.reconfigure().await,
            InstallOperation::Uninstall => self.uninstall().await,
        }
    }

    async fn install(&mut self) -> anyhow::Result<()> {
        self.installs += 1;
        if self.installs.is_multiple_of(2) {
            self.larder.command("install").await?;
        }
        self.larder.start()?;
        self.reach(|called| TABLES.iter().all(|table| called_by(called, table, &[])))
            .await?;
        self.larder.ready().await
    }

    async fn attach(&mut self) -> anyhow::Result<()> {
        let table = TABLES[self.rng.usize(..TABLES.len())];
        let before = self.session.texts(CALLED).await?;
        self.attached = Some(table);
        let sql = format!(
            "create table {table}_above (like {table}); alter table {table} inherit {table}_above"
        );
        self.define(&sql).await?;
        self.reach(|called| called_by(called, table, &before)).await
    }

    async fn reconfigure(&mut self) -> anyhow::Result<()> {
        let before = self.session.texts(CALLED).await?;
        self.larder.terminate().await?;
        self.larder.config.settings = settings(self.rng.u32(100..10_000));
        self.larder.start()?;
        self.reach(|called| {
            let has_new = |table: &&str| called_by(called, table, &before);
            TABLES.iter().all(has_new) && !called.iter().any(|call| before.contains(call))
        })
        .await?;
        self.larder.ready().await
    }

    async fn uninstall(&mut self) -> anyhow::Result<()> {
        self.larder.terminate().await?;
        self.larder.command("uninstall").await?;
        if let Some(table) = self.attached.take() {
            let sql =
                format!("alter table {table} no inherit {table}_above; drop table {table}_above");
            self.define(&sql).await?;
        }
        let left = self.session.texts(CALLED).await?;
        ensure!(left.is_empty(), "left after uninstalling: {left:?}");
        Ok(())
    }

    /// Waits until the functions that triggers call are as `wanted`.
    async fn reach(&mut self, wanted: impl Fn(&[String]) -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + OPERATION_TIMEOUT;
        loop {
            let called = self.session.texts(CALLED).await?;
            if wanted(&called) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "after {OPERATION_TIMEOUT:?} there are {called:?}"
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Runs a DDL statement with a short lock timeout, until it succeeds.
    async fn define(&mut self, sql: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + OPERATION_TIMEOUT;
        loop {
            self.session.run(LOCK_TIMEOUT).await?;
            let outcome = self.session.run(sql).await;
            if outcome.is_ok() || Instant::now() > deadline {
                return Ok(outcome?);
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    async fn shutdown(self) -> anyhow::Result<()> {
        self.postgres.stop().await;
        drop(self.larder);
        drop(self.run_directory);
        Ok(())
    }
}

/// Whether a trigger of `table` calls a function that is not among those `before`.
fn called_by(called: &[String], table: &str, before: &[String]) -> bool {
    let of_table = |call: &&String| call.split(' ').next() == Some(table);
    called
        .iter()
        .filter(of_table)
        .any(|call| !before.contains(call))
}

fn settings(keys_per_statement: u32) -> String {
    format!(
        "[feed]\nretention = '{RETENTION}'\nkeys_per_statement = {keys_per_statement}\n{RESOURCE}"
    )
}

/// What a run found.
struct InstallReport {
    elapsed: Duration,
    written: Vec<WriterTotals>,
    /// The share of each writer's time that it waited for larder, 0 to 1.
    shares: Vec<f64>,
    took: Vec<(InstallOperation, Duration)>,
    impact: Impact,
}

impl InstallReport {
    /// Prints it; returns whether everything held.
    fn print(&self) -> bool {
        let transactions: u64 = self.written.iter().map(|written| written.committed).sum();
        println!(
            "{} operations in {:.0?} beside {} writers, {transactions} transactions",
            self.took.len(),
            self.elapsed,
            self.written.len()
        );
        for operation in InstallOperation::ALL {
            let took = self.took.iter().filter(|(other, _)| *other == operation);
            let seconds = took.clone().map(|(_, took)| took.as_secs_f64());
            if let Some(spread) = Spread::of(seconds) {
                println!(
                    "  {:<12} {:>4} times: median {:.2} s, max {:.2} s",
                    operation.name(),
                    took.count(),
                    spread.median,
                    spread.max
                );
            }
        }
        let aborted: u64 = self.written.iter().map(|written| written.aborted).sum();
        for reason in self.written.iter().flat_map(|written| &written.reasons) {
            println!("  {reason}");
        }
        let longest = self.written.iter().map(|written| written.longest).max();
        let waited = Spread::of(self.shares.iter().copied());
        let most = waited.map_or(0.0, |spread| spread.max);
        println!("aborted transactions: {aborted} (goal 0)");
        println!(
            "longest wait of a statement for larder: {:.0?} (goal {DELAY_MAX:?}), {} were longer; longest statement: {:.0?}",
            self.impact.longest_wait,
            self.impact.delayed,
            longest.unwrap_or_default()
        );
        println!(
            "share of its time that a writer waited for larder: {:.2} %, at most {:.2} % (goal {:.0} %)",
            100.0 * waited.map_or(0.0, |spread| spread.median),
            100.0 * most,
            100.0 * WAITED_SHARE_MAX
        );
        let held = aborted == 0 && self.impact.is_within_goal() && most <= WAITED_SHARE_MAX;
        println!("{}", if held { "ok" } else { "FAILED" });
        held
    }
}
