//! Refuses bodies with equal keys in different spellings.

use crate::resource::body::{BodyError, Mismatch};
use crate::source::writes::error::{Failure, WriteError};
use crate::source::writes::inputs::Inputs;
use crate::source::writes::transaction::{Transaction, WriteTarget};

impl Transaction<'_> {
    /// Checks that the rows of a document in `inputs` have different keys, as PostgreSQL compares them.
    ///
    /// # Errors
    /// [`BodyError::Mismatches`] with the rows that have the key of an earlier one.
    pub(super) async fn check_equal_keys(
        &mut self,
        target: &WriteTarget<'_>,
        inputs: Inputs<'_>,
    ) -> Result<(), Failure> {
        let (Some(statement), Some(rows)) = (&target.sql.equal_keys, inputs.rows) else {
            return Ok(());
        };
        let mut mismatches = Vec::new();
        for [level, one, other] in self.find_numbers(target, statement, inputs).await? {
            let pointer = |row: usize| target.writable.pointer(rows, level, row.saturating_sub(1));
            mismatches.extend([other, one].map(|row| Mismatch {
                pointer: pointer(row),
                message:
                    "has a key that PostgreSQL calls equal to that of another object".to_owned(),
            }));
        }
        if mismatches.is_empty() {
            return Ok(());
        }
        Err(WriteError::Body(BodyError::Mismatches(mismatches)).into())
    }
}
