//! Removing all that larder added to a database.

use sqlx::postgres::PgConnection;

use crate::feed::establish::EstablishError;
use crate::feed::schema::{self, OPTIONAL_TABLES, TABLES};
use crate::source::SourceError;

/// Statements that remove all that larder added, for any configuration: each item is for a transaction of its own.
///
/// # Errors
/// If schema larder is of a later version of larder or contains objects that are not larder's; or PostgreSQL can't be reached
/// or refuses a statement.
pub(super) async fn statements(
    connection: &mut PgConnection,
) -> Result<Vec<String>, EstablishError> {
    let version = schema::version(&mut *connection).await?;
    if let Some(later) = version.filter(|version| *version > schema::VERSION) {
        return Err(EstablishError::LaterSchema(later));
    }
    Ok(statements_of_known(connection).await?)
}

/// The same for a schema of this version or an earlier one.
async fn statements_of_known(connection: &mut PgConnection) -> Result<Vec<String>, SourceError> {
    let others: Option<String> = sqlx::query_scalar(
        "select string_agg(format('larder.%I', name), ', ') from ( \
           select c.relname as name from pg_class c where c.relnamespace = to_regnamespace('larder') \
             and c.relkind in ('r', 'v', 'm', 'S', 'f', 'p') and c.relname <> all ($1::text[]) \
           union all select p.proname from pg_proc p where p.pronamespace = to_regnamespace('larder') \
             and p.proname not like 'log\\_%' \
             and p.proname not in ('token', 'prune', 'snapshot', 'plan_mark', 'row_security', 'version', 'guard_log', 'installed')) o",
    )
    .bind([&TABLES[..], &OPTIONAL_TABLES].concat())
    .fetch_one(&mut *connection)
    .await?;
    if let Some(others) = others {
        return Err(SourceError::Unexpected(format!(
            "schema larder contains {others}, which larder did not create; nothing was removed"
        )));
    }
    let mut statements: Vec<String> = sqlx::query_scalar(
        "select string_agg(format(E'drop trigger if exists %I on %I.%I;\\n', t.tgname, n.nspname, c.relname), '') \
         from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace \
         join pg_proc p on p.oid = t.tgfoid \
         where p.pronamespace = to_regnamespace('larder') and t.tgname like 'larder\\_%' and t.tgparentid = 0 \
           and c.relnamespace <> p.pronamespace \
         group by c.oid order by c.oid",
    )
    .fetch_all(&mut *connection)
    .await?;
    let functions: Option<String> = sqlx::query_scalar(
        "select string_agg(format(E'drop function if exists larder.%I();\\n', proname), '') \
         from pg_proc where pronamespace = to_regnamespace('larder') and proname like 'log\\_%'",
    )
    .fetch_one(connection)
    .await?;
    statements.push(format!(
        // `larder.installed` is of versions until 2026-11, whose triggers called it in their conditions.
        "{}drop domain if exists larder.row_security_state;\n\
         drop function if exists larder.token(), larder.prune(interval, bigint), larder.snapshot(xid8, xid8[]), larder.plan_mark(), \
           larder.row_security(text), larder.version(), larder.installed;\n\
         drop table if exists larder.change, larder.horizon, larder.epoch, larder.node, larder.logger, larder.served, larder.answer, \
           larder.delivery, larder.dead_letter, larder.dispatch;\n\
         drop function if exists larder.guard_log();\n\
         drop schema if exists larder;\n",
        functions.unwrap_or_default(),
    ));
    Ok(statements)
}
