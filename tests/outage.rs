//! PostgreSQL out of reach, silent, crashed or replaced: the answers meanwhile, and how soon the tiers answer again.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use larder::source::SourceError;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::{Connection, PgConnection, raw_sql};
use tempfile::TempDir;
use testkit::fault_proxy::{FaultProxy, NetworkFault};
use tokio::time::Instant;

use crate::harness::cluster::{TestCluster, start_postgres};
use crate::harness::service::{TestResponse, TestService, execute};
use crate::harness::{eventually, reachable_directory};

const SQL: &str = "create table item (id int primary key, name text not null); \
                   insert into item select n, 'first' from generate_series(1, 100) n";

const ITEMS: &str = "[[resource]]\nname = 'items'\ntable = 'public.item'\nkey = 'id'\n";

/// Short enough for a test to wait for, long enough that a busy machine keeps it.
const MAX_STALENESS: Duration = Duration::from_millis(400);
const SETTINGS: [(&str, &str); 2] = [
    ("feed.max_staleness", "400ms"),
    ("feed.poll_interval", "20ms"),
];

/// What is promised as "within a second", with room for a machine that runs other tests.
const SOON: Duration = Duration::from_secs(3);

/// A larder behind a proxy, and the database's direct URL.
async fn behind_proxy(overrides: &[(&str, &str)]) -> (TestService, FaultProxy, String) {
    let database = TestCluster::database().await;
    execute(&database.url, SQL).await;
    let proxy = FaultProxy::start(&database.url).await.unwrap();
    let settings = [&SETTINGS, overrides].concat();
    let larder = TestService::start_on(&proxy.url, ITEMS, &settings).await;
    (larder, proxy, database.url)
}

fn name(answer: &TestResponse) -> String {
    answer.json()["name"].as_str().unwrap().to_owned()
}

/// Sends requests until the answer is 200; answers before it must be 503 with `Retry-After`.
async fn next_document(larder: &TestService, path: &str) -> TestResponse {
    eventually("a document", async || {
        let answer = larder.get(path).await;
        if answer.status == StatusCode::OK {
            return Some(answer);
        }
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(!answer.header("retry-after").is_empty());
        None
    })
    .await
}

/// Waits for a hit. Answers before it may be 503: beside other tests, a pass and a first read can take longer than
/// [`MAX_STALENESS`].
async fn hit(larder: &TestService, path: &str) {
    eventually("a hit", async || {
        let answer = next_document(larder, path).await;
        answer
            .cache_status()
            .starts_with("larder; hit")
            .then_some(())
    })
    .await;
}

async fn is_refused_soon(larder: &TestService, path: &str) {
    let began = Instant::now();
    let answer = larder.get(path).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(!answer.header("retry-after").is_empty());
    assert!(began.elapsed() < SOON, "took {:?}", began.elapsed());
}

