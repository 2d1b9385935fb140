//! What the feed finds, applied to both tiers. The feed's thread alone calls this, one event after the other.
//!
//! The order within a pass is what keeps answers true: each key's generation is raised, then the key is dropped from
//! memory, then its drop is queued on the way to disk, then the pass's mark; position and `fresh_at` come last. Ranges
//! of keys go the same way, with the generations of all keys.

use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::Ordering;

use tokio::sync::watch;

use crate::cache::disk::layout::{Mark, ResourceMark};
use crate::cache::queue::{Disk, Dropped, Swept};
#[cfg(test)]
use crate::cache::replay::{Point, reach};
use crate::cache::{Cache, lock};
use crate::clock::Boottime;
use crate::feed::backlog::Backlog;
use crate::feed::position::Position;
use crate::feed::ranges::Ranges;
use crate::feed::{Change, Event, Pass, What};
use crate::resource::{Resource, ResourceId};
use crate::source::session::Identity;
use crate::source::token::Token;

/// What the feed has told of the database.
#[derive(Default)]
pub(super) struct Followed {
    /// Why the feed can't follow, since its last pass.
    pub(super) lost: Option<String>,
    pub(super) identity: Option<Identity>,
    pub(super) position: Option<Position>,
    /// The start of the pass that led to the position.
    pub(super) passed_at: Option<Boottime>,
    /// How long the change log was at the last look.
    pub(super) backlog: Option<Backlog>,
}

impl Followed {
    /// Another life of the database counts other transactions: no position of an earlier one says anything of them.
    fn reach(&mut self, identity: Identity) {
        let same = self.identity.as_ref();
        if same.is_none_or(|same| !same.is_same_history(&identity)) {
            self.position = None;
        }
        self.identity = Some(identity);
    }

    /// Whether all that these transactions did has been applied; `None` if that may yet come. Those of another life of
    /// the database can't be told.
    pub(super) fn cover(&self, tokens: &[Token]) -> Option<bool> {
        let identity = self.identity.as_ref()?;
        if tokens.iter().any(|token| token.nonce != identity.nonce) {
            return Some(false);
        }
        let position = self.position.as_ref()?;
        let covered = tokens.iter().all(|token| position.covers(token.xid));
        covered.then_some(true)
    }
}

impl Cache {
    /// Takes in what the feed has found. Called by the feed's thread alone, one event after the other.
    pub fn follow(&self, event: Event) {
        let _order = lock(&self.invalidating);
        match event {
            Event::Reached(identity) => {
                let reached = identity.clone();
                self.followed
                    .send_modify(|followed| followed.reach(reached));
                self.loader.follow(Some(identity));
            }
            Event::Lost { reason } => self
                .followed
                .send_modify(|followed| followed.lost = Some(reason)),
            Event::Restarted(position) => {
                for (resource, _) in self.numbered() {
                    self.overtake_all(resource);
                }
                self.followed
                    .send_modify(|followed| followed.position = Some(position));
            }
            Event::Defined {
                resource,
                definition,
                fingerprint,
            } => {
                self.define(resource, definition, fingerprint);
            }
            Event::Distrusted { resource } => self.distrust(resource),
            Event::Unfit { resource, reason } => {
                self.distrust(resource);
                *lock(&self.cached(resource).reason) = reason;
                self.cached(resource).unfit.store(true, Ordering::SeqCst);
                self.cached(resource).current.store(None);
            }
            Event::Passed(pass) => self.apply(pass),
            Event::Resumed(pass) => self.resume(pass),
            Event::NotResumed => {
                lock(&self.resumable).take();
                self.disk.iter().for_each(Disk::discard);
            }
            Event::Measured(backlog) => {
                // Whoever waits for a position need not wake for it.
                self.followed.send_if_modified(|followed| {
                    followed.backlog = Some(backlog);
                    false
                });
            }
        }
    }

