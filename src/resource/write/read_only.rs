//! The statement that finds the columns which a write would change, but can't.
//!
//! PostgreSQL refuses every update that names a column `generated always as identity`, even of the same value. So the
//! statements that update rows leave it out, and a change of its value has to be found before. Values of other types
//! can't be written at all: their JSON is compared.

use crate::resource::body::MISMATCHES_MAX;
use crate::resource::proof::PROOF;
use crate::resource::write::{
    Origin, Parameters, StatementBuilder, WriteStatement, absent_sql, has_key_sql, value_sql,
};

impl StatementBuilder<'_> {
    pub(super) fn read_only_changes(&self) -> Option<WriteStatement> {
        let mut parameters = Parameters::default();
        let mut found = Vec::new();
        for (number, level) in self.levels() {
            let identity = level.identity();
            for (column, read_only) in level.columns.iter().enumerate() {
                let is_inserted = read_only.is_inserted();
                let is_read_only =
                    read_only.identity_always || !is_inserted && !read_only.generated;
                if !is_read_only || identity.contains(&column) {
                    continue;
                }
                let columns = [&identity[..], &[column]].concat();
                let (rows, names) =
                    self.rows_sql(Origin::Body, number, &columns, None, &mut parameters);
                let name = format!("r.{}", level.column_sql(column));
                let (join, differs) = if is_inserted {
                    let value = value_sql(level, column);
                    ("join", format!("{name} is distinct from {value}"))
                } else {
                    let given = format!("u.c{column}");
                    let differs = format!(
                        "case when {given} is null then {name} is not null else {name} is null \
                         or to_json({name})::jsonb is distinct from {given}::jsonb end"
                    );
                    ("left join", differs)
                };
                found.push(format!(
                    "select {number}::int8 as level, {column}::int8 as col, u.n \
                     from {rows} with ordinality as u({names}, n) {join} {table} r on {same} \
                     where not {absent} and {differs}",
                    absent = absent_sql(level, column),
                    table = level.table.sql(),
                    same = [Some(has_key_sql(level)), level.exists_sql("r")]
                        .into_iter()
                        .flatten()
                        .collect::<Vec<_>>()
                        .join(" and "),
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
