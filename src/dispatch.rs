//! `larder dispatch`: sends the due rows of a table to a sink, and moves their due moments forward.
//!
//! ```text
//! poller ── which slots have due rows ──► slots ──► workers, each with a connection:
//!   lock the slot (session advisory lock) ─► match due rows ─► requests to the sink ─► reschedule what was delivered
//! ```
//!
//! A slot is one combination of the values of `partition`. One process works on it at a time: it holds an advisory lock on
//! the connection over which it matches and reschedules. No row is claimed, and no transaction is open while a sink is
//! awaited. The lock is taken by a statement of its own, and rows are matched by a later one: the snapshot of a statement is
//! older than a lock that it takes, and would show rows as due that the former holder has just rescheduled.
//!
//! Who loses its connection loses its slots. The server ends a session of which it hears nothing for `takeover`, and a worker
//! begins no request unless a statement that it sent within `takeover` was answered (`dispatch::lease`). So two processes never send
//! rows of one slot at a time, but for requests that were in flight.
//!
//! A row is rescheduled only while its due moment is the matched one: what the application changes, wins (`dispatch::settlement`).
//! `tests/model` explores these rules.

mod batch;
mod breaker;
pub mod definition;
mod fit;
mod lease;
pub mod letters;
mod metrics;
mod poller;
mod request;
mod settlement;
pub mod sink;
mod slots;
pub mod status;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use sqlx::Connection;
use sqlx::postgres::PgConnection;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use crate::dispatch::metrics::DispatchMetrics;

use crate::config::Config;
use crate::dispatch::breaker::{Breaker, BreakerState};
use crate::dispatch::definition::DispatchDefinition;
use crate::dispatch::fit::{read_rows, table_rights};
use crate::dispatch::settlement::check_settlement;
use crate::dispatch::sink::{RateLimit, Sink};
use crate::dispatch::slots::Slots;
use crate::dispatch::status::{RecentRate, TableStatus};
use crate::feed::rights::{dispatch_rights, dispatch_script_rights};
use crate::feed::{self, FeedConfig};
use crate::resource::definition::{Mistake, ResourceDefinition};
use crate::resource::due::DueRows;
use crate::source::SourceError;
use crate::source::rights::{Right, lacking_of, with_grants};
use crate::source::session::Database;

/// The pause after an error of the database before the next attempt. It doubles with each further error.
const ERROR_PAUSE: Duration = Duration::from_secs(1);

/// With `once`, so many errors of the database in a row end the dispatch.
const ERRORS_MAX: u32 = 5;

/// Why rows can't be dispatched.
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// The configuration does not fit the database.
    #[error("the configuration does not fit the database")]
    Unfit(Vec<Mistake>),
    /// PostgreSQL can't be reached, or refuses a statement.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The sink can't be used any more; with `once` also the database.
    #[error("dispatch {name}: {error}")]
    Failed {
        /// The dispatch.
        name: String,
        /// What happened.
        error: String,
    },
}

impl From<sqlx::Error> for DispatchError {
    fn from(error: sqlx::Error) -> Self {
        Self::Source(error.into())
    }
}

/// What a dispatch needs to know of the configuration.
#[derive(Clone, Debug)]
pub struct DispatchSetup {
    /// The dispatch.
    pub definition: DispatchDefinition,
    /// The database.
    pub database: Database,
    /// All resources.
    pub resources: Vec<ResourceDefinition>,
    /// Whether they write the log of changes by keys or by ranges.
    pub feed: FeedConfig,
    /// The longest JSON of a row.
    pub document_bytes_max: usize,
    /// It ends when no row is due.
    pub once: bool,
}

/// What `larder check` finds of a dispatch that fits the database.
pub struct DispatchCheck {
    /// The statements that grant larder's role what it lacks.
    pub grants: Vec<String>,
    /// Why an index is missing, and the statement that creates it.
    pub missing_index: Option<(String, String)>,
}

/// One dispatch of this process.
pub struct Dispatch {
    setup: DispatchSetup,
    rows: Mutex<Arc<DueRows>>,
    sink: Sink,
    breaker: Breaker,
    /// One for each request in flight.
    permits: Semaphore,
    rate: RateLimit,
    slots: Slots,
    metrics: Arc<DispatchMetrics>,
    is_paused: AtomicBool,
    dead_letters: AtomicU64,
    /// It ended with `once` since it is paused, or the sink takes nothing.
    is_held_back: AtomicBool,
    /// The sink has said that it will never take anything again.
    is_gone: AtomicBool,
    /// Why it can't go on.
    failure: OnceLock<String>,
    /// What the database has said last of the table, and when.
    table_status: tokio::sync::Mutex<Option<(Instant, Option<TableStatus>)>>,
    recent_rate: RecentRate,
    stop: watch::Sender<bool>,
}

