//! Installing and removing: transactions of their own that lock one table each, and for a moment, so that nobody fails
//! and nobody waits long because larder comes or goes.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Postgres, Row, Transaction};
use tokio::time::Instant;
use uuid::Uuid;

use crate::feed::locks::{INSTALL_LOCK, LOCK_CLASS};
use crate::feed::schema::{self, Part, TABLES};
use crate::feed::triggers::{Logger, MissingTriggers};
use crate::resource::catalogue::TableName;
use crate::source::SourceError;

/// The longest wait for a table's lock: others queue behind it. Far below the second after which PostgreSQL looks for
/// deadlocks (`deadlock_timeout`) and ends the transaction of whoever has waited so long. Autovacuum gives way only to
/// those who wait as long, so it is waited for in many attempts.
const LOCK_TIMEOUT: &str = "30ms";

/// The longest run of one statement under a table's lock.
const TABLE_TIMEOUT: &str = "200ms";

/// Tables whose locks are waited for in vain, before the others are left to the next attempt: passes wait meanwhile.
const HELD_MAX: usize = 2;

/// Why something was not installed or removed.
#[derive(Debug, thiserror::Error)]
pub(super) enum InstallError {
    /// Others hold a lock; it may be free later.
    #[error("waiting for {0}")]
    Held(String),
    /// What PostgreSQL said.
    #[error(transparent)]
    Source(#[from] SourceError),
}

impl From<sqlx::Error> for InstallError {
    fn from(error: sqlx::Error) -> Self {
        Self::Source(error.into())
    }
}

/// A table whose triggers are not there yet.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) table: TableName,
    /// What is to be done or waited for.
    pub(super) why: String,
    /// Somebody holds a lock; else it was refused.
    pub(super) held: bool,
}

/// Makes `part`, unless another larder was faster.
pub(super) async fn make(
    connection: &mut PgConnection,
    part: Part,
    answers: bool,
) -> Result<(), InstallError> {
    if part == Part::Epoch {
        while schema::delete_ahead(connection).await? {}
    }
    let mut transaction = begin_alone(connection).await?;
    if !schema::missing(&mut transaction, answers)
        .await?
        .contains(&part)
    {
        return Ok(transaction.rollback().await?);
    }
    tracing::info!("making {}", part.as_str());
    let made = run(transaction, part.sql()).await;
    let tables = TABLES.map(|name| format!("larder.{name}"));
    name_holders(connection, made, &tables, ANY_LOCK).await
}

/// Creates logging functions. No larder removes them before `retention` is over.
pub(super) async fn create_functions(
    connection: &mut PgConnection,
    sql: String,
    loggers: &[Logger],
    retention: Duration,
) -> Result<(), InstallError> {
    let transaction = begin_alone(connection).await?;
    run(transaction, sql + &need_sql(loggers, retention)).await
}

/// Creates triggers, table by table: those that are left, and why.
///
/// # Errors
/// Only if the connection was lost.
pub(super) async fn create_triggers(
    connection: &mut PgConnection,
    mut tables: Vec<MissingTriggers>,
) -> Result<Vec<Pending>, SourceError> {
    // Those that come behind the ones that are held, another time.
    tables.sort_by_cached_key(|_| Uuid::new_v4());
    let mut pending: Vec<Pending> = Vec::new();
    for MissingTriggers { table, sql } in tables {
        let held = pending.iter().filter(|pending| pending.held).count();
        let (why, held) = if held >= HELD_MAX {
            ("others are waited for first".to_owned(), true)
        } else {
            match on_table(connection, &table, sql).await {
                Ok(()) => continue,
                Err(InstallError::Held(who)) => (format!("waiting for {who}"), true),
                Err(InstallError::Source(error @ SourceError::Unavailable(_))) => {
                    return Err(error);
                }
                Err(InstallError::Source(error)) => (error.to_string(), false),
            }
        };
        pending.push(Pending { table, why, held });
    }
    Ok(pending)
}

/// Runs `sql`, which locks nothing but `table`.
async fn on_table(
    connection: &mut PgConnection,
    table: &TableName,
    sql: String,
) -> Result<(), InstallError> {
    let transaction = begin_alone(connection).await?;
    // Whatever users have added to DDL, such as event triggers, keeps writers out as well.
    let sql = format!("set local statement_timeout = '{TABLE_TIMEOUT}'; {sql}");
    let locks = if sql.contains("drop trigger") {
        ANY_LOCK
    } else {
        WRITERS_LOCKS
    };
    let done = run(transaction, sql).await;
    name_holders(connection, done, &[table.sql()], locks).await
}

/// Runs `sql` and commits.
async fn run(mut transaction: Transaction<'_, Postgres>, sql: String) -> Result<(), InstallError> {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut *transaction)
        .await?;
    Ok(transaction.commit().await?)
}

