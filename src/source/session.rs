//! Connections to PostgreSQL: how they are opened, what they are set to, and which database they prove to reach.

mod settings;

use std::pin::pin;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Row, raw_sql};
use uuid::Uuid;

use crate::resource::proof::Proof;
use crate::source::SourceError;
use crate::source::session::settings::Settings;

/// A step on the way to a connection may take 800 ms, counted in looks at the clock: a thread that serves thousands of
/// clients comes to each round trip late, and that is not PostgreSQL's doing.
const CONNECT_LOOKS: u32 = 8;
const CONNECT_LOOK: Duration = Duration::from_millis(100);

/// Server processes of one connection whose settings are known to be right, at most.
const CHECKED_PROCESSES_MAX: usize = 64;

/// `protocol_violation` (PostgreSQL manual, appendix A): with it pgbouncer refuses startup parameters that it does not
/// know, and in statement mode transactions. PostgreSQL has other codes for such settings.
const PROTOCOL_VIOLATION: &str = "08P01";

/// Has glibc keep up to 8 MiB of a server process's heap. A record's values each take a buffer of 1 KiB while it is
/// sent, and glibc gives a heap's free end back to the system above 128 KiB, to ask for it again at the next statement:
/// measured, a third of PostgreSQL's work for a document. Once a larger block was given back, twice its size is kept
/// (mallopt(3), `M_MMAP_THRESHOLD` and `M_TRIM_THRESHOLD`).
///
/// Repeated twice, as `repeat` copies its argument once for each time: 17 ms in place of 57.
const KEEP_HEAP: &str =
    "select pg_catalog.octet_length(pg_catalog.repeat(pg_catalog.repeat(' ', 4096), 1024))";

/// A database that larder reads from, by its URL.
#[derive(Clone, Debug)]
pub struct Database {
    options: PgConnectOptions,
    pooler: bool,
    statement_timeout: Duration,
    /// What stands between was named in the log, and no connection has been good since.
    refused: Arc<AtomicBool>,
}

/// A connection over which documents are read or written.
#[derive(Debug)]
pub struct Session {
    /// The connection.
    pub connection: PgConnection,
    /// The server process behind it: for good, or behind a pooler that larder was told of for the transaction that has
    /// begun.
    process: Option<i32>,
    /// Server processes whose settings were read back within a transaction of this connection, behind a pooler.
    checked: Vec<i32>,
}

/// What a transaction may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::source) enum Access {
    /// It only reads.
    Read,
    /// It writes documents.
    Write,
}

impl Session {
    fn new(connection: PgConnection, process: Option<i32>) -> Self {
        Self {
            connection,
            process,
            checked: Vec::new(),
        }
    }

    /// Fails unless `answered`, the proof that came with an answer, is that of the statement that was sent, and the
    /// server process is the one that it was sent to. To be called before anything of the answer is used.
    ///
    /// # Errors
    /// [`SourceError::Pooler`].
    pub(in crate::source) fn check(
        &self,
        proof: Proof,
        answered: Option<&[u8]>,
    ) -> Result<(), SourceError> {
        let process = answered.and_then(|answered| proof.process(answered));
        match process {
            None => Err(SourceError::Pooler("another statement was answered")),
            Some(_) if process != self.process => Err(SourceError::Pooler(
                "the server process changed between two statements",
            )),
            Some(_) => Ok(()),
        }
    }

    /// The same for an answer with a column `proof`, which has a row whatever was found.
    ///
    /// # Errors
    /// [`SourceError::Pooler`].
    pub(in crate::source) fn check_rows(
        &self,
        proof: Proof,
        rows: &[PgRow],
    ) -> Result<(), SourceError> {
        let answered = rows.first().and_then(|row| row.try_get("proof").ok());
        self.check(proof, answered)
    }

    /// Ends the transaction that has begun: `commit` or `rollback`.
    pub(in crate::source) async fn end(&mut self, how: &'static str) -> sqlx::Result<()> {
        raw_sql(how).execute(&mut self.connection).await?;
        Ok(())
    }
}

impl Database {
    /// Reads a `postgres://` URL; nothing is connected yet.
    ///
    /// # Errors
    /// [`SourceError::Url`] where it is none; the message repeats no part of it.
    pub fn new(url: &str, pooler: bool, statement_timeout: Duration) -> Result<Self, SourceError> {
        let options = PgConnectOptions::from_str(url).map_err(|_| SourceError::Url)?;
        // sqlx would send its own value past the settings here, and a pooler may refuse it.
        let options = options
            .application_name("larder")
            .extra_float_digits(None)
            .disable_statement_logging();
        Ok(Self {
            options,
            pooler,
            statement_timeout,
            refused: Arc::default(),
        })
    }

    /// Whether a transaction pooler stands between, so that settings and proofs hold for one transaction only.
    pub fn pooler(&self) -> bool {
        self.pooler
    }

    /// The longest run of one statement.
    pub fn statement_timeout(&self) -> Duration {
        self.statement_timeout
    }