impl Dispatch {
    /// Checks the dispatch against the database. `larder.delivery` and the other tables exist.
    ///
    /// # Errors
    /// [`DispatchError::Unfit`]; PostgreSQL can't be reached or refuses a statement.
    pub async fn prepare(
        setup: DispatchSetup,
        metrics: Arc<DispatchMetrics>,
    ) -> Result<Arc<Self>, DispatchError> {
        let sink =
            Sink::new(&setup.definition).map_err(|mistake| DispatchError::Unfit(vec![mistake]))?;
        let mut connection = setup.connect().await?;
        let rows = read_rows(&mut connection, &setup).await?;
        match check_settlement(&mut connection, &setup.definition, &rows).await {
            Err(DispatchError::Source(error)) => {
                let rights = all_rights(&rows, dispatch_rights(true));
                let otherwise = "ask the owner of what the message names for the privilege";
                let granted = with_grants(&mut connection, error, rights, otherwise).await;
                return Err(granted.into());
            }
            checked => checked?,
        }
        if let Some((reason, sql)) = rows.missing_index() {
            tracing::info!("{reason}: {sql}");
        }
        check_slots(&mut connection, &setup.definition, &rows).await?;
        let checked = sink.check(&setup.definition, &rows).await;
        checked.map_err(|mistake| DispatchError::Unfit(vec![mistake]))?;
        let definition = &setup.definition;
        metrics.begin(&definition.name.value);
        Ok(Arc::new(Self {
            breaker: Breaker::default(),
            permits: Semaphore::new(definition.sink.concurrency),
            rate: RateLimit::new(definition.rate, definition.sink.rows),
            slots: Slots::default(),
            rows: Mutex::new(Arc::new(rows)),
            sink,
            metrics,
            is_paused: AtomicBool::new(false),
            dead_letters: AtomicU64::new(0),
            is_held_back: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            failure: OnceLock::new(),
            table_status: tokio::sync::Mutex::default(),
            recent_rate: RecentRate::new(),
            stop: watch::Sender::new(false),
            setup,
        }))
    }

    /// Sends due rows until [`Dispatch::stop`] was called and what was in flight is rescheduled; with `once`, until no row is
    /// due.
    ///
    /// # Errors
    /// [`DispatchError::Failed`].
    pub async fn run(self: &Arc<Self>) -> Result<(), DispatchError> {
        let mut tasks = JoinSet::new();
        for _ in 0..self.setup.definition.connections {
            tasks.spawn(worker::run(Arc::clone(self)));
        }
        tasks.spawn(poller::run(Arc::clone(self)));
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                self.fail(&error.to_string());
            }
        }
        match self.failure.get() {
            None => Ok(()),
            Some(error) => Err(DispatchError::Failed {
                name: self.name().to_owned(),
                error: error.clone(),
            }),
        }
    }

    /// Begins no request and matches no row from now on.
    pub fn stop(&self) {
        self.stop.send_replace(true);
        self.slots.wake_all();
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.setup.definition.name.value
    }

    /// Returns whether a run with `once` is a failure: dead letters were made, the sink takes nothing, or rows were held
    /// back.
    pub fn has_failed(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
            || self.is_held_back.load(Ordering::Relaxed)
            || self.breaker.state() != BreakerState::Closed
            || self.dead_letters.load(Ordering::Relaxed) > 0
    }

    fn rows(&self) -> Arc<DueRows> {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&rows)
    }

    fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Returns whether rows may be matched now.
    fn may_match(&self) -> bool {
        !self.is_stopping() && !self.is_paused.load(Ordering::Relaxed) && !self.breaker.is_open()
    }

    /// Ends once [`Dispatch::stop`] was called, or after `pause`.
    async fn pause(&self, pause: Duration) {
        let mut stopped = self.stop.subscribe();
        // The sender lives as long as the dispatch.
        let _ended = tokio::time::timeout(pause, stopped.wait_for(|stop| *stop)).await;
    }

    /// Ends the dispatch: the sink, or with `once` the database, can't be used any more.
    fn fail(&self, error: &str) {
        // The first failure is told.
        let _is_first = self.failure.set(error.to_owned());
        self.stop();
    }

    /// Notes the error number `errors` in a row. Reads the definition again after one that an altered table may have caused.
    async fn note_error(&self, error: &SourceError, errors: u32) {
        // While PostgreSQL is away, an error follows each poll.
        if errors.is_power_of_two() {
            tracing::warn!("dispatch {}: {error} ({errors} in a row)", self.name());
        } else {
            tracing::debug!("dispatch {}: {error}", self.name());
        }
        if self.setup.once && errors >= ERRORS_MAX {
            self.fail(&error.to_string());
        }
        self.metrics.errors.with_label_values(&[self.name()]).inc();
        if error.is_altered() {
            let read = async {
                let mut connection = self.setup.connect().await?;
                read_rows(&mut connection, &self.setup).await
            };
            self.renew_rows(read.await);
        }
    }

    /// Takes over what the rows of the table are by now, and which indexes there are.
    fn renew_rows(&self, read: Result<DueRows, DispatchError>) {
        match read {
            Ok(rows) => {
                if rows.is_due_indexed != self.rows().is_due_indexed {
                    // Rows are read in another order.
                    self.slots.begin_anew();
                    let now = if rows.is_due_indexed { "an" } else { "no" };
                    tracing::info!("dispatch {}: {now} index finds due rows now", self.name());
                }
                *self.rows.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(rows);
            }
            Err(DispatchError::Unfit(mistakes)) => {
                for mistake in mistakes {
                    tracing::error!("dispatch {}: {mistake}", self.name());
                    if self.setup.once {
                        self.fail(&mistake.to_string());
                    }
                }
            }
            Err(error) => tracing::debug!("dispatch {}: {error}", self.name()),
        }
    }

    /// Notes whether operators have paused it.
    fn note_pause(&self, is_paused: bool) {
        if self.is_paused.swap(is_paused, Ordering::Relaxed) != is_paused {
            let what = if is_paused { "paused" } else { "resumed" };
            tracing::info!("dispatch {}: it is {what}", self.name());
        }
        let shown = self.metrics.paused.with_label_values(&[self.name()]);
        shown.set(i64::from(is_paused));
    }

    /// Ends the dispatch with `once`, since its rows are held back.
    fn note_held_back(&self, is_paused: bool) {
        if is_paused {
            tracing::warn!(
                "dispatch {}: it is paused, and due rows are not sent",
                self.name()
            );
        }
        self.is_held_back.store(true, Ordering::Relaxed);
        self.stop();
    }
}

