//! A pgbouncer in front of the private PostgreSQL, with the commands of its console.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::str::FromStr;

use anyhow::{Context, bail};
use nix::unistd::User;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection};
use tokio::process::{Child, Command};

use crate::harness::await_listening;
use crate::harness::process::find_program;

/// The user that it runs as where root starts it, since it refuses root.
const UNPRIVILEGED: &str = "nobody";

/// The pool mode: when a server connection goes back to its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolMode {
    Session,
    Transaction,
    Statement,
}

impl PoolMode {
    pub(crate) const ALL: [Self; 3] = [Self::Session, Self::Transaction, Self::Statement];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Transaction => "transaction",
            Self::Statement => "statement",
        }
    }

    /// Small, so that clients share server connections; sessions keep theirs.
    fn pool_size(self) -> usize {
        match self {
            Self::Session => 24,
            Self::Transaction | Self::Statement => 4,
        }
    }
}

/// A running pgbouncer; it ends when dropped.
pub(crate) struct Pgbouncer {
    address: SocketAddr,
    /// The server's URL with pgbouncer's address.
    pub(crate) url: String,
    file: PathBuf,
    child: Child,
}

impl Pgbouncer {
    /// Starts one in front of the server of `url`, with its files in `directory`.
    pub(crate) async fn start(
        url: &str,
        directory: &Path,
        address: SocketAddr,
        mode: PoolMode,
        ignored: &str,
    ) -> anyhow::Result<Self> {
        let (_, rest) = url.split_once("://").context("no URL")?;
        let (credentials, rest) = rest.rsplit_once('@').context("a URL without a user")?;
        let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
        let (server, rest) = rest.split_once('/').context("a URL without a database")?;
        let (host, port) = server.rsplit_once(':').context("a URL without a port")?;
        let database = rest.split('?').next().unwrap_or_default();
        let users = directory.join("users.txt");
        std::fs::write(&users, format!("\"{user}\" \"{password}\"\n"))?;
        let file = directory.join("pgbouncer.ini");
        let text = format!(
            "[databases]\n{database} = host={host} port={port} dbname={database}\n\
             [pgbouncer]\nlisten_addr = {ip}\nlisten_port = {own}\nunix_socket_dir =\n\
             auth_type = trust\nauth_file = {users}\nadmin_users = {user}\n\
             pool_mode = {mode}\ndefault_pool_size = {size}\nmax_client_conn = 200\n\
             ignore_startup_parameters = {ignored}\nlog_connections = 0\nlog_disconnections = 0\n",
            ip = address.ip(),
            own = address.port(),
            users = users.display(),
            mode = mode.as_str(),
            size = mode.pool_size(),
        );
        std::fs::write(&file, text)?;
        let child = spawn(&file, directory)?;
        await_listening(address)
            .await
            .context("pgbouncer does not answer")?;
        Ok(Self {
            address,
            url: format!("postgres://{user}:{password}@{address}/{rest}"),
            file,
            child,
        })
    }

    /// Runs a command on its console, which supports only the simple query protocol.
    pub(crate) async fn command(&self, command: &'static str) -> anyhow::Result<()> {
        let (credentials, _) = self.url.rsplit_once('@').context("a URL without a user")?;
        let url = format!("{credentials}@{}/pgbouncer?sslmode=disable", self.address);
        let options = PgConnectOptions::from_str(&url)?.extra_float_digits(None);
        let mut console = options.disable_statement_logging().connect().await?;
        sqlx::raw_sql(command).execute(&mut console).await?;
        Ok(console.close().await?)
    }

    /// Ends it with all its connections, and starts another one in its place.
    pub(crate) async fn restart(&mut self) -> anyhow::Result<()> {
        self.child.kill().await?;
        let directory = self.file.parent().context("a file without a directory")?;
        self.child = spawn(&self.file, directory)?;
        await_listening(self.address).await
    }
}

fn spawn(file: &Path, directory: &Path) -> anyhow::Result<Child> {
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(directory.join("pgbouncer.log"))?;
    let program = find_program("pgbouncer", "install pgbouncer")?;
    let mut command = std::process::Command::new(program);
    command
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .process_group(0);
    if nix::unistd::geteuid().is_root() {
        let Some(user) = User::from_name(UNPRIVILEGED)? else {
            bail!("there is no user {UNPRIVILEGED}");
        };
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    let mut command = Command::from(command);
    Ok(command.kill_on_drop(true).spawn()?)
}
