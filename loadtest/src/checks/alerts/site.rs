//! All that the check runs on: PostgreSQL, the network, a larder, its visitors, and Prometheus.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, ensure};
use testkit::fault_proxy::FaultProxy;
use tokio::time::Instant;

use crate::checks::alerts::prometheus::Prometheus;
use crate::checks::alerts::rules::Panel;
use crate::checks::alerts::visitors::Visitors;
use crate::harness::larder::{Larder, LarderConfig};
use crate::harness::postgres::Postgres;
use crate::harness::run_directory::RunDirectory;
use crate::harness::session::SqlSession;
use crate::harness::{free_address, http};

/// Documents that visitors read.
pub(super) const ITEMS: u32 = 100;
/// A document that only a cause reads.
pub(super) const PLANTED: u32 = ITEMS + 1;

const SCHEMA: &str = "\
    create table item (id bigint primary key, title text); \
    insert into item select id, 'item' from generate_series(1, 101) id; \
    create table other (id bigint primary key, name text, note text); \
    insert into other select id, 'name', 'note' from generate_series(1, 5000) id";
const SETTINGS: &str = "\
    [audit]\nsample = 1.0\n\
    [[resource]]\nname = 'items'\ntable = 'item'\n\
    [[resource]]\nname = 'others'\ntable = 'other'\nfields = ['id', 'name', 'note']\n";
const MEMORY_BYTES: u64 = 16 << 20;
const CONNECTIONS_MAX: usize = 40;
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Until an alert fires, or the last one has ended: a measurement of the log comes every 10 s.
const ALERT_TIMEOUT: Duration = Duration::from_secs(40);
const DATA_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) struct Site {
    pub(super) prometheus: Prometheus,
    pub(super) visitors: Visitors,
    pub(super) larder: Larder,
    /// Between the feed and PostgreSQL.
    pub(super) feed: FaultProxy,
    /// Between reads and writes and PostgreSQL.
    pub(super) loader: FaultProxy,
    postgres: Postgres,
    /// Dropped last.
    run_directory: RunDirectory,
}

impl Site {
    pub(super) async fn start(binary: PathBuf, seed: u64) -> anyhow::Result<Self> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut run_directory = RunDirectory::new()?;
        let postgres = Postgres::start(&mut run_directory, CONNECTIONS_MAX).await?;
        SqlSession::new(postgres.url(), 0)?.run(SCHEMA).await?;
        let feed = FaultProxy::start(postgres.url()).await?;
        let loader = FaultProxy::start(postgres.url()).await?;
        let directory = run_directory.directory();
        let mut larder = Larder::new(LarderConfig {
            binary,
            directory: directory.join("larder"),
            listen: free_address(&mut rng)?,
            admin: free_address(&mut rng)?,
            url: loader.url.clone(),
            listen_url: feed.url.clone(),
            memory_bytes: MEMORY_BYTES,
            settings: SETTINGS.to_owned(),
            arguments: Vec::new(),
            cores: None,
            environment: Vec::new(),
        })?;
        larder.start_ready().await?;
        let address = free_address(&mut rng)?;
        let prometheus = Prometheus::start(directory, address, larder.config.admin).await?;
        Ok(Self {
            prometheus,
            visitors: Visitors::start(larder.config.listen, rng),
            larder,
            feed,
            loader,
            postgres,
            run_directory,
        })
    }

    pub(super) fn directory(&self) -> &Path {
        self.run_directory.directory()
    }

    /// A session with PostgreSQL itself.
    pub(super) fn session(&self) -> anyhow::Result<SqlSession> {
        SqlSession::new(self.postgres.url(), 0)
    }

    /// What larder serves at `/metrics`.
    pub(super) async fn metrics(&self) -> anyhow::Result<String> {
        let (status, text) = http::get(self.larder.config.admin, "/metrics").await?;
        ensure!(status == 200, "/metrics: {status}");
        Ok(text)
    }

    /// Reads a document, whatever the response is.
    pub(super) async fn read(&self, path: &str) -> anyhow::Result<()> {
        http::get(self.larder.config.listen, path).await.map(|_| ())
    }

    /// Waits until the query of `panel` returns a number.
    pub(super) async fn await_data(&self, panel: &Panel) -> anyhow::Result<()> {
        let deadline = Instant::now() + DATA_TIMEOUT;
        while self.prometheus.query(&panel.query).await?.is_empty() {
            ensure!(
                Instant::now() < deadline,
                "the panel {:?} has no data: {}",
                panel.title,
                panel.query
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Waits until the condition of no alert holds.
    pub(super) async fn await_quiet(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + ALERT_TIMEOUT;
        loop {
            let (active, _) = self.prometheus.alerts().await?;
            if active.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{active:?} do not end");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until the alert `expected` fires. Returns the others that fired until then.
    ///
    /// # Errors
    /// It does not fire, or an alert fires that is neither that one nor one of `beside`.
    pub(super) async fn await_alert(
        &self,
        expected: &str,
        beside: &[&str],
    ) -> anyhow::Result<BTreeSet<String>> {
        let deadline = Instant::now() + ALERT_TIMEOUT;
        let mut others = BTreeSet::new();
        loop {
            let (_, mut firing) = self.prometheus.alerts().await?;
            let has_fired = firing.remove(expected);
            others.append(&mut firing);
            if let Some(other) = others
                .iter()
                .find(|other| !beside.contains(&other.as_str()))
            {
                bail!("{other} fired for the cause of {expected}");
            }
            if has_fired {
                return Ok(others);
            }
            ensure!(Instant::now() < deadline, "{expected} does not fire");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Ends all in good order.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        drop(self.prometheus);
        drop(self.visitors);
        self.larder.terminate().await?;
        self.postgres.stop().await;
        drop(self.run_directory);
        Ok(())
    }
}
