//! The loader: gathers the keys that wait and asks PostgreSQL for all of them at once.
//!
//! A fixed number of workers, each with a connection of its own, take turns over the resources. A worker that is free
//! takes whatever waits, up to `KEYS_PER_STATEMENT`: a key alone pays one round trip and no timer, many keys share
//! a statement. Another worker joins in only for many keys, or when a statement is late. Workers are tasks of their
//! own, so no request cancels a load (a future dropped in the middle of a statement would leave its connection in an
//! unknown state). At most `WAITING_KEYS_MAX` keys wait.
//!
//! A statement that meets a lock fails within `lock_timeout`, and its transaction is over. Its keys wait again, without
//! a worker, and are asked for after a pause that grows, for as long as one statement may take.

mod link;
mod pages;
mod statement;
mod waiting;

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
use crate::resource::Resource;
use crate::source::loader::link::{GRACE, Link};
pub(in crate::source) use crate::source::loader::link::{found_anew, prove};
use crate::source::loader::pages::Pages;
pub(crate) use crate::source::loader::statement::documents_query;
pub(in crate::source) use crate::source::loader::statement::read_documents;
use crate::source::loader::statement::{Batch, Representable};
use crate::source::loader::waiting::{Taken, Waiting};
use crate::source::session::{Database, Identity};
use crate::source::{SourceConfig, SourceError};

/// A statement that takes longer keeps no key waiting: another worker asks for those.
const LATE: Duration = Duration::from_millis(5);

/// Pauses between two tries to read what is locked.
const PAUSE_MIN: Duration = Duration::from_millis(25);
const PAUSE_MAX: Duration = Duration::from_millis(400);

/// Whoever stops the loader has waited for the answers that matter; this is for connections to be closed properly.
const STOP_GRACE: Duration = Duration::from_millis(500);

/// A document's bytes, or that there is none.
pub type Loaded = Result<Option<Bytes>, SourceError>;

/// Whether tiers may keep what a load gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// It is what the resource's definition lets larder's role see.
    Yes,
    /// It was read while row security let larder's role see something else.
    No,
}

/// When the statement of a load was sent; nothing while it waits.
#[derive(Clone, Debug, Default)]
pub struct SentAt(Arc<AtomicU64>);

impl SentAt {
    /// The moment, if the statement is under way.
    pub fn get(&self) -> Option<Boottime> {
        match self.0.load(Ordering::SeqCst) {
            0 => None,
            nanoseconds => Some(Boottime(nanoseconds)),
        }
    }

    /// Says that the statement is sent.
    pub(crate) fn mark(&self, at: Boottime) {
        self.0.store(at.0, Ordering::SeqCst);
    }

    /// Says that the statement came to nothing and will be sent again.
    fn clear(&self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

/// One key that waits. `done` is called once, or dropped if the loader ends.
pub struct Load {
    /// The resource as it was when the key was read.
    pub resource: Arc<Resource>,
    /// Canonical text.
    pub key: Arc<str>,
    /// A lock may keep it waiting for `statement_timeout` from then on.
    pub asked_at: Boottime,
    /// Set before the statement is sent.
    pub sent_at: SentAt,
    /// Takes the outcome, on a worker's task: it must not block.
    pub done: Box<dyn FnOnce(Loaded, Keep) + Send + Sync>,
}

struct Shared {
    waiting: Mutex<Waiting>,
    /// One for each worker.
    bells: Vec<Notify>,
    /// Keys wait for the end of a pause.
    paused: Notify,
    pages: Pages,
    database: Database,
    document_bytes_max: usize,
    /// The database that the feed follows; none while it follows none.
    /// Another `Arc` each time that the feed has found it: whatever was connected before is not used any more.
    followed: watch::Sender<Option<Arc<Identity>>>,
    /// Counts statements and their keys, for `larder_source_batch_keys`.
    on_batch: Box<dyn Fn(usize) + Send + Sync>,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self, worker: Option<usize>) {
        if let Some(bell) = worker.and_then(|worker| self.bells.get(worker)) {
            bell.notify_one();
        }
    }
}

/// A statement under way, for a line of what waits.
struct UnderWay<'s> {
    shared: &'s Shared,
    line: usize,
    late: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.shared.waiting().end(self.line, self.late);
    }
}

/// Reads documents from PostgreSQL.
pub struct Loader {
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    workers: Mutex<JoinSet<()>>,
}

