//! Whether a table has triggers for statements or for rows (measurements: `docs/decisions/0001-triggers.md`).

use crate::resource::catalogue::Table;

/// How the changes of a link's rows are noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TriggerLevel {
    /// Once for each statement, and by row for what replication applies.
    Statement,
    /// Once for each row.
    Row {
        /// The table has inheriting tables. No unique index spans those: a new row may bear a key that is there.
        heirs: bool,
    },
}

impl TriggerLevel {
    /// Rows for tables in a hierarchy: a statement on an ancestor that is not followed fires no statement trigger; a
    /// `merge` that moves a row to another partition shows it to triggers for actions that it does not name; and a
    /// foreign table that is attached below makes PostgreSQL refuse statements where there are transition tables.
    pub(super) fn of(table: Option<&Table>) -> Self {
        let in_hierarchy = table.is_some_and(|table| {
            table.kind == 'p' || !table.descendants.is_empty() || table.has_other_ancestors
        });
        let heirs = |table: &Table| table.kind != 'p' && !table.descendants.is_empty();
        if in_hierarchy {
            Self::Row {
                heirs: table.is_some_and(heirs),
            }
        } else {
            Self::Statement
        }
    }
}
