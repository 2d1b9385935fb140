//! The memory tier: documents by resource and key, bounded by bytes.
//!
//! The only place that knows DashMap. Guards never leave this file: a lookup returns an `Arc`. Which entry has to go
//! when space runs out is `eviction`'s affair.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry as Slot;

use crate::cache::document::Found;
use crate::cache::eviction::{Eviction, Ticket, Verdict};
use crate::cache::generation::{Version, Versions};
#[cfg(test)]
use crate::cache::replay::{Point, reach};
use crate::clock::Boottime;
use crate::sync::{AtomicU8, AtomicU64};

/// Bounds of the memory tier.
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// Documents, keys and overhead together, in bytes.
    pub bytes_max: u64,
}

/// What an entry costs besides its key and body: map slot, ticket, reference counts, entity tag, allocator rounding.
/// Measured 2026-11-21 with `loadtest/wrk.sh`: 2,078 resident bytes for each document of 1,652 with its key.
const OVERHEAD_BYTES: u64 = 426;

/// Locks of one resource's map; DashMap's own choice, 4 for each core, lets few writers block many readers.
const SHARDS: usize = 256;

/// Twice touched is as good as often touched (Yang et al., FIFO queues are all you need, SOSP 2023: two bits).
const TOUCHES_MAX: u8 = 3;

struct Entry {
    found: Found,
    epoch: u64,
    since: Boottime,
    /// Tells this entry from an earlier or later one of the same key.
    id: u64,
    weight: u64,
    touches: AtomicU8,
}

/// Documents in memory.
pub(super) struct Memory {
    /// By resource.
    maps: Vec<DashMap<Arc<str>, Entry>>,
    bytes: AtomicU64,
    bytes_max: u64,
    ids: AtomicU64,
    evictions: AtomicU64,
    eviction: Eviction,
}

impl Memory {
    pub(super) fn new(config: &MemoryConfig, resources: usize) -> Self {
        Self {
            maps: (0..resources)
                .map(|_| DashMap::with_shard_amount(SHARDS))
                .collect(),
            bytes: AtomicU64::new(0),
            bytes_max: config.bytes_max,
            ids: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            eviction: Eviction::new(config.bytes_max),
        }
    }

    /// The document, or its remembered absence, if it is kept under `epoch`.
    pub(super) fn get(&self, resource: usize, key: &str, epoch: u64) -> Option<Found> {
        let entry = self.maps[resource].get(key)?;
        if entry.epoch != epoch {
            return None;
        }
        if entry.touches.load(Ordering::Relaxed) < TOUCHES_MAX {
            entry.touches.fetch_add(1, Ordering::Relaxed);
        }
        Some(entry.found.clone())
    }

    /// Fills or promotes: keeps `found` if `version`, noted before it was read, still stands when it is installed.
    /// Returns whether it is kept.
    pub(super) fn install_standing(
        &self,
        resource: usize,
        key: &Arc<str>,
        found: Found,
        versions: &Versions,
        version: Version,
    ) -> bool {
        let stripe = versions.stripe(resource, key);
        self.install(resource, key, found, versions, || {
            versions.standing(resource, stripe, version)
        })
    }

    /// Keeps `found` if `valid` holds while the key's place is locked: what invalidates the key later waits for that
    /// lock and then takes the entry away. Returns whether it is kept.
    pub(super) fn install(
        &self,
        resource: usize,
        key: &Arc<str>,
        found: Found,
        versions: &Versions,
        valid: impl FnOnce() -> Option<u64>,
    ) -> bool {
        let body = found.as_ref().map_or(0, |document| document.body.len());
        let weight = (key.len() + body) as u64 + OVERHEAD_BYTES;
        if weight > self.bytes_max {
            return false;
        }
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        {
            let slot = self.maps[resource].entry(Arc::clone(key));
            let Some(epoch) = valid() else {
                return false;
            };
            let entry = Entry {
                found,
                epoch,
                since: Boottime::now(),
                id,
                weight,
                touches: AtomicU8::new(0),
            };
            self.bytes.fetch_add(weight, Ordering::Relaxed);
            match slot {
                Slot::Occupied(mut occupied) => {
                    let old = occupied.insert(entry);
                    self.bytes.fetch_sub(old.weight, Ordering::Relaxed);
                }
                Slot::Vacant(vacant) => {
                    vacant.insert(entry);
                }
            }
        }
        let ticket = Ticket {
            resource,
            key: Arc::clone(key),
            id,
            weight,
        };
        self.eviction.admit(ticket, |ticket| self.is_live(ticket));
        self.shrink(versions);
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
        if let Some((_, entry)) = self.maps[resource].remove(key) {
            self.bytes.fetch_sub(entry.weight, Ordering::Relaxed);
        }
    }

    /// Takes every entry of the resource away. The epoch has made them misses already; this gives their space back.
    pub(super) fn empty(&self, resource: usize) {
        self.maps[resource].retain(|_, entry| {
            self.bytes.fetch_sub(entry.weight, Ordering::Relaxed);
            false
        });
    }

    /// Whether a document or its absence is kept under `epoch`, and since when; touches nothing.
    pub(super) fn peek(&self, resource: usize, key: &str, epoch: u64) -> Option<(bool, Boottime)> {
        let entry = self.maps[resource].get(key)?;
        (entry.epoch == epoch).then(|| (entry.found.is_some(), entry.since))
    }

    /// Weight of all entries, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Entries of one resource, overtaken ones included.
    pub(super) fn entries_of(&self, resource: usize) -> u64 {
        self.maps[resource].len() as u64
    }

    /// Entries that had to go for space so far.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    fn is_live(&self, ticket: &Ticket) -> bool {
        let entry = self.maps[ticket.resource].get(&ticket.key);
        entry.is_some_and(|entry| entry.id == ticket.id)
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

    /// What becomes of the entry whose turn it is: spared for a touch, which is used up.
    fn judge(&self, ticket: &Ticket, versions: &Versions) -> Verdict {
        let epoch = versions.epoch(ticket.resource);
        let mut verdict = Verdict::Gone;
        let removed = self.maps[ticket.resource].remove_if(&ticket.key, |_, entry| {
            if entry.id != ticket.id {
                return false;
            }
            let touches = entry.touches.load(Ordering::Relaxed);
            if touches > 0 && entry.epoch == epoch {
                verdict = Verdict::Spared;
                entry.touches.store(touches - 1, Ordering::Relaxed);
                return false;
            }
            true
        });
        if let Some((_, entry)) = removed {
            self.bytes.fetch_sub(entry.weight, Ordering::Relaxed);
            self.evictions.fetch_add(1, Ordering::Relaxed);
            return Verdict::Evicted;
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::cache::document::Document;

    fn memory(bytes_max: u64) -> (Memory, Versions) {
        (
            Memory::new(&MemoryConfig { bytes_max }, 2),
            Versions::new(2),
        )
    }

    fn put(memory: &Memory, versions: &Versions, resource: usize, key: &str, bytes: usize) -> bool {
        let found = Some(Arc::new(Document::new(Bytes::from(vec![b'x'; bytes]))));
        let epoch = versions.epoch(resource);
        memory.install(resource, &Arc::from(key), found, versions, || Some(epoch))
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
        assert!(!memory.install(0, &Arc::from("1"), None, &versions, || None));
        assert!(!has(&memory, &versions, 0, "1"));
    }
}
