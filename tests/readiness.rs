//! `/readyz`: larder is ready if it can read and write documents, not only follow their changes.

mod roles;

use axum::http::{Method, StatusCode};
use tempfile::TempDir;
use testkit::fault_proxy::{FaultProxy, NetworkFault};

use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::eventually;
use crate::harness::larder_process::LarderProcess;
use crate::harness::raw_http::fetch;
use crate::harness::service::{TestService, execute};
use crate::harness::swapping_pooler::SwappingPooler;

const SQL: &str = "create table item (id int primary key, name text); \
                   insert into item select n, 'first' from generate_series(1, 60) n";

const CONFIG: &str = "[[resource]]\nname = 'items'\ntable = 'item'\n";

const CANNOT_READ: &str = "documents can't be read from PostgreSQL";
const CANNOT_WRITE: &str = "documents can't be written to PostgreSQL";

/// Waits until larder is not ready, and says `reason`.
async fn unready(larder: &TestService, reason: &str) {
    eventually(reason, async || {
        let answer = larder.admin("/readyz").await;
        let is_told = answer.body.contains(reason);
        (answer.status == StatusCode::SERVICE_UNAVAILABLE && is_told).then_some(())
    })
    .await;
}

/// Waits until larder and each of its resources is ready: with one of them larder is ready, too.
async fn ready(larder: &TestService) {
    eventually("ready", async || {
        (larder.admin("/readyz").await.body == "ready\n").then_some(())
    })
    .await;
}

/// `url` led nowhere while `listen_url` was good: larder was ready, and refused each request.
#[tokio::test(flavor = "multi_thread")]
async fn larder_is_ready_while_it_can_read() {
    let direct = TestCluster::database().await.url;
    execute(&direct, SQL).await;
    let proxy = FaultProxy::start(&direct).await.unwrap();
    proxy.set(NetworkFault::Cut);
    let settings = [("database.listen_url", direct.as_str())];
    let larder = TestService::begin_in(TempDir::new().unwrap(), &proxy.url, CONFIG, &settings);
    // Without any request.
    unready(
        &larder,
        &format!("{CANNOT_READ}: PostgreSQL cannot be reached"),
    )
    .await;
    let status = larder.admin("/status").await.json();
    assert!(status["source"]["reads_lost"].is_string(), "{status}");
    assert_eq!(
        larder.get("/items/1").await.status,
        StatusCode::SERVICE_UNAVAILABLE
    );
    proxy.set(NetworkFault::None);
    ready(&larder).await;
    let status = larder.admin("/status").await.json();
    for kind in ["reads_lost", "writes_lost"] {
        assert!(status["source"][kind].is_null(), "{status}");
    }
    assert_eq!(larder.get("/items/1").await.status, StatusCode::OK);
    // A request finds out.
    proxy.set(NetworkFault::Cut);
    assert_eq!(
        larder.get("/items/2").await.status,
        StatusCode::SERVICE_UNAVAILABLE
    );
    let answer = larder.admin("/readyz").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{answer:?}");
    proxy.set(NetworkFault::None);
    ready(&larder).await;
}

/// Metrics say the same, so that one can alert on them.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_readiness() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let larder = TestService::start_on(&url, CONFIG, &[]).await;
    for name in ["larder_ready", "larder_resource_ready", "larder_build_info"] {
        assert_eq!(larder.metric(name).await, 1.0, "{name}");
    }
    let age = larder.metric("larder_feed_age_seconds").await;
    assert!((0.0..30.0).contains(&age), "{age}");
    assert!(larder.metric("process_resident_memory_bytes").await > 0.0);
    execute(&url, "update item set name = 'second'").await;
    eventually("the length of the log", async || {
        (larder.metric("larder_change_log_bytes").await > 0.0).then_some(())
    })
    .await;
    execute(&url, "drop table item").await;
    eventually("not ready", async || {
        let resource = larder.metric("larder_resource_ready").await;
        let all = larder.metric("larder_ready").await;
        (resource + all == 0.0).then_some(())
    })
    .await;
}

