//! The statements that make the rows of a document those that are given, and touch no others.

use crate::resource::proof::PROOF;
use crate::resource::writable::Level;
use crate::resource::write::{
    Parameters, Statement, Text, XID, inserted_sql, knows_absence, stored_sql, value_sql,
};

/// The text of what PostgreSQL stores. Types need no equality so, and what is equal but not the same (`1.0` and `1.00`,
/// texts under some collations) differs, as it does in documents.
fn differs_sql(one: &str, other: &str) -> String {
    format!("({one})::text collate \"C\" is distinct from ({other})::text collate \"C\"")
}

/// Row `r` of a level is the given row `u`.
fn is_given(level: &Level) -> String {
    let identity = level.identity();
    let same: Vec<String> = identity
        .iter()
        .map(|&column| {
            format!(
                "r.{} = {}",
                level.column_sql(column),
                value_sql(level, column)
            )
        })
        .collect();
    same.join(" and ")
}

impl Text<'_> {
    pub(super) fn delete_others(&self) -> Option<Statement> {
        let mut parameters = Parameters::default();
        let mut deletes = Vec::new();
        for (number, level) in self.levels().skip(1).rev() {
            let (tables, matches) = self.of_document(number, &mut parameters);
            let given = self.given(number, &level.identity(), None, &mut parameters);
            deletes.push(format!(
                "x{number} as (delete from {} r using {tables} where {matches} \
                 and not exists (select from {given} where {}))",
                level.table.sql(),
                is_given(level)
            ));
        }
        all_of(&deletes, parameters)
    }

    pub(super) fn update(&self) -> Option<Statement> {
        let mut parameters = Parameters::default();
        let mut updates = Vec::new();
        for (number, level) in self.levels() {
            let updated = level.updated_columns();
            if updated.is_empty() {
                continue;
            }
            let all = [level.identity(), updated.clone()].concat();
            let given = self.given(number, &all, None, &mut parameters);
            let (mut sets, mut differences) = (Vec::new(), Vec::new());
            for column in updated {
                let (name, value) = (level.column_sql(column), value_sql(level, column));
                let differs = differs_sql(&format!("r.{name}"), &stored_sql(level, column));
                // What a default gave stays where the body leaves it out: drawn anew, it would change each time.
                if knows_absence(&level.columns[column]) {
                    sets.push(format!(
                        "{name} = case when u.a{column} then r.{name} else {value} end"
                    ));
                    differences.push(format!("not u.a{column} and {differs}"));
                } else {
                    sets.push(format!("{name} = {value}"));
                    differences.push(differs);
                }
            }
            updates.push(format!(
                "u{number} as (update {} r set {} from {given} where {} and ({}))",
                level.table.sql(),
                sets.join(", "),
                is_given(level),
                differences.join(" or ")
            ));
        }
        all_of(&updates, parameters)
    }

    pub(super) fn insert_others(&self) -> Option<Statement> {
        let mut parameters = Parameters::default();
        let mut inserts = Vec::new();
        for (number, level) in self.levels().skip(1) {
            let columns = level.inserted_columns();
            let given = self.given(number, &columns, None, &mut parameters);
            let values: Vec<String> = columns.iter().map(|&n| inserted_sql(level, n)).collect();
            inserts.push(format!(
                "i{number} as ({} select {} from {given} where not exists (select from {} r where {}))",
                level.insert_into_sql(),
                values.join(", "),
                level.table.sql(),
                is_given(level)
            ));
        }
        all_of(&inserts, parameters)
    }
}

/// One statement of all `parts`, each of which changes a level.
fn all_of(parts: &[String], parameters: Parameters) -> Option<Statement> {
    if parts.is_empty() {
        return None;
    }
    let template = format!("with {} select {XID}, {PROOF} as proof", parts.join(", "));
    Some(parameters.statement(&template))
}
