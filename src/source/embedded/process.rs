//! The process of the private PostgreSQL, from its start to its end.
//!
//! It is a child of larder, so that larder learns of its end at once and reaps it. A server that `pg_ctl` starts is a
//! child of the init process (docs/decisions/0011-own-code.md).
use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{ConnectOptions, Connection, PgConnection};
use tokio::process::Child;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::source::embedded::binaries::Binaries;
use crate::source::embedded::cluster::{Cluster, last_lines};
use crate::source::embedded::home::Home;
use crate::source::embedded::{EmbeddedError, NAME, leftover};

/// Below the range of outgoing ports, so that the port is still free at the next start.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
const PORT_TRIES_MAX: usize = 100;
/// `sun_path` holds 108 bytes, the last of which is zero (unix(7)).
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// A start may include the recovery after a crash.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long the child processes of a killed server may hold its shared memory.
const ORPHANS_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// The signals of a fast and of an immediate shutdown, and SIGKILL for a suspended process, each with the time to wait.
const STOP_SIGNALS: [(Signal, Duration); 3] = [
    (Signal::SIGINT, Duration::from_secs(30)),
    (Signal::SIGQUIT, Duration::from_secs(10)),
    (Signal::SIGKILL, Duration::from_secs(5)),
];
/// The number of lines of the log that an error quotes.
const LOG_LINES_MAX: usize = 20;

/// The private PostgreSQL, whether it runs or not.
#[derive(Debug)]
pub(super) struct PrivateServer {
    home: Home,
    program: PathBuf,
    cluster: Cluster,
    port: u16,
    settings: Vec<(String, String)>,
}

impl PrivateServer {
    /// Does not start it yet. Uses the port of the last run if that is free.
    pub(super) fn new(
        home: Home,
        binaries: &Binaries,
        cluster: Cluster,
        settings: Vec<(String, String)>,
    ) -> PrivateServer {
        let last_port = fs::read_to_string(home.directory.join("port"))
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .filter(|port| PORTS.contains(port) && is_free(*port));
        PrivateServer {
            home,
            program: binaries.postgres(),
            cluster,
            port: last_port.unwrap_or_else(free_port),
            settings,
        }
    }

    /// Its data directory.
    pub(super) fn data(&self) -> &Path {
        &self.cluster.data
    }

    /// The URL of a database in it.
    pub(super) fn url(&self, database: &str) -> String {
        let (password, port) = (&self.cluster.password, self.port);
        format!("postgres://{NAME}:{password}@127.0.0.1:{port}/{database}")
    }

    /// Starts the server and waits until it accepts a connection. Tries again with another port if another program has
    /// taken this one meanwhile, and while the child processes of a killed server end.
    pub(super) async fn start(&mut self) -> Result<ServerProcess, EmbeddedError> {
        let deadline = Instant::now() + ORPHANS_TIMEOUT;
        let mut unclean = false;
        loop {
            // Kept from the first attempt, which may remove the file that shows it.
            unclean |= leftover::stop(&self.cluster.data).await?;
            let mut process = self.spawn()?;
            match process.wait_until_ready(self).await {
                Ok(()) => {
                    self.store_port();
                    return Ok(process);
                }
                Err(error) => {
                    process.stop().await;
                    let port_taken = !is_free(self.port);
                    // The server of a larder that was killed while starting may create its lock file late.
                    let has_leftover = leftover::has_lock_file(&self.cluster.data);
                    if Instant::now() >= deadline || !(unclean || port_taken || has_leftover) {
                        return Err(error);
                    }
                    if port_taken {
                        self.port = free_port();
                    }
                }
            }
            sleep(RETRY_INTERVAL).await;
        }
    }

    /// Starts the process. Does not wait until it accepts connections.
    pub(super) fn spawn(&self) -> Result<ServerProcess, EmbeddedError> {
        let log = self.open_log()?;
        let errors = log
            .try_clone()
            .map_err(EmbeddedError::io("open", &self.log_path()))?;
        let mut command = self.home.command(&self.program);
        command
            .arg("-D")
            .arg(&self.cluster.data)
            .args(["-c", "listen_addresses=127.0.0.1"])
            .args(["-c", &format!("port={}", self.port)])
            .args(["-c", "cluster_name=larder"])
            .args(["-c", "logging_collector=off"])
            .args([
                "-c",
                &format!("unix_socket_directories={}", self.socket_directory()),
            ])
            // Ctrl-C in a terminal must reach larder alone, which drains before it stops the server.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors);
        for (name, value) in &self.settings {
            command.args(["-c", &format!("{name}={value}")]);
        }
        let child = command
            .spawn()
            .map_err(EmbeddedError::io("run", &self.program))?;
        Ok(ServerProcess { child })
    }

