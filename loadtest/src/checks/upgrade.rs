//! `loadtest upgrade`: two larders of an older version are replaced by this one, one after the other, and put back, on one
//! database with reads and writes going on. Is any answer older than `max_staleness`, and does any write fail?

mod ledger;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::checks::upgrade::ledger::{ItemReader, ItemWriter, Ledger, NodeCounts};
use crate::harness::free_address;
use crate::harness::http;
use crate::harness::larder::{Larder, LarderConfig};
use crate::harness::postgres::Postgres;
use crate::harness::run_directory::RunDirectory;
use crate::harness::session::SqlSession;

const ITEMS: usize = 200;
const WRITERS: usize = 4;
/// Of each larder.
const READERS: usize = 4;
const CONNECTIONS_MAX: usize = 80;
const MEMORY_BYTES: u64 = 1 << 20;
const MAX_STALENESS: Duration = Duration::from_secs(1);
const NODES: [&str; 2] = ["first", "second"];
/// A larder that can't follow the database says so in this time. It may wait half a minute for the end of a restore.
const SETTLE_MAX: Duration = Duration::from_secs(45);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The older larder, and for how long each state is held.
#[derive(Args, Clone, Debug)]
pub(crate) struct UpgradeArgs {
    /// The binary of an older version.
    #[arg(long, value_name = "PATH")]
    pub(crate) against: PathBuf,
    /// How long the larders run between two changes.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) seconds: u64,
}

/// Whether no answer was stale, no write failed, and all larders of one version were ready.
pub(crate) async fn run(args: &UpgradeArgs, binary: PathBuf, seed: u64) -> anyhow::Result<bool> {
    println!("seed {seed}");
    let older = args.against.canonicalize().context("--against")?;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut run_directory = RunDirectory::new()?;
    let postgres = Postgres::start(&mut run_directory, CONNECTIONS_MAX).await?;
    let mut session = SqlSession::new(postgres.url(), 0)?;
    let create = format!(
        "create table item (id int primary key, revision bigint not null); \
         insert into item select id, 0 from generate_series(0, {ITEMS} - 1) id"
    );
    session.run(&create).await?;
    let ledger = Arc::new(Ledger::new(ITEMS, MAX_STALENESS));
    let mut upgrade = Upgrade {
        larders: Vec::new(),
        counts: Vec::new(),
        ledger: Arc::clone(&ledger),
        hold: Duration::from_secs(args.seconds),
        held: true,
    };
    for name in NODES {
        let config = config(run_directory.directory(), name, &older, &postgres, &mut rng)?;
        upgrade.larders.push(Larder::new(config)?);
        upgrade.counts.push(Arc::default());
    }
    let stop = watch::channel(false).0;
    let mut load = JoinSet::new();
    for number in 0..WRITERS {
        let session = SqlSession::new(postgres.url(), 0)?;
        let items = (number..ITEMS).step_by(WRITERS).collect();
        let writer = ItemWriter::new(Arc::clone(&ledger), session, items, rng.fork());
        load.spawn(writer.run(stop.subscribe()));
    }
    for (larder, counts) in upgrade.larders.iter().zip(&upgrade.counts) {
        for _ in 0..READERS {
            let target: SocketAddr = larder.config.listen;
            let reader =
                ItemReader::new(Arc::clone(&ledger), Arc::clone(counts), target, rng.fork());
            load.spawn(reader.run(stop.subscribe()));
        }
    }
    let outcome = upgrade.run(&older, &binary).await;
    stop.send_replace(true);
    while let Some(ended) = load.join_next().await {
        ended?;
    }
    outcome?;
    postgres.stop().await;
    drop(run_directory);
    Ok(upgrade.held)
}

fn config(
    directory: &Path,
    name: &str,
    binary: &Path,
    postgres: &Postgres,
    rng: &mut fastrand::Rng,
) -> anyhow::Result<LarderConfig> {
    Ok(LarderConfig {
        binary: binary.to_owned(),
        directory: directory.join(name),
        listen: free_address(rng)?,
        admin: free_address(rng)?,
        url: postgres.url().to_owned(),
        listen_url: postgres.url().to_owned(),
        memory_bytes: MEMORY_BYTES,
        settings: format!(
            "[feed]\nmax_staleness = '{}ms'\n[[resource]]\nname = 'items'\ntable = 'item'\n",
            MAX_STALENESS.as_millis()
        ),
        arguments: Vec::new(),
        cores: None,
        environment: Vec::new(),
    })
}

