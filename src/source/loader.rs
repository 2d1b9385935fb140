//! The loader: reads the documents of many waiting keys with one statement.
//!
//! A fixed number of workers serve the resources in turn, each over a connection that it takes for one statement. A free
//! worker takes all keys of a resource that wait, up to `KEYS_PER_STATEMENT`: a single key costs one round trip and no
//! timer, and many keys share a statement. The documents that it returns have at most `STATEMENT_BYTES_MAX` together:
//! the longer the resource's documents are, the fewer keys it has, and documents that are too long for their share are
//! read one by one. A further worker is woken only if many keys wait, or if a statement is late. Workers are
//! tasks of their own, so no request cancels a load: a future dropped in the middle of a statement would leave its
//! connection in an unknown state. At most `WAITING_KEYS_MAX` keys wait.
//!
//! A statement that meets a lock fails within `lock_timeout`, and its transaction ends. Its keys wait again, without a
//! worker, and are requested after growing pauses, for as long as one statement may take.

mod access;
mod connection;
mod finds;
mod fingerprint;
mod limits;
mod pages;
mod queue;
mod slow;
mod statement;

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::clock::Boottime;
use crate::resource::kept::Kept;
use crate::resource::{Resource, ResourceId};
use crate::source::SourceError;
use crate::source::connections::{Connections, Purpose};
pub use crate::source::loader::access::Access;
use crate::source::loader::access::AccessChecks;
use crate::source::loader::connection::TIMEOUT_MARGIN;
pub(in crate::source) use crate::source::loader::fingerprint::read_fingerprint;
use crate::source::loader::limits::ReadLimits;
use crate::source::loader::queue::{Batch, LoadQueue, RecentLengths, share};
use crate::source::loader::slow::LoadLog;
use crate::source::loader::statement::{DocumentsStatement, KeyEncodingCheck};
pub(in crate::source) use crate::source::loader::statement::{Returned, read_documents};
pub(crate) use crate::source::loader::statement::{bind_keys, documents_query};
use crate::source::session::{Database, Identity};

/// A statement that takes longer is late: keys that wait for its end are taken by another worker.
const LATE_AFTER: Duration = Duration::from_millis(5);

/// The pauses between attempts to read a locked table.
const PAUSE_MIN: Duration = Duration::from_millis(25);
const PAUSE_MAX: Duration = Duration::from_millis(400);

/// How many slow documents the time for reading documents one by one suffices for, at least.
const SLOW_MAX: u32 = 8;

/// The most pages that may wait for a connection.
const WAITING_PAGES_MAX: usize = 256;

/// The most searches for documents that may wait for a connection: as many as keys of loads.
const WAITING_FINDS_MAX: usize = 20_000;

/// How long [`Loader::stop`] waits for running statements, so that connections are closed in order. Requests have been
/// answered before that.
const STOP_GRACE: Duration = Duration::from_millis(500);

/// A document, or `None` if there is none.
pub type Loaded = Result<Option<LoadedDocument>, SourceError>;

/// A document as PostgreSQL has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadedDocument {
    /// The kept values and the body.
    text: Bytes,
    kept_bytes: usize,
}

impl LoadedDocument {
    /// Its body and [`Kept`] values.
    pub fn new(kept: &[u8], body: &[u8]) -> Self {
        Self {
            text: [kept, body].concat().into(),
            kept_bytes: kept.len(),
        }
    }

    /// Compact JSON.
    pub fn body(&self) -> Bytes {
        self.text.slice(self.kept_bytes..)
    }

    /// Its owner, and the aliases that lead to it.
    pub fn kept(&self) -> Kept<'_> {
        Kept::parse(&self.text[..self.kept_bytes]).unwrap_or_default()
    }
}

/// Whether tiers may keep the result of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Row security was as it was when the resource was checked.
    Yes,
    /// Row security showed larder's role other rows than when the resource was checked.
    No,
}

