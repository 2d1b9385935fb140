//! References to rows that are written later, such as that of a person to its main address, which is one of its children.
//!
//! A constraint that may be checked at the end of the transaction is deferred. Otherwise a new row gets such a reference
//! once the row that it refers to is inserted, if the columns may be null; and rows are deleted after all updates. If a new
//! value is that of a row to be deleted, so that this row must go first, stored rows lose such references before and get them
//! after the insertions.

use std::collections::BTreeMap;

use crate::resource::writable::{ColumnInput, ForwardReference, Rows, Writable};
use crate::source::SourceError;
use crate::source::writes::error::Failure;
use crate::source::writes::inputs::Inputs;
use crate::source::writes::row_by_row::ChangedRow;
use crate::source::writes::transaction::{Transaction, WriteTarget};

/// References of rows of one level that are set once all rows are inserted.
pub(super) struct Postponed {
    level: usize,
    columns: Vec<usize>,
    /// The numbers of the rows, and what the body gives for the columns.
    rows: Vec<(usize, Vec<ColumnInput>)>,
}

/// Sets the references from new rows to new rows of later levels to null. `new` has the numbers of the new rows of a level.
pub(super) fn postpone(
    writable: &Writable,
    rows: &mut Rows,
    new: impl Fn(usize) -> Vec<usize>,
) -> Vec<Postponed> {
    let mut postponed = Vec::new();
    for key in &writable.forward_references {
        if !new(key.target).is_empty() {
            let is_text = |input: &ColumnInput| matches!(input, ColumnInput::Text(_));
            let columns = nullable_columns(writable, key);
            postponed.extend(set_null(rows, key.level, columns, &new(key.level), is_text));
        }
    }
    postponed
}

/// The columns of a reference that may be null for a while. None if its constraint is checked at the end.
fn nullable_columns(writable: &Writable, key: &ForwardReference) -> Vec<usize> {
    let Some(known) = writable.levels.get(key.level) else {
        return Vec::new();
    };
    let may_be_null = |&at: &usize| {
        let is_link = known.link.iter().any(|(own, _)| *own == at);
        key.deferrable.is_none()
            && known.columns[at].nullable
            && !known.key.contains(&at)
            && !is_link
    };
    key.columns.iter().copied().filter(may_be_null).collect()
}

/// Sets `columns` of those rows with these `numbers` to null that give an input for each of them that `is_set`.
fn set_null(
    rows: &mut Rows,
    level: usize,
    columns: Vec<usize>,
    numbers: &[usize],
    is_set: impl Fn(&ColumnInput) -> bool,
) -> Option<Postponed> {
    let of = rows.levels.get_mut(level).filter(|_| !columns.is_empty())?;
    let mut open = Vec::new();
    for &row in numbers {
        let given = columns.iter().map(|&at| of.columns[at][row].clone());
        let given: Vec<ColumnInput> = given.collect();
        if given.iter().all(&is_set) {
            columns
                .iter()
                .for_each(|&at| of.columns[at][row] = ColumnInput::Null);
            open.push((row, given));
        }
    }
    (!open.is_empty()).then_some(Postponed {
        level,
        columns,
        rows: open,
    })
}

impl Transaction<'_> {
    /// Lets PostgreSQL check the references at the end that may be checked there.
    pub(super) async fn defer_references(
        &mut self,
        target: &WriteTarget<'_>,
    ) -> Result<(), SourceError> {
        let references = target.writable.forward_references.iter();
        let names = references.filter_map(|key| key.deferrable.as_deref());
        let names: Vec<&str> = names.collect();
        if !names.is_empty() {
            let sql = format!("set constraints {} deferred", names.join(", "));
            self.session.execute(&sql).await?;
        }
        Ok(())
    }

    /// Sets the references of stored rows to null that are among the `changed` columns of the document `key`, if an attempt
    /// before has violated a unique constraint.
    pub(super) async fn release_references(
        &mut self,
        target: &WriteTarget<'_>,
        key: &str,
        rows: &mut Rows,
        stored: Option<&Rows>,
        changed: &BTreeMap<usize, Vec<ChangedRow>>,
    ) -> Result<Vec<Postponed>, Failure> {
        let mut released = Vec::new();
        if !self.was_violated {
            return Ok(released);
        }
        for reference in &target.writable.forward_references {
            let level = reference.level;
            let columns = nullable_columns(target.writable, reference);
            let moved = changed.get(&level).into_iter().flatten();
            let moved = moved.filter(|(_, of)| columns.iter().any(|at| of.contains(at)));
            let moved: Vec<usize> = moved.map(|(row, _)| *row).collect();
            let is_set =
                |input: &ColumnInput| matches!(input, ColumnInput::Text(_) | ColumnInput::Null);
            let Some(postponed) = set_null(rows, level, columns, &moved, is_set) else {
                continue;
            };
            let numbers: Vec<usize> = postponed.rows.iter().map(|(row, _)| *row).collect();
            let inputs = Inputs::document(key, rows, stored);
            self.update_rows(target, level, &postponed.columns, &numbers, inputs)
                .await?;
            released.push(postponed);
        }
        Ok(released)
    }

    /// Sets the references that were `postponed`, now that all rows of the document `key` are inserted.
    pub(super) async fn set_postponed(
        &mut self,
        target: &WriteTarget<'_>,
        key: &str,
        rows: &mut Rows,
        stored: Option<&Rows>,
        postponed: Vec<Postponed>,
    ) -> Result<(), Failure> {
        for Postponed {
            level,
            columns,
            rows: open,
        } in postponed
        {
            let mut numbers = Vec::with_capacity(open.len());
            for (row, given) in open {
                for (&at, input) in columns.iter().zip(given) {
                    rows.levels[level].columns[at][row] = input;
                }
                numbers.push(row);
            }
            let inputs = Inputs::document(key, rows, stored);
            self.update_rows(target, level, &columns, &numbers, inputs)
                .await?;
        }
        Ok(())
    }
}
