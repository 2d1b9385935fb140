//! The memory tier: documents by resource and key, bounded by bytes.
//!
//! Only this module names DashMap. Its guards never leave this file: a lookup returns a reference to the document.
//! `eviction` chooses which entry is removed when space runs out.
//!
//! A map also has hints, which lead from an alias to the key of a document. A hint is an entry whose name is no key and whose
//! body is the key. It may be outdated, so nothing invalidates it.
//!
//! A map's key is a hash of the document's key, and the document holds the key itself, so a slot takes 17 bytes. Two
//! keys with the same hash replace each other, and neither is ever taken for the other. The hash has a random seed, and
//! DashMap hashes it once more with SipHash, so clients that choose keys can't choose their slots.

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
use crate::cache::eviction::{Eviction, EvictionOutcome, Ticket};
use crate::cache::generation::{Epoch, Stripe, Version, Versions};
#[cfg(test)]
use crate::cache::tests::gate::{Point, reach};
use crate::resource::ResourceId;
use crate::sync::AtomicU64;

/// Bounds of the memory tier.
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// Documents, keys and overhead together, in bytes.
    pub bytes_max: u64,
}

/// What an entry takes besides its block: a slot of 17 bytes in a map that is between 7/16 and 7/8 full, a ticket of 16
/// bytes and a ghost of 8 bytes in tables with some space to grow.
const OVERHEAD_BYTES: usize = 64;

/// After so many evictions, maps that are mostly empty are shrunk: fewer, larger documents need fewer slots.
const EVICTIONS_PER_SHRINK: u64 = 1 << 14;

