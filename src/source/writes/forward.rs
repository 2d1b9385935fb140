//! References to rows that are written later, such as that of a person to its main address, which is one of its children.
//!
//! A constraint that may be checked at the end of the transaction is deferred. Otherwise a new row gets such a reference
//! once the row that it refers to is inserted, if the columns may be null; and rows are deleted after all updates.

use crate::resource::writable::{ColumnInput, Rows, Writable};
use crate::source::SourceError;
use crate::source::writes::error::Failure;
use crate::source::writes::inputs::Inputs;
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
        let (Some(known), Some(of)) = (
            writable.levels.get(key.level),
            rows.levels.get_mut(key.level),
        ) else {
            continue;
        };
        let may_be_null = |&at: &usize| {
            let is_link = known.link.iter().any(|(own, _)| *own == at);
            known.columns[at].nullable && !known.key.contains(&at) && !is_link
        };
        let columns: Vec<usize> = key.columns.iter().copied().filter(may_be_null).collect();
        if columns.is_empty() || key.deferrable.is_some() || new(key.target).is_empty() {
            continue;
        }
        let mut open = Vec::new();
        for row in new(key.level) {
            let given = columns.iter().map(|&at| of.columns[at][row].clone());
            let given: Vec<ColumnInput> = given.collect();
            if given
                .iter()
                .all(|input| matches!(input, ColumnInput::Text(_)))
            {
                columns
                    .iter()
                    .for_each(|&at| of.columns[at][row] = ColumnInput::Null);
                open.push((row, given));
            }
        }
        if !open.is_empty() {
            postponed.push(Postponed {
                level: key.level,
                columns,
                rows: open,
            });
        }
    }
    postponed
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
