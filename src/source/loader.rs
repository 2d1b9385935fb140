//! The loader: gathers the keys that wait and asks PostgreSQL for all of them at once.
//!
//! A fixed number of workers, each with a connection of its own, take turns over the resources. A worker that is free
//! takes whatever waits, up to `KEYS_PER_STATEMENT`: a key alone pays one round trip and no timer, many keys share
//! a statement. Another worker joins in only for many keys, or when a statement is late. Workers are tasks of their
//! own, so no request cancels a load (a future dropped in the middle of a statement would leave its connection in an
//! unknown state). At most `WAITING_KEYS_MAX` keys wait.

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
use crate::source::loader::waiting::Waiting;
use crate::source::session::{Database, Identity};
use crate::source::{SourceConfig, SourceError};

/// A statement that takes longer keeps no key waiting: another worker asks for those.
const LATE: Duration = Duration::from_millis(5);

/// Whoever stops the loader has waited for the answers that matter; this is for connections to be closed properly.
const STOP_GRACE: Duration = Duration::from_millis(500);

/// A document's bytes, or that there is none.
pub type Loaded = Result<Option<Bytes>, SourceError>;

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
}

/// One key that waits. `done` is called once, or dropped if the loader ends.
pub struct Load {
    /// The resource as it was when the key was read.
    pub resource: Arc<Resource>,
    /// Canonical text.
    pub key: Arc<str>,
    /// Set before the statement is sent.
    pub sent_at: SentAt,
    /// Takes the outcome, on a worker's task: it must not block.
    pub done: Box<dyn FnOnce(Loaded) + Send + Sync>,
}

struct Shared {
    waiting: Mutex<Waiting>,
    /// One for each worker.
    bells: Vec<Notify>,
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

/// A statement that others may wait for to end.
struct Prompt<'s>(&'s Shared);

impl Drop for Prompt<'_> {
    fn drop(&mut self) {
        self.0.waiting().release();
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
            waiting: Mutex::default(),
            bells: (0..config.connections).map(|_| Notify::new()).collect(),
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
            (load.done)(Err(SourceError::Overloaded));
        }
    }

    /// Takes what waits, in a worker's stead.
    #[cfg(test)]
    pub(crate) fn take(&self) -> Vec<Load> {
        self.shared.waiting().take()
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

struct Worker {
    number: usize,
    shared: Arc<Shared>,
    link: Link,
}

impl Worker {
    async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let shared = Arc::clone(&self.shared);
        while !*stopped.borrow() {
            let (batch, worker) = {
                let mut waiting = shared.waiting();
                (waiting.begin(self.number), waiting.call())
            };
            shared.call(worker);
            match batch {
                Some(batch) => self.serve_promptly(batch).await,
                None => tokio::select! {
                    () = shared.bells[self.number].notified() => shared.waiting().came(),
                    _ = stopped.changed() => {}
                },
            }
        }
    }

    /// Answers every load of `batch`. Keys that wait for it to end are left to others when it is late.
    async fn serve_promptly(&mut self, batch: Vec<Load>) {
        let shared = Arc::clone(&self.shared);
        let prompt = Prompt(&shared);
        let mut served = pin!(self.serve(batch));
        if tokio::time::timeout(LATE, &mut served).await.is_err() {
            drop(prompt);
            let worker = shared.waiting().call();
            shared.call(worker);
            served.await;
        }
    }

    /// Answers every load of `batch`.
    async fn serve(&mut self, batch: Vec<Load>) {
        (self.shared.on_batch)(batch.len());
        let shared = &self.shared;
        let asked = self.link.ask_again(shared, &Batch(shared, &batch)).await;
        match asked {
            Ok(found) => {
                for (load, loaded) in batch.into_iter().zip(found) {
                    (load.done)(loaded);
                }
            }
            Err(error)
                if error.is_of_encoding() || batch.len() > 1 && error.concerns_single_keys() =>
            {
                self.serve_each(batch).await;
            }
            Err(error) => {
                for load in batch {
                    (load.done)(Err(error.clone()));
                }
            }
        }
    }

    /// Asks for each key alone, within the time that two statements may take.
    async fn serve_each(&mut self, batch: Vec<Load>) {
        let until = Instant::now() + 2 * (self.shared.database.statement_timeout() + GRACE);
        let mut given_up: Option<SourceError> = None;
        for load in batch {
            let loaded = match &given_up {
                Some(error) => Err(error.clone()),
                None => match self.ask(&load).await {
                    Ok(mut found) => found.pop().unwrap_or(Ok(None)),
                    Err(error) => {
                        if !error.concerns_single_keys() {
                            given_up = Some(error.clone());
                        } else if Instant::now() >= until {
                            given_up = Some(SourceError::Timeout);
                        }
                        Err(error)
                    }
                },
            };
            (load.done)(loaded);
        }
    }

    /// Asks for one key alone: a list of one outcome.
    async fn ask(&mut self, load: &Load) -> Result<Vec<Loaded>, SourceError> {
        let batch = Batch(&self.shared, std::slice::from_ref(load));
        let asked = self.link.ask(&self.shared, &batch).await;
        match asked {
            // Either the key or what its row holds.
            Err(error) if error.is_of_encoding() => {
                let persistent = !self.shared.database.pooler();
                let held = Representable(&load.key, persistent);
                match self.link.ask(&self.shared, &held).await? {
                    true => Err(error),
                    false => Ok(vec![Ok(None)]),
                }
            }
            asked => asked,
        }
    }
}
