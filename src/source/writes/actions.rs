//! What a transaction does to a document that may exist: replace, patch, delete.

use std::sync::Arc;

use bytes::Bytes;
use sqlx::Row;
use sqlx::postgres::PgRow;
use tokio::task::{JoinError, spawn_blocking};

use crate::resource::body::{BodyError, Scratch, WriteMode, join_refused, merge_patch, rows_of};
use crate::resource::key::key_parts;
use crate::resource::writable::Rows;
use crate::source::SourceError;
use crate::source::loader::Returned;
use crate::source::writes::error::{Failure, WriteError};
use crate::source::writes::inputs::Inputs;
use crate::source::writes::owned::check_owner;
use crate::source::writes::transaction::{
    ROLLBACK_TO_SAVEPOINT, SAVEPOINT, Transaction, WriteTarget, WrittenDocument,
};
use crate::source::writes::{Action, Write, WriteEffect};

/// A stored document that is longer than `document_max`, but not longer than so many times it, can be patched: a patch may
/// shorten it.
const LONG_PATCHED_TIMES: usize = 4;

/// Longer documents are patched by tokio's threads for blocking work, not by the workers.
const INLINE_BYTES_MAX: usize = 16 << 10;

impl Transaction<'_> {
    /// Runs a write that replaces, patches or deletes a document.
    pub(super) async fn write_single(
        &mut self,
        target: &WriteTarget<'_>,
        write: &Write,
    ) -> Result<WrittenDocument, Failure> {
        match &write.action {
            Action::Insert { .. } => Err(WriteError::exists(target.writable).into()),
            Action::Replace { key, rows } => self.replace(target, write, key, rows).await,
            Action::Patch { key, patch } => self.patch(target, write, key, patch).await,
            Action::Delete { key } => self.delete(target, write, key).await,
        }
    }

    /// Locks the root row of the document, if the write may change it. Returns the number of the transaction, or `None` if
    /// there is no such row.
    pub(super) async fn lock_root(
        &mut self,
        target: &WriteTarget<'_>,
        write: &Write,
        key: &str,
    ) -> Result<Option<u64>, Failure> {
        let owned = target.sql.owned.as_ref();
        let lock = match owned.filter(|_| write.writer.is_restricted()) {
            Some(owned) => &owned.lock,
            None => &target.sql.lock,
        };
        let inputs = Inputs::key(key).claimed_by(&write.writer);
        let found = self.run_statement(target, lock, inputs).await;
        // A claim that the database's encoding lacks equals no owner. A key that it lacks can't be created.
        let is_claim = key.is_ascii() || !matches!(write.action, Action::Replace { .. });
        let is_lacking = |failure: &Failure| failure.error.is_encoding_error() && is_claim;
        if write.writer.is_restricted() && found.as_ref().is_err_and(is_lacking) {
            return Err(WriteError::Absent.into());
        }
        let found = found?;
        Ok(found.first().map(xid_of).transpose()?.flatten())
    }

    /// The error of a write to a document whose root row [`Self::lock_root`] has not found.
    async fn not_found(
        &mut self,
        target: &WriteTarget<'_>,
        write: &Write,
        key: &str,
    ) -> Result<WriteError, Failure> {
        if write.writer.is_restricted() {
            return self.not_owned(target, write, key).await;
        }
        if self.is_only_shown(target, key).await? {
            return Ok(WriteError::forbidden());
        }
        Ok(match &write.precondition {
            Some(holds) if !holds(None) => WriteError::Precondition,
            _ => WriteError::Absent,
        })
    }

    /// Whether policies show larder's role a document whose root row they keep it from changing and so from locking.
    async fn is_only_shown(
        &mut self,
        target: &WriteTarget<'_>,
        key: &str,
    ) -> Result<bool, Failure> {
        Ok(target.resource.row_security.is_some() && self.is_stored(target, key).await?)
    }

    /// Locks the rows below a locked root row. To lock a row takes the privilege to update it, which the write itself may not
    /// need: if an attempt before was refused, rows that the role can't lock are only compared.
    async fn lock_below(&mut self, target: &WriteTarget<'_>, key: &str) -> Result<(), Failure> {
        for statement in &target.sql.lock_below {
            if self.was_forbidden {
                self.savepoint(SAVEPOINT).await?;
            }
            let inputs = Inputs::key(key);
            match self.run_statement(target, statement, inputs).await {
                Err(failure) if self.was_forbidden && failure.error.is_forbidden() => {
                    self.savepoint(ROLLBACK_TO_SAVEPOINT).await?;
                }
                locked => _ = locked?,
            }
        }
        Ok(())
    }

    /// Reads the stored document, all of whose rows are locked.
    ///
    /// # Errors
    /// [`SourceError::TooLarge`] if it has more than `bytes_max`.
    async fn read_locked(
        &mut self,
        target: &WriteTarget<'_>,
        key: &str,
        bytes_max: usize,
    ) -> Result<Bytes, Failure> {
        let read = self.read(target, &[key], bytes_max, Returned::Text).await?;
        let document = read.into_iter().next().transpose()?;
        let gone = || SourceError::Unexpected("a locked document is gone".into());
        Ok(document.flatten().ok_or_else(gone)?.body())
    }

    /// Checks the precondition of `write`, and locks the rows below the root row if the write needs that. The root row
    /// is locked if it `exists`. Returns the rows of the stored document if it was read for the precondition.
    ///
    /// # Errors
    /// [`WriteError::Precondition`] if the precondition does not hold.
    async fn check_precondition(
        &mut self,
        target: &WriteTarget<'_>,
        write: &Write,
        key: &str,
        exists: bool,
    ) -> Result<Option<Rows>, Failure> {
        // Without these locks another transaction could add rows below a row that this one deletes, if that row is
        // neither a root row nor on the lowest level. That would be a conflict that the client cannot resolve.
        let has_inner_rows = target.sql.lock_below.len() > 1;
        let needs_locks = has_inner_rows || write.precondition.is_some() || self.was_forbidden;
        if exists && needs_locks {
            self.lock_below(target, key).await?;
        }
        let Some(holds) = &write.precondition else {
            return Ok(None);
        };
        let document = if exists {
            match self.read_locked(target, key, self.document_bytes_max).await {
                Ok(document) => Some(document),
                // No client has seen it, so it has no entity tag, as an empty text has none that a client has seen. The
                // write may shorten it.
                Err(failure) if failure.is_too_large() => {
                    if holds(Some(b"")) {
                        return Ok(None);
                    }
                    return Err(WriteError::Precondition.into());
                }
                Err(failure) => return Err(failure),
            }
        } else {
            None
        };
        if !holds(document.as_deref()) {
            return Err(WriteError::Precondition.into());
        }
        match document {
            Some(document) => match stored_rows(target, key, &document) {
                // What is replaced or deleted need not be read.
                Err(Failure {
                    error: WriteError::Body(BodyError::Stored(_)),
                    ..
                }) => Ok(None),
                rows => rows,
            },
            None => Ok(None),
        }
    }

    async fn replace(
        &mut self,
        target: &WriteTarget<'_>,
        write: &Write,
        key: &str,
        rows: &Result<Rows, BodyError>,
    ) -> Result<WrittenDocument, Failure> {
        let is_restricted = write.writer.is_restricted();
        // Of a document of another owner nothing is said but that it is absent, so this comes first.
        let locked = match is_restricted.then_some(key) {
            Some(key) => Some(self.lock_owned(target, write, key).await?),
            None => None,
        };
        let mut rows = rows.clone().map_err(WriteError::Body)?;
        check_owner(target.writable, &write.writer, &rows)?;
        let replaced = self.replace_rows(target, write, key, &mut rows, locked);
        let replaced = replaced.await;
        self.rows = Some(rows);
        replaced
    }

    /// Makes the rows of the document those of `rows`. `locked` has the number of the transaction if the root row of a
    /// restricted principal is locked, or is absent.
    async fn replace_rows(
        &mut self,
        target: &WriteTarget<'_>,
        write: &Write,
        key: &str,
        rows: &mut Rows,
        locked: Option<Option<u64>>,
    ) -> Result<WrittenDocument, Failure> {
        let is_restricted = write.writer.is_restricted();
        self.check_equal_keys(target, Inputs::rows(rows)).await?;
        let xid = match locked {
            Some(xid) => xid,
            None => self.lock_root(target, write, key).await?,
        };
        if xid.is_none()
            && !is_restricted
            && self.was_violated
            && self.is_only_shown(target, key).await?
        {
            return Err(WriteError::forbidden().into());
        }
        let stored = self
            .check_precondition(target, write, key, xid.is_some())
            .await?;
        let inputs = Inputs::document(key, rows, stored.as_ref());
        self.check_hidden_keys(target, rows).await?;
        self.check_read_only(target, inputs).await?;
        if let Some(xid) = xid {
            let has_kept = self
                .update(target, write, key, rows, stored.as_ref())
                .await?;
            self.check_generated_owner(target, &write.writer, key)
                .await?;
            return Ok(replaced(key, xid, has_kept));
        }
        let mut inserted = self.insert_rows(target, &write.writer, rows).await?;
        match inserted.documents.pop() {
            Some((_, done)) if done.key == key => Ok(done),
            Some(_) => Err(WriteError::KeyChanged.into()),
            None => Err(match inserted.conflict(target.writable, 0) {
                // Another transaction has inserted it meanwhile; the next attempt finds it.
                WriteError::Exists(_) => WriteError::unique_violation().into(),
                hidden => hidden.into(),
            }),
        }
    }

    async fn patch(
        &mut self,
        target: &WriteTarget<'_>,
        write: &Write,
        key: &str,
        patch: &Bytes,
    ) -> Result<WrittenDocument, Failure> {
        let Some(xid) = self.lock_root(target, write, key).await? else {
            return Err(self.not_found(target, write, key).await?.into());
        };
        self.lock_below(target, key).await?;
        let document = self.read_locked(target, key, self.document_bytes_max).await;
        let (document, _permit) = match document {
            Err(failure) if failure.is_too_large() => {
                let long_patches = self.long_patches;
                let permit = long_patches.try_acquire();
                let permit = permit.map_err(|_| SourceError::Overloaded)?;
                let bytes_max = self.document_bytes_max.saturating_mul(LONG_PATCHED_TIMES);
                let document = self.read_locked(target, key, bytes_max).await;
                let document = document.map_err(|failure| {
                    if failure.is_too_large() {
                        WriteError::TooLongToPatch.into()
                    } else {
                        failure
                    }
                })?;
                (document, Some(permit))
            }
            document => (document?, None),
        };
        if let Some(holds) = &write.precondition
            && !holds(Some(&document))
        {
            return Err(WriteError::Precondition.into());
        }
        let stored = stored_rows(target, key, &document)?;
        let mut rows = patched_rows(write, key, document, patch).await?;
        check_owner(target.writable, &write.writer, &rows)?;
        let patched = self.patch_rows(target, write, key, &mut rows, stored.as_ref());
        let patched = patched.await;
        self.rows = Some(rows);
        Ok(replaced(key, xid, patched?))
    }

    /// Makes the rows of the locked document those of `rows`. Returns what [`Self::update`] does.
    async fn patch_rows(
        &mut self,
        target: &WriteTarget<'_>,
        write: &Write,
        key: &str,
        rows: &mut Rows,
        stored: Option<&Rows>,
    ) -> Result<bool, Failure> {
        let inputs = Inputs::document(key, rows, stored);
        self.check_equal_keys(target, inputs).await?;
        self.check_hidden_keys(target, rows).await?;
        self.check_read_only(target, inputs).await?;
        let has_kept = self.update(target, write, key, rows, stored).await?;
        self.check_generated_owner(target, &write.writer, key)
            .await?;
        Ok(has_kept)
    }

    async fn delete(
        &mut self,
        target: &WriteTarget<'_>,
        write: &Write,
        key: &str,
    ) -> Result<WrittenDocument, Failure> {
        let Some(xid) = self.lock_root(target, write, key).await? else {
            return Err(self.not_found(target, write, key).await?.into());
        };
        let stored = self.check_precondition(target, write, key, true).await?;
        let inputs = Inputs {
            stored: stored.as_ref(),
            ..Inputs::key(key)
        };
        let is_circular = target.writable.has_forward_references() && !target.may_keep();
        if !target.writable.has_triggers || is_circular {
            let delete = match stored {
                Some(_) => &target.sql.delete_read,
                None => &target.sql.delete,
            };
            self.run_statement(target, delete, inputs).await?;
        } else if stored.is_none() && !target.may_keep() && !target.writable.has_statement_delete {
            for delete in &target.sql.delete_levels {
                self.run_statement(target, delete, inputs).await?;
            }
        } else {
            self.delete_document(target, inputs).await?;
        }
        Ok(WrittenDocument {
            effect: WriteEffect::Deleted,
            key: key.to_owned(),
            xid,
        })
    }
}

