//! Reads the fingerprint of one resource over a connection that reads documents: what its definition depends on may have
//! changed while the feed is behind.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, Row};

use crate::resource::Resource;
use crate::resource::fingerprint::Fingerprint;
use crate::source::SourceError;
use crate::source::loader::connection::LoaderStatement;
use crate::source::loader::limits::LimitedRead;
use crate::source::loader::{Loader, Shared};
use crate::source::session::Session;

impl Loader {
    /// Reads the `fingerprint` of `resource` as the database has it now.
    ///
    /// Cancel safe: the statement runs in a task of its own, which no request cancels.
    /// # Errors
    /// [`SourceError::Overloaded`] if too many fingerprints are waited for; else the error of the statement.
    pub async fn fingerprint(
        &self,
        resource: &Resource,
        fingerprint: &Arc<Fingerprint>,
    ) -> Result<String, SourceError> {
        let place = self.shared.fingerprints.place(resource)?;
        self.run_limited(place, Arc::clone(fingerprint)).await
    }
}

impl LimitedRead for Arc<Fingerprint> {
    type Found = String;

    async fn read(&self, shared: &Shared) -> Result<String, SourceError> {
        let persistent = !shared.database().pooler();
        let statement = FingerprintStatement(self, persistent);
        shared.run_with_retry(&statement).await
    }
}

/// The statement, and whether it stays prepared.
struct FingerprintStatement<'f>(&'f Fingerprint, bool);

impl LoaderStatement for FingerprintStatement<'_> {
    type Found = String;

    async fn run(&self, session: &mut Session) -> Result<String, SourceError> {
        read_fingerprint(session, self.0, self.1).await
    }
}

/// Reads a fingerprint as the database has it now.
pub(in crate::source) async fn read_fingerprint(
    session: &mut Session,
    Fingerprint {
        sql, oids, named, ..
    }: &Fingerprint,
    persistent: bool,
) -> Result<String, SourceError> {
    let query = sqlx::query(AssertSqlSafe(sql.as_str()))
        .bind(oids)
        .bind(named)
        .persistent(persistent);
    let rows = session.fetch_checked(query, sql.proof()).await?;
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let fingerprint: Option<String> = row.try_get("fingerprint")?;
    Ok(fingerprint.unwrap_or_default())
}
