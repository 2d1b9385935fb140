//! Makes the rows of a document those of a body: what differs is found first, and only that is written.
//!
//! Rows that the body lacks are deleted, the lowest level first; then, from the root down, rows that differ are updated
//! and new ones inserted. A row that moves within the document is updated, so the row that it leaves is deleted after
//! that. What a trigger keeps keeps the rows below it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;

use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::resource::writable::{ColumnInput, Rows, Writable};
use crate::resource::write::WriteSql;
use crate::source::SourceError;
use crate::source::writes::error::{Failure, WriteError};
use crate::source::writes::inputs::{Inputs, link_rows, select_rows};
use crate::source::writes::transaction::{Transaction, WriteTarget};

/// Kept while a change that may have to be undone is tried.
pub(super) const SAVEPOINT: &str = "savepoint larder";
pub(super) const ROLLBACK_TO_SAVEPOINT: &str = "rollback to savepoint larder";
const RELEASE_SAVEPOINT: &str = "release savepoint larder";

/// The texts of a stored row's key. Two rows of a level never have the same.
type StoredKey = Vec<Option<String>>;

/// The keys of rows, by their level.
type KeysByLevel = BTreeMap<usize, HashSet<StoredKey>>;

/// A stored row that the body lacks.
#[derive(Debug)]
struct StoredRow {
    key: StoredKey,
    /// The key of the row above.
    above: Option<StoredKey>,
}

/// Stored rows by their level.
#[derive(Debug, Default)]
struct StoredRows(BTreeMap<usize, Vec<StoredRow>>);

impl StoredRows {
    fn is_empty(&self) -> bool {
        self.0.values().all(Vec::is_empty)
    }

    /// The keys of the rows that are above rows of `gone`, at any distance as far as those between are among these.
    fn above(&self, writable: &Writable, gone: &Self) -> KeysByLevel {
        let mut found = KeysByLevel::new();
        for (level, known) in writable.levels.iter().enumerate().rev() {
            let Some(parent) = known.parent else { continue };
            let below = found.remove(&level).unwrap_or_default();
            let own = self.0.get(&level).into_iter().flatten();
            let own = own.filter(|row| below.contains(&row.key));
            let rows = own.chain(gone.0.get(&level).into_iter().flatten());
            let keys: Vec<StoredKey> = rows.filter_map(|row| row.above.clone()).collect();
            found.insert(level, below);
            found.entry(parent).or_default().extend(keys);
        }
        found
    }

    /// Takes out the rows with the keys `kept`, and those that are above them.
    fn split_above(&mut self, writable: &Writable, mut kept: KeysByLevel) -> Self {
        let mut split = Self::default();
        for (&level, rows) in self.0.iter_mut().rev() {
            let Some(keys) = kept.remove(&level) else {
                continue;
            };
            let (above, others) = mem::take(rows)
                .into_iter()
                .partition(|row| keys.contains(&row.key));
            *rows = others;
            if let Some(parent) = parent_of(writable, level) {
                let keys = above.iter().filter_map(|row: &StoredRow| row.above.clone());
                kept.entry(parent).or_default().extend(keys);
            }
            split.0.insert(level, above);
        }
        split
    }

    /// Removes the rows below the rows of `level` that have the keys `above`. Returns the keys of the removed ones.
    fn remove_below(
        &mut self,
        writable: &Writable,
        level: usize,
        above: &HashSet<StoredKey>,
    ) -> KeysByLevel {
        let mut removed = KeysByLevel::new();
        for (&below, rows) in &mut self.0 {
            let Some(parent) = parent_of(writable, below) else {
                continue;
            };
            let is_below = |row: &StoredRow| {
                row.above.as_ref().is_some_and(|key| {
                    parent == level && above.contains(key)
                        || removed.get(&parent).is_some_and(|keys| keys.contains(key))
                })
            };
            let (gone, others) = mem::take(rows).into_iter().partition(is_below);
            *rows = others;
            let keys: HashSet<StoredKey> = gone.into_iter().map(|row: StoredRow| row.key).collect();
            if !keys.is_empty() {
                removed.insert(below, keys);
            }
        }
        removed
    }
}

