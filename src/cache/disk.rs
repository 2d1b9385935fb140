//! The disk tier's files. Only this module and its children name sled.
//!
//! One tree holds the entries and the mark, so that a batch of both is atomic. Everything read is checked, and a value
//! that fails a check is treated as missing. sled panics on some damage, so panics are caught and returned as errors.
//! After any error the whole directory has to be replaced.
//!
//! Damage to sled's log can bring back an earlier version of a page, with documents that were overtaken since, or lose
//! newer ones. So every batch also writes a tally of the whole content, and a directory is used only if its content
//! agrees with its tally.
//!
//! `layout` describes the values, and `chunk` how they are split.

mod chunk;
pub(super) mod directory;
pub mod layout;
mod tally;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cache::disk::layout::{
    DiskEntry, MARK_KEY, Mark, TALLY_KEY, decode, decode_mark, encode, encode_mark, entry_key,
    hashed_key_prefix, is_same_entry, key_text,
};
use crate::cache::disk::tally::Tally;
use crate::cache::document::Found;
use crate::cache::generation::Epoch;
use crate::feed::ranges::Ranges;

/// Bounds and place of the disk tier.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// The directory that holds the tier's files.
    pub directory: PathBuf,
    /// Bytes on disk, beyond which the tier is emptied.
    pub bytes_max: u64,
    /// sled's page cache, in bytes.
    pub cache_bytes: u64,
    /// Entries in one batch, at most.
    pub batch_entries: usize,
    /// How long an order waits for more orders, at most.
    pub linger: Duration,
}

/// Entries that a sweep removes in one batch, at most.
const SWEEP_BATCH_ENTRIES: usize = 10_000;

/// Attempts to open a directory, and the pause between them.
const OPEN_ATTEMPTS: u32 = 10;
const OPEN_PAUSE: Duration = Duration::from_millis(50);

/// An error of the disk tier.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// An error of sled.
    #[error("sled: {0}")]
    Sled(#[from] sled::Error),
    /// A panic of sled.
    #[error("sled panicked: {0}")]
    Panicked(String),
    /// The files are being closed.
    #[error("the files are closed")]
    Closed,
    /// An error of the directory.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The mark can't be written as JSON.
    #[error("the mark can't be written: {0}")]
    Mark(String),
    /// The content does not agree with its tally.
    #[error("some entries are missing or are from an earlier state")]
    Damaged,
}

/// An open directory.
pub struct Store {
    /// `None` only in drop.
    db: Option<sled::Db>,
    /// Of the whole content.
    tally: Mutex<Tally>,
}

/// Changes that are written together. Of several for one key the last counts.
#[derive(Default)]
pub struct DiskBatch {
    changes: HashMap<Vec<u8>, Option<Vec<u8>>>,
    mark: Option<Mark>,
}

impl DiskBatch {
    /// Writes the key's document or absence.
    pub fn put(&mut self, prefix: u64, key: &str, epoch: Epoch, found: &Found) {
        self.changes
            .insert(entry_key(prefix, key), Some(encode(key, epoch, found)));
    }

    pub(super) fn remove(&mut self, prefix: u64, key: &str) {
        self.changes.insert(entry_key(prefix, key), None);
    }

    pub(super) fn mark(&mut self, mark: Mark) {
        self.mark = Some(mark);
    }

    /// The number of entries that are written or removed.
    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }
}

impl Store {
    /// Opens or creates the directory. May take long on a large one.
    ///
    /// # Errors
    /// Those of sled and of the directory.
    pub fn open(directory: &Path, cache_bytes: u64) -> Result<Self, DiskError> {
        let config = sled::Config::new()
            .path(directory)
            .cache_capacity(cache_bytes);
        let mut attempt = 1;
        let db = loop {
            match catch_panic(|| config.open()) {
                // sled's threads release the lock a little after the last handle is dropped.
                Err(DiskError::Sled(sled::Error::Io(_))) if attempt < OPEN_ATTEMPTS => {
                    attempt += 1;
                    std::thread::sleep(OPEN_PAUSE);
                }
                outcome => break outcome?,
            }
        };
        Ok(Self {
            db: Some(db),
            tally: Mutex::default(),
        })
    }

