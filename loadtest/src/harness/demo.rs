//! larder's demo under load: PostgreSQL with the demo tables, and larders with one tier each that have it filled.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use crate::harness::free_address;
use crate::harness::http::{HttpAnswer, HttpConnection};
use crate::harness::larder::{Larder, LarderConfig};
use crate::harness::postgres::Postgres;
use crate::harness::process;
use crate::harness::run_directory::RunDirectory;
use crate::harness::session::SqlSession;
use crate::workload::counters::ReadResult;

/// The built-in demo's resource.
const RESOURCE: &str = include_str!("../../../src/config/demo.toml");
/// Enough for every document and what the tier needs beside it.
const MEMORY_BYTES_PER_DOCUMENT: u64 = 8 << 10;
/// Requests at once while tiers fill: misses are asked for together.
const FILLERS: usize = 64;
/// Of PostgreSQL, for larders, besides what else connects.
const CONNECTIONS: usize = 60;
/// Connections that clients may open, above what descriptors allow.
const CLIENTS_MAX: &str = "100000";
const SAMPLE: u32 = 1_000;
/// The first so many pay for buffers and connections; the rest is what documents cost.
const FIRST: u32 = 1_000;
/// An answer is not waited for longer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Of a body that should not have been.
const SHOWN_BYTES: usize = 80;
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

    /// How it answers what it was filled with.
    fn way(self) -> ReadResult {
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

/// An answer by which others are known.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct KnownDocument {
    key: u32,
    bytes: usize,
    hash: u64,
}

impl KnownDocument {
    fn of(key: u32, body: &[u8]) -> Self {
        Self {
            key,
            bytes: body.len(),
            hash: xxh3_64(body),
        }
    }
}

/// PostgreSQL with so many depts of ten emps.
pub(crate) struct Demo {
    pub(crate) depts: u32,
    /// All, in the order of their keys, as first answered; they do not change.
    documents: Arc<Vec<KnownDocument>>,
    /// Of the larder that was filled last; none where there are too few documents to tell.
    pub(crate) footprint: Option<Footprint>,
    rng: fastrand::Rng,
    postgres: Postgres,
    /// The last to go.
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

