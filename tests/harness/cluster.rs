//! The PostgreSQL of a test run: started once, by the first test that asks for a database.
//!
//! It runs on a thread and a runtime of its own, since each test's runtime ends with the test.
//! A static is never dropped, so a reaper process stops it and removes its directory when this
//! process ends in whatever way: the reaper's stdin then comes to its end.
use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread;

use larder::source::embedded::{Embedded, EmbeddedConfig};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;
use uuid::Uuid;

use crate::harness::reachable_directory;

/// For many tests at once, without durability; workers of subscriptions start without delay. Autovacuum visits each
/// database once in its naptime, and a run has hundreds of them.
const SETTINGS: [(&str, &str); 9] = [
    ("autovacuum_naptime", "10min"),
    ("max_connections", "300"),
    ("fsync", "off"),
    ("wal_level", "logical"),
    ("max_replication_slots", "64"),
    ("max_wal_senders", "64"),
    ("max_worker_processes", "64"),
    ("max_logical_replication_workers", "48"),
    ("wal_retrieve_retry_interval", "100ms"),
];

/// Who may connect: all, without a password, since to check one costs milliseconds, and tests connect thousands of times.
const HBA: &str = "local all all trust\nhost all all 127.0.0.1/32 trust\n";

/// `$1`: the directory to remove. `$2`: the data directory.
const REAPER: &str = r#"
cat > /dev/null
file="$2/postmaster.pid"
[ -e "$file" ] && kill -INT "$(head -n 1 "$file")"
tries=0
while [ -e "$file" ] && [ $tries -lt 300 ]; do sleep 0.1; tries=$((tries + 1)); done
rm -rf "$1" "${2%/cluster/data}"
"#;

/// Starts a PostgreSQL server for one test, with its files below `base`.
pub(crate) async fn start_postgres(base: &Path, settings: &[(&str, &str)]) -> Embedded {
    let settings = settings.iter();
    let config = EmbeddedConfig {
        directory: base.join("postgres"),
        settings: settings
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
    };
    Embedded::start(config).await.unwrap()
}

/// Whether extension pg_stat_statements can be loaded.
pub(crate) async fn has_statement_statistics() -> bool {
    let mut connection = PgConnection::connect(TestCluster::url()).await.unwrap();
    let name =
        "select exists (select from pg_available_extensions where name = 'pg_stat_statements')";
    let is_there = sqlx::query_scalar(name).fetch_one(&mut connection).await;
    connection.close().await.unwrap();
    is_there.unwrap()
}

/// The run's one PostgreSQL.
pub(crate) struct TestCluster {
    /// Of the database `larder`.
    url: String,
    /// The major version.
    version: u32,
    /// Only held: their stdin is open as long as this process lives.
    _reapers: Vec<Child>,
}

/// An empty database of one test's own.
pub(crate) struct TestDatabase {
    /// Complete, of a superuser.
    pub(crate) url: String,
}

/// A process of PostgreSQL, stopped until this is dropped.
pub(crate) struct StoppedProcess(Pid);

impl StoppedProcess {
    pub(crate) fn new(pid: Pid) -> Self {
        kill(pid, Signal::SIGSTOP).unwrap();
        Self(pid)
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        // It may have ended with its server.
        let _ended = kill(self.0, Signal::SIGCONT).is_err();
    }
}

/// A role with no rights of its own; it goes with the cluster.
pub(crate) struct TestRole {
    pub(crate) name: String,
    /// Complete, of the same database.
    pub(crate) url: String,
}

impl TestRole {
    /// Creates a role that may connect to the database at `url`.
    pub(crate) async fn create(url: &str) -> TestRole {
        let name = format!("role_{}", Uuid::new_v4().simple());
        let mut connection = PgConnection::connect(url).await.unwrap();
        let sql = format!("create role {name} login password 'hidden-{name}'");
        sqlx::query(AssertSqlSafe(sql))
            .execute(&mut connection)
            .await
            .unwrap();
        connection.close().await.unwrap();
        let (_, server) = url.split_once('@').unwrap();
        TestRole {
            url: format!("postgres://{name}:hidden-{name}@{server}"),
            name,
        }
    }
}

impl TestCluster {
    /// Creates a database; it goes with the cluster.
    pub(crate) async fn database() -> TestDatabase {
        let cluster = Self::started();
        let name = format!("test_{}", Uuid::new_v4().simple());
        let mut connection = PgConnection::connect(&cluster.url).await.unwrap();
        sqlx::query(AssertSqlSafe(format!("create database {name}")))
            .execute(&mut connection)
            .await
            .unwrap();
        connection.close().await.unwrap();
        let (server, _) = cluster.url.rsplit_once('/').unwrap();
        TestDatabase {
            url: format!("{server}/{name}"),
        }
    }

    /// Complete, of a superuser, and of no test's database.
    pub(crate) fn url() -> &'static str {
        &Self::started().url
    }

    /// The major version.
    pub(crate) fn version() -> u32 {
        Self::started().version
    }

    /// Whether it is of the major version `since` or newer. If not, the test that asks is named as one that leaves out
    /// `what`; `.ci/versions` counts these.
    pub(crate) fn has(since: u32, what: &str) -> bool {
        let version = Self::started().version;
        if version < since {
            let test = thread::current().name().unwrap_or_default().to_owned();
            say(&format!(
                "SKIPPED {test}: PostgreSQL {version} has no {what}, which came with {since}\n"
            ));
        }
        version >= since
    }

    fn started() -> &'static TestCluster {
        static CLUSTER: OnceLock<TestCluster> = OnceLock::new();
        CLUSTER.get_or_init(TestCluster::start)
    }

    fn start() -> TestCluster {
        // The reaper removes it, and must know of it before anything is in it.
        let base = TempDir::keep(reachable_directory());
        let expected = base.join("postgres/cluster/data");
        let mut reapers = vec![reaper(&base, &expected)];
        let (sender, started) = mpsc::channel();
        let directory = base.clone();
        let hba = base.join("hba.conf");
        std::fs::write(&hba, HBA).unwrap();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let hba = ("hba_file", hba.to_str().unwrap());
                let settings = [&SETTINGS[..], &[hba]].concat();
                let embedded = start_postgres(&directory, &settings).await;
                let data = embedded.data_directory().to_owned();
                let connection = PgConnection::connect(embedded.url()).await.unwrap();
                let version = connection.server_version_num().unwrap() / 10_000;
                connection.close().await.unwrap();
                let url = embedded.url().to_owned();
                sender.send((url, data, version)).unwrap();
                std::future::pending::<()>().await;
                drop(embedded);
            });
        });
        let (url, data, version) = started.recv().expect("the test cluster did not start");
        say(&format!("The tests run on PostgreSQL {version}\n"));
        if data != expected {
            reapers.push(reaper(&base, &data));
        }
        TestCluster {
            url,
            version,
            _reapers: reapers,
        }
    }
}

/// Prints a line that is shown also of a test that passes, unlike what `println!` prints.
fn say(line: &str) {
    io::stderr().write_all(line.as_bytes()).unwrap();
}

fn reaper(base: &Path, data: &Path) -> Child {
    use std::os::unix::process::CommandExt;
    Command::new("sh")
        .args(["-c", REAPER, "reaper"])
        .args([base, data])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C ends the tests, and the reaper's work only begins then.
        .process_group(0)
        .spawn()
        .unwrap()
}
