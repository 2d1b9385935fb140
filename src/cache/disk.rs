//! disk tier
use std::path::PathBuf;
use std::time::Duration;

/// Bounds and place of the disk tier.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// The directory that holds the tier's files.
    pub directory: PathBuf,
    /// Bytes on disk past which the tier starts again empty.
    pub bytes_max: u64,
    /// sled's page cache, in bytes.
    pub cache_bytes: u64,
    /// Entries per write.
    pub batch_entries: usize,
    /// The longest wait of an entry for its batch.
    pub linger: Duration,
}
