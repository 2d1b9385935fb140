//! A load is held in its middle, after it has read and before it has answered, while what it read changes.
//!
//! The pooler between larder and PostgreSQL holds the answer back.

use std::time::Duration;

use sqlx::AssertSqlSafe;
use tokio::time::timeout;

use crate::documents::shapes::people;
use crate::documents::{ROWS, SCHEMA};
use crate::freshness::testbed::{FreshnessTestbed, is_hit, pass};
use crate::harness::eventually;
use crate::harness::service::TestResponse;
use crate::harness::swapping_pooler::SwappingPooler;

const HELD: &str = "
create table held (id text primary key, value int);
insert into held values ('wanted', 1), ('other', 1);
";

const CONFIG: &str = r#"
[feed]
max_staleness = "30s"
keys_per_statement = 1
[disk]
linger = "1ms"
cache = "8MiB"
[[resource]]
name = "both"
table = "held"
[[resource]]
name = "memory"
table = "held"
tiers = ["memory"]
[[resource]]
name = "disk"
table = "held"
tiers = ["disk"]
[[resource]]
name = "people"
table = "Sales.person"
tiers = ["memory"]
"#;

/// Requests `path` and holds the answer to its load; commits `change` and waits for a pass; then requests `path` again
/// and releases both loads.
async fn overtake(
    testbed: &FreshnessTestbed,
    pooler: &SwappingPooler,
    path: &str,
    change: &str,
) -> (TestResponse, TestResponse) {
    let service = &testbed.larders[0].service;
    pooler.hold_answers_to("wanted");
    let late = async {
        let mut connection = testbed.connect().await;
        await_held(pooler, 1).await;
        sqlx::raw_sql(AssertSqlSafe(change.to_owned()))
            .execute(&mut connection)
            .await
            .unwrap();
        pass(&mut connection, &[service], change).await;
        let release = async {
            // A request that joined the overtaken load would send no statement.
            await_held(pooler, 2).await;
            pooler.release();
        };
        tokio::join!(service.get(path), release).0
    };
    tokio::join!(service.get(path), late)
}

async fn await_held(pooler: &SwappingPooler, count: usize) {
    let held = timeout(Duration::from_secs(4), pooler.await_held(count)).await;
    assert!(held.is_ok(), "{count} loads are not under way");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overtaken_load_is_stored_nowhere() {
    let mut testbed = FreshnessTestbed::without_larder(&format!(
        "{SCHEMA}{ROWS}; set search_path = public; {HELD}"
    ))
    .await;
    let direct = testbed.url.clone();
    let pooler = SwappingPooler::start(&direct).await;
    testbed.url.clone_from(&pooler.url);
    let listen = [("database.listen_url", direct.as_str())];
    testbed.add(CONFIG, vec![people()], &listen).await;
    testbed.url.clone_from(&direct);
    for (number, change) in [
        (2, "update held set value = 2 where id = 'wanted'"),
        // More keys than are logged: the resource is emptied.
        (3, "update held set value = 3"),
    ] {
        for resource in ["both", "memory", "disk"] {
            let path = format!("/{resource}/wanted");
            sqlx::raw_sql("update held set value = 1")
                .execute(&mut testbed.connect().await)
                .await
                .unwrap();
            pass(
                &mut testbed.connect().await,
                &[&testbed.larders[0].service],
                "the old value",
            )
            .await;
            let (early, late) = overtake(&testbed, &pooler, &path, change).await;
            assert_eq!(
                early.json()["value"],
                1,
                "{path} was not held with the old row"
            );
            assert_eq!(early.cache_status(), "larder; fwd=miss; detail=postgres");
            assert_eq!(late.json()["value"], number, "{path} after {change}");
            let hit = eventually("a hit", async || {
                let answer = testbed.larders[0].service.get(&path).await;
                assert_eq!(
                    answer.json()["value"],
                    number,
                    "{path} is stale after {change}"
                );
                is_hit(&answer).then_some(answer)
            })
            .await;
            assert_eq!(hit.status, 200);
        }
    }
}
