//! The disk tier's files: the only place that knows sled.
//!
//! One tree holds the entries and the mark, so that a batch of both is atomic. Everything read back is checked; what
//! does not fit is as good as not there. sled panics on some damage, so every call is caught and becomes an error:
//! who sees one gives the whole directory up.
//!
//! What a value looks like is told in `layout`, and in `chunk` how it is cut.

mod chunk;
pub(super) mod layout;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::cache::disk::layout::{
    Entry, Mark, decode, decode_mark, encode, encode_mark, entry_key,
};
use crate::cache::document::Found;

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

const MARK_KEY: &[u8] = b"m";

/// Attempts to open a directory, and the pause between them.
const OPEN_ATTEMPTS: u32 = 10;
const OPEN_PAUSE: Duration = Duration::from_millis(50);

/// Why the disk tier failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum DiskError {
    #[error("sled: {0}")]
    Sled(#[from] sled::Error),
    #[error("sled panicked: {0}")]
    Panicked(String),
    #[error("it is closed")]
    Closed,
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("the mark can't be written: {0}")]
    Mark(String),
}

/// An open directory.
pub(super) struct Store {
    /// Taken out by drop alone.
    db: Option<sled::Db>,
    /// sled counts by walking the tree, so the count is kept here and in the mark.
    entries: AtomicU64,
}

/// What one write does; the last word on a key counts.
#[derive(Default)]
pub(super) struct Batch {
    changes: HashMap<Vec<u8>, Option<Vec<u8>>>,
    mark: Option<Mark>,
}

impl Batch {
    pub(super) fn put(&mut self, prefix: u64, key: &str, epoch: u64, found: &Found) {
        self.changes
            .insert(entry_key(prefix, key), Some(encode(key, epoch, found)));
    }

    pub(super) fn remove(&mut self, prefix: u64, key: &str) {
        self.changes.insert(entry_key(prefix, key), None);
    }

    pub(super) fn mark(&mut self, mark: Mark) {
        self.mark = Some(mark);
    }

    /// Puts and removals.
    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }
}

impl Store {
    /// Opens or creates the directory. May take long on a large one.
    pub(super) fn open(directory: &Path, cache_bytes: u64) -> Result<Self, DiskError> {
        let config = sled::Config::new()
            .path(directory)
            .cache_capacity(cache_bytes);
        let mut attempt = 1;
        let db = loop {
            match caught(|| config.open()) {
                // sled's threads let go of the lock a little after its last handle has gone.
                Err(DiskError::Sled(sled::Error::Io(_))) if attempt < OPEN_ATTEMPTS => {
                    attempt += 1;
                    std::thread::sleep(OPEN_PAUSE);
                }
                outcome => break outcome?,
            }
        };
        Ok(Self {
            db: Some(db),
            entries: AtomicU64::new(0),
        })
    }

    /// The entry of the key that bears `epoch`, if it is whole.
    pub(super) fn get(
        &self,
        prefix: u64,
        key: &str,
        epoch: u64,
    ) -> Result<Option<Entry>, DiskError> {
        let value = self.call(|db| chunk::get(db, &entry_key(prefix, key)))?;
        Ok(value.and_then(|value| decode(&value, key, epoch)))
    }

    /// Applies the batch, all of it or nothing.
    pub(super) fn apply(&self, batch: Batch) -> Result<(), DiskError> {
        let mut entries = self.entries();
        let mut inner = sled::Batch::default();
        for (key, value) in batch.changes {
            let was_there = self.call(|db| chunk::remove(db, &mut inner, &key))?;
            entries = entries.saturating_sub(u64::from(was_there));
            if let Some(value) = value {
                entries += 1;
                chunk::insert(&mut inner, &key, &value);
            }
        }
        if let Some(mark) = batch.mark {
            self.call(|db| chunk::remove(db, &mut inner, MARK_KEY))?;
            let mark = encode_mark(&Mark { entries, ..mark })?;
            chunk::insert(&mut inner, MARK_KEY, &mark);
        }
        self.call(|db| db.apply_batch(inner))?;
        self.entries.store(entries, Ordering::Relaxed);
        Ok(())
    }

