//! The disk tier's writer.
//!
//! It collects orders, up to `batch_entries` or for `linger`, and applies them in one atomic batch. Then it calls the
//! stripes of the drops clean, and only then does the tier answer for them again.
//!
//! On any error the tier is turned off, its directory is set aside, and an empty one is opened. Until then requests are
//! answered without it. sled blocks, so this runs on a thread of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::cache::disk::directory::{create, current, remove_set_aside, set_aside};
use crate::cache::disk::layout::Mark;
use crate::cache::disk::{DiskBatch, DiskConfig, DiskError, Store};
use crate::cache::generation::Stripe;
use crate::cache::orders::{DiskOrder, DiskState, KeyDrop, Put, RangeSweep};
#[cfg(test)]
use crate::cache::tests::gate::{Point, reach};
use crate::feed::position::Persisted;

/// Pause between attempts to open an empty directory.
const REOPEN_PAUSE: Duration = Duration::from_secs(5);
/// How often the writer checks for errors of the reading thread while no order comes.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// Pause between writes of nothing but a mark.
const LONE_MARK_PAUSE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, PartialEq, Eq)]
enum WriterState {
    /// No directory is open. The next attempt is at this moment, or at once.
    Off {
        retry_at: Option<Instant>,
    },
    /// Content of an earlier run is open. Drops are applied to it, and nothing is read from it.
    Resuming,
    InUse,
}

/// How soon a mark has to be on disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WriteUrgency {
    /// With the next entries, or after [`LONE_MARK_PAUSE`].
    Deferrable,
    /// With this batch.
    Mark,
    /// With this batch, which is flushed out of sled's buffer. So are the batch's entries.
    Flush,
}

/// Owns what is written to disk.
pub(super) struct Writer {
    shared: Arc<DiskState>,
    orders: mpsc::Receiver<DiskOrder>,
    state: WriterState,
    /// The newest mark that the content agrees with, and whether it is on disk.
    last_mark: Option<Mark>,
    mark_written: bool,
    mark_written_at: Instant,
    /// When an empty directory was last opened after an error, or could not be opened.
    reopened_at: Option<Instant>,
    /// Those of purges that have been applied, or failed, in this turn.
    purges: Vec<oneshot::Sender<()>>,
}

impl Writer {
    pub(super) fn new(shared: Arc<DiskState>, orders: mpsc::Receiver<DiskOrder>) -> Self {
        Self {
            shared,
            orders,
            state: WriterState::Off { retry_at: None },
            last_mark: None,
            mark_written: false,
            mark_written_at: Instant::now(),
            reopened_at: None,
            purges: Vec::new(),
        }
    }

    /// Runs until it is stopped. Calls `opened` with the mark of an earlier run, if there is one.
    pub(super) async fn run(mut self, opened: impl FnOnce(Mark)) {
        self.open(opened);
        loop {
            let (orders, stop) = self.next_orders().await;
            self.apply_orders(orders);
            if let Some(done) = stop {
                self.finish();
                // The receiver may have stopped waiting.
                let _dropped = done.send(());
                return;
            }
            if self.shared.has_failed.swap(false, Ordering::SeqCst) {
                self.close_and_set_aside();
            }
            if let WriterState::Off { retry_at } = self.state
                && retry_at.is_none_or(|at| Instant::now() >= at)
            {
                self.reopened_at = Some(Instant::now());
                self.open_empty();
            }
            // Behind the opening of an empty directory, which sets aside what could not be written to.
            self.purges.clear();
        }
    }

    /// Opens what an earlier run left, or an empty directory if that has no mark or can't be used.
    fn open(&mut self, opened: impl FnOnce(Mark)) {
        let config = &self.shared.config;
        remove_set_aside(&config.directory);
        let found = create(&config.directory)
            .map_err(DiskError::from)
            .and_then(|()| open_store(config))
            .and_then(|store| Ok((store.recover()?, store)));
        match found {
            Ok((Some(mark), store)) => {
                self.resume_with(store, &mark);
                opened(mark);
            }
            Ok((None, store)) => {
                drop(store);
                self.open_empty();
            }
            Err(error) => {
                self.shared.metrics.disk_errors.inc();
                tracing::warn!("the disk tier's files can't be used, and it starts empty: {error}");
                self.open_empty();
            }
        }
    }

    /// Keeps the content of an earlier run, which is not read until it has been caught up with.
    pub(super) fn resume_with(&mut self, store: Store, mark: &Mark) {
        self.shared.store.store(Some(Arc::new(store)));
        self.state = WriterState::Resuming;
        // The change log must be kept from there on.
        self.shared
            .persisted
            .send_replace(Persisted::At(mark.position()));
    }

