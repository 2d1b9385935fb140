//! The statement that reads documents: SQL text only.
//!
//! One statement reads any number of documents of a resource, so that each is what one snapshot held. PostgreSQL
//! builds the JSON: `row_to_json` and `array_to_json` write it compactly and embed `json` values as they are. The
//! session must run with `TimeZone = 'UTC'` (see `source/session.rs`).

use crate::resource::key::{KeyShape, canonical_key_sql};
use crate::resource::sql::identifier;
use crate::resource::{Child, Field, Lookup, Pair, Rendering, Row};

/// SQL for the documents of the keys in `$1, $2, …` (one `text[]` for each key column), none above `$n` bytes.
///
/// Rows: the canonical key, the document's length in bytes, the document or null where it is longer than the bound.
/// A key without a row gives none.
pub(super) fn documents_sql(key: &KeyShape, root: &Row) -> String {
    let columns = &key.columns;
    let mut arrays = Vec::with_capacity(columns.len());
    let mut names = Vec::with_capacity(columns.len());
    let mut matches = Vec::with_capacity(columns.len());
    for (index, column) in columns.iter().enumerate() {
        arrays.push(format!(
            "${}::text[]::{}[]",
            index + 1,
            column.key_type.sql_type()
        ));
        names.push(format!("k{index}"));
        matches.push(format!("t0.{} = wanted.k{index}", identifier(&column.name)));
    }
    let bound = columns.len() + 1;
    let mut tables = 0;
    let document = row_sql(root, "t0", &mut tables);
    // offset 0 keeps the planner from writing the document's expression, with all that is below it, three times.
    format!(
        "select {key} as key, octet_length(d.document)::int8 as bytes, \
         case when octet_length(d.document)::int8 <= ${bound} then d.document end as document \
         from unnest({arrays}) as wanted({names}) \
         join {table} t0 on {matches} \
         cross join lateral (select row_to_json(r0)::text as document from ({document}) r0 offset 0) d",
        key = canonical_key_sql(columns, "t0"),
        arrays = arrays.join(", "),
        names = names.join(", "),
        table = root.table.sql(),
        matches = matches.join(" and "),
    )
}

/// `select` of one row's members, from the row called `alias`. `tables` counts the aliases given out.
fn row_sql(row: &Row, alias: &str, tables: &mut usize) -> String {
    let mut members = Vec::new();
    for field in &row.fields {
        members.push(format!(
            "{} as {}",
            field_sql(field, alias),
            identifier(&field.name)
        ));
    }
    for child in &row.children {
        members.push(format!(
            "{} as {}",
            child_sql(child, alias, tables),
            identifier(&child.name)
        ));
    }
    for lookup in &row.lookups {
        members.push(format!(
            "{} as {}",
            lookup_sql(lookup, alias, tables),
            identifier(&lookup.name)
        ));
    }
    format!("select {}", members.join(", "))
}

fn field_sql(field: &Field, alias: &str) -> String {
    let value = format!("{alias}.{}", identifier(&field.column));
    match field.rendering {
        Rendering::Json => value,
        Rendering::Timestamp => format!("{value} at time zone 'UTC'"),
        // Under TimeZone = 'UTC' the cast reads the same instant as "at time zone 'UTC'", element by element.
        Rendering::TimestampArray => format!("{value}::timestamp[]::timestamptz[]"),
        // encode() breaks lines after 76 characters.
        Rendering::Bytea => format!("translate(encode({value}, 'base64'), E'\\n', '')"),
        // unnest() forgets the dimensions: the brackets are taken from what PostgreSQL writes around its own texts.
        Rendering::ByteaArray => format!(
            "(select string_agg(p.text || case when p.n > cardinality({value}) then '' else \
             coalesce('\"' || translate(encode(e.v, 'base64'), E'\\n', '') || '\"', 'null') end, '' order by p.n)::json \
             from regexp_split_to_table(array_to_json({value})::text, '\"[^\"]*\"|null') with ordinality p(text, n) \
             left join unnest({value}) with ordinality e(v, n) on e.n = p.n)"
        ),
    }
}

fn child_sql(child: &Child, parent: &str, tables: &mut usize) -> String {
    let from = from_sql(&child.row, &child.on, parent, tables);
    let order: Vec<String> = child
        .order_by
        .iter()
        .map(|column| format!("{}.{}", from.alias, identifier(column)))
        .collect();
    format!(
        "array_to_json(array({} order by {}))",
        from.select,
        order.join(", ")
    )
}

fn lookup_sql(lookup: &Lookup, pointing: &str, tables: &mut usize) -> String {
    format!(
        "({})",
        from_sql(&lookup.row, &lookup.on, pointing, tables).select
    )
}

/// `select` of the JSON of the rows that belong to the row called `upper`.
struct From {
    alias: String,
    select: String,
}

fn from_sql(row: &Row, on: &[Pair], upper: &str, tables: &mut usize) -> From {
    *tables += 1;
    let number = *tables;
    let alias = format!("t{number}");
    let matches: Vec<String> = on
        .iter()
        .map(|pair| {
            let own = identifier(&pair.own.name);
            format!("{alias}.{own} = {upper}.{}", identifier(&pair.upper.name))
        })
        .collect();
    let members = row_sql(row, &alias, tables);
    let select = format!(
        "select row_to_json(r{number}) from {table} {alias} cross join lateral ({members}) r{number} where {matches}",
        table = row.table.sql(),
        matches = matches.join(" and "),
    );
    From { alias, select }
}