    /// Starts a larder with one tier on these cores, a worker for each, and fills it. All its clients come from one
    /// address, as many as a measurement wants.
    pub(crate) async fn larder(
        &mut self,
        name: &str,
        binary: &Path,
        tier: WarmTier,
        cores: &str,
    ) -> anyhow::Result<Larder> {
        let workers = process::cores(cores)?.len().to_string();
        let variables = [
            ("LARDER_WORKERS", workers.as_str()),
            ("LARDER_LIMITS__CONNECTIONS", CLIENTS_MAX),
            ("LARDER_LIMITS__CONNECTIONS_PER_ADDRESS", CLIENTS_MAX),
        ];
        let mut larder = Larder::new(LarderConfig {
            binary: binary.to_owned(),
            directory: self.run_directory.directory().join(name),
            listen: self.address()?,
            admin: self.address()?,
            url: self.url().to_owned(),
            listen_url: self.url().to_owned(),
            memory_bytes: MEMORY_BYTES_PER_DOCUMENT * u64::from(self.depts),
            settings: RESOURCE.to_owned(),
            arguments: vec!["--tiers".to_owned(), tier.name().to_owned()],
            cores: Some(cores.to_owned()),
            environment: variables
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .to_vec(),
        })?;
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

    /// Has `larder` read all documents, and compares them with what the one before answered.
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

    /// Checks answers of `target` while others ask it.
    pub(crate) async fn checker(
        &mut self,
        target: SocketAddr,
        tier: Option<WarmTier>,
    ) -> anyhow::Result<Checker> {
        Ok(Checker {
            wire: HttpConnection::connect(target).await?,
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

/// A connection that asks for random documents and knows the answers.
pub(crate) struct Checker {
    wire: HttpConnection,
    documents: Arc<Vec<KnownDocument>>,
    /// That has to answer; none: any.
    tier: Option<WarmTier>,
    rng: fastrand::Rng,
}

impl Checker {
    /// Of a larder whose documents are as it answers now.
    pub(crate) async fn of_running(target: SocketAddr, depts: u32) -> anyhow::Result<Self> {
        Ok(Self {
            documents: Arc::new(documents(target, 1..=depts).await?),
            wire: HttpConnection::connect(target).await?,
            tier: None,
            rng: fastrand::Rng::new(),
        })
    }

    /// Reads one document; whether it is out of the tier. Dropped before its end, it leaves an answer on its way.
    /// # Errors
    /// Any answer but that very document; where a tier has to answer, one that does not say where it came from.
    pub(crate) async fn check(&mut self) -> anyhow::Result<bool> {
        let known = self.documents[self.rng.usize(..self.documents.len())];
        let key = known.key;
        let answer = tokio::time::timeout(PATIENCE, read(&mut self.wire, key)).await??;
        ensure!(
            KnownDocument::of(key, answer.body) == known,
            "/depts/{key} is another document than before"
        );
        let Some(tier) = self.tier else {
            return Ok(true);
        };
        let way = ReadResult::of(answer.status, answer.cache_status);
        ensure!(
            way.is_answer(),
            "/depts/{key} was answered with Cache-Status {:?}",
            answer.cache_status
        );
        Ok(way == tier.way())
    }
}

/// Reads the documents of `keys`, which fills the tiers, and returns them in the order of keys.
async fn documents(
    target: SocketAddr,
    keys: RangeInclusive<u32>,
) -> anyhow::Result<Vec<KnownDocument>> {
    let mut documents = read_all(target, keys, |key, answer| {
        Ok(KnownDocument::of(key, answer.body))
    })
    .await?;
    documents.sort_unstable();
    Ok(documents)
}

/// Reads the documents of `keys` and returns what `each` makes of its key and answer, in no order.
pub(crate) async fn read_all<T: Send + 'static>(
    target: SocketAddr,
    keys: RangeInclusive<u32>,
    each: impl Fn(u32, &HttpAnswer<'_>) -> anyhow::Result<T> + Send + Sync + 'static,
) -> anyhow::Result<Vec<T>> {
    let each = Arc::new(each);
    let mut fillers = JoinSet::new();
    for first in keys.clone().take(FILLERS) {
        let last = *keys.end();
        let each = Arc::clone(&each);
        fillers.spawn(async move {
            let mut wire = HttpConnection::connect(target).await?;
            let mut made = Vec::new();
            for key in (first..=last).step_by(FILLERS) {
                made.push(each(key, &read(&mut wire, key).await?)?);
            }
            anyhow::Ok(made)
        });
    }
    let mut all = Vec::new();
    while let Some(made) = fillers.join_next().await {
        all.extend(made??);
    }
    Ok(all)
}

/// Reads the document of `key`.
/// # Errors
/// Any answer but that very document.
pub(crate) async fn read(wire: &mut HttpConnection, key: u32) -> anyhow::Result<HttpAnswer<'_>> {
    let request = format!("GET /depts/{key} HTTP/1.1\r\nHost: larder\r\n\r\n");
    wire.send(request.as_bytes()).await?;
    let answer = wire.receive().await?;
    let begin = format!("{{\"deptNumber\":{key},");
    if answer.status != 200 || !answer.body.starts_with(begin.as_bytes()) {
        let body = String::from_utf8_lossy(&answer.body[..answer.body.len().min(SHOWN_BYTES)]);
        bail!("/depts/{key} was answered with {} {body}", answer.status);
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// The verdict on `body` with this Cache-Status where document 1 is expected out of the disk tier.
    async fn checked(body: &str, way: &str) -> anyhow::Result<bool> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let mut checker = Checker {
            wire: HttpConnection::connect(listener.local_addr()?).await?,
            documents: Arc::new(vec![KnownDocument::of(1, br#"{"deptNumber":1,"loc":"a"}"#)]),
            tier: Some(WarmTier::Disk),
            rng: fastrand::Rng::with_seed(1),
        };
        let (mut stream, _) = listener.accept().await?;
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncache-status: {way}\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        let serve = async {
            let mut request = [0; 256];
            ensure!(stream.read(&mut request).await? > 0, "nothing asked");
            anyhow::Ok(stream.write_all(answer.as_bytes()).await?)
        };
        let (verdict, served) = tokio::join!(checker.check(), serve);
        served?;
        verdict
    }

    #[tokio::test]
    async fn another_tier_is_no_wrong_answer() {
        let right = r#"{"deptNumber":1,"loc":"a"}"#;
        assert!(checked(right, "larder; hit; detail=disk").await.unwrap());
        for other in [
            "hit; detail=memory",
            "fwd=miss; stored",
            "fwd=bypass; detail=x",
        ] {
            assert!(!checked(right, &format!("larder; {other}")).await.unwrap());
        }
        let wrong = r#"{"deptNumber":1,"loc":"b"}"#;
        assert!(checked(wrong, "larder; hit; detail=disk").await.is_err());
        assert!(checked(wrong, "larder; fwd=miss; stored").await.is_err());
        assert!(checked(right, "larder; whatever").await.is_err());
    }
}