/// The rows of the stored `document`; `None` if the resource has only root rows, whose locks are enough.
fn stored_rows(
    target: &WriteTarget<'_>,
    key: &str,
    document: &[u8],
) -> Result<Option<Rows>, Failure> {
    let writable = target.writable;
    if writable.levels.len() == 1 {
        return Ok(None);
    }
    let mut rows = Rows::of(writable);
    let parts = key_parts(key, target.resource.key.columns.len());
    let mode = WriteMode::Replace(&parts);
    let scratch = &mut Scratch::default();
    let read = rows_of(writable, document, mode, None, scratch, &mut rows);
    read.map_err(|error| WriteError::Body(error.of_stored()))?;
    Ok(Some(rows))
}

/// A document that was replaced. If a trigger `has_kept` rows of it, the client learns what it has now.
fn replaced(key: &str, xid: u64, has_kept: bool) -> WrittenDocument {
    WrittenDocument {
        effect: if has_kept {
            WriteEffect::Kept
        } else {
            WriteEffect::Replaced
        },
        key: key.to_owned(),
        xid,
    }
}

/// The number of the transaction, which is the first column of a row; `None` if the statement found no row of a table.
pub(super) fn xid_of(row: &PgRow) -> Result<Option<u64>, SourceError> {
    let xid: Option<String> = row.try_get(0)?;
    let xid = xid.map(|xid| xid.parse());
    xid.transpose().map_err(|_| missing_xid())
}

