//! The statement that compares the rows of a document with those of a body.
//!
//! Rows are matched by their keys alone, so a row whose link differs is one that moves within the document. Values are
//! compared by what a document shows of them: an array with other bounds, or JSON's null in place of SQL's, is the same
//! there, and the row keeps it. The statement locks the rows that it reads, so that what it finds stays true.

use crate::resource::proof::PROOF;
use crate::resource::sql_type::Equality;
use crate::resource::value::ValueType;
use crate::resource::writable::Level;
use crate::resource::write::{
    ChangeScope, Origin, Parameters, StatementBuilder, WriteStatement, absent_sql, has_key_sql,
    has_value_sql, may_be_absent, stored_sql, value_sql,
};

/// `json` values with more bytes are compared with the blanks around them: `btrim` takes eight bytes for each character,
/// and fails above 1 GiB.
const TRIMMED_BYTES_MAX: usize = 64 << 20;

/// SQL for the text by which values of a column are compared. Values that are equal and not the same (`1.0` and `1.00`,
/// texts under some collations) differ, as they do in documents.
///
/// Blanks around a `json` value stay in its row, and are no part of a body's value. In arrays and composite values, no
/// blanks between JSON's tokens are compared.
fn compared_sql(value: &ValueType, sql: &str) -> String {
    match value {
        ValueType::Json => {
            format!("coalesce(btrim(({sql})::text, E' \\t\\n\\r'), 'null') collate \"C\"")
        }
        ValueType::Jsonb => format!("coalesce(({sql})::text, 'null') collate \"C\""),
        value if value.has_json() => format!(
            "regexp_replace(to_json({sql})::text, '(\"(?:[^\"\\\\]|\\\\.)*\")|\\s+', '\\1', 'g') collate \"C\""
        ),
        ValueType::Array(_) | ValueType::Composite(_) => {
            format!("to_json({sql})::text collate \"C\"")
        }
        _ => format!("({sql})::text collate \"C\""),
    }
}

/// A condition: column `column` of the stored row `s` differs from that of row `u` of the body.
fn differs_sql(level: &Level, column: usize) -> String {
    let is_link = level.link.iter().any(|(own, _)| *own == column);
    let stored = format!("s.v{column}");
    let differs = if is_link {
        // Other spellings of the same link (`ABC` and `abc` of citext) are none.
        format!("{stored} is distinct from {}", value_sql(level, column))
    } else {
        let value = &level.columns[column].value;
        let (first, then) = match value {
            // Stored numbers such as 1e131071 can be too long for a text; those of the body are bounded.
            ValueType::Jsonb => (
                format!(
                    "when coalesce(({stored})::jsonb, 'null') <> coalesce(u.c{column}::jsonb, 'null') then true "
                ),
                String::new(),
            ),
            ValueType::Json => (
                String::new(),
                format!(
                    "when greatest(octet_length(({stored})::text), octet_length(u.c{column})) > {TRIMMED_BYTES_MAX} \
                     then true "
                ),
            ),
            _ => Default::default(),
        };
        // The same text needs no cast, which the check of a domain may refuse for values that were stored before it.
        format!(
            "case {first}when ({stored})::text collate \"C\" = u.c{column} collate \"C\" then false \
             {then}else {} is distinct from {} end",
            compared_sql(value, &stored),
            compared_sql(value, &stored_sql(level, column))
        )
    };
    // A column that the body leaves out keeps its value. A new default would change it with each write. The value of a link
    // is absent while the row above is not inserted.
    if may_be_absent(&level.columns[column]) && !is_link {
        format!("not {} and {differs}", absent_sql(level, column))
    } else {
        differs
    }
}