    /// The mark, if there is one that is whole.
    pub(super) fn mark(&self) -> Result<Option<Mark>, DiskError> {
        let value = self.call(|db| chunk::get(db, MARK_KEY))?;
        let mark = value.and_then(|value| decode_mark(&value));
        if let Some(mark) = &mark {
            self.entries.store(mark.entries, Ordering::Relaxed);
        }
        Ok(mark)
    }

    fn call<T>(&self, call: impl FnOnce(&sled::Db) -> sled::Result<T>) -> Result<T, DiskError> {
        match &self.db {
            Some(db) => caught(|| call(db)),
            None => Err(DiskError::Closed),
        }
    }

    /// Holds nothing any more, not even a mark.
    #[cfg(test)]
    pub(super) fn empty(&self) -> Result<(), DiskError> {
        self.entries.store(0, Ordering::Relaxed);
        self.call(|db| db.clear())
    }

    pub(super) fn bytes(&self) -> Result<u64, DiskError> {
        self.call(|db| db.size_on_disk())
    }

    pub(super) fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    pub(super) fn flush(&self) -> Result<(), DiskError> {
        self.call(|db| db.flush()).map(|_| ())
    }
}

impl Drop for Store {
    /// sled flushes when its last handle goes, and may panic there as anywhere.
    fn drop(&mut self) {
        if let Some(db) = self.db.take()
            && let Err(error) = caught(|| {
                drop(db);
                Ok(())
            })
        {
            tracing::warn!("closing the disk tier: {error}");
        }
    }
}

/// Runs one call into sled; a panic becomes an error.
fn caught<T>(call: impl FnOnce() -> sled::Result<T>) -> Result<T, DiskError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => Ok(result?),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(DiskError::Panicked(text.unwrap_or("no message").to_owned()))
        }
    }
}

/// What the kernel calls this boot of the machine; empty where it does not say.
pub(super) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::cache::disk::layout::ResourceMark;
    use crate::cache::disk::layout::tests::document;

    #[test]
    fn a_batch_is_atomic_with_its_mark_and_survives_reopening() {
        let directory = tempfile::tempdir().unwrap();
        let mark = Mark {
            system: "1".into(),
            database: 2,
            epoch_table: 3,
            nonce: Uuid::nil().to_string(),
            position: "1:1:".into(),
            resources: vec![ResourceMark {
                prefix: 9,
                fingerprint: "f".into(),
                epoch: 7,
            }],
            boot: boot_id(),
            clean: false,
            entries: 0,
        };
        {
            let store = Store::open(directory.path(), 1 << 20).unwrap();
            let mut batch = Batch::default();
            batch.put(9, "42", 7, &document("{}"));
            batch.put(9, "43", 7, &None);
            batch.remove(9, "42");
            batch.mark(mark.clone());
            store.apply(batch).unwrap();
            store.flush().unwrap();
        }
        let store = Store::open(directory.path(), 1 << 20).unwrap();
        assert_eq!(store.get(9, "42", 7).unwrap(), None);
        assert_eq!(
            store.get(9, "43", 7).unwrap().map(|entry| entry.found),
            Some(None)
        );
        assert_eq!(store.mark().unwrap(), Some(Mark { entries: 1, ..mark }));
        assert_eq!(store.entries(), 1);
    }

    #[test]
    fn no_page_outgrows_the_log() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), 1 << 20).unwrap();
        for round in 0..20 {
            let mut batch = Batch::default();
            for number in 0..20 {
                let key = format!("{}{round}-{number}", "k".repeat(number * 200));
                batch.put(9, &key, 7, &document(&"x".repeat(number * 3_000)));
            }
            store.apply(batch).unwrap();
            let key = format!("{}{round}-19", "k".repeat(3_800));
            let entry = store.get(9, &key, 7).unwrap().unwrap();
            assert_eq!(entry.found.unwrap().body.len(), 57_000);
        }
        store.flush().unwrap();
        let blobs = std::fs::read_dir(directory.path().join("blobs")).unwrap();
        assert_eq!(blobs.count(), 0);
    }
}
