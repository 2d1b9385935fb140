//! Reads the statements that took the most time, from the extension pg_stat_statements.

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::check::question::UserStatement;
use crate::check::report::{Skipped, Unchecked};
use crate::resource::sql::identifier;
use crate::source::SourceError;
use crate::source::plans::PlanReport;

/// The first words of statements that have a plan.
const PLANNED: [&str; 7] = [
    "select", "insert", "update", "delete", "merge", "with", "values",
];

/// Matches the first word of a statement, after blanks, parentheses and comments.
const FIRST_WORD: &str = r"^(?:[[:space:](]|--[^\n]*\n|/\*[^*]*\*+(?:[^/*][^*]*\*+)*/)*([a-zA-Z]+)";

/// Matches statements that read PostgreSQL's catalogue or larder's schema, of which indexes are given.
const CATALOGUE: &str = r"\m(from|join)\s+(only\s+)?(pg_|information_schema\.|larder\.)";

/// PostgreSQL 13 renamed `total_time`.
const EXTENSION_SQL: &str = "\
select n.nspname::text as schema, \
  exists (select from pg_attribute a where a.attrelid = v.oid and a.attname = 'total_exec_time' and not a.attisdropped) as renamed, \
  pg_has_role('pg_read_all_stats', 'usage') as sees_all, current_user::text as role, \
  current_setting('is_superuser')::bool as is_superuser \
from pg_extension e join pg_namespace n on n.oid = e.extnamespace \
  join pg_class v on v.relnamespace = n.oid and v.relname = 'pg_stat_statements' where e.extname = 'pg_stat_statements'";

/// The `count` statements of this database that took the most time. What the role can't see is noted in `report`.
pub(super) async fn read_statements(
    connection: &mut PgConnection,
    count: u32,
    report: &mut PlanReport,
) -> Result<Vec<UserStatement>, SourceError> {
    let extension = sqlx::query(EXTENSION_SQL)
        .persistent(false)
        .fetch_optional(&mut *connection)
        .await?;
    let unchecked = |reason: String| Unchecked {
        name: "statements of pg_stat_statements".to_owned(),
        place: None,
        reason,
    };
    let Some(extension) = extension else {
        let reason = "the extension is missing; run `create extension pg_stat_statements;`";
        report.unchecked.push(unchecked(reason.to_owned()));
        return Ok(Vec::new());
    };
    let schema: String = extension.try_get("schema")?;
    let role: String = extension.try_get("role")?;
    let is_superuser: bool = extension.try_get("is_superuser")?;
    if is_superuser {
        report.skipped.push(Skipped {
            name: "statements of roles that are no superusers: PostgreSQL runs functions of theirs as it plans, \
                   so a role that is none has to check them"
                .to_owned(),
            grant: "grant pg_read_all_stats to such_a_role;".to_owned(),
        });
    } else if !extension.try_get::<bool, _>("sees_all")? {
        report.skipped.push(Skipped {
            name: "statements of other roles".to_owned(),
            grant: format!("grant pg_read_all_stats to {};", identifier(&role)),
        });
    }
    let time = if extension.try_get("renamed")? {
        "total_exec_time"
    } else {
        "total_time"
    };
    // The text of a statement of another role is null or a remark in its place. Comments may stand before the first word.
    let sql = format!(
        "select s.queryid::text as id, min(s.query) as query from {}.pg_stat_statements s \
         where s.dbid = (select oid from pg_database where datname = current_database()) and s.queryid is not null \
           and lower(substring(s.query from '{FIRST_WORD}')) = any($1) \
           and s.query !~* '{CATALOGUE}' \
           and (not {is_superuser} or s.userid in (select oid from pg_roles where rolsuper)) \
         group by s.queryid order by sum(s.{time}) desc, s.queryid limit $2",
        identifier(&schema)
    );
    let rows = read_rows(connection, &sql, count).await;
    let rows = match rows {
        Ok(rows) => rows,
        Err(error) => {
            report.unchecked.push(unchecked(error.to_string()));
            return Ok(Vec::new());
        }
    };
    let mut statements = Vec::with_capacity(rows.len());
    for row in rows {
        let id: String = row.try_get("id")?;
        statements.push(UserStatement {
            text: row.try_get("query")?,
            place: None,
            column: 1,
            name: format!("statement {id} of pg_stat_statements"),
        });
    }
    Ok(statements)
}

/// The extension's view fails if its library was not loaded when the server started.
async fn read_rows(
    connection: &mut PgConnection,
    sql: &str,
    count: u32,
) -> Result<Vec<sqlx::postgres::PgRow>, sqlx::Error> {
    sqlx::raw_sql("savepoint larder_statements")
        .execute(&mut *connection)
        .await?;
    let planned: Vec<&str> = PLANNED.to_vec();
    let rows = sqlx::query(AssertSqlSafe(sql))
        .persistent(false)
        .bind(planned)
        .bind(i64::from(count))
        .fetch_all(&mut *connection)
        .await;
    let end = "rollback to savepoint larder_statements; release savepoint larder_statements";
    sqlx::raw_sql(end).execute(connection).await?;
    rows
}
