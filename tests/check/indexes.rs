//! The rules about indexes and tables, by what PostgreSQL says about them.

use std::time::Duration;

use larder::check::facts::{Facts, PlannedIndexes};
use larder::check::{Finding, indexes, upkeep};
use larder::resource::definition::Place;
use larder::source::facts::read_facts;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::eventually;
use crate::harness::service::execute;

const TABLES: &str = "\
create table customer (id int primary key, name text, at timestamptz, tags int[], code varchar(9));
create table orders (id int primary key, customer_id int references customer, region text, at date);
create table part (id int, year int, x int, primary key (id, year)) partition by range (year);
create table part_1 partition of part for values from (0) to (10);";

/// The facts of the tables of [`TABLES`].
async fn facts(url: &str) -> Facts {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let named = "select oid::int8 from pg_class where relname in ('customer', 'part')";
    let oids: Vec<i64> = sqlx::query_scalar(named)
        .fetch_all(&mut connection)
        .await
        .unwrap();
    let place = Place {
        origin: "larder.toml".into(),
        line: 1,
        key: "resource[0]".to_owned(),
    };
    let named = oids.iter().map(|&oid| u32::try_from(oid).unwrap());
    let named = named.map(|oid| (oid, place.clone())).collect();
    let facts = read_facts(&mut connection, &named).await.unwrap();
    connection.close().await.unwrap();
    facts
}

/// What the rules find in them.
async fn findings(url: &str) -> Vec<Finding> {
    let facts = facts(url).await;
    let mut findings = indexes::findings(&facts, &PlannedIndexes::default());
    findings.extend(upkeep::findings(&facts));
    findings
}

fn described(findings: &[Finding]) -> Vec<String> {
    let described = findings
        .iter()
        .map(|finding| format!("{} {}", finding.rule, finding.object));
    described.collect()
}

/// Runs the SQL of findings, each statement alone.
async fn apply(url: &str, findings: &[Finding]) {
    for remedy in findings.iter().flat_map(|finding| &finding.remedies) {
        execute(url, &remedy.sql).await;
    }
}

/// Exactly `expected` is found in a database made by `sql`, and nothing once its SQL was applied.
async fn assert_mended(sql: &str, expected: &[&str]) {
    let url = TestCluster::database().await.url;
    execute(&url, TABLES).await;
    execute(&url, sql).await;
    let found = findings(&url).await;
    assert_eq!(described(&found), expected, "{sql}");
    apply(&url, &found).await;
    assert_eq!(described(&findings(&url).await), [""; 0], "{sql}");
}

#[tokio::test]
async fn superfluous_indexes_are_found_and_dropped() {
    assert_mended(
        "create index a on customer (name); create index b on customer (name);
         create index c on customer (at); create index d on customer (at, name);
         create index e on part (x); create index f on part (x);
         create unique index u on customer (id);",
        &[
            "duplicate-index public.b",
            "duplicate-index public.u",
            "prefix-index public.c",
            "duplicate-index public.f",
        ],
    )
    .await;
}

/// Pairs of indexes that are alike, of which both are needed.
const NEAR_MISSES: [&str; 25] = [
    "create index on customer (name); create index on customer (name collate \"C\")",
    "create index on customer (name); create index on customer (name text_pattern_ops)",
    "create index on customer (name); create index on customer (name desc)",
    "create index on customer (name); create index on customer (name nulls first)",
    "create index on customer (name); create index on customer (name) include (at)",
    "create index on customer (name) include (code); create index on customer (name) include (at)",
    "create index on customer (name); create index on customer (name) where at is null",
    "create index on customer (name) where at > 'epoch'; create index on customer (name) where at is null",
    "create index on customer (name); create unique index on customer (name) include (at)",
    "create index on customer (name) include (code); alter table customer add unique (name)",
    "alter table customer add unique (name), add constraint later unique (name) deferrable",
    "create index on customer (name); create index on customer using hash (name)",
    "create index on customer (name); create index on customer (lower(name))",
    "create index on customer (lower(name)); create index on customer (lower(name), at)",
    "create index on customer (name, at); create index on customer (at, name)",
    "create index on customer (name desc); create index on customer (name, at)",
    "create index on customer (name text_pattern_ops); create index on customer (name, at)",
    "create index on customer (name collate \"C\"); create index on customer (name, at)",
    "create index on customer (name) include (code); create index on customer (name, at)",
    "create index on customer (name) where at is null; create index on customer (name, at)",
    "create index on customer (name); create index on customer (name, at) where at is null",
    "create unique index on customer (name); create index on customer (name, at)",
    "create index on part_1 (x)",
    "create index on customer using brin (at); create index on customer using brin (at) with (pages_per_range = 16)",
    "create index on customer using gin (tags); create index on customer using gin (tags, tags)",
];

#[tokio::test(flavor = "multi_thread")]
async fn indexes_that_are_only_alike_stay() {
    for sql in NEAR_MISSES {
        let url = TestCluster::database().await.url;
        execute(&url, TABLES).await;
        execute(&url, sql).await;
        assert_eq!(described(&findings(&url).await), [""; 0], "{sql}");
    }
}

#[tokio::test]
async fn a_needed_index_stays_beside_its_equal() {
    for need in [
        "alter table customer alter column name set not null; alter table customer replica identity using index b",
        "cluster customer using b",
        "create table referring (name text references customer (name))",
    ] {
        let url = TestCluster::database().await.url;
        execute(&url, TABLES).await;
        // A foreign key takes the first that fits.
        let sql = format!(
            "create unique index b on customer (name); {need}; create unique index a on customer (name)"
        );
        execute(&url, &sql).await;
        let found = findings(&url).await;
        assert_eq!(described(&found), ["duplicate-index public.a"], "{need}");
        apply(&url, &found).await;
        assert_eq!(described(&findings(&url).await), [""; 0]);
    }
}

