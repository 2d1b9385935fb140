//! One transaction that writes, from `begin` to `commit`.

use std::sync::Arc;

use bytes::Bytes;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgRow;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::resource::Resource;
use crate::resource::writable::{Rows, Writable};
use crate::resource::write::{WriteSql, WriteStatement};
use crate::source::SourceError;
use crate::source::loader::{prove_identity, read_documents};
use crate::source::session::{Access, Database, Identity, Session};
use crate::source::token::Token;
use crate::source::writes::bound::{Inputs, bound, complete};
use crate::source::writes::error::{Failure, failure};
use crate::source::writes::locks::{HOLDING_MAX, LOCK_TIMEOUT, LockRetry, NO_LOCK_TIMEOUT};
use crate::source::writes::{Action, Outcome, Write, WriteOutcome, Written};

pub(super) struct Transaction<'t> {
    pub(super) session: Session,
    pub(super) database: &'t Database,
    pub(super) document_bytes_max: usize,
    pub(super) followed: Arc<Identity>,
    pub(super) lock_retry: LockRetry,
    /// When its first lock was asked for, until it waits for no more of them.
    pub(super) locking_since: Option<Instant>,
    /// PostgreSQL has been asked to commit, so only its answer tells what became of it.
    pub(super) committing: bool,
    /// Rung once it has committed.
    pub(super) committed: &'t Notify,
}

/// What a statement needs to be run.
pub(super) struct Target<'w> {
    pub(super) resource: &'w Resource,
    pub(super) writable: &'w Writable,
    pub(super) sql: &'w WriteSql,
}

impl<'w> Target<'w> {
    pub(super) fn of(resource: &'w Resource) -> Result<Self, SourceError> {
        match (&resource.writable, &resource.write_sql) {
            (Ok(writable), Some(sql)) => Ok(Self {
                resource,
                writable,
                sql,
            }),
            _ => Err(SourceError::Unexpected(
                "a write to what is only read".into(),
            )),
        }
    }
}

/// What became of a document within the transaction.
pub(super) struct Done {
    pub(super) outcome: Outcome,
    pub(super) key: String,
    pub(super) xid: u64,
}

