//! The statement that reads documents: SQL text only.
//!
//! One statement reads any number of documents of a resource, so that all come from one snapshot. It returns each
//! document as a record: columns as they are, and rows below as records inside. [`crate::resource::document`] turns the
//! record into JSON. The session must run with `TimeZone = 'UTC'` (see `source/session.rs`).

use crate::resource::condition::and_sql;
use crate::resource::document::RowOrder;
use crate::resource::kept::KeptColumns;
use crate::resource::key::KeyShape;
use crate::resource::key::sql::canonical_key_sql;
use crate::resource::proof::{PROOF, ProvedSql};
use crate::resource::row_security::{RowSecurity, unchanged_sql};
use crate::resource::sql::identifier;
use crate::resource::{Child, Field, Lookup, Pair, Rendering, Row};

/// The size of a record in PostgreSQL's memory is less than this many times its size when it is sent: a row of one null
/// takes 24 bytes in memory and 16 when it is sent. A record that is larger in memory than this factor allows is
/// refused before PostgreSQL decompresses its texts.
const IN_MEMORY: u8 = 4;

/// SQL for the documents of the keys in `$1, $2, …` (an array for each key column, of integers or of text). The
/// parameter after these is the most bytes of a record.
///
/// The statement returns one row with null and its proof ([`crate::resource::proof`]), even if no document is found.
/// The other rows have a canonical key and the document's record, or null if the record is too long. A key without a
/// document has no row. The record is the `bytea` that PostgreSQL would send for it, so that the limit applies to these
/// bytes: in memory a record may have compressed texts, which are sent decompressed. The values of `kept` are at its end.
///
/// With `row_security` PostgreSQL refuses the statement unless larder's role sees what `row_security` says.
pub(super) fn documents_sql(
    key: &KeyShape,
    root: &Row,
    kept: &KeptColumns<'_>,
    row_security: Option<&RowSecurity>,
) -> ProvedSql {
    let from = rows_of_keys(key, root);
    let bound = key.columns.len() + 1;
    documents_of_rows_sql(&from, bound, key, root, kept, row_security)
}

/// As [`documents_sql`], for the rows of `from`. Parameter `bound` is the most bytes of a record.
pub(super) fn documents_of_rows_sql(
    from: &str,
    bound: usize,
    key: &KeyShape,
    root: &Row,
    kept: &KeptColumns<'_>,
    row_security: Option<&RowSecurity>,
) -> ProvedSql {
    ProvedSql::new(&format!(
        "select null::text as key, {PROOF} as document union all {documents}{unchanged}",
        documents = limited_documents_sql(from, bound, key, root, kept, &[]),
        unchanged = unchanged_sql(row_security),
    ))
}

/// SQL for the keys and records of the rows of `from`, and for each of the values `more` of such a row. A record of more
/// bytes than parameter `bound` says is null.
pub(super) fn limited_documents_sql(
    from: &str,
    bound: usize,
    key: &KeyShape,
    root: &Row,
    kept: &KeptColumns<'_>,
    more: &[String],
) -> String {
    let mut tables = 0;
    let named = more.iter().enumerate();
    let named = named.map(|(number, value)| format!(", {value} as m{number}"));
    let of = |alias: &str| {
        let names = (0..more.len()).map(|number| format!(", {alias}.m{number}"));
        names.collect::<String>()
    };
    // offset 0 prevents the planner from copying the expression of the document into both places that use it.
    format!(
        "select d.key, case when octet_length(d.document) <= ${bound} then d.document end as document{of_d} \
         from (select r.key, case when pg_column_size(r.document) / {IN_MEMORY} <= ${bound} \
         then record_send(r.document) end as document{of_r} \
         from (select {key} as key, {document} as document{named} from {from} offset 0) r offset 0) d",
        of_d = of("d"),
        of_r = of("r"),
        key = canonical_key_sql(&key.columns, "t0"),
        document = row_sql(root, &kept.sql("t0"), "t0", &mut tables),
        named = named.collect::<String>(),
    )
}

/// SQL for the canonical keys of those of the keys in `$1, $2, …` that have a document.
pub(super) fn stored_keys_sql(key: &KeyShape, root: &Row) -> String {
    let from = rows_of_keys(key, root);
    format!(
        "select {} from {from}",
        canonical_key_sql(&key.columns, "t0")
    )
}

