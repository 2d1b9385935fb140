//! All connections of larder to PostgreSQL together: as many as `database.connections` says, and where they are needed.

use std::ops::Range;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use futures_util::future::join_all;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::eventually;
use crate::harness::service::{TestResponse, TestService, execute};
use crate::harness::table_locks::{OPEN_GATE, gate_sql};

/// Longer than any answer takes that waits for no connection.
const USUAL: Duration = Duration::from_secs(10);

const TABLES: [&str; 4] = ["item", "a", "b", "w"];

const TOML: &str = "[[resource]]\nname = 'item'\ntable = 'item'\ntiers = []\n\
    [[resource]]\nname = 'a'\ntable = 'a'\ntiers = []\nrow_security = 'as-larder'\n\
    [[resource]]\nname = 'b'\ntable = 'b'\ntiers = []\nrow_security = 'as-larder'\n\
    [[resource]]\nname = 'w'\ntable = 'w'\ntiers = []\n";

/// Statements and requests may take longer, and a feed that is held up on a busy machine changes nothing.
const PATIENT: [(&str, &str); 4] = [
    ("database.connections", "8"),
    ("database.statement_timeout", "1m"),
    ("request_timeout", "1m"),
    ("feed.max_staleness", "1m"),
];

struct Testbed {
    /// Of a superuser.
    url: String,
    role: TestRole,
}

impl Testbed {
    /// A role that may have `connections`, and owns the tables: `item`; `a` and `b`, whose rows are slow to read, and
    /// `w`, whose rows are slow to insert, until the gate is open.
    async fn new(connections: usize) -> Self {
        let url = TestCluster::database().await.url;
        let role = TestRole::create(&url).await;
        let mut sql: String = TABLES
            .iter()
            .map(|table| {
                format!(
                    "create table {table} (id int primary key, name text); \
                     insert into {table} select n, 'first' from generate_series(1, 20) n; "
                )
            })
            .collect();
        sql += &gate_sql(&role, &TABLES, "a");
        sql += &format!(
            "; alter table b enable row level security; alter table b force row level security; \
             create policy gated on b using (wait()); \
             create function hold() returns trigger language plpgsql as $$ begin perform public.wait(); return new; \
             end $$; \
             create trigger hold before insert or update on w for each row execute function hold(); \
             alter role {} connection limit {connections}",
            role.name
        );
        execute(&url, &sql).await;
        Self { url, role }
    }

    async fn start(&self) -> TestService {
        TestService::start_on(&self.role.url, TOML, &PATIENT).await
    }

    async fn count(&self, condition: &str) -> i64 {
        let mut connection = PgConnection::connect(&self.url).await.unwrap();
        let sql = format!(
            "select count(*) from pg_stat_activity where usename = '{}' and {condition}",
            self.role.name
        );
        let count = sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_one(&mut connection)
            .await;
        connection.close().await.unwrap();
        count.unwrap()
    }

    /// Waits until `count` statements wait for the gate.
    async fn await_gated(&self, count: i64) {
        eventually(&format!("{count} statements"), async || {
            (self.count("wait_event = 'PgSleep'").await == count).then_some(())
        })
        .await;
    }

    /// The most connections at a time, until the task is aborted.
    fn watch(&self, larder_limit: i64) -> JoinHandle<()> {
        let (url, name) = (self.url.clone(), self.role.name.clone());
        tokio::spawn(async move {
            let mut connection = PgConnection::connect(&url).await.unwrap();
            loop {
                let sql = format!("select count(*) from pg_stat_activity where usename = '{name}'");
                let count: i64 = sqlx::query_scalar(AssertSqlSafe(sql))
                    .fetch_one(&mut connection)
                    .await
                    .unwrap();
                assert!(count <= larder_limit, "{count} connections");
            }
        })
    }
}

async fn read_all(larder: &TestService, paths: Vec<String>) -> Vec<TestResponse> {
    join_all(paths.iter().map(|path| larder.get(path))).await
}

/// Uses all connections for reads until the gate is opened, and returns the responses.
async fn read_slowly(testbed: &Testbed, larder: &TestService) -> Vec<TestResponse> {
    // Keys that are requested together are read by one statement.
    let others = async {
        testbed.await_gated(1).await;
        let others = ["/a/2", "/b/1", "/a?limit=1", "/b?limit=1"].map(str::to_owned);
        read_all(larder, others.to_vec()).await
    };
    let (first, mut others) = tokio::join!(larder.get("/a/1"), others);
    others.push(first);
    others
}

/// Rows that stay the same are not written, so each round writes others.
async fn put(larder: &TestService, table: &str, id: u32, round: u32) -> TestResponse {
    let body = format!("{{\"id\":{id},\"name\":\"{round}\"}}");
    larder
        .write(Method::PUT, &format!("/{table}/{id}"), &[], &body)
        .await
}

async fn put_many(larder: &TestService, ids: Range<u32>, round: u32) -> Vec<TestResponse> {
    join_all(ids.map(|id| put(larder, "w", id, round))).await
}

async fn insert_in_bulk(larder: &TestService, id: u32) -> TestResponse {
    let ndjson = [("content-type", "application/x-ndjson")];
    let body = format!("{{\"id\":{id},\"name\":\"bulk\"}}\n");
    larder.write(Method::POST, "/w", &ndjson, &body).await
}

