//! The feed: follows what commits in PostgreSQL and tells the cache which documents are no longer true.
//!
//! Triggers write what a transaction touched to a log, in that transaction. A *pass* reads what committed since the
//! last one and maps it to documents. Passes run when the bell rings (NOTIFY), when this node has committed a write,
//! every `poll_interval` anyway, and in quick succession after one that found something, since only one of several
//! concurrent writers rings. The feed has a thread, a runtime and connections of its own: no load on the HTTP side
//! delays it.
//!
//! - `establish`: what comes before a database is followed. `messages`: what it waits for.
//! - `schema`: schema larder. `triggers`: what writes to its log.
//! - `install`, `logger_retention` and `uninstall`: how both are created and removed. `ddl`: the transactions for that.
//! - `restore`: what must not be installed yet, since a restore may be under way.
//! - `change_log`: the SQL of a pass. `change_set`: the changes that it found. `ranges`: ranges of keys, where single keys
//!   would be too many.
//! - `definition`: whether triggers, tables and types still are as they were.
//! - `bell` and `listener`: notifications, sent and received. `locks`: the advisory locks of the bell and of installing.
//! - `node`: heartbeats and pruning. `backlog`: how long the log is.
//! - `history`: was the database put back to an earlier state?

pub mod backlog;
mod bell;
mod change_log;
mod change_set;
mod ddl;
mod definition;
pub mod establish;
mod follower;
mod history;
mod install;
mod listener;
mod locks;
mod logger_retention;
mod messages;
mod node;
pub mod position;
pub mod ranges;
mod restore;
mod retry;
mod schema;
mod triggers;
mod uninstall;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use uuid::Uuid;

use crate::clock::Boottime;
use crate::feed::backlog::Backlog;
use crate::feed::ddl::LockWait;
use crate::feed::establish::{EstablishError, EstablishOptions, EstablishOutcome, establish};
use crate::feed::follower::Feed;
use crate::feed::install::PendingTriggers;
use crate::feed::position::{Persisted, Position};
use crate::feed::ranges::Ranges;
use crate::metrics::Metrics;
use crate::resource::definition::{Mistake, ResourceDefinition};
use crate::resource::{Resource, ResourceId};
use crate::source::SourceError;
use crate::source::session::{Database, Identity};

/// What a tier answers while freshness can't be proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// PostgreSQL answers.
    Bypass,
    /// The tiers answer and say so.
    ServeStale,
}

/// How changes are followed.
#[derive(Clone, Debug)]
pub struct FeedConfig {
    /// Knowledge older than this is not trusted.
    pub max_staleness: Duration,
    /// The longest pause between two passes.
    pub poll_interval: Duration,
    /// Writers ring on commit.
    pub notify: bool,
    /// What to answer while not fresh.
    pub on_loss: OnLoss,
    /// How long the log is kept for a node that stopped.
    pub retention: Duration,
    /// A statement that touches more keys tells of ranges of them.
    pub keys_per_statement: u32,
    /// Answers to writes with an `Idempotency-Key` are kept, in `larder.answer`.
    pub answers: bool,
}

/// What of a resource is no longer true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The resource.
    pub resource: ResourceId,
    /// What of it.
    pub what: What,
}

/// A part of a resource's documents and remembered absences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Of one key, its canonical text.
    Key(String),
    /// Of all keys in these ranges.
    Ranges(Arc<Ranges>),
    /// Each absence, and no document.
    Absences,
    /// All.
    All,
}

/// What started a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// A notification, or a write of this node.
    Bell,
    /// The clock.
    Poll,
}

impl Via {
    /// The label of metrics.
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
    /// What is no longer true.
    pub changes: Vec<Change>,
    /// All that this snapshot sees is in this pass or in one before.
    pub position: Position,
    /// Before its statement was sent.
    pub began_at: Boottime,
    /// All that committed before this moment has been applied: `began_at` of this pass, or of the last one that made
    /// sure that nothing which freshness rests on had changed.
    pub fresh_at: Boottime,
    /// What started it.
    pub via: Via,
    /// A moment not after the earliest commit in it, where there was one.
    pub lag_from: Option<Boottime>,
}

/// What the feed tells the cache, in order.
#[derive(Clone, Debug)]
pub enum Event {
    /// The feed follows this database: another one, or the same after it was lost.
    Reached(Identity),
    /// The database can't be followed at the moment.
    Lost {
        /// For the log and the status, not for clients.
        reason: String,
    },
    /// There is no telling what changed before this position: nothing that any tier holds is true.
    Restarted(Position),
    /// The resource fits the database, and its changes are seen.
    Defined {
        /// The resource.
        resource: ResourceId,
        /// As it fits the database now.
        definition: Arc<Resource>,
        /// What its freshness rests on.
        fingerprint: String,
    },
    /// What the resource's freshness rests on has changed; nothing held of it is true.
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
    /// A pass from the position that was found on disk.
    Resumed(Pass),
    /// The position that was found on disk is of no use.
    NotResumed,
    /// How long the change log is.
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
    /// This larder's name among those that follow the database.
    pub node: Uuid,
    /// Where the marks of this node's row are kept, from one run to the next.
    pub marks_file: PathBuf,
    /// The same for the tables that had their triggers.
    pub tables_file: PathBuf,
    /// What the disk tier can be resumed from.
    pub resumable: watch::Receiver<Option<(Identity, Position)>>,
    /// The position that the disk tier would come back to.
    pub persisted: Option<watch::Receiver<Persisted>>,
    /// Rings when a write of this node has committed, whose answer waits for a pass.
    pub committed: Arc<Notify>,
    /// Counts gaps.
    pub metrics: Arc<Metrics>,
}

