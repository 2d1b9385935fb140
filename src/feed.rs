//! The feed: it follows what commits in PostgreSQL and tells the cache which documents have changed.
//!
//! Triggers write the keys that a transaction touched to a log, in that transaction. A *pass* reads what committed
//! since the last one and maps it to documents. A pass starts after a notification (the bell), after a write of this
//! node, and every `poll_interval`. Passes follow in quick succession after one that found something, since only one of
//! several concurrent writers notifies. The feed has a thread, a runtime and connections of its own, so that load on
//! the HTTP side does not delay it.
//!
//! - `follower`: the loop; one pass after the other.
//! - `establish`: what comes before a database is followed. `messages`: what it waits for.
//! - `schema`: schema larder. `triggers`: what writes to its log.
//! - `install`, `logger_retention` and `uninstall`: how both are created and removed. `ddl`: the transactions for that.
//! - `restore`: what must not be installed yet, since a restore may be under way.
//! - `change_log`: the SQL of a pass. `change_set`: the changes that it found. `ranges`: ranges of keys, where single
//!   keys would be too many.
//! - `rights`: what larder's role has to be allowed. `inspect`: what `larder check` asks of all this.
//! - `strict`: the passes that strict reads wait for.
//! - `definition`: whether triggers, tables and types have changed.
//! - `bell` and `listener`: notifications, sent and received. `locks`: the advisory locks of the bell and of
//!   installing.
//! - `node`: heartbeats and pruning. `backlog`: the length of the log.
//! - `history`: whether the database was put back to an earlier state.

mod answers;
pub mod backlog;
mod bell;
mod change_log;
mod change_set;
mod ddl;
pub mod definition;
pub mod establish;
mod follower;
mod history;
pub mod inspect;
mod install;
mod listener;
mod locks;
mod logger_retention;
mod messages;
mod node;
pub mod position;
pub mod ranges;
mod restore;
pub(crate) mod retry;
pub(crate) mod rights;
mod schema;
pub mod strict;
mod triggers;
mod uninstall;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgConnection;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

use crate::clock::Boottime;
use crate::feed::backlog::Backlog;
use crate::feed::ddl::{DdlError, LockWait};
use crate::feed::establish::{EstablishError, EstablishOptions, EstablishOutcome, establish};
use crate::feed::follower::Feed;
use crate::feed::install::PendingTriggers;
use crate::feed::position::{Persisted, Position};
use crate::feed::ranges::Ranges;
use crate::feed::strict::StrictPasses;
use crate::metrics::Metrics;
use crate::resource::definition::{Mistake, ResourceDefinition};
use crate::resource::{Resource, ResourceId};
use crate::source::SourceError;
use crate::source::rights::with_grants;
use crate::source::session::{Database, Identity};

/// What happens to requests while the tiers are not fresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// PostgreSQL answers.
    Bypass,
    /// The tiers answer, and the response says that it may be stale.
    ServeStale,
}

/// How changes are followed.
#[derive(Clone, Debug)]
pub struct FeedConfig {
    /// Tiers answer only if the last pass that compared fingerprints began at most this long ago.
    pub max_staleness: Duration,
    /// The longest pause between two passes.
    pub poll_interval: Duration,
    /// Triggers notify the feed.
    pub notify: bool,
    /// What happens while the tiers are not fresh.
    pub on_loss: OnLoss,
    /// How long the log is kept for a node that has stopped.
    pub retention: Duration,
    /// A statement that touches more keys logs ranges of keys.
    pub keys_per_statement: u32,
    /// Whether answers to writes with an `Idempotency-Key` are kept, in `larder.answer`.
    pub answers: bool,
}

/// A change of a resource's documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The resource.
    pub resource: ResourceId,
    /// Which of its documents and absences.
    pub affected: Affected,
}

/// The documents and absences of a resource that have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Affected {
    /// The document, or absence, of this key. It is canonical text.
    Key(String),
    /// Those of all keys in these ranges.
    Ranges(Arc<Ranges>),
    /// All absences, and no document.
    Absences,
    /// All.
    All,
}

/// What started a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassCause {
    /// A notification, or a write of this node.
    Bell,
    /// The pause after the last pass was over.
    Poll,
}

impl PassCause {
    /// Its name in the log and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bell => "bell",
            Self::Poll => "poll",
        }
    }
}

/// A completed pass.
#[derive(Clone, Debug)]
pub struct Pass {
    /// What has changed since the last position.
    pub changes: Vec<Change>,
    /// This pass and those before it have found all that this snapshot sees.
    pub position: Position,
    /// A moment before its statement was sent.
    pub began_at: Boottime,
    /// What committed before this moment has been found: `began_at` of this pass, or of the last one that compared
    /// fingerprints.
    pub fresh_at: Boottime,
    /// Its number, if it has found out whether definitions had changed when it began.
    pub verified: Option<u64>,
    /// What started it.
    pub cause: PassCause,
    /// From when the invalidation lag is measured, if there were changes: the notification; for a poll, the pass
    /// before.
    pub lag_from: Option<Boottime>,
}

