//! Composites and arrays in PostgreSQL's binary format (its `record_send` and `array_send`).

use crate::resource::document::RenderError;

/// `record` (PostgreSQL's pg_type.dat).
pub(super) const RECORD: u32 = 2249;

/// `record[]`.
pub(super) const RECORDS: u32 = 2287;

const SHORT: RenderError = RenderError::Malformed("it ends too early");

/// What is left to be read.
pub(super) struct Wire<'r>(pub(super) &'r [u8]);

impl<'r> Wire<'r> {
    fn word(&mut self) -> Result<[u8; 4], RenderError> {
        let (word, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*word)
    }

    /// How many follow.
    pub(super) fn count(&mut self) -> Result<usize, RenderError> {
        let count = i32::from_be_bytes(self.word()?);
        usize::try_from(count).map_err(|_| RenderError::Malformed("a negative count"))
    }

    pub(super) fn oid(&mut self) -> Result<u32, RenderError> {
        Ok(u32::from_be_bytes(self.word()?))
    }

    /// A value's bytes; none for null.
    pub(super) fn value(&mut self) -> Result<Option<&'r [u8]>, RenderError> {
        let length = i32::from_be_bytes(self.word()?);
        if length == -1 {
            return Ok(None);
        }
        let length =
            usize::try_from(length).map_err(|_| RenderError::Malformed("a negative length"))?;
        let (value, rest) = self.0.split_at_checked(length).ok_or(SHORT)?;
        self.0 = rest;
        Ok(Some(value))
    }

    /// A record in an array.
    pub(super) fn record(&mut self) -> Result<&'r [u8], RenderError> {
        let record = self.value()?;
        record.ok_or(RenderError::Malformed("a row that is null"))
    }

    /// Reads an array of records up to its first element: how many there are.
    pub(super) fn array_length(&mut self) -> Result<usize, RenderError> {
        let dimensions = self.count()?;
        let _has_nulls = self.word()?;
        if self.oid()? != RECORD {
            return Err(RenderError::Malformed("an array of something else"));
        }
        match dimensions {
            0 => Ok(0),
            1 => {
                let length = self.count()?;
                let _lower_bound = self.word()?;
                Ok(length)
            }
            _ => Err(RenderError::Malformed("an array of several dimensions")),
        }
    }

    pub(super) fn end(&self) -> Result<(), RenderError> {
        match self.0 {
            [] => Ok(()),
            _ => Err(RenderError::Malformed("something follows its end")),
        }
    }
}
