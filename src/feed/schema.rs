//! Schema larder: whether all of it exists and is as this version creates it, the statements that create it, and the
//! epoch of its log.

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::feed::position::contains_sql;
use crate::source::SourceError;

const SCHEMA_SQL: &str = include_str!("../../migrations/larder.sql");
const LOG_SQL: &str = include_str!("../../migrations/log.sql");
const ANSWER_SQL: &str = include_str!("../../migrations/answer.sql");
/// The statements that create the tables of `larder dispatch`.
pub(super) const DISPATCH_SQL: &str = include_str!("../../migrations/dispatch.sql");

/// How long a definition stays in `larder.served` that no larder serves.
const SERVED_DAYS: i32 = 30;

/// The tables of the schema, except those that only some settings need.
pub(super) const TABLES: [&str; 6] = ["change", "horizon", "epoch", "node", "logger", "served"];

/// These: `answer` for `idempotency_keys`, the others for `larder dispatch`.
pub(super) const OPTIONAL_TABLES: [&str; 4] = ["answer", "delivery", "dead_letter", "dispatch"];

/// What [`TABLES_SQL`] returns for the log.
const LOG_DESCRIPTION: &str =
    "u xid xid8 not null default, path text not null, key text; 1; 2 guards";
/// What [`TABLES_SQL`] returns for the other tables.
const DESCRIPTIONS: [(&str, &str); 5] = [
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

/// The last columns of `larder.answer`, in what [`TABLES_SQL`] returns.
const ANSWER_COLUMNS: &str = ", resource text, preference text; ";

/// `larder.version()` in `migrations/larder.sql`. A database with a larger number has the schema of a later version. This one
/// uses it if it finds all that it needs, and changes nothing of it.
pub(super) const VERSION: i32 = 3;

/// Describes each table of the schema in one line: how it is stored, its columns and which have defaults, the columns
/// of its valid indexes, and the number of its guard triggers. While a dump is restored, a table has no indexes at
/// first, and no triggers until the end.
const TABLES_SQL: &str = "\
select c.relname::text as name, concat(c.relpersistence, ' ', \
  (select string_agg(concat(a.attname, ' ', format_type(a.atttypid, a.atttypmod), case when a.attnotnull then ' not null' end, case when a.atthasdef then ' default' end), \
     ', ' order by a.attnum) from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped), '; ', \
  (select string_agg(concat(i.indkey, case when i.indisunique then ' unique' end), ', ' order by i.indkey::text) \
     from pg_index i where i.indrelid = c.oid and i.indisvalid), '; ', \
  (select count(*) from pg_trigger t where t.tgrelid = c.oid and t.tgenabled = 'A' \
     and t.tgname in ('larder_guard_delete', 'larder_guard_update')), ' guards') as line \
from pg_class c where c.relnamespace = to_regnamespace('larder') and c.relkind = 'r'";

/// Whether all functions of the schema exist, and its version.
const FUNCTIONS_SQL: &str = "\
select to_regprocedure('larder.prune(interval, bigint)') is not null and to_regprocedure('larder.token()') is not null \
  and to_regprocedure('larder.guard_log()') is not null and to_regprocedure('larder.snapshot(xid8, xid8[])') is not null and to_regprocedure('larder.plan_mark()') is not null \
  and to_regprocedure('larder.row_security(text)') is not null and to_regtype('larder.row_security_state') is not null as complete, \
  (select substring(prosrc from '^select (\\d{1,9})$')::int4 from pg_proc where oid = to_regprocedure('larder.version()')) as version";

/// A part of schema larder. Parts are created in this order, each in a transaction of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All but the log: `migrations/larder.sql`.
    Schema {
        /// What exists was created by an older version of larder.
        older: bool,
    },
    /// The log: `migrations/log.sql`.
    Log {
        /// A table of this name exists that has other columns. It is dropped, with the triggers that write to it.
        replaces: bool,
    },
    /// `migrations/answer.sql`.
    Answers,
    /// A new epoch: PostgreSQL crashed, was promoted or came out of a dump, or the log was edited.
    Epoch,
}

