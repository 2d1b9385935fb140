//! Schema larder: whether all of it is there and as it should be, what makes it so, and the epoch of its log.

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::feed::position::contains_sql;
use crate::source::SourceError;

const STATE_SQL: &str = include_str!("../../migrations/larder.sql");
const LOG_SQL: &str = include_str!("../../migrations/log.sql");
const ANSWER_SQL: &str = include_str!("../../migrations/answer.sql");

/// How long a definition is remembered that no larder serves.
const SERVED_DAYS: i32 = 30;

/// The tables of the schema, but for `answer`.
pub(super) const TABLES: [&str; 6] = ["change", "horizon", "epoch", "node", "logger", "served"];

/// The log's line of [`LINES_SQL`].
const LOG_LINE: &str = "u xid xid8 not null default, path text not null, key text; 1; 2 guards";
/// Those of the others.
const STATE_LINES: [(&str, &str); 5] = [
    (
        "horizon",
        "u one boolean not null default, snapshot pg_snapshot not null, pruned pg_snapshot not null default; 1 unique; 0 guards",
    ),
    (
        "epoch",
        "u one boolean not null default, nonce uuid not null, prepared xid8[] not null; 1 unique; 0 guards",
    ),
    (
        "node",
        "u name uuid not null, position pg_snapshot not null, seen_at timestamp with time zone not null, mark uuid, \
         kept_until timestamp with time zone not null default; 1 unique; 0 guards",
    ),
    (
        "logger",
        "u name text not null, needed_until timestamp with time zone not null; 1 unique; 0 guards",
    ),
    (
        "served",
        "u definition text not null, served_at timestamp with time zone not null; 1 unique; 0 guards",
    ),
];

/// `larder.version()` as `migrations/larder.sql` makes it; a larger number is a later larder's.
const VERSION: i32 = 3;

/// Each table of the schema as a line: how it is stored, its columns and which have defaults, the columns of its valid indexes, its guards. What
/// comes out of a dump lacks indexes first and triggers until the end.
const LINES_SQL: &str = "\
select c.relname::text as name, concat(c.relpersistence, ' ', \
  (select string_agg(concat(a.attname, ' ', format_type(a.atttypid, a.atttypmod), case when a.attnotnull then ' not null' end, case when a.atthasdef then ' default' end), \
     ', ' order by a.attnum) from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped), '; ', \
  (select string_agg(concat(i.indkey, case when i.indisunique then ' unique' end), ', ' order by i.indkey::text) \
     from pg_index i where i.indrelid = c.oid and i.indisvalid), '; ', \
  (select count(*) from pg_trigger t where t.tgrelid = c.oid and t.tgenabled = 'A' \
     and t.tgname in ('larder_guard_delete', 'larder_guard_update')), ' guards') as line \
from pg_class c where c.relnamespace = to_regnamespace('larder') and c.relkind = 'r'";

const FUNCTIONS_SQL: &str = "\
select to_regprocedure('larder.prune(interval, bigint)') is not null and to_regprocedure('larder.token()') is not null \
  and to_regprocedure('larder.guard_log()') is not null and to_regprocedure('larder.snapshot(xid8, xid8[])') is not null and to_regprocedure('larder.plan_mark()') is not null \
  and to_regprocedure('larder.row_security(text)') is not null and to_regtype('larder.row_security_state') is not null as complete, \
  (select substring(prosrc from '^select (\\d{1,9})$')::int4 from pg_proc where oid = to_regprocedure('larder.version()')) as version";

/// What is to be made, in this order, each in a transaction of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All but the log: `migrations/larder.sql`. `State { older: true }` stands for one that an older larder has made.
    State {
        /// There is one of an older larder.
        older: bool,
    },
    /// The log: `migrations/log.sql`. `Log { anew: true }` drops one whose columns are others, with the triggers that
    /// write to it.
    Log {
        /// There is one of another shape.
        anew: bool,
    },
    /// `migrations/answer.sql`.
    Answers,
    /// A new epoch: PostgreSQL crashed, was promoted or came out of a dump, or the log was edited.
    Epoch,
}

impl Part {
    /// For the log, after "making".
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::State { .. } => "schema larder",
            Self::Log { .. } => "the log of schema larder",
            Self::Answers => "larder.answer",
            Self::Epoch => {
                "a new epoch: the database crashed, was promoted or came out of a dump, or the log was edited"
            }
        }
    }

    /// Its statements.
    pub(super) fn sql(self) -> String {
        match self {
            Self::State { .. } => STATE_SQL.to_owned(),
            Self::Log { anew } => {
                let drop = if anew {
                    "drop table larder.change cascade;\n"
                } else {
                    ""
                };
                format!("{drop}{LOG_SQL}{EPOCH_SQL}")
            }
            Self::Answers => ANSWER_SQL.to_owned(),
            Self::Epoch => EPOCH_SQL.to_owned(),
        }
    }
}

