//! PostgreSQL refuses what a pass does for one resource. The others go on being followed and cached.

use serde_json::json;

use crate::freshness::testbed::is_hit;
use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::eventually;
use crate::harness::service::{TestService, execute};

const SQL: &str = "
    create type mood as enum ('a', 'b');
    create table t (m mood primary key, v text); insert into t values ('a', 'x'), ('b', 'y');
    create table kid (id int primary key, m mood references t); insert into kid values (1, 'a');
    create table parent (id int primary key, v text); insert into parent values (1, 'x');
    create table child (id int primary key, parent_id int references parent); insert into child values (1, 1);
    create table other (id int primary key, v text); insert into other values (1, 'o');";

/// A pass maps rows of `t` by the labels of the enum, which no other statement does, and rows of `parent` by integers.
const CONFIG: &str = "
    [[resource]]
    name = 'kid'
    table = 'kid'
    write = []
      [[resource.lookups]]
      name = 'looked'
      table = 't'
      column = 'm'
    [[resource]]
    name = 'child'
    table = 'child'
    write = []
      [[resource.lookups]]
      name = 'parent'
      table = 'parent'
      column = 'parent_id'
    [[resource]]
    name = 'other'
    table = 'other'
    write = []
    ";

/// Waits until a read of `path` is a hit and has `value` at `pointer`.
async fn kept(larder: &TestService, path: &str, pointer: &str, value: &str) {
    eventually(path, async || {
        let answer = larder.get(path).await;
        let is_right = answer.json().pointer(pointer) == Some(&json!(value));
        (is_right && is_hit(&answer)).then_some(())
    })
    .await;
}

/// What `/status` says of why no tier keeps documents of the resource.
async fn uncached(larder: &TestService, place: usize) -> String {
    let status = larder.admin("/status").await.json();
    let reason = &status["resources"][place]["uncached"];
    reason.as_str().unwrap_or_default().to_owned()
}

/// Each commit ended the feed, and the tiers of all resources began anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_join_leaves_the_other_resources_followed() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    TestService::start_on(&url, CONFIG, &[]).await.stop().await;
    let role = TestRole::create(&url).await;
    let grants = format!(
        "grant select on t, kid, parent, child, other to {name};
         grant usage on schema larder to {name}; grant execute on function pg_control_system() to {name};
         grant execute on all functions in schema larder to {name};
         grant select, insert, update, delete on all tables in schema larder to {name}",
        name = role.name
    );
    execute(&url, &grants).await;
    let larder = TestService::start_on(&role.url, CONFIG, &[("install", "manual")]).await;
    kept(&larder, "/kid/1", "/looked/v", "x").await;
    kept(&larder, "/child/1", "/parent/v", "x").await;
    kept(&larder, "/other/1", "/v", "o").await;
    let gaps = larder.metric("larder_feed_gaps_total").await;

    // The resource is told, and PostgreSQL is asked for its documents, until the join is accepted again.
    execute(
        &url,
        "revoke execute on function pg_catalog.enum_range(anyenum) from public",
    )
    .await;
    execute(&url, "update t set v = 'x2'; update parent set v = 'x2'").await;
    eventually("the reason", async || {
        let reason = uncached(&larder, 0).await;
        let ready = larder.admin("/readyz").await.body;
        let is_told = reason.contains("42501") && reason.contains("enum_range");
        (is_told && ready.starts_with("ready, but resource kid") && ready.contains("42501"))
            .then_some(())
    })
    .await;
    for (kid, parent) in [("x2", "x2"), ("x3", "x3")] {
        let sql = format!("update t set v = '{kid}'; update parent set v = '{parent}'");
        execute(&url, &sql).await;
        kept(&larder, "/child/1", "/parent/v", parent).await;
        let answer = larder.get("/kid/1").await;
        assert_eq!(answer.json()["looked"]["v"], kid);
        assert!(!is_hit(&answer), "{answer:?}");
        assert!(is_hit(&larder.get("/other/1").await));
    }
    let back =
        "grant execute on function pg_catalog.enum_range(anyenum) to public; update t set v = 'x4'";
    execute(&url, back).await;
    kept(&larder, "/kid/1", "/looked/v", "x4").await;
    assert_eq!(uncached(&larder, 0).await, "");

    // A row of the log that is no key of the type, written by hand.
    execute(&url, "update parent set v = 'x4'").await;
    kept(&larder, "/child/1", "/parent/v", "x4").await;
    let wrong = "insert into larder.change (path, key) select distinct path, 'none' from larder.change \
                 where path like '%parent%'; update parent set v = 'x5'";
    execute(&url, wrong).await;
    kept(&larder, "/child/1", "/parent/v", "x5").await;
    assert!(is_hit(&larder.get("/other/1").await));
    assert_eq!(larder.metric("larder_feed_gaps_total").await, gaps);
}
