//! The load generators: their command lines and their reports.

pub(crate) mod ab;
pub(crate) mod h2load;
pub(crate) mod oha;
pub(crate) mod pgbench;
pub(crate) mod wrk;

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use tokio::process::Child;

use crate::harness::process::pinned;

/// The result of a run of a tool.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Measured {
    pub(crate) requests: u64,
    /// Requests without a good answer.
    pub(crate) errors: u64,
    pub(crate) per_second: f64,
    pub(crate) mean_ms: f64,
    /// If the tool reports them.
    pub(crate) times: Option<Latencies>,
}

/// How long requests took, in milliseconds.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Latencies {
    pub(crate) p50_ms: f64,
    pub(crate) p90_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
}

/// A program with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Invocation {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// As a list for `taskset`; `None`: all.
    pub(crate) cores: Option<String>,
    /// Its working directory, so that files are named without a path.
    pub(crate) directory: PathBuf,
}

impl Invocation {
    /// The command line as it would be typed.
    pub(crate) fn shown(&self) -> String {
        let name = self.program.file_name().unwrap_or_default();
        let mut words = vec![name.to_string_lossy().into_owned()];
        if let Some(cores) = &self.cores {
            words.insert(0, format!("taskset --cpu-list {cores}"));
        }
        let plain = |word: &str| {
            word.chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_./:=,".contains(c))
        };
        words.extend(self.arguments.iter().map(|word| {
            if word.starts_with("postgres://") {
                // It contains a password.
                "$DATABASE_URL".to_owned()
            } else if plain(word) {
                word.clone()
            } else {
                format!("'{word}'")
            }
        }));
        words.join(" ")
    }

    /// Starts it as a server, which ends when it is dropped; its stderr goes to the file that [`Self::log`] reads.
    pub(crate) fn start(&self) -> anyhow::Result<Child> {
        let log = File::create(self.log())?;
        pinned(self.cores.as_deref(), &self.program)
            .args(&self.arguments)
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("running {}", self.program.display()))
    }

    /// What it wrote to stderr as a server.
    pub(crate) fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// Runs it and returns its stdout. If the future is dropped, the program ends.
    ///
    /// # Errors
    /// If it can't be run or fails, with its stderr.
    pub(crate) async fn run(&self) -> anyhow::Result<String> {
        Ok(self.run_both().await?.0)
    }

    /// Like [`Self::run`], but for stderr as well.
    pub(crate) async fn run_both(&self) -> anyhow::Result<(String, String)> {
        let output = pinned(self.cores.as_deref(), &self.program)
            .args(&self.arguments)
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            // Ctrl-C in a terminal ends this program, which then ends the tool.
            .process_group(0)
            .kill_on_drop(true)
            .output()
            .await
            .with_context(|| format!("running {}", self.program.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            output.status.success(),
            "{}: {}\n{text}{complaints}",
            self.shown(),
            output.status
        );
        Ok((text, complaints))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invocation(program: &str, arguments: &[&str]) -> Invocation {
        Invocation {
            program: PathBuf::from(program),
            arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
            cores: None,
            directory: std::env::temp_dir(),
        }
    }

    #[test]
    fn it_is_shown_as_one_would_type_it() {
        let mut tool = invocation("/usr/bin/ab", &["-n", "100", "a b"]);
        assert_eq!(tool.shown(), "ab -n 100 'a b'");
        tool.cores = Some("1".to_owned());
        assert_eq!(tool.shown(), "taskset --cpu-list 1 ab -n 100 'a b'");
    }

    #[tokio::test]
    async fn a_tool_that_fails_is_quoted() {
        let good = invocation("sh", &["-c", "echo 1"]).run().await.unwrap();
        assert_eq!(good, "1\n");
        let error = invocation("sh", &["-c", "echo why >&2; exit 3"])
            .run()
            .await;
        assert!(error.unwrap_err().to_string().contains("why"));
    }
}
