//! loadtest: measures larder, and checks what it promises, under load and while everything around it fails.
//!
//! # Figures
//!
//! - `compare`: larder and others by turns, as ratios. `sweep`: one larder by the number of connections, tier by tier.
//! - `tools`: the programs that make the load. `servers`: what answers. `process`: what that costs.
//! - `results`: the folder of a run. `charts`: runs as a page.
//!
//! # Checks
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
//! - `history`: what an answer is worth. `record`: what was committed and answered, shared by all.
//! - `interference`: which statements of others failed or waited because of larder.
//! - `workload`: the documents and what is done to them. `writers`, `readers`, `prober`: who does it, who checks it.
//! - `servers`: what is checked, and the network. `stage`: all of it together. `faults`: what goes wrong.
//! - `stale`: the run. `report`: what it found. `restarts`, `outage`, `full_disk`, `lag`, `crowd`, `rude`,
//!   `drain`, `races`, `bulk_kills`, `fuzz`, `poolers`, `polite`: runs with one question each.

mod bulk_kills;
mod charts;
mod cli;
mod compare;
mod crowd;
mod drain;
mod faults;
mod full_disk;
mod fuzz;
mod history;
mod http;
mod interference;
mod lag;
mod outage;
mod polite;
mod poolers;
mod prober;
mod process;
mod races;
mod readers;
mod record;
mod report;
mod restarts;
mod results;
mod rude;
mod servers;
mod stage;
mod stale;
mod statistics;
mod sweep;
mod tally;
mod tools;
mod workload;
mod writers;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{Check, Cli, Command};
use crate::process::raise_open_files;
use crate::servers::{binary, limit};

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
    if let Command::Limit { address, response } = &cli.command {
        let response = std::fs::read(response).context("the response")?;
        return limit::run(*address, &response).map(|()| true);
    }
    if let Command::Report { runs, output } = &cli.command {
        return charts::report(runs, output.as_deref()).map(|()| true);
    }
    let larder = binary::find(cli.larder.as_deref(), cli.cargo.as_deref())?;
    let seed = cli.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    raise_open_files()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    runtime.block_on(async {
        match &cli.command {
            Command::Compare(args) => compare::run(args, larder, seed, asked_to_end()).await,
            Command::Sweep(args) => sweep::run(args, larder, seed, asked_to_end()).await,
            Command::Check(check) => tokio::select! {
                outcome = answer(check, larder, seed) => outcome,
                ended = asked_to_end() => ended.map(|()| false),
            },
            // Done above: these need neither larder nor a runtime.
            Command::Limit { .. } | Command::Report { .. } => Ok(true),
        }
    })
}

/// Whether everything held.
async fn answer(check: &Check, larder: PathBuf, seed: u64) -> anyhow::Result<bool> {
    match check {
        Check::Stale(args) => stale::run(args, larder, seed).await,
        Check::Kills { count, documents } => {
            restarts::kills(*count, *documents, larder, seed).await
        }
        Check::Corruption { count } => restarts::corruption(*count, larder, seed).await,
        Check::Outage { seconds } => outage::run(Duration::from_secs(*seconds), larder, seed).await,
        Check::FullDisk { seconds } => {
            full_disk::run(Duration::from_secs(*seconds), larder, seed).await
        }
        Check::Crowd(args) => crowd::run(args, larder, seed).await,
        Check::Rude(args) => rude::run(args, larder, seed).await,
        Check::Drain(args) => drain::run(args, larder, seed).await,
        Check::Races(args) => races::run(args, larder, seed).await,
        Check::BulkKills { count } => bulk_kills::run(*count, larder, seed).await,
        Check::Fuzz(args) => fuzz::run(args, larder, seed).await,
        Check::Poolers(args) => poolers::run(args, larder, seed).await,
        Check::Polite(args) => polite::run(args, larder, seed).await,
        Check::Lag { seconds } => lag::run(*seconds, larder, seed).await,
    }
}

/// SIGTERM or SIGINT; all that runs ends with what is dropped then.
async fn asked_to_end() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    bail!("interrupted")
}
