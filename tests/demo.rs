//! The demo's documents through both tiers.

use larder::commands::seed::seed;

use crate::harness::cluster::Cluster;
use crate::harness::eventually;
use crate::harness::service::TestService;

/// The demo's resource, as without any file.
const DEMO: &str = include_str!("../src/config/demo.toml");

#[tokio::test(flavor = "multi_thread")]
async fn an_update_from_any_client_is_seen_and_a_restart_serves_from_disk() {
    let database = Cluster::database().await;
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