/// What has to be written so that a document has the rows of a body.
#[derive(Default)]
struct Differences {
    /// Stored rows that the body lacks.
    gone: StoredRows,
    /// For each level the rows of the body that differ from a stored row, with the columns in which they do.
    changed: BTreeMap<usize, Vec<(usize, Vec<usize>)>>,
    /// For each level the rows of the body that are not stored.
    new: BTreeMap<usize, Vec<usize>>,
    /// The keys of stored rows that have changed rows below.
    above_changed: KeysByLevel,
}

impl Differences {
    /// Reads the rows that [`WriteSql::compare`] has returned.
    ///
    /// # Errors
    /// A unique violation if the body has several rows with the key of one stored row.
    fn of(writable: &Writable, found: &[PgRow]) -> Result<Self, Failure> {
        let mut differences = Self::default();
        let mut matched = HashSet::new();
        for row in found {
            let row = FoundRow::of(row)?;
            let Some(level) = row.level else { continue };
            match (row.body, row.key) {
                (Some(body), Some(key)) => {
                    if let (Some(parent), Some(above)) = (parent_of(writable, level), row.above) {
                        let keys = differences.above_changed.entry(parent).or_default();
                        keys.insert(above);
                    }
                    if !matched.insert((level, key)) {
                        return Err(WriteError::unique_violation().into());
                    }
                    let rows = differences.changed.entry(level).or_default();
                    rows.push((body, row.columns));
                }
                (Some(body), None) => differences.new.entry(level).or_default().push(body),
                (None, Some(key)) => {
                    let above = row.above;
                    let rows = differences.gone.0.entry(level).or_default();
                    rows.push(StoredRow { key, above });
                }
                (None, None) => {}
            }
        }
        for rows in differences.changed.values_mut() {
            rows.sort_unstable();
        }
        for rows in differences.new.values_mut() {
            rows.sort_unstable();
        }
        Ok(differences)
    }
}

/// A row that [`WriteSql::compare`] has returned.
struct FoundRow {
    level: Option<usize>,
    /// The number of the row of the body, counted from 0.
    body: Option<usize>,
    columns: Vec<usize>,
    key: Option<StoredKey>,
    above: Option<StoredKey>,
}

impl FoundRow {
    fn of(row: &PgRow) -> Result<Self, SourceError> {
        let columns: Option<Vec<i64>> = row.try_get(2)?;
        let columns = columns.into_iter().flatten();
        Ok(Self {
            level: row.try_get::<Option<i64>, _>(0)?.and_then(place),
            body: row.try_get::<Option<i64>, _>(1)?.and_then(row_of_number),
            columns: columns.filter_map(place).collect(),
            key: row.try_get(3)?,
            above: row.try_get(4)?,
        })
    }
}

fn place(number: i64) -> Option<usize> {
    usize::try_from(number).ok()
}

/// The row with this number, counted from 1.
fn row_of_number(number: i64) -> Option<usize> {
    place(number)?.checked_sub(1)
}

fn is_any(keys: &KeysByLevel) -> bool {
    keys.values().any(|keys| !keys.is_empty())
}

fn parent_of(writable: &Writable, level: usize) -> Option<usize> {
    writable.levels.get(level)?.parent
}

/// The rows of one level with the keys of `stored`, as parameters.
fn key_rows(writable: &Writable, level: usize, stored: &[StoredRow]) -> Rows {
    let mut rows = Rows::of(writable);
    let (Some(known), Some(of)) = (writable.levels.get(level), rows.levels.get_mut(level)) else {
        return rows;
    };
    for (part, &column) in known.key.iter().enumerate() {
        let texts = stored.iter().map(|row| match row.key.get(part) {
            Some(Some(text)) => ColumnInput::Text(text.clone()),
            _ => ColumnInput::Null,
        });
        if let Some(inputs) = of.columns.get_mut(column) {
            *inputs = texts.collect();
        }
    }
    rows
}

