//! memory tier

/// Bounds of the memory tier.
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// Documents, keys and overhead together, in bytes.
    pub bytes_max: u64,
}
