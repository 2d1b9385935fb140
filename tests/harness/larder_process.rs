//! The built binary as a user runs it, in a directory and an environment of its own.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use axum::http::StatusCode;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};

use crate::harness::eventually;
use crate::harness::raw_http::fetch;

/// No command takes longer, however busy the machine.
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// `larder` with `args` in `directory`; of the environment only the path is left.
pub(crate) fn command(directory: &Path, url: Option<&str>, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.args(args).current_dir(directory).env_clear();
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    if let Some(url) = url {
        command.env("DATABASE_URL", url);
    }
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// Runs `larder` to its end.
pub(crate) async fn run(directory: &Path, url: Option<&str>, args: &[&str]) -> Output {
    let output = command(directory, url, args).output();
    let output = tokio::time::timeout(COMMAND_TIMEOUT, output).await;
    output.expect("the command hangs").unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A running `larder serve` on free ports.
pub(crate) struct LarderProcess {
    pub(crate) child: Child,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// What it printed, up to the addresses.
    pub(crate) banner: String,
    /// Kept open: a closed pipe is the case of another test.
    _stdout: Option<BufReader<ChildStdout>>,
}

impl LarderProcess {
    /// Starts it and waits for what it prints; its log goes to `larder.log` in `directory`.
    pub(crate) async fn start(directory: &Path, url: Option<&str>, args: &[&str]) -> Self {
        let mut all = vec!["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        all.extend_from_slice(args);
        let log = std::fs::File::create(directory.join("larder.log")).unwrap();
        let mut child = command(directory, url, &all)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        // The last command is one for the admin address, which has no `-i`.
        while !banner.contains("curl 'http") {
            let read = tokio::time::timeout(COMMAND_TIMEOUT, stdout.read_line(&mut banner)).await;
            if read.expect("no banner").unwrap() == 0 {
                let log = std::fs::read_to_string(directory.join("larder.log")).unwrap();
                panic!("larder ended at its start: {log}");
            }
        }
        let plain = banner.replace("https://", "http://");
        let mut addresses = plain.split("http://").skip(1).map(|rest| {
            let end = rest.find([',', '\n', '/']).unwrap();
            rest[..end].parse().unwrap()
        });
        Self {
            listen: addresses.next().unwrap(),
            admin: addresses.next().unwrap(),
            child,
            banner,
            _stdout: Some(stdout),
        }
    }

    /// Starts it with a closed stdout, and waits until both addresses accept connections: it prints its addresses only
    /// when its database is there.
    pub(crate) async fn start_without_stdout(directory: &Path, url: &str) -> Self {
        let reserved = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [listen, admin] = reserved.map(|listener| listener.local_addr().unwrap());
        let (public, private) = (listen.to_string(), admin.to_string());
        let args = ["--listen", &public, "--admin", &private];
        let mut child = command(directory, Some(url), &args)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        for address in [listen, admin] {
            eventually("it listens", async || {
                TcpStream::connect(address).await.ok().map(drop)
            })
            .await;
        }
        Self {
            child,
            listen,
            admin,
            banner: String::new(),
            _stdout: None,
        }
    }

    /// Waits until `/readyz` says so.
    pub(crate) async fn ready(&self) {
        eventually("ready", async || {
            let answer = fetch(self.admin, "GET", "/readyz").await;
            (answer.status == StatusCode::OK).then_some(())
        })
        .await;
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// Waits for its end.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let ended = tokio::time::timeout(COMMAND_TIMEOUT, self.child.wait()).await;
        ended.expect("larder does not end").unwrap()
    }

    /// SIGTERM, and how it ended.
    pub(crate) async fn terminate(mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.ended().await
    }
}
