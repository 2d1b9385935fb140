//! What differs between the rows of a stored document and those of a body: which rows to delete, update and insert.

use std::collections::{BTreeMap, HashSet};
use std::mem;

use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::resource::writable::{ColumnInput, Rows, Writable};
use crate::source::SourceError;
use crate::source::writes::error::{Failure, WriteError};

/// The texts of a stored row's key. Two rows of a level never have the same.
pub(super) type StoredKey = Vec<Option<String>>;

/// The keys of rows, by their level.
pub(super) type KeysByLevel = BTreeMap<usize, HashSet<StoredKey>>;

/// A stored row that the body lacks.
#[derive(Debug)]
pub(super) struct StoredRow {
    pub(super) key: StoredKey,
    /// The key of the row above.
    above: Option<StoredKey>,
}

/// Stored rows by their level.
#[derive(Debug, Default)]
pub(super) struct StoredRows(pub(super) BTreeMap<usize, Vec<StoredRow>>);

impl StoredRows {
    pub(super) fn is_empty(&self) -> bool {
        self.0.values().all(Vec::is_empty)
    }

    /// The keys of the rows that are above rows of `gone`, at any distance as far as those between are among these.
    pub(super) fn above(&self, writable: &Writable, gone: &Self) -> KeysByLevel {
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
    pub(super) fn split_above(&mut self, writable: &Writable, mut kept: KeysByLevel) -> Self {
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
    pub(super) fn remove_below(
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
pub(super) struct Differences {
    /// Stored rows that the body lacks.
    pub(super) gone: StoredRows,
    /// For each level the rows of the body that differ from a stored row, with the columns in which they do.
    pub(super) changed: BTreeMap<usize, Vec<(usize, Vec<usize>)>>,
    /// For each level the rows of the body that are not stored.
    pub(super) new: BTreeMap<usize, Vec<usize>>,
    /// The keys of stored rows that have changed rows below.
    pub(super) above_changed: KeysByLevel,
}

impl Differences {
    /// Reads the rows that [`crate::resource::write::WriteSql::compare`] has returned.
    ///
    /// # Errors
    /// A unique violation if the body has several rows with the key of one stored row.
    pub(super) fn of(writable: &Writable, found: &[PgRow]) -> Result<Self, Failure> {
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

/// A row that [`crate::resource::write::WriteSql::compare`] has returned.
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

pub(super) fn place(number: i64) -> Option<usize> {
    usize::try_from(number).ok()
}

/// The row with this number, counted from 1.
pub(super) fn row_of_number(number: i64) -> Option<usize> {
    place(number)?.checked_sub(1)
}

pub(super) fn is_any(keys: &KeysByLevel) -> bool {
    keys.values().any(|keys| !keys.is_empty())
}

fn parent_of(writable: &Writable, level: usize) -> Option<usize> {
    writable.levels.get(level)?.parent
}

/// The rows of one level with the keys of `stored`, as parameters.
pub(super) fn key_rows(writable: &Writable, level: usize, stored: &[StoredRow]) -> Rows {
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
