//! The use of the disk tier's content after a restart of larder.
//!
//! The content comes with a [`Mark`]: the database and the position that it reflects, and the fingerprints and epochs
//! of the resources.
//!
//! - The content answers no lookup until the feed has read a pass from the mark's position. The drops of that pass are
//!   queued before the order that makes the content usable.
//! - The mark is used for one pass, or the content is discarded.
//! - A resource's epochs are used again only if it is kept, its shape and fingerprint are the same, and none of its
//!   tables has row security. The entries of other resources stay misses for ever.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, Weak};

use tokio::sync::watch;

use crate::cache::disk::boot_id;
use crate::cache::disk::layout::{Mark, ResourceMark};
use crate::cache::disk_tier::DiskTier;
#[cfg(test)]
use crate::cache::tests::gate::{Point, reach};
use crate::cache::{Cache, lock};
use crate::feed::Pass;
use crate::feed::position::Position;
use crate::source::session::Identity;

/// The mark of an earlier run, until the feed has caught up from there.
pub(super) struct Resumption {
    found: Mutex<Option<Mark>>,
    /// The database and the position of the mark, for the feed.
    offered: watch::Sender<Option<(Identity, Position)>>,
    /// The present boot of the machine.
    boot: String,
}

impl Resumption {
    pub(super) fn new() -> Self {
        Self {
            found: Mutex::default(),
            offered: watch::channel(None).0,
            boot: boot_id(),
        }
    }

    pub(super) fn offered(&self) -> watch::Receiver<Option<(Identity, Position)>> {
        self.offered.subscribe()
    }

    /// Offers the mark to the feed. Returns false if it can't be used, because the machine may have crashed since.
    fn offer(&self, mark: Mark) -> bool {
        // If the kernel has no ID of the boot, only the mark of an orderly shutdown is used.
        let is_complete = mark.clean || (!self.boot.is_empty() && mark.boot == self.boot);
        let Some(identity) = mark.identity().filter(|_| is_complete) else {
            return false;
        };
        let position = mark.position();
        *lock(&self.found) = Some(mark);
        self.offered.send_replace(Some((identity, position)));
        true
    }

    /// Takes the mark, for the one pass that may resume from it.
    pub(super) fn take(&self) -> Option<Mark> {
        lock(&self.found).take()
    }

    #[cfg(test)]
    pub(super) fn found(&self) -> Option<Mark> {
        lock(&self.found).clone()
    }
}

impl Cache {
    /// The database and position from which the feed may resume, if an earlier run has left content on disk.
    pub fn resumable(&self) -> watch::Receiver<Option<(Identity, Position)>> {
        self.resumption.offered()
    }

    /// Applies the pass that catches up from the mark, and has the content used of resources that are still the same.
    pub(super) fn resume(&self, pass: Pass) {
        let Some(found) = self.resumption.take() else {
            return self.apply_pass(pass);
        };
        #[cfg(test)]
        reach(Point::TakeEpoch);
        for (resource, cached) in self.enumerate() {
            let prefix = cached.prefix.load(Ordering::SeqCst);
            let fingerprint = lock(&cached.fingerprint).clone();
            let same = found
                .resources
                .iter()
                .find(|mark| mark.prefix == prefix && mark.fingerprint == fingerprint);
            // A resource that is not kept is not followed, so its entries must not be used after a later restart
            // either. Neither those of tables with row security: larder may have stopped before it noticed that its
            // role saw other rows for a moment.
            let current = cached.current.load();
            let has_row_security = current
                .as_ref()
                .is_some_and(|resource| resource.row_security.is_some());
            match same.filter(|_| cached.is_kept() && !has_row_security) {
                Some(mark) => self.versions.set_epoch(resource, mark.epoch()),
                None => tracing::info!(
                    "what is on disk of {} is not used: its definition or its tables have changed, or it is not cached, \
                     or row security applies",
                    cached.name
                ),
            }
        }
        let position = pass.position.clone();
        self.apply_pass(pass);
        #[cfg(test)]
        reach(Point::QueueEnable);
        if let (Some(disk), Some(mark)) = (&self.disk, self.mark(&position)) {
            disk.queue_enable(mark);
        }
    }

    /// The mark of `position`, for the next run; `None` without a disk tier, and before the feed has reached a
    /// database.
    pub(super) fn mark(&self, position: &Position) -> Option<Mark> {
        self.disk.as_ref()?;
        let identity = self.freshness.feed().identity.clone()?;
        let resources = self.enumerate().map(|(resource, cached)| {
            let epoch = self.versions.epoch(resource);
            ResourceMark {
                prefix: cached.prefix.load(Ordering::SeqCst),
                fingerprint: lock(&cached.fingerprint).clone(),
                epoch: epoch.documents,
                absences: epoch.absences,
            }
        });
        Some(Mark {
            system: identity.system,
            database: identity.database,
            epoch_table: identity.epoch_table,
            history: identity.history.to_string(),
            nonce: identity.nonce.to_string(),
            position: position.as_str().to_owned(),
            resources: resources.collect(),
            boot: self.resumption.boot.clone(),
            clean: false,
        })
    }
}

/// Waits until the writer has found a mark on disk, and offers it to the feed.
pub(super) async fn offer_mark(cache: Weak<Cache>, mut found: watch::Receiver<Option<Mark>>) {
    let Ok(mark) = found
        .wait_for(Option::is_some)
        .await
        .map(|mark| mark.clone())
    else {
        return;
    };
    let (Some(cache), Some(mark)) = (cache.upgrade(), mark) else {
        return;
    };
    if !cache.resumption.offer(mark) {
        tracing::info!(
            "the disk tier starts empty: the machine may have crashed since it was written"
        );
        cache.disk.iter().for_each(DiskTier::queue_discard);
    }
}
