//! Publications for all tables, and their subscribers.

use axum::http::{Method, StatusCode};
use uuid::Uuid;

use crate::freshness::testbed::is_hit;
use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestService, execute};

const SQL: &str = "create table item (id int primary key, name text); \
    insert into item select n, 'first' from generate_series(1, 100) n";
const CONFIG: &str = "[[resource]]\nname = 'items'\ntable = 'item'\n";

async fn count(url: &str, sql: &str) -> i64 {
    crate::command::value(url, sql).await
}

/// Publishes all tables of the database at `url` to the one at `subscriber`.
async fn subscribe(url: &str, subscriber: &str) -> String {
    let name = format!("s_{}", Uuid::new_v4().simple());
    execute(url, "create publication everything for all tables").await;
    // A connection to the same cluster would wait for its own transaction to create the slot.
    let slot = format!("select pg_create_logical_replication_slot('{name}', 'pgoutput')");
    execute(url, &slot).await;
    let create = format!(
        "create subscription {name} connection '{url}' publication everything with (create_slot = false)"
    );
    execute(subscriber, &create).await;
    name
}

/// Whoever publishes all tables neither needs a replica identity for larder's nor sends them.
pub(crate) async fn all_tables_may_be_published() {
    let [url, subscriber] = [
        TestCluster::database().await.url,
        TestCluster::database().await.url,
    ];
    execute(&url, SQL).await;
    execute(
        &subscriber,
        "create table item (id int primary key, name text)",
    )
    .await;
    let few = [("feed.keys_per_statement", "10"), ("feed.retention", "1s")];
    let larder = TestService::start_on(&url, CONFIG, &few).await;
    let subscription = subscribe(&url, &subscriber).await;
    // A larder on the subscriber has tables of the same names.
    let replica = TestService::start_on(&subscriber, CONFIG, &[]).await;

    for (sql, name) in [
        ("update item set name = 'second'", "second"),
        ("delete from item where id > 50", "second"),
        ("update item set name = 'third' where id < 60", "third"),
    ] {
        larder.execute(sql).await;
        for service in [&larder, &replica] {
            eventually("the change", async || {
                let answer = service.get("/items/1").await;
                (answer.body == format!(r#"{{"id":1,"name":"{name}"}}"#)).then_some(())
            })
            .await;
        }
    }
    eventually("a hit", async || {
        is_hit(&replica.get("/items/1").await).then_some(())
    })
    .await;
    eventually("the log is pruned", async || {
        (count(&url, "select count(*) from larder.change").await == 0).then_some(())
    })
    .await;
    // A new epoch can begin, too.
    larder.execute("truncate larder.epoch").await;
    larder.execute("update item set name = 'fourth'").await;
    eventually("the change", async || {
        let answer = larder.get("/items/1").await;
        (is_hit(&answer) && answer.body.contains("fourth")).then_some(())
    })
    .await;
    let published = "select count(*) from pg_publication_tables where schemaname = 'larder'";
    assert_eq!(count(&url, published).await, 0);
    let end = format!(
        "alter subscription {subscription} disable; alter subscription {subscription} set (slot_name = none)"
    );
    execute(&subscriber, &end).await;
    execute(&subscriber, &format!("drop subscription {subscription}")).await;
    eventually("the slot is let go", async || {
        let sql = format!("select count(*) from pg_replication_slots where slot_name = '{subscription}' and not active");
        (count(&url, &sql).await == 1).then_some(())
    })
    .await;
    execute(
        &url,
        &format!("select pg_drop_replication_slot('{subscription}')"),
    )
    .await;
}

/// A table that outlives a crash would be sent to subscribers that have none of its name.
#[tokio::test(flavor = "multi_thread")]
async fn idempotency_keys_need_a_setting_and_a_logged_table() {
    let larder = TestService::start(SQL, CONFIG).await;
    let tables = "select count(*) from pg_class where relnamespace = 'larder'::regnamespace and relkind = 'r' \
        and relpersistence <> 'u'";
    assert_eq!(count(&larder.url, tables).await, 0);
    let key = [("idempotency-key", "a")];
    let answer = larder
        .write(Method::POST, "/items", &key, r#"{"id":101}"#)
        .await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(
        answer.body.contains("idempotency_keys = true"),
        "{}",
        answer.body
    );
    let described = larder.get("/openapi.json").await.json();
    let post = &described["paths"]["/items"]["post"]["parameters"];
    assert!(!post.to_string().contains("idempotency-key"), "{post}");
    let url = larder.url.clone();
    let state = larder.stop().await;
    let larder = TestService::start_in(state, &url, CONFIG, &[("idempotency_keys", "true")]).await;
    let answer = larder
        .write(Method::POST, "/items", &key, r#"{"id":101}"#)
        .await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(count(&url, tables).await, 1);
    let described = larder.get("/openapi.json").await.json();
    let post = &described["paths"]["/items"]["post"]["parameters"];
    assert!(post.to_string().contains("idempotency-key"), "{post}");
}
