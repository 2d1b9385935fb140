//! Installing beside clients that use the tables.

use axum::http::StatusCode;
use sqlx::{Connection, PgConnection};

use crate::command::value;
use crate::freshness::testbed::is_hit;
use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestService, execute};

const SQL: &str = "create table a (id int primary key, name text); create table b (id int primary key, name text); \
    insert into a values (1, 'first'); insert into b values (1, 'first')";
const CONFIG: &str =
    "[[resource]]\nname = 'a'\ntable = 'a'\n[[resource]]\nname = 'b'\ntable = 'b'\n";

async fn begin(url: &str, sql: &'static str) -> PgConnection {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
    connection
}

/// A table that a long transaction writes to gets its triggers later. Meanwhile its documents come from PostgreSQL, and
/// the others are cached.
#[tokio::test(flavor = "multi_thread")]
async fn installing_waits_only_for_the_table_in_use() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let mut writer = begin(&url, "begin; update a set name = 'unseen'").await;
    let larder = TestService::start_on(&url, CONFIG, &[]).await;
    eventually("b is cached", async || {
        is_hit(&larder.get("/b/1").await).then_some(())
    })
    .await;
    for name in ["first", "again"] {
        execute(&url, &format!("insert into a values (2, '{name}') on conflict (id) do update set name = excluded.name")).await;
        let answer = larder.get("/a/2").await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        assert!(
            !is_hit(&answer) && answer.body.contains(name),
            "{}",
            answer.body
        );
    }
    let status = larder.admin("/status").await.body;
    for part in ["lacks triggers of larder", "process ", "lock on public.a"] {
        assert!(status.contains(part), "{part}: {status}");
    }
    sqlx::raw_sql("commit").execute(&mut writer).await.unwrap();
    eventually("a is cached", async || {
        let answer = larder.get("/a/1").await;
        (is_hit(&answer) && answer.body.contains("unseen")).then_some(())
    })
    .await;
    execute(&url, "update a set name = 'seen'").await;
    eventually("the change", async || {
        larder
            .get("/a/1")
            .await
            .body
            .contains("seen\"")
            .then_some(())
    })
    .await;
}

/// New triggers of one resource begin no new epoch for the others.
#[tokio::test(flavor = "multi_thread")]
async fn new_triggers_empty_nothing_else() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let parts = "create table p (id int, name text, primary key (id)) partition by range (id); \
        create table p1 partition of p for values from (0) to (10); insert into p values (1, 'first')";
    execute(&url, parts).await;
    // However busy the machine is, b stays fresh.
    let config =
        format!("[feed]\nmax_staleness = '1h'\n{CONFIG}[[resource]]\nname = 'p'\ntable = 'p'\n");
    let larder = TestService::start_on(&url, &config, &[]).await;
    let other = TestService::start_on(&url, &config, &[("feed.keys_per_statement", "7")]).await;
    eventually("b is cached", async || {
        is_hit(&larder.get("/b/1").await).then_some(())
    })
    .await;
    let nonce = "select nonce::text from larder.epoch";
    let before: String = value(&url, nonce).await;
    execute(
        &url,
        "create table p2 partition of p for values from (10) to (20)",
    )
    .await;
    let triggers = "select count(*) from pg_trigger where tgrelid = 'p2'::regclass";
    let expected = "select count(*) from pg_trigger where tgrelid = 'p1'::regclass";
    eventually("the partition has its triggers", async || {
        let there: i64 = value(&url, triggers).await;
        (there == value::<i64>(&url, expected).await).then_some(())
    })
    .await;
    execute(
        &url,
        "insert into p values (11, 'new'); update p set name = 'new'",
    )
    .await;
    for path in ["/p/1", "/p/11"] {
        for larder in [&larder, &other] {
            eventually("the change", async || {
                larder.get(path).await.body.contains("new").then_some(())
            })
            .await;
        }
    }
    assert!(is_hit(&larder.get("/b/1").await));
    assert_eq!(value::<String>(&url, nonce).await, before);
}

/// Beside writers that lock the tables in every order, installing and uninstalling end none of their transactions.
#[tokio::test(flavor = "multi_thread")]
async fn installing_and_uninstalling_end_no_transaction() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let (stop, _) = tokio::sync::watch::channel(false);
    let writers = (0..4).map(|number| {
        let (url, stopped) = (url.clone(), stop.subscribe());
        tokio::spawn(async move {
            let mut connection = PgConnection::connect(&url).await.unwrap();
            let [first, second] = if number % 2 == 0 { ["a", "b"] } else { ["b", "a"] };
            let id = number + 10;
            let sql = format!(
                "begin; insert into {first} values ({id}) on conflict (id) do update set name = 'x'; select pg_sleep(0.02); \
                 insert into {second} values ({id}) on conflict (id) do update set name = 'x'; commit"
            );
            let mut done = 0_u32;
            while !*stopped.borrow() {
                sqlx::raw_sql(sqlx::AssertSqlSafe(sql.clone())).execute(&mut connection).await.unwrap();
                done += 1;
            }
            done
        })
    });
    let writers: Vec<_> = writers.collect();
    let directory = crate::command::configured(CONFIG);
    for limit in 1..=5 {
        let few = limit.to_string();
        let larder =
            TestService::start_on(&url, CONFIG, &[("feed.keys_per_statement", &few)]).await;
        for path in ["/a/1", "/b/1"] {
            eventually("a hit", async || {
                is_hit(&larder.get(path).await).then_some(())
            })
            .await;
        }
        larder.stop().await;
        let output =
            crate::harness::larder_process::run(directory.path(), Some(&url), &["uninstall"]).await;
        assert_eq!(
            output.status.code(),
            Some(0),
            "{}",
            crate::harness::larder_process::stderr(&output)
        );
    }
    stop.send_replace(true);
    for writer in writers {
        assert!(writer.await.unwrap() > 0);
    }
}