/// Checks that there are not too many slots.
async fn check_slots(
    connection: &mut PgConnection,
    definition: &DispatchDefinition,
    rows: &DueRows,
) -> Result<(), DispatchError> {
    match poller::list_slots(connection, rows).await {
        Ok(_) => Ok(()),
        Err(SourceError::Unexpected(message)) => Err(DispatchError::Unfit(vec![
            definition.mistake("partition", message),
        ])),
        Err(error) => Err(error.into()),
    }
}

/// Returns what larder's role needs, with `of_schema` on schema larder.
fn all_rights(rows: &DueRows, of_schema: Vec<Right>) -> Vec<Right> {
    of_schema.into_iter().chain(table_rights(rows)).collect()
}

/// Reads which of `rights` the connection's role lacks. Returns the statements that grant them.
async fn read_grants(
    connection: &mut PgConnection,
    rows: &DueRows,
    rights: Vec<Right>,
) -> Result<Vec<String>, SourceError> {
    let role: String = sqlx::query_scalar("select current_user::text")
        .fetch_one(&mut *connection)
        .await?;
    let lacking = lacking_of(connection, &role, rights, &[&rows.resource]).await?;
    Ok(lacking.iter().map(|right| right.sql(&role)).collect())
}

impl DispatchSetup {
    /// Creates a dispatch of `config` that runs until it is stopped.
    pub fn new(definition: &DispatchDefinition, database: &Database, config: &Config) -> Self {
        let bytes_max = config.source.document_bytes_max;
        Self {
            definition: definition.clone(),
            database: database.clone(),
            resources: config.resources.clone(),
            feed: config.feed.clone(),
            document_bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
            once: false,
        }
    }

    /// Checks the dispatch against the database, and changes nothing.
    ///
    /// # Errors
    /// [`DispatchError::Unfit`]; PostgreSQL can't be reached or refuses a statement.
    pub async fn check(&self) -> Result<DispatchCheck, DispatchError> {
        Sink::new(&self.definition).map_err(|mistake| DispatchError::Unfit(vec![mistake]))?;
        let mut connection = self.connect().await?;
        let rows = read_rows(&mut connection, self).await?;
        let is_installed = feed::has_dispatch_tables(&mut connection).await?;
        let rights = all_rights(&rows, dispatch_rights(is_installed));
        let grants = read_grants(&mut connection, &rows, rights).await?;
        if grants.is_empty() {
            check_slots(&mut connection, &self.definition, &rows).await?;
            if is_installed {
                // A trigger for each statement runs for one without rows, too.
                let mut transaction = connection.begin().await.map_err(SourceError::from)?;
                check_settlement(&mut transaction, &self.definition, &rows).await?;
                transaction.rollback().await.map_err(SourceError::from)?;
            }
        }
        Ok(DispatchCheck {
            grants,
            missing_index: rows.missing_index(),
        })
    }

    /// Returns the statements that grant the connection's role what the dispatch needs, once another role has created its tables.
    ///
    /// # Errors
    /// [`DispatchError::Unfit`]; PostgreSQL can't be reached or refuses a statement.
    pub async fn script_grants(&self) -> Result<Vec<String>, DispatchError> {
        let mut connection = self.connect().await?;
        let rows = read_rows(&mut connection, self).await?;
        let is_created = !feed::has_dispatch_tables(&mut connection).await?;
        let rights = all_rights(&rows, dispatch_script_rights(is_created));
        Ok(read_grants(&mut connection, &rows, rights).await?)
    }

    async fn connect(&self) -> Result<PgConnection, SourceError> {
        let takeover = self.definition.takeover;
        self.database
            .connect_for_dispatch(takeover, Duration::MAX)
            .await
    }
}
