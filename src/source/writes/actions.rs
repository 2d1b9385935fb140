//! What is done to documents within a transaction.

use std::collections::HashSet;

use bytes::Bytes;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::resource::body::{Scratch, WriteMode, merge_patch, rows_of};
use crate::resource::key::key_parts;
use crate::resource::writable::Rows;
use crate::source::SourceError;
use crate::source::writes::bound::{Inputs, joined};
use crate::source::writes::error::{Failure, Refusal, WriteError};
use crate::source::writes::transaction::{Done, Target, Transaction};
use crate::source::writes::{Action, Outcome, Write};

/// Looks at whether a document exists before it is called taken: others may insert and delete it meanwhile.
const LOOKS: usize = 3;

/// `unique_violation` (PostgreSQL manual, appendix A).
const UNIQUE_VIOLATION: &str = "23505";

impl Transaction<'_> {
    /// Inserts the documents of `writes`; one whose key exists is left out, with all its rows.
    pub(super) async fn insert(
        &mut self,
        target: &Target<'_>,
        writes: &[&Write],
    ) -> Result<Vec<Result<Done, WriteError>>, Failure> {
        let documents = writes.iter().filter_map(|write| match &write.action {
            Action::Insert { rows } => Some(rows),
            _ => None,
        });
        let mut rows = joined(target.writable, documents);
        self.complete(target, &mut rows).await?;
        let inserted = self.insert_rows(target, &rows).await?;
        let mut outcomes: Vec<_> = writes.iter().map(|_| Err(WriteError::Exists)).collect();
        for (document, done) in inserted {
            if let Some(outcome) = outcomes.get_mut(document) {
                *outcome = Ok(done);
            }
        }
        Ok(outcomes)
    }

    /// Inserts the documents of `rows` whose keys do not exist: their numbers, and what became of them.
    pub(super) async fn insert_rows(
        &mut self,
        target: &Target<'_>,
        rows: &Rows,
    ) -> Result<Vec<(usize, Done)>, Failure> {
        let inputs = Inputs {
            given: Some(rows),
            ..Inputs::key("")
        };
        let found = self.ask(target, &target.sql.insert, inputs).await?;
        let mut done = Vec::with_capacity(found.len());
        let (mut inserted, mut numbers) = (0, HashSet::new());
        for row in &found {
            inserted = row.try_get::<i64, _>(1).map_err(SourceError::from)?;
            let number: Option<i64> = row.try_get(2).map_err(SourceError::from)?;
            let Some(number) = number.and_then(|number| usize::try_from(number).ok()) else {
                continue;
            };
            if numbers.insert(number) {
                let document = Done {
                    outcome: Outcome::Created,
                    key: row.try_get(3).map_err(SourceError::from)?,
                    xid: xid_of(row)?.ok_or_else(unnumbered)?,
                };
                done.push((number.saturating_sub(1), document));
            }
        }
        if usize::try_from(inserted) != Ok(done.len()) {
            let why = format!("{}: a trigger changes keys", target.resource.name);
            return Err(SourceError::Unexpected(why).into());
        }
        Ok(done)
    }

    /// What is no mere insert.
    pub(super) async fn alone(
        &mut self,
        target: &Target<'_>,
        write: &Write,
    ) -> Result<Done, Failure> {
        match &write.action {
            Action::Insert { .. } => Err(WriteError::Exists.into()),
            Action::Replace { key, rows } => self.replace(target, write, key, rows).await,
            Action::Patch { key, patch } => self.patch(target, write, key, patch).await,
            Action::Delete { key } => self.delete(target, write, key).await,
        }
    }

    /// Locks the document's root row: the transaction's number, if there is one.
    async fn lock(&mut self, target: &Target<'_>, key: &str) -> Result<Option<u64>, Failure> {
        let found = self.ask(target, &target.sql.lock, Inputs::key(key)).await?;
        Ok(found.first().map(xid_of).transpose()?.flatten())
    }

    /// Locks the rows below a root row that is locked.
    async fn lock_below(&mut self, target: &Target<'_>, key: &str) -> Result<(), Failure> {
        for statement in &target.sql.lock_below {
            self.ask(target, statement, Inputs::key(key)).await?;
        }
        Ok(())
    }

    /// The document as it stands, all of whose rows are locked.
    async fn read_locked(&mut self, target: &Target<'_>, key: &str) -> Result<Bytes, Failure> {
        let document = self.read(target, &[key]).await?.pop().transpose()?;
        let gone = || SourceError::Unexpected("a locked document is gone".into());
        Ok(document.flatten().ok_or_else(gone)?)
    }

    /// The rows of `document`, which was read; none where it has no more than its root row, which is locked.
    async fn rows_read(
        &mut self,
        target: &Target<'_>,
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
        let read = rows_of(writable, document, mode, &mut Scratch::default(), &mut rows);
        read.map_err(WriteError::Body)?;
        self.complete(target, &mut rows).await?;
        Ok(Some(rows))
    }

    /// Holds the condition of `write` against the document, whose root row is locked if it is `there`, and locks as
    /// much below it as the write needs: the document's rows where it was read.
    async fn check(
        &mut self,
        target: &Target<'_>,
        write: &Write,
        key: &str,
        there: bool,
    ) -> Result<Option<Rows>, Failure> {
        // A row that somebody adds below one that is neither root nor lowest, while that is deleted, would be a
        // conflict that no client can help.
        let has_inner_rows = target.sql.lock_below.len() > 1;
        if there && (has_inner_rows || write.condition.is_some()) {
            self.lock_below(target, key).await?;
        }
        let Some(condition) = &write.condition else {
            return Ok(None);
        };
        let document = if there {
            Some(self.read_locked(target, key).await?)
        } else {
            None
        };
        if !condition(document.as_deref()) {
            return Err(WriteError::Precondition.into());
        }
        match document {
            Some(document) => self.rows_read(target, key, &document).await,
            None => Ok(None),
        }
    }

    async fn replace(
        &mut self,
        target: &Target<'_>,
        write: &Write,
        key: &str,
        rows: &Rows,
    ) -> Result<Done, Failure> {
        let mut rows = rows.clone();
        self.complete(target, &mut rows).await?;
        for _ in 0..LOOKS {
            let there = self.lock(target, key).await?;
            let read = self.check(target, write, key, there.is_some()).await?;
            if let Some(xid) = there {
                let inputs = Inputs {
                    key,
                    given: Some(&rows),
                    read: read.as_ref(),
                };
                return self.modify(target, inputs, xid).await;
            }
            // Somebody may insert it at the same time; then it is there at the next look.
            if let Some((_, done)) = self.insert_rows(target, &rows).await?.pop() {
                return Ok(done);
            }
        }
        Err(WriteError::Refused {
            code: UNIQUE_VIOLATION.into(),
            refusal: Refusal::Conflict,
            pointer: None,
        }
        .into())
    }

    /// Makes the rows of a locked document those that are given. What goes makes room for what is new.
    async fn modify(
        &mut self,
        target: &Target<'_>,
        inputs: Inputs<'_>,
        xid: u64,
    ) -> Result<Done, Failure> {
        let changes = match inputs.read {
            Some(_) => &target.sql.replace_read,
            None => &target.sql.replace,
        };
        let statements = [
            &changes.delete_others,
            &changes.update,
            &changes.insert_others,
        ];
        for statement in statements.into_iter().flatten() {
            self.ask(target, statement, inputs).await?;
        }
        Ok(Done {
            outcome: Outcome::Replaced,
            key: inputs.key.to_owned(),
            xid,
        })
    }

    async fn patch(
        &mut self,
        target: &Target<'_>,
        write: &Write,
        key: &str,
        patch: &[u8],
    ) -> Result<Done, Failure> {
        let Some(xid) = self.lock(target, key).await? else {
            return Err(absent(write).into());
        };
        self.lock_below(target, key).await?;
        let document = self.read_locked(target, key).await?;
        if let Some(condition) = &write.condition
            && !condition(Some(&document))
        {
            return Err(WriteError::Precondition.into());
        }
        let read = self.rows_read(target, key, &document).await?;
        let mut rows = Rows::of(target.writable);
        let parts = key_parts(key, target.resource.key.columns.len());
        let mut scratch = Scratch::default();
        let writable = target.writable;
        let patched = merge_patch(writable, &document, patch, &mut scratch);
        let patched = patched.and_then(|patched| {
            let mode = WriteMode::Replace(&parts);
            rows_of(writable, &patched, mode, &mut scratch, &mut rows)
        });
        patched.map_err(WriteError::Body)?;
        self.complete(target, &mut rows).await?;
        let inputs = Inputs {
            key,
            given: Some(&rows),
            read: read.as_ref(),
        };
        self.modify(target, inputs, xid).await
    }

    async fn delete(
        &mut self,
        target: &Target<'_>,
        write: &Write,
        key: &str,
    ) -> Result<Done, Failure> {
        let Some(xid) = self.lock(target, key).await? else {
            return Err(absent(write).into());
        };
        let read = self.check(target, write, key, true).await?;
        let statement = match read {
            Some(_) => &target.sql.delete_read,
            None => &target.sql.delete,
        };
        let inputs = Inputs {
            read: read.as_ref(),
            ..Inputs::key(key)
        };
        self.ask(target, statement, inputs).await?;
        Ok(Done {
            outcome: Outcome::Deleted,
            key: key.to_owned(),
            xid,
        })
    }
}

/// The transaction's number, which is the first column of a row; `None` where the statement found nothing.
fn xid_of(row: &PgRow) -> Result<Option<u64>, SourceError> {
    let xid: Option<String> = row.try_get(0)?;
    let xid = xid.map(|xid| xid.parse());
    xid.transpose().map_err(|_| unnumbered())
}

fn unnumbered() -> SourceError {
    SourceError::Unexpected("a statement returned no transaction number".into())
}

/// What there is to say of a document that is not there.
fn absent(write: &Write) -> WriteError {
    match &write.condition {
        Some(condition) if !condition(None) => WriteError::Precondition,
        _ => WriteError::Absent,
    }
}
