//! The testbed: everything that a fault can act on, started and kept running.

pub(crate) mod prober;
pub(crate) mod readers;
pub(crate) mod writers;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use larder::clock::Boottime;
use nix::sys::signal::Signal;
use testkit::fault_proxy::{FaultProxy, NetworkFault};
use tokio::sync::{Mutex, OwnedMutexGuard, watch};
use tokio::task::JoinSet;

use crate::harness::free_address;
use crate::harness::interference::Interference;
use crate::harness::larder::{Larder, LarderConfig, READY_TIMEOUT};
use crate::harness::postgres::Postgres;
use crate::harness::run_directory::RunDirectory;
use crate::harness::session::SqlSession;
use crate::harness::testbed::prober::LagProber;
use crate::harness::testbed::readers::ReadingClient;
use crate::harness::testbed::writers::WritingClient;
use crate::workload::counters::{Durations, ReadCounters};
use crate::workload::history::TransactionEnd;
use crate::workload::record::{Record, RunPhase};
use crate::workload::{
    NOTES_PLAIN, NOTES_RESOURCE, NOTES_SCHEMA, Notes, PLOTS, PROBE_PLOT, Plot, RESOURCE, SCHEMA,
    keys, random, seed,
};

/// Connections that read, each one document after the other.
const READERS: usize = 32;
/// Connections to PostgreSQL of larders, writers and faults.
const CONNECTIONS_MAX: usize = 100;
/// The slot in `ledger` of faults' sessions; writers have 0 and 1.
pub(crate) const FAULT_SLOT: i32 = 0;

/// What a testbed is started with.
#[derive(Clone, Debug)]
pub(crate) struct TestbedConfig {
    pub(crate) binary: PathBuf,
    pub(crate) seed: u64,
    pub(crate) max_staleness: Duration,
    pub(crate) keys_per_plot: u32,
    /// How many documents are behind row security. If any, larder connects as a role that owns the tables, else as a
    /// superuser.
    pub(crate) notes: u32,
    /// Of the memory tier.
    pub(crate) memory_bytes: u64,
    /// Whether commits notify larder (`feed.notify`).
    pub(crate) notify: bool,
    /// Commits of all writers together.
    pub(crate) commits_per_second: f64,
    /// Whether larder reaches PostgreSQL through proxies.
    pub(crate) proxied: bool,
    /// How many kinds of faults are counted separately.
    pub(crate) faults: usize,
}

/// A running system under load.
pub(crate) struct Testbed {
    pub(crate) record: Arc<Record>,
    pub(crate) interference: Arc<Interference>,
    pub(crate) rng: fastrand::Rng,
    pub(crate) plots: Vec<Arc<Mutex<Plot>>>,
    pub(crate) notes: Notes,
    pub(crate) session: SqlSession,
    pub(crate) larder: Larder,
    /// Runs during one fault only.
    pub(crate) second: Larder,
    pub(crate) targets: watch::Sender<Vec<SocketAddr>>,
    pub(crate) feed: FaultProxy,
    pub(crate) loader: FaultProxy,
    readers: JoinSet<ReadCounters>,
    writers: JoinSet<()>,
    prober: JoinSet<Durations>,
    watch: JoinSet<()>,
    pub(crate) postgres: Postgres,
    /// Dropped last.
    pub(crate) run_directory: RunDirectory,
}

/// What the load has measured.
pub(crate) struct LoadMeasurements {
    pub(crate) counters: ReadCounters,
    pub(crate) lags: Durations,
}