    /// Waits for orders: at most a second for the first, then until the batch is full or `linger` is over.
    async fn next_orders(&mut self) -> (Vec<DiskOrder>, Option<oneshot::Sender<()>>) {
        let mut orders = Vec::new();
        let mut entries = 0;
        let mut until = Instant::now() + IDLE_MAX;
        while entries < self.shared.config.batch_entries {
            let Ok(order) = tokio::time::timeout_at(until, self.orders.recv()).await else {
                break;
            };
            // A closed queue, too, ends the writer.
            let order = order.unwrap_or_else(|| DiskOrder::Stop(oneshot::channel().0));
            if let DiskOrder::Stop(done) = order {
                return (orders, Some(done));
            }
            if orders.is_empty() {
                until = Instant::now() + self.shared.config.linger;
            }
            // Only orders that are queued already share its flush.
            if matches!(order, DiskOrder::UrgentDrop(..)) {
                until = Instant::now();
            }
            entries += match &order {
                DiskOrder::Drop(drops) => drops.len(),
                _ => 1,
            };
            // These end their batch. A sweep does because no stripe is clean until it is applied.
            let ends_batch = matches!(
                order,
                DiskOrder::Sweep(_)
                    | DiskOrder::Enable(..)
                    | DiskOrder::Discard
                    | DiskOrder::Purge(..)
            );
            orders.push(order);
            if ends_batch {
                break;
            }
        }
        (orders, None)
    }

    /// Applies orders in one batch, and what they imply for stripes and the tier.
    pub(super) fn apply_orders(&mut self, orders: Vec<DiskOrder>) {
        let mut batch = DiskBatch::default();
        let mut clean: Vec<(Stripe, u64)> = Vec::new();
        // Generations up to which all stripes become clean. Those of a later order are not lower.
        let mut all_clean: Option<Vec<u64>> = None;
        let mut enable = false;
        let mut discard = false;
        let mut urgency = WriteUrgency::Deferrable;
        for order in orders {
            match order {
                DiskOrder::Put(put) => self.add_put(&mut batch, &put),
                DiskOrder::Drop(drops) => add_drops(&mut batch, &mut clean, drops),
                DiskOrder::UrgentDrop(drop, done) => {
                    self.purges.push(done);
                    add_drops(&mut batch, &mut clean, [drop]);
                    urgency = WriteUrgency::Flush;
                }
                DiskOrder::Sweep(sweep) => {
                    self.shared.queued_sweeps.fetch_sub(1, Ordering::Relaxed);
                    if let Err(error) = self.sweep(std::mem::take(&mut batch), &sweep) {
                        self.shared.turn_off(&error.to_string());
                    }
                    all_clean = Some(sweep.generations);
                }
                // While content of an earlier run catches up, it keeps its own mark until Enable.
                DiskOrder::Mark(mark) if self.state == WriterState::InUse => self.set_mark(mark),
                DiskOrder::Purge(mark, done) => {
                    self.purges.push(done);
                    if let (Some(mark), WriterState::InUse) = (mark, self.state) {
                        self.set_mark(mark);
                        urgency = WriteUrgency::Flush;
                    }
                    discard |= self.state == WriterState::Resuming;
                }
                DiskOrder::Discard => discard |= self.state == WriterState::Resuming,
                DiskOrder::Mark(_) => {}
                DiskOrder::Enable(mark, generations) if self.state == WriterState::Resuming => {
                    self.set_mark(mark);
                    urgency = urgency.max(WriteUrgency::Mark);
                    all_clean = Some(generations);
                    enable = true;
                }
                DiskOrder::Enable(..) | DiskOrder::Stop(_) => {}
            }
        }
        if discard {
            self.open_empty();
            return;
        }
        if matches!(self.state, WriterState::Off { .. })
            || self.shared.has_failed.load(Ordering::SeqCst)
        {
            return;
        }
        #[cfg(test)]
        reach(Point::Gathered);
        match self.write(batch, urgency) {
            Ok(()) => {
                for (stripe, generation) in clean {
                    self.shared.versions.mark_clean(stripe, generation);
                }
                if let Some(generations) = all_clean {
                    self.shared.versions.mark_all_clean(&generations);
                }
                if enable {
                    self.state = WriterState::InUse;
                    self.shared.in_use.store(true, Ordering::SeqCst);
                    tracing::info!("the disk tier is in use");
                }
            }
            Err(error) => self.shared.turn_off(&error.to_string()),
        }
    }

    /// Applies the batch so far, then removes the entries of the ranges. Without a mark: drops may be missing that a
    /// mark behind the sweep implies.
    fn sweep(&self, before: DiskBatch, sweep: &RangeSweep) -> Result<(), DiskError> {
        let Some(store) = self.shared.store.load_full() else {
            return Ok(());
        };
        store.apply(before)?;
        let mut ranges = sweep.ranges.iter();
        ranges.try_for_each(|(prefix, ranges)| store.sweep(*prefix, ranges))
    }

    fn set_mark(&mut self, mark: Mark) {
        self.last_mark = Some(mark);
        self.mark_written = false;
    }

    fn add_put(&self, batch: &mut DiskBatch, put: &Put) {
        let state = &self.shared;
        state
            .queued_bytes
            .fetch_sub(put.body_bytes(), Ordering::Relaxed);
        if self.state == WriterState::InUse
            && state
                .versions
                .is_current(put.resource, put.stripe, put.version)
        {
            batch.put(put.prefix, &put.key, put.version.epoch, &put.found);
        }
    }

