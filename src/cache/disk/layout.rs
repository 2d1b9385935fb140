//! The layout of an entry on disk, and of the mark.
//!
//! Everything read is checked, and a value that fails a check is treated as missing.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use uuid::Uuid;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::cache::disk::DiskError;
use crate::cache::disk::compression::Compression;
use crate::cache::document::{Document, Found};
use crate::cache::generation::Epoch;
use crate::feed::position::Position;
use crate::resource::kept::Kept;
use crate::source::session::Identity;

/// The version of this layout. Values of another version are treated as missing.
const FORMAT: u8 = 4;

/// The key of the mark.
pub(super) const MARK_KEY: &[u8] = b"m";

/// The key of the tally.
pub(super) const TALLY_KEY: &[u8] = b"t";

/// What a value holds, its tenth byte: the absence of a document.
const ABSENCE: u8 = 0;
/// A document as it is.
const DOCUMENT: u8 = 1;
/// A compressed document.
const COMPRESSED: u8 = 2;
/// That the key has no entry, whatever older segments have.
const REMOVAL: u8 = 3;
/// Added to the flag of a document: kept values stand between key and body.
const KEPT: u8 = 4;

/// The place of the flag in a value.
const FLAG_BYTE: usize = 9;

/// The place of the epoch in a value.
const EPOCH_BYTES: std::ops::Range<usize> = 10..18;

/// Longer keys are hashed, so that an index page of 256 keys stays far below the limit of sled's log (see `chunk`).
const KEY_TEXT_BYTES_MAX: usize = 64;

/// The state of the database that the tier's content reflects. It is stored with the content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::cache) struct Mark {
    pub(in crate::cache) system: String,
    pub(in crate::cache) database: u32,
    pub(in crate::cache) epoch_table: u32,
    pub(in crate::cache) history: String,
    pub(in crate::cache) nonce: String,
    pub(in crate::cache) position: String,
    pub(in crate::cache) resources: Vec<ResourceMark>,
    /// The boot of the machine when it was written: content from before a crash of the machine is not used.
    pub(in crate::cache) boot: String,
    /// Written at the end of an orderly shutdown.
    pub(in crate::cache) clean: bool,
}

/// What the disk tier holds for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskEntry {
    /// The document, or that there is none.
    pub found: Found,
    /// When it was written.
    pub written_at: SystemTime,
    /// It is in a segment that will be removed soon.
    pub is_aging: bool,
}

/// What entries of one resource must have to be used in a later run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::cache) struct ResourceMark {
    pub(in crate::cache) prefix: u64,
    pub(in crate::cache) fingerprint: String,
    /// The epoch of documents.
    pub(in crate::cache) epoch: u64,
    /// The epoch of remembered absences.
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
    /// The database that it was written for; `None` if an ID in it is not valid.
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

/// The key of an entry: `d`, prefix (8 bytes), text of the key. For a long text it is `h`, prefix, XXH3-128 of the
/// text. The value has the whole text, so two keys of one hash are never taken for each other.
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

/// The text of the key within an entry's key that is not hashed.
pub(super) fn key_text(entry_key: &[u8]) -> Option<&str> {
    std::str::from_utf8(entry_key.get(9..)?).ok()
}

/// What the entry keys of long keys begin with.
pub(super) fn hashed_key_prefix(prefix: u64) -> Vec<u8> {
    [&b"h"[..], &prefix.to_be_bytes()].concat()
}

/// The epoch of a value.
pub(super) fn stored_epoch(value: &[u8]) -> Option<u64> {
    let epoch = value.get(EPOCH_BYTES)?.first_chunk()?;
    Some(u64::from_be_bytes(*epoch))
}

/// Whether a value says that its key has no entry. `start` is at least its first 10 bytes.
pub(super) fn is_removal(start: &[u8]) -> bool {
    start.get(FLAG_BYTE) == Some(&REMOVAL)
}

/// The value of an entry: checksum (8 bytes, XXH3 over the rest), format, flag, epoch (8), time of writing (8,
/// milliseconds since 1970), length of the key (4), and the text, which is key, kept values and body. A compressed one is
/// preceded by its length (4).
pub(super) fn encode(key: &str, epoch: Epoch, found: &Found, compression: &Compression) -> Vec<u8> {
    let document = found.as_ref();
    let kept = document.map_or(&[][..], |document| document.kept().as_bytes());
    let body = document.map_or(&[][..], |document| document.body());
    let text = [key.as_bytes(), kept, body].concat();
    let compressed = document.and_then(|_| compression.compress(&text));
    let kind = match (document, &compressed) {
        (None, _) => ABSENCE,
        (Some(_), None) => DOCUMENT,
        (Some(_), Some(_)) => COMPRESSED,
    };
    let flag = if kept.is_empty() { kind } else { kind | KEPT };
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let mut value = vec![0; 8];
    value.reserve_exact(26 + compressed.as_ref().map_or(text.len(), Vec::len));
    value.push(FORMAT);
    value.push(flag);
    value.extend_from_slice(&epoch.number(found.is_some()).to_be_bytes());
    value.extend_from_slice(&now.to_be_bytes());
    // Keys are bounded by KEY_BYTES_MAX for each part, and documents by document_max, far below 2^32.
    value.extend_from_slice(&(key.len() as u32).to_be_bytes());
    match compressed {
        Some(blocks) => {
            value.extend_from_slice(&(text.len() as u32).to_be_bytes());
            value.extend_from_slice(&blocks);
        }
        None => value.extend_from_slice(&text),
    }
    with_checksum(value)
}