/// How the first attempt to fit the configuration to the database ended.
pub type FirstOutcome = Result<(), Vec<Mistake>>;

/// A running feed.
pub struct FeedHandle {
    stop: watch::Sender<bool>,
    first: watch::Receiver<Option<FirstOutcome>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl FeedHandle {
    /// Filled once the database was reached and the configuration was checked against it.
    pub fn first_outcome(&self) -> watch::Receiver<Option<FirstOutcome>> {
        self.first.clone()
    }

    /// Ends the feed. Blocks until its thread has ended: at most as long as the statement under way.
    pub fn stop(mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the feed's thread had panicked");
        }
    }
}

/// Starts the feed on a thread of its own; `follow` is called there, one event after the other.
///
/// # Errors
/// If the thread or its runtime can't be started.
pub fn start(
    setup: FeedSetup,
    follow: impl FnMut(Event) + Send + 'static,
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
                let mut feed = Feed::new(setup, follow, first_sender);
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
/// What PostgreSQL said, or all mistakes in the definitions.
pub async fn install_script(
    database: &Database,
    definitions: &[ResourceDefinition],
    config: &FeedConfig,
) -> Result<String, EstablishError> {
    let mut connection = database.connect_writer(&[]).await?;
    establish::install_script(&mut connection, definitions, config).await
}

/// Installs what is missing, each table in a transaction of its own. Nothing is locked where nothing is missing; locks
/// that others hold are waited for in attempts, for ten minutes.
///
/// # Errors
/// Why it could not be installed, among it all mistakes in the definitions; what was installed before stays.
pub async fn install(
    database: &Database,
    definitions: &[ResourceDefinition],
    config: &FeedConfig,
) -> Result<(), EstablishError> {
    let mut connection = database.connect_writer(&[]).await?;
    let options = EstablishOptions {
        install: true,
        new_must_fit: true,
    };
    let mut lock_wait = LockWait::default();
    loop {
        let awaited = match establish(&mut connection, definitions, config, options, None).await {
            Ok(EstablishOutcome::Delayed { reason, .. }) => reason,
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

/// The SQL that removes all that larder added to the database.
///
/// # Errors
/// What PostgreSQL said.
pub async fn uninstall_script(database: &Database) -> Result<String, SourceError> {
    let mut connection = database.connect_writer(&[]).await?;
    Ok(ddl::script(&uninstall::statements(&mut connection).await?))
}

/// Removes all that larder added to the database, each table's triggers in a transaction of their own. Locks that others
/// hold are waited for in attempts, for ten minutes.
///
/// # Errors
/// What PostgreSQL said; what was removed before stays so.
pub async fn uninstall(database: &Database) -> Result<(), EstablishError> {
    let mut connection = database.connect_writer(&[]).await?;
    let statements = uninstall::statements(&mut connection).await?;
    Ok(ddl::run_all(&mut connection, statements).await?)
}

/// What pruning has left of the change log, and who needs it.
#[derive(Clone, Debug)]
pub struct Pruned {
    /// Rows deleted.
    pub deleted: u64,
    /// Rows that are still there.
    pub left: u64,
    /// The larders that may come back to the log.
    pub followers: Vec<Follower>,
}

/// A larder that may come back to the log.
#[derive(Clone, Debug)]
pub struct Follower {
    /// The name in its state directory.
    pub name: Uuid,
    /// Since its last heartbeat.
    pub seen_ago: Duration,
    /// The oldest transaction that it may not know.
    pub needs_from: String,
}

/// Deletes all rows of the change log that no larder seen within `retention` needs.
///
/// # Errors
/// What PostgreSQL said.
pub async fn prune(database: &Database, retention: Duration) -> Result<Pruned, SourceError> {
    let mut connection = database.connect_writer(&[]).await?;
    node::prune_all(&mut connection, retention).await
}

/// Takes the larder called `name` off those that may come back to the log. Returns whether it was among them.
///
/// # Errors
/// What PostgreSQL said.
pub async fn forget(database: &Database, name: Uuid) -> Result<bool, SourceError> {
    let mut connection = database.connect_writer(&[]).await?;
    node::forget(&mut connection, name).await
}
