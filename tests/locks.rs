//! Tables that a user's transaction has locked: what larder's reads wait for, and what waits for larder's reads.

use std::pin::pin;
use std::time::Duration;

use axum::http::StatusCode;
use futures_util::future::join_all;
use sqlx::PgConnection;
use tokio::time::timeout;

use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::eventually;
use crate::harness::service::{TestResponse, TestService, execute};
use crate::harness::table_locks::{OPEN_GATE, await_waiter, gate_sql, lock_table, unlock};

const SQL: &str = "create table a (id int primary key, name text); \
                   create table b (id int primary key, name text); \
                   insert into a select n, 'a' from generate_series(1, 200) n; \
                   insert into b select n, 'b' from generate_series(1, 200) n";

/// Documents of `a` and `b` share nothing.
const TWO: &str = "[[resource]]\nname = 'a'\ntable = 'a'\ntiers = ['memory']\n\
                   [[resource]]\nname = 'b'\ntable = 'b'\ntiers = ['memory']\n";

/// Longer than any answer takes that waits for no lock.
const USUAL: Duration = Duration::from_secs(10);

/// Statements and requests may take longer, and a feed that is held up on a busy machine changes nothing.
const PATIENT: [(&str, &str); 4] = [
    ("database.connections", "7"),
    ("database.statement_timeout", "1m"),
    ("request_timeout", "1m"),
    ("feed.max_staleness", "1m"),
];

async fn two(settings: &[(&str, &str)]) -> TestService {
    let database = TestCluster::database().await;
    execute(&database.url, SQL).await;
    TestService::start_on(&database.url, TWO, settings).await
}

/// Asks for all `paths` at once.
async fn all(larder: &TestService, paths: Vec<String>) -> Vec<TestResponse> {
    join_all(paths.iter().map(|path| larder.get(path))).await
}

fn statuses(answers: &[TestResponse]) -> Vec<StatusCode> {
    answers.iter().map(|answer| answer.status).collect()
}

async fn run(connection: &mut PgConnection, sql: &'static str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(sql).execute(connection).await.map(|_| ())
}

/// A migration took a child's table, then its parent's, while a load held the parent's and waited for the child's.
/// PostgreSQL ended the migration with 40P01: larder's own look for deadlocks had come a second after its wait began,
/// when there was none yet.
#[tokio::test(flavor = "multi_thread")]
async fn reads_do_not_deadlock_a_migration() {
    let database = TestCluster::database().await;
    let (_, name) = database.url.rsplit_once('/').unwrap();
    execute(
        &database.url,
        &format!(
            "create table dept (id int primary key); \
             create table emp (id int primary key, dept int references dept); \
             create index on emp (dept); \
             insert into dept select generate_series(1, 9); \
             insert into emp select n, 1 + n % 9 from generate_series(1, 90) n; \
             alter database {name} set deadlock_timeout = '1h'"
        ),
    )
    .await;
    let toml = "[[resource]]\nname = 'depts'\ntable = 'dept'\n\
                [[resource.children]]\nname = 'emps'\ntable = 'emp'\n";
    let larder = TestService::start_on(&database.url, toml, &PATIENT).await;
    for path in ["/depts/1", "/depts?keys=2,3,4", "/depts?limit=9"] {
        let mut migration = lock_table(&larder.url, "emp").await;
        run(&mut migration, "set deadlock_timeout = '500ms'")
            .await
            .unwrap();
        let migrating = async {
            await_waiter(&mut migration, "emp").await;
            let taken = run(&mut migration, "lock table dept").await;
            unlock(migration).await;
            taken
        };
        let (answer, taken) = tokio::join!(larder.get(path), migrating);
        taken.unwrap_or_else(|error| panic!("{path} killed the migration: {error}"));
        assert_eq!(answer.status, StatusCode::OK, "{path}: {answer:?}");
        larder.post_admin("/purge/depts").await;
    }
}

