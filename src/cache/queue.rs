//! The disk tier as the rest of the cache sees it: a queue on the way to disk, and a thread that reads from it.
//!
//! One FIFO queue carries everything that happens to the tier, so that order alone keeps it true: a document that was
//! queued before its invalidation is dropped after it, and a mark is written with or after all drops that it implies.
//! Documents are left out where too much waits; a drop that can't be queued turns the tier off.

pub(super) mod lookups;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{mpsc, oneshot, watch};

use crate::cache::disk::DiskConfig;
use crate::cache::disk::layout::{Entry, Mark};
use crate::cache::generation::{Epoch, Versions};
use crate::cache::orders::{Dropped, Order, Put, Shared, Swept};
use crate::cache::queue::lookups::{Gatherer, Lookup, answer_all, find};
use crate::cache::writer::Writer;
use crate::feed::position::Persisted;
use crate::metrics::Metrics;

/// Orders that may wait. The upper half is kept for drops and marks, which must not be lost.
const ORDERS_MAX: usize = 20_000;
const ORDERS_RESERVED: usize = 10_000;
/// Sweeps that wait, at most: each has the generations of all stripes, 512 KiB, and its ranges, some megabytes at most.
const SWEEPS_MAX: usize = 8;
/// Document bytes that may wait for the writer.
const QUEUED_BYTES_MAX: u64 = 64 << 20;

/// The disk tier.
pub(super) struct Disk {
    shared: Arc<Shared>,
    orders: mpsc::Sender<Order>,
    gatherer: Gatherer,
}

impl Disk {
    /// Starts both threads. `opened` is called once, on the writer's thread, with the mark found on disk; then
    /// [`Disk::enable`] or [`Disk::discard`] decides. Without a mark the tier begins empty by itself.
    pub(super) fn start(
        config: DiskConfig,
        versions: Arc<Versions>,
        metrics: Arc<Metrics>,
        opened: impl FnOnce(Mark) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (orders, order_receiver) = mpsc::channel(ORDERS_MAX);
        let (gatherer, lookups) = Gatherer::new();
        let shared = Arc::new(Shared::new(config, versions, metrics));
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
            .spawn(move || answer_all(|lookup| find(&reader, lookup), lookups))?;
        Ok(Self {
            shared,
            orders,
            gatherer,
        })
    }

    /// A tier that is on and whose queues nobody works on.
    #[cfg(test)]
    pub(super) fn detached(
        config: DiskConfig,
        versions: Arc<Versions>,
        metrics: Arc<Metrics>,
    ) -> (
        Self,
        mpsc::Receiver<Order>,
        mpsc::Receiver<lookups::Lookups>,
    ) {
        let (orders, order_receiver) = mpsc::channel(ORDERS_MAX);
        let shared = Arc::new(Shared::new(config, versions, metrics));
        shared.on.store(true, Ordering::SeqCst);
        let (gatherer, lookups) = Gatherer::new();
        let disk = Self {
            shared,
            orders,
            gatherer,
        };
        (disk, order_receiver, lookups)
    }

    #[cfg(test)]
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Whether lookups are answered.
    pub(super) fn is_on(&self) -> bool {
        self.shared.on.load(Ordering::SeqCst)
    }

    /// The position up to which everything is on disk.
    pub(super) fn persisted(&self) -> watch::Receiver<Persisted> {
        self.shared.persisted.subscribe()
    }

    /// The entry of the key that bears `epoch`. Waits at most 200 ms once the reading thread has been asked.
    pub(super) async fn get(&self, prefix: u64, key: &Arc<str>, epoch: Epoch) -> Option<Entry> {
        let key = Arc::clone(key);
        let lookup = Lookup { prefix, key, epoch };
        self.gatherer.get(lookup).await
    }

    /// Queues a document; it is left out where too much waits already. Returns whether it was queued.
    pub(super) fn put(&self, put: Put) -> bool {
        let bytes = put
            .found
            .as_ref()
            .map_or(0, |document| document.body().len() as u64);
        let waiting = self.shared.queued_bytes.load(Ordering::Relaxed);
        if !self.is_on()
            || self.orders.capacity() <= ORDERS_RESERVED
            || waiting + bytes > QUEUED_BYTES_MAX
        {
            return false;
        }
        self.shared.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let queued = self.orders.try_send(Order::Put(put)).is_ok();
        if !queued {
            self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        queued
    }

    /// Queues the drops of a pass. Where that is impossible the tier is given up: a lost drop is a stale read.
    pub(super) fn invalidate(&self, dropped: Vec<Dropped>) {
        self.must_queue(Order::Drop(dropped));
    }

    /// Queues the drop of a document that no change was logged of: as [`Disk::invalidate`].
    pub(super) fn drop_at_once(&self, dropped: Dropped) {
        self.must_queue(Order::DropAtOnce(dropped));
    }

    /// Whether another sweep may wait. Only the feed queues any.
    pub(super) fn may_sweep(&self) -> bool {
        self.shared.queued_sweeps.load(Ordering::Relaxed) < SWEEPS_MAX
    }

    /// Queues the drops of ranges: as [`Disk::invalidate`].
    pub(super) fn sweep(&self, swept: Swept) {
        self.shared.queued_sweeps.fetch_add(1, Ordering::Relaxed);
        if !self.must_queue(Order::Sweep(swept)) {
            self.shared.queued_sweeps.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Queues the mark of a pass, behind its drops.
    pub(super) fn mark(&self, mark: Mark) {
        // A mark that is lost only makes the next start catch up on more.
        if self.orders.capacity() > ORDERS_RESERVED / 2 {
            self.must_queue(Order::Mark(mark));
        }
    }

    /// Queues the purge of a whole resource.
    pub(super) fn purge(&self, mark: Option<Mark>) {
        self.must_queue(Order::Purge(mark));
    }

    /// The drops of everything since the stored mark are queued: the content may be used behind them.
    pub(super) fn enable(&self, mark: Mark) {
        let generations = self.shared.versions.snapshot();
        self.must_queue(Order::Enable(mark, generations));
    }

    /// The content that was found is of no use.
    pub(super) fn discard(&self) {
        self.must_queue(Order::Discard);
    }

    /// Writes what waits, marks an orderly end, and ends the writer.
    pub(super) async fn stop(&self) {
        let (done, ended) = oneshot::channel();
        if self.orders.send(Order::Stop(done)).await.is_ok() && ended.await.is_err() {
            tracing::warn!("the disk tier's writer ended before it had written everything");
        }
    }

    /// Bytes on disk, and entries that are not overtaken as a whole. Reads the file system: not on an async worker.
    pub(super) fn size(&self) -> (u64, u64) {
        match &*self.shared.store.load() {
            Some(store) => {
                let entries = store.entries(&self.shared.versions.numbers());
                (store.bytes().unwrap_or(0), entries)
            }
            None => (0, 0),
        }
    }

    /// Whether it was queued; else the tier is given up.
    fn must_queue(&self, order: Order) -> bool {
        let queued = self.orders.try_send(order).is_ok();
        if !queued {
            self.shared.give_up("too many changes wait for it");
        }
        queued
    }
}

#[cfg(test)]
pub(super) mod tests;
