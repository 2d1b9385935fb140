//! The statement that finds equal keys within a document which have different spellings, such as `5` and `5.0`.
//!
//! Equal texts are refused when the body is read. What else is equal is for PostgreSQL to say: it depends on the type, on
//! its precision, and on the column's collation.

use crate::resource::body::MISMATCHES_MAX;
use crate::resource::proof::PROOF;
use crate::resource::writable::Level;
use crate::resource::write::{Parameter, Parameters, StatementBuilder, WriteStatement, stored_sql};

impl StatementBuilder<'_> {
    pub(super) fn equal_keys(&self) -> Option<WriteStatement> {
        let mut parameters = Parameters::default();
        let levels = self.levels().skip(1);
        let spelled = levels.filter(|(_, level)| has_spellings(level));
        let found: Vec<String> = spelled
            .map(|(number, level)| equal_keys_sql(number, level, &mut parameters))
            .collect();
        if found.is_empty() {
            return None;
        }
        let template = format!(
            "select d.level, d.one, d.other, x.proof from (select {PROOF} as proof) x left join \
             ({} limit {MISMATCHES_MAX}) d on true",
            found.join(" union all ")
        );
        Some(parameters.statement(&template))
    }
}

/// The rows have the columns' types and collations by a union with no rows of the table.
fn equal_keys_sql(number: usize, level: &Level, parameters: &mut Parameters) -> String {
    let extra = [
        (Parameter::Documents(number), "d"),
        (Parameter::Parents(number), "p"),
    ];
    let rows = parameters.given_rows_sql(number, &level.key, &extra);
    let is_linked = |column: usize| level.link.iter().any(|(own, _)| *own == column);
    let numbered = || level.key.iter().enumerate();
    // While the row above has no key yet, its number stands for it.
    let linked = numbered().filter(|(_, column)| is_linked(**column));
    let absent: Vec<String> = linked
        .map(|(_, column)| format!("u.c{column} is null"))
        .collect();
    let above = match absent.as_slice() {
        [] => "null".to_owned(),
        absent => format!("case when {} then u.p end", absent.join(" or ")),
    };
    let own = numbered().filter(|(_, column)| !is_linked(**column));
    let own: Vec<String> = own.map(|(part, _)| format!("k{part}")).collect();
    let key = level.key.iter();
    let columns = key.clone().map(|&column| level.column_sql(column));
    let columns: Vec<String> = columns.map(|column| format!("r.{column}")).collect();
    let values: Vec<String> = key.map(|&column| stored_sql(level, column)).collect();
    let parts: Vec<String> = (0..values.len()).map(|part| format!("k{part}")).collect();
    let parts = parts.join(", ");
    format!(
        "(select {number}::int8 as level, (array_agg(k.n order by k.n))[1] as one, \
         (array_agg(k.n order by k.n))[2] as other from (select null::int8, null::int8, null::int8, {columns} from {table} r \
         where false union all select u.r, u.d, {above}, {values} from {rows}) \
         k(n, d, p, {parts}) where ({own}) is not null group by d, p, {parts} having count(*) > 1)",
        own = own.join(", "),
        columns = columns.join(", "),
        table = level.table.sql(),
        values = values.join(", "),
    )
}

/// Whether rows of `level` below one row may have keys that are spelled differently and are equal. The parts of the link
/// come from the row above.
fn has_spellings(level: &Level) -> bool {
    let is_linked = |column: usize| level.link.iter().any(|(own, _)| *own == column);
    let mut key = level.key.iter();
    key.any(|&column| !level.columns[column].has_one_spelling && !is_linked(column))
}
