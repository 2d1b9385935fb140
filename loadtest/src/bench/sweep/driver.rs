//! The tool that makes the load of a sweep.

use std::net::SocketAddr;
use std::path::Path;

use crate::bench::sweep::SweepArgs;
use crate::harness::tools::ab::{self, Ab};
use crate::harness::tools::oha::{self, Oha};
use crate::harness::tools::wrk::{self, Wrk, WrkRequest, WrkRun};
use crate::harness::tools::{Invocation, Measured};

/// Its name.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum ToolName {
    Oha,
    Ab,
    Wrk,
}

impl ToolName {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Oha => "oha",
            Self::Ab => "ab",
            Self::Wrk => "wrk",
        }
    }
}

/// The tool, found and told what does not change in a sweep.
pub(crate) struct Driver {
    tool: Tool,
    depts: u32,
    requests: u64,
    seconds: u64,
    seed: u64,
}

enum Tool {
    Oha(Oha),
    Ab(Ab),
    Wrk(Wrk),
}

impl Driver {
    /// # Errors
    /// Where the tool is not installed, with the command that installs it.
    pub(crate) fn find(args: &SweepArgs, directory: &Path, seed: u64) -> anyhow::Result<Self> {
        let (cores, depts) = (&args.cores.tool_cores, args.depts);
        Ok(Self {
            tool: match args.tool {
                ToolName::Oha => Tool::Oha(Oha::new(directory, cores)?),
                ToolName::Ab => Tool::Ab(Ab::new(directory, cores)?),
                ToolName::Wrk => Tool::Wrk(Wrk::new(directory, cores, depts)?),
            },
            depts,
            requests: args.requests,
            seconds: args.seconds,
            seed,
        })
    }

    pub(crate) fn program(&self) -> &Path {
        match &self.tool {
            Tool::Oha(oha) => oha.program(),
            Tool::Ab(ab) => ab.program(),
            Tool::Wrk(wrk) => wrk.program(),
        }
    }

    pub(crate) fn version_flag(&self) -> &'static str {
        match self.tool {
            Tool::Ab(_) => "-V",
            Tool::Oha(_) | Tool::Wrk(_) => "--version",
        }
    }

    /// What has to be there before `target` is asked; returns commands that do the same.
    pub(crate) fn prepare(&self, target: SocketAddr) -> anyhow::Result<Vec<String>> {
        match &self.tool {
            Tool::Oha(oha) => Ok(vec![oha.prepare(target, self.depts)?]),
            Tool::Ab(_) | Tool::Wrk(_) => Ok(Vec::new()),
        }
    }

    pub(crate) fn invocation(&self, target: SocketAddr, connections: usize) -> Invocation {
        match &self.tool {
            Tool::Oha(oha) => oha.invocation(connections, self.requests),
            Tool::Ab(ab) => {
                ab.invocation(target, self.depts.div_ceil(2), connections, self.requests)
            }
            Tool::Wrk(wrk) => wrk.invocation(&WrkRun {
                target,
                connections,
                seconds: self.seconds,
                pipeline: 1,
                seed: self.seed,
                request: WrkRequest::DOCUMENTS,
            }),
        }
    }

    /// Reads the output of its last run.
    pub(crate) fn parse(&self, output: &str) -> anyhow::Result<Measured> {
        match &self.tool {
            Tool::Oha(_) => oha::parse(output),
            Tool::Ab(ab) => ab::parse(output, &ab.times()?),
            Tool::Wrk(_) => wrk::parse(output),
        }
    }
}
