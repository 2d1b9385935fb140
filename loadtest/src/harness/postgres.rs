//! A private PostgreSQL, started by larder's own code, and how it is stopped, killed and replaced.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use larder::source::embedded::{Embedded, EmbeddedConfig};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::Instant;

use crate::harness::run_directory::RunDirectory;
use crate::harness::session::SqlSession;

/// No fault stops the machine, so commits need not wait for the disk.
const SETTINGS: [(&str, &str); 5] = [
    ("fsync", "off"),
    // Tables of one database become targets of a subscription to another; its workers start at once.
    ("wal_level", "logical"),
    ("wal_retrieve_retry_interval", "100ms"),
    ("shared_buffers", "128MB"),
    ("deadlock_timeout", "200ms"),
];
/// Includes recovery after a crash.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Between two checks whether it has ended: its supervisor starts it again after 100 ms.
const END_INTERVAL: Duration = Duration::from_millis(2);

/// A running server that is started again when it ends.
pub(crate) struct Postgres {
    embedded: Embedded,
    url: String,
}

impl Postgres {
    /// For checks, and for benchmarks that only read.
    pub(crate) async fn start(
        run_directory: &mut RunDirectory,
        connections_max: usize,
    ) -> anyhow::Result<Self> {
        Self::start_with(run_directory, connections_max, &SETTINGS).await
    }

    /// For benchmarks that write: a commit waits for the disk.
    pub(crate) async fn start_durable(
        run_directory: &mut RunDirectory,
        connections_max: usize,
    ) -> anyhow::Result<Self> {
        Self::start_with(run_directory, connections_max, &[]).await
    }

    /// For benchmarks whose tables are larger: durable, with these settings.
    pub(crate) async fn start_sized(
        run_directory: &mut RunDirectory,
        connections_max: usize,
        settings: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        Self::start_with(run_directory, connections_max, settings).await
    }

    async fn start_with(
        run_directory: &mut RunDirectory,
        connections_max: usize,
        settings: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let mut settings: Vec<(String, String)> = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        settings.push(("max_connections".to_owned(), connections_max.to_string()));
        let embedded = Embedded::start(EmbeddedConfig {
            directory: run_directory.directory().join("postgres"),
            settings,
        })
        .await?;
        // It is elsewhere if the server's user can't reach the temporary directory.
        if let Some(home) = embedded.data_directory().ancestors().nth(2)
            && !home.starts_with(run_directory.directory())
        {
            run_directory.add(home)?;
        }
        let url = format!("{}?sslmode=disable", embedded.url());
        Ok(Self { embedded, url })
    }

    /// The complete URL of a superuser, without TLS.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    fn lock_file(&self) -> PathBuf {
        self.embedded.data_directory().join("postmaster.pid")
    }

    /// A place beside its data directory, on the same file system.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.embedded.data_directory().with_file_name(name)
    }

    /// Stops it in fast mode, does `work` on its data directory and waits until it answers again.
    pub(crate) async fn while_stopped(
        &self,
        work: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let pid = pid(&self.lock_file()).context("no PostgreSQL to stop")?;
        kill(Pid::from_raw(pid), Signal::SIGINT)?;
        let deadline = Instant::now() + START_TIMEOUT;
        while self.lock_file().exists() {
            ensure!(Instant::now() < deadline, "PostgreSQL does not stop");
            tokio::time::sleep(END_INTERVAL).await;
        }
        // Under another name it is not started again meanwhile.
        let (data, held) = (self.embedded.data_directory(), self.beside("held"));
        std::fs::rename(data, &held)?;
        let worked = work(&held);
        std::fs::rename(&held, data)?;
        worked?;
        self.answers_after(pid).await
    }

    /// Signals the server itself and waits until another one answers in its place.
    pub(crate) async fn restart_by(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = pid(&self.lock_file()).context("no PostgreSQL to signal")?;
        kill(Pid::from_raw(pid), signal)?;
        self.answers_after(pid).await
    }

    /// Waits until another process than `pid` answers.
    async fn answers_after(&self, pid: i32) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            let other = pid_of_another(&self.lock_file(), pid);
            if other && SqlSession::new(&self.url, 0)?.run("select 1").await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        bail!("PostgreSQL is not back after {START_TIMEOUT:?}")
    }

    /// Stops it in fast mode.
    pub(crate) async fn stop(self) {
        self.embedded.stop().await;
    }
}

fn pid(file: &Path) -> Option<i32> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().next()?.trim().parse().ok()
}

fn pid_of_another(file: &Path, old: i32) -> bool {
    pid(file).is_some_and(|pid| pid != old)
}
