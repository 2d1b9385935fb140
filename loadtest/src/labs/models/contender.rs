//! A model as a process of its own, for as long as its stdin is open.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::harness::process::{find_program, pinned};
use crate::labs::models::model::{BACKLOG, Model};
use crate::labs::models::request::{HEAD_BYTES_MAX, READ_BYTES};
use crate::labs::models::threads::POOL_THREADS;

/// Java compiles its source first.
const START_MAX: Duration = Duration::from_secs(60);
const END_MAX: Duration = Duration::from_secs(20);
const JAVA_SOURCE: &str = include_str!("Nio.java");
const JAVA_SOURCE_NAME: &str = "Nio.java";
const JAVA_INSTALL: &str = "on Debian: apt-get install default-jdk-headless";

/// A server that sends a file to whoever asks.
pub(crate) struct Contender {
    pub(crate) address: SocketAddr,
    pub(crate) child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
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
        let mut command = command(model, cores, response, is_rendered)?;
        let log = response.with_file_name("contender.log");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {}", model.name()))?;
        let stdout = child.stdout.take().context("no stdout")?;
        let mut stdout = BufReader::new(stdout).lines();
        let line = timeout(START_MAX, stdout.next_line()).await;
        let Some(line) = line.with_context(|| format!("{} does not listen", model.name()))?? else {
            let said = std::fs::read_to_string(log).unwrap_or_default();
            bail!("{}: {}", model.name(), said.trim_end());
        };
        Ok(Self {
            address: line
                .parse()
                .with_context(|| format!("{line} is no address"))?,
            child,
            stdout,
        })
    }

    pub(crate) fn pid(&self) -> anyhow::Result<Pid> {
        let pid = self.child.id().context("the server ended")?;
        Ok(Pid::from_raw(i32::try_from(pid)?))
    }

    /// Stops it; returns how many connections it closed without an answer.
    pub(crate) async fn stop(mut self) -> anyhow::Result<u64> {
        drop(self.child.stdin.take());
        let line = timeout(END_MAX, self.stdout.next_line()).await;
        let line = line.context("the server does not end")??;
        timeout(END_MAX, self.child.wait())
            .await
            .context("the server does not end")??;
        let refused = line.context("the server ended before it was stopped")?;
        refused
            .parse()
            .with_context(|| format!("{refused} is no number"))
    }
}

fn command(
    model: Model,
    cores: &str,
    response: &Path,
    is_rendered: bool,
) -> anyhow::Result<Command> {
    let Some(provider) = model.selector_provider() else {
        let mut command = pinned(Some(cores), std::env::current_exe()?);
        command.args(["contender", &model.name()]).arg(response);
        if is_rendered {
            command.arg("--rendered");
        }
        return Ok(command);
    };
    let source = response.with_file_name(JAVA_SOURCE_NAME);
    std::fs::write(&source, JAVA_SOURCE)?;
    let mut command = pinned(Some(cores), find_program("java", JAVA_INSTALL)?);
    command
        .arg(format!(
            "-Djava.nio.channels.spi.SelectorProvider={provider}"
        ))
        .arg(source)
        .arg(response)
        .arg(BACKLOG.to_string())
        .args([POOL_THREADS, READ_BYTES, HEAD_BYTES_MAX].map(|number| number.to_string()));
    Ok(command)
}
