//! The disk tier's files. Only this module and its children name sled.
//!
//! A directory holds *segments*, databases of sled of equal size. Entries, their removals and the mark are written to
//! the youngest one, so that a batch of them is atomic; the others are only read. Once the youngest is full, another is
//! begun, and the oldest are removed until there is room for it. sled gives space back too slowly to remove entries
//! instead: with the oldest ones removed, a database grows to 6 times its content and on.
//!
//! - What a younger segment says of a key hides what older ones have. `places` knows the segment of each entry.
//! - A segment is flushed before the next one is begun, and the next one begins with the same mark. So after a crash
//!   either all older segments are whole, or the next one has no mark, and is removed.
//! - An entry that is read from one of the oldest segments is written again, to the youngest (`is_aging`).
//!
//! Everything read is checked, and a value that fails a check is treated as missing. sled panics on some damage, so
//! panics are caught and returned as errors. After any error the whole directory has to be replaced.
//!
//! Damage to sled's log can bring back an earlier version of a page, with documents that were overtaken since, or lose
//! newer ones. So every batch also writes a tally of the segment's whole content, and a directory is used only if each
//! segment agrees with its tally.
//!
//! `layout` describes the values, and `chunk` how they are split.

mod batch;
mod chunk;
mod compression;
pub(super) mod directory;
pub mod layout;
mod places;
mod segment;
mod tally;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;

pub use crate::cache::disk::batch::DiskBatch;
use crate::cache::disk::batch::{Entry, Piece};
use crate::cache::disk::compression::Compression;
use crate::cache::disk::directory::remove_set_aside;
use crate::cache::disk::layout::{
    DiskEntry, MARK_KEY, Mark, TALLY_KEY, decode, decode_mark, encode, encode_mark, encode_removal,
    entry_key, hashed_key_prefix, is_removal, is_same_entry, key_text, stored_epoch,
};
use crate::cache::disk::places::{Place, Places};
use crate::cache::disk::segment::Segment;
use crate::cache::disk::tally::Tally;
use crate::cache::generation::Epoch;
use crate::feed::ranges::Ranges;

/// Bounds and place of the disk tier.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// The directory that holds the tier's files.
    pub directory: PathBuf,
    /// Bytes on disk, beyond which the oldest entries are removed.
    pub bytes_max: u64,
    /// sled's page caches, in bytes.
    pub cache_bytes: u64,
    /// Entries in one batch, at most.
    pub batch_entries: usize,
    /// How long an order waits for more orders, at most.
    pub linger: Duration,
}

/// Segments of a full directory: with the youngest one empty, an eighth of the space is unused.
const SEGMENTS: u64 = 8;

/// An entry whose segment is removed before so many more are full is written again when it is read.
const AGING: u64 = 2;

/// Bytes of keys and values after which a batch is cut, so that a segment gets little larger than its share.
const PIECE_BYTES: usize = 512 << 10;

/// Entries that a sweep removes in one batch, at most.
const SWEEP_BATCH_ENTRIES: usize = 10_000;

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
    /// The content of a segment does not agree with its tally, or a segment is missing.
    #[error("some entries are missing or are from an earlier state")]
    Damaged,
    /// The directory holds something that is no segment.
    #[error("{0} is not of this version of larder")]
    Unknown(String),
}

/// An open directory.
pub struct Store {
    directory: PathBuf,
    bytes_max: u64,
    cache_bytes: u64,
    /// The oldest first; never empty.
    segments: ArcSwap<Vec<Arc<Segment>>>,
    /// Segments up to this number are removed before [`AGING`] more are full.
    aging: AtomicU32,
    places: Places,
    /// As it is stored.
    mark: Mutex<Option<Vec<u8>>>,
    compression: Compression,
}

