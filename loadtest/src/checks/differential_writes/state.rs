//! The rows of a drawn schema, as a database holds them.

use anyhow::Context;
use serde_json::Value;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::checks::differential_writes::schema::{Level, RowValues, Schema};

/// The rows of every level, in no order.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) levels: Vec<Vec<RowValues>>,
}

impl State {
    /// Reads all rows.
    pub(super) async fn read(
        connection: &mut PgConnection,
        schema: &Schema,
    ) -> anyhow::Result<Self> {
        let tables = (0..schema.levels.len()).map(|number| {
            let table = schema.table(number);
            format!(
                "(select coalesce(json_agg(to_jsonb(t) order by t::text), '[]') from {table} t)"
            )
        });
        let tables: Vec<String> = tables.collect();
        let sql = format!("select json_build_array({})::text", tables.join(", "));
        let row = sqlx::raw_sql(AssertSqlSafe(sql))
            .fetch_one(connection)
            .await?;
        let text: String = row.try_get(0)?;
        let levels = serde_json::from_str(&text).context("the rows of a schema")?;
        Ok(Self { levels })
    }

    /// The rows of the document whose root row has the primary key `key`; no row if there is none.
    pub(super) fn document(&self, schema: &Schema, key: &[Value]) -> Self {
        let mut levels: Vec<Vec<RowValues>> = Vec::new();
        for (number, level) in schema.levels.iter().enumerate() {
            let rows = self.levels[number].iter().filter(|row| match level.parent {
                None => is_same_key(&key_of(level, row), key),
                Some(parent) => levels[parent]
                    .iter()
                    .any(|above| is_below(&schema.levels[parent], above, level, row)),
            });
            let rows = rows.cloned().collect();
            levels.push(rows);
        }
        Self { levels }
    }
}

/// The primary key of a row.
pub(super) fn key_of(level: &Level, row: &RowValues) -> Vec<Value> {
    let columns = level.primary_key().into_iter();
    columns.map(|column| value_of(row, &column.name)).collect()
}

/// The values with which a row refers to the row above it.
pub(super) fn link_of(level: &Level, row: &RowValues) -> Vec<Value> {
    level
        .links()
        .map(|link| value_of(row, &link.name))
        .collect()
}

/// Whether `row` of `level` refers to `above`.
pub(super) fn is_below(
    level_above: &Level,
    above: &RowValues,
    level: &Level,
    row: &RowValues,
) -> bool {
    is_same_key(&link_of(level, row), &key_of(level_above, above))
}

pub(super) fn value_of(row: &RowValues, column: &str) -> Value {
    row.get(column).cloned().unwrap_or(Value::Null)
}

/// Whether two keys are equal for PostgreSQL, which compares the values of numbers.
pub(super) fn is_same_key(one: &[Value], other: &[Value]) -> bool {
    let mut pairs = one.iter().zip(other);
    one.len() == other.len() && pairs.all(|(one, other)| is_same(one, other))
}

/// Whether two values are equal, with numbers by value.
pub(super) fn is_same(one: &Value, other: &Value) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one.to_bits() == other.to_bits(),
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_compared_by_value() {
        assert!(is_same_key(
            &[json!(5), json!("a")],
            &[json!(5.0), json!("a")]
        ));
        assert!(!is_same_key(&[json!(5)], &[json!("5")]));
        assert!(!is_same_key(&[json!(5)], &[json!(5), json!(5)]));
    }
}
