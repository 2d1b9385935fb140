//! What `larder serve` logs of itself, of tables that are altered, and of slow loads.

use std::path::Path;

use axum::http::StatusCode;
use tempfile::TempDir;

use super::configured;
use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::larder_process::LarderProcess;
use crate::harness::raw_http::fetch;
use crate::harness::service::execute;
use crate::harness::table_locks::{await_waiter, lock_table, unlock};

const SCHEMA: &str = "create table item (id text primary key, title text);
    insert into item values ('1', 'one')";

const ITEMS: &str = "[[resource]]\nname = 'items'\ntable = 'item'\n";

/// The log so far.
fn log(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("larder.log")).unwrap()
}

/// Waits for a line with all of `parts`.
async fn logged(directory: &TempDir, parts: &[&str]) {
    eventually(&format!("a line with {parts:?}"), async || {
        let log = log(directory.path());
        let mut lines = log.lines();
        lines
            .any(|line| parts.iter().all(|part| line.contains(part)))
            .then_some(())
    })
    .await;
}

async fn start(config: &str) -> (TempDir, String, LarderProcess) {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let directory = configured(&format!("{config}{ITEMS}"));
    let secret = format!("{url}?password=not-to-be-logged");
    let serving = LarderProcess::start(directory.path(), Some(&secret), &[]).await;
    serving.ready().await;
    (directory, url, serving)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_lines_say_what_larder_is_and_reaches_without_a_password() {
    let (directory, url, serving) = start("").await;
    let (_, database) = url.rsplit_once('/').unwrap();
    let starting = ["starting", env!("CARGO_PKG_VERSION"), "larder.toml"];
    logged(&directory, &starting).await;
    let listen = serving.listen.to_string();
    logged(&directory, &["starting", database, &listen, r#"["items"]"#]).await;
    logged(&directory, &[" ready", "resources=1", "unfit=0"]).await;
    assert_eq!(serving.terminate().await.code(), Some(0));
    assert!(!log(directory.path()).contains("not-to-be-logged"));
}

/// Without `fields` a renamed column renames the member, and clients that read the old name find nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_renamed_or_gets_another_type_is_logged() {
    let (directory, url, serving) = start("").await;
    execute(&url, "alter table item rename title to label").await;
    logged(
        &directory,
        &[
            "a table was altered",
            "items",
            r#"gained=["label: column label text"]"#,
            r#"lost=["title: column title text"]"#,
        ],
    )
    .await;
    execute(&url, "alter table item alter label type varchar(9)").await;
    let changed = "label: column label text -> column label character varying(9)";
    logged(&directory, &["a table was altered", changed]).await;
    assert_eq!(serving.terminate().await.code(), Some(0));
}

/// Loads a document that waits for a lock; returns the log of that.
async fn slow_load(log_slow: &str) -> String {
    let (directory, url, serving) = start(&format!("log_slow = '{log_slow}'\n")).await;
    let mut holder = lock_table(&url, "item").await;
    let listen = serving.listen;
    let waiting = tokio::spawn(async move { fetch(listen, "GET", "/items/a%0A%E2%80%AEb").await });
    await_waiter(&mut holder, "item").await;
    unlock(holder).await;
    let answer = waiting.await.unwrap();
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    assert_eq!(serving.terminate().await.code(), Some(0));
    log(directory.path())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_load_is_logged_with_its_key_in_one_line() {
    let log = slow_load("1ms").await;
    let line = log.lines().find(|line| line.contains("slow load"));
    let line = line.unwrap_or_else(|| panic!("no slow load: {log}"));
    for part in [
        "items",
        r#"keys=["a\n\u{202e}b"]"#,
        "count=1",
        "waited=",
        "in_postgres=",
        "suppressed=0",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_log_slow_0s_no_load_is_slow() {
    assert!(!slow_load("0s").await.contains("slow load"));
}

/// PostgreSQL's message repeats a value that is no number: line breaks in it forged lines of the log, and a long one filled
/// it, at each request.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_in_a_message_forges_no_line_and_fills_no_log() {
    let url = TestCluster::database().await.url;
    let rows = "create table item (id text primary key, title text);
        insert into item values ('1', 'x\nFORGED\u{202e}' || repeat('y', 1000000))";
    execute(&url, rows).await;
    let directory = configured(&format!("{ITEMS}where = 'title::integer > 0'\n"));
    let serving = LarderProcess::start(directory.path(), Some(&url), &[]).await;
    serving.ready().await;
    let answer = fetch(serving.listen, "GET", "/items/1").await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    logged(
        &directory,
        &["a request failed (500)", r#""x\nFORGED\u{202e}y"#],
    )
    .await;
    let recent = fetch(serving.admin, "GET", "/recent").await;
    assert!(recent.body.contains("error 22P02\""), "{}", recent.body);
    assert_eq!(serving.terminate().await.code(), Some(0));
    let log = log(directory.path());
    assert!(log.lines().all(|line| !line.starts_with("FORGED")));
    assert!(log.len() < 100_000, "{} bytes", log.len());
}