/// Behind load balancers every larder of the database was left out for half a minute when one of its tables was renamed.
#[tokio::test(flavor = "multi_thread")]
async fn a_resource_that_is_checked_again_leaves_the_others_served() {
    const CHECKED: &str = "ready, but resource notes: its tables and triggers are being checked\n";
    let url = TestCluster::database().await.url;
    let sql = format!("{SQL}; create table note (like item including all)");
    execute(&url, &sql).await;
    let config = format!("{CONFIG}[[resource]]\nname = 'notes'\ntable = 'note'\n");
    let larder = TestService::start_on(&url, &config, &[]).await;
    let steps = [
        ("alter table note rename to old", CHECKED),
        ("alter table old rename to note", "ready\n"),
    ];
    for (sql, told) in steps {
        execute(&url, sql).await;
        eventually(told, async || {
            let served = larder.get("/items/1").await;
            assert_eq!(served.status, StatusCode::OK, "{served:?}");
            let answer = larder.admin("/readyz").await;
            assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
            (answer.body == told).then_some(())
        })
        .await;
        assert_eq!(larder.metric("larder_ready").await, 1.0);
    }
    let both = "alter table note rename to old; alter table item rename to others";
    execute(&url, both).await;
    unready(&larder, "tables and triggers are being checked").await;
    assert_eq!(larder.metric("larder_ready").await, 0.0);
}

/// Only connections that write are not opened.
#[tokio::test(flavor = "multi_thread")]
async fn larder_is_ready_while_it_can_write() {
    let direct = TestCluster::database().await.url;
    execute(&direct, SQL).await;
    let pooler = SwappingPooler::start(&direct).await;
    // Only they keep the search path of the role.
    pooler.hold_answers_to("regexp_replace");
    let settings = [("database.listen_url", direct.as_str())];
    let larder = TestService::begin_in(TempDir::new().unwrap(), &pooler.url, CONFIG, &settings);
    unready(
        &larder,
        &format!("{CANNOT_WRITE}: PostgreSQL cannot be reached"),
    )
    .await;
    assert_eq!(larder.get("/items/1").await.status, StatusCode::OK);
    let status = larder.admin("/status").await.json();
    assert!(status["source"]["reads_lost"].is_null(), "{status}");
    assert!(status["source"]["writes_lost"].is_string(), "{status}");
    pooler.release();
    ready(&larder).await;
    let body = "{\"id\":1,\"name\":\"second\"}";
    let answer = larder.write(Method::PUT, "/items/1", &[], body).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
}

/// The role of `url` may read the tables, and not what larder keeps in the database: larder was ready, and refused each
/// request with "a table was altered".
#[tokio::test(flavor = "multi_thread")]
async fn larder_is_not_ready_while_its_role_lacks_privileges() {
    let direct = TestCluster::database().await.url;
    execute(&direct, SQL).await;
    let role = TestRole::create(&direct).await;
    let name = &role.name;
    execute(&direct, &format!("grant select on item to {name}")).await;
    let settings = [("database.listen_url", direct.as_str())];
    let larder = TestService::begin_in(TempDir::new().unwrap(), &role.url, CONFIG, &settings);
    unready(
        &larder,
        &format!("{CANNOT_READ}: larder's role lacks a privilege"),
    )
    .await;
    let answer = larder.get("/items/1").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(!answer.body.contains("altered"), "{}", answer.body);
    execute(&direct, &format!("grant select on larder.epoch to {name}")).await;
    ready(&larder).await;
    assert_eq!(larder.get("/items/1").await.status, StatusCode::OK);
}

/// Every request was refused, and the log was empty.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_logged_when_it_begins_and_when_it_ends() {
    let direct = TestCluster::database().await.url;
    execute(&direct, SQL).await;
    let proxy = FaultProxy::start(&direct).await.unwrap();
    let directory = TempDir::new().unwrap();
    let toml = format!("[database]\nlisten_url = '{direct}'\n{CONFIG}");
    std::fs::write(directory.path().join("larder.toml"), toml).unwrap();
    let larder = LarderProcess::start(directory.path(), Some(&proxy.url), &[]).await;
    larder.ready().await;
    proxy.set(NetworkFault::Cut);
    for id in 1..=20 {
        let answer = fetch(larder.listen, "GET", &format!("/items/{id}")).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    }
    proxy.set(NetworkFault::None);
    larder.ready().await;
    let log = std::fs::read_to_string(directory.path().join("larder.log")).unwrap();
    let count = |text: &str| log.matches(text).count();
    assert_eq!(count(CANNOT_READ), 1, "{log}");
    assert_eq!(
        count("documents can be read from PostgreSQL again"),
        1,
        "{log}"
    );
}
