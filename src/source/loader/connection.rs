//! A connection that runs statements one after the other. It is opened when it is needed, and its identity is checked
//! before it is used.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use sqlx::postgres::PgConnection;
use tokio::sync::watch;

use crate::source::SourceError;
use crate::source::loader::Shared;
use crate::source::session::{
    Access, Identity, Session, read_identity, read_server_identity, within_connect_timeout,
};

/// larder gives up a statement this long after the server's own `statement_timeout`.
pub(super) const TIMEOUT_MARGIN: Duration = Duration::from_secs(1);

/// The feed needs up to this long to notice a new epoch and to check the database again.
const NEW_IDENTITY_TIMEOUT: Duration = Duration::from_millis(750);

/// A statement that reads, run in a transaction of its own.
pub(super) trait LoaderStatement: Sync {
    /// The result.
    type Found: Send;

    /// Runs the statement, and checks that the result belongs to it.
    fn run(
        &self,
        session: &mut Session,
    ) -> impl Future<Output = Result<Self::Found, SourceError>> + Send;
}

/// A connection with the identity that it was verified to have; none before the first statement and after a failure.
#[derive(Default)]
pub(super) struct VerifiedConnection(Option<(Arc<Identity>, Session)>);

impl VerifiedConnection {
    /// As [`VerifiedConnection::run`], with a second attempt over a new connection: the open one may have been lost since
    /// its last use, or the feed may find its database anew.
    pub(super) async fn run_with_retry<S: LoaderStatement>(
        &mut self,
        shared: &Shared,
        statement: &S,
    ) -> Result<S::Found, SourceError> {
        let reused = self.0.is_some();
        let mut following = shared.followed.subscribe();
        let known = following.borrow_and_update().clone();
        let outcome = self.run(shared, statement).await;
        let again = match outcome {
            Err(SourceError::Unavailable(_)) => reused || following.has_changed().unwrap_or(false),
            Err(SourceError::OtherDatabase) => {
                wait_for_new_identity(&mut following, known.as_ref()).await
            }
            _ => false,
        };
        if again {
            self.run(shared, statement).await
        } else {
            outcome
        }
    }

    /// Runs one statement. Closes the connection if it fails, or if the feed has found its database anew since it was
    /// verified.
    ///
    /// # Errors
    /// [`SourceError::Timeout`] after `statement_timeout` and a second; else those of the statement or of connecting.
    pub(super) async fn run<S: LoaderStatement>(
        &mut self,
        shared: &Shared,
        statement: &S,
    ) -> Result<S::Found, SourceError> {
        let mut following = shared.followed.subscribe();
        let Some(followed) = following.borrow_and_update().clone() else {
            return Err(SourceError::Unavailable(
                "the feed has not found its database yet".into(),
            ));
        };
        let kept = self.0.take();
        // An outdated connection is closed before a new one is opened, so that the server has a free connection.
        let kept = kept.filter(|(verified, _)| Arc::ptr_eq(verified, &followed));
        let mut session = match kept {
            Some((_, session)) => session,
            None => connect(shared, &followed).await?,
        };
        let limit = shared.database.statement_timeout() + TIMEOUT_MARGIN;
        // sqlx panics if a row has fewer columns than its statement: then the result is that of another statement.
        let running = AssertUnwindSafe(run_statement(&mut session, shared, &followed, statement));
        let running = running.catch_unwind();
        // Dropping the connection closes its socket, whatever state it is in.
        let outcome = tokio::select! {
            ended = tokio::time::timeout(limit, running) => ended.map_err(|_| SourceError::Timeout)?,
            // The feed lost its connection and has found its database anew, so this connection may be half open.
            _ = following.changed() => return Err(SourceError::no_response()),
        };
        let outcome = outcome.unwrap_or(Err(SourceError::Pooler("a result has too few columns")));
        // The session stays usable after an error of the statement, but not after one of the connection.
        match &outcome {
            Err(error) if error.is_connection_error() => shared.database.log_refusal(&outcome),
            _ => self.0 = Some((followed, session)),
        }
        outcome
    }
}

async fn connect(shared: &Shared, followed: &Identity) -> Result<Session, SourceError> {
    let mut session = shared.database.connect().await?;
    if !shared.database.pooler() {
        let verified =
            within_connect_timeout(verify_identity(&mut session.connection, followed)).await;
        verified.ok_or_else(SourceError::no_response)??;
    }
    Ok(session)
}

/// Runs `statement`. A pooler keeps only a transaction on one server connection, so behind it one transaction sets the
/// settings, verifies the identity and reads.
async fn run_statement<S: LoaderStatement>(
    session: &mut Session,
    shared: &Shared,
    followed: &Identity,
    statement: &S,
) -> Result<S::Found, SourceError> {
    if !shared.database.pooler() {
        return statement.run(session).await;
    }
    let reading = async {
        shared.database.begin_pooled(session, Access::Read).await?;
        verify_identity(&mut session.connection, followed).await?;
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

/// Waits up to 750 ms until the feed follows another database than `known`, or another epoch of it, and returns whether
/// it does. A connection may see an epoch that another larder has begun before the feed sees it.
pub(in crate::source) async fn wait_for_new_identity(
    following: &mut watch::Receiver<Option<Arc<Identity>>>,
    known: Option<&Arc<Identity>>,
) -> bool {
    let is_new = |now: &Option<Arc<Identity>>| now.is_some() && now.as_ref() != known;
    let found = tokio::time::timeout(NEW_IDENTITY_TIMEOUT, following.wait_for(is_new));
    matches!(found.await, Ok(Ok(_)))
}

/// Checks that `connection` reaches the database that the feed follows.
///
/// # Errors
/// [`SourceError::OtherDatabase`] if it does not; else those of [`read_identity`].
pub(in crate::source) async fn verify_identity(
    connection: &mut PgConnection,
    followed: &Identity,
) -> Result<(), SourceError> {
    // While the feed follows no epoch, no tier keeps documents. Then the same database is enough.
    let reached = if followed.nonce.is_nil() {
        Identity {
            epoch_table: 0,
            ..read_server_identity(connection).await?
        }
    } else {
        read_identity(connection).await?
    };
    let reached = Identity {
        history: followed.history,
        ..reached
    };
    if reached == *followed {
        Ok(())
    } else {
        Err(SourceError::OtherDatabase)
    }
}
