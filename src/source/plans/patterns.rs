//! Tables by patterns of their names.

use sqlx::postgres::PgConnection;

use crate::source::SourceError;

/// `%` and `_` of `like`, and its escape, stand for themselves.
const MATCHING_SQL: &str = "\
select distinct c.oid::int8 from unnest($1::text[]) pattern cross join pg_class c \
  join pg_namespace n on n.oid = c.relnamespace \
where c.relkind in ('r', 'p') and not c.relispartition and n.nspname not in ('pg_catalog', 'information_schema', 'larder') \
  and n.nspname || '.' || c.relname \
    like replace(replace(replace(replace(pattern, '\\', '\\\\'), '%', '\\%'), '_', '\\_'), '*', '%') order by 1";

/// The oids of the tables of users whose `schema.name` matches one of `patterns`, in which `*` stands for any characters.
///
/// # Errors
/// Those of the statement.
pub async fn matching_tables(
    connection: &mut PgConnection,
    patterns: &[String],
) -> Result<Vec<u32>, SourceError> {
    let oids: Vec<i64> = sqlx::query_scalar(MATCHING_SQL)
        .persistent(false)
        .bind(patterns)
        .fetch_all(connection)
        .await?;
    let oids = oids.into_iter();
    Ok(oids.filter_map(|oid| u32::try_from(oid).ok()).collect())
}
