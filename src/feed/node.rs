//! This larder's entry among those that follow the database, and pruning of what none of them needs any more.

use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgConnection;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::feed::backlog::{self, Backlog};
use crate::feed::history::History;
use crate::feed::logger_retention::{record_need, remove_unneeded};
use crate::feed::position::{Persisted, Position};
use crate::feed::schema::note_served;
use crate::feed::{FeedConfig, Follower, Pruned};
use crate::source::SourceError;

/// Rows deleted in one transaction: some milliseconds on a busy machine, so that a pass is never kept waiting for long.
const PRUNED_ROWS_MAX: i64 = 1_000;
/// Heartbeats, while changes come in and while none do.
const HEARTBEAT_BUSY: Duration = Duration::from_secs(1);
const HEARTBEAT_IDLE: Duration = Duration::from_secs(30);
/// Pauses between two prunings, the short one while there is more to delete.
const PRUNE_PAUSE: Duration = Duration::from_secs(10);
const PRUNE_PAUSE_BUSY: Duration = Duration::from_millis(40);

/// Pause between two looks at how long the log is.
const BACKLOG_PAUSE: Duration = Duration::from_secs(10);

/// How long a write with an `Idempotency-Key` may be repeated.
const ANSWERS_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// Pause between two looks for logging functions that no larder needs any more.
const LOGGERS_PAUSE: Duration = Duration::from_secs(60);
/// The same after one has lost triggers, table by table.
const LOGGERS_PAUSE_BUSY: Duration = Duration::from_millis(100);

/// What this node needs of the database, and no other may remove.
#[derive(Clone)]
pub(super) struct Needs {
    /// The names of the logging functions.
    pub(super) loggers: Vec<String>,
    /// Hashes of the definitions that it serves.
    pub(super) served: Vec<String>,
}

/// What has to be done beside the passes, and when.
pub(super) struct Housekeeping {
    node: Uuid,
    retention: Duration,
    /// None where there is no disk tier.
    persisted: Option<watch::Receiver<Persisted>>,
    needs: Needs,
    /// Functions and triggers may be removed, as they may be installed.
    installs: bool,
    /// Answers to writes are kept.
    answers: bool,
    /// Other larders follow this database, as of the last heartbeat.
    neighbours: bool,
    changed: bool,
    /// A failure was logged.
    failed: bool,
    beat_at: Option<Instant>,
    prune_at: Instant,
    backlog_at: Instant,
    /// What was found since the last call of `take_backlog`.
    backlog: Option<Backlog>,
    loggers_at: Instant,
    answers_at: Instant,
    /// This node has said what it needs.
    needs_told: bool,
}

