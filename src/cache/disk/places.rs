//! Where the entries are: the segment and the epoch of each, by a hash of its key.
//!
//! Segments hide each other's entries, so only this index says which of them holds a key. It is made from all keys when
//! a directory is opened. An entry takes 29 bytes here, in tables that are between 7/16 and 7/8 full: 33 to 66 bytes.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Tables, each with a lock of its own: to forget a segment, one after the other is searched.
const SHARDS: usize = 64;

/// A hash of an entry's key. Its seed is random, so clients that choose keys can't make two of them equal; by chance
/// that needs some 10^19 entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct KeyHash([u8; 16]);

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The number of its segment.
    pub(super) segment: u32,
    /// As bytes, so that a slot has no padding.
    epoch: [u8; 8],
}

impl Place {
    pub(super) fn new(segment: u32, epoch: u64) -> Self {
        Self {
            segment,
            epoch: epoch.to_ne_bytes(),
        }
    }

    pub(super) fn epoch(self) -> u64 {
        u64::from_ne_bytes(self.epoch)
    }
}

pub(super) struct Places {
    seed: u64,
    shards: [Mutex<HashMap<KeyHash, Place>>; SHARDS],
    /// The number of entries by the number of their epoch, of which there are few.
    by_epoch: Mutex<HashMap<u64, u64>>,
}

impl Places {
    pub(super) fn new() -> Self {
        Self {
            seed: RandomState::new().hash_one(0),
            shards: std::array::from_fn(|_| Mutex::default()),
            by_epoch: Mutex::default(),
        }
    }

    pub(super) fn hash(&self, entry_key: &[u8]) -> KeyHash {
        KeyHash(xxh3_128_with_seed(entry_key, self.seed).to_ne_bytes())
    }

    pub(super) fn get(&self, hash: KeyHash) -> Option<Place> {
        self.shard(hash).get(&hash).copied()
    }

    pub(super) fn insert(&self, hash: KeyHash, place: Place) {
        let replaced = self.shard(hash).insert(hash, place);
        self.count(replaced, Some(place));
    }

    pub(super) fn remove(&self, hash: KeyHash) {
        let removed = self.shard(hash).remove(&hash);
        self.count(removed, None);
    }

    /// Forgets the entries of a segment.
    pub(super) fn remove_segment(&self, segment: u32) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            shard.retain(|_, place| {
                let stays = place.segment != segment;
                if !stays {
                    self.count(Some(*place), None);
                }
                stays
            });
            if shard.capacity() > 4 * shard.len() {
                shard.shrink_to_fit();
            }
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            *lock(shard) = HashMap::new();
        }
        lock(&self.by_epoch).clear();
    }

    /// The number of entries with one of these numbers as their epoch.
    pub(super) fn entries(&self, epochs: &[u64]) -> u64 {
        let by_epoch = lock(&self.by_epoch);
        let entries = epochs.iter().filter_map(|epoch| by_epoch.get(epoch));
        entries.sum()
    }

    fn count(&self, gone: Option<Place>, new: Option<Place>) {
        let mut by_epoch = lock(&self.by_epoch);
        if let Some(place) = new {
            *by_epoch.entry(place.epoch()).or_insert(0) += 1;
        }
        if let Some(place) = gone
            && let Some(entries) = by_epoch.get_mut(&place.epoch())
        {
            *entries -= 1;
            if *entries == 0 {
                by_epoch.remove(&place.epoch());
            }
        }
    }

    fn shard(&self, hash: KeyHash) -> MutexGuard<'_, HashMap<KeyHash, Place>> {
        lock(&self.shards[usize::from(hash.0[0]) % SHARDS])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
