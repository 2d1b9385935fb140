//! How long a worker may send: while the server can't have ended its session.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::Connection;
use sqlx::postgres::PgConnection;

use crate::clock::Boottime;
use crate::source::SourceError;

/// That the server has heard of this process within `takeover`. Clones share the moment.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    takeover: Duration,
    /// When the last statement was sent that has been answered, on the boot-time clock: it goes on while the process or the
    /// machine is stopped.
    heard_at: Arc<AtomicU64>,
}

impl Lease {
    fn new(takeover: Duration) -> Self {
        Self {
            takeover,
            heard_at: Arc::new(AtomicU64::new(Boottime::NEVER.0)),
        }
    }

    /// Returns whether the server can't have ended the session meanwhile, however long the next statement takes to reach it.
    pub(super) fn is_young(&self) -> bool {
        let heard_at = Boottime(self.heard_at.load(Ordering::Acquire));
        Boottime::now().is_within(self.takeover / 2, heard_at)
    }

    /// Ends it: no further request begins.
    pub(super) fn end(&self) {
        self.heard_at.store(Boottime::NEVER.0, Ordering::Release);
    }

    /// Returns whether a request may begin.
    pub(super) fn holds(&self) -> bool {
        let heard_at = Boottime(self.heard_at.load(Ordering::Acquire));
        Boottime::now().is_within(self.takeover, heard_at)
    }
}

/// A connection whose session may hold the lock of a slot.
pub(super) struct LeasedConnection {
    connection: PgConnection,
    pub(super) lease: Lease,
}

impl LeasedConnection {
    pub(super) fn new(connection: PgConnection, takeover: Duration) -> Self {
        Self {
            connection,
            lease: Lease::new(takeover),
        }
    }

    /// Runs statements, and extends the lease if they are answered.
    ///
    /// # Errors
    /// That of the statements; [`SourceError::Unavailable`] if there is no answer within `takeover`.
    pub(super) async fn run<T>(
        &mut self,
        statements: impl AsyncFnOnce(&mut PgConnection) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        let sent_at = Boottime::now();
        let answered = tokio::time::timeout(self.lease.takeover, statements(&mut self.connection));
        let answered = answered.await.map_err(|_| SourceError::no_response())??;
        self.lease.heard_at.store(sent_at.0, Ordering::Release);
        Ok(answered)
    }

    /// Extends the lease.
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) async fn ping(&mut self) -> Result<(), SourceError> {
        self.run(async |connection| Ok(connection.ping().await?))
            .await
    }

    /// Ends the session in good order.
    pub(super) async fn close(self) {
        let closing = self.connection.close();
        // The server ends it otherwise.
        let _closed = tokio::time::timeout(Duration::from_millis(500), closing).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::stopped;

    #[test]
    fn a_lease_ends_by_the_clock_of_the_machine() {
        let lease = Lease::new(Duration::from_secs(10));
        let start = Boottime::now();
        assert!(!lease.holds());
        lease.heard_at.store(start.0, Ordering::Release);
        for (seconds, holds) in [(0, true), (10, true), (11, false)] {
            stopped::set(start.after(Duration::from_secs(seconds)));
            assert_eq!(lease.holds(), holds, "{seconds}");
        }
    }
}
