//! `loadtest fuzz`: requests and configurations out of pieces of valid ones. Does anything panic, or answer 500?

mod pieces;
mod words;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use larder::config::Config;
use proptest::strategy::{BoxedStrategy, Strategy};
use proptest::test_runner::{
    Config as RunnerConfig, RngAlgorithm, TestCaseError, TestRng, TestRunner,
};
use testkit::raw;
use tokio::runtime::Handle;
use tokio::task::block_in_place;
use tokio::time::Instant;

use crate::checks::fuzz::words::{RESOURCES, SCHEMA};
use crate::harness::free_address;
use crate::harness::larder::{Larder, LarderConfig};
use crate::harness::postgres::Postgres;
use crate::harness::run_directory::RunDirectory;
use crate::harness::session::SqlSession;

/// Cases between two checks of the time.
const CASES: u32 = 200;
const MEMORY_BYTES: u64 = 64 << 20;
const CONNECTIONS_MAX: usize = 50;
/// So much of a failing case is printed.
const SHOWN_BYTES: usize = 2_000;
/// The length of a seed of proptest's ChaCha.
const SEED_BYTES: usize = 32;

/// What is fuzzed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FuzzTarget {
    Path,
    Query,
    Headers,
    Body,
    Configuration,
}

/// What is fuzzed, and how long.
#[derive(Args, Clone, Debug)]
pub(crate) struct FuzzArgs {
    /// Names of targets, separated by commas.
    #[arg(
        long,
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        default_value = "path,query,headers,body,configuration"
    )]
    pub(crate) targets: Vec<FuzzTarget>,
    /// Seconds for each target.
    #[arg(long, value_name = "N", default_value_t = 600)]
    pub(crate) seconds: u64,
}

/// Whether nothing panicked and nothing was answered with 500 or not at all.
pub(crate) async fn run(args: &FuzzArgs, binary: PathBuf, seed: u64) -> anyhow::Result<bool> {
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut run_directory = RunDirectory::new()?;
    let postgres = Postgres::start(&mut run_directory, CONNECTIONS_MAX).await?;
    SqlSession::new(postgres.url(), 0)?.run(SCHEMA).await?;
    let mut larder = Larder::new(LarderConfig {
        binary,
        directory: run_directory.directory().join("fuzz"),
        listen: free_address(&mut rng)?,
        admin: free_address(&mut rng)?,
        url: postgres.url().to_owned(),
        listen_url: postgres.url().to_owned(),
        memory_bytes: MEMORY_BYTES,
        settings: RESOURCES.to_owned(),
        arguments: Vec::new(),
        cores: None,
        environment: Vec::new(),
    })?;
    larder.start_ready().await?;
    let mut held = true;
    for target in &args.targets {
        let duration = Duration::from_secs(args.seconds);
        let found = fuzz_target(*target, duration, larder.config.listen, &mut rng);
        held &= found.is_ok();
        match found {
            Ok(cases) => println!("{target:?}: {cases} cases"),
            Err(error) => println!("{target:?}: {error:#}"),
        }
    }
    larder.terminate().await?;
    let log = std::fs::read_to_string(larder.log())?;
    let panics: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("panicked") || line.contains("task failed"))
        .collect();
    for line in &panics {
        println!("{line}");
    }
    postgres.stop().await;
    drop(run_directory);
    println!("{} panics", panics.len());
    Ok(held && panics.is_empty())
}

/// Fuzzes one target for so long; returns the number of cases.
///
/// # Errors
/// The smallest case that fails, and why.
fn fuzz_target(
    target: FuzzTarget,
    duration: Duration,
    address: SocketAddr,
    rng: &mut fastrand::Rng,
) -> anyhow::Result<u64> {
    let until = Instant::now() + duration;
    let mut cases = 0;
    while Instant::now() < until {
        let mut seed = [0; SEED_BYTES];
        rng.fill(&mut seed);
        let config = RunnerConfig {
            cases: CASES,
            failure_persistence: None,
            ..RunnerConfig::default()
        };
        let mut runner =
            TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
        let outcome = match target {
            FuzzTarget::Configuration => runner
                .run(&pieces::configuration(), |text| {
                    // An error is fine; the runner catches a panic.
                    Config::from_toml(&text, &[]).ok();
                    Ok(())
                })
                .map_err(|error| anyhow::anyhow!("{error}")),
            _ => {
                let requests: BoxedStrategy<Vec<u8>> = match target {
                    FuzzTarget::Path => pieces::paths().boxed(),
                    FuzzTarget::Query => pieces::queries().boxed(),
                    FuzzTarget::Headers => pieces::headers().boxed(),
                    FuzzTarget::Body | FuzzTarget::Configuration => pieces::bodies().boxed(),
                };
                runner
                    .run(&requests, |request| {
                        let answered =
                            block_in_place(|| Handle::current().block_on(send(address, &request)));
                        answered.map_err(|error| {
                            TestCaseError::fail(format!("{error:#}: {}", shown(&request)))
                        })
                    })
                    .map_err(|error| anyhow::anyhow!("{error}"))
            }
        };
        outcome?;
        cases += u64::from(CASES);
    }
    Ok(cases)
}

/// Sends one request on a connection of its own.
///
/// # Errors
/// An answer of 500 or above, or none.
async fn send(address: SocketAddr, request: &[u8]) -> anyhow::Result<()> {
    let received = raw::exchange(address, request).await?;
    let status = raw::parse(&received)?.status;
    ensure!(status < 500, "answered with {status} {}", shown(&received));
    Ok(())
}

fn shown(bytes: &[u8]) -> String {
    let text = bytes[..bytes.len().min(SHOWN_BYTES)].escape_ascii();
    text.to_string()
}
