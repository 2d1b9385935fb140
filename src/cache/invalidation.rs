//! Applies the events of the feed to both tiers, and drops documents at an operator's request.
//!
//! The order of steps within a pass keeps answers true: raise each key's generation, remove the key from memory, queue
//! its drop for the disk, queue the mark of the pass, and at last move position and `fresh_at`. Ranges of keys take the
//! same steps, with the generations of all keys.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use crate::cache::disk_tier::DiskTier;
use crate::cache::orders::{KeyDrop, RangeSweep};
use crate::cache::recent::{Extent, InvalidationCause};
#[cfg(test)]
use crate::cache::tests::gate::{Point, reach};
use crate::cache::{Cache, lock};
use crate::clock::Boottime;
use crate::feed::ranges::Ranges;
use crate::feed::{Affected, Change, Event, Pass};
use crate::resource::{Resource, ResourceId};

impl Cache {
    /// Applies an event of the feed. Only the feed's thread calls it, with one event after the other.
    pub fn apply_event(&self, event: Event) {
        let _invalidating = lock(&self.invalidating);
        match event {
            Event::Reached(identity) => {
                self.freshness.set_identity(identity.clone());
                self.loader.follow(Some(identity));
            }
            Event::Lost { reason } => self.freshness.set_lost(reason),
            Event::Reset(position) => {
                for (resource, _) in self.enumerate() {
                    self.invalidate_all(resource, InvalidationCause::Reset);
                }
                self.freshness.set_position(position);
            }
            Event::Defined {
                resource,
                definition,
            } => {
                self.define(resource, definition);
                self.cached(resource).proof.note_defined();
            }
            Event::Distrusted { resource } => self.distrust(resource),
            Event::Unfit { resource, reason } => {
                self.distrust(resource);
                self.loader.undefine(resource);
                *lock(&self.cached(resource).reason) = reason;
                self.cached(resource).unfit.store(true, Ordering::SeqCst);
                self.cached(resource).current.store(None);
                self.cached(resource).proof.note_defined();
            }
            Event::Passed(pass) => self.apply_pass(pass),
            Event::Resumed(pass) => self.resume(pass),
            Event::NotResumed => {
                self.resumption.take();
                self.disk.iter().for_each(DiskTier::queue_discard);
            }
            Event::Measured(backlog) => self.freshness.set_backlog(backlog),
        }
    }

    /// Begins to use a definition that has been checked.
    fn define(&self, resource: ResourceId, definition: Arc<Resource>) {
        let cached = self.cached(resource);
        cached.prefix.store(definition.shape(), Ordering::SeqCst);
        let fingerprint = definition.fingerprint.as_ref();
        let fingerprint = fingerprint
            .map(|known| known.text.clone())
            .unwrap_or_default();
        let former = std::mem::replace(&mut *lock(&cached.fingerprint), fingerprint.clone());
        if !former.is_empty() && former != fingerprint {
            let now = Boottime::now();
            cached.changed_at.store(now.0, Ordering::Relaxed);
        }
        let uncached = definition.uncached.clone();
        if let Some(why) = uncached.as_ref().filter(|_| !cached.is_uncached()) {
            tracing::warn!("documents of {} are not cached: {why}", cached.name);
        }
        // Set before a load by this definition can end. Reset, further down, only when loads by the old one are void.
        cached
            .uncached
            .fetch_or(uncached.is_some(), Ordering::SeqCst);
        if definition.writable.is_ok() {
            self.loader.connections().require_writes();
        }
        self.loader.define(resource, &definition);
        cached.current.store(Some(definition));
        cached.unfit.store(false, Ordering::SeqCst);
        // Connections may have plans, types and roles in memory from between the two definitions.
        self.loader.renew_connections();
        // From here on, loads by an earlier definition are void.
        self.invalidate_all(resource, InvalidationCause::Definition);
        cached.uncached.store(uncached.is_some(), Ordering::SeqCst);
        cached.trusted.store(true, Ordering::SeqCst);
    }

    /// Ends the use of a definition that has changed.
    fn distrust(&self, resource: ResourceId) {
        let cached = self.cached(resource);
        if cached.trusted.swap(false, Ordering::SeqCst) {
            let now = Boottime::now();
            cached.distrusted_at.store(now.0, Ordering::Relaxed);
        }
        self.invalidate_all(resource, InvalidationCause::Definition);
    }

    /// Makes every entry of the resource a miss, and removes those in memory.
    fn invalidate_all(&self, resource: ResourceId, via: InvalidationCause) {
        self.recent
            .note_invalidation(resource, Extent::All, None, via);
        self.versions.renew_epoch(resource);
        self.memory.remove_overtaken(resource, &self.versions);
        // Later loads must not use plans that were made before.
        self.loader.renew_connections();
    }

