//! A larder: the real binary as a process of its own, as a user runs it.

use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::harness::http;
use crate::harness::process::{self, pinned};

/// For opening the tiers, installing triggers and a first pass; a proxy may have been silent until just before.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// For a command, which may wait for locks of other sessions.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);
const END_TIMEOUT: Duration = Duration::from_secs(40);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// What a larder is started with.
#[derive(Clone, Debug)]
pub(crate) struct LarderConfig {
    pub(crate) binary: PathBuf,
    /// Contains the configuration file, the log and the state directory.
    pub(crate) directory: PathBuf,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) url: String,
    pub(crate) listen_url: String,
    pub(crate) memory_bytes: u64,
    /// The rest of the configuration file: sections and resources.
    pub(crate) settings: String,
    /// Further arguments of `larder serve`.
    pub(crate) arguments: Vec<String>,
    /// The cores that it runs on, as a list for `taskset`; `None`: all.
    pub(crate) cores: Option<String>,
    /// Environment variables of its process.
    pub(crate) environment: Vec<(String, String)>,
}

/// A larder, running or stopped.
pub(crate) struct Larder {
    pub(crate) config: LarderConfig,
    child: Option<Child>,
}

/// In `/status`, the state of resources that are not followed yet.
const LACKS_TRIGGERS: &str = "lacks triggers of larder";

