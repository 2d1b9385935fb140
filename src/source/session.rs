//! Connections to PostgreSQL: how they are opened, what they are set to, and which database they prove to reach.

use std::pin::pin;
use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection, Row};
use uuid::Uuid;

use crate::source::SourceError;

/// A step on the way to a connection may take 800 ms, counted in looks at the clock: a thread that serves thousands of
/// clients comes to each round trip late, and that is not PostgreSQL's doing.
const CONNECT_LOOKS: u32 = 8;
const CONNECT_LOOK: Duration = Duration::from_millis(100);

/// Set for what larder alone runs. Users' triggers may rely on the search path of their role or database.
const SEARCH_PATH: (&str, &str) = ("search_path", "pg_catalog");

/// What makes a document's bytes, and the names of types, independent of the settings of role and database.
const SETTINGS: [(&str, &str); 10] = [
    ("timezone", "UTC"),
    ("datestyle", "ISO, YMD"),
    ("intervalstyle", "postgres"),
    ("extra_float_digits", "1"),
    ("lc_monetary", "C"),
    ("bytea_output", "hex"),
    ("quote_all_identifiers", "off"),
    ("default_transaction_isolation", "read committed"),
    ("standard_conforming_strings", "on"),
    ("jit", "off"),
];

/// Documents are read by their keys, however many: one plan by indexes serves them all. Planned anew, as PostgreSQL
/// would for few keys, a statement of one key costs twice as much; and a plan from when a table was small must not
/// scan it for ever.
const PLANS: [(&str, &str); 2] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
];

/// What a transaction that writes may wait for, all as long as a statement may run: larder never leaves one idle.
const WRITE_TIMEOUTS: [&str; 2] = ["statement_timeout", "idle_in_transaction_session_timeout"];

/// Has glibc keep up to 8 MiB of a server process's heap. A record's values each take a buffer of 1 KiB while it is
/// sent, and glibc gives a heap's free end back to the system above 128 KiB, to ask for it again at the next statement:
/// measured, a third of PostgreSQL's work for a document. Once a larger block was given back, twice its size is kept
/// (mallopt(3), `M_MMAP_THRESHOLD` and `M_TRIM_THRESHOLD`).
///
/// Repeated twice, as `repeat` copies its argument once for each time: 17 ms in place of 57.
const KEEP_HEAP: &str = "select octet_length(repeat(repeat(' ', 4096), 1024))";

/// A database that larder reads from, by its URL.
#[derive(Clone, Debug)]
pub struct Database {
    options: PgConnectOptions,
    pooler: bool,
    statement_timeout: Duration,
}

