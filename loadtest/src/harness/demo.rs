//! larder's demo under load: PostgreSQL with the demo tables, and larders with one tier each that have it filled.

pub(crate) mod documents;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use testkit::http::HttpConnection;
use tokio::process::Command;
use tokio::time::Instant;

use crate::harness::demo::documents::{Checker, KnownDocument, documents};
use crate::harness::free_address;
use crate::harness::larder::{Larder, LarderConfig};
use crate::harness::postgres::Postgres;
use crate::harness::process;
use crate::harness::run_directory::RunDirectory;
use crate::harness::session::SqlSession;
use crate::workload::counters::ReadResult;

/// The built-in demo's resource.
const RESOURCE: &str = include_str!("../../../src/config/demo.toml");
/// Enough for every document with the overhead of the tier.
const MEMORY_BYTES_PER_DOCUMENT: u64 = 8 << 10;
/// Connections to PostgreSQL for larders, besides those of clients.
const CONNECTIONS: usize = 60;
/// Connections that clients may open, above what descriptors allow.
const CLIENTS_MAX: &str = "100000";
const SAMPLE: u32 = 1_000;
/// The first documents also pay for buffers and connections; the memory for the others is what documents cost.
const FIRST: u32 = 1_000;
const DISK_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The one tier in use.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WarmTier {
    Memory,
    Disk,
    /// PostgreSQL answers every request.
    None,
}

impl WarmTier {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::None => "none",
        }
    }

    /// `Cache-Status` of the documents that it was filled with.
    pub(crate) fn result(self) -> ReadResult {
        match self {
            Self::Memory => ReadResult::Memory,
            Self::Disk => ReadResult::Disk,
            Self::None => ReadResult::Miss,
        }
    }
}

/// What a document occupies of larder's process, and how long it is: means in bytes.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Footprint {
    pub(crate) resident: f64,
    pub(crate) document: f64,
}

/// PostgreSQL with so many depts of ten emps.
pub(crate) struct Demo {
    pub(crate) depts: u32,
    /// All documents in the order of their keys, as first answered; they do not change.
    documents: Arc<Vec<KnownDocument>>,
    /// Memory per document of the larder that was filled last; `None` if there are too few documents to tell.
    pub(crate) footprint: Option<Footprint>,
    rng: fastrand::Rng,
    postgres: Postgres,
    /// Dropped last.
    pub(crate) run_directory: RunDirectory,
}

impl Demo {
    /// Starts PostgreSQL, for so many clients besides larders, and has `binary` seed it.
    pub(crate) async fn start(
        binary: &Path,
        depts: u32,
        clients: usize,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let mut run_directory = RunDirectory::new()?;
        let postgres = Postgres::start(&mut run_directory, CONNECTIONS + clients).await?;
        Self::seeded(binary, depts, seed, postgres, run_directory).await
    }

    /// As [`Demo::start`], with commits that wait for the disk.
    pub(crate) async fn start_durable(
        binary: &Path,
        depts: u32,
        clients: usize,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let mut run_directory = RunDirectory::new()?;
        let postgres = Postgres::start_durable(&mut run_directory, CONNECTIONS + clients).await?;
        Self::seeded(binary, depts, seed, postgres, run_directory).await
    }

    async fn seeded(
        binary: &Path,
        depts: u32,
        seed: u64,
        postgres: Postgres,
        run_directory: RunDirectory,
    ) -> anyhow::Result<Self> {
        let status = Command::new(binary)
            .args(["seed", "--log-level", "warn", "--depts"])
            .arg(depts.to_string())
            .current_dir(run_directory.directory())
            .env("DATABASE_URL", postgres.url())
            .status()
            .await
            .with_context(|| format!("{} can't be run", binary.display()))?;
        ensure!(status.success(), "larder seed: {status}");
        SqlSession::new(postgres.url(), 0)?
            .run("vacuum analyze")
            .await?;
        Ok(Self {
            depts,
            documents: Arc::default(),
            footprint: None,
            rng: fastrand::Rng::with_seed(seed),
            postgres,
            run_directory,
        })
    }

    pub(crate) fn url(&self) -> &str {
        self.postgres.url()
    }

    pub(crate) fn address(&mut self) -> anyhow::Result<SocketAddr> {
        free_address(&mut self.rng)
    }

