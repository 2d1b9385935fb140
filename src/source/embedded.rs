//! The private PostgreSQL: what `larder serve` runs on where nobody gave it a database.
//!
//! Owns the server's programs, its data directory and its process. It knows no table: the
//! demo and larder's schema come from those who get the URL.
//!
//! Invariants:
//! - Never two servers on one data directory. The caller holds the
//!   [`StateLock`](crate::state::StateLock), and a server left over by a killed larder is
//!   stopped first.
//! - The cluster is complete or absent: it is initialised aside and renamed.
//! - The server is stopped in fast mode. An immediate stop would empty unlogged tables, among
//!   them `larder.epoch`, and so cost every disk tier.
//! - One task owns the server's process, until [`Embedded::stop`] has seen it end.
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use sqlx::Connection;
use thiserror::Error;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::source::embedded::binaries::Binaries;
use crate::source::embedded::cluster::Cluster;
use crate::source::embedded::home::Home;
use crate::source::embedded::postmaster::Server;

mod binaries;
mod cluster;
mod home;
mod leftover;
mod postmaster;
mod supervisor;

/// Role and database of the private PostgreSQL.
const NAME: &str = "larder";

/// What a private PostgreSQL is started with.
#[derive(Clone, Debug)]
pub struct EmbeddedConfig {
    /// Where the cluster is to live, `<state_dir>/postgres`; created where it is missing.
    pub directory: PathBuf,
    /// Server settings besides larder's own, as in postgresql.conf.
    pub settings: Vec<(String, String)>,
}

/// Why there is no private PostgreSQL.
#[derive(Debug, Error)]
pub enum EmbeddedError {
    /// PostgreSQL refuses to run as root, and there is nobody else.
    #[error("PostgreSQL refuses to run as root, and there is no user `postgres` or `nobody`")]
    NoUnprivilegedUser,
    /// No programs on this machine, and none could be downloaded.
    #[error(
        "no PostgreSQL {wanted}found (programs `initdb` and `postgres`, on PATH or in the usual \
         places), and downloading it failed: {reason}; install it (`apt install postgresql`, \
         `dnf install postgresql-server`, `brew install postgresql`) or set DATABASE_URL"
    )]
    NoBinaries {
        /// The major version that the data asks for, with a blank behind it; else empty.
        wanted: String,
        /// What the download said.
        reason: String,
    },
    /// The data directory is another major version's.
    #[error(
        "{} was initialised by PostgreSQL {data}, and only PostgreSQL {found} is installed; \
         install version {data}, or move that directory away to start with an empty database",
        directory.display()
    )]
    OtherVersion {
        /// The data directory.
        directory: PathBuf,
        /// The major version that it was initialised by.
        data: u32,
        /// The major versions found, separated by commas.
        found: String,
    },
    /// A file or program could not be used.
    #[error("could not {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// `initdb` failed.
    #[error("initdb failed ({status}): {output}")]
    Initdb {
        /// How it ended.
        status: ExitStatus,
        /// Its last lines.
        output: String,
    },
    /// A server of an earlier run is still there.
    #[error(
        "an earlier PostgreSQL (process {pid}) still runs on {} and does not stop",
        directory.display()
    )]
    Leftover {
        /// Its process.
        pid: i32,
        /// Its data directory.
        directory: PathBuf,
    },
    /// The server ended before it answered.
    #[error("PostgreSQL ended at its start ({status}); the end of {}:\n{tail}", log.display())]
    Ended {
        /// How it ended.
        status: ExitStatus,
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// The server runs and does not answer.
    #[error("PostgreSQL does not answer ({reason}); the end of {}:\n{tail}", log.display())]
    Silent {
        /// What the last attempt to connect said.
        reason: String,
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// The database could not be created.
    #[error("could not create the private database")]
    Create(#[from] sqlx::Error),
}

impl EmbeddedError {
    /// For `map_err`: what was tried on which path.
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> EmbeddedError {
        let path = path.to_owned();
        move |source| EmbeddedError::Io {
            action,
            path,
            source,
        }
    }
}

/// A running private PostgreSQL.
///
/// It is started again on the same port when it dies by itself. Dropped without
/// [`stop`](Embedded::stop) it is stopped too, but nobody waits for the end.
#[derive(Debug)]
pub struct Embedded {
    url: String,
    data: PathBuf,
    stop: oneshot::Sender<()>,
    supervisor: JoinHandle<()>,
}

impl Embedded {
    /// Starts the server, after initialising its cluster where there is none.
    ///
    /// Waits at most 60 s for the server's first answer (it may have to recover), at most 10 s
    /// for the processes of a server that was killed, and as long as `initdb` takes.
    /// The caller must hold the state directory's lock.
    ///
    /// Cancel safe: a server that has been started is told to stop.
    /// # Errors
    /// Every [`EmbeddedError`]; a failed start quotes the end of the server's log.
    pub async fn start(config: EmbeddedConfig) -> Result<Embedded, EmbeddedError> {
        let home = Home::open(&config.directory)?;
        let binaries = Binaries::find(&home).await?;
        let durable = !config.settings.iter().any(|(name, value)| {
            name == "fsync" && matches!(value.as_str(), "off" | "false" | "no" | "0")
        });
        let cluster = Cluster::open(&home, &binaries, durable).await?;
        let mut server = Server::new(home, &binaries, cluster, config.settings);
        let postmaster = server.start().await?;
        if let Err(error) = create_database(&server).await {
            postmaster.stop().await;
            return Err(error.into());
        }
        let (stop, stopped) = oneshot::channel();
        let embedded = Embedded {
            url: server.url(NAME),
            data: server.data().to_owned(),
            stop,
            supervisor: tokio::spawn(supervisor::supervise(server, postmaster, stopped)),
        };
        Ok(embedded)
    }

    /// The complete URL, password included, for any client on this machine.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The server's data directory, which is below `/var/lib/larder` where the server's user
    /// can't reach the configured one.
    #[must_use]
    pub fn data_directory(&self) -> &Path {
        &self.data
    }

    /// Stops the server in fast mode and waits until it is gone.
    ///
    /// Takes at most 30 s, and 15 s more where it must be forced.
    pub async fn stop(self) {
        // A supervisor that ended already has stopped its server.
        drop(self.stop);
        if let Err(error) = self.supervisor.await {
            tracing::error!(%error, "the private PostgreSQL's supervisor failed");
        }
    }
}

/// Creates the database on the first start, or on the next one if that was cut short.
async fn create_database(server: &Server) -> Result<(), sqlx::Error> {
    let mut connection = server.connect().await?;
    let exists: bool =
        sqlx::query_scalar("select exists (select from pg_database where datname = $1)")
            .bind(NAME)
            .fetch_one(&mut connection)
            .await?;
    if !exists {
        sqlx::query("create database larder")
            .execute(&mut connection)
            .await?;
    }
    // Role and schema share a name: without this, tables made without a schema would land among larder's own.
    sqlx::query("alter database larder set search_path = public")
        .execute(&mut connection)
        .await?;
    connection.close().await
}
