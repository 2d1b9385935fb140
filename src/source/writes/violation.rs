//! Which members of a document a refused write is about.
//!
//! PostgreSQL names a column or a constraint, but no row. Constraints and columns are told as far as the document shows the
//! columns. Of a value that can't be parsed PostgreSQL names nothing: such values are searched for by casts.

use sqlx::AssertSqlSafe;
use sqlx::postgres::PgDatabaseError;

use crate::resource::writable::{ColumnInput, Rows, Writable, pointer_token};
use crate::source::SourceError;
use crate::source::writes::error::{Failure, Refusal, WriteError};
use crate::source::writes::transaction::{
    ROLLBACK_TO_SAVEPOINT, SAVEPOINT, Transaction, WriteTarget,
};
use crate::source::writes::{QueuedWrite, WriteResult};

/// The most statements that search for a value that can't be parsed.
const CASTS_MAX: usize = 100;

/// What a write has violated, as far as the document shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Violation {
    /// The name of the constraint or unique index, if the document shows all its columns.
    pub constraint: Option<String>,
    /// JSON pointers (RFC 6901) to the members that it is over.
    pub pointers: Vec<String>,
    /// Levels and their columns that the document shows, whose rows are not known yet.
    columns: Vec<(usize, usize)>,
}

impl Violation {
    pub(super) fn of(error: &PgDatabaseError, writable: &Writable) -> Self {
        let name = error.constraint();
        let is_own = |schema: &str, table: &str| {
            error.schema() == Some(schema)
                && [error.table(), error.data_type()].contains(&Some(table))
        };
        let mut violation = Self::default();
        for (number, level) in writable.levels.iter().enumerate() {
            let mut is_of_all = true;
            let columns: Vec<&str> = match (error.column(), name) {
                (Some(column), _)
                    if level
                        .tables
                        .iter()
                        .any(|(schema, table)| is_own(schema, table)) =>
                {
                    vec![column]
                }
                (None, _) => {
                    let mut constraints = level.constraints.iter();
                    let found = constraints.find(|known| {
                        is_own(&known.schema, &known.table)
                            && (known.name.is_none() || known.name.as_deref() == name)
                    });
                    let Some(found) = found else { continue };
                    // Which of a domain's columns it was PostgreSQL does not say.
                    is_of_all = found.name.is_some() || found.columns.len() == 1;
                    found.columns.iter().map(String::as_str).collect()
                }
                _ => continue,
            };
            let shown = columns.iter().filter_map(|name| {
                let mut known = level.columns.iter();
                known.position(|column| column.column == *name && column.field.is_some())
            });
            violation
                .columns
                .extend(shown.map(|column| (number, column)));
            if violation.columns.len() == columns.len() {
                violation.constraint = name.map(str::to_owned);
            }
            if !is_of_all {
                violation.columns.clear();
            }
            break;
        }
        // A document has one root row.
        let is_root = violation.columns.iter().all(|(level, _)| *level == 0);
        if is_root {
            violation.locate(writable, &Rows::default());
        }
        violation
    }

    /// The key of a new document exists.
    pub(super) fn of_key(writable: &Writable) -> Self {
        let mut violation = Self::default();
        let Some(root) = writable.levels.first() else {
            return violation;
        };
        let is_shown = |column: &&usize| root.columns[**column].field.is_some();
        let shown = root.key.iter().filter(is_shown);
        violation.columns = shown.map(|column| (0, *column)).collect();
        if violation.columns.len() == root.key.len() {
            violation.constraint.clone_from(&root.key_name);
        }
        violation.locate(writable, &Rows::default());
        violation
    }

    /// Finds the members in `rows` of one document.
    fn locate(&mut self, writable: &Writable, rows: &Rows) {
        for (level, column) in std::mem::take(&mut self.columns) {
            let (place, is_row) = place_of(writable, rows, level);
            let field = writable.levels[level].columns[column].field.as_deref();
            let member = match field.filter(|_| is_row) {
                Some(field) => format!("{place}/{}", pointer_token(field)),
                None => place,
            };
            if !self.pointers.contains(&member) {
                self.pointers.push(member);
            }
        }
    }
}

/// The JSON pointer to the only row of a level, and true; or to the array or row in which all rows of the level are.
fn place_of(writable: &Writable, rows: &Rows, level: usize) -> (String, bool) {
    let (Some(known), Some(of)) = (writable.levels.get(level), rows.levels.get(level)) else {
        return (String::new(), true);
    };
    let Some(parent) = known.parent else {
        return (String::new(), true);
    };
    match of.parents.as_slice() {
        [_] => (writable.pointer(rows, level, 0), true),
        [first, others @ ..] if others.iter().all(|other| other == first) => {
            let above = writable.pointer(rows, parent, *first as usize);
            (format!("{above}/{}", pointer_token(&known.name)), false)
        }
        _ => (place_of(writable, rows, parent).0, false),
    }
}

