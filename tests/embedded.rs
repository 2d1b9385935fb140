//! The private PostgreSQL: start, crash, a killed larder, stop.
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;

use larder::source::embedded::{Embedded, EmbeddedConfig, EmbeddedError};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::{Connection, PgConnection};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::harness::{eventually, reachable_directory};

/// Tells the helper process of `killed_larder_leaves_no_second_server` where to start.
const DIRECTORY_VARIABLE: &str = "LARDER_TEST_EMBEDDED_DIRECTORY";

fn config(directory: &Path) -> EmbeddedConfig {
    EmbeddedConfig {
        directory: directory.join("postgres"),
        settings: vec![("fsync".to_owned(), "off".to_owned())],
    }
}

fn postmaster(data: &Path) -> Option<Pid> {
    let text = fs::read_to_string(data.join("postmaster.pid")).ok()?;
    Some(Pid::from_raw(text.lines().next()?.parse().ok()?))
}

fn is_gone(pid: Pid) -> bool {
    // A killed orphan stays a zombie if no process waits for it.
    let command_line = fs::read(format!("/proc/{pid}/cmdline"));
    kill(pid, None) == Err(Errno::ESRCH) || command_line.is_ok_and(|text| text.is_empty())
}

/// The postmaster and its children, as far as /proc tells.
fn processes(data: &Path) -> Vec<Pid> {
    let postmaster = postmaster(data).unwrap();
    let children = fs::read_dir("/proc").into_iter().flatten().flatten();
    let children = children.filter_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        // proc(5): pid (name) state parent ...
        let stat = fs::read_to_string(process.path().join("stat")).ok()?;
        let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?;
        (parent == postmaster.to_string()).then_some(Pid::from_raw(pid))
    });
    children.chain([postmaster]).collect()
}

fn are_gone(processes: &[Pid]) -> bool {
    processes.iter().all(|pid| is_gone(*pid))
}

async fn query(url: &str) -> Result<i32, sqlx::Error> {
    let mut connection = PgConnection::connect(url).await?;
    let answer = sqlx::query_scalar("select 42")
        .fetch_one(&mut connection)
        .await;
    connection.close().await?;
    answer
}

/// Leaves a process of the server computing for 2 s, deaf to the postmaster's death.
async fn occupy_backend(url: &str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    tokio::spawn(async move {
        let result = sqlx::raw_sql(
            "do $$ declare until timestamptz := clock_timestamp() + interval '2 s';
             begin while clock_timestamp() < until loop end loop; end $$",
        );
        // It fails at last: its postmaster is gone.
        result.execute(&mut connection).await.ok();
    });
    let mut observer = PgConnection::connect(url).await.unwrap();
    eventually("the backend is busy", async || {
        let busy: i64 = sqlx::query_scalar(
            "select count(*) from pg_stat_activity where state = 'active' and query like 'do %'",
        )
        .fetch_one(&mut observer)
        .await
        .unwrap();
        (busy > 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn answers_until_it_is_stopped_and_leaves_no_process() {
    let directory = reachable_directory();
    // What a larder killed during initdb leaves.
    let unfinished = directory.path().join("postgres/cluster.new-unfinished");
    fs::create_dir_all(unfinished.join("data")).unwrap();
    let durable = EmbeddedConfig {
        directory: directory.path().join("postgres"),
        settings: Vec::new(),
    };

    let embedded = Embedded::start(durable).await.unwrap();
    let (url, data) = (
        embedded.url().to_owned(),
        embedded.data_directory().to_owned(),
    );
    assert_eq!(query(&url).await.unwrap(), 42);
    assert!(!unfinished.exists());
    let running = processes(&data);
    embedded.stop().await;

    assert!(are_gone(&running));
    query(&url).await.unwrap_err();

    let again = Embedded::start(config(directory.path())).await.unwrap();
    assert_eq!(again.url(), url, "a free port is kept");
    assert_eq!(query(again.url()).await.unwrap(), 42);
    again.stop().await;
}

/// `copy … from program 'env'` showed the variables of larder, secrets among them.
#[tokio::test]
async fn the_server_gets_a_clean_environment() {
    let directory = reachable_directory();
    let embedded = Embedded::start(config(directory.path())).await.unwrap();
    let mut connection = PgConnection::connect(embedded.url()).await.unwrap();
    sqlx::raw_sql("create temp table variable (line text); copy variable from program 'env'")
        .execute(&mut connection)
        .await
        .unwrap();
    let lines: Vec<String> = sqlx::query_scalar("select line from variable")
        .fetch_all(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    embedded.stop().await;

    // cargo sets CARGO_MANIFEST_DIR and others for every test.
    assert!(
        !lines.iter().any(|line| line.starts_with("CARGO_")),
        "{lines:?}"
    );
    assert!(lines.iter().any(|line| line.starts_with("PATH=")));
}

#[tokio::test]
async fn psql_takes_the_url_and_asks_for_no_password() {
    let directory = reachable_directory();
    let embedded = Embedded::start(config(directory.path())).await.unwrap();
    let output = Command::new("psql")
        .args(["--no-password", "-At", "-c"])
        .arg("select current_user, current_database(), current_setting('server_encoding')")
        .arg(embedded.url())
        .env_remove("PGPASSWORD")
        .env("PGPASSFILE", "/nonexistent")
        .output()
        .await;
    // A machine without psql proves nothing either way.
    if let Ok(output) = output {
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "larder|larder|UTF8\n"
        );
    }
    let wrong = embedded.url().replacen("larder:", "larder:not", 1);
    query(&wrong).await.unwrap_err();
    embedded.stop().await;
}

/// A killed postmaster leaves processes that notice only when they next wait; the shared memory
/// is theirs until then, and a new server refuses to start.
#[tokio::test]
async fn killed_postmaster_is_started_again_on_the_same_url() {
    let directory = reachable_directory();
    let embedded = Embedded::start(config(directory.path())).await.unwrap();
    occupy_backend(embedded.url()).await;

    let killed = postmaster(embedded.data_directory()).unwrap();
    kill(killed, Signal::SIGKILL).unwrap();
    eventually("another postmaster answers", async || {
        let pid = postmaster(embedded.data_directory())?;
        (pid != killed && query(embedded.url()).await.ok()? == 42).then_some(())
    })
    .await;
    let data = embedded.data_directory().to_owned();
    let running = processes(&data);
    embedded.stop().await;
    assert!(are_gone(&running));
}

/// The other process of the next test.
#[tokio::test]
#[ignore = "killed_larder_leaves_no_second_server runs it in a process of its own"]
async fn larder_to_be_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY_VARIABLE) else {
        return;
    };
    let embedded = Embedded::start(config(Path::new(&directory)))
        .await
        .unwrap();
    let mut connection = PgConnection::connect(embedded.url()).await.unwrap();
    sqlx::raw_sql("create table kept (); insert into kept default values")
        .execute(&mut connection)
        .await
        .unwrap();
    eprintln!("started {}", embedded.url());
    std::future::pending::<()>().await;
}

/// Returns the URL of the server that is left over.
async fn start_and_kill_larder(directory: &Path) -> String {
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "embedded::larder_to_be_killed"])
        .args(["--ignored", "--nocapture"])
        .env(DIRECTORY_VARIABLE, directory)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(other.stderr.take().unwrap()).lines();
    let url = loop {
        let line = lines.next_line().await.unwrap().unwrap();
        if let Some(url) = line.strip_prefix("started ") {
            break url.to_owned();
        }
    };
    other.kill().await.unwrap();
    url
}