    /// The entry of the key, if it has `epoch` and is not damaged. `goes_on` is called after each chunk of it; the entry
    /// counts as missing if it returns false.
    ///
    /// # Errors
    /// Those of sled.
    pub fn get(
        &self,
        prefix: u64,
        key: &str,
        epoch: Epoch,
        goes_on: impl FnMut() -> bool,
    ) -> Result<Option<DiskEntry>, DiskError> {
        let value = self.call(|db| chunk::get(db, &entry_key(prefix, key), goes_on))?;
        Ok(value.and_then(|value| decode(&value, key, epoch)))
    }

    /// Applies the batch, all of it or nothing.
    ///
    /// # Errors
    /// Those of sled.
    pub fn apply(&self, batch: DiskBatch) -> Result<(), DiskError> {
        let mut tally = self.lock_tally().clone();
        let mut inner = sled::Batch::default();
        let mark = batch.mark.as_ref().map(encode_mark).transpose()?;
        let mark = mark.map(|mark| (MARK_KEY.to_vec(), Some(mark)));
        for (key, value) in batch.changes.into_iter().chain(mark) {
            // As after a lookup that took too long. To write a long value costs far more than to read it.
            if let Some(value) = value.as_ref().filter(|value| chunk::is_long(value))
                && let Some(old) = self.call(|db| chunk::get(db, &key, || true))?
                && is_same_entry(&old, value)
            {
                continue;
            }
            let old = self.call(|db| chunk::remove(db, &mut inner, &key))?;
            if let Some(old) = old {
                tally.remove(&key, &old);
            }
            if let Some(value) = value {
                tally.add(&key, &value);
                chunk::insert(&mut inner, &key, &value);
            }
        }
        chunk::insert(&mut inner, TALLY_KEY, &tally.encode());
        self.call(|db| db.apply_batch(inner))?;
        *self.lock_tally() = tally;
        Ok(())
    }

    /// Removes the entries of this prefix whose keys are in the ranges, in batches. Also removes all entries with
    /// hashed keys, because hashes are not in the order of keys.
    pub(super) fn sweep(&self, prefix: u64, ranges: &Ranges) -> Result<(), DiskError> {
        for begin in ranges.beginnings() {
            let begin = entry_key(prefix, begin);
            self.sweep_from(&begin, |key| {
                key_text(key).is_some_and(|key| ranges.contains(key))
            })?;
        }
        self.sweep_from(&hashed_key_prefix(prefix), |_| true)
    }