impl StatementBuilder<'_> {
    pub(super) fn compare(&self, scope: ChangeScope, locks: bool) -> WriteStatement {
        let mut parameters = Parameters::default();
        let (mut stored, mut found) = (Vec::new(), Vec::new());
        for (number, level) in self.levels() {
            stored.push(self.stored_rows_sql(number, locks, &mut parameters));
            let changeable = level.changeable_columns();
            let compared = [&level.key[..], &changeable[..]].concat();
            let (rows, names) =
                self.rows_sql(Origin::Body, number, &compared, None, &mut parameters);
            let differences: Vec<String> = changeable
                .iter()
                .map(|&column| {
                    let differs = differs_sql(level, column);
                    format!("case when {differs} then {column}::int8 end")
                })
                .collect();
            let same: Vec<String> = level
                .key
                .iter()
                .map(|&column| has_value_sql(level, column, &format!("s.v{column}")))
                .collect();
            // PostgreSQL expects ten rows of an array, and never compares each row with each for a full join.
            let (join, same) = match number {
                0 => ("left", "true".to_owned()),
                _ => ("full", same.join(" and ")),
            };
            found.push(format!(
                "select {number}::int8 as level, u.n, case when u.n is not null and s.k is not null \
                 then array_remove(array[{differences}]::int8[], null) end as changed, s.k, s.up \
                 from s{number} s {join} join {rows} with ordinality as u({names}, n) on {same}{was_read}",
                differences = differences.join(", "),
                was_read = self.was_read_sql(scope, number, &mut parameters),
            ));
        }
        parameters.statement(&format!(
            "with {}, d as materialized ({}) \
             select d.level, d.n, d.changed, d.k, d.up, x.proof from (select {PROOF} as proof) x \
             left join d on d.n is null or d.k is null or d.changed <> '{{}}'",
            stored.join(", "),
            found.join(" union all ")
        ))
    }

    /// A part of `with` that reads the rows of a level which belong to the document, without hidden ones: their columns as `v0, v1, …`, the
    /// texts of their keys as `k`, and those of the rows above as `up`.
    fn stored_rows_sql(&self, number: usize, locks: bool, parameters: &mut Parameters) -> String {
        let level = &self.writable.levels[number];
        let mut columns = [level.identity(), level.changeable_columns()].concat();
        columns.sort_unstable();
        columns.dedup();
        let columns: Vec<String> = columns
            .iter()
            .map(|&column| format!("r.{} as v{column}", level.column_sql(column)))
            .collect();
        let key: Vec<String> = level
            .key
            .iter()
            .map(|&column| format!("r.{}::text", level.column_sql(column)))
            .collect();
        let (from, conditions, up) = match level.parent {
            None => {
                let conditions = self.root_conditions("r", parameters);
                (String::new(), conditions, "null::text[]")
            }
            Some(parent) => {
                let links = level.link.iter();
                let links =
                    links.map(|(own, up)| format!("r.{} = p.v{up}", level.column_sql(*own)));
                let conditions = links.chain(level.exists_sql("r")).collect();
                (format!(", s{parent} p"), conditions, "p.k")
            }
        };
        let is_inner = self.levels().any(|(_, below)| below.parent == Some(number));
        let lock = match number {
            // A lock would leave out rows that a policy does not let larder update.
            _ if !locks => "",
            // It is locked already.
            0 => "",
            // No rows can be added below it.
            _ if is_inner => " for update of r",
            // A lock needs the privilege to update a column.
            _ if level.changeable_columns().is_empty() => "",
            _ => " for no key update of r",
        };
        format!(
            "s{number} as materialized (select {columns}, array[{key}] as k, {up} as up from {table} r{from} where {conditions}{lock})",
            columns = columns.join(", "),
            key = key.join(", "),
            table = level.table.sql(),
            conditions = conditions.join(" and "),
        )
    }

    /// What leaves out stored rows of a level that the body lacks and that were not read; empty if all may be deleted.
    fn was_read_sql(
        &self,
        scope: ChangeScope,
        number: usize,
        parameters: &mut Parameters,
    ) -> String {
        if scope == ChangeScope::AllRows || number == 0 {
            return String::new();
        }
        let level = &self.writable.levels[number];
        let (read, names) = self.rows_sql(Origin::Read, number, &level.key, None, parameters);
        let keys = level.key.iter();
        if !keys
            .clone()
            .all(|&column| level.columns[column].equality == Equality::BUILT_IN)
        {
            let same = keys.map(|&column| has_value_sql(level, column, &format!("s.v{column}")));
            let same: Vec<String> = same.collect();
            return format!(
                " where u.n is not null or exists (select from {read} as u({names}) where {})",
                same.join(" and ")
            );
        }
        let (stored, values): (Vec<String>, Vec<String>) = keys
            .map(|&column| (format!("s.v{column}"), value_sql(level, column)))
            .unzip();
        format!(
            " where u.n is not null or ({}) in (select {} from {read} as u({names}))",
            stored.join(", "),
            values.join(", ")
        )
    }

    /// Deletes the rows of a level that are given. It returns the transaction's number and the number of deleted rows.
    pub(super) fn delete_rows(&self, number: usize) -> WriteStatement {
        let mut parameters = Parameters::default();
        let level = &self.writable.levels[number];
        let input = parameters.given_rows_sql(number, &level.key, &[]);
        parameters.statement(&format!(
            "with x as (delete from {} r using {input} where {} returning 1) \
             select (select count(*) from x) as deleted, {PROOF} as proof",
            level.table.sql(),
            has_key_sql(level)
        ))
    }

    pub(super) fn delete_given(&self) -> WriteStatement {
        let mut parameters = Parameters::default();
        let (mut parts, mut counts) = (Vec::new(), Vec::new());
        for (number, level) in self.levels() {
            let input = parameters.given_rows_sql(number, &level.key, &[]);
            parts.push(format!(
                "x{number} as (delete from {} r using {input} where {} returning 1)",
                level.table.sql(),
                has_key_sql(level)
            ));
            counts.push(format!("(select count(*) from x{number})"));
        }
        parameters.statement(&format!(
            "with {} select {} as deleted, {PROOF} as proof",
            parts.join(", "),
            counts.join(" + ")
        ))
    }

    /// Searches for the rows of a level that are given. It returns the numbers of those that stand in the table, counted
    /// from 1, or null; with a condition also whether it hides them.
    pub(super) fn standing_rows(&self, number: usize) -> WriteStatement {
        let mut parameters = Parameters::default();
        let level = &self.writable.levels[number];
        let (rows, names) = self.rows_sql(Origin::Body, number, &level.key, None, &mut parameters);
        let (table, same) = (level.table.sql(), has_key_sql(level));
        let (column, hidden) = match level.exists_sql("r") {
            None => ("", String::new()),
            Some(exists) => (
                ", d.hidden",
                format!(", not exists (select from {table} r where {same} and {exists}) as hidden"),
            ),
        };
        parameters.statement(&format!(
            "select d.n{column}, x.proof from (select {PROOF} as proof) x left join \
             (select u.n{hidden} from {rows} with ordinality as u({names}, n) where exists (select from {table} r where {same})) d on true",
        ))
    }

    /// Sets `columns` of the rows of a level that are given. It returns the numbers of the rows that were updated,
    /// counted from 1.
    pub(super) fn update_rows(&self, number: usize, columns: &[usize]) -> WriteStatement {
        let mut parameters = Parameters::default();
        let level = &self.writable.levels[number];
        let all = [&level.key[..], columns].concat();
        let (rows, names) = self.rows_sql(Origin::Body, number, &all, None, &mut parameters);
        let sets: Vec<String> = columns
            .iter()
            .map(|&column| {
                format!(
                    "{} = {}",
                    level.column_sql(column),
                    value_sql(level, column)
                )
            })
            .collect();
        parameters.statement(&format!(
            "with x as (update {} r set {} from {rows} with ordinality as u({names}, n) where {} returning u.n) \
             select array(select n from x) as updated, {PROOF} as proof",
            level.table.sql(),
            sets.join(", "),
            has_key_sql(level)
        ))
    }
}