/// The value of a key that has no entry.
pub(super) fn encode_removal() -> Vec<u8> {
    with_checksum([&[0; 8][..], &[FORMAT, REMOVAL]].concat())
}

/// Fills in the checksum, the first 8 bytes.
fn with_checksum(mut value: Vec<u8>) -> Vec<u8> {
    let checksum = xxh3_64(&value[8..]);
    value[..8].copy_from_slice(&checksum.to_be_bytes());
    value
}

/// Whether two values of a key differ at most in the time of writing.
pub(super) fn is_same_entry(value: &[u8], other: &[u8]) -> bool {
    value.len() == other.len()
        && value.get(8..EPOCH_BYTES.end) == other.get(8..EPOCH_BYTES.end)
        && value.get(EPOCH_BYTES.end + 8..) == other.get(EPOCH_BYTES.end + 8..)
}

/// The document or absence of `key` that a value holds, and when it was written; `None` if it is damaged, or of another
/// key or epoch. `goes_on` is that of [`Compression::decompress`].
pub(super) fn decode(
    value: &[u8],
    key: &str,
    epoch: Epoch,
    compression: &Compression,
    goes_on: impl FnMut() -> bool,
) -> Option<(Found, SystemTime)> {
    let (checksum, rest) = value.split_first_chunk::<8>()?;
    if xxh3_64(rest).to_be_bytes() != *checksum {
        return None;
    }
    let (&[format, flag], rest) = rest.split_first_chunk::<2>()?;
    let (stored_epoch, rest) = rest.split_first_chunk::<8>()?;
    let (written_at, rest) = rest.split_first_chunk::<8>()?;
    let (key_bytes, rest) = rest.split_first_chunk::<4>()?;
    let key_bytes = usize::try_from(u32::from_be_bytes(*key_bytes)).ok()?;
    let (kind, has_kept) = (flag & !KEPT, flag & KEPT != 0);
    let exists = kind != ABSENCE;
    if format != FORMAT || u64::from_be_bytes(*stored_epoch) != epoch.number(exists) {
        return None;
    }
    let decompressed;
    let text = match kind {
        ABSENCE | DOCUMENT => rest,
        COMPRESSED => {
            let (length, blocks) = rest.split_first_chunk::<4>()?;
            let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
            decompressed = compression.decompress(blocks, length, goes_on)?;
            &decompressed
        }
        _ => return None,
    };
    let (stored_key, rest) = text.split_at_checked(key_bytes)?;
    if stored_key != key.as_bytes() {
        return None;
    }
    let kept = if has_kept {
        Kept::parse(rest)?
    } else {
        Kept::default()
    };
    let number = epoch.number(true);
    let found = exists.then(|| Document::from_text(key_bytes, number, kept, text));
    let written_at = Duration::from_millis(u64::from_be_bytes(*written_at));
    Some((found, SystemTime::UNIX_EPOCH.checked_add(written_at)?))
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
        Some(Document::new("42", Epoch::both(7), text.as_bytes()))
    }

    fn kept_document(text: &str) -> Found {
        let kept = Kept::parse(b"\x02\0\x01\xff\xff7").unwrap();
        let document = Document::with_kept("42", Epoch::both(7), kept, text.as_bytes());
        Some(document)
    }

    #[test]
    fn entries_round_trip_and_damage_is_detected() {
        let compression = Compression::new().unwrap();
        let long = format!("{{\"a\":\"{}\"}}", "abc".repeat(100));
        for (found, flag) in [
            (document("{\"a\":1}"), DOCUMENT),
            (document(&long), COMPRESSED),
            (kept_document("{\"a\":1}"), DOCUMENT | KEPT),
            (kept_document(&long), COMPRESSED | KEPT),
            (None, ABSENCE),
        ] {
            let value = encode("42", Epoch::both(7), &found, &compression);
            assert_eq!(value[FLAG_BYTE], flag);
            let decode = |value: &[u8], key: &str, epoch| {
                let entry = decode(value, key, Epoch::both(epoch), &compression, || true);
                entry.map(|(found, _)| found)
            };
            let decoded = decode(&value, "42", 7);
            assert_eq!(decoded, Some(found.clone()));
            let kept = |found: &Found| found.as_ref().map(|found| found.kept().as_bytes().to_vec());
            assert_eq!(decoded.as_ref().map(kept), Some(kept(&found)));
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
        assert!(is_removal(&encode_removal()));
    }
}