impl Testbed {
    /// Starts PostgreSQL, fills its tables and starts larder; there is no load yet.
    pub(crate) async fn start(config: &TestbedConfig) -> anyhow::Result<Self> {
        let mut rng = fastrand::Rng::with_seed(config.seed);
        let mut run_directory = RunDirectory::new()?;
        let postgres = Postgres::start(&mut run_directory, CONNECTIONS_MAX).await?;
        let interference = Arc::new(Interference::default());
        let mut session = SqlSession::new(postgres.url(), FAULT_SLOT)?.watched(&interference);
        session.run(SCHEMA).await?;
        let roots = keys(config.keys_per_plot);
        let record = Arc::new(Record::new(roots, config.notes, config.max_staleness));
        let notes = Notes::new(roots + 1, config.notes);
        let mut plots = Vec::new();
        for number in 0..=PLOTS {
            let (plot, sql) = seed(number, config.keys_per_plot, &mut rng);
            session.run(&sql).await?;
            let made: Vec<_> = plot.keys().map(|key| plot.made(key)).collect();
            record.note(&made, 1, TransactionEnd::Committed(Boottime::now()));
            plots.push(Arc::new(Mutex::new(plot)));
        }
        if config.notes > 0 {
            create_notes(&mut session, &notes).await?;
            record.note(&notes.made(), 1, TransactionEnd::Committed(Boottime::now()));
        }
        session.run("vacuum analyze").await?;
        let feed = FaultProxy::start(postgres.url()).await?;
        let loader = FaultProxy::start(postgres.url()).await?;
        let mut larder = |name: &str| {
            Larder::new(LarderConfig {
                binary: config.binary.clone(),
                directory: run_directory.directory().join(name),
                listen: free_address(&mut rng)?,
                admin: free_address(&mut rng)?,
                url: url(config, &loader, &postgres),
                listen_url: url(config, &feed, &postgres),
                memory_bytes: config.memory_bytes,
                settings: settings(config),
                arguments: Vec::new(),
                cores: None,
                environment: Vec::new(),
            })
        };
        let (mut first, second) = (larder("larder")?, larder("second")?);
        first.start_ready().await?;
        let targets = watch::channel(vec![first.config.listen]).0;
        Ok(Self {
            record,
            interference,
            rng,
            plots,
            notes,
            session,
            larder: first,
            second,
            targets,
            feed,
            loader,
            readers: JoinSet::new(),
            writers: JoinSet::new(),
            prober: JoinSet::new(),
            watch: JoinSet::new(),
            postgres,
            run_directory,
        })
    }

    /// Starts readers, writers and the client that measures the lag.
    pub(crate) fn load(&mut self, config: &TestbedConfig) -> anyhow::Result<()> {
        let url = self.postgres.url().to_owned();
        self.watch.spawn(Arc::clone(&self.interference).watch(url));
        for number in 0..READERS {
            let reader = ReadingClient {
                record: Arc::clone(&self.record),
                targets: self.targets.subscribe(),
                number,
                rng: self.rng.fork(),
                counters: ReadCounters::new(config.faults)?,
            };
            self.readers.spawn(reader.run());
        }
        let writers = u32::try_from(PLOTS).unwrap_or(u32::MAX);
        for plot in &self.plots[..PLOTS] {
            let [one, other] = [0, 1].map(|slot| self.new_session(slot));
            let writer = WritingClient {
                record: Arc::clone(&self.record),
                plot: Arc::clone(plot),
                sessions: [one?, other?],
                rng: self.rng.fork(),
                pace: Duration::from_secs_f64(f64::from(writers) / config.commits_per_second),
            };
            self.writers.spawn(writer.run());
        }
        let prober = LagProber {
            record: Arc::clone(&self.record),
            plot: Arc::clone(&self.plots[PROBE_PLOT]),
            session: self.new_session(0)?,
            targets: self.targets.subscribe(),
            rng: self.rng.fork(),
            lags: Durations::new()?,
        };
        self.prober.spawn(prober.run());
        Ok(())
    }

    /// Another session, whose failures are counted if larder caused them.
    pub(crate) fn new_session(&self, slot: i32) -> anyhow::Result<SqlSession> {
        Ok(SqlSession::new(self.postgres.url(), slot)?.watched(&self.interference))
    }

    /// Lets the load go on for `times` times `max_staleness`.
    pub(crate) async fn hold(&self, times: f64) {
        tokio::time::sleep(self.record.max_staleness.mul_f64(times)).await;
    }

    /// A plot that no other session changes as long as it is held.
    pub(crate) async fn plot(&self, number: usize) -> OwnedMutexGuard<Plot> {
        Arc::clone(&self.plots[number % self.plots.len()])
            .lock_owned()
            .await
    }

    /// All plots: no writer writes as long as they are held.
    pub(crate) async fn all_plots(&self) -> Vec<OwnedMutexGuard<Plot>> {
        let mut plots = Vec::with_capacity(self.plots.len());
        for number in 0..self.plots.len() {
            plots.push(self.plot(number).await);
        }
        plots
    }

    /// Changes documents of any plot by `count` transactions, each of which runs `also`, too.
    pub(crate) async fn write(&mut self, count: usize, also: &str) -> anyhow::Result<()> {
        for _ in 0..count {
            let number = self.rng.usize(..PLOTS);
            let mut plot = self.plot(number).await;
            let mut change = random(&plot, self.record.revision(), &mut self.rng);
            change.sql += also;
            let record = Arc::clone(&self.record);
            self.session.transact(&mut plot, change, &record).await?;
        }
        Ok(())
    }

