//! Starts the servers of stores, each in a directory of its own below that of the run; they end when dropped.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use fastrand::Rng;
use tokio::process::Child;

use crate::harness::postgres::Postgres;
use crate::harness::process::find_program;
use crate::harness::run_directory::RunDirectory;
use crate::harness::session::SqlSession;
use crate::harness::tools::Invocation;
use crate::harness::{await_listening, free_address};
use crate::labs::workers;
use crate::labs::workers::store::{Place, StoreKind};
use crate::report::results::RunEnvironment;

/// Tables of a million rows stay in memory, and a fill waits for no checkpoint.
const POSTGRES: [(&str, &str); 2] = [("shared_buffers", "4GB"), ("max_wal_size", "8GB")];
/// A start of Cassandra takes half a minute; [`await_listening`] gives up after 10 s.
const LISTENING_TRIES: usize = 12;
const CONNECTIONS_MAX: usize = 300;
#[cfg(feature = "cassandra")]
const CASSANDRA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/cassandra.sh");
#[cfg(feature = "ferretdb")]
const FERRETDB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/ferretdb.sh");

/// The servers that run. They are dropped before their directory is removed.
pub(super) struct Servers {
    postgres: Option<Postgres>,
    others: Vec<Child>,
    directory: RunDirectory,
}

impl Servers {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            postgres: None,
            others: Vec::new(),
            directory: RunDirectory::new()?,
        })
    }

    /// Starts what `kind` needs and waits until it accepts connections.
    pub(super) async fn start(
        &mut self,
        kind: StoreKind,
        run: &mut RunEnvironment,
    ) -> Result<Place> {
        let addresses = match kind {
            #[cfg(feature = "mariadb")]
            StoreKind::Mariadb => {
                let install = "mariadb-server-core and mariadb-client-core";
                vec![
                    self.spawn("mariadbd", install, run, workers::mariadb::line)
                        .await?,
                ]
            }
            #[cfg(feature = "redis")]
            StoreKind::Redis => vec![self.start_redis(run).await?],
            #[cfg(feature = "redis")]
            StoreKind::Twemproxy => {
                let (one, two) = (self.start_redis(run).await?, self.start_redis(run).await?);
                let line = |at: &str, to| workers::redis::proxy_line(at, to, [&one, &two]);
                let proxy = self.spawn("nutcracker", "nutcracker", run, line).await?;
                vec![proxy, one, two]
            }
            #[cfg(feature = "cassandra")]
            StoreKind::Cassandra => {
                vec![
                    self.spawn(CASSANDRA, "", run, workers::cassandra::line)
                        .await?,
                ]
            }
            #[cfg(feature = "ferretdb")]
            StoreKind::Ferretdb => {
                vec![
                    self.spawn(FERRETDB, "", run, workers::ferretdb::line)
                        .await?,
                ]
            }
            _ => vec![self.start_postgres(run).await?],
        };
        Ok(Place { kind, addresses })
    }

    /// Stops PostgreSQL in good order; the others end with this.
    pub(super) async fn stop(self) {
        if let Some(postgres) = self.postgres {
            postgres.stop().await;
        }
    }

    async fn start_postgres(&mut self, run: &mut RunEnvironment) -> Result<String> {
        if let Some(postgres) = &self.postgres {
            return Ok(postgres.url().to_owned());
        }
        let started = Postgres::start_sized(&mut self.directory, CONNECTIONS_MAX, &POSTGRES);
        let postgres = self.postgres.insert(started.await?);
        let mut session = SqlSession::new(postgres.url(), 0)?;
        let version = session.texts("show server_version").await?.concat();
        run.versions.push(("postgres".to_owned(), version));
        Ok(postgres.url().to_owned())
    }

    #[cfg(feature = "redis")]
    async fn start_redis(&mut self, run: &mut RunEnvironment) -> Result<String> {
        self.spawn("redis-server", "redis-server", run, workers::redis::line)
            .await
    }

    /// Starts a program, which Debian has in `package`, in a directory of its own with the words of `line`; returns the
    /// address once it listens.
    async fn spawn(
        &mut self,
        name: &str,
        package: &str,
        run: &mut RunEnvironment,
        line: impl FnOnce(&str, SocketAddr) -> Result<String>,
    ) -> Result<String> {
        let program = find_program(name, &format!("on Debian: apt-get install {package}"))?;
        let number = self.others.len().to_string();
        let directory = self.directory.directory().join(number);
        std::fs::create_dir(&directory)?;
        let address = free_address(&mut Rng::new())?;
        let line = line(&directory.display().to_string(), address)?;
        let invocation = Invocation {
            program,
            arguments: line.split(' ').map(str::to_owned).collect(),
            cores: None,
            directory,
        };
        run.version(&invocation.program, "--version").await;
        let mut child = invocation.start()?;
        for _ in 0..LISTENING_TRIES {
            if await_listening(address).await.is_ok() {
                self.others.push(child);
                return Ok(address.to_string());
            }
            if child.try_wait()?.is_some() {
                break;
            }
        }
        let log = std::fs::read_to_string(invocation.log()).unwrap_or_default();
        bail!("{} does not listen: {log}", invocation.shown())
    }
}
