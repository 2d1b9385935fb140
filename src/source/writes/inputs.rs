//! The parameters of a write's statements: rows as arrays.

use std::borrow::Cow;
use std::ops::Range;

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres};

use crate::resource::key::key_parts;
use crate::resource::writable::{ColumnInput, GivenColumns, LevelRows, Rows, Writable};
use crate::resource::write::{Origin, Parameter, WriteStatement};
use crate::resource::{Resource, Scope};

/// The values that the parameters of a statement are taken from.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'r> {
    /// The canonical key; empty if the statement does not use it.
    pub(super) key: &'r str,
    /// The rows to write.
    pub(super) rows: Option<&'r Rows>,
    /// The rows of the stored document.
    pub(super) stored: Option<&'r Rows>,
    /// The claim of a restricted principal; `None` equals no owner.
    pub(super) claim: Option<&'r str>,
    /// The columns that the rows of each level give; empty if the statement does not use it.
    pub(super) given: &'r [GivenColumns],
}

impl<'r> Inputs<'r> {
    /// Rows without a key.
    pub(super) fn rows(rows: &'r Rows) -> Self {
        Self {
            rows: Some(rows),
            ..Self::key("")
        }
    }

    /// The rows that a document is to have, and those that were read of it.
    pub(super) fn document(key: &'r str, rows: &'r Rows, stored: Option<&'r Rows>) -> Self {
        Self {
            rows: Some(rows),
            stored,
            ..Self::key(key)
        }
    }

    /// A key without rows.
    pub(super) fn key(key: &'r str) -> Self {
        Self {
            key,
            rows: None,
            stored: None,
            claim: None,
            given: &[],
        }
    }

    /// The same with the claim of `scope`.
    pub(super) fn claimed_by(self, scope: &'r Scope<'_>) -> Self {
        Self {
            claim: scope.claim(),
            ..self
        }
    }
}

/// Binds the parameters of `statement` to values of `inputs`.
pub(super) fn bind_inputs<'q>(
    statement: &'q WriteStatement,
    resource: &Resource,
    inputs: Inputs<'_>,
) -> Query<'q, Postgres, PgArguments> {
    let parts = key_parts(inputs.key, resource.key.columns.len());
    let none = Rows::default();
    let written = inputs.rows.unwrap_or(&none);
    let rows = |origin| match origin {
        Origin::Body => written,
        Origin::Read => inputs.stored.unwrap_or(&none),
    };
    let mut query = sqlx::query(AssertSqlSafe(statement.sql.as_str()));
    for parameter in &statement.parameters {
        query = match *parameter {
            Parameter::Key(part) => query.bind(parts.get(part).map(Cow::as_ref)),
            Parameter::Claim => query.bind(inputs.claim),
            Parameter::Values(origin, level, column) => {
                query.bind(texts(rows(origin), level, column))
            }
            Parameter::Absent(origin, level, column) => {
                query.bind(absences(rows(origin), level, column))
            }
            Parameter::Absences(origin, level) => query.bind(row_absences(rows(origin), level)),
            Parameter::Count(level) => {
                let count = written.levels.get(level).map_or(0, LevelRows::count);
                query.bind(i64::try_from(count).unwrap_or(i64::MAX))
            }
            Parameter::Documents(level) => query.bind(document_numbers(resource, written, level)),
            Parameter::Parents(level) => query.bind(parent_numbers(written, level)),
            Parameter::Sets(level) => query.bind(set_numbers(inputs.given, level)),
        };
    }
    query
}

fn column(rows: &Rows, level: usize, column: usize) -> &[ColumnInput] {
    let level = rows.levels.get(level);
    let values = level.and_then(|level| level.columns.get(column));
    values.map_or(&[], Vec::as_slice)
}

fn texts(rows: &Rows, level: usize, number: usize) -> Vec<Option<&str>> {
    let texts = column(rows, level, number).iter().map(|value| match value {
        ColumnInput::Text(text) => Some(text.as_str()),
        ColumnInput::Absent | ColumnInput::Null => None,
    });
    texts.collect()
}

fn absences(rows: &Rows, level: usize, number: usize) -> Vec<bool> {
    let values = column(rows, level, number).iter();
    values.map(|value| *value == ColumnInput::Absent).collect()
}

/// For each row of a level a byte for each column: 1 if its value is absent.
fn row_absences(rows: &Rows, level: usize) -> Vec<Vec<u8>> {
    let Some(of) = rows.levels.get(level) else {
        return Vec::new();
    };
    let is_absent = |row: usize, column: &Vec<ColumnInput>| {
        u8::from(column.get(row) == Some(&ColumnInput::Absent))
    };
    let row = |row| {
        of.columns
            .iter()
            .map(|column| is_absent(row, column))
            .collect()
    };
    (0..of.count()).map(row).collect()
}

