//! `loadtest hostile-clients`: clients that open, reset, half-close, send garbage, never read, or ask for what costs much
//! memory. Does larder answer other clients as fast as before, does it panic, and is its memory bounded and back afterwards?

mod hits;
mod misbehaviour;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout};

use crate::checks::hostile_clients::hits::measure;
use crate::checks::hostile_clients::misbehaviour::{
    MISBEHAVIOUR_MAX, Misbehaviour, add_large_document, check_expensive,
};
use crate::harness::demo::documents::Checker;
use crate::harness::demo::{Demo, WarmTier};
use crate::harness::process::leave;
use crate::report::statistics::Spread;

const DEPTS: u32 = 1_000;
const SERVER_CORES: &str = "0";
/// Hostile clients of all kinds, each of which comes again at once.
const CLIENTS: usize = 256;
/// Clients that send expensive requests while the latencies of hits are measured, and the time after which each comes
/// again. They are few: that many clients use up a core is no fault of larder.
const EXPENSIVE_CLIENTS: usize = 20;
const EXPENSIVE_PAUSE: Duration = Duration::from_millis(250);
/// Until larder has freed everything that it kept for closed connections.
const REST: Duration = Duration::from_secs(12);
/// The goal; allocators keep some of what was in use at once.
const GROWTH_MAX: f64 = 1.1;
/// The goal for the p99 of hits beside expensive requests, in times of the one of quiet phases.
const P99_RATIO_MAX: f64 = 3.0;

const MIB: u64 = 1 << 20;
/// Settings of larder, small enough to be reached by these clients.
const MEMORY_BYTES: u64 = 64 * MIB;
const ANSWERS_BYTES: u64 = 64 * MIB;
const BODIES_BYTES: u64 = 64 * MIB;
/// The goal for resident memory: the memory tier with its overhead, 100 MiB for the process and its connections, all
/// answers, and the bodies of one client.
const PEAK_MAX: u64 = MEMORY_BYTES / 10 * 13 + 100 * MIB + ANSWERS_BYTES + BODIES_BYTES / 4;

/// How long hostile clients come.
#[derive(Args, Clone, Debug)]
pub(crate) struct HostileClientsArgs {
    /// Seconds of each of the two times in which hostile clients of all kinds come.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: u64,
    /// Measurements of hits without and with clients that send expensive requests.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(2..))]
    pub(crate) round_seconds: u64,
}

/// Whether other clients got their answers in time, nothing panicked, and memory stayed within its bounds and is back
/// where it was after the first such load.
pub(crate) async fn run(
    args: &HostileClientsArgs,
    binary: PathBuf,
    seed: u64,
) -> anyhow::Result<bool> {
    println!("seed {seed}");
    // Neither clients nor PostgreSQL take time of larder's core, which its hits would be delayed for.
    leave(SERVER_CORES).await?;
    let mut demo = Demo::start(&binary, DEPTS, 0, seed).await?;
    let name = "hostile-clients";
    let mut config = demo.config(name, &binary, Some(SERVER_CORES))?;
    config.memory_bytes = MEMORY_BYTES;
    for (setting, bytes) in [
        ("LARDER_LIMITS__ANSWERS_MEMORY", ANSWERS_BYTES),
        ("LARDER_LIMITS__BODIES_MEMORY", BODIES_BYTES),
    ] {
        let variable = (setting.to_owned(), format!("{bytes}B"));
        config.environment.push(variable);
    }
    let mut larder = demo.start_filled(name, config, WarmTier::Memory).await?;
    let target = larder.config.listen;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut checker = demo.checker(target, Some(WarmTier::Memory)).await?;
    add_large_document(target).await?;
    check_expensive(target).await?;
    let fast = beside_expensive(args, target, &mut rng, &mut checker).await?;
    let duration = Duration::from_secs(args.seconds);
    let mut resident = Vec::new();
    for _ in 0..2 {
        let hostile = misbehave(
            target,
            &Misbehaviour::ALL,
            CLIENTS,
            Duration::ZERO,
            Instant::now() + duration,
            rng.fork(),
        );
        let (hostile, hits) = tokio::join!(hostile, measure(&mut checker, duration));
        sleep(REST).await;
        resident.push(larder.resident_bytes()?);
        println!(
            "{} hostile connections; {} answers for other clients; {} MiB afterwards",
            hostile?,
            hits?.count(),
            larder.resident_bytes()? / MIB
        );
    }
    let peak = larder.peak_resident_bytes()?;
    println!("{} MiB at most (goal {})", peak / MIB, PEAK_MAX / MIB);
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
    Ok(fast && panics == 0 && growth <= GROWTH_MAX && peak <= PEAK_MAX)
}

/// Measures hits without and with clients that send expensive requests, by turns; returns whether hits stayed fast.
async fn beside_expensive(
    args: &HostileClientsArgs,
    target: SocketAddr,
    rng: &mut fastrand::Rng,
    checker: &mut Checker,
) -> anyhow::Result<bool> {
    let duration = Duration::from_secs(args.round_seconds);
    let mut ratios = Vec::new();
    for round in 1..=args.rounds {
        let quiet = measure(checker, duration).await?;
        let (until, rng) = (Instant::now() + duration, rng.fork());
        // On a thread of their own, so that hits need not wait for what these clients do.
        let clients = spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(misbehave(
                target,
                &Misbehaviour::EXPENSIVE,
                EXPENSIVE_CLIENTS,
                EXPENSIVE_PAUSE,
                until,
                rng,
            ))
        });
        let loaded = measure(checker, duration).await?;
        let connections = clients.await??;
        let (quiet_p99, loaded_p99) = (quiet.p99()?, loaded.p99()?);
        println!(
            "round {round}: p99 of {} hits {quiet_p99:.2?} quiet; p99 of {} hits {loaded_p99:.2?} beside {connections} expensive requests",
            quiet.count(),
            loaded.count(),
        );
        ratios.push(loaded_p99.as_secs_f64() / quiet_p99.as_secs_f64());
    }
    let ratio = Spread::of(ratios).context("no round")?;
    println!(
        "p99 beside expensive requests to quiet: {:.2} ({:.2}-{:.2}), goal {P99_RATIO_MAX}",
        ratio.median, ratio.min, ratio.max
    );
    Ok(ratio.median <= P99_RATIO_MAX)
}

/// Runs so many clients of these kinds, each of which comes again after `pause`; returns how many connections they made.
async fn misbehave(
    target: SocketAddr,
    kinds: &'static [Misbehaviour],
    clients: usize,
    pause: Duration,
    until: Instant,
    mut rng: fastrand::Rng,
) -> anyhow::Result<u64> {
    let mut running = JoinSet::new();
    for _ in 0..clients {
        let mut rng = rng.fork();
        running.spawn(async move {
            let mut connections = 0_u64;
            while Instant::now() < until {
                let misbehaviour = kinds[rng.usize(..kinds.len())];
                // Its result does not matter.
                timeout(MISBEHAVIOUR_MAX, misbehaviour.show(target, &mut rng))
                    .await
                    .ok();
                connections += 1;
                sleep(pause).await;
            }
            connections
        });
    }
    let mut connections = 0;
    while let Some(client) = running.join_next().await {
        connections += client?;
    }
    Ok(connections)
}
