//! Writes of whole documents.
//!
//! A fixed number of workers take the writes that wait, and a connection for each transaction. Workers are tasks of their
//! own: a client that leaves cancels a write that has not begun, but none that has. Documents that are only inserted
//! share a transaction if several wait, since a commit costs more than a row. If that transaction fails, each document
//! is inserted in one of its own, so that each has its own outcome. A document that comes alone waits for no timer. One
//! that comes while others are inserted waits until those are written or late. Other writes only wait for a worker. At
//! most `WAITING_WRITES_MAX` writes wait. A bulk write has a connection of its own.

mod actions;
mod bulk;
mod definition;
mod differences;
mod equal_keys;
mod error;
mod forward;
mod gate;
mod hidden;
mod idempotency;
mod inputs;
mod insert;
mod locks;
mod owned;
mod queue;
mod read_only;
mod row_by_row;
mod transaction;
mod update;
mod violation;
mod worker;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::resource::body::BodyError;
use crate::resource::writable::{Rows, Writable};
use crate::resource::{Resource, Scope};
use crate::source::SourceError;
use crate::source::connections::{Connections, Purpose, UsedConnection};
use crate::source::session::{Database, Identity};
use crate::source::token::Token;
pub use crate::source::writes::bulk::{BulkError, BulkPermit, BulkTransaction};
use crate::source::writes::error::Failure;
pub use crate::source::writes::error::{Refusal, WriteError};
use crate::source::writes::gate::CommitGate;
pub use crate::source::writes::idempotency::IdempotentRequest;
use crate::source::writes::queue::WriteQueue;
pub use crate::source::writes::violation::Violation;
use crate::source::writes::worker::Worker;

/// A transaction may take as long as this many statements may take, and `TIMEOUT_MARGIN`.
const STATEMENTS_PER_TRANSACTION: u32 = 2;
const TIMEOUT_MARGIN: Duration = Duration::from_secs(1);

/// How long [`Writes::stop`] waits for running transactions. Requests have been answered before that.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// What a write does to a document. Keys are canonical.
pub enum Action {
    /// Inserts a document. None with its key may exist.
    Insert {
        /// The rows of the document.
        rows: Rows,
    },
    /// Inserts a document, or replaces the existing one.
    Replace {
        /// The key of the document.
        key: String,
        /// The rows of the document; or why the body has none, which is the outcome unless the document is another's.
        rows: Result<Rows, BodyError>,
    },
    /// Changes an existing document by a merge patch (RFC 7396).
    Patch {
        /// The key of the document.
        key: String,
        /// The patch as JSON.
        patch: Bytes,
    },
    /// Deletes an existing document.
    Delete {
        /// The key of the document.
        key: String,
    },
}

/// Whether a write may proceed. It is given the stored document, whose rows the write has locked, or `None` if there is
/// none.
pub type Precondition = Box<dyn Fn(Option<&[u8]>) -> bool + Send + Sync>;

/// One document to write.
pub struct Write {
    /// The definition of the resource under which the body was read.
    pub resource: Arc<Resource>,
    /// What the write does.
    pub action: Action,
    /// The documents that may be written. Others are absent.
    pub writer: Scope<'static>,
    /// The documents that may be returned.
    pub reader: Scope<'static>,
    /// Checked before anything is written.
    pub precondition: Option<Precondition>,
    /// Whether the stored document is returned.
    pub representation: bool,
    /// Keeps the outcome, which is returned if the request is repeated.
    pub idempotency: Option<IdempotentRequest>,
}

