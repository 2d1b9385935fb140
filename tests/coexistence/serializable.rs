//! Transactions at SERIALIZABLE that share no row.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::freshness::testbed::is_hit;
use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestService, execute};

/// What a transaction reads by an index, PostgreSQL remembers by pages: every other number is free, for inserts between
/// the rows that are there. `heir` has row triggers, since it has an ancestor.
const SQL: &str = "create table a (id int primary key, name text); \
    create table part (id int primary key, a int references a on update cascade on delete cascade, name text); \
    create index on part (a); \
    create table ancestor (); create table heir (id int primary key, name text) inherits (ancestor); \
    insert into a select n, 'old' from generate_series(1, 25000, 2) n; \
    insert into part select n, n, 'old' from generate_series(1, 25000, 2) n; \
    insert into heir select n, 'old' from generate_series(1, 25000, 2) n; analyze";
const CONFIG: &str = "[[resource]]\nname = 'a'\ntable = 'a'\n[[resource.children]]\nname = 'parts'\ntable = 'part'\n\
    [[resource]]\nname = 'heirs'\ntable = 'heir'\n";

/// Rows from `$`, which is odd, up to 5,000 more; the last thousand are left, so that no two transactions share a page.
const WRITES: [&str; 12] = [
    "insert into {} (id, name) values ($ + 1, 'new')",
    "update {} set name = 'new' where id = $",
    "delete from {} where id = $ + 2",
    "update {} set id = $ + 5 where id = $ + 4",
    "insert into {} (id, name) values ($ + 6, 'new') on conflict (id) do update set name = excluded.name",
    "insert into {} (id, name) select n, 'new' from generate_series($ + 1001, $ + 1041, 2) n",
    "update {} set name = 'new' where id between $ + 1000 and $ + 1040",
    "delete from {} where id between $ + 1100 and $ + 1140",
    // Past what is logged by key.
    "insert into {} (id, name) select n, 'new' from generate_series($ + 2001, $ + 2999, 2) n",
    "update {} set name = 'new' where id between $ + 2000 and $ + 2499",
    "delete from {} where id between $ + 2500 and $ + 2999",
    "update {} set name = 'newer' where id = $",
];

/// Rows that the transactions of others write are read by none of larder's triggers: else each would seem to have run
/// before the other.
#[tokio::test(flavor = "multi_thread")]
async fn disjoint_transactions_do_not_conflict() {
    for table in ["a", "part", "heir"] {
        let url = TestCluster::database().await.url;
        execute(&url, SQL).await;
        let larder =
            TestService::start_on(&url, CONFIG, &[("feed.keys_per_statement", "100")]).await;
        let resource = if table == "heir" { "heirs" } else { "a" };
        let starts = [1, 5001, 10_001, 15_001];
        for start in starts {
            eventually("a hit", async || {
                let answer = larder.get(&format!("/{resource}/{start}")).await;
                is_hit(&answer).then_some(())
            })
            .await;
        }
        let mut writers = Vec::new();
        for start in starts {
            let mut writer = PgConnection::connect(&url).await.unwrap();
            let begin = "set enable_seqscan = off; begin isolation level serializable";
            sqlx::raw_sql(begin).execute(&mut writer).await.unwrap();
            writers.push((start, writer));
        }
        for write in WRITES {
            for (start, writer) in &mut writers {
                let sql = write.replace("{}", table).replace('$', &start.to_string());
                let done = sqlx::raw_sql(AssertSqlSafe(sql.clone()))
                    .execute(writer)
                    .await;
                done.unwrap_or_else(|error| panic!("{sql}: {error}"));
            }
        }
        for (start, mut writer) in writers {
            let done = sqlx::raw_sql("commit").execute(&mut writer).await;
            done.unwrap_or_else(|error| panic!("{table} {start}: {error}"));
        }
        // The triggers were there.
        for start in starts {
            eventually("the change", async || {
                let answer = larder.get(&format!("/{resource}/{start}")).await;
                answer.body.contains("newer").then_some(())
            })
            .await;
        }
    }
}