    fn define(&self, resource: ResourceId, definition: Arc<Resource>, fingerprint: String) {
        let cached = self.cached(resource);
        cached.prefix.store(definition.shape(), Ordering::SeqCst);
        *lock(&cached.fingerprint) = fingerprint;
        let uncached = definition.uncached.clone();
        if let Some(why) = uncached.as_ref().filter(|_| !cached.is_uncached()) {
            tracing::warn!("documents of {} are not cached: {why}", cached.name);
        }
        // Before loads under the new epoch end; the end of it only when those under the old one are void.
        cached
            .uncached
            .fetch_or(uncached.is_some(), Ordering::SeqCst);
        cached.current.store(Some(definition));
        cached.unfit.store(false, Ordering::SeqCst);
        // Server processes may have planned, or remembered types and roles, by what stood between two definitions.
        self.loader.renew();
        // Loads by an earlier definition are void from here on.
        self.overtake_all(resource);
        cached.uncached.store(uncached.is_some(), Ordering::SeqCst);
        cached.trusted.store(true, Ordering::SeqCst);
    }

    fn distrust(&self, resource: ResourceId) {
        self.cached(resource).trusted.store(false, Ordering::SeqCst);
        self.overtake_all(resource);
    }

    /// Makes every entry of the resource a miss, and gives the space of those in memory back.
    fn overtake_all(&self, resource: ResourceId) {
        self.versions.renew_epoch(resource);
        self.memory.sweep_overtaken(resource, &self.versions);
        // Whoever is asked from here on must not answer by what was planned before.
        self.loader.renew();
    }

    fn apply(&self, pass: Pass) {
        let (mut swept, mut keys, mut overtaken) = (Vec::new(), Vec::new(), Vec::new());
        let may_sweep = self.disk.as_ref().is_none_or(Disk::may_sweep);
        for Change { resource, what } in pass.changes {
            self.count_invalidation(resource, pass.via.as_str());
            match what {
                What::Key(key) => keys.push((resource, key)),
                What::Ranges(ranges) if may_sweep => swept.push((resource, ranges)),
                What::Absences => {
                    self.versions.renew_absences(resource);
                    overtaken.push(resource);
                }
                // Ranges, too, where the disk does not keep up.
                What::Ranges(_) | What::All => {
                    self.versions.renew_epoch(resource);
                    overtaken.push(resource);
                }
            }
        }
        // A sweep vouches for the disk up to all generations: no drop may be missing that raised one of them.
        if !swept.is_empty() {
            self.sweep(swept);
        }
        let keys = keys.into_iter();
        let dropped = keys
            .map(|(resource, key)| self.invalidate(resource, &Arc::from(key)))
            .collect();
        self.queue_drops(dropped);
        #[cfg(test)]
        reach(Point::QueueMark);
        if let Some(mark) = self.mark(&pass.position) {
            self.disk.iter().for_each(|disk| disk.mark(mark.clone()));
        }
        #[cfg(test)]
        reach(Point::Complete);
        self.followed.send_modify(|followed| {
            followed.position = Some(pass.position);
            followed.passed_at = Some(pass.began_at);
            followed.lost = None;
        });
        self.fresh_at.store(pass.fresh_at.0, Ordering::SeqCst);
        if let Some(lag_from) = pass.lag_from {
            let lag = Boottime::now().since(lag_from);
            self.metrics.invalidation_lag.observe(lag.as_secs_f64());
        }
        // They are misses already.
        for resource in overtaken {
            self.memory.sweep_overtaken(resource, &self.versions);
        }
    }

    /// Raises all generations, since nobody knows which keys of the ranges are there, takes those out of memory, and
    /// queues the same for the disk.
    fn sweep(&self, swept: Vec<(ResourceId, Arc<Ranges>)>) {
        let generations = self.versions.raise_all();
        for (resource, ranges) in &swept {
            self.memory.sweep(*resource, |key| {
                std::str::from_utf8(key).is_ok_and(|key| ranges.cover(key))
            });
        }
        if let Some(disk) = &self.disk {
            let prefix = |resource: ResourceId| self.cached(resource).prefix.load(Ordering::SeqCst);
            let ranges = swept.into_iter();
            disk.sweep(Swept {
                ranges: ranges
                    .map(|(resource, ranges)| (prefix(resource), ranges))
                    .collect(),
                generations,
            });
        }
    }

