//! Runs statements that read, each over a connection that is taken for it.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use crate::source::SourceError;
use crate::source::connections::Purpose;
use crate::source::loader::Shared;
use crate::source::session::{Access, Identity, Session, verify_identity, wait_for_new_identity};

/// larder gives up a statement this long after the server's own `statement_timeout`.
pub(super) const TIMEOUT_MARGIN: Duration = Duration::from_secs(1);

/// Begins a transaction whose statements each see what was committed before them, as a statement alone does.
const BEGIN: &str = "begin isolation level read committed, read only";

/// A statement that reads, run in a transaction of its own.
pub(super) trait LoaderStatement: Sync {
    /// The result.
    type Found: Send;

    /// How long the statement may take, if that is less than `statement_timeout`.
    fn time_limit(&self) -> Option<Duration> {
        None
    }

    /// Runs the statement, and checks that the result belongs to it.
    fn run(
        &self,
        session: &mut Session,
    ) -> impl Future<Output = Result<Self::Found, SourceError>> + Send;
}

impl Shared {
    /// As [`Shared::run`], with a second attempt over a new connection: the open one may have been lost since its last
    /// use, or the feed may find its database anew.
    pub(super) async fn run_with_retry<S: LoaderStatement>(
        &self,
        statement: &S,
    ) -> Result<S::Found, SourceError> {
        let mut following = self.followed.subscribe();
        let known = following.borrow_and_update().clone();
        let Some(followed) = &known else {
            return Err(SourceError::Unavailable(
                "the feed has not found its database yet".into(),
            ));
        };
        let (outcome, was_lost) = self.attempt(statement, followed).await;
        let again = match outcome {
            Err(SourceError::Unavailable(_)) => {
                was_lost || following.has_changed().unwrap_or(false)
            }
            Err(SourceError::OtherDatabase) => {
                wait_for_new_identity(&mut following, known.as_ref()).await
            }
            _ => false,
        };
        let outcome = if again {
            self.run(statement).await
        } else {
            outcome
        };
        let availability = self.connections.availability(Purpose::Read);
        match &outcome {
            Ok(_) => availability.note_success(),
            Err(error) => availability.note_error(error),
        }
        outcome
    }

    /// Runs one statement. Its connection is kept unless it fails, or the feed has found its database anew since it was
    /// verified.
    ///
    /// # Errors
    /// [`SourceError::Timeout`] after `statement_timeout` and a second, or twice the statement's own limit; else those of
    /// the statement or of connecting.
    pub(super) async fn run<S: LoaderStatement>(
        &self,
        statement: &S,
    ) -> Result<S::Found, SourceError> {
        let Some(followed) = self.followed.borrow().clone() else {
            return Err(SourceError::Unavailable(
                "the feed has not found its database yet".into(),
            ));
        };
        self.attempt(statement, &followed).await.0
    }

    /// As [`Shared::run`]. Also returns whether a connection was lost while it was idle; then all idle ones were closed.
    async fn attempt<S: LoaderStatement>(
        &self,
        statement: &S,
        followed: &Arc<Identity>,
    ) -> (Result<S::Found, SourceError>, bool) {
        let mut following = self.followed.subscribe();
        if following.borrow_and_update().as_ref() != Some(followed) {
            return (Err(SourceError::no_response()), false);
        }
        let mut connection = match self.connections.connect(Purpose::Read, followed).await {
            Ok(connection) => connection,
            Err(error) => return (Err(error), false),
        };
        let limit = match statement.time_limit() {
            Some(limit) => 2 * limit,
            None => self.database().statement_timeout() + TIMEOUT_MARGIN,
        };
        // sqlx panics if a row has fewer columns than its statement: then the result is that of another statement.
        let running = AssertUnwindSafe(self.run_on(&mut connection, followed, statement));
        let running = running.catch_unwind();
        // Dropping the connection closes its socket, whatever state it is in.
        let outcome = tokio::select! {
            ended = tokio::time::timeout(limit, running) => match ended {
                Ok(ended) => ended,
                Err(_) => return (Err(SourceError::Timeout), false),
            },
            // The feed lost its connection and has found its database anew, so this connection may be half open.
            _ = following.changed() => return (Err(SourceError::no_response()), connection.is_reused()),
        };
        let outcome = outcome.unwrap_or(Err(SourceError::Pooler("a result has too few columns")));
        // The session stays usable after an error of the statement, but not after one of the connection.
        let was_lost = match &outcome {
            Err(error) if error.is_connection_error() => {
                let was_reused = connection.is_reused();
                drop(connection);
                if was_reused {
                    self.connections.close_idle(Purpose::Read);
                }
                was_reused
            }
            _ => {
                connection.put_back();
                false
            }
        };
        (outcome, was_lost)
    }

    /// Runs `statement`. A pooler keeps only a transaction on one server connection, so behind it one transaction sets
    /// the settings, verifies the identity and reads. A statement with a limit of its own has a transaction, too, in which
    /// PostgreSQL is told the limit.
    async fn run_on<S: LoaderStatement>(
        &self,
        session: &mut Session,
        followed: &Identity,
        statement: &S,
    ) -> Result<S::Found, SourceError> {
        let database = self.database();
        let limit = statement.time_limit();
        if !database.pooler() && limit.is_none() {
            return statement.run(session).await;
        }
        let reading = async {
            if database.pooler() {
                database.begin_pooled(session, Access::Read).await?;
                verify_identity(&mut session.connection, followed).await?;
            } else {
                session.execute(BEGIN).await?;
            }
            if let Some(limit) = limit {
                // Zero would be no limit.
                let milliseconds = limit.as_millis().max(1);
                let sql = format!("set local statement_timeout = {milliseconds}");
                session.execute(&sql).await?;
            }
            statement.run(session).await
        };
        let outcome = reading.await;
        match &outcome {
            Ok(_) => session.execute("commit").await?,
            Err(error) if error.is_connection_error() => {}
            Err(_) => session.execute("rollback").await?,
        }
        outcome
    }
}