/// Two hundred clients that ask for what is locked once took every connection, and all others waited with them.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_table_leaves_the_connections_to_others() {
    let larder = two(&PATIENT).await;
    let mut holder = lock_table(&larder.url, "a").await;
    let documents = (1..=200).map(|key| format!("/a/{key}"));
    // A list each takes a connection.
    let lists = (1..=20).map(|limit| format!("/a?limit={limit}"));
    let mut locked = pin!(all(&larder, documents.chain(lists).collect()));
    let others = async {
        await_waiter(&mut holder, "a").await;
        for key in 1..=20 {
            for path in [format!("/b/{key}"), format!("/b?limit={key}")] {
                let answer = timeout(USUAL, larder.get(&path)).await;
                let answer = answer.unwrap_or_else(|_| panic!("{path} is not answered"));
                assert_eq!(answer.status, StatusCode::OK, "{path}");
            }
        }
    };
    tokio::select! {
        () = others => {}
        answers = &mut locked => panic!("answered under the lock: {:?}", statuses(&answers)),
    }
    unlock(holder).await;
    let answers = timeout(USUAL, locked).await.unwrap();
    let answers = statuses(&answers);
    assert!(
        answers.iter().all(|&status| status == StatusCode::OK),
        "{answers:?}"
    );
}

/// It is what a statement is told that takes too long, for one key, for many, and for a list; and it is told once for
/// all keys of a statement, not after one try of each.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_stays_is_a_timeout() {
    let larder = two(&[("database.statement_timeout", "500ms")]).await;
    let holder = lock_table(&larder.url, "a").await;
    let documents = (1..=200).map(|key| format!("/a/{key}"));
    let paths = documents.chain(["/a?limit=1".to_owned()]).collect();
    let answers = timeout(USUAL, all(&larder, paths)).await.unwrap();
    let answers = statuses(&answers);
    assert!(
        answers
            .iter()
            .all(|&status| status == StatusCode::GATEWAY_TIMEOUT),
        "{answers:?}"
    );
    unlock(holder).await;
    for path in ["/a/1", "/a?limit=1"] {
        assert_eq!(larder.get(path).await.status, StatusCode::OK);
    }
}

/// What takes long without any lock holds a share of the connections at most.
#[tokio::test(flavor = "multi_thread")]
async fn slow_statements_leave_the_connections_to_others() {
    let database = TestCluster::database().await;
    let role = TestRole::create(&database.url).await;
    execute(&database.url, SQL).await;
    execute(&database.url, &gate_sql(&role, &["a", "b"], "a")).await;
    let toml = TWO.replacen("\n[[", "\nrow_security = 'as-larder'\n[[", 1);
    let larder = TestService::start_on(&role.url, &toml, &PATIENT).await;
    let sent = async || larder.metric("larder_source_batch_keys_count").await == 1.0;
    let mut slow = pin!(async {
        let second = async {
            eventually("the first is sent", async || sent().await.then_some(())).await;
            larder.get("/a/2").await
        };
        let lists = (1..=4).map(|limit| format!("/a?limit={limit}"));
        tokio::join!(larder.get("/a/1"), second, all(&larder, lists.collect()))
    });
    let others = async {
        eventually("the second waits for the first", async || {
            // Until it is sent, the first may be what waits.
            let is_sent = sent().await;
            let waiting = larder.admin("/status").await.json()["source_waiting_keys"].as_u64();
            (is_sent && waiting == Some(1)).then_some(())
        })
        .await;
        for path in ["/b/1", "/b?limit=1"] {
            let answer = timeout(USUAL, larder.get(path)).await;
            let answer = answer.unwrap_or_else(|_| panic!("{path} is not answered"));
            assert_eq!(answer.status, StatusCode::OK, "{path}");
        }
    };
    tokio::select! {
        () = others => {}
        _ = &mut slow => panic!("answered though the gate was closed"),
    }
    execute(&database.url, OPEN_GATE).await;
    let (first, second, lists) = timeout(USUAL, slow).await.unwrap();
    assert_eq!(statuses(&[first, second]), [StatusCode::OK; 2]);
    assert_eq!(statuses(&lists), [StatusCode::OK; 4]);
}
