//! Inserts documents: all levels together, or level by level if there are triggers.

use std::collections::HashSet;

use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::resource::Scope;
use crate::resource::body::{BodyError, Mismatch};
use crate::resource::writable::{ColumnInput, LevelRows, Rows, Writable};
use crate::resource::write::{Change, InsertSql, LevelInsert, WriteStatement};
use crate::source::SourceError;
use crate::source::writes::actions::{missing_xid, xid_of};
use crate::source::writes::error::{Failure, WriteError};
use crate::source::writes::hidden::{HiddenRow, hidden_key, visible};
use crate::source::writes::inputs::{
    Inputs, join_documents, link_rows, select_documents, select_rows,
};
use crate::source::writes::transaction::{Transaction, WriteTarget, WrittenDocument};
use crate::source::writes::{Action, Write, WriteEffect};

/// The outcome of [`Transaction::insert_rows`].
#[derive(Default)]
pub(super) struct Inserted {
    /// The inserted documents with their numbers, counted from 0.
    pub(super) documents: Vec<(usize, WrittenDocument)>,
    /// Rows of the other documents with whose keys there are hidden rows.
    hidden: Vec<HiddenRow>,
}

impl Inserted {
    /// Why the document of this number was not inserted.
    pub(super) fn conflict(&mut self, document: usize) -> WriteError {
        let is_root = |row: &mut HiddenRow| row.level == 0 && row.document == document;
        let hidden: Vec<HiddenRow> = self.hidden.extract_if(.., is_root).collect();
        if hidden.is_empty() {
            WriteError::Exists
        } else {
            hidden_key(hidden)
        }
    }
}

