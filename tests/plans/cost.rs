//! The estimated size of an index, compared with the index built.

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use super::report;
use crate::harness::cluster::TestCluster;
use crate::harness::service::execute;

/// Columns of 60,000 rows: names, types and values for row `n`.
const COLUMNS: [(&str, &str, &str); 12] = [
    ("unique_int", "int", "n"),
    ("unique_bigint", "bigint", "n"),
    ("few_int", "int", "n % 10"),
    ("twos_int", "int", "n / 2"),
    ("some_bigint", "bigint", "(n * 7919) % 3000"),
    ("short_text", "text", "'k' || n % 50"),
    ("unique_text", "text", "md5(n::text)"),
    ("long_text", "text", "repeat(md5(n::text), 5)"),
    ("uuids", "uuid", "md5(n::text)::uuid"),
    ("days", "date", "'2020-01-01'::date + n % 400"),
    ("mostly_null", "int", "case when n % 20 = 0 then n end"),
    ("numbers", "numeric(10, 0)", "n % 100"),
];

/// A list by each column asks for an index of the column and the key, and a foreign key for one of the column alone.
#[tokio::test]
async fn estimated_bytes_are_near_those_of_the_index_built() {
    let url = TestCluster::database().await.url;
    let columns: Vec<String> = COLUMNS
        .iter()
        .map(|(name, kind, _)| format!("{name} {kind}"))
        .collect();
    let values: Vec<&str> = COLUMNS.iter().map(|(_, _, value)| *value).collect();
    execute(
        &url,
        &format!(
            "create table t (id int primary key, {}); insert into t select n, {} from generate_series(1, 60000) n; analyze t",
            columns.join(", "),
            values.join(", ")
        ),
    )
    .await;
    let filters: Vec<String> = COLUMNS
        .iter()
        .map(|(name, ..)| format!("'{name}'"))
        .collect();
    let toml = format!(
        "[[resource]]\nname = 't'\ntable = 't'\nfilters = [{}]\n",
        filters.join(", ")
    );
    let mut checked = 0;
    for finding in report(&url, &toml).await.findings {
        let cost = finding.cost.unwrap();
        let sql = finding.remedies[0].sql.clone();
        assert_near(&url, &sql, cost.bytes).await;
        checked += 1;
    }
    assert_eq!(checked, COLUMNS.len());
    for (name, kind, _) in COLUMNS {
        let references =
            format!("create table r_{name} (x {kind} primary key, y {kind} references r_{name})");
        execute(&url, &references).await;
        let fill = format!(
            "insert into r_{name} select distinct {name} from t where {name} is not null; \
            alter table r_{name} drop column y; alter table t add foreign key ({name}) references r_{name}"
        );
        execute(&url, &fill).await;
    }
    let single: Vec<String> = COLUMNS
        .iter()
        .map(|(name, ..)| format!("[[resource]]\nname = '{name}'\ntable = 'r_{name}'\n"))
        .collect();
    for finding in report(&url, &single.concat()).await.findings {
        assert_eq!(finding.rule.id(), "foreign-key");
        assert_near(&url, &finding.remedies[0].sql, finding.cost.unwrap().bytes).await;
        checked += 1;
    }
    assert_eq!(checked, 2 * COLUMNS.len());
}

/// Builds the index, compares, and drops it.
async fn assert_near(url: &str, sql: &str, estimated: u64) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let (before, after) = sql.split_once(" on ").unwrap();
    assert!(before.starts_with("create index concurrently "));
    let named = format!("create index built on {after}");
    sqlx::raw_sql(AssertSqlSafe(named))
        .execute(&mut connection)
        .await
        .unwrap();
    let row = sqlx::query("select pg_relation_size('built') as bytes")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    let built: i64 = row.try_get("bytes").unwrap();
    let share =
        f64::from(u32::try_from(estimated).unwrap()) / f64::from(i32::try_from(built).unwrap());
    assert!(
        (0.7..=1.3).contains(&share),
        "{sql}: {estimated} estimated, {built} built"
    );
    sqlx::raw_sql("drop index built")
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
}
