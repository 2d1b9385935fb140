//! The statements that make the rows of a document those of the body, and change no other rows.
//!
//! Between the statements of a transaction other sessions may add rows below a locked root row, if the foreign key was
//! dropped, is not enforced, or is bypassed (`session_replication_role`, a subscription). A row that was added since
//! the document was read is neither deleted nor updated. If the document was not read, one statement deletes the rows
//! that it sees in its snapshot: a row that is added later counts as added after the whole write.

use crate::resource::writable::Level;
use crate::resource::write::{
    Change, ChangeScope, Origin, Parameters, Part, ReplaceSql, StatementBuilder, alone, equal_sql,
    inserted_sql, may_be_absent, stored_sql, together, value_sql,
};

/// A condition: two values differ in their text. Their type needs no equality operator then. Values that are equal but
/// not the same (`1.0` and `1.00`, texts under some collations) differ, as they do in documents.
fn differs_sql(one: &str, other: &str) -> String {
    format!("({one})::text collate \"C\" is distinct from ({other})::text collate \"C\"")
}

/// A condition: row `r` of a level has the identity of row `u`, which is a parameter.
pub(super) fn same_row_sql(level: &Level) -> String {
    equal_sql(level, &level.identity())
}

impl StatementBuilder<'_> {
    pub(super) fn replace(&self, scope: ChangeScope) -> ReplaceSql {
        let levels = 0..self.writable.levels.len();
        let below = 1..levels.end;
        let mut changes = Vec::new();
        if self.writable.has_triggers {
            for number in below.rev() {
                changes.push(alone(|parameters| {
                    self.delete_others(scope, number, parameters)
                }));
            }
            for number in levels {
                if !self.writable.levels[number].updated_columns().is_empty() {
                    changes.push(alone(|parameters| self.update(scope, number, parameters)));
                }
                if number > 0 {
                    changes.push(Change {
                        missing: Some(self.missing(number)),
                        ..alone(|parameters| self.insert_others(scope, number, parameters))
                    });
                }
            }
            return ReplaceSql { changes };
        }
        let mut add = |parts: Vec<Part>, parameters| {
            if !parts.is_empty() {
                changes.push(together(&parts, parameters));
            }
        };
        let mut parameters = Parameters::default();
        let parts = below.clone().rev();
        let parts = parts.map(|number| self.delete_others(scope, number, &mut parameters));
        add(parts.collect(), parameters);
        let mut parameters = Parameters::default();
        let parts =
            levels.filter(|&number| !self.writable.levels[number].updated_columns().is_empty());
        let parts = parts.map(|number| self.update(scope, number, &mut parameters));
        add(parts.collect(), parameters);
        let mut parameters = Parameters::default();
        let parts = below.map(|number| self.insert_others(scope, number, &mut parameters));
        add(parts.collect(), parameters);
        ReplaceSql { changes }
    }

    /// A condition to append, ` and …`: row `r` of a level was read. Empty if all rows may be deleted.
    pub(super) fn was_read_sql(
        &self,
        scope: ChangeScope,
        number: usize,
        parameters: &mut Parameters,
    ) -> String {
        let level = &self.writable.levels[number];
        match scope {
            ChangeScope::AllRows => String::new(),
            ChangeScope::RowsRead => {
                let (read, names) =
                    self.rows_sql(Origin::Read, number, &level.identity(), None, parameters);
                let same = same_row_sql(level);
                format!(" and exists (select from {read} as u({names}) where {same})")
            }
        }
    }

    /// The rows of a level from `origin` as `u`, without those that `other` has exactly so.
    ///
    /// PostgreSQL's planner expects ten rows of an array. For `except` and `not in` it uses a hash table nevertheless;
    /// for a join or `not exists` it would compare each row with each.
    fn difference_sql(
        &self,
        [origin, other]: [Origin; 2],
        number: usize,
        columns: &[usize],
        parameters: &mut Parameters,
    ) -> String {
        let (rows, names) = self.rows_sql(origin, number, columns, None, parameters);
        let (others, _) = self.rows_sql(other, number, columns, None, parameters);
        format!("(select * from {rows} except select * from {others}) as u({names})")
    }

    /// The rows of a level that the body has, as `u`; without those that were read exactly so, if the document was
    /// read.
    fn changed_rows_sql(
        &self,
        scope: ChangeScope,
        number: usize,
        columns: &[usize],
        parameters: &mut Parameters,
    ) -> String {
        match scope {
            ChangeScope::AllRows => self.body_rows_sql(number, columns, None, parameters),
            ChangeScope::RowsRead => {
                self.difference_sql([Origin::Body, Origin::Read], number, columns, parameters)
            }
        }
    }

    fn delete_others(
        &self,
        scope: ChangeScope,
        number: usize,
        parameters: &mut Parameters,
    ) -> Part {
        let level = &self.writable.levels[number];
        let (tables, matches) = self.document_rows_sql(number, parameters);
        let (table, identity) = (level.table.sql(), level.identity());
        let input = self.body_rows_sql(number, &identity, None, parameters);
        let same = same_row_sql(level);
        let (tables, condition) = match scope {
            ChangeScope::AllRows => (
                tables,
                format!("{matches} and not exists (select from {input} where {same})"),
            ),
            ChangeScope::RowsRead => {
                let origins = [Origin::Read, Origin::Body];
                let gone = self.difference_sql(origins, number, &identity, parameters);
                let columns = identity.iter();
                let names: Vec<String> = columns
                    .map(|&column| format!("r.{}", level.column_sql(column)))
                    .collect();
                let columns = identity.iter();
                let values: Vec<String> = columns.map(|&column| value_sql(level, column)).collect();
                (
                    format!("{gone}, {tables}"),
                    format!(
                        "{matches} and {same} and ({}) not in (select {} from {input})",
                        names.join(", "),
                        values.join(", ")
                    ),
                )
            }
        };
        Part {
            sql: format!("delete from {table} r using {tables} where {condition}"),
            rows: format!("{table} r, {tables} where {condition}"),
        }
    }

    /// Updates the rows of a level that differ from the body; the level must have columns to update.
    fn update(&self, scope: ChangeScope, number: usize, parameters: &mut Parameters) -> Part {
        let level = &self.writable.levels[number];
        let updated = level.updated_columns();
        let all = [level.identity(), updated.clone()].concat();
        let input = self.changed_rows_sql(scope, number, &all, parameters);
        let (mut sets, mut differences) = (Vec::new(), Vec::new());
        for column in updated {
            let (name, value) = (level.column_sql(column), value_sql(level, column));
            let differs = differs_sql(&format!("r.{name}"), &stored_sql(level, column));
            // A column that the body leaves out keeps its value. A new default would change it with each write.
            if may_be_absent(&level.columns[column]) {
                sets.push(format!(
                    "{name} = case when u.a{column} then r.{name} else {value} end"
                ));
                differences.push(format!("not u.a{column} and {differs}"));
            } else {
                sets.push(format!("{name} = {value}"));
                differences.push(differs);
            }
        }
        let table = level.table.sql();
        let condition = format!("{} and ({})", same_row_sql(level), differences.join(" or "));
        Part {
            sql: format!(
                "update {table} r set {} from {input} where {condition}",
                sets.join(", ")
            ),
            rows: format!("{table} r, {input} where {condition}"),
        }
    }

    fn insert_others(
        &self,
        scope: ChangeScope,
        number: usize,
        parameters: &mut Parameters,
    ) -> Part {
        let level = &self.writable.levels[number];
        let columns = level.inserted_columns();
        let input = self.changed_rows_sql(scope, number, &columns, parameters);
        let values: Vec<String> = columns.iter().map(|&n| inserted_sql(level, n)).collect();
        let rows = format!(
            "{input} where not exists (select from {} r where {})",
            level.table.sql(),
            same_row_sql(level)
        );
        Part {
            sql: format!(
                "{} select {} from {rows}",
                level.insert_into_sql(),
                values.join(", ")
            ),
            rows,
        }
    }
}
