//! Who rings the bell: a writer, or, while changes come without end, the feed itself.
//!
//! NOTIFY costs a writer more than the log does. A feed that passes again and again anyway needs no bell, so it
//! holds the lock that a writer would have to take to ring, and rings for other larders after what it found. When
//! changes cease it lets go; what commits unrung after that is found by the quick passes that follow, or by the poll.
//! Nothing that is true depends on this file.

use sqlx::postgres::PgConnection;

use crate::feed::locks::{BELL_LOCK, LOCK_CLASS};
use crate::source::SourceError;

/// The channel that triggers notify.
pub(super) const CHANNEL: &str = "larder";

/// Passes in a row that have to find something before the feed takes the bell: 20 ms and more, so that single
/// commits of others, however regular, go on ringing; those of this node need no bell.
const BUSY_PASSES: u32 = 4;
/// Passes in a row that have to find nothing before it lets go.
const QUIET_PASSES: u32 = 4;

/// Takes the bell, and gives it back should this end of the connection fall silent: a stopped process, a lost machine.
/// Whoever holds it passes some sixty times a second and more.
const TAKE: &str = "select case when pg_try_advisory_lock($1, $2) \
    then set_config('idle_session_timeout', '5s', false) is not null else false end";
/// False, whether or not it was held.
const LET_GO: &str = "select case when pg_advisory_unlock($1, $2) is not null \
    then set_config('idle_session_timeout', '0', false) is null end";
/// A full queue would end the transaction.
const RING: &str = "select pg_notify($1, '') where pg_notification_queue_usage() < 0.5";

/// The bell as one connection of the feed has it; PostgreSQL takes it away with the connection.
#[derive(Debug, Default)]
pub(super) struct Bell {
    held: bool,
    /// Passes in a row that found something, or nothing, whichever the last did.
    same: u32,
    last_found: bool,
}

impl Bell {
    /// Whether nobody else can ring.
    pub(super) fn is_held(&self) -> bool {
        self.held
    }

    /// Takes the bell, rings it or lets it go, as what the last passes found asks for.
    ///
    /// # Errors
    /// Only if the connection was lost: passes do not depend on what PostgreSQL refuses here.
    pub(super) async fn keep(
        &mut self,
        connection: &mut PgConnection,
        found: bool,
        others_listen: bool,
    ) -> Result<(), SourceError> {
        match self.take_or_ring(connection, found, others_listen).await {
            Err(error @ SourceError::Unavailable(_)) => Err(error),
            Err(error) => {
                tracing::debug!("neither taking nor ringing the bell: {error}");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    async fn take_or_ring(
        &mut self,
        connection: &mut PgConnection,
        found: bool,
        others_listen: bool,
    ) -> Result<(), SourceError> {
        self.same = if found == self.last_found {
            self.same.saturating_add(1)
        } else {
            1
        };
        self.last_found = found;
        let statement = match (self.held, found) {
            (false, true) if self.same >= BUSY_PASSES => TAKE,
            (true, true) if others_listen => {
                sqlx::query(RING).bind(CHANNEL).execute(connection).await?;
                return Ok(());
            }
            (true, false) if self.same >= QUIET_PASSES => LET_GO,
            _ => return Ok(()),
        };
        self.held = sqlx::query_scalar(statement)
            .bind(LOCK_CLASS)
            .bind(BELL_LOCK)
            .fetch_one(connection)
            .await?;
        Ok(())
    }
}
