//! A locked table makes no resource unavailable that does not use it.

use crate::freshness::testbed::is_hit;
use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestService, execute};
use crate::harness::table_locks::{lock_table, unlock};
use axum::http::StatusCode;

const SQL: &str = "create table a (id int primary key, name text); create table b (id int primary key, name text); \
    create table part (id int primary key, a int references a); create index on part (a); \
    create table detail (id int primary key, part int references part, name text); create index on detail (part); \
    insert into a values (1, 'first'), (2, 'first'); insert into b values (1, 'first'); \
    insert into part values (1, 1), (2, 2); insert into detail values (1, 1, 'first'), (2, 2, 'first')";
const CONFIG: &str = "[[resource]]\nname = 'a'\ntable = 'a'\n[[resource.children]]\nname = 'parts'\ntable = 'part'\n\
    [[resource.children.children]]\nname = 'details'\ntable = 'detail'\n\
    [[resource]]\nname = 'b'\ntable = 'b'\n";

async fn await_hit_with(larder: &TestService, path: &str, text: &str) {
    eventually("a hit with the text", async || {
        let answer = larder.get(path).await;
        (is_hit(&answer) && answer.body.contains(text)).then_some(())
    })
    .await;
}

/// The feed goes on: changes of other tables are seen, and resources that need the locked table are not trusted.
#[tokio::test(flavor = "multi_thread")]
async fn the_feed_goes_on_beside_a_locked_table() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let brief = [("database.statement_timeout", "500ms")];
    let larder = TestService::start_on(&url, CONFIG, &brief).await;
    for path in ["/a/1", "/a/2", "/b/1"] {
        await_hit_with(&larder, path, "first").await;
    }
    let gaps = larder.metric("larder_feed_gaps_total").await;
    let holder = lock_table(&url, "part").await;
    for name in ["second", "third"] {
        execute(&url, &format!("update b set name = '{name}'")).await;
        await_hit_with(&larder, "/b/1", name).await;
    }
    // Which document the detail belongs to can't be read from the locked table, so all documents of the resource go.
    execute(&url, "update detail set name = 'second' where id = 1").await;
    eventually("it is not trusted", async || {
        (!is_hit(&larder.get("/a/1").await)).then_some(())
    })
    .await;
    assert_eq!(larder.metric("larder_feed_gaps_total").await, gaps);
    unlock(holder).await;
    await_hit_with(&larder, "/a/1", "second").await;
    execute(&url, "update detail set name = 'third' where id = 1").await;
    await_hit_with(&larder, "/a/1", "third").await;
    await_hit_with(&larder, "/a/2", "first").await;
    assert_eq!(larder.metric("larder_feed_gaps_total").await, gaps);
}

/// A larder that starts beside a locked table serves the other resources at once.
#[tokio::test(flavor = "multi_thread")]
async fn larder_starts_beside_a_locked_table() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    for installed in [false, true] {
        let holder = lock_table(&url, "part").await;
        let larder = TestService::start_on(&url, CONFIG, &[]).await;
        await_hit_with(&larder, "/b/1", "first").await;
        unlock(holder).await;
        await_hit_with(&larder, "/a/1", "first").await;
        let status = larder.get("/a/1").await.status;
        assert_eq!(status, StatusCode::OK, "{installed}");
        larder.stop().await;
    }
}
