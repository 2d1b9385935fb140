//! Writes of principals that are restricted to documents of their own.
//!
//! Documents of others are absent for them, before anything else is said. A document that they write names no other owner,
//! and its rows point only to rows that they may point to. What triggers change is theirs to say.

use sqlx::Row;

use crate::resource::Scope;
use crate::resource::body::MISMATCHES_MAX;
use crate::resource::writable::{ColumnInput, Rows, Writable, pointer_token};
use crate::resource::write::PointerCheck;
use crate::source::SourceError;
use crate::source::loader::LoadedDocument;
use crate::source::writes::differences::Differences;
use crate::source::writes::error::{Failure, WriteError};
use crate::source::writes::inputs::{Inputs, select_rows};
use crate::source::writes::transaction::{Transaction, WriteTarget};
use crate::source::writes::{Action, Write};

impl Write {
    /// Checks an insert before it waits for PostgreSQL.
    ///
    /// # Errors
    /// [`WriteError::ForeignOwner`] if it names another owner.
    pub(super) fn check_inserted(&self) -> Result<(), WriteError> {
        match (&self.action, &self.resource.writable) {
            (Action::Insert { rows }, Ok(writable)) => check_owner(writable, &self.writer, rows),
            _ => Ok(()),
        }
    }

    /// Whether a document that it has written is still one that it may write.
    pub(super) fn has_written(&self, document: &LoadedDocument) -> bool {
        self.writer.contains(document.kept().owner())
    }

    /// Whether a document that it has written may be returned.
    pub(super) fn may_return(&self, document: &LoadedDocument) -> bool {
        self.has_written(document) && self.reader.contains(document.kept().owner())
    }
}

/// Checks that the documents of `rows` are in `scope`.
///
/// # Errors
/// [`WriteError::ForeignOwner`]
pub(super) fn check_owner(
    writable: &Writable,
    scope: &Scope<'_>,
    rows: &Rows,
) -> Result<(), WriteError> {
    match foreign_document(writable, scope, rows) {
        Some(_) => Err(WriteError::ForeignOwner),
        None => Ok(()),
    }
}

/// The number of the first document of `rows` that is not in `scope`, counted from 0.
pub(super) fn foreign_document(
    writable: &Writable,
    scope: &Scope<'_>,
    rows: &Rows,
) -> Option<usize> {
    match scope {
        Scope::All => None,
        Scope::Own(claim) => writable.foreign_document(rows, claim.as_deref()),
    }
}

/// Where a document is that a restricted principal can't lock.
struct Found {
    /// The document has the claim: a policy of row security keeps larder's role from locking it.
    is_own: bool,
    /// There is a document with the key.
    is_stored: bool,
}

