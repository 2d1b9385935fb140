//! Outcomes of writes with an `Idempotency-Key`, stored in the same transaction and returned to repeated requests.

use bytes::Bytes;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row};

use crate::resource::Resource;
use crate::resource::proof::{PROOF, ProvedSql};
use crate::source::SourceError;
use crate::source::session::Session;
use crate::source::writes::error::{Failure, WriteError};
use crate::source::writes::{Repeated, WriteEffect, Written};

/// Identifies a request that may be repeated.
pub struct IdempotentRequest {
    /// The principal with its kind, since each principal has `Idempotency-Key`s of its own. Empty without
    /// authentication.
    pub principal: String,
    /// The `Idempotency-Key`.
    pub key: String,
    /// A hash of the request.
    pub request: [u8; 16],
    /// What the request prefers to be returned, for the responses to requests that repeat it.
    pub preference: Option<&'static str>,
}

impl WriteEffect {
    fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Moved => "moved",
            Self::Replaced => "replaced",
            Self::Deleted => "deleted",
            Self::Kept => "kept",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let all = [
            Self::Created,
            Self::Moved,
            Self::Replaced,
            Self::Deleted,
            Self::Kept,
        ];
        all.into_iter().find(|effect| effect.as_str() == text)
    }
}

impl IdempotentRequest {
    /// Claims the key for the current transaction. Returns the stored outcome if an earlier one has claimed it. Waits
    /// for a transaction that has claimed it and still runs.
    ///
    /// # Errors
    /// [`WriteError::KeyReused`] if the earlier request was another one.
    pub(super) async fn claim(
        &self,
        session: &mut Session,
        persistent: bool,
    ) -> Result<Option<Written>, Failure> {
        let claim = ProvedSql::new(&format!(
            "with claimed as (insert into larder.answer (principal, key, request) values ($1, $2, $3) \
             on conflict do nothing returning 1) select count(*), {PROOF} as proof from claimed"
        ));
        let query = sqlx::query(AssertSqlSafe(claim.as_str()))
            .bind(&self.principal)
            .bind(&self.key)
            .bind(self.request.as_slice())
            .persistent(persistent);
        let claimed = session.fetch_checked(query, claim.proof()).await?;
        let claimed = claimed.first().map(|row| row.try_get::<i64, _>(0));
        if claimed.transpose().map_err(SourceError::from)? == Some(1) {
            return Ok(None);
        }
        let read = ProvedSql::new(&format!(
            "select p.proof, a.request, a.outcome, a.document_key, a.document, a.token, a.preference from (select {PROOF} as proof) p \
             left join larder.answer a on a.principal = $1 and a.key = $2"
        ));
        let query = sqlx::query(AssertSqlSafe(read.as_str()))
            .bind(&self.principal)
            .bind(&self.key)
            .persistent(persistent);
        let rows = session.fetch_checked(query, read.proof()).await?;
        let answer = rows.first().map(read_answer).transpose();
        let Some((request, written)) = answer.map_err(SourceError::from)?.flatten() else {
            // The answer was pruned since the claim failed, so the key is free.
            let error = SourceError::Unexpected("an answer was pruned meanwhile".into()).into();
            return Err(Failure {
                error,
                is_retryable: true,
            });
        };
        if request != self.request {
            return Err(WriteError::KeyReused.into());
        }
        let missing = || SourceError::Unexpected("larder.answer holds no answer".into());
        Ok(Some(written.ok_or_else(missing)?))
    }

    /// Stores the outcome.
    pub(super) async fn keep(
        &self,
        session: &mut Session,
        persistent: bool,
        resource: &Resource,
        written: &Written,
    ) -> Result<(), Failure> {
        let document = written.document.as_deref();
        let document = document.and_then(|document| std::str::from_utf8(document).ok());
        let keep = ProvedSql::new(&format!(
            "with kept as (update larder.answer set outcome = $3, document_key = $4, document = $5, token = $6, \
             resource = $7, preference = $8 where principal = $1 and key = $2) select {PROOF} as proof"
        ));
        let query = sqlx::query(AssertSqlSafe(keep.as_str()))
            .bind(&self.principal)
            .bind(&self.key)
            .bind(written.effect.as_str())
            .bind(&written.key)
            .bind(document)
            .bind(written.token.to_string())
            .bind(&resource.name)
            .bind(self.preference)
            .persistent(persistent);
        session.fetch_checked(query, keep.proof()).await?;
        Ok(())
    }
}

/// Reads the request and the outcome in a row of `larder.answer`. Returns `None` if the table has no such row; the
/// outcome is missing if it is not complete.
fn read_answer(row: &PgRow) -> sqlx::Result<Option<(Vec<u8>, Option<Written>)>> {
    let Some(request) = row.try_get::<Option<Vec<u8>>, _>("request")? else {
        return Ok(None);
    };
    let text = |name| row.try_get::<Option<String>, _>(name);
    let effect = text("outcome")?.and_then(|effect| WriteEffect::parse(&effect));
    let token = text("token")?.and_then(|token| token.parse().ok());
    let written = match (effect, text("document_key")?, token) {
        (Some(effect), Some(key), Some(token)) => Some(Written {
            effect,
            key,
            document: text("document")?.map(Bytes::from),
            token,
            repeated: Some(Repeated {
                preference: text("preference")?,
            }),
        }),
        _ => None,
    };
    Ok(Some((request, written)))
}
