//! A database whose data directory was replaced by an earlier copy, and a change log that was edited by hand.

use std::path::{Path, PathBuf};
use std::process::Command;

use larder::source::embedded::Embedded;
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;
use testkit::fault_proxy::{FaultProxy, NetworkFault};

use crate::freshness::testbed::is_hit;
use crate::harness::cluster::{TestCluster, start_postgres};
use crate::harness::service::{TestService, execute};
use crate::harness::{eventually, reachable_directory};

const SQL: &str = "create table item (id int primary key, name text); \
    insert into item select n, 'first' from generate_series(1, 40) n";

const CONFIG: &str = "[disk]\nlinger = '1ms'\n[feed]\nmax_staleness = '30s'\n\
    [[resource]]\nname = 'items'\ntable = 'item'\n[[resource]]\nname = 'disk'\ntable = 'item'\ntiers = ['disk']";

/// A PostgreSQL server of one test, which stops and starts it.
struct RestartableServer {
    running: Option<Embedded>,
    base: TempDir,
}

impl RestartableServer {
    async fn start() -> Self {
        let mut server = Self {
            running: None,
            base: reachable_directory(),
        };
        server.resume().await;
        server
    }

    /// Starts it and returns its URL, whose port is the same as before if that is still free.
    async fn resume(&mut self) -> String {
        let embedded = start_postgres(self.base.path(), &[("fsync", "off")]).await;
        let url = embedded.url().to_owned();
        self.running = Some(embedded);
        url
    }

    /// Stops it in good order. Returns its data directory.
    async fn stop(&mut self) -> PathBuf {
        let embedded = self.running.take().unwrap();
        let data = embedded.data_directory().to_owned();
        embedded.stop().await;
        data
    }

    fn url(&self) -> &str {
        self.running.as_ref().unwrap().url()
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::remove_dir_all(to).ok();
    let copied = Command::new("cp")
        .arg("-a")
        .args([from, to])
        .status()
        .unwrap();
    assert!(copied.success());
}

async fn name(larder: &TestService, path: &str) -> String {
    let answer = larder.get(path).await;
    assert_eq!(answer.status, 200, "{path} {}", answer.body);
    answer.json()["name"].as_str().unwrap().to_owned()
}

async fn fill(larder: &TestService) {
    for resource in ["items", "disk"] {
        for id in 1..=20 {
            eventually("a hit", async || {
                is_hit(&larder.get(&format!("/{resource}/{id}")).await).then_some(())
            })
            .await;
        }
    }
}

/// Transactions that are lost when the copy is put back, and others in their place, more of them.
const LOST: &str = "update item set name = 'lost' where id <= 20";

async fn write_others(url: &str) {
    for _ in 0..20 {
        execute(url, "update item set name = 'other' where id = 40").await;
    }
}

/// Oids, nonce and system identifier are those that the disk tier was filled under, and the position lies in the past.
#[tokio::test(flavor = "multi_thread")]
async fn transactions_lost_with_a_restored_copy_are_not_resumed() {
    let mut server = RestartableServer::start().await;
    let copied = server.base.path().join("copy");
    execute(server.url(), SQL).await;
    let larder = TestService::start_on(server.url(), CONFIG, &[]).await;
    fill(&larder).await;
    let state = larder.stop().await;
    let data = server.stop().await;
    copy(&data, &copied);
    let url = server.resume().await;
    let larder = TestService::start_in(state, &url, CONFIG, &[]).await;
    execute(&url, LOST).await;
    for resource in ["items", "disk"] {
        eventually("the change", async || {
            (name(&larder, &format!("/{resource}/20")).await == "lost").then_some(())
        })
        .await;
    }
    fill(&larder).await;
    let state = larder.stop().await;
    server.stop().await;
    copy(&copied, &data);
    let url = server.resume().await;
    write_others(&url).await;
    let larder = TestService::start_in(state, &url, CONFIG, &[]).await;
    for resource in ["items", "disk"] {
        for id in 1..=20 {
            assert_eq!(name(&larder, &format!("/{resource}/{id}")).await, "first");
        }
    }
    drop(larder);
    server.stop().await;
}

/// The same beside a running larder: memory holds documents of a history that no longer exists.
#[tokio::test(flavor = "multi_thread")]
async fn memory_is_emptied_where_a_copy_is_put_back_beside_larder() {
    let mut server = RestartableServer::start().await;
    let copied = server.base.path().join("copy");
    execute(server.url(), SQL).await;
    let url = server.url().to_owned();
    let larder = TestService::start_on(&url, CONFIG, &[]).await;
    fill(&larder).await;
    let data = server.stop().await;
    copy(&data, &copied);
    assert_eq!(server.resume().await, url, "the port has changed");
    eventually("larder is back", async || {
        (larder.admin("/readyz").await.status == 200).then_some(())
    })
    .await;
    execute(&url, LOST).await;
    eventually("the change", async || {
        (name(&larder, "/items/20").await == "lost").then_some(())
    })
    .await;
    fill(&larder).await;
    server.stop().await;
    copy(&copied, &data);
    server.resume().await;
    write_others(&url).await;
    for resource in ["items", "disk"] {
        for id in 1..=20 {
            eventually("what the copy has", async || {
                let answer = larder.get(&format!("/{resource}/{id}")).await;
                (answer.status == 200 && answer.json()["name"] == "first").then_some(())
            })
            .await;
        }
    }
    drop(larder);
    server.stop().await;
}

/// A restart of PostgreSQL alone costs neither tier its content.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_postgres_keeps_the_tiers() {
    let mut server = RestartableServer::start().await;
    execute(server.url(), SQL).await;
    let url = server.url().to_owned();
    let larder = TestService::start_on(&url, CONFIG, &[]).await;
    fill(&larder).await;
    server.stop().await;
    assert_eq!(server.resume().await, url, "the port has changed");
    eventually("larder is back", async || {
        (larder.admin("/readyz").await.status == 200).then_some(())
    })
    .await;
    let passes = larder.get("/items/1").await;
    assert_eq!(passes.cache_status(), "larder; hit; detail=memory");
    drop(larder);
    server.stop().await;
}

