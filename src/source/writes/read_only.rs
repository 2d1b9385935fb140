//! Refuses bodies that would change read-only columns.

use crate::resource::body::{BodyError, Mismatch};
use crate::resource::writable::pointer_token;
use crate::source::writes::error::{Failure, WriteError};
use crate::source::writes::inputs::Inputs;
use crate::source::writes::transaction::{Transaction, WriteTarget};

impl Transaction<'_> {
    /// Checks that the rows of `inputs` give no read-only column another value than the stored rows have.
    ///
    /// # Errors
    /// [`BodyError::Mismatches`] with the columns that would change.
    pub(super) async fn check_read_only(
        &mut self,
        target: &WriteTarget<'_>,
        inputs: Inputs<'_>,
    ) -> Result<(), Failure> {
        let (Some(statement), Some(rows)) = (&target.sql.read_only_changes, inputs.rows) else {
            return Ok(());
        };
        let mut mismatches = Vec::new();
        for [level, column, row] in self.find_numbers(target, statement, inputs).await? {
            let columns = target
                .writable
                .levels
                .get(level)
                .map(|level| &level.columns);
            let Some(column) = columns.and_then(|columns| columns.get(column)) else {
                continue;
            };
            let at = target.writable.pointer(rows, level, row.saturating_sub(1));
            let field = column.field.as_deref().unwrap_or_default();
            mismatches.push(Mismatch {
                pointer: format!("{at}/{}", pointer_token(field)),
                message: column.read_only().unwrap_or("is read-only").to_owned(),
            });
        }
        if mismatches.is_empty() {
            return Ok(());
        }
        Err(WriteError::Body(BodyError::Mismatches(mismatches)).into())
    }
}