impl Larder {
    /// Creates its directory; starts no process.
    pub(crate) fn new(config: LarderConfig) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&config.directory)?;
        Ok(Self {
            config,
            child: None,
        })
    }

    /// The directory of the disk tier.
    pub(crate) fn disk(&self) -> PathBuf {
        self.config.directory.join("state/disk")
    }

    /// The file of its log.
    pub(crate) fn log(&self) -> PathBuf {
        self.config.directory.join("log")
    }

    /// Runs a command on the same configuration, to its end.
    pub(crate) async fn command(&self, name: &str) -> anyhow::Result<()> {
        let file = self.write_file()?;
        let mut command = Command::new(&self.config.binary);
        command
            .args([name, "--config"])
            .arg(file)
            .current_dir(&self.config.directory)
            .env_clear()
            .kill_on_drop(true);
        let ended = tokio::time::timeout(COMMAND_TIMEOUT, command.output()).await;
        let output = ended.with_context(|| format!("larder {name} does not end"))??;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("larder {name} ended with {}:\n{said}", output.status);
        }
        Ok(())
    }

    fn write_file(&self) -> anyhow::Result<PathBuf> {
        let file = self.config.directory.join("larder.toml");
        let written = std::fs::write(&file, toml(&self.config));
        written.with_context(|| format!("{}", file.display()))?;
        Ok(file)
    }

    /// Starts the process, without waiting for anything.
    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        let file = self.write_file()?;
        let config = &self.config;
        let log = open_log(&self.log())?;
        let mut command = pinned(config.cores.as_deref(), &config.binary);
        command
            .arg("serve")
            .args(&config.arguments)
            .arg("--config")
            .arg(&file)
            .current_dir(&config.directory)
            .env_clear()
            .envs(config.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            // Ctrl-C in a terminal ends this program, which then ends larder.
            .process_group(0)
            .kill_on_drop(true);
        let child = command
            .spawn()
            .with_context(|| format!("{} can't be run", config.binary.display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// Starts the process and waits until `/readyz` says so; returns how long that took.
    pub(crate) async fn start_ready(&mut self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        self.start()?;
        self.ready().await?;
        Ok(began.elapsed())
    }

    /// Waits until `/readyz` says so, and `/status` of all resources, whether or not they are cached.
    pub(crate) async fn ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_TIMEOUT;
        let mut reason = String::from("no answer");
        while Instant::now() < deadline {
            match http::get(self.config.admin, "/readyz").await {
                Ok((200, text)) if text.trim() == "ready" || self.all_fit().await => return Ok(()),
                Ok((_, text)) => text.trim().clone_into(&mut reason),
                Err(error) => reason = error.to_string(),
            }
            if let Some(child) = &mut self.child
                && let Some(status) = child.try_wait()?
            {
                bail!("larder ended ({status}), see its log:\n{}", self.log_end());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        bail!("larder is not ready after {READY_TIMEOUT:?}: {reason}")
    }

    /// Whether `/status` says of no resource that it is not ready.
    async fn all_fit(&self) -> bool {
        let status = http::get(self.config.admin, "/status").await;
        status.is_ok_and(|(status, text)| {
            let text: String = text.split_whitespace().collect();
            status == 200 && !text.contains(r#""ready":false"#)
        })
    }

    /// Waits at most `limit` until `/status` says that the tiers keep the documents of every resource.
    pub(crate) async fn cached(&self, limit: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if let Ok((200, text)) = http::get(self.config.admin, "/status").await
                && !text.contains(LACKS_TRIGGERS)
            {
                return Ok(());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        bail!("after {limit:?} larder still does not cache all resources")
    }

    /// Whether `/status` says that the disk tier is in use.
    pub(crate) async fn ready_disk(&self) -> bool {
        let status = http::get(self.config.admin, "/status").await;
        // "disk": {"in_use": true, ...}
        status.is_ok_and(|(_, text)| {
            let text: String = text.split_whitespace().collect();
            text.contains(r#""disk":{"in_use":true"#)
        })
    }

    /// How many entries the disk tier holds, by `/status`.
    pub(crate) async fn disk_entries(&self) -> anyhow::Result<u64> {
        let (_, text) = http::get(self.config.admin, "/status").await?;
        let (_, disk) = text.split_once("\"disk\"").context("no disk tier")?;
        let (_, entries) = disk.split_once("\"entries\":").context("no entries")?;
        let digits: String = entries
            .trim_start()
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        digits.parse().context("entries")
    }

    /// Its command line, without its directory and its database.
    pub(crate) fn shown(&self) -> String {
        let config = &self.config;
        let variables = config
            .environment
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        let mut words: Vec<String> = variables.collect();
        words.push(format!("LARDER_MEMORY__MAX_BYTES={}B", config.memory_bytes));
        words.extend(
            config
                .cores
                .iter()
                .map(|cores| format!("taskset --cpu-list {cores}")),
        );
        words.push("larder serve".to_owned());
        words.extend(config.arguments.iter().cloned());
        words.join(" ")
    }

    /// Resident memory of its process, in bytes.
    pub(crate) fn resident_bytes(&self) -> anyhow::Result<u64> {
        process::resident_bytes(self.pid()?)
    }

    /// The most resident memory that its process has had, in bytes.
    pub(crate) fn peak_resident_bytes(&self) -> anyhow::Result<u64> {
        process::peak_resident_bytes(self.pid()?)
    }

    pub(crate) fn pid(&self) -> anyhow::Result<Pid> {
        let pid = self.child.as_ref().and_then(Child::id);
        let pid = i32::try_from(pid.context("larder does not run")?)?;
        Ok(Pid::from_raw(pid))
    }

    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill(self.pid()?, signal)?)
    }

    /// SIGKILL, and waits for the end.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().await?;
        }
        Ok(())
    }

    /// SIGTERM, and waits for the end.
    pub(crate) async fn terminate(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::SIGTERM)?;
        if let Some(mut child) = self.child.take() {
            let ended = tokio::time::timeout(END_TIMEOUT, child.wait()).await;
            let status = ended.context("larder does not end")??;
            if !status.success() {
                bail!("larder ended with {status}:\n{}", self.log_end());
            }
        }
        Ok(())
    }

    fn log_end(&self) -> String {
        let text = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

fn open_log(path: &Path) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.create(true).append(true).open(path);
    file.with_context(|| format!("{}", path.display()))
}

fn toml(config: &LarderConfig) -> String {
    let LarderConfig {
        directory,
        listen,
        admin,
        url,
        listen_url,
        ..
    } = config;
    format!(
        "listen = '{listen}'\nadmin = '{admin}'\nstate_dir = '{state}'\n\
         [database]\nurl = '{url}'\nlisten_url = '{listen_url}'\n\
         [memory]\nmax_bytes = '{memory}B'\n{settings}",
        state = directory.join("state").display(),
        memory = config.memory_bytes,
        settings = config.settings,
    )
}
