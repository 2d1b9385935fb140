//! Queues that `larder dispatch` is compared with: programs in `queues/`, each with its own client of PostgreSQL.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use tokio::process::Command;
use tokio::time::timeout;

use crate::harness::process::find_program;

const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/dispatch/queues");
/// Of a command that prepares, fills or works.
const COMMAND_MAX: Duration = Duration::from_secs(1_800);

/// A queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    GraphileWorker,
    PgBoss,
    Pgmq,
    River,
}

/// The programs, with all that they need.
pub(super) struct Queues(PathBuf);

/// What a program prints after it has worked.
#[derive(Deserialize)]
struct Worked {
    seconds: f64,
}

impl Queues {
    /// Copies the programs to a folder below `directory`, and fetches what they need.
    pub(super) async fn prepare(directory: &Path) -> Result<Self> {
        let queues = Self(directory.join("queues"));
        let copied = Command::new("cp")
            .args(["-r", PROGRAMS])
            .arg(&queues.0)
            .status()
            .await?;
        ensure!(copied.success(), "{PROGRAMS} can't be copied");
        for (program, install, arguments) in [
            (
                "npm",
                "on Debian: apt-get install npm",
                "ci --silent --no-audit --no-fund",
            ),
            (
                "python3",
                "on Debian: apt-get install python3-pip",
                "-m pip install --quiet --no-deps --target . pgmq==1.1.4",
            ),
            (
                "go",
                "on Debian: apt-get install golang",
                "build -C river -o river .",
            ),
        ] {
            let program = find_program(program, install)?;
            queues.run(&program, arguments.split(' ')).await?;
        }
        Ok(queues)
    }

    /// Fills a queue of the database at `url` with `jobs` jobs.
    pub(super) async fn fill(&self, queue: Queue, url: &str, jobs: u32) -> Result<()> {
        self.command(queue, "fill", url, jobs).await.map(drop)
    }

    /// Works a queue off; returns the time from the first fetch to the last completion.
    pub(super) async fn work(&self, queue: Queue, url: &str, jobs: u32) -> Result<Duration> {
        let printed = self.command(queue, "work", url, jobs).await?;
        let worked: Worked = serde_json::from_str(printed.lines().last().unwrap_or_default())
            .with_context(|| format!("{queue:?} printed {printed:?}"))?;
        Ok(Duration::from_secs_f64(worked.seconds))
    }

    async fn command(&self, queue: Queue, name: &str, url: &str, jobs: u32) -> Result<String> {
        let jobs = jobs.to_string();
        let arguments = [name, url, &jobs];
        let script = match queue {
            Queue::River => return self.run(&self.0.join("river/river"), arguments).await,
            Queue::GraphileWorker => "graphile-worker.mjs",
            Queue::PgBoss => "pg-boss.mjs",
            Queue::Pgmq => "pgmq.mjs",
        };
        let node = self.0.join("node_modules/.bin/node");
        self.run(&node, [script].into_iter().chain(arguments)).await
    }

    async fn run(
        &self,
        program: &Path,
        arguments: impl IntoIterator<Item = &str>,
    ) -> Result<String> {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(&self.0)
            .kill_on_drop(true);
        let shown = format!("{command:?}");
        let output = timeout(COMMAND_MAX, command.output()).await;
        let output = output.with_context(|| format!("{shown} does not end"))??;
        let told = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{shown}: {}: {told}",
            output.status
        );
        Ok(String::from_utf8(output.stdout)?)
    }
}
