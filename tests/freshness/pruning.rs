//! Pruning of the change log: what holds rows back, what a batch reads, and which positions it makes invalid.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::freshness::testbed::is_hit;
use crate::harness::cluster::{TestCluster, start_postgres};
use crate::harness::service::{TestService, execute};
use crate::harness::{eventually, reachable_directory};

const SQL: &str = "create table item (id int primary key, name text); \
    insert into item select n, 'first' from generate_series(1, 9) n";

const CONFIG: &str = "[disk]\nlinger = '1ms'\n[[resource]]\nname = 'items'\ntable = 'item'";

async fn database() -> String {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    url
}

async fn run(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(connection)
        .await
        .unwrap();
}

async fn read<T>(connection: &mut PgConnection, sql: &str) -> T
where
    T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
{
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
        .fetch_one(connection)
        .await
        .unwrap()
}

async fn name(larder: &TestService, id: u32) -> String {
    let answer = larder.get(&format!("/items/{id}")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["name"].as_str().unwrap().to_owned()
}

/// Prunes beside larder until the log is as long as this.
async fn prune_to(connection: &mut PgConnection, rows: i64) {
    eventually("pruned", async || {
        read::<i64>(connection, "select larder.prune()").await;
        let left: i64 = read(connection, "select count(*) from larder.change").await;
        (left == rows).then_some(())
    })
    .await;
}

/// A transaction in another database of the cluster, one that was prepared and forgotten, and one that is open, all
/// older than what is pruned. What they hold back is pruned once they have ended.
#[tokio::test(flavor = "multi_thread")]
async fn open_transactions_hold_back_their_own_rows_only() {
    let base = reachable_directory();
    let settings = [("fsync", "off"), ("max_prepared_transactions", "2")];
    let server = start_postgres(base.path(), &settings).await;
    let url = server.url();
    execute(url, SQL).await;
    let larder = TestService::start_on(url, CONFIG, &[]).await;
    let mut connection = larder.connect().await;
    run(&mut connection, "create database elsewhere").await;
    let (cluster, _) = url.rsplit_once('/').unwrap();
    let elsewhere = format!("{cluster}/elsewhere");
    let mut elsewhere = PgConnection::connect(&elsewhere).await.unwrap();
    run(&mut elsewhere, "begin; select pg_current_xact_id()").await;
    let prepare =
        "begin; update item set name = 'late' where id = 1; prepare transaction 'forgotten'";
    run(&mut connection, prepare).await;
    let mut open = larder.connect().await;
    run(
        &mut open,
        "begin; update item set name = 'late' where id = 2",
    )
    .await;
    for id in 3..=9 {
        let update = format!("update item set name = 'early' where id = {id}");
        run(&mut connection, &update).await;
    }
    prune_to(&mut connection, 0).await;
    let horizon = "select cardinality(array(select pg_snapshot_xip(snapshot))) from larder.horizon";
    assert_eq!(read::<i32>(&mut connection, horizon).await, 3);
    run(&mut connection, "commit prepared 'forgotten'").await;
    run(&mut open, "commit").await;
    for id in [1, 2] {
        eventually("the change", async || {
            (name(&larder, id).await == "late").then_some(())
        })
        .await;
    }
    prune_to(&mut connection, 0).await;
    for connection in [connection, elsewhere, open] {
        connection.close().await.unwrap();
    }
    larder.stop().await;
    server.stop().await;
}

/// The position lies behind the horizon in one transaction only, which was open when larder stopped.
#[tokio::test(flavor = "multi_thread")]
async fn a_position_that_misses_one_pruned_transaction_is_invalid() {
    let url = database().await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let larder = TestService::start_on(&url, CONFIG, &[]).await;
    run(
        &mut connection,
        "begin; update item set name = 'second' where id = 1",
    )
    .await;
    let xid: i64 = read(&mut connection, "select pg_current_xact_id()::text::int8").await;
    eventually("a position past it", async || {
        let status = larder.admin("/status").await.json();
        let position = status["feed"]["position"].as_str()?.to_owned();
        let xmax: i64 = position.split(':').nth(1)?.parse().ok()?;
        (xmax > xid).then_some(())
    })
    .await;
    eventually("a hit", async || {
        is_hit(&larder.get("/items/1").await).then_some(())
    })
    .await;
    let state = larder.stop().await;
    run(&mut connection, "commit").await;
    let next = xid + 1;
    let prune = format!(
        "update larder.horizon set snapshot = '{next}:{next}:'; delete from larder.change where xid = '{xid}'"
    );
    run(&mut connection, &prune).await;
    let horizon: String = read(&mut connection, "select snapshot::text from larder.horizon").await;
    assert_eq!(horizon, format!("{next}:{next}:"));
    let larder = TestService::start_in(state, &url, CONFIG, &[]).await;
    assert_eq!(name(&larder, 1).await, "second");
    connection.close().await.unwrap();
}

/// Beside a snapshot that keeps deleted rows from being vacuumed. A batch of all rows of several transactions, the last
/// one of which has more.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_does_not_read_again_what_is_deleted() {
    let url = database().await;
    TestService::start_on(&url, CONFIG, &[]).await.stop().await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    run(
        &mut connection,
        "insert into larder.change select (3 + n / 10)::text::xid8, 'items', '1' from generate_series(0, 4999) n",
    )
    .await;
    let mut long = PgConnection::connect(&url).await.unwrap();
    run(
        &mut long,
        "begin isolation level repeatable read; select from item",
    )
    .await;
    let entries = "select pg_stat_get_xact_tuples_returned('larder.change_xid'::regclass)";
    let mut deleted = 0;
    while deleted < 5_000 {
        run(&mut connection, "begin").await;
        let before: i64 = read(&mut connection, entries).await;
        deleted += read::<i64>(&mut connection, "select larder.prune('0 s', 505)").await;
        let entries = read::<i64>(&mut connection, entries).await - before;
        assert!(
            entries <= 520,
            "{entries} entries read, {deleted} deleted so far"
        );
        run(&mut connection, "commit").await;
    }
    assert_eq!(
        read::<i64>(&mut connection, "select count(*) from larder.change").await,
        0
    );
    for connection in [connection, long] {
        connection.close().await.unwrap();
    }
}

