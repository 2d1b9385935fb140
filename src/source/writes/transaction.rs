//! A transaction that writes, from `begin` to `commit`.

use std::sync::Arc;

use sqlx::Row;
use sqlx::postgres::PgRow;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;

use crate::resource::Resource;
use crate::resource::writable::{Rows, Writable};
use crate::resource::write::{WriteSql, WriteStatement};
use crate::source::SourceError;
use crate::source::connections::UsedConnection;
use crate::source::loader::{Loaded, Returned, read_documents};
use crate::source::session::{Access, Database, Identity, verify_identity};
use crate::source::token::Token;
use crate::source::writes::definition::begin_compared;
use crate::source::writes::error::{Failure, WriteError, write_failure};
use crate::source::writes::inputs::{Inputs, bind_inputs};
use crate::source::writes::locks::{LOCK_TIMEOUT, LOCKS_HELD_MAX, LockRetry, MINIMAL_LOCK_TIMEOUT};
use crate::source::writes::{
    Action, QueuedWrite, Shared, Write, WriteEffect, WriteResult, Written,
};

/// Kept while a change that may have to be undone is tried.
pub(super) const SAVEPOINT: &str = "savepoint larder";
pub(super) const ROLLBACK_TO_SAVEPOINT: &str = "rollback to savepoint larder";
pub(super) const RELEASE_SAVEPOINT: &str = "release savepoint larder";

pub(super) struct Transaction<'t> {
    pub(super) session: UsedConnection,
    database: &'t Database,
    pub(super) document_bytes_max: usize,
    pub(super) long_patches: &'t Semaphore,
    pub(super) followed: Arc<Identity>,
    lock_retry: LockRetry,
    /// An attempt before has violated a unique constraint.
    pub(super) was_violated: bool,
    /// An attempt before was refused for want of a privilege.
    pub(super) was_forbidden: bool,
    /// When it requested its first lock; `None` once it waits for no further lock.
    locks_held_since: Option<Instant>,
    /// Notified of each statement that has ended.
    pub(super) progress: watch::Sender<()>,
    /// The rows of the only document that it writes, once they are known.
    pub(super) rows: Option<Rows>,
    /// Whether `commit` was sent. From then on only PostgreSQL's response tells the outcome.
    pub(super) committing: bool,
    /// Notified after the commit.
    committed: &'t Notify,
}

/// The effect for the client on a document that a trigger has given to another owner: for the client it is gone.
fn effect_on_foreign(effect: WriteEffect) -> WriteEffect {
    match effect {
        WriteEffect::Created | WriteEffect::Moved => WriteEffect::Moved,
        WriteEffect::Replaced => WriteEffect::Replaced,
        WriteEffect::Deleted | WriteEffect::Kept => WriteEffect::Deleted,
    }
}

/// A resource that can be written to, with its statements.
pub(super) struct WriteTarget<'w> {
    pub(super) resource: &'w Resource,
    pub(super) writable: &'w Writable,
    pub(super) sql: &'w WriteSql,
}

impl<'w> WriteTarget<'w> {
    pub(super) fn of(resource: &'w Resource) -> Result<Self, SourceError> {
        match (&resource.writable, &resource.write_sql) {
            (Ok(writable), Some(sql)) => Ok(Self {
                resource,
                writable,
                sql,
            }),
            _ => Err(SourceError::Unexpected(
                "a write to a read-only resource".into(),
            )),
        }
    }

    /// Whether a row may stand after its deletion, because of a trigger or a policy.
    pub(super) fn may_keep(&self) -> bool {
        self.writable.has_before_delete || self.resource.row_security.is_some()
    }
}

/// A document that the transaction has written, but not committed.
pub(super) struct WrittenDocument {
    pub(super) effect: WriteEffect,
    pub(super) key: String,
    pub(super) xid: u64,
}

impl<'t> Transaction<'t> {
    pub(super) fn new(
        shared: &'t Shared,
        session: UsedConnection,
        followed: Arc<Identity>,
        lock_retry: LockRetry,
    ) -> Self {
        Self {
            session,
            database: shared.database(),
            document_bytes_max: shared.document_bytes_max,
            long_patches: &shared.long_patches,
            followed,
            lock_retry,
            was_violated: false,
            was_forbidden: false,
            locks_held_since: None,
            progress: watch::channel(()).0,
            rows: None,
            committing: false,
            committed: &shared.committed,
        }
    }

