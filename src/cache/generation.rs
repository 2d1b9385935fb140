//! Generations and epochs: what tells a document that is still true from one that has been overtaken.
//!
//! Each key hashes to one of 65,536 counters, its generation, raised whenever the key is invalidated. Whoever fills
//! reads the counter before asking PostgreSQL and may install only while it stands. A resource's epoch takes the place
//! of raising all counters where every document of it is invalidated: an entry of another epoch is a miss. Remembered
//! absences have an epoch of their own, since many new rows end absences and nothing else.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;

use crate::resource::ResourceId;
use crate::sync::AtomicU64;

/// Counters: enough that two hot keys seldom share one, 1 MiB together with `clean`.
const STRIPES: usize = 65_536;

/// All keys that share a counter, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe(usize);

#[cfg(test)]
impl Stripe {
    pub(super) fn index(self) -> usize {
        self.0
    }
}

/// The epochs of a resource: what its entries bear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    pub(super) documents: u64,
    pub(super) absences: u64,
}

impl Epoch {
    /// What an entry bears that holds a document, or else an absence.
    pub(super) fn of(self, exists: bool) -> u64 {
        if exists {
            self.documents
        } else {
            self.absences
        }
    }

    /// One of equal numbers.
    #[cfg(test)]
    pub(super) fn alike(number: u64) -> Self {
        Self {
            documents: number,
            absences: number,
        }
    }

    /// One that no resource of this or another process has had.
    fn fresh() -> Self {
        Self {
            documents: fresh_number(),
            absences: fresh_number(),
        }
    }
}

/// What a key's document must still be under when it is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    pub(super) generation: u64,
    pub(super) epoch: Epoch,
}

impl Version {
    /// The epoch of the resource.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }
}

/// Generations of keys, epochs of resources, and how far the disk tier has followed the generations.
pub struct Versions {
    hasher: RandomState,
    generations: Box<[AtomicU64]>,
    clean: Box<[AtomicU64]>,
    epochs: Box<[AtomicU64]>,
    absences: Box<[AtomicU64]>,
}

impl Versions {
    /// Those of so many resources.
    pub fn new(resources: usize) -> Self {
        Self::with_stripes(resources, STRIPES)
    }

    /// The same with another power of two of counters.
    pub(super) fn with_stripes(resources: usize, stripes: usize) -> Self {
        let counters = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        let versions = Self {
            hasher: RandomState::new(),
            generations: counters(stripes),
            clean: counters(stripes),
            epochs: counters(resources),
            absences: counters(resources),
        };
        for resource in ResourceId::in_order().take(resources) {
            versions.renew_epoch(resource);
        }
        versions
    }

    /// The counter that a key shares with others.
    pub fn stripe(&self, resource: ResourceId, key: &str) -> Stripe {
        let hash = self.hasher.hash_one((resource, key));
        // The cast loses upper bits only, which the mask leaves out.
        Stripe(hash as usize & (self.generations.len() - 1))
    }

    fn stripes(&self) -> impl Iterator<Item = Stripe> {
        (0..self.generations.len()).map(Stripe)
    }

    /// The version of what is read from now on.
    pub fn version(&self, resource: ResourceId, stripe: Stripe) -> Version {
        Version {
            generation: self.generations[stripe.0].load(Ordering::SeqCst),
            epoch: self.epoch(resource),
        }
    }

    /// Whether nothing has been invalidated in the stripe or the resource since `version`.
    pub(super) fn stands(&self, resource: ResourceId, stripe: Stripe, version: Version) -> bool {
        self.version(resource, stripe) == version
    }

    /// Voids every fill of the stripe that is under way. Returns the new generation.
    pub(super) fn raise(&self, stripe: Stripe) -> u64 {
        self.generations[stripe.0].fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(super) fn generation(&self, stripe: Stripe) -> u64 {
        self.generations[stripe.0].load(Ordering::SeqCst)
    }

    /// Voids every fill that is under way, where many keys are invalidated that nobody can name. Returns the new
    /// generations.
    pub(super) fn raise_all(&self) -> Vec<u64> {
        self.stripes().map(|stripe| self.raise(stripe)).collect()
    }

    /// The epochs of a resource. They are read one after the other: an entry depends on one of them.
    pub fn epoch(&self, resource: ResourceId) -> Epoch {
        Epoch {
            documents: self.epochs[resource.index()].load(Ordering::SeqCst),
            absences: self.absences[resource.index()].load(Ordering::SeqCst),
        }
    }

    /// What the entries bear that are not overtaken as a whole.
    pub(super) fn numbers(&self) -> Vec<u64> {
        let resources = ResourceId::in_order().take(self.epochs.len());
        resources
            .map(|resource| self.epoch(resource))
            .flat_map(|epoch| [epoch.documents, epoch.absences])
            .collect()
    }

    /// Makes every entry of the resource a miss. Epochs never come back, not in a later process either, since the disk
    /// tier keeps them.
    pub(super) fn renew_epoch(&self, resource: ResourceId) {
        self.set_epoch(resource, Epoch::fresh());
    }

    /// Makes every remembered absence of the resource a miss.
    pub(super) fn renew_absences(&self, resource: ResourceId) {
        self.absences[resource.index()].store(fresh_number(), Ordering::SeqCst);
    }

    /// Takes over the epochs that trusted entries on disk bear.
    pub(super) fn set_epoch(&self, resource: ResourceId, epoch: Epoch) {
        self.epochs[resource.index()].store(epoch.documents, Ordering::SeqCst);
        self.absences[resource.index()].store(epoch.absences, Ordering::SeqCst);
    }

    /// All that was invalidated in the stripe up to `generation` is gone from disk.
    pub(super) fn mark_clean(&self, stripe: Stripe, generation: u64) {
        self.clean[stripe.0].fetch_max(generation, Ordering::SeqCst);
    }

    /// The disk tier holds nothing that was invalidated until now: it is empty, or a whole position was caught up.
    pub(super) fn mark_all_clean(&self, generations: &[u64]) {
        for (stripe, &generation) in self.stripes().zip(generations) {
            self.mark_clean(stripe, generation);
        }
    }

    /// Every generation at this moment.
    pub(super) fn snapshot(&self) -> Vec<u64> {
        self.stripes()
            .map(|stripe| self.generation(stripe))
            .collect()
    }

    /// The generation up to which both agree, if the disk tier has followed all invalidations of the stripe.
    pub(super) fn clean_generation(&self, stripe: Stripe) -> Option<u64> {
        let generation = self.generation(stripe);
        (self.clean[stripe.0].load(Ordering::SeqCst) == generation).then_some(generation)
    }

    /// The version under which the disk tier may answer for a key of the stripe.
    pub(super) fn clean_version(&self, resource: ResourceId, stripe: Stripe) -> Option<Version> {
        let generation = self.clean_generation(stripe)?;
        let epoch = self.epoch(resource);
        Some(Version { generation, epoch })
    }
}

/// A number that no epoch of this or another process has had.
fn fresh_number() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}
