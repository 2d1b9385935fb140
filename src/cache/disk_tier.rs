//! The disk tier as the rest of the cache sees it: a queue to the thread that writes, and lookups by the thread that
//! reads.
//!
//! One FIFO queue carries every change of the tier, so its order keeps the content true: a document that was queued
//! before its invalidation is dropped after it, and a mark is written with or after all drops that it implies. If the
//! queue is half full, documents are left out. If a drop can't be queued, the tier is turned off.

pub(super) mod lookups;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::cache::disk::DiskConfig;
use crate::cache::disk::layout::{DiskEntry, Mark};
use crate::cache::disk_tier::lookups::{DiskLookup, LookupBatcher, read_entry, serve_batches};
use crate::cache::generation::{Epoch, Versions};
use crate::cache::orders::{DiskOrder, DiskState, KeyDrop, Put, RangeSweep};
use crate::cache::writer::Writer;
use crate::feed::position::Persisted;
use crate::metrics::Metrics;

/// Orders in the queue, at most.
const ORDERS_MAX: usize = 20_000;
/// Of these, reserved for all but documents.
const ORDERS_RESERVED: usize = 10_000;
/// Sweeps in the queue, at most: each has the generations of all stripes, 512 KiB, and up to some megabytes of ranges.
const SWEEPS_MAX: usize = 8;
/// Bytes of documents in the queue, at most.
const QUEUED_BYTES_MAX: u64 = 64 << 20;

/// A handle of the disk tier.
pub(super) struct DiskTier {
    shared: Arc<DiskState>,
    orders: mpsc::Sender<DiskOrder>,
    batcher: LookupBatcher,
}

impl DiskTier {
    /// Starts both threads.
    ///
    /// If an earlier run has left content with a mark, `opened` is called with it, on the writer's thread. Then the
    /// tier is in use only after [`DiskTier::queue_enable`] or [`DiskTier::queue_discard`]. Otherwise it begins empty.
    /// # Errors
    /// If a thread can't be started.
    pub(super) fn start(
        config: DiskConfig,
        versions: Arc<Versions>,
        metrics: Arc<Metrics>,
        opened: impl FnOnce(Mark) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (orders, order_receiver) = mpsc::channel(ORDERS_MAX);
        let (batcher, lookups) = LookupBatcher::new();
        let shared = Arc::new(DiskState::new(config, versions, metrics));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()?;
        let writer = Writer::new(Arc::clone(&shared), order_receiver);
        std::thread::Builder::new()
            .name("larder-disk".into())
            .spawn(move || runtime.block_on(writer.run(opened)))?;
        let reader = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("larder-disk-read".into())
            .spawn(move || {
                serve_batches(
                    |lookup, goes_on| read_entry(&reader, lookup, goes_on),
                    lookups,
                )
            })?;
        Ok(Self {
            shared,
            orders,
            batcher,
        })
    }

    /// A tier in use without its threads: the test takes orders and lookups.
    #[cfg(test)]
    pub(super) fn detached(
        config: DiskConfig,
        versions: Arc<Versions>,
        metrics: Arc<Metrics>,
    ) -> (
        Self,
        mpsc::Receiver<DiskOrder>,
        mpsc::Receiver<lookups::LookupBatch>,
    ) {
        let (orders, order_receiver) = mpsc::channel(ORDERS_MAX);
        let shared = Arc::new(DiskState::new(config, versions, metrics));
        shared.in_use.store(true, Ordering::SeqCst);
        let (batcher, lookups) = LookupBatcher::new();
        let disk = Self {
            shared,
            orders,
            batcher,
        };
        (disk, order_receiver, lookups)
    }

    #[cfg(test)]
    pub(super) fn shared(&self) -> &Arc<DiskState> {
        &self.shared
    }

    /// Whether lookups are answered and documents are taken in.
    pub(super) fn is_in_use(&self) -> bool {
        self.shared.in_use.load(Ordering::SeqCst)
    }

    /// The most bytes that it may hold.
    pub(super) fn bytes_max(&self) -> u64 {
        self.shared.config.bytes_max
    }

    /// The position that the content on disk reflects.
    pub(super) fn persisted(&self) -> watch::Receiver<Persisted> {
        self.shared.persisted.subscribe()
    }

    /// The entry of the key, if it has `epoch` and is read in time.
    ///
    /// Waits at most 200 ms once the lookup has been sent to the reading thread.
    pub(super) async fn get(&self, prefix: u64, key: &Arc<str>, epoch: Epoch) -> Option<DiskEntry> {
        let key = Arc::clone(key);
        let lookup = DiskLookup { prefix, key, epoch };
        self.batcher.get(lookup).await
    }