    /// Runs the writes of `queued`, all of one resource, and commits if any of them succeeds. Several writes must be
    /// inserts.
    ///
    /// # Errors
    /// [`WriteError::Deadline`] if the request of one of them has given up.
    pub(super) async fn run(
        &mut self,
        queued: &[&QueuedWrite],
    ) -> Result<Vec<WriteResult>, Failure> {
        let writes: Vec<&Write> = queued.iter().map(|queued| &queued.write).collect();
        let writes = writes.as_slice();
        let Some(first) = writes.first() else {
            return Ok(Vec::new());
        };
        let target = WriteTarget::of(&first.resource)?;
        self.begin(&target).await?;
        let persistent = !self.database.pooler();
        if let Some(idempotency) = &first.idempotency
            && let Some(mut written) = idempotency.claim(&mut self.session, persistent).await?
        {
            if written.document.is_some() && !self.is_shown(&target, first, &written.key).await? {
                written.document = None;
            }
            self.roll_back().await?;
            return Ok(vec![Ok(written)]);
        }
        let outcomes = match (&first.action, writes) {
            (Action::Insert { .. }, _) => self.insert(&target, writes).await?,
            (_, [write]) => vec![Ok(self.write_single(&target, write).await?)],
            _ => {
                let message = "writes that cannot share a transaction";
                return Err(SourceError::Unexpected(message.into()).into());
            }
        };
        let outcomes = outcomes.into_iter();
        let written = outcomes.map(|outcome| outcome.map(|done| self.written(done)));
        let mut written: Vec<WriteResult> = written.collect();
        if written.iter().all(Result::is_err) {
            self.roll_back().await?;
            return Ok(written);
        }
        self.run_deferred(&target).await?;
        self.add_documents(&target, writes, &mut written).await?;
        if let (Some(idempotency), Some(written)) = (&first.idempotency, written.first()) {
            let written = written.as_ref().map_err(Clone::clone)?;
            idempotency
                .keep(&mut self.session, persistent, target.resource, written)
                .await?;
        }
        if !queued.iter().all(|queued| queued.gate.enter_commit()) {
            return Err(WriteError::Deadline.into());
        }
        self.commit(&target).await?;
        Ok(written)
    }

    pub(super) async fn commit(&mut self, target: &WriteTarget<'_>) -> Result<(), Failure> {
        self.limit_lock_waits().await?;
        self.committing = true;
        let committed = self.session.execute("commit").await;
        committed.map_err(|error| write_failure(error, Some(target.writable)))?;
        self.committed.notify_one();
        Ok(())
    }

    /// Whether it inserts documents as they arrive.
    pub(super) fn is_bulk(&self) -> bool {
        self.lock_retry == LockRetry::Never
    }

    /// Checks and runs what is deferred until the commit, since triggers may change what is read before.
    pub(super) async fn run_deferred(&mut self, target: &WriteTarget<'_>) -> Result<(), Failure> {
        if !target.writable.has_deferred {
            return Ok(());
        }
        self.limit_lock_waits().await?;
        let run = self.session.execute("set constraints all immediate").await;
        run.map_err(|error| write_failure(error, Some(target.writable)))?;
        Ok(())
    }

    /// Begins the transaction, locks the tables of `target`, and compares its definition with the database.
    ///
    /// # Errors
    /// [`SourceError::Altered`] if the database has another definition.
    pub(super) async fn begin(&mut self, target: &WriteTarget<'_>) -> Result<(), Failure> {
        let begun = self.begin_with(target, &target.sql.lock_tables).await;
        match begun {
            // Locking a table needs a privilege on the whole table, and larder's role may have one only on columns. If
            // it lacks more, the statements fail.
            Err(failure) if failure.error.is_forbidden() => {
                self.roll_back().await?;
                self.begin_with(target, "").await
            }
            begun => begun,
        }
    }