#[tokio::test]
async fn killed_larder_leaves_no_second_server() {
    let directory = reachable_directory();
    start_and_kill_larder(directory.path()).await;
    let data = directory.path().join("postgres/cluster/data");
    let left_over = postmaster(&data).unwrap();
    assert!(!is_gone(left_over));

    let embedded = Embedded::start(config(directory.path())).await.unwrap();
    assert!(is_gone(left_over));
    let mut connection = PgConnection::connect(embedded.url()).await.unwrap();
    let kept: i64 = sqlx::query_scalar("select count(*) from kept")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(kept, 1);
    drop(connection);
    let running = processes(&data);
    embedded.stop().await;
    assert!(are_gone(&running));
}

#[tokio::test]
async fn processes_of_a_killed_server_are_waited_for() {
    let directory = reachable_directory();
    let url = start_and_kill_larder(directory.path()).await;
    let data = directory.path().join("postgres/cluster/data");
    occupy_backend(&url).await;
    let killed = postmaster(&data).unwrap();
    let running = processes(&data);
    kill(killed, Signal::SIGKILL).unwrap();
    eventually("the postmaster is gone", async || {
        is_gone(killed).then_some(())
    })
    .await;

    let embedded = Embedded::start(config(directory.path())).await.unwrap();
    assert_eq!(query(embedded.url()).await.unwrap(), 42);
    // A process lets go of the memory a moment before it is gone.
    eventually("the old processes are gone", async || {
        are_gone(&running).then_some(())
    })
    .await;
    embedded.stop().await;
}

/// After a container's restart the process id in the file is often that of another program.
#[tokio::test]
async fn pid_file_that_names_another_process_is_no_server() {
    let directory = reachable_directory();
    let embedded = Embedded::start(config(directory.path())).await.unwrap();
    let data = embedded.data_directory().to_owned();
    embedded.stop().await;
    // PostgreSQL takes only processes of its own user for its predecessors.
    let owner = fs::metadata(&data).unwrap();
    let mut command = Command::new("sleep");
    command.arg("600").kill_on_drop(true);
    if owner.uid() != fs::metadata(directory.path()).unwrap().uid() {
        command.uid(owner.uid());
    }
    let other = command.spawn().unwrap();
    let content = format!("{}\n{}\n", other.id().unwrap(), data.display());
    fs::write(data.join("postmaster.pid"), content).unwrap();

    let embedded = Embedded::start(config(directory.path())).await.unwrap();
    assert_eq!(query(embedded.url()).await.unwrap(), 42);
    embedded.stop().await;
}

#[tokio::test]
async fn failed_start_quotes_the_log() {
    let directory = reachable_directory();
    let mut config = config(directory.path());
    config
        .settings
        .push(("no_such_setting".to_owned(), "1".to_owned()));
    let error = Embedded::start(config).await.unwrap_err();
    assert!(matches!(error, EmbeddedError::Ended { .. }));
    assert!(error.to_string().contains("no_such_setting"), "{error}");
}

#[tokio::test]
async fn data_of_another_major_version_is_refused() {
    let directory = reachable_directory();
    let data = directory.path().join("postgres/cluster/data");
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("PG_VERSION"), "7\n").unwrap();
    let error = Embedded::start(config(directory.path())).await.unwrap_err();
    assert!(error.to_string().contains("PostgreSQL 7"), "{error}");
}