/// What a stopped larder needs is kept for its own retention, not for that of another larder.
#[tokio::test(flavor = "multi_thread")]
async fn the_retention_of_one_larder_removes_nothing_of_another() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let larder = TestService::start_on(&url, CONFIG, &[("feed.keys_per_statement", "3")]).await;
    let kept = "select (select count(*) from larder.node where kept_until > now() + interval '30 minutes') \
        + (select count(*) from larder.logger where needed_until > now() + interval '30 minutes')";
    let before = eventually("a node and its two loggers are kept", async || {
        let kept: i64 = value(&url, kept).await;
        (kept == 3).then_some(kept)
    })
    .await;
    larder.stop().await;
    let late = "insert into larder.node (name, position, seen_at) values (gen_random_uuid(), pg_current_snapshot(), '-infinity')";
    execute(&url, late).await;
    // It has not been seen for longer than the retention of the other larder.
    execute(
        &url,
        "update larder.node set seen_at = now() - interval '1 minute'",
    )
    .await;
    let late = "insert into larder.logger values ('log_0', '-infinity')";
    execute(&url, late).await;
    let neighbour = TestService::start_on(&url, CONFIG, &[("feed.retention", "1s")]).await;
    let past = "select (select count(*) from larder.node where kept_until < now() - interval '10 seconds') \
        + (select count(*) from larder.logger where needed_until < now() - interval '10 seconds')";
    execute(
        &url,
        "update larder.node set kept_until = '-infinity' where kept_until < now()",
    )
    .await;
    eventually("the others are gone", async || {
        (value::<i64>(&url, past).await == 0).then_some(())
    })
    .await;
    assert_eq!(value::<i64>(&url, kept).await, before);
    neighbour.stop().await;
}

/// A restore that replaces a table after larder has inspected it creates the triggers itself, and would fail if it found
/// larder's. The event trigger replaces it just before.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_was_replaced_meanwhile_gets_no_triggers() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let replace = r#"create function replace_b() returns event_trigger language plpgsql as $$ begin
        if current_query() ~ 'on "?public"?\."?b"?\s' and to_regclass('public.old') is null then
          alter table public.b rename to old;
          create table public.b (like public.old including all); insert into public.b select * from public.old;
        end if; end $$;
        create event trigger replace_b on ddl_command_start when tag in ('CREATE TRIGGER') execute function replace_b()"#;
    execute(&url, replace).await;
    let larder = TestService::start_on(&url, CONFIG, &[]).await;
    eventually("b waits", async || {
        let status = larder.admin("/status").await.body;
        status.contains("the table that replaced it").then_some(())
    })
    .await;
    let triggers = "select count(*) from pg_trigger where tgrelid = 'b'::regclass";
    assert_eq!(value::<i64>(&url, triggers).await, 0);
    eventually("a is cached", async || {
        is_hit(&larder.get("/a/1").await).then_some(())
    })
    .await;
    execute(&url, "drop event trigger replace_b").await;
    eventually("b is cached", async || {
        is_hit(&larder.get("/b/1").await).then_some(())
    })
    .await;
}

/// Event triggers on DDL may be slow: writers do not wait for them.
pub(crate) async fn a_slow_event_trigger_holds_up_no_writer() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let slow = "create function slow() returns event_trigger language plpgsql as $$ begin perform pg_sleep(20); end $$; \
        create event trigger slow on ddl_command_end when tag in ('CREATE TRIGGER') execute function slow()";
    execute(&url, slow).await;
    let config = "[[resource]]\nname = 'a'\ntable = 'a'\n";
    let larder = TestService::start_on(&url, config, &[]).await;
    let sleeping = "select count(*) from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database()";
    for _ in 0..3 {
        eventually("the event trigger runs", async || {
            (value::<i64>(&url, sleeping).await > 0).then_some(())
        })
        .await;
        let update = "set lock_timeout = '5s'; update a set name = 'second' where id = 1";
        execute(&url, update).await;
    }
    execute(&url, "drop event trigger slow").await;
    eventually("a is cached", async || {
        is_hit(&larder.get("/a/1").await).then_some(())
    })
    .await;
}