impl Part {
    /// Its name in messages, after "creating".
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Schema { .. } => "schema larder",
            Self::Log { .. } => "the log of schema larder",
            Self::Answers => "larder.answer",
            Self::Epoch => {
                "a new epoch of the log: the database crashed, was promoted or restored from a dump, or the log was edited"
            }
        }
    }

    /// That it is missing, as the reason of a finding.
    pub(super) fn lack(self) -> &'static str {
        match self {
            Self::Schema { older: true } => "schema larder is of an older version of larder",
            Self::Schema { older: false } => "schema larder is missing or damaged",
            Self::Log { .. } => "larder.change, the log of changes, is missing or damaged",
            Self::Answers => "larder.answer, which idempotency_keys needs, is missing or damaged",
            Self::Epoch => "the log of changes has no valid epoch",
        }
    }

    /// The statements that create it.
    pub(super) fn sql(self) -> String {
        match self {
            Self::Schema { .. } => SCHEMA_SQL.to_owned(),
            Self::Log { replaces } => {
                let drop = if replaces {
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

/// What of the schema is not as this version of larder creates it.
#[derive(Debug, Default)]
pub(super) struct MissingParts {
    /// What is missing or damaged, in the order in which it is created.
    pub(super) parts: Vec<Part>,
    /// The version of the schema if a later version of larder has created it and this one can't use it. Then nothing may be
    /// created: both would replace each other's tables again and again. `parts` is empty.
    pub(super) later_version: Option<i32>,
}

/// The parts that are missing or damaged. [`Part::Answers`] only counts if `answers` is true.
pub(super) async fn missing(
    connection: &mut PgConnection,
    answers: bool,
) -> Result<MissingParts, SourceError> {
    let mut missing = missing_objects(&mut *connection, answers).await?;
    if missing.later_version.is_some() {
        return Ok(missing);
    }
    let parts = &mut missing.parts;
    let has_log = !parts.iter().any(|part| matches!(part, Part::Log { .. }));
    // Creating the log begins an epoch as well.
    if has_log && (!parts.is_empty() || !is_epoch_valid(connection).await?) {
        parts.push(Part::Epoch);
    }
    Ok(missing)
}

/// The same without [`Part::Epoch`], for which the tables are read.
pub(super) async fn missing_objects(
    connection: &mut PgConnection,
    answers: bool,
) -> Result<MissingParts, SourceError> {
    let rows = sqlx::query(TABLES_SQL).fetch_all(&mut *connection).await?;
    let mut descriptions: Vec<(String, String)> = Vec::with_capacity(rows.len());
    for row in rows {
        descriptions.push((row.try_get("name")?, row.try_get("line")?));
    }
    let description = |table: &str| descriptions.iter().find(|(name, _)| name == table);
    let functions = sqlx::query(FUNCTIONS_SQL)
        .fetch_one(&mut *connection)
        .await?;
    let version: Option<i32> = functions.try_get("version")?;
    let mut parts = Vec::new();
    let is_sound = |(table, expected): &(&str, &str)| {
        description(table).is_some_and(|(_, found)| found == expected)
    };
    if !functions.try_get::<bool, _>("complete")?
        || version.is_none_or(|version| version < VERSION)
        || !DESCRIPTIONS.iter().all(is_sound)
    {
        let older = version.is_some_and(|version| version < VERSION);
        parts.push(Part::Schema { older });
    }
    let log = description("change").map(|(_, found)| found.as_str());
    if log != Some(LOG_DESCRIPTION) {
        let columns = |description: &str| {
            let columns = description.get(2..)?.split("; ").next()?;
            Some(columns.to_owned())
        };
        let replaces = log.is_some_and(|log| columns(log) != columns(LOG_DESCRIPTION));
        parts.push(Part::Log { replaces });
    }
    // An older version has created it without these columns.
    let is_current = |(_, found): &(String, String)| found.contains(ANSWER_COLUMNS);
    if answers && !description("answer").is_some_and(is_current) {
        parts.push(Part::Answers);
    }
    let later_version = version.filter(|version| *version > VERSION && !parts.is_empty());
    if later_version.is_some() {
        parts.clear();
    }
    Ok(MissingParts {
        parts,
        later_version,
    })
}

/// The version of the schema; `None` if there is none, and before there were versions.
pub(super) async fn version(connection: &mut PgConnection) -> Result<Option<i32>, SourceError> {
    let functions = sqlx::query(FUNCTIONS_SQL).fetch_one(connection).await?;
    Ok(functions.try_get("version")?)
}

/// Which of `definitions`, given by their hashes, have fitted this database before.
pub(super) async fn served(
    connection: &mut PgConnection,
    definitions: &[String],
) -> Result<Vec<String>, SourceError> {
    let exists: bool = sqlx::query_scalar("select to_regclass('larder.served') is not null")
        .fetch_one(&mut *connection)
        .await?;
    if !exists {
        return Ok(Vec::new());
    }
    let sql = "select definition from larder.served where definition = any($1::text[])";
    let served = sqlx::query_scalar(sql).bind(definitions);
    Ok(served.fetch_all(connection).await?)
}

/// Records that `definitions`, given by their hashes, fit this database.
pub(super) async fn record_served(
    connection: &mut PgConnection,
    definitions: &[String],
) -> Result<(), SourceError> {
    let sql = "with old as (delete from larder.served where served_at < now() - make_interval(days => $2) \
          and definition <> all ($1::text[])) \
        insert into larder.served (definition, served_at) select distinct d, now() from unnest($1::text[]) d \
        on conflict (definition) do update set served_at = excluded.served_at";
    sqlx::query(sql)
        .bind(definitions)
        .bind(SERVED_DAYS)
        .execute(connection)
        .await?;
    Ok(())
}

/// Whether the log has an epoch, and all its rows can have been written in it.
pub(super) async fn is_epoch_valid(connection: &mut PgConnection) -> Result<bool, SourceError> {
    // Rows that were restored from a dump of another cluster have its transaction numbers, which may not be reached
    // here.
    let sql = format!(
        "select (select count(*) = 1 from larder.epoch) and (select count(*) = 1 and bool_and({ended}) from larder.horizon) \
         and not exists (select from larder.change where {UNREACHED})",
        ended = contains_sql("pg_current_snapshot()", "snapshot"),
    );
    let is_valid = sqlx::query_scalar(AssertSqlSafe(sql));
    Ok(is_valid.fetch_one(connection).await?)
}

/// Selects rows of the log with transaction numbers that are not reached yet: another cluster has written them.
const UNREACHED: &str = "xid >= pg_snapshot_xmax(pg_current_snapshot())";

/// The most of these rows that are deleted in one transaction.
const UNREACHED_ROWS_MAX: u64 = 100_000;

/// Deletes some of the rows that another cluster has written, before a new epoch begins. A dump may have brought more
/// of them than one statement can delete within its timeout. Returns whether there may be more.
pub(super) async fn delete_unreached(connection: &mut PgConnection) -> Result<bool, SourceError> {
    let delete = format!(
        "delete from larder.change where ctid = any (array( \
         select ctid from larder.change where {UNREACHED} limit {UNREACHED_ROWS_MAX}))"
    );
    let deleted = sqlx::query(AssertSqlSafe(delete))
        .execute(connection)
        .await?;
    Ok(deleted.rows_affected() == UNREACHED_ROWS_MAX)
}

/// The tables of `larder dispatch`.
pub(super) const DISPATCH_TABLES: [&str; 3] = ["delivery", "dead_letter", "dispatch"];

/// Whether the tables of `larder dispatch` exist.
pub(super) async fn has_dispatch_tables(
    connection: &mut PgConnection,
) -> Result<bool, SourceError> {
    // That needs no privilege on the schema.
    let sql = "select count(*) = cardinality($1) from pg_class \
               where relnamespace = to_regnamespace('larder') and relname = any ($1::text[])";
    let there = sqlx::query_scalar(sql).bind(&DISPATCH_TABLES[..]);
    Ok(there.fetch_one(connection).await?)
}

/// Begins an epoch of the log. Positions of an earlier epoch are not valid, so every larder invalidates all entries.
/// Rows that the new horizon sees will be pruned; rows that it does not see are deleted now.
///
/// `pg_prepared_xacts` does not depend on the snapshot, and has the lower 32 bits of transaction numbers. A transaction
/// that ended before it is read is visible to all loads of the new epoch. A transaction that is not below `newest`
/// began after any crash, and has lost no rows.
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
