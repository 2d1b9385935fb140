//! The statements for principals that are restricted to documents of their own.
//!
//! Owners are compared with claims by canonical texts, as keys are, so a claim never fails to be a value of another column's
//! type.

use crate::resource::body::MISMATCHES_MAX;
use crate::resource::condition::and_sql;
use crate::resource::key::KeyColumn;
use crate::resource::key::sql::canonical_key_sql;
use crate::resource::proof::PROOF;
use crate::resource::sql::identifier;
use crate::resource::writable::{Level, Pointer};
use crate::resource::write::{
    Origin, OwnedSql, Parameter, Parameters, PointerCheck, StatementBuilder, WriteStatement,
    absent_sql, has_key_sql, may_be_absent, value_sql,
};

/// A condition: the column `owner` of the row `alias` has the claim.
pub(super) fn has_claim_sql(owner: &KeyColumn, alias: &str, parameters: &mut Parameters) -> String {
    let claim = parameters.placeholder(Parameter::Claim);
    let owner = canonical_key_sql(std::slice::from_ref(owner), alias);
    format!("{owner} = {claim}::text")
}

impl StatementBuilder<'_> {
    /// `owner` is the root's column that holds the owner.
    pub(super) fn owned(&self, owner: &KeyColumn) -> OwnedSql {
        let checks = self.levels().flat_map(|(number, level)| {
            let pointers = level.pointers.iter().enumerate();
            pointers.map(move |(at, pointer)| PointerCheck {
                level: number,
                pointer: at,
                statement: self.foreign_targets(number, pointer),
            })
        });
        OwnedSql {
            lock: self.lock(Some(owner)),
            find: self.find(owner),
            foreign_targets: checks.collect(),
        }
    }

    fn find(&self, owner: &KeyColumn) -> WriteStatement {
        let mut parameters = Parameters::default();
        let table = self.writable.levels[0].table.sql();
        let matches = self.root_conditions("r", &mut parameters).join(" and ");
        let has_claim = has_claim_sql(owner, "r", &mut parameters);
        parameters.statement(&format!(
            "select exists (select from {table} r where {matches} and {has_claim}) as is_own, \
             exists (select from {table} r where {matches}) as is_stored, {PROOF} as proof"
        ))
    }

    fn foreign_targets(&self, number: usize, pointer: &Pointer) -> WriteStatement {
        let mut parameters = Parameters::default();
        let level = &self.writable.levels[number];
        let mut columns = [&level.key[..], &pointer.columns[..]].concat();
        columns.sort_unstable();
        columns.dedup();
        let (rows, names) = self.rows_sql(Origin::Body, number, &columns, None, &mut parameters);
        let named = pointer
            .chosen
            .iter()
            .map(|at| format!("u.c{at} is not null"));
        let named: Vec<String> = named.collect();
        let values = pointer.columns.iter().enumerate();
        let values = values.map(|(part, &at)| format!("{} as v{part}", written_sql(level, at)));
        let values: Vec<String> = values.collect();
        let parts = 0..pointer.columns.len();
        let present: Vec<String> = parts.map(|part| format!("v.v{part} is not null")).collect();
        let is_target = is_target_sql(pointer, &mut parameters);
        parameters.statement(&format!(
            "select d.level, d.col, d.n, x.proof from (select {PROOF} as proof) x left join \
             (select {number}::int8 as level, {column}::int8 as col, u.n \
              from {rows} with ordinality as u({names}, n) left join {table} r on {same} \
              cross join lateral (select {values} offset 0) v \
              where ({named}) and {present} and not {is_target} limit {MISMATCHES_MAX}) d on true",
            column = pointer.chosen[0],
            table = level.table.sql(),
            same = has_key_sql(level),
            values = values.join(", "),
            named = named.join(" or "),
            present = present.join(" and "),
        ))
    }
}

/// The value that column `at` has after the write: of the stored row `r`, or of row `u` of the body; null for a default of
/// a row that is not stored yet.
fn written_sql(level: &Level, at: usize) -> String {
    let column = &level.columns[at];
    let given = value_sql(level, at);
    let is_left_out = if column.is_kept {
        "true".to_owned()
    } else if may_be_absent(column) {
        absent_sql(level, at)
    } else {
        return given;
    };
    // The columns of a key are not null in a stored row.
    let key = level.column_sql(level.key[0]);
    let name = level.column_sql(at);
    format!("case when r.{key} is not null and {is_left_out} then r.{name} else {given} end")
}

/// A condition: a row of the looked-up table has the values `v`, and may be pointed to.
fn is_target_sql(pointer: &Pointer, parameters: &mut Parameters) -> String {
    let Some(owner) = &pointer.owner else {
        return "false".to_owned();
    };
    let columns = pointer.target.iter().enumerate();
    let same = columns.map(|(part, column)| format!("l.{} = v.v{part}", identifier(&column.name)));
    let mut matches: Vec<String> = same.collect();
    matches.push(has_claim_sql(owner, "l", parameters));
    format!(
        "exists (select from {} l where {}{})",
        pointer.table.sql(),
        matches.join(" and "),
        and_sql(pointer.condition.as_ref(), "l"),
    )
}
