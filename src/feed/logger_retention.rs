//! How long logging functions are kept. `larder.logger` says until when each is needed; one that no larder needs any
//! more is removed, with its triggers.

use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::feed::ddl::{self, DdlError};
use crate::source::SourceError;

/// A statement that records that the functions `loggers` are needed until `retention` from now is over. Their names
/// consist of letters, digits and `_`.
pub(super) fn need_sql(loggers: &[String], retention: Duration) -> String {
    format!(
        "insert into larder.logger as l (name, needed_until) \
         select name, now() + make_interval(secs => {}) from unnest('{{{}}}'::text[]) name \
         on conflict (name) do update set needed_until = greatest(l.needed_until, excluded.needed_until);\n",
        retention.as_secs_f64(),
        loggers.join(",")
    )
}

/// Records that this larder needs the functions `loggers`.
///
/// # Errors
/// If PostgreSQL can't be reached, or refuses a statement.
pub(super) async fn record_need(
    connection: &mut PgConnection,
    loggers: &[String],
    retention: Duration,
) -> Result<(), SourceError> {
    sqlx::raw_sql(AssertSqlSafe(need_sql(loggers, retention)))
        .execute(connection)
        .await?;
    Ok(())
}

/// Removes one thing that no larder needs any more: the triggers of a function on one table, or a function that has no
/// triggers. Which one is random, so that a table that stays locked does not keep the others from being removed.
/// Returns whether something was removed.
///
/// # Errors
/// If PostgreSQL can't be reached, or refuses a statement. A lock that is not free is no error.
pub(super) async fn remove_unneeded(connection: &mut PgConnection) -> Result<bool, SourceError> {
    let unneeded = sqlx::query(
        "select l.name, t.tgrelid::int8 as oid, \
           case when t.tgrelid is null then format('drop function if exists larder.%I()', l.name) \
             else string_agg('drop trigger ' || quote_ident(t.tgname) || ' on ' || t.tgrelid::regclass, '; ') end as sql \
         from larder.logger l \
           left join pg_trigger t on t.tgfoid = to_regprocedure(format('larder.%I()', l.name)) and t.tgparentid = 0 \
         where l.needed_until < now() group by l.name, t.tgrelid order by random() limit 1",
    )
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = unneeded else {
        return Ok(false);
    };
    let (name, sql): (String, String) = (row.try_get("name")?, row.try_get("sql")?);
    let is_function = row.try_get::<Option<i64>, _>("oid")?.is_none();
    match remove_logger(connection, &name, is_function, sql).await {
        Ok(removed) => {
            if removed && is_function {
                tracing::info!("removed the function larder.{name}, which no larder needs");
            } else if removed {
                tracing::info!("removed triggers that call larder.{name}, which no larder needs");
            }
            Ok(removed)
        }
        Err(DdlError::Locked(_)) => Ok(false),
        Err(DdlError::Source(error)) if error.is_lock_timeout() => Ok(false),
        Err(DdlError::Source(error)) => Err(error),
    }
}

/// Runs `sql`, which removes the function `name` or its triggers on a table, if the function is still unneeded. A
/// larder that needs it again updates the same row of `larder.logger`, so one of the two waits for the other.
async fn remove_logger(
    connection: &mut PgConnection,
    name: &str,
    is_function: bool,
    sql: String,
) -> Result<bool, DdlError> {
    let mut transaction = ddl::begin(connection).await?;
    let claim = if is_function {
        "delete from larder.logger where name = $1 and needed_until < now()"
    } else {
        "update larder.logger set name = name where name = $1 and needed_until < now()"
    };
    let claimed = sqlx::query(claim)
        .bind(name)
        .execute(&mut *transaction)
        .await?;
    if claimed.rows_affected() == 0 {
        transaction.rollback().await?;
        return Ok(false);
    }
    ddl::commit(transaction, sql).await?;
    Ok(true)
}
