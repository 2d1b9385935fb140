//! Schema larder and the triggers on the configured tables: what is in the database, what is missing, and how it comes
//! and goes. What the triggers do is told in `logger`.
//!
//! Names carry a hash of the definition, so another configuration's triggers stand beside these and are left alone.

mod logger;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Postgres, Row, Transaction};

pub(super) use crate::feed::triggers::logger::{Logger, loggers};
use crate::resource::Resource;
use crate::source::SourceError;

/// Taken by whoever installs, in two-key form with [`BELL_LOCK`]: "lard" as a number.
pub(super) const LOCK_SPACE: i32 = 0x6c61_7264;
const INSTALL_LOCK: i32 = 1;
/// Held by the one open transaction that rings, or by a feed that is busy.
pub(super) const BELL_LOCK: i32 = 2;

/// The tables of schema larder.
pub(super) const TABLES: [&str; 6] = ["change", "horizon", "epoch", "node", "logger", "answer"];

const SCHEMA_SQL: &str = include_str!("../../migrations/larder.sql");

/// What of schema and triggers is in the database.
#[derive(Debug, Default)]
pub(super) struct Installed {
    schema: bool,
    epoch: bool,
    /// Bodies of sound logging functions, by hash.
    functions: HashMap<String, String>,
    /// Triggers by table, name, `pg_trigger.tgenabled` and `tgtype`.
    triggers: HashSet<(u32, String, String, i16)>,
}

/// Reads what is installed on the tables of `loggers`.
pub(super) async fn read_installed(
    connection: &mut PgConnection,
    loggers: &[Logger],
) -> Result<Installed, SourceError> {
    let mut installed = Installed::default();
    let row = sqlx::query(
        "select count(*) = 6 and to_regprocedure('larder.token()') is not null \
           and to_regprocedure('larder.prune(interval, bigint)') is not null \
           and to_regprocedure('larder.plan_mark()') is not null \
           and (select count(*) = 2 from pg_trigger where tgrelid = to_regclass('larder.change') \
             and tgname in ('larder_guard_delete', 'larder_guard_update') and tgenabled = 'A') \
           and exists (select from pg_attribute where attrelid = to_regclass('larder.node') and attname = 'mark' \
             and not attisdropped) \
         from pg_class c join pg_namespace n on n.oid = c.relnamespace \
         where n.nspname = 'larder' and c.relname in ('change', 'horizon', 'epoch', 'node', 'logger', 'answer')",
    )
    .fetch_one(&mut *connection)
    .await?;
    installed.schema = row.try_get(0)?;
    if !installed.schema {
        return Ok(installed);
    }
    installed.epoch = epoch_stands(connection).await?;
    let oids: Vec<i64> = loggers
        .iter()
        .flat_map(|logger| logger.triggers.iter())
        .map(|trigger| i64::from(trigger.table.oid))
        .collect();
    let rows = sqlx::query(
        "select p.proname::text as function, p.prosrc as body, t.tgrelid::int8 as oid, t.tgname::text as trigger, \
         t.tgenabled::text as enabled, t.tgtype as code \
         from pg_trigger t join pg_proc p on p.oid = t.tgfoid join pg_namespace n on n.oid = p.pronamespace \
         where n.nspname = 'larder' and t.tgrelid::int8 = any($1) and t.tgattr = '' and p.prosecdef \
           and p.proconfig is null",
    )
    .bind(oids)
    .fetch_all(connection)
    .await?;
    for row in rows {
        let function: String = row.try_get("function")?;
        if let Some(hash) = function.strip_prefix("log_") {
            installed
                .functions
                .insert(hash.to_owned(), row.try_get("body")?);
        }
        let oid: i64 = row.try_get("oid")?;
        let oid = u32::try_from(oid).unwrap_or(0);
        let trigger = (
            oid,
            row.try_get("trigger")?,
            row.try_get("enabled")?,
            row.try_get("code")?,
        );
        installed.triggers.insert(trigger);
    }
    Ok(installed)
}

/// Whether the log belongs to this life of the database.
async fn epoch_stands(connection: &mut PgConnection) -> Result<bool, SourceError> {
    let row = sqlx::query(
        // What a dump brought from another cluster counts that one's transactions, which may lie ahead here.
        "select exists (select from larder.epoch) \
         and exists (select from larder.horizon where xid <= pg_snapshot_xmin(pg_current_snapshot())) \
         and not exists (select from larder.change where xid >= pg_snapshot_xmax(pg_current_snapshot()))",
    )
    .fetch_one(connection)
    .await?;
    Ok(row.try_get(0)?)
}

/// What has to be done before a database can be followed.
pub(super) enum Missing {
    /// Nothing.
    Nothing,
    /// A new epoch, since PostgreSQL crashed, was promoted, or came out of a dump. Needs no rights on definitions.
    Epoch,
    /// Schema, functions or triggers, and a new epoch.
    Definitions(String),
}