/// When the statement of a load was sent; zero while the key waits.
#[derive(Clone, Debug, Default)]
pub struct SentAt(Arc<AtomicU64>);

impl SentAt {
    /// When the statement was sent; `None` while the key waits.
    pub fn get(&self) -> Option<Boottime> {
        match self.0.load(Ordering::SeqCst) {
            0 => None,
            nanoseconds => Some(Boottime(nanoseconds)),
        }
    }

    /// Notes that the statement is sent.
    pub(crate) fn mark(&self, at: Boottime) {
        self.0.store(at.0, Ordering::SeqCst);
    }

    /// Notes that the statement failed and will be sent again.
    fn clear(&self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

/// The request to load one key.
pub struct Load {
    /// The definition of the resource under which the key was made canonical.
    pub resource: Arc<Resource>,
    /// The canonical text of the key.
    pub key: Arc<str>,
    /// When the key was requested. It waits for a lock for at most `statement_timeout` from then on.
    pub asked_at: Boottime,
    /// When the request ends, if it waits for other documents, too. Then this one gets a share of its time; a document that
    /// was requested alone has `statement_timeout`.
    pub until: Option<Boottime>,
    /// Set before the statement is sent.
    pub sent_at: SentAt,
    /// Called once with the outcome, or dropped if the loader ends. It runs on a worker's task and must not block.
    pub done: Box<dyn FnOnce(Loaded, Keep) + Send + Sync>,
}

struct Shared {
    queue: Mutex<LoadQueue>,
    /// One for each worker.
    wake_ups: Vec<Notify>,
    /// Wakes [`end_pauses`] when the pause of a queue begins.
    pause_begun: Notify,
    /// Pages have at most half of the connections that read, so that a slow list holds up no document.
    pages: ReadLimits,
    finds: ReadLimits,
    fingerprints: ReadLimits,
    connections: Arc<Connections>,
    document_bytes_max: usize,
    log: LoadLog,
    access: AccessChecks,
    /// The database that the feed follows; `None` while it follows none. Each time that the feed finds it, it is
    /// another `Arc`: connections that were opened before are not used any more.
    followed: watch::Sender<Option<Arc<Identity>>>,
    /// Called with the number of keys of each statement, for `larder_source_batch_keys`.
    on_batch: Box<dyn Fn(usize) + Send + Sync>,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, LoadQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn database(&self) -> &Database {
        self.connections.database()
    }

    /// The most bytes that each document of a statement for `keys` keys may have.
    fn bytes_max(&self, keys: usize) -> usize {
        share(keys).min(self.document_bytes_max)
    }

    /// How long the statement for `loads` may take, if that is less than `statement_timeout`: half of what is left to a
    /// request that has lost time already, so that it can still be answered without slow documents. PostgreSQL has to be
    /// told a limit, so most statements have none.
    fn time_limit(&self, loads: &[Load]) -> Option<Duration> {
        let timeout = self.database().statement_timeout();
        let left = time_left(loads)?;
        (left < timeout + timeout / 2).then_some(left / 2)
    }

    fn wake(&self, worker: Option<usize>) {
        if let Some(wake_up) = worker.and_then(|worker| self.wake_ups.get(worker)) {
            wake_up.notify_one();
        }
    }
}

/// The error of a statement for so many keys: a timeout of a statement for one key is that document's.
fn of_single_key(error: SourceError, keys: usize, time_limit: Option<Duration>) -> SourceError {
    match error {
        SourceError::Timeout if keys == 1 => match time_limit {
            None => SourceError::DocumentTimeout,
            Some(_) => SourceError::SlowDocument,
        },
        error => error,
    }
}

/// The time that is left to the requests for many documents that wait for `loads`: that of the first to end. `None` if
/// all were requested alone.
fn time_left(loads: &[Load]) -> Option<Duration> {
    let until = loads.iter().filter_map(|load| load.until).min()?;
    Some(until.since(Boottime::now()))
}

/// A running statement. Dropping it notes its end.
struct RunningStatement<'s> {
    shared: &'s Shared,
    /// The number of the resource's queue.
    queue: usize,
    late: bool,
}

impl Drop for RunningStatement<'_> {
    fn drop(&mut self) {
        self.shared.queue().end_statement(self.queue, self.late);
    }
}

