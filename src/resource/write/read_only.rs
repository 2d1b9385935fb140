//! The statement that finds the columns which a write would change, but can't.
//!
//! PostgreSQL refuses every update that names a column `generated always as identity`, even of the same value. So the
//! statements that update rows leave it out, and a change of its value has to be found before.

use crate::resource::body::MISMATCHES_MAX;
use crate::resource::proof::PROOF;
use crate::resource::write::others::same_row_sql;
use crate::resource::write::{Origin, Parameters, StatementBuilder, WriteStatement, value_sql};

impl StatementBuilder<'_> {
    pub(super) fn read_only_changes(&self) -> Option<WriteStatement> {
        let mut parameters = Parameters::default();
        let mut found = Vec::new();
        for (number, level) in self.levels() {
            let identity = level.identity();
            for (column, read_only) in level.columns.iter().enumerate() {
                if !read_only.identity_always || identity.contains(&column) {
                    continue;
                }
                let columns = [&identity[..], &[column]].concat();
                let (rows, names) =
                    self.rows_sql(Origin::Body, number, &columns, None, &mut parameters);
                found.push(format!(
                    "select {number}::int8 as level, {column}::int8 as col, u.n \
                     from {rows} with ordinality as u({names}, n) join {table} r on {same} \
                     where not u.a{column} and r.{name} is distinct from {value}",
                    table = level.table.sql(),
                    same = same_row_sql(level),
                    name = level.column_sql(column),
                    value = value_sql(level, column),
                ));
            }
        }
        if found.is_empty() {
            return None;
        }
        let template = format!(
            "select d.level, d.col, d.n, x.proof from (select {PROOF} as proof) x left join \
             ({} limit {MISMATCHES_MAX}) d on true",
            found.join(" union all ")
        );
        Some(parameters.statement(&template))
    }
}