    /// Applies a pass: see the module.
    pub(super) fn apply_pass(&self, mut pass: Pass) {
        let (mut swept, mut keys, mut overtaken) = (Vec::new(), Vec::new(), Vec::new());
        let may_sweep = self.disk.as_ref().is_none_or(DiskTier::may_sweep);
        for Change { resource, affected } in std::mem::take(&mut pass.changes) {
            let via = InvalidationCause::from(pass.cause);
            self.count_invalidation(resource, via);
            let key = match &affected {
                Affected::Key(key) => Some(key.as_str()),
                _ => None,
            };
            let extent = Extent::from(&affected);
            self.recent.note_invalidation(resource, extent, key, via);
            match affected {
                Affected::Key(key) => keys.push((resource, key)),
                Affected::Ranges(ranges) if may_sweep => swept.push((resource, ranges)),
                Affected::Absences => {
                    self.versions.renew_absences(resource);
                    overtaken.push(resource);
                }
                // Ranges, too, if too many sweeps wait for the disk.
                Affected::Ranges(_) | Affected::All => {
                    let definition = self.cached(resource).current.load();
                    if definition
                        .as_ref()
                        .is_some_and(|one| !one.type_tables.is_empty())
                    {
                        // An extension may keep what it has read of its tables for a session.
                        self.loader.renew_connections();
                    }
                    self.versions.renew_epoch(resource);
                    overtaken.push(resource);
                }
            }
        }
        // A sweep makes all stripes clean up to the generations that it raised. So no key of this pass may be raised
        // before it: the drop of that key would come behind the sweep.
        if !swept.is_empty() {
            self.sweep(swept);
        }
        let keys = keys.into_iter();
        let drops: Vec<KeyDrop> = keys
            .map(|(resource, key)| self.invalidate(resource, &Arc::from(key)))
            .collect();
        if let Some(disk) = self.disk.as_ref().filter(|_| !drops.is_empty()) {
            disk.queue_drops(drops);
        }
        #[cfg(test)]
        reach(Point::QueueMark);
        if let Some(mark) = self.mark(&pass.position) {
            self.disk
                .iter()
                .for_each(|disk| disk.queue_mark(mark.clone()));
        }
        #[cfg(test)]
        reach(Point::Complete);
        let lag_from = pass.lag_from;
        self.freshness.advance(pass);
        if let Some(lag_from) = lag_from {
            let lag = Boottime::now().since(lag_from);
            self.metrics.invalidation_lag.observe(lag.as_secs_f64());
        }
        // Their entries are misses already. To remove them can take a while.
        for resource in overtaken {
            self.memory.remove_overtaken(resource, &self.versions);
        }
    }

    /// Raises all generations, because loads of any keys in the ranges may be under way, removes the keys of the ranges
    /// from memory, and queues a sweep for the disk.
    fn sweep(&self, swept: Vec<(ResourceId, Arc<Ranges>)>) {
        let generations = self.versions.raise_all();
        for (resource, ranges) in &swept {
            self.memory.sweep(*resource, |key| {
                std::str::from_utf8(key).is_ok_and(|key| ranges.contains(key))
            });
        }
        if let Some(disk) = &self.disk {
            let prefix = |resource: ResourceId| self.cached(resource).prefix.load(Ordering::SeqCst);
            let ranges = swept.into_iter();
            disk.queue_sweep(RangeSweep {
                ranges: ranges
                    .map(|(resource, ranges)| (prefix(resource), ranges))
                    .collect(),
                generations,
            });
        }
    }

    /// Raises the key's generation and removes it from memory. Returns the drop, for the caller to queue.
    fn invalidate(&self, resource: ResourceId, key: &Arc<str>) -> KeyDrop {
        let (stripe, generation) = self.memory.invalidate(resource, key, &self.versions);
        KeyDrop {
            prefix: self.cached(resource).prefix.load(Ordering::SeqCst),
            key: Arc::clone(key),
            stripe,
            generation,
        }
    }

    /// Drops one document from all tiers without an event of the feed; `via` is the reason.
    ///
    /// The receiver ends when the disk tier can't return the document again; `None` without a disk tier.
    pub(super) fn drop_document(
        &self,
        resource: ResourceId,
        key: &Arc<str>,
        via: InvalidationCause,
    ) -> Option<oneshot::Receiver<()>> {
        self.count_invalidation(resource, via);
        self.recent
            .note_invalidation(resource, Extent::Key, Some(key), via);
        let _invalidating = lock(&self.invalidating);
        let drop = self.invalidate(resource, key);
        let disk = self.disk.as_ref()?;
        Some(disk.queue_urgent_drop(drop))
    }

    fn count_invalidation(&self, resource: ResourceId, via: InvalidationCause) {
        self.metrics
            .invalidations
            .with_label_values(&[self.cached(resource).name.as_str(), via.as_str()])
            .inc();
    }

    /// Drops one document, or with `None` every document of the resource, from all tiers.
    ///
    /// The receiver ends when no restart can bring them back from disk; `None` without a disk tier.
    pub fn purge(&self, resource: ResourceId, key: Option<&str>) -> Option<oneshot::Receiver<()>> {
        match key {
            Some(key) => self.drop_document(resource, &Arc::from(key), InvalidationCause::Purge),
            None => {
                self.count_invalidation(resource, InvalidationCause::Purge);
                let _invalidating = lock(&self.invalidating);
                self.invalidate_all(resource, InvalidationCause::Purge);
                let position = self.freshness.position();
                let mark = position.and_then(|position| self.mark(&position));
                let disk = self.disk.as_ref()?;
                Some(disk.queue_purge(mark))
            }
        }
    }
}