impl Write {
    /// Whether it may share a transaction.
    fn is_groupable(&self) -> bool {
        let has_pointers = |writable: &Writable| {
            let mut levels = writable.levels.iter();
            levels.any(|level| !level.pointers.is_empty())
        };
        // What such a document may contain depends on the claim, and is known only in the transaction.
        let is_checked = |writable: &Writable| {
            self.writer.is_restricted()
                && (has_pointers(writable) || writable.has_generated_owner())
        };
        let is_alone = |writable: &Writable| {
            writable.has_triggers || writable.has_cross_references || is_checked(writable)
        };
        matches!(self.action, Action::Insert { .. })
            && !self.resource.writable.as_ref().is_ok_and(is_alone)
            && self.precondition.is_none()
            && self.idempotency.is_none()
    }
}

/// The effect of a write on the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEffect {
    /// The document is new.
    Created,
    /// The document was new, and a trigger has deleted it or given it another key after that.
    Moved,
    /// The document existed, and was replaced or patched.
    Replaced,
    /// The document was deleted.
    Deleted,
    /// The document, or rows of it, were to be deleted, and a trigger has kept them. It is as it is now.
    Kept,
}

/// A write that was committed.
#[derive(Clone, Debug)]
pub struct Written {
    /// The effect on the document.
    pub effect: WriteEffect,
    /// The canonical key of the document.
    pub key: String,
    /// The stored document, if the write requested it.
    pub document: Option<Bytes>,
    /// The write was done for an earlier request with the same `Idempotency-Key`.
    pub repeated: Option<Repeated>,
    /// The transaction.
    pub token: Token,
}

/// What the earlier request has preferred.
#[derive(Clone, Debug)]
pub struct Repeated {
    /// As in [`IdempotentRequest::preference`].
    pub preference: Option<String>,
}

/// The outcome of a write.
pub type WriteResult = Result<Written, WriteError>;

/// One write that waits.
struct QueuedWrite {
    write: Write,
    done: oneshot::Sender<WriteResult>,
    gate: Arc<CommitGate>,
}

struct Shared {
    queue: Mutex<WriteQueue>,
    /// Wakes a worker.
    wake_up: Notify,
    /// Wakes the feed after each commit.
    committed: Arc<Notify>,
    connections: Arc<Connections>,
    document_bytes_max: usize,
    /// The right to patch a document that is longer than `document_bytes_max`: one at a time, for its memory.
    long_patches: Semaphore,
    /// Whether the outcomes of writes with an `Idempotency-Key` are kept.
    keeps_answers: bool,
    /// The database that the feed follows.
    followed: watch::Receiver<Option<Arc<Identity>>>,
}

impl Shared {
    fn database(&self) -> &Database {
        self.connections.database()
    }

    fn queue(&self) -> MutexGuard<'_, WriteQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a worker if one is needed.
    fn wake_worker(&self) {
        if self.queue().must_wake_worker() {
            self.wake_up.notify_one();
        }
    }

    /// The longest time that a transaction of single writes, or a step of a bulk write, may take.
    fn time_limit(&self) -> Duration {
        self.database().statement_timeout() * STATEMENTS_PER_TRANSACTION + TIMEOUT_MARGIN
    }

    /// The end of the time in which a write that begins now may begin further attempts.
    fn attempts_end(&self) -> Instant {
        Instant::now() + self.database().statement_timeout()
    }

    async fn connect(
        &self,
        purpose: Purpose,
        followed: &Arc<Identity>,
    ) -> Result<UsedConnection, Failure> {
        let connected = self.connections.connect(purpose, followed).await;
        connected.map_err(|error| Failure {
            is_retryable: error.is_connection_error(),
            error: error.into(),
        })
    }

    /// Notes what the outcome of a write says about the connection to PostgreSQL.
    fn note_outcome<T>(&self, outcome: &Result<T, WriteError>) {
        let availability = self.connections.availability(Purpose::Write);
        match outcome {
            Err(WriteError::Source(error)) => availability.note_error(error),
            Err(WriteError::Unknown | WriteError::Deadline | WriteError::CommitDeadline) => {}
            _ => availability.note_success(),
        }
    }
}

