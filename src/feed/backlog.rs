//! The length of the change log, and what keeps it from being shorter.

use serde::Serialize;
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use crate::check::upkeep::{CHANGE_LOG_ROWS_MAX, ChangeLogFacts};
use crate::source::SourceError;

/// The length of the log at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Backlog {
    /// Bytes of the table, including the space of deleted rows.
    pub bytes: i64,
    /// PostgreSQL's estimate; none before the first vacuum or analyze of the table.
    pub rows_estimated: Option<i64>,
    /// The node whose position is the oldest. The rows of transactions that it does not see are kept for it.
    pub oldest_node: Option<OldestNode>,
    /// The oldest transaction that is open in this database. It may still log rows, and PostgreSQL can't reuse the
    /// space of rows that were deleted since it began.
    pub oldest_transaction: Option<OldestTransaction>,
    /// Other larders that may read the log again, last seen first.
    pub other_nodes: Vec<OtherNode>,
}

/// Another larder that follows this database.
#[derive(Clone, Debug, Serialize)]
pub struct OtherNode {
    /// The name in its state directory.
    pub name: String,
    /// Its version of larder; none if it has no connection now, if larder's role may not see that of its role, or if it is
    /// of a version that does not tell.
    pub version: Option<String>,
    /// Time since its last heartbeat.
    pub seen_seconds_ago: f64,
}

/// A node that may read the log again.
#[derive(Clone, Debug, Serialize)]
pub struct OldestNode {
    /// The name in its state directory.
    pub name: String,
    /// Time since its last heartbeat.
    pub seen_seconds_ago: f64,
    /// It has applied all transactions that this snapshot sees.
    pub position: String,
}

/// An open transaction.
#[derive(Clone, Debug, Serialize)]
pub struct OldestTransaction {
    /// The server process; none if the transaction is prepared.
    pub pid: Option<i32>,
    /// The identifier that it was prepared with.
    pub prepared: Option<String>,
    /// Time since it began, or was prepared.
    pub age_seconds: f64,
}

/// Transactions of other roles are left out if larder's role lacks the rights of `pg_read_all_stats`, since PostgreSQL
/// does not show their age. Autovacuum is left out, since it does not keep vacuum from removing rows.
const BACKLOG_SQL: &str = "\
    select c.bytes, case when c.bytes = 0 then 0 else \
        (c.reltuples / c.relpages * c.bytes / current_setting('block_size')::int8)::int8 end as rows_estimated, \
      n.*, t.* \
    from (select pg_relation_size(oid) as bytes, nullif(reltuples, -1) as reltuples, nullif(relpages, 0) as relpages \
      from pg_class where oid = to_regclass('larder.change')) c \
    left join lateral (select name::text, position::text, extract(epoch from now() - seen_at)::float8 as seen_ago \
      from larder.node order by pg_snapshot_xmax(node.position), pg_snapshot_xmin(node.position), name limit 1) n on true \
    left join lateral (select * from ( \
        select pid, null::text as prepared, extract(epoch from clock_timestamp() - xact_start)::float8 as age \
        from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() \
          and coalesce(backend_xid, backend_xmin) is not null and backend_type is distinct from 'autovacuum worker' \
        union all select null, gid, extract(epoch from clock_timestamp() - prepared)::float8 \
        from pg_prepared_xacts where database = current_database()) o \
      where age is not null order by age desc limit 1) t on true";

/// A database has few nodes, but each that has stopped stays for its `retention`. Versions are those of `tell_version`.
const OTHER_NODES_SQL: &str = "\
    select name::text, greatest(extract(epoch from now() - seen_at), 0)::float8 as seen_ago, \
      (select split_part(a.application_name, ' ', 2) from pg_stat_activity a where a.datname = current_database() \
        and a.application_name like 'larder % ' || n.name limit 1) as version \
    from larder.node n where name <> $1::text::uuid order by seen_at desc, name limit 20";

/// A larder that was not seen for an hour has no row in the log any more that `larder.prune()` would keep for it.
const CHANGE_LOG_SQL: &str = "\
    select (select count(*) from (select from larder.change limit $1) c) as rows, \
      exists (select from larder.node where seen_at > now() - interval '1 hour') as has_live_node";

/// Whether the log exists, and whether larder's role may read it.
const CHANGE_LOG_READABLE_SQL: &str = "\
    select bool_and(has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select')) \
    from pg_class c join pg_namespace n on n.oid = c.relnamespace \
    where n.nspname = 'larder' and c.relname in ('change', 'node') and c.relkind = 'r' having count(*) = 2";

/// What is known of the log; `None` if there is none, or larder's role may not read it.
///
/// # Errors
/// Those of the statements.
pub async fn read_change_log(
    connection: &mut PgConnection,
) -> Result<Option<ChangeLogFacts>, SourceError> {
    let is_readable: Option<bool> = sqlx::query_scalar(CHANGE_LOG_READABLE_SQL)
        .persistent(false)
        .fetch_optional(&mut *connection)
        .await?;
    if is_readable != Some(true) {
        return Ok(None);
    }
    let row = sqlx::query(CHANGE_LOG_SQL)
        .persistent(false)
        .bind(CHANGE_LOG_ROWS_MAX)
        .fetch_one(connection)
        .await?;
    Ok(Some(ChangeLogFacts {
        rows: row.try_get("rows")?,
        has_live_node: row.try_get("has_live_node")?,
    }))
}

/// Measures the log, for the node `own`.
pub(super) async fn read(connection: &mut PgConnection, own: Uuid) -> Result<Backlog, SourceError> {
    let row = sqlx::query(BACKLOG_SQL).fetch_one(&mut *connection).await?;
    let name: Option<String> = row.try_get("name")?;
    let oldest_node = match name {
        Some(name) => Some(OldestNode {
            name,
            seen_seconds_ago: row.try_get("seen_ago")?,
            position: row.try_get("position")?,
        }),
        None => None,
    };
    let age: Option<f64> = row.try_get("age")?;
    let oldest_transaction = match age {
        Some(age_seconds) => Some(OldestTransaction {
            pid: row.try_get("pid")?,
            prepared: row.try_get("prepared")?,
            age_seconds,
        }),
        None => None,
    };
    Ok(Backlog {
        bytes: row.try_get("bytes")?,
        rows_estimated: row.try_get("rows_estimated")?,
        oldest_node,
        oldest_transaction,
        other_nodes: other_nodes(connection, own).await?,
    })
}

async fn other_nodes(
    connection: &mut PgConnection,
    own: Uuid,
) -> Result<Vec<OtherNode>, SourceError> {
    let rows = sqlx::query(OTHER_NODES_SQL)
        .bind(own.to_string())
        .fetch_all(connection)
        .await?;
    let node = |row: PgRow| -> Result<OtherNode, SourceError> {
        Ok(OtherNode {
            name: row.try_get("name")?,
            version: row.try_get("version")?,
            seen_seconds_ago: row.try_get("seen_ago")?,
        })
    };
    rows.into_iter().map(node).collect()
}
