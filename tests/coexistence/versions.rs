//! Versions of larder that share a database, one after the other or at the same time.

use axum::http::StatusCode;
use tempfile::TempDir;

use super::schema_damage::is_cached;
use crate::command::{configured, value};
use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::larder_process::{run, stderr, stdout};
use crate::harness::programs::run_program;
use crate::harness::service::{TestService, execute};

const SQL: &str =
    "create table a (id int primary key, name text); insert into a values (1, 'first')";
const CONFIG: &str = "[[resource]]\nname = 'a'\ntable = 'a'\n";
const OLDEST_SCHEMA: &str = include_str!("schema-0.1.sql");

/// What a later larder does to a schema that it upgrades, besides changing tables.
const LATER: &str = "create or replace function larder.version() returns int \
      language sql immutable parallel safe as 'select 1000'; \
    update larder.epoch set nonce = gen_random_uuid()";
/// What it might change.
const LATER_TABLE: &str = "alter table larder.node add column later int";
/// How this larder names it.
const NAMED: &str = "schema larder has version 1000 of a later larder";

const VERSION: &str = "select larder.version()";

/// A larder follows the database at `url`.
async fn is_followed(url: &str) {
    execute(url, "update a set name = 'second'").await;
    let larder = TestService::start_on(url, CONFIG, &[]).await;
    is_cached(&larder, "second").await;
    execute(url, "update a set name = 'third'").await;
    is_cached(&larder, "third").await;
    assert_eq!(value::<i32>(url, VERSION).await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_schema_is_upgraded_also_out_of_a_dump() {
    let url = TestCluster::database().await.url;
    execute(&url, &[SQL, OLDEST_SCHEMA].join(";\n")).await;
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("dump");
    let file = file.to_str().unwrap();
    run_program(&url, "pg_dump", &["--format=custom", "--file", file, &url]).await;
    is_followed(&url).await;
    let restored = TestCluster::database().await.url;
    let restore = ["--exit-on-error", "--dbname", &restored, file];
    run_program(&url, "pg_restore", &restore).await;
    is_followed(&restored).await;
    let logged = "select relpersistence::text from pg_class where oid = 'larder.change'::regclass";
    assert_eq!(value::<String>(&restored, logged).await, "u");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_version_of_the_schema_is_upgraded() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    TestService::start_on(&url, CONFIG, &[]).await.stop().await;
    let older = "drop domain larder.row_security_state; drop function larder.row_security(text); \
        create or replace function larder.version() returns int language sql immutable parallel safe as 'select 2'";
    execute(&url, older).await;
    is_followed(&url).await;
}

/// Two versions that both created the tables again would take turns at that, and neither would answer from a tier.
#[tokio::test(flavor = "multi_thread")]
async fn a_later_version_is_named_and_left_alone() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let larder = TestService::start_on(&url, CONFIG, &[]).await;
    is_cached(&larder, "first").await;
    execute(&url, &[LATER_TABLE, LATER].join("; ")).await;
    eventually("it is named", async || {
        let ready = larder.admin("/readyz").await;
        (ready.status == StatusCode::SERVICE_UNAVAILABLE && ready.body.contains(NAMED))
            .then_some(())
    })
    .await;
    let status = larder.admin("/status").await.json();
    let lost = status["feed"]["lost"].as_str().unwrap();
    assert!(lost.contains(NAMED), "{status}");
    // PostgreSQL answers.
    execute(&url, "update a set name = 'second'").await;
    eventually("the change", async || {
        let answer = larder.get("/a/1").await;
        (answer.status == StatusCode::OK && answer.body.contains("second")).then_some(())
    })
    .await;
    larder.stop().await;
    let directory = configured(CONFIG);
    for (arguments, code) in [
        (&["install"][..], 1),
        (&["install", "--print"], 1),
        (&["uninstall"], 1),
        (&["check"], 1),
    ] {
        let output = run(directory.path(), Some(&url), arguments).await;
        let said = stdout(&output) + &stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?} {said}");
        assert!(said.contains(NAMED), "{arguments:?} {said}");
    }
    let unchanged = "select count(*) from pg_attribute where attrelid = 'larder.node'::regclass and attname = 'later'";
    assert_eq!(value::<i64>(&url, unchanged).await, 1);
    // As the later larder does it.
    execute(&url, "drop schema larder cascade").await;
    is_followed(&url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_version_that_changes_no_table_is_used() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let larder = TestService::start_on(&url, CONFIG, &[]).await;
    is_cached(&larder, "first").await;
    execute(&url, LATER).await;
    for name in ["second", "third"] {
        execute(&url, &format!("update a set name = '{name}'")).await;
        is_cached(&larder, name).await;
    }
    assert_eq!(larder.admin("/readyz").await.status, StatusCode::OK);
    larder.stop().await;
    let other = TestService::start_on(&url, CONFIG, &[]).await;
    is_cached(&other, "third").await;
    assert_eq!(value::<i32>(&url, VERSION).await, 1000);
}
