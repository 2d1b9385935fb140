//! The batching task of the disk tier, and the thread that reads from it.
//!
//! One FIFO queue carries everything that happens to the tier, so that order alone keeps it true: a document that was
//! queued before its invalidation is dropped after it, and a mark is written with or after all drops that it implies.
//! Orders are gathered up to `batch_entries` or `linger` and applied in one atomic batch; then the stripes that were
//! dropped are called clean, and only then does the tier answer for them again.
//!
//! On any error the tier turns off, its directory is set aside, and an empty one is opened. Requests do not notice.
//! sled blocks, so it is called on these two threads only.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::cache::disk::{Batch, DiskConfig, DiskError, Entry, Mark, Store};
use crate::cache::document::Found;
use crate::cache::generation::{Version, Versions};
use crate::feed::position::Persisted;
use crate::metrics::Metrics;

/// Orders that may wait. The upper half is kept for drops and marks, which must not be lost.
const ORDERS_MAX: usize = 20_000;
const ORDERS_RESERVED: usize = 10_000;
/// Document bytes that may wait for the writer.
const QUEUED_BYTES_MAX: u64 = 64 << 20;
/// Lookups that may wait.
const LOOKUPS_MAX: usize = 4_096;
/// A lookup that takes longer is a miss.
const LOOKUP_TIMEOUT: Duration = Duration::from_millis(20);
/// Pause before the next attempt to open a directory after one failed.
const REOPEN_PAUSE: Duration = Duration::from_secs(5);
/// The writer looks around at least this often.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// A mark alone is written at most this often.
const LONE_MARK_PAUSE: Duration = Duration::from_secs(10);

/// An entry that has to go.
pub(super) struct Dropped {
    pub(super) prefix: u64,
    pub(super) key: Arc<str>,
    pub(super) stripe: usize,
    pub(super) generation: u64,
}

/// A document on its way to disk.
pub(super) struct Put {
    pub(super) resource: usize,
    pub(super) prefix: u64,
    pub(super) stripe: usize,
    pub(super) version: Version,
    pub(super) key: Arc<str>,
    pub(super) found: Found,
}

enum Order {
    Put(Put),
    Drop(Vec<Dropped>),
    Mark(Mark),
    /// What was found on disk has caught up with `Mark`; these were the generations then.
    Enable(Mark, Vec<u64>),
    /// What was found on disk is not to be trusted.
    Discard,
    Stop(oneshot::Sender<()>),
}

struct Lookup {
    prefix: u64,
    key: Arc<str>,
    epoch: u64,
    reply: oneshot::Sender<Option<Entry>>,
}

struct Shared {
    config: DiskConfig,
    versions: Arc<Versions>,
    metrics: Arc<Metrics>,
    /// Lookups are answered.
    on: AtomicBool,
    /// An error was seen, or a drop was lost: the writer has to begin anew.
    broken: AtomicBool,
    store: ArcSwapOption<Store>,
    queued_bytes: AtomicU64,
    persisted: watch::Sender<Persisted>,
}

