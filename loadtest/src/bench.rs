//! What is measured, and next to what.

pub(crate) mod compare;
pub(crate) mod limit;
pub(crate) mod other_servers;
pub(crate) mod sweep;

use std::path::PathBuf;

use clap::Args;

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

/// A number of connections.
pub(crate) fn connections(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(count @ 1..=100_000) => Ok(count),
        _ => Err("expected a number from 1 to 100000".to_owned()),
    }
}
