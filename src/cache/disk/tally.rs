//! A tally of everything stored: it shows whether a part is missing or from an earlier state, and how many entries have
//! a current epoch.

use std::collections::HashMap;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::cache::disk::layout::{MARK_KEY, stored_epoch};

/// The number of entries, and a digest of entries and mark.
///
/// The digest is the sum of one hash for each key and the checksum at the start of its value, so that it can be updated
/// with every change and does not depend on their order (AdHash: Bellare and Micciancio, "A New Paradigm for
/// Collision-Free Hashing", EUROCRYPT 1997). It shows accidents; it does not protect against deliberate changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// sled could count them only by reading the whole tree.
    entries: u64,
    digest: u64,
    /// The number of entries by the number of their epoch, of which there are few.
    by_epoch: HashMap<u64, u64>,
}

impl Tally {
    /// Counts a value in, of which `start` is at least the first 18 bytes.
    pub(super) fn add(&mut self, key: &[u8], start: &[u8]) {
        self.digest = self.digest.wrapping_add(hash(key, start));
        if key != MARK_KEY {
            self.entries = self.entries.wrapping_add(1);
            if let Some(epoch) = stored_epoch(start) {
                *self.by_epoch.entry(epoch).or_insert(0) += 1;
            }
        }
    }

    /// The inverse of [`Tally::add`].
    pub(super) fn remove(&mut self, key: &[u8], start: &[u8]) {
        self.digest = self.digest.wrapping_sub(hash(key, start));
        if key != MARK_KEY {
            self.entries = self.entries.wrapping_sub(1);
            let epoch = stored_epoch(start).unwrap_or_default();
            if let Some(entries) = self.by_epoch.get_mut(&epoch) {
                *entries -= 1;
                if *entries == 0 {
                    self.by_epoch.remove(&epoch);
                }
            }
        }
    }

    /// The number of entries with this number as their epoch.
    pub(super) fn entries_of(&self, epoch: u64) -> u64 {
        self.by_epoch.get(&epoch).copied().unwrap_or(0)
    }

    /// Checksum (8 bytes, XXH3 over the rest), number (8), digest (8).
    pub(super) fn encode(&self) -> Vec<u8> {
        let rest = [self.entries.to_be_bytes(), self.digest.to_be_bytes()].concat();
        let mut value = xxh3_64(&rest).to_be_bytes().to_vec();
        value.extend_from_slice(&rest);
        value
    }
}

fn hash(key: &[u8], start: &[u8]) -> u64 {
    match start.first_chunk::<8>() {
        Some(checksum) => xxh3_64_with_seed(key, u64::from_be_bytes(*checksum)),
        None => xxh3_64(key),
    }
}
