//! Installing what a database lacks: parts of schema larder, logging functions, and the triggers of each table.

use std::time::Duration;

use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::feed::ddl::{self, ALL_LOCKS, DdlError};
use crate::feed::logger_retention::need_sql;
use crate::feed::restore::InstallDelay;
use crate::feed::rights::owner_remedy;
use crate::feed::schema::{self, Part, TABLES};
use crate::feed::triggers::{MissingTriggers, TableTriggers};
use crate::resource::catalogue::TableName;
use crate::source::SourceError;
use crate::source::rights::with_grants;

/// Tables whose locks are not free, after which the other tables are left for the next attempt: passes wait meanwhile.
const LOCKED_TABLES_MAX: usize = 2;

/// A table that lacks triggers.
#[derive(Clone, Debug)]
pub(super) struct PendingTriggers {
    pub(super) table: TableName,
    /// What is waited for, or has to be done.
    pub(super) reason: String,
    /// A lock is held, or a restore may be under way, so that a later attempt may succeed. Otherwise PostgreSQL refused
    /// the triggers.
    pub(super) is_waiting: bool,
}

impl PendingTriggers {
    fn waiting(table: TableName, reason: String) -> Self {
        Self {
            table,
            reason,
            is_waiting: true,
        }
    }
}

/// Creates a part of schema larder, unless another larder has done so meanwhile.
pub(super) async fn create_part(
    connection: &mut PgConnection,
    part: Part,
    answers: bool,
) -> Result<(), DdlError> {
    if part == Part::Epoch {
        while schema::delete_unreached(connection).await? {}
    }
    let mut transaction = ddl::begin(connection).await?;
    let missing = schema::missing(&mut transaction, answers).await?;
    if !missing.parts.contains(&part) {
        return Ok(transaction.rollback().await?);
    }
    tracing::info!("creating {}", part.as_str());
    let outcome = ddl::commit(transaction, part.sql()).await;
    let tables = TABLES.map(|name| format!("larder.{name}"));
    ddl::name_holders(connection, outcome, &tables, ALL_LOCKS).await
}

/// Creates the logging functions and triggers that are missing, but those of tables that `delay` names. Returns the
/// tables that still lack triggers.
///
/// # Errors
/// If a function can't be created, or the connection was lost.
pub(super) async fn create_functions_and_triggers(
    connection: &mut PgConnection,
    missing: MissingTriggers,
    loggers: &[String],
    retention: Duration,
    delay: Option<&InstallDelay>,
) -> Result<Vec<PendingTriggers>, DdlError> {
    let MissingTriggers { functions, tables } = missing;
    let mut pending = Vec::new();
    let mut possible = Vec::with_capacity(tables.len());
    for triggers in tables {
        match delay.filter(|delay| delay.concerns(&triggers.table)) {
            Some(delay) => pending.push(PendingTriggers::waiting(
                triggers.table,
                delay.reason.to_owned(),
            )),
            None => possible.push(triggers),
        }
    }
    if possible.is_empty() {
        return Ok(pending);
    }
    tracing::info!("creating triggers on {} tables", possible.len());
    if !functions.is_empty() {
        match create_functions(connection, functions, loggers, retention).await {
            Err(DdlError::Locked(holders)) => {
                let reason = format!("waiting for {holders}");
                let tables = possible.into_iter().map(|triggers| triggers.table);
                pending.extend(tables.map(|table| PendingTriggers::waiting(table, reason.clone())));
                return Ok(pending);
            }
            Err(DdlError::Source(error)) => {
                let otherwise = "run `larder install` as the owner of schema larder";
                return Err(with_grants(connection, error, Vec::new(), otherwise)
                    .await
                    .into());
            }
            outcome => outcome?,
        }
    }
    pending.extend(create_triggers(connection, possible).await?);
    Ok(pending)
}

/// Creates logging functions. No larder removes them before `retention` is over.
async fn create_functions(
    connection: &mut PgConnection,
    functions: String,
    loggers: &[String],
    retention: Duration,
) -> Result<(), DdlError> {
    let transaction = ddl::begin(connection).await?;
    ddl::commit(transaction, functions + &need_sql(loggers, retention)).await
}

/// Creates triggers, each table in a transaction of its own. Returns the tables that still lack triggers.
///
/// # Errors
/// Only if the connection was lost.
async fn create_triggers(
    connection: &mut PgConnection,
    mut tables: Vec<TableTriggers>,
) -> Result<Vec<PendingTriggers>, SourceError> {
    // In random order, so that tables which come after those that are locked have their turn in another attempt.
    tables.sort_by_cached_key(|_| Uuid::new_v4());
    let mut pending: Vec<PendingTriggers> = Vec::new();
    for TableTriggers { table, sql } in tables {
        let locked = pending.iter().filter(|pending| pending.is_waiting).count();
        let (reason, is_waiting) = if locked >= LOCKED_TABLES_MAX {
            (
                "waiting for the locks of other tables first".to_owned(),
                true,
            )
        } else {
            match ddl::run_on_table(connection, &table, sql).await {
                Ok(()) => continue,
                Err(DdlError::Locked(holders)) => (format!("waiting for {holders}"), true),
                Err(DdlError::Source(error @ SourceError::Unavailable(_))) => return Err(error),
                Err(DdlError::Source(error)) => {
                    let mut reason = error.to_string();
                    if error.is_privilege_error() {
                        let remedy = owner_remedy(connection, &table).await?;
                        reason.push_str(&format!("; {remedy}"));
                    }
                    (reason, false)
                }
            }
        };
        pending.push(PendingTriggers {
            table,
            reason,
            is_waiting,
        });
    }
    Ok(pending)
}
