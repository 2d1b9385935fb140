//! A commit that other server processes have not noticed: it is visible in the catalogue, and their caches of the
//! catalogue still hold what was true before.

use std::time::Duration;

use larder::source::embedded::Embedded;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::freshness::testbed::is_hit;
use crate::harness::cluster::start_postgres;
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

/// PostgreSQL's checkpointer, stopped until this is dropped.
struct StoppedCheckpointer(Pid);

impl StoppedCheckpointer {
    async fn new(connection: &mut PgConnection) -> Self {
        let sql = "select pid from pg_stat_activity where backend_type = 'checkpointer'";
        let pid = sqlx::query_scalar(sql).fetch_one(connection).await.unwrap();
        let pid = Pid::from_raw(pid);
        kill(pid, Signal::SIGSTOP).unwrap();
        Self(pid)
    }
}

impl Drop for StoppedCheckpointer {
    fn drop(&mut self) {
        // It may have ended with its server.
        let _ended = kill(self.0, Signal::SIGCONT).is_err();
    }
}

/// One by its own connections, one that thinks of them as a pooler's.
async fn larders(url: &str) -> Vec<TestService> {
    let mut larders = Vec::new();
    for pooler in ["false", "true"] {
        let overrides = [("database.pooler", pooler), ("database.listen_url", url)];
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
    let tables: Vec<String> = (1..=TABLES).map(|n| format!("gone{n}")).collect();
    let rename = "alter type mood rename value 'calm' to 'quiet'";
    let drop_tables = format!("drop table {}", tables.join(", "));
    let prepare = format!("begin; {rename}; {drop_tables}; prepare transaction 'x'");
    execute(&url, &prepare).await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let stopped = StoppedCheckpointer::new(&mut connection).await;
    let committing = tokio::spawn({
        let url = url.clone();
        async move { execute(&url, "commit prepared 'x'").await }
    });
    eventually("the commit is visible", async || {
        let sql = "select exists (select from pg_enum where enumlabel = 'quiet')";
        let visible = sqlx::query_scalar(sql).fetch_one(&mut connection).await;
        visible.unwrap_or(false).then_some(())
    })
    .await;
    for larder in &larders {
        eventually("no hit any more", async || {
            (!is_hit(&larder.get("/items/1").await)).then_some(())
        })
        .await;
    }
    // No tier may answer before all have heard of it, and there is time enough to keep the old name.
    for _ in 0..100 {
        for larder in &larders {
            for id in 1..=10 {
                let answer = larder.get(&format!("/items/{id}")).await;
                assert!(!is_hit(&answer), "{answer:?}");
            }
        }
        sleep(Duration::from_millis(5)).await;
    }
    assert!(!committing.is_finished());
    drop(stopped);
    committing.await.unwrap();
    become_hits(&larders, "quiet").await;
    connection.close().await.unwrap();
    drop(larders);
    server.stop().await;
}
