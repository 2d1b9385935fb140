//! A model as a process of its own, for as long as its stdin is open.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

use crate::harness::process::{find_program, pinned};
use crate::labs::models::model::{BACKLOG, Model, POOL_THREADS};
use crate::labs::models::request::{HEAD_BYTES_MAX, READ_BYTES};

const JAVA_INSTALL: &str = "on Debian: apt-get install default-jdk-headless";

/// A server that answers every request with a file. Starting and stopping it have no limit of time here: the caller sets one.
pub(crate) struct Contender {
    pub(crate) address: SocketAddr,
    pub(crate) pid: Pid,
    pub(crate) child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
    /// What it writes to stderr.
    log: PathBuf,
}

impl Contender {
    /// Starts `model` on `cores` with `response`, a file of head and body, and waits until it listens.
    ///
    /// # Errors
    /// It can't be run, or ends: with what it wrote to stderr.
    pub(crate) async fn start(
        model: Model,
        cores: &str,
        response: &Path,
        is_rendered: bool,
    ) -> anyhow::Result<Self> {
        let mut command = if let Some(selector) = model.java_selector() {
            let source = response.with_file_name("Nio.java");
            std::fs::write(&source, include_str!("Nio.java"))?;
            let numbers = [BACKLOG.into(), POOL_THREADS, READ_BYTES, HEAD_BYTES_MAX];
            let mut command = pinned(Some(cores), find_program("java", JAVA_INSTALL)?);
            command.arg(source).arg(response).arg(selector);
            command.args(numbers.map(|number| number.to_string()));
            command
        } else {
            let mut command = pinned(Some(cores), std::env::current_exe()?);
            command.args(["contender", &model.name()]).arg(response);
            command.args(is_rendered.then_some("--rendered"));
            command
        };
        let name = model.name();
        let log = response.with_file_name("contender.log");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let pid = child.id().context("the server ended")?;
        let stdout = child.stdout.take().context("no stdout")?;
        let mut stdout = BufReader::new(stdout).lines();
        let Some(line) = stdout.next_line().await? else {
            bail!("{name}: {}", std::fs::read_to_string(log)?.trim_end());
        };
        Ok(Self {
            address: line.parse().context("the address of the server")?,
            pid: Pid::from_raw(i32::try_from(pid)?),
            child,
            stdout,
            log,
        })
    }

    /// Stops it; returns how many connections it closed without an answer.
    pub(crate) async fn stop(mut self) -> anyhow::Result<u64> {
        drop(self.child.stdin.take());
        let refused = self.stdout.next_line().await?;
        self.child.wait().await?;
        let Some(refused) = refused else {
            let log = std::fs::read_to_string(self.log)?;
            bail!("the server ended before it was stopped: {}", log.trim_end());
        };
        Ok(refused.parse()?)
    }
}
