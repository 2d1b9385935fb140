//! One of the databases of sled that the disk tier's directory holds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cache::disk::DiskError;
use crate::cache::disk::chunk;
use crate::cache::disk::layout::{MARK_KEY, TALLY_KEY};
use crate::cache::disk::tally::Tally;

/// Attempts to open a directory, and the pause between them.
const OPEN_ATTEMPTS: u32 = 10;
const OPEN_PAUSE: Duration = Duration::from_millis(50);

/// An open segment. All but the youngest one of a directory are only read.
pub(super) struct Segment {
    /// Later segments have higher numbers.
    pub(super) number: u32,
    /// Its directory, named by its number.
    pub(super) directory: PathBuf,
    /// `None` only in drop.
    db: Option<sled::Db>,
    /// Of its whole content.
    tally: Mutex<Tally>,
}

impl Segment {
    /// Opens or creates the segment of this number below `parent`. May take long on a large one.
    pub(super) fn open(parent: &Path, number: u32, cache_bytes: u64) -> Result<Self, DiskError> {
        let directory = parent.join(number.to_string());
        let config = sled::Config::new()
            .path(&directory)
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
            number,
            directory,
            db: Some(db),
            tally: Mutex::default(),
        })
    }

    /// Calls sled, and turns a panic into an error.
    pub(super) fn call<T>(
        &self,
        call: impl FnOnce(&sled::Db) -> sled::Result<T>,
    ) -> Result<T, DiskError> {
        match &self.db {
            Some(db) => catch_panic(|| call(db)),
            None => Err(DiskError::Closed),
        }
    }

    /// Whether anything was ever written here.
    pub(super) fn is_written(&self) -> Result<bool, DiskError> {
        Ok(self
            .call(|db| chunk::get(db, TALLY_KEY, || true))?
            .is_some())
    }

    /// Calls `entry` with each key and the start of its value, of entries and removals.
    ///
    /// Reads the whole content to compare it with its tally. Returns the mark, if there is one.
    ///
    /// # Errors
    /// [`DiskError::Damaged`] if they differ.
    pub(super) fn recover(
        &self,
        mut entry: impl FnMut(&[u8], &[u8]),
    ) -> Result<Option<sled::IVec>, DiskError> {
        let value = self.call(|db| chunk::get(db, TALLY_KEY, || true))?;
        let tally = self.call(|db| {
            let mut tally = Tally::default();
            for item in chunk::value_starts(db) {
                let (key, start) = item?;
                if key == TALLY_KEY {
                    continue;
                }
                tally.add(&key, &start);
                if key != MARK_KEY {
                    entry(&key, &start);
                }
            }
            Ok(tally)
        })?;
        if value.is_none_or(|value| tally.encode() != *value) {
            return Err(DiskError::Damaged);
        }
        *self.tally() = tally;
        self.call(|db| chunk::get(db, MARK_KEY, || true))
    }

    pub(super) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn bytes(&self) -> Result<u64, DiskError> {
        self.call(|db| db.size_on_disk())
    }

    pub(super) fn flush(&self) -> Result<(), DiskError> {
        self.call(|db| db.flush()).map(|_| ())
    }
}

impl Drop for Segment {
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
