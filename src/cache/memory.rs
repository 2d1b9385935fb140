//! The memory tier: documents by resource and key, bounded by bytes.
//!
//! The only place that knows DashMap. Guards never leave this file: a lookup returns a reference of its own. Which entry
//! has to go when space runs out is `eviction`'s affair.
//!
//! A map's key is a hash of the document's key, which the document bears itself: a slot takes 17 bytes. Two keys of one
//! hash push each other out; neither is ever taken for the other. The hash is seeded at random, and DashMap hashes it
//! once more with SipHash, so nobody who chooses keys can choose where they go.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry as Slot;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::cache::document::{Document, Found};
use crate::cache::eviction::{Eviction, Ticket, Verdict};
use crate::cache::generation::{Version, Versions};
#[cfg(test)]
use crate::cache::replay::{Point, reach};
use crate::clock::Boottime;
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
struct Shelf {
    seed: u64,
    documents: DashMap<u64, Document>,
}

/// Documents in memory.
pub struct Memory {
    /// By resource.
    shelves: Vec<Shelf>,
    bytes: AtomicU64,
    bytes_max: u64,
    evictions: AtomicU64,
    eviction: Eviction,
}

impl Memory {
    /// An empty tier.
    pub fn new(config: &MemoryConfig, resources: usize) -> Self {
        let random = RandomState::new();
        let shelf = |resource| Shelf {
            seed: random.hash_one(resource),
            documents: DashMap::with_shard_amount(SHARDS),
        };
        Self {
            shelves: (0..resources).map(shelf).collect(),
            bytes: AtomicU64::new(0),
            bytes_max: config.bytes_max,
            evictions: AtomicU64::new(0),
            eviction: Eviction::new(config.bytes_max),
        }
    }

    /// The document, or its remembered absence, if it is kept under `epoch`.
    pub fn get(&self, resource: usize, key: &str, epoch: u64) -> Option<Found> {
        let shelf = &self.shelves[resource];
        let slot = shelf.documents.get(&shelf.hash(key.as_bytes()))?;
        let document = slot.value();
        if document.epoch() != epoch || document.key() != key.as_bytes() {
            return None;
        }
        document.touch();
        Some(document.exists().then(|| document.clone()))
    }

    /// Fills or promotes: keeps `found` if `version`, noted before it was read, still stands when it is installed.
    /// Returns whether it is kept.
    pub fn install_standing(
        &self,
        resource: usize,
        key: &str,
        found: Found,
        versions: &Versions,
        version: Version,
    ) -> bool {
        let stripe = versions.stripe(resource, key);
        let document = found.unwrap_or_else(|| Document::absent(key, version.epoch));
        document.epoch() == version.epoch
            && self.install(resource, document, versions, || {
                versions.stands(resource, stripe, version)
            })
    }