/// Writes documents to PostgreSQL.
pub struct Writes {
    shared: Arc<Shared>,
    /// One permit for each bulk write that may run.
    bulk: Arc<Semaphore>,
    stop: watch::Sender<bool>,
    workers: Mutex<JoinSet<()>>,
}

impl Writes {
    /// Starts the workers on `runtimes` in turn. They connect when the first write waits. `followed` is the database
    /// that the feed follows: larder writes to no other. With `keeps_answers`, the outcomes of writes with an
    /// `Idempotency-Key` are kept.
    pub fn start(
        connections: Arc<Connections>,
        document_bytes_max: usize,
        keeps_answers: bool,
        runtimes: &[Handle],
        followed: watch::Receiver<Option<Arc<Identity>>>,
    ) -> Self {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            wake_up: Notify::new(),
            committed: Arc::default(),
            connections,
            document_bytes_max,
            long_patches: Semaphore::new(1),
            keeps_answers,
            followed,
        });
        let (stop, stopped) = watch::channel(false);
        let mut workers = JoinSet::new();
        let count = shared.connections.writes_max();
        for (_, runtime) in (0..count).zip(runtimes.iter().cycle()) {
            let worker = Worker::new(Arc::clone(&shared));
            workers.spawn_on(worker.run(stopped.clone()), runtime);
        }
        let bulk = Arc::new(Semaphore::new(shared.connections.bulk_writes_max()));
        Self {
            shared,
            bulk,
            stop,
            workers: Mutex::new(workers),
        }
    }

    /// Writes one document, unless its commit is not sent within `wait_max`. Dropping the future cancels the write if its
    /// transaction has not begun.
    ///
    /// # Errors
    /// Why nothing was written. After [`WriteError::Unknown`] and [`WriteError::CommitDeadline`] it may have been written.
    pub async fn write(&self, write: Write, wait_max: Duration) -> WriteResult {
        write.check_inserted()?;
        let restricted = write.writer.is_restricted();
        let restricted = restricted.then(|| Arc::clone(&write.resource));
        let (done, outcome) = oneshot::channel();
        let gate = Arc::new(CommitGate::default());
        self.shared.queue().push(QueuedWrite {
            write,
            done,
            gate: Arc::clone(&gate),
        })?;
        self.shared.wake_worker();
        match timeout(wait_max, outcome).await {
            Ok(Ok(outcome)) => outcome.map_err(|error| match restricted {
                Some(resource) => error.without_hidden(&resource),
                None => error,
            }),
            // The workers have ended.
            Ok(Err(_)) if gate.give_up() => {
                Err(SourceError::Unavailable("larder is stopping".into()).into())
            }
            Ok(Err(_)) => Err(WriteError::Unknown),
            Err(_) if gate.give_up() => Err(WriteError::Deadline),
            Err(_) => Err(WriteError::CommitDeadline),
        }
    }

    /// Notified after each commit of this node.
    pub fn committed(&self) -> Arc<Notify> {
        Arc::clone(&self.shared.committed)
    }

    /// Whether a write may have an `Idempotency-Key`.
    pub fn keeps_answers(&self) -> bool {
        self.shared.keeps_answers
    }

    /// The longest body of a document in bytes.
    pub fn document_bytes_max(&self) -> usize {
        self.shared.document_bytes_max
    }

    /// Ends the workers. Writes that wait are dropped. A transaction that does not end within 2 s is given up.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        self.shared.queue().close();
        let mut workers =
            std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        let ended = async { while workers.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_GRACE, ended).await.is_err() {
            workers.shutdown().await;
        }
    }
}

/// The database that the feed follows now. After that, `following` has changed if the feed has found it anew.
///
/// # Errors
/// [`SourceError::Unavailable`] if the feed follows none.
fn followed(
    following: &mut watch::Receiver<Option<Arc<Identity>>>,
) -> Result<Arc<Identity>, SourceError> {
    let unknown = || SourceError::Unavailable("the feed has not found its database yet".into());
    following.borrow_and_update().clone().ok_or_else(unknown)
}
