//! Writes of whole documents: who waits, on which connection, in which transaction.
//!
//! A fixed number of workers, each with a connection of its own, take what waits. Workers are tasks of their own: a
//! client that leaves stops what has not begun, never what has. Documents that are only inserted share a transaction
//! where several wait (commits cost more than rows); where that fails, each goes alone, so that each has its own
//! outcome. A document that comes alone pays no timer; one that comes while others are inserted waits for those, or
//! until they are late. What shares nothing waits for a worker only. At most `WAITING_WRITES_MAX` writes wait. Bulk
//! writes are apart: as many at a time as there are workers, each on a connection of its own.

mod actions;
mod bound;
mod bulk;
mod error;
mod locks;
mod queue;
mod repeat;
mod transaction;
mod worker;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::resource::Resource;
use crate::resource::writable::Rows;
use crate::source::loader::prove_identity;
use crate::source::session::{Database, Identity, Session};
use crate::source::token::Token;
pub use crate::source::writes::bulk::{Bulk, BulkFault, BulkPermit};
use crate::source::writes::error::Failure;
pub use crate::source::writes::error::{Refusal, WriteError};
use crate::source::writes::queue::Queue;
pub use crate::source::writes::repeat::Repeatable;
use crate::source::writes::worker::Worker;
use crate::source::{SourceConfig, SourceError};

/// More do not make commits faster; each may be kept by a lock that it waits for.
const CONNECTIONS_MAX: usize = 8;

/// No tier can answer a write, so it waits for a busy PostgreSQL longer than a read does.
const CONNECTING_MAX: Duration = Duration::from_secs(5);

/// A transaction may take as long as this many statements at the bound of each, and then a moment.
const STATEMENTS_AT_BOUND: u32 = 2;
const GRACE: Duration = Duration::from_secs(1);

/// Whoever stops this has waited for the answers that matter.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// What is to be done to a document. Keys are canonical.
pub enum Action {
    /// It must not exist.
    Insert {
        /// One document.
        rows: Rows,
    },
    /// It becomes exactly this.
    Replace {
        /// Its key.
        key: String,
        /// One document.
        rows: Rows,
    },
    /// It must exist, and is changed by a merge patch (RFC 7396).
    Patch {
        /// Its key.
        key: String,
        /// JSON.
        patch: Bytes,
    },
    /// It must exist, and is deleted.
    Delete {
        /// Its key.
        key: String,
    },
}

/// Whether a write may go on, by the document as it is under the write's locks, or that there is none.
pub type Condition = Box<dyn Fn(Option<&[u8]>) -> bool + Send + Sync>;

/// One document to write.
pub struct Write {
    /// As it was when the body was read.
    pub resource: Arc<Resource>,
    /// What to do.
    pub action: Action,
    /// Checked first.
    pub condition: Option<Condition>,
    /// The stored document is wanted.
    pub representation: bool,
    /// The answer is kept for whoever repeats the request.
    pub repeatable: Option<Repeatable>,
}

impl Write {
    /// Whether it may share a transaction.
    fn is_groupable(&self) -> bool {
        matches!(self.action, Action::Insert { .. })
            && self.condition.is_none()
            && self.repeatable.is_none()
    }
}

/// What became of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is new.
    Created,
    /// It existed.
    Replaced,
    /// It is gone.
    Deleted,
}

/// A write that has committed.
#[derive(Clone, Debug)]
pub struct Written {
    /// What became of the document.
    pub outcome: Outcome,
    /// Its canonical key.
    pub key: String,
    /// As it was stored, if that was wanted.
    pub document: Option<Bytes>,
    /// The transaction.
    pub token: Token,
}

/// How a write ended.
pub type WriteOutcome = Result<Written, WriteError>;

/// One write that waits.
struct Job {
    write: Write,
    done: oneshot::Sender<WriteOutcome>,
}

