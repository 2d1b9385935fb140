//! Rows of a followed table that change through an ancestor, which is not followed, or by logical replication.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::freshness::testbed::is_hit;
use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestResponse, TestService, execute};

const CONFIG: &str = r#"
[feed]
max_staleness = "30s"
[[resource]]
name = "orders"
table = "orders_eu"
key = "id"
  [[resource.children]]
  name = "lines"
  table = "line_eu"
  foreign_key = "order_id"
  order_by = ["id"]
"#;

const SCHEMA: &str = "
    create table world (id int not null, region text not null, title text) partition by list (region);
    create table orders (id int not null, region text not null, title text) partition by list (region);
    create table orders_eu (id int not null, region text not null, title text);
    create unique index on orders_eu (id);
    create table line (id int primary key, order_id int, amount int);
    create table line_eu (id int primary key, order_id int, amount int);
    create index on line_eu (order_id);
    insert into orders_eu values (1, 'eu', 'one'), (2, 'eu', 'two');
    insert into line_eu values (1, 1, 10), (2, 2, 20);";

const ATTACH: &str = "
    alter table orders attach partition orders_eu for values in ('eu');
    alter table world attach partition orders for values in ('eu', 'us');
    alter table line_eu inherit line;";

async fn hit(larder: &TestService, path: &str) -> TestResponse {
    eventually("a hit", async || {
        let answer = larder.get(path).await;
        is_hit(&answer).then_some(answer)
    })
    .await
}

/// Warms `path`, runs `sql` and waits until the document contains `expected`. Passes alone can bring that about.
async fn change(larder: &TestService, path: &str, sql: &str, expected: &str) {
    hit(larder, path).await;
    larder.execute(sql).await;
    eventually(sql, async || {
        let body = larder.get(path).await.body;
        body.contains(expected).then_some(())
    })
    .await;
}

async fn change_through_ancestors(larder: &TestService) {
    for (path, sql, expected) in [
        (
            "/orders/1",
            "update orders set title = 'by the parent' where id = 1",
            "by the parent",
        ),
        (
            "/orders/1",
            "update world set title = 'by the top' where id = 1",
            "by the top",
        ),
        (
            "/orders/2",
            "update line set amount = 21 where id = 2",
            "\"amount\":21",
        ),
        (
            "/orders/2",
            "update line set order_id = 2 where id = 1",
            "\"id\":1,\"order_id\":2",
        ),
        ("/orders/1", "select 1", "\"lines\":[]"),
        (
            "/orders/3",
            "insert into world values (3, 'eu', 'three')",
            "three",
        ),
        (
            "/orders/3",
            "merge into world w using (values (3)) v (id) on w.id = v.id when matched then update set title = 'merged'",
            "merged",
        ),
        (
            "/orders/2",
            "delete from line where id = 1",
            "\"lines\":[{\"id\":2",
        ),
        ("/orders/3", "delete from world where id = 3", "404"),
    ] {
        if expected == "merged" && !TestCluster::has(15, "merge") {
            continue;
        }
        if expected == "404" {
            hit(larder, path).await;
            larder.execute(sql).await;
            eventually(sql, async || {
                (larder.get(path).await.status == 404).then_some(())
            })
            .await;
        } else {
            change(larder, path, sql, expected).await;
        }
    }
}

/// A statement trigger of a partition or of an inheriting table does not fire for statements on a table above.
#[tokio::test(flavor = "multi_thread")]
async fn writes_through_an_ancestor_are_seen() {
    let larder = TestService::start(&format!("{SCHEMA}{ATTACH}"), CONFIG).await;
    change_through_ancestors(&larder).await;
}

/// The table becomes a partition and its child table an heir while larder follows them.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_gets_an_ancestor_is_still_followed() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    hit(&larder, "/orders/1").await;
    let write = "update world set title = 'at once' where id = 1";
    change(
        &larder,
        "/orders/1",
        &format!("begin; {ATTACH} {write}; commit"),
        "at once",
    )
    .await;
    change_through_ancestors(&larder).await;
}

/// That a table inherits from a table without columns shows in `pg_inherits` alone; a statement on the parent changes
/// its rows all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_parent_without_columns_is_noticed() {
    let larder = TestService::start(
        "create table item (id int primary key); insert into item values (1), (2); create table anything ()",
        "[[resource]]\nname = 'items'\ntable = 'item'\n",
    )
    .await;
    for (path, first) in [
        ("/items/1", "alter table item inherit anything; "),
        ("/items/2", ""),
    ] {
        hit(&larder, path).await;
        let id = path.rsplit('/').next().unwrap();
        larder
            .execute(&format!("{first}delete from anything a using item i where a.tableoid = i.tableoid and a.ctid = i.ctid and i.id = {id}"))
            .await;
        eventually("it is gone", async || {
            (larder.get(path).await.status == 404).then_some(())
        })
        .await;
    }
}