async fn begin_alone(
    connection: &mut PgConnection,
) -> Result<Transaction<'_, Postgres>, InstallError> {
    let mut transaction = connection.begin().await?;
    // What a command has installed survives a crash, whatever the connection has set for its heartbeats; and nobody waits
    // for a table while larder waits for a standby.
    let begin = format!(
        "set local lock_timeout = '{LOCK_TIMEOUT}'; set local statement_timeout = '30s'; \
         set local client_min_messages = warning; set local synchronous_commit = local; \
         select pg_try_advisory_xact_lock({LOCK_CLASS}, {INSTALL_LOCK})"
    );
    let alone: bool = sqlx::raw_sql(AssertSqlSafe(begin))
        .fetch_one(&mut *transaction)
        .await?
        .try_get(0)?;
    if !alone {
        transaction.rollback().await?;
        return Err(InstallError::Held("another larder, which installs".into()));
    }
    Ok(transaction)
}

/// Where `done` was given up for the sake of a lock on one of `tables`, says who holds one.
async fn name_holders(
    connection: &mut PgConnection,
    done: Result<(), InstallError>,
    tables: &[String],
    locks: &[&str],
) -> Result<(), InstallError> {
    match done {
        Err(InstallError::Source(error)) if error.is_of_lock() => Err(InstallError::Held(
            holders(connection, tables, locks).await?,
        )),
        done => done,
    }
}

/// What keeps off whoever creates a trigger: the others let readers in (PostgreSQL manual, explicit locking).
const WRITERS_LOCKS: &[&str] = &[
    "RowExclusiveLock",
    "ShareUpdateExclusiveLock",
    "ShareLock",
    "ShareRowExclusiveLock",
    "ExclusiveLock",
    "AccessExclusiveLock",
];
/// What keeps off whoever drops something.
const ANY_LOCK: &[&str] = &[
    "AccessShareLock",
    "RowShareLock",
    "RowExclusiveLock",
    "ShareUpdateExclusiveLock",
    "ShareLock",
    "ShareRowExclusiveLock",
    "ExclusiveLock",
    "AccessExclusiveLock",
];

/// Whose `locks` keep larder from `tables`, for the log: the three oldest transactions.
async fn holders(
    connection: &mut PgConnection,
    tables: &[String],
    locks: &[&str],
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
    .bind(locks)
    .fetch_all(connection)
    .await?;
    Ok(if holders.is_empty() {
        format!("a lock on {}", tables.join(", "))
    } else {
        holders.join("; ")
    })
}

/// Says that `loggers` are needed until `retention` from now is over.
pub(super) fn need_sql(loggers: &[Logger], retention: Duration) -> String {
    let names: Vec<String> = loggers.iter().map(Logger::function_name).collect();
    need_names_sql(&names, retention)
}

/// Names consist of hexadecimal digits.
fn need_names_sql(loggers: &[String], retention: Duration) -> String {
    format!(
        "insert into larder.logger as l (name, needed_until) \
         select name, now() + make_interval(secs => {}) from unnest('{{{}}}'::text[]) name \
         on conflict (name) do update set needed_until = greatest(l.needed_until, excluded.needed_until);\n",
        retention.as_secs_f64(),
        loggers.join(",")
    )
}

/// Says that `loggers` are needed, and if it may `remove`, removes what no larder has needed for the retention of the
/// last that did: the triggers of one table, any, since one that can't be removed must not keep the others; or a
/// function that none calls any more.
///
/// # Errors
/// What PostgreSQL said.
pub(super) async fn remove_unneeded(
    connection: &mut PgConnection,
    loggers: &[String],
    retention: Duration,
    remove: bool,
) -> Result<bool, SourceError> {
    sqlx::raw_sql(AssertSqlSafe(need_names_sql(loggers, retention)))
        .execute(&mut *connection)
        .await?;
    if !remove {
        return Ok(false);
    }
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
        Ok(true) => {
            tracing::info!("removed larder.{name} or triggers of it, which no configuration needs");
            Ok(true)
        }
        Ok(false) => Ok(false),
        Err(InstallError::Held(_)) => Ok(false),
        Err(InstallError::Source(error)) if error.is_of_lock() => Ok(false),
        Err(InstallError::Source(error)) => Err(error),
    }
}

/// Removes a logger's triggers from a table, or its function, if it is still unneeded: whoever needs it writes the same
/// row.
async fn remove_logger(
    connection: &mut PgConnection,
    name: &str,
    is_function: bool,
    sql: String,
) -> Result<bool, InstallError> {
    let mut transaction = begin_alone(connection).await?;
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
    run(transaction, sql).await?;
    Ok(true)
}

