//! This larder's entry among those that follow the database, and pruning of what none of them needs any more.

use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::feed::position::{Persisted, Position};
use crate::source::SourceError;

/// Rows deleted in one transaction: a few milliseconds, so that a pass is never kept waiting for long.
const PRUNED_ROWS_MAX: i64 = 5_000;
/// Heartbeats, while changes come in and while none do.
const HEARTBEAT_BUSY: Duration = Duration::from_secs(1);
const HEARTBEAT_IDLE: Duration = Duration::from_secs(30);
/// Pauses between two prunings, the short one while there is more to delete.
const PRUNE_PAUSE: Duration = Duration::from_secs(10);
const PRUNE_PAUSE_BUSY: Duration = Duration::from_millis(200);

/// What has to be done beside the passes, and when.
pub(super) struct Housekeeping {
    node: Uuid,
    retention: Duration,
    /// None where there is no disk tier.
    persisted: Option<watch::Receiver<Persisted>>,
    changed: bool,
    /// A failure was logged.
    failed: bool,
    beat_at: Option<Instant>,
    prune_at: Instant,
}

impl Housekeeping {
    pub(super) fn new(
        node: Uuid,
        retention: Duration,
        persisted: Option<watch::Receiver<Persisted>>,
    ) -> Self {
        Self {
            node,
            retention,
            persisted,
            changed: false,
            failed: false,
            beat_at: None,
            prune_at: Instant::now() + PRUNE_PAUSE,
        }
    }

    /// Something was found: the position is worth writing down soon.
    pub(super) fn note_changes(&mut self) {
        self.changed = true;
    }

    /// Heartbeat and pruning, when they are due. `position` is that of the last pass.
    ///
    /// # Errors
    /// Only if the connection was lost: passes do not depend on what else may fail here, such as a missing privilege.
    pub(super) async fn keep(
        &mut self,
        connection: &mut PgConnection,
        position: &Position,
    ) -> Result<(), SourceError> {
        match self.keep_due(connection, position).await {
            Err(error @ SourceError::Unavailable(_)) => return Err(error),
            Err(error) if !std::mem::replace(&mut self.failed, true) => {
                tracing::warn!(
                    "this node's position or the log's pruning can't be written: {error}"
                );
            }
            Err(error) => tracing::debug!("housekeeping failed again: {error}"),
            Ok(()) => {}
        }
        Ok(())
    }

    async fn keep_due(
        &mut self,
        connection: &mut PgConnection,
        position: &Position,
    ) -> Result<(), SourceError> {
        let now = Instant::now();
        let idle = HEARTBEAT_IDLE.min(self.retention / 3);
        let pause = if self.changed {
            HEARTBEAT_BUSY.min(idle)
        } else {
            idle
        };
        if self.beat_at.is_none_or(|at| now >= at + pause) {
            self.beat_at = Some(now);
            self.changed = false;
            let persisted = self
                .persisted
                .as_ref()
                .map(|persisted| persisted.borrow().clone());
            match persisted {
                None | Some(Persisted::Nothing) => {
                    self.heartbeat(connection, position, true).await?
                }
                Some(Persisted::At(persisted)) => {
                    self.heartbeat(connection, &persisted, true).await?
                }
                // What is being opened may go back to what was written down before.
                Some(Persisted::Unknown) => self.heartbeat(connection, position, false).await?,
            }
        }
        if now >= self.prune_at {
            self.prune_at = now + PRUNE_PAUSE;
            let more = self.prune(connection).await?;
            if more {
                self.prune_at = now + PRUNE_PAUSE_BUSY;
            }
        }
        Ok(())
    }

    /// Says that this node lives and, if it may `advance`, how far it would come back to.
    async fn heartbeat(
        &self,
        connection: &mut PgConnection,
        position: &Position,
        advance: bool,
    ) -> Result<(), SourceError> {
        sqlx::query(
            "insert into larder.node as n (name, position, seen_at) \
             values ($1::text::uuid, $2::text::pg_snapshot, now()) \
             on conflict (name) do update set seen_at = excluded.seen_at, \
             position = case when $3 then excluded.position else n.position end",
        )
        .bind(self.node.to_string())
        .bind(position.as_str())
        .bind(advance)
        .execute(connection)
        .await?;
        Ok(())
    }

    /// Moves the horizon up to the oldest position of the nodes seen within `retention` and deletes a batch below it.
    /// Returns whether there may be more to delete.
    async fn prune(&self, connection: &mut PgConnection) -> Result<bool, SourceError> {
        let mut transaction = connection.begin().await?;
        sqlx::query("delete from larder.node where seen_at < now() - make_interval(secs => $1)")
            .bind(self.retention.as_secs_f64())
            .execute(&mut *transaction)
            .await?;
        // Where another node prunes at the same time, one of the two waits for the horizon's row.
        sqlx::query(
            "update larder.horizon set xid = oldest.xid \
             from (select pg_snapshot_xmin(position) as xid from larder.node order by 1 limit 1) oldest \
             where oldest.xid > horizon.xid",
        )
        .execute(&mut *transaction)
        .await?;
        let row = sqlx::query(
            "with old as (select ctid from larder.change \
               where xid < (select xid from larder.horizon) limit $1), \
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
}
