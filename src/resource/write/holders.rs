//! The statement that finds out which rows have unique values that other rows are to take.
//!
//! What it finds is only the best order to try updates in: partial indexes, those over expressions, exclusion constraints
//! and values that the body leaves out are not considered.

use crate::resource::proof::PROOF;
use crate::resource::write::{
    Origin, Parameters, StatementBuilder, WriteStatement, equal_sql, has_key_sql,
};

impl StatementBuilder<'_> {
    pub(super) fn holders(&self, number: usize) -> Option<WriteStatement> {
        let mut parameters = Parameters::default();
        let level = &self.writable.levels[number];
        if level.unique.is_empty() {
            return None;
        }
        let mut columns = [&level.key[..], &level.unique.concat()].concat();
        columns.sort_unstable();
        columns.dedup();
        let (rows, names) = self.rows_sql(Origin::Body, number, &columns, None, &mut parameters);
        let found = level.unique.iter().map(|unique| {
            format!(
                "select u.n as taker, h.n as holder from b u join {table} r on {same} \
                 cross join lateral (select u.n from b u where {has_key}) h where h.n <> u.n",
                table = level.table.sql(),
                same = equal_sql(level, unique),
                has_key = has_key_sql(level),
            )
        });
        let found: Vec<String> = found.collect();
        Some(parameters.statement(&format!(
            "with b as materialized (select u.* from {rows} with ordinality as u({names}, n)) \
             select {number}::int8 as level, d.taker, d.holder, x.proof from (select {PROOF} as proof) x left join ({}) d on true",
            found.join(" union all ")
        )))
    }
}
