//! `loadtest poolers`: pgbouncer between larder and PostgreSQL, with `pooler = true` and without. Is each answer of its
//! own resource, and fresh, or does larder say why it does not serve?

mod load;
mod pgbouncer;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::checks::poolers::load::{AnswerCounters, RESOURCES, ROWS, read, write};
use crate::checks::poolers::pgbouncer::{Pgbouncer, PoolMode};
use crate::harness::free_address;
use crate::harness::http;
use crate::harness::larder::{Larder, LarderConfig};
use crate::harness::postgres::Postgres;
use crate::harness::run_directory::RunDirectory;
use crate::harness::session::SqlSession;

const READERS: usize = 24;
const CONNECTIONS_MAX: usize = 150;
const MEMORY_BYTES: u64 = 512 << 10;
const READY_MAX: Duration = Duration::from_secs(4);
const PAUSED: Duration = Duration::from_millis(300);
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Words in larder's errors about a pooler, or about settings that one has dropped.
const NAMED: [&str; 3] = ["pooler", "startup parameter", "setting"];

/// The SHA-256 of the key `test`.
const SETTINGS: &str = "[[auth.key]]\nname = 'reader'\n\
    hash = '9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08'\nroles = ['staff']\n\
    [[resource]]\nname = 'alpha'\ntable = 'public.alpha'\nread = ['anonymous']\nwrite = ['anonymous']\ntiers = ['memory']\n\
    [[resource]]\nname = 'beta'\ntable = 'public.beta'\nread = ['anonymous']\nwrite = ['anonymous']\ntiers = ['memory']\n\
    [[resource]]\nname = 'secret'\ntable = 'public.secret'\nread = ['staff']\nwrite = ['staff']\ntiers = ['memory']\n";

/// What larder's settings say about the pooler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PoolerSettings {
    /// `pooler = true`, and a `listen_url`.
    Pooler,
    /// A `listen_url` alone.
    ListenUrl,
    /// Nothing.
    Nothing,
}

impl PoolerSettings {
    fn as_str(self) -> &'static str {
        match self {
            Self::Pooler => "pooler = true",
            Self::ListenUrl => "listen_url only",
            Self::Nothing => "nothing",
        }
    }
}

/// How long each arrangement is under load.
#[derive(Args, Clone, Debug)]
pub(crate) struct PoolersArgs {
    /// Seconds of load for each arrangement that serves.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: u64,
    /// Fail where fewer documents of one resource were compared.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) answers: u64,
}

/// Whether no answer was another resource's, old or made up, and larder served or said why not.
pub(crate) async fn run(args: &PoolersArgs, binary: PathBuf, seed: u64) -> anyhow::Result<bool> {
    let mut run_directory = RunDirectory::new()?;
    let postgres = Postgres::start(&mut run_directory, CONNECTIONS_MAX).await?;
    fill(postgres.url()).await?;
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut held, mut number) = (true, 0);
    let mut compared = [0; RESOURCES.len()];
    for mode in PoolMode::ALL {
        for settings in [
            PoolerSettings::Pooler,
            PoolerSettings::ListenUrl,
            PoolerSettings::Nothing,
        ] {
            for ignored in ["extra_float_digits", "extra_float_digits,options"] {
                number += 1;
                let directory = run_directory.directory().join(format!("pooler-{number}"));
                std::fs::create_dir_all(&directory)?;
                let address = free_address(&mut rng)?;
                let pgbouncer =
                    Pgbouncer::start(postgres.url(), &directory, address, mode, ignored).await?;
                let config = config(
                    &binary, &postgres, &pgbouncer, settings, directory, &mut rng,
                )?;
                let outcome = arrangement(config, pgbouncer, postgres.url(), args.seconds).await?;
                println!(
                    "{:<11} settings {:<15} ignores {ignored:<26} {}",
                    mode.as_str(),
                    settings.as_str(),
                    outcome.text
                );
                held &= outcome.held;
                for (all, count) in compared.iter_mut().zip(outcome.compared) {
                    *all += count;
                }
            }
        }
    }
    let strangers = strangers(postgres.url()).await?;
    println!("{compared:?} documents compared; {strangers} rows of one table in another");
    postgres.stop().await;
    let enough = compared.iter().all(|count| *count >= args.answers);
    Ok(held && strangers == 0 && enough)
}

async fn fill(url: &str) -> anyhow::Result<()> {
    let mut session = SqlSession::new(url, 0)?;
    for name in RESOURCES {
        let sql = format!(
            "create table {name} (id int primary key, owner text not null, n bigint not null); \
             insert into {name} select i, '{name}', 0 from generate_series(1, {ROWS}) i"
        );
        session.run(&sql).await?;
    }
    Ok(())
}

async fn strangers(url: &str) -> anyhow::Result<u64> {
    let mut session = SqlSession::new(url, 0)?;
    let mut strangers = 0;
    for name in RESOURCES {
        let sql = format!("select count(*)::text from {name} where owner <> '{name}'");
        let count = session.texts(&sql).await?;
        strangers += count.first().context("no count")?.parse::<u64>()?;
    }
    Ok(strangers)
}