/// What is read from a run of the server that the feed does not know yet could be lost by a copy that is put back next.
#[tokio::test(flavor = "multi_thread")]
async fn loads_wait_until_the_feed_knows_the_run_of_the_server() {
    let mut server = RestartableServer::start().await;
    execute(server.url(), SQL).await;
    let url = server.url().to_owned();
    let feed = FaultProxy::start(&url).await.unwrap();
    let settings = [("database.listen_url", feed.url.as_str())];
    let larder = TestService::start_on(&url, CONFIG, &settings).await;
    assert_eq!(larder.get("/items/30").await.status, 200);
    feed.set(NetworkFault::Cut);
    // The same run: PostgreSQL answers without the feed.
    assert_eq!(larder.get("/items/31").await.status, 200);
    server.stop().await;
    assert_eq!(server.resume().await, url, "the port has changed");
    assert_eq!(larder.get("/items/32").await.status, 503);
    feed.set(NetworkFault::None);
    eventually("the feed is back", async || {
        (larder.get("/items/32").await.status == 200).then_some(())
    })
    .await;
    drop(larder);
    server.stop().await;
}

async fn edited(edit: &str) {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let larder = TestService::start_on(&url, CONFIG, &[]).await;
    fill(&larder).await;
    let state = larder.stop().await;
    execute(&url, "update item set name = 'second' where id <= 10").await;
    execute(&url, edit).await;
    let larder = TestService::start_in(state, &url, CONFIG, &[]).await;
    for id in 1..=10 {
        assert_eq!(
            name(&larder, &format!("/disk/{id}")).await,
            "second",
            "{edit}"
        );
    }
}

/// While larder is stopped, the log alone knows what the disk tier has missed.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_edited_while_larder_is_stopped_voids_the_disk_tier() {
    tokio::join!(
        edited("delete from larder.change"),
        edited("delete from larder.change where key = '3'"),
        edited("update larder.change set key = '30'"),
        edited("set session_replication_role = replica; delete from larder.change"),
        edited("truncate larder.change"),
    );
}

/// Rows that are deleted with the transaction that wrote them never reach a pass.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_edited_before_a_pass_empties_the_tiers() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let slow = [("feed.poll_interval", "500ms"), ("feed.notify", "false")];
    let larder = TestService::start_on(&url, CONFIG, &slow).await;
    fill(&larder).await;
    let change = "update item set name = 'second' where id = 3; delete from larder.change";
    execute(&url, &format!("begin; {change}; commit")).await;
    for path in ["/items/3", "/disk/3"] {
        eventually("the change", async || {
            (name(&larder, path).await == "second").then_some(())
        })
        .await;
    }
}

/// What the guard of the log does to the horizon; pruning must not move it.
#[tokio::test(flavor = "multi_thread")]
async fn only_rows_above_the_horizon_move_it() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    TestService::start_on(&url, CONFIG, &[]).await.stop().await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let horizon = async |connection: &mut PgConnection| -> String {
        sqlx::query_scalar("select snapshot::text from larder.horizon")
            .fetch_one(connection)
            .await
            .unwrap()
    };
    execute(&url, "update item set name = 'x'").await;
    execute(&url, "select larder.prune('0 s')").await;
    let before = horizon(&mut connection).await;
    execute(&url, "delete from larder.change where false").await;
    assert_eq!(horizon(&mut connection).await, before);
    execute(&url, "update item set name = 'y' where id = 1").await;
    execute(
        &url,
        "create table newest as select xid from larder.change order by xid desc limit 1; delete from larder.change",
    )
    .await;
    let seen: bool = sqlx::query_scalar(
        "select pg_visible_in_snapshot(xid, snapshot) from larder.horizon, newest",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert!(seen);
    connection.close().await.unwrap();
}