    /// Notes how long a load took: while reading makes no progress, a lookup waits for as long.
    pub(super) fn note_load(&self, took: Duration) {
        self.batcher.note_load(took);
    }

    /// Queues a document. Returns false if it was left out, because too much is queued already.
    pub(super) fn queue_put(&self, put: Put) -> bool {
        let bytes = put.body_bytes();
        let waiting = self.shared.queued_bytes.load(Ordering::Relaxed);
        if !self.is_in_use()
            || self.orders.capacity() <= ORDERS_RESERVED
            || waiting + bytes > QUEUED_BYTES_MAX
        {
            return false;
        }
        self.shared.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let queued = self.orders.try_send(DiskOrder::Put(put)).is_ok();
        if !queued {
            self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        queued
    }

    /// Queues the drops of a pass. If the queue is full, turns the tier off: a lost drop would allow a stale read.
    pub(super) fn queue_drops(&self, drops: Vec<KeyDrop>) {
        self.queue_or_turn_off(DiskOrder::Drop(drops));
    }

    /// Queues a drop that the change log does not have. If the queue is full, turns the tier off. The receiver ends when
    /// the entry can't be read again, also after a crash.
    pub(super) fn queue_urgent_drop(&self, drop: KeyDrop) -> oneshot::Receiver<()> {
        let (done, ended) = oneshot::channel();
        self.queue_or_turn_off(DiskOrder::UrgentDrop(drop, done));
        ended
    }

    /// Whether another sweep may be queued. Only the feed queues sweeps.
    pub(super) fn may_sweep(&self) -> bool {
        self.shared.queued_sweeps.load(Ordering::Relaxed) < SWEEPS_MAX
    }

    /// Queues the removal of ranges of keys. If the queue is full, turns the tier off.
    pub(super) fn queue_sweep(&self, sweep: RangeSweep) {
        self.shared.queued_sweeps.fetch_add(1, Ordering::Relaxed);
        if !self.queue_or_turn_off(DiskOrder::Sweep(sweep)) {
            self.shared.queued_sweeps.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Queues the mark of a pass, behind its drops.
    pub(super) fn queue_mark(&self, mark: Mark) {
        // Without this mark the next start only has more to catch up on.
        if self.orders.capacity() > ORDERS_RESERVED / 2 {
            self.queue_or_turn_off(DiskOrder::Mark(mark));
        }
    }

    /// Queues the purge of a whole resource. The receiver ends as that of [`DiskTier::queue_urgent_drop`].
    pub(super) fn queue_purge(&self, mark: Option<Mark>) -> oneshot::Receiver<()> {
        let (done, ended) = oneshot::channel();
        self.queue_or_turn_off(DiskOrder::Purge(mark, done));
        ended
    }

    /// Has the content of an earlier run used, when the drops queued so far have been applied.
    pub(super) fn queue_enable(&self, mark: Mark) {
        let generations = self.shared.versions.snapshot();
        self.queue_or_turn_off(DiskOrder::Enable(mark, generations));
    }

    /// Has the content of an earlier run discarded.
    pub(super) fn queue_discard(&self) {
        self.queue_or_turn_off(DiskOrder::Discard);
    }

    /// Ends the writer, after it has written everything queued and marked the shutdown as orderly.
    pub(super) async fn stop(&self) {
        let (done, ended) = oneshot::channel();
        if self.orders.send(DiskOrder::Stop(done)).await.is_ok() && ended.await.is_err() {
            tracing::warn!("the disk tier's writer ended before it had written everything");
        }
    }

    /// Bytes on disk, and the number of entries under a current epoch. Reads the file system: not for async workers.
    pub(super) fn size(&self) -> (u64, u64) {
        match &*self.shared.store.load() {
            Some(store) => {
                let entries = store.entries(&self.shared.versions.current_epochs());
                (store.bytes().unwrap_or(0), entries)
            }
            None => (0, 0),
        }
    }

    /// Returns whether the order was queued. If not, the tier is turned off.
    fn queue_or_turn_off(&self, order: DiskOrder) -> bool {
        let queued = self.orders.try_send(order).is_ok();
        if !queued {
            self.shared.turn_off("its queue is full");
        }
        queued
    }
}

#[cfg(test)]
pub(super) mod tests;