impl Transaction<'_> {
    /// Inserts the documents of `writes`. A document whose key exists is left out with all its rows; if there are triggers,
    /// only after an attempt that it has made fail.
    pub(super) async fn insert(
        &mut self,
        target: &WriteTarget<'_>,
        writes: &[&Write],
    ) -> Result<Vec<Result<WrittenDocument, WriteError>>, Failure> {
        let documents = writes.iter().filter_map(|write| match &write.action {
            Action::Insert { rows } => Some(rows),
            _ => None,
        });
        let mut rows = join_documents(target.writable, documents);
        self.draw_defaults(target, &mut rows).await?;
        self.check_equal_keys(target, Inputs::rows(&rows)).await?;
        self.check_hidden_keys(target, &rows).await?;
        if let InsertSql::ByLevel { existing, .. } = &target.sql.insert
            && self.was_violated
        {
            let found = self
                .run_statement(target, existing, Inputs::rows(&rows))
                .await?;
            let key: Option<String> = match found.first() {
                Some(found) => found.try_get(1).map_err(SourceError::from)?,
                None => None,
            };
            if key.is_some() {
                return Ok(vec![Err(WriteError::Exists)]);
            }
        }
        // Writes that have to be checked here come alone.
        let scope = match writes {
            [write] => &write.writer,
            _ => &Scope::All,
        };
        let mut inserted = self.insert_rows(target, scope, &rows).await?;
        let numbers = 0..writes.len();
        let conflicts = numbers.map(|document| Err(inserted.conflict(document)));
        let mut outcomes: Vec<_> = conflicts.collect();
        for (document, done) in inserted.documents {
            if let Some(outcome) = outcomes.get_mut(document) {
                *outcome = Ok(done);
            }
        }
        Ok(outcomes)
    }

    /// Inserts the documents of `rows`, whose owners are in `scope`. Those whose keys exist are left out; with triggers of
    /// users only if a trigger has left out the root row, else PostgreSQL refuses them.
    ///
    /// # Errors
    /// [`WriteError::Vetoed`] if a trigger has left out a row, [`WriteError::Body`] if rows of a document have equal keys or
    /// would be hidden; what a principal with `scope` may not write.
    pub(super) async fn insert_rows(
        &mut self,
        target: &WriteTarget<'_>,
        scope: &Scope<'_>,
        rows: &Rows,
    ) -> Result<Inserted, Failure> {
        self.check_new_targets(target, scope, rows).await?;
        let inserted = self.insert_checked(target, rows).await?;
        for (_, document) in &inserted.documents {
            self.check_generated_owner(target, scope, &document.key)
                .await?;
        }
        Ok(inserted)
    }

    async fn insert_checked(
        &mut self,
        target: &WriteTarget<'_>,
        rows: &Rows,
    ) -> Result<Inserted, Failure> {
        let InsertSql::ByLevel { existing, root } = &target.sql.insert else {
            return self.insert_together(target, rows).await;
        };
        let mut inserted = Inserted::default();
        for number in 0..rows.documents() {
            let mut document = match rows.documents() {
                1 => rows.clone(),
                _ => select_documents(target.writable, rows, &(number..number + 1)),
            };
            let written = self
                .insert_root(target, root, existing, &mut document)
                .await?;
            let Some(written) = written else {
                let hidden = self.find_hidden(target, &document).await?;
                let hidden = hidden.into_iter();
                inserted.hidden.extend(hidden.map(|row| HiddenRow {
                    document: number,
                    ..row
                }));
                continue;
            };
            for level in &target.sql.insert_below {
                self.insert_level(target, level, &mut document, None)
                    .await?;
            }
            self.check_visible(target, &document).await?;
            inserted.documents.push((number, written));
        }
        Ok(inserted)
    }

    async fn insert_together(
        &mut self,
        target: &WriteTarget<'_>,
        rows: &Rows,
    ) -> Result<Inserted, Failure> {
        let InsertSql::Together(statement) = &target.sql.insert else {
            return Ok(Inserted::default());
        };
        let found = self
            .run_statement(target, statement, Inputs::rows(rows))
            .await?;
        let mut done = Vec::with_capacity(found.len());
        let (mut inserted, mut numbers) = (0, HashSet::new());
        for row in &found {
            inserted = row.try_get::<i64, _>(1).map_err(SourceError::from)?;
            let number: Option<i64> = row.try_get(2).map_err(SourceError::from)?;
            let key: Option<String> = row.try_get(3).map_err(SourceError::from)?;
            let number = number.and_then(|number| usize::try_from(number).ok());
            let (Some(number), Some(key)) = (number, key) else {
                continue;
            };
            if numbers.insert(number) {
                check_key(target, &key)?;
                let document = WrittenDocument {
                    effect: WriteEffect::Created,
                    key,
                    xid: xid_of(row)?.ok_or_else(missing_xid)?,
                };
                done.push((number.saturating_sub(1), document));
            }
        }
        if usize::try_from(inserted) != Ok(done.len()) {
            let message = format!("{}: a trigger changes keys", target.resource.name);
            return Err(SourceError::Unexpected(message).into());
        }
        let hidden = self.find_hidden(target, rows).await?.into_iter();
        let (written, hidden): (Vec<_>, Vec<_>) =
            hidden.partition(|row| numbers.contains(&(row.document + 1)));
        visible(written)?;
        Ok(Inserted {
            documents: done,
            hidden,
        })
    }

    /// Inserts the root row of the only document of `rows`, which gets the key that a trigger may have changed. `None` if
    /// a trigger has left it out and another transaction, or an earlier statement, has stored a row with its key.
    async fn insert_root(
        &mut self,
        target: &WriteTarget<'_>,
        statement: &WriteStatement,
        existing: &WriteStatement,
        rows: &mut Rows,
    ) -> Result<Option<WrittenDocument>, Failure> {
        let found = self
            .run_statement(target, statement, Inputs::rows(rows))
            .await?;
        let inserted = found.first().ok_or_else(missing_xid)?;
        if inserted.try_get(1).map_err(SourceError::from)? {
            return Ok(None);
        }
        let mut key: Option<String> = inserted.try_get(2).map_err(SourceError::from)?;
        if key.is_some() {
            set_key(target.writable, rows, 0, 0, inserted, 3)?;
        } else {
            // The trigger may have inserted the row elsewhere, such as in an inheriting table.
            let found = self
                .run_statement(target, existing, Inputs::rows(rows))
                .await?;
            let found = found.first().ok_or_else(missing_xid)?;
            key = found.try_get(1).map_err(SourceError::from)?;
            let is_own: Option<bool> = found.try_get(2).map_err(SourceError::from)?;
            if is_own == Some(false) {
                return Ok(None);
            }
        }
        let key = key.ok_or(WriteError::Vetoed)?;
        check_key(target, &key)?;
        Ok(Some(WrittenDocument {
            effect: WriteEffect::Created,
            key,
            xid: xid_of(inserted)?.ok_or_else(missing_xid)?,
        }))
    }

    /// Inserts rows of one level of the only document of `rows`, below rows that were inserted: all, or those with the
    /// numbers `selected`.
    pub(super) async fn insert_level(
        &mut self,
        target: &WriteTarget<'_>,
        insert: &LevelInsert,
        rows: &mut Rows,
        selected: Option<&[usize]>,
    ) -> Result<(), Failure> {
        let (writable, level) = (target.writable, insert.level);
        link_rows(writable, rows, level);
        let count = rows.levels.get(level).map_or(0, LevelRows::count);
        let all: Vec<usize> = (0..count).collect();
        let numbers = selected.unwrap_or(&all);
        if numbers.is_empty() {
            return Ok(());
        }
        let part = selected.map(|selected| select_rows(writable, rows, level, selected));
        let inputs = Inputs::rows(part.as_ref().unwrap_or(rows));
        let found = self.run_change(target, &insert.change, inputs).await?;
        // If a trigger has left out rows, all are in the table with the keys that the body has.
        if insert.returns_keys && found.len() == numbers.len() {
            for (&row, found) in numbers.iter().zip(&found) {
                set_key(writable, rows, level, row, found, 2)?;
            }
        }
        Ok(())
    }

    /// Runs a statement that inserts rows.
    ///
    /// # Errors
    /// [`WriteError::Vetoed`] if a trigger has left out a row.
    async fn run_change(
        &mut self,
        target: &WriteTarget<'_>,
        change: &Change,
        inputs: Inputs<'_>,
    ) -> Result<Vec<PgRow>, Failure> {
        let found = self
            .run_statement(target, &change.statement, inputs)
            .await?;
        if count_of(&found)? == 0 {
            return Ok(found);
        }
        let missing = self.run_statement(target, &change.missing, inputs).await?;
        match count_of(&missing)? {
            0 => Ok(found),
            _ => Err(WriteError::Vetoed.into()),
        }
    }
}

