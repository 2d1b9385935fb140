//! `larder serve` without `database.url`: it starts and stops the private PostgreSQL.

use std::fs;
use std::path::Path;

use axum::http::StatusCode;
use nix::sys::signal::Signal;

use super::value;
use crate::harness::larder_process::{LarderProcess, run, stderr};
use crate::harness::raw_http::fetch;
use crate::harness::reachable_directory;
use crate::harness::service::execute;

/// The URL that was printed first.
fn printed_url(serving: &LarderProcess) -> String {
    let (_, rest) = serving.banner.split_once("postgres://").unwrap();
    format!("postgres://{}", rest.split_whitespace().next().unwrap())
}

/// The processes of PostgreSQL whose command line names `directory`.
fn processes_below(directory: &Path) -> Vec<String> {
    let directory = directory.to_str().unwrap();
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).into_owned();
        if command.contains("postgres") && command.contains(directory) {
            found.push(command);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn first_run_needs_nothing_and_leaves_nothing_running() {
    let directory = reachable_directory();
    let path = directory.path();
    let serving = LarderProcess::start(path, None, &[]).await;
    let url = printed_url(&serving);
    assert_eq!(value::<i64>(&url, "select count(*) from dept").await, 1_000);
    let (_, tried) = serving.banner.split_once("curl -i 'http://").unwrap();
    let (tried, _) = tried.split_once('\'').unwrap();
    let (_, document) = tried.split_once('/').unwrap();
    let answer = fetch(serving.listen, "GET", &format!("/{document}")).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.json()["emps"].as_array().map(Vec::len), Some(10));
    let status = fetch(serving.admin, "GET", "/status").await;
    assert_eq!(status.status, StatusCode::OK);
    assert!(!processes_below(path).is_empty());

    // A second one is refused before it touches anything.
    let second = run(
        path,
        None,
        &["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"],
    )
    .await;
    assert_eq!(second.status.code(), Some(1));
    let told = stderr(&second);
    assert!(told.contains("in use by another larder"), "{told}");
    let pid = serving.child.id().unwrap().to_string();
    assert!(told.contains(&pid), "{told}");

    let seeded = run(
        path,
        None,
        &["seed", "--depts", "1001", "--emps-per-dept", "1"],
    )
    .await;
    assert_eq!(seeded.status.code(), Some(0), "{}", stderr(&seeded));
    assert_eq!(value::<i64>(&url, "select count(*) from dept").await, 1_001);
    let answer = fetch(serving.listen, "GET", "/depts/1001").await;
    assert_eq!(answer.status, StatusCode::OK);

    assert_eq!(serving.terminate().await.code(), Some(0));
    assert_eq!(processes_below(path), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_larder_starts_again_with_its_rows() {
    let directory = reachable_directory();
    let path = directory.path();
    let mut serving = LarderProcess::start(path, None, &[]).await;
    let url = printed_url(&serving);
    execute(&url, "update dept set dname = 'MINE' where deptno = 1").await;
    serving.signal(Signal::SIGKILL);
    assert_eq!(serving.ended().await.code(), None);

    let serving = LarderProcess::start(path, None, &[]).await;
    serving.ready().await;
    let answer = fetch(serving.listen, "GET", "/depts/1").await;
    assert_eq!(answer.json()["deptName"], "MINE");
    assert_eq!(serving.terminate().await.code(), Some(0));
    assert_eq!(processes_below(path), Vec::<String>::new());
}
