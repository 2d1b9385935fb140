//! Batches of changes, and the pieces in which they are written.

use std::collections::HashMap;

use crate::cache::disk::DiskError;
use crate::cache::disk::chunk;
use crate::cache::disk::layout::{Mark, entry_key};
use crate::cache::disk::places::{KeyHash, Place};
use crate::cache::disk::segment::Segment;
use crate::cache::disk::tally::Tally;
use crate::cache::document::Found;
use crate::cache::generation::Epoch;

/// Changes that are written together. Of several for one key the last counts.
#[derive(Default)]
pub struct DiskBatch {
    /// By the keys of the entries.
    pub(super) changes: HashMap<Vec<u8>, Option<Entry>>,
    pub(super) mark: Option<Mark>,
}

/// An entry to be written.
pub(super) struct Entry {
    pub(super) key: Box<str>,
    pub(super) epoch: Epoch,
    pub(super) found: Found,
}

/// A part of a batch: what is written to a segment at once.
pub(super) struct Piece {
    pub(super) batch: sled::Batch,
    /// Of keys and values.
    pub(super) bytes: usize,
    /// Of the segment's content with it.
    pub(super) tally: Tally,
    pub(super) places: Vec<(KeyHash, Option<Place>)>,
}

impl DiskBatch {
    /// Writes the key's document or absence.
    pub fn put(&mut self, prefix: u64, key: &str, epoch: Epoch, found: &Found) {
        let entry = Entry {
            key: Box::from(key),
            epoch,
            found: found.clone(),
        };
        self.changes.insert(entry_key(prefix, key), Some(entry));
    }

    pub(in crate::cache) fn remove(&mut self, prefix: u64, key: &str) {
        self.changes.insert(entry_key(prefix, key), None);
    }

    pub(in crate::cache) fn mark(&mut self, mark: Mark) {
        self.mark = Some(mark);
    }

    /// The number of entries that are written or removed.
    pub(in crate::cache) fn len(&self) -> usize {
        self.changes.len()
    }
}

impl Piece {
    pub(super) fn new(tally: Tally) -> Self {
        Self {
            batch: sled::Batch::default(),
            bytes: 0,
            tally,
            places: Vec::new(),
        }
    }

    /// Writes the value of `key` to `segment`.
    pub(super) fn put(
        &mut self,
        segment: &Segment,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), DiskError> {
        self.remove(segment, key)?;
        self.tally.add(key, value);
        chunk::insert(&mut self.batch, key, value);
        self.bytes += key.len() + value.len();
        Ok(())
    }

    /// Removes the value of `key` from `segment`, if it has one.
    pub(super) fn remove(&mut self, segment: &Segment, key: &[u8]) -> Result<(), DiskError> {
        if let Some(old) = segment.call(|db| chunk::remove(db, &mut self.batch, key))? {
            self.tally.remove(key, &old);
        }
        self.bytes += key.len();
        Ok(())
    }
}