impl Transaction<'_> {
    /// Rolls back, and adds to the error of the only write the members that it is about.
    pub(super) async fn end_refused(
        &mut self,
        writes: &[&QueuedWrite],
        outcome: &mut Result<Vec<WriteResult>, Failure>,
    ) -> Result<(), SourceError> {
        self.roll_back().await?;
        let rows = self.rows.take();
        if let (Err(failure), [queued], Some(rows)) = (outcome, writes, rows)
            && failure.error.may_be_of_values()
        {
            let target = WriteTarget::of(&queued.write.resource)?;
            self.session.execute("begin").await?;
            failure.error = self.locate(&target, &rows, failure.error.clone()).await;
            self.roll_back().await?;
        }
        Ok(())
    }

    /// Adds to `error` the members of the only document of `rows` that it is about. Called within a transaction of which
    /// nothing is kept, after a savepoint.
    pub(super) async fn locate(
        &mut self,
        target: &WriteTarget<'_>,
        rows: &Rows,
        error: WriteError,
    ) -> WriteError {
        let (code, refusal, mut violation) = match error {
            WriteError::Refused {
                code,
                refusal,
                violation,
            } => (code, refusal, violation),
            // The functions that read texts raise many errors, those of extensions any.
            WriteError::Source(SourceError::Refused { ref code, .. })
                if error.may_be_of_values() =>
            {
                let found = self.find_unreadable(target, rows).await;
                let Ok(Some(pointer)) = found else {
                    return error;
                };
                let violation = Violation {
                    pointers: vec![pointer],
                    ..Violation::default()
                };
                (code.clone(), Refusal::Invalid, violation)
            }
            error => return error,
        };
        violation.locate(target.writable, rows);
        let is_value = refusal == Refusal::Invalid
            && ["22", "42", "54"]
                .iter()
                .any(|class| code.starts_with(class));
        if is_value && violation.pointers.is_empty() {
            // What PostgreSQL has said before matters more.
            let found = self.find_unreadable(target, rows).await;
            violation.pointers.extend(found.ok().flatten());
        }
        WriteError::Refused {
            code,
            refusal,
            violation,
        }
    }

    /// The JSON pointer to the first value that PostgreSQL can't read as one of its column's type.
    async fn find_unreadable(
        &mut self,
        target: &WriteTarget<'_>,
        rows: &Rows,
    ) -> Result<Option<String>, SourceError> {
        let writable = target.writable;
        let mut casts = 0;
        for (number, (level, of)) in writable.levels.iter().zip(&rows.levels).enumerate() {
            for (column, inputs) in level.columns.iter().zip(&of.columns) {
                let Some(field) = column.field.as_ref().filter(|_| column.is_inserted()) else {
                    continue;
                };
                let all = 0..inputs.len();
                let mut open = vec![all];
                while let Some(range) = open.pop() {
                    let texts = inputs.get(range.clone()).unwrap_or_default().iter();
                    let texts: Vec<&str> = texts.filter_map(text_of).collect();
                    if texts.is_empty() {
                        continue;
                    }
                    casts += 1;
                    if casts > CASTS_MAX {
                        return Ok(None);
                    }
                    let value = column.plain_type.value("u");
                    if self.can_read(&value, texts).await? {
                        continue;
                    }
                    if range.len() == 1 {
                        let row = writable.pointer(rows, number, range.start);
                        return Ok(Some(format!("{row}/{}", pointer_token(field))));
                    }
                    let half = range.start + range.len() / 2;
                    open.extend([half..range.end, range.start..half]);
                }
            }
        }
        Ok(None)
    }

    async fn can_read(&mut self, value: &str, texts: Vec<&str>) -> Result<bool, SourceError> {
        let sql = format!("select count({value}) from unnest($1::text[]) u");
        self.savepoint(SAVEPOINT).await?;
        let read = sqlx::query(AssertSqlSafe(sql))
            .bind(texts)
            .persistent(false)
            .execute(&mut self.session.connection)
            .await;
        if read.is_err() {
            self.savepoint(ROLLBACK_TO_SAVEPOINT).await?;
        }
        Ok(read.is_ok())
    }
}

fn text_of(input: &ColumnInput) -> Option<&str> {
    match input {
        ColumnInput::Text(text) => Some(text),
        ColumnInput::Absent | ColumnInput::Null => None,
    }
}