/// The root rows, called `t0`, of the keys in `$1, $2, …`. Further conditions may follow.
pub(super) fn rows_of_keys(key: &KeyShape, root: &Row) -> String {
    let columns = &key.columns;
    let arrays: Vec<String> = columns
        .iter()
        .enumerate()
        .map(|(index, column)| column.parameter_sql(index + 1))
        .collect();
    let table = root.table.sql();
    let exists = and_sql(root.condition.as_ref(), "t0");
    match (columns.as_slice(), arrays.as_slice()) {
        ([column], [array]) => {
            format!(
                "{table} t0 where t0.{} = any({array}){exists}",
                identifier(&column.name)
            )
        }
        _ => {
            let names: Vec<String> = (0..columns.len())
                .map(|index| format!("k{index}"))
                .collect();
            let matches: Vec<String> = columns
                .iter()
                .zip(&names)
                .map(|(column, name)| format!("t0.{} = wanted.{name}", identifier(&column.name)))
                .collect();
            format!(
                "unnest({arrays}) as wanted({names}) join {table} t0 on {matches}{exists}",
                arrays = arrays.join(", "),
                names = names.join(", "),
                matches = matches.join(" and "),
            )
        }
    }
}

/// SQL for the record of the row called `alias`, with the values `hidden` at its end. `tables` counts the aliases in
/// use.
fn row_sql(row: &Row, hidden: &[String], alias: &str, tables: &mut usize) -> String {
    let mut members = Vec::new();
    for field in &row.fields {
        members.push(field_sql(field, alias));
    }
    for child in &row.children {
        members.push(child_sql(child, alias, tables));
    }
    for lookup in &row.lookups {
        members.push(lookup_sql(lookup, alias, tables));
    }
    members.extend_from_slice(hidden);
    format!("row({})", members.join(", "))
}

fn field_sql(field: &Field, alias: &str) -> String {
    let value = format!("{alias}.{}", identifier(&field.column));
    match field.rendering {
        Rendering::Scalar { .. } => value,
        Rendering::Json | Rendering::Nested(_) => format!("to_json({value})::text"),
        // encode() breaks lines after 76 characters.
        Rendering::Bytea => format!("translate(encode({value}, 'base64'), E'\\n', '')"),
    }
}

fn child_sql(child: &Child, parent: &str, tables: &mut usize) -> String {
    if let Some(order) = RowOrder::of(child) {
        let subquery = subquery(&child.row, &order.hidden, &child.on, parent, tables);
        return format!("array({})", subquery.select);
    }
    let subquery = subquery(&child.row, &[], &child.on, parent, tables);
    let order: Vec<String> = child
        .order_by
        .iter()
        .map(|column| format!("{}.{}", subquery.alias, identifier(&column.name)))
        .collect();
    format!("array({} order by {})", subquery.select, order.join(", "))
}

fn lookup_sql(lookup: &Lookup, pointing: &str, tables: &mut usize) -> String {
    let subquery = subquery(&lookup.row, &[], &lookup.on, pointing, tables);
    format!("({})", subquery.select)
}

/// A subquery.
struct Subquery {
    /// The name of its table.
    alias: String,
    select: String,
}

/// Selects the records of the rows that belong to the row called `upper`.
fn subquery(
    row: &Row,
    hidden: &[String],
    on: &[Pair],
    upper: &str,
    tables: &mut usize,
) -> Subquery {
    *tables += 1;
    let alias = format!("t{tables}");
    let matches: Vec<String> = on
        .iter()
        .map(|pair| {
            let own = identifier(&pair.own.name);
            format!("{alias}.{own} = {upper}.{}", identifier(&pair.upper.name))
        })
        .collect();
    let hidden = hidden.iter();
    let hidden: Vec<String> = hidden
        .map(|column| format!("{alias}.{}", identifier(column)))
        .collect();
    let select = format!(
        "select {record} from {table} {alias} where {matches}{exists}",
        record = row_sql(row, &hidden, &alias, tables),
        table = row.table.sql(),
        matches = matches.join(" and "),
        exists = and_sql(row.condition.as_ref(), &alias),
    );
    Subquery { alias, select }
}
