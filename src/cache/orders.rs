//! What waits for the disk tier's writer, and the state that the parts of the disk tier share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;
use tokio::sync::{oneshot, watch};

use crate::cache::disk::layout::Mark;
use crate::cache::disk::{DiskConfig, Store};
use crate::cache::document::Found;
use crate::cache::generation::{Stripe, Version, Versions};
use crate::feed::position::Persisted;
use crate::feed::ranges::Ranges;
use crate::metrics::Metrics;
use crate::resource::ResourceId;

/// The removal of one key's entry.
pub(super) struct KeyDrop {
    pub(super) prefix: u64,
    pub(super) key: Arc<str>,
    pub(super) stripe: Stripe,
    pub(super) generation: u64,
}

/// The writing of one entry.
pub(super) struct Put {
    pub(super) resource: ResourceId,
    pub(super) prefix: u64,
    pub(super) stripe: Stripe,
    pub(super) version: Version,
    pub(super) key: Arc<str>,
    pub(super) found: Found,
}

impl Put {
    /// What it counts for in [`DiskState::queued_bytes`].
    pub(super) fn body_bytes(&self) -> u64 {
        let document = self.found.as_ref();
        document.map_or(0, |document| document.body().len() as u64)
    }
}

/// The removal of all entries in ranges of keys.
pub(super) struct RangeSweep {
    /// Each with the prefix of its resource.
    pub(super) ranges: Vec<(u64, Arc<Ranges>)>,
    /// Of all stripes, after they were raised for the sweep.
    pub(super) generations: Vec<u64>,
}

/// What the writer is to do.
pub(super) enum DiskOrder {
    Put(Put),
    Drop(Vec<KeyDrop>),
    /// Like [`DiskOrder::Drop`], but flushed at once: the change log does not repeat a purge after a crash.
    /// The sender is dropped when the entry can't be read again, also after a crash.
    UrgentDrop(KeyDrop, oneshot::Sender<()>),
    Sweep(RangeSweep),
    Mark(Mark),
    /// A resource was purged. The mark, if there is a position, has to be on disk at once, because only its epochs tell
    /// purged entries from others. Content of an earlier run that has not been caught up with is discarded, because its
    /// own mark still has the epochs from before the purge. The sender is as that of `UrgentDrop`.
    Purge(Option<Mark>, oneshot::Sender<()>),
    /// The content of an earlier run has been caught up with, as far as this mark says, at these generations.
    Enable(Mark, Vec<u64>),
    /// The content of an earlier run can't be used.
    Discard,
    Stop(oneshot::Sender<()>),
}

/// What the handle of the disk tier, its writer and its reading thread share.
pub(super) struct DiskState {
    pub(super) config: DiskConfig,
    pub(super) versions: Arc<Versions>,
    pub(super) metrics: Arc<Metrics>,
    /// Lookups are answered and documents are taken in.
    pub(super) in_use: AtomicBool,
    /// An error occurred, or a drop could not be queued: the writer has to begin with an empty directory.
    pub(super) has_failed: AtomicBool,
    /// The open files.
    pub(super) store: ArcSwapOption<Store>,
    /// Document bytes in the queue.
    pub(super) queued_bytes: AtomicU64,
    pub(super) queued_sweeps: AtomicUsize,
    pub(super) persisted: watch::Sender<Persisted>,
}

impl DiskState {
    pub(super) fn new(config: DiskConfig, versions: Arc<Versions>, metrics: Arc<Metrics>) -> Self {
        Self {
            config,
            versions,
            metrics,
            in_use: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            store: ArcSwapOption::empty(),
            queued_bytes: AtomicU64::new(0),
            queued_sweeps: AtomicUsize::new(0),
            persisted: watch::channel(Persisted::Unknown).0,
        }
    }

    /// Turns the tier off. The writer then replaces its directory by an empty one.
    pub(super) fn turn_off(&self, reason: &str) {
        self.in_use.store(false, Ordering::SeqCst);
        if !self.has_failed.swap(true, Ordering::SeqCst) {
            self.metrics.disk_errors.inc();
            tracing::warn!("the disk tier is off: {reason}");
        }
    }
}