    fn sweep_from(&self, begin: &[u8], covered: impl Fn(&[u8]) -> bool) -> Result<(), DiskError> {
        let mut from = begin.to_vec();
        loop {
            let (keys, next) = self.call(|db| {
                let mut keys = Vec::new();
                for item in chunk::keys(db, &from) {
                    let key = item?;
                    if !key.starts_with(begin) {
                        break;
                    }
                    if covered(&key) {
                        keys.push(key.to_vec());
                    }
                    if keys.len() == SWEEP_BATCH_ENTRIES {
                        return Ok((keys, Some(key.to_vec())));
                    }
                }
                Ok((keys, None))
            })?;
            if !keys.is_empty() {
                let changes = keys.into_iter().map(|key| (key, None)).collect();
                self.apply(DiskBatch {
                    changes,
                    mark: None,
                })?;
            }
            match next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// The mark, if there is one. Reads the whole content to compare it with its tally.
    ///
    /// # Errors
    /// [`DiskError::Damaged`] if they differ.
    pub(super) fn recover(&self) -> Result<Option<Mark>, DiskError> {
        let Some(value) = self.call(|db| chunk::get(db, TALLY_KEY, || true))? else {
            return Ok(None);
        };
        let tally = self.call(|db| {
            let mut tally = Tally::default();
            for item in chunk::value_starts(db) {
                let (key, start) = item?;
                if key != TALLY_KEY {
                    tally.add(&key, &start);
                }
            }
            Ok(tally)
        })?;
        if tally.encode() != *value {
            return Err(DiskError::Damaged);
        }
        let mark = self.call(|db| chunk::get(db, MARK_KEY, || true))?;
        *self.lock_tally() = tally;
        Ok(mark.and_then(|mark| decode_mark(&mark)))
    }

    fn lock_tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<T>(&self, call: impl FnOnce(&sled::Db) -> sled::Result<T>) -> Result<T, DiskError> {
        match &self.db {
            Some(db) => catch_panic(|| call(db)),
            None => Err(DiskError::Closed),
        }
    }

    /// Removes everything, the mark included.
    #[cfg(test)]
    pub(super) fn clear(&self) -> Result<(), DiskError> {
        *self.lock_tally() = Tally::default();
        self.call(|db| db.clear())
    }

    pub(super) fn bytes(&self) -> Result<u64, DiskError> {
        self.call(|db| db.size_on_disk())
    }

    /// The number of entries with one of these numbers as their epoch.
    pub(super) fn entries(&self, epochs: &[u64]) -> u64 {
        let tally = self.lock_tally();
        epochs.iter().map(|epoch| tally.entries_of(*epoch)).sum()
    }

    pub(super) fn flush(&self) -> Result<(), DiskError> {
        self.call(|db| db.flush()).map(|_| ())
    }
}

impl Drop for Store {
    /// sled flushes when its last handle is dropped, and may panic then, too.
    fn drop(&mut self) {
        if let Some(db) = self.db.take()
            && let Err(error) = catch_panic(|| {
                drop(db);
                Ok(())
            })
        {
            tracing::warn!("closing the disk tier: {error}");
        }
    }
}

/// Calls sled, and turns a panic into an error.
fn catch_panic<T>(call: impl FnOnce() -> sled::Result<T>) -> Result<T, DiskError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => Ok(result?),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(DiskError::Panicked(text.unwrap_or("no message").to_owned()))
        }
    }
}

