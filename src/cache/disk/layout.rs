//! What one key's value on disk looks like, and the mark beside all of them.
//!
//! Everything read back is checked: a value that does not fit is as good as not there.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use uuid::Uuid;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::cache::disk::DiskError;
use crate::cache::document::{Document, Found};
use crate::cache::generation::Epoch;
use crate::feed::position::Position;
use crate::source::session::Identity;

/// The layout of entries and mark; another number, another layout.
const FORMAT: u8 = 3;

/// Where the mark is.
pub(super) const MARK_KEY: &[u8] = b"m";

/// Where the tally is.
pub(super) const TALLY_KEY: &[u8] = b"t";

/// Where a value bears its epoch.
const EPOCH_BYTES: std::ops::Range<usize> = 10..18;

/// Longer keys are hashed, so that an index page of 256 of them stays far below what sled's log takes (see `chunk`).
const KEY_TEXT_BYTES_MAX: usize = 64;

/// How far the tier's content reflects the database, stored with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::cache) struct Mark {
    pub(in crate::cache) system: String,
    pub(in crate::cache) database: u32,
    pub(in crate::cache) epoch_table: u32,
    pub(in crate::cache) history: String,
    pub(in crate::cache) nonce: String,
    pub(in crate::cache) position: String,
    pub(in crate::cache) resources: Vec<ResourceMark>,
    /// The machine's boot: what was written before a crash of the machine is not trusted.
    pub(in crate::cache) boot: String,
    /// Written as the last act of an orderly shutdown.
    pub(in crate::cache) clean: bool,
}

/// What is kept of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The document, or that there is none.
    pub found: Found,
    /// When it was written.
    pub since: SystemTime,
}

/// What entries of one resource must bear to be trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::cache) struct ResourceMark {
    pub(in crate::cache) prefix: u64,
    pub(in crate::cache) fingerprint: String,
    /// Of documents.
    pub(in crate::cache) epoch: u64,
    /// Of remembered absences.
    pub(in crate::cache) absences: u64,
}

impl ResourceMark {
    pub(in crate::cache) fn epoch(&self) -> Epoch {
        Epoch {
            documents: self.epoch,
            absences: self.absences,
        }
    }
}

impl Mark {
    /// The database it was written for.
    pub(in crate::cache) fn identity(&self) -> Option<Identity> {
        Some(Identity {
            system: self.system.clone(),
            database: self.database,
            epoch_table: self.epoch_table,
            nonce: Uuid::try_parse(&self.nonce).ok()?,
            history: Uuid::try_parse(&self.history).ok()?,
            server_start: String::new(),
        })
    }

    pub(in crate::cache) fn position(&self) -> Position {
        Position::new(&self.position)
    }
}

/// `d`, prefix (8 bytes), key text; or `h`, prefix, XXH3-128 of the text where that is long. The value bears the whole
/// key, so two keys of one hash are never taken for each other.
pub(super) fn entry_key(prefix: u64, key: &str) -> Vec<u8> {
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

/// The key that an entry's key is the text of.
pub(super) fn key_text(entry_key: &[u8]) -> Option<&str> {
    std::str::from_utf8(entry_key.get(9..)?).ok()
}

/// How the entry keys of long keys begin.
pub(super) fn hashed_keys(prefix: u64) -> Vec<u8> {
    [&b"h"[..], &prefix.to_be_bytes()].concat()
}

/// The number of the epoch that a value bears.
pub(super) fn stored_epoch(value: &[u8]) -> Option<u64> {
    let epoch = value.get(EPOCH_BYTES)?.first_chunk()?;
    Some(u64::from_be_bytes(*epoch))
}

/// Checksum (8 bytes, XXH3 over the rest), format, flag (1: there is a document), epoch (8), time of writing (8,
/// milliseconds since 1970), key length (4), key, body.
pub(super) fn encode(key: &str, epoch: Epoch, found: &Found) -> Vec<u8> {
    let body = found.as_ref().map_or(&[][..], |document| document.body());
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let since = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    let mut value = Vec::with_capacity(30 + key.len() + body.len());
    value.extend_from_slice(&[0; 8]);
    value.push(FORMAT);
    value.push(u8::from(found.is_some()));
    value.extend_from_slice(&epoch.of(found.is_some()).to_be_bytes());
    value.extend_from_slice(&since.to_be_bytes());
    // Keys are bounded by KEY_BYTES_MAX for each part, far below 2^32.
    value.extend_from_slice(&(key.len() as u32).to_be_bytes());
    value.extend_from_slice(key.as_bytes());
    value.extend_from_slice(body);
    let checksum = xxh3_64(&value[8..]);
    value[..8].copy_from_slice(&checksum.to_be_bytes());
    value
}

pub(super) fn decode(value: &[u8], key: &str, epoch: Epoch) -> Option<Entry> {
    let (checksum, rest) = value.split_first_chunk::<8>()?;
    if xxh3_64(rest).to_be_bytes() != *checksum {
        return None;
    }
    let (&[format, flag], rest) = rest.split_first_chunk::<2>()?;
    let (stored_epoch, rest) = rest.split_first_chunk::<8>()?;
    let (since, rest) = rest.split_first_chunk::<8>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (stored_key, _body) = rest.split_at_checked(length)?;
    let fits = format == FORMAT
        && u64::from_be_bytes(*stored_epoch) == epoch.of(flag == 1)
        && stored_key == key.as_bytes();
    let found = match flag {
        _ if !fits => return None,
        0 => None,
        1 => Some(Document::from_text(length, epoch.of(true), rest, true)),
        _ => return None,
    };
    let since = Duration::from_millis(u64::from_be_bytes(*since));
    Some(Entry {
        found,
        since: SystemTime::UNIX_EPOCH.checked_add(since)?,
    })
}

pub(super) fn encode_mark(mark: &Mark) -> Result<Vec<u8>, DiskError> {
    let json = simd_json::to_vec(mark).map_err(|error| DiskError::Mark(error.to_string()))?;
    let mut value = xxh3_64(&json).to_be_bytes().to_vec();
    value.push(FORMAT);
    value.extend_from_slice(&json);
    Ok(value)
}

pub(super) fn decode_mark(value: &[u8]) -> Option<Mark> {
    let (checksum, rest) = value.split_first_chunk::<8>()?;
    let (&format, json) = rest.split_first()?;
    if format != FORMAT || xxh3_64(json).to_be_bytes() != *checksum {
        return None;
    }
    simd_json::from_slice(&mut json.to_vec()).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::cache::disk) fn document(text: &str) -> Found {
        Some(Document::new("42", Epoch::alike(7), text.as_bytes()))
    }

    #[test]
    fn entries_round_trip_and_damage_is_seen() {
        for found in [document("{\"a\":1}"), None] {
            let value = encode("42", Epoch::alike(7), &found);
            assert_eq!(
                decode(&value, "42", Epoch::alike(7)).map(|entry| entry.found),
                Some(found.clone())
            );
            assert_eq!(decode(&value, "43", Epoch::alike(7)), None);
            assert_eq!(decode(&value, "42", Epoch::alike(8)), None);
            for position in 0..value.len() {
                let mut damaged = value.clone();
                damaged[position] ^= 1;
                assert_eq!(
                    decode(&damaged, "42", Epoch::alike(7)),
                    None,
                    "byte {position}"
                );
                assert_eq!(
                    decode(&value[..position], "42", Epoch::alike(7)),
                    None,
                    "cut at {position}"
                );
            }
        }
    }
}