fn config(
    binary: &std::path::Path,
    postgres: &Postgres,
    pgbouncer: &Pgbouncer,
    settings: PoolerSettings,
    directory: PathBuf,
    rng: &mut fastrand::Rng,
) -> anyhow::Result<LarderConfig> {
    let listen_url = match settings {
        PoolerSettings::Nothing => &pgbouncer.url,
        PoolerSettings::Pooler | PoolerSettings::ListenUrl => postgres.url(),
    };
    let pooler = (settings == PoolerSettings::Pooler).to_string();
    Ok(LarderConfig {
        binary: binary.to_owned(),
        directory,
        listen: free_address(rng)?,
        admin: free_address(rng)?,
        url: pgbouncer.url.clone(),
        listen_url: listen_url.to_owned(),
        memory_bytes: MEMORY_BYTES,
        settings: SETTINGS.to_owned(),
        arguments: Vec::new(),
        cores: None,
        environment: vec![
            ("LARDER_DATABASE__POOLER".to_owned(), pooler),
            ("LARDER_DATABASE__CONNECTIONS".to_owned(), "4".to_owned()),
        ],
    })
}

struct PoolerResult {
    held: bool,
    /// By resource.
    compared: [u64; RESOURCES.len()],
    text: String,
}

/// One larder behind one pgbouncer, which is paused, reconnected and restarted under load.
async fn arrangement(
    config: LarderConfig,
    mut pgbouncer: Pgbouncer,
    direct: &str,
    seconds: u64,
) -> anyhow::Result<PoolerResult> {
    reset(direct).await?;
    let target = config.listen;
    let mut larder = Larder::new(config)?;
    larder.start()?;
    let serves = serves(&larder).await;
    let counters = Arc::new(AnswerCounters::new());
    let mut clients = JoinSet::new();
    let mut writers = JoinSet::new();
    if serves {
        for resource in 0..RESOURCES.len() {
            writers.spawn(write(Arc::clone(&counters), resource, direct.to_owned()));
        }
        for number in 0..READERS {
            clients.spawn(read(
                Arc::clone(&counters),
                number % RESOURCES.len(),
                target,
            ));
        }
        let part = Duration::from_secs(seconds) / 4;
        sleep(part).await;
        // In session mode it waits for clients that do not leave.
        let paused = timeout(PAUSED, pgbouncer.command("pause")).await;
        paused.unwrap_or(Ok(()))?;
        sleep(PAUSED).await;
        pgbouncer.command("resume").await?;
        sleep(part).await;
        pgbouncer.command("reconnect").await?;
        sleep(part).await;
        pgbouncer.restart().await?;
        sleep(part).await;
        counters.ended.store(true, Ordering::Relaxed);
    }
    while let Some(writer) = writers.join_next().await {
        writer??;
    }
    while let Some(client) = clients.join_next().await {
        client?;
    }
    let open = http::get(target, "/secret/1").await;
    let log = std::fs::read_to_string(larder.log()).unwrap_or_default();
    larder.kill().await?;
    if let Ok((status, _)) = open {
        ensure!(status != 200, "a closed resource was open");
    }
    Ok(result(&counters, serves, &log))
}

/// Restores the first values of the rows, and removes those that were inserted.
async fn reset(url: &str) -> anyhow::Result<()> {
    let mut session = SqlSession::new(url, 0)?;
    for name in RESOURCES {
        let sql =
            format!("update {name} set n = 0 where n > 0; delete from {name} where id > {ROWS}");
        session.run(&sql).await?;
    }
    Ok(())
}

/// Whether a document is answered soon.
async fn serves(larder: &Larder) -> bool {
    let deadline = Instant::now() + READY_MAX;
    while Instant::now() < deadline {
        let answer = http::get(larder.config.listen, "/alpha/1").await;
        if answer.is_ok_and(|(status, _)| status == 200) {
            return true;
        }
        sleep(CHECK_INTERVAL).await;
    }
    false
}

fn result(counters: &AnswerCounters, serves: bool, log: &str) -> PoolerResult {
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let compared = counters.compared.each_ref().map(count);
    let said = log
        .lines()
        .rev()
        .find(|line| NAMED.iter().any(|name| line.contains(name)));
    let refused = !serves && said.is_some();
    let text = if serves {
        format!(
            "{compared:?} documents compared, {} of another resource, {} stale, {} made up, {} requests unanswered",
            count(&counters.strange),
            count(&counters.stale),
            count(&counters.made_up),
            count(&counters.unavailable),
        )
    } else {
        format!("does not serve: {}", said.unwrap_or("and does not say why"))
    };
    PoolerResult {
        held: counters.violations() == 0 && (refused || compared.iter().all(|count| *count > 0)),
        compared,
        text,
    }
}
