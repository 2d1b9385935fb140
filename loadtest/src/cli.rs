//! What the command line says.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::bench::batches::BatchesArgs;
use crate::bench::compare::CompareArgs;
use crate::bench::dispatch::DispatchArgs;
use crate::bench::posts::PostsArgs;
use crate::bench::reads::ReadsArgs;
use crate::bench::sweep::SweepArgs;
use crate::bench::triggers::TriggersArgs;
use crate::bench::writes::WritesArgs;
use crate::checks::dashboard::DashboardArgs;
use crate::checks::differential_writes::DifferentialWritesArgs;
use crate::checks::drain::DrainArgs;
use crate::checks::faults::Fault;
use crate::checks::fuzz::FuzzArgs;
use crate::checks::hostile_clients::HostileClientsArgs;
use crate::checks::idle_clients::IdleClientsArgs;
use crate::checks::installs::InstallsArgs;
use crate::checks::linearizable::LinearizableArgs;
use crate::checks::poolers::PoolersArgs;
use crate::checks::races::RacesArgs;
use crate::checks::rolling::RollingArgs;
use crate::checks::schemas::SchemasArgs;
use crate::checks::scope::ScopeArgs;
use crate::checks::stale::StaleArgs;
use crate::checks::upgrade::UpgradeArgs;
use crate::labs::indexes::IndexesArgs;
use crate::labs::models::{Model, ModelsArgs};
use crate::labs::workers::WorkersArgs;

/// Measures larder under load, and checks what it promises while everything around it fails.
///
/// Starts all it needs by itself, on loopback and in a temporary directory, and takes it away again.
#[derive(Debug, Parser)]
#[command(name = "loadtest", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// The larder to check; else the one beside this program, which cargo builds first.
    #[arg(long, global = true, hide = true, value_name = "PATH")]
    pub(crate) larder: Option<PathBuf>,
    /// Set by `cargo run`.
    #[arg(long, global = true, hide = true, env = "CARGO", value_name = "PATH")]
    pub(crate) cargo: Option<PathBuf>,
    /// Decides the order of the faults and everything else that is random; printed, so that a run can be repeated.
    #[arg(long, global = true, value_name = "S")]
    pub(crate) seed: Option<u64>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Check(CheckCommand),
    /// How much does larder do, and at what cost, next to the limit of this machine, to others, and to another larder?
    ///
    /// All take turns in one run, servers and wrk pinned to cores: medians of rounds, and ratios with their spread.
    /// With memory the limit is a thread for each core with epoll that sends ready-made bytes of larder's; with
    /// none it is pgbench with the best single-document statement. Exit code 1 where a request had no good answer.
    Compare(CompareArgs),
    /// One question each: cases take turns in one run, and each is divided by another of the same round.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// How many requests, how fast, at what cost, by how many connections, tier by tier?
    ///
    /// Starts larder, fills the tier, and drives it by oha, ab or wrk with random keys, while some answers are checked.
    /// Each run is a folder of raw JSON, commands and machine; what is measured is kept on Ctrl-C too. Exit code 1
    /// where a request had no good answer.
    Sweep(SweepArgs),
    /// What does each kind of index of PostgreSQL give and cost, and does `larder check` propose the best?
    ///
    /// Queries and writes of a table of persons with each kind of index: plans, buffers, WAL, times. Exit code 1 where a
    /// figure that does not depend on the machine, or a proposal, is wrong; proposals are judged if PostgreSQL has hypopg.
    Indexes(IndexesArgs),
    /// Draws runs as one HTML page: sweeps over each other, benchmarks, and `.chart` files. The charts are written as
    /// `report.chart`, too.
    Report {
        /// Folders of runs.
        #[arg(value_name = "DIR", required = true)]
        runs: Vec<PathBuf>,
        /// Where to [default: the first folder]
        #[arg(long, value_name = "DIRECTORY")]
        output: Option<PathBuf>,
    },
    /// What serves a small answer cheapest: threads, select, poll, epoll, io_uring, tokio, hyper, larder, Java NIO?
    ///
    /// All take turns in one run, on the same cores, and send what larder sends. Exit code 1 where one of them failed to
    /// answer a request or a connection that it should have served: with at most 1,000 connections, with larder any number.
    #[command(mut_arg("rounds", |arg| arg.default_value("3")), mut_arg("seconds", |arg| arg.default_value("10")))]
    Models(ModelsArgs),
    /// Which store serves workers best that fetch due rows, send them, and move their due moment forward?
    ///
    /// The same loop over PostgreSQL with several indexes, rows in memory, MariaDB, Redis, and more on demand. Exit code 1
    /// where a store does not match what it should, or the goal of the native method, from 1,000,000 rows on, is missed.
    Workers(WorkersArgs),
    /// Draws `.chart` files as one HTML page: a line with kind and names, then rows of a label and numbers.
    Plot {
        /// A file, or a directory with files in it and in its folders.
        #[arg(value_name = "FILE|DIRECTORY")]
        input: PathBuf,
        /// Where to [default: FILE.html, or plot.html in the directory]
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Serves as a model, as `models` and `compare` run it, until stdin ends.
    #[command(hide = true)]
    Contender {
        model: Model,
        /// A file of head and body.
        response: PathBuf,
        /// Make the JSON of the body for each request.
        #[arg(long)]
        rendered: bool,
    },
}