#[tokio::test]
async fn an_index_that_was_not_built_is_built_again() {
    let url = TestCluster::database().await.url;
    execute(&url, TABLES).await;
    execute(
        &url,
        "insert into customer values (1, 'a'), (2, 'a'); insert into orders values (1), (2)",
    )
    .await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    for sql in [
        "create unique index concurrently broken on customer (name)",
        "create unique index concurrently alike on orders (region nulls first) where true",
    ] {
        let built = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection);
        assert_eq!(built.await.is_err(), sql.contains("broken"));
    }
    connection.close().await.unwrap();
    execute(&url, "update customer set name = id").await;
    let found = findings(&url).await;
    assert_eq!(described(&found), ["invalid-index public.broken"]);
    apply(&url, &found).await;
    assert_eq!(described(&findings(&url).await), [""; 0]);
}

/// The statements that create an index on partitions were not all run.
/// Tables of users in schema larder, where a role of this name makes its own, were left out.
#[tokio::test]
async fn indexes_of_users_in_the_schema_of_larder_are_built_again() {
    assert_mended(
        "create schema larder; create table larder.visit (customer_id int references customer);
         create index broken on larder.visit (customer_id);
         update pg_index set indisvalid = false where indexrelid = 'larder.broken'::regclass",
        &["invalid-index larder.broken"],
    )
    .await;
}

#[tokio::test]
async fn indexes_of_partitions_are_attached() {
    let created = "create table part_2 partition of part for values from (10) to (20); create index on only part (x); \
        create index on part_1 (x); ";
    assert_mended(
        &format!("{created} create index on part_2 (x)"),
        &["invalid-index public.part_x_idx"],
    )
    .await;
    assert_mended(created, &[]).await;
    assert_mended(&format!("{created} create index on part_2 (x desc)"), &[]).await;
}

/// While it waits for a transaction, an index is not valid yet. A role without rights sees that it is being built, too.
#[tokio::test]
async fn an_index_that_is_being_built_is_left_alone() {
    let url = TestCluster::database().await.url;
    execute(&url, TABLES).await;
    let role = TestRole::create(&url).await;
    let mut writer = PgConnection::connect(&url).await.unwrap();
    let mut transaction = writer.begin().await.unwrap();
    sqlx::query("insert into customer (id) values (1)")
        .execute(&mut *transaction)
        .await
        .unwrap();
    let builder = tokio::spawn({
        let url = url.clone();
        async move { execute(&url, "create index concurrently slow on customer (name)").await }
    });
    for url in [&url, &role.url] {
        let building = eventually("an index that is being built", async || {
            let facts = facts(url).await;
            let mut indexes = facts.tables.iter().flat_map(|table| &table.indexes);
            let is_there = indexes.any(|index| index.name == "slow" && !index.is_valid);
            is_there.then_some(facts)
        })
        .await;
        assert_eq!(indexes::findings(&building, &PlannedIndexes::default()), []);
    }
    transaction.commit().await.unwrap();
    builder.await.unwrap();
    assert_eq!(findings(&url).await, []);
    writer.close().await.unwrap();
}

/// What is found a week later, if no standby follows. Those of other tests may.
async fn unused(url: &str) -> Vec<Finding> {
    let facts = Facts {
        counted_for: Duration::from_secs(7 * 86_400),
        has_standby: false,
        ..facts(url).await
    };
    indexes::findings(&facts, &PlannedIndexes::default())
}

#[tokio::test]
async fn indexes_that_nothing_uses_are_found_and_dropped() {
    let url = TestCluster::database().await.url;
    execute(&url, TABLES).await;
    execute(
        &url,
        "alter table customer add \"Orders\" int references orders;
         insert into customer (id, name) select n, n from generate_series(1, 60000) n;
         create index idle on customer (name desc); create index used on customer (code, id);
         create index last on customer (\"Orders\", id); create index small on customer (at) where id < 9;
         create unique index one on customer (id, name); create index of_expression on customer (lower(name));
         set enable_seqscan = off; select count(*) from customer where code = 'x'",
    )
    .await;
    // Statistics come a moment after the statement.
    let found = eventually("the scan", async || {
        let found = unused(&url).await;
        (found.len() == 1).then_some(found)
    })
    .await;
    assert_eq!(described(&found), ["unused-index public.idle"]);
    apply(&url, &found).await;
    assert_eq!(unused(&url).await, []);
}

#[tokio::test]
async fn neglected_tables_are_found_and_mended() {
    let url = TestCluster::database().await.url;
    execute(&url, TABLES).await;
    execute(
        &url,
        "alter table customer set (autovacuum_enabled = off); alter table part_1 set (autovacuum_enabled = off);
         create index on customer (name);
         insert into customer (id, name) select n, n from generate_series(1, 12000) n;
         insert into part select n, 1, n from generate_series(1, 1000) n;",
    )
    .await;
    execute(&url, "update customer set name = name || 'x'").await;
    let expected = [
        "upkeep public.customer",
        "upkeep public.customer",
        "upkeep public.customer",
        "upkeep public.part_1",
    ];
    // Statistics come a moment after the statement.
    let found = eventually("the statistics", async || {
        let found = findings(&url).await;
        (found.len() >= expected.len()).then_some(found)
    })
    .await;
    assert_eq!(described(&found), expected);
    apply(&url, &found).await;
    eventually("the statistics after vacuum and analyze", async || {
        findings(&url).await.is_empty().then_some(())
    })
    .await;
}