struct Shared {
    queue: Mutex<Queue>,
    bell: Notify,
    /// Rings for the feed after each commit.
    committed: Arc<Notify>,
    database: Database,
    document_bytes_max: usize,
    /// Answers to writes with an `Idempotency-Key` are kept.
    answers: bool,
    /// The database that the feed follows.
    followed: watch::Receiver<Option<Arc<Identity>>>,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a worker if one is wanted: the one that was busy last, whose connection and what serves it are warm.
    fn call(&self) {
        if self.queue().calls() {
            self.bell.notify_last();
        }
    }

    /// The longest that a transaction of single writes, or a step of a bulk write, may take.
    fn limit(&self) -> Duration {
        self.database.statement_timeout() * STATEMENTS_AT_BOUND + GRACE
    }

    /// When a write that begins now is tried for the last time.
    fn writing_until(&self) -> Instant {
        Instant::now() + self.database.statement_timeout()
    }

    async fn connect(&self, followed: &Identity) -> Result<Session, Failure> {
        let connecting = async {
            let mut session = self.database.connect_for_writes().await?;
            if !self.database.pooler() {
                prove_identity(&mut session.connection, followed).await?;
            }
            Ok(session)
        };
        let connected = tokio::time::timeout(CONNECTING_MAX, connecting).await;
        connected
            .unwrap_or_else(|_| Err(SourceError::no_response()))
            .map_err(|error| Failure {
                error: error.into(),
                again: true,
            })
    }
}

/// Writes documents to PostgreSQL.
pub struct Writes {
    shared: Arc<Shared>,
    /// For each connection that bulk writes may have.
    bulk: Arc<Semaphore>,
    stop: watch::Sender<bool>,
    workers: Mutex<JoinSet<()>>,
}

impl Writes {
    /// Starts the workers on `runtimes` in turn; they connect when something waits. `followed` is the database that
    /// the feed follows: no other is written to. With `answers`, those to writes with an `Idempotency-Key` are kept.
    pub fn start(
        database: Database,
        config: &SourceConfig,
        answers: bool,
        runtimes: &[Handle],
        followed: watch::Receiver<Option<Arc<Identity>>>,
    ) -> Self {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            bell: Notify::new(),
            committed: Arc::default(),
            database,
            document_bytes_max: usize::try_from(config.document_bytes_max).unwrap_or(usize::MAX),
            answers,
            followed,
        });
        let (stop, stopped) = watch::channel(false);
        let mut workers = JoinSet::new();
        let count = config.connections.min(CONNECTIONS_MAX);
        for (_, runtime) in (0..count).zip(runtimes.iter().cycle()) {
            let worker = Worker::new(Arc::clone(&shared));
            workers.spawn_on(worker.run(stopped.clone()), runtime);
        }
        Self {
            shared,
            bulk: Arc::new(Semaphore::new(count)),
            stop,
            workers: Mutex::new(workers),
        }
    }

    /// Writes one document. A dropped future stops what has not begun, never what has.
    ///
    /// # Errors
    /// Why nothing was written; after [`WriteError::Unknown`] it may have been.
    pub async fn write(&self, write: Write) -> WriteOutcome {
        let (done, outcome) = oneshot::channel();
        self.shared.queue().push(Job { write, done })?;
        self.shared.call();
        let ended = || SourceError::Unavailable("larder is stopping".into());
        outcome.await.unwrap_or_else(|_| Err(ended().into()))
    }

    /// Rings after each transaction that has committed here.
    pub fn committed(&self) -> Arc<Notify> {
        Arc::clone(&self.shared.committed)
    }

    /// Whether a write may have an `Idempotency-Key`.
    pub fn keeps_answers(&self) -> bool {
        self.shared.answers
    }

    /// Longest body of a document in bytes.
    pub fn document_bytes_max(&self) -> usize {
        self.shared.document_bytes_max
    }

    /// Ends the workers; what waits is dropped, and a transaction that does not end soon is given up.
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

/// The database that the feed follows now; `following` then tells when it has found it anew.
fn followed(
    following: &mut watch::Receiver<Option<Arc<Identity>>>,
) -> Result<Arc<Identity>, SourceError> {
    let unknown = || SourceError::Unavailable("the feed has not found its database yet".into());
    following.borrow_and_update().clone().ok_or_else(unknown)
}