/// Waits until no tier answers any more; until then every answer must be from memory.
async fn trust_ends(larder: &TestService, path: &str) {
    let began = Instant::now();
    loop {
        let asked = began.elapsed();
        let answer = larder.get(path).await;
        if !answer.cache_status().starts_with("larder; hit") {
            return;
        }
        assert!(
            asked <= MAX_STALENESS + Duration::from_millis(50),
            "a hit after {asked:?} without a pass"
        );
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hits_end_with_max_staleness_and_come_back_with_postgres() {
    let (larder, proxy, direct) = behind_proxy(&[]).await;
    hit(&larder, "/items/1").await;
    proxy.set(NetworkFault::Cut);
    trust_ends(&larder, "/items/1").await;
    is_refused_soon(&larder, "/items/1").await;
    is_refused_soon(&larder, "/items/2").await;
    execute(&direct, "update item set name = 'second' where id = 1").await;

    proxy.set(NetworkFault::None);
    let resumed = Instant::now();
    assert_eq!(name(&next_document(&larder, "/items/1").await), "second");
    hit(&larder, "/items/1").await;
    assert_eq!(name(&larder.get("/items/1").await), "second");
    assert!(resumed.elapsed() < SOON, "took {:?}", resumed.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn half_open_connections_are_left_behind() {
    let (larder, proxy, direct) = behind_proxy(&[]).await;
    hit(&larder, "/items/1").await;
    proxy.set(NetworkFault::Silent);
    trust_ends(&larder, "/items/1").await;
    is_refused_soon(&larder, "/items/1").await;
    is_refused_soon(&larder, "/items/2").await;
    execute(&direct, "update item set name = 'second' where id = 1").await;

    proxy.set(NetworkFault::None);
    // The feed's own connection counts as lost after five seconds without an answer.
    let resumed = Instant::now();
    hit(&larder, "/items/1").await;
    assert_eq!(name(&larder.get("/items/1").await), "second");
    assert!(resumed.elapsed() < Duration::from_secs(5) + SOON);
    let began = Instant::now();
    assert_eq!(larder.get("/items/3").await.status, StatusCode::OK);
    assert!(began.elapsed() < SOON, "took {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_backends_are_replaced_and_nothing_is_missed() {
    let (larder, _proxy, direct) = behind_proxy(&[]).await;
    hit(&larder, "/items/1").await;
    for round in 0..3 {
        let change = format!(
            "select pg_terminate_backend(pid) from pg_stat_activity \
             where datname = current_database() and pid <> pg_backend_pid(); \
             update item set name = 'round {round}' where id = 1"
        );
        execute(&direct, &change).await;
        let expected = format!("round {round}");
        eventually("the change", async || {
            let answer = next_document(&larder, "/items/1").await;
            (name(&answer) == expected).then_some(())
        })
        .await;
        assert_eq!(name(&next_document(&larder, "/items/1").await), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_stale_says_so() {
    let (larder, proxy, direct) = behind_proxy(&[("feed.on_loss", "serve-stale")]).await;
    hit(&larder, "/items/1").await;
    proxy.set(NetworkFault::Cut);
    let stale = eventually("a stale answer", async || {
        let answer = larder.get("/items/1").await;
        assert_eq!(answer.status, StatusCode::OK);
        (answer.cache_status() != "larder; hit; detail=memory").then_some(answer)
    })
    .await;
    assert_eq!(stale.cache_status(), "larder; hit; detail=stale");
    assert!(stale.header("age").parse::<u64>().is_ok());
    assert!(stale.header("warning").starts_with("110 "));
    is_refused_soon(&larder, "/items/2").await;
    execute(&direct, "update item set name = 'second' where id = 1").await;
    proxy.set(NetworkFault::None);
    eventually("the change", async || {
        let answer = larder.get("/items/1").await;
        (name(&answer) == "second").then_some(())
    })
    .await;
}

/// Connections prove which database they reach; the tiers do not outlive a change of it.
pub(crate) async fn another_database_of_the_same_name_is_another_database() {
    let (larder, proxy, direct) = behind_proxy(&[]).await;
    hit(&larder, "/items/1").await;
    proxy.set(NetworkFault::Cut);
    trust_ends(&larder, "/items/1").await;
    let (server, old) = direct.rsplit_once('/').unwrap();
    let replace = [
        format!("alter database {old} rename to {old}_old"),
        format!("create database {old}"),
    ];
    for statement in replace {
        execute(&format!("{server}/larder"), &statement).await;
    }
    execute(&direct, SQL).await;
    execute(&direct, "update item set name = 'of the other'").await;
    proxy.set(NetworkFault::None);
    for path in ["/items/1", "/items/2"] {
        let answer = next_document(&larder, path).await;
        assert_eq!(name(&answer), "of the other");
    }
    hit(&larder, "/items/1").await;
    assert_eq!(name(&larder.get("/items/1").await), "of the other");
}

/// While the feed was behind, documents came from PostgreSQL by the definition that was read before: a column that had been
/// added more than `max_staleness` before was missing.
#[tokio::test(flavor = "multi_thread")]
async fn reads_past_the_tiers_use_no_definition_of_before() {
    let database = TestCluster::database().await;
    let tables =
        format!("{SQL}; create table other (id int primary key); insert into other values (1)");
    execute(&database.url, &tables).await;
    let proxy = FaultProxy::start(&database.url).await.unwrap();
    let settings = [
        &SETTINGS[..],
        &[
            ("database.listen_url", &*proxy.url),
            ("request_timeout", "1s"),
        ],
    ];
    let toml = format!("{ITEMS}[[resource]]\nname = 'others'\ntable = 'other'\n");
    let larder = TestService::start_on(&database.url, &toml, &settings.concat()).await;
    hit(&larder, "/items/1").await;
    proxy.set(NetworkFault::Cut);
    trust_ends(&larder, "/items/1").await;
    let altered =
        "alter table item add column added int not null default 5; update item set name = id::text";
    execute(&database.url, altered).await;
    eventually("not the old form", async || {
        let answer = larder.get("/items/1").await;
        (answer.status == StatusCode::SERVICE_UNAVAILABLE).then_some(())
    })
    .await;

    let paths = ["/items/1", "/items/2", "/items?keys=1,2", "/items"];
    for answer in join_all(paths.map(|path| larder.get(path))).await {
        assert_eq!(
            answer.status,
            StatusCode::SERVICE_UNAVAILABLE,
            "{}",
            answer.body
        );
        assert_eq!(answer.header("retry-after"), "1");
    }
    // What has not changed is read, though the feed is lost.
    let other = larder.get("/others/1").await;
    assert_eq!(other.cache_status(), "larder; fwd=bypass; detail=feed");
    assert_eq!(larder.get("/others").await.status, StatusCode::OK);

    proxy.set(NetworkFault::None);
    for path in paths {
        eventually("the new form", async || {
            let answer = larder.get(path).await;
            if answer.status == StatusCode::SERVICE_UNAVAILABLE {
                return None;
            }
            assert!(
                answer.body.contains(r#""added":5"#),
                "{path}: {}",
                answer.body
            );
            Some(())
        })
        .await;
    }
}

/// The number of requests that wait is bounded, of each client, too, and hits in memory are not among them.
#[tokio::test(flavor = "multi_thread")]
async fn hits_are_answered_beside_more_misses_than_may_wait() {
    let database = TestCluster::database().await;
    execute(&database.url, SQL).await;
    let proxy = FaultProxy::start(&database.url).await.unwrap();
    // The feed connects without the proxy.
    let settings = [
        ("database.listen_url", &*database.url),
        ("feed.max_staleness", "10s"),
    ];
    let larder = TestService::start_on(&proxy.url, ITEMS, &settings).await;
    hit(&larder, "/items/1").await;
    proxy.set(NetworkFault::Silent);
    let paths: Vec<String> = (1_000..16_000).map(|key| format!("/items/{key}")).collect();
    let misses = paths.iter().map(|path| larder.get(path));
    let mut misses: FuturesUnordered<_> = misses.collect();
    let refused = misses.next().await.unwrap();
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.header("retry-after"), "1");
    assert!(
        refused.body.contains("too many requests wait"),
        "{}",
        refused.body
    );
    for _ in 0..100 {
        let answer = larder.get("/items/1").await;
        assert_eq!(answer.cache_status(), "larder; hit; detail=memory");
    }
}

/// The process of the server with this data directory.
pub(crate) fn postmaster(data: &std::path::Path) -> Pid {
    let text = std::fs::read_to_string(data.join("postmaster.pid")).unwrap();
    Pid::from_raw(text.lines().next().unwrap().parse().unwrap())
}

/// A crash empties the epoch: commits may be lost, so both tiers start again. That takes no right to install.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_of_postgres_starts_both_tiers_again() {
    let directory = reachable_directory();
    // What is not flushed at the commit is lost.
    let settings = [
        ("fsync", "off"),
        ("max_connections", "30"),
        ("wal_writer_delay", "10s"),
    ];
    let embedded = start_postgres(directory.path(), &settings).await;
    let url = embedded.url().to_owned();
    execute(&url, SQL).await;
    let installing = TestService::start_on(&url, ITEMS, &SETTINGS).await;
    installing.stop().await;
    let own = [("disk.linger", "1ms"), ("install", "manual")];
    let larder = TestService::start_on(&url, ITEMS, &[&SETTINGS[..], &own].concat()).await;
    hit(&larder, "/items/1").await;
    hit(&larder, "/items/2").await;
    kill(postmaster(embedded.data_directory()), Signal::SIGKILL).unwrap();
    trust_ends(&larder, "/items/1").await;
    eventually("ready again", async || {
        (larder.admin("/readyz").await.status == StatusCode::OK).then_some(())
    })
    .await;
    let answer = larder.get("/items/2").await;
    assert_eq!(
        answer.cache_status(),
        "larder; fwd=miss; stored; detail=postgres"
    );
    hit(&larder, "/items/1").await;
    execute(&url, "update item set name = 'second' where id = 1").await;
    eventually("the change", async || {
        let answer = next_document(&larder, "/items/1").await;
        (name(&answer) == "second").then_some(())
    })
    .await;
    larder.stop().await;
    embedded.stop().await;
}

/// Heartbeats and pruning are refused; passes go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_only_read_follows_all_the_same() {
    let database = TestCluster::database().await;
    execute(&database.url, SQL).await;
    let owner = TestService::start_on(&database.url, ITEMS, &SETTINGS).await;
    owner.stop().await;
    let (server, name_of_database) = database.url.rsplit_once('/').unwrap();
    let (_, address) = server.rsplit_once('@').unwrap();
    let role = format!("reader_{name_of_database}");
    execute(
        &database.url,
        &format!(
            "create role {role} login password 'secret'; grant usage on schema larder to {role}; \
             grant select on all tables in schema larder to {role}; grant select on item to {role}"
        ),
    )
    .await;
    let url = format!("postgres://{role}:secret@{address}/{name_of_database}");
    let settings = [&SETTINGS[..], &[("install", "manual")]].concat();
    let larder = TestService::start_on(&url, ITEMS, &settings).await;
    hit(&larder, "/items/1").await;
    execute(
        &database.url,
        "update item set name = 'second' where id = 1",
    )
    .await;
    eventually("the change", async || {
        (name(&larder.get("/items/1").await) == "second").then_some(())
    })
    .await;
    assert_eq!(larder.metric("larder_feed_gaps_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_column_may_bear_the_name_of_a_plpgsql_variable() {
    let larder = TestService::start(
        "create table item (found text primary key, tg_op int); insert into item values ('a', 1)",
        &ITEMS.replace("'id'", "'found'"),
    )
    .await;
    hit(&larder, "/items/a").await;
    larder.execute("update item set tg_op = 2").await;
    eventually("the change", async || {
        (larder.get("/items/a").await.json()["tg_op"] == 2).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn larder_starts_without_postgres_and_finds_it_later() {
    let database = TestCluster::database().await;
    execute(&database.url, SQL).await;
    let proxy = FaultProxy::start(&database.url).await.unwrap();
    proxy.set(NetworkFault::Cut);
    let larder = TestService::begin_in(TempDir::new().unwrap(), &proxy.url, ITEMS, &SETTINGS);
    is_refused_soon(&larder, "/items/1").await;
    proxy.set(NetworkFault::None);
    hit(&larder, "/items/1").await;
}

/// The answer to a write spoke of cached documents, or said that the write may have been committed.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_without_postgres_says_that_nothing_was_written() {
    let brief = [("request_timeout", "500ms")];
    let (larder, proxy, direct) = behind_proxy(&brief).await;
    hit(&larder, "/items/1").await;
    let patch = async |name: &str| {
        let body = format!(r#"{{"name":"{name}"}}"#);
        larder.write(Method::PATCH, "/items/1", &[], &body).await
    };
    let is_told = |answer: &TestResponse| {
        let body = &answer.body;
        assert!(body.contains("nothing was written"), "{answer:?}");
        assert!(!body.contains("cached"), "{answer:?}");
    };
    proxy.set(NetworkFault::Cut);
    let refused = patch("refused").await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    is_told(&refused);
    proxy.set(NetworkFault::None);
    eventually("a write", async || {
        let status = patch("patched").await.status;
        (status == StatusCode::OK).then_some(())
    })
    .await;

    execute(
        &direct,
        "create function slow() returns trigger language plpgsql as \
         'begin perform pg_sleep(2); return new; end'; \
         create trigger slow before update on item for each row execute function slow()",
    )
    .await;
    // The write that meets the new trigger first may have to wait for the feed to look at the table again.
    eventually("a write that takes too long", async || {
        let late = patch("late").await;
        is_told(&late);
        (late.status == StatusCode::GATEWAY_TIMEOUT).then_some(())
    })
    .await;
    // Its transaction ends by a rollback.
    let running = "select count(*) from pg_stat_activity where datname = current_database() and query like '%item%' \
                   and backend_type = 'client backend' and pid <> pg_backend_pid() and xact_start is not null \
                   and backend_xid is not null";
    let mut connection = PgConnection::connect(&direct).await.unwrap();
    eventually("the end of the transaction", async || {
        let count: i64 = sqlx::query_scalar(running)
            .fetch_one(&mut connection)
            .await
            .unwrap();
        (count == 0).then_some(())
    })
    .await;
    let stored: String = sqlx::query_scalar("select name from item where id = 1")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(stored, "patched");
}

/// Reading an unlogged table of schema larder fails with 0A000, which said nothing about the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_called_a_standby() {
    let directory = reachable_directory();
    let settings = [("wal_level", "replica"), ("max_connections", "30")];
    let server = start_postgres(directory.path(), &settings).await;
    execute(server.url(), SQL).await;
    let larder = TestService::start_on(server.url(), ITEMS, &SETTINGS).await;
    larder.stop().await;
    // It is started again.
    std::fs::write(server.data_directory().join("standby.signal"), "").unwrap();
    kill(postmaster(server.data_directory()), Signal::SIGINT).unwrap();
    eventually("a standby", async || {
        let mut connection = PgConnection::connect(server.url()).await.ok()?;
        let is_standby =
            sqlx::query_scalar("select pg_is_in_recovery()").fetch_one(&mut connection);
        let is_standby: bool = is_standby.await.ok()?;
        is_standby.then_some(())
    })
    .await;
    for statement in [
        "select from larder.epoch",
        "begin read write",
        "begin; lock table item",
    ] {
        let mut connection = PgConnection::connect(server.url()).await.unwrap();
        let failed = raw_sql(statement).execute(&mut connection).await;
        let error = SourceError::from(failed.unwrap_err());
        assert!(
            matches!(error, SourceError::Standby),
            "{statement}: {error}"
        );
    }
    let larder = TestService::begin_in(TempDir::new().unwrap(), server.url(), ITEMS, &SETTINGS);
    eventually("the reason", async || {
        let ready = larder.admin("/readyz").await;
        ready.body.contains("standby").then_some(())
    })
    .await;
    larder.stop().await;
    server.stop().await;
}

/// As psql does with such a URL: the first host refuses the connection, the second accepts it.
#[tokio::test]
async fn several_hosts_are_tried_in_their_order() {
    let database = TestCluster::database().await;
    execute(&database.url, SQL).await;
    let (credentials, rest) = database.url.split_once('@').unwrap();
    let separator = if rest.contains('?') { '&' } else { '?' };
    let url = format!(
        "{credentials}@127.0.0.1:1,{rest}{separator}target_session_attrs=read-write&connect_timeout=5"
    );
    let larder = TestService::start_on(&url, ITEMS, &SETTINGS).await;
    hit(&larder, "/items/1").await;
    execute(&database.url, "update item set name = 'second'").await;
    eventually("the new document", async || {
        let answer = larder.get("/items/1").await;
        (answer.status == StatusCode::OK && name(&answer) == "second").then_some(())
    })
    .await;
}
