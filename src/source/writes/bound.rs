//! What the statements of a write take: rows as arrays, and defaults that rows below must know.

use std::borrow::Cow;
use std::ops::Range;

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres, Row};

use crate::resource::Resource;
use crate::resource::key::key_parts;
use crate::resource::writable::{ColumnInput, LevelRows, Rows, Writable};
use crate::resource::write::{DefaultQuery, Origin, Parameter, WriteStatement};
use crate::source::session::Session;
use crate::source::writes::error::{Failure, failure};

/// What a statement is given.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'r> {
    /// Canonical; empty where no statement asks for it.
    pub(super) key: &'r str,
    /// What the client gave.
    pub(super) given: Option<&'r Rows>,
    /// The document as it was read.
    pub(super) read: Option<&'r Rows>,
}

impl<'r> Inputs<'r> {
    /// No rows.
    pub(super) fn key(key: &'r str) -> Self {
        Self {
            key,
            given: None,
            read: None,
        }
    }
}

/// `statement` with what it takes of `inputs`.
pub(super) fn bound<'q>(
    statement: &'q WriteStatement,
    resource: &Resource,
    inputs: Inputs<'_>,
) -> Query<'q, Postgres, PgArguments> {
    let parts = key_parts(inputs.key, resource.key.columns.len());
    let none = Rows::default();
    let given = inputs.given.unwrap_or(&none);
    let rows = |origin| match origin {
        Origin::Body => given,
        Origin::Read => inputs.read.unwrap_or(&none),
    };
    let mut query = sqlx::query(AssertSqlSafe(statement.sql.as_str()));
    for parameter in &statement.parameters {
        query = match *parameter {
            Parameter::Key(part) => query.bind(parts.get(part).map(Cow::as_ref)),
            Parameter::Values(origin, level, column) => {
                query.bind(texts(rows(origin), level, column))
            }
            Parameter::Absent(origin, level, column) => {
                query.bind(absences(rows(origin), level, column))
            }
            Parameter::Documents(level) => query.bind(documents(resource, given, level)),
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
    let texts = column(rows, level, number).iter().map(|given| match given {
        ColumnInput::Text(text) => Some(text.as_str()),
        ColumnInput::Absent | ColumnInput::Null => None,
    });
    texts.collect()
}

fn absences(rows: &Rows, level: usize, number: usize) -> Vec<bool> {
    let values = column(rows, level, number).iter();
    values.map(|given| *given == ColumnInput::Absent).collect()
}

/// For each row of a level its document's number, counted from 1.
fn documents(resource: &Resource, rows: &Rows, level: usize) -> Vec<i64> {
    let Ok(writable) = &resource.writable else {
        return Vec::new();
    };
    let (Some(at), Some(of)) = (writable.levels.get(level), rows.levels.get(level)) else {
        return Vec::new();
    };
    match at.parent {
        None => (1..).take(of.count()).collect(),
        Some(parent) => {
            let above = documents(resource, rows, parent);
            let number = |upper: &u32| above.get(*upper as usize).copied().unwrap_or(0);
            of.parents.iter().map(number).collect()
        }
    }
}

/// The rows of all of `documents` together.
pub(super) fn joined<'r>(writable: &Writable, documents: impl Iterator<Item = &'r Rows>) -> Rows {
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

/// Of `rows` those of the documents `range`, by themselves.
pub(super) fn part(writable: &Writable, rows: &Rows, range: &Range<usize>) -> Rows {
    let mut part = Rows::of(writable);
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let levels = writable.levels.iter().zip(&rows.levels);
    for ((level, from), to) in levels.zip(&mut part.levels) {
        let above = level.parent.and_then(|parent| ranges.get(parent));
        let above = above.unwrap_or(range);
        // Rows follow those of the documents before.
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

/// Draws the defaults that rows below must know, and gives them to those.
///
/// # Errors
/// What PostgreSQL said.
pub(super) async fn complete(
    session: &mut Session,
    writable: &Writable,
    queries: &[DefaultQuery],
    persistent: bool,
    rows: &mut Rows,
) -> Result<(), Failure> {
    let refused = |error| failure(error, Some(writable));
    for number in 0..writable.levels.len() {
        link(writable, rows, number);
        for query in queries.iter().filter(|query| query.level == number) {
            let absent = absences(rows, query.level, query.column);
            let count = absent.iter().filter(|absent| **absent).count();
            if count == 0 {
                continue;
            }
            let drawn: Vec<PgRow> = sqlx::query(AssertSqlSafe(query.sql.as_str()))
                .bind(i64::try_from(count).unwrap_or(i64::MAX))
                .persistent(persistent)
                .fetch_all(&mut session.connection)
                .await
                .map_err(refused)?;
            session.check_rows_proof(query.sql.proof(), &drawn)?;
            let level = rows.levels.get_mut(query.level);
            let values = level.and_then(|level| level.columns.get_mut(query.column));
            let open = values
                .into_iter()
                .flatten()
                .filter(|given| **given == ColumnInput::Absent);
            for (given, row) in open.zip(drawn) {
                let text: Option<String> = row.try_get(0).map_err(refused)?;
                *given = text.map_or(ColumnInput::Null, ColumnInput::Text);
            }
        }
    }
    Ok(())
}

/// Gives the rows of a level what links them to the rows above.
fn link(writable: &Writable, rows: &mut Rows, number: usize) {
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
            let given = uppers.get(*row as usize).cloned();
            given.unwrap_or(ColumnInput::Absent)
        });
        let linked: Vec<ColumnInput> = linked.collect();
        let of = rows.levels.get_mut(number);
        if let Some(values) = of.and_then(|of| of.columns.get_mut(own)) {
            *values = linked;
        }
    }
}