/// A question with figures for an answer.
///
/// Each run is a folder of raw JSON, commands and machine; what is measured is kept on Ctrl-C too. Exit code 1 where a
/// request had no good answer, or the servers did not do what was measured.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// What do documents cost that are written through larder, next to the same rows by pgbench and COPY?
    Posts(PostsArgs),
    /// Rows that larder dispatch delivers, next to the loop that it replaces.
    Dispatch(DispatchArgs),
    /// What do HTTP/2, 304, lists and a storm of invalidations cost next to a GET of each document over HTTP/1.1?
    Reads(ReadsArgs),
    /// Do hits in memory stall while the disk tier writes batches?
    Batches(BatchesArgs),
    /// What do larder's triggers cost transactions that write to its tables?
    Triggers(TriggersArgs),
    /// What does each kind of write cost, with triggers of users and without, next to another larder?
    Writes(WritesArgs),
}

/// A question with yes or no for an answer.
#[derive(Debug, Subcommand)]
pub(crate) enum CheckCommand {
    /// Is any answer older than max_staleness, or not what one snapshot held?
    ///
    /// Exit code 1 on any such answer, where the tiers answered too little of the quiet times' reads to prove anything,
    /// and where a fault was not injected.
    #[command(after_help = format!("Faults:\n{}", Fault::list()))]
    Stale(StaleArgs),
    /// Records strict reads and writes of single keys beside SIGKILL and lost links: is the history linearizable?
    ///
    /// `.ci/linearizable` has Porcupine say so.
    Linearizable(LinearizableArgs),
    /// SIGKILL under churn, over a warm disk tier: is every restart ready within 2 s, and nothing stale or corrupt?
    Kills {
        /// How many.
        #[arg(long, value_name = "N", default_value_t = 200)]
        count: u32,
        /// Documents in the tables.
        #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1_000..))]
        documents: u32,
    },
    /// One mutation of the disk tier's files for each start: is any wrong byte served?
    ///
    /// Every tenth start is a control without a mutation, which disk must answer.
    Corruption {
        /// How many mutations.
        #[arg(long, value_name = "N", default_value_t = 500)]
        count: u32,
    },
    /// PostgreSQL out of reach for long, while documents change: is anything stale, and is larder back at once?
    Outage {
        /// How long.
        #[arg(long, value_name = "N", default_value_t = 600)]
        seconds: u64,
    },
    /// The disk tier's file system is full for a while: does any read fail, and is the tier back? Needs root.
    FullDisk {
        /// How long.
        #[arg(long, value_name = "N", default_value_t = 30)]
        seconds: u64,
    },
    /// Thousands of idle connections and of slowloris: do hits stay fast, are the slow ones closed, what does each cost?
    IdleClients(IdleClientsArgs),
    /// Clients that open, reset, half-close, send garbage, never read, or ask for much memory: does anything panic, do hits
    /// stay fast, is memory bounded and back afterwards?
    HostileClients(HostileClientsArgs),
    /// SIGTERM under a fixed rate of requests: is each that was sent answered, and is larder done within 10 s?
    Drain(DrainArgs),
    /// Rolling restarts of two larders behind nginx, under a constant rate of GET: does each get its document?
    ///
    /// Needs Debian's nginx-light. Exit code 1 where any request had no good answer.
    Rolling(RollingArgs),
    /// Two larders of an older version, on one database, are replaced by this one and put back, under reads and writes: is any
    /// answer stale, and does any write fail?
    ///
    /// Tells what each of them says in every state, as while both versions run.
    Upgrade(UpgradeArgs),
    /// 64 clients change one document by GET and PUT with If-Match: is any update lost?
    Races(RacesArgs),
    /// SIGKILL of larder during bulk writes: is each transaction there as a whole or not at all, and is none lost?
    BulkKills {
        /// How many.
        #[arg(long, value_name = "N", default_value_t = 20)]
        count: u32,
    },
    /// Drawn writes to drawn schemas with triggers and constraints: is the database, and each status, as if an expert had
    /// run plain statements in one transaction?
    ///
    /// Schema number I of a run has seed S + I; `--seed` of a printed difference and `--schemas 1` repeat it.
    DifferentialWrites(DifferentialWritesArgs),
    /// Documents with owners, conditions and aliases: does anybody see, or learn of, what is not its own?
    ///
    /// Schema number I of a run has seed S + I; `--seed` of a printed difference and `--schemas 1` repeat it.
    Scope(ScopeArgs),
    /// `larder check` on the schemas of seven applications: is what it finds mended by its SQL, and used by PostgreSQL?
    ///
    /// `.ci/schemas` gets the schemas. Each is checked with empty and with filled tables. Exit code 1 where anything is
    /// found once all SQL was run, where both differ, and where an index that was asked for is not used.
    Schemas(SchemasArgs),
    /// The dashboard in a browser: does it show what happens, explain and purge a key, and refuse pages of other origins?
    ///
    /// Needs Debian's chromium and chromium-driver. A thousand resources, hostile keys, a page of another origin; first paint,
    /// size and cost are compared with their goals.
    Dashboard(DashboardArgs),
    /// Requests and configurations out of pieces of valid ones: does anything panic, or answer 500?
    Fuzz(FuzzArgs),
    /// pgbouncer in between, in its settings and not: is each answer of its own resource, or does larder say why it refuses?
    ///
    /// Needs Debian's pgbouncer. Session, transaction and statement mode, with what each ignores, while it is paused,
    /// reconnected and restarted.
    Poolers(PoolersArgs),
    /// Installing, uninstalling and reconfiguring beside writers: does any of their transactions fail, or wait long?
    ///
    /// Installs, attaches of a table below another, changes of keys_per_statement, and uninstalls take turns. Writers
    /// take the tables in every order.
    Installs(InstallsArgs),
    /// Does each alert of contrib/prometheus fire for its cause, and none before? Has each panel of contrib/grafana data?
    ///
    /// Needs Debian's prometheus. The rules get seconds for minutes; each cause is provoked: the feed's connections pass
    /// nothing, a column is dropped, a table is locked, and so on.
    Alerts,
    /// How long after a commit is its document no longer served, beside full read load?
    Lag {
        /// For each rate of commits, with the bell and without.
        #[arg(long, value_name = "N", default_value_t = 15)]
        seconds: u64,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_unknown_fault_is_wrong_usage_and_lists_the_known() {
        let wrong = Cli::try_parse_from(["loadtest", "stale", "--faults", "rain"]).unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::ValueValidation);
        assert_eq!(wrong.exit_code(), 2);
        let text = wrong.to_string();
        assert!(Fault::ALL.iter().all(|fault| text.contains(fault.name())));
    }
}