/// The kernel's ID of this boot of the machine; empty if it can't be read.
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

    fn mark(position: &str) -> Mark {
        Mark {
            system: "1".into(),
            database: 2,
            epoch_table: 3,
            history: Uuid::nil().to_string(),
            nonce: Uuid::nil().to_string(),
            position: position.into(),
            resources: vec![ResourceMark {
                prefix: 9,
                fingerprint: "f".into(),
                epoch: 7,
                absences: 7,
            }],
            boot: boot_id(),
            clean: false,
        }
    }

    #[test]
    fn a_long_entry_is_not_written_again_unless_it_differs() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), 1 << 20).unwrap();
        let written_at = |epoch: u64, text: &str| {
            let mut batch = DiskBatch::default();
            batch.put(9, "42", Epoch::both(epoch), &document(text));
            store.apply(batch).unwrap();
            let entry = store
                .get(9, "42", Epoch::both(epoch), || true)
                .unwrap()
                .unwrap();
            assert_eq!(entry.found.unwrap().body(), text.as_bytes());
            entry.written_at
        };
        let long = |letter: &str| format!("\"{}\"", letter.repeat(10_000));
        let first = written_at(7, &long("a"));
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert_eq!(written_at(7, &long("a")), first);
        assert!(written_at(7, &long("b")) > first);
        assert!(written_at(8, &long("b")) > first);
        assert_eq!(store.entries(&[8]), 1);
    }

    #[test]
    fn a_batch_is_atomic_with_its_mark_and_survives_reopening() {
        let directory = tempfile::tempdir().unwrap();
        let mark = mark("1:1:");
        {
            let store = Store::open(directory.path(), 1 << 20).unwrap();
            let mut batch = DiskBatch::default();
            batch.put(9, "42", Epoch::both(7), &document("{}"));
            batch.put(9, "43", Epoch::both(7), &None);
            batch.remove(9, "42");
            batch.mark(mark.clone());
            store.apply(batch).unwrap();
            store.flush().unwrap();
        }
        let store = Store::open(directory.path(), 1 << 20).unwrap();
        assert_eq!(store.get(9, "42", Epoch::both(7), || true).unwrap(), None);
        assert_eq!(
            store
                .get(9, "43", Epoch::both(7), || true)
                .unwrap()
                .map(|entry| entry.found),
            Some(None)
        );
        assert_eq!(store.entries(&[7]), 0);
        assert_eq!(store.recover().unwrap(), Some(mark));
        assert_eq!(store.entries(&[7]), 1);
    }

    /// After damage to its log, sled may show some pages as they were earlier, each whole in itself.
    #[test]
    fn content_that_is_partly_of_an_earlier_state_is_not_used() {
        type Corruption = fn(&sled::Db, &sled::Db) -> sled::Result<()>;
        fn copy(from: &sled::Db, to: &sled::Db, key: &[u8]) -> sled::Result<()> {
            let key = [key, &[0; 4]].concat();
            match from.get(&key)? {
                Some(value) => to.insert(&key, value)?,
                None => to.remove(&key)?,
            };
            Ok(())
        }
        let corruptions: [Corruption; 4] = [
            |_, _| Ok(()),
            |before, now| copy(before, now, &entry_key(9, "42")),
            |before, now| copy(before, now, &entry_key(9, "43")),
            |before, now| copy(before, now, MARK_KEY),
        ];
        for (number, corrupt) in corruptions.iter().enumerate() {
            let [earlier, later] = [(); 2].map(|()| tempfile::tempdir().unwrap());
            let open = |directory: &tempfile::TempDir| Store::open(directory.path(), 1 << 20);
            let [before, now] = [&earlier, &later].map(|directory| open(directory).unwrap());
            for store in [&before, &now] {
                let mut batch = DiskBatch::default();
                batch.put(9, "42", Epoch::both(7), &document("{}"));
                batch.mark(mark("1:1:"));
                store.apply(batch).unwrap();
            }
            let mut batch = DiskBatch::default();
            batch.remove(9, "42");
            batch.put(9, "43", Epoch::both(7), &None);
            batch.mark(mark("2:2:"));
            now.apply(batch).unwrap();
            let handles = (before.db.as_ref().unwrap(), now.db.as_ref().unwrap());
            corrupt(handles.0, handles.1).unwrap();
            drop(now);
            let found = open(&later).unwrap().recover();
            match number {
                0 => assert_eq!(found.unwrap(), Some(mark("2:2:"))),
                _ => assert!(matches!(found, Err(DiskError::Damaged)), "{number}"),
            }
        }
    }

    #[test]
    fn no_page_needs_a_file_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), 1 << 20).unwrap();
        for round in 0..20 {
            let mut batch = DiskBatch::default();
            for number in 0..20 {
                let key = format!("{}{round}-{number}", "k".repeat(number * 200));
                batch.put(
                    9,
                    &key,
                    Epoch::both(7),
                    &document(&"x".repeat(number * 3_000)),
                );
            }
            store.apply(batch).unwrap();
            let key = format!("{}{round}-19", "k".repeat(3_800));
            let entry = store
                .get(9, &key, Epoch::both(7), || true)
                .unwrap()
                .unwrap();
            assert_eq!(entry.found.unwrap().body().len(), 57_000);
        }
        store.flush().unwrap();
        let blobs = std::fs::read_dir(directory.path().join("blobs")).unwrap();
        assert_eq!(blobs.count(), 0);
    }
}