    /// Opens a connection that reads documents. Waits at most 800 ms for each of three steps, longer on a busy thread.
    ///
    /// # Errors
    /// [`SourceError::Unavailable`] if PostgreSQL is out of reach or refuses; [`SourceError::Pooler`] and
    /// [`SourceError::Setting`] if the connection does not keep what was asked for.
    pub async fn connect(&self) -> Result<Session, SourceError> {
        let settings = Settings::reading(self.statement_timeout);
        self.open(&settings, Step::Short).await
    }

    /// Opens a connection that may write: for the feed and for installing.
    ///
    /// # Errors
    /// As [`Database::connect`].
    pub async fn connect_writer(
        &self,
        settings: &[(&'static str, &str)],
    ) -> Result<PgConnection, SourceError> {
        let settings = Settings::following(settings);
        let opened = self.open_direct(&settings, Step::Short).await;
        self.note(&opened);
        Ok(opened?.0)
    }

    /// Opens a connection that writes documents. The search path is that of role and database, as triggers expect it.
    /// The caller says how long that may take.
    ///
    /// # Errors
    /// As [`Database::connect`].
    pub async fn connect_for_writes(&self) -> Result<Session, SourceError> {
        let settings = Settings::writing(self.statement_timeout);
        self.open(&settings, Step::Unbounded).await
    }

    /// The connection options for LISTEN, without the settings of statements.
    pub fn listener_options(&self) -> PgConnectOptions {
        self.options
            .clone()
            .options([("idle_session_timeout", "0")])
    }

    async fn open(&self, settings: &Settings, step: Step) -> Result<Session, SourceError> {
        if self.pooler {
            // A pooler refuses startup parameters that it does not know; each transaction sets its own: see `begin`.
            let options = self.options.clone().statement_cache_capacity(0);
            let connection = step.take(PgConnection::connect_with(&options)).await;
            return Ok(Session::new(
                connection.map_err(|error| unavailable(&error))?,
                None,
            ));
        }
        let opened = self.open_direct(settings, step).await;
        self.note(&opened);
        let (mut connection, process) = opened?;
        step.take(raw_sql(KEEP_HEAP).execute(&mut connection))
            .await
            .map_err(|error| unavailable(&error))?;
        Ok(Session::new(connection, Some(process)))
    }

    /// A connection with these settings, all of which it has, and its server process.
    async fn open_direct(
        &self,
        settings: &Settings,
        step: Step,
    ) -> Result<(PgConnection, i32), SourceError> {
        let name = Uuid::new_v4();
        let options = self.options.clone().options(settings.options(name));
        let opened = step.take(PgConnection::connect_with(&options)).await;
        let mut connection = opened.map_err(|error| refusal(&error))?;
        let settled = async { Ok(settings.settle(&mut connection, name).await) };
        let settled = step.take(settled).await;
        let process = settled.map_err(|error| unavailable(&error))??;
        Ok((connection, process))
    }

    /// Says in the log, once until a connection is good again, what makes connections useless.
    pub(in crate::source) fn note<T>(&self, outcome: &Result<T, SourceError>) {
        match outcome {
            Err(error @ (SourceError::Pooler(_) | SourceError::Setting { .. })) => {
                if !self.refused.swap(true, Ordering::Relaxed) {
                    tracing::warn!("a connection to PostgreSQL is refused: {error}")
                } else {
                    tracing::debug!("a connection to PostgreSQL is refused: {error}")
                }
            }
            Ok(_) => self.refused.store(false, Ordering::Relaxed),
            Err(_) => {}
        }
    }

    /// Begins a transaction behind a pooler, where only a transaction stays on one server: it sets all that a direct
    /// connection is set to, and reads that back once for each server process. Isolation comes first, so that no
    /// statement of the transaction sees a snapshot from before it was sent, whatever role and database say.
    ///
    /// # Errors
    /// As [`Database::connect`]. The connection is of no use then.
    pub(in crate::source) async fn begin(
        &self,
        session: &mut Session,
        access: Access,
    ) -> Result<(), SourceError> {
        let timeout = self.statement_timeout;
        let (settings, mode, read_only) = match access {
            Access::Read => (Settings::reading(timeout), "read only", "on"),
            Access::Write => (Settings::writing(timeout), "read write", "off"),
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
            });
        self.note(&begun);
        let begun = begun?;
        let process = begun.last().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
        session.process = Some(process);
        if !session.checked.contains(&process) {
            let checked = settings.check_transaction(connection, read_only).await;
            self.note(&checked);
            checked?;
            if session.checked.len() >= CHECKED_PROCESSES_MAX {
                session.checked.clear();
            }
            session.checked.push(process);
        }
        Ok(())
    }
}

/// How long a step on the way to a connection may take.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// 800 ms, longer on a busy thread.
    Short,
    /// The caller bounds it.
    Unbounded,
}

impl Step {
    async fn take<T>(self, step: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
        match self {
            Self::Unbounded => step.await,
            Self::Short => patiently(step).await.unwrap_or_else(|| {
                let error = std::io::Error::other("connecting took too long");
                Err(sqlx::Error::Io(error))
            }),
        }
    }
}

