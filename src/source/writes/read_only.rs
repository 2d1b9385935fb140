//! Refuses bodies that would change read-only columns.

use sqlx::Row;

use crate::resource::body::{BodyError, Mismatch};
use crate::resource::writable::pointer_token;
use crate::source::SourceError;
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
        for found in self.run_statement(target, statement, inputs).await? {
            let number = |at: usize| -> Result<Option<usize>, SourceError> {
                let number: Option<i64> = found.try_get(at)?;
                Ok(number.and_then(|number| usize::try_from(number).ok()))
            };
            let (Some(level), Some(column), Some(row)) = (number(0)?, number(1)?, number(2)?)
            else {
                continue;
            };
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
