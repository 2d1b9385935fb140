//! Inserts documents: all levels together, or level by level if there are triggers.
//!
//! There is an insert for each set of columns that rows of a level give. Keys that PostgreSQL draws are taken from what the
//! inserts return, and passed to the rows below.

use std::collections::HashSet;

use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::resource::Scope;
use crate::resource::body::{BodyError, Mismatch};
use crate::resource::writable::{ColumnInput, GivenColumns, Level, LevelRows, Rows, Writable};
use crate::resource::write::{LevelInsert, WriteSql};
use crate::source::SourceError;
use crate::source::writes::actions::{missing_xid, xid_of};
use crate::source::writes::differences::{place, row_of_number};
use crate::source::writes::error::{Failure, WriteError};
use crate::source::writes::forward::postpone;
use crate::source::writes::hidden::{HiddenRow, hidden_key, visible};
use crate::source::writes::inputs::{
    Inputs, join_documents, link_rows, select_documents, select_rows,
};
use crate::source::writes::owned::without_missing_targets;
use crate::source::writes::transaction::{Transaction, WriteTarget, WrittenDocument};
use crate::source::writes::{Action, Write, WriteEffect};

/// The most sets of given columns in one statement. Documents with more are inserted by several statements.
const SETS_MAX: usize = 16;

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
    pub(super) fn conflict(&mut self, writable: &Writable, document: usize) -> WriteError {
        let is_root = |row: &mut HiddenRow| row.level == 0 && row.document == document;
        let hidden: Vec<HiddenRow> = self.hidden.extract_if(.., is_root).collect();
        if hidden.is_empty() {
            WriteError::exists(writable)
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
        let rows = join_documents(target.writable, documents);
        let inserted = self.insert_joined(target, writes, &rows).await;
        self.rows = Some(rows);
        inserted
    }

    async fn insert_joined(
        &mut self,
        target: &WriteTarget<'_>,
        writes: &[&Write],
        rows: &Rows,
    ) -> Result<Vec<Result<WrittenDocument, WriteError>>, Failure> {
        self.check_equal_keys(target, Inputs::rows(rows)).await?;
        self.check_hidden_keys(target, rows).await?;
        if target.writable.has_triggers && self.was_violated {
            let existing = &target.sql.existing;
            let found = self
                .run_statement(target, existing, Inputs::rows(rows))
                .await?;
            let key: Option<String> = match found.first() {
                Some(found) => found.try_get(1).map_err(SourceError::from)?,
                None => None,
            };
            if key.is_some() {
                return Ok(vec![Err(WriteError::exists(target.writable))]);
            }
        }
        // Writes that have to be checked here come alone.
        let scope = match writes {
            [write] => &write.writer,
            _ => &Scope::All,
        };
        let mut inserted = self.insert_rows(target, scope, rows).await?;
        let numbers = 0..writes.len();
        let conflicts = numbers.map(|document| Err(inserted.conflict(target.writable, document)));
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
        let inserted = self.insert_checked(target, scope, rows).await;
        let inserted = inserted
            .map_err(|failure| without_missing_targets(target, scope, rows, None, failure))?;
        for (_, document) in &inserted.documents {
            self.check_generated_owner(target, scope, &document.key)
                .await?;
        }
        Ok(inserted)
    }

    async fn insert_checked(
        &mut self,
        target: &WriteTarget<'_>,
        scope: &Scope<'_>,
        rows: &Rows,
    ) -> Result<Inserted, Failure> {
        let mut inserted = Inserted::default();
        let all = 0..rows.documents();
        let mut open = vec![all];
        while let Some(range) = open.pop() {
            if range.is_empty() {
                continue;
            }
            let part = match range.len() {
                all if all == rows.documents() => None,
                _ => Some(select_documents(target.writable, rows, &range)),
            };
            let part = part.as_ref().unwrap_or(rows);
            let given = given_columns(target.writable, part);
            let sets: usize = given.iter().map(|level| level.sets.len()).sum();
            let is_together = !target.writable.has_triggers && sets <= SETS_MAX;
            if range.len() > 1 && !is_together {
                let half = range.start + range.len() / 2;
                open.extend([half..range.end, range.start..half]);
            } else if is_together {
                self.insert_together(target, scope, part, &given, &mut inserted, range.start)
                    .await?;
            } else {
                self.insert_by_level(target, scope, part, &mut inserted, range.start)
                    .await?;
            }
        }
        Ok(inserted)
    }

    /// Inserts the only document of `rows`, which has the number `document`, level by level.
    async fn insert_by_level(
        &mut self,
        target: &WriteTarget<'_>,
        scope: &Scope<'_>,
        rows: &Rows,
        inserted: &mut Inserted,
        document: usize,
    ) -> Result<(), Failure> {
        let mut rows = rows.clone();
        let counts: Vec<usize> = rows.levels.iter().map(LevelRows::count).collect();
        self.defer_references(target).await?;
        let postponed = postpone(target.writable, &mut rows, |level| {
            (0..counts[level]).collect()
        });
        let Some(written) = self.insert_root(target, &mut rows).await? else {
            let hidden = self.find_hidden(target, &rows).await?.into_iter();
            inserted
                .hidden
                .extend(hidden.map(|row| HiddenRow { document, ..row }));
            return Ok(());
        };
        for level in 1..target.writable.levels.len() {
            self.insert_level(target, level, &mut rows, None).await?;
        }
        self.set_postponed(target, &written.key, &mut rows, None, postponed)
            .await?;
        self.check_visible(target, &rows).await?;
        self.check_stored_targets(target, scope, &rows, None)
            .await?;
        inserted.documents.push((document, written));
        Ok(())
    }

    /// Inserts the documents of `rows`, the first of which has the number `first`, by one statement.
    async fn insert_together(
        &mut self,
        target: &WriteTarget<'_>,
        scope: &Scope<'_>,
        rows: &Rows,
        given: &[GivenColumns],
        inserted: &mut Inserted,
        first: usize,
    ) -> Result<(), Failure> {
        let keys = needs_keys(target.writable, given, scope);
        let sets: Vec<&[Vec<usize>]> = given.iter().map(|level| &*level.sets).collect();
        let statement = WriteSql::insert_together(target.resource, target.writable, &sets, keys);
        let inputs = Inputs {
            given,
            ..Inputs::rows(rows)
        };
        let found = self.run_statement(target, &statement, inputs).await?;
        let mut keyed = keys.then(|| rows.clone());
        let mut numbers = HashSet::new();
        for row in &found {
            let level: Option<i64> = row.try_get(1).map_err(SourceError::from)?;
            let number: Option<i64> = row.try_get(2).map_err(SourceError::from)?;
            let (Some(level), Some(number)) =
                (level.and_then(place), number.and_then(row_of_number))
            else {
                continue;
            };
            if let Some(keyed) = &mut keyed {
                let texts: Vec<Option<String>> = row.try_get(4).map_err(SourceError::from)?;
                set_key(target.writable, keyed, level, number, texts);
            }
            if level > 0 {
                continue;
            }
            let key: Option<String> = row.try_get(3).map_err(SourceError::from)?;
            let key =
                key.ok_or_else(|| SourceError::Unexpected("an insert returned no key".into()))?;
            check_key(target, &key)?;
            let document = WrittenDocument {
                effect: WriteEffect::Created,
                key,
                xid: xid_of(row)?.ok_or_else(missing_xid)?,
            };
            numbers.insert(number);
            inserted.documents.push((first + number, document));
        }
        let rows = keyed.as_ref().unwrap_or(rows);
        self.check_stored_targets(target, scope, rows, None).await?;
        let hidden = self.find_hidden(target, rows).await?.into_iter();
        let (written, hidden): (Vec<_>, Vec<_>) =
            hidden.partition(|row| numbers.contains(&row.document));
        visible(written)?;
        inserted
            .hidden
            .extend(hidden.into_iter().map(|row| HiddenRow {
                document: first + row.document,
                ..row
            }));
        Ok(())
    }

    /// Inserts the root row of the only document of `rows`, which gets the key that PostgreSQL has drawn or a trigger changed.
    /// `None` if a trigger has left it out and another transaction, or an earlier statement, has stored a row with its key.
    async fn insert_root(
        &mut self,
        target: &WriteTarget<'_>,
        rows: &mut Rows,
    ) -> Result<Option<WrittenDocument>, Failure> {
        let given = given_columns(target.writable, rows);
        let given = given.first().and_then(|root| root.sets.first());
        let given = given.map_or(&[][..], Vec::as_slice);
        let statement = WriteSql::insert_root(target.resource, target.writable, given);
        let found = self
            .run_statement(target, &statement, Inputs::rows(rows))
            .await?;
        let inserted = found.first().ok_or_else(missing_xid)?;
        if inserted.try_get(1).map_err(SourceError::from)? {
            return Ok(None);
        }
        let mut key: Option<String> = inserted.try_get(2).map_err(SourceError::from)?;
        if key.is_some() {
            let texts = key_texts(&target.writable.levels[0], inserted, 3)?;
            set_key(target.writable, rows, 0, 0, texts);
        } else {
            // The trigger may have inserted the row elsewhere, such as in an inheriting table.
            let found = self
                .run_statement(target, &target.sql.existing, Inputs::rows(rows))
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
    /// numbers `selected`. They get the keys that PostgreSQL has drawn or triggers changed.
    ///
    /// # Errors
    /// [`WriteError::Vetoed`] if a trigger has left out a row.
    pub(super) async fn insert_level(
        &mut self,
        target: &WriteTarget<'_>,
        level: usize,
        rows: &mut Rows,
        selected: Option<&[usize]>,
    ) -> Result<(), Failure> {
        let (writable, resource) = (target.writable, target.resource);
        link_rows(writable, rows, level);
        let (Some(known), Some(of)) = (writable.levels.get(level), rows.levels.get(level)) else {
            return Ok(());
        };
        let all: Vec<usize> = (0..of.count()).collect();
        let selected = selected.unwrap_or(&all);
        let given = known.given_columns(of, selected);
        for (set, columns) in given.sets.iter().enumerate() {
            let numbers = given.rows_of(set, selected);
            let insert = WriteSql::insert_level(resource, writable, level, columns);
            let part = select_rows(writable, rows, level, &numbers);
            let found = self.insert_rows_of_level(target, level, &insert, &part);
            let found = found.await?;
            // If a trigger has left out rows, all are in the table with the keys that the body has.
            if insert.returns_keys && found.len() == numbers.len() {
                for (&row, found) in numbers.iter().zip(&found) {
                    set_key(writable, rows, level, row, key_texts(known, found, 2)?);
                }
            }
        }
        Ok(())
    }

    /// Runs a statement that inserts `rows`.
    async fn insert_rows_of_level(
        &mut self,
        target: &WriteTarget<'_>,
        level: usize,
        insert: &LevelInsert,
        rows: &Rows,
    ) -> Result<Vec<PgRow>, Failure> {
        let inputs = Inputs::rows(rows);
        let found = self
            .run_statement(target, &insert.statement, inputs)
            .await?;
        if count_of(&found)? == 0 {
            return Ok(found);
        }
        let Some(missing) = target.sql.missing_rows.get(level) else {
            return Ok(found);
        };
        let missing = self.run_statement(target, missing, inputs).await?;
        match count_of(&missing)? {
            0 => Ok(found),
            _ => Err(WriteError::Vetoed.into()),
        }
    }
}

/// The columns that the rows of each level give.
fn given_columns(writable: &Writable, rows: &Rows) -> Vec<GivenColumns> {
    let levels = writable.levels.iter().zip(&rows.levels);
    let given = levels.map(|(level, of)| {
        let all: Vec<usize> = (0..of.count()).collect();
        level.given_columns(of, &all)
    });
    given.collect()
}

/// Whether rows are searched for once they are stored, and lack a part of their key before.
fn needs_keys(writable: &Writable, given: &[GivenColumns], scope: &Scope<'_>) -> bool {
    writable.levels.iter().zip(given).any(|(level, given)| {
        let is_searched = level.condition.is_some()
            || scope.is_restricted()
                && level
                    .pointers
                    .iter()
                    .any(|pointer| pointer.columns.len() > 1);
        let lacks_key = |set: &Vec<usize>| level.key.iter().any(|column| !set.contains(column));
        is_searched && given.sets.iter().any(lacks_key)
    })
}

/// The second column of the first row of a result.
fn count_of(rows: &[PgRow]) -> Result<i64, SourceError> {
    let count = rows.first().map(|row| row.try_get::<i64, _>(1));
    Ok(count.transpose()?.unwrap_or_default())
}

/// The parts of a key of `level`, which `found` has from column `first` on.
fn key_texts(
    level: &Level,
    found: &PgRow,
    first: usize,
) -> Result<Vec<Option<String>>, SourceError> {
    let parts = 0..level.key.len();
    let texts = parts.map(|part| found.try_get(first + part));
    Ok(texts.collect::<Result<_, _>>()?)
}

/// Sets the key of a row to `texts`.
fn set_key(
    writable: &Writable,
    rows: &mut Rows,
    level: usize,
    row: usize,
    texts: Vec<Option<String>>,
) {
    let (Some(known), Some(of)) = (writable.levels.get(level), rows.levels.get_mut(level)) else {
        return;
    };
    for (text, &column) in texts.into_iter().zip(&known.key) {
        let inputs = of.columns.get_mut(column);
        let input = inputs.and_then(|inputs| inputs.get_mut(row));
        if let (Some(input), Some(text)) = (input, text) {
            *input = ColumnInput::Text(text);
        }
    }
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
