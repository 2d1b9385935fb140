//! How long the change log is, and what keeps it from being shorter.

use serde::Serialize;
use sqlx::Row;
use sqlx::postgres::PgConnection;

use crate::source::SourceError;

/// The log at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Backlog {
    /// Bytes of the table, with the room that deleted rows have left.
    pub bytes: i64,
    /// As PostgreSQL estimates them; none before the table's first vacuum or analyze.
    pub rows_estimated: Option<i64>,
    /// The larder whose position is the oldest: what committed since is kept for it.
    pub oldest_node: Option<OldestNode>,
    /// The oldest transaction that is open in this database. Its own rows are to come, and PostgreSQL can't use the room
    /// of rows again that were deleted since it began.
    pub oldest_transaction: Option<OldestTransaction>,
}

/// A larder that may come back to the log.
#[derive(Clone, Debug, Serialize)]
pub struct OldestNode {
    /// The name in its state directory.
    pub name: String,
    /// Since its last heartbeat.
    pub seen_seconds_ago: f64,
    /// All that this snapshot sees it knows.
    pub position: String,
}

/// A transaction that is open.
#[derive(Clone, Debug, Serialize)]
pub struct OldestTransaction {
    /// The server process; none where the transaction is prepared.
    pub pid: Option<i32>,
    /// The name that it was prepared under.
    pub prepared: Option<String>,
    /// Since it began, or was prepared.
    pub age_seconds: f64,
}

/// Without the rights of `pg_read_all_stats` PostgreSQL tells no age of other roles' transactions, and they are left
/// out. Vacuum waits for no vacuum.
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

/// Reads how long the log is.
pub(super) async fn read(connection: &mut PgConnection) -> Result<Backlog, SourceError> {
    let row = sqlx::query(BACKLOG_SQL).fetch_one(connection).await?;
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
    })
}
