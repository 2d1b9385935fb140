//! Reads the fingerprint of one resource over a connection that reads documents: what its definition depends on may have
//! changed while the feed is behind.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, Row};

use crate::resource::Resource;
use crate::resource::proof::ProvedSql;
use crate::source::SourceError;
use crate::source::loader::connection::LoaderStatement;
use crate::source::loader::limits::LimitedRead;
use crate::source::loader::{Loader, Shared};
use crate::source::session::Session;

/// How the fingerprint of a resource is read.
#[derive(Clone, Debug)]
pub struct FingerprintQuery {
    /// Returns one row with the proof and the column `fingerprint`. Its parameters are the two lists.
    pub sql: Arc<ProvedSql>,
    /// The tables that the resource depends on.
    pub oids: Vec<i64>,
    /// Whether the resource's SQL names the table.
    pub named: Vec<bool>,
}

impl Loader {
    /// Reads the fingerprint of `resource`.
    ///
    /// Cancel safe: the statement runs in a task of its own, which no request cancels.
    /// # Errors
    /// [`SourceError::Overloaded`] if too many fingerprints are waited for; else the error of the statement.
    pub async fn fingerprint(
        &self,
        resource: &Resource,
        query: FingerprintQuery,
    ) -> Result<String, SourceError> {
        let place = self.shared.fingerprints.place(resource)?;
        self.run_limited(place, query).await
    }
}

impl LimitedRead for FingerprintQuery {
    type Found = String;

    async fn read(&self, shared: &Shared) -> Result<String, SourceError> {
        let persistent = !shared.database().pooler();
        let statement = FingerprintStatement(self, persistent);
        shared.run_with_retry(&statement).await
    }
}

/// The statement, and whether it stays prepared.
struct FingerprintStatement<'q>(&'q FingerprintQuery, bool);

impl LoaderStatement for FingerprintStatement<'_> {
    type Found = String;

    async fn run(&self, session: &mut Session) -> Result<String, SourceError> {
        let Self(FingerprintQuery { sql, oids, named }, persistent) = *self;
        let query = sqlx::query(AssertSqlSafe(sql.as_str()))
            .bind(oids)
            .bind(named)
            .persistent(persistent);
        let rows = session.fetch_checked(query, sql.proof()).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let fingerprint: Option<String> = row.try_get("fingerprint")?;
        Ok(fingerprint.unwrap_or_default())
    }
}