/// What was logged before the triggers, or in another life of the database, says nothing: every larder begins anew.
const EPOCH_SQL: &str = "delete from larder.horizon;\n\
    delete from larder.change;\n\
    insert into larder.horizon (xid) values (pg_snapshot_xmin(pg_current_snapshot()));\n\
    delete from larder.epoch;\n\
    insert into larder.epoch (nonce) values (gen_random_uuid());\n";

/// Whoever is installed for has the time of `retention` to come.
const LOGGERS_SQL: &str = "insert into larder.logger (name, needed_at) select p.proname, now() from pg_proc p \
    where p.pronamespace = 'larder'::regnamespace and p.proname like 'log\\_%' \
    on conflict (name) do update set needed_at = excluded.needed_at;\n";

/// What is missing between `installed` and `loggers`.
pub(super) fn missing(loggers: &[Logger], installed: &Installed) -> Missing {
    let logging = logging_sql(loggers, installed);
    match (logging.is_empty() && installed.schema, installed.epoch) {
        (true, true) => Missing::Nothing,
        (true, false) => Missing::Epoch,
        (false, _) => Missing::Definitions(definitions_sql(&logging)),
    }
}

/// The functions and triggers that are missing.
fn logging_sql(loggers: &[Logger], installed: &Installed) -> String {
    let mut sql = String::new();
    for logger in loggers {
        if installed.functions.get(&logger.hash) != Some(&logger.body) {
            sql.push_str(&logger.function_sql());
        }
        for trigger in &logger.triggers {
            let enabled = trigger.firing.code().to_owned();
            let key = (
                trigger.table.oid,
                trigger.name.clone(),
                enabled,
                trigger.code,
            );
            if !installed.triggers.contains(&key) {
                sql.push_str(&logger.trigger_sql(trigger));
            }
        }
    }
    sql
}

fn definitions_sql(logging: &str) -> String {
    format!("{SCHEMA_SQL}{logging}{LOGGERS_SQL}{EPOCH_SQL}")
}

/// All that an empty database misses, in a transaction, with the grants that `role` needs.
pub(super) fn install_script(loggers: &[Logger], resources: &[&Resource], role: &str) -> String {
    let role = format!("\"{}\"", role.replace('"', "\"\""));
    let mut grants = format!(
        "grant usage on schema larder to {role};\n\
         grant select on all tables in schema larder to {role};\n\
         grant insert, update, delete on larder.change, larder.horizon, larder.epoch, larder.node, larder.logger, larder.answer to {role};\n\
         grant execute on function larder.prune(interval, bigint) to {role};\n"
    );
    let mut schemas: Vec<&str> = Vec::new();
    let mut tables: Vec<String> = Vec::new();
    for table in resources.iter().flat_map(|resource| resource.tables()) {
        if !tables.contains(&table.sql()) {
            tables.push(table.sql());
        }
        if !schemas.contains(&table.schema.as_str()) {
            schemas.push(&table.schema);
        }
    }
    for schema in schemas {
        grants.push_str(&format!(
            "grant usage on schema \"{}\" to {role};\n",
            schema.replace('"', "\"\"")
        ));
    }
    for table in tables {
        grants.push_str(&format!("grant select on {table} to {role};\n"));
    }
    for right in resources.iter().flat_map(|resource| write_rights(resource)) {
        let grant = format!("grant {right} to {role};\n");
        if !grants.contains(&grant) {
            grants.push_str(&grant);
        }
    }
    let sql = definitions_sql(&logging_sql(loggers, &Installed::default()));
    format!("begin;\nset local lock_timeout = '1s';\n{sql}\n{grants}commit;\n")
}

/// What writes of a resource's documents need beside `select`; a sequence is drawn from before rows are inserted.
fn write_rights(resource: &Resource) -> Vec<String> {
    let Ok(writable) = &resource.writable else {
        return Vec::new();
    };
    let mut rights = Vec::new();
    for level in &writable.levels {
        rights.push(format!("insert, update, delete on {}", level.table.sql()));
        let defaults = level.columns.iter().flat_map(|column| &column.default);
        for drawn in defaults.filter_map(|default| default.split_once("nextval('")) {
            // A name in quotes may hold a quote, which is doubled in the literal.
            let name = drawn.1.split("'::").next().unwrap_or_default();
            rights.push(format!("usage on sequence {}", name.replace("''", "'")));
        }
    }
    rights
}

/// The longest wait for a table's lock of a larder that serves, which tries again: a quarter of the second after which
/// PostgreSQL looks for deadlocks (`deadlock_timeout`), and ends the transaction of whoever waited so long.
pub(super) const SERVING_LOCK_TIMEOUT: &str = "250ms";

/// The same of a command, which does not.
pub(super) const COMMAND_LOCK_TIMEOUT: &str = "1s";

