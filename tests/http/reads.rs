//! Reads by key: `Cache-Status` for each choice of tiers, requests that share a load, and loads that fail.

use std::io;
use std::sync::{Arc, Mutex};

use axum::http::{Method, StatusCode};

use super::{CONFIG, MEMORY, MISS, SCHEMA, assert_problem, larder};
use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestService, execute};
use crate::harness::table_locks::{await_waiter, lock_table, unlock};

const DISK: &str = "larder; hit; detail=disk";
const UNSTORED: &str = "larder; fwd=miss; detail=postgres";

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn resources_choose_their_tiers() {
    let config = "
        [[resource]]
        name = 'both'
        table = 'item'
        [[resource]]
        name = 'memory'
        table = 'item'
        tiers = ['memory']
        [[resource]]
        name = 'disk'
        table = 'item'
        tiers = ['disk']
        [[resource]]
        name = 'none'
        table = 'item'
        tiers = []";
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let larder = TestService::start_on(&url, config, &[("disk.linger", "1ms")]).await;
    for (resource, first, later) in [
        ("both", MISS, MEMORY),
        ("memory", MISS, MEMORY),
        ("disk", MISS, DISK),
        ("none", UNSTORED, UNSTORED),
    ] {
        for key in ["42", "404"] {
            let path = format!("/{resource}/{key}");
            assert_eq!(larder.get(&path).await.cache_status(), first, "{path}");
            eventually(later, async || {
                (larder.get(&path).await.cache_status() == later).then_some(())
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_for_one_key_share_one_fill() {
    let larder = larder().await;
    let mut holder = lock_table(&larder.url, "item").await;
    let release = async {
        await_waiter(&mut holder, "item").await;
        unlock(holder).await;
    };
    // Polled in this order, so that the second finds the first one's lease.
    let (first, second, third, ()) = tokio::join!(
        biased;
        larder.get("/items/42"),
        larder.get("/items/042"),
        larder.get("/items/42"),
        release
    );
    assert_eq!(first.cache_status(), MISS);
    let collapsed = format!("{MISS}; collapsed");
    for waiter in [second, third] {
        assert_eq!(waiter.cache_status(), collapsed);
        assert_eq!(waiter.body, first.body);
    }
    // Even if the statement was sent again because of the lock.
    let statements = larder.metric("larder_source_batch_keys_count").await;
    let keys = larder.metric("larder_source_batch_keys_sum").await;
    assert_eq!(statements, keys);
}

#[tokio::test(flavor = "multi_thread")]
async fn document_above_document_max_fails_alone() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    execute(
        &url,
        "insert into item values (1, repeat('x', 5000)), (2, 'small'), (3, repeat('x', 900))",
    )
    .await;
    let settings = [("document_max", "1KiB"), ("database.connections", "5")];
    let larder = TestService::start_on(&url, CONFIG, &settings).await;
    let mut holder = lock_table(&url, "item").await;
    let release = async {
        await_waiter(&mut holder, "item").await;
        unlock(holder).await;
    };
    // The first key is asked for alone, and the others wait for the one connection together.
    let (leader, large, small, fitting, missing, ()) = tokio::join!(
        biased;
        larder.get("/items/42"),
        larder.get("/items/1"),
        larder.get("/items/2"),
        larder.get("/items/3"),
        larder.get("/items/404"),
        release
    );
    assert_eq!(leader.status, StatusCode::OK);
    assert_problem(&large, 500);
    assert!(large.body.contains("document_max"), "{}", large.body);
    assert_eq!(small.json()["title"], "small");
    assert_eq!(fitting.status, StatusCode::OK);
    assert_problem(&missing, 404);
    // The failure is not cached.
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false);
    let subscriber = subscriber.with_writer(move || writer.clone()).finish();
    let guard = tracing::subscriber::set_default(subscriber);
    let id = [("x-request-id", "request-1")];
    let failed = larder.request(Method::GET, "/items/1", &id).await;
    assert_problem(&failed, 500);
    assert_eq!(failed.header("x-request-id"), "request-1");
    let failed = larder.get("/items/1").await;
    let id = failed.header("x-request-id");
    assert_eq!(id.len(), 36, "{id}");
    drop(guard);
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    for (line, id) in lines.iter().zip(["request-1", id]) {
        for part in ["ERROR", id, "GET /items/1", "document_max"] {
            assert!(line.contains(part), "{line}");
        }
    }
    assert_eq!(lines.len(), 2, "{log}");
    let metrics = larder.admin("/metrics").await.body;
    assert!(
        metrics.contains("larder_source_batch_keys_bucket{le=\"4\"}"),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn statement_timeout_is_504() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let settings = [("database.statement_timeout", "200ms")];
    let larder = TestService::start_on(&url, CONFIG, &settings).await;
    let holder = lock_table(&url, "item").await;
    assert_problem(&larder.get("/items/42").await, 504);
    unlock(holder).await;
    assert_eq!(larder.get("/items/42").await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn resource_whose_table_is_renamed_is_503_until_it_is_back() {
    // A request for a missing table waits for it until this timeout.
    let brief = [("request_timeout", "1s")];
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let larder = TestService::start_on(&url, CONFIG, &brief).await;
    larder.execute("alter table item rename to gone").await;
    let answer = eventually("an error", async || {
        let answer = larder.get("/items/42").await;
        (answer.status != StatusCode::OK).then_some(answer)
    })
    .await;
    assert_problem(&answer, answer.status.as_u16());
    eventually("503", async || {
        let answer = larder.get("/items/42").await;
        let unready = answer.status == StatusCode::SERVICE_UNAVAILABLE;
        (unready && answer.header("retry-after") == "1").then_some(())
    })
    .await;
    assert_eq!(larder.get("/tags/a,b").await.status, StatusCode::OK);
    let options = larder.request(Method::OPTIONS, "/items/42", &[]).await;
    assert_eq!(options.status, StatusCode::NO_CONTENT);
    let allow = "GET, HEAD, PUT, PATCH, DELETE, OPTIONS";
    assert_eq!(options.header("allow"), allow);
    larder.execute("alter table gone rename to item").await;
    eventually("the document again", async || {
        (larder.get("/items/42").await.status == StatusCode::OK).then_some(())
    })
    .await;
}