    async fn begin_with(
        &mut self,
        target: &WriteTarget<'_>,
        lock_tables: &str,
    ) -> Result<(), Failure> {
        let persistent = !self.database.pooler();
        let begin = if persistent {
            "begin isolation level read committed, read write; "
        } else {
            self.database
                .begin_pooled(&mut self.session, Access::Write)
                .await?;
            verify_identity(&mut self.session.connection, &self.followed).await?;
            ""
        };
        self.locks_held_since = (self.lock_retry != LockRetry::Never).then(Instant::now);
        let sql = format!("{begin}{LOCK_TIMEOUT}{lock_tables}");
        let fingerprint = target.resource.fingerprint.as_deref();
        let missing = || SourceError::Unexpected("a write without a fingerprint".into());
        let fingerprint = fingerprint.ok_or_else(missing)?;
        begin_compared(&mut self.session, sql, fingerprint, persistent).await
    }

    /// Lets a transaction that has held locks for long wait for no further lock. Must be called before each statement
    /// that may lock.
    pub(super) async fn limit_lock_waits(&mut self) -> Result<(), SourceError> {
        let is_long = |since: Instant| since.elapsed() > LOCKS_HELD_MAX;
        if self.locks_held_since.is_some_and(is_long) {
            self.locks_held_since = None;
            self.session.execute(MINIMAL_LOCK_TIMEOUT).await?;
        }
        Ok(())
    }

    pub(super) async fn roll_back(&mut self) -> Result<(), SourceError> {
        Ok(self.session.execute("rollback").await?)
    }

    fn written(&self, done: WrittenDocument) -> Written {
        Written {
            effect: done.effect,
            key: done.key,
            document: None,
            repeated: None,
            token: Token {
                nonce: self.followed.nonce,
                xid: done.xid,
            },
        }
    }

    /// Whether there is a document with this key.
    pub(super) async fn is_stored(
        &mut self,
        target: &WriteTarget<'_>,
        key: &str,
    ) -> Result<bool, Failure> {
        let bytes_max = self.document_bytes_max;
        let keys = [key];
        let found = self
            .read(target, &keys, bytes_max, Returned::Nothing)
            .await?;
        // One that can't be read is there.
        Ok(found.iter().all(|found| !matches!(found, Ok(None))))
    }

    /// Whether there is a document with the key of an earlier write that may be returned to `write`, which repeats it.
    async fn is_shown(
        &mut self,
        target: &WriteTarget<'_>,
        write: &Write,
        key: &str,
    ) -> Result<bool, Failure> {
        if !write.writer.is_restricted() && !write.reader.is_restricted() {
            return self.is_stored(target, key).await;
        }
        let bytes_max = self.document_bytes_max;
        let found = self
            .read(target, &[key], bytes_max, Returned::Nothing)
            .await?;
        let found = found.into_iter().flatten().flatten();
        let owned = found.map(|document| write.may_return(&document));
        Ok(owned.last().unwrap_or(false))
    }

    /// Adds the stored document to each write that requested it, and checks that the others can be read, too. A deleted
    /// document may be there if there are triggers: they may keep the root row, or insert it again.
    ///
    /// # Errors
    /// [`SourceError::TooLarge`] if a document is longer than `document_max`; else that it can't be read.
    async fn add_documents(
        &mut self,
        target: &WriteTarget<'_>,
        writes: &[&Write],
        written: &mut [WriteResult],
    ) -> Result<(), Failure> {
        let has_triggers = target.writable.has_triggers;
        for returned in [Returned::Text, Returned::Nothing] {
            let read: Vec<(&mut Written, &Write)> = written
                .iter_mut()
                .zip(writes)
                .filter_map(|(outcome, write)| Some((outcome.as_mut().ok()?, *write)))
                .filter(|(written, write)| {
                    let (is_shown, is_read) = match written.effect {
                        WriteEffect::Deleted => (true, has_triggers),
                        WriteEffect::Kept => (true, true),
                        _ => (write.representation, true),
                    };
                    is_read && is_shown == (returned == Returned::Text)
                })
                .collect();
            if read.is_empty() {
                continue;
            }
            let keys: Vec<&str> = read.iter().map(|(written, _)| &*written.key).collect();
            let found = self.read_written(target, &keys, returned).await?;
            for ((written, write), document) in read.into_iter().zip(found) {
                let document = document?;
                let is_followed = has_triggers && target.resource.row_security.is_none();
                written.effect = match (&document, written.effect) {
                    (Some(document), effect) if !write.has_written(document) => {
                        effect_on_foreign(effect)
                    }
                    (Some(_), WriteEffect::Deleted) => WriteEffect::Kept,
                    (None, WriteEffect::Deleted) => WriteEffect::Deleted,
                    (None, _) if is_followed => match write.action {
                        Action::Insert { .. } => WriteEffect::Moved,
                        _ => return Err(WriteError::KeyChanged.into()),
                    },
                    (_, effect) => effect,
                };
                let document = document.filter(|_| returned == Returned::Text);
                let document = document.filter(|document| write.may_return(document));
                written.document = document.map(|document| document.body());
            }
        }
        Ok(())
    }