/// What the feed tells the cache, in order.
#[derive(Clone, Debug)]
pub enum Event {
    /// The feed follows this database: it is another one than before, or was lost for a time.
    Reached(Identity),
    /// The database can't be followed at the moment.
    Lost {
        /// For the log and the status, not for clients.
        reason: String,
    },
    /// The changes before this position are not known, so all entries of all tiers are invalid.
    Reset(Position),
    /// The resource fits the database, and its changes are followed.
    Defined {
        /// The resource.
        resource: ResourceId,
        /// As it fits the database now.
        definition: Arc<Resource>,
    },
    /// What the resource's freshness depends on has changed, so all its entries are invalid.
    Distrusted {
        /// The resource.
        resource: ResourceId,
    },
    /// The resource does not fit the database.
    Unfit {
        /// The resource.
        resource: ResourceId,
        /// For the log and the status, not for clients.
        reason: String,
    },
    /// A pass from the last position.
    Passed(Pass),
    /// A pass from the position of the mark on disk.
    Resumed(Pass),
    /// No pass can start from the position of the mark on disk.
    NotResumed,
    /// The length of the change log.
    Measured(Backlog),
}

/// What a feed is made of.
pub struct FeedSetup {
    /// A direct connection to the primary.
    pub database: Database,
    /// In the order of the configuration.
    pub definitions: Vec<ResourceDefinition>,
    /// How changes are followed.
    pub config: FeedConfig,
    /// Install what is missing.
    pub install: bool,
    /// The name of this node.
    pub node: Uuid,
    /// The file that keeps the marks of this node's row from one run to the next.
    pub marks_file: PathBuf,
    /// The file that keeps the tables that had all their triggers.
    pub tables_file: PathBuf,
    /// The database and position of the mark on disk, once the disk tier offers to resume from it.
    pub resumable: watch::Receiver<Option<(Identity, Position)>>,
    /// The position from which a later run would resume the disk tier.
    pub persisted: Option<watch::Receiver<Persisted>>,
    /// Notified when a write of this node has committed, whose answer waits for a pass.
    pub committed: Arc<Notify>,
    /// What strict reads wait for.
    pub strict: Arc<StrictPasses>,
    /// Counts gaps.
    pub metrics: Arc<Metrics>,
}

/// Whether the configuration fits the database, by the first check; if not, all mistakes.
pub type FirstOutcome = Result<(), Vec<Mistake>>;

/// A running feed.
pub struct FeedHandle {
    stop: watch::Sender<bool>,
    first: watch::Receiver<Option<FirstOutcome>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl FeedHandle {
    /// Has a value once the configuration was checked against the database.
    pub fn first_outcome(&self) -> watch::Receiver<Option<FirstOutcome>> {
        self.first.clone()
    }

    /// Stops the feed. Blocks until its thread has ended: at most as long as the current statement takes.
    pub fn stop(mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the feed's thread panicked");
        }
    }
}

/// Starts the feed on a thread of its own. `on_event` is called on that thread, for one event after the other.
///
/// # Errors
/// If the thread or its runtime can't be started.
pub fn start(
    setup: FeedSetup,
    on_event: impl FnMut(Event) + Send + 'static,
) -> std::io::Result<FeedHandle> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (stop, mut stopped) = watch::channel(false);
    let (first_sender, first) = watch::channel(None);
    let thread = std::thread::Builder::new()
        .name("larder-feed".into())
        .spawn(move || {
            runtime.block_on(async move {
                let mut feed = Feed::new(setup, on_event, first_sender);
                tokio::select! {
                    () = feed.run() => {}
                    _ = stopped.wait_for(|&stop| stop) => {}
                }
            });
        })?;
    Ok(FeedHandle {
        stop,
        first,
        thread: Some(thread),
    })
}

/// The SQL that installs what is missing of schema and triggers for `definitions`, with the grants that the connecting
/// role needs.
///
/// # Errors
/// All mistakes in the definitions; or PostgreSQL can't be reached or refuses a statement.
pub async fn install_script(
    database: &Database,
    definitions: &[ResourceDefinition],
    config: &FeedConfig,
) -> Result<String, EstablishError> {
    let mut connection = database.connect_for_feed(&[]).await?;
    establish::script::install_script(&mut connection, definitions, config).await
}