/// PostgreSQL refuses a statement with transition tables where it reaches a foreign table, also one that is attached
/// while larder is stopped.
#[tokio::test(flavor = "multi_thread")]
async fn tables_that_may_get_foreign_partitions_have_no_transition_tables() {
    let url = TestCluster::database().await.url;
    execute(
        &url,
        "create table item (id int primary key) partition by list (id);
         create table item1 partition of item for values in (1);
         create table part (id int not null, item_id int) partition by list (id);
         create table part1 partition of part for values in (1); create index on part (item_id);
         create table plain (id int primary key, item_id int); create index on plain (item_id);
         create table heir (id int primary key, item_id int); create index on heir (item_id);
         create table heir1 () inherits (heir)",
    )
    .await;
    let toml = "[[resource]]\nname = 'items'\ntable = 'item'\n\
        [[resource.children]]\nname = 'parts'\ntable = 'part'\nforeign_key = 'item_id'\norder_by = ['id']\n\
        [[resource.children]]\nname = 'heirs'\ntable = 'heir'\nforeign_key = 'item_id'\n\
        [[resource.children]]\nname = 'plains'\ntable = 'plain'\nforeign_key = 'item_id'";
    let larder = TestService::start_on(&url, toml, &[]).await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    assert_eq!(with_transition_tables(&mut connection).await, ["plain"]);
    // They were right for it before. A transaction that held the lock for creating triggers first, and then waited for
    // the stronger one for dropping some, would make a deadlock with a writer that has read the table.
    larder
        .execute(
            "create function weaker_lock() returns event_trigger language plpgsql as $$ begin
               if exists (select from pg_locks where pid = pg_backend_pid() and granted
                 and mode = 'ShareRowExclusiveLock' and locktype = 'relation')
               then raise 'a weaker lock is held'; end if; end $$;
             create event trigger weaker_lock on ddl_command_start when tag in ('DROP TRIGGER')
               execute function weaker_lock();
             create table plain1 () inherits (plain)",
        )
        .await;
    eventually("none is left", async || {
        let none = with_transition_tables(&mut connection).await.is_empty();
        none.then_some(())
    })
    .await;
    connection.close().await.unwrap();
}

async fn with_transition_tables(connection: &mut PgConnection) -> Vec<String> {
    let sql = "select distinct tgrelid::regclass::text from pg_trigger where tgname like 'larder%' \
        and tgrelid <> 'larder.change'::regclass \
        and (tgoldtable is not null or tgnewtable is not null) order by 1";
    let tables = sqlx::query_scalar(sql).fetch_all(connection);
    tables.await.unwrap()
}