/// Locks of one resource's map. With DashMap's default, 4 for each core, few writers block many readers.
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

    /// The document or the remembered absence of the key, if there is one under `epoch` and `admits` it. Counts a touch.
    pub fn get(
        &self,
        resource: ResourceId,
        key: &str,
        epoch: Epoch,
        admits: impl Fn(&Document) -> bool,
    ) -> Option<Found> {
        let map = self.map_of(resource);
        let hash = map.hash(key.as_bytes());
        let admits = |document: &Document| document.key() == key.as_bytes() && admits(document);
        map.get(hash, epoch, admits)
    }

    /// The hint of this name, if there is one under `epoch`: its body is the key of the document that the alias led to. Counts
    /// a touch.
    pub(super) fn hint(
        &self,
        resource: ResourceId,
        name: HintName<'_>,
        epoch: Epoch,
    ) -> Option<Document> {
        let map = self.map_of(resource);
        let hash = map.hash_of_hint(&name);
        let has_name = |hint: &Document| name.is(hint.key());
        map.get(hash, epoch, has_name).flatten()
    }

    /// The document that the hint of this name leads to, if memory has both under `epoch` and `admits` the document, which proves
    /// by itself that the alias leads to it. Counts a touch of each.
    pub(super) fn get_hinted(
        &self,
        resource: ResourceId,
        name: HintName<'_>,
        epoch: Epoch,
        admits: impl FnOnce(&Document) -> bool,
    ) -> Option<Found> {
        let map = self.map_of(resource);
        let hash = {
            let slot = map.documents.get(&map.hash_of_hint(&name))?;
            let hint = slot.value();
            if !hint.has_epoch(epoch) || !name.is(hint.key()) {
                return None;
            }
            hint.touch();
            map.hash(hint.body())
        };
        map.get(hash, epoch, admits)
    }

    /// Keeps a hint that leads to the document of `key`.
    pub(super) fn keep_hint(
        &self,
        resource: ResourceId,
        name: HintName<'_>,
        key: &str,
        versions: &Versions,
    ) {
        let hint = Document::hint(&name.bytes(), versions.epoch(resource), key);
        self.install(resource, hint, versions, |_| true);
    }

    /// Fills or promotes: installs `found` if `version`, which was noted before it was read, is still current then.
    /// Returns whether it was installed.
    pub fn install_if_current(
        &self,
        resource: ResourceId,
        key: &str,
        found: Found,
        versions: &Versions,
        version: Version,
    ) -> bool {
        let stripe = versions.stripe(resource, key);
        let document = found.unwrap_or_else(|| Document::absent(key, version.epoch));
        document.has_epoch(version.epoch)
            && self.install(resource, document, versions, |_| {
                versions.is_current(resource, stripe, version)
            })
    }

    /// Replaces `former` by `document`, the same document with more encodings, if `former` is still there: then nothing
    /// has invalidated it. Returns whether it was installed.
    pub fn replace(
        &self,
        resource: ResourceId,
        former: &Document,
        document: Document,
        versions: &Versions,
    ) -> bool {
        self.install(resource, document, versions, |present| {
            present.is_some_and(|present| present.is_same_block(former))
        })
    }

    /// Installs `document` if `is_valid` returns true for the present entry while the key's slot is locked. A later
    /// invalidation of the key waits for that lock and then removes the entry. Returns whether it was installed.
    pub(super) fn install(
        &self,
        resource: ResourceId,
        document: Document,
        versions: &Versions,
        is_valid: impl FnOnce(Option<&Document>) -> bool,
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
            let present = match &slot {
                Slot::Occupied(occupied) => Some(occupied.get()),
                Slot::Vacant(_) => None,
            };
            if !is_valid(present) {
                return false;
            }
            self.bytes.fetch_add(weight, Ordering::Relaxed);
            match slot {
                Slot::Occupied(mut occupied) => self.uncount(&occupied.insert(document)),
                Slot::Vacant(vacant) => {
                    vacant.insert(document);
                }
            }
        }
        let before = self.evictions();
        self.eviction.admit(
            ticket,
            |ticket| self.try_evict(ticket, versions),
            |ticket| self.is_live(ticket),
        );
        self.evict_to_bound(versions);
        // No lock is held here: to shrink a map moves all its entries.
        if before / EVICTIONS_PER_SHRINK < self.evictions() / EVICTIONS_PER_SHRINK {
            self.shrink_maps();
        }
        true
    }

    /// Raises the key's generation, then removes its entry. Returns the stripe and its new generation.
    pub(super) fn invalidate(
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
        self.remove(resource, key);
        #[cfg(test)]
        reach(Point::QueueDrop);
        (stripe, generation)
    }

    /// Removes the key's entry.
    fn remove(&self, resource: ResourceId, key: &str) {
        let map = self.map_of(resource);
        let hash = map.hash(key.as_bytes());
        let has_key = |_: &u64, document: &Document| document.key() == key.as_bytes();
        if let Some((_, document)) = map.documents.remove_if(&hash, has_key) {
            self.uncount(&document);
        }
    }

    /// Removes the entries of the resource whose keys are `covered`. The caller has raised the generations.
    ///
    /// Looks at all entries, but locks only one part of the map at a time.
    pub(super) fn sweep(&self, resource: ResourceId, covered: impl Fn(&[u8]) -> bool) {
        self.retain(resource, |document| !covered(document.key()));
    }

    /// Removes the entries of the resource that are not under its epoch. They are misses already; this frees their
    /// space.
    pub(super) fn remove_overtaken(&self, resource: ResourceId, versions: &Versions) {
        let epoch = versions.epoch(resource);
        self.retain(resource, |document| document.has_epoch(epoch));
    }

    fn retain(&self, resource: ResourceId, stays: impl Fn(&Document) -> bool) {
        self.map_of(resource).documents.retain(|_, document| {
            let stays = stays(document);
            if !stays {
                self.uncount(document);
            }
            stays
        });
    }

    /// The key's entry under `epoch`, a document or an absence. Counts no touch.
    pub(super) fn peek(&self, resource: ResourceId, key: &str, epoch: Epoch) -> Option<Document> {
        let map = self.map_of(resource);
        let slot = map.documents.get(&map.hash(key.as_bytes()))?;
        let document = slot.value();
        let is_valid = document.has_epoch(epoch) && document.key() == key.as_bytes();
        is_valid.then(|| document.clone())
    }

    /// The weight of all entries, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The most bytes that all entries may weigh.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// The number of entries of one resource.
    pub fn entries_of(&self, resource: ResourceId) -> u64 {
        self.map_of(resource).documents.len() as u64
    }

    /// The number of evictions so far.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    fn map_of(&self, resource: ResourceId) -> &DocumentMap {
        &self.maps[resource.index()]
    }

    /// Subtracts the weight of an entry that has been removed.
    fn uncount(&self, document: &Document) {
        self.bytes.fetch_sub(weight(document), Ordering::Relaxed);
    }

    fn is_live(&self, ticket: &Ticket) -> bool {
        let documents = &self.map_of(ticket.resource()).documents;
        let document = documents.get(&ticket.hash);
        document.is_some_and(|document| document.id() == ticket.id)
    }

    /// Evicts until the weight is within the bound.
    fn evict_to_bound(&self, versions: &Versions) {
        while self.bytes() > self.bytes_max {
            let evicted = self
                .eviction
                .evict(|ticket| self.try_evict(ticket, versions));
            if !evicted {
                return;
            }
        }
    }

    /// Shrinks the maps that are mostly empty.
    fn shrink_maps(&self) {
        for map in &self.maps {
            if map.documents.len() < map.documents.capacity() / 4 {
                map.documents.shrink_to_fit();
            }
        }
    }

    /// Evicts the ticket's entry, or spares it and uses up a touch.
    fn try_evict(&self, ticket: &Ticket, versions: &Versions) -> EvictionOutcome {
        let resource = ticket.resource();
        let epoch = versions.epoch(resource);
        let mut outcome = EvictionOutcome::AlreadyGone;
        let documents = &self.map_of(resource).documents;
        let removed = documents.remove_if(&ticket.hash, |_, document| {
            if document.id() != ticket.id {
                return false;
            }
            if document.has_epoch(epoch) && document.use_up_touch() {
                outcome = EvictionOutcome::Spared;
                return false;
            }
            true
        });
        if let Some((_, document)) = removed {
            self.uncount(&document);
            self.evictions.fetch_add(1, Ordering::Relaxed);
            return EvictionOutcome::Evicted;
        }
        outcome
    }
}

