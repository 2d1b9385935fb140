//! The change log: what triggers write to it, which transactions ring the bell, and what is pruned.

use std::time::Duration;

use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use testkit::fault_proxy::{FaultProxy, NetworkFault};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::freshness::testbed::is_hit;
use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestService, execute};

const SCHEMA: &str = "create table item (id int primary key, day date unique, label text); \
    insert into item select n, date '2026-01-01' + n, 'old' from generate_series(1, 10) n; \
    create table piece (id int primary key, day date references item (day) on update cascade); \
    create index on piece (day); insert into piece values (1, '2026-01-02'), (2, '2026-01-03')";

const CONFIG: &str = r#"
[[resource]]
name = "items"
table = "item"
  [[resource.children]]
  name = "pieces"
  table = "piece"
"#;

async fn database() -> String {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    url
}

async fn count(connection: &mut PgConnection, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
        .fetch_one(connection)
        .await
        .unwrap()
}

async fn run(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(connection)
        .await
        .unwrap();
}

/// What a statement logs.
#[derive(Debug, PartialEq)]
enum LoggedChange {
    Nothing,
    Keys,
    Everything,
}

/// Triggers that were made for other columns must make no write fail while no larder runs that would replace them. If
/// the column is gone they log nothing: the table's fingerprint has changed.
#[tokio::test(flavor = "multi_thread")]
async fn writers_go_on_whatever_becomes_of_their_columns() {
    let url = database().await;
    TestService::start_on(&url, CONFIG, &[]).await.stop().await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    for (definition, write, expected) in [
        (
            "alter table piece alter column day type timestamp",
            "update piece set day = day where id = 1",
            LoggedChange::Everything,
        ),
        (
            "alter table piece drop constraint piece_day_fkey; alter table piece alter column day type text using 'x'",
            "update piece set day = 'not a day' where id = 1",
            LoggedChange::Everything,
        ),
        (
            "alter table piece rename day to date",
            "insert into piece values (3, 'y')",
            LoggedChange::Nothing,
        ),
        (
            "alter table piece drop column date",
            "delete from piece where id = 3",
            LoggedChange::Nothing,
        ),
        (
            "alter table piece add column day date",
            "update piece set day = now()",
            LoggedChange::Keys,
        ),
        (
            "alter table item alter column id type text",
            "update item set id = 'k' where id = '1'",
            LoggedChange::Keys,
        ),
        (
            "alter table item rename id to no",
            "update item set label = 'new'",
            LoggedChange::Nothing,
        ),
        (
            "alter table item drop column no",
            "update item set label = 'newer'",
            LoggedChange::Nothing,
        ),
    ] {
        run(&mut connection, definition).await;
        let before = count(&mut connection, "select count(*) from larder.change").await;
        run(&mut connection, write).await;
        let logged = count(&mut connection, "select count(*) from larder.change").await - before;
        let whole = "select count(*) from larder.change where key is null \
                     and xid = (select xid from larder.change order by xid desc limit 1)";
        let logged = match logged {
            0 => LoggedChange::Nothing,
            _ if count(&mut connection, whole).await > 0 => LoggedChange::Everything,
            _ => LoggedChange::Keys,
        };
        assert_eq!(logged, expected, "{write} after {definition}");
    }
    connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_several_collations_are_logged() {
    let url = TestCluster::database().await.url;
    let schema = "create table name (a text collate \"C\", b varchar collate \"POSIX\", label text, primary key (a, b)); \
                  insert into name values ('x', 'y,z', 'old')";
    execute(&url, schema).await;
    let config = "[[resource]]\nname = \"names\"\ntable = \"name\"";
    let larder = TestService::start_on(&url, config, &[]).await;
    assert_eq!(larder.get("/names/x,y%2Cz").await.json()["label"], "old");
    larder.stop().await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    for (definition, write) in [
        ("select", "update name set label = 'new'"),
        (
            "alter table name alter a type text collate \"default\"",
            "delete from name",
        ),
        ("select", "insert into name values ('x', 'y,z', 'newer')"),
    ] {
        run(&mut connection, definition).await;
        run(&mut connection, "truncate larder.change").await;
        run(&mut connection, write).await;
        let logged: Vec<String> = sqlx::query_scalar("select key from larder.change")
            .fetch_all(&mut connection)
            .await
            .unwrap();
        assert_eq!(logged, ["x,y%2Cz"], "{write} after {definition}");
    }
    connection.close().await.unwrap();
}

/// Triggers run with the rights of the role that installed them, perhaps a superuser; the owner of the table must not
/// get these rights.
#[tokio::test(flavor = "multi_thread")]
async fn the_owner_of_a_table_gets_no_rights_from_its_triggers() {
    let url = database().await;
    TestService::start_on(&url, CONFIG, &[]).await.stop().await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let role = format!("owner_{}", uuid::Uuid::new_v4().simple());
    let sql = format!(
        "create role {role}; grant create on schema public to {role}; \
         alter table item owner to {role}; alter table piece owner to {role}; set role {role}; \
         create type mine as (a text); \
         create function mine_text(mine) returns text language plpgsql as \
           'begin raise exception ''called by %'', current_user; end'; \
         create function mine_json(mine) returns json language plpgsql as \
           'begin raise exception ''called by %'', current_user; end'; \
         create cast (mine as text) with function mine_text(mine); \
         create cast (mine as json) with function mine_json(mine); \
         alter table piece drop constraint piece_day_fkey; \
         alter table piece alter column day type mine using row(day)::mine; \
         alter table item alter column id type mine using row(id)::mine"
    );
    run(&mut connection, &sql).await;
    for write in ["update piece set id = id", "update item set label = 'new'"] {
        run(&mut connection, write).await;
    }
    run(
        &mut connection,
        &format!("reset role; reassign owned by {role} to current_user; drop owned by {role}; drop role {role}"),
    )
    .await;
    connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn dates_are_logged_alike_in_every_style_and_domain() {
    let url = TestCluster::database().await.url;
    let schema = "create domain day as date; create table item (id day primary key, label text); \
        insert into item values ('2026-02-01', 'old')";
    execute(&url, schema).await;
    let toml = "[[resource]]\nname = 'items'\ntable = 'item'\n";
    TestService::start_on(&url, toml, &[]).await.stop().await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let write = "set datestyle = 'german'; update item set label = 'new'";
    run(&mut connection, write).await;
    let logged = "select count(*) from larder.change where key = '2026-02-01'";
    assert_eq!(count(&mut connection, logged).await, 1);
    connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_of_more_keys_than_are_logged_tells_of_ranges() {
    let url = database().await;
    let few = [("feed.keys_per_statement", "3")];
    TestService::start_on(&url, CONFIG, &few).await.stop().await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let many =
        "insert into item (id, label) select (10 ^ n)::int, 'old' from generate_series(2, 8) n";
    run(&mut connection, many).await;
    // All of one length are one range; those of four lengths, which are too many, are logged twice.
    for (keys, rows, whole_rows) in [(3, 3, 0), (4, 5, 0), (9, 5, 0), (100_000_000, 13, 1)] {
        let sql = format!("update item set label = 'new' where id <= {keys}");
        run(&mut connection, &format!("begin; {sql}")).await;
        let own = "select count(*) from larder.change where xid = pg_current_xact_id_if_assigned()";
        assert_eq!(count(&mut connection, own).await, rows);
        let whole = format!("{own} and key is null");
        assert_eq!(count(&mut connection, &whole).await, whole_rows);
        run(&mut connection, "commit").await;
    }
    connection.close().await.unwrap();
}

/// The process that holds the bell's lock between two statements of its session, which only a feed does.
const HOLDER: &str = "select l.pid from pg_locks l join pg_stat_activity a using (pid) \
    where l.locktype = 'advisory' and l.classid = 1818325604 and l.objid = 2 and l.granted and a.state = 'idle' \
    and l.database = (select oid from pg_database where datname = current_database())";

/// Commits again and again until `stop`.
async fn write_on(mut connection: PgConnection, mut stop: watch::Receiver<bool>) {
    while !*stop.borrow_and_update() {
        run(
            &mut connection,
            "update item set label = label where id = 1",
        )
        .await;
    }
    connection.close().await.unwrap();
}

async fn holder(connection: &mut PgConnection) -> Option<i32> {
    sqlx::query_scalar(HOLDER)
        .fetch_optional(connection)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_feed_holds_the_bell_and_rings_for_the_others() {
    let url = database().await;
    let larder = TestService::start_on(&url, CONFIG, &[]).await;
    let mut connection = larder.connect().await;
    run(
        &mut connection,
        "insert into larder.node values (gen_random_uuid(), pg_current_snapshot(), now(), null, 'infinity')",
    )
    .await;
    let mut listener = PgListener::connect(&url).await.unwrap();
    listener.listen("larder").await.unwrap();
    let (stop, stopped) = watch::channel(false);
    let writer = tokio::spawn(write_on(larder.connect().await, stopped));
    let feed = eventually("the bell is held", async || holder(&mut connection).await).await;
    let feed = u32::try_from(feed).unwrap();
    let rung = async { while listener.recv().await.unwrap().process_id() != feed {} };
    timeout(Duration::from_secs(30), rung).await.unwrap();
    stop.send_replace(true);
    writer.await.unwrap();
    eventually("the bell is let go", async || {
        holder(&mut connection).await.is_none().then_some(())
    })
    .await;
    connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_without_network_loses_the_bell() {
    let url = database().await;
    let proxy = FaultProxy::start(&url).await.unwrap();
    let larder = TestService::start_on(&proxy.url, CONFIG, &[]).await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let (stop, stopped) = watch::channel(false);
    let writer = tokio::spawn(write_on(
        PgConnection::connect(&url).await.unwrap(),
        stopped,
    ));
    eventually("the bell is held", async || holder(&mut connection).await).await;
    proxy.set(NetworkFault::Silent);
    eventually("the bell is free", async || {
        holder(&mut connection).await.is_none().then_some(())
    })
    .await;
    stop.send_replace(true);
    writer.await.unwrap();
    connection.close().await.unwrap();
    drop(larder);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_feed_runs_without_the_right_to_hold_the_bell() {
    let url = database().await;
    // larder's role is a superuser here, which may call every function: instead of a missing right, a function is
    // missing.
    let refused = "alter function pg_catalog.pg_try_advisory_lock(int, int) rename to pg_no_lock";
    execute(&url, refused).await;
    let larder = TestService::start_on(&url, CONFIG, &[]).await;
    let mut connection = larder.connect().await;
    let gaps = async || {
        let metrics = larder.admin("/metrics").await.body;
        let line = metrics
            .lines()
            .find(|line| line.starts_with("larder_feed_gaps_total"));
        line.unwrap().to_owned()
    };
    let before = gaps().await;
    let (stop, stopped) = watch::channel(false);
    let writer = tokio::spawn(write_on(larder.connect().await, stopped));
    for number in 0..20 {
        let update = format!("update item set label = 'n{number}' where id = 2");
        run(&mut connection, &update).await;
        eventually("the change", async || {
            let body = larder.get("/items/2").await.body;
            body.contains(&format!("n{number}\"")).then_some(())
        })
        .await;
    }
    stop.send_replace(true);
    writer.await.unwrap();
    assert_eq!(gaps().await, before);
    connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_kept_for_stopped_nodes_and_pruned_by_hand() {
    let url = database().await;
    let larder = TestService::start_on(&url, CONFIG, &[]).await;
    eventually("a hit", async || {
        is_hit(&larder.get("/items/1").await).then_some(())
    })
    .await;
    let state = larder.stop().await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    run(
        &mut connection,
        "update item set label = 'new' where id = 1",
    )
    .await;
    let logged = "select count(*) from larder.change";
    let rows = count(&mut connection, logged).await;
    assert!(rows > 0);
    count(&mut connection, "select larder.prune()").await;
    assert!(count(&mut connection, logged).await > 0);
    while count(&mut connection, "select larder.prune('0 s', 1)").await > 0 {}
    assert_eq!(count(&mut connection, logged).await, 0);
    assert_eq!(
        count(&mut connection, "select count(*) from larder.node").await,
        0
    );
    connection.close().await.unwrap();
    let larder = TestService::start_in(state, &url, CONFIG, &[]).await;
    assert!(larder.get("/items/1").await.body.contains("new"));
}

const LOGGERS: &str = "select count(*) from pg_proc where pronamespace = 'larder'::regnamespace \
    and proname like 'log\\_%'";

#[tokio::test(flavor = "multi_thread")]
async fn what_no_configuration_needs_any_more_is_removed() {
    let url = database().await;
    let short = ("feed.retention", "2s");
    let earlier = [("feed.keys_per_statement", "3"), short];
    let earlier = TestService::start_on(&url, CONFIG, &earlier).await;
    let mut connection = earlier.connect().await;
    let needed = count(&mut connection, LOGGERS).await;
    let larder = TestService::start_on(&url, CONFIG, &[short]).await;
    assert_eq!(count(&mut connection, LOGGERS).await, 2 * needed);
    earlier.stop().await;
    eventually("the earlier one's loggers are gone", async || {
        (count(&mut connection, LOGGERS).await == needed).then_some(())
    })
    .await;
    eventually("a hit", async || {
        is_hit(&larder.get("/items/1").await).then_some(())
    })
    .await;
    run(
        &mut connection,
        "update item set label = 'new' where id = 1",
    )
    .await;
    eventually("the change", async || {
        larder
            .get("/items/1")
            .await
            .body
            .contains("new")
            .then_some(())
    })
    .await;
    assert_eq!(count(&mut connection, LOGGERS).await, needed);
    connection.close().await.unwrap();
}

/// Otherwise a larder that is started after a long time would remove what a second one, started just after it, needs.
#[tokio::test(flavor = "multi_thread")]
async fn a_larder_says_at_once_what_it_needs() {
    let url = database().await;
    TestService::start_on(&url, CONFIG, &[]).await.stop().await;
    let long_ago = "update larder.logger set needed_until = now() - interval '1 day'";
    execute(&url, long_ago).await;
    let larder = TestService::start_on(&url, CONFIG, &[]).await;
    let mut connection = larder.connect().await;
    let old = "select count(*) from larder.logger where needed_until < now()";
    eventually("what is needed is known", async || {
        (count(&mut connection, old).await == 0).then_some(())
    })
    .await;
    assert!(count(&mut connection, LOGGERS).await > 0);
    connection.close().await.unwrap();
}
