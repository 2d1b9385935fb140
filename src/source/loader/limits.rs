//! Limits on reads that need a connection of their own, as pages do: in all, and for each resource.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot::{self, Sender};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::resource::Resource;
use crate::source::SourceError;
use crate::source::loader::{Loader, PAUSE_MAX, PAUSE_MIN, Shared};

/// The limits on one kind of reads. Those of one resource have half of them.
pub(super) struct ReadLimits {
    /// The most reads that run at a time.
    running_max: usize,
    /// The most reads that wait.
    waiting_max: usize,
    all: Limits,
    /// The limits of each resource, by its name.
    by_resource: Mutex<HashMap<String, Limits>>,
}

/// Limits the reads that run or wait.
#[derive(Clone)]
struct Limits {
    /// One permit for each read that runs or waits.
    pending: Arc<Semaphore>,
    /// One permit for each read that runs.
    running: Arc<Semaphore>,
}

impl Limits {
    /// Allows `running` reads to run while `waiting` wait.
    fn new(running: usize, waiting: usize) -> Self {
        Self {
            pending: Arc::new(Semaphore::new(running + waiting)),
            running: Arc::new(Semaphore::new(running)),
        }
    }
}

/// A read's place among those that run or wait.
pub(super) struct ReadPlace {
    of_resource: Limits,
    all: Limits,
    pending: [OwnedSemaphorePermit; 2],
}

/// A read that runs, or pauses since it has met a lock.
struct RunningRead {
    all: Arc<Semaphore>,
    /// A read that meets a lock is repeated until then.
    until: Instant,
    pause: Duration,
    /// Held between attempts, since other reads of the resource would meet the same lock.
    _of_resource: OwnedSemaphorePermit,
    _pending: [OwnedSemaphorePermit; 2],
}

impl ReadPlace {
    /// Waits until the resource may have another read. If that meets a lock, it is repeated for as long as `repeated`.
    async fn begin(self, repeated: Duration) -> Result<RunningRead, SourceError> {
        let until = Instant::now() + repeated;
        let of_resource = self.of_resource.running.acquire_owned().await;
        Ok(RunningRead {
            all: self.all.running,
            until,
            pause: PAUSE_MIN,
            _of_resource: of_resource.map_err(is_stopping)?,
            _pending: self.pending,
        })
    }
}

impl RunningRead {
    /// Waits for a turn among the reads of all resources, which ends when it is dropped.
    async fn turn(&self) -> Result<SemaphorePermit<'_>, SourceError> {
        self.all.acquire().await.map_err(is_stopping)
    }

    /// Pauses after the read has met a lock.
    ///
    /// # Errors
    /// [`SourceError::Timeout`] if it must not be repeated.
    async fn pause(&mut self) -> Result<(), SourceError> {
        if Instant::now() >= self.until {
            return Err(SourceError::Timeout);
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Ok(())
    }
}

impl ReadLimits {
    /// For at most `running_max` reads at a time while `waiting_max` wait.
    pub(super) fn new(running_max: usize, waiting_max: usize) -> Self {
        Self {
            running_max,
            waiting_max,
            all: Limits::new(running_max, waiting_max),
            by_resource: Mutex::default(),
        }
    }

    fn of_resource(&self, resource: &Resource) -> Limits {
        let mut by_resource = self
            .by_resource
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match by_resource.get(&resource.name) {
            Some(limits) => limits.clone(),
            None => {
                let limits = Limits::new(self.running_max.div_ceil(2), self.waiting_max / 2);
                by_resource.insert(resource.name.clone(), limits.clone());
                limits
            }
        }
    }

    /// A place for a read of `resource`.
    ///
    /// # Errors
    /// [`SourceError::Overloaded`] if too many reads wait.
    pub(super) fn place(&self, resource: &Resource) -> Result<ReadPlace, SourceError> {
        let of_resource = self.of_resource(resource);
        let acquire = |limits: &Limits| {
            let permit = Arc::clone(&limits.pending).try_acquire_owned();
            permit.map_err(|_| SourceError::Overloaded)
        };
        let pending = [acquire(&of_resource)?, acquire(&self.all)?];
        Ok(ReadPlace {
            of_resource,
            all: self.all.clone(),
            pending,
        })
    }

    /// Refuses further reads.
    pub(super) fn stop(&self) {
        self.all.running.close();
    }
}

/// A read that has a place among others.
pub(super) trait LimitedRead: Send + Sync + 'static {
    /// The result.
    type Found: Send + 'static;

    /// Runs its statements.
    fn read(
        &self,
        shared: &Shared,
    ) -> impl Future<Output = Result<Self::Found, SourceError>> + Send;
}

impl Loader {
    /// Runs `read` in a task of its own, once its `place` allows it. If it meets a lock, it is repeated for as long as one
    /// statement may take. A request that ends takes the task with it while that waits, but cancels no statement.
    pub(super) async fn run_limited<R: LimitedRead>(
        &self,
        place: ReadPlace,
        read: R,
    ) -> Result<R::Found, SourceError> {
        let shared = Arc::clone(&self.shared);
        let (mut asker, found) = oneshot::channel();
        let reading = tokio::spawn(async move {
            let found = read_in_turn(&shared, place, &read, &mut asker).await;
            if let Some(found) = found {
                // If nobody waits any more, nobody needs it.
                asker.send(found).ok();
            }
        });
        match found.await {
            Ok(found) => found,
            // It has panicked.
            Err(_) => match reading.await {
                Ok(()) => Err(SourceError::Unexpected("a read without a result".into())),
                Err(error) => Err(SourceError::Unexpected(error.to_string())),
            },
        }
    }
}

/// Runs `read` as [`Loader::run_limited`] does; `None` if the `asker` has gone while it waited.
async fn read_in_turn<R: LimitedRead>(
    shared: &Shared,
    place: ReadPlace,
    read: &R,
    asker: &mut Sender<Result<R::Found, SourceError>>,
) -> Option<Result<R::Found, SourceError>> {
    let waiting = place.begin(shared.database().statement_timeout());
    let mut running = match unless_gone(asker, waiting).await? {
        Ok(running) => running,
        Err(error) => return Some(Err(error)),
    };
    loop {
        let turn = match unless_gone(asker, running.turn()).await? {
            Ok(turn) => turn,
            Err(error) => return Some(Err(error)),
        };
        let found = read.read(shared).await;
        drop(turn);
        match found {
            Err(error) if error.is_lock_timeout() => {
                if let Err(error) = unless_gone(asker, running.pause()).await? {
                    return Some(Err(error));
                }
            }
            found => return Some(found),
        }
    }
}

/// Waits for `waiting`; `None` once nobody waits for the result of the `asker`.
async fn unless_gone<T, W>(asker: &mut Sender<T>, waiting: impl Future<Output = W>) -> Option<W> {
    tokio::select! {
        biased;
        () = asker.closed() => None,
        waited = waiting => Some(waited),
    }
}

fn is_stopping(_: AcquireError) -> SourceError {
    SourceError::Unavailable("larder is stopping".into())
}