/// Without a connection, whatever PostgreSQL says means that it can't be reached.
fn unavailable(error: &sqlx::Error) -> SourceError {
    SourceError::Unavailable(error.to_string())
}

/// What a server, or what stands before it, says to the beginning of a connection.
fn refusal(error: &sqlx::Error) -> SourceError {
    if has_code(error, PROTOCOL_VIOLATION) {
        SourceError::Pooler("startup parameters were refused")
    } else {
        unavailable(error)
    }
}

fn has_code(error: &sqlx::Error, code: &str) -> bool {
    let database = error.as_database_error();
    database.is_some_and(|error| error.code().as_deref() == Some(code))
}

/// What a step on the way to a connection comes to, unless it takes too long.
pub(super) async fn patiently<T>(step: impl Future<Output = T>) -> Option<T> {
    let mut step = pin!(step);
    for _ in 0..CONNECT_LOOKS {
        if let Ok(done) = tokio::time::timeout(CONNECT_LOOK, &mut step).await {
            return Some(done);
        }
    }
    None
}

/// Which database a connection reaches, and in which run of its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `pg_control_system().system_identifier`: the cluster.
    pub system: String,
    /// The database's oid.
    pub database: u32,
    /// The oid of `larder.epoch`, which a copy of the database does not share; 0 where there is no epoch.
    pub epoch_table: u32,
    /// What `larder.epoch` holds, gone after a crash and on a promoted standby; nil where there is no epoch.
    pub nonce: Uuid,
    /// Drawn by this larder where it first followed the database, and again where the database was put back to an
    /// earlier state; nil where only a connection tells.
    pub history: Uuid,
    /// When the server was started. A connection to a later run than the feed's may show what a copy of the database
    /// that is put back next does not hold; empty where no connection tells.
    pub server_start: String,
}

impl Identity {
    /// Whether all that was true of one database is true of the other: they differ at most in the run of the server.
    pub fn is_same_history(&self, other: &Self) -> bool {
        let Self {
            system,
            database,
            epoch_table,
            nonce,
            history,
            server_start: _,
        } = self;
        *system == other.system
            && *database == other.database
            && *epoch_table == other.epoch_table
            && *nonce == other.nonce
            && *history == other.history
    }
}

/// The identity of the database behind `connection`; without epoch and nonce where larder's schema is missing or its
/// epoch is empty.
///
/// Each statement is one message of the simple protocol, which no pooler can divide.
///
/// # Errors
/// [`SourceError::Standby`] if the server is in recovery; else what PostgreSQL said.
pub async fn identity(connection: &mut PgConnection) -> Result<Identity, SourceError> {
    let mut identity = server(connection).await?;
    if identity.epoch_table == 0 {
        return Ok(identity);
    }
    // A table that is being restored may have any number of rows.
    let nonce: Option<String> = raw_sql(
        "select case when pg_catalog.count(*) operator(pg_catalog.=) 1 then pg_catalog.min(nonce::pg_catalog.text) end \
         from larder.epoch",
    )
    .fetch_one(&mut *connection)
    .await?
    .try_get(0)?;
    match nonce.and_then(|nonce| Uuid::try_parse(&nonce).ok()) {
        Some(nonce) => identity.nonce = nonce,
        None => identity.epoch_table = 0,
    }
    Ok(identity)
}

/// The same without the nonce.
///
/// # Errors
/// As [`identity`].
pub async fn server(connection: &mut PgConnection) -> Result<Identity, SourceError> {
    let row = raw_sql(
        "select pg_catalog.pg_is_in_recovery(), pg_catalog.to_regclass('larder.epoch')::pg_catalog.oid::pg_catalog.int8, \
         (select d.oid::pg_catalog.int8 from pg_catalog.pg_database d \
          where d.datname operator(pg_catalog.=) pg_catalog.current_database()), \
         (select system_identifier::pg_catalog.text from pg_catalog.pg_control_system()), \
         extract(epoch from pg_catalog.pg_postmaster_start_time())::pg_catalog.text",
    )
    .fetch_one(&mut *connection)
    .await?;
    if row.try_get::<bool, _>(0)? {
        return Err(SourceError::Standby);
    }
    let oid = |oid: i64| u32::try_from(oid).unwrap_or(0);
    Ok(Identity {
        epoch_table: row.try_get::<Option<i64>, _>(1)?.map_or(0, oid),
        database: oid(row.try_get(2)?),
        system: row.try_get(3)?,
        server_start: row.try_get(4)?,
        nonce: Uuid::nil(),
        history: Uuid::nil(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each time that it has a turn, 300 ms are over; what never ends is given up all the same.
    #[tokio::test(start_paused = true)]
    async fn a_late_thread_gives_each_round_trip_its_turn() {
        let late = async {
            for _ in 0..20 {
                tokio::time::advance(Duration::from_millis(300)).await;
            }
        };
        let connecting = async {
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
        };
        let (connected, ()) = tokio::join!(patiently(connecting), late);
        assert!(connected.is_some());
        assert!(patiently(std::future::pending::<()>()).await.is_none());
    }
}