/// The parts that are missing or damaged; `answers` are wanted, too.
pub(super) async fn missing(
    connection: &mut PgConnection,
    answers: bool,
) -> Result<Vec<Part>, SourceError> {
    let rows = sqlx::query(LINES_SQL).fetch_all(&mut *connection).await?;
    let mut lines: Vec<(String, String)> = Vec::with_capacity(rows.len());
    for row in rows {
        lines.push((row.try_get("name")?, row.try_get("line")?));
    }
    let line = |table: &str| lines.iter().find(|(name, _)| name == table);
    let functions = sqlx::query(FUNCTIONS_SQL)
        .fetch_one(&mut *connection)
        .await?;
    let version: Option<i32> = functions.try_get("version")?;
    let mut parts = Vec::new();
    let is_sound =
        |(table, expected): &(&str, &str)| line(table).is_some_and(|(_, found)| found == expected);
    if !functions.try_get::<bool, _>("complete")?
        || version.is_none_or(|version| version < VERSION)
        || !STATE_LINES.iter().all(is_sound)
    {
        let older = version.is_some_and(|version| version < VERSION);
        parts.push(Part::State { older });
    }
    let log = line("change").map(|(_, found)| found.as_str());
    if log != Some(LOG_LINE) {
        let columns = |line: &str| {
            line.get(2..)
                .and_then(|line| line.split("; ").next().map(str::to_owned))
        };
        let anew = log.is_some_and(|log| columns(log) != columns(LOG_LINE));
        parts.push(Part::Log { anew });
    }
    if answers && line("answer").is_none() {
        parts.push(Part::Answers);
    }
    // A log that is made begins one.
    if log == Some(LOG_LINE) && (!parts.is_empty() || !epoch_stands(connection).await?) {
        parts.push(Part::Epoch);
    }
    Ok(parts)
}

/// Which of `definitions`, by hash, have fitted this database before.
pub(super) async fn served(
    connection: &mut PgConnection,
    definitions: &[String],
) -> Result<Vec<String>, SourceError> {
    let there: bool = sqlx::query_scalar("select to_regclass('larder.served') is not null")
        .fetch_one(&mut *connection)
        .await?;
    if !there {
        return Ok(Vec::new());
    }
    let served = "select definition from larder.served where definition = any($1::text[])";
    let served = sqlx::query_scalar(served).bind(definitions);
    Ok(served.fetch_all(connection).await?)
}

/// Remembers that `definitions` fit this database.
pub(super) async fn note_served(
    connection: &mut PgConnection,
    definitions: &[String],
) -> Result<(), SourceError> {
    let note = "with old as (delete from larder.served where served_at < now() - make_interval(days => $2) \
          and definition <> all ($1::text[])) \
        insert into larder.served (definition, served_at) select distinct d, now() from unnest($1::text[]) d \
        on conflict (definition) do update set served_at = excluded.served_at";
    sqlx::query(note)
        .bind(definitions)
        .bind(SERVED_DAYS)
        .execute(connection)
        .await?;
    Ok(())
}

/// Whether the log belongs to this life of the database.
pub(super) async fn epoch_stands(connection: &mut PgConnection) -> Result<bool, SourceError> {
    // What a dump brought from another cluster counts that one's transactions, which may lie ahead here.
    let stands = format!(
        "select (select count(*) = 1 from larder.epoch) and (select count(*) = 1 and bool_and({ended}) from larder.horizon) \
         and not exists (select from larder.change where {AHEAD})",
        ended = contains_sql("pg_current_snapshot()", "snapshot"),
    );
    let stands = sqlx::query_scalar(AssertSqlSafe(stands));
    Ok(stands.fetch_one(connection).await?)
}

/// Rows of the log that only another cluster can have written.
const AHEAD: &str = "xid >= pg_snapshot_xmax(pg_current_snapshot())";

/// Rows that are deleted in one transaction before a new epoch.
const AHEAD_ROWS_MAX: u64 = 100_000;

/// Deletes some of what only another cluster can have written: what comes out of a dump may have more rows than one
/// statement can delete in its time. Returns whether there may be more.
pub(super) async fn delete_ahead(connection: &mut PgConnection) -> Result<bool, SourceError> {
    let delete = format!(
        "delete from larder.change where ctid = any (array( \
         select ctid from larder.change where {AHEAD} limit {AHEAD_ROWS_MAX}))"
    );
    let deleted = sqlx::query(AssertSqlSafe(delete))
        .execute(connection)
        .await?;
    Ok(deleted.rows_affected() == AHEAD_ROWS_MAX)
}

/// What was logged before the triggers, or in another life of the database, says nothing: every larder begins anew. What
/// the new horizon sees is pruned in the course of time; what it can't see goes now.
///
/// `pg_prepared_xacts` heeds no snapshot, and has the lower 32 bits of numbers. What has left it before it is read is
/// visible to all that is loaded in the new epoch. What is not below `newest` began after any crash, and lost nothing.
const EPOCH_SQL: &str = concat!(
    "delete from larder.change where xid >= pg_snapshot_xmax(pg_current_snapshot());\n",
    "delete from larder.horizon;\n",
    "delete from larder.epoch;\n",
    "insert into larder.horizon (snapshot) values (pg_current_snapshot());\n",
    "insert into larder.epoch (nonce, prepared) select gen_random_uuid(), array( ",
    "select (n.newest - (n.newest - p.transaction::text::int8 + 4294967296) % 4294967296)::text::xid8 ",
    "from pg_prepared_xacts p cross join (select pg_snapshot_xmax(pg_current_snapshot())::text::int8 as newest) n ",
    "where p.database = current_database());\n",
);