/// Runs `sql` in one transaction, alone among larders. Waits for each table's lock at most for `lock_timeout`.
pub(super) async fn run(
    connection: &mut PgConnection,
    sql: String,
    lock_timeout: &str,
) -> Result<(), SourceError> {
    let mut transaction = begin_alone(connection, "1s").await?;
    let sql = format!("set local lock_timeout = '{lock_timeout}'; {sql}");
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(())
}

/// Begins a new epoch, unless another larder was faster.
pub(super) async fn renew_epoch(connection: &mut PgConnection) -> Result<(), SourceError> {
    let mut transaction = begin_alone(connection, "1s").await?;
    if !epoch_stands(&mut transaction).await? {
        sqlx::raw_sql(EPOCH_SQL).execute(&mut *transaction).await?;
    }
    transaction.commit().await?;
    Ok(())
}

/// Says that `loggers` are needed, and if it may `remove`, removes one that no larder has needed for `retention`, with
/// its triggers: any, since one that can't be removed must not keep the others. A table's lock is waited for but a
/// moment, since passes and writers wait meanwhile.
///
/// # Errors
/// What PostgreSQL said.
pub(super) async fn remove_unneeded(
    connection: &mut PgConnection,
    loggers: &[String],
    retention: Duration,
    remove: bool,
) -> Result<(), SourceError> {
    sqlx::query("update larder.logger set needed_at = now() where name = any($1)")
        .bind(loggers)
        .execute(&mut *connection)
        .await?;
    let unneeded = sqlx::query(
        "select name, format('drop function if exists larder.%I() cascade', name) as sql from larder.logger \
         where needed_at < now() - make_interval(secs => $1) order by random() limit 1",
    )
    .bind(retention.as_secs_f64())
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = unneeded.filter(|_| remove) else {
        return Ok(());
    };
    let (name, sql): (String, String) = (row.try_get("name")?, row.try_get("sql")?);
    let mut transaction = begin_alone(connection, "50ms").await?;
    // Only if it is still unneeded: whoever needs it writes the same row.
    let gone = sqlx::query(
        "delete from larder.logger where name = $1 and needed_at < now() - make_interval(secs => $2)",
    )
    .bind(&name)
    .bind(retention.as_secs_f64())
    .execute(&mut *transaction)
    .await?;
    if gone.rows_affected() == 0 {
        transaction.rollback().await?;
        return Ok(());
    }
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    tracing::info!(
        "removed larder.{name} and its triggers, which no configuration has needed for {retention:?}"
    );
    Ok(())
}

async fn begin_alone<'c>(
    connection: &'c mut PgConnection,
    lock_timeout: &str,
) -> Result<Transaction<'c, Postgres>, SourceError> {
    let mut transaction = connection.begin().await?;
    // What is installed survives a crash, whatever the connection has set for its heartbeats.
    let settings = format!(
        "set local lock_timeout = '{lock_timeout}'; set local statement_timeout = '30s'; \
         set local client_min_messages = warning; set local synchronous_commit = on"
    );
    sqlx::raw_sql(AssertSqlSafe(settings))
        .execute(&mut *transaction)
        .await?;
    sqlx::query("select pg_advisory_xact_lock($1, $2)")
        .bind(LOCK_SPACE)
        .bind(INSTALL_LOCK)
        .execute(&mut *transaction)
        .await?;
    Ok(transaction)
}

/// The SQL that removes all that larder added, whatever configuration it was for, and nothing else: what a user keeps
/// in schema larder makes it fail.
pub(super) async fn uninstall_sql(connection: &mut PgConnection) -> Result<String, SourceError> {
    let rows = sqlx::query(
        "select format('drop trigger if exists %I on %I.%I;', t.tgname, n.nspname, c.relname) \
         from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace \
         join pg_proc p on p.oid = t.tgfoid join pg_namespace l on l.oid = p.pronamespace \
         where l.nspname = 'larder' and t.tgname like 'larder\\_%' and t.tgparentid = 0 \
         union all select format('drop function larder.%I();', p.proname) from pg_proc p \
         join pg_namespace l on l.oid = p.pronamespace where l.nspname = 'larder' and p.proname like 'log\\_%' \
         order by 1 desc",
    )
    .fetch_all(connection)
    .await?;
    let mut sql = String::new();
    for row in rows {
        sql.push_str(row.try_get(0)?);
        sql.push('\n');
    }
    sql.push_str(
        // What larder had until 2026-11 tied its triggers to the table with a function.
        "drop function if exists larder.token(), larder.prune(interval, bigint), larder.plan_mark(), larder.installed;\n\
         drop table if exists larder.change, larder.horizon, larder.epoch, larder.node, larder.logger, larder.answer;\n\
         drop function if exists larder.guard_log();\n\
         drop schema if exists larder;\n",
    );
    Ok(sql)
}