    /// A larder of this demo, on these cores with a worker for each, or on all. All its clients come from one address,
    /// as many as a measurement wants.
    pub(crate) fn config(
        &mut self,
        name: &str,
        binary: &Path,
        cores: Option<&str>,
    ) -> anyhow::Result<LarderConfig> {
        let mut environment = vec![
            (
                "LARDER_LIMITS__CONNECTIONS".to_owned(),
                CLIENTS_MAX.to_owned(),
            ),
            (
                "LARDER_LIMITS__CONNECTIONS_PER_ADDRESS".to_owned(),
                CLIENTS_MAX.to_owned(),
            ),
        ];
        if let Some(cores) = cores {
            let workers = process::cores(cores)?.len().to_string();
            environment.insert(0, ("LARDER_WORKERS".to_owned(), workers));
        }
        Ok(LarderConfig {
            binary: binary.to_owned(),
            directory: self.run_directory.directory().join(name),
            listen: self.address()?,
            admin: self.address()?,
            url: self.url().to_owned(),
            listen_url: self.url().to_owned(),
            memory_bytes: MEMORY_BYTES_PER_DOCUMENT * u64::from(self.depts),
            settings: RESOURCE.to_owned(),
            arguments: Vec::new(),
            cores: cores.map(str::to_owned),
            environment,
        })
    }

    /// Starts a larder with one tier on these cores and fills it.
    pub(crate) async fn larder(
        &mut self,
        name: &str,
        binary: &Path,
        tier: WarmTier,
        cores: &str,
    ) -> anyhow::Result<Larder> {
        let config = self.config(name, binary, Some(cores))?;
        self.start_filled(name, config, tier).await
    }

    /// Starts a larder of this configuration with one tier and fills it.
    pub(crate) async fn start_filled(
        &mut self,
        name: &str,
        mut config: LarderConfig,
        tier: WarmTier,
    ) -> anyhow::Result<Larder> {
        config.arguments = vec!["--tiers".to_owned(), tier.name().to_owned()];
        let mut larder = Larder::new(config)?;
        larder.start_ready().await?;
        self.fill(name, &larder).await?;
        if tier == WarmTier::Disk {
            let deadline = Instant::now() + DISK_TIMEOUT;
            while larder.disk_entries().await? < u64::from(self.depts) {
                ensure!(
                    Instant::now() < deadline,
                    "the disk tier does not take in all documents"
                );
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        self.check(larder.config.listen, tier).await?;
        Ok(larder)
    }

    /// Has `larder` read all documents, and compares them with the answers of the larder that was filled before.
    async fn fill(&mut self, name: &str, larder: &Larder) -> anyhow::Result<()> {
        let listen = larder.config.listen;
        let first = self.depts.min(FIRST);
        let mut all = documents(listen, 1..=first).await?;
        let before = larder.resident_bytes()?;
        let rest = documents(listen, first + 1..=self.depts).await?;
        let grown = larder.resident_bytes()?.saturating_sub(before);
        let bytes: usize = rest.iter().map(|document| document.bytes).sum();
        // Counts are far below 2^52, so the casts are exact.
        self.footprint = (!rest.is_empty()).then(|| Footprint {
            resident: grown as f64 / rest.len() as f64,
            document: bytes as f64 / rest.len() as f64,
        });
        all.extend(rest);
        ensure!(
            self.documents.is_empty() || *self.documents == all,
            "{name} answers with other documents than the one before"
        );
        self.documents = Arc::new(all);
        Ok(())
    }

    /// Checks some answers of `target`, which has one tier.
    pub(crate) async fn check(&mut self, target: SocketAddr, tier: WarmTier) -> anyhow::Result<()> {
        let mut checker = self.checker(target, Some(tier)).await?;
        for _ in 0..SAMPLE {
            ensure!(
                checker.check().await?,
                "{} was to answer, and another tier did",
                tier.name()
            );
        }
        Ok(())
    }

    /// Checks answers of `target` while a tool loads it.
    pub(crate) async fn checker(
        &mut self,
        target: SocketAddr,
        tier: Option<WarmTier>,
    ) -> anyhow::Result<Checker> {
        Ok(Checker {
            connection: HttpConnection::connect(target).await?,
            documents: Arc::clone(&self.documents),
            tier,
            rng: self.rng.fork(),
        })
    }

    /// Stops PostgreSQL in good order.
    pub(crate) async fn stop(self) {
        self.postgres.stop().await;
        drop(self.run_directory);
    }
}
