//! larder's demo under load: PostgreSQL with the demo tables, and larders with one tier each that have it filled.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::http::{Answer, Wire};
use crate::process::count_cores;
use crate::servers::free_address;
use crate::servers::larder::{Larder, LarderConfig};
use crate::servers::postgres::Postgres;
use crate::servers::workplace::Workplace;
use crate::tally::Way;
use crate::writers::Session;

/// The built-in demo's resource.
const RESOURCE: &str = include_str!("../../../src/config/demo.toml");
/// Enough for every document and what the tier needs beside it.
const MEMORY_BYTES_PER_DOCUMENT: u64 = 8 << 10;
/// Requests at once while tiers fill: misses are asked for together.
const FILLERS: u32 = 64;
/// Of PostgreSQL, for larders, besides what else connects.
const CONNECTIONS: usize = 60;
const SAMPLE: u32 = 1_000;
const DISK_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The one tier in use.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Tier {
    Memory,
    Disk,
    /// PostgreSQL answers every request.
    None,
}

impl Tier {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::None => "none",
        }
    }

    /// How it answers what it was filled with.
    fn way(self) -> Way {
        match self {
            Self::Memory => Way::Memory,
            Self::Disk => Way::Disk,
            Self::None => Way::Miss,
        }
    }
}

/// PostgreSQL with so many depts of ten emps.
pub(crate) struct Demo {
    pub(crate) depts: u32,
    rng: fastrand::Rng,
    postgres: Postgres,
    /// The last to go.
    pub(crate) workplace: Workplace,
}

impl Demo {
    /// Starts PostgreSQL, for so many clients besides larders, and has `binary` seed it.
    pub(crate) async fn start(
        binary: &Path,
        depts: u32,
        clients: usize,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let mut workplace = Workplace::new()?;
        let postgres = Postgres::start(&mut workplace, CONNECTIONS + clients).await?;
        let status = Command::new(binary)
            .args(["seed", "--log-level", "warn", "--depts"])
            .arg(depts.to_string())
            .current_dir(workplace.directory())
            .env("DATABASE_URL", postgres.url())
            .status()
            .await
            .with_context(|| format!("{} can't be run", binary.display()))?;
        ensure!(status.success(), "larder seed: {status}");
        Session::new(postgres.url(), 0)?
            .run("vacuum analyze")
            .await?;
        Ok(Self {
            depts,
            rng: fastrand::Rng::with_seed(seed),
            postgres,
            workplace,
        })
    }

    pub(crate) fn url(&self) -> &str {
        self.postgres.url()
    }

    pub(crate) fn address(&mut self) -> anyhow::Result<SocketAddr> {
        free_address(&mut self.rng)
    }

    /// Starts a larder with one tier on these cores, a worker for each, and fills it.
    pub(crate) async fn larder(
        &mut self,
        name: &str,
        binary: &Path,
        tier: Tier,
        cores: &str,
    ) -> anyhow::Result<Larder> {
        let mut larder = Larder::new(LarderConfig {
            binary: binary.to_owned(),
            directory: self.workplace.directory().join(name),
            listen: self.address()?,
            admin: self.address()?,
            url: self.url().to_owned(),
            listen_url: self.url().to_owned(),
            memory_bytes: MEMORY_BYTES_PER_DOCUMENT * u64::from(self.depts),
            settings: RESOURCE.to_owned(),
            arguments: vec!["--tiers".to_owned(), tier.name().to_owned()],
            cores: Some(cores.to_owned()),
            environment: vec![("LARDER_WORKERS".to_owned(), count_cores(cores)?.to_string())],
        })?;
        larder.start_ready().await?;
        if tier != Tier::None {
            read_all(larder.config.listen, self.depts, |_, _| Ok(())).await?;
        }
        if tier == Tier::Disk {
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

    /// Reads some documents and checks that each is the right one, out of `tier`.
    pub(crate) async fn check(&mut self, target: SocketAddr, tier: Tier) -> anyhow::Result<()> {
        let mut wire = Wire::connect(target).await?;
        for _ in 0..SAMPLE {
            let key = self.rng.u32(1..=self.depts);
            let answer = read(&mut wire, key).await?;
            let way = Way::of(answer.status, answer.cache_status);
            if way != tier.way() {
                bail!(
                    "/depts/{key} was answered by {way:?} where {} was to answer",
                    tier.name()
                );
            }
        }
        Ok(())
    }

    /// Stops PostgreSQL in good order.
    pub(crate) async fn stop(self) {
        self.postgres.stop().await;
        drop(self.workplace);
    }
}

/// Reads every document once and returns what `each` makes of its key and answer, in no order.
pub(crate) async fn read_all<T: Send + 'static>(
    target: SocketAddr,
    depts: u32,
    each: impl Fn(u32, &Answer<'_>) -> anyhow::Result<T> + Send + Sync + 'static,
) -> anyhow::Result<Vec<T>> {
    let each = Arc::new(each);
    let mut fillers = JoinSet::new();
    for first in 1..=FILLERS.min(depts) {
        let each = Arc::clone(&each);
        fillers.spawn(async move {
            let mut wire = Wire::connect(target).await?;
            let mut made = Vec::new();
            for key in (first..=depts).step_by(FILLERS as usize) {
                made.push(each(key, &read(&mut wire, key).await?)?);
            }
            anyhow::Ok(made)
        });
    }
    let mut all = Vec::with_capacity(depts as usize);
    while let Some(made) = fillers.join_next().await {
        all.extend(made??);
    }
    Ok(all)
}

/// Reads the document of `key`.
/// # Errors
/// Any answer but that very document.
pub(crate) async fn read(wire: &mut Wire, key: u32) -> anyhow::Result<Answer<'_>> {
    let request = format!("GET /depts/{key} HTTP/1.1\r\nHost: larder\r\n\r\n");
    wire.send(request.as_bytes()).await?;
    let answer = wire.receive().await?;
    let begin = format!("{{\"deptNumber\":{key},");
    if answer.status != 200 || !answer.body.starts_with(begin.as_bytes()) {
        let body = String::from_utf8_lossy(answer.body);
        bail!("/depts/{key} was answered with {} {body}", answer.status);
    }
    Ok(answer)
}
