//! `loadtest polite`: larder comes, changes and goes beside writers that take the tables in every order. Does any of
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

use crate::checks::polite::writer::{Writer, Written};
use crate::harness::free_address;
use crate::harness::interference::{DELAY_MAX, Impact, Interference};
use crate::harness::larder::{Larder, LarderConfig};
use crate::harness::postgres::Postgres;
use crate::harness::session::Session;
use crate::harness::workplace::Workplace;
use crate::report::statistics::Spread;
use crate::workload::{RESOURCE, SCHEMA, TABLES};

const CONNECTIONS_MAX: usize = 60;
const MEMORY_BYTES: u64 = 3 << 20;
/// Of its time, a writer may wait so much for larder.
const WAITED_SHARE_MAX: f64 = 0.02;
/// So that triggers which no configuration needs any more are removed meanwhile, too.
const RETENTION: &str = "1s";
/// Whoever is starved of a lock says so in its log.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The definition of a table, by somebody who is polite.
const LOCK_TIMEOUT: &str = "set lock_timeout = '50ms'";
const RETRY_PAUSE: Duration = Duration::from_millis(300);
/// Functions that are called by enabled triggers of larder's, with their tables.
const CALLED: &str = "select distinct c.relname || ' ' || p.proname \
    from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_proc p on p.oid = t.tgfoid \
    where p.pronamespace = to_regnamespace('larder') and c.relnamespace = 'public'::regnamespace \
      and t.tgenabled = 'A' and t.tgparentid = 0";

/// What larder does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    /// Into a database that has nothing of it, by its start or by `larder install`.
    Install,
    /// A table comes below another, which needs triggers of another form.
    Attach,
    /// It starts with another `keys_per_statement`, and the triggers of the one before go.
    Reconfigure,
    Uninstall,
}

impl Operation {
    /// One after the other, over and over.
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

/// How often larder comes, changes and goes.
#[derive(Args, Clone, Debug)]
pub(crate) struct PoliteArgs {
    /// Installs, attaches, reconfigurations and uninstalls together.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) count: usize,
    /// Connections that write all the time.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = RangedU64ValueParser::<usize>::new().range(1..=40))]
    pub(crate) writers: usize,
}

/// Whether no writer failed or waited too long.
pub(crate) async fn run(args: &PoliteArgs, binary: PathBuf, seed: u64) -> anyhow::Result<bool> {
    println!("seed {seed}");
    let mut scene = Scene::set(binary, seed).await?;
    for number in 0..args.writers {
        let sql = writer::rows(number);
        scene.session.run(&sql).await?;
    }
    let interference = Arc::new(Interference::default());
    let mut watch = JoinSet::new();
    let url = scene.postgres.url().to_owned();
    watch.spawn(Arc::clone(&interference).watch(url.clone()));
    let stop = watch::channel(false).0;
    let mut writers = JoinSet::new();
    for number in 0..args.writers {
        let session = Session::new(&url, 0)?.watched(&interference);
        let writer = Writer::new(number, session, scene.rng.fork());
        writers.spawn(writer.run(stop.subscribe()));
    }
    let began = Instant::now();
    let mut took = Vec::new();
    let mut outcome = Ok(());
    for number in 0..args.count {
        let operation = Operation::ALL[number % Operation::ALL.len()];
        let began = Instant::now();
        outcome = scene.operate(operation).await;
        if outcome.is_err() {
            break;
        }
        took.push((operation, began.elapsed()));
    }
    stop.send_replace(true);
    let elapsed = began.elapsed();
    let written: Vec<Written> = writers.join_all().await;
    let impact = interference.take();
    interference.print();
    let report = Report {
        elapsed,
        shares: shares(&interference, &written, elapsed),
        written,
        took,
        impact,
    };
    let held = report.print();
    outcome?;
    scene.strike().await?;
    Ok(held)
}

/// Of each writer's time, what it waited for larder.
fn shares(interference: &Interference, written: &[Written], elapsed: Duration) -> Vec<f64> {
    let share = |written: &Written| {
        let waited: Duration = interference.waited(&written.pids).iter().sum();
        waited.as_secs_f64() / elapsed.as_secs_f64()
    };
    written.iter().map(share).collect()
}

/// PostgreSQL, and a larder that runs or not.
struct Scene {
    session: Session,
    larder: Larder,
    rng: fastrand::Rng,
    /// The table that has a parent.
    attached: Option<&'static str>,
    installs: u32,
    postgres: Postgres,
    /// The last to go.
    workplace: Workplace,
}

impl Scene {
    async fn set(binary: PathBuf, seed: u64) -> anyhow::Result<Self> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut workplace = Workplace::new()?;
        let postgres = Postgres::start(&mut workplace, CONNECTIONS_MAX).await?;
        let mut session = Session::new(postgres.url(), 0)?;
        session.run(SCHEMA).await?;
        let larder = Larder::new(LarderConfig {
            binary,
            directory: workplace.directory().join("larder"),
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
            workplace,
        })
    }

    async fn operate(&mut self, operation: Operation) -> anyhow::Result<()> {
        match operation {
            Operation::Install => self.install().await,
            Operation::Attach => self.attach().await,
            Operation::Reconfigure => self.reconfigure().await,
            Operation::Uninstall => self.uninstall().await,
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

    /// Changes a definition as writers leave room for it.
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

    async fn strike(self) -> anyhow::Result<()> {
        self.postgres.stop().await;
        drop(self.larder);
        drop(self.workplace);
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
struct Report {
    elapsed: Duration,
    written: Vec<Written>,
    /// Of each writer's time, what it waited for larder, 0 to 1.
    shares: Vec<f64>,
    took: Vec<(Operation, Duration)>,
    impact: Impact,
}

impl Report {
    /// Prints it; returns whether everything held.
    fn print(&self) -> bool {
        let transactions: u64 = self.written.iter().map(|written| written.committed).sum();
        println!(
            "{} operations in {:.0?} beside {} writers, {transactions} transactions",
            self.took.len(),
            self.elapsed,
            self.written.len()
        );
        for operation in Operation::ALL {
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
        let held = aborted == 0 && self.impact.is_polite() && most <= WAITED_SHARE_MAX;
        println!("{}", if held { "ok" } else { "FAILED" });
        held
    }
}