/// The disk tier.
pub(super) struct Disk {
    shared: Arc<Shared>,
    orders: mpsc::Sender<Order>,
    lookups: mpsc::Sender<Lookup>,
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
        let (lookups, lookup_receiver) = mpsc::channel(LOOKUPS_MAX);
        let shared = Arc::new(Shared {
            config,
            versions,
            metrics,
            on: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            store: ArcSwapOption::empty(),
            queued_bytes: AtomicU64::new(0),
            persisted: watch::channel(Persisted::Unknown).0,
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()?;
        let writer = Writer {
            shared: Arc::clone(&shared),
            orders: order_receiver,
            state: State::Off { retry_at: None },
            last_mark: None,
            mark_written: false,
            mark_written_at: Instant::now(),
        };
        std::thread::Builder::new()
            .name("larder-disk".into())
            .spawn(move || runtime.block_on(writer.run(opened)))?;
        let reader = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("larder-disk-read".into())
            .spawn(move || answer_lookups(&reader, lookup_receiver))?;
        Ok(Self {
            shared,
            orders,
            lookups,
        })
    }

    /// Whether lookups are answered.
    pub(super) fn is_on(&self) -> bool {
        self.shared.on.load(Ordering::SeqCst)
    }

    /// The position up to which everything is on disk.
    pub(super) fn persisted(&self) -> watch::Receiver<Persisted> {
        self.shared.persisted.subscribe()
    }

    /// The entry of the key that bears `epoch`. Waits at most 20 ms.
    pub(super) async fn get(&self, prefix: u64, key: &Arc<str>, epoch: u64) -> Option<Entry> {
        let (reply, answer) = oneshot::channel();
        let lookup = Lookup {
            prefix,
            key: Arc::clone(key),
            epoch,
            reply,
        };
        self.lookups.try_send(lookup).ok()?;
        tokio::time::timeout(LOOKUP_TIMEOUT, answer)
            .await
            .ok()?
            .ok()?
    }

    /// Queues a document; it is left out where too much waits already. Returns whether it was queued.
    pub(super) fn put(&self, put: Put) -> bool {
        let bytes = put
            .found
            .as_ref()
            .map_or(0, |document| document.body.len() as u64);
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

    /// Queues the mark of a pass, behind its drops.
    pub(super) fn mark(&self, mark: Mark) {
        // A mark that is lost only makes the next start catch up on more.
        if self.orders.capacity() > ORDERS_RESERVED / 2 {
            self.must_queue(Order::Mark(mark));
        }
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

    /// Bytes and entries on disk. Reads the file system: not on an async worker.
    pub(super) fn size(&self) -> (u64, u64) {
        match &*self.shared.store.load() {
            Some(store) => (store.bytes().unwrap_or(0), store.entries()),
            None => (0, 0),
        }
    }

    fn must_queue(&self, order: Order) {
        if self.orders.try_send(order).is_err() {
            self.shared.give_up("too many changes wait for it");
        }
    }
}

impl Shared {
    fn give_up(&self, why: &str) {
        self.on.store(false, Ordering::SeqCst);
        if !self.broken.swap(true, Ordering::SeqCst) {
            tracing::warn!("the disk tier is off: {why}");
        }
    }
}

fn answer_lookups(shared: &Shared, mut lookups: mpsc::Receiver<Lookup>) {
    while let Some(lookup) = lookups.blocking_recv() {
        // Loaded for each lookup: one that was asked for after a swap must not see what was before it.
        let found = match &*shared.store.load() {
            Some(store) if shared.on.load(Ordering::SeqCst) => store
                .get(lookup.prefix, &lookup.key, lookup.epoch)
                .unwrap_or_else(|error| {
                    shared.give_up(&error.to_string());
                    None
                }),
            _ => None,
        };
        // Nobody waits any more: the lookup took too long.
        let _gone = lookup.reply.send(found);
    }
}

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

struct Writer {
    shared: Arc<Shared>,
    orders: mpsc::Receiver<Order>,
    state: State,
    /// The newest mark that holds for the content, and whether it is on disk.
    last_mark: Option<Mark>,
    mark_written: bool,
    mark_written_at: Instant,
}

impl Writer {
    async fn run(mut self, opened: impl FnOnce(Mark)) {
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
            let retry_due = match self.state {
                State::Off { retry_at } => retry_at.is_none_or(|at| Instant::now() >= at),
                _ => false,
            };
            if self.shared.broken.swap(false, Ordering::SeqCst) || retry_due {
                self.begin_empty();
            }
        }
    }

    /// Opens what an earlier run left. Whatever can't be used is set aside.
    fn open(&mut self, opened: impl FnOnce(Mark)) {
        let config = &self.shared.config;
        remove_set_aside(&config.directory);
        let found = Store::open(&current(&config.directory), config.cache_bytes)
            .and_then(|store| Ok((store.mark()?, store)));
        match found {
            Ok((Some(mark), store)) => {
                self.shared.store.store(Some(Arc::new(store)));
                self.state = State::Resuming;
                // Until it has been caught up with, the log must be kept for it.
                self.shared
                    .persisted
                    .send_replace(Persisted::At(mark.position()));
                opened(mark);
            }
            Ok((None, store)) => {
                drop(store);
                self.begin_empty();
            }
            Err(error) => {
                tracing::warn!("the disk tier's files are not usable and start anew: {error}");
                self.begin_empty();
            }
        }
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
                    let urgent = matches!(order, Order::Enable(..) | Order::Discard);
                    entries += match &order {
                        Order::Drop(dropped) => dropped.len(),
                        _ => 1,
                    };
                    orders.push(order);
                    if urgent {
                        break;
                    }
                }
            }
        }
        (orders, None)
    }

    fn process(&mut self, orders: Vec<Order>) {
        let mut batch = Batch::default();
        let mut clean: Vec<(usize, u64)> = Vec::new();
        let mut enabled: Option<Vec<u64>> = None;
        let mut discard = false;
        for order in orders {
            match order {
                Order::Put(put) => self.add_put(&mut batch, &put),
                Order::Drop(dropped) => {
                    for entry in dropped {
                        batch.remove(entry.prefix, &entry.key);
                        clean.push((entry.stripe, entry.generation));
                    }
                }
                // While old content catches up, its own mark stays: only Enable moves it.
                Order::Mark(mark) if self.state == State::On => self.take_mark(mark),
                Order::Mark(_) => {}
                Order::Enable(mark, generations) if self.state == State::Resuming => {
                    self.take_mark(mark);
                    enabled = Some(generations);
                }
                Order::Enable(..) => {}
                Order::Discard => discard = self.state == State::Resuming,
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
        match self.write(batch, enabled.is_some()) {
            Ok(()) => {
                for (stripe, generation) in clean {
                    self.shared.versions.mark_clean(stripe, generation);
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

    fn take_mark(&mut self, mark: Mark) {
        self.last_mark = Some(mark);
        self.mark_written = false;
    }

    fn add_put(&self, batch: &mut Batch, put: &Put) {
        let bytes = put
            .found
            .as_ref()
            .map_or(0, |document| document.body.len() as u64);
        self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let versions = &self.shared.versions;
        if self.state == State::On && versions.version(put.resource, put.stripe) == put.version {
            batch.put(put.prefix, &put.key, put.version.epoch, &put.found);
        }
    }

    /// Applies a batch. A mark goes along; alone it waits for its time, unless `now`.
    fn write(&mut self, mut batch: Batch, now: bool) -> Result<(), DiskError> {
        let Some(store) = self.shared.store.load_full() else {
            return Ok(());
        };
        let entries = batch.len();
        let due = now || entries > 0 || self.mark_written_at.elapsed() >= LONE_MARK_PAUSE;
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
                    "the disk tier holds {bytes} bytes, above its bound, and starts again empty"
                );
                self.begin_empty();
            }
            Ok(_) => {}
            Err(error) => self.shared.give_up(&error.to_string()),
        }
    }

    /// Sets the directory aside and opens an empty one. All invalidations so far hold for it.
    fn begin_empty(&mut self) {
        self.shared.on.store(false, Ordering::SeqCst);
        self.shared.store.store(None);
        self.shared.persisted.send_replace(Persisted::Nothing);
        self.last_mark = None;
        let config = &self.shared.config;
        let opened = set_aside(&config.directory)
            .map_err(DiskError::from)
            .and_then(|()| Store::open(&current(&config.directory), config.cache_bytes));
        match opened {
            Ok(store) => {
                self.shared.store.store(Some(Arc::new(store)));
                self.shared
                    .versions
                    .mark_all_clean(&self.shared.versions.snapshot());
                self.state = State::On;
                self.shared.on.store(true, Ordering::SeqCst);
                tracing::info!("the disk tier is in use, empty");
            }
            Err(error) => {
                let retry_at = Some(Instant::now() + REOPEN_PAUSE);
                self.state = State::Off { retry_at };
                tracing::warn!("the disk tier can't be opened and stays off for now: {error}");
            }
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

fn current(directory: &Path) -> PathBuf {
    directory.join("current")
}

/// Moves the current files out of the way and removes what was set aside.
fn set_aside(directory: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let current = current(directory);
    if current.symlink_metadata().is_ok() {
        std::fs::rename(
            &current,
            directory.join(format!("aside-{}", uuid::Uuid::new_v4())),
        )?;
    }
    remove_set_aside(directory);
    Ok(())
}

fn remove_set_aside(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with("aside-")
            && let Err(error) = std::fs::remove_dir_all(entry.path())
                .or_else(|_| std::fs::remove_file(entry.path()))
        {
            tracing::warn!("{} can't be removed: {error}", entry.path().display());
        }
    }
}
