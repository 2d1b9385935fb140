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
mod queue;
mod repeat;
mod transaction;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, oneshot, watch};
use tokio::task::JoinSet;

use crate::resource::Resource;
use crate::resource::writable::Rows;
use crate::source::loader::{found_anew, prove};
use crate::source::session::{Database, Identity, Session};
pub use crate::source::writes::bulk::{Bulk, BulkFault, BulkPermit};
use crate::source::writes::error::Failure;
pub use crate::source::writes::error::{Refusal, WriteError};
use crate::source::writes::queue::{Prompt, Queue};
pub use crate::source::writes::repeat::Repeatable;
use crate::source::writes::transaction::Transaction;
use crate::source::{SourceConfig, SourceError};

/// More do not make commits faster; each may be kept by a lock that it waits for.
const CONNECTIONS_MAX: usize = 8;

/// A transaction that takes longer keeps nobody waiting: another worker takes what waits.
const LATE: Duration = Duration::from_millis(20);

/// Attempts of one transaction where PostgreSQL asks for another (deadlock, serialization).
const ATTEMPTS: usize = 4;

/// Attempts where no connection was to be had, or it was lost before it was to commit.
const CONNECTIONS_TRIED: usize = 2;

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
    /// The transaction, as `larder.token()` writes it.
    pub token: String,
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

    async fn connect(&self, followed: &Identity) -> Result<Session, Failure> {
        let connecting = async {
            let mut session = self.database.connect_for_writes().await?;
            if !self.database.pooler() {
                prove(&mut session.connection, followed).await?;
            }
            Ok(session)
        };
        let connected = tokio::time::timeout(CONNECTING_MAX, connecting).await;
        connected
            .unwrap_or_else(|_| Err(SourceError::silent()))
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
            let worker = Worker {
                shared: Arc::clone(&shared),
                session: None,
            };
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

/// How long a transaction waits for others' locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    /// As long as a statement may take.
    Full,
    /// A moment: documents of others wait for the same transaction.
    Short,
}

/// The database that the feed follows now; `following` then tells when it has found it anew.
fn followed(
    following: &mut watch::Receiver<Option<Arc<Identity>>>,
) -> Result<Arc<Identity>, SourceError> {
    let unknown = || SourceError::Unavailable("the feed has not found its database yet".into());
    following.borrow_and_update().clone().ok_or_else(unknown)
}

struct Worker {
    shared: Arc<Shared>,
    /// With the identity that it has proved to reach.
    session: Option<(Arc<Identity>, Session)>,
}

