//! Lookups on their way to the thread that reads from disk, and their results on the way back.
//!
//! To wake a thread, or a runtime from another thread, costs as much as a read from pages in memory. So lookups go in
//! batches: the first lookup on a worker's thread leads one. It yields once, so that the worker's other requests can
//! join it, sends all their lookups to the reading thread, and hands out the results, on the thread that they share.
//!
//! If a read is slow, the lookups that wait behind it are misses. If there are only many lookups, and reads are fast,
//! they wait: PostgreSQL takes longer for each, so misses would make an overload worse.

use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::cache::disk::layout::DiskEntry;
use crate::cache::generation::Epoch;
use crate::cache::orders::DiskState;

/// Lookups in one batch, at most. More go in several batches, so that none waits for too many others.
const LOOKUPS_PER_BATCH: usize = 64;
/// Batches that may wait for the reading thread.
const QUEUED_BATCHES_MAX: usize = 256;
/// If reading makes no progress for this long, and for as long as a load takes now, that batch and those behind it are
/// misses. Each chunk of a long document is progress.
const PROGRESS_TIMEOUT_MIN: Duration = Duration::from_millis(20);
/// A lookup that takes longer is a miss, however many are before it.
pub(crate) const LOOKUP_TIMEOUT: Duration = Duration::from_millis(200);
/// The share of the last load in [`Pace::load_micros`] is 1 of this number.
const LOADS_AVERAGED: u64 = 8;

/// A key to look for on disk.
pub(in crate::cache) struct DiskLookup {
    pub(super) prefix: u64,
    pub(super) key: Arc<str>,
    pub(super) epoch: Epoch,
}

/// Lookups that are sent to the reading thread together.
pub(in crate::cache) struct LookupBatch {
    pub(super) lookups: Vec<DiskLookup>,
    queued_at: Instant,
    pace: Arc<Pace>,
    /// The results, in the order of the lookups. Lookups beyond the end of the list are misses.
    pub(super) results: oneshot::Sender<Vec<Option<DiskEntry>>>,
}

/// How fast documents come from disk and from PostgreSQL.
#[derive(Debug, Default)]
struct Pace {
    /// Chunks that the reading thread has read, and lookups that it has answered, of all batches.
    progress: AtomicU64,
    /// The mean of the last loads in microseconds. Each lookup that is a miss leads to a load, so it is up to date.
    load_micros: AtomicU64,
}

impl Pace {
    /// Notes that a load took `took`. One outlier counts for at most [`LOOKUP_TIMEOUT`].
    fn note_load(&self, took: Duration) {
        let took = took.min(LOOKUP_TIMEOUT).as_micros();
        let took = u64::try_from(took).unwrap_or(u64::MAX);
        let mean = self.load_micros.load(Ordering::Relaxed);
        // Loads that end at the same moment may overwrite each other's share.
        let mean = mean - mean / LOADS_AVERAGED + took / LOADS_AVERAGED;
        self.load_micros.store(mean, Ordering::Relaxed);
    }

    /// How long a lookup waits for progress. On a busy machine the reading thread may wait for a core longer than
    /// [`PROGRESS_TIMEOUT_MIN`], but a load waits there, too, and costs more.
    fn progress_timeout(&self) -> Duration {
        let load = Duration::from_micros(self.load_micros.load(Ordering::Relaxed));
        load.clamp(PROGRESS_TIMEOUT_MIN, LOOKUP_TIMEOUT)
    }
}

/// A lookup, and where its result goes.
type PendingLookup = (DiskLookup, oneshot::Sender<Option<DiskEntry>>);

/// Collects lookups into batches and sends them to the reading thread.
pub(super) struct LookupBatcher {
    /// By the thread of the requests, so that a leader hands out results without waking another thread.
    pending: Mutex<HashMap<ThreadId, Vec<PendingLookup>>>,
    batches: mpsc::Sender<LookupBatch>,
    pace: Arc<Pace>,
}

/// The right, and the duty, to send a thread's pending lookups. The others have no timer of their own; if the leader is
/// dropped, they are dropped with it and are misses.
struct BatchLeader<'b> {
    batcher: &'b LookupBatcher,
    thread: Option<ThreadId>,
}

impl LookupBatcher {
    /// A batcher, and the receiver of its batches.
    pub(super) fn new() -> (Self, mpsc::Receiver<LookupBatch>) {
        let (batches, receiver) = mpsc::channel(QUEUED_BATCHES_MAX);
        let batcher = Self {
            pending: Mutex::default(),
            batches,
            pace: Arc::default(),
        };
        (batcher, receiver)
    }

