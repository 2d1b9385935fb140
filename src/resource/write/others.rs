//! The statements that make the rows of a document those that are given, and touch no others.
//!
//! Between the statements of a transaction others may add rows below a root row that is locked: a foreign key that was
//! dropped, is not enforced, or is passed by (`session_replication_role`, a subscription) keeps nobody out. So a row
//! that others have added since the document was read is neither deleted nor updated. Where nothing was read, the rows
//! that go are those that one statement sees, in one snapshot: what comes later comes after the whole document.

use crate::resource::proof::PROOF;
use crate::resource::writable::Level;
use crate::resource::write::{
    Basis, Changes, Origin, Parameters, Statement, Text, XID, inserted_sql, knows_absence,
    stored_sql, value_sql,
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
    pub(super) fn changes(&self, basis: Basis) -> Changes {
        Changes {
            delete_others: self.delete_others(basis),
            update: self.update(basis),
            insert_others: self.insert_others(basis),
        }
    }

    /// ` and …`: row `r` of a level is one of those that were read, where only they may go.
    pub(super) fn was_read(
        &self,
        basis: Basis,
        number: usize,
        parameters: &mut Parameters,
    ) -> String {
        let level = &self.writable.levels[number];
        match basis {
            Basis::Seen => String::new(),
            Basis::Read => {
                let (read, names) =
                    self.rows(Origin::Read, number, &level.identity(), None, parameters);
                let same = is_given(level);
                format!(" and exists (select from {read} as u({names}) where {same})")
            }
        }
    }

    /// The rows of a level, as [`Text::given`] has them, that are of `origin` and not just so of `other`. PostgreSQL takes
    /// an array for ten rows; this and `not in` it hashes all the same, where it would compare each row with each.
    fn only(
        &self,
        [origin, other]: [Origin; 2],
        number: usize,
        columns: &[usize],
        parameters: &mut Parameters,
    ) -> String {
        let (rows, names) = self.rows(origin, number, columns, None, parameters);
        let (others, _) = self.rows(other, number, columns, None, parameters);
        format!("(select * from {rows} except select * from {others}) as u({names})")
    }

    /// The given rows of a level, where a document was read without those that it had just so.
    fn changed(
        &self,
        basis: Basis,
        number: usize,
        columns: &[usize],
        parameters: &mut Parameters,
    ) -> String {
        match basis {
            Basis::Seen => self.given(number, columns, None, parameters),
            Basis::Read => self.only([Origin::Given, Origin::Read], number, columns, parameters),
        }
    }

    fn delete_others(&self, basis: Basis) -> Option<Statement> {
        let mut parameters = Parameters::default();
        let mut deletes = Vec::new();
        for (number, level) in self.levels().skip(1).rev() {
            let (tables, matches) = self.of_document(number, &mut parameters);
            let (table, identity) = (level.table.sql(), level.identity());
            let given = self.given(number, &identity, None, &mut parameters);
            let same = is_given(level);
            deletes.push(match basis {
                Basis::Seen => format!(
                    "x{number} as (delete from {table} r using {tables} where {matches} \
                     and not exists (select from {given} where {same}))"
                ),
                Basis::Read => {
                    let origins = [Origin::Read, Origin::Given];
                    let gone = self.only(origins, number, &identity, &mut parameters);
                    let columns = identity.iter();
                    let names: Vec<String> = columns
                        .map(|&column| format!("r.{}", level.column_sql(column)))
                        .collect();
                    let columns = identity.iter();
                    let values: Vec<String> =
                        columns.map(|&column| value_sql(level, column)).collect();
                    format!(
                        "x{number} as (delete from {table} r using {gone}, {tables} where {matches} and {same} \
                         and ({}) not in (select {} from {given}))",
                        names.join(", "),
                        values.join(", ")
                    )
                }
            });
        }
        all_of(&deletes, parameters)
    }

    fn update(&self, basis: Basis) -> Option<Statement> {
        let mut parameters = Parameters::default();
        let mut updates = Vec::new();
        for (number, level) in self.levels() {
            let updated = level.updated_columns();
            if updated.is_empty() {
                continue;
            }
            let all = [level.identity(), updated.clone()].concat();
            let given = self.changed(basis, number, &all, &mut parameters);
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

    fn insert_others(&self, basis: Basis) -> Option<Statement> {
        let mut parameters = Parameters::default();
        let mut inserts = Vec::new();
        for (number, level) in self.levels().skip(1) {
            let columns = level.inserted_columns();
            let given = self.changed(basis, number, &columns, &mut parameters);
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
