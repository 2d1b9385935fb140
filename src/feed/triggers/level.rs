//! Whether a table has triggers for statements or for rows (measurements: `docs/decisions/0001-triggers.md`).

use crate::resource::catalogue::Table;

/// The level of the triggers on a link's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TriggerLevel {
    /// Triggers for each statement, and for each row that replication applies.
    Statement,
    /// Triggers for each row.
    Row {
        /// The table has inheriting tables. Unique indexes do not include those, so a new row may have an existing key.
        has_inheriting_tables: bool,
    },
}

impl TriggerLevel {
    /// Row triggers for tables with ancestors or descendants, for three reasons. A statement on an ancestor without
    /// triggers fires no statement trigger of its descendants. A `merge` that moves a row to another partition fires
    /// triggers for actions that it does not name. If a foreign table is attached below, PostgreSQL refuses statements
    /// on tables whose triggers have transition tables.
    pub(super) fn of(table: Option<&Table>) -> Self {
        let in_hierarchy = table.is_some_and(|table| {
            table.kind == 'p' || !table.descendants.is_empty() || table.has_other_ancestors
        });
        let has_inheriting_tables =
            |table: &Table| table.kind != 'p' && !table.descendants.is_empty();
        if in_hierarchy {
            Self::Row {
                has_inheriting_tables: table.is_some_and(has_inheriting_tables),
            }
        } else {
            Self::Statement
        }
    }
}
