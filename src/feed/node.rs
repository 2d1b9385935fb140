//! This larder's entry among those that follow the database, and pruning of what none of them needs any more.

use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};
use uuid::Uuid;

use crate::feed::position::Position;
use crate::source::SourceError;

/// Rows deleted in one transaction: a few milliseconds, so that a pass is never kept waiting for long.
const PRUNED_ROWS_MAX: i64 = 5_000;

/// Says how far this node has followed, as far as it would come back to.
pub(super) async fn heartbeat(
    connection: &mut PgConnection,
    node: Uuid,
    position: &Position,
) -> Result<(), SourceError> {
    sqlx::query(
        "insert into larder.node (name, position, seen_at) values ($1::text::uuid, $2::text::pg_snapshot, now()) \
         on conflict (name) do update set position = excluded.position, seen_at = excluded.seen_at",
    )
    .bind(node.to_string())
    .bind(position.as_str())
    .execute(connection)
    .await?;
    Ok(())
}

/// Moves the horizon up to the oldest position of the nodes seen within `retention` and deletes a batch below it.
/// Returns whether there may be more to delete.
pub(super) async fn prune(
    connection: &mut PgConnection,
    retention: Duration,
) -> Result<bool, SourceError> {
    let mut transaction = connection.begin().await?;
    // Concurrent pruning by another node only makes one of the two wait for the horizon's row.
    sqlx::query("delete from larder.node where seen_at < now() - make_interval(secs => $1)")
        .bind(retention.as_secs_f64())
        .execute(&mut *transaction)
        .await?;
    sqlx::query(
        "update larder.horizon set xid = oldest.xid \
         from (select pg_snapshot_xmin(position) as xid from larder.node order by 1 limit 1) oldest \
         where oldest.xid > horizon.xid",
    )
    .execute(&mut *transaction)
    .await?;
    let row = sqlx::query(
        "with old as (select ctid from larder.change where xid < (select xid from larder.horizon) limit $1), \
         gone as (delete from larder.change where ctid = any(array(select ctid from old)) returning 1) \
         select count(*) from gone",
    )
    .bind(PRUNED_ROWS_MAX)
    .fetch_one(&mut *transaction)
    .await?;
    let deleted: i64 = row.try_get(0)?;
    transaction.commit().await?;
    Ok(deleted == PRUNED_ROWS_MAX)
}
