//! Rows that conditions hide: those that a write conflicts with, and those that it would leave.

use crate::resource::body::{BodyError, MISMATCHES_MAX, Mismatch};
use crate::resource::writable::Rows;
use crate::source::writes::error::{Failure, WriteError};
use crate::source::writes::inputs::Inputs;
use crate::source::writes::transaction::{Transaction, WriteTarget};

/// A row of a body with whose key the table has a row that a condition hides.
pub(super) struct HiddenRow {
    pub(super) level: usize,
    /// The number of its document in the body, counted from 0.
    pub(super) document: usize,
    /// The JSON pointer in the document.
    pub(super) pointer: String,
}

impl Transaction<'_> {
    /// Finds the rows of `rows` with whose keys the tables have hidden rows. Finds none without conditions.
    pub(super) async fn find_hidden(
        &mut self,
        target: &WriteTarget<'_>,
        rows: &Rows,
    ) -> Result<Vec<HiddenRow>, Failure> {
        let Some(statement) = &target.sql.hidden_rows else {
            return Ok(Vec::new());
        };
        let found = self.find_numbers(target, statement, Inputs::rows(rows));
        let found = found.await?.into_iter();
        let hidden = found.map(|[level, row, document]| HiddenRow {
            level,
            document: document.saturating_sub(1),
            pointer: target.writable.pointer(rows, level, row.saturating_sub(1)),
        });
        Ok(hidden.collect())
    }

    /// After an attempt that has violated a unique constraint: checks that no hidden row has a key of `rows`.
    ///
    /// # Errors
    /// [`WriteError::HiddenKey`].
    pub(super) async fn check_hidden_keys(
        &mut self,
        target: &WriteTarget<'_>,
        rows: &Rows,
    ) -> Result<(), Failure> {
        if !self.was_violated {
            return Ok(());
        }
        match self.find_hidden(target, rows).await? {
            hidden if hidden.is_empty() => Ok(()),
            hidden => Err(hidden_key(hidden).into()),
        }
    }

    /// Checks that conditions hide none of `rows`, which were written. Triggers that are deferred may hide some; a bulk
    /// write calls these only at its end.
    ///
    /// # Errors
    /// [`BodyError::Mismatches`] with the hidden ones.
    pub(super) async fn check_visible(
        &mut self,
        target: &WriteTarget<'_>,
        rows: &Rows,
    ) -> Result<(), Failure> {
        if target.sql.hidden_rows.is_none() {
            return Ok(());
        }
        if !self.is_bulk() {
            self.run_deferred(target).await?;
        }
        let hidden = self.find_hidden(target, rows).await?;
        visible(hidden).map_err(Failure::from)
    }
}

/// The error of a write of rows with whose keys there are `hidden` ones.
pub(super) fn hidden_key(hidden: Vec<HiddenRow>) -> WriteError {
    let pointers = hidden.into_iter().map(|row| row.pointer);
    WriteError::HiddenKey(pointers.take(MISMATCHES_MAX).collect())
}

/// The error of a write that leaves `hidden` rows, if there are any.
pub(super) fn visible(hidden: impl IntoIterator<Item = HiddenRow>) -> Result<(), WriteError> {
    let hidden = hidden.into_iter().take(MISMATCHES_MAX);
    let mismatches = hidden.map(|row| Mismatch {
        pointer: row.pointer,
        message: "would be hidden: the condition of the resource is not true for it".to_owned(),
    });
    let mismatches: Vec<Mismatch> = mismatches.collect();
    if mismatches.is_empty() {
        return Ok(());
    }
    Err(WriteError::Body(BodyError::Mismatches(mismatches)))
}
