//! Writes of restricted clients beside transactions that change owners and keys.

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use sqlx::PgConnection;

use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestResponse, TestService, execute};
use crate::scope::clients;
use crate::scope::writes::{RESOURCES, SCHEMA, is, order};

/// A larder whose writes wait for as long as a test needs.
async fn start() -> Arc<TestService> {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let patient = [
        ("database.statement_timeout", "10m"),
        ("request_timeout", "10m"),
    ];
    let toml = format!("{}{RESOURCES}", clients());
    Arc::new(TestService::start_on(&url, &toml, &patient).await)
}

/// Runs `sql` in a transaction that stays open until a write of customer 17 waits for it; then `end` ends it.
async fn beside(
    larder: &Arc<TestService>,
    (sql, end): (&str, &'static str),
    (method, path, body): (Method, &'static str, String),
) -> TestResponse {
    let mut holder: PgConnection = larder.connect().await;
    let begin = sqlx::AssertSqlSafe(format!("begin; {sql}"));
    sqlx::raw_sql(begin).execute(&mut holder).await.unwrap();
    let client = Arc::clone(larder);
    let write = tokio::spawn(async move { client.by("c17", method, path, &[], &body).await });
    let waits = "select count(*)::text from pg_stat_activity \
        where datname = current_database() and wait_event_type = 'Lock'";
    eventually("the write waits", async || {
        (larder.text(waits).await == "1").then_some(())
    })
    .await;
    sqlx::raw_sql(end).execute(&mut holder).await.unwrap();
    write.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_moves_away_meanwhile_is_absent() {
    let larder = start().await;
    let moved = "update orders set customer_id = 18 where id = 1";
    let patch = r#"{"note":"late"}"#.to_owned();
    for (method, body) in [
        (Method::PATCH, patch.clone()),
        (Method::PUT, order(1).to_string()),
        (Method::DELETE, String::new()),
    ] {
        let write = (method, "/orders/1", body);
        let answer = beside(&larder, (moved, "commit"), write).await;
        is(&answer, StatusCode::NOT_FOUND);
        let stored = larder.stored(1).await;
        assert_eq!(stored, "(1,18,a,mine,1,1)(11,1,pen,1,1)");
        let back = "update orders set customer_id = 17 where id = 1";
        larder.execute(back).await;
    }
    let write = (Method::PATCH, "/orders/1", patch);
    let answer = beside(&larder, (moved, "rollback"), write).await;
    is(&answer, StatusCode::OK);
    let stored = larder.stored(1).await;
    assert_eq!(stored, "(1,17,a,late,1,1)(11,1,pen,1,1)");
}

/// It is not the conflict that a `POST` has.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_of_others_that_appears_meanwhile_is_absent() {
    let larder = start().await;
    let put = || (Method::PUT, "/orders/5", order(5).to_string());
    let insert = |owner| format!("insert into orders (id, customer_id) values (5, {owner})");
    let answer = beside(&larder, (&insert(18), "commit"), put()).await;
    is(&answer, StatusCode::NOT_FOUND);
    assert_eq!(larder.stored(5).await, "(5,18,,,,)");
    larder.execute("delete from orders where id = 5").await;
    let answer = beside(&larder, (&insert(18), "rollback"), put()).await;
    is(&answer, StatusCode::CREATED);
    larder.execute("delete from orders where id = 5").await;
    let answer = beside(&larder, (&insert(17), "commit"), put()).await;
    is(&answer, StatusCode::OK);
    assert_eq!(larder.stored(5).await, "(5,17,n5,new,,)");
}

/// Whether a write waits would tell that there is a document.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_on_a_document_of_others_is_not_waited_for() {
    let larder = start().await;
    let mut holder = larder.connect().await;
    let lock = "begin; select from orders where id = 2 for update";
    sqlx::raw_sql(lock).execute(&mut holder).await.unwrap();
    for (method, body) in [
        (Method::PATCH, "{}".to_owned()),
        (Method::DELETE, String::new()),
        (Method::PUT, order(2).to_string()),
    ] {
        // If it waited, it would do so until the test times out.
        let answer = larder.by("c17", method, "/orders/2", &[], &body).await;
        is(&answer, StatusCode::NOT_FOUND);
    }
}