async fn in_time<T>(what: &str, answer: impl Future<Output = T>) -> T {
    let answer = timeout(USUAL, answer).await;
    answer.unwrap_or_else(|_| panic!("{what} is not answered"))
}

fn assert_ok(answers: &[TestResponse]) {
    for answer in answers {
        assert!(answer.status.is_success(), "{answer:?}");
    }
}

/// `connections = 8` opened up to 26 connections. Under a limit of 12 for larder's role all writes were refused for ever,
/// while three connections for writes were idle.
#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_go_where_they_are_needed() {
    let testbed = Testbed::new(8).await;
    let larder = testbed.start().await;
    let watching = testbed.watch(8);
    for round in 1..3 {
        execute(&testbed.url, "delete from gate").await;
        // The feed's two, five that read, and one for writes, which go on.
        let reading = read_slowly(&testbed, &larder);
        let writing = async {
            testbed.await_gated(5).await;
            for id in 1..=3 {
                assert_ok(&[in_time("a write", put(&larder, "item", id, round)).await]);
            }
            execute(&testbed.url, OPEN_GATE).await;
        };
        let (answers, ()) = tokio::join!(reading, writing);
        assert_ok(&answers);
        execute(&testbed.url, "delete from gate").await;
        // Five of the six that are idle now write, and one reads.
        let writing = put_many(&larder, 1..9, round);
        let reading = async {
            testbed.await_gated(5).await;
            for id in 1..=3 {
                let path = format!("/item/{id}");
                assert_ok(&[in_time("a read", larder.get(&path)).await]);
            }
            execute(&testbed.url, OPEN_GATE).await;
        };
        let (answers, ()) = tokio::join!(writing, reading);
        assert_ok(&answers);
    }
    assert!(!watching.is_finished(), "too many connections");
    watching.abort();
}

/// A bulk write and four other writes have all connections but one.
#[tokio::test(flavor = "multi_thread")]
async fn bulk_writes_leave_connections_to_reads_and_writes() {
    let testbed = Testbed::new(8).await;
    let larder = testbed.start().await;
    let bulk = insert_in_bulk(&larder, 101);
    let others = async {
        testbed.await_gated(1).await;
        let reading = async {
            testbed.await_gated(5).await;
            for id in 1..=3 {
                let path = format!("/item/{id}");
                assert_ok(&[in_time("a read", larder.get(&path)).await]);
            }
            execute(&testbed.url, OPEN_GATE).await;
        };
        tokio::join!(put_many(&larder, 1..9, 1), reading).0
    };
    let (bulk, answers) = tokio::join!(bulk, others);
    assert_ok(&[bulk]);
    assert_ok(&answers);
}

/// The role may have fewer connections than the setting says.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_refuses_is_done_over_the_connections_that_there_are() {
    let testbed = Testbed::new(5).await;
    let larder = testbed.start().await;
    execute(&testbed.url, OPEN_GATE).await;
    for round in 1..4 {
        let paths = (1..=20).flat_map(|id| [format!("/a/{id}"), format!("/b?limit={id}")]);
        let reading = read_all(&larder, paths.collect());
        let bulk = async {
            let inserted = insert_in_bulk(&larder, 101).await;
            let deleted = larder.request(Method::DELETE, "/w/101", &[]).await;
            [inserted, deleted]
        };
        let writing = put_many(&larder, 1..20, round);
        let (read, written, bulk) = tokio::join!(reading, writing, bulk);
        assert_ok(&read);
        assert_ok(&written);
        assert_ok(&bulk);
    }
}

/// With the fewest connections each kind of request is served; a bulk write holds up other writes.
#[tokio::test(flavor = "multi_thread")]
async fn four_connections_serve_all_requests() {
    let testbed = Testbed::new(4).await;
    let settings = [&PATIENT[..], &[("database.connections", "4")]].concat();
    let larder = TestService::start_on(&testbed.role.url, TOML, &settings).await;
    execute(&testbed.url, OPEN_GATE).await;
    let paths = (1..=20).flat_map(|id| [format!("/a/{id}"), format!("/b?limit={id}")]);
    let reading = read_all(&larder, paths.collect());
    let bulk = insert_in_bulk(&larder, 101);
    let (read, written, bulk) = tokio::join!(reading, put_many(&larder, 1..20, 1), bulk);
    assert_ok(&read);
    assert_ok(&written);
    assert_ok(&[bulk]);
}

/// It said that PostgreSQL can't be reached.
#[tokio::test(flavor = "multi_thread")]
async fn too_many_connections_are_told_as_that() {
    let testbed = Testbed::new(2).await;
    // All that the role may have are the feed's.
    let directory = TempDir::new().unwrap();
    let larder = TestService::begin_in(directory, &testbed.role.url, TOML, &PATIENT);
    eventually("the reason", async || {
        let answer = larder.admin("/readyz").await;
        let is_told = answer
            .body
            .contains("too many connections (SQLSTATE 53300)");
        (answer.status == StatusCode::SERVICE_UNAVAILABLE && is_told).then_some(())
    })
    .await;
    let answer = larder.get("/item/1").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    let more = format!("alter role {} connection limit 8", testbed.role.name);
    execute(&testbed.url, &more).await;
    eventually("ready", async || {
        (larder.admin("/readyz").await.status == StatusCode::OK).then_some(())
    })
    .await;
    assert_ok(&[larder.get("/item/1").await]);
}