impl Database {
    /// Reads a `postgres://` URL; nothing is connected yet.
    ///
    /// # Errors
    /// [`SourceError::Url`] where it is none; the message repeats no part of it.
    pub fn new(url: &str, pooler: bool, statement_timeout: Duration) -> Result<Self, SourceError> {
        let options = PgConnectOptions::from_str(url).map_err(|_| SourceError::Url)?;
        let options = options
            .application_name("larder")
            .disable_statement_logging();
        Ok(Self {
            options,
            pooler,
            statement_timeout,
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

    /// Opens a connection that reads documents. Waits at most 800 ms for each of two steps, longer on a busy thread.
    ///
    /// # Errors
    /// [`SourceError::Unavailable`] if PostgreSQL is out of reach or refuses.
    pub async fn connect(&self) -> Result<PgConnection, SourceError> {
        if self.pooler {
            // A pooler refuses startup parameters that it does not know; each transaction sets its own: see
            // `transaction_settings`.
            let options = self.options.clone().extra_float_digits(None);
            return self.open(options.statement_cache_capacity(0)).await;
        }
        let timeout = self.statement_timeout.as_millis().to_string();
        let options = self
            .options
            .clone()
            .options(SETTINGS)
            .options([SEARCH_PATH])
            .options(PLANS)
            .options([
                ("statement_timeout", timeout.as_str()),
                ("default_transaction_read_only", "on"),
            ]);
        let mut connection = self.open(options).await?;
        within_connect_timeout(sqlx::raw_sql(KEEP_HEAP).execute(&mut connection)).await?;
        Ok(connection)
    }

    /// Opens a connection that may write: for the feed and for installing.
    ///
    /// # Errors
    /// As [`Database::connect`].
    pub async fn connect_writer(
        &self,
        settings: &[(&str, &str)],
    ) -> Result<PgConnection, SourceError> {
        let options = self
            .options
            .clone()
            .options(SETTINGS)
            .options([SEARCH_PATH])
            .options(settings.iter().copied());
        self.open(options).await
    }

    /// Opens a connection that writes documents. The search path is that of role and database, as triggers expect it.
    /// The caller says how long that may take.
    ///
    /// # Errors
    /// As [`Database::connect`].
    pub async fn connect_for_writes(&self) -> Result<PgConnection, SourceError> {
        if self.pooler {
            let options = self.options.clone().extra_float_digits(None);
            let options = options.statement_cache_capacity(0);
            return PgConnection::connect_with(&options)
                .await
                .map_err(|error| unavailable(&error));
        }
        let timeout = self.statement_timeout.as_millis().to_string();
        let options = self.options.clone().options(SETTINGS).options(PLANS);
        let options = options.options(WRITE_TIMEOUTS.map(|name| (name, timeout.as_str())));
        let connected = PgConnection::connect_with(&options).await;
        let mut connection = connected.map_err(|error| unavailable(&error))?;
        let kept = sqlx::raw_sql(KEEP_HEAP).execute(&mut connection).await;
        kept.map_err(|error| unavailable(&error))?;
        Ok(connection)
    }

    /// The connection options without any setting of a session, for LISTEN.
    pub fn listener_options(&self) -> PgConnectOptions {
        self.options.clone()
    }

    async fn open(&self, options: PgConnectOptions) -> Result<PgConnection, SourceError> {
        within_connect_timeout(PgConnection::connect_with(&options)).await
    }

    /// SQL that gives one transaction the settings that [`Database::connect`] gives a session.
    pub(crate) fn transaction_settings(&self) -> String {
        let settings = SETTINGS.into_iter().chain([SEARCH_PATH]);
        let mut sql = set_local(settings);
        sql.push_str(&format!(
            "set local statement_timeout = {}",
            self.statement_timeout.as_millis()
        ));
        sql
    }

    /// The same as [`Database::connect_for_writes`] does it.
    pub(crate) fn write_transaction_settings(&self) -> String {
        let timeout = self.statement_timeout.as_millis().to_string();
        let timeouts = WRITE_TIMEOUTS.map(|name| (name, timeout.as_str()));
        set_local(SETTINGS.into_iter().chain(PLANS).chain(timeouts))
    }
}

fn set_local<'s>(settings: impl Iterator<Item = (&'s str, &'s str)>) -> String {
    let settings = settings.map(|(name, value)| format!("set local {name} = '{value}'; "));
    settings.collect()
}

/// Without a connection, whatever PostgreSQL says means that it can't be reached.
fn unavailable(error: &sqlx::Error) -> SourceError {
    SourceError::Unavailable(error.to_string())
}

async fn within_connect_timeout<T>(
    step: impl Future<Output = sqlx::Result<T>>,
) -> Result<T, SourceError> {
    match patiently(step).await {
        Some(done) => done.map_err(|error| unavailable(&error)),
        None => Err(SourceError::Unavailable("connecting took too long".into())),
    }
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

/// Which database a connection reaches: two of the same identity have the same history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `pg_control_system().system_identifier`: the cluster.
    pub system: String,
    /// The database's oid.
    pub database: u32,
    /// The oid of `larder.epoch`, which a copy of the database does not share.
    pub epoch_table: u32,
    /// What `larder.epoch` holds; gone after a crash and on a promoted standby.
    pub nonce: Uuid,
}

/// The identity of the database behind `connection`; `None` where larder's schema is missing or its epoch is empty.
///
/// # Errors
/// [`SourceError::Standby`] if the server is in recovery; else what PostgreSQL said.
pub async fn identity(connection: &mut PgConnection) -> Result<Option<Identity>, SourceError> {
    let installed = sqlx::query(
        "select pg_is_in_recovery(), to_regclass('larder.epoch')::oid::int8, \
         (select oid::int8 from pg_database where datname = current_database())",
    )
    .persistent(false)
    .fetch_one(&mut *connection)
    .await?;
    if installed.try_get::<bool, _>(0)? {
        return Err(SourceError::Standby);
    }
    let Some(epoch_table) = installed.try_get::<Option<i64>, _>(1)? else {
        return Ok(None);
    };
    let row = sqlx::query(
        "select (select system_identifier::text from pg_control_system()), (select nonce::text from larder.epoch)",
    )
    .persistent(false)
    .fetch_one(&mut *connection)
    .await?;
    let nonce: Option<String> = row.try_get(1)?;
    Ok(nonce.and_then(|nonce| {
        Some(Identity {
            system: row.try_get(0).ok()?,
            database: u32::try_from(installed.try_get::<i64, _>(2).ok()?).ok()?,
            epoch_table: u32::try_from(epoch_table).ok()?,
            nonce: Uuid::try_parse(&nonce).ok()?,
        })
    }))
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
