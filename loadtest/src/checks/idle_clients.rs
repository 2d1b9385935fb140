//! `loadtest idle-clients`: thousands of connections that idle and thousands that never end their request, beside hits.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use testkit::http::HttpConnection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::harness::demo::documents::read;
use crate::harness::demo::{Demo, WarmTier};
use crate::harness::larder::Larder;
use crate::harness::tools::wrk::{self, Wrk, WrkRequest, WrkRun};
use crate::report::statistics::Spread;

const DEPTS: u32 = 1_000;
const SERVER_CORES: &str = "0";
const TOOL_CORES: &str = "1";
const HIT_CONNECTIONS: usize = 128;
/// Connections that are opened at once.
const OPENERS: usize = 64;
/// The time between two bytes of a slow client.
const DRIP_INTERVAL: Duration = Duration::from_secs(1);
/// What a slow client sends; then it repeats the last byte.
const DRIPPED: &[u8] = b"GET /depts/1 HTTP/1.1\r\nHost: localhost\r\nX-Slow: a";
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The goals.
const SLOW_LIFE_MAX: Duration = Duration::from_secs(10);
const CONNECTION_BYTES_MAX: u64 = 32 << 10;
const P99_RATIO_MAX: f64 = 2.0;

/// How many connections, and how long hits are measured beside them.
#[derive(Args, Clone, Debug)]
pub(crate) struct IdleClientsArgs {
    /// Connections that have asked once and idle.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) idle: usize,
    /// Connections that send their request a byte a second, and come again when they are closed.
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    pub(crate) slow: usize,
    /// Seconds of each measurement; slow connections have to be closed within 10 s.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u64).range(12..=50))]
    pub(crate) seconds: u64,
    /// Measurements without and with these connections.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) rounds: usize,
}

/// Whether hits stayed fast, the slow ones were closed in time, the idle ones were not, and neither cost much memory.
pub(crate) async fn run(
    args: &IdleClientsArgs,
    binary: PathBuf,
    seed: u64,
) -> anyhow::Result<bool> {
    let mut demo = Demo::start(&binary, DEPTS, 0, seed).await?;
    let mut larder = demo
        .larder("idle-clients", &binary, WarmTier::Memory, SERVER_CORES)
        .await?;
    let wrk = Wrk::new(demo.run_directory.directory(), TOOL_CORES, DEPTS)?;
    let (mut ratios, mut bytes_max, mut held) = (Vec::new(), 0, true);
    for round in 0..args.rounds {
        let quiet = p99_ms(&wrk, &larder, args.seconds, seed).await?;
        let before = larder.resident_bytes()?;
        let clients = IdleClients::open(larder.config.listen, args).await?;
        // By the end of this the slow connections have been closed, and opened again.
        let loaded = p99_ms(&wrk, &larder, args.seconds, seed).await?;
        let grown = larder.resident_bytes()?.saturating_sub(before);
        let seen = clients.close().await?;
        let bytes = grown / (args.idle + args.slow).max(1) as u64;
        println!(
            "round {}: p99 of hits {quiet:.2} ms quiet, {loaded:.2} ms beside idle and slow clients; {bytes} bytes a connection; \
             {} slow ones closed, the oldest after {:.1?}; {} of {} idle ones answered afterwards",
            round + 1,
            seen.closed,
            seen.longest,
            seen.idle_answered,
            args.idle,
        );
        ratios.push(loaded / quiet);
        bytes_max = bytes_max.max(bytes);
        held &= seen.idle_answered == args.idle
            && seen.longest <= SLOW_LIFE_MAX
            && (args.slow == 0 || seen.closed > 0);
    }
    larder.terminate().await?;
    demo.stop().await;
    let ratio = Spread::of(ratios).context("no round")?.median;
    println!(
        "p99 beside idle and slow clients to quiet: {ratio:.2} (goal {P99_RATIO_MAX}); at most {} bytes a connection (goal {CONNECTION_BYTES_MAX})",
        bytes_max
    );
    Ok(held && ratio <= P99_RATIO_MAX && bytes_max <= CONNECTION_BYTES_MAX)
}

