//! Keys that left the small queue untouched not long ago: fingerprints in buckets, eight bytes a key.
//!
//! Approximate, which costs hits and nothing else: where too many fingerprints meet in a bucket the oldest are
//! forgotten early, and a key is taken for another one in 2^32 times.

/// Fingerprints of one bucket, a line of the processor's cache.
const WAYS: usize = 8;

/// A ghost of this age is none.
const LONG_AGO: u32 = 1 << 31;

#[derive(Clone, Copy, Default)]
struct Ghost {
    fingerprint: u32,
    turn: u32,
}

/// A FIFO of fingerprints, bounded by its caller.
pub(super) struct Ghosts {
    buckets: Vec<[Ghost; WAYS]>,
    turn: u32,
    /// Ghosts older than this many turns have gone.
    kept: u32,
}

impl Ghosts {
    pub(super) fn new() -> Self {
        Self {
            buckets: Vec::new(),
            turn: LONG_AGO,
            kept: 0,
        }
    }

    /// Remembers a key by its hash, and about as many as `count` in all.
    pub(super) fn remember(&mut self, hash: u64, count: usize) {
        let slots = self.buckets.len() * WAYS;
        if slots < count || slots > 2 * (count + WAYS) {
            self.resize(count);
        }
        self.kept = u32::try_from(count).unwrap_or(LONG_AGO).min(LONG_AGO - 1);
        self.turn = self.turn.wrapping_add(1);
        self.place(Ghost {
            fingerprint: fingerprint(hash),
            turn: self.turn,
        });
    }

    /// Whether the key is remembered; it is forgotten with that.
    pub(super) fn take(&mut self, hash: u64) -> bool {
        let (turn, kept) = (self.turn, self.kept);
        let fingerprint = fingerprint(hash);
        let found = self.bucket(fingerprint).and_then(|bucket| {
            bucket.iter_mut().find(|ghost| {
                ghost.fingerprint == fingerprint && turn.wrapping_sub(ghost.turn) < kept
            })
        });
        if let Some(ghost) = found {
            ghost.turn = turn.wrapping_sub(LONG_AGO);
            return true;
        }
        false
    }

    /// Puts the ghost where its key was before, or else in the place of the oldest.
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

    /// Fingerprints keep their order from bucket to bucket, so that they alone tell their place in a larger table.
    fn bucket(&mut self, fingerprint: u32) -> Option<&mut [Ghost; WAYS]> {
        let index = (u64::from(fingerprint) * self.buckets.len() as u64) >> 32;
        self.buckets.get_mut(index as usize)
    }

    /// A little more than `count`, so that it is seldom done.
    fn resize(&mut self, count: usize) {
        let buckets = (count + count / 8) / WAYS + 1;
        let old = std::mem::replace(&mut self.buckets, vec![Default::default(); buckets]);
        for ghost in old.into_iter().flatten() {
            if self.turn.wrapping_sub(ghost.turn) < self.kept {
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
        numbers.filter(|&number| ghosts.take(hash(number))).count()
    }

    #[test]
    fn the_youngest_are_remembered_once() {
        let mut ghosts = Ghosts::new();
        assert!(!ghosts.take(hash(1)));
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
        assert!(ghosts.buckets.len() * WAYS <= 11_000 * 9 / 8 + WAYS);
        ghosts.remember(hash(10_000), 2_000);
        assert!(ghosts.buckets.len() * WAYS <= 2_000 * 9 / 8 + WAYS);
        let young = left(&mut ghosts, 8_001..10_001);
        assert!(young > 1_700, "{young}");
        assert_eq!(left(&mut ghosts, 0..8_000), 0);
    }
}
