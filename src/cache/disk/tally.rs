//! A tally of all that is stored, to tell a whole tree from one of which a part is missing or of an earlier state, and
//! entries that are overtaken as a whole from others.

use std::collections::HashMap;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::cache::disk::layout::{MARK_KEY, stored_epoch};

/// The number of entries, and a digest of entries and mark.
///
/// The digest is the sum of a hash of each key and the checksum at the beginning of its value, so that it follows every
/// change and does not depend on the order (AdHash: Bellare and Micciancio, "A New Paradigm for Collision-Free
/// Hashing", EUROCRYPT 1997). It is there for accidents, not against somebody who can write the files.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// sled counts by walking the tree.
    entries: u64,
    digest: u64,
    /// Of the entries, by the number that they bear; few numbers, each with an entry.
    by_epoch: HashMap<u64, u64>,
}

impl Tally {
    /// `begin` is at least the first 18 bytes of the value.
    pub(super) fn add(&mut self, key: &[u8], begin: &[u8]) {
        self.digest = self.digest.wrapping_add(hash(key, begin));
        if key != MARK_KEY {
            self.entries = self.entries.wrapping_add(1);
            if let Some(epoch) = stored_epoch(begin) {
                *self.by_epoch.entry(epoch).or_insert(0) += 1;
            }
        }
    }

    /// The contrary of [`Tally::add`].
    pub(super) fn remove(&mut self, key: &[u8], begin: &[u8]) {
        self.digest = self.digest.wrapping_sub(hash(key, begin));
        if key != MARK_KEY {
            self.entries = self.entries.wrapping_sub(1);
            let epoch = stored_epoch(begin).unwrap_or_default();
            if let Some(entries) = self.by_epoch.get_mut(&epoch) {
                *entries -= 1;
                if *entries == 0 {
                    self.by_epoch.remove(&epoch);
                }
            }
        }
    }

    /// Entries that bear this number.
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

fn hash(key: &[u8], begin: &[u8]) -> u64 {
    match begin.first_chunk::<8>() {
        Some(checksum) => xxh3_64_with_seed(key, u64::from_be_bytes(*checksum)),
        None => xxh3_64(key),
    }
}
