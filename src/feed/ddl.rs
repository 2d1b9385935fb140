//! The transactions that install and remove. Each holds the lock for installing and waits only briefly for the lock of
//! a table, so that no transaction of another client fails or waits for long because of larder.

use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Postgres, Row, Transaction};
use tokio::time::Instant;

use crate::feed::locks::{INSTALL_LOCK, LOCK_CLASS};
use crate::feed::retry::{RetryPauses, retry_pauses};
use crate::resource::catalogue::TableName;
use crate::resource::sql::literal;
use crate::source::SourceError;

/// The longest wait for a table's lock, since other transactions queue behind it. It is far below `deadlock_timeout`
/// (1 s), after which PostgreSQL looks for deadlocks and ends the transaction that has waited for so long. Autovacuum
/// releases its lock only for a transaction that has waited for that time, so it is waited for in many attempts.
const LOCK_TIMEOUT: &str = "30ms";

/// The longest run of one statement that holds a table's lock.
const TABLE_TIMEOUT: &str = "200ms";

/// Pauses between two attempts to get a lock. Writers wait at most 30 ms for each attempt: an eighth of the time at
/// first, later a hundredth.
pub(super) const LOCK_PAUSE_MIN: Duration = Duration::from_millis(250);
pub(super) const LOCK_PAUSE_MAX: Duration = Duration::from_secs(2);

/// How long a command waits for locks that other transactions hold.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(600);

/// Why something was not installed or removed.
#[derive(Debug, thiserror::Error)]
pub(super) enum DdlError {
    /// Other transactions hold a lock that is needed; it may be free later. Says which transactions.
    #[error("waiting for {0}")]
    Locked(String),
    /// PostgreSQL can't be reached, or refused a statement.
    #[error(transparent)]
    Source(#[from] SourceError),
}

impl From<sqlx::Error> for DdlError {
    fn from(error: sqlx::Error) -> Self {
        Self::Source(error.into())
    }
}

/// Begins a transaction that holds the lock for installing.
///
/// # Errors
/// [`DdlError::Locked`] if another larder holds that lock.
pub(super) async fn begin(
    connection: &mut PgConnection,
) -> Result<Transaction<'_, Postgres>, DdlError> {
    let mut transaction = connection.begin().await?;
    // The connection of the feed has `synchronous_commit = off` for its heartbeats. What is installed must survive a
    // crash; `local`, since no client may wait for a table's lock while larder waits for a standby.
    let begin = format!(
        "set local lock_timeout = '{LOCK_TIMEOUT}'; set local statement_timeout = '30s'; \
         set local client_min_messages = warning; set local synchronous_commit = local; \
         select pg_try_advisory_xact_lock({LOCK_CLASS}, {INSTALL_LOCK})"
    );
    let has_lock: bool = sqlx::raw_sql(AssertSqlSafe(begin))
        .fetch_one(&mut *transaction)
        .await?
        .try_get(0)?;
    if !has_lock {
        transaction.rollback().await?;
        return Err(DdlError::Locked("another larder, which installs".into()));
    }
    Ok(transaction)
}

/// Runs `sql` and commits.
pub(super) async fn commit(
    mut transaction: Transaction<'_, Postgres>,
    sql: String,
) -> Result<(), DdlError> {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut *transaction)
        .await?;
    Ok(transaction.commit().await?)
}

/// Runs `sql`, which locks only `table`, in a transaction of its own.
///
/// # Errors
/// [`DdlError::Locked`], too, if another table has its name by now. A restore may be under way, which the next inspection finds.
pub(super) async fn run_on_table(
    connection: &mut PgConnection,
    table: &TableName,
    sql: String,
) -> Result<(), DdlError> {
    let transaction = begin(connection).await?;
    let conflicting = if sql.contains("drop trigger") {
        ALL_LOCKS
    } else {
        WRITERS_LOCKS
    };
    let outcome = run_if_same(transaction, table, &sql).await;
    name_holders(connection, outcome, &[table.sql()], conflicting).await
}

/// Runs `sql`, and commits if it has locked `table` and none that has replaced it.
async fn run_if_same(
    mut transaction: Transaction<'_, Postgres>,
    table: &TableName,
    sql: &str,
) -> Result<(), DdlError> {
    // Event triggers of users run under the table's lock as well.
    let name = literal(&table.sql());
    let sql = format!(
        "set local statement_timeout = '{TABLE_TIMEOUT}'; {sql} select to_regclass({name})::oid::int8"
    );
    let oid: Option<i64> = sqlx::raw_sql(AssertSqlSafe(sql))
        .fetch_one(&mut *transaction)
        .await?
        .try_get(0)?;
    if oid != Some(table.oid.into()) {
        transaction.rollback().await?;
        return Err(DdlError::Locked(
            "a look at the table that replaced it".into(),
        ));
    }
    Ok(transaction.commit().await?)
}

