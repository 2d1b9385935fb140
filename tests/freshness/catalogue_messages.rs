//! A commit that other server processes have not noticed: it is visible in the catalogue, and their caches of the
//! catalogue still hold what was true before.

use axum::http::StatusCode;
use futures_util::future::join_all;
use larder::source::embedded::Embedded;
use nix::unistd::Pid;
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::command::value;
use crate::freshness::testbed::is_hit;
use crate::harness::cluster::{StoppedProcess, start_postgres};
use crate::harness::service::{TestService, execute};
use crate::harness::{eventually, reachable_directory};

const CONFIG: &str = "[[resource]]\nname = 'items'\ntable = 'item'\n";

/// More tables than the checkpointer's queue has places for, which are as many as there are shared buffers.
const TABLES: usize = 300;

const SQL: &str = "create type mood as enum ('calm', 'wild'); create table item (id int primary key, mood mood); \
    insert into item select n, 'calm' from generate_series(1, 10) n; \
    do $$ begin for n in 1..300 loop execute format('create table gone%s ()', n); end loop; end $$; checkpoint";

async fn server() -> (Embedded, TempDir) {
    let base = reachable_directory();
    let settings = [
        ("max_prepared_transactions", "1"),
        ("max_locks_per_transaction", "500"),
        ("shared_buffers", "1MB"),
        ("fsync", "off"),
    ];
    (start_postgres(base.path(), &settings).await, base)
}

/// A transaction that is visible, and whose messages other server processes have yet to get.
struct HeldCommit {
    stopped: StoppedProcess,
    committing: JoinHandle<()>,
}

impl HeldCommit {
    /// Of a transaction that does `sql`, and drops the tables.
    async fn begin(url: &str, sql: &str) -> Self {
        let tables: Vec<String> = (1..=TABLES).map(|n| format!("gone{n}")).collect();
        let drop_tables = format!("drop table {}", tables.join(", "));
        let prepare = format!("begin; {sql}; {drop_tables}; prepare transaction 'x'");
        execute(url, &prepare).await;
        let mut connection = PgConnection::connect(url).await.unwrap();
        let checkpointer = "select pid from pg_stat_activity where backend_type = 'checkpointer'";
        let pid = sqlx::query_scalar(checkpointer).fetch_one(&mut connection);
        let stopped = StoppedProcess::new(Pid::from_raw(pid.await.unwrap()));
        let committing = tokio::spawn({
            let url = url.to_owned();
            async move { execute(&url, "commit prepared 'x'").await }
        });
        eventually("the commit is visible", async || {
            let sql = "select not exists (select from pg_class where relname = 'gone1')";
            let visible = sqlx::query_scalar(sql).fetch_one(&mut connection).await;
            visible.unwrap_or(false).then_some(())
        })
        .await;
        connection.close().await.unwrap();
        Self {
            stopped,
            committing,
        }
    }

    async fn release(self) {
        assert!(!self.committing.is_finished());
        drop(self.stopped);
        self.committing.await.unwrap();
    }
}

/// One by its own connections, one that thinks of them as a pooler's.
async fn larders(url: &str) -> Vec<TestService> {
    let mut larders = Vec::new();
    for pooler in ["false", "true"] {
        let overrides = [
            ("database.pooler", pooler),
            ("database.listen_url", url),
            ("request_timeout", "500ms"),
        ];
        larders.push(TestService::start_on(url, CONFIG, &overrides).await);
    }
    larders
}

async fn become_hits(larders: &[TestService], mood: &str) {
    for larder in larders {
        for id in 1..=10 {
            let expected = format!(r#"{{"id":{id},"mood":"{mood}"}}"#);
            eventually("a hit with the name", async || {
                let answer = larder.get(&format!("/items/{id}")).await;
                (is_hit(&answer) && answer.body == expected).then_some(())
            })
            .await;
        }
    }
}

/// `commit prepared` is visible while it has the checkpointer delete the files of dropped tables, and only then do
/// other server processes get the messages about what it renamed. What they render meanwhile must not be cached.
#[tokio::test(flavor = "multi_thread")]
async fn commits_that_server_processes_have_not_noticed_are_not_cached() {
    let (server, _base) = server().await;
    let url = server.url().to_owned();
    execute(&url, SQL).await;
    let larders = larders(&url).await;
    become_hits(&larders, "calm").await;
    let rename = "alter type mood rename value 'calm' to 'quiet'";
    let held = HeldCommit::begin(&url, rename).await;
    for larder in &larders {
        eventually("no hit any more", async || {
            (!is_hit(&larder.get("/items/1").await)).then_some(())
        })
        .await;
    }
    // No tier may answer before all have heard of it, and there is time enough to keep the old name.
    for _ in 0..5 {
        for larder in &larders {
            let paths = (1..=10).map(|id| format!("/items/{id}"));
            let reads = paths.map(|path| async move { larder.get(&path).await });
            for answer in join_all(reads).await {
                assert!(!is_hit(&answer), "{answer:?}");
            }
        }
    }
    held.release().await;
    become_hits(&larders, "quiet").await;
    drop(larders);
    server.stop().await;
}

/// The catalogue is read in one snapshot, and the statements are planned later. A migration that was undone in between
/// made a resource unfit, and its requests were 503 until it was checked again.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_migration_undoes_makes_no_resource_unfit() {
    let (server, _base) = server().await;
    let url = server.url().to_owned();
    execute(
        &url,
        &format!("{SQL}; create table place (id int primary key); insert into place values (1)"),
    )
    .await;
    let config = format!("{CONFIG}[[resource]]\nname = 'places'\ntable = 'place'\n");
    let larder = TestService::start_on(&url, &config, &[]).await;
    let paths = ["/items/1", "/places/1"];
    let held = HeldCommit::begin(&url, "select 1").await;
    let migrate = "alter table item add extra int; alter table place rename to town";
    execute(&url, migrate).await;
    eventually("the catalogue was read, and its statements were not planned", async || {
        let sql = "select count(*) from pg_stat_activity where query like '%pg_xact_status%' and pid <> pg_backend_pid()";
        (value::<i64>(&url, sql).await == 1).then_some(())
    })
    .await;
    let undo = "alter table item drop extra; alter table town rename to place";
    execute(&url, undo).await;
    held.release().await;
    eventually("hits again", async || {
        let mut hits = 0;
        for path in paths {
            let answer = larder.get(path).await;
            assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
            hits += usize::from(is_hit(&answer));
        }
        (hits == paths.len()).then_some(())
    })
    .await;
    drop(larder);
    server.stop().await;
}
