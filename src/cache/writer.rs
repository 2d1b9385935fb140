//! The batching task of the disk tier.
//!
//! Orders are gathered up to `batch_entries` or `linger` and applied in one atomic batch; then the stripes that were
//! dropped are called clean, and only then does the tier answer for them again.
//!
//! On any error the tier turns off, its directory is set aside, and an empty one is opened. Requests do not notice.
//! sled blocks, so this runs on a thread of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::cache::disk::directory::{create, current, remove_set_aside, set_aside};
use crate::cache::disk::layout::Mark;
use crate::cache::disk::{Batch, DiskError, Store};
use crate::cache::generation::Stripe;
use crate::cache::orders::{Order, Put, Shared, Swept};
#[cfg(test)]
use crate::cache::tests::gate::{Point, reach};
use crate::feed::position::Persisted;

/// Pause between attempts to begin anew.
const REOPEN_PAUSE: Duration = Duration::from_secs(5);
/// The writer looks around at least this often.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// A mark alone is written at most this often.
const LONE_MARK_PAUSE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing is kept; another attempt to open a directory at this moment.
    Off {
        retry_at: Option<Instant>,
    },
    /// Old content is open and follows drops, until it is enabled or discarded.
    Resuming,
    On,
}

/// What has to be written at once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Haste {
    /// A mark alone may wait.
    None,
    /// The mark.
    Mark,
    /// The mark, and past sled's own buffer.
    Flush,
}