/// Runs each of `statements` in a transaction of its own, and repeats it until it gets its locks.
///
/// # Errors
/// [`DdlError::Locked`] after [`LOCK_WAIT_MAX`] for one of them; or PostgreSQL can't be reached or refuses a statement.
pub(super) async fn run_all(
    connection: &mut PgConnection,
    statements: Vec<String>,
) -> Result<(), DdlError> {
    for sql in statements {
        let mut lock_wait = LockWait::default();
        loop {
            let outcome = match begin(connection).await {
                Ok(transaction) => commit(transaction, sql.clone()).await,
                Err(error) => Err(error),
            };
            let awaited = match outcome {
                Ok(()) => break,
                Err(DdlError::Locked(holders)) => holders,
                Err(DdlError::Source(error)) if error.is_lock_timeout() => {
                    format!("the locks of: {}", sql.lines().next().unwrap_or_default())
                }
                Err(error) => return Err(error),
            };
            lock_wait.pause(&awaited).await?;
        }
    }
    Ok(())
}

/// A script that runs each of `statements` in a transaction of its own.
pub(super) fn script(statements: &[String]) -> String {
    let transactions = statements
        .iter()
        .map(|sql| format!("begin;\nset local lock_timeout = '{LOCK_TIMEOUT}';\nset local synchronous_commit = local;\n{sql}commit;\n"));
    transactions.collect()
}

/// If `outcome` is that a lock on one of `tables` was not free, replaces the error by one that names the transactions
/// that hold such a lock.
pub(super) async fn name_holders(
    connection: &mut PgConnection,
    outcome: Result<(), DdlError>,
    tables: &[String],
    conflicting: &[&str],
) -> Result<(), DdlError> {
    match outcome {
        Err(DdlError::Source(error)) if error.is_lock_timeout() => Err(DdlError::Locked(
            holders(connection, tables, conflicting).await?,
        )),
        outcome => outcome,
    }
}

/// All locks of a table, from weak to strong (PostgreSQL manual, "Explicit Locking"). `drop` conflicts with each.
pub(super) const ALL_LOCKS: &[&str] = &[
    "AccessShareLock",
    "RowShareLock",
    "RowExclusiveLock",
    "ShareUpdateExclusiveLock",
    "ShareLock",
    "ShareRowExclusiveLock",
    "ExclusiveLock",
    "AccessExclusiveLock",
];
/// The locks that conflict with `create trigger`: all but those of readers.
const WRITERS_LOCKS: &[&str] = ALL_LOCKS.split_at(2).1;

/// The three oldest transactions that hold one of the locks `modes` on one of `tables`, as text for the log.
async fn holders(
    connection: &mut PgConnection,
    tables: &[String],
    modes: &[&str],
) -> Result<String, SourceError> {
    let holders: Vec<String> = sqlx::query_scalar(
        "select concat('a lock on ', l.relation::regclass, ' of ', \
           case when l.pid is null then 'a prepared transaction' \
             else concat('process ', l.pid, ' (', a.backend_type, nullif(concat(', ', a.application_name), ', '), ')') end, \
           ', ' || extract(epoch from now() - a.xact_start)::int || ' s old') \
         from pg_locks l left join pg_stat_activity a on a.pid = l.pid \
         where l.locktype = 'relation' and l.granted and l.mode = any ($2::text[]) \
           and l.database = (select oid from pg_database where datname = current_database()) \
           and l.relation = any (array(select to_regclass(name) from unnest($1::text[]) name)) \
           and l.pid is distinct from pg_backend_pid() \
         order by a.xact_start limit 3",
    )
    .bind(tables)
    .bind(modes)
    .fetch_all(connection)
    .await?;
    Ok(if holders.is_empty() {
        format!("a lock on {}", tables.join(", "))
    } else {
        holders.join("; ")
    })
}

/// The attempts of a command to get its locks: pauses that grow, and an end.
pub(super) struct LockWait {
    began: Instant,
    pauses: RetryPauses,
    /// What the last line in the log says it waits for.
    logged: String,
}

impl Default for LockWait {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            pauses: retry_pauses(LOCK_PAUSE_MIN, LOCK_PAUSE_MAX),
            logged: String::new(),
        }
    }
}

impl LockWait {
    /// Pauses before the next attempt, and logs what is waited for if that has changed.
    ///
    /// # Errors
    /// [`DdlError::Locked`] once [`LOCK_WAIT_MAX`] is over.
    pub(super) async fn pause(&mut self, awaited: &str) -> Result<(), DdlError> {
        if self.began.elapsed() > LOCK_WAIT_MAX {
            return Err(DdlError::Locked(awaited.to_owned()));
        }
        if self.logged != awaited {
            tracing::warn!("waiting for {awaited}");
            self.logged = awaited.to_owned();
        }
        tokio::time::sleep(self.pauses.next().unwrap_or(LOCK_PAUSE_MAX)).await;
        Ok(())
    }
}
