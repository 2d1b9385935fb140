//! `loadtest races`: many clients change one document by GET and PUT with If-Match. Is any update lost?

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, bail, ensure};
use clap::Args;
use testkit::http::{HttpConnection, Request};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::harness::demo::{Demo, WarmTier};
use crate::harness::progress;

const CLIENTS: usize = 64;
const DEPTS: u32 = 10;
const SERVER_CORES: &str = "0,1";
const KEY: u32 = 1;
/// The member that counts the updates.
const COUNTER: &str = "\"deptName\":\"";

/// How many rounds and updates.
#[derive(Args, Clone, Debug)]
pub(crate) struct RacesArgs {
    /// Rounds, in each of which all clients replace the same version.
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub(crate) rounds: u64,
    /// Acknowledged updates; each time the first client succeeds.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) updates: u64,
}

/// Whether exactly one client won each round, and each update that was acknowledged is in the document.
pub(crate) async fn run(args: &RacesArgs, binary: PathBuf, seed: u64) -> anyhow::Result<bool> {
    let mut demo = Demo::start(&binary, DEPTS, 0, seed).await?;
    let mut larder = demo
        .larder("races", &binary, WarmTier::Memory, SERVER_CORES)
        .await?;
    let target = larder.config.listen;
    let began = Instant::now();
    let odd = rounds(target, args.rounds).await?;
    println!(
        "{} rounds of {CLIENTS} clients in {:.1?}; {odd} without exactly one winner",
        args.rounds,
        began.elapsed()
    );
    let began = Instant::now();
    let (updates, refused) = updates(target, args.updates).await?;
    let counted = CountedDocument::read(&mut HttpConnection::connect(target).await?)
        .await?
        .count;
    println!(
        "{updates} updates by {CLIENTS} clients in {:.1?}, {refused} refused with 412; the document counts {counted}",
        began.elapsed()
    );
    larder.terminate().await?;
    demo.stop().await;
    Ok(odd == 0 && counted == updates && updates >= args.updates)
}

/// In each round every client replaces the same version; returns the rounds that had not exactly one winner.
async fn rounds(target: SocketAddr, count: u64) -> anyhow::Result<u64> {
    let barrier = Arc::new(Barrier::new(CLIENTS));
    let wins = Arc::new(AtomicU64::new(0));
    let odd = Arc::new(AtomicU64::new(0));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS as u64 {
        let (barrier, wins, odd) = (Arc::clone(&barrier), Arc::clone(&wins), Arc::clone(&odd));
        clients.spawn(async move {
            let mut connection = HttpConnection::connect(target).await?;
            for round in 0..count {
                let mut document = CountedDocument::read(&mut connection).await?;
                // No client writes before all have read.
                barrier.wait().await;
                // Each client writes a different document.
                document.count = (round + 1) * CLIENTS as u64 + client;
                wins.fetch_add(
                    u64::from(document.put(&mut connection).await?),
                    Ordering::SeqCst,
                );
                if barrier.wait().await.is_leader() && wins.swap(0, Ordering::SeqCst) != 1 {
                    odd.fetch_add(1, Ordering::SeqCst);
                }
                if client == 0 {
                    progress::note(round + 1, count, "rounds");
                }
                barrier.wait().await;
            }
            anyhow::Ok(())
        });
    }
    while let Some(client) = clients.join_next().await {
        client??;
    }
    Ok(odd.load(Ordering::SeqCst))
}

/// All clients increment the count, until so many updates were acknowledged; returns how many were acknowledged and
/// refused.
async fn updates(target: SocketAddr, count: u64) -> anyhow::Result<(u64, u64)> {
    let mut connection = HttpConnection::connect(target).await?;
    let mut document = CountedDocument::read(&mut connection).await?;
    document.count = 0;
    ensure!(
        document.put(&mut connection).await?,
        "another client writes"
    );
    let done = Arc::new(AtomicU64::new(0));
    let refused = Arc::new(AtomicU64::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (done, refused) = (Arc::clone(&done), Arc::clone(&refused));
        clients.spawn(async move {
            let mut connection = HttpConnection::connect(target).await?;
            while done.load(Ordering::SeqCst) < count {
                let mut document = CountedDocument::read(&mut connection).await?;
                document.count += 1;
                let counter = if document.put(&mut connection).await? {
                    &done
                } else {
                    &refused
                };
                counter.fetch_add(1, Ordering::SeqCst);
            }
            anyhow::Ok(())
        });
    }
    while let Some(client) = clients.join_next().await {
        client??;
    }
    Ok((done.load(Ordering::SeqCst), refused.load(Ordering::SeqCst)))
}

/// A version of the document, as it was read.
struct CountedDocument {
    count: u64,
    etag: String,
    /// Before and after the count.
    parts: (String, String),
}

impl CountedDocument {
    async fn read(connection: &mut HttpConnection) -> anyhow::Result<Self> {
        let answer = connection.get(format!("/depts/{KEY}")).await?;
        let text = answer.text();
        ensure!(answer.status == 200, "GET: {} {text}", answer.status);
        let (before, rest) = text.split_once(COUNTER).context("no deptName")?;
        let (name, after) = rest.split_once('"').context("no end")?;
        Ok(Self {
            // The first name is no number.
            count: name.parse().unwrap_or_default(),
            etag: answer.header("etag").to_owned(),
            parts: (format!("{before}{COUNTER}"), format!("\"{after}")),
        })
    }

    /// Replaces the version that was read by this one; returns false if another client did so first.
    async fn put(&self, connection: &mut HttpConnection) -> anyhow::Result<bool> {
        let body = format!("{}{}{}", self.parts.0, self.count, self.parts.1);
        let request = Request::new("PUT", format!("/depts/{KEY}"))
            .with("if-match", &self.etag)
            .with("prefer", "return=minimal")
            .with_body("application/json", body);
        let answer = connection.send(&request).await?;
        match answer.status {
            200 | 204 => Ok(true),
            412 => Ok(false),
            _ => bail!("PUT: {}", answer.shown()),
        }
    }
}