impl Worker {
    async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let shared = Arc::clone(&self.shared);
        while !*stopped.borrow() {
            let taken = shared.queue().take();
            match taken {
                Some((jobs, documents)) => {
                    let prompt = Prompt::new(&shared, documents);
                    shared.call();
                    self.serve_promptly(jobs, prompt).await;
                }
                None => tokio::select! {
                    () = shared.bell.notified() => {}
                    _ = stopped.changed() => {}
                },
            }
        }
    }

    /// Answers all of `jobs`. What waits for them to end is left to others when they are late.
    async fn serve_promptly(&mut self, jobs: Vec<Job>, prompt: Prompt<'_>) {
        let shared = Arc::clone(&self.shared);
        let mut served = std::pin::pin!(self.serve(jobs));
        if tokio::time::timeout(LATE, &mut served).await.is_err() {
            drop(prompt);
            shared.call();
            served.await;
        }
    }

    async fn serve(&mut self, jobs: Vec<Job>) {
        let patience = match jobs.len() {
            0 | 1 => Patience::Full,
            _ => Patience::Short,
        };
        if jobs.len() > 1 {
            let writes: Vec<&Write> = jobs.iter().map(|job| &job.write).collect();
            match self.transact(&writes, patience).await {
                Ok(outcomes) => return answer(jobs, outcomes),
                Err(error) if !error.concerns_single_documents() => {
                    let outcomes = vec![Err(error); jobs.len()];
                    return answer(jobs, outcomes);
                }
                Err(_) => {}
            }
        }
        // Who has to wait for others' locks keeps nobody else waiting.
        let mut held = Vec::new();
        for job in jobs {
            match self.alone(&job, patience).await {
                Err(error) if patience == Patience::Short && error.is_held() => held.push(job),
                outcome => answer(vec![job], vec![outcome]),
            }
        }
        for job in held {
            let outcome = self.alone(&job, Patience::Full).await;
            answer(vec![job], vec![outcome]);
        }
    }

    /// Writes one document, unless nobody waits for it any more.
    async fn alone(&mut self, job: &Job, patience: Patience) -> WriteOutcome {
        if job.done.is_closed() {
            return Err(SourceError::Unavailable("the client has left".into()).into());
        }
        let mut outcomes = self.transact(&[&job.write], patience).await?;
        let none = || SourceError::Unexpected("a write without an outcome".into());
        outcomes.pop().unwrap_or_else(|| Err(none().into()))
    }

    /// Writes all of `writes` in one transaction, again where that may help.
    async fn transact(
        &mut self,
        writes: &[&Write],
        patience: Patience,
    ) -> Result<Vec<WriteOutcome>, WriteError> {
        let mut following = self.shared.followed.clone();
        let mut attempt = 1;
        loop {
            let known = following.borrow_and_update().clone();
            let failure = match self.attempt(writes, patience).await {
                Ok(outcomes) => return Ok(outcomes),
                Err(failure) => failure,
            };
            let attempts = match failure.error.is_of_connection() {
                true => CONNECTIONS_TRIED,
                false => ATTEMPTS,
            };
            if !failure.again || attempt >= attempts {
                return Err(failure.error);
            }
            attempt += 1;
            if failure.is_of_other_database() {
                found_anew(&mut following, known.as_ref()).await;
            }
        }
    }

    async fn attempt(
        &mut self,
        writes: &[&Write],
        patience: Patience,
    ) -> Result<Vec<WriteOutcome>, Failure> {
        let mut following = self.shared.followed.clone();
        let followed = followed(&mut following)?;
        let kept = self.session.take();
        let kept = kept.filter(|(proved, _)| Arc::ptr_eq(proved, &followed));
        let session = match kept {
            Some((_, session)) => session,
            None => self.shared.connect(&followed).await?,
        };
        let mut transaction = Transaction {
            session,
            database: &self.shared.database,
            document_bytes_max: self.shared.document_bytes_max,
            followed: Arc::clone(&followed),
            patience,
            committing: false,
            committed: &self.shared.committed,
        };
        let limit = self.shared.limit();
        // sqlx panics where a row has fewer columns than its statement: the answer is another statement's.
        let running = AssertUnwindSafe(transaction.run(writes)).catch_unwind();
        let few = || SourceError::Pooler("an answer has too few columns");
        let running = running.map(|ran| ran.unwrap_or_else(|_| Err(few().into())));
        let ended = tokio::select! {
            ended = tokio::time::timeout(limit, running) => ended,
            // The feed had to find its database anew, so this connection may be half open.
            _ = following.changed() => Ok(Err(SourceError::silent().into())),
        };
        // Dropping the connection closes its socket, and PostgreSQL rolls back what was not to commit.
        let silent = ended.is_err();
        match ended.unwrap_or_else(|_| Err(SourceError::Timeout.into())) {
            Err(failure) if silent || failure.error.is_of_connection() => {
                Err(match transaction.committing {
                    true => WriteError::Unknown.into(),
                    false => Failure {
                        again: !silent,
                        ..failure
                    },
                })
            }
            Err(failure) => {
                let rolled_back = tokio::time::timeout(GRACE, transaction.roll_back()).await;
                if matches!(rolled_back, Ok(Ok(()))) {
                    self.session = Some((Arc::clone(&followed), transaction.session));
                }
                Err(failure)
            }
            Ok(outcomes) => {
                self.session = Some((Arc::clone(&followed), transaction.session));
                Ok(outcomes)
            }
        }
    }
}

fn answer(jobs: Vec<Job>, outcomes: Vec<WriteOutcome>) {
    for (job, outcome) in jobs.into_iter().zip(outcomes) {
        // Whoever asked may have left.
        let _left = job.done.send(outcome).is_err();
    }
}