impl Transaction<'_> {
    async fn savepoint(&mut self, sql: &'static str) -> Result<(), Failure> {
        let done = self.session.execute(sql).await;
        done.map_err(SourceError::from)?;
        Ok(())
    }

    async fn compare(
        &mut self,
        target: &WriteTarget<'_>,
        inputs: Inputs<'_>,
    ) -> Result<Differences, Failure> {
        let statement = match inputs.stored {
            Some(_) => &target.sql.compare_read,
            None => &target.sql.compare,
        };
        let found = self.run_statement(target, statement, inputs).await?;
        Differences::of(target.writable, &found)
    }

    /// Makes the rows of the locked document those of `rows`. If the document was read, `stored` has its rows. Returns
    /// whether a trigger has kept rows that were to be deleted.
    ///
    /// # Errors
    /// A foreign key violation if a row of the body is another one afterwards because a row was deleted (`on delete cascade`
    /// or `set null`); [`WriteError::Vetoed`] if a trigger keeps a row that has lost a row below it before.
    pub(super) async fn update(
        &mut self,
        target: &WriteTarget<'_>,
        key: &str,
        rows: &mut Rows,
        stored: Option<&Rows>,
    ) -> Result<bool, Failure> {
        let inputs = Inputs {
            key,
            rows: Some(rows),
            stored,
        };
        self.check_equal_keys(target, inputs).await?;
        let mut differences = self.compare(target, inputs).await?;
        let above_changed = mem::take(&mut differences.above_changed);
        let left = differences.gone.split_above(target.writable, above_changed);
        let has_deleted = !left.is_empty() || !differences.gone.is_empty();
        let emptied = left.above(target.writable, &differences.gone);
        let mut has_kept = is_any(&self.delete_rows(target, differences.gone).await?);
        for level in 0..target.writable.levels.len() {
            link_rows(target.writable, rows, level);
            if let Some(changed) = differences.changed.get(&level) {
                let inputs = Inputs {
                    key,
                    rows: Some(rows),
                    stored,
                };
                self.update_level(target, level, changed, inputs).await?;
            }
            let insert = target
                .sql
                .insert_below
                .iter()
                .find(|insert| insert.level == level);
            if let (Some(new), Some(insert)) = (differences.new.get(&level), insert) {
                self.insert_level(target, insert, rows, Some(new)).await?;
            }
        }
        let kept = self.delete_rows(target, left).await?;
        let lost = |(level, keys): (&usize, &HashSet<StoredKey>)| {
            emptied
                .get(level)
                .is_some_and(|emptied| !emptied.is_disjoint(keys))
        };
        if kept.iter().any(lost) {
            return Err(WriteError::Vetoed.into());
        }
        has_kept |= is_any(&kept);
        // What triggers change is theirs to say.
        let is_compared = !target.writable.has_triggers && target.resource.row_security.is_none();
        if has_deleted && is_compared {
            let inputs = Inputs {
                key,
                rows: Some(rows),
                stored,
            };
            let after = self.compare(target, inputs).await?;
            if !after.new.is_empty() || !after.changed.is_empty() {
                return Err(WriteError::foreign_key_violation().into());
            }
        }
        Ok(has_kept)
    }

    /// Deletes all rows of the locked document if there are triggers. Returns whether a trigger has kept any of them.
    pub(super) async fn delete_document(
        &mut self,
        target: &WriteTarget<'_>,
        inputs: Inputs<'_>,
    ) -> Result<bool, Failure> {
        let differences = self.compare(target, inputs).await?;
        let kept = self.delete_rows(target, differences.gone).await?;
        Ok(is_any(&kept))
    }

    /// Deletes `gone`, the lowest level first. A row that a trigger keeps keeps the rows below it, too: then it is done
    /// again without these, at most once for each level. Returns the keys of the rows that triggers have kept.
    ///
    /// # Errors
    /// [`WriteError::Vetoed`] if triggers keep other rows when it is done again.
    async fn delete_rows(
        &mut self,
        target: &WriteTarget<'_>,
        mut gone: StoredRows,
    ) -> Result<KeysByLevel, Failure> {
        let writable = target.writable;
        if writable.has_triggers && !gone.is_empty() {
            self.savepoint(SAVEPOINT).await?;
        }
        let mut standing: KeysByLevel = BTreeMap::new();
        loop {
            let mut repeated = false;
            for level in (0..writable.levels.len()).rev() {
                let rows = gone.0.get(&level).map_or(&[][..], Vec::as_slice);
                let kept = self.delete_level(target, level, rows).await?;
                if let Some(known) = standing.get(&level) {
                    if *known != kept {
                        return Err(WriteError::Vetoed.into());
                    }
                    continue;
                }
                let removed = gone.remove_below(writable, level, &kept);
                standing.insert(level, kept);
                if removed.is_empty() {
                    continue;
                }
                for (level, keys) in &removed {
                    if let Some(known) = standing.get_mut(level) {
                        known.retain(|key| !keys.contains(key));
                    }
                }
                self.savepoint(ROLLBACK_TO_SAVEPOINT).await?;
                repeated = true;
                break;
            }
            if !repeated {
                return Ok(standing);
            }
        }
    }

    /// Deletes `stored` rows of one level. Returns the keys of those that triggers have kept.
    ///
    /// # Errors
    /// That larder may not delete them, if a policy keeps some and there are no triggers.
    async fn delete_level(
        &mut self,
        target: &WriteTarget<'_>,
        level: usize,
        stored: &[StoredRow],
    ) -> Result<HashSet<StoredKey>, Failure> {
        let (Some(delete), Some(standing)) = (
            target.sql.delete_rows.get(level),
            target.sql.standing_rows.get(level),
        ) else {
            return Ok(HashSet::new());
        };
        if stored.is_empty() {
            return Ok(HashSet::new());
        }
        let rows = key_rows(target.writable, level, stored);
        let inputs = Inputs::rows(&rows);
        let deleted = self.run_statement(target, delete, inputs).await?;
        let deleted: Option<i64> = match deleted.first() {
            Some(row) => row.try_get(0).map_err(SourceError::from)?,
            None => None,
        };
        if deleted.and_then(place) == Some(stored.len()) {
            return Ok(HashSet::new());
        }
        // A trigger, or the deletion of another row, may have deleted the others.
        let found = self.run_statement(target, standing, inputs).await?;
        let mut kept = HashSet::new();
        for row in &found {
            let number: Option<i64> = row.try_get(0).map_err(SourceError::from)?;
            let row = number
                .and_then(row_of_number)
                .and_then(|row| stored.get(row));
            kept.extend(row.map(|row| row.key.clone()));
        }
        if !target.writable.has_triggers && !kept.is_empty() {
            return Err(WriteError::forbidden().into());
        }
        Ok(kept)
    }

    /// Updates the rows of one level that differ, with a statement for each set of columns.
    async fn update_level(
        &mut self,
        target: &WriteTarget<'_>,
        level: usize,
        changed: &[(usize, Vec<usize>)],
        inputs: Inputs<'_>,
    ) -> Result<(), Failure> {
        if self.was_violated && changed.len() > 1 {
            return self.update_row_by_row(target, level, changed, inputs).await;
        }
        let mut sets: Vec<(&[usize], Vec<usize>)> = Vec::new();
        let mut places: HashMap<&[usize], usize> = HashMap::new();
        for (row, columns) in changed {
            let place = *places.entry(columns).or_insert_with(|| {
                sets.push((columns, Vec::new()));
                sets.len() - 1
            });
            if let Some((_, rows)) = sets.get_mut(place) {
                rows.push(*row);
            }
        }
        for (columns, rows) in sets {
            self.update_rows(target, level, columns, &rows, inputs)
                .await?;
        }
        Ok(())
    }

    /// Updates rows one by one, in an order in which none takes a unique value that another one still has.
    ///
    /// # Errors
    /// [`WriteError::Cycle`] if there is no such order.
    async fn update_row_by_row(
        &mut self,
        target: &WriteTarget<'_>,
        level: usize,
        changed: &[(usize, Vec<usize>)],
        inputs: Inputs<'_>,
    ) -> Result<(), Failure> {
        let mut open: Vec<&(usize, Vec<usize>)> = changed.iter().collect();
        while !open.is_empty() {
            let mut refused = None;
            let mut waiting = Vec::new();
            for &change in &open {
                let (row, columns) = change;
                self.savepoint(SAVEPOINT).await?;
                match self
                    .update_rows(target, level, columns, &[*row], inputs)
                    .await
                {
                    Ok(()) => self.savepoint(RELEASE_SAVEPOINT).await?,
                    Err(failure) if failure.error.is_unique_violation() => {
                        self.savepoint(ROLLBACK_TO_SAVEPOINT).await?;
                        waiting.push(change);
                        refused = Some(failure);
                    }
                    Err(failure) => return Err(failure),
                }
            }
            if let Some(failure) = refused.filter(|_| waiting.len() == open.len()) {
                return Err(match failure.error {
                    WriteError::Refused { constraint, .. } if waiting.len() > 1 => {
                        WriteError::Cycle { constraint }.into()
                    }
                    error => error.into(),
                });
            }
            // A chain of values that ends at the other end of the list takes two passes instead of one for each row.
            waiting.reverse();
            open = waiting;
        }
        Ok(())
    }

    /// Sets `columns` of `rows` of the body.
    ///
    /// # Errors
    /// [`WriteError::Vetoed`] if a row has other values after that because a trigger has prevented its update; without
    /// triggers that the row was deleted together with another one, or that larder may not update it.
    async fn update_rows(
        &mut self,
        target: &WriteTarget<'_>,
        level: usize,
        columns: &[usize],
        rows: &[usize],
        inputs: Inputs<'_>,
    ) -> Result<(), Failure> {
        let (writable, Some(body)) = (target.writable, inputs.rows) else {
            return Ok(());
        };
        let selected = select_rows(writable, body, level, rows);
        let statement = WriteSql::update_rows(target.resource, writable, level, columns);
        let updated = self
            .run_statement(target, &statement, Inputs::rows(&selected))
            .await?;
        let updated: Vec<i64> = match updated.first() {
            Some(row) => row.try_get(0).map_err(SourceError::from)?,
            None => Vec::new(),
        };
        if updated.len() == rows.len() {
            return Ok(());
        }
        let updated: HashSet<usize> = updated.into_iter().filter_map(row_of_number).collect();
        let rows = rows.iter().enumerate();
        let others = rows.filter(|(number, _)| !updated.contains(number));
        let others: HashSet<usize> = others.map(|(_, row)| *row).collect();
        // A trigger may have left out an update that would have changed nothing, after another has set the values.
        let differences = self.compare(target, inputs).await?;
        let changed = differences.changed.get(&level).into_iter().flatten();
        let is_same_column =
            |columns_now: &[usize]| columns_now.iter().any(|column| columns.contains(column));
        let mut changed = changed.filter(|(_, columns)| is_same_column(columns));
        let mut new = differences.new.get(&level).into_iter().flatten();
        let is_gone = new.any(|row| others.contains(row));
        let has_others = is_gone || changed.any(|(row, _)| others.contains(row));
        if !has_others {
            return Ok(());
        }
        Err(if writable.has_triggers {
            WriteError::Vetoed.into()
        } else if is_gone {
            WriteError::foreign_key_violation().into()
        } else {
            WriteError::forbidden().into()
        })
    }
}