/// The second column of the first row of a result.
fn count_of(rows: &[PgRow]) -> Result<i64, SourceError> {
    let count = rows.first().map(|row| row.try_get::<i64, _>(1));
    Ok(count.transpose()?.unwrap_or_default())
}

/// Sets the key of a row to the texts that `found` has from column `first` on.
fn set_key(
    writable: &Writable,
    rows: &mut Rows,
    level: usize,
    row: usize,
    found: &PgRow,
    first: usize,
) -> Result<(), SourceError> {
    let (Some(known), Some(of)) = (writable.levels.get(level), rows.levels.get_mut(level)) else {
        return Ok(());
    };
    for (part, &column) in known.key.iter().enumerate() {
        let text: Option<String> = found.try_get(first + part)?;
        let input = of
            .columns
            .get_mut(column)
            .and_then(|inputs| inputs.get_mut(row));
        if let (Some(input), Some(text)) = (input, text) {
            *input = ColumnInput::Text(text);
        }
    }
    Ok(())
}

/// Checks that the key of an inserted document, which may be a default, can stand in a path.
fn check_key(target: &WriteTarget<'_>, key: &str) -> Result<(), WriteError> {
    target.resource.key.check(key).map_err(|error| {
        WriteError::Body(BodyError::Mismatches(vec![Mismatch {
            pointer: String::new(),
            message: format!("can't be inserted: {error}"),
        }]))
    })
}
