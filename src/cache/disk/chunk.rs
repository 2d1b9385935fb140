//! Values are stored in chunks, so that no page of sled's tree becomes too large for sled's log.
//!
//! sled (0.34.7) writes a page of more than 128 KiB, a quarter of a segment of its log, to a file of its own. If that
//! file can't be written, as on a full disk, the space reserved for it in the log stays reserved. From then on every
//! flush of that tree, also when it is dropped, waits for ever and holds a lock that all trees of the process share. A
//! leaf has up to 21 items (it is split above 16, and merged with a neighbour below 4), so with chunks of 4 KiB it
//! stays far below that size.

use sled::{Batch, Db, IVec};

const CHUNK_BYTES: usize = 4_096;

/// Bytes of the value's length, which is stored at the start of the first chunk.
const LENGTH_BYTES: usize = 4;

/// Adds the insertion of `value`, shorter than 4 GiB, to a batch.
pub(super) fn insert(batch: &mut Batch, key: &[u8], value: &[u8]) {
    let (first, mut rest) = value.split_at(value.len().min(CHUNK_BYTES - LENGTH_BYTES));
    // A longer value would be truncated, which its checksum shows when it is read.
    let mut chunk = (value.len() as u32).to_be_bytes().to_vec();
    chunk.extend_from_slice(first);
    batch.insert(chunk_key(key, 0), chunk);
    for number in 1.. {
        if rest.is_empty() {
            return;
        }
        let chunk;
        (chunk, rest) = rest.split_at(rest.len().min(CHUNK_BYTES));
        batch.insert(chunk_key(key, number), chunk);
    }
}

/// Adds the removal of all chunks of a value to a batch. Returns the start of the value, if there is one.
pub(super) fn remove(db: &Db, batch: &mut Batch, key: &[u8]) -> sled::Result<Option<IVec>> {
    let first = db.get(chunk_key(key, 0))?;
    // Also if it was not found: a damaged tree must not keep an entry that has to be removed.
    batch.remove(chunk_key(key, 0));
    let Some(first) = first else {
        return Ok(None);
    };
    let start = value_start(&first);
    if first.len() < CHUNK_BYTES {
        return Ok(Some(start));
    }
    for number in 1.. {
        let chunk_key = chunk_key(key, number);
        if !db.contains_key(&chunk_key)? {
            break;
        }
        batch.remove(chunk_key);
    }
    Ok(Some(start))
}

/// Every key, with the start of its value.
pub(super) fn value_starts(db: &Db) -> impl Iterator<Item = sled::Result<(IVec, IVec)>> {
    let first = |(key, chunk): (IVec, IVec)| Some((key_of_first(&key)?, value_start(&chunk)));
    db.iter()
        .filter_map(move |item| item.map(first).transpose())
}

/// The keys from `from` on, in their order.
pub(super) fn keys(db: &Db, from: &[u8]) -> impl Iterator<Item = sled::Result<IVec>> {
    let keys = db.range(from..).keys();
    keys.filter_map(|key| key.map(|key| key_of_first(&key)).transpose())
}

/// The first chunk without the value's length.
fn value_start(first: &IVec) -> IVec {
    let cut = first.len().min(LENGTH_BYTES);
    first.subslice(cut, first.len() - cut)
}

/// Whether a value has several chunks.
pub(super) fn is_long(value: &[u8]) -> bool {
    value.len() > CHUNK_BYTES - LENGTH_BYTES
}

/// The value of a key. If a batch is applied meanwhile, it may be a mix of two values, which the value's own checksum
/// shows.
///
/// `goes_on` is called after each chunk; the value counts as missing if it returns false.
pub(super) fn get(
    db: &Db,
    key: &[u8],
    mut goes_on: impl FnMut() -> bool,
) -> sled::Result<Option<IVec>> {
    let Some(first) = db.get(chunk_key(key, 0))? else {
        return Ok(None);
    };
    let Some((length, start)) = first.split_first_chunk::<LENGTH_BYTES>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*length) as usize;
    if length == start.len() {
        return Ok(Some(first.subslice(LENGTH_BYTES, length)));
    }
    let mut value = start.to_vec();
    for number in 1.. {
        if value.len() >= length {
            break;
        }
        if !goes_on() {
            return Ok(None);
        }
        match db.get(chunk_key(key, number))? {
            Some(chunk) => value.extend_from_slice(&chunk),
            None => return Ok(None),
        }
    }
    Ok(Some(value.into()))
}

/// The value's key, if this is the key of its first chunk.
fn key_of_first(chunk_key: &IVec) -> Option<IVec> {
    let key = chunk_key.strip_suffix(&0_u32.to_be_bytes())?;
    Some(chunk_key.subslice(0, key.len()))
}

fn chunk_key(key: &[u8], number: u32) -> Vec<u8> {
    [key, &number.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(db: &Db, value: &[u8]) {
        let mut batch = Batch::default();
        remove(db, &mut batch, b"k").unwrap();
        insert(&mut batch, b"k", value);
        db.apply_batch(batch).unwrap();
    }

    #[test]
    fn values_of_every_length_are_read_back_and_removed_completely() {
        let directory = tempfile::tempdir().unwrap();
        let db = sled::open(directory.path()).unwrap();
        let first = CHUNK_BYTES - LENGTH_BYTES;
        let edge = first + CHUNK_BYTES;
        for length in [0, 1, first - 1, first, first + 1, 50_000, edge, edge + 1, 7] {
            let value: Vec<u8> = (0..length).map(|byte| (byte % 251) as u8).collect();
            store(&db, &value);
            assert_eq!(
                get(&db, b"k", || true).unwrap().unwrap(),
                value,
                "{length} bytes"
            );
            let chunks = (LENGTH_BYTES + length).div_ceil(CHUNK_BYTES);
            assert_eq!(db.len(), chunks, "{length} bytes");
        }
        let mut batch = Batch::default();
        assert!(remove(&db, &mut batch, b"k").unwrap().is_some());
        db.apply_batch(batch).unwrap();
        assert_eq!(get(&db, b"k", || true).unwrap(), None);
        assert!(db.is_empty());
    }

    #[test]
    fn an_incomplete_value_is_missing() {
        let directory = tempfile::tempdir().unwrap();
        let db = sled::open(directory.path()).unwrap();
        store(&db, &[7; 3 * CHUNK_BYTES]);
        db.remove(chunk_key(b"k", 2)).unwrap();
        assert_eq!(get(&db, b"k", || true).unwrap(), None);
        // Its other chunks are no part of the next value.
        store(&db, b"short");
        assert_eq!(get(&db, b"k", || true).unwrap().unwrap(), b"short");
    }
}
