//! A connection that statements go over, one after the other: opened when it is needed, proved before it is used.

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

/// What waits longer than the server's own `statement_timeout` by this is given up.
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// The feed notices a new epoch with its next pass, and then checks everything anew.
const ANEW_MAX: Duration = Duration::from_millis(750);

/// What is asked of PostgreSQL, in one transaction's time.
pub(super) trait Statement: Sync {
    /// What it gives.
    type Found: Send;

    fn run(
        &self,
        session: &mut Session,
    ) -> impl Future<Output = Result<Self::Found, SourceError>> + Send;
}

/// A connection with the identity that it has proved to reach; none before the first statement and after a failure.
#[derive(Default)]
pub(super) struct Link(Option<(Arc<Identity>, Session)>);

impl Link {
    /// As [`Link::ask`]. A connection that was there may have died since it was last used, and any one before the feed
    /// noticed that it lost its own; a new one decides.
    pub(super) async fn ask_again<S: Statement>(
        &mut self,
        shared: &Shared,
        statement: &S,
    ) -> Result<S::Found, SourceError> {
        let reused = self.0.is_some();
        let mut following = shared.followed.subscribe();
        let known = following.borrow_and_update().clone();
        let outcome = self.ask(shared, statement).await;
        let again = match outcome {
            Err(SourceError::Unavailable(_)) => reused || following.has_changed().unwrap_or(false),
            Err(SourceError::OtherDatabase) => found_anew(&mut following, known.as_ref()).await,
            _ => false,
        };
        if again {
            self.ask(shared, statement).await
        } else {
            outcome
        }
    }

    /// Runs one statement. A connection that failed is given up, and one that was proved before the feed turned to
    /// another database.
    pub(super) async fn ask<S: Statement>(
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
        // Another one gives its place among the server's connections up first.
        let kept = kept.filter(|(proved, _)| Arc::ptr_eq(proved, &followed));
        let mut session = match kept {
            Some((_, session)) => session,
            None => connect(shared, &followed).await?,
        };
        let limit = shared.database.statement_timeout() + GRACE;
        // sqlx panics where a row has fewer columns than its statement: the answer is another statement's.
        let asked = AssertUnwindSafe(run(&mut session, shared, &followed, statement));
        let asked = asked.catch_unwind();
        // Dropping the connection closes its socket, whatever state it is in.
        let outcome = tokio::select! {
            asked = tokio::time::timeout(limit, asked) => asked.map_err(|_| SourceError::Timeout)?,
            // The feed had to find its database anew, so this connection may be half open.
            _ = following.changed() => return Err(SourceError::no_response()),
        };
        let outcome = outcome.unwrap_or(Err(SourceError::Pooler("an answer has too few columns")));
        // After an error the session is in order; after a lost connection it is not, nor where others use it.
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
        let proved = within_connect_timeout(prove(&mut session.connection, followed)).await;
        proved.ok_or_else(SourceError::no_response)??;
    }
    Ok(session)
}

/// Behind a pooler only a transaction stays on one server: it sets, proves and reads.
async fn run<S: Statement>(
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
        prove(&mut session.connection, followed).await?;
        statement.run(session).await
    };
    let outcome = reading.await;
    match &outcome {
        Ok(_) => session.end_transaction("commit").await?,
        Err(error) if error.is_connection_error() => {}
        Err(_) => session.end_transaction("rollback").await?,
    }
    outcome
}

/// Waits until the feed follows another database than `known`, or another epoch of it: a connection may meet what
/// another larder has begun a moment before the feed does. Returns whether it does.
pub(in crate::source) async fn found_anew(
    following: &mut watch::Receiver<Option<Arc<Identity>>>,
    known: Option<&Arc<Identity>>,
) -> bool {
    let is_new = |now: &Option<Arc<Identity>>| now.is_some() && now.as_ref() != known;
    let found = tokio::time::timeout(ANEW_MAX, following.wait_for(is_new));
    matches!(found.await, Ok(Ok(_)))
}

/// Fails unless `connection` reaches the database that the feed follows.
pub(in crate::source) async fn prove(
    connection: &mut PgConnection,
    followed: &Identity,
) -> Result<(), SourceError> {
    // While the feed follows no epoch nothing is kept, so it need be no more than the same database.
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
