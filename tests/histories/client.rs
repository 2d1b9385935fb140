//! Sessions that run the steps, and a writer beside them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::postgres::PgDatabaseError;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::task::JoinHandle;

use crate::histories::hostile_settings::OF_USERS;
use crate::histories::step::Message;

/// A user's session.
pub(super) struct UserSession {
    pub(super) url: String,
    pub(super) connection: PgConnection,
    pub(super) pid: i32,
}

/// An error of PostgreSQL.
#[derive(Debug)]
pub(super) struct SqlError {
    code: String,
    message: String,
    detail: String,
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.code, self.message, self.detail)
    }
}

impl From<sqlx::Error> for SqlError {
    fn from(error: sqlx::Error) -> Self {
        let of_server = error
            .as_database_error()
            .and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
        match of_server {
            Some(of_server) => Self {
                code: of_server.code().to_owned(),
                message: of_server.message().to_owned(),
                detail: of_server.detail().unwrap_or_default().to_owned(),
            },
            None => Self {
                code: String::new(),
                message: error.to_string(),
                detail: String::new(),
            },
        }
    }
}

impl SqlError {
    /// Two transactions were in each other's way: a deadlock, or one that could not be serialized.
    pub(super) fn is_conflict(&self) -> bool {
        self.code == "40P01" || self.code == "40001"
    }

    /// Of a conflict: whether a session took part that is none of `pids`.
    fn has_others(&self, pids: &[i32]) -> bool {
        let mut words = self
            .detail
            .split(|character: char| !character.is_alphanumeric())
            .peekable();
        while let Some(word) = words.next() {
            if word.eq_ignore_ascii_case("process")
                && let Some(pid) = words.peek().and_then(|word| word.parse::<i32>().ok())
                && !pids.contains(&pid)
            {
                return true;
            }
        }
        false
    }
}

impl UserSession {
    pub(super) async fn connect(url: &str) -> Self {
        let mut connection = PgConnection::connect(url).await.unwrap();
        sqlx::raw_sql(OF_USERS)
            .execute(&mut connection)
            .await
            .unwrap();
        let pid = sqlx::query_scalar("select pg_backend_pid()")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        Self {
            url: url.to_owned(),
            connection,
            pid,
        }
    }

    /// The number of rows that changed. A transaction that failed is rolled back.
    pub(super) async fn run(&mut self, message: &Message) -> Result<u64, SqlError> {
        let done = match message {
            Message::Sql(sql) => {
                let done = sqlx::raw_sql(AssertSqlSafe(sql.clone()))
                    .execute(&mut self.connection)
                    .await;
                done.map(|done| done.rows_affected())
            }
            Message::Copy(sql, lines) => copy(&mut self.connection, sql, lines).await,
        };
        if done.is_err() {
            drop(
                sqlx::raw_sql("rollback")
                    .execute(&mut self.connection)
                    .await,
            );
        }
        done.map_err(SqlError::from)
    }
}

async fn copy(connection: &mut PgConnection, sql: &str, lines: &str) -> sqlx::Result<u64> {
    let mut copy = connection.copy_in_raw(sql).await?;
    if let Err(error) = copy.send(lines.as_bytes()).await {
        drop(copy.abort("").await);
        return Err(error);
    }
    copy.finish().await
}

/// A client that updates rows through the topmost tables, again and again, until it is to end.
pub(super) struct BackgroundWriter {
    ended: Arc<AtomicBool>,
    task: JoinHandle<(i32, Vec<SqlError>)>,
}

impl BackgroundWriter {
    pub(super) async fn begin(url: &str) -> Self {
        let mut client = UserSession::connect(url).await;
        let ended = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ended);
        let task = tokio::spawn(async move {
            let mut refused = Vec::new();
            let mut number = 0;
            loop {
                for top in ["r0", "c0", "l0"] {
                    number += 1;
                    let sql = format!(
                        "update {top} set label = 'storm{number}' where part % 7 = {}",
                        number % 7
                    );
                    if let Err(error) = client.run(&Message::Sql(sql)).await {
                        refused.push(error);
                    }
                }
                if until.load(Ordering::SeqCst) {
                    return (client.pid, refused);
                }
            }
        });
        Self { ended, task }
    }

    /// Waits for its end. `pids` are the processes that it may conflict with.
    ///
    /// # Errors
    /// The first of its errors that larder caused.
    pub(super) async fn end(
        self,
        pids: &[i32],
        meanwhile: Option<&SqlError>,
    ) -> Result<(), String> {
        self.ended.store(true, Ordering::SeqCst);
        let (pid, refused) = self.task.await.unwrap();
        let mut pids = pids.to_vec();
        pids.push(pid);
        for error in refused.iter().chain(meanwhile) {
            if !error.is_conflict() || error.has_others(&pids) {
                return Err(format!(
                    "a statement failed beside another that passes without larder: {error}"
                ));
            }
        }
        Ok(())
    }
}
