//! Connections to PostgreSQL: how larder opens them, which settings they have, and which database they reach.

mod identity;
mod login;
mod password_file;
mod settings;
pub mod url;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Postgres, Row, raw_sql};
use uuid::Uuid;

use crate::resource::proof::Proof;
pub use crate::source::session::identity::{Identity, read_identity, read_server_identity};
pub(in crate::source) use crate::source::session::identity::{
    verify_identity, wait_for_new_identity,
};
use crate::source::session::settings::Settings;
use crate::source::session::url::ConnectionUrl;
use crate::source::{SourceError, TOO_MANY_CONNECTIONS, beginning};

/// A step of opening a connection may take 800 ms. The time is counted in polls of 100 ms: a thread that serves
/// thousands of clients may come late to a response that has arrived in time, and then still gets its poll.
const CONNECT_POLLS: u32 = 8;
const CONNECT_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How many server processes a connection behind a pooler remembers as checked.
const CHECKED_PROCESSES_MAX: usize = 64;

/// `protocol_violation` (PostgreSQL manual, appendix A). pgbouncer refuses startup parameters that it does not know
/// with this code, and in statement mode transactions. PostgreSQL uses other codes for such settings.
const PROTOCOL_VIOLATION: &str = "08P01";

/// `cannot_connect_now`: the server starts, or recovers. libpq goes on with the next host then.
const CANNOT_CONNECT_NOW: &str = "57P03";

/// Makes glibc keep up to 8 MiB of a server process's heap. PostgreSQL allocates 1 KiB for each value of a record that
/// it sends. glibc returns the free end of the heap to the system above 128 KiB, and requests it again at the next
/// statement; that was a third of PostgreSQL's measured work for a document. After a larger block was freed, glibc
/// keeps twice its size (mallopt(3), `M_MMAP_THRESHOLD` and `M_TRIM_THRESHOLD`).
///
/// `repeat` is called twice because it copies its argument once for each repetition: 17 ms instead of 57.
const KEEP_HEAP: &str =
    "select pg_catalog.octet_length(pg_catalog.repeat(pg_catalog.repeat(' ', 4096), 1024))";

/// Begins a transaction that reads one snapshot and changes nothing.
pub(crate) const READ_ONLY: &str = "begin isolation level repeatable read, read only";

/// A database that larder reads from, by its URL.
#[derive(Clone, Debug)]
pub struct Database {
    url: ConnectionUrl,
    /// The place in `url.hosts` of the last host that a connection was opened to.
    last_host: Arc<AtomicUsize>,
    pooler: bool,
    statement_timeout: Duration,
}

/// A connection over which documents are read or written.
#[derive(Debug)]
pub struct Session {
    /// The connection.
    pub connection: PgConnection,
    /// The server process of this connection. With `pooler = true` it is that of the current transaction.
    process: Option<i32>,
    /// With `pooler = true`, the server processes whose settings were checked in a transaction of this connection.
    checked: Vec<i32>,
    /// The plan marks that writes read over it, the oldest first.
    pub(in crate::source) plan_marks: Vec<PlanMark>,
}

/// A prepared statement whose value changes once a definition may have changed.
#[derive(Debug)]
pub(in crate::source) struct PlanMark {
    /// The part of the definition's fingerprint that does not depend on the role.
    pub(in crate::source) fingerprint: String,
    /// The name of the statement.
    pub(in crate::source) statement: String,
    /// Its value when the definition was compared last; empty before.
    pub(in crate::source) value: String,
}

/// What a transaction may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::source) enum Access {
    /// Read documents.
    Read,
    /// Read and write documents.
    Write,
}

impl Session {
    fn new(connection: PgConnection, process: Option<i32>) -> Self {
        Self {
            connection,
            process,
            checked: Vec::new(),
            plan_marks: Vec::new(),
        }
    }

