//! A tally of all that is stored, to tell a whole tree from one of which a part is missing or of an earlier state.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::cache::disk::layout::MARK_KEY;

/// The number of entries, and a digest of entries and mark.
///
/// The digest is the sum of a hash of each key and the checksum at the beginning of its value, so that it follows every
/// change and does not depend on the order (AdHash: Bellare and Micciancio, "A New Paradigm for Collision-Free
/// Hashing", EUROCRYPT 1997). It is there for accidents, not against somebody who can write the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// sled counts by walking the tree.
    pub(super) entries: u64,
    digest: u64,
}

impl Tally {
    /// `begin` is at least the first 8 bytes of the value.
    pub(super) fn add(&mut self, key: &[u8], begin: &[u8]) {
        self.entries = self.entries.wrapping_add(u64::from(key != MARK_KEY));
        self.digest = self.digest.wrapping_add(hash(key, begin));
    }

    /// The contrary of [`Tally::add`].
    pub(super) fn remove(&mut self, key: &[u8], begin: &[u8]) {
        self.entries = self.entries.wrapping_sub(u64::from(key != MARK_KEY));
        self.digest = self.digest.wrapping_sub(hash(key, begin));
    }

    /// Checksum (8 bytes, XXH3 over the rest), number (8), digest (8).
    pub(super) fn encode(self) -> Vec<u8> {
        let rest = [self.entries.to_be_bytes(), self.digest.to_be_bytes()].concat();
        let mut value = xxh3_64(&rest).to_be_bytes().to_vec();
        value.extend_from_slice(&rest);
        value
    }

    pub(super) fn decode(value: &[u8]) -> Option<Self> {
        let (checksum, rest) = value.split_first_chunk::<8>()?;
        let (entries, digest) = rest.split_first_chunk::<8>()?;
        let tally = Self {
            entries: u64::from_be_bytes(*entries),
            digest: u64::from_be_bytes(digest.try_into().ok()?),
        };
        (xxh3_64(rest).to_be_bytes() == *checksum).then_some(tally)
    }
}

fn hash(key: &[u8], begin: &[u8]) -> u64 {
    match begin.first_chunk::<8>() {
        Some(checksum) => xxh3_64_with_seed(key, u64::from_be_bytes(*checksum)),
        None => xxh3_64(key),
    }
}