impl Store {
    /// Opens or creates the directory. May take long on a large one. What is in it is used only after
    /// `Store::recover`.
    ///
    /// # Errors
    /// Those of sled and of the directory.
    pub fn open(directory: &Path, bytes_max: u64, cache_bytes: u64) -> Result<Self, DiskError> {
        std::fs::create_dir_all(directory)?;
        remove_set_aside(directory);
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(directory)? {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            // No other spelling: its segment would be looked for under this one.
            let number = name.parse().ok();
            match number.filter(|number: &u32| number.to_string() == name) {
                Some(number) => numbers.push(number),
                None => return Err(DiskError::Unknown(name.into_owned())),
            }
        }
        numbers.sort_unstable();
        if numbers.is_empty() {
            numbers.push(1);
        }
        let cache = cache_bytes / SEGMENTS;
        let segments: Result<_, _> = numbers
            .into_iter()
            .map(|number| Segment::open(directory, number, cache).map(Arc::new))
            .collect();
        Ok(Self {
            directory: directory.to_owned(),
            bytes_max,
            cache_bytes: cache,
            segments: ArcSwap::from_pointee(segments?),
            aging: AtomicU32::new(0),
            places: Places::new(),
            mark: Mutex::default(),
            compression: Compression::new()?,
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
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<Option<DiskEntry>, DiskError> {
        let entry_key = entry_key(prefix, key);
        let Some(place) = self.places.get(self.places.hash(&entry_key)) else {
            return Ok(None);
        };
        let segments = self.segments.load();
        // Removed since, or of an epoch that is over.
        let Some(segment) = find(&segments, place).filter(|_| epoch.has(place.epoch())) else {
            return Ok(None);
        };
        let Some(value) = segment.call(|db| chunk::get(db, &entry_key, &mut goes_on))? else {
            return Ok(None);
        };
        let entry = decode(&value, key, epoch, &self.compression, goes_on);
        Ok(entry.map(|(found, written_at)| DiskEntry {
            found,
            written_at,
            is_aging: self.is_aging(place),
        }))
    }

    /// Applies the batch. After a crash a part of its entries and removals may be there, but the mark only with all of
    /// them.
    ///
    /// # Errors
    /// Those of sled and of the directory.
    pub fn apply(&self, batch: DiskBatch) -> Result<(), DiskError> {
        let mut mark = batch.mark.as_ref().map(encode_mark).transpose()?;
        let mut changes = batch.changes.into_iter().peekable();
        while changes.peek().is_some() || mark.is_some() {
            let segments = self.segments.load_full();
            let Some(youngest) = segments.last() else {
                return Err(DiskError::Closed);
            };
            let mut piece = Piece::new(*youngest.tally());
            while piece.bytes < PIECE_BYTES
                && let Some((key, entry)) = changes.next()
            {
                self.add(&segments, youngest, &mut piece, &key, entry)?;
            }
            let mark = mark.take_if(|_| changes.peek().is_none());
            if let Some(mark) = &mark {
                piece.put(youngest, MARK_KEY, mark)?;
            }
            if piece.bytes > 0 {
                self.write(youngest, piece)?;
            }
            if mark.is_some() {
                *self.lock_mark() = mark;
            }
            self.make_room(&segments, youngest)?;
        }
        Ok(())
    }

    /// Adds a change to a piece for the youngest segment.
    fn add(
        &self,
        segments: &[Arc<Segment>],
        youngest: &Segment,
        piece: &mut Piece,
        key: &[u8],
        entry: Option<Entry>,
    ) -> Result<(), DiskError> {
        let hash = self.places.hash(key);
        let place = self.places.get(hash);
        let Some(Entry {
            key: text,
            epoch,
            found,
        }) = entry
        else {
            // Older segments may have an earlier entry of the key, also if the youngest has one.
            if place.is_some() {
                match segments {
                    [_] => piece.remove(youngest, key)?,
                    _ => piece.put(youngest, key, &encode_removal())?,
                }
                piece.places.push((hash, None));
            }
            return Ok(());
        };
        let value = encode(&text, epoch, &found, &self.compression);
        if value.len() as u64 > self.share() / 2 {
            return Ok(());
        }
        // As after a lookup that took too long. To write a long value costs far more than to read it.
        if chunk::is_long(&value)
            && let Some(place) = place.filter(|place| !self.is_aging(*place))
            && let Some(segment) = find(segments, place)
            && let Some(old) = segment.call(|db| chunk::get(db, key, || true))?
            && is_same_entry(&old, &value)
        {
            return Ok(());
        }
        piece.put(youngest, key, &value)?;
        let place = Place::new(youngest.number, epoch.number(found.is_some()));
        piece.places.push((hash, Some(place)));
        Ok(())
    }

    /// Writes a piece to the youngest segment.
    fn write(&self, youngest: &Segment, mut piece: Piece) -> Result<(), DiskError> {
        chunk::insert(&mut piece.batch, TALLY_KEY, &piece.tally.encode());
        youngest.call(|db| db.apply_batch(piece.batch))?;
        *youngest.tally() = piece.tally;
        for (hash, place) in piece.places {
            match place {
                Some(place) => self.places.insert(hash, place),
                None => self.places.remove(hash),
            }
        }
        Ok(())
    }

    /// Begins another segment if the youngest is full, and removes the oldest ones until there is room for it.
    fn make_room(&self, segments: &[Arc<Segment>], youngest: &Segment) -> Result<(), DiskError> {
        if youngest.bytes()? < self.share() {
            return Ok(());
        }
        // What a mark in the next one implies must not be lost from this one.
        youngest.flush()?;
        let number = youngest.number.checked_add(1).ok_or(DiskError::Damaged)?;
        let next = Segment::open(&self.directory, number, self.cache_bytes)?;
        if let Some(mark) = &*self.lock_mark() {
            let mut piece = Piece::new(Tally::default());
            piece.put(&next, MARK_KEY, mark)?;
            self.write(&next, piece)?;
        }
        next.flush()?;
        let segments = segments.iter().cloned().chain([Arc::new(next)]);
        self.segments.store(Arc::new(segments.collect()));
        self.remove_oldest()
    }

    /// Removes the oldest segments until the youngest one has room.
    fn remove_oldest(&self) -> Result<(), DiskError> {
        let segments = self.segments.load_full();
        let Some((_, older)) = segments.split_last() else {
            return Ok(());
        };
        let sizes: Result<Vec<u64>, _> = older.iter().map(|segment| segment.bytes()).collect();
        let sizes = sizes?;
        let mut bytes: u64 = sizes.iter().sum();
        // Full segments are little larger than a share.
        for (segment, size) in older.iter().zip(sizes) {
            if bytes + self.share() > self.bytes_max {
                self.remove_segment(segment)?;
            } else if bytes + (1 + AGING) * self.share() > self.bytes_max {
                self.aging.store(segment.number, Ordering::Relaxed);
            }
            bytes -= size;
        }
        Ok(())
    }

    fn remove_segment(&self, removed: &Segment) -> Result<(), DiskError> {
        let all = self.segments.load_full();
        let rest = all
            .iter()
            .filter(|segment| segment.number != removed.number);
        self.segments.store(Arc::new(rest.cloned().collect()));
        self.places.remove_segment(removed.number);
        // Renamed first: a part of it must not be taken for the whole after a crash.
        let aside = self.directory.join(format!("aside-{}", removed.number));
        std::fs::rename(&removed.directory, aside)?;
        remove_set_aside(&self.directory);
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
        for segment in self.segments.load_full().iter() {
            let is_covered = |key: &[u8]| {
                let place = covered(key).then(|| self.places.get(self.places.hash(key)));
                place
                    .flatten()
                    .is_some_and(|place| place.segment == segment.number)
            };
            self.sweep_segment(segment, begin, is_covered)?;
        }
        Ok(())
    }

    fn sweep_segment(
        &self,
        segment: &Segment,
        begin: &[u8],
        is_covered: impl Fn(&[u8]) -> bool,
    ) -> Result<(), DiskError> {
        let mut from = begin.to_vec();
        loop {
            let (keys, next) = segment.call(|db| {
                let mut keys = Vec::new();
                for item in chunk::keys(db, &from) {
                    let key = item?;
                    if !key.starts_with(begin) {
                        break;
                    }
                    if is_covered(&key) {
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

    /// The mark, if there is one. Reads the whole content to compare it with its tallies, and to know where it is.
    ///
    /// # Errors
    /// [`DiskError::Damaged`] if they differ.
    pub(super) fn recover(&self) -> Result<Option<Mark>, DiskError> {
        self.places.clear();
        let segments = self.segments.load_full();
        let numbers = segments.iter().map(|segment| segment.number);
        if !numbers
            .clone()
            .zip(numbers.skip(1))
            .all(|(a, b)| a.checked_add(1) == Some(b))
        {
            return Err(DiskError::Damaged);
        }
        let mut removed = HashSet::new();
        let mut found = None;
        for segment in segments.iter().rev() {
            let is_oldest = self.segments.load().len() == 1;
            if !segment.is_written()? {
                match &found {
                    // It was begun just before a crash.
                    None if !is_oldest => self.remove_segment(segment)?,
                    None => return Ok(None),
                    Some(_) => return Err(DiskError::Damaged),
                }
                continue;
            }
            let mark = segment.recover(|key, start| {
                let hash = self.places.hash(key);
                if self.places.get(hash).is_some() || removed.contains(&hash) {
                    return;
                }
                match stored_epoch(start).filter(|_| !is_removal(start)) {
                    Some(epoch) => self.places.insert(hash, Place::new(segment.number, epoch)),
                    None => drop(removed.insert(hash)),
                }
            })?;
            match (&found, mark) {
                (None, Some(mark)) => found = Some(mark),
                (None, None) => return Ok(None),
                (Some(_), _) => {}
            }
        }
        self.remove_oldest()?;
        let mark = found.map(|mark| mark.to_vec());
        let decoded = mark.as_deref().and_then(decode_mark);
        *self.lock_mark() = mark;
        Ok(decoded)
    }

    fn is_aging(&self, place: Place) -> bool {
        place.segment <= self.aging.load(Ordering::Relaxed)
    }

    fn lock_mark(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.mark.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes on disk that a segment fills.
    fn share(&self) -> u64 {
        self.bytes_max / SEGMENTS
    }

    /// Removes everything, the mark included.
    #[cfg(test)]
    pub(super) fn clear(&self) -> Result<(), DiskError> {
        self.places.clear();
        *self.lock_mark() = None;
        for segment in self.segments.load().iter() {
            *segment.tally() = Tally::default();
            segment.call(|db| db.clear())?;
        }
        Ok(())
    }

    pub(super) fn bytes(&self) -> Result<u64, DiskError> {
        let segments = self.segments.load();
        segments.iter().map(|segment| segment.bytes()).sum()
    }

    /// The number of entries with one of these numbers as their epoch.
    pub(super) fn entries(&self, epochs: &[u64]) -> u64 {
        self.places.entries(epochs)
    }

    pub(super) fn flush(&self) -> Result<(), DiskError> {
        match self.segments.load().last() {
            Some(youngest) => youngest.flush(),
            None => Err(DiskError::Closed),
        }
    }
}

/// The segment of a place, if it was not removed.
fn find(segments: &[Arc<Segment>], place: Place) -> Option<&Arc<Segment>> {
    segments
        .iter()
        .find(|segment| segment.number == place.segment)
}

/// The kernel's ID of this boot of the machine; empty if it can't be read.
pub(super) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
