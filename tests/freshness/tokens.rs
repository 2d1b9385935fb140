//! Reads with the token of a transaction show what it wrote, whether or not the feed has caught up.

use axum::http::{Method, StatusCode};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::freshness::testbed::is_hit;
use crate::harness::eventually;
use crate::harness::service::{TestResponse, TestService};

const SCHEMA: &str = "create table item (id int primary key, label text); \
    insert into item select n, 'old' from generate_series(1, 100) n";

const CONFIG: &str = "[[resource]]\nname = 'items'\ntable = 'item'\n";

/// Finds no change by itself for longer than a test takes.
const SLEEPY: &str = "[feed]\nnotify = false\npoll_interval = '5min'\nmax_staleness = '10min'\n";

async fn warm(larder: &TestService, path: &str) {
    eventually("a hit", async || {
        is_hit(&larder.get(path).await).then_some(())
    })
    .await;
}

/// Commits `sql` and returns the transaction's token.
async fn write(connection: &mut PgConnection, sql: &str) -> String {
    let mut transaction = connection.begin().await.unwrap();
    sqlx::query(AssertSqlSafe(sql.to_owned()))
        .execute(&mut *transaction)
        .await
        .unwrap();
    let token = sqlx::query_scalar("select larder.token()")
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    token
}

async fn get(larder: &TestService, path: &str, tokens: &[&str]) -> TestResponse {
    let headers: Vec<_> = tokens
        .iter()
        .map(|token| ("larder-token", *token))
        .collect();
    larder.request(Method::GET, path, &headers).await
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_answers_what_the_feed_has_not_caught_up_with() {
    let larder = TestService::start(SCHEMA, &format!("{SLEEPY}{CONFIG}")).await;
    warm(&larder, "/items/1").await;
    larder.feed_rests().await;
    let mut connection = larder.connect().await;
    let token = write(
        &mut connection,
        "update item set label = 'new' where id = 1",
    )
    .await;
    let answer = larder.get("/items/1").await;
    assert!(is_hit(&answer) && answer.body.contains("old"), "{answer:?}");
    let answer = get(&larder, "/items/1", &[&token]).await;
    assert_eq!(answer.cache_status(), "larder; fwd=request; detail=token");
    assert!(answer.body.contains("new"), "{answer:?}");
    // Of two tokens, both count.
    let earlier = sqlx::query_scalar("select nonce || '.3' from larder.epoch");
    let earlier: String = earlier.fetch_one(&mut connection).await.unwrap();
    assert!(is_hit(&get(&larder, "/items/1", &[&earlier]).await));
    let later = write(&mut connection, "delete from item where id = 1").await;
    let answer = get(&larder, "/items/1", &[&earlier, &later]).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    let joined = format!("{earlier}, {later}");
    let answer = get(&larder, "/items/1", &[&joined]).await;
    assert_eq!(answer.cache_status(), "larder; fwd=request; detail=token");
    connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_the_feed_has_caught_up_with_is_answered_by_a_hit() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    let mut connection = larder.connect().await;
    for round in 0..50 {
        warm(&larder, "/items/2").await;
        let update = format!("update item set label = 'r{round}' where id = 2");
        let token = write(&mut connection, &update).await;
        let answer = get(&larder, "/items/2", &[&token]).await;
        assert!(answer.body.contains(&format!("\"r{round}\"")), "{answer:?}");
        eventually("a hit with the token", async || {
            is_hit(&get(&larder, "/items/2", &[&token]).await).then_some(())
        })
        .await;
    }
    connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_another_epoch_ask_postgresql_and_malformed_tokens_are_refused() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    warm(&larder, "/items/3").await;
    let foreign = format!("{}.3", uuid::Uuid::new_v4());
    let answer = get(&larder, "/items/3", &[&foreign]).await;
    assert_eq!(answer.cache_status(), "larder; fwd=request; detail=token");
    for wrong in [
        "",
        "3",
        "x.3",
        &format!("{foreign} {foreign}")[..],
        "\u{e9}",
    ] {
        let answer = get(&larder, "/items/3", &[wrong]).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{wrong}");
        assert!(answer.body.contains("Larder-Token"), "{}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_role_may_ask_for_its_token() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    let role = format!("reader_{}", uuid::Uuid::new_v4().simple());
    larder.execute(&format!("create role {role}")).await;
    let mut connection = larder.connect().await;
    let sql =
        format!("set role {role}; set search_path = ''; create temp table epoch (nonce uuid)");
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut connection)
        .await
        .unwrap();
    let row: (String, String) = sqlx::query_as("select larder.token(), pg_current_xact_id()::text")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert!(row.0.ends_with(&format!(".{}", row.1)), "{row:?}");
    // The server process drops it at its end, too, but that may be after the connection was closed.
    let discard = sqlx::raw_sql("discard temp").execute(&mut connection).await;
    discard.unwrap();
    connection.close().await.unwrap();
    larder.execute(&format!("drop role {role}")).await;
}
