//! The plain statements.

use serde_json::Value;

use crate::checks::differential_writes::schema::{Column, Filling, RowValues, Schema};

/// A condition: row `x` has this key.
pub(super) fn is_key_sql(columns: &[&Column], key: &[Value]) -> String {
    let pairs = columns.iter().zip(key);
    let equal = pairs.map(|(column, value)| {
        let (literal, plain) = (column.literal(value), column.kind.plain_type_sql());
        format!("x.{} = {literal}::{plain}", column.name)
    });
    equal.collect::<Vec<_>>().join(" and ")
}

/// Inserts rows: each has its link and its values. Returns the primary key of each.
pub(super) fn insert_sql(
    schema: &Schema,
    number: usize,
    rows: &[(Vec<Value>, &RowValues)],
) -> String {
    let level = &schema.levels[number];
    let columns: Vec<&Column> = level.links().chain(level.shown()).collect();
    let names: Vec<&str> = columns.iter().map(|column| &*column.name).collect();
    let rows = rows.iter().map(|(link, values)| {
        let links = level.links().zip(link);
        let links = links.map(|(column, value)| column.literal(value));
        let shown = level.shown().map(|column| match values.get(&column.name) {
            Some(value) => column.literal(value),
            None => "default".to_owned(),
        });
        format!("({})", links.chain(shown).collect::<Vec<_>>().join(", "))
    });
    let rows: Vec<String> = rows.collect();
    let is_always = |column: &&Column| column.default == Filling::IdentityAlways;
    let overriding = if columns.iter().any(is_always) {
        " overriding system value"
    } else {
        ""
    };
    format!(
        "insert into {} ({}){overriding} values {} returning {}",
        schema.table(number),
        names.join(", "),
        rows.join(", "),
        returned_key(schema, number, "")
    )
}

/// Updates rows: each has its key and the new values of `columns`. Returns the primary key of each that was updated.
pub(super) fn update_sql(
    schema: &Schema,
    number: usize,
    columns: &[&Column],
    rows: &[(Vec<Value>, Vec<Value>)],
) -> String {
    let key = schema.levels[number].primary_key();
    let all: Vec<&Column> = key.iter().chain(columns).copied().collect();
    let sets = columns.iter().enumerate().map(|(at, column)| {
        let (place, plain) = (key.len() + at, column.kind.plain_type_sql());
        format!("{} = v.v{place}::{plain}", column.name)
    });
    let conditions = key.iter().enumerate().map(|(at, column)| {
        let plain = column.kind.plain_type_sql();
        format!("x.{} = v.v{at}::{plain}", column.name)
    });
    let rows = rows.iter().map(|(key, values)| {
        let values = key.iter().chain(values).zip(&all);
        let literals = values.map(|(value, column)| column.literal(value));
        format!("({})", literals.collect::<Vec<_>>().join(", "))
    });
    let places: Vec<String> = (0..all.len()).map(|place| format!("v{place}")).collect();
    format!(
        "update {} x set {} from (values {}) v({}) where {} returning {}",
        schema.table(number),
        sets.collect::<Vec<_>>().join(", "),
        rows.collect::<Vec<_>>().join(", "),
        places.join(", "),
        conditions.collect::<Vec<_>>().join(" and "),
        returned_key(schema, number, "x.")
    )
}

/// Deletes the rows with these keys.
pub(super) fn delete_sql(schema: &Schema, number: usize, keys: &[Vec<Value>]) -> String {
    let columns = schema.levels[number].primary_key();
    let conditions = keys
        .iter()
        .map(|key| format!("({})", is_key_sql(&columns, key)));
    format!(
        "delete from {} x where {}",
        schema.table(number),
        conditions.collect::<Vec<_>>().join(" or ")
    )
}

/// SQL for the primary key of a row as a JSON array.
fn returned_key(schema: &Schema, number: usize, of: &str) -> String {
    let columns = schema.levels[number].primary_key();
    let names: Vec<String> = columns
        .iter()
        .map(|column| format!("{of}{}", column.name))
        .collect();
    format!("json_build_array({})::text", names.join(", "))
}