impl Transaction<'_> {
    /// Locks the root row of the document that a `PUT` of a restricted principal replaces. Returns the number of the
    /// transaction, or `None` if the document is to be created.
    ///
    /// # Errors
    /// [`WriteError::Absent`] if the document is another's, or would not be created because of the precondition.
    pub(super) async fn lock_owned(
        &mut self,
        target: &WriteTarget<'_>,
        write: &Write,
        key: &str,
    ) -> Result<Option<u64>, Failure> {
        let xid = self.lock_root(target, write, key).await?;
        if xid.is_some() {
            return Ok(xid);
        }
        let is_created = |holds: &super::Precondition| holds(None);
        let found = self.find(target, &write.writer, key).await?;
        match found {
            Found { is_own: true, .. } => Err(WriteError::forbidden().into()),
            Found {
                is_stored: true, ..
            } => Err(WriteError::Absent.into()),
            _ if !write.precondition.as_ref().is_none_or(is_created) => {
                Err(WriteError::Absent.into())
            }
            _ => Ok(None),
        }
    }

    /// The error of a restricted write to a document that [`Self::lock_root`] has not found: the same, whether it is
    /// absent or another's.
    pub(super) async fn not_owned(
        &mut self,
        target: &WriteTarget<'_>,
        write: &Write,
        key: &str,
    ) -> Result<WriteError, Failure> {
        let is_secured = target.resource.row_security.is_some();
        if is_secured && self.find(target, &write.writer, key).await?.is_own {
            return Ok(WriteError::forbidden());
        }
        Ok(WriteError::Absent)
    }

    async fn find(
        &mut self,
        target: &WriteTarget<'_>,
        scope: &Scope<'_>,
        key: &str,
    ) -> Result<Found, Failure> {
        let Some(owned) = &target.sql.owned else {
            return Err(without_owner());
        };
        let inputs = Inputs::key(key).claimed_by(scope);
        let rows = self.run_statement(target, &owned.find, inputs).await?;
        let row = rows.first().ok_or_else(without_owner)?;
        Ok(Found {
            is_own: row.try_get(0).map_err(SourceError::from)?,
            is_stored: row.try_get(1).map_err(SourceError::from)?,
        })
    }

    /// Checks the owner of a document that was written, if PostgreSQL computes it.
    ///
    /// # Errors
    /// [`WriteError::ForeignOwner`]
    pub(super) async fn check_generated_owner(
        &mut self,
        target: &WriteTarget<'_>,
        scope: &Scope<'_>,
        key: &str,
    ) -> Result<(), Failure> {
        let is_checked = scope.is_restricted() && target.writable.has_generated_owner();
        if is_checked && !self.find(target, scope, key).await?.is_own {
            return Err(WriteError::ForeignOwner.into());
        }
        Ok(())
    }

    /// Checks that new rows point only to rows that a principal with `scope` may point to.
    ///
    /// # Errors
    /// [`WriteError::ForeignTargets`]
    pub(super) async fn check_new_targets(
        &mut self,
        target: &WriteTarget<'_>,
        scope: &Scope<'_>,
        rows: &Rows,
    ) -> Result<(), Failure> {
        let all = |check: &PointerCheck| {
            let level = rows.levels.get(check.level);
            (0..level.map_or(0, |level| level.count())).collect()
        };
        self.check_targets(target, scope, rows, all).await
    }

    /// The same for the rows that `differences` says are new, or differ in the columns that point.
    pub(super) async fn check_changed_targets(
        &mut self,
        target: &WriteTarget<'_>,
        scope: &Scope<'_>,
        rows: &Rows,
        differences: &Differences,
    ) -> Result<(), Failure> {
        let differing = |check: &PointerCheck| {
            let pointer = &target.writable.levels[check.level].pointers[check.pointer];
            let new = differences.new.get(&check.level).into_iter().flatten();
            let changed = differences.changed.get(&check.level).into_iter().flatten();
            let points = |columns: &[usize]| columns.iter().any(|at| pointer.columns.contains(at));
            let changed = changed.filter(|(_, columns)| points(columns));
            let mut found: Vec<usize> = new.copied().chain(changed.map(|(row, _)| *row)).collect();
            found.sort_unstable();
            found
        };
        self.check_targets(target, scope, rows, differing).await
    }

    /// Once new rows are stored, checks those that leave a part of a pointer to its default, which was not known before: all
    /// rows of new documents, or those that `differences` says are new.
    ///
    /// # Errors
    /// [`WriteError::ForeignTargets`]
    pub(super) async fn check_stored_targets(
        &mut self,
        target: &WriteTarget<'_>,
        scope: &Scope<'_>,
        rows: &Rows,
        differences: Option<&Differences>,
    ) -> Result<(), Failure> {
        let defaulted =
            |check: &PointerCheck| defaulted_rows(target.writable, check, rows, differences);
        self.check_targets(target, scope, rows, defaulted).await
    }

    async fn check_targets(
        &mut self,
        target: &WriteTarget<'_>,
        scope: &Scope<'_>,
        rows: &Rows,
        selected: impl Fn(&PointerCheck) -> Vec<usize>,
    ) -> Result<(), Failure> {
        let owned = target.sql.owned.as_ref().filter(|_| scope.is_restricted());
        let mut pointers = Vec::new();
        for check in owned.iter().flat_map(|owned| &owned.foreign_targets) {
            let mut selected = selected(check);
            selected.retain(|&row| names_target(target.writable, check, rows, row));
            if selected.is_empty() {
                continue;
            }
            let part = select_rows(target.writable, rows, check.level, &selected);
            let inputs = Inputs::rows(&part).claimed_by(scope);
            let found = self.find_numbers(target, &check.statement, inputs).await?;
            for [level, column, number] in found {
                let Some(&row) = selected.get(number.saturating_sub(1)) else {
                    continue;
                };
                pointers.push(member(target.writable, rows, level, row, column));
            }
        }
        if pointers.is_empty() {
            Ok(())
        } else {
            Err(WriteError::ForeignTargets(pointers).into())
        }
    }
}