impl Loader {
    /// Starts `config.connections` workers, on `runtimes` in turn; they connect when the first key waits.
    pub fn start(
        database: Database,
        config: &SourceConfig,
        runtimes: &[Handle],
        on_batch: impl Fn(usize) + Send + Sync + 'static,
    ) -> Self {
        let shared = Arc::new(Shared {
            waiting: Mutex::new(Waiting::new(config.connections)),
            bells: (0..config.connections).map(|_| Notify::new()).collect(),
            paused: Notify::new(),
            pages: Pages::default(),
            database,
            document_bytes_max: usize::try_from(config.document_bytes_max).unwrap_or(usize::MAX),
            followed: watch::channel(None).0,
            on_batch: Box::new(on_batch),
        });
        let (stop, stopped) = watch::channel(false);
        let mut workers = JoinSet::new();
        for (number, runtime) in (0..config.connections).zip(runtimes.iter().cycle()) {
            let worker = Worker {
                number,
                shared: Arc::clone(&shared),
                link: Link::default(),
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

    /// Says which database the feed follows. Connections that lead elsewhere are not used.
    pub fn follow(&self, identity: Option<Identity>) {
        self.shared.followed.send_replace(identity.map(Arc::new));
    }

    /// Connections that are open now run nothing more once they have done what they do.
    pub fn renew(&self) {
        self.shared.followed.send_if_modified(|followed| {
            *followed = followed.as_deref().cloned().map(Arc::new);
            // Whoever waits for an answer need not know.
            false
        });
    }

    /// The database that the feed follows, as [`Loader::follow`] is told.
    pub fn followed(&self) -> watch::Receiver<Option<Arc<Identity>>> {
        self.shared.followed.subscribe()
    }

    /// Hands in one key.
    ///
    /// Where too many wait, `done` is called with [`SourceError::Overloaded`] at once.
    pub fn load(&self, load: Load) {
        let (refused, worker) = {
            let mut waiting = self.shared.waiting();
            (waiting.push(load).err(), waiting.call())
        };
        self.shared.call(worker);
        if let Some(load) = refused {
            (load.done)(Err(SourceError::Overloaded), Keep::No);
        }
    }

    /// Takes what waits, in a worker's stead.
    #[cfg(test)]
    pub(crate) fn take(&self) -> Vec<Load> {
        let taken = self.shared.waiting().take();
        taken.map(|taken| taken.loads).unwrap_or_default()
    }

    /// Keys that wait at this moment.
    pub fn waiting(&self) -> usize {
        self.shared.waiting().count
    }

    /// Ends the workers; keys that wait are dropped, and statements that do not end soon are given up.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        self.shared.waiting().close();
        self.shared.close_pages();
        let mut workers =
            std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        let ended = async { while workers.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_GRACE, ended).await.is_err() {
            workers.shutdown().await;
        }
    }
}

/// Has workers called for keys whose pause is over.
async fn end_pauses(shared: Arc<Shared>, mut stopped: watch::Receiver<bool>) {
    while !*stopped.borrow() {
        let (next, worker) = {
            let mut waiting = shared.waiting();
            (waiting.resume(), waiting.call())
        };
        shared.call(worker);
        let ended = async {
            match next {
                Some(next) => tokio::time::sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = ended => {}
            () = shared.paused.notified() => {}
            _ = stopped.changed() => {}
        }
    }
}

struct Worker {
    number: usize,
    shared: Arc<Shared>,
    link: Link,
}

impl Worker {
    async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let shared = Arc::clone(&self.shared);
        while !*stopped.borrow() {
            let (taken, worker) = {
                let mut waiting = shared.waiting();
                (waiting.begin(self.number), waiting.call())
            };
            shared.call(worker);
            match taken {
                Some(taken) => self.serve_promptly(taken).await,
                None => tokio::select! {
                    () = shared.bells[self.number].notified() => shared.waiting().came(),
                    _ = stopped.changed() => {}
                },
            }
        }
    }

    /// Answers every load of `taken`, or puts it back. Keys that wait for it to end are left to others when it is late.
    async fn serve_promptly(&mut self, taken: Taken) {
        let shared = Arc::clone(&self.shared);
        let mut under_way = UnderWay {
            shared: &shared,
            line: taken.line,
            late: false,
        };
        let mut served = pin!(self.serve(taken));
        if tokio::time::timeout(LATE, &mut served).await.is_err() {
            under_way.late = true;
            let worker = {
                let mut waiting = shared.waiting();
                waiting.is_late();
                waiting.call()
            };
            shared.call(worker);
            served.await;
        }
    }

    /// Answers every load of `taken`, or puts it back.
    async fn serve(&mut self, taken: Taken) {
        (self.shared.on_batch)(taken.loads.len());
        let shared = &self.shared;
        let batch = Batch::new(shared, &taken.loads);
        let asked = self.link.ask_again(shared, &batch).await;
        let (asked, keep) = self.or_unchecked(&taken.loads, asked).await;
        if matches!(&asked, Err(error) if error.is_lock_timeout()) {
            return self.put_back(taken);
        }
        match asked {
            Ok(found) => {
                for (load, loaded) in taken.loads.into_iter().zip(found) {
                    (load.done)(loaded, keep);
                }
            }
            Err(error)
                if error.is_encoding_error()
                    || taken.loads.len() > 1 && error.concerns_single_keys() =>
            {
                self.serve_each(taken).await;
            }
            Err(error) => {
                for load in taken.loads {
                    (load.done)(Err(error.clone()), Keep::No);
                }
            }
        }
    }

    /// Lets keys wait that a lock keeps from being read, unless they have waited too long.
    fn put_back(&self, taken: Taken) {
        let patience = self.shared.database.statement_timeout();
        let over = self.shared.waiting().put_back(taken, patience);
        self.shared.paused.notify_one();
        for load in over {
            (load.done)(Err(SourceError::Timeout), Keep::No);
        }
    }

    /// Asks for each key alone, within the time that two statements may take.
    async fn serve_each(&mut self, taken: Taken) {
        let until = Instant::now() + 2 * (self.shared.database.statement_timeout() + GRACE);
        let mut given_up: Option<SourceError> = None;
        let Taken { line, loads } = taken;
        let mut loads = loads.into_iter();
        while let Some(load) = loads.next() {
            let (loaded, keep) = match &given_up {
                Some(error) => (Err(error.clone()), Keep::No),
                None => match self.ask(&load).await {
                    (Ok(mut found), keep) => (found.pop().unwrap_or(Ok(None)), keep),
                    (Err(error), _) if error.is_lock_timeout() => {
                        let loads = std::iter::once(load).chain(loads).collect();
                        return self.put_back(Taken { line, loads });
                    }
                    (Err(error), keep) => {
                        if !error.concerns_single_keys() {
                            given_up = Some(error.clone());
                        } else if Instant::now() >= until {
                            given_up = Some(SourceError::Timeout);
                        }
                        (Err(error), keep)
                    }
                },
            };
            (load.done)(loaded, keep);
        }
    }

    /// Asks for one key alone: a list of one outcome.
    async fn ask(&mut self, load: &Load) -> (Result<Vec<Loaded>, SourceError>, Keep) {
        let loads = std::slice::from_ref(load);
        let batch = Batch::new(&self.shared, loads);
        let asked = self.link.ask(&self.shared, &batch).await;
        let (asked, keep) = self.or_unchecked(loads, asked).await;
        let asked = match asked {
            // Either the key or what its row holds.
            Err(error) if error.is_encoding_error() => {
                let persistent = !self.shared.database.pooler();
                let held = Representable(&load.key, persistent);
                match self.link.ask(&self.shared, &held).await {
                    Ok(true) => Err(error),
                    Ok(false) => Ok(vec![Ok(None)]),
                    Err(error) => Err(error),
                }
            }
            asked => asked,
        };
        (asked, keep)
    }

    /// What was `asked` for `loads`, of one resource; where its row security is not as it was, what larder's role sees
    /// now instead, which is not kept. No plan of that statement is kept either.
    async fn or_unchecked(
        &mut self,
        loads: &[Load],
        asked: Result<Vec<Loaded>, SourceError>,
    ) -> (Result<Vec<Loaded>, SourceError>, Keep) {
        match (asked, Batch::unchecked(&self.shared, loads)) {
            (Err(error), Some(batch)) if error.is_row_security_error() => {
                tracing::debug!("documents that were read are not kept: {error}");
                (self.link.ask(&self.shared, &batch).await, Keep::No)
            }
            (asked, _) => (asked, Keep::Yes),
        }
    }
}
