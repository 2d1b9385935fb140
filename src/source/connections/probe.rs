//! Finds out whether documents can be read and written while no request does.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::source::SourceError;
use crate::source::connections::{Connections, IdleConnection, Purpose, WRITE_CONNECT_TIMEOUT};
use crate::source::session::{Access, Identity, verify_identity, wait_for_new_identity};

/// The pauses between probes while documents can't be read or written.
const PROBE_PAUSE_MIN: Duration = Duration::from_millis(100);
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(5);

impl Connections {
    /// Finds out by connections of its own whether documents can be read or written, whenever that is not known or has
    /// failed: until it works, with pauses of 100 ms to 5 s. Never returns.
    pub(in crate::source) async fn probe(
        self: Arc<Self>,
        purpose: Purpose,
        mut followed: watch::Receiver<Option<Arc<Identity>>>,
    ) {
        let availability = self.availability(purpose);
        loop {
            availability.await_doubt().await;
            let mut pause = PROBE_PAUSE_MIN;
            while availability.unavailable_reason().is_some() {
                let known = followed.wait_for(Option::is_some).await;
                let Some(identity) = known.ok().and_then(|known| known.clone()) else {
                    // The sender is gone: larder stops.
                    return std::future::pending().await;
                };
                match self.try_connection(purpose, &identity).await {
                    Ok(()) => availability.note_success(),
                    Err(SourceError::OtherDatabase)
                        if wait_for_new_identity(&mut followed, Some(&identity)).await =>
                    {
                        continue;
                    }
                    Err(error) => availability.note_error(&error),
                }
                if availability.unavailable_reason().is_some() {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PROBE_PAUSE_MAX);
                }
            }
        }
    }

    /// Opens a connection of `purpose` and closes it; behind a pooler, a transaction checks that it can be used.
    async fn try_connection(
        self: &Arc<Self>,
        purpose: Purpose,
        followed: &Arc<Identity>,
    ) -> Result<(), SourceError> {
        let until = Instant::now() + self.wait_max;
        let (_place, idle) = self.take_place(purpose, until).await?;
        // It may have been lost, or be as it was before a failure.
        drop(idle);
        let mut session = self.open_patiently(purpose, followed).await?;
        if self.database.pooler() {
            let access = match purpose {
                Purpose::Read => Access::Read,
                Purpose::Write | Purpose::BulkWrite => Access::Write,
            };
            let trying = async {
                self.database.begin_pooled(&mut session, access).await?;
                verify_identity(&mut session.connection, followed).await?;
                Ok(session.execute("rollback").await?)
            };
            let tried = tokio::time::timeout(WRITE_CONNECT_TIMEOUT, trying).await;
            tried.unwrap_or_else(|_| Err(SourceError::no_response()))?;
        }
        let verified = Arc::clone(followed);
        IdleConnection { session, verified }.close().await;
        Ok(())
    }
}