    /// Checks that a result is that of the statement that was sent, from the server process that it was sent to.
    ///
    /// `returned` is the proof in the result. Must be called before anything else of the result is used.
    ///
    /// # Errors
    /// [`SourceError::Pooler`] if it is not.
    pub(in crate::source) fn check_proof(
        &self,
        proof: Proof,
        returned: Option<&[u8]>,
    ) -> Result<(), SourceError> {
        let process = returned.and_then(|returned| proof.process(returned));
        match process {
            None => Err(SourceError::Pooler(
                "the result is that of another statement",
            )),
            Some(_) if process != self.process => Err(SourceError::Pooler(
                "the server process changed between two statements",
            )),
            Some(_) => Ok(()),
        }
    }

    /// As [`Session::check_proof`], for a result that always has a row, with a column `proof`.
    ///
    /// # Errors
    /// [`SourceError::Pooler`].
    pub(in crate::source) fn check_rows_proof(
        &self,
        proof: Proof,
        rows: &[PgRow],
    ) -> Result<(), SourceError> {
        let returned = rows.first().and_then(|row| row.try_get("proof").ok());
        self.check_proof(proof, returned)
    }

    /// Runs `query`, whose result always has a row, with a column `proof`, and checks that it is the result of the
    /// statement with this `proof`.
    ///
    /// # Errors
    /// [`SourceError::Pooler`] if it is not; else the error of the statement.
    pub(in crate::source) async fn fetch_checked(
        &mut self,
        query: Query<'_, Postgres, PgArguments>,
        proof: Proof,
    ) -> Result<Vec<PgRow>, SourceError> {
        let rows = query.fetch_all(&mut self.connection).await?;
        self.check_rows_proof(proof, &rows)?;
        Ok(rows)
    }

    /// Runs a command that returns no rows.
    pub(in crate::source) async fn execute(&mut self, command: &str) -> sqlx::Result<()> {
        let command = AssertSqlSafe(command.to_owned());
        raw_sql(command).execute(&mut self.connection).await?;
        Ok(())
    }
}

impl Database {
    /// Parses a `postgres://` URL. Opens no connection.
    ///
    /// # Errors
    /// [`SourceError::Url`] if it is not such a URL, or larder can't obey it. The message repeats no value of it.
    pub fn new(url: &str, pooler: bool, statement_timeout: Duration) -> Result<Self, SourceError> {
        let mut url = ConnectionUrl::parse(url)?;
        // Without this sqlx sends a value of its own besides larder's settings, which a pooler may refuse.
        let prepared = |options: PgConnectOptions| {
            options
                .application_name("larder")
                .extra_float_digits(None)
                .disable_statement_logging()
        };
        url.hosts = url.hosts.into_iter().map(prepared).collect();
        Ok(Self {
            url,
            last_host: Arc::default(),
            pooler,
            statement_timeout,
        })
    }

    /// Whether the URL leads to a transaction pooler. If so, settings and proofs hold for one transaction only.
    pub fn pooler(&self) -> bool {
        self.pooler
    }

    /// The longest time that one statement may take.
    pub fn statement_timeout(&self) -> Duration {
        self.statement_timeout
    }

    /// Opens a connection that reads documents. Waits at most 800 ms for each of three steps, longer on a busy thread.
    ///
    /// # Errors
    /// [`SourceError::Unavailable`] if PostgreSQL cannot be reached, [`SourceError::Login`] if it does not let larder in;
    /// [`SourceError::Pooler`] and [`SourceError::Setting`] if the connection does not have the settings that larder requested.
    pub async fn connect(&self) -> Result<Session, SourceError> {
        let settings = Settings::for_reads(self.statement_timeout);
        self.open(&settings, StepTimeout::Short).await
    }

