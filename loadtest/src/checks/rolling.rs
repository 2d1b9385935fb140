//! `loadtest rolling`: two larders behind nginx are restarted one after the other, under a constant rate of requests. Does
//! every request get its document?

mod nginx;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::checks::rolling::nginx::Nginx;
use crate::harness::demo::documents::Checker;
use crate::harness::demo::{Demo, WarmTier};
use crate::harness::larder::Larder;

const DEPTS: u32 = 1_000;
const CLIENTS: usize = 32;
/// `shutdown_delay` of both larders.
const SHUTDOWN_DELAY: &str = "100ms";
/// nginx's address, whose X-Forwarded-For and Host count.
const TRUSTED: &str = "127.0.0.1";
/// So many failed requests are printed.
const SHOWN_MAX: usize = 10;
const PROGRESS_STEPS: usize = 10;

/// How often, under how many requests.
#[derive(Args, Clone, Debug)]
pub(crate) struct RollingArgs {
    /// Rolling restarts: each restarts both larders.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) count: usize,
    /// Requests in a second.
    #[arg(long, value_name = "N", default_value_t = 1_000.0)]
    pub(crate) per_second: f64,
}

/// Whether every request got its document.
pub(crate) async fn run(args: &RollingArgs, binary: PathBuf, seed: u64) -> anyhow::Result<bool> {
    let mut demo = Demo::start(&binary, DEPTS, 0, seed).await?;
    let mut larders = Vec::new();
    for name in ["first", "second"] {
        let mut config = demo.config(name, &binary, None)?;
        config.environment.extend([
            (
                "LARDER_SHUTDOWN_DELAY".to_owned(),
                SHUTDOWN_DELAY.to_owned(),
            ),
            (
                "LARDER_LIMITS__TRUSTED_PROXIES".to_owned(),
                TRUSTED.to_owned(),
            ),
        ]);
        let larder = demo.start_filled(name, config, WarmTier::Memory);
        larders.push(larder.await?);
    }
    let nodes: Vec<SocketAddr> = larders.iter().map(|larder| larder.config.listen).collect();
    let address = demo.address()?;
    let nginx = Nginx::start(
        &demo.run_directory.directory().join("nginx"),
        address,
        &nodes,
    )
    .await?;
    let stop = watch::channel(false).0;
    let mut clients = JoinSet::new();
    let pause = Duration::from_secs_f64(CLIENTS as f64 / args.per_second);
    for number in 0..CLIENTS {
        let client = GettingClient {
            checker: demo.checker(address, None).await?,
            target: address,
            counts: GetCounts::default(),
        };
        let begin = Instant::now() + pause.mul_f64(number as f64 / CLIENTS as f64);
        clients.spawn(client.run(begin, pause, stop.subscribe()));
    }
    let restarts = restart_all(&mut larders, args.count).await;
    stop.send_replace(true);
    let mut counts = GetCounts::default();
    while let Some(client) = clients.join_next().await {
        counts.add(client??);
    }
    let restarts = restarts?;
    drop(nginx);
    for larder in &mut larders {
        larder.terminate().await?;
    }
    demo.stop().await;
    ensure!(counts.gets > 0, "nothing was answered");
    for failure in counts.failures.iter().take(SHOWN_MAX) {
        println!("failed: {failure}");
    }
    println!(
        "{} rolling restarts of two larders behind nginx: {} GETs, {} failed; the slowest took {:.2?}; \
         a larder ended after at most {:.2?} and was ready after at most {:.2?}",
        args.count,
        counts.gets,
        counts.failures.len(),
        counts.slowest,
        restarts.end_max,
        restarts.ready_max,
    );
    Ok(counts.failures.is_empty())
}

/// The longest times of all restarts.
#[derive(Default)]
struct RestartTimes {
    end_max: Duration,
    ready_max: Duration,
}

/// Restarts the larders one after the other, `count` times.
async fn restart_all(larders: &mut [Larder], count: usize) -> anyhow::Result<RestartTimes> {
    let mut times = RestartTimes::default();
    for number in 1..=count {
        for larder in larders.iter_mut() {
            let began = Instant::now();
            larder.terminate().await?;
            times.end_max = times.end_max.max(began.elapsed());
            times.ready_max = times.ready_max.max(larder.start_ready().await?);
        }
        if number % count.div_ceil(PROGRESS_STEPS) == 0 {
            println!("{number} rolling restarts");
        }
    }
    Ok(times)
}

#[derive(Default)]
struct GetCounts {
    gets: u64,
    failures: Vec<String>,
    slowest: Duration,
}

impl GetCounts {
    fn add(&mut self, other: Self) {
        self.gets += other.gets;
        self.failures.extend(other.failures);
        self.slowest = self.slowest.max(other.slowest);
    }
}

/// A client of nginx with one connection.
struct GettingClient {
    checker: Checker,
    target: SocketAddr,
    counts: GetCounts,
}

impl GettingClient {
    /// Sends one request after the other at its rate, until `stop`.
    async fn run(
        mut self,
        begin: Instant,
        pause: Duration,
        mut stop: watch::Receiver<bool>,
    ) -> anyhow::Result<GetCounts> {
        let mut pace = interval_at(begin, pause);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = pace.tick() => {}
                _ = stop.wait_for(|&stop| stop) => return Ok(self.counts),
            }
            let began = Instant::now();
            let answer = self.checker.check().await;
            self.counts.gets += 1;
            self.counts.slowest = self.counts.slowest.max(began.elapsed());
            if let Err(error) = answer {
                self.counts.failures.push(format!("{error:#}"));
                self.checker.reconnect(self.target).await?;
            }
        }
    }
}