impl DocumentMap {
    /// The entry with this hash, if it is under `epoch` and `admits` it. Counts a touch.
    #[inline]
    fn get(
        &self,
        hash: u64,
        epoch: Epoch,
        admits: impl FnOnce(&Document) -> bool,
    ) -> Option<Found> {
        let slot = self.documents.get(&hash)?;
        let document = slot.value();
        if !document.has_epoch(epoch) || !admits(document) {
            return None;
        }
        document.touch();
        Some(document.exists().then(|| document.clone()))
    }

    /// The hash of a key, or of the name of a hint.
    fn hash(&self, name: &[u8]) -> u64 {
        match name {
            [HINT, alias, text @ ..] => self.hash_of_text(*alias, text),
            name => xxh3_64_with_seed(name, self.seed),
        }
    }

    /// The same without the bytes of the name, which take time to put together.
    fn hash_of_hint(&self, name: &HintName<'_>) -> u64 {
        match name.owner {
            None => self.hash_of_text(name.alias_byte(), name.text.as_bytes()),
            Some(_) => self.hash(&name.bytes()),
        }
    }

    fn hash_of_text(&self, alias: u8, text: &[u8]) -> u64 {
        // Seeds that are near each other would give keys and aliases that are alike the same hash.
        let seed = xxh3_64_with_seed(&[HINT, alias], self.seed);
        xxh3_64_with_seed(text, seed)
    }
}

/// How the key of a hint's entry begins, and that of a hint for one owner. No document's key has these bytes, since UTF-8 does
/// not.
const HINT: u8 = 0xff;
const HINT_OF_OWNER: u8 = 0xfe;

/// What a hint is found by. Owners have hints of their own, so that those of others do not tell them, by the time that it
/// takes to follow one, what there is.
#[derive(Clone, Copy, Debug)]
pub struct HintName<'h> {
    /// The place of the alias in [`Resource::by`](crate::resource::Resource::by).
    pub alias: usize,
    /// The canonical text of the owner whose requests have the hint; `None`: those that see all documents.
    pub owner: Option<&'h str>,
    /// The canonical text of the alias.
    pub text: &'h str,
}

impl HintName<'_> {
    /// The key of the hint's entry. No text has a zero byte.
    fn bytes(&self) -> Vec<u8> {
        let alias = self.alias_byte();
        let text = self.text.as_bytes();
        match self.owner {
            None => [&[HINT, alias], text].concat(),
            Some(owner) => [&[HINT_OF_OWNER, alias], owner.as_bytes(), &[0], text].concat(),
        }
    }

    /// Whether `bytes` are the key of its entry.
    fn is(&self, bytes: &[u8]) -> bool {
        match (self.owner, bytes) {
            (None, [HINT, alias, text @ ..]) => {
                *alias == self.alias_byte() && text == self.text.as_bytes()
            }
            (None, _) => false,
            (Some(_), bytes) => bytes == self.bytes(),
        }
    }

    fn alias_byte(&self) -> u8 {
        // Bounded by ALIASES_MAX.
        self.alias as u8
    }
}

fn weight(document: &Document) -> u64 {
    (document.block_bytes() + OVERHEAD_BYTES) as u64
}