/// Reads documents from PostgreSQL.
pub struct Loader {
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    workers: Mutex<JoinSet<()>>,
}

impl Loader {
    /// Starts workers on `runtimes` in turn. They connect when the first key waits. A document longer than
    /// `document_bytes_max` is an error. Loads that take `log_slow` are logged; zero: none is.
    pub fn start(
        connections: Arc<Connections>,
        document_bytes_max: usize,
        log_slow: Duration,
        runtimes: &[Handle],
        on_batch: impl Fn(usize) + Send + Sync + 'static,
    ) -> Self {
        let count = connections.loads_max();
        let shared = Arc::new(Shared {
            queue: Mutex::new(LoadQueue::new(count)),
            wake_ups: (0..count).map(|_| Notify::new()).collect(),
            pause_begun: Notify::new(),
            pages: ReadLimits::new(connections.lists_max(), WAITING_PAGES_MAX),
            finds: ReadLimits::new(connections.finds_max(), WAITING_FINDS_MAX),
            fingerprints: ReadLimits::new(connections.finds_max(), WAITING_FINDS_MAX),
            connections,
            document_bytes_max,
            log: LoadLog::new(log_slow),
            access: AccessChecks::default(),
            followed: watch::channel(None).0,
            on_batch: Box::new(on_batch),
        });
        let (stop, stopped) = watch::channel(false);
        let mut workers = JoinSet::new();
        for (number, runtime) in (0..count).zip(runtimes.iter().cycle()) {
            let worker = Worker {
                number,
                shared: Arc::clone(&shared),
            };
            workers.spawn_on(worker.run(stopped.clone()), runtime);
        }
        if let Some(runtime) = runtimes.first() {
            workers.spawn_on(end_pauses(Arc::clone(&shared), stopped), runtime);
        }
        Self {
            shared,
            stop,
            workers: Mutex::new(workers),
        }
    }

    /// Begins to find out by connections of its own, on `runtime`, whether documents can be read and written while no
    /// request shows it, and which resources may be read: also after each definition if `checks_definitions`, since the
    /// feed has checked it by another URL.
    pub fn start_probes(&self, runtime: &Handle, checks_definitions: bool) {
        if checks_definitions {
            self.shared.access.check_definitions();
        }
        for purpose in [Purpose::Read, Purpose::Write] {
            let connections = Arc::clone(&self.shared.connections);
            self.spawn_on(runtime, connections.probe(purpose, self.followed()));
        }
        let shared = Arc::clone(&self.shared);
        self.spawn_on(runtime, async move { shared.check_access().await });
    }

    /// Runs `work` until the loader stops.
    fn spawn_on(&self, runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stopped = self.stop.subscribe();
        let working = async move {
            tokio::select! {
                () = work => {}
                // An error means that the loader is gone.
                _ = stopped.wait_for(|&stop| stop) => {}
            }
        };
        workers.spawn_on(working, runtime);
    }

    /// Documents of the resource are read by `definition` from now on.
    pub fn define(&self, resource: ResourceId, definition: &Arc<Resource>) {
        self.shared.access.define(resource, definition);
    }

    /// The resource has no definition any more.
    pub fn undefine(&self, resource: ResourceId) {
        self.shared.access.undefine(resource);
    }

    /// Whether larder's role may read documents of the resource, as far as that is known.
    pub fn access(&self, resource: ResourceId) -> Access {
        self.shared.access.get(resource)
    }

