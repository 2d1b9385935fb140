//! Pseudo-random numbers that are the same in every run.

/// A generator of pseudo-random numbers; the seed must not be 0.
pub(crate) struct SeededRng(pub(crate) u64);

impl SeededRng {
    /// Marsaglia's xorshift, 2003.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.bits() >> 33) as usize % bound
    }
}
