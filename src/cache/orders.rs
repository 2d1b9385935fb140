//! What waits for the disk tier's writer, and what its threads share with those who ask them.

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

/// An entry that has to go.
pub(super) struct Dropped {
    pub(super) prefix: u64,
    pub(super) key: Arc<str>,
    pub(super) stripe: Stripe,
    pub(super) generation: u64,
}

/// A document on its way to disk.
pub(super) struct Put {
    pub(super) resource: ResourceId,
    pub(super) prefix: u64,
    pub(super) stripe: Stripe,
    pub(super) version: Version,
    pub(super) key: Arc<str>,
    pub(super) found: Found,
}

/// Keys that have to go, as many as there are.
pub(super) struct Swept {
    /// Each with the prefix of its resource.
    pub(super) ranges: Vec<(u64, Arc<Ranges>)>,
    /// Of all stripes, after they were raised for it.
    pub(super) generations: Vec<u64>,
}

/// What happens to the tier, in order.
pub(super) enum Order {
    Put(Put),
    Drop(Vec<Dropped>),
    /// One document that was purged: no log would repeat that, so it has to be off the disk at once.
    DropAtOnce(Dropped),
    Sweep(Swept),
    Mark(Mark),
    /// A resource was purged, with the mark of that moment if there is a position. The mark has to be on disk at once: it
    /// alone tells the entries that were purged from others. Content from an earlier run has its own mark until it has
    /// caught up, so it is discarded.
    Purge(Option<Mark>),
    /// What was found on disk has caught up with `Mark`; these were the generations then.
    Enable(Mark, Vec<u64>),
    /// What was found on disk is not to be trusted.
    Discard,
    Stop(oneshot::Sender<()>),
}

/// What the handle, the writer and the reading thread share.
pub(super) struct Shared {
    pub(super) config: DiskConfig,
    pub(super) versions: Arc<Versions>,
    pub(super) metrics: Arc<Metrics>,
    /// Lookups are answered.
    pub(super) on: AtomicBool,
    /// An error was seen, or a drop was lost: the writer has to begin anew.
    pub(super) broken: AtomicBool,
    pub(super) store: ArcSwapOption<Store>,
    pub(super) queued_bytes: AtomicU64,
    pub(super) queued_sweeps: AtomicUsize,
    pub(super) persisted: watch::Sender<Persisted>,
}

impl Shared {
    pub(super) fn new(config: DiskConfig, versions: Arc<Versions>, metrics: Arc<Metrics>) -> Self {
        Self {
            config,
            versions,
            metrics,
            on: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            store: ArcSwapOption::empty(),
            queued_bytes: AtomicU64::new(0),
            queued_sweeps: AtomicUsize::new(0),
            persisted: watch::channel(Persisted::Unknown).0,
        }
    }

    /// Turns the tier off; the writer begins anew.
    pub(super) fn give_up(&self, why: &str) {
        self.on.store(false, Ordering::SeqCst);
        if !self.broken.swap(true, Ordering::SeqCst) {
            tracing::warn!("the disk tier is off: {why}");
        }
    }
}
