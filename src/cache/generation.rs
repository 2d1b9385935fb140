//! Generations and epochs: they show whether a document has been overtaken.
//!
//! Each key hashes to one of 65,536 counters, its generation, which is raised whenever the key is invalidated. A fill
//! notes the generation before it asks PostgreSQL, and may install the document only if the generation is still the
//! same. To invalidate all documents of a resource, its epoch is renewed: an entry of another epoch is a miss.
//! Remembered absences have an epoch of their own, because new rows end absences but no documents.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;

use crate::resource::ResourceId;
use crate::sync::AtomicU64;

/// The number of counters: so many that two hot keys seldom share one. With `clean` they take 1 MiB.
const STRIPES: usize = 65_536;

/// All keys that share a counter, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe(usize);

#[cfg(test)]
impl Stripe {
    pub(super) fn index(self) -> usize {
        self.0
    }
}

/// The epochs of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    pub(super) documents: u64,
    pub(super) absences: u64,
}

impl Epoch {
    /// The number in an entry that holds a document or, if it does not exist, an absence.
    pub(super) fn number(self, exists: bool) -> u64 {
        if exists {
            self.documents
        } else {
            self.absences
        }
    }

    /// Whether documents or absences have this number.
    pub(super) fn has(self, number: u64) -> bool {
        number == self.documents || number == self.absences
    }

    /// The same number for documents and absences.
    #[cfg(test)]
    pub(super) fn both(number: u64) -> Self {
        Self {
            documents: number,
            absences: number,
        }
    }

    /// An epoch that no resource of this or another process has had.
    fn random() -> Self {
        Self {
            documents: random_number(),
            absences: random_number(),
        }
    }
}

/// The generation of a key and the epochs of its resource, noted before a load reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    pub(super) generation: u64,
    pub(super) epoch: Epoch,
}

impl Version {
    /// The epochs of the resource.
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
    /// The versions of so many resources.
    pub fn new(resources: usize) -> Self {
        Self::with_stripes(resources, STRIPES)
    }

    /// With this number of counters, a power of two.
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

    /// The stripe of a key.
    pub fn stripe(&self, resource: ResourceId, key: &str) -> Stripe {
        let hash = self.hasher.hash_one((resource, key));
        // The cast loses only upper bits, which the mask removes anyway.
        Stripe(hash as usize & (self.generations.len() - 1))
    }

    fn stripes(&self) -> impl Iterator<Item = Stripe> {
        (0..self.generations.len()).map(Stripe)
    }

    /// The version of the stripe's keys now.
    pub fn version(&self, resource: ResourceId, stripe: Stripe) -> Version {
        Version {
            generation: self.generations[stripe.0].load(Ordering::SeqCst),
            epoch: self.epoch(resource),
        }
    }

    /// Whether nothing has been invalidated in the stripe or in the whole resource since `version`.
    pub(super) fn is_current(
        &self,
        resource: ResourceId,
        stripe: Stripe,
        version: Version,
    ) -> bool {
        self.version(resource, stripe) == version
    }

    /// Makes every fill of the stripe that is under way void. Returns the new generation.
    pub(super) fn raise(&self, stripe: Stripe) -> u64 {
        self.generations[stripe.0].fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(super) fn generation(&self, stripe: Stripe) -> u64 {
        self.generations[stripe.0].load(Ordering::SeqCst)
    }

    /// Makes every fill that is under way void, for an invalidation whose keys are not known one by one. Returns the
    /// new generations.
    pub(super) fn raise_all(&self) -> Vec<u64> {
        self.stripes().map(|stripe| self.raise(stripe)).collect()
    }

    /// The epochs of a resource. They are not read together, because an entry depends on only one of them.
    pub fn epoch(&self, resource: ResourceId) -> Epoch {
        Epoch {
            documents: self.epochs[resource.index()].load(Ordering::SeqCst),
            absences: self.absences[resource.index()].load(Ordering::SeqCst),
        }
    }

    /// The epochs of all resources, as numbers.
    pub(super) fn current_epochs(&self) -> Vec<u64> {
        let resources = ResourceId::in_order().take(self.epochs.len());
        resources
            .map(|resource| self.epoch(resource))
            .flat_map(|epoch| [epoch.documents, epoch.absences])
            .collect()
    }

    /// Makes every entry of the resource a miss. Epochs are never used again, not even in a later process, because the
    /// disk tier keeps entries.
    pub(super) fn renew_epoch(&self, resource: ResourceId) {
        self.set_epoch(resource, Epoch::random());
    }

    /// Makes every remembered absence of the resource a miss.
    pub(super) fn renew_absences(&self, resource: ResourceId) {
        self.absences[resource.index()].store(random_number(), Ordering::SeqCst);
    }

    /// Sets the epochs to those of entries on disk that may be used again.
    pub(super) fn set_epoch(&self, resource: ResourceId, epoch: Epoch) {
        self.epochs[resource.index()].store(epoch.documents, Ordering::SeqCst);
        self.absences[resource.index()].store(epoch.absences, Ordering::SeqCst);
    }

    /// Records that the disk tier has removed everything invalidated in the stripe up to `generation`.
    pub(super) fn mark_clean(&self, stripe: Stripe, generation: u64) {
        self.clean[stripe.0].fetch_max(generation, Ordering::SeqCst);
    }

    /// Records the same for all stripes.
    pub(super) fn mark_all_clean(&self, generations: &[u64]) {
        for (stripe, &generation) in self.stripes().zip(generations) {
            self.mark_clean(stripe, generation);
        }
    }

    /// The generations of all stripes.
    pub(super) fn snapshot(&self) -> Vec<u64> {
        self.stripes()
            .map(|stripe| self.generation(stripe))
            .collect()
    }

    /// The generation of the stripe, if the stripe is clean.
    pub(super) fn clean_generation(&self, stripe: Stripe) -> Option<u64> {
        let generation = self.generation(stripe);
        (self.clean[stripe.0].load(Ordering::SeqCst) == generation).then_some(generation)
    }

    /// The version under which the disk tier may answer for the stripe's keys; `None` if the stripe is not clean.
    pub(super) fn clean_version(&self, resource: ResourceId, stripe: Stripe) -> Option<Version> {
        let generation = self.clean_generation(stripe)?;
        let epoch = self.epoch(resource);
        Some(Version { generation, epoch })
    }
}

/// A number that no epoch of this or another process has had.
fn random_number() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}