/// Owns what is written to disk.
pub(super) struct Writer {
    shared: Arc<Shared>,
    orders: mpsc::Receiver<Order>,
    state: State,
    /// The newest mark that holds for the content, and whether it is on disk.
    last_mark: Option<Mark>,
    mark_written: bool,
    mark_written_at: Instant,
    /// When a broken tier last began anew, or tried to.
    renewed_at: Option<Instant>,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, orders: mpsc::Receiver<Order>) -> Self {
        Self {
            shared,
            orders,
            state: State::Off { retry_at: None },
            last_mark: None,
            mark_written: false,
            mark_written_at: Instant::now(),
            renewed_at: None,
        }
    }

    /// Runs until it is stopped. `opened` is called once with the mark that was found.
    pub(super) async fn run(mut self, opened: impl FnOnce(Mark)) {
        self.open(opened);
        loop {
            let (orders, stop) = self.gather().await;
            self.process(orders);
            if let Some(done) = stop {
                self.finish();
                // The one who asked may have stopped waiting.
                let _gone = done.send(());
                return;
            }
            if self.shared.broken.swap(false, Ordering::SeqCst) {
                self.close();
            }
            if let State::Off { retry_at } = self.state
                && retry_at.is_none_or(|at| Instant::now() >= at)
            {
                self.renewed_at = Some(Instant::now());
                self.begin_empty();
            }
        }
    }

    /// Opens what an earlier run left. Whatever can't be used is set aside.
    fn open(&mut self, opened: impl FnOnce(Mark)) {
        let config = &self.shared.config;
        remove_set_aside(&config.directory);
        let found = create(&config.directory)
            .map_err(DiskError::from)
            .and_then(|()| Store::open(&current(&config.directory), config.cache_bytes))
            .and_then(|store| Ok((store.recover()?, store)));
        match found {
            Ok((Some(mark), store)) => {
                self.begin_resuming(store, &mark);
                opened(mark);
            }
            Ok((None, store)) => {
                drop(store);
                self.begin_empty();
            }
            Err(error) => {
                tracing::warn!("the disk tier's files can't be used, and it starts empty: {error}");
                self.begin_empty();
            }
        }
    }

    /// Keeps what an earlier run left, and answers nothing out of it yet.
    pub(super) fn begin_resuming(&mut self, store: Store, mark: &Mark) {
        self.shared.store.store(Some(Arc::new(store)));
        self.state = State::Resuming;
        // Until it has been caught up with, the log must be kept for it.
        self.shared
            .persisted
            .send_replace(Persisted::At(mark.position()));
    }

    /// Waits for orders: for the first one at most a second, for more until the batch is full or has lingered.
    async fn gather(&mut self) -> (Vec<Order>, Option<oneshot::Sender<()>>) {
        let mut orders = Vec::new();
        let mut entries = 0;
        let mut until = Instant::now() + IDLE_MAX;
        while entries < self.shared.config.batch_entries {
            let Ok(order) = tokio::time::timeout_at(until, self.orders.recv()).await else {
                break;
            };
            match order {
                None | Some(Order::Stop(_)) => {
                    let done = match order {
                        Some(Order::Stop(done)) => done,
                        _ => oneshot::channel().0,
                    };
                    return (orders, Some(done));
                }
                Some(order) => {
                    if orders.is_empty() {
                        until = Instant::now() + self.shared.config.linger;
                    }
                    // Until a sweep is applied, no key is answered for.
                    let urgent = matches!(
                        order,
                        Order::Sweep(_) | Order::Enable(..) | Order::Discard | Order::Purge(_)
                    );
                    entries += match &order {
                        Order::Drop(dropped) => dropped.len(),
                        _ => 1,
                    };
                    // What has come by now shares the flush.
                    if matches!(order, Order::DropAtOnce(_)) {
                        until = Instant::now();
                    }
                    orders.push(order);
                    if urgent {
                        break;
                    }
                }
            }
        }
        (orders, None)
    }

    pub(super) fn process(&mut self, orders: Vec<Order>) {
        let mut batch = Batch::default();
        let mut clean: Vec<(Stripe, u64)> = Vec::new();
        let mut enabled: Option<Vec<u64>> = None;
        let mut swept_to: Option<Vec<u64>> = None;
        let mut discard = false;
        let mut haste = Haste::None;
        for order in orders {
            match order {
                Order::Put(put) => self.add_put(&mut batch, &put),
                Order::Drop(dropped) => {
                    for entry in dropped {
                        batch.remove(entry.prefix, &entry.key);
                        clean.push((entry.stripe, entry.generation));
                    }
                }
                Order::DropAtOnce(entry) => {
                    batch.remove(entry.prefix, &entry.key);
                    clean.push((entry.stripe, entry.generation));
                    haste = Haste::Flush;
                }
                Order::Sweep(swept) => {
                    self.shared.queued_sweeps.fetch_sub(1, Ordering::Relaxed);
                    if let Err(error) = self.sweep(std::mem::take(&mut batch), &swept) {
                        self.shared.give_up(&error.to_string());
                    }
                    swept_to = Some(swept.generations);
                }
                // While old content catches up, its own mark stays: only Enable moves it.
                Order::Mark(mark) if self.state == State::On => self.take_mark(mark),
                Order::Purge(Some(mark)) if self.state == State::On => {
                    self.take_mark(mark);
                    haste = Haste::Flush;
                }
                Order::Purge(_) | Order::Discard => discard |= self.state == State::Resuming,
                Order::Mark(_) => {}
                Order::Enable(mark, generations) if self.state == State::Resuming => {
                    self.take_mark(mark);
                    haste = haste.max(Haste::Mark);
                    enabled = Some(generations);
                }
                Order::Enable(..) => {}
                Order::Stop(_) => {}
            }
        }
        if discard {
            self.begin_empty();
            return;
        }
        if matches!(self.state, State::Off { .. }) || self.shared.broken.load(Ordering::SeqCst) {
            return;
        }
        #[cfg(test)]
        reach(Point::Gathered);
        match self.write(batch, haste) {
            Ok(()) => {
                for (stripe, generation) in clean {
                    self.shared.versions.mark_clean(stripe, generation);
                }
                if let Some(generations) = swept_to {
                    self.shared.versions.mark_all_clean(&generations);
                }
                if let Some(generations) = enabled {
                    self.shared.versions.mark_all_clean(&generations);
                    self.state = State::On;
                    self.shared.on.store(true, Ordering::SeqCst);
                    tracing::info!("the disk tier is in use");
                }
                self.check_size();
            }
            Err(error) => self.shared.give_up(&error.to_string()),
        }
    }

    /// Applies what came before, then removes what the ranges cover. No mark goes along: one may come behind drops that
    /// are yet to be applied.
    fn sweep(&self, before: Batch, swept: &Swept) -> Result<(), DiskError> {
        let Some(store) = self.shared.store.load_full() else {
            return Ok(());
        };
        store.apply(before)?;
        let mut ranges = swept.ranges.iter();
        ranges.try_for_each(|(prefix, ranges)| store.sweep(*prefix, ranges))
    }

    fn take_mark(&mut self, mark: Mark) {
        self.last_mark = Some(mark);
        self.mark_written = false;
    }

    fn add_put(&self, batch: &mut Batch, put: &Put) {
        let bytes = put
            .found
            .as_ref()
            .map_or(0, |document| document.body().len() as u64);
        self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let versions = &self.shared.versions;
        if self.state == State::On && versions.version(put.resource, put.stripe) == put.version {
            batch.put(put.prefix, &put.key, put.version.epoch, &put.found);
        }
    }

    /// Applies a batch. A mark goes along; alone it waits for its time, unless in haste.
    fn write(&mut self, mut batch: Batch, haste: Haste) -> Result<(), DiskError> {
        let Some(store) = self.shared.store.load_full() else {
            return Ok(());
        };
        let entries = batch.len();
        let due = haste != Haste::None
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
        if haste == Haste::Flush {
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

    /// Past the bound the tier starts again empty: sled gives space back too slowly to shrink.
    fn check_size(&mut self) {
        let Some(store) = self.shared.store.load_full() else {
            return;
        };
        match store.bytes() {
            Ok(bytes) if bytes > self.shared.config.bytes_max => {
                drop(store);
                tracing::info!(
                    "the disk tier exceeds its limit with {bytes} bytes and was emptied"
                );
                self.begin_empty();
            }
            Ok(_) => {}
            Err(error) => self.shared.give_up(&error.to_string()),
        }
    }

    /// Keeps nothing until it begins anew, at once the first time, then after a pause: what broke it, such as a full
    /// disk, may break it again.
    fn close(&mut self) {
        self.shared.on.store(false, Ordering::SeqCst);
        self.shared.store.store(None);
        self.shared.persisted.send_replace(Persisted::Nothing);
        self.last_mark = None;
        let retry_at = self.renewed_at.map(|at| at + REOPEN_PAUSE);
        self.state = State::Off { retry_at };
    }

    /// Sets the directory aside and opens an empty one.
    fn begin_empty(&mut self) {
        self.close();
        let config = &self.shared.config;
        let opened = set_aside(&config.directory)
            .map_err(DiskError::from)
            .and_then(|()| Store::open(&current(&config.directory), config.cache_bytes));
        match opened {
            Ok(store) => {
                self.use_empty(store);
                tracing::info!("the disk tier is in use, empty");
            }
            Err(error) => {
                let retry_at = Some(Instant::now() + REOPEN_PAUSE);
                self.state = State::Off { retry_at };
                tracing::warn!("the disk tier can't be opened, and is off for now: {error}");
            }
        }
    }

    /// Uses an empty directory. All invalidations so far hold for it.
    pub(super) fn use_empty(&mut self, store: Store) {
        self.shared.store.store(Some(Arc::new(store)));
        self.shared
            .versions
            .mark_all_clean(&self.shared.versions.snapshot());
        self.state = State::On;
        self.shared.on.store(true, Ordering::SeqCst);
    }

    /// A mark that comes alone is written at once, not at some later time.
    #[cfg(test)]
    pub(super) fn wait_for_no_mark(&mut self) {
        if let Some(due) = Instant::now().checked_sub(LONE_MARK_PAUSE) {
            self.mark_written_at = due;
        }
    }

    /// The last mark says that the end was orderly; then everything reaches the disk.
    fn finish(&mut self) {
        self.shared.on.store(false, Ordering::SeqCst);
        let Some(store) = self.shared.store.swap(None) else {
            return;
        };
        if self.state != State::On {
            return;
        }
        if self.shared.broken.load(Ordering::SeqCst) {
            // A drop was lost, and a mark behind it may have been taken: nothing here may be come back to.
            drop(store);
            if let Err(error) = set_aside(&self.shared.config.directory) {
                tracing::warn!("the disk tier's files can't be set aside: {error}");
            }
            return;
        }
        let mark = self.last_mark.take().map(|mark| Mark {
            clean: true,
            ..mark
        });
        let mut batch = Batch::default();
        if let Some(mark) = mark {
            batch.mark(mark);
        }
        let written = store.apply(batch).and_then(|()| store.flush());
        if let Err(error) = written {
            tracing::warn!("the disk tier's last entries may be lost: {error}");
        }
    }
}

impl Drop for Writer {
    /// A writer that panicked keeps nothing; without this the log would be kept for it for ever.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.on.store(false, Ordering::SeqCst);
            self.shared.persisted.send_replace(Persisted::Nothing);
        }
    }
}
