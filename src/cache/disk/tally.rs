//! A tally of everything stored in a segment: it shows whether a part is missing or from an earlier state.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The number of values, and a digest of them.
///
/// The digest is the sum of one hash for each key and the checksum at the start of its value, so that it can be updated
/// with every change and does not depend on their order (AdHash: Bellare and Micciancio, "A New Paradigm for
/// Collision-Free Hashing", EUROCRYPT 1997). It shows accidents; it does not protect against deliberate changes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    values: u64,
    digest: u64,
}

impl Tally {
    /// Counts a value in, of which `start` is at least the first 8 bytes.
    pub(super) fn add(&mut self, key: &[u8], start: &[u8]) {
        self.values = self.values.wrapping_add(1);
        self.digest = self.digest.wrapping_add(hash(key, start));
    }

    /// The inverse of [`Tally::add`].
    pub(super) fn remove(&mut self, key: &[u8], start: &[u8]) {
        self.values = self.values.wrapping_sub(1);
        self.digest = self.digest.wrapping_sub(hash(key, start));
    }

    /// Checksum (8 bytes, XXH3 over the rest), number (8), digest (8).
    pub(super) fn encode(&self) -> Vec<u8> {
        let rest = [self.values.to_be_bytes(), self.digest.to_be_bytes()].concat();
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
