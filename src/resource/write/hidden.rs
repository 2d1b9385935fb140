//! The statement that finds hidden rows with keys that the body has.
//!
//! Before a write they are rows with which it conflicts, and after it rows that it would hide.

use crate::resource::proof::PROOF;
use crate::resource::write::{
    Origin, Parameter, Parameters, StatementBuilder, WriteStatement, has_key_sql,
};

impl StatementBuilder<'_> {
    pub(super) fn hidden_rows(&self) -> Option<WriteStatement> {
        let mut parameters = Parameters::default();
        let mut found = Vec::new();
        for (number, level) in self.levels() {
            let Some(exists) = level.exists_sql("r") else {
                continue;
            };
            let document = (Parameter::Documents(number), "d");
            let (rows, names) = self.rows_sql(
                Origin::Body,
                number,
                &level.key,
                Some(document),
                &mut parameters,
            );
            found.push(format!(
                "select {number}::int8 as level, u.n, u.d from {rows} with ordinality as u({names}, n) \
                 join {table} r on {same} where {exists} is not true",
                table = level.table.sql(),
                same = has_key_sql(level),
            ));
        }
        if found.is_empty() {
            return None;
        }
        let template = format!(
            "select d.level, d.n, d.d, x.proof from (select {PROOF} as proof) x left join ({}) d on true",
            found.join(" union all ")
        );
        Some(parameters.statement(&template))
    }
}
