//! The demo's documents through both tiers.

use larder::commands::seed::seed;

use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestService, execute};

/// The demo's resource, as without any file.
const DEMO: &str = include_str!("../src/config/demo.toml");

#[tokio::test(flavor = "multi_thread")]
async fn an_update_from_any_client_is_seen_and_a_restart_serves_from_disk() {
    let database = TestCluster::database().await;
    seed(&database.url, 10, 3).await.unwrap();
    let larder = TestService::start_on(&database.url, DEMO, &[("disk.linger", "1ms")]).await;
    let first = larder.get("/depts/1").await;
    assert_eq!(
        first.cache_status(),
        "larder; fwd=miss; stored; detail=postgres"
    );
    let second = larder.get("/depts/01").await;
    assert_eq!(second.cache_status(), "larder; hit; detail=memory");
    assert_eq!(first.body, second.body);
    assert_eq!(first.json()["emps"].as_array().unwrap().len(), 3);

    larder
        .execute("update emp set sal = 123456 where deptno = 1")
        .await;
    eventually("the new salary", async || {
        let answer = larder.get("/depts/1").await;
        (answer.json()["emps"][0]["sal"] == 123_456).then_some(())
    })
    .await;
    let last = larder.get("/depts/1").await;
    let state = larder.stop().await;

    let larder = TestService::start_in(state, &database.url, DEMO, &[]).await;
    let again = larder.get("/depts/1").await;
    assert_eq!(again.cache_status(), "larder; hit; detail=disk");
    assert_eq!(again.body, last.body);
}

/// Trigger functions name columns. They made every write to a table fail after one of its columns was renamed, until a
/// larder with another configuration was started.
#[tokio::test(flavor = "multi_thread")]
async fn a_renamed_or_retyped_column_fails_no_writer() {
    let sql = "create table thing (id int primary key); \
               create table piece (id int primary key, thing_id numeric(9, 0), label text); \
               insert into thing values (1); insert into piece values (1, 1, 'a')";
    let toml = "[[resource]]\nname = \"things\"\ntable = \"thing\"\n\
                [[resource.children]]\nname = \"pieces\"\ntable = \"piece\"\nforeign_key = \"thing_id\"";
    let larder = TestService::start(sql, toml).await;
    assert_eq!(
        larder.get("/things/1").await.json()["pieces"][0]["label"],
        "a"
    );
    let url = larder.url.clone();
    larder.stop().await;
    execute(&url, "alter table piece alter thing_id type text").await;
    execute(
        &url,
        "update piece set label = 'b'; insert into piece values (2, '1', 'c')",
    )
    .await;
    execute(&url, "alter table piece rename thing_id to t").await;
    execute(
        &url,
        "update piece set label = 'd'; delete from piece where id = 2",
    )
    .await;
    execute(&url, "alter table piece rename t to thing_id").await;
    execute(
        &url,
        "alter table piece alter thing_id type numeric(9, 0) using thing_id::numeric",
    )
    .await;

    let larder = TestService::start_on(&url, toml, &[]).await;
    assert_eq!(
        larder.get("/things/1").await.json()["pieces"][0]["label"],
        "d"
    );
}