async fn p99_ms(wrk: &Wrk, larder: &Larder, seconds: u64, seed: u64) -> anyhow::Result<f64> {
    let output = wrk
        .invocation(&WrkRun {
            target: larder.config.listen,
            connections: HIT_CONNECTIONS,
            seconds,
            pipeline: 1,
            seed,
            request: WrkRequest::DOCUMENTS,
        })
        .run()
        .await?;
    let measured = wrk::parse(&output)?;
    ensure!(measured.errors == 0, "{} hits failed", measured.errors);
    Ok(measured.times.context("wrk tells no times")?.p99_ms)
}

/// Idle connections, and connections that never end their request.
struct IdleClients {
    /// Without buffers of hyper's, so that thousands fit into memory.
    idle: Vec<TcpStream>,
    slow: JoinSet<()>,
    times: Arc<ConnectionTimes>,
    stop: watch::Sender<bool>,
}

/// How long slow connections lived.
#[derive(Default)]
struct ConnectionTimes {
    closed: AtomicU64,
    longest_millis: AtomicU64,
}

struct ClosingCounts {
    closed: u64,
    longest: Duration,
    idle_answered: usize,
}

impl IdleClients {
    async fn open(target: SocketAddr, args: &IdleClientsArgs) -> anyhow::Result<Self> {
        let idle = open_idle(target, args.idle).await?;
        let (stop, stopped) = watch::channel(false);
        let times = Arc::new(ConnectionTimes::default());
        let mut slow = JoinSet::new();
        for _ in 0..args.slow {
            let times = Arc::clone(&times);
            let mut stopped = stopped.clone();
            slow.spawn(async move {
                while !*stopped.borrow() {
                    drip_until_closed(target, &times, &mut stopped).await;
                }
            });
        }
        Ok(Self {
            idle,
            slow,
            times,
            stop,
        })
    }

    async fn close(mut self) -> anyhow::Result<ClosingCounts> {
        self.stop.send_replace(true);
        while let Some(ended) = self.slow.join_next().await {
            ended?;
        }
        let mut idle_answered = 0;
        for stream in self.idle {
            let mut connection = HttpConnection::over(stream).await?;
            idle_answered += usize::from(read(&mut connection, 1).await.is_ok());
        }
        Ok(ClosingCounts {
            closed: self.times.closed.load(Ordering::Relaxed),
            longest: Duration::from_millis(self.times.longest_millis.load(Ordering::Relaxed)),
            idle_answered,
        })
    }
}

/// Each has asked once, as a client that keeps its connection for later.
async fn open_idle(target: SocketAddr, count: usize) -> anyhow::Result<Vec<TcpStream>> {
    let mut openers = JoinSet::new();
    for opener in 0..OPENERS {
        let share = (opener..count).step_by(OPENERS).count();
        openers.spawn(async move {
            let mut connections = Vec::with_capacity(share);
            for _ in 0..share {
                let mut connection = HttpConnection::connect(target).await?;
                read(&mut connection, 1).await?;
                connections.push(connection.into_stream().context("closed by larder")?);
            }
            anyhow::Ok(connections)
        });
    }
    let mut idle = Vec::with_capacity(count);
    while let Some(connections) = openers.join_next().await {
        idle.extend(connections??);
    }
    Ok(idle)
}

/// Sends a byte now and then until larder closes, or all is to end; an HTTP client would send the whole head at once.
async fn drip_until_closed(
    target: SocketAddr,
    times: &ConnectionTimes,
    stopped: &mut watch::Receiver<bool>,
) {
    let Ok(mut stream) = TcpStream::connect(target).await else {
        sleep(RETRY_PAUSE).await;
        return;
    };
    let began = Instant::now();
    let last = DRIPPED.last();
    let mut bytes = DRIPPED.iter().chain(last.into_iter().cycle());
    let mut answer = [0; 1024];
    let closed = loop {
        let byte = bytes.next().copied().unwrap_or_default();
        if stream.write_all(&[byte]).await.is_err() {
            break true;
        }
        tokio::select! {
            read = timeout(DRIP_INTERVAL, stream.read(&mut answer)) => {
                // A 408 comes before the end.
                if let Ok(Ok(0) | Err(_)) = read {
                    break true;
                }
            }
            _ = stopped.changed() => break false,
        }
    };
    let millis = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    times.longest_millis.fetch_max(millis, Ordering::Relaxed);
    times.closed.fetch_add(u64::from(closed), Ordering::Relaxed);
}