    /// Reads documents that the transaction has written.
    pub(super) async fn read_written(
        &mut self,
        target: &WriteTarget<'_>,
        keys: &[&str],
        returned: Returned,
    ) -> Result<Vec<Loaded>, Failure> {
        let bytes_max = self.document_bytes_max;
        let found = self.read(target, keys, bytes_max, returned).await;
        found.map_err(|failure| match failure.error {
            WriteError::Source(error) if error.is_size_error() => SourceError::TooLarge.into(),
            _ => failure,
        })
    }

    pub(super) async fn read(
        &mut self,
        target: &WriteTarget<'_>,
        keys: &[&str],
        bytes_max: usize,
        returned: Returned,
    ) -> Result<Vec<Loaded>, Failure> {
        self.limit_lock_waits().await?;
        let persistent = self.is_persistent(target);
        let reading = read_documents(
            &mut self.session,
            target.resource,
            &target.resource.documents_sql,
            keys,
            persistent,
            bytes_max,
            returned,
        );
        Ok(reading.await?)
    }

    /// Whether PostgreSQL may keep the plans of statements on the tables of `target`. Not with row security: a plan
    /// that was made while row security was different for a moment would be kept, too.
    fn is_persistent(&self, target: &WriteTarget<'_>) -> bool {
        !self.database.pooler() && target.resource.row_security.is_none()
    }

    pub(super) async fn run_statement(
        &mut self,
        target: &WriteTarget<'_>,
        statement: &WriteStatement,
        inputs: Inputs<'_>,
    ) -> Result<Vec<PgRow>, Failure> {
        self.limit_lock_waits().await?;
        let rows = bind_inputs(statement, target.resource, inputs)
            .persistent(self.is_persistent(target))
            .fetch_all(&mut self.session.connection)
            .await
            .map_err(|error| write_failure(error, Some(target.writable)))?;
        self.progress.send_replace(());
        self.session
            .check_rows_proof(statement.sql.proof(), &rows)?;
        Ok(rows)
    }

    /// Runs a statement that returns three numbers in each row. Rows with nulls are left out.
    pub(super) async fn find_numbers(
        &mut self,
        target: &WriteTarget<'_>,
        statement: &WriteStatement,
        inputs: Inputs<'_>,
    ) -> Result<Vec<[usize; 3]>, Failure> {
        let mut found = Vec::new();
        for row in self.run_statement(target, statement, inputs).await? {
            let number = |at: usize| -> Result<Option<usize>, SourceError> {
                let number: Option<i64> = row.try_get(at)?;
                Ok(number.and_then(|number| usize::try_from(number).ok()))
            };
            if let (Some(one), Some(two), Some(three)) = (number(0)?, number(1)?, number(2)?) {
                found.push([one, two, three]);
            }
        }
        Ok(found)
    }

    /// Runs [`SAVEPOINT`], [`ROLLBACK_TO_SAVEPOINT`] or [`RELEASE_SAVEPOINT`].
    pub(super) async fn savepoint(&mut self, sql: &'static str) -> Result<(), SourceError> {
        Ok(self.session.execute(sql).await?)
    }
}