/// The number of the document of each row of a level, counted from 1.
fn document_numbers(resource: &Resource, rows: &Rows, level: usize) -> Vec<i64> {
    let Ok(writable) = &resource.writable else {
        return Vec::new();
    };
    let (Some(at), Some(of)) = (writable.levels.get(level), rows.levels.get(level)) else {
        return Vec::new();
    };
    match at.parent {
        None => (1..).take(of.count()).collect(),
        Some(parent) => {
            let above = document_numbers(resource, rows, parent);
            let number = |upper: &u32| above.get(*upper as usize).copied().unwrap_or(0);
            of.parents.iter().map(number).collect()
        }
    }
}

/// The number of the row above each row of a level, counted from 1.
fn parent_numbers(rows: &Rows, level: usize) -> Vec<i64> {
    let parents = rows.levels.get(level).map_or(&[][..], |of| &of.parents);
    parents.iter().map(|row| i64::from(*row) + 1).collect()
}

/// The place of each row's set of given columns.
fn set_numbers(given: &[GivenColumns], level: usize) -> Vec<i64> {
    let sets = given.get(level).map_or(&[][..], |given| &given.of_rows);
    let number = |set: &usize| i64::try_from(*set).unwrap_or_default();
    sets.iter().map(number).collect()
}

/// Joins the rows of several documents.
pub(super) fn join_documents<'r>(
    writable: &Writable,
    documents: impl Iterator<Item = &'r Rows>,
) -> Rows {
    let mut joined = Rows::of(writable);
    for rows in documents {
        let before: Vec<usize> = joined.levels.iter().map(LevelRows::count).collect();
        for (number, (to, from)) in joined.levels.iter_mut().zip(&rows.levels).enumerate() {
            let parent = writable.levels.get(number).and_then(|level| level.parent);
            // At the root it is the document's number, and each document has one root row.
            let above = before.get(parent.unwrap_or(0)).copied().unwrap_or(0);
            // A document is far below 2^32 rows, and few documents share a transaction.
            let parents = from.parents.iter().map(|row| row + above as u32);
            to.parents.extend(parents);
            to.places.extend_from_slice(&from.places);
            for (to, from) in to.columns.iter_mut().zip(&from.columns) {
                to.extend_from_slice(from);
            }
        }
    }
    joined
}

/// Copies the rows of the documents with numbers in `range`.
pub(super) fn select_documents(writable: &Writable, rows: &Rows, range: &Range<usize>) -> Rows {
    let mut part = Rows::of(writable);
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let levels = writable.levels.iter().zip(&rows.levels);
    for ((level, from), to) in levels.zip(&mut part.levels) {
        let above = level.parent.and_then(|parent| ranges.get(parent));
        let above = above.unwrap_or(range);
        // Rows are in the order of their documents.
        let count = |row: usize| {
            from.parents
                .partition_point(|parent| (*parent as usize) < row)
        };
        let own = count(above.start)..count(above.end);
        let parents = from.parents.get(own.clone()).unwrap_or_default();
        to.parents = parents
            .iter()
            .map(|parent| parent - above.start as u32)
            .collect();
        to.places = from.places.get(own.clone()).unwrap_or_default().to_vec();
        for (to, from) in to.columns.iter_mut().zip(&from.columns) {
            *to = from.get(own.clone()).unwrap_or_default().to_vec();
        }
        ranges.push(own);
    }
    part
}

/// Copies the rows of one level that have the numbers `selected`. Their parents are not among the copies.
pub(super) fn select_rows(
    writable: &Writable,
    rows: &Rows,
    level: usize,
    selected: &[usize],
) -> Rows {
    let mut part = Rows::of(writable);
    if let (Some(from), Some(to)) = (rows.levels.get(level), part.levels.get_mut(level)) {
        to.parents = vec![0; selected.len()];
        to.places = vec![0; selected.len()];
        for (to, from) in to.columns.iter_mut().zip(&from.columns) {
            *to = selected
                .iter()
                .filter_map(|&row| from.get(row).cloned())
                .collect();
        }
    }
    part
}

/// Copies the values that link the rows of a level to the rows above.
pub(super) fn link_rows(writable: &Writable, rows: &mut Rows, number: usize) {
    let Some(level) = writable.levels.get(number) else {
        return;
    };
    let Some(parent) = level.parent else {
        return;
    };
    for &(own, upper) in &level.link {
        let uppers = column(rows, parent, upper);
        let Some(of) = rows.levels.get(number) else {
            return;
        };
        let linked = of.parents.iter().map(|row| {
            let value = uppers.get(*row as usize).cloned();
            value.unwrap_or(ColumnInput::Absent)
        });
        let linked: Vec<ColumnInput> = linked.collect();
        let of = rows.levels.get_mut(number);
        if let Some(values) = of.and_then(|of| of.columns.get_mut(own)) {
            *values = linked;
        }
    }
}
