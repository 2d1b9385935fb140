//! `loadtest drain`: SIGTERM under a fixed rate of requests. Does every request that was sent get its answer?

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use testkit::http::HttpConnection;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use crate::harness::demo::{Demo, WarmTier};

const DEPTS: u32 = 1_000;
const SERVER_CORES: &str = "0";
const CONNECTIONS: usize = 64;
const WARM_UP: Duration = Duration::from_secs(2);
/// The goal.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// The rate of requests, and how often larder is stopped.
#[derive(Args, Clone, Debug)]
pub(crate) struct DrainArgs {
    /// Requests in a second.
    #[arg(long, value_name = "N", default_value_t = 5_000.0)]
    pub(crate) per_second: f64,
    /// Starts and ends of larder.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) rounds: usize,
}

/// Whether no request that was sent was left without its answer, and larder ended in time, in every round.
pub(crate) async fn run(args: &DrainArgs, binary: PathBuf, seed: u64) -> anyhow::Result<bool> {
    let mut demo = Demo::start(&binary, DEPTS, 0, seed).await?;
    let mut held = true;
    for round in 1..=args.rounds {
        let mut larder = demo
            .larder("drain", &binary, WarmTier::Memory, SERVER_CORES)
            .await?;
        let mut clients = JoinSet::new();
        let pause = Duration::from_secs_f64(CONNECTIONS as f64 / args.per_second);
        for number in 0..CONNECTIONS {
            let begin = Instant::now() + pause.mul_f64(number as f64 / CONNECTIONS as f64);
            clients.spawn(ask_until_closed(larder.config.listen, begin, pause));
        }
        sleep(WARM_UP).await;
        let began = Instant::now();
        larder.terminate().await?;
        let took = began.elapsed();
        let (mut answered, mut lost) = (0, 0);
        while let Some(client) = clients.join_next().await {
            let client = client??;
            answered += client.answered;
            lost += u64::from(client.lost);
        }
        println!(
            "round {round}: ended after {took:.2?}; {answered} answers, {lost} requests without one"
        );
        ensure!(answered > 0, "nothing was answered");
        held &= lost == 0 && took <= DRAIN_MAX;
    }
    demo.stop().await;
    Ok(held)
}

struct ClientResult {
    answered: u64,
    /// Its last request was sent whole and never answered.
    lost: bool,
}

/// Sends one request after the other at its rate until an answer has `Connection: close` or the connection ends.
async fn ask_until_closed(
    target: SocketAddr,
    begin: Instant,
    pause: Duration,
) -> anyhow::Result<ClientResult> {
    let mut connection = HttpConnection::connect(target).await?;
    let mut pace = interval_at(begin, pause);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut client = ClientResult {
        answered: 0,
        lost: false,
    };
    loop {
        tokio::select! {
            _ = pace.tick() => {}
            // Between two requests larder may close the connection: no request is lost.
            () = connection.closed() => return Ok(client),
        }
        let answer = match connection.get("/depts/1").await {
            Ok(answer) => answer,
            Err(error) => {
                let error = error.downcast_ref::<hyper::Error>();
                let was_sent = !error.is_some_and(hyper::Error::is_canceled);
                client.lost = was_sent;
                return Ok(client);
            }
        };
        ensure!(answer.status == 200, "answered with {}", answer.status);
        client.answered += 1;
        if answer.header("connection") == "close" {
            return Ok(client);
        }
    }
}
