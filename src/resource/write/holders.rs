//! The statements that find out which rows have unique values that other rows are to take.
//!
//! What they find is only the best order to try updates in: indexes over expressions, and values that the body leaves out,
//! are not considered.

use crate::resource::Resource;
use crate::resource::proof::PROOF;
use crate::resource::sql::literal;
use crate::resource::writable::Writable;
use crate::resource::write::{
    Origin, Parameters, StatementBuilder, WriteSql, WriteStatement, has_key_sql, value_sql,
};

impl WriteSql {
    /// The statement that returns, in its first column, the names of the columns of each unique index and exclusion
    /// constraint of a level's table, or null.
    pub(crate) fn unique_columns(writable: &Writable, level: usize) -> WriteStatement {
        let table = writable.levels.get(level).map(|level| level.table.sql());
        Parameters::default().statement(&format!(
            "select d.names, x.proof from (select {PROOF} as proof) x left join \
             (select array_agg(a.attname::text) as names from pg_catalog.pg_index i join pg_catalog.pg_attribute a \
               on a.attrelid = i.indrelid and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1]) \
               where i.indrelid = {}::pg_catalog.regclass and (i.indisunique or i.indisexclusion) and i.indexprs is null \
               group by i.indexrelid) d on true",
            literal(&table.unwrap_or_default())
        ))
    }

    /// The statement that finds, among given rows of a level, those whose values of all columns of one of `sets` another
    /// one still has. It returns the level, the number of the row and that of the other one, counted from 1, or nulls.
    pub(crate) fn holders(
        resource: &Resource,
        writable: &Writable,
        level: usize,
        sets: &[Vec<usize>],
    ) -> WriteStatement {
        let key = &resource.key;
        StatementBuilder { writable, key }.holders(level, sets)
    }
}

impl StatementBuilder<'_> {
    fn holders(&self, number: usize, sets: &[Vec<usize>]) -> WriteStatement {
        let mut parameters = Parameters::default();
        let level = &self.writable.levels[number];
        let mut columns = [&level.key[..], &sets.concat()].concat();
        columns.sort_unstable();
        columns.dedup();
        let (rows, names) = self.rows_sql(Origin::Body, number, &columns, None, &mut parameters);
        let found: Vec<String> = sets
            .iter()
            .map(|set| {
                let same: Vec<String> = set
                    .iter()
                    .map(|&column| {
                        let value = value_sql(level, column);
                        format!("r.{} = {value}", level.column_sql(column))
                    })
                    .collect();
                format!(
                    "select u.n as taker, h.n as holder from b u join {table} r on {same} \
                     cross join lateral (select u.n from b u where {has_key}) h where h.n <> u.n",
                    table = level.table.sql(),
                    same = same.join(" and "),
                    has_key = has_key_sql(level),
                )
            })
            .collect();
        parameters.statement(&format!(
            "with b as materialized (select u.* from {rows} with ordinality as u({names}, n)) \
             select {number}::int8 as level, d.taker, d.holder, x.proof from (select {PROOF} as proof) x left join ({}) d on true",
            found.join(" union all ")
        ))
    }
}
