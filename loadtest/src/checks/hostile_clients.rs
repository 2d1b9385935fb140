//! `loadtest hostile-clients`: clients that open, reset, half-close, send garbage, never read. Does larder answer other
//! clients, does it panic, and is its memory back afterwards?

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::harness::demo::documents::Checker;
use crate::harness::demo::{Demo, WarmTier};

const DEPTS: u32 = 1_000;
const SERVER_CORES: &str = "0";
const CLIENTS: usize = 256;
/// The longest time that a hostile client keeps its connection.
const MISBEHAVIOUR_MAX: Duration = Duration::from_secs(2);
/// For the answer to garbage.
const READ_MAX: Duration = Duration::from_millis(50);
const CHECK_PAUSE: Duration = Duration::from_millis(5);
/// Until larder has freed everything that it kept for closed connections.
const REST: Duration = Duration::from_secs(12);
/// The goal; allocators keep some of what was in use at once.
const GROWTH_MAX: f64 = 1.1;
/// So much of an endless head is sent.
const HEAD_BYTES: usize = 256 << 10;
/// Requests whose answers are never read.
const UNREAD_REQUESTS: usize = 20_000;

/// Each of these answers has some 1.7 MB, and as many are asked for on one connection.
const UNREAD_BATCHES: usize = 64;
/// A body that is announced with 1 MiB, and never ends.
const UNENDED_BYTES: usize = 1_000_000;
/// The goal for resident memory beside the attack: 512 MiB for answers, 64 MiB for the bodies of one client, 64 MiB for the
/// memory tier, and 256 MiB for connections and the rest.
const PEAK_MAX: u64 = (512 + 64 + 64 + 256) << 20;

/// How long hostile clients come, twice.
#[derive(Args, Clone, Debug)]
pub(crate) struct HostileClientsArgs {
    /// Seconds of each of the two times.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: u64,
}

/// Whether other clients got their answers, nothing panicked, and memory is back where it was after the first such
/// load.
pub(crate) async fn run(
    args: &HostileClientsArgs,
    binary: PathBuf,
    seed: u64,
) -> anyhow::Result<bool> {
    println!("seed {seed}");
    let mut demo = Demo::start(&binary, DEPTS, 0, seed).await?;
    let mut larder = demo
        .larder("hostile-clients", &binary, WarmTier::Memory, SERVER_CORES)
        .await?;
    let target = larder.config.listen;
    let duration = Duration::from_secs(args.seconds);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut checker = demo.checker(target, Some(WarmTier::Memory)).await?;
    let mut resident = Vec::new();
    let mut checked = 0;
    for _ in 0..2 {
        let (hostile, answers) = load(target, duration, &mut rng, &mut checker).await?;
        sleep(REST).await;
        resident.push(larder.resident_bytes()?);
        checked += answers;
        println!(
            "{hostile} hostile connections; {answers} answers for other clients; {} MiB afterwards",
            larder.resident_bytes()? >> 20
        );
    }
    let peak = larder.peak_resident_bytes()?;
    println!("{} MiB at most (goal {})", peak >> 20, PEAK_MAX >> 20);
    larder.terminate().await?;
    let log = std::fs::read_to_string(larder.log())?;
    demo.stop().await;
    let panics = log
        .lines()
        .filter(|line| line.contains("panicked") || line.contains("task failed"))
        .inspect(|line| println!("{line}"))
        .count();
    // Both are far below 2^52, so the casts are exact.
    let growth = resident[1] as f64 / resident[0] as f64;
    println!("{panics} panics; memory {growth:.2} of what it was (goal {GROWTH_MAX})");
    Ok(panics == 0 && checked > 0 && growth <= GROWTH_MAX && peak <= PEAK_MAX)
}

/// Runs hostile clients beside others; returns how many connections the hostile ones made, and how many answers the
/// others got.
async fn load(
    target: SocketAddr,
    duration: Duration,
    rng: &mut fastrand::Rng,
    checker: &mut Checker,
) -> anyhow::Result<(u64, u64)> {
    let until = Instant::now() + duration;
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let mut rng = rng.fork();
        clients.spawn(async move {
            let mut connections = 0_u64;
            while Instant::now() < until {
                let misbehaviour = Misbehaviour::ALL[rng.usize(..Misbehaviour::ALL.len())];
                // Its result does not matter.
                timeout(MISBEHAVIOUR_MAX, misbehaviour.show(target, &mut rng))
                    .await
                    .ok();
                connections += 1;
            }
            connections
        });
    }
    let mut answers = 0;
    while Instant::now() < until {
        ensure!(checker.check().await?, "an answer out of another tier");
        answers += 1;
        sleep(CHECK_PAUSE).await;
    }
    let mut connections = 0;
    while let Some(client) = clients.join_next().await {
        connections += client?;
    }
    Ok((connections, answers))
}