/// Which larders run, and what has to hold then besides that no answer is stale.
struct State {
    name: &'static str,
    /// All larders are of one version, so each has to follow the database.
    follows: bool,
    /// Only this version has changed the schema, so no write may fail. How an older one installs is not judged.
    is_ours: bool,
}

/// Two larders, and what readers and writers have counted.
struct Upgrade {
    larders: Vec<Larder>,
    counts: Vec<Arc<NodeCounts>>,
    ledger: Arc<Ledger>,
    hold: Duration,
    held: bool,
}

impl Upgrade {
    /// From `older` to `newer` and back, node by node.
    async fn run(&mut self, older: &Path, newer: &Path) -> anyhow::Result<()> {
        let state = |name, follows, is_ours| State {
            name,
            follows,
            is_ours,
        };
        for larder in &mut self.larders {
            larder.start()?;
        }
        self.hold(state("both older", true, false)).await;
        self.replace(0, newer).await?;
        self.hold(state("the first upgraded", false, true)).await;
        self.replace(1, newer).await?;
        self.hold(state("both upgraded", true, true)).await;
        self.replace(0, older).await?;
        self.hold(state("the first put back", false, false)).await;
        let goes_back = self.readiness(0).await.is_ok();
        self.larders[1].terminate().await?;
        if !goes_back {
            self.larders[0].terminate().await?;
            self.larders[1].command("uninstall").await?;
            println!(
                "the older one does not follow, so `larder uninstall` of the newer comes first:"
            );
            self.judge_writes(true);
            self.larders[0].start()?;
        }
        older.clone_into(&mut self.larders[1].config.binary);
        self.larders[1].start()?;
        self.hold(state("both put back", true, false)).await;
        for larder in &mut self.larders {
            larder.terminate().await?;
        }
        Ok(())
    }

    /// Stops a larder and starts `binary` in its place, on the same state directory.
    async fn replace(&mut self, node: usize, binary: &Path) -> anyhow::Result<()> {
        let larder = &mut self.larders[node];
        larder.terminate().await?;
        binary.clone_into(&mut larder.config.binary);
        larder.start()
    }

    /// Waits until each larder is ready or has had its time, holds that state, and judges what readers and writers have seen
    /// since the last one.
    async fn hold(&mut self, state: State) {
        let began = Instant::now();
        for node in 0..self.larders.len() {
            self.settle(node).await;
        }
        let settled = began.elapsed();
        sleep(self.hold).await;
        println!("{}, after {settled:.1?}:", state.name);
        for (node, name) in NODES.iter().enumerate() {
            let readiness = self.readiness(node).await;
            let counts = self.counts[node].take();
            println!(
                "  {name}: {} answers, {} stale, {} refused, {} unanswered; {}",
                counts.answers,
                counts.stale,
                counts.refused,
                counts.unanswered,
                readiness.as_ref().err().map_or("ready", String::as_str)
            );
            let follows = readiness.is_ok() && counts.answers > 0;
            self.held &= counts.stale == 0 && (follows || !state.follows);
        }
        self.judge_writes(state.is_ours);
    }

    /// Prints what became of the writes since the last time; if this version alone has changed the schema, none may fail.
    fn judge_writes(&mut self, is_ours: bool) {
        let writes = self.ledger.take_writes();
        let (committed, failed) = (writes.committed, writes.failed.len());
        println!("  {committed} writes, {failed} failed");
        for failure in &writes.failed {
            println!("  failed: {failure}");
        }
        self.held &= failed == 0 || !is_ours;
    }

    /// Waits until a larder is ready, or for [`SETTLE_MAX`].
    async fn settle(&self, node: usize) {
        let deadline = Instant::now() + SETTLE_MAX;
        while self.readiness(node).await.is_err() && Instant::now() < deadline {
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Why a larder is not ready.
    async fn readiness(&self, node: usize) -> Result<(), String> {
        match http::get(self.larders[node].config.admin, "/readyz").await {
            Ok((200, _)) => Ok(()),
            Ok((_, reason)) => Err(reason.trim().to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}
