//! A connection that statements go over, one after the other: opened when it is needed, proved before it is used.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sqlx::Connection;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, raw_sql};

use crate::source::SourceError;
use crate::source::loader::Shared;
use crate::source::session::{Identity, identity, patiently};

/// What waits longer than the server's own `statement_timeout` by this is given up.
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// What is asked of PostgreSQL, in one transaction's time.
pub(super) trait Statement: Sync {
    /// What it gives.
    type Found: Send;

    fn run(
        &self,
        connection: &mut PgConnection,
    ) -> impl Future<Output = Result<Self::Found, SourceError>> + Send;
}

/// A connection with the identity that it has proved to reach; none before the first statement and after a failure.
#[derive(Default)]
pub(super) struct Link(Option<(Arc<Identity>, PgConnection)>);

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
        following.mark_unchanged();
        let outcome = self.ask(shared, statement).await;
        if matches!(outcome, Err(SourceError::Unavailable(_)))
            && (reused || following.has_changed().unwrap_or(false))
        {
            return self.ask(shared, statement).await;
        }
        outcome
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
        let mut connection = match self.0.take() {
            Some((proved, connection)) if Arc::ptr_eq(&proved, &followed) => connection,
            _ => connect(shared, &followed).await?,
        };
        let limit = shared.database.statement_timeout() + GRACE;
        let asked = run(&mut connection, shared, &followed, statement);
        // Dropping the connection closes its socket, whatever state it is in.
        let outcome = tokio::select! {
            asked = tokio::time::timeout(limit, asked) => asked.map_err(|_| SourceError::Timeout)?,
            // The feed had to find its database anew, so this connection may be half open.
            _ = following.changed() => return Err(SourceError::silent()),
        };
        // After an error the session is in order; after a lost connection it is not.
        if !matches!(
            outcome,
            Err(SourceError::Unavailable(_) | SourceError::OtherDatabase)
        ) {
            self.0 = Some((followed, connection));
        }
        outcome
    }
}

async fn connect(shared: &Shared, followed: &Identity) -> Result<PgConnection, SourceError> {
    let mut connection = shared.database.connect().await?;
    if !shared.database.pooler() {
        let proved = patiently(prove(&mut connection, followed)).await;
        proved.ok_or_else(SourceError::silent)??;
    }
    Ok(connection)
}

/// Behind a pooler only a transaction stays on one server: it sets, proves and reads.
async fn run<S: Statement>(
    connection: &mut PgConnection,
    shared: &Shared,
    followed: &Identity,
    statement: &S,
) -> Result<S::Found, SourceError> {
    if !shared.database.pooler() {
        return statement.run(connection).await;
    }
    let mut transaction = connection.begin_with("begin read only").await?;
    let settings = AssertSqlSafe(shared.database.transaction_settings());
    raw_sql(settings).execute(&mut *transaction).await?;
    prove(&mut transaction, followed).await?;
    let found = statement.run(&mut transaction).await?;
    transaction.commit().await?;
    Ok(found)
}

/// Fails unless `connection` reaches the database that the feed follows.
pub(in crate::source) async fn prove(
    connection: &mut PgConnection,
    followed: &Identity,
) -> Result<(), SourceError> {
    if identity(connection).await?.as_ref() == Some(followed) {
        Ok(())
    } else {
        Err(SourceError::OtherDatabase)
    }
}