/// The transactions that remove all that larder added, whatever configuration it was for.
///
/// # Errors
/// Where a user keeps something in schema larder; what PostgreSQL said.
pub(super) async fn removal(connection: &mut PgConnection) -> Result<Vec<String>, SourceError> {
    let others: Option<String> = sqlx::query_scalar(
        "select string_agg(format('larder.%I', name), ', ') from ( \
           select c.relname as name from pg_class c where c.relnamespace = to_regnamespace('larder') \
             and c.relkind in ('r', 'v', 'm', 'S', 'f', 'p') and c.relname <> all ($1::text[]) \
           union all select p.proname from pg_proc p where p.pronamespace = to_regnamespace('larder') \
             and p.proname not like 'log\\_%' \
             and p.proname not in ('token', 'prune', 'snapshot', 'plan_mark', 'row_security', 'version', 'guard_log', 'installed')) o",
    )
    .bind(TABLES.iter().copied().chain(["answer"]).collect::<Vec<_>>())
    .fetch_one(&mut *connection)
    .await?;
    if let Some(others) = others {
        return Err(SourceError::Unexpected(format!(
            "schema larder holds {others}, which is not larder's; nothing was removed"
        )));
    }
    let mut steps: Vec<String> = sqlx::query_scalar(
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
    steps.push(format!(
        // What larder had until 2026-11 tied its triggers to the table with a function.
        "{}drop domain if exists larder.row_security_state;\n\
         drop function if exists larder.token(), larder.prune(interval, bigint), larder.snapshot(xid8, xid8[]), larder.plan_mark(), \
           larder.row_security(text), larder.version(), larder.installed;\n\
         drop table if exists larder.change, larder.horizon, larder.epoch, larder.node, larder.logger, larder.served, larder.answer;\n\
         drop function if exists larder.guard_log();\n\
         drop schema if exists larder;\n",
        functions.unwrap_or_default(),
    ));
    Ok(steps)
}

/// Runs each of `steps` in a transaction of its own, again and again until nobody holds what it locks.
pub(super) async fn run_all(
    connection: &mut PgConnection,
    steps: Vec<String>,
) -> Result<(), InstallError> {
    for sql in steps {
        let mut patience = Patience::default();
        loop {
            let transaction = begin_alone(connection).await;
            let outcome = match transaction {
                Ok(transaction) => run(transaction, sql.clone()).await,
                Err(error) => Err(error),
            };
            let who = match outcome {
                Ok(()) => break,
                Err(InstallError::Held(who)) => who,
                Err(InstallError::Source(error)) if error.is_of_lock() => {
                    format!("the locks of: {}", sql.lines().next().unwrap_or_default())
                }
                Err(error) => return Err(error),
            };
            patience.wait(&who).await?;
        }
    }
    Ok(())
}

/// `steps` as a script, each a transaction.
pub(super) fn script(steps: &[String]) -> String {
    let transactions = steps
        .iter()
        .map(|sql| format!("begin;\nset local lock_timeout = '{LOCK_TIMEOUT}';\nset local synchronous_commit = local;\n{sql}commit;\n"));
    transactions.collect()
}

/// How long a command waits for others' locks.
const PATIENCE: Duration = Duration::from_secs(600);

/// A command's attempts: pauses that grow, and an end.
pub(super) struct Patience {
    began: Instant,
    pauses: Pauses,
    said: String,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            pauses: pauses(LOCK_PAUSE_MIN, LOCK_PAUSE_MAX),
            said: String::new(),
        }
    }
}

impl Patience {
    /// Pauses before the next attempt.
    ///
    /// # Errors
    /// [`InstallError::Held`] where it has been long enough.
    pub(super) async fn wait(&mut self, who: &str) -> Result<(), InstallError> {
        if self.began.elapsed() > PATIENCE {
            return Err(InstallError::Held(who.to_owned()));
        }
        if self.said != who {
            tracing::warn!("waiting for {who}");
            self.said = who.to_owned();
        }
        tokio::time::sleep(self.pauses.next().unwrap_or(LOCK_PAUSE_MAX)).await;
        Ok(())
    }
}

/// Pauses between attempts at a lock: writers wait at most 30 ms for each, so at first an eighth, then a hundredth of the
/// time.
pub(super) const LOCK_PAUSE_MIN: Duration = Duration::from_millis(250);
pub(super) const LOCK_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Pauses that grow from `min` to `max`, with jitter.
pub(super) fn pauses(min: Duration, max: Duration) -> Pauses {
    ExponentialBuilder::new()
        .with_min_delay(min)
        .with_max_delay(max)
        .with_jitter()
        .without_max_times()
        .build()
}

/// What [`pauses`] gives.
pub(super) type Pauses = ExponentialBackoff;
