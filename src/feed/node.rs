//! This larder's entry among those that follow the database, and pruning of what none of them needs any more.

use std::time::Duration;

use sqlx::postgres::PgConnection;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::feed::position::{Persisted, Position};
use crate::feed::triggers::remove_unneeded;
use crate::source::SourceError;

/// Rows deleted in one transaction: some milliseconds on a busy machine, so that a pass is never kept waiting for long.
const PRUNED_ROWS_MAX: i64 = 1_000;
/// Heartbeats, while changes come in and while none do.
const HEARTBEAT_BUSY: Duration = Duration::from_secs(1);
const HEARTBEAT_IDLE: Duration = Duration::from_secs(30);
/// Pauses between two prunings, the short one while there is more to delete.
const PRUNE_PAUSE: Duration = Duration::from_secs(10);
const PRUNE_PAUSE_BUSY: Duration = Duration::from_millis(40);

/// How long a write with an `Idempotency-Key` may be repeated.
const ANSWERS_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// Pause between two looks for logging functions that no larder needs any more.
const LOGGERS_PAUSE: Duration = Duration::from_secs(60);

/// What has to be done beside the passes, and when.
pub(super) struct Housekeeping {
    node: Uuid,
    retention: Duration,
    /// None where there is no disk tier.
    persisted: Option<watch::Receiver<Persisted>>,
    /// The logging functions that this node needs.
    loggers: Vec<String>,
    /// Functions and triggers may be removed, as they may be installed.
    installs: bool,
    /// Other larders follow this database, as of the last heartbeat.
    neighbours: bool,
    changed: bool,
    /// A failure was logged.
    failed: bool,
    beat_at: Option<Instant>,
    prune_at: Instant,
    loggers_at: Instant,
    answers_at: Instant,
    /// This node has said what it needs.
    needs_told: bool,
}

impl Housekeeping {
    pub(super) fn new(
        node: Uuid,
        retention: Duration,
        persisted: Option<watch::Receiver<Persisted>>,
        loggers: Vec<String>,
        installs: bool,
    ) -> Self {
        Self {
            node,
            retention,
            persisted,
            loggers,
            installs,
            neighbours: true,
            changed: false,
            failed: false,
            beat_at: None,
            prune_at: Instant::now() + PRUNE_PAUSE,
            loggers_at: Instant::now(),
            answers_at: Instant::now(),
            needs_told: false,
        }
    }

    /// Whether other larders may wait for the bell.
    pub(super) fn has_neighbours(&self) -> bool {
        self.neighbours
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
                    "writing this node's position, pruning the log or removing old triggers failed: {error}"
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
        if now >= self.loggers_at {
            self.loggers_at = now + LOGGERS_PAUSE.min(self.retention / 3);
            // Where several larders come back after a long time, each has until then to say what it needs.
            let remove = std::mem::replace(&mut self.needs_told, true) && self.installs;
            remove_unneeded(connection, &self.loggers, self.retention, remove).await?;
        }
        if now >= self.answers_at {
            let more = prune_answers(connection).await?;
            self.answers_at = now + if more { PRUNE_PAUSE_BUSY } else { PRUNE_PAUSE };
        }
        Ok(())
    }

    /// Says that this node lives and, if it may `advance`, how far it would come back to.
    async fn heartbeat(
        &mut self,
        connection: &mut PgConnection,
        position: &Position,
        advance: bool,
    ) -> Result<(), SourceError> {
        self.neighbours = sqlx::query_scalar(
            "insert into larder.node as n (name, position, seen_at) \
             values ($1::text::uuid, $2::text::pg_snapshot, now()) \
             on conflict (name) do update set seen_at = excluded.seen_at, \
             position = case when $3 then excluded.position else n.position end \
             returning exists (select from larder.node o where o.name <> n.name)",
        )
        .bind(self.node.to_string())
        .bind(position.as_str())
        .bind(advance)
        .fetch_one(connection)
        .await?;
        Ok(())
    }

    /// Prunes a batch. Returns whether there may be more to delete.
    async fn prune(&self, connection: &mut PgConnection) -> Result<bool, SourceError> {
        let deleted: i64 = sqlx::query_scalar("select larder.prune(make_interval(secs => $1), $2)")
            .bind(self.retention.as_secs_f64())
            .bind(PRUNED_ROWS_MAX)
            .fetch_one(connection)
            .await?;
        Ok(deleted == PRUNED_ROWS_MAX)
    }
}

/// Deletes a batch of answers that are too old to be repeated. Returns whether there may be more.
async fn prune_answers(connection: &mut PgConnection) -> Result<bool, SourceError> {
    let deleted = sqlx::query(
        "delete from larder.answer where ctid = any (array( \
         select ctid from larder.answer where answered_at < now() - make_interval(secs => $1) limit $2))",
    )
    .bind(ANSWERS_KEPT.as_secs_f64())
    .bind(PRUNED_ROWS_MAX)
    .execute(connection)
    .await?;
    Ok(i64::try_from(deleted.rows_affected()) == Ok(PRUNED_ROWS_MAX))
}