/// Installs what is missing, each table in a transaction of its own. If nothing is missing, nothing is locked. For a
/// lock that another transaction holds it waits up to ten minutes, in short attempts.
///
/// # Errors
/// Why something could not be installed, or all mistakes in the definitions. What was installed before stays.
pub async fn install(
    database: &Database,
    definitions: &[ResourceDefinition],
    config: &FeedConfig,
) -> Result<(), EstablishError> {
    let mut connection = database.connect_for_feed(&[]).await?;
    let options = EstablishOptions {
        install: true,
        new_must_fit: true,
    };
    let mut lock_wait = LockWait::default();
    loop {
        let awaited = match establish(&mut connection, definitions, config, options, None).await {
            Ok(EstablishOutcome::Delayed(delay)) => delay.reason,
            Ok(EstablishOutcome::Established(established)) => {
                let refused = |pending: &&PendingTriggers| !pending.is_waiting;
                let pending = established.pending;
                if let Some(PendingTriggers { table, reason, .. }) = pending.iter().find(refused) {
                    let message = format!("no triggers on {table}: {reason}");
                    return Err(SourceError::Unexpected(message).into());
                }
                match pending.into_iter().next() {
                    None => return Ok(()),
                    Some(waiting) => waiting.reason,
                }
            }
            Err(EstablishError::Locked(holders)) => holders,
            Err(error) => return Err(error),
        };
        lock_wait.pause(&awaited).await?;
    }
}

/// The SQL that creates the tables of `larder dispatch`.
pub fn dispatch_script() -> String {
    ddl::script(&[schema::DISPATCH_SQL.to_owned()])
}

/// Creates the tables of `larder dispatch`, if some are missing.
///
/// # Errors
/// If PostgreSQL can't be reached, or refuses a statement.
pub async fn install_dispatch(database: &Database) -> Result<(), EstablishError> {
    let mut connection = database.connect_for_feed(&[]).await?;
    if schema::has_dispatch_tables(&mut connection).await? {
        return Ok(());
    }
    tracing::info!("creating the tables of larder dispatch");
    let statements = vec![schema::DISPATCH_SQL.to_owned()];
    let error = match ddl::run_all(&mut connection, statements).await {
        Err(DdlError::Source(error)) => error,
        created => return Ok(created?),
    };
    let otherwise = "run `larder install` as a role that may create the tables of larder dispatch";
    let error = with_grants(&mut connection, error, Vec::new(), otherwise).await;
    Err(error.into())
}

/// Returns whether the tables of `larder dispatch` exist.
///
/// # Errors
/// If PostgreSQL can't be reached, or refuses a statement.
pub async fn has_dispatch_tables(connection: &mut PgConnection) -> Result<bool, SourceError> {
    schema::has_dispatch_tables(connection).await
}

/// The SQL that removes all that larder added to the database.
///
/// # Errors
/// If PostgreSQL can't be reached, or refuses a statement.
pub async fn uninstall_script(database: &Database) -> Result<String, EstablishError> {
    let mut connection = database.connect_for_feed(&[]).await?;
    Ok(ddl::script(&uninstall::statements(&mut connection).await?))
}

/// Removes all that larder added to the database, each table's triggers in a transaction of their own. For a lock that
/// another transaction holds it waits up to ten minutes, in short attempts.
///
/// # Errors
/// If PostgreSQL can't be reached, or refuses a statement. What was removed before stays removed.
pub async fn uninstall(database: &Database) -> Result<(), EstablishError> {
    let mut connection = database.connect_for_feed(&[]).await?;
    let statements = uninstall::statements(&mut connection).await?;
    Ok(ddl::run_all(&mut connection, statements).await?)
}

/// The result of pruning the change log.
#[derive(Clone, Debug)]
pub struct Pruned {
    /// Rows deleted.
    pub deleted: u64,
    /// Rows that are left.
    pub left: u64,
    /// The nodes that may read the log again.
    pub nodes: Vec<RegisteredNode>,
}

/// A node that may read the log again: it has a row in `larder.node`.
#[derive(Clone, Debug)]
pub struct RegisteredNode {
    /// The name in its state directory.
    pub name: Uuid,
    /// Time since its last heartbeat.
    pub seen_ago: Duration,
    /// The oldest transaction whose rows it may not have read.
    pub needs_from: String,
}

/// Deletes all rows of the change log that no node needs which was seen within `retention`.
///
/// # Errors
/// If PostgreSQL can't be reached, or refuses a statement.
pub async fn prune(database: &Database, retention: Duration) -> Result<Pruned, SourceError> {
    let mut connection = database.connect_for_feed(&[]).await?;
    node::prune_all(&mut connection, retention).await
}

/// Deletes the row of the node `name`, so that the log is no longer kept for it. Returns whether there was one.
///
/// # Errors
/// If PostgreSQL can't be reached, or refuses a statement.
pub async fn forget(database: &Database, name: Uuid) -> Result<bool, SourceError> {
    let mut connection = database.connect_for_feed(&[]).await?;
    node::forget(&mut connection, name).await
}