    /// Applies a batch, with the last mark if that is not on disk yet. A mark alone may be left for later.
    fn write(&mut self, mut batch: DiskBatch, urgency: WriteUrgency) -> Result<(), DiskError> {
        let Some(store) = self.shared.store.load_full() else {
            return Ok(());
        };
        let entries = batch.len();
        let due = urgency != WriteUrgency::Deferrable
            || entries > 0
            || self.mark_written_at.elapsed() >= LONE_MARK_PAUSE;
        let mark = self
            .last_mark
            .as_ref()
            .filter(|_| due && !self.mark_written);
        if let Some(mark) = mark {
            batch.mark(mark.clone());
        } else if entries == 0 {
            return Ok(());
        }
        store.apply(batch)?;
        if urgency == WriteUrgency::Flush {
            store.flush()?;
        }
        if entries > 0 {
            // Counts are far below 2^52, so the cast is exact.
            self.shared
                .metrics
                .disk_batch_entries
                .observe(entries as f64);
        }
        if let Some(mark) = mark {
            self.shared
                .persisted
                .send_replace(Persisted::At(mark.position()));
            self.mark_written = true;
            self.mark_written_at = Instant::now();
        }
        Ok(())
    }

    /// Closes the directory. Another is opened at once the first time, later after a pause: what broke it, such as a
    /// full disk, may break it again.
    fn close(&mut self) {
        self.shared.in_use.store(false, Ordering::SeqCst);
        self.shared.store.store(None);
        self.shared.persisted.send_replace(Persisted::Nothing);
        self.last_mark = None;
        let retry_at = self.reopened_at.map(|at| at + REOPEN_PAUSE);
        self.state = WriterState::Off { retry_at };
    }

    /// As [`Writer::close`]; a restart before the next directory is opened must not use this one either.
    fn close_and_set_aside(&mut self) {
        self.close();
        if let Err(error) = set_aside(&self.shared.config.directory) {
            tracing::warn!("the disk tier's directory can't be set aside: {error}");
        }
    }

    /// Sets the directory aside and opens an empty one.
    fn open_empty(&mut self) {
        self.close();
        let config = &self.shared.config;
        let opened = set_aside(&config.directory)
            .map_err(DiskError::from)
            .and_then(|()| open_store(config));
        match opened {
            Ok(store) => {
                self.start_with(store);
                tracing::info!("the disk tier is in use, empty");
            }
            Err(error) => {
                let retry_at = Some(Instant::now() + REOPEN_PAUSE);
                self.state = WriterState::Off { retry_at };
                self.shared.metrics.disk_errors.inc();
                tracing::warn!("the disk tier can't be opened, and is off for now: {error}");
            }
        }
    }

    /// Uses an empty directory. All stripes are clean in it.
    pub(super) fn start_with(&mut self, store: Store) {
        self.shared.store.store(Some(Arc::new(store)));
        self.shared
            .versions
            .mark_all_clean(&self.shared.versions.snapshot());
        self.state = WriterState::InUse;
        self.shared.in_use.store(true, Ordering::SeqCst);
    }

    /// Has a mark alone written with the next batch.
    #[cfg(test)]
    pub(super) fn make_mark_due(&mut self) {
        if let Some(due) = Instant::now().checked_sub(LONE_MARK_PAUSE) {
            self.mark_written_at = due;
        }
    }

    /// Writes a last mark, which says that the shutdown was orderly, and flushes everything.
    fn finish(&mut self) {
        self.shared.in_use.store(false, Ordering::SeqCst);
        let Some(store) = self.shared.store.swap(None) else {
            return;
        };
        if self.state != WriterState::InUse {
            return;
        }
        if self.shared.has_failed.load(Ordering::SeqCst) {
            // A drop was lost, and a mark behind it may have been written: the next run must not use this content.
            drop(store);
            if let Err(error) = set_aside(&self.shared.config.directory) {
                tracing::warn!("the disk tier's files can't be set aside: {error}");
            }
            return;
        }
        let mut batch = DiskBatch::default();
        if let Some(mark) = self.last_mark.take() {
            batch.mark(Mark {
                clean: true,
                ..mark
            });
        }
        let written = store.apply(batch).and_then(|()| store.flush());
        if let Err(error) = written {
            tracing::warn!("the disk tier's last entries may be lost: {error}");
        }
    }
}

fn open_store(config: &DiskConfig) -> Result<Store, DiskError> {
    let directory = current(&config.directory);
    Store::open(&directory, config.bytes_max, config.cache_bytes)
}

/// Adds the removal of entries to a batch, and their stripes to those that it makes clean.
fn add_drops(
    batch: &mut DiskBatch,
    clean: &mut Vec<(Stripe, u64)>,
    drops: impl IntoIterator<Item = KeyDrop>,
) {
    for drop in drops {
        batch.remove(drop.prefix, &drop.key);
        clean.push((drop.stripe, drop.generation));
    }
}

impl Drop for Writer {
    /// After a panic no content is used any more. Without this the change log would be kept for it for ever.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.in_use.store(false, Ordering::SeqCst);
            self.shared.persisted.send_replace(Persisted::Nothing);
        }
    }
}