/// The error of new rows that PostgreSQL has refused: whether a row of others exists that they point to is not told. A part
/// of such a pointer is a default, so it was not known before. As for [`Transaction::check_stored_targets`].
pub(super) fn without_missing_targets(
    target: &WriteTarget<'_>,
    scope: &Scope<'_>,
    rows: &Rows,
    differences: Option<&Differences>,
    failure: Failure,
) -> Failure {
    let owned = target.sql.owned.as_ref().filter(|_| scope.is_restricted());
    let is_missing = failure.error.is_foreign_key_violation();
    let Some(owned) = owned.filter(|_| is_missing) else {
        return failure;
    };
    let writable = target.writable;
    let checks = owned.foreign_targets.iter();
    let pointers = checks.flat_map(|check| {
        let column = writable.levels[check.level].pointers[check.pointer].chosen[0];
        let found = defaulted_rows(writable, check, rows, differences).into_iter();
        let found = found.filter(|&row| names_target(writable, check, rows, row));
        found.map(move |row| member(writable, rows, check.level, row, column))
    });
    let pointers: Vec<String> = pointers.take(MISMATCHES_MAX).collect();
    match pointers.as_slice() {
        [] => failure,
        _ => WriteError::ForeignTargets(pointers).into(),
    }
}

/// The new rows of a level that leave a part of a pointer to its default.
fn defaulted_rows(
    writable: &Writable,
    check: &PointerCheck,
    rows: &Rows,
    differences: Option<&Differences>,
) -> Vec<usize> {
    let pointer = &writable.levels[check.level].pointers[check.pointer];
    let of = &rows.levels[check.level];
    let new: Vec<usize> = match differences {
        Some(differences) => {
            let new = differences.new.get(&check.level);
            new.into_iter().flatten().copied().collect()
        }
        None => (0..of.count()).collect(),
    };
    let is_defaulted = |&row: &usize| {
        let mut inputs = pointer.columns.iter().map(|&at| of.columns[at].get(row));
        inputs.any(|input| input == Some(&ColumnInput::Absent))
    };
    new.into_iter().filter(is_defaulted).collect()
}

/// The JSON pointer to a member of a row.
fn member(writable: &Writable, rows: &Rows, level: usize, row: usize, column: usize) -> String {
    let field = writable.levels[level].columns[column].field.as_deref();
    let field = field.map(|field| format!("/{}", pointer_token(field)));
    writable.pointer(rows, level, row) + &field.unwrap_or_default()
}

/// Whether a row of the body names a value of the columns that a client chooses.
fn names_target(writable: &Writable, check: &PointerCheck, rows: &Rows, row: usize) -> bool {
    let pointer = &writable.levels[check.level].pointers[check.pointer];
    let columns = &rows.levels[check.level].columns;
    let mut chosen = pointer.chosen.iter();
    chosen.any(|&at| matches!(columns[at].get(row), Some(ColumnInput::Text(_))))
}

fn without_owner() -> Failure {
    SourceError::Unexpected("a restricted write to documents without an owner".into()).into()
}