    /// Notes what a load costs now.
    pub(super) fn note_load(&self, took: Duration) {
        self.pace.note_load(took);
    }

    /// The entry on disk; `None` also if it takes too long.
    ///
    /// Once it is sent, a batch waits as long as reading makes progress, at most 200 ms. If the request that leads is
    /// dropped, the lookups of its batch are misses.
    pub(super) async fn get(&self, lookup: DiskLookup) -> Option<DiskEntry> {
        let (sender, result) = oneshot::channel();
        if let Some(mut leader) = self.join_or_lead((lookup, sender)) {
            // Lets every request that the runtime has ready join.
            tokio::task::yield_now().await;
            // Drops the senders that it has not used when the time is over, so that no lookup waits on.
            self.send_within_timeout(leader.take_pending()).await;
        }
        result.await.ok()?
    }

    /// Adds the lookup to those that are pending on this thread. The first becomes the leader.
    fn join_or_lead(&self, lookup: PendingLookup) -> Option<BatchLeader<'_>> {
        let thread = std::thread::current().id();
        match self.pending().entry(thread) {
            Entry::Occupied(mut pending) => {
                pending.get_mut().push(lookup);
                None
            }
            Entry::Vacant(place) => {
                place.insert(vec![lookup]);
                Some(BatchLeader {
                    batcher: self,
                    thread: Some(thread),
                })
            }
        }
    }

    /// Sends lookups and hands out their results, until the time is over or reading made no progress for too long.
    async fn send_within_timeout(&self, pending: Vec<PendingLookup>) {
        let began = Instant::now();
        let mut sending = pin!(self.send(pending));
        loop {
            let before = self.pace.progress.load(Ordering::Relaxed);
            let left = LOOKUP_TIMEOUT.saturating_sub(began.elapsed());
            let wait = self.pace.progress_timeout().min(left);
            if tokio::time::timeout(wait, &mut sending).await.is_ok()
                || before == self.pace.progress.load(Ordering::Relaxed)
                || began.elapsed() >= LOOKUP_TIMEOUT
            {
                return;
            }
        }
    }

    async fn send(&self, pending: Vec<PendingLookup>) {
        let mut sent = Vec::with_capacity(1);
        let mut pending = pending.into_iter().peekable();
        while pending.peek().is_some() {
            let batch = pending.by_ref().take(LOOKUPS_PER_BATCH);
            let (lookups, senders): (Vec<_>, Vec<_>) = batch.unzip();
            let (results, received) = oneshot::channel();
            let batch = LookupBatch {
                lookups,
                queued_at: Instant::now(),
                pace: Arc::clone(&self.pace),
                results,
            };
            // If the queue is full, its lookups are misses.
            if self.batches.try_send(batch).is_ok() {
                sent.push((senders, received));
            }
        }
        for (senders, results) in sent {
            for (sender, entry) in senders.into_iter().zip(results.await.unwrap_or_default()) {
                // The request may have been dropped.
                let _dropped = sender.send(entry);
            }
        }
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<ThreadId, Vec<PendingLookup>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BatchLeader<'_> {
    /// Takes the lookups that are pending on its thread. The next lookup there leads a new batch.
    fn take_pending(&mut self) -> Vec<PendingLookup> {
        let thread = self.thread.take();
        let pending = thread.and_then(|thread| self.batcher.pending().remove(&thread));
        pending.unwrap_or_default()
    }
}

impl Drop for BatchLeader<'_> {
    fn drop(&mut self) {
        drop(self.take_pending());
    }
}

/// Answers the batches by `read` until the batcher is dropped. `read` calls its second argument after each chunk, and ends
/// if that returns false.
pub(super) fn serve_batches(
    read: impl Fn(&DiskLookup, &dyn Fn() -> bool) -> Option<DiskEntry>,
    mut batches: mpsc::Receiver<LookupBatch>,
) {
    let mut slow_until = None;
    while let Some(batch) = batches.blocking_recv() {
        // What was queued during a slow read is dropped, and so becomes misses.
        if slow_until.is_none_or(|until| batch.queued_at > until) {
            slow_until = serve_batch(&read, batch).or(slow_until);
        }
    }
}