    /// Opens a connection that may write, for the feed and for installing. `settings` are set besides larder's own.
    ///
    /// # Errors
    /// As [`Database::connect`].
    pub async fn connect_for_feed(
        &self,
        settings: &[(&'static str, &str)],
    ) -> Result<PgConnection, SourceError> {
        let settings = Settings::for_feed(settings);
        let (connection, _) = self.open_direct(&settings, StepTimeout::Short).await?;
        Ok(connection)
    }

    /// Why the URL leads to a pooler that does not keep a session on one server process; `None` if it does not.
    ///
    /// A pooler may refuse or drop startup parameters. Else a second connection that holds a transaction takes the server
    /// process that the first one has given back, or keeps the first one waiting, where there is no other.
    ///
    /// # Errors
    /// As [`Database::connect`].
    pub async fn find_pooler(&self) -> Result<Option<String>, SourceError> {
        match self.find_other_process().await {
            Ok(is_other) => Ok(
                is_other.then(|| "the server process changes between two statements".to_owned())
            ),
            Err(SourceError::Pooler(why)) => Ok(Some(why.to_owned())),
            Err(SourceError::Setting {
                name,
                expected,
                found,
            }) => Ok(Some(format!(
                "startup parameter {name} = {expected} did not reach the server, which has {found}"
            ))),
            Err(error) => Err(error),
        }
    }

    /// Whether a connection loses its server process while another one holds a transaction.
    async fn find_other_process(&self) -> Result<bool, SourceError> {
        let settings = Settings::for_feed(&[]);
        let (mut first, process) = self.open_direct(&settings, StepTimeout::Short).await?;
        let (mut second, _) = self.open_direct(&settings, StepTimeout::Short).await?;
        let begun = raw_sql("begin").execute(&mut second).await;
        begun.map_err(|error| self.refusal(&error, "transactions were refused"))?;
        let is_other = server_process(&mut second).await? == process
            || match within_connect_timeout(server_process(&mut first)).await {
                Some(now) => now? != process,
                None => true,
            };
        raw_sql("rollback").execute(&mut second).await?;
        Ok(is_other)
    }

    /// Opens a connection that writes documents. It has the search path of the role or database, since triggers may
    /// rely on that. The caller limits the time.
    ///
    /// # Errors
    /// As [`Database::connect`].
    pub async fn connect_for_writes(&self) -> Result<Session, SourceError> {
        let settings = Settings::for_writes(self.statement_timeout);
        self.open(&settings, StepTimeout::Unbounded).await
    }

    /// Opens a connection of `larder dispatch`: one that writes, which the server ends if it hears nothing of the process for
    /// `takeover`.
    ///
    /// # Errors
    /// As [`Database::connect`].
    pub(crate) async fn connect_for_dispatch(
        &self,
        takeover: Duration,
        statement_max: Duration,
    ) -> Result<PgConnection, SourceError> {
        let statement_timeout = self.statement_timeout.min(statement_max);
        let settings = Settings::for_dispatch(statement_timeout, takeover);
        let (mut connection, _) = self.open_direct(&settings, StepTimeout::Short).await?;
        // It has no effect on a Unix socket, where it can't be read back. A stronger level of the role stays.
        let set = format!(
            "set tcp_user_timeout = {}; select set_config('synchronous_commit', 'on', false) \
             where current_setting('synchronous_commit') in ('off', 'local', 'remote_write')",
            takeover.as_millis()
        );
        raw_sql(AssertSqlSafe(set)).execute(&mut connection).await?;
        Ok(connection)
    }

    /// The connection options for LISTEN, without the settings of statements, for the host that the last connection was
    /// opened to.
    pub fn listener_options(&self) -> PgConnectOptions {
        let place = self.last_host.load(Ordering::Relaxed);
        let host = self.url.hosts.get(place).cloned();
        host.unwrap_or_default()
            .options([("idle_session_timeout", "0")])
    }

    /// The role of a connection. Behind a pooler it may be another one than the URL names.
    ///
    /// # Errors
    /// As [`Database::connect`].
    pub async fn role(&self) -> Result<String, SourceError> {
        let connecting = self.connect_to_first(|options| options, StepTimeout::Short);
        let mut connection = connecting.await.map_err(|error| self.unavailable(&error))?;
        // One message of the simple protocol, which no pooler can divide.
        let row = raw_sql("select current_user::pg_catalog.text")
            .fetch_one(&mut connection)
            .await?;
        let role = row.try_get(0)?;
        connection.close().await?;
        Ok(role)
    }

    /// Opens a connection without larder's settings and time limits.
    ///
    /// # Errors
    /// Why no host of the URL could be connected to.
    pub async fn connect_plain(&self) -> Result<PgConnection, SourceError> {
        let connecting = self.connect_to_first(|options| options, StepTimeout::Unbounded);
        connecting.await.map_err(|error| self.unavailable(&error))
    }

    /// Connects to the first host of the URL that accepts the connection, as libpq does: a host that refuses the
    /// credentials ends the attempt. `timeout` is for each host.
    async fn connect_to_first(
        &self,
        change: impl Fn(PgConnectOptions) -> PgConnectOptions,
        timeout: StepTimeout,
    ) -> sqlx::Result<PgConnection> {
        let mut last_error = sqlx::Error::PoolClosed;
        for (place, options) in self.url.hosts.iter().enumerate() {
            let options = change(options.clone());
            let attempt = timeout.limit(self.connect_to(&options));
            let outcome = match self.url.connect_timeout {
                None => attempt.await,
                Some(limit) => tokio::time::timeout(limit, attempt)
                    .await
                    .unwrap_or_else(|_| {
                        Err(
                            std::io::Error::other("connecting took longer than connect_timeout")
                                .into(),
                        )
                    }),
            };
            match outcome {
                Ok(connection) => {
                    self.last_host.store(place, Ordering::Relaxed);
                    return Ok(connection);
                }
                Err(error) => {
                    let is_final = error.as_database_error().is_some()
                        && !has_code(&error, CANNOT_CONNECT_NOW);
                    last_error = error;
                    if is_final {
                        break;
                    }
                }
            }
        }
        Err(last_error)
    }

    /// Connects to one host, and checks that it is the primary if the URL demands that.
    async fn connect_to(&self, options: &PgConnectOptions) -> sqlx::Result<PgConnection> {
        let mut connection = PgConnection::connect_with(options).await?;
        if self.url.needs_primary {
            let row = raw_sql("select pg_catalog.pg_is_in_recovery()")
                .fetch_one(&mut connection)
                .await?;
            if row.try_get(0)? {
                let error = std::io::Error::other("the server is a standby or in recovery");
                return Err(error.into());
            }
        }
        Ok(connection)
    }

    async fn open(
        &self,
        settings: &Settings,
        timeout: StepTimeout,
    ) -> Result<Session, SourceError> {
        if self.pooler {
            // A pooler refuses startup parameters that it does not know, so each transaction sets its own: see
            // `begin_pooled`.
            let uncached = |options: PgConnectOptions| options.statement_cache_capacity(0);
            let connection = self.connect_to_first(uncached, timeout).await;
            return Ok(Session::new(
                connection.map_err(|error| self.unavailable(&error))?,
                None,
            ));
        }
        let (mut connection, process) = self.open_direct(settings, timeout).await?;
        timeout
            .limit(raw_sql(KEEP_HEAP).execute(&mut connection))
            .await
            .map_err(|error| self.unavailable(&error))?;
        Ok(Session::new(connection, Some(process)))
    }

    /// Opens a connection and checks that it has `settings`. Returns it with the number of its server process.
    async fn open_direct(
        &self,
        settings: &Settings,
        timeout: StepTimeout,
    ) -> Result<(PgConnection, i32), SourceError> {
        let name = Uuid::new_v4();
        let with_settings = |options: PgConnectOptions| options.options(settings.options(name));
        let opened = self.connect_to_first(with_settings, timeout).await;
        let by_pooler = "startup parameters were refused";
        let mut connection = opened.map_err(|error| self.refusal(&error, by_pooler))?;
        let checked = async { Ok(settings.set_and_check(&mut connection, name).await) };
        let checked = timeout.limit(checked).await;
        let process = checked.map_err(|error| self.unavailable(&error))??;
        Ok((connection, process))
    }

    /// While a connection is being opened, every error means that PostgreSQL cannot be reached, does not let larder in, or has
    /// too many connections.
    fn unavailable(&self, error: &sqlx::Error) -> SourceError {
        let Some(refusal) = error.as_database_error() else {
            return SourceError::Unavailable(login::failure(error));
        };
        let message = beginning(&self.url.masked(refusal.message()));
        if has_code(error, TOO_MANY_CONNECTIONS) {
            return SourceError::TooManyConnections(message);
        }
        login::refusal(refusal, &message).unwrap_or(SourceError::Unavailable(message))
    }

    /// The meaning of an error where only a pooler refuses what larder sent.
    fn refusal(&self, error: &sqlx::Error, by_pooler: &'static str) -> SourceError {
        if has_code(error, PROTOCOL_VIOLATION) {
            SourceError::Pooler(by_pooler)
        } else {
            self.unavailable(error)
        }
    }

    /// Begins a transaction behind a pooler, which keeps only a transaction on one server connection. The transaction
    /// gets the settings of a direct connection; they are checked once for each server process. The isolation level is
    /// set first, so that no statement sees a snapshot that is older than itself, whatever the defaults of role and
    /// database.
    ///
    /// # Errors
    /// As [`Database::connect`]. The connection must not be used after that.
    pub(in crate::source) async fn begin_pooled(
        &self,
        session: &mut Session,
        access: Access,
    ) -> Result<(), SourceError> {
        let timeout = self.statement_timeout;
        let (settings, mode, read_only) = match access {
            Access::Read => (Settings::for_reads(timeout), "read only", "on"),
            Access::Write => (Settings::for_writes(timeout), "read write", "off"),
        };
        let connection = &mut session.connection;
        let begin = format!(
            "begin isolation level read committed, {mode}; {}select pg_catalog.pg_backend_pid()",
            settings.local_sql(connection)
        );
        let begun = raw_sql(AssertSqlSafe(begin))
            .fetch_all(&mut *connection)
            .await
            .map_err(|error| {
                if has_code(&error, PROTOCOL_VIOLATION) {
                    SourceError::Pooler("transactions were refused")
                } else {
                    error.into()
                }
            })?;
        let process = begun.last().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
        session.process = Some(process);
        if !session.checked.contains(&process) {
            settings.check_transaction(connection, read_only).await?;
            if session.checked.len() >= CHECKED_PROCESSES_MAX {
                session.checked.clear();
            }
            session.checked.push(process);
        }
        Ok(())
    }
}

/// How long a step of opening a connection may take.
#[derive(Clone, Copy, Debug)]
enum StepTimeout {
    /// 800 ms, longer on a busy thread.
    Short,
    /// The caller limits the time.
    Unbounded,
}

impl StepTimeout {
    async fn limit<T>(self, step: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
        match self {
            Self::Unbounded => step.await,
            Self::Short => within_connect_timeout(step).await.unwrap_or_else(|| {
                let error = std::io::Error::other("connecting took too long");
                Err(sqlx::Error::Io(error))
            }),
        }
    }
}

pub(in crate::source) fn has_code(error: &sqlx::Error, code: &str) -> bool {
    let database = error.as_database_error();
    database.is_some_and(|error| error.code().as_deref() == Some(code))
}

/// The server process that a connection has now.
async fn server_process(connection: &mut PgConnection) -> sqlx::Result<i32> {
    let row = raw_sql("select pg_catalog.pg_backend_pid()")
        .fetch_one(connection)
        .await?;
    row.try_get(0)
}

/// Waits for a step of opening a connection for 800 ms, longer on a busy thread. Returns `None` if that was too short.
pub(super) async fn within_connect_timeout<T>(step: impl Future<Output = T>) -> Option<T> {
    let mut step = pin!(step);
    for _ in 0..CONNECT_POLLS {
        if let Ok(done) = tokio::time::timeout(CONNECT_POLL_INTERVAL, &mut step).await {
            return Some(done);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each poll of the step comes 300 ms late. A step that never ends is given up all the same.
    #[tokio::test(start_paused = true)]
    async fn a_step_is_polled_often_enough_on_a_busy_thread() {
        let busy_thread = async {
            for _ in 0..20 {
                tokio::time::advance(Duration::from_millis(300)).await;
            }
        };
        let connecting = async {
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
        };
        let (connected, ()) = tokio::join!(within_connect_timeout(connecting), busy_thread);
        assert!(connected.is_some());
        assert!(
            within_connect_timeout(std::future::pending::<()>())
                .await
                .is_none()
        );
    }
}
