//! A session for plain SQL.

use std::str::FromStr;
use std::sync::Arc;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Row};

use crate::harness::interference::Interference;

/// A DDL statement may wait for one of two overlapping transactions, while the other waits for the DDL statement.
/// PostgreSQL sees no deadlock, since the first transaction waits for the second in this program.
const LOCK_TIMEOUT: &str = "3s";

/// A session whose connection is opened when it is needed.
pub(crate) struct SqlSession {
    options: PgConnectOptions,
    /// Its row in `ledger`, so that transactions of a plot that overlap do not wait for each other.
    pub(crate) slot: i32,
    connection: Option<PgConnection>,
    /// Failures are reported to this.
    interference: Option<Arc<Interference>>,
}

impl SqlSession {
    pub(crate) fn new(url: &str, slot: i32) -> anyhow::Result<Self> {
        let options = PgConnectOptions::from_str(url)?;
        Ok(Self {
            options: options
                .application_name("loadtest")
                .options([("lock_timeout", LOCK_TIMEOUT)])
                .disable_statement_logging(),
            slot,
            connection: None,
            interference: None,
        })
    }

    /// Its failures are counted if larder caused them.
    pub(crate) fn watched(mut self, interference: &Arc<Interference>) -> Self {
        self.interference = Some(Arc::clone(interference));
        self
    }

    async fn connection(&mut self) -> sqlx::Result<&mut PgConnection> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.options.connect().await?,
        };
        Ok(self.connection.insert(connection))
    }

    /// Runs statements. After an error the connection is closed, and with it its transaction.
    pub(crate) async fn run(&mut self, sql: &str) -> sqlx::Result<()> {
        self.affected(sql).await.map(|_| ())
    }

    /// As [`SqlSession::run`]; returns how many rows the statements affected, all together.
    pub(crate) async fn affected(&mut self, sql: &str) -> sqlx::Result<u64> {
        let statements = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        let outcome = statements.execute(self.connection().await?).await;
        self.give_up_failed(sql, &outcome);
        outcome.map(|done| done.rows_affected())
    }

    /// The first column of every row, as text.
    pub(crate) async fn texts(&mut self, sql: &str) -> sqlx::Result<Vec<String>> {
        let statement = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        let outcome = statements_rows(statement.fetch_all(self.connection().await?).await);
        self.give_up_failed(sql, &outcome);
        outcome
    }

    fn give_up_failed<T>(&mut self, sql: &str, outcome: &sqlx::Result<T>) {
        let Err(error) = outcome else {
            return;
        };
        self.connection = None;
        if let Some(interference) = &self.interference {
            interference.note_failure(sql, error);
        }
    }
}

fn statements_rows(rows: sqlx::Result<Vec<sqlx::postgres::PgRow>>) -> sqlx::Result<Vec<String>> {
    let text = |row: &sqlx::postgres::PgRow| {
        let text = row.try_get_raw(0)?.as_str().map(str::to_owned);
        text.map_err(sqlx::Error::Decode)
    };
    rows?.iter().map(text).collect()
}