    /// A connection to the database that every cluster has.
    pub(super) async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(self.port)
            .username(NAME)
            .password(&self.cluster.password)
            .database("postgres")
            .ssl_mode(PgSslMode::Disable)
            .connect()
            .await
    }

    /// The value of `unix_socket_directories`. Empty, for no socket, if the path would be too long.
    fn socket_directory(&self) -> String {
        let directory = &self.home.directory;
        let socket = directory.join(format!(".s.PGSQL.{}", self.port));
        let fits = socket.as_os_str().as_bytes().len() <= SOCKET_PATH_BYTES_MAX;
        // The setting is a list, quoted like identifiers.
        match directory.to_str() {
            Some(text) if fits => format!("\"{}\"", text.replace('"', "\"\"")),
            _ => String::new(),
        }
    }

    fn log_path(&self) -> PathBuf {
        self.home.directory.join("log")
    }

    /// Begins a new log. The one before is kept, since it may show the reason of a crash.
    fn open_log(&self) -> Result<File, EmbeddedError> {
        let path = self.log_path();
        fs::rename(&path, path.with_extension("old")).ok();
        // Follows no link: the server's user may create one here, and larder may run as root.
        File::create_new(&path).map_err(EmbeddedError::io("create", &path))
    }

    fn log_tail(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        last_lines(&String::from_utf8_lossy(&bytes), LOG_LINES_MAX)
    }

    fn store_port(&self) {
        let path = self.home.directory.join("port");
        fs::remove_file(&path).ok();
        let result = File::create_new(&path).and_then(|mut file| write!(file, "{}", self.port));
        if let Err(error) = result {
            tracing::warn!(%error, "the port could not be stored; the next start may use another one");
        }
    }
}

/// A running server. Dropping it stops the server, without waiting for its end.
#[derive(Debug)]
pub(super) struct ServerProcess {
    child: Child,
}

impl ServerProcess {
    /// Waits until the server accepts a connection, for at most 60 s.
    ///
    /// Cancel safe: the server goes on starting.
    pub(super) async fn wait_until_ready(
        &mut self,
        server: &PrivateServer,
    ) -> Result<(), EmbeddedError> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let ended = self.child.try_wait();
            if let Some(status) = ended.map_err(EmbeddedError::io("watch", &server.program))? {
                return Err(EmbeddedError::Ended {
                    status,
                    log: server.log_path(),
                    tail: server.log_tail(),
                });
            }
            let reason = match timeout(CONNECT_TIMEOUT, server.connect()).await {
                Ok(Ok(connection)) => {
                    connection.close().await.ok();
                    return Ok(());
                }
                Ok(Err(error)) => error.to_string(),
                Err(elapsed) => elapsed.to_string(),
            };
            if Instant::now() >= deadline {
                return Err(EmbeddedError::NoResponse {
                    reason,
                    log: server.log_path(),
                    tail: server.log_tail(),
                });
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits for its end. Cancel safe.
    pub(super) async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Stops it in fast mode; by force if that takes too long.
    pub(super) async fn stop(mut self) {
        for (signal, wait_max) in STOP_SIGNALS {
            self.signal(signal);
            match timeout(wait_max, self.child.wait()).await {
                Ok(_) => return,
                Err(_) => tracing::warn!(%signal, "the private PostgreSQL does not stop"),
            }
        }
    }

    fn signal(&self, signal: Signal) {
        // There is no number once it has ended and was reaped.
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid
            && let Err(error) = kill(Pid::from_raw(pid), signal)
        {
            tracing::warn!(pid, %signal, %error, "could not signal the private PostgreSQL");
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.signal(Signal::SIGINT);
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// A free port. If another program takes it before the server does, the start fails and is tried again.
fn free_port() -> u16 {
    let width = u128::from(PORTS.end - PORTS.start);
    (0..PORT_TRIES_MAX)
        .filter_map(|_| u16::try_from(Uuid::new_v4().as_u128() % width).ok())
        .map(|offset| PORTS.start + offset)
        .find(|port| is_free(*port))
        .unwrap_or(PORTS.start)
}
