//! What the command line says.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand};

use crate::bench::rivals::Rival;
use crate::bench::sweep::driver::ToolName;
use crate::checks::faults::{Fault, Faults};
use crate::checks::fuzz;
use crate::harness::demo::Tier;

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
    Check(Check),
    /// How much does larder do, and at what cost, next to the limit of this machine, to others, and to another larder?
    ///
    /// All take turns in one run, servers and wrk pinned to cores: medians of rounds, and ratios with their spread.
    /// With memory the limit is a server of one thread, epoll and ready-made bytes that sends what larder sends; with
    /// none it is pgbench with the best single-document statement. Exit code 1 where a request had no good answer.
    Compare(CompareArgs),
    /// How many requests, how fast, at what cost, by how many connections, tier by tier?
    ///
    /// Starts larder, fills the tier, and drives it by oha, ab or wrk with random keys, while some answers are checked.
    /// Each run is a folder of raw JSON, commands and machine; what is measured is kept on Ctrl-C too. Exit code 1
    /// where a request had no good answer.
    Sweep(SweepArgs),
    /// Draws sweeps: one HTML page and SVG files. Several are laid over each other, the first one solid.
    Report {
        /// Folders of sweeps.
        #[arg(value_name = "DIR", required = true)]
        runs: Vec<PathBuf>,
        /// Where to [default: the first folder]
        #[arg(long, value_name = "DIRECTORY")]
        output: Option<PathBuf>,
    },
    /// The practical limit, as `compare` runs it.
    #[command(hide = true)]
    Limit {
        address: SocketAddr,
        /// A file of head and body.
        response: PathBuf,
    },
}

/// A question with yes or no for an answer.
#[derive(Debug, Subcommand)]
pub(crate) enum Check {
    /// Is any answer older than max_staleness, or not what one snapshot held?
    ///
    /// Exit code 1 on any such answer, where the tiers answered too little of the quiet times' reads to prove anything,
    /// and where a fault was not injected.
    #[command(after_help = format!("Faults:\n{}", Fault::list()))]
    Stale(StaleArgs),
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
    Crowd(CrowdArgs),
    /// Clients that open, reset, half-close, send garbage, never read: does anything panic, is memory back afterwards?
    Rude(RudeArgs),
    /// SIGTERM under a fixed rate of requests: is each that was sent answered, and is larder done within 10 s?
    Drain(DrainArgs),
    /// 64 clients change one document by GET and PUT with If-Match: is any update lost?
    Races(RacesArgs),
    /// SIGKILL of larder during bulk writes: is each transaction there as a whole or not at all, and is none lost?
    BulkKills {
        /// How many.
        #[arg(long, value_name = "N", default_value_t = 20)]
        count: u32,
    },
    /// Requests and configurations out of pieces of valid ones: does anything panic, or answer 500?
    Fuzz(FuzzArgs),
    /// pgbouncer in between, told of and not: is each answer of its own resource, or does larder say why it refuses?
    ///
    /// Needs Debian's pgbouncer. Session, transaction and statement mode, with what each ignores, while it is paused,
    /// reconnected and restarted.
    Poolers(PoolersArgs),
    /// Installing, uninstalling and reconfiguring beside writers: does any of their transactions fail, or wait long?
    ///
    /// Installs, attaches of a table below another, changes of keys_per_statement, and uninstalls take turns. Writers
    /// take the tables in every order.
    Polite(PoliteArgs),
    /// How long after a commit is its document no longer served, beside full read load?
    Lag {
        /// For each rate of commits, with the bell and without.
        #[arg(long, value_name = "N", default_value_t = 15)]
        seconds: u64,
    },
}

/// How long, and what goes wrong meanwhile.
#[derive(Args, Clone, Debug)]
pub(crate) struct StaleArgs {
    /// How long to check; every fault once takes about 230 s.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(5..))]
    pub(crate) seconds: u64,
    /// Names of faults, separated by commas; or all, or none.
    #[arg(long, value_name = "LIST", default_value = "all")]
    pub(crate) faults: Faults,
    /// Fail where fewer reads were checked.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) reads: u64,
}

/// The crowd, and how long hits are measured beside it.
#[derive(Args, Clone, Debug)]
pub(crate) struct CrowdArgs {
    /// Connections that have asked once and idle.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) idle: usize,
    /// Connections that send their request a byte a second, and come again when they are closed.
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    pub(crate) slow: usize,
    /// Of each measurement; slow connections have to be closed within 10 s.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u64).range(12..=50))]
    pub(crate) seconds: u64,
    /// Measurements without and with the crowd.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) rounds: usize,
}

