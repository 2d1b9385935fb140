//! All rows of a drawn schema, to be compared between two databases.

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::checks::scope::differential::schema::Schema;

/// The rows of all tables as texts, sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contents(Vec<(String, Vec<String>)>);

impl Contents {
    pub(super) async fn read(
        connection: &mut PgConnection,
        schema: &Schema,
    ) -> anyhow::Result<Self> {
        let tables: Vec<String> = (0..schema.tables.len())
            .map(|table| schema.table_sql(table))
            .collect();
        let parts = tables.iter().map(|table| {
            format!("(select coalesce(json_agg(t::text order by t::text), '[]') from {table} t)")
        });
        let sql = format!(
            "select json_build_array({})::text",
            parts.collect::<Vec<_>>().join(", ")
        );
        let row = sqlx::raw_sql(AssertSqlSafe(sql))
            .fetch_one(connection)
            .await?;
        let rows: Vec<Vec<String>> = serde_json::from_str(row.try_get(0)?)?;
        Ok(Self(tables.into_iter().zip(rows).collect()))
    }

    /// What differs, as text: rows of this one alone with `-`, rows of `other` alone with `+`.
    pub(super) fn difference(&self, other: &Self) -> String {
        let mut lines = String::new();
        for ((table, rows), (_, others)) in self.0.iter().zip(&other.0) {
            for (sign, own, other) in [('-', rows, others), ('+', others, rows)] {
                let only = own.iter().filter(|row| !other.contains(row));
                lines.extend(only.map(|row| format!("  {sign} {table} {row}\n")));
            }
        }
        lines
    }
}
