//! Reads composites and arrays in PostgreSQL's binary format (`record_send` and `array_send`).

use crate::resource::document::RenderError;

/// `record` (PostgreSQL's pg_type.dat).
pub(super) const RECORD: u32 = 2249;

/// `record[]`.
pub(super) const RECORDS: u32 = 2287;

const SHORT: RenderError = RenderError::Malformed("the record ends too early");

/// The bytes that were not read so far.
pub(super) struct BinaryReader<'r>(pub(super) &'r [u8]);

impl<'r> BinaryReader<'r> {
    fn word(&mut self) -> Result<[u8; 4], RenderError> {
        let (word, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*word)
    }

    /// Reads the number of the items that follow.
    pub(super) fn count(&mut self) -> Result<usize, RenderError> {
        let count = i32::from_be_bytes(self.word()?);
        usize::try_from(count).map_err(|_| RenderError::Malformed("a count is negative"))
    }

    pub(super) fn oid(&mut self) -> Result<u32, RenderError> {
        Ok(u32::from_be_bytes(self.word()?))
    }

    /// Reads the bytes of a value; `None` for null.
    pub(super) fn value(&mut self) -> Result<Option<&'r [u8]>, RenderError> {
        let length = i32::from_be_bytes(self.word()?);
        if length == -1 {
            return Ok(None);
        }
        let length =
            usize::try_from(length).map_err(|_| RenderError::Malformed("a length is negative"))?;
        let (value, rest) = self.0.split_at_checked(length).ok_or(SHORT)?;
        self.0 = rest;
        Ok(Some(value))
    }

    /// Reads an element of an array of records.
    pub(super) fn record(&mut self) -> Result<&'r [u8], RenderError> {
        let record = self.value()?;
        record.ok_or(RenderError::Malformed("a row is null"))
    }

    /// Reads the head of an array of records. Returns the number of elements.
    pub(super) fn array_length(&mut self) -> Result<usize, RenderError> {
        let dimensions = self.count()?;
        let _has_nulls = self.word()?;
        if self.oid()? != RECORD {
            return Err(RenderError::Malformed("an array does not have records"));
        }
        match dimensions {
            0 => Ok(0),
            1 => {
                let length = self.count()?;
                let _lower_bound = self.word()?;
                Ok(length)
            }
            _ => Err(RenderError::Malformed("an array has several dimensions")),
        }
    }

    /// Checks that all bytes were read.
    pub(super) fn end(&self) -> Result<(), RenderError> {
        match self.0 {
            [] => Ok(()),
            _ => Err(RenderError::Malformed("bytes follow the end of the record")),
        }
    }
}
