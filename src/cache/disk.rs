//! The disk tier's files: the only place that knows sled.
//!
//! One tree holds the entries and the mark, so that a batch of both is atomic. Everything read back is checked; what
//! does not fit is as good as not there. sled panics on some damage, so every call is caught and becomes an error:
//! who sees one gives the whole directory up.
//!
//! Entry: key as `entry_key`, value as `encode` lays it out, in chunks.

mod chunk;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::cache::document::{Document, Found};
use crate::feed::position::Position;
use crate::source::session::Identity;

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

/// The layout of entries and mark; another number, another layout.
const FORMAT: u8 = 1;
const MARK_KEY: &[u8] = b"m";

/// Longer keys are hashed, so that an index page of 256 of them stays far below what sled's log takes (see `chunk`).
const KEY_TEXT_BYTES_MAX: usize = 64;

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

/// How far the tier's content reflects the database, stored with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    pub(super) system: String,
    pub(super) database: u32,
    pub(super) epoch_table: u32,
    pub(super) nonce: String,
    pub(super) position: String,
    pub(super) resources: Vec<ResourceMark>,
    /// The machine's boot: what was written before a crash of the machine is not trusted.
    pub(super) boot: String,
    /// Written as the last act of an orderly shutdown.
    pub(super) clean: bool,
    /// Entries beside this mark.
    pub(super) entries: u64,
}

/// What is kept of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) found: Found,
    /// When it was written.
    pub(super) since: SystemTime,
}

/// What entries of one resource must bear to be trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ResourceMark {
    pub(super) prefix: u64,
    pub(super) fingerprint: String,
    pub(super) epoch: u64,
}

impl Mark {
    /// The database it was written for.
    pub(super) fn identity(&self) -> Option<Identity> {
        Some(Identity {
            system: self.system.clone(),
            database: self.database,
            epoch_table: self.epoch_table,
            nonce: Uuid::try_parse(&self.nonce).ok()?,
        })
    }

    pub(super) fn position(&self) -> Position {
        Position::new(&self.position)
    }
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

/// `d`, prefix (8 bytes), key text; or `h`, prefix, XXH3-128 of the text where that is long. The value bears the whole
/// key, so two keys of one hash are never taken for each other.
fn entry_key(prefix: u64, key: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(9 + key.len().min(KEY_TEXT_BYTES_MAX));
    bytes.push(b'd');
    bytes.extend_from_slice(&prefix.to_be_bytes());
    if key.len() <= KEY_TEXT_BYTES_MAX {
        bytes.extend_from_slice(key.as_bytes());
    } else {
        bytes[0] = b'h';
        bytes.extend_from_slice(&xxh3_128(key.as_bytes()).to_be_bytes());
    }
    bytes
}

/// Checksum (8 bytes, XXH3 over the rest), format, flag (1: there is a document), epoch (8), time of writing (8,
/// milliseconds since 1970), key length (4), key, body.
fn encode(key: &str, epoch: u64, found: &Found) -> Vec<u8> {
    let body = found.as_ref().map_or(&[][..], |document| &document.body);
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let since = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    let mut value = Vec::with_capacity(30 + key.len() + body.len());
    value.extend_from_slice(&[0; 8]);
    value.push(FORMAT);
    value.push(u8::from(found.is_some()));
    value.extend_from_slice(&epoch.to_be_bytes());
    value.extend_from_slice(&since.to_be_bytes());
    // Keys are bounded by KEY_BYTES_MAX for each part, far below 2^32.
    value.extend_from_slice(&(key.len() as u32).to_be_bytes());
    value.extend_from_slice(key.as_bytes());
    value.extend_from_slice(body);
    let checksum = xxh3_64(&value[8..]);
    value[..8].copy_from_slice(&checksum.to_be_bytes());
    value
}

fn decode(value: &[u8], key: &str, epoch: u64) -> Option<Entry> {
    let (checksum, rest) = value.split_first_chunk::<8>()?;
    if xxh3_64(rest).to_be_bytes() != *checksum {
        return None;
    }
    let (&[format, flag], rest) = rest.split_first_chunk::<2>()?;
    let (stored_epoch, rest) = rest.split_first_chunk::<8>()?;
    let (since, rest) = rest.split_first_chunk::<8>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (stored_key, body) = rest.split_at_checked(length)?;
    let fits = format == FORMAT
        && u64::from_be_bytes(*stored_epoch) == epoch
        && stored_key == key.as_bytes();
    let found = match flag {
        _ if !fits => return None,
        0 => None,
        1 => Some(Arc::new(Document::new(Bytes::copy_from_slice(body)))),
        _ => return None,
    };
    let since = Duration::from_millis(u64::from_be_bytes(*since));
    Some(Entry {
        found,
        since: SystemTime::UNIX_EPOCH.checked_add(since)?,
    })
}

fn encode_mark(mark: &Mark) -> Result<Vec<u8>, DiskError> {
    let json = simd_json::to_vec(mark).map_err(|error| DiskError::Mark(error.to_string()))?;
    let mut value = xxh3_64(&json).to_be_bytes().to_vec();
    value.push(FORMAT);
    value.extend_from_slice(&json);
    Ok(value)
}

fn decode_mark(value: &[u8]) -> Option<Mark> {
    let (checksum, rest) = value.split_first_chunk::<8>()?;
    let (&format, json) = rest.split_first()?;
    if format != FORMAT || xxh3_64(json).to_be_bytes() != *checksum {
        return None;
    }
    simd_json::from_slice(&mut json.to_vec()).ok()
}

/// What the kernel calls this boot of the machine; empty where it does not say.
pub(super) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Found {
        Some(Arc::new(Document::new(Bytes::copy_from_slice(
            text.as_bytes(),
        ))))
    }

    #[test]
    fn entries_round_trip_and_damage_is_seen() {
        for found in [document("{\"a\":1}"), None] {
            let value = encode("42", 7, &found);
            assert_eq!(
                decode(&value, "42", 7).map(|entry| entry.found),
                Some(found.clone())
            );
            assert_eq!(decode(&value, "43", 7), None);
            assert_eq!(decode(&value, "42", 8), None);
            for position in 0..value.len() {
                let mut damaged = value.clone();
                damaged[position] ^= 1;
                assert_eq!(decode(&damaged, "42", 7), None, "byte {position}");
                assert_eq!(
                    decode(&value[..position], "42", 7),
                    None,
                    "cut at {position}"
                );
            }
        }
    }

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
