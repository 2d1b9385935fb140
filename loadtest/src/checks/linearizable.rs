//! `loadtest linearizable`: strict reads through two larders, and writes through them and by SQL, beside faults, as a
//! history for an independent checker (`loadtest/porcupine`, which `.ci/linearizable` runs).

use std::iter::repeat_n;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use larder::clock::Boottime;
use nix::sys::signal::Signal;
use testkit::fault_proxy::{FaultProxy, NetworkFault};
use testkit::http::{HttpConnection, Request};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::harness::larder::{Larder, LarderConfig};
use crate::harness::postgres::Postgres;
use crate::harness::run_directory::RunDirectory;
use crate::harness::session::SqlSession;
use crate::harness::{free_address, progress};

const CLIENTS: [(Role, usize); 3] = [
    (Role::Reader, 16),
    (Role::HttpWriter, 4),
    (Role::SqlWriter, 4),
];
/// Keys that are in use at the same time. Each fault gets others, so that few writes of one key have an unknown outcome.
const KEYS: u64 = 32;
const OPERATIONS_PER_FAULT: u64 = 5_000;
const CONNECTIONS_MAX: usize = 100;
const MEMORY_BYTES: u64 = 64 << 20;
/// Stale documents may be served, so that only strictness keeps them from strict reads.
const SETTINGS: &str = "[feed]\nmax_staleness = '1s'\non_loss = 'serve-stale'\n\
    [[resource]]\nname = 'registers'\ntable = 'register'\n";
/// Between two writes of a client, and before a client that was not answered tries again.
const PAUSE: Duration = Duration::from_millis(2);
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Without faults, operations take seconds.
const ROUND_MAX: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How long a link is lost: shorter and longer than larder takes to notice it.
const LOST: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(1_500)];

/// What is recorded, and where.
#[derive(Args, Clone, Debug)]
pub(crate) struct LinearizableArgs {
    /// Operations to record.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) operations: u64,
    /// The file for the history.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Read as everyone does: the checker has to refuse this history.
    #[arg(long)]
    pub(crate) ordinary: bool,
}

/// What the clients share.
struct Run {
    is_ordinary: bool,
    larders: [SocketAddr; 2],
    url: String,
    /// The last value that was written or tried.
    values: AtomicU64,
    /// The number of the fault.
    round: AtomicU64,
    /// Operations that were answered.
    done: AtomicU64,
    is_over: AtomicBool,
}

#[derive(Clone, Copy)]
enum Role {
    Reader,
    HttpWriter,
    SqlWriter,
}

/// Whether the history was recorded; whether it is linearizable is the checker's to say.
pub(crate) async fn run(
    args: &LinearizableArgs,
    binary: PathBuf,
    seed: u64,
) -> anyhow::Result<bool> {
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let rounds = args.operations.div_ceil(OPERATIONS_PER_FAULT);
    let mut run_directory = RunDirectory::new()?;
    let postgres = Postgres::start(&mut run_directory, CONNECTIONS_MAX).await?;
    let mut session = SqlSession::new(postgres.url(), 0)?;
    let tables = format!(
        "create table register (id bigint primary key, value bigint not null); \
         insert into register select n, 0 from generate_series(1, {}) n",
        rounds * KEYS
    );
    session.run(&tables).await?;
    let mut sites = Vec::new();
    for name in ["one", "other"] {
        let site = Site::start(name, &binary, &postgres, &run_directory, &mut rng).await?;
        sites.push(site);
    }
    let run = Arc::new(Run {
        is_ordinary: args.ordinary,
        larders: [0, 1].map(|site: usize| sites[site].larder.config.listen),
        url: postgres.url().to_owned(),
        values: AtomicU64::new(0),
        round: AtomicU64::new(0),
        done: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    });
    let mut clients = JoinSet::new();
    let roles = CLIENTS
        .iter()
        .flat_map(|(role, count)| repeat_n(*role, *count));
    for (number, role) in (0..).zip(roles) {
        clients.spawn(Arc::clone(&run).operate(number, role, rng.fork()));
    }
    for round in 0..rounds {
        progress::note(round, rounds, "faults");
        run.round.store(round, Ordering::SeqCst);
        run.reach(round * OPERATIONS_PER_FAULT + OPERATIONS_PER_FAULT / 2)
            .await?;
        sites[rng.usize(..2)].fail(round, &postgres).await?;
        run.reach((round + 1) * OPERATIONS_PER_FAULT).await?;
    }
    run.is_over.store(true, Ordering::SeqCst);
    let mut history = Vec::new();
    while let Some(lines) = clients.join_next().await {
        history.extend(lines??);
    }
    std::fs::write(&args.output, history.concat())?;
    let count = |is_one: fn(&str) -> bool| history.iter().filter(|line| is_one(line)).count();
    let reads = count(|line| line.contains(" read "));
    let unknown = count(|line| line.ends_with("-\n"));
    let writes = history.len() - reads - unknown;
    println!(
        "{rounds} faults, {reads} reads, {writes} writes, {unknown} writes of unknown outcome"
    );
    for mut site in sites {
        site.larder.terminate().await?;
    }
    postgres.stop().await;
    Ok(true)
}

/// A larder and its links to PostgreSQL.
struct Site {
    larder: Larder,
    feed: FaultProxy,
    loader: FaultProxy,
}