    /// Notes that a request for documents of the resource was refused since a privilege is missing.
    pub fn note_refusal(&self, resource: ResourceId, error: &SourceError) {
        self.shared.access.note_refusal(resource, error);
    }

    /// The connections over which documents are read and written.
    pub fn connections(&self) -> &Connections {
        &self.shared.connections
    }

    /// Sets the database that the feed follows. Connections that reach another one are not used.
    pub fn follow(&self, identity: Option<Identity>) {
        self.shared.followed.send_replace(identity.map(Arc::new));
    }

    /// Replaces all connections: each is closed after its current statement.
    pub fn renew_connections(&self) {
        self.shared.followed.send_if_modified(|followed| {
            *followed = followed.as_deref().cloned().map(Arc::new);
            // Statements that run now may end, so their workers are not notified.
            false
        });
    }

    /// The database that the feed follows, as [`Loader::follow`] sets it.
    pub fn followed(&self) -> watch::Receiver<Option<Arc<Identity>>> {
        self.shared.followed.subscribe()
    }

    /// Queues one key.
    ///
    /// If too many keys wait, calls `done` with [`SourceError::Overloaded`] at once.
    pub fn load(&self, load: Load) {
        let (refused, worker) = {
            let mut queue = self.shared.queue();
            (queue.push(load).err(), queue.worker_to_wake())
        };
        self.shared.wake(worker);
        if let Some(load) = refused {
            (load.done)(Err(SourceError::Overloaded), Keep::No);
        }
    }

    /// Takes the keys of the next statement, as a worker would.
    #[cfg(test)]
    pub(crate) fn take_waiting(&self) -> Vec<Load> {
        let batch = self.shared.queue().take_batch();
        batch.map(|batch| batch.loads).unwrap_or_default()
    }

    /// The number of keys that wait.
    pub fn waiting_keys(&self) -> usize {
        self.shared.queue().waiting_keys
    }

    /// Ends the workers. Keys that wait are dropped. A statement that does not end within 500 ms is given up.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        self.shared.queue().close();
        self.shared.pages.stop();
        self.shared.finds.stop();
        self.shared.fingerprints.stop();
        let mut workers =
            std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        let ended = async { while workers.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_GRACE, ended).await.is_err() {
            workers.shutdown().await;
        }
        self.shared.connections.close();
    }
}

