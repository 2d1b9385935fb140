//! Ghosts: keys that were evicted from the small queue not long ago, as fingerprints in buckets, eight bytes for each.
//!
//! It is approximate, which can cost hits, but no correctness: if too many fingerprints fall into one bucket, the
//! oldest are forgotten early, and one key in 2^32 is taken for another.

/// Ghosts in a bucket, which fills one line of the processor's cache.
const GHOSTS_PER_BUCKET: usize = 8;

/// A ghost of this age has been forgotten.
const LONG_AGO: u32 = 1 << 31;

#[derive(Clone, Copy, Default)]
struct Ghost {
    fingerprint: u32,
    /// The value of [`Ghosts::turn`] when it was remembered.
    turn: u32,
}

/// A FIFO of fingerprints. Its caller bounds the number.
pub(super) struct Ghosts {
    buckets: Vec<[Ghost; GHOSTS_PER_BUCKET]>,
    /// Counts the ghosts that were remembered so far.
    turn: u32,
    /// Ghosts of this age, in turns, are forgotten.
    age_max: u32,
}

impl Ghosts {
    pub(super) fn new() -> Self {
        Self {
            buckets: Vec::new(),
            turn: LONG_AGO,
            age_max: 0,
        }
    }

    /// Remembers a key by its hash, and about `count` keys in all.
    pub(super) fn remember(&mut self, hash: u64, count: usize) {
        let slots = self.buckets.len() * GHOSTS_PER_BUCKET;
        if slots < count || slots > 2 * (count + GHOSTS_PER_BUCKET) {
            self.resize(count);
        }
        self.age_max = u32::try_from(count).unwrap_or(LONG_AGO).min(LONG_AGO - 1);
        self.turn = self.turn.wrapping_add(1);
        self.place(Ghost {
            fingerprint: fingerprint(hash),
            turn: self.turn,
        });
    }

    /// Forgets the key. Returns whether it was remembered.
    pub(super) fn remove(&mut self, hash: u64) -> bool {
        let (turn, age_max) = (self.turn, self.age_max);
        let fingerprint = fingerprint(hash);
        let found = self.bucket(fingerprint).and_then(|bucket| {
            bucket.iter_mut().find(|ghost| {
                ghost.fingerprint == fingerprint && turn.wrapping_sub(ghost.turn) < age_max
            })
        });
        if let Some(ghost) = found {
            ghost.turn = turn.wrapping_sub(LONG_AGO);
            return true;
        }
        false
    }

    /// Replaces the ghost of the same key, or else the oldest of the bucket.
    fn place(&mut self, ghost: Ghost) {
        let now = self.turn;
        let age = |other: &Ghost| {
            if other.fingerprint == ghost.fingerprint {
                u32::MAX
            } else {
                now.wrapping_sub(other.turn)
            }
        };
        let bucket = self.bucket(ghost.fingerprint);
        if let Some(oldest) = bucket.and_then(|bucket| bucket.iter_mut().max_by_key(|g| age(g))) {
            *oldest = ghost;
        }
    }

    /// The bucket of a fingerprint. Buckets are in the order of fingerprints, so the place in a table of another size
    /// follows from the fingerprint alone.
    fn bucket(&mut self, fingerprint: u32) -> Option<&mut [Ghost; GHOSTS_PER_BUCKET]> {
        let index = (u64::from(fingerprint) * self.buckets.len() as u64) >> 32;
        self.buckets.get_mut(index as usize)
    }

    /// Makes room for a little more than `count`, so that the next resize is not soon.
    fn resize(&mut self, count: usize) {
        let buckets = (count + count / 8) / GHOSTS_PER_BUCKET + 1;
        let old = std::mem::replace(&mut self.buckets, vec![Default::default(); buckets]);
        for ghost in old.into_iter().flatten() {
            if self.turn.wrapping_sub(ghost.turn) < self.age_max {
                self.place(ghost);
            }
        }
    }
}

fn fingerprint(hash: u64) -> u32 {
    (hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The finaliser of SplitMix64, for hashes that are spread.
    fn hash(number: u64) -> u64 {
        let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn left(ghosts: &mut Ghosts, numbers: std::ops::Range<u64>) -> usize {
        numbers
            .filter(|&number| ghosts.remove(hash(number)))
            .count()
    }

    #[test]
    fn the_youngest_are_remembered_once() {
        let mut ghosts = Ghosts::new();
        assert!(!ghosts.remove(hash(1)));
        for number in 0..100_000 {
            ghosts.remember(hash(number), 10_000);
        }
        assert_eq!(left(&mut ghosts, 0..90_000), 0);
        let young = left(&mut ghosts, 90_000..100_000);
        assert!(young > 8_500, "{young}");
        assert_eq!(left(&mut ghosts, 90_000..100_000), 0);
    }

    #[test]
    fn growing_and_shrinking_keep_the_youngest() {
        let mut ghosts = Ghosts::new();
        for number in 0..10_000 {
            ghosts.remember(hash(number), 1_000 + number as usize);
        }
        assert!(ghosts.buckets.len() * GHOSTS_PER_BUCKET <= 11_000 * 9 / 8 + GHOSTS_PER_BUCKET);
        ghosts.remember(hash(10_000), 2_000);
        assert!(ghosts.buckets.len() * GHOSTS_PER_BUCKET <= 2_000 * 9 / 8 + GHOSTS_PER_BUCKET);
        let young = left(&mut ghosts, 8_001..10_001);
        assert!(young > 1_700, "{young}");
        assert_eq!(left(&mut ghosts, 0..8_000), 0);
    }
}