impl Housekeeping {
    pub(super) fn new(
        node: Uuid,
        config: &FeedConfig,
        persisted: Option<watch::Receiver<Persisted>>,
        needs: Needs,
        installs: bool,
    ) -> Self {
        Self {
            node,
            retention: config.retention,
            persisted,
            needs,
            installs,
            answers: config.answers,
            neighbours: true,
            changed: false,
            failed: false,
            beat_at: None,
            prune_at: Instant::now() + PRUNE_PAUSE,
            backlog_at: Instant::now(),
            backlog: None,
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

    /// How long the log is, after each look.
    pub(super) fn take_backlog(&mut self) -> Option<Backlog> {
        self.backlog.take()
    }

    /// Heartbeat and pruning, when they are due. `position` is that of the last pass.
    ///
    /// # Errors
    /// Only if the connection was lost: passes do not depend on what else may fail here, such as a missing privilege.
    pub(super) async fn keep(
        &mut self,
        connection: &mut PgConnection,
        position: &Position,
        history: &mut History,
    ) -> Result<(), SourceError> {
        match self.keep_due(connection, position, history).await {
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
        history: &mut History,
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
            let (position, advance) = match &persisted {
                None | Some(Persisted::Nothing) => (position, true),
                Some(Persisted::At(persisted)) => (persisted, true),
                // What is being opened may go back to what was written down before.
                Some(Persisted::Unknown) => (position, false),
            };
            let mark = history.draw();
            self.heartbeat(connection, position, advance, mark).await?;
            history.acknowledge();
        }
        if now >= self.prune_at {
            self.prune_at = now + PRUNE_PAUSE;
            if prune(connection, None).await? == PRUNED_ROWS_MAX {
                self.prune_at = now + PRUNE_PAUSE_BUSY;
            }
        }
        if now >= self.backlog_at {
            self.backlog_at = now + BACKLOG_PAUSE;
            self.backlog = Some(backlog::read(connection).await?);
        }
        if now >= self.loggers_at {
            self.loggers_at = now + LOGGERS_PAUSE.min(self.retention / 3);
            note_served(connection, &self.needs.served).await?;
            record_need(connection, &self.needs.loggers, self.retention).await?;
            // Not at the first time: if several larders are started again after a long time, each has until then to record
            // what it needs.
            let may_remove = std::mem::replace(&mut self.needs_told, true) && self.installs;
            if may_remove && remove_unneeded(connection).await? {
                self.loggers_at = now + LOGGERS_PAUSE_BUSY;
            }
        }
        if self.answers && now >= self.answers_at {
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
        mark: Uuid,
    ) -> Result<(), SourceError> {
        self.neighbours = sqlx::query_scalar(
            "insert into larder.node as n (name, position, seen_at, mark, kept_until) \
             values ($1::text::uuid, $2::text::pg_snapshot, now(), $4::text::uuid, now() + make_interval(secs => $5)) \
             on conflict (name) do update set seen_at = excluded.seen_at, mark = excluded.mark, \
             kept_until = excluded.kept_until, \
             position = case when $3 then excluded.position else n.position end \
             returning exists (select from larder.node o where o.name <> n.name)",
        )
        .bind(self.node.to_string())
        .bind(position.as_str())
        .bind(advance)
        .bind(mark.to_string())
        .bind(self.retention.as_secs_f64())
        .fetch_one(connection)
        .await?;
        Ok(())
    }
}

/// Prunes a batch: what no larder needs that was seen within `retention`, or within its own. Returns the number of rows
/// deleted.
async fn prune(
    connection: &mut PgConnection,
    retention: Option<Duration>,
) -> Result<i64, SourceError> {
    let deleted = sqlx::query_scalar("select larder.prune(make_interval(secs => $1), $2)")
        .bind(retention.map(|retention| retention.as_secs_f64()))
        .bind(PRUNED_ROWS_MAX)
        .fetch_one(connection)
        .await?;
    Ok(deleted)
}

/// Prunes batch after batch until all that is there at the beginning is deleted, or still needed.
pub(super) async fn prune_all(
    connection: &mut PgConnection,
    retention: Duration,
) -> Result<Pruned, SourceError> {
    let count = "select count(*) from larder.change";
    let there: i64 = sqlx::query_scalar(count)
        .fetch_one(&mut *connection)
        .await?;
    let mut deleted = 0;
    while deleted < there {
        let batch = prune(connection, Some(retention)).await?;
        deleted += batch;
        if batch < PRUNED_ROWS_MAX {
            break;
        }
    }
    let left: i64 = sqlx::query_scalar(count)
        .fetch_one(&mut *connection)
        .await?;
    let rows = sqlx::query(
        "select name::text, greatest(extract(epoch from now() - seen_at), 0)::float8 as seen_ago, \
         pg_snapshot_xmin(position)::text as needs_from from larder.node order by seen_at",
    )
    .fetch_all(connection)
    .await?;
    let mut followers = Vec::with_capacity(rows.len());
    for row in rows {
        let name: String = row.try_get("name")?;
        let unexpected = || SourceError::Unexpected(format!("{name} is no node's name"));
        followers.push(Follower {
            name: Uuid::try_parse(&name).map_err(|_| unexpected())?,
            seen_ago: Duration::try_from_secs_f64(row.try_get("seen_ago")?).unwrap_or_default(),
            needs_from: row.try_get("needs_from")?,
        });
    }
    Ok(Pruned {
        deleted: u64::try_from(deleted).unwrap_or(0),
        left: u64::try_from(left).unwrap_or(0),
        followers,
    })
}

/// Forgets the larder called `name`. Returns whether it was there.
pub(super) async fn forget(connection: &mut PgConnection, name: Uuid) -> Result<bool, SourceError> {
    let deleted = sqlx::query("delete from larder.node where name = $1::text::uuid")
        .bind(name.to_string())
        .execute(connection)
        .await?;
    Ok(deleted.rows_affected() > 0)
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