/// A `merge` that moves a row to another partition fires the statement triggers of the actions that it names, and shows
/// the row to those of others.
#[tokio::test(flavor = "multi_thread")]
async fn a_merge_that_moves_a_row_is_seen() {
    if !TestCluster::has(15, "merge") {
        return;
    }
    let sql = "create table item (id int, part int, v text, primary key (id, part)) partition by list (part);
        create table item1 partition of item for values in (1);
        create table item2 partition of item for values in (2);
        insert into item values (2, 1, 'a')";
    let toml = "[feed]\nmax_staleness = '30s'\n[[resource]]\nname = 'items'\ntable = 'item'\n";
    let larder = TestService::start(sql, toml).await;
    for path in ["/items/2,1", "/items/2,2"] {
        hit(&larder, path).await;
    }
    let merge = "merge into item t using (values (2)) s (id) on t.id = s.id \
        when matched then update set part = 2, v = 'b'";
    larder.execute(merge).await;
    eventually("the row moved", async || {
        let (old, new) = (
            larder.get("/items/2,1").await,
            larder.get("/items/2,2").await,
        );
        (old.status == 404 && new.body == r#"{"id":2,"part":2,"v":"b"}"#).then_some(())
    })
    .await;
}

/// The functions run with the rights of the role that installed them: no name in them may be looked up in the search
/// path of the writer.
#[tokio::test(flavor = "multi_thread")]
async fn types_of_the_writers_own_are_not_used() {
    let url = TestCluster::database().await.url;
    execute(&url, &format!("{SCHEMA}{ATTACH}")).await;
    TestService::start_on(&url, CONFIG, &[]).await.stop().await;
    execute(
        &url,
        "create function pg_temp.evil(pg_catalog.text) returns bool language plpgsql as \
           $$ begin raise 'it ran'; end $$;
         create domain pg_temp.text as pg_catalog.text check (pg_temp.evil(value));
         create domain pg_temp.int8 as pg_catalog.int8 check (value < 0);
         create domain pg_temp.bool as pg_catalog.bool check (value is null);
         update orders set title = 'x'; update line set amount = 3",
    )
    .await;
}

/// Rows logged by row triggers are bounded: ranges follow the keys, larger ranges those, and then one row says that all
/// documents are touched, or that any may be new. The count follows savepoints.
#[tokio::test(flavor = "multi_thread")]
async fn what_row_triggers_log_is_bounded() {
    let url = TestCluster::database().await.url;
    execute(&url, &format!("{SCHEMA}{ATTACH}")).await;
    let few = [("feed.keys_per_statement", "3")];
    TestService::start_on(&url, CONFIG, &few).await.stop().await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    for (sql, keys, wholes) in [
        (
            "insert into orders select n, 'eu', 't' from generate_series(21, 24) n",
            4,
            0,
        ),
        (
            "insert into orders select n, 'eu', 't' from generate_series(31, 90) n",
            4,
            0,
        ),
        (
            "insert into orders select n, 'eu', 't' from unnest(array[1001, 1002, 1003, 10000, 20000, 30000, \
             40000, 100000, 1000000, 10000000, 20000000]) n",
            9,
            1,
        ),
        (
            "insert into line_eu select n, n, 1 from unnest(array[1001, 1002, 1003, 10000, 20000, 30000, \
             40000, 100000, 1000000, 10000000, 20000000]) n; update line set order_id = 2 where id = 1001",
            9,
            2,
        ),
        // Each key once where its rows follow one another; a row that moves has two.
        (
            "insert into line_eu select n, 11, 1 from generate_series(11, 90) n",
            1,
            0,
        ),
        ("update line set order_id = 12 where id = 11", 2, 0),
        ("update line set amount = 2 where order_id = 11", 1, 0),
        ("delete from line where order_id = 11", 1, 0),
        (
            "savepoint a; insert into orders select n, 'eu', 't' from generate_series(101, 200) n; rollback to a; \
          insert into orders values (201, 'eu', 't')",
            1,
            0,
        ),
        (
            "insert into orders values (301, 'eu', 't'); savepoint a; insert into orders select n, 'eu', 't' \
          from generate_series(302, 400) n; release a; insert into orders values (401, 'eu', 't')",
            4,
            0,
        ),
    ] {
        sqlx::raw_sql(AssertSqlSafe(format!("begin; {sql}")))
            .execute(&mut connection)
            .await
            .unwrap();
        let logged: (i64, i64) = sqlx::query_as(
            "select count(key), count(*) - count(key) from larder.change where xid = pg_current_xact_id()",
        )
        .fetch_one(&mut connection)
        .await
        .unwrap();
        assert_eq!(logged, (keys, wholes), "{sql}");
        sqlx::raw_sql("commit")
            .execute(&mut connection)
            .await
            .unwrap();
    }
    connection.close().await.unwrap();
}

/// No write fails after a column that a row trigger logs was dropped or renamed.
#[tokio::test(flavor = "multi_thread")]
async fn a_renamed_column_lets_no_write_through_an_ancestor_fail() {
    let url = TestCluster::database().await.url;
    execute(&url, &format!("{SCHEMA}{ATTACH}")).await;
    TestService::start_on(&url, CONFIG, &[]).await.stop().await;
    execute(
        &url,
        "begin; update line set amount = 1; alter table line add column other int; \
         update line set amount = 2; commit; \
         alter table line_eu no inherit line; alter table line_eu rename order_id to o; \
         update line_eu set amount = 3; insert into line_eu values (9, 1, 1); delete from line_eu where id = 9",
    )
    .await;
}

/// Logical replication fires row triggers only.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_subscription_applies_is_seen() {
    let (publisher, url) = (
        TestCluster::database().await.url,
        TestCluster::database().await.url,
    );
    let tables = "create table orders_eu (id int primary key, region text, title text);
        create table line_eu (id int primary key, order_id int, amount int); create index on line_eu (order_id);";
    execute(&publisher, tables).await;
    execute(&url, tables).await;
    let name = publisher.rsplit_once('/').unwrap().1.to_owned();
    execute(&publisher, "create publication p for all tables").await;
    let slot = format!("select pg_create_logical_replication_slot('{name}', 'pgoutput')");
    execute(&publisher, &slot).await;
    let larder = TestService::start_on(&url, CONFIG, &[]).await;
    assert_eq!(larder.get("/orders/1").await.status, 404);
    let subscribe = format!(
        "create subscription {name} connection '{publisher}' publication p \
         with (create_slot = false, slot_name = '{name}', copy_data = false)"
    );
    execute(&url, &subscribe).await;
    for (sql, expected) in [
        (
            "insert into orders_eu values (1, 'eu', 'one'); insert into line_eu values (1, 1, 5)",
            "\"amount\":5",
        ),
        ("update orders_eu set title = 'two'", "two"),
        ("update line_eu set amount = 6", "\"amount\":6"),
        ("update line_eu set id = 2", "\"id\":2,\"order_id\""),
        ("truncate line_eu", "\"lines\":[]"),
    ] {
        hit(&larder, "/orders/1").await;
        execute(&publisher, sql).await;
        eventually(sql, async || {
            larder
                .get("/orders/1")
                .await
                .body
                .contains(expected)
                .then_some(())
        })
        .await;
    }
    execute(&url, &format!("drop subscription {name}")).await;
}