/// Answers one batch. Returns when it was done, if reading was slow.
pub(in crate::cache) fn serve_batch(
    read: impl Fn(&DiskLookup, &dyn Fn() -> bool) -> Option<DiskEntry>,
    batch: LookupBatch,
) -> Option<Instant> {
    let last_progress = Cell::new(Instant::now());
    let is_slow = Cell::new(false);
    let note_progress = || {
        batch.pace.progress.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let pause = now.duration_since(last_progress.replace(now));
        is_slow.set(is_slow.get() || pause > batch.pace.progress_timeout() * 9 / 10);
    };
    let goes_on = || {
        note_progress();
        // The leader gave up. Under overload the thread must not fall behind for lookups that are misses already.
        !batch.results.is_closed()
    };
    let mut entries = Vec::with_capacity(batch.lookups.len());
    for lookup in &batch.lookups {
        // The rest are misses, so that the entries read so far are in time.
        if batch.results.is_closed()
            || is_slow.get()
            || batch.queued_at.elapsed() > LOOKUP_TIMEOUT * 9 / 10
        {
            break;
        }
        entries.push(read(lookup, &goes_on));
        note_progress();
    }
    // The leader may have given up since.
    let _dropped = batch.results.send(entries);
    is_slow.get().then(Instant::now)
}

