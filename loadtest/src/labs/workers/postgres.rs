//! PostgreSQL as a SQL server.

use std::str::FromStr;

use anyhow::{Context, Result};
use async_trait::async_trait;
use futures_util::TryStreamExt;
use serde_json::Value;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Row};

use crate::labs::workers::sql::SqlConnection;
use crate::labs::workers::store::Plan;
use crate::labs::workers::subscriber::{Buffer, Columns, Subscriber};

const CONDITIONS: [&str; 3] = ["Index Cond", "Recheck Cond", "Filter"];
/// What a plan tells of a node's rows, and of those that it left out.
const COUNTS: [&str; 3] = [
    "Actual Rows",
    "Rows Removed by Filter",
    "Rows Removed by Index Recheck",
];

/// A connection.
pub(super) struct Postgresql(PgConnection);

impl Postgresql {
    pub(super) async fn open(url: &str) -> Result<Self> {
        let options = PgConnectOptions::from_str(url)?.application_name("loadtest");
        Ok(Self(options.disable_statement_logging().connect().await?))
    }
}

#[async_trait]
impl SqlConnection for Postgresql {
    async fn run(&mut self, statement: &str) -> Result<usize> {
        let statement = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()));
        let done = statement.execute(&mut self.0).await?;
        Ok(done.rows_affected().try_into()?)
    }

    async fn insert(&mut self, table: &str, rows: &[Subscriber]) -> Result<()> {
        let lines = rows.iter().map(|row| row.values("\t", "") + "\n");
        let (text, columns): (String, _) = (lines.collect(), Columns::Full.list());
        let statement = format!("copy {table} ({columns}) from stdin");
        let mut copy = self.0.copy_in_raw(&statement).await?;
        copy.send(text.as_bytes()).await?;
        copy.finish().await?;
        Ok(())
    }

    async fn select(&mut self, sql: &str, of: Columns, found: &mut Buffer) -> Result<()> {
        let query = sqlx::query(AssertSqlSafe(sql.to_owned())).persistent(false);
        let mut rows = query.fetch(&mut self.0);
        while let Some(row) = rows.try_next().await? {
            // Of 2 or 8 bytes, in the order of the network.
            let number = |place: usize| {
                let value = row.try_get_raw(place)?;
                let bytes = value.as_bytes().map_err(sqlx::Error::Decode)?;
                let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
                anyhow::Ok(u32::try_from(bytes.iter().fold(0, add))?)
            };
            let text = |place: usize| anyhow::Ok(row.try_get::<&str, _>(place)?);
            found.add().read(of, number, text)?;
        }
        Ok(())
    }

    async fn explain(&mut self, statement: &str) -> Result<Plan> {
        let explain = format!("explain (analyze, format json) {statement}");
        let explain = sqlx::raw_sql(AssertSqlSafe(explain));
        let row = explain.fetch_one(&mut self.0).await?;
        let json = row.try_get_raw(0)?.as_str().map_err(sqlx::Error::Decode)?;
        let plan = plan(&serde_json::from_str(json)?);
        plan.with_context(|| format!("the plan was not understood: {json}"))
    }
}

/// Reads the JSON of `explain`: its nodes from the top, and the conditions of the last one, which reads the rows.
fn plan(json: &Value) -> Option<Plan> {
    let mut node = json.pointer("/0/Plan")?;
    let mut text = node.get("Node Type")?.as_str()?.to_owned();
    while let Some(child) = node.pointer("/Plans/0") {
        node = child;
        text += &format!(", {}", node.get("Node Type")?.as_str()?);
    }
    for name in CONDITIONS {
        if let Some(condition) = node.get(name).and_then(Value::as_str) {
            text += &format!("; {name}: {condition}");
        }
    }
    let counts = COUNTS.iter().filter_map(|count| node.get(count)?.as_f64());
    let examined = counts.sum::<f64>() * node.get("Actual Loops")?.as_f64()?;
    Some((text, Some(examined)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_tells_its_nodes_and_what_they_examine() {
        let json = r#"[{"Plan": {"Node Type": "Limit", "Plans": [{"Node Type": "Index Scan", "Actual Rows": 10,
            "Actual Loops": 1, "Index Cond": "(worker_id = 1)", "Rows Removed by Filter": 3}]}}]"#;
        let (text, examined) = plan(&serde_json::from_str(json).unwrap()).unwrap();
        assert_eq!(text, "Limit, Index Scan; Index Cond: (worker_id = 1)");
        assert_eq!(examined, Some(13.0));
    }
}