    /// Raises the key's generation, then takes it out of memory; the disk's drop is for the caller to queue.
    fn invalidate(&self, resource: ResourceId, key: &Arc<str>) -> Dropped {
        let (stripe, generation) = self.memory.overtake(resource, key, &self.versions);
        Dropped {
            prefix: self.cached(resource).prefix.load(Ordering::SeqCst),
            key: Arc::clone(key),
            stripe,
            generation,
        }
    }

    fn queue_drops(&self, dropped: Vec<Dropped>) {
        if let Some(disk) = self.disk.as_ref().filter(|_| !dropped.is_empty()) {
            disk.invalidate(dropped);
        }
    }

    /// Content from an earlier run has been caught up with: what bears the right shape and fingerprint is used.
    fn resume(&self, pass: Pass) {
        let Some(found) = lock(&self.resumable).take() else {
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
            let guarded = current.as_ref().is_some_and(|resource| resource.guarded);
            if let Some(mark) = trusted.filter(|_| cached.is_kept() && !guarded) {
                self.versions.set_epoch(resource, mark.epoch());
            }
        }
        let position = pass.position.clone();
        self.apply(pass);
        #[cfg(test)]
        reach(Point::QueueEnable);
        if let (Some(disk), Some(mark)) = (&self.disk, self.mark(&position)) {
            disk.enable(mark);
        }
    }

    fn mark(&self, position: &Position) -> Option<Mark> {
        self.disk.as_ref()?;
        let identity = self.followed.borrow().identity.clone()?;
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
            boot: self.boot.clone(),
            clean: false,
        })
    }

    /// Drops one document from all tiers, though no change of it has come; `via` says why.
    pub(super) fn drop_document(&self, resource: ResourceId, key: &Arc<str>, via: &str) {
        self.count_invalidation(resource, via);
        let _order = lock(&self.invalidating);
        let dropped = self.invalidate(resource, key);
        if let Some(disk) = &self.disk {
            disk.drop_at_once(dropped);
        }
    }

    fn count_invalidation(&self, resource: ResourceId, via: &str) {
        self.metrics
            .invalidations
            .with_label_values(&[self.cached(resource).name.as_str(), via])
            .inc();
    }

    /// Drops one document, or with `None` every document of the resource, from all tiers.
    pub fn purge(&self, resource: ResourceId, key: Option<&str>) {
        match key {
            Some(key) => self.drop_document(resource, &Arc::from(key), "purge"),
            None => {
                self.count_invalidation(resource, "purge");
                let _order = lock(&self.invalidating);
                self.overtake_all(resource);
                let position = self.followed.borrow().position.clone();
                let mark = position.and_then(|position| self.mark(&position));
                self.disk.iter().for_each(|disk| disk.purge(mark.clone()));
            }
        }
    }
}

/// Passes the mark found on disk to the feed, if it can be trusted after this boot of the machine.
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
    // Where the kernel does not name its boots, only an orderly end is trusted.
    let whole = mark.clean || (!cache.boot.is_empty() && mark.boot == cache.boot);
    match mark.identity().filter(|_| whole) {
        Some(identity) => {
            let position = mark.position();
            *lock(&cache.resumable) = Some(mark);
            cache
                .resumable_changed
                .send_replace(Some((identity, position)));
        }
        None => cache.disk.iter().for_each(Disk::discard),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn no_earlier_life_of_the_database_covers_a_token() {
        let identity = |nonce| Identity {
            system: "1".into(),
            database: 1,
            epoch_table: 1,
            nonce,
            history: Uuid::nil(),
            server_start: String::new(),
        };
        let [first, second] = [1, 2].map(Uuid::from_u128);
        let mut followed = Followed::default();
        followed.reach(identity(first));
        followed.position = Some(Position::new("20:20:"));
        let covers = |followed: &Followed, nonce| followed.cover(&[Token { nonce, xid: 3 }]);
        followed.reach(identity(first));
        assert_eq!(covers(&followed, first), Some(true));
        followed.reach(identity(second));
        assert_eq!(covers(&followed, first), Some(false));
        assert_eq!(covers(&followed, second), None);
    }
}