pub(super) fn missing_xid() -> SourceError {
    SourceError::Unexpected("a statement returned no transaction number".into())
}

/// The rows of `document` after `patch`.
async fn patched_rows(
    write: &Write,
    key: &str,
    document: Bytes,
    patch: &Bytes,
) -> Result<Rows, Failure> {
    let bytes = document.len() + patch.len();
    let (resource, key, patch) = (Arc::clone(&write.resource), key.to_owned(), patch.clone());
    let writer = write.writer.clone();
    let merge = move || {
        let writable = WriteTarget::of(&resource)?.writable;
        let mut scratch = Scratch::default();
        let mut refused = Vec::new();
        let patched = merge_patch(writable, &document, &patch, &mut scratch, &mut refused);
        let patched = patched.map_err(WriteError::Body)?;
        let parts = key_parts(&key, resource.key.columns.len());
        let mode = WriteMode::Replace(&parts);
        let mut rows = Rows::of(writable);
        let claim = writer.claim();
        let read = rows_of(writable, &patched, mode, claim, &mut scratch, &mut rows);
        join_refused(refused, read).map_err(WriteError::Body)?;
        Ok(rows)
    };
    if bytes <= INLINE_BYTES_MAX {
        return merge();
    }
    // It waits for no other work, since the transaction is open; there are no more of them than connections.
    let unexpected = |error: JoinError| SourceError::Unexpected(error.to_string());
    spawn_blocking(merge).await.map_err(unexpected)?
}
