//! The bell, from the feed's side: it keeps writers from sending notifications while changes come without pause.
//!
//! NOTIFY costs a writer more than the log does. A feed that runs one pass after the other needs no notifications. So
//! it holds the advisory lock that a trigger must get before it notifies, and notifies other larders itself after
//! passes that found something. When changes cease, it releases the lock. Transactions that commit then without a
//! notification are found by the quick passes that follow, or by the poll. Freshness does not depend on this file.

use sqlx::postgres::PgConnection;

use crate::feed::locks::{BELL_LOCK, LOCK_CLASS};
use crate::source::SourceError;

/// The channel that triggers notify.
pub(super) const CHANNEL: &str = "larder";

/// Passes in a row that have to find something before the feed takes the lock. They take 20 ms or more, so that single
/// commits of other clients still notify, even if they come regularly. Commits of this node need no notification.
const BUSY_PASSES: u32 = 4;
/// Passes in a row that have to find nothing before the feed releases the lock.
const QUIET_PASSES: u32 = 4;

/// Takes the lock if it is free. PostgreSQL ends the session, and so releases the lock, if this process or its machine
/// stops for 5 s: a feed that holds the lock runs some sixty passes a second or more.
const LOCK_SQL: &str = "select case when pg_try_advisory_lock($1, $2) \
    then set_config('idle_session_timeout', '5s', false) is not null else false end";
/// Releases the lock. Returns false, whether or not it was held.
const UNLOCK_SQL: &str = "select case when pg_advisory_unlock($1, $2) is not null \
    then set_config('idle_session_timeout', '0', false) is null end";
/// Notifies, unless the queue of notifications is half full: NOTIFY fails if it is full.
const NOTIFY_SQL: &str = "select pg_notify($1, '') where pg_notification_queue_usage() < 0.5";

/// The state of the bell on one connection of the feed. The lock ends with the connection.
#[derive(Debug, Default)]
pub(super) struct Bell {
    is_held: bool,
    /// How many of the last passes in a row all found something, or all found nothing.
    equal_passes: u32,
    /// The last pass found something.
    last_found: bool,
}

impl Bell {
    /// Whether this connection holds the lock, so that no other one can notify.
    pub(super) fn is_held(&self) -> bool {
        self.is_held
    }

    /// Takes or releases the lock, or notifies, after a pass. `found` says whether the pass found something.
    ///
    /// # Errors
    /// Only if the connection was lost. Passes do not depend on statements that PostgreSQL refuses here.
    pub(super) async fn update(
        &mut self,
        connection: &mut PgConnection,
        found: bool,
        others_listen: bool,
    ) -> Result<(), SourceError> {
        match self.try_update(connection, found, others_listen).await {
            Err(error @ SourceError::Unavailable(_)) => Err(error),
            Err(error) => {
                tracing::debug!("could not lock, unlock or notify: {error}");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    async fn try_update(
        &mut self,
        connection: &mut PgConnection,
        found: bool,
        others_listen: bool,
    ) -> Result<(), SourceError> {
        self.equal_passes = if found == self.last_found {
            self.equal_passes.saturating_add(1)
        } else {
            1
        };
        self.last_found = found;
        let statement = match (self.is_held, found) {
            (false, true) if self.equal_passes >= BUSY_PASSES => LOCK_SQL,
            (true, true) if others_listen => {
                sqlx::query(NOTIFY_SQL)
                    .bind(CHANNEL)
                    .execute(connection)
                    .await?;
                return Ok(());
            }
            (true, false) if self.equal_passes >= QUIET_PASSES => UNLOCK_SQL,
            _ => return Ok(()),
        };
        self.is_held = sqlx::query_scalar(statement)
            .bind(LOCK_CLASS)
            .bind(BELL_LOCK)
            .fetch_one(connection)
            .await?;
        Ok(())
    }
}