    /// Keeps `document` if `valid` holds while the key's place is locked: what invalidates the key later waits for that
    /// lock and then takes the entry away. Returns whether it is kept.
    pub(super) fn install(
        &self,
        resource: usize,
        document: Document,
        versions: &Versions,
        valid: impl FnOnce() -> bool,
    ) -> bool {
        let shelf = &self.shelves[resource];
        let weight = weight(&document);
        let (Ok(ticket_weight), Ok(ticket_resource)) = (weight.try_into(), resource.try_into())
        else {
            return false;
        };
        if weight > self.bytes_max {
            return false;
        }
        let hash = shelf.hash(document.key());
        let ticket = Ticket {
            hash,
            weight: ticket_weight,
            resource: ticket_resource,
            id: document.id(),
        };
        {
            let slot = shelf.documents.entry(hash);
            if !valid() {
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
    pub(super) fn overtake(&self, resource: usize, key: &str, versions: &Versions) -> (usize, u64) {
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
    fn invalidate(&self, resource: usize, key: &str) {
        let shelf = &self.shelves[resource];
        let hash = shelf.hash(key.as_bytes());
        let is_its = |_: &u64, document: &Document| document.key() == key.as_bytes();
        if let Some((_, document)) = shelf.documents.remove_if(&hash, is_its) {
            self.give_back(&document);
        }
    }

    /// Takes every entry of the resource away. The epoch has made them misses already; this gives their space back.
    pub(super) fn empty(&self, resource: usize) {
        self.shelves[resource].documents.retain(|_, document| {
            self.give_back(document);
            false
        });
    }

    /// Whether a document or its absence is kept under `epoch`, and since when; touches nothing.
    pub(super) fn peek(&self, resource: usize, key: &str, epoch: u64) -> Option<(bool, Boottime)> {
        let shelf = &self.shelves[resource];
        let slot = shelf.documents.get(&shelf.hash(key.as_bytes()))?;
        let document = slot.value();
        let is_its = document.epoch() == epoch && document.key() == key.as_bytes();
        is_its.then(|| (document.exists(), document.since()))
    }

    /// Weight of all entries, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Entries of one resource, overtaken ones included.
    pub fn entries_of(&self, resource: usize) -> u64 {
        self.shelves[resource].documents.len() as u64
    }

    /// Entries that had to go for space so far.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    fn give_back(&self, document: &Document) {
        self.bytes.fetch_sub(weight(document), Ordering::Relaxed);
    }

    fn is_live(&self, ticket: &Ticket) -> bool {
        let documents = &self.shelves[usize::from(ticket.resource)].documents;
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
        for shelf in &self.shelves {
            if shelf.documents.len() < shelf.documents.capacity() / 4 {
                shelf.documents.shrink_to_fit();
            }
        }
    }

    /// What becomes of the entry whose turn it is: spared for a touch, which is used up.
    fn judge(&self, ticket: &Ticket, versions: &Versions) -> Verdict {
        let resource = usize::from(ticket.resource);
        let epoch = versions.epoch(resource);
        let mut verdict = Verdict::Gone;
        let documents = &self.shelves[resource].documents;
        let removed = documents.remove_if(&ticket.hash, |_, document| {
            if document.id() != ticket.id {
                return false;
            }
            if document.epoch() == epoch && document.use_up_touch() {
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

impl Shelf {
    fn hash(&self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.seed)
    }
}

fn weight(document: &Document) -> u64 {
    (document.block_bytes() + OVERHEAD_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(bytes_max: u64) -> (Memory, Versions) {
        (
            Memory::new(&MemoryConfig { bytes_max }, 2),
            Versions::new(2),
        )
    }

    fn put(memory: &Memory, versions: &Versions, resource: usize, key: &str, bytes: usize) -> bool {
        let epoch = versions.epoch(resource);
        let document = Document::new(key, epoch, &vec![b'x'; bytes]);
        memory.install(resource, document, versions, || true)
    }

    fn has(memory: &Memory, versions: &Versions, resource: usize, key: &str) -> bool {
        memory
            .get(resource, key, versions.epoch(resource))
            .is_some()
    }

    #[test]
    fn resources_do_not_share_keys() {
        let (memory, versions) = memory(1 << 20);
        assert!(put(&memory, &versions, 0, "1", 10));
        assert!(has(&memory, &versions, 0, "1"));
        assert!(!has(&memory, &versions, 1, "1"));
    }

    #[test]
    fn the_byte_bound_holds_under_mixed_sizes() {
        let bytes_max = 200_000;
        let (memory, versions) = memory(bytes_max);
        for number in 0..5_000_usize {
            put(
                &memory,
                &versions,
                number % 2,
                &number.to_string(),
                number * 37 % 5_000,
            );
            has(&memory, &versions, 0, &(number / 2).to_string());
            assert!(memory.bytes() <= bytes_max);
        }
        assert!(memory.bytes() > bytes_max * 9 / 10);
        assert!(memory.evictions() > 0);
    }

    #[test]
    fn a_document_above_the_bound_is_not_kept() {
        let (memory, versions) = memory(1_000);
        assert!(!put(&memory, &versions, 0, "1", 2_000));
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn a_scan_leaves_what_is_used() {
        let (memory, versions) = memory(200 * 1_000);
        for number in 0..50 {
            put(&memory, &versions, 0, &format!("hot{number}"), 500);
        }
        for round in 0..2_000 {
            for number in 0..50 {
                has(&memory, &versions, 0, &format!("hot{number}"));
            }
            put(&memory, &versions, 0, &format!("scan{round}"), 500);
        }
        let left = (0..50)
            .filter(|number| has(&memory, &versions, 0, &format!("hot{number}")))
            .count();
        assert_eq!(left, 50);
    }

    /// A tier with space for so many documents as `read` installs.
    fn with_space_for(count: u64) -> (Memory, Versions) {
        let (scale, versions) = memory(1 << 20);
        read(&scale, &versions, 0);
        memory(count * scale.bytes())
    }

    /// Whether the document is there; else it is from then on.
    fn read(memory: &Memory, versions: &Versions, number: u64) -> bool {
        let key = format!("{number:08}");
        let hit = has(memory, versions, 0, &key);
        if !hit {
            put(memory, versions, 0, &key, 100);
        }
        hit
    }

    fn hits(memory: &Memory, versions: &Versions, numbers: impl Iterator<Item = u64>) -> usize {
        numbers
            .filter(|&number| read(memory, versions, number))
            .count()
    }

    /// By the paper's rules each would go shortly before it is asked for, and a small queue of a tenth is lost to it.
    #[test]
    fn most_of_a_loop_slightly_larger_than_the_tier_stays() {
        let (memory, versions) = with_space_for(1_000);
        hits(&memory, &versions, (0..1_100).cycle().take(30 * 1_100));
        let hits = hits(&memory, &versions, (0..1_100).cycle().take(10 * 1_100));
        assert!(hits > 10 * 960, "{hits} of 11,000");
    }

    #[test]
    fn what_is_read_again_soon_stays_until_then() {
        let (memory, versions) = with_space_for(1_000);
        let again = 50;
        let soon = |number| [number, number - again];
        let hits = hits(&memory, &versions, (again..5_000).flat_map(soon));
        assert!(hits > 4_800, "{hits} of {}", 5_000 - again);
    }

    /// What large documents leave behind is no way into the main queue.
    #[test]
    fn a_scan_of_mixed_sizes_leaves_what_was_there() {
        let (memory, versions) = with_space_for(1_000);
        hits(&memory, &versions, 0..1_000);
        for number in 0..5_000 {
            let bytes = if number % 10 == 0 { 5_000 } else { 100 };
            put(&memory, &versions, 0, &format!("scan{number}"), bytes);
        }
        let left = (0..1_000).filter(|&number| has(&memory, &versions, 0, &format!("{number:08}")));
        assert!(left.count() > 850);
    }

    #[test]
    fn a_new_hot_set_takes_over() {
        let (memory, versions) = with_space_for(1_000);
        hits(&memory, &versions, (0..900).cycle().take(10 * 900));
        let new = 10_000..10_900;
        hits(&memory, &versions, new.clone().cycle().take(20 * 900));
        let hits = hits(&memory, &versions, new);
        assert!(hits > 600, "{hits} of 900");
    }

    #[test]
    fn large_documents_take_over_the_places_of_small_ones() {
        let (memory, versions) = with_space_for(20_000);
        hits(&memory, &versions, 0..20_000);
        let slots = memory.shelves[0].documents.capacity();
        let tickets = memory.eviction.capacity();
        for number in 0..4_000 {
            let key = format!("large{number}");
            put(&memory, &versions, 0, &key, 5_000);
            // Used, it takes the place of what was there before.
            has(&memory, &versions, 0, &key);
        }
        assert!(memory.entries_of(0) < 2_000);
        assert!(memory.shelves[0].documents.capacity() < slots / 3);
        assert!(memory.eviction.capacity() < tickets / 2);
    }

    #[test]
    fn keys_of_one_hash_are_never_taken_for_each_other() {
        let (memory, versions) = memory(1 << 20);
        let epoch = versions.epoch(0);
        let shelf = &memory.shelves[0];
        assert!(put(&memory, &versions, 0, "1", 10));
        let other = Document::new("2", epoch, &[b'x'; 10]);
        shelf.documents.insert(shelf.hash(b"1"), other);
        assert!(!has(&memory, &versions, 0, "1"));
        assert_eq!(memory.peek(0, "1", epoch), None);
        memory.invalidate(0, "1");
        assert_eq!(memory.entries_of(0), 1);
        assert!(put(&memory, &versions, 0, "1", 1_000));
        assert!(has(&memory, &versions, 0, "1"));
        memory.invalidate(0, "1");
        assert_eq!((memory.entries_of(0), memory.bytes()), (0, 0));
    }

    #[test]
    fn a_document_of_another_epoch_is_not_installed() {
        let (memory, versions) = memory(1 << 20);
        let version = versions.version(0, versions.stripe(0, "1"));
        for (epoch, kept) in [(version.epoch ^ 1, false), (version.epoch, true)] {
            let found = Some(Document::new("1", epoch, b"{}"));
            let installed = memory.install_standing(0, "1", found, &versions, version);
            assert_eq!(installed, kept);
            assert_eq!(has(&memory, &versions, 0, "1"), kept);
        }
    }

    #[test]
    fn churn_of_one_key_keeps_no_tickets() {
        let (memory, versions) = memory(1 << 20);
        for _ in 0..100_000 {
            put(&memory, &versions, 0, "1", 10);
            memory.invalidate(0, "1");
        }
        assert_eq!(memory.bytes(), 0);
        assert!(memory.eviction.tickets() < 5_000);
    }

    #[test]
    fn a_void_fill_is_not_installed() {
        let (memory, versions) = memory(1 << 20);
        let document = Document::absent("1", versions.epoch(0));
        assert!(!memory.install(0, document, &versions, || false));
        assert!(!has(&memory, &versions, 0, "1"));
    }
}
