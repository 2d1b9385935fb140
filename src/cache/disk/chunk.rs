//! Values in chunks, so that no page of sled's tree outgrows sled's log.
//!
//! sled (0.34.7) writes a page above a quarter of its log's segment, 128 KiB, to a file of its own. Where that file
//! can't be written, as on a full disk, the space reserved for it in the log stays reserved: from then on every flush
//! of that tree, its drop included, waits for ever and holds a lock that all trees of the process share. A leaf has up
//! to 21 items (it is split above 16, and takes in a neighbour below 4), so chunks of 4 KiB keep it far below.

use sled::{Batch, Db, IVec};

const CHUNK_BYTES: usize = 4_096;

/// Stands before the first chunk: the length of the value.
const LENGTH_BYTES: usize = 4;

/// Adds the insertion of `value`, shorter than 4 GiB, to a batch.
pub(super) fn insert(batch: &mut Batch, key: &[u8], value: &[u8]) {
    let (first, mut rest) = value.split_at(value.len().min(CHUNK_BYTES - LENGTH_BYTES));
    // What is longer would be cut, and seen as damaged by its checksum when it is read.
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

/// Adds the removal of all chunks that are stored to a batch. Returns how the value begins, if there is one.
pub(super) fn remove(db: &Db, batch: &mut Batch, key: &[u8]) -> sled::Result<Option<IVec>> {
    let first = db.get(chunk_key(key, 0))?;
    // Also where none was found: no answer of a damaged tree may keep an entry that has to go.
    batch.remove(chunk_key(key, 0));
    let Some(first) = first else {
        return Ok(None);
    };
    let begin = begin(&first);
    if first.len() < CHUNK_BYTES {
        return Ok(Some(begin));
    }
    for number in 1.. {
        let chunk_key = chunk_key(key, number);
        if !db.contains_key(&chunk_key)? {
            break;
        }
        batch.remove(chunk_key);
    }
    Ok(Some(begin))
}

/// Every key, with how its value begins.
pub(super) fn begins(db: &Db) -> impl Iterator<Item = sled::Result<(IVec, IVec)>> {
    let number = 0_u32.to_be_bytes();
    db.iter().filter_map(move |item| match item {
        Ok((key, first)) => {
            let length = key.strip_suffix(&number)?.len();
            Some(Ok((key.subslice(0, length), begin(&first))))
        }
        Err(error) => Some(Err(error)),
    })
}

/// The keys from `from` on, in their order.
pub(super) fn keys(db: &Db, from: &[u8]) -> impl Iterator<Item = sled::Result<IVec>> {
    let number = 0_u32.to_be_bytes();
    db.range(from..).keys().filter_map(move |key| match key {
        Ok(key) => {
            let length = key.strip_suffix(&number)?.len();
            Some(Ok(key.subslice(0, length)))
        }
        Err(error) => Some(Err(error)),
    })
}

/// The first chunk without the value's length.
fn begin(first: &IVec) -> IVec {
    let cut = first.len().min(LENGTH_BYTES);
    first.subslice(cut, first.len() - cut)
}

/// The value of a key. A batch that is applied meanwhile may mix two values: for the value's own checksum to notice.
pub(super) fn get(db: &Db, key: &[u8]) -> sled::Result<Option<IVec>> {
    let Some(first) = db.get(chunk_key(key, 0))? else {
        return Ok(None);
    };
    let Some((length, begin)) = first.split_first_chunk::<LENGTH_BYTES>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*length) as usize;
    if length == begin.len() {
        return Ok(Some(first.subslice(LENGTH_BYTES, length)));
    }
    let mut value = begin.to_vec();
    for number in 1.. {
        if value.len() >= length {
            break;
        }
        match db.get(chunk_key(key, number))? {
            Some(chunk) => value.extend_from_slice(&chunk),
            None => return Ok(None),
        }
    }
    Ok(Some(value.into()))
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
    fn values_of_every_length_come_back_and_leave_nothing_behind() {
        let directory = tempfile::tempdir().unwrap();
        let db = sled::open(directory.path()).unwrap();
        let first = CHUNK_BYTES - LENGTH_BYTES;
        let edge = first + CHUNK_BYTES;
        for length in [0, 1, first - 1, first, first + 1, 50_000, edge, edge + 1, 7] {
            let value: Vec<u8> = (0..length).map(|byte| (byte % 251) as u8).collect();
            store(&db, &value);
            assert_eq!(get(&db, b"k").unwrap().unwrap(), value, "{length} bytes");
            let chunks = (LENGTH_BYTES + length).div_ceil(CHUNK_BYTES);
            assert_eq!(db.len(), chunks, "{length} bytes");
        }
        let mut batch = Batch::default();
        assert!(remove(&db, &mut batch, b"k").unwrap().is_some());
        db.apply_batch(batch).unwrap();
        assert_eq!(get(&db, b"k").unwrap(), None);
        assert!(db.is_empty());
    }

    #[test]
    fn a_value_without_its_end_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let db = sled::open(directory.path()).unwrap();
        store(&db, &[7; 3 * CHUNK_BYTES]);
        db.remove(chunk_key(b"k", 2)).unwrap();
        assert_eq!(get(&db, b"k").unwrap(), None);
        // What is left of it is none of the next value's affair.
        store(&db, b"short");
        assert_eq!(get(&db, b"k").unwrap().unwrap(), b"short");
    }
}