/// Until 2026-11 the horizon was a number.
#[tokio::test(flavor = "multi_thread")]
async fn a_horizon_of_the_old_form_is_replaced() {
    let url = database().await;
    let state = TestService::start_on(&url, CONFIG, &[]).await.stop().await;
    execute(
        &url,
        "create or replace function larder.version() returns int language sql immutable as 'select 1'; \
         drop table larder.horizon; \
         create table larder.horizon (one bool primary key default true check (one), xid xid8 not null); \
         insert into larder.horizon (xid) values (pg_snapshot_xmin(pg_current_snapshot()))",
    )
    .await;
    let larder = TestService::start_in(state, &url, CONFIG, &[]).await;
    eventually("a hit", async || {
        is_hit(&larder.get("/items/1").await).then_some(())
    })
    .await;
    let mut connection = larder.connect().await;
    run(
        &mut connection,
        "update item set name = 'second' where id = 1",
    )
    .await;
    eventually("the change", async || {
        (name(&larder, 1).await == "second").then_some(())
    })
    .await;
    prune_to(&mut connection, 0).await;
    connection.close().await.unwrap();
}

/// No statement deletes more than a piece of the log: rows of another cluster's transactions, which lie ahead of this
/// one's, go before the new epoch, and all others in the course of time.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_epoch_empties_the_log_in_pieces() {
    let url = database().await;
    let state = TestService::start_on(&url, CONFIG, &[]).await.stop().await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    run(
        &mut connection,
        "insert into larder.change select xid, 'items', '1' \
           from unnest('{3,1000000000}'::xid8[]) xid, generate_series(1, 100001); \
         delete from larder.epoch; \
         create function refuse() returns trigger language plpgsql as $$ begin \
           if (select count(*) > 100000 from gone) then raise exception 'too many at once'; end if; \
           return null; end $$; \
         create trigger refuse after delete on larder.change referencing old table as gone \
           for each statement execute function refuse()",
    )
    .await;
    let larder = TestService::start_in(state, &url, CONFIG, &[]).await;
    let ahead = "select count(*) from larder.change where xid = '1000000000'";
    assert_eq!(read::<i64>(&mut connection, ahead).await, 0);
    larder.stop().await;
    while read::<i64>(&mut connection, "select larder.prune('0 s', 50000)").await > 0 {}
    let left: i64 = read(&mut connection, "select count(*) from larder.change").await;
    assert_eq!(left, 0);
    connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn status_tells_how_long_the_log_is_and_what_holds_it_back() {
    let url = database().await;
    let mut open = PgConnection::connect(&url).await.unwrap();
    run(
        &mut open,
        "begin isolation level repeatable read; select from item",
    )
    .await;
    let pid: i32 = read(&mut open, "select pg_backend_pid()").await;
    let state = TestService::start_on(&url, CONFIG, &[]).await.stop().await;
    execute(
        &url,
        "insert into larder.node values ('00000000-0000-0000-0000-000000000002', '3:3:', now(), null, 'infinity'); \
         insert into larder.change select '4', 'items', '1' from generate_series(1, 1000); analyze larder.change",
    )
    .await;
    let larder = TestService::start_in(state, &url, CONFIG, &[]).await;
    let log = eventually("a look at the log", async || {
        let status = larder.admin("/status").await.json();
        Some(status["feed"]["log"].clone()).filter(|log| !log.is_null())
    })
    .await;
    assert!(log["bytes"].as_i64().unwrap() >= 1_000 * 40, "{log}");
    assert_eq!(log["rows_estimated"], 1_000, "{log}");
    let node = &log["oldest_node"];
    assert_eq!(node["name"], "00000000-0000-0000-0000-000000000002");
    assert_eq!(node["position"], "3:3:");
    assert!(node["seen_seconds_ago"].as_f64().unwrap() >= 0.0);
    assert_eq!(log["oldest_transaction"]["pid"], pid, "{log}");
    assert!(log["oldest_transaction"]["age_seconds"].as_f64().unwrap() > 0.0);
    open.close().await.unwrap();
}
