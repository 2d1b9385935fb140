//! loadtest: measures larder, and checks what it promises, under load and while everything around it fails.
//!
//! ```text
//! writers ── SQL ──► PostgreSQL ◄── proxies ◄── larder ◄── HTTP ── readers
//!    │                    ▲            ▲           ▲                  │
//!    │                    └──────── faults ────────┘                  │
//!    └── what each commit makes of each document ──► record ◄── every answer
//! ```
//!
//! A writer notes what its transaction makes of each document, to the byte, before it commits, and the moment of the
//! acknowledgement after. A reader notes the moment before it asks. So each answer is either one of the document's
//! versions, and then it is known when it was replaced, or something that never was.
//!
//! - `harness`: what is checked and measured, the network, and the programs that make load. `harness::testbed`: all that
//!   faults act on, with the clients that write, read and measure the lag.
//! - `workload`: the documents and what is done to them; what was committed and answered, and what an answer is worth.
//! - `checks`: a run for each question with yes or no for an answer; `checks::faults`: what goes wrong in `stale`.
//! - `bench`: figures. A benchmark prepares servers, measures one case a turn and verifies that they did what was
//!   measured; the runner rotates the turns. `compare` is one, and so are those of `loadtest bench`. `sweep` measures one
//!   larder by the number of connections, tier by tier.
//! - `labs`: experiments whose question is not about larder alone: ways to serve, the indexes of PostgreSQL, and stores
//!   that workers fetch due rows from.
//! - `report`: the folder of a run, statistics, tables, and charts of all of these as a page and as text.

#![expect(clippy::print_stdout, reason = "this program's results go to stdout")]

/// Prints a line above the progress that a terminal shows.
macro_rules! println {
    () => {
        crate::harness::progress::above("")
    };
    ($($part:tt)*) => {
        crate::harness::progress::above(&format!($($part)*))
    };
}

mod bench;
mod checks;
mod cli;
mod harness;
mod labs;
mod report;
mod workload;

use std::alloc::System;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use alloc_tracker::Allocator;
use anyhow::{Context, bail};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::bench::batches::Batches;
use crate::bench::compare::Compare;
use crate::bench::dispatch::DispatchBenchmark;
use crate::bench::posts::Posts;
use crate::bench::reads::Reads;
use crate::bench::triggers::Triggers;
use crate::bench::writes::Writes;
use crate::bench::{runner, sweep};
use crate::checks::{
    alerts, bulk_kills, dashboard, differential_writes, drain, full_disk, fuzz, hostile_clients,
    idle_clients, installs, lag, linearizable, outage, poolers, races, restarts, rolling, schemas,
    scope, stale, upgrade,
};
use crate::cli::{BenchCommand, CheckCommand, Cli, Command};
use crate::harness::process::raise_open_files;
use crate::harness::{binary, progress};
use crate::labs::indexes;
use crate::labs::models::Models;
use crate::labs::workers;
use crate::report::charts;
use crate::report::plot::page;

