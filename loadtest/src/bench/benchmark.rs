//! What a benchmark is, and the arguments that benchmarks have in common.

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::RangedU64ValueParser;

use crate::report::benchmark_report::{Group, Measurement};
use crate::report::results::RunEnvironment;

/// A question that is answered by measuring cases next to each other, turn by turn.
pub(crate) trait Benchmark: Sized {
    /// Names the folder of a run and its file of figures.
    const NAME: &'static str;
    type Args;

    fn run_args(args: &Self::Args) -> &RunArgs;

    /// Finds the tools, starts the servers, fills what has to be filled, and notes programs and binaries.
    async fn prepare(
        args: &Self::Args,
        setup: Setup<'_>,
        environment: &mut RunEnvironment,
    ) -> anyhow::Result<Self>;

    /// On what and how it is measured, in sentences.
    fn conditions(&self) -> String;

    fn groups(&self) -> Vec<Group>;

    /// Measures one case once.
    async fn turn(&mut self, turn: Turn) -> anyhow::Result<Measurement>;

    /// Checks after the last turn that the servers did what was measured.
    async fn verify(&mut self) -> anyhow::Result<()>;

    /// Stops everything in good order.
    async fn shutdown(self) -> anyhow::Result<()>;
}

/// What every benchmark is started with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup<'a> {
    /// Of larder.
    pub(crate) binary: &'a Path,
    pub(crate) seed: u64,
}

/// Which case is measured, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// Place of its group.
    pub(crate) group: usize,
    /// Place of the case in the group.
    pub(crate) case: usize,
    /// From 0.
    pub(crate) round: usize,
    pub(crate) seconds: u64,
}

/// How often, how long, and where figures are kept.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunArgs {
    /// Turns of each case.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000))]
    pub(crate) rounds: usize,
    /// Of each turn; some thousand connections take seconds of it until all of them are open.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) seconds: u64,
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
}

/// Where figures are kept.
#[derive(Args, Clone, Debug)]
pub(crate) struct FolderArgs {
    /// Names the run's folder, after the date.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Where that folder is made [default: loadtest/results]
    #[arg(long, value_name = "DIRECTORY", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/results"), hide_default_value = true)]
    pub(crate) results: PathBuf,
}

/// Which program runs on which cores.
#[derive(Args, Clone, Debug)]
pub(crate) struct CoreArgs {
    /// Cores of the servers, as taskset takes them; larder has a worker for each. PostgreSQL keeps to none.
    #[arg(long, value_name = "LIST", default_value = "0")]
    pub(crate) server_cores: String,
    /// Cores of the tool that makes the load.
    #[arg(long, value_name = "LIST", default_value = "1")]
    pub(crate) tool_cores: String,
}

impl CoreArgs {
    /// Of servers and tools.
    pub(crate) fn all(&self) -> String {
        format!("{},{}", self.server_cores, self.tool_cores)
    }
}

/// A number of connections.
pub(crate) fn connections(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(count @ 1..=100_000) => Ok(count),
        _ => Err("expected a number from 1 to 100000".to_owned()),
    }
}
