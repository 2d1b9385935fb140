//! A load is held in its middle, after it has read and before it has answered, while what it read changes.
//!
//! A long text is stored apart, and read through an index of its own while the statement runs, long after it has taken
//! its snapshot. Whoever builds that index anew holds it until the end of the transaction.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};

use crate::documents::shapes::people;
use crate::documents::{ROWS, SCHEMA};
use crate::freshness::world::{World, is_hit, pass};
use crate::harness::eventually;
use crate::harness::service::Answer;

const GATE: &str = "
create table held (id int primary key, value int, gate text default repeat('open', 3000));
alter table held alter gate set storage external;
insert into held values (1, 1), (2, 1);
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

/// `path` is asked for and held, `change` commits and is seen, then `path` is asked for once more and both are let go.
async fn overtake(world: &World, path: &str, change: &str) -> (Answer, Answer) {
    let service = &world.larders[0].service;
    let mut holder = world.connect().await;
    let hold = "begin; do $$ begin execute (select format('reindex table %s', reltoastrelid::regclass) \
        from pg_class where oid = 'public.held'::regclass); end $$";
    sqlx::raw_sql(hold).execute(&mut holder).await.unwrap();
    let early = service.get(path);
    let late = async {
        let mut connection = world.connect().await;
        wait_for_held(&mut connection, 1).await;
        sqlx::raw_sql(AssertSqlSafe(change.to_owned()))
            .execute(&mut connection)
            .await
            .unwrap();
        pass(&mut connection, &[service], change).await;
        let second = service.get(path);
        let release = async {
            wait_for_held(&mut connection, 2).await;
            sqlx::raw_sql("commit").execute(&mut holder).await.unwrap();
        };
        // A request that joined the overtaken load would never be the second to wait for the lock.
        tokio::join!(
            tokio::time::timeout(Duration::from_secs(4), second),
            release
        )
        .0
        .expect("the second request joined the overtaken load")
    };
    tokio::join!(early, late)
}

async fn wait_for_held(connection: &mut PgConnection, count: i64) {
    eventually("loads held", async || {
        let held: i64 = sqlx::query_scalar(
            "select count(*) from pg_locks l join pg_database d on d.oid = l.database \
             where l.locktype = 'relation' and not l.granted and d.datname = current_database()",
        )
        .fetch_one(&mut *connection)
        .await
        .unwrap();
        (held == count).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overtaken_load_is_stored_nowhere() {
    let mut world =
        World::without_larder(&format!("{SCHEMA}{ROWS}; set search_path = public; {GATE}")).await;
    world.add(CONFIG, vec![people()], &[]).await;
    for (number, change) in [
        (2, "update held set value = 2 where id = 1"),
        // More keys than are logged: the resource is emptied.
        (3, "update held set value = 3"),
    ] {
        for resource in ["both", "memory", "disk"] {
            let path = format!("/{resource}/1");
            sqlx::raw_sql("update held set value = 1")
                .execute(&mut world.connect().await)
                .await
                .unwrap();
            pass(
                &mut world.connect().await,
                &[&world.larders[0].service],
                "the old value",
            )
            .await;
            let (early, late) = overtake(&world, &path, change).await;
            assert_eq!(
                early.json()["value"],
                1,
                "{path} was not held with the old row"
            );
            assert_eq!(early.cache_status(), "larder; fwd=miss; detail=postgres");
            assert_eq!(late.json()["value"], number, "{path} after {change}");
            let hit = eventually("a hit", async || {
                let answer = world.larders[0].service.get(&path).await;
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
