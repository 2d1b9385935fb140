//! The memory tier: documents by resource and key, bounded by bytes.
//!
//! The only place that knows DashMap. Guards never leave this file: a lookup returns a reference of its own. Which
//! entry has to go when space runs out is `eviction`'s affair.
//!
//! A map's key is a hash of the document's key, which the document bears itself: a slot takes 17 bytes. Two keys of one
//! hash push each other out; neither is ever taken for the other. The hash is seeded at random, and DashMap hashes it
//! once more with SipHash, so nobody who chooses keys can choose where they go.

// The path for `tests/interleavings`, which includes this file from elsewhere.
#[cfg(test)]
#[path = "memory/tests.rs"]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry as Slot;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::cache::document::{Document, Found};
use crate::cache::eviction::{Eviction, Ticket, Verdict};
use crate::cache::generation::{Epoch, Stripe, Version, Versions};
#[cfg(test)]
use crate::cache::tests::gate::{Point, reach};
use crate::clock::Boottime;
use crate::resource::ResourceId;
use crate::sync::AtomicU64;

/// Bounds of the memory tier.
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// Documents, keys and overhead together, in bytes.
    pub bytes_max: u64,
}

/// What an entry costs besides its block: a slot of 17 bytes in a map that is between 7/16 and 7/8 full, a ticket of 16
/// and a ghost of 8 in tables with some space to grow.
const OVERHEAD_BYTES: usize = 64;

/// Every so many evictions the maps are looked through for slots to give back: fewer, larger documents need fewer.
const EVICTIONS_PER_LOOK: u64 = 1 << 14;

/// Locks of one resource's map; DashMap's own choice, 4 for each core, lets few writers block many readers.
const SHARDS: usize = 256;

/// Documents of one resource, by the hash of their key.
struct DocumentMap {
    seed: u64,
    documents: DashMap<u64, Document>,
}

/// Documents in memory.
pub struct Memory {
    /// By resource.
    maps: Vec<DocumentMap>,
    bytes: AtomicU64,
    bytes_max: u64,
    evictions: AtomicU64,
    eviction: Eviction,
}

impl Memory {
    /// An empty tier.
    pub fn new(config: &MemoryConfig, resources: usize) -> Self {
        let random = RandomState::new();
        let map = |resource| DocumentMap {
            seed: random.hash_one(resource),
            documents: DashMap::with_shard_amount(SHARDS),
        };
        Self {
            maps: (0..resources).map(map).collect(),
            bytes: AtomicU64::new(0),
            bytes_max: config.bytes_max,
            evictions: AtomicU64::new(0),
            eviction: Eviction::new(config.bytes_max),
        }
    }

    /// The document, or its remembered absence, if it is kept under `epoch`.
    pub fn get(&self, resource: ResourceId, key: &str, epoch: Epoch) -> Option<Found> {
        let map = self.map_of(resource);
        let slot = map.documents.get(&map.hash(key.as_bytes()))?;
        let document = slot.value();
        if !document.is_of(epoch) || document.key() != key.as_bytes() {
            return None;
        }
        document.touch();
        Some(document.exists().then(|| document.clone()))
    }

    /// Fills or promotes: keeps `found` if `version`, noted before it was read, still stands when it is installed.
    /// Returns whether it is kept.
    pub fn install_standing(
        &self,
        resource: ResourceId,
        key: &str,
        found: Found,
        versions: &Versions,
        version: Version,
    ) -> bool {
        let stripe = versions.stripe(resource, key);
        let document = found.unwrap_or_else(|| Document::absent(key, version.epoch));
        document.is_of(version.epoch)
            && self.install(resource, document, versions, || {
                versions.stands(resource, stripe, version)
            })
    }

    /// Keeps `document` if `valid` holds while the key's place is locked: what invalidates the key later waits for that
    /// lock and then takes the entry away. Returns whether it is kept.
    pub(super) fn install(
        &self,
        resource: ResourceId,
        document: Document,
        versions: &Versions,
        valid: impl FnOnce() -> bool,
    ) -> bool {
        self.put(resource, document, versions, |_| valid())
    }

    /// Puts `document` in the place of `former`, the same with fewer encodings, if that is still there: nothing has
    /// invalidated it then, and what does so later takes `document` away. Returns whether it is kept.
    pub fn replace(
        &self,
        resource: ResourceId,
        former: &Document,
        document: Document,
        versions: &Versions,
    ) -> bool {
        self.put(resource, document, versions, |there| {
            there.is_some_and(|there| there.is(former))
        })
    }

    /// Keeps `document` if `valid` holds of what is there, while its place is locked.
    fn put(
        &self,
        resource: ResourceId,
        document: Document,
        versions: &Versions,
        valid: impl FnOnce(Option<&Document>) -> bool,
    ) -> bool {
        let map = self.map_of(resource);
        let weight = weight(&document);
        let (Ok(ticket_weight), Ok(ticket_resource)) =
            (weight.try_into(), resource.index().try_into())
        else {
            return false;
        };
        if weight > self.bytes_max {
            return false;
        }
        let hash = map.hash(document.key());
        let ticket = Ticket {
            hash,
            weight: ticket_weight,
            resource: ticket_resource,
            id: document.id(),
        };
        {
            let slot = map.documents.entry(hash);
            let there = match &slot {
                Slot::Occupied(occupied) => Some(occupied.get()),
                Slot::Vacant(_) => None,
            };
            if !valid(there) {
                return false;
            }
            self.bytes.fetch_add(weight, Ordering::Relaxed);
            match slot {
                Slot::Occupied(mut occupied) => self.give_back(&occupied.insert(document)),
                Slot::Vacant(vacant) => {
                    vacant.insert(document);
                }
            }
        }
        let before = self.evictions();
        self.eviction.admit(
            ticket,
            |ticket| self.judge(ticket, versions),
            |ticket| self.is_live(ticket),
        );
        self.shrink(versions);
        // Here no lock is held: a map that gives slots back moves all its entries.
        if before / EVICTIONS_PER_LOOK < self.evictions() / EVICTIONS_PER_LOOK {
            self.give_back_slots();
        }
        true
    }