/// How long clients are rude, twice.
#[derive(Args, Clone, Debug)]
pub(crate) struct RudeArgs {
    /// Of each time.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: u64,
}

/// How many updates are tried.
#[derive(Args, Clone, Debug)]
pub(crate) struct RacesArgs {
    /// In each, all clients replace the same version.
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub(crate) rounds: u64,
    /// Acknowledged ones, each by whichever client is the first.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) updates: u64,
}

/// How long each arrangement is under load.
#[derive(Args, Clone, Debug)]
pub(crate) struct PoolersArgs {
    /// Of each arrangement that serves.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: u64,
    /// Fail where fewer documents of one resource were compared.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) answers: u64,
}

/// How often larder comes, changes and goes.
#[derive(Args, Clone, Debug)]
pub(crate) struct PoliteArgs {
    /// Installs, attaches, reconfigurations and uninstalls together.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) count: usize,
    /// Connections that write all the time.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = RangedU64ValueParser::<usize>::new().range(1..=40))]
    pub(crate) writers: usize,
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
    pub(crate) targets: Vec<fuzz::Target>,
    /// Of each.
    #[arg(long, value_name = "N", default_value_t = 600)]
    pub(crate) seconds: u64,
}

/// How much is asked, and how often larder is ended.
#[derive(Args, Clone, Debug)]
pub(crate) struct DrainArgs {
    /// Requests.
    #[arg(long, value_name = "N", default_value_t = 5_000.0)]
    pub(crate) per_second: f64,
    /// Starts and ends of larder.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) rounds: usize,
}

/// The documents, the cores, and where figures are kept.
#[derive(Args, Clone, Debug)]
pub(crate) struct TrialArgs {
    /// Documents, each of a dept and ten emps, about 1.7 kB.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) depts: u32,
    /// Cores of the servers, as taskset takes them; larder has a worker for each. PostgreSQL keeps to none.
    #[arg(long, value_name = "LIST", default_value = "0")]
    pub(crate) server_cores: String,
    /// Cores of the tool that makes the load.
    #[arg(long, value_name = "LIST", default_value = "1")]
    pub(crate) tool_cores: String,
    /// Names the run's folder, after the date.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Where that folder is made [default: loadtest/results]
    #[arg(long, value_name = "DIRECTORY", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/results"), hide_default_value = true)]
    pub(crate) results: PathBuf,
}

impl TrialArgs {
    /// Of servers and tools.
    pub(crate) fn all_cores(&self) -> String {
        format!("{},{}", self.server_cores, self.tool_cores)
    }
}

/// Who is compared, and how often.
#[derive(Args, Clone, Debug)]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    pub(crate) trial: TrialArgs,
    /// The one tier in use, a larder for each.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "memory"
    )]
    pub(crate) tiers: Vec<Tier>,
    /// Connections at once, one measurement after the other.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "128", value_parser = connections)]
    pub(crate) connections: Vec<usize>,
    /// Requests that wrk sends at once on a connection.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000))]
    pub(crate) pipeline: usize,
    /// Turns of each.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) rounds: usize,
    /// Of each turn; some thousand connections take seconds of it until all of them are open.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: u64,
    /// Ask the first larder also by If-None-Match.
    #[arg(long)]
    pub(crate) not_modified: bool,
    /// Another binary of larder, compared with this one tier by tier.
    #[arg(long, value_name = "PATH")]
    pub(crate) against: Option<PathBuf>,
    /// Other servers, where they are installed: nginx with one document ready-made, nginx with a file for each
    /// document, Varnish in front of larder.
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',')]
    pub(crate) with: Vec<Rival>,
}

/// What is measured, and by which tool.
#[derive(Args, Clone, Debug)]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    pub(crate) trial: TrialArgs,
    /// What makes the load; it must be installed. ab can ask for one document only.
    #[arg(long, value_enum, default_value_t = ToolName::Oha, value_name = "TOOL")]
    pub(crate) tool: ToolName,
    /// Connections at once, one measurement after the other.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8,16,128,512,2048,4096", value_parser = connections)]
    pub(crate) concurrency: Vec<usize>,
    /// The one tier in use, one larder after the other.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "none,disk,memory"
    )]
    pub(crate) tiers: Vec<Tier>,
    /// Of each measurement, with oha and ab.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: u64,
    /// Of each measurement, with wrk, which counts time.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: u64,
    /// A larder that runs already with the demo tables, such as http://127.0.0.1:8080, instead of one of this program's
    /// own.
    #[arg(long, value_name = "URL", conflicts_with = "tiers")]
    pub(crate) url: Option<String>,
}

fn connections(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(count @ 1..=100_000) => Ok(count),
        _ => Err("expected a number from 1 to 100000".to_owned()),
    }
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
