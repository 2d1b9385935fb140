//! The triggers on the configured tables: which exist in the database, which are missing, and their SQL. `logger`
//! describes what they do; `install` creates them.
//!
//! Names contain a hash of the function, so that triggers of another configuration can exist on the same table and are
//! left alone.

mod body;
mod level;
mod logger;

use std::collections::{HashMap, HashSet};

use sqlx::Row;
use sqlx::postgres::PgConnection;

pub(super) use crate::feed::triggers::logger::{Logger, loggers};
use crate::resource::catalogue::TableName;
use crate::source::SourceError;

/// The logging functions and triggers that exist in the database.
#[derive(Debug, Default)]
pub(super) struct Installed {
    /// Bodies of logging functions with the expected attributes, by hash.
    functions: HashMap<String, String>,
    /// Triggers by table, name, `pg_trigger.tgenabled` and `tgtype`.
    triggers: HashSet<(u32, String, String, i16)>,
    /// The tables and quoted names of triggers with transition tables, for any configuration.
    with_transition_tables: Vec<(u32, String)>,
}

/// Reads what is installed for `loggers`, and on their tables.
pub(super) async fn read_installed(
    connection: &mut PgConnection,
    loggers: &[Logger],
) -> Result<Installed, SourceError> {
    let mut installed = Installed::default();
    let oids: Vec<i64> = loggers
        .iter()
        .flat_map(|logger| logger.triggers.iter())
        .map(|trigger| i64::from(trigger.table.oid))
        .collect();
    let rows = sqlx::query(
        "select p.proname::text as function, p.prosrc as body, t.tgrelid::int8 as oid, t.tgname::text as trigger, \
         quote_ident(t.tgname) as quoted, t.tgenabled::text as enabled, t.tgtype as code, \
         coalesce(t.tgoldtable, t.tgnewtable) is not null as transition \
         from pg_proc p left join pg_trigger t on t.tgfoid = p.oid and t.tgrelid::int8 = any($1) and t.tgattr = '' \
         where p.pronamespace = to_regnamespace('larder') and p.proname like 'log\\_%' and p.prosecdef and p.proconfig is null",
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
        let Some(oid) = row.try_get::<Option<i64>, _>("oid")? else {
            continue;
        };
        let oid = u32::try_from(oid).unwrap_or(0);
        if row.try_get("transition")? {
            let name = row.try_get("quoted")?;
            installed.with_transition_tables.push((oid, name));
        }
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

/// The functions and triggers that are missing.
#[derive(Debug, Default)]
pub(super) struct MissingTriggers {
    /// Statements that create the functions.
    pub(super) functions: String,
    pub(super) tables: Vec<TableTriggers>,
}

/// The triggers that a table lacks.
#[derive(Debug)]
pub(super) struct TableTriggers {
    pub(super) table: TableName,
    /// Statements that drop those that may not stay, and create the missing ones. They lock no other table.
    pub(super) sql: String,
}

/// What of `loggers` is not installed. Triggers with transition tables are dropped from a table that has row triggers
/// now: it got them before it had partitions or inheriting tables, and statements would fail if one of those is a
/// foreign table.
pub(super) fn missing(loggers: &[Logger], installed: &Installed) -> MissingTriggers {
    let mut missing = MissingTriggers::default();
    // Drops come first, since they need the strongest lock. A transaction that has created a trigger holds a lock for which
    // writers wait. If it then waits for the stronger lock, a writer that has read the table is in a deadlock with it.
    for table in loggers.iter().flat_map(Logger::tables_with_row_triggers) {
        let existing = installed.with_transition_tables.iter();
        for (_, name) in existing.filter(|(oid, _)| *oid == table.oid) {
            let drop = format!("drop trigger if exists {} on {};\n", name, table.sql());
            missing.add(table, &drop);
        }
    }
    for logger in loggers {
        let is_current = installed.functions.get(&logger.hash) == Some(&logger.body);
        if !is_current {
            missing.functions.push_str(&logger.function_sql());
        }
        for trigger in &logger.triggers {
            let enabled = trigger.firing.code().to_owned();
            let key = (
                trigger.table.oid,
                trigger.name.clone(),
                enabled,
                trigger.code,
            );
            if is_current && installed.triggers.contains(&key) {
                continue;
            }
            missing.add(&trigger.table, &logger.trigger_sql(trigger));
        }
    }
    missing
}

impl MissingTriggers {
    /// Adds a statement for `table`, once.
    fn add(&mut self, table: &TableName, sql: &str) {
        match self.tables.iter_mut().find(|known| known.table == *table) {
            Some(known) if known.sql.contains(sql) => {}
            Some(known) => known.sql.push_str(sql),
            None => self.tables.push(TableTriggers {
                table: table.clone(),
                sql: sql.to_owned(),
            }),
        }
    }
}
