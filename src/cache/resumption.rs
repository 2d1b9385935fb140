//! What one run of larder leaves on disk for the next, and what the next takes over.
//!
//! A [`Mark`] on disk names the database and the position that the disk tier's content reflects, and the fingerprints
//! and epochs of the resources.
//!
//! - *Nothing before its pass.* Content that was found answers no lookup until the feed has read a pass from the mark's
//!   position, and the drops of that pass are queued before the order that turns the tier on.
//! - *Once.* The mark is taken by the pass that resumes from it, or with it the content is discarded.
//! - *What was followed only.* A resource's epochs are taken over only if it is kept, has the same shape and
//!   fingerprint, and shows no table with row security. The entries of all others are misses for ever.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, Weak};

use tokio::sync::watch;

use crate::cache::disk::boot_id;
use crate::cache::disk::layout::{Mark, ResourceMark};
use crate::cache::queue::DiskTier;
#[cfg(test)]
use crate::cache::tests::gate::{Point, reach};
use crate::cache::{Cache, lock};
use crate::feed::Pass;
use crate::feed::position::Position;
use crate::source::session::Identity;

/// The mark of an earlier run, until the feed has caught up with it.
pub(super) struct Resumption {
    found: Mutex<Option<Mark>>,
    /// The database and the position of `found`, for the feed.
    offered: watch::Sender<Option<(Identity, Position)>>,
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

    /// Offers the mark to the feed, if it can be trusted after this boot of the machine. Returns whether it can.
    fn offer(&self, mark: Mark) -> bool {
        // Where the kernel does not name its boots, only an orderly end is trusted.
        let whole = mark.clean || (!self.boot.is_empty() && mark.boot == self.boot);
        let Some(identity) = mark.identity().filter(|_| whole) else {
            return false;
        };
        let position = mark.position();
        *lock(&self.found) = Some(mark);
        self.offered.send_replace(Some((identity, position)));
        true
    }

    /// The mark, for the one pass that may resume from it.
    pub(super) fn take(&self) -> Option<Mark> {
        lock(&self.found).take()
    }

    #[cfg(test)]
    pub(super) fn found(&self) -> Option<Mark> {
        lock(&self.found).clone()
    }
}

impl Cache {
    /// What an earlier run left on disk and the feed may catch up with.
    pub fn resumable(&self) -> watch::Receiver<Option<(Identity, Position)>> {
        self.resumption.offered()
    }

    /// Content from an earlier run has been caught up with: what bears the right shape and fingerprint is used.
    pub(super) fn resume(&self, pass: Pass) {
        let Some(found) = self.resumption.take() else {
            return self.apply(pass);
        };
        #[cfg(test)]
        reach(Point::TakeEpoch);
        for (resource, cached) in self.numbered() {
            let prefix = cached.prefix.load(Ordering::SeqCst);
            let fingerprint = lock(&cached.fingerprint).clone();
            let trusted = found
                .resources
                .iter()
                .find(|mark| mark.prefix == prefix && mark.fingerprint == fingerprint);
            // What is not kept is not followed either: the mark behind this pass must not vouch for it. Of row security
            // it says nothing: larder may have stopped before it noticed that its role saw other rows for a moment.
            let current = cached.current.load();
            let guarded = current
                .as_ref()
                .is_some_and(|resource| resource.row_security.is_some());
            if let Some(mark) = trusted.filter(|_| cached.is_kept() && !guarded) {
                self.versions.set_epoch(resource, mark.epoch());
            }
        }
        let position = pass.position.clone();
        self.apply(pass);
        #[cfg(test)]
        reach(Point::QueueEnable);
        if let (Some(disk), Some(mark)) = (&self.disk, self.mark(&position)) {
            disk.queue_enable(mark);
        }
    }

    /// The mark of `position`, for the next run; `None` without a disk tier, and before the feed has found a database.
    pub(super) fn mark(&self, position: &Position) -> Option<Mark> {
        self.disk.as_ref()?;
        let identity = self.freshness.feed().identity.clone()?;
        let resources = self.numbered().map(|(resource, cached)| {
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

/// Waits for the mark found on disk and offers it to the feed.
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
        cache.disk.iter().for_each(DiskTier::queue_discard);
    }
}