impl Site {
    async fn start(
        name: &str,
        binary: &Path,
        postgres: &Postgres,
        run_directory: &RunDirectory,
        rng: &mut fastrand::Rng,
    ) -> anyhow::Result<Self> {
        let feed = FaultProxy::start(postgres.url()).await?;
        let loader = FaultProxy::start(postgres.url()).await?;
        let mut larder = Larder::new(LarderConfig {
            binary: binary.to_owned(),
            directory: run_directory.directory().join(name),
            listen: free_address(rng)?,
            admin: free_address(rng)?,
            url: loader.url.clone(),
            listen_url: feed.url.clone(),
            memory_bytes: MEMORY_BYTES,
            settings: SETTINGS.to_owned(),
            arguments: Vec::new(),
            cores: None,
            environment: Vec::new(),
        })?;
        larder.start_ready().await?;
        Ok(Self {
            larder,
            feed,
            loader,
        })
    }

    /// Has a fault, and waits until all is well again.
    async fn fail(&mut self, number: u64, postgres: &Postgres) -> anyhow::Result<()> {
        use NetworkFault::{BlackHole, Cut, HalfOpen, None};
        let is_killed = number.is_multiple_of(4);
        let (feed, loader) = match number % 8 {
            1 => (Cut, None),
            2 => (BlackHole, None),
            3 => (None, Cut),
            5 => (BlackHole, BlackHole),
            6 => (None, HalfOpen),
            _ => (None, None),
        };
        if is_killed {
            self.larder.kill().await?;
        } else if number % 8 == 7 {
            postgres.restart_by(Signal::SIGKILL).await?;
        }
        self.feed.set(feed);
        self.loader.set(loader);
        sleep(LOST[usize::from(number % 16 >= 8)]).await;
        self.feed.set(None);
        self.loader.set(None);
        if is_killed {
            self.larder.start()?;
        }
        self.larder.ready().await
    }
}

impl Run {
    /// Waits until so many operations have ended.
    async fn reach(&self, count: u64) -> anyhow::Result<()> {
        let waiting = async {
            while self.done.load(Ordering::SeqCst) < count {
                sleep(POLL_INTERVAL).await;
            }
        };
        timeout(ROUND_MAX, waiting)
            .await
            .context("no operation ends")
    }

    /// Reads or writes until all is over; returns a line for each that was answered, and for
    /// each write that may have been made, as `loadtest/porcupine` reads them.
    async fn operate(
        self: Arc<Self>,
        client: u64,
        role: Role,
        mut rng: fastrand::Rng,
    ) -> anyhow::Result<Vec<String>> {
        let mut session = SqlSession::new(&self.url, 0)?;
        let mut connection = None;
        let mut lines = Vec::new();
        while !self.is_over.load(Ordering::SeqCst) {
            let key = self.round.load(Ordering::SeqCst) * KEYS + rng.u64(1..=KEYS);
            let is_write = !matches!(role, Role::Reader);
            let written = if is_write {
                self.values.fetch_add(1, Ordering::SeqCst) + 1
            } else {
                0
            };
            let called = Boottime::now().0;
            let value = match role {
                Role::SqlWriter => {
                    let sql = format!("update register set value = {written} where id = {key}");
                    session.run(&sql).await.ok().map(|()| written)
                }
                Role::Reader | Role::HttpWriter => {
                    let target = self.larders[rng.usize(..2)];
                    let request = self.request(key, is_write.then_some(written));
                    let read = exchange(&mut connection, target, &request).await.ok();
                    read.map(|read| read.filter(|_| !is_write).unwrap_or(written))
                }
            };
            let line = match value {
                Some(value) => {
                    self.done.fetch_add(1, Ordering::SeqCst);
                    format!("{value} {called} {}\n", Boottime::now().0)
                }
                None => format!("{written} {called} -\n"),
            };
            if is_write || value.is_some() {
                let kind = if is_write { "write" } else { "read" };
                lines.push(format!("{client} {kind} {key} {line}"));
            }
            if value.is_none() {
                connection = None;
                sleep(RETRY_PAUSE).await;
            }
            if is_write {
                sleep(PAUSE).await;
            }
        }
        Ok(lines)
    }

    /// A request that reads the register, or writes a value.
    fn request(&self, key: u64, value: Option<u64>) -> Request {
        let path = format!("/registers/{key}");
        match value {
            None if self.is_ordinary => Request::get(path),
            None => Request::get(path).with("cache-control", "no-cache"),
            Some(value) => Request::new("PUT", path)
                .with("prefer", "return=minimal")
                .with_body(
                    "application/json",
                    format!(r#"{{"id":{key},"value":{value}}}"#),
                ),
        }
    }
}

/// Sends a request over `connection`, which goes to one of the larders, or over a new one to `target`. Returns the value that
/// was read; `None` after a write.
async fn exchange(
    connection: &mut Option<HttpConnection>,
    target: SocketAddr,
    request: &Request,
) -> anyhow::Result<Option<u64>> {
    // A connection whose answer is not awaited can't be used again.
    let mut open = match connection.take() {
        Some(open) => open,
        None => HttpConnection::connect(target).await?,
    };
    let answer = open.send(request).await?;
    let value = match answer.status {
        200 => Some(answer.json()["value"].as_u64().context("no value")?),
        status => {
            ensure!(status == 204, "{status}");
            None
        }
    };
    *connection = Some(open);
    Ok(value)
}