    /// Raises the key's generation, then takes its entry away. Returns the stripe and its new generation.
    pub(super) fn overtake(
        &self,
        resource: ResourceId,
        key: &str,
        versions: &Versions,
    ) -> (Stripe, u64) {
        let stripe = versions.stripe(resource, key);
        #[cfg(test)]
        reach(Point::Raise);
        let generation = versions.raise(stripe);
        #[cfg(test)]
        reach(Point::Forget);
        self.invalidate(resource, key);
        #[cfg(test)]
        reach(Point::QueueDrop);
        (stripe, generation)
    }

    /// Takes the key's entry away.
    fn invalidate(&self, resource: ResourceId, key: &str) {
        let map = self.map_of(resource);
        let hash = map.hash(key.as_bytes());
        let is_its = |_: &u64, document: &Document| document.key() == key.as_bytes();
        if let Some((_, document)) = map.documents.remove_if(&hash, is_its) {
            self.give_back(&document);
        }
    }

    /// Takes the entries of the resource away whose keys are `covered`. Looks at all of them, and keeps few readers
    /// waiting meanwhile; the caller has raised the generations.
    pub(super) fn sweep(&self, resource: ResourceId, covered: impl Fn(&[u8]) -> bool) {
        self.retain(resource, |document| !covered(document.key()));
    }

    /// Takes the entries of the resource away that are overtaken as a whole. Their epoch has made them misses already;
    /// this gives their space back.
    pub(super) fn sweep_overtaken(&self, resource: ResourceId, versions: &Versions) {
        let epoch = versions.epoch(resource);
        self.retain(resource, |document| document.is_of(epoch));
    }

    fn retain(&self, resource: ResourceId, stays: impl Fn(&Document) -> bool) {
        self.map_of(resource).documents.retain(|_, document| {
            let stays = stays(document);
            if !stays {
                self.give_back(document);
            }
            stays
        });
    }

    /// Whether a document or its absence is kept under `epoch`, and since when; touches nothing.
    pub(super) fn peek(
        &self,
        resource: ResourceId,
        key: &str,
        epoch: Epoch,
    ) -> Option<(bool, Boottime)> {
        let map = self.map_of(resource);
        let slot = map.documents.get(&map.hash(key.as_bytes()))?;
        let document = slot.value();
        let is_its = document.is_of(epoch) && document.key() == key.as_bytes();
        is_its.then(|| (document.exists(), document.since()))
    }

    /// Weight of all entries, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Entries of one resource.
    pub fn entries_of(&self, resource: ResourceId) -> u64 {
        self.map_of(resource).documents.len() as u64
    }

    /// Entries that had to go for space so far.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    fn map_of(&self, resource: ResourceId) -> &DocumentMap {
        &self.maps[resource.index()]
    }

    fn give_back(&self, document: &Document) {
        self.bytes.fetch_sub(weight(document), Ordering::Relaxed);
    }

    fn is_live(&self, ticket: &Ticket) -> bool {
        let documents = &self.map_of(ticket.resource()).documents;
        let document = documents.get(&ticket.hash);
        document.is_some_and(|document| document.id() == ticket.id)
    }

    /// Evicts until the bound holds.
    fn shrink(&self, versions: &Versions) {
        while self.bytes() > self.bytes_max {
            let evicted = self.eviction.evict(|ticket| self.judge(ticket, versions));
            if !evicted {
                return;
            }
        }
    }

    /// Gives slots back where most of a map is empty.
    fn give_back_slots(&self) {
        for map in &self.maps {
            if map.documents.len() < map.documents.capacity() / 4 {
                map.documents.shrink_to_fit();
            }
        }
    }

    /// What becomes of the entry whose turn it is: spared for a touch, which is used up.
    fn judge(&self, ticket: &Ticket, versions: &Versions) -> Verdict {
        let resource = ticket.resource();
        let epoch = versions.epoch(resource);
        let mut verdict = Verdict::Gone;
        let documents = &self.map_of(resource).documents;
        let removed = documents.remove_if(&ticket.hash, |_, document| {
            if document.id() != ticket.id {
                return false;
            }
            if document.is_of(epoch) && document.use_up_touch() {
                verdict = Verdict::Spared;
                return false;
            }
            true
        });
        if let Some((_, document)) = removed {
            self.give_back(&document);
            self.evictions.fetch_add(1, Ordering::Relaxed);
            return Verdict::Evicted;
        }
        verdict
    }
}

impl DocumentMap {
    fn hash(&self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.seed)
    }
}

fn weight(document: &Document) -> u64 {
    (document.block_bytes() + OVERHEAD_BYTES) as u64
}
