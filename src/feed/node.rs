//! Housekeeping beside the passes: this node's row in `larder.node`, and removal of what no node needs any more.

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
use crate::feed::schema::record_served;
use crate::feed::{FeedSetup, Pruned, RegisteredNode};
use crate::source::SourceError;

/// The most rows that are deleted in one transaction. It takes some milliseconds on a busy machine, and passes wait
/// meanwhile.
const PRUNED_ROWS_MAX: i64 = 1_000;
/// Time between two heartbeats, while there are changes and while there are none.
const HEARTBEAT_BUSY: Duration = Duration::from_secs(1);
const HEARTBEAT_IDLE: Duration = Duration::from_secs(30);
/// Pauses between two prunings, the short one while there are more rows to delete.
const PRUNE_PAUSE: Duration = Duration::from_secs(10);
const PRUNE_PAUSE_BUSY: Duration = Duration::from_millis(40);

/// Pause between two measurements of the log.
const BACKLOG_PAUSE: Duration = Duration::from_secs(10);

/// How long a write with an `Idempotency-Key` may be repeated.
const ANSWERS_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// Pause between two searches for logging functions that no larder needs any more.
const LOGGERS_PAUSE: Duration = Duration::from_secs(60);
/// The same after something was removed: there may be more, since triggers are removed table by table.
const LOGGERS_PAUSE_BUSY: Duration = Duration::from_millis(100);

/// What this node needs in the database, so that no other node may remove it.
#[derive(Clone)]
pub(super) struct Needs {
    /// The names of the logging functions.
    pub(super) loggers: Vec<String>,
    /// Hashes of the definitions that it serves.
    pub(super) served: Vec<String>,
}

/// What has to be done beside the passes, and when it is due.
pub(super) struct Housekeeping {
    node: Uuid,
    retention: Duration,
    /// `None` if there is no disk tier.
    persisted: Option<watch::Receiver<Persisted>>,
    needs: Needs,
    /// Functions and triggers may be installed, and so they may be removed.
    may_install: bool,
    /// Answers to writes are kept.
    has_answers: bool,
    /// Other nodes follow this database, as of the last heartbeat.
    has_other_nodes: bool,
    /// There were changes since the last heartbeat.
    has_changes: bool,
    /// A failure was logged.
    is_failure_logged: bool,
    last_heartbeat_at: Option<Instant>,
    next_prune_at: Instant,
    next_backlog_at: Instant,
    /// The last measurement, until `take_backlog` is called.
    backlog: Option<Backlog>,
    next_loggers_at: Instant,
    next_answers_at: Instant,
    /// This node has recorded what it needs.
    is_need_recorded: bool,
}

impl Housekeeping {
    pub(super) fn new(setup: &FeedSetup, needs: Needs) -> Self {
        Self {
            node: setup.node,
            retention: setup.config.retention,
            persisted: setup.persisted.clone(),
            needs,
            may_install: setup.install,
            has_answers: setup.config.answers,
            has_other_nodes: true,
            has_changes: false,
            is_failure_logged: false,
            last_heartbeat_at: None,
            next_prune_at: Instant::now() + PRUNE_PAUSE,
            next_backlog_at: Instant::now(),
            backlog: None,
            next_loggers_at: Instant::now(),
            next_answers_at: Instant::now(),
            is_need_recorded: false,
        }
    }

    /// Whether other nodes may wait for a notification.
    pub(super) fn has_other_nodes(&self) -> bool {
        self.has_other_nodes
    }

    /// Records that there were changes, so that the next heartbeat with the position comes soon.
    pub(super) fn note_changes(&mut self) {
        self.has_changes = true;
    }

    /// The last measurement of the log, if it was not taken yet.
    pub(super) fn take_backlog(&mut self) -> Option<Backlog> {
        self.backlog.take()
    }

    /// Does what is due. `position` is that of the last pass.
    ///
    /// # Errors
    /// Only if the connection was lost. Other errors, such as a missing privilege, are logged: passes do not depend on
    /// them.
    pub(super) async fn run_due(
        &mut self,
        connection: &mut PgConnection,
        position: &Position,
        history: &mut History,
    ) -> Result<(), SourceError> {
        match self.try_run_due(connection, position, history).await {
            Err(error @ SourceError::Unavailable(_)) => return Err(error),
            Err(error) if !std::mem::replace(&mut self.is_failure_logged, true) => {
                tracing::warn!(
                    "could not write this node's row in larder.node, prune larder.change or remove unneeded triggers: {error}"
                );
            }
            Err(error) => tracing::debug!("housekeeping failed again: {error}"),
            Ok(()) => {}
        }
        Ok(())
    }