/// Wakes workers for keys whose pause is over.
async fn end_pauses(shared: Arc<Shared>, mut stopped: watch::Receiver<bool>) {
    while !*stopped.borrow() {
        let (next, worker) = {
            let mut queue = shared.queue();
            (queue.end_pauses(), queue.worker_to_wake())
        };
        shared.wake(worker);
        let ended = async {
            match next {
                Some(next) => tokio::time::sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = ended => {}
            () = shared.pause_begun.notified() => {}
            _ = stopped.changed() => {}
        }
    }
}

/// Notes the length of a document that was read.
fn note_length(lengths: &mut RecentLengths, loaded: &Loaded) {
    if let Ok(Some(document)) = loaded {
        lengths.note(document.text.len());
    }
}

struct Worker {
    number: usize,
    shared: Arc<Shared>,
}

impl Worker {
    async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let shared = Arc::clone(&self.shared);
        while !*stopped.borrow() {
            let (batch, worker) = {
                let mut queue = shared.queue();
                (queue.begin_statement(self.number), queue.worker_to_wake())
            };
            shared.wake(worker);
            match batch {
                Some(batch) => self.run_batch(batch).await,
                None => tokio::select! {
                    () = shared.wake_ups[self.number].notified() => shared.queue().worker_woke(),
                    _ = stopped.changed() => {}
                },
            }
        }
    }

    /// Serves `batch`. If that is late, wakes another worker for the keys that wait.
    async fn run_batch(&mut self, batch: Batch) {
        let shared = Arc::clone(&self.shared);
        let mut running = RunningStatement {
            shared: &shared,
            queue: batch.queue,
            late: false,
        };
        let mut loaded = pin!(self.load(batch));
        if tokio::time::timeout(LATE_AFTER, &mut loaded).await.is_err() {
            running.late = true;
            let worker = {
                let mut queue = shared.queue();
                queue.note_late();
                queue.worker_to_wake()
            };
            shared.wake(worker);
            loaded.await;
        }
    }

    /// Reads the documents of `batch` and calls `done` for each load; puts the loads back if the statement met a lock.
    async fn load(&mut self, batch: Batch) {
        (self.shared.on_batch)(batch.loads.len());
        let shared = &self.shared;
        let is_share = shared.bytes_max(batch.loads.len()) < shared.document_bytes_max;
        let limit = shared.time_limit(&batch.loads);
        let statement = DocumentsStatement::new(shared, &batch.loads, limit);
        let outcome = shared.run_with_retry(&statement).await;
        let (outcome, keep) = self.retry_unchecked(&batch.loads, limit, outcome).await;
        self.log(&batch.loads, &outcome);
        match outcome {
            Err(error) if error.is_lock_timeout() => self.put_back(batch),
            Ok(found) => {
                let Batch { queue, loads } = batch;
                let mut lengths = RecentLengths::default();
                let mut longer = Vec::new();
                for (load, loaded) in loads.into_iter().zip(found) {
                    match loaded {
                        Err(SourceError::TooLarge) if is_share => longer.push(load),
                        loaded => {
                            note_length(&mut lengths, &loaded);
                            (load.done)(loaded, keep);
                        }
                    }
                }
                self.shared.queue().note_lengths(queue, lengths);
                if !longer.is_empty() {
                    let loads = longer;
                    self.load_each(Batch { queue, loads }).await;
                }
            }
            Err(error)
                if error.is_encoding_error()
                    || batch.loads.len() > 1 && error.concerns_single_keys() =>
            {
                self.load_each(batch).await;
            }
            Err(error) => {
                let error = of_single_key(error, batch.loads.len(), limit);
                for load in batch.loads {
                    (load.done)(Err(error.clone()), Keep::No);
                }
            }
        }
    }

    /// Logs the end of the statement for `loads`, unless they wait again for a lock.
    fn log(&self, loads: &[Load], outcome: &Result<Vec<Loaded>, SourceError>) {
        let error = outcome.as_ref().err();
        if !error.is_some_and(SourceError::is_lock_timeout) {
            self.shared.log.note(loads, error);
        }
    }

    /// Lets keys of a locked table wait again, unless they have waited too long.
    fn put_back(&self, batch: Batch) {
        let wait_max = self.shared.database().statement_timeout();
        let over = self.shared.queue().put_back(batch, wait_max);
        self.shared.pause_begun.notify_one();
        self.shared.log.note(&over, Some(&SourceError::Timeout));
        for load in over {
            (load.done)(Err(SourceError::Timeout), Keep::No);
        }
    }

    /// Reads each document with a statement of its own. Requests for many documents wait for all of these, so each gets a
    /// share of half of the time that they have left. What takes longer is read once more, after the others, if it was
    /// requested alone.
    async fn load_each(&mut self, batch: Batch) {
        let timeout = self.shared.database().statement_timeout();
        let time = time_left(&batch.loads).map_or(timeout, |left| left / 2);
        let slow = self.load_singly(batch, time, Some(time / SLOW_MAX)).await;
        self.load_singly(slow, 2 * (timeout + TIMEOUT_MARGIN), None)
            .await;
    }

    /// Reads each document with a statement of its own, within `time`. With a `share_min` each gets an equal share of
    /// that, at least `share_min`; returns those that were requested alone and not read then.
    async fn load_singly(
        &mut self,
        batch: Batch,
        time: Duration,
        share_min: Option<Duration>,
    ) -> Batch {
        let until = Instant::now() + time;
        let mut given_up: Option<SourceError> = None;
        let Batch { queue, loads } = batch;
        let mut loads = loads.into_iter();
        let mut slow = Vec::new();
        let mut lengths = RecentLengths::default();
        while let Some(load) = loads.next() {
            let left = until.saturating_duration_since(Instant::now());
            let share = share_min.map(|min| min.max(left / (loads.len() as u32 + 1)).min(left));
            if share.is_some_and(|share| share.is_zero()) {
                given_up.get_or_insert(SourceError::Timeout);
            }
            let (loaded, keep) = match &given_up {
                Some(error) => (Err(error.clone()), Keep::No),
                None => match self.read_single(&load, share).await {
                    (Ok(mut found), keep) => {
                        let loaded = found.pop().unwrap_or(Ok(None));
                        note_length(&mut lengths, &loaded);
                        (loaded, keep)
                    }
                    (Err(error), _) if error.is_lock_timeout() => {
                        let loads = slow.into_iter().chain([load]).chain(loads).collect();
                        self.put_back(Batch { queue, loads });
                        slow = Vec::new();
                        break;
                    }
                    (Err(error), keep) => {
                        if !error.concerns_single_keys() && !error.is_of_one_document() {
                            given_up = Some(error.clone());
                        } else if Instant::now() >= until {
                            given_up = Some(SourceError::Timeout);
                        }
                        (Err(error), keep)
                    }
                },
            };
            let is_slow = matches!(
                loaded,
                Err(SourceError::Timeout | SourceError::SlowDocument)
            );
            if is_slow && share_min.is_some() && load.until.is_none() {
                slow.push(load);
            } else {
                (load.done)(loaded, keep);
            }
        }
        self.shared.queue().note_lengths(queue, lengths);
        let loads = slow;
        Batch { queue, loads }
    }

    /// Reads the document of one key, within `time_limit` or `statement_timeout`. Returns a list of one outcome.
    async fn read_single(
        &mut self,
        load: &Load,
        time_limit: Option<Duration>,
    ) -> (Result<Vec<Loaded>, SourceError>, Keep) {
        let timeout = self.shared.database().statement_timeout();
        let time_limit = time_limit.filter(|limit| *limit < timeout);
        let loads = std::slice::from_ref(load);
        let statement = DocumentsStatement::new(&self.shared, loads, time_limit);
        let outcome = self.shared.run(&statement).await;
        let (outcome, keep) = self.retry_unchecked(loads, time_limit, outcome).await;
        let outcome = match outcome {
            // Either the key or a value of its row has no counterpart in the other encoding.
            Err(error) if error.is_encoding_error() => {
                let check = KeyEncodingCheck {
                    key: &load.key,
                    persistent: !self.shared.database().pooler(),
                };
                match self.shared.run(&check).await {
                    Ok(true) => Err(error),
                    Ok(false) => Ok(vec![Ok(None)]),
                    Err(error) => Err(error),
                }
            }
            outcome => outcome.map_err(|error| of_single_key(error, 1, time_limit)),
        };
        self.log(loads, &outcome);
        (outcome, keep)
    }

    /// Repeats the statement for `loads` without the check of row security if `outcome` says that the check failed. The
    /// documents that are read then must not be kept, nor is the plan of that statement.
    async fn retry_unchecked(
        &mut self,
        loads: &[Load],
        time_limit: Option<Duration>,
        outcome: Result<Vec<Loaded>, SourceError>,
    ) -> (Result<Vec<Loaded>, SourceError>, Keep) {
        let unchecked = DocumentsStatement::unchecked(&self.shared, loads, time_limit);
        match (outcome, unchecked) {
            (Err(error), Some(statement)) if error.is_row_security_error() => {
                tracing::debug!("documents that were read are not kept: {error}");
                (self.shared.run(&statement).await, Keep::No)
            }
            (outcome, _) => (outcome, Keep::Yes),
        }
    }
}
