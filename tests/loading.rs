//! The loader: keys that wait share statements, too many are refused, and one that fails does not affect the others.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use futures_util::future::join_all;
use tokio::time::timeout;

use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::eventually;
use crate::harness::service::{TestResponse, TestService, execute};
use crate::harness::table_locks::{OPEN_GATE, gate_sql, lock_table, unlock};

const SQL: &str = "create table item (id int primary key, name text not null); \
                   insert into item select n, 'first' from generate_series(1, 100) n";

/// The statements sent and the keys in them, so far.
async fn batches(larder: &TestService) -> (u64, u64) {
    let count = larder.metric("larder_source_batch_keys_count").await;
    let sum = larder.metric("larder_source_batch_keys_sum").await;
    (count as u64, sum as u64)
}

/// Without the disk tier a lookup that is counted waits for PostgreSQL already.
const ITEMS: &str =
    "[[resource]]\nname = 'items'\ntable = 'public.item'\nkey = 'id'\ntiers = ['memory']\n";

/// Asks for all `paths` at once while the table is locked, so that they must meet; then lets them through. Also returns
/// how many statements that took, without those that met the lock.
async fn herd(larder: &TestService, paths: Vec<String>) -> (Vec<TestResponse>, u64) {
    let holder = lock_table(&larder.url, "item").await;
    let count = paths.len();
    // One client may have no more than 4,096 requests that wait.
    let get = async |(number, path): (usize, &String)| {
        let client = format!("10.0.0.{}", number / 4_000);
        let headers = [("x-forwarded-for", client.as_str())];
        larder.request(Method::GET, path, &headers).await
    };
    let requests = async { join_all(paths.iter().enumerate().map(get)).await };
    let release = async {
        eventually("all wait", async || {
            let lookups = larder.admin("/status").await.json()["resources"][0]["lookups"].as_u64();
            (lookups >= Some(count as u64)).then_some(())
        })
        .await;
        let (refused, _) = batches(larder).await;
        unlock(holder).await;
        refused
    };
    let both = async { tokio::join!(requests, release) };
    let (answers, refused) = timeout(Duration::from_secs(30), both).await.unwrap();
    (answers, batches(larder).await.0 - refused)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_requests_for_one_key_are_one_statement() {
    let larder = TestService::start(SQL, ITEMS).await;
    let (answers, sent) = herd(&larder, vec!["/items/1".to_owned(); 1_000]).await;
    assert!(answers.iter().all(|answer| answer.status == StatusCode::OK));
    assert!(sent <= 1, "{sent} statements");
    let (statements, keys) = batches(&larder).await;
    assert_eq!(statements, keys);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_keys_are_a_few_statements() {
    let database = TestCluster::database().await;
    execute(&database.url, SQL).await;
    let settings = [("database.connections", "7")];
    let larder = TestService::start_on(&database.url, ITEMS, &settings).await;
    let paths = (1..=1_000).map(|number| format!("/items/{number}"));
    let (answers, sent) = herd(&larder, paths.collect()).await;
    let found = answers
        .iter()
        .filter(|answer| answer.status == StatusCode::OK);
    assert_eq!(found.count(), 100);
    assert!(sent <= 10, "{sent} statements");
}

/// A statement for many keys returns at most 16 MiB: here 167 kB for each.
#[tokio::test(flavor = "multi_thread")]
async fn long_documents_are_read_one_by_one() {
    let sql = "create table item (id int primary key, name text not null); \
               insert into item select n, repeat('x', case when n % 10 = 0 then 1000000 else 10 end) \
               from generate_series(1, 100) n";
    let database = TestCluster::database().await;
    execute(&database.url, sql).await;
    let settings = [("database.connections", "5")];
    let larder = TestService::start_on(&database.url, ITEMS, &settings).await;
    let paths = (1..=100).map(|number| format!("/items/{number}"));
    let (answers, sent) = herd(&larder, paths.collect()).await;
    for (answer, id) in answers.iter().zip(1..) {
        let length = if id % 10 == 0 { 1_000_000 } else { 10 };
        let document = answer.json();
        assert_eq!(document["id"], id);
        assert_eq!(document["name"].as_str().unwrap().len(), length, "{id}");
    }
    assert!(sent <= 30, "the keys did not meet");
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_waiting_keys_are_refused_and_the_others_answered() {
    let database = TestCluster::database().await;
    execute(&database.url, SQL).await;
    let settings = [
        ("database.connections", "5"),
        ("limits.trusted_proxies", "0.0.0.0"),
    ];
    let larder = TestService::start_on(&database.url, ITEMS, &settings).await;
    let paths = (1..=10_600).map(|number| format!("/items/{number}"));
    let (answers, _) = herd(&larder, paths.collect()).await;
    let count = |status: StatusCode| {
        let with = answers.iter().filter(|answer| answer.status == status);
        with.count()
    };
    let refused = count(StatusCode::SERVICE_UNAVAILABLE);
    // Ten thousand of one resource wait, and at most one statement's keys are under way.
    assert!((344..=600).contains(&refused), "{refused} were refused");
    assert_eq!(
        refused + count(StatusCode::OK) + count(StatusCode::NOT_FOUND),
        10_600
    );
}

/// Items, and beside them `busy`, whose statement runs until the gate is open.
async fn beside_a_gate(settings: &[(&str, &str)]) -> TestService {
    let database = TestCluster::database().await;
    let role = TestRole::create(&database.url).await;
    execute(&database.url, SQL).await;
    let busy = "create table busy (id int primary key); insert into busy values (1)";
    execute(&database.url, busy).await;
    let gate = gate_sql(&role, &["item", "busy"], "busy");
    execute(&database.url, &gate).await;
    let toml = format!(
        "{ITEMS}[[resource]]\nname = 'busy'\ntable = 'busy'\nrow_security = 'as-larder'\ntiers = []\n"
    );
    TestService::start_on(&role.url, &toml, settings).await
}

/// A load waits for its turn, a change overtakes it, and the load that is asked for then shares its statement. Each
/// must get the document; once, the first got an error, and the second, which may be kept, that there is none.
#[tokio::test(flavor = "multi_thread")]
async fn an_overtaken_load_and_its_successor_share_a_statement() {
    let settings = [("database.connections", "5"), ("feed.max_staleness", "30s")];
    let larder = beside_a_gate(&settings).await;
    let status = async || larder.admin("/status").await.json();
    let waiting = async |count: u64| {
        eventually("keys wait", async || {
            let lookups = status().await["resources"][1]["lookups"].as_u64() == Some(1);
            (lookups && status().await["source_waiting_keys"].as_u64() == Some(count)).then_some(())
        })
        .await;
    };
    let generation = async || larder.admin("/explain/items/1").await.json()["generation"].clone();
    // The one connection is taken before the first load may wait.
    let busy = async || {
        eventually("busy", async || {
            (batches(&larder).await == (1, 1)).then_some(())
        })
        .await;
    };
    let second = async {
        // Before, the key that waits may be that of `busy`.
        busy().await;
        waiting(1).await;
        let before = generation().await;
        larder
            .execute("update item set name = 'second' where id = 1")
            .await;
        eventually("the change is applied", async || {
            (generation().await != before).then_some(())
        })
        .await;
        let release = async {
            waiting(2).await;
            larder.execute(OPEN_GATE).await;
        };
        tokio::join!(larder.get("/items/1"), release).0
    };
    let first = async {
        busy().await;
        larder.get("/items/1").await
    };
    let (_, first, second) = tokio::join!(larder.get("/busy/1"), first, second);
    for answer in [first, second, larder.get("/items/1").await] {
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        assert_eq!(answer.json()["name"], "second");
    }
}

/// Few keys wait for the statement that is under way to end, but not for one that is stuck.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_statement_keeps_no_key_waiting() {
    let larder = beside_a_gate(&[("database.connections", "7")]).await;
    let item = async {
        eventually("busy is asked for", async || {
            (batches(&larder).await == (1, 1)).then_some(())
        })
        .await;
        let answer = larder.get("/items/1").await;
        larder.execute(OPEN_GATE).await;
        answer
    };
    let (busy, item) = tokio::join!(larder.get("/busy/1"), item);
    // The gate was opened after the item's answer; had the item waited, the statement would have run out of time.
    assert_eq!(busy.status, StatusCode::OK, "{busy:?}");
    assert_eq!(item.status, StatusCode::OK, "{item:?}");
}

/// A document that PostgreSQL can't give takes none of those with it that share its statement.
#[tokio::test(flavor = "multi_thread")]
async fn one_key_fails_alone() {
    let database = TestCluster::database().await;
    let role = TestRole::create(&database.url).await;
    execute(
        &database.url,
        &format!(
            "create table item (id int primary key); insert into item select generate_series(1, 20); \
             alter table item owner to {role}; alter table item enable row level security; \
             alter table item force row level security; \
             create policy no_seven on item using (1 / (id - 7) is not null); \
             grant create on database {name} to {role}",
            role = role.name,
            name = database.url.rsplit_once('/').unwrap().1,
        ),
    )
    .await;
    let settings = [("database.connections", "5")];
    let items = format!("{ITEMS}row_security = 'as-larder'\n");
    let larder = TestService::start_on(&role.url, &items, &settings).await;
    let paths = (1..=20).map(|number| format!("/items/{number}"));
    let (answers, sent) = herd(&larder, paths.collect()).await;
    for (answer, number) in answers.iter().zip(1..) {
        let expected = match number {
            7 => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::OK,
        };
        assert_eq!(answer.status, expected, "key {number}: {}", answer.body);
    }
    assert!(sent <= 3, "the keys did not meet");
}