impl Transaction<'_> {
    /// Writes all of `writes`, of one resource, and commits. Several are documents to insert.
    pub(super) async fn run(&mut self, writes: &[&Write]) -> Result<Vec<WriteOutcome>, Failure> {
        let Some(first) = writes.first() else {
            return Ok(Vec::new());
        };
        let target = Target::of(&first.resource)?;
        self.begin(&target).await?;
        let persistent = !self.database.pooler();
        if let Some(repeatable) = &first.repeatable
            && let Some(written) = repeatable.claim(&mut self.session, persistent).await?
        {
            self.roll_back().await?;
            return Ok(vec![Ok(written)]);
        }
        let outcomes = match (&first.action, writes) {
            (Action::Insert { .. }, _) => self.insert(&target, writes).await?,
            (_, [write]) => vec![Ok(self.alone(&target, write).await?)],
            _ => return Err(SourceError::Unexpected("writes that share nothing".into()).into()),
        };
        let mut written = Vec::with_capacity(outcomes.len());
        for outcome in outcomes {
            written.push(outcome.map(|done| self.written(done)));
        }
        self.represent(&target, writes, &mut written).await?;
        if let (Some(repeatable), Some(written)) = (&first.repeatable, written.first()) {
            let written = written.as_ref().map_err(Clone::clone)?;
            repeatable
                .keep(&mut self.session, persistent, written)
                .await?;
        }
        self.commit(&target).await?;
        Ok(written)
    }

    pub(super) async fn commit(&mut self, target: &Target<'_>) -> Result<(), Failure> {
        self.limit_waits().await?;
        self.committing = true;
        sqlx::raw_sql("commit")
            .execute(&mut self.session.connection)
            .await
            .map_err(|error| failure(error, Some(target.writable)))?;
        self.committed.notify_one();
        Ok(())
    }

    /// Begins, and locks the tables of `target`.
    pub(super) async fn begin(&mut self, target: &Target<'_>) -> Result<(), Failure> {
        let begun = self.begin_with(&target.sql.lock_tables).await;
        match begun {
            // To lock a table takes a privilege on all of it. Some have one on columns; what else they lack, the
            // statements say.
            Err(failure) if failure.error.is_forbidden() => {
                self.roll_back().await?;
                self.begin_with("").await
            }
            begun => begun,
        }
    }

    async fn begin_with(&mut self, lock_tables: &str) -> Result<(), Failure> {
        let begin = if self.database.pooler() {
            self.database
                .begin_pooled(&mut self.session, Access::Write)
                .await?;
            prove_identity(&mut self.session.connection, &self.followed).await?;
            ""
        } else {
            "begin isolation level read committed, read write; "
        };
        self.locking_since = (self.lock_retry != LockRetry::Never).then(Instant::now);
        let sql = format!("{begin}{LOCK_TIMEOUT}{lock_tables}");
        let begun = sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut self.session.connection)
            .await;
        begun.map_err(|error| {
            let Failure { error, again } = failure(error, None);
            Failure {
                error: error.of_table(),
                again,
            }
        })?;
        Ok(())
    }

    /// Has a transaction that holds locks for long wait for no more of them. To be called before each statement that
    /// may take one.
    pub(super) async fn limit_waits(&mut self) -> Result<(), SourceError> {
        let is_long = |since: Instant| since.elapsed() > HOLDING_MAX;
        if self.locking_since.is_some_and(is_long) {
            self.locking_since = None;
            sqlx::raw_sql(NO_LOCK_TIMEOUT)
                .execute(&mut self.session.connection)
                .await?;
        }
        Ok(())
    }

    pub(super) async fn roll_back(&mut self) -> Result<(), SourceError> {
        Ok(self.session.end_transaction("rollback").await?)
    }

    fn written(&self, done: Done) -> Written {
        Written {
            outcome: done.outcome,
            key: done.key,
            document: None,
            token: Token {
                nonce: self.followed.nonce,
                xid: done.xid,
            },
        }
    }

    /// Adds the stored documents to those of `written` that want them.
    async fn represent(
        &mut self,
        target: &Target<'_>,
        writes: &[&Write],
        written: &mut [WriteOutcome],
    ) -> Result<(), Failure> {
        let wanted: Vec<usize> = written
            .iter()
            .zip(writes)
            .enumerate()
            .filter(|(_, (outcome, write))| match outcome {
                Ok(written) => write.representation && written.outcome != Outcome::Deleted,
                Err(_) => false,
            })
            .map(|(at, _)| at)
            .collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let of = |at: &usize| written.get(*at).and_then(|outcome| outcome.as_ref().ok());
        let keys: Vec<&str> = wanted
            .iter()
            .filter_map(of)
            .map(|w| w.key.as_str())
            .collect();
        let found = self.read(target, &keys).await?;
        for (at, document) in wanted.into_iter().zip(found) {
            let document = document?;
            if let Some(Ok(written)) = written.get_mut(at) {
                written.document = document;
            }
        }
        Ok(())
    }

    pub(super) async fn read(
        &mut self,
        target: &Target<'_>,
        keys: &[&str],
    ) -> Result<Vec<Result<Option<Bytes>, SourceError>>, Failure> {
        self.limit_waits().await?;
        let persistent = self.is_persistent(target);
        let bytes_max = self.document_bytes_max;
        let reading = read_documents(
            &mut self.session,
            target.resource,
            &target.resource.documents_sql,
            keys,
            persistent,
            bytes_max,
        );
        Ok(reading.await?)
    }

    /// Whether PostgreSQL may keep the plans of statements on the tables of `target`: it may keep one that it made by
    /// what row security said for a moment.
    fn is_persistent(&self, target: &Target<'_>) -> bool {
        !self.database.pooler() && target.resource.row_security.is_none()
    }

    pub(super) async fn ask(
        &mut self,
        target: &Target<'_>,
        statement: &WriteStatement,
        inputs: Inputs<'_>,
    ) -> Result<Vec<PgRow>, Failure> {
        self.limit_waits().await?;
        let rows = bound(statement, target.resource, inputs)
            .persistent(self.is_persistent(target))
            .fetch_all(&mut self.session.connection)
            .await
            .map_err(|error| failure(error, Some(target.writable)))?;
        self.session
            .check_rows_proof(statement.sql.proof(), &rows)?;
        Ok(rows)
    }

    pub(super) async fn complete(
        &mut self,
        target: &Target<'_>,
        rows: &mut Rows,
    ) -> Result<(), Failure> {
        self.limit_waits().await?;
        let persistent = !self.database.pooler();
        let (writable, queries) = (target.writable, &target.sql.default_queries);
        complete(&mut self.session, writable, queries, persistent, rows).await
    }
}