    /// One transaction that gives every row of `tables` the same new revision, by the statements that `sql` makes of
    /// it.
    pub(crate) async fn revise_all(
        &mut self,
        tables: &[&str],
        sql: impl FnOnce(u64) -> String,
    ) -> anyhow::Result<()> {
        let mut plots = self.all_plots().await;
        self.revise_held(&mut plots, tables, sql).await
    }

    /// As [`Testbed::revise_all`], of all plots, which are held already.
    pub(crate) async fn revise_held(
        &mut self,
        plots: &mut [OwnedMutexGuard<Plot>],
        tables: &[&str],
        sql: impl FnOnce(u64) -> String,
    ) -> anyhow::Result<()> {
        let revision = self.record.revision();
        let sql = sql(revision);
        let begin = format!("begin; {sql}; update ledger set revision = {revision} where slot = 0");
        self.session.run(&begin).await?;
        let parts = plots.iter_mut().map(|plot| {
            let change = plot.revised(tables, revision);
            (&mut **plot, change)
        });
        let record = Arc::clone(&self.record);
        let committed = self
            .session
            .commit_all("commit", parts.collect(), &record)
            .await;
        ensure!(committed == Some(true), "the transaction was not committed");
        Ok(())
    }

    /// Ends PostgreSQL by `signal` and waits until it answers again.
    pub(crate) async fn restart_postgres(&mut self, signal: Signal) -> anyhow::Result<()> {
        self.postgres.restart_by(signal).await?;
        self.renew_session().await;
        Ok(())
    }

    /// Closes a connection that a fault may have ended, so that the next transaction begins with a new one.
    pub(crate) async fn renew_session(&mut self) {
        self.session.run("rollback").await.ok();
    }

    /// After a fault, restores the normal state and waits until larder is ready and caches all resources. Returns how long
    /// that took.
    pub(crate) async fn recover(&mut self) -> anyhow::Result<Duration> {
        let began = Boottime::now();
        self.feed.set(NetworkFault::None);
        self.loader.set(NetworkFault::None);
        self.renew_session().await;
        self.larder.ready().await?;
        self.larder.cached(READY_TIMEOUT).await?;
        Ok(Boottime::now().since(began))
    }

    /// Ends the load and tells what it measured.
    pub(crate) async fn measured(
        &mut self,
        config: &TestbedConfig,
    ) -> anyhow::Result<LoadMeasurements> {
        self.record.stop();
        let mut counters = ReadCounters::new(config.faults)?;
        while let Some(one) = self.readers.join_next().await {
            counters.add(&one?)?;
        }
        while let Some(ended) = self.writers.join_next().await {
            ended?;
        }
        let lags = self.prober.join_next().await;
        Ok(LoadMeasurements {
            counters,
            lags: lags.transpose()?.map_or_else(Durations::new, Ok)?,
        })
    }

    /// Stops larder and PostgreSQL in good order.
    pub(crate) async fn shutdown(mut self) -> anyhow::Result<()> {
        self.larder.terminate().await?;
        self.postgres.stop().await;
        drop(self.run_directory);
        Ok(())
    }

    /// Enters a phase and stays in it.
    pub(crate) async fn run_phase(&self, phase: RunPhase, duration: Duration) {
        self.record.enter(phase);
        tokio::time::sleep(duration).await;
    }
}

async fn create_notes(session: &mut SqlSession, notes: &Notes) -> anyhow::Result<()> {
    session.run(NOTES_SCHEMA).await?;
    session.run(&notes.fill()).await?;
    Ok(session.run(NOTES_PLAIN).await?)
}

/// The URL with which larder connects.
fn url(config: &TestbedConfig, proxy: &FaultProxy, postgres: &Postgres) -> String {
    let url = if config.proxied {
        &proxy.url
    } else {
        postgres.url()
    };
    match config.notes {
        0 => url.to_owned(),
        _ => as_follower(url),
    }
}

/// The URL of a database for the role that is subject to row security.
fn as_follower(url: &str) -> String {
    let rest = url.rsplit_once('@').map_or(url, |(_, rest)| rest);
    format!("postgres://follower:follower@{rest}")
}

/// The rest of larder's configuration: what a run varies, and the resources.
fn settings(config: &TestbedConfig) -> String {
    format!(
        "[disk]\ncache = '64MiB'\nlinger = '200ms'\n\
         [feed]\nmax_staleness = '{staleness}ms'\nnotify = {notify}\n{RESOURCE}{notes}",
        staleness = config.max_staleness.as_millis(),
        notify = config.notify,
        notes = if config.notes > 0 { NOTES_RESOURCE } else { "" },
    )
}