    async fn try_run_due(
        &mut self,
        connection: &mut PgConnection,
        position: &Position,
        history: &mut History,
    ) -> Result<(), SourceError> {
        let now = Instant::now();
        let idle = HEARTBEAT_IDLE.min(self.retention / 3);
        let pause = if self.has_changes {
            HEARTBEAT_BUSY.min(idle)
        } else {
            idle
        };
        if self.last_heartbeat_at.is_none() {
            tell_version(connection, self.node).await?;
        }
        if self.last_heartbeat_at.is_none_or(|at| now >= at + pause) {
            self.last_heartbeat_at = Some(now);
            self.has_changes = false;
            let persisted = self
                .persisted
                .as_ref()
                .map(|persisted| persisted.borrow().clone());
            let (position, advance) = match &persisted {
                None | Some(Persisted::Nothing) => (position, true),
                Some(Persisted::At(persisted)) => (persisted, true),
                // The disk tier is being opened. It may have to resume from the position that the row has.
                Some(Persisted::Unknown) => (position, false),
            };
            let mark = history.draw_mark();
            self.heartbeat(connection, position, advance, mark).await?;
            history.acknowledge_mark();
        }
        if now >= self.next_prune_at {
            self.next_prune_at = now + PRUNE_PAUSE;
            if prune(connection, None).await? == PRUNED_ROWS_MAX {
                self.next_prune_at = now + PRUNE_PAUSE_BUSY;
            }
        }
        if now >= self.next_backlog_at {
            self.next_backlog_at = now + BACKLOG_PAUSE;
            self.backlog = Some(backlog::read(connection, self.node).await?);
        }
        if now >= self.next_loggers_at {
            self.next_loggers_at = now + LOGGERS_PAUSE.min(self.retention / 3);
            record_served(connection, &self.needs.served).await?;
            record_need(connection, &self.needs.loggers, self.retention).await?;
            // Not at the first time: if several larders are started again after a long time, each has until then to
            // record what it needs.
            let may_remove =
                std::mem::replace(&mut self.is_need_recorded, true) && self.may_install;
            if may_remove && remove_unneeded(connection).await? {
                self.next_loggers_at = now + LOGGERS_PAUSE_BUSY;
            }
        }
        if self.has_answers && now >= self.next_answers_at {
            let more = prune_answers(connection).await?;
            self.next_answers_at = now + if more { PRUNE_PAUSE_BUSY } else { PRUNE_PAUSE };
        }
        Ok(())
    }

    /// Writes this node's row: the time, the mark and, if `advance` is true, the position that it would resume from.
    async fn heartbeat(
        &mut self,
        connection: &mut PgConnection,
        position: &Position,
        advance: bool,
        mark: Uuid,
    ) -> Result<(), SourceError> {
        self.has_other_nodes = sqlx::query_scalar(
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

/// Tells other nodes the version of this one, by the connection's name: a column of `larder.node` would be one that earlier
/// versions do not know.
async fn tell_version(connection: &mut PgConnection, node: Uuid) -> Result<(), SourceError> {
    let name = format!("larder {} {node}", env!("CARGO_PKG_VERSION"));
    sqlx::query("select set_config('application_name', $1, false)")
        .bind(name)
        .execute(connection)
        .await?;
    Ok(())
}

/// Prunes a batch of rows that no node needs. Only nodes count that were seen within `retention`; if it is `None`,
/// within their own. Returns the number of rows deleted.
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

/// Prunes batch after batch, until as many rows are deleted as there were at the beginning, or the rest is needed.
pub(super) async fn prune_all(
    connection: &mut PgConnection,
    retention: Duration,
) -> Result<Pruned, SourceError> {
    let count = "select count(*) from larder.change";
    let before: i64 = sqlx::query_scalar(count)
        .fetch_one(&mut *connection)
        .await?;
    let mut deleted = 0;
    while deleted < before {
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
    let mut nodes = Vec::with_capacity(rows.len());
    for row in rows {
        let name: String = row.try_get("name")?;
        let unexpected = || SourceError::Unexpected(format!("{name} is not a UUID"));
        nodes.push(RegisteredNode {
            name: Uuid::try_parse(&name).map_err(|_| unexpected())?,
            seen_ago: Duration::try_from_secs_f64(row.try_get("seen_ago")?).unwrap_or_default(),
            needs_from: row.try_get("needs_from")?,
        });
    }
    Ok(Pruned {
        deleted: u64::try_from(deleted).unwrap_or(0),
        left: u64::try_from(left).unwrap_or(0),
        nodes,
    })
}

/// Deletes the row of the node `name`. Returns whether there was one.
pub(super) async fn forget(connection: &mut PgConnection, name: Uuid) -> Result<bool, SourceError> {
    let deleted = sqlx::query("delete from larder.node where name = $1::text::uuid")
        .bind(name.to_string())
        .execute(connection)
        .await?;
    Ok(deleted.rows_affected() > 0)
}

/// Deletes a batch of kept answers that are too old. Returns whether there may be more.
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
