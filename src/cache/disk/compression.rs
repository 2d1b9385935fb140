//! Compression of entries: a directory of `disk.max_bytes` holds about three times as many documents, and so do the
//! pages that sled keeps in memory.

use std::sync::{Mutex, PoisonError};

use zstd::bulk::{Compressor, Decompressor};

/// Higher levels save little on texts as short as documents.
const LEVEL: i32 = 1;
/// Shorter texts are stored as they are.
const TEXT_BYTES_MIN: usize = 128;
/// A text is compressed in blocks of so many bytes, so that reading a long one can end early.
const BLOCK_BYTES: usize = 128 << 10;
/// Bytes of a block's compressed length.
const LENGTH_BYTES: usize = 4;

/// The compressor of the writing thread and the decompressor of the reading thread.
pub(super) struct Compression {
    compressor: Mutex<Compressor<'static>>,
    decompressor: Mutex<Decompressor<'static>>,
}

impl Compression {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            compressor: Mutex::new(Compressor::new(LEVEL)?),
            decompressor: Mutex::new(Decompressor::new()?),
        })
    }

    /// The blocks of `text`, each behind its length; `None` if that does not save an eighth.
    pub(super) fn compress(&self, text: &[u8]) -> Option<Vec<u8>> {
        if text.len() < TEXT_BYTES_MIN {
            return None;
        }
        let bytes_max = text.len() - text.len() / 8;
        let compressor = self.compressor.lock();
        let mut compressor = compressor.unwrap_or_else(PoisonError::into_inner);
        let mut blocks = Vec::new();
        for block in text.chunks(BLOCK_BYTES) {
            let block = compressor.compress(block).ok()?;
            // A block is at most a little longer than BLOCK_BYTES.
            blocks.extend_from_slice(&(block.len() as u32).to_be_bytes());
            blocks.extend_from_slice(&block);
            if blocks.len() > bytes_max {
                return None;
            }
        }
        Some(blocks)
    }

    /// The text of `length` bytes that [`Compression::compress`] made `blocks` of; `None` if they are damaged.
    /// `goes_on` is called after each block; the text counts as damaged if it returns false.
    pub(super) fn decompress(
        &self,
        mut blocks: &[u8],
        length: usize,
        mut goes_on: impl FnMut() -> bool,
    ) -> Option<Vec<u8>> {
        let decompressor = self.decompressor.lock();
        let mut decompressor = decompressor.unwrap_or_else(PoisonError::into_inner);
        let mut text = Vec::new();
        while !blocks.is_empty() {
            let (bytes, rest) = blocks.split_first_chunk::<LENGTH_BYTES>()?;
            let (block, rest) = rest.split_at_checked(u32::from_be_bytes(*bytes) as usize)?;
            let left = length.checked_sub(text.len())?.min(BLOCK_BYTES);
            let block = decompressor.decompress(block, left).ok()?;
            if text.is_empty() {
                text = block;
            } else {
                text.extend_from_slice(&block);
            }
            blocks = rest;
            if !goes_on() {
                return None;
            }
        }
        (text.len() == length).then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_every_length_come_back() {
        let compression = Compression::new().unwrap();
        let lengths = [
            TEXT_BYTES_MIN,
            BLOCK_BYTES - 1,
            BLOCK_BYTES,
            BLOCK_BYTES + 1,
        ];
        for length in lengths.into_iter().chain([3 * BLOCK_BYTES]) {
            let text: Vec<u8> = (0..length).map(|byte| (byte / 7 % 251) as u8).collect();
            let blocks = compression.compress(&text).unwrap();
            assert!(blocks.len() <= length - length / 8);
            let back = |length, goes_on| compression.decompress(&blocks, length, || goes_on);
            assert_eq!(back(length, true), Some(text), "{length}");
            assert_eq!(back(length - 1, true), None, "{length}");
            assert_eq!(back(length, false), None, "{length}");
        }
    }

    #[test]
    fn what_does_not_shrink_is_left_as_it_is() {
        let compression = Compression::new().unwrap();
        assert_eq!(compression.compress(&[7; TEXT_BYTES_MIN - 1]), None);
        let mut state = 1_u64;
        let random: Vec<u8> = std::iter::repeat_with(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        })
        .take(10_000)
        .collect();
        assert_eq!(compression.compress(&random), None);
    }
}
