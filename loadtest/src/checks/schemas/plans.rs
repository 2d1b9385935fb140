//! Which indexes PostgreSQL uses for larder's statements, for those of users and for foreign keys, under its own settings.

use std::collections::BTreeSet;

use anyhow::Context;
use larder::check::plan::Plan;
use larder::check::queries::split;
use larder::check::question::questions;
use larder::config::Config;
use larder::feed::inspect::inspect;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Row};

use crate::checks::twins::run_sql;

const INDEXES_SQL: &str = "\
select c.relname::text from pg_class c where c.relkind = 'i' and c.relnamespace = 'public'::regnamespace";

/// The search that PostgreSQL does for a foreign key whose row is deleted.
const REFERENCES_SQL: &str = "\
select format('select 1 from only %s x where %s', f.conrelid::regclass, string_agg( \
  format('$%s::%s = x.%I', n.place, format_type(t.atttypid, null), a.attname), ' and ')) \
from pg_constraint f cross join unnest(f.conkey, f.confkey) with ordinality n(number, target, place) \
  join pg_attribute a on a.attrelid = f.conrelid and a.attnum = n.number \
  join pg_attribute t on t.attrelid = f.confrelid and t.attnum = n.target \
where f.contype = 'f' group by f.oid, f.conrelid";

/// The indexes of a database.
pub(super) async fn indexes(url: &str) -> anyhow::Result<BTreeSet<String>> {
    let mut connection = PgConnection::connect(url).await?;
    let names: Vec<String> = sqlx::query_scalar(INDEXES_SQL)
        .fetch_all(&mut connection)
        .await?;
    connection.close().await?;
    Ok(names.into_iter().collect())
}

/// The indexes by which PostgreSQL finds rows.
pub(super) async fn used_indexes(
    url: &str,
    toml: &str,
    queries: &str,
) -> anyhow::Result<BTreeSet<String>> {
    let mut connection = PgConnection::connect(url).await?;
    run_sql(&mut connection, "set plan_cache_mode = force_generic_plan").await?;
    let mut used = BTreeSet::new();
    for statement in statements(&mut connection, toml, queries).await? {
        let planned = plan(&mut connection, &statement).await;
        let plan = planned.with_context(|| statement.clone())?;
        let indexes = plan.scans.into_iter().flat_map(|scan| scan.indexes);
        let entered = indexes.filter(|index| index.condition.is_some());
        used.extend(entered.map(|index| index.name));
    }
    connection.close().await?;
    Ok(used)
}

async fn statements(
    connection: &mut PgConnection,
    toml: &str,
    queries: &str,
) -> anyhow::Result<Vec<String>> {
    let config = Config::from_toml(toml, &[])?;
    let mut transaction = connection.begin().await?;
    let inspected = inspect(&mut transaction, &config.resources, &config.feed, None).await?;
    transaction.rollback().await?;
    let resources = inspected.resources.iter();
    let asked = resources.flat_map(|resource| questions(resource));
    let mut statements: Vec<String> = asked
        .flat_map(|question| question.statements)
        .map(|statement| statement.sql)
        .collect();
    let own = split("queries.sql", queries.as_bytes())?;
    statements.extend(own.into_iter().map(|statement| statement.text));
    let references: Vec<String> = sqlx::query_scalar(REFERENCES_SQL)
        .fetch_all(connection)
        .await?;
    statements.extend(references);
    Ok(statements)
}

/// The plan of a statement, with null for each parameter.
async fn plan(connection: &mut PgConnection, statement: &str) -> anyhow::Result<Plan> {
    let prepare = format!("prepare planned as {statement}");
    sqlx::query(AssertSqlSafe(prepare))
        .persistent(false)
        .execute(&mut *connection)
        .await?;
    let count: i32 = sqlx::query_scalar(
        "select cardinality(parameter_types) from pg_prepared_statements where name = 'planned'",
    )
    .persistent(false)
    .fetch_one(&mut *connection)
    .await?;
    let nulls: Vec<&str> = (0..count).map(|_| "null").collect();
    let nulls = match nulls.as_slice() {
        [] => String::new(),
        nulls => format!("({})", nulls.join(", ")),
    };
    let explain = format!("explain (format json, verbose) execute planned{nulls}");
    let row = sqlx::raw_sql(AssertSqlSafe(explain))
        .fetch_one(&mut *connection)
        .await?;
    let json = row.try_get_raw(0)?.as_str().map(str::to_owned);
    let json = json.map_err(|error| anyhow::anyhow!("{error}"))?;
    run_sql(connection, "deallocate planned").await?;
    Plan::parse(&json).context("the plan")
}
