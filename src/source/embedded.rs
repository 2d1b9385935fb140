//! The private PostgreSQL, which `larder serve` uses if no database is configured.
//!
//! Owns the server's programs, its data directory and its process. It knows no table: its callers create larder's
//! schema and the demo.
//!
//! Invariants:
//! - Never two servers on one data directory. The caller holds the
//!   [`StateLock`](crate::state::StateLock), and a server that a killed larder has left is
//!   stopped first.
//! - The cluster is complete or absent: it is initialised under another name, then renamed.
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
use crate::source::embedded::process::PrivateServer;

mod binaries;
mod cluster;
mod home;
mod leftover;
mod process;
mod supervisor;

/// Role and database of the private PostgreSQL.
const NAME: &str = "larder";

/// The configuration of a private PostgreSQL.
#[derive(Clone, Debug)]
pub struct EmbeddedConfig {
    /// The directory of the cluster, `<state_dir>/postgres`. Created if it is missing.
    pub directory: PathBuf,
    /// Server settings besides larder's own, as in postgresql.conf.
    pub settings: Vec<(String, String)>,
}

/// Why the private PostgreSQL could not be started.
#[derive(Debug, Error)]
pub enum EmbeddedError {
    /// PostgreSQL refuses to run as root, and the machine has no other user for it.
    #[error("PostgreSQL refuses to run as root, and there is no user `postgres` or `nobody`")]
    NoUnprivilegedUser,
    /// The machine has no PostgreSQL, and the download failed.
    #[error(
        "no PostgreSQL {wanted}found (programs `initdb` and `postgres`, on PATH or in the usual \
         places), and downloading it failed: {reason}; install it (`apt install postgresql`, \
         `dnf install postgresql-server`, `brew install postgresql`) or set DATABASE_URL"
    )]
    NoBinaries {
        /// The major version of the data, with a blank after it; empty if there is no data.
        wanted: String,
        /// The error of the download.
        reason: String,
    },
    /// The data directory belongs to another major version.
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
        /// What larder tried to do.
        action: &'static str,
        /// The file or program.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// `initdb` failed.
    #[error("initdb failed ({status}): {output}")]
    Initdb {
        /// The exit status.
        status: ExitStatus,
        /// The last lines of its output.
        output: String,
    },
    /// A server of an earlier run does not stop.
    #[error(
        "an earlier PostgreSQL (process {pid}) still runs on {} and does not stop",
        directory.display()
    )]
    Leftover {
        /// Its process number.
        pid: i32,
        /// Its data directory.
        directory: PathBuf,
    },
    /// The server ended before it accepted a connection.
    #[error("PostgreSQL ended while starting ({status}); the end of {}:\n{tail}", log.display())]
    Ended {
        /// The exit status.
        status: ExitStatus,
        /// The server's log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// The server runs, but accepts no connection.
    #[error("PostgreSQL accepts no connection ({reason}); the end of {}:\n{tail}", log.display())]
    NoResponse {
        /// The error of the last attempt to connect.
        reason: String,
        /// The server's log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// The database could not be created.
    #[error("could not create the private database")]
    Create(#[from] sqlx::Error),
}

impl EmbeddedError {
    /// For `map_err`: what larder tried to do, and the path.
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
/// It is started again on the same port if it ends by itself. Dropping it without
/// [`stop`](Embedded::stop) stops it, too, without waiting for its end.
#[derive(Debug)]
pub struct Embedded {
    url: String,
    data: PathBuf,
    stop: oneshot::Sender<()>,
    supervisor: JoinHandle<()>,
}

impl Embedded {
    /// Starts the server. Initialises its cluster first if there is none.
    ///
    /// Waits at most 60 s until the server accepts a connection (it may have to recover), at most
    /// 10 s for the processes of a server that was killed, and as long as `initdb` takes.
    /// The caller must hold the state directory's lock.
    ///
    /// Cancel safe: a server that was started is told to stop.
    /// # Errors
    /// Every [`EmbeddedError`]; that of a failed start quotes the end of the server's log.
    pub async fn start(config: EmbeddedConfig) -> Result<Embedded, EmbeddedError> {
        let home = Home::open(&config.directory)?;
        let binaries = Binaries::find(&home).await?;
        let is_durable = !config.settings.iter().any(|(name, value)| {
            name == "fsync" && matches!(value.as_str(), "off" | "false" | "no" | "0")
        });
        let cluster = Cluster::open(&home, &binaries, is_durable).await?;
        let mut server = PrivateServer::new(home, &binaries, cluster, config.settings);
        let process = server.start().await?;
        if let Err(error) = create_database(&server).await {
            process.stop().await;
            return Err(error.into());
        }
        let (stop, stopped) = oneshot::channel();
        let embedded = Embedded {
            url: server.url(NAME),
            data: server.data().to_owned(),
            stop,
            supervisor: tokio::spawn(supervisor::supervise(server, process, stopped)),
        };
        Ok(embedded)
    }

    /// The URL with the password, for any client on this machine.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The server's data directory. It is below `/var/lib/larder` if the server's user cannot
    /// reach the configured directory.
    #[must_use]
    pub fn data_directory(&self) -> &Path {
        &self.data
    }

    /// Stops the server in fast mode and waits for its end.
    ///
    /// Takes at most 30 s, and 15 s more if it must be forced.
    pub async fn stop(self) {
        // If the supervisor has ended already, it has stopped the server.
        drop(self.stop);
        if let Err(error) = self.supervisor.await {
            tracing::error!(%error, "the private PostgreSQL's supervisor failed");
        }
    }
}

/// Creates the database if it does not exist: at the first start, or at the next one if that was interrupted.
async fn create_database(server: &PrivateServer) -> Result<(), sqlx::Error> {
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
    // Role and schema have the same name: without this, tables that are created without a schema would be in larder's.
    sqlx::query("alter database larder set search_path = public")
        .execute(&mut connection)
        .await?;
    connection.close().await
}