/// Counts for `workers` what a match allocates.
#[global_allocator]
static ALLOCATOR: Allocator<System> = Allocator::system();

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("loadtest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether everything held.
fn run(cli: &Cli) -> anyhow::Result<bool> {
    if let Command::Contender {
        model,
        response,
        rendered,
    } = &cli.command
    {
        return labs::models::run(*model, response, *rendered).map(|()| true);
    }
    if let Command::Report { runs, output } = &cli.command {
        return charts::report(runs, output.as_deref()).map(|()| true);
    }
    if let Command::Plot { input, output } = &cli.command {
        return page::plot(input, output.as_deref()).map(|()| true);
    }
    let larder = binary::find(cli.larder.as_deref(), cli.cargo.as_deref())?;
    let seed = cli.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    raise_open_files()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    progress::start()?;
    let outcome = runtime.block_on(async {
        match &cli.command {
            Command::Compare(args) => {
                runner::run::<Compare>(args, larder, seed, shutdown_signal()).await
            }
            Command::Models(args) => {
                runner::run::<Models>(args, larder, seed, shutdown_signal()).await
            }
            Command::Bench(bench) => measure(bench, larder, seed).await,
            Command::Sweep(args) => sweep::run(args, larder, seed, shutdown_signal()).await,
            Command::Check(check) => tokio::select! {
                outcome = run_check(check, larder, seed) => outcome,
                ended = shutdown_signal() => ended.map(|()| false),
            },
            Command::Indexes(args) => tokio::select! {
                outcome = indexes::run(args, larder, cli.seed.unwrap_or(indexes::SEED)) => outcome,
                ended = shutdown_signal() => ended.map(|()| false),
            },
            Command::Workers(args) => tokio::select! {
                outcome = workers::run(args, cli.seed.unwrap_or(workers::SEED)) => outcome,
                ended = shutdown_signal() => ended.map(|()| false),
            },
            // Done above: these need neither larder nor a runtime.
            Command::Contender { .. } | Command::Report { .. } | Command::Plot { .. } => Ok(true),
        }
    });
    progress::end();
    outcome
}

/// Whether every request was answered well.
async fn measure(bench: &BenchCommand, larder: PathBuf, seed: u64) -> anyhow::Result<bool> {
    let stop = shutdown_signal();
    match bench {
        BenchCommand::Dispatch(args) => {
            runner::run::<DispatchBenchmark>(args, larder, seed, stop).await
        }
        BenchCommand::Posts(args) => runner::run::<Posts>(args, larder, seed, stop).await,
        BenchCommand::Reads(args) => runner::run::<Reads>(args, larder, seed, stop).await,
        BenchCommand::Batches(args) => runner::run::<Batches>(args, larder, seed, stop).await,
        BenchCommand::Triggers(args) => runner::run::<Triggers>(args, larder, seed, stop).await,
        BenchCommand::Writes(args) => runner::run::<Writes>(args, larder, seed, stop).await,
    }
}

/// Whether everything held.
async fn run_check(check: &CheckCommand, larder: PathBuf, seed: u64) -> anyhow::Result<bool> {
    match check {
        CheckCommand::Stale(args) => stale::run(args, larder, seed).await,
        CheckCommand::Linearizable(args) => linearizable::run(args, larder, seed).await,
        CheckCommand::Kills { count, documents } => {
            restarts::kills(*count, *documents, larder, seed).await
        }
        CheckCommand::Corruption { count } => restarts::corruption(*count, larder, seed).await,
        CheckCommand::Outage { seconds } => {
            outage::run(Duration::from_secs(*seconds), larder, seed).await
        }
        CheckCommand::FullDisk { seconds } => {
            full_disk::run(Duration::from_secs(*seconds), larder, seed).await
        }
        CheckCommand::IdleClients(args) => idle_clients::run(args, larder, seed).await,
        CheckCommand::HostileClients(args) => hostile_clients::run(args, larder, seed).await,
        CheckCommand::Drain(args) => drain::run(args, larder, seed).await,
        CheckCommand::Rolling(args) => rolling::run(args, larder, seed).await,
        CheckCommand::Upgrade(args) => upgrade::run(args, larder, seed).await,
        CheckCommand::Races(args) => races::run(args, larder, seed).await,
        CheckCommand::BulkKills { count } => bulk_kills::run(*count, larder, seed).await,
        CheckCommand::DifferentialWrites(args) => {
            differential_writes::run(args, larder, seed).await
        }
        CheckCommand::Scope(args) => scope::run(args, larder, seed).await,
        CheckCommand::Schemas(args) => schemas::run(args, larder).await,
        CheckCommand::Dashboard(args) => dashboard::run(args, larder, seed).await,
        CheckCommand::Fuzz(args) => fuzz::run(args, larder, seed).await,
        CheckCommand::Poolers(args) => poolers::run(args, larder, seed).await,
        CheckCommand::Installs(args) => installs::run(args, larder, seed).await,
        CheckCommand::Alerts => alerts::run(larder, seed).await,
        CheckCommand::Lag { seconds } => lag::run(*seconds, larder, seed).await,
    }
}

/// SIGTERM or SIGINT; all that runs ends with what is dropped then.
async fn shutdown_signal() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    bail!("interrupted")
}