/// What a hostile client does with a connection.
#[derive(Clone, Copy, Debug)]
enum Misbehaviour {
    OpenAndClose,
    OpenAndReset,
    HalfClose,
    HalfRequest,
    PipelinedGarbage,
    GarbageAfterRequest,
    EndlessHead,
    NeverRead,
    UnreadBatches,
    UnendedBody,
    ResetInAnswer,
    BrokenChunks,
    BrokenFrames,
}

impl Misbehaviour {
    const ALL: [Self; 13] = [
        Self::OpenAndClose,
        Self::OpenAndReset,
        Self::HalfClose,
        Self::HalfRequest,
        Self::PipelinedGarbage,
        Self::GarbageAfterRequest,
        Self::EndlessHead,
        Self::NeverRead,
        Self::UnreadBatches,
        Self::UnendedBody,
        Self::ResetInAnswer,
        Self::BrokenChunks,
        Self::BrokenFrames,
    ];

    async fn show(self, target: SocketAddr, rng: &mut fastrand::Rng) -> anyhow::Result<()> {
        let mut stream = TcpStream::connect(target).await?;
        let request = b"GET /depts/1 HTTP/1.1\r\nHost: localhost\r\n\r\n";
        match self {
            Self::OpenAndClose => {}
            Self::OpenAndReset => stream.set_zero_linger()?,
            Self::HalfClose => {
                stream.shutdown().await?;
                drain(&mut stream).await;
            }
            Self::HalfRequest => {
                stream
                    .write_all(&request[..rng.usize(1..request.len())])
                    .await?;
                stream.shutdown().await?;
                drain(&mut stream).await;
            }
            Self::PipelinedGarbage => {
                for _ in 0..rng.usize(1..20) {
                    stream.write_all(&garbage(rng)).await?;
                }
                drain(&mut stream).await;
            }
            Self::GarbageAfterRequest => {
                stream.write_all(&request.repeat(rng.usize(1..10))).await?;
                stream.write_all(&garbage(rng)).await?;
                drain(&mut stream).await;
            }
            Self::EndlessHead => {
                stream.write_all(b"GET / HTTP/1.1\r\nX: ").await?;
                stream.write_all(&vec![b'a'; HEAD_BYTES]).await?;
                drain(&mut stream).await;
            }
            Self::NeverRead => {
                stream.write_all(&request.repeat(UNREAD_REQUESTS)).await?;
            }
            Self::UnreadBatches => {
                stream.write_all(&batches()).await?;
                sleep(MISBEHAVIOUR_MAX).await;
            }
            Self::UnendedBody => {
                let head = "POST /depts:batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\n";
                stream.write_all(head.as_bytes()).await?;
                stream.write_all(&vec![b' '; UNENDED_BYTES]).await?;
                sleep(MISBEHAVIOUR_MAX).await;
            }
            Self::ResetInAnswer => {
                stream.set_zero_linger()?;
                stream.write_all(&request.repeat(rng.usize(1..100))).await?;
            }
            Self::BrokenChunks => {
                stream
                    .write_all(b"POST /depts HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
                    .await?;
                stream.write_all(&garbage(rng)).await?;
                drain(&mut stream).await;
            }
            Self::BrokenFrames => {
                stream
                    .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                    .await?;
                stream.write_all(&garbage(rng)).await?;
                drain(&mut stream).await;
            }
        }
        Ok(())
    }
}

/// Requests for one document, named a thousand times in each.
fn batches() -> Vec<u8> {
    let keys = ["1"; 1_000].join(",");
    let batch = format!("GET /depts?keys={keys} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    batch.repeat(UNREAD_BATCHES).into_bytes()
}

fn garbage(rng: &mut fastrand::Rng) -> Vec<u8> {
    let length = rng.usize(1..2_000);
    std::iter::repeat_with(|| rng.u8(..)).take(length).collect()
}

/// Reads for a short time.
async fn drain(stream: &mut TcpStream) {
    let mut answer = [0; 4096];
    while let Ok(Ok(1..)) = timeout(READ_MAX, stream.read(&mut answer)).await {}
}