/// Reads one entry from disk.
pub(in crate::cache) fn read_entry(
    shared: &DiskState,
    lookup: &DiskLookup,
    goes_on: &dyn Fn() -> bool,
) -> Option<DiskEntry> {
    // Loaded for each lookup: one that began after the files were replaced must not read from those before.
    match &*shared.store.load() {
        Some(store) if shared.in_use.load(Ordering::SeqCst) => store
            .get(lookup.prefix, &lookup.key, lookup.epoch, goes_on)
            .unwrap_or_else(|error| {
                shared.turn_off(&error.to_string());
                None
            }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn lookup(key: &str) -> DiskLookup {
        DiskLookup {
            prefix: 0,
            key: Arc::from(key),
            epoch: Epoch::both(1),
        }
    }

    fn poll(
        get: &mut Pin<&mut impl Future<Output = Option<DiskEntry>>>,
    ) -> Poll<Option<DiskEntry>> {
        get.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    fn absent() -> Option<DiskEntry> {
        Some(DiskEntry {
            found: None,
            written_at: std::time::SystemTime::UNIX_EPOCH,
            is_aging: false,
        })
    }

    fn keys(batch: &LookupBatch) -> Vec<&str> {
        let lookups = batch.lookups.iter();
        lookups.map(|lookup| &*lookup.key).collect()
    }

    #[tokio::test]
    async fn lookups_of_one_turn_are_sent_together_and_answered_each() {
        let (batcher, mut batches) = LookupBatcher::new();
        let lookups = async {
            tokio::join!(
                batcher.get(lookup("1")),
                batcher.get(lookup("2")),
                batcher.get(lookup("3"))
            )
        };
        let answers = async {
            let batch = batches.recv().await.unwrap();
            assert_eq!(keys(&batch), ["1", "2", "3"]);
            batch.results.send(vec![absent(), None, absent()]).unwrap();
        };
        let (found, ()) = tokio::join!(lookups, answers);
        assert_eq!(found, (absent(), None, absent()));
    }

    #[tokio::test]
    async fn more_lookups_than_fit_a_batch_go_in_several() {
        let (batcher, mut batches) = LookupBatcher::new();
        let lookups = (0..=LOOKUPS_PER_BATCH).map(|key| batcher.get(lookup(&key.to_string())));
        let answers = async {
            for count in [LOOKUPS_PER_BATCH, 1] {
                let batch = batches.recv().await.unwrap();
                assert_eq!(batch.lookups.len(), count);
                batch.results.send(vec![absent(); count]).unwrap();
            }
        };
        let (found, ()) = tokio::join!(futures_util::future::join_all(lookups), answers);
        assert!(found.iter().all(Option::is_some));
    }

    /// A lookup behind others is a miss only if reading makes no progress for as long as a load takes, or takes too long.
    #[tokio::test(start_paused = true)]
    async fn a_lookup_waits_as_long_as_others_are_answered() {
        for (load, others, pause, is_found) in [
            (1, 12, 15, true),
            (1, 1, 45, false),
            (1, 30, 15, false),
            (80, 2, 70, true),
            (80, 1, 190, false),
            (5000, 1, 190, true),
            (5000, 1, 201, false),
            // The last wait is no longer than what is left of the time.
            (5000, 2, 150, false),
        ] {
            let (batcher, mut batches) = LookupBatcher::new();
            for _ in 0..100 {
                batcher.note_load(Duration::from_millis(load));
            }
            let began = Instant::now();
            let answers = async {
                let batch = batches.recv().await.unwrap();
                for _ in 0..others {
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                    batch.pace.progress.fetch_add(1, Ordering::Relaxed);
                }
                // The lookup may have timed out.
                let _dropped = batch.results.send(vec![absent()]);
            };
            let get = async {
                let found = batcher.get(lookup("1")).await;
                assert!(began.elapsed() <= LOOKUP_TIMEOUT + Duration::from_millis(2));
                found
            };
            let (found, ()) = tokio::join!(get, answers);
            assert_eq!(
                found.is_some(),
                is_found,
                "{others} of {pause} ms, loads of {load} ms"
            );
        }
    }

    #[test]
    fn a_slow_read_makes_misses_of_the_lookups_behind_it() {
        let (sender, batches) = mpsc::channel(QUEUED_BATCHES_MAX);
        let send = |keys: &[&str]| {
            let (results, received) = oneshot::channel();
            let batch = LookupBatch {
                lookups: keys.iter().copied().map(lookup).collect(),
                queued_at: Instant::now(),
                pace: Arc::default(),
                results,
            };
            assert!(sender.try_send(batch).is_ok());
            received
        };
        let slow = send(&["slow", "2"]);
        let behind = send(&["3"]);
        let read = |lookup: &DiskLookup, _: &dyn Fn() -> bool| {
            if &*lookup.key == "slow" {
                std::thread::sleep(PROGRESS_TIMEOUT_MIN);
            }
            absent()
        };
        let reading = std::thread::spawn(move || serve_batches(read, batches));
        assert_eq!(slow.blocking_recv().unwrap(), [absent()]);
        assert!(behind.blocking_recv().is_err());
        let later = send(&["4"]);
        assert_eq!(later.blocking_recv().unwrap(), [absent()]);
        drop(sender);
        reading.join().unwrap();
    }

    #[test]
    fn a_batch_that_has_waited_too_long_is_not_read() {
        let (results, mut received) = oneshot::channel();
        let queued_at = Instant::now().checked_sub(LOOKUP_TIMEOUT).unwrap();
        let batch = LookupBatch {
            lookups: vec![lookup("1")],
            queued_at,
            pace: Arc::default(),
            results,
        };
        assert_eq!(serve_batch(|_, _| absent(), batch), None);
        assert_eq!(received.try_recv().unwrap(), []);
    }

    /// A long document takes longer than the time without progress, and is no slow read.
    #[test]
    fn each_chunk_is_progress() {
        let (results, mut received) = oneshot::channel();
        let batch = LookupBatch {
            lookups: vec![lookup("long"), lookup("2")],
            queued_at: Instant::now(),
            pace: Arc::default(),
            results,
        };
        let pace = Arc::clone(&batch.pace);
        let read = |lookup: &DiskLookup, goes_on: &dyn Fn() -> bool| {
            let chunks = if &*lookup.key == "long" { 6 } else { 0 };
            for _ in 0..chunks {
                std::thread::sleep(PROGRESS_TIMEOUT_MIN / 4);
                assert!(goes_on());
            }
            absent()
        };
        assert_eq!(serve_batch(read, batch), None);
        assert_eq!(received.try_recv().unwrap(), [absent(), absent()]);
        assert_eq!(pace.progress.load(Ordering::Relaxed), 8);
    }

    #[test]
    fn reading_ends_if_the_leader_gives_up() {
        let (results, received) = oneshot::channel();
        let batch = LookupBatch {
            lookups: vec![lookup("1")],
            queued_at: Instant::now(),
            pace: Arc::default(),
            results,
        };
        let received = Mutex::new(Some(received));
        let read = |_: &DiskLookup, goes_on: &dyn Fn() -> bool| {
            assert!(goes_on());
            received.lock().unwrap().take();
            assert!(!goes_on());
            None
        };
        assert_eq!(serve_batch(read, batch), None);
    }

    /// The others have no timer of their own, and the next lookup must not wait for the leader.
    #[tokio::test]
    async fn a_dropped_leader_makes_misses_of_the_others_and_the_next_leads() {
        for is_sent in [false, true] {
            let (batcher, mut batches) = LookupBatcher::new();
            let mut other = pin!(batcher.get(lookup("2")));
            {
                let mut leader = pin!(batcher.get(lookup("1")));
                assert!(poll(&mut leader).is_pending());
                assert!(poll(&mut other).is_pending());
                if is_sent {
                    assert!(poll(&mut leader).is_pending());
                    assert_eq!(keys(&batches.try_recv().unwrap()), ["1", "2"]);
                }
            }
            assert_eq!(poll(&mut other), Poll::Ready(None));
            let mut next = pin!(batcher.get(lookup("3")));
            assert!(poll(&mut next).is_pending());
            assert!(poll(&mut next).is_pending());
            assert_eq!(keys(&batches.try_recv().unwrap()), ["3"]);
        }
    }
}
