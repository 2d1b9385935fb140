//! One statement for all keys of a batch.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::str::FromStr;

use bytes::BytesMut;
use futures_util::{TryStream, TryStreamExt};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres, Row, ValueRef};

use crate::clock::Boottime;
use crate::resource::Resource;
use crate::resource::document::RenderError;
use crate::resource::key::{KeyType, key_parts};
use crate::resource::proof::{PROOF, ProvedSql};
use crate::source::SourceError;
use crate::source::loader::link::Statement;
use crate::source::loader::{Load, Loaded, Shared};
use crate::source::session::Session;

/// Keys that wait, asked for in one statement: the outcome of each, in order.
pub(super) struct Batch<'b> {
    shared: &'b Shared,
    loads: &'b [Load],
    /// PostgreSQL refuses the statement where row security is not as it was.
    checked: bool,
}

impl<'b> Batch<'b> {
    pub(super) fn new(shared: &'b Shared, loads: &'b [Load]) -> Self {
        Self {
            shared,
            loads,
            checked: true,
        }
    }

    /// The same by whatever row security lets larder's role see; none where no table has it.
    pub(super) fn unchecked(shared: &'b Shared, loads: &'b [Load]) -> Option<Self> {
        let resource = &loads.first()?.resource;
        resource.checked_sql.is_some().then_some(Self {
            shared,
            loads,
            checked: false,
        })
    }
}

impl Statement for Batch<'_> {
    type Found = Vec<Loaded>;

    async fn run(&self, session: &mut Session) -> Result<Vec<Loaded>, SourceError> {
        documents(session, self).await
    }
}

/// Whether the database's encoding has all characters of a key: one that it lacks is no row's. The second says whether
/// the statement keeps its name.
pub(super) struct Representable<'k>(pub(super) &'k str, pub(super) bool);

impl Statement for Representable<'_> {
    type Found = bool;

    async fn run(&self, session: &mut Session) -> Result<bool, SourceError> {
        let statement = ProvedSql::new(&format!(
            "select {PROOF} as proof, pg_catalog.length(pg_catalog.convert_from($1, 'UTF8'))"
        ));
        let asked = sqlx::query(AssertSqlSafe(statement.as_str()))
            .bind(self.0.as_bytes())
            .persistent(self.1)
            .fetch_all(&mut session.connection);
        match asked.await.map_err(SourceError::from) {
            Ok(rows) => session
                .check_rows_proof(statement.proof(), &rows)
                .map(|()| true),
            Err(error) if error.is_encoding_error() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The statement `sql` for the documents of `keys`, which are canonical.
///
/// # Errors
/// [`SourceError::Altered`] for a key that is not of its column's type.
pub(crate) fn documents_query<'q>(
    resource: &'q Resource,
    sql: &'q ProvedSql,
    keys: &[&str],
    document_bytes_max: usize,
) -> Result<Query<'q, Postgres, PgArguments>, SourceError> {
    let mut query = sqlx::query(AssertSqlSafe(sql.as_str()));
    let columns = &resource.key.columns;
    let parts: Vec<Vec<Cow<'_, str>>> = keys
        .iter()
        .map(|key| key_parts(key, columns.len()))
        .collect();
    for (index, column) in columns.iter().enumerate() {
        let parts = parts.iter().map(|parts| &*parts[index]);
        query = match column.key_type {
            KeyType::SmallInt => query.bind(integers::<i16>(parts)?),
            KeyType::Integer => query.bind(integers::<i32>(parts)?),
            KeyType::BigInt => query.bind(integers::<i64>(parts)?),
            _ => query.bind(parts.collect::<Vec<&str>>()),
        };
    }
    let record_bytes_max = resource.template.record_bytes_max(document_bytes_max);
    Ok(query.bind(i64::try_from(record_bytes_max).unwrap_or(i64::MAX)))
}

fn integers<'k, T: FromStr>(parts: impl Iterator<Item = &'k str>) -> Result<Vec<T>, SourceError> {
    let not_one = |_| SourceError::Altered("a key is not of its column's type".into());
    parts.map(|part| part.parse().map_err(not_one)).collect()
}

/// What documents share at once; a longer one takes what it needs.
const TEXTS_BYTES: usize = 64 << 10;

/// The outcome of each load of `batch`, in order.
async fn documents(session: &mut Session, batch: &Batch<'_>) -> Result<Vec<Loaded>, SourceError> {
    let Batch {
        shared,
        loads: batch,
        checked,
    } = *batch;
    let Some(first) = batch.first() else {
        return Ok(Vec::new());
    };
    let resource = &first.resource;
    // A load that was overtaken while it waited shares the batch with its successor: a key twice could be two rows.
    let mut wanted: Vec<&str> = Vec::with_capacity(batch.len());
    let mut places: HashMap<&str, usize> = HashMap::with_capacity(batch.len());
    for load in batch {
        if let Entry::Vacant(place) = places.entry(&load.key) {
            place.insert(wanted.len());
            wanted.push(&load.key);
        }
    }
    let now = Boottime::now();
    for load in batch {
        load.sent_at.mark(now);
    }
    let sql = match (checked, &resource.checked_sql) {
        (true, Some(sql)) => sql,
        _ => &resource.documents_sql,
    };
    let persistent = checked && !shared.database.pooler();
    let bytes_max = shared.document_bytes_max;
    let found = read_documents(session, resource, sql, &wanted, persistent, bytes_max).await?;
    let outcome = batch.iter().map(|load| {
        let place = places.get(&*load.key);
        let loaded = place.and_then(|&place| found.get(place).cloned());
        loaded.unwrap_or(Ok(None))
    });
    Ok(outcome.collect())
}

/// The documents of `keys`, which are canonical and differ, in their order: one statement `sql`, one snapshot, whose
/// answer has proved to be that of the statement.
///
/// # Errors
/// What PostgreSQL said of the statement; inside, why one of the documents can't be given.
pub(in crate::source) async fn read_documents(
    session: &mut Session,
    resource: &Resource,
    sql: &ProvedSql,
    keys: &[&str],
    persistent: bool,
    document_bytes_max: usize,
) -> Result<Vec<Loaded>, SourceError> {
    let query = documents_query(resource, sql, keys, document_bytes_max)?.persistent(persistent);
    let mut proof = None;
    let reading = async {
        let rows = query.fetch(&mut session.connection);
        collect(rows, resource, keys, document_bytes_max, &mut proof).await
    };
    match reading.await {
        // What another statement answers fits this one by chance only.
        outcome @ (Ok(_) | Err(SourceError::Altered(_) | SourceError::Unexpected(_))) => {
            session.check_proof(sql.proof(), proof.as_deref())?;
            outcome
        }
        Err(error) => Err(error),
    }
}

/// What the rows of the statement give for each of `keys`; its proof goes to `proof`.
async fn collect(
    mut rows: impl TryStream<Ok = PgRow, Error = sqlx::Error> + Unpin,
    resource: &Resource,
    keys: &[&str],
    document_bytes_max: usize,
    proof: &mut Option<Vec<u8>>,
) -> Result<Vec<Loaded>, SourceError> {
    let numbers = keys.iter().enumerate();
    let places: HashMap<&str, usize> = numbers.map(|(place, key)| (*key, place)).collect();
    let mut found: Vec<Option<Loaded>> = vec![None; keys.len()];
    let mut stranger = None;
    // Documents share memory, one after the other: none needs a place of its own for so short a time.
    let mut texts = BytesMut::new();
    let mut json = Vec::new();
    while let Some(row) = rows.try_next().await? {
        let Some(key) = row.try_get::<Option<&str>, _>(0)? else {
            *proof = row.try_get(1)?;
            continue;
        };
        match places.get(key) {
            None => stranger = Some(key.to_owned()),
            Some(&place) => {
                let written = document(resource, &row, document_bytes_max, &mut json)?;
                let several = found[place].is_some();
                found[place] = Some(if several {
                    Err(SourceError::Ambiguous)
                } else {
                    written.map(|()| {
                        if texts.capacity() < json.len() {
                            texts = BytesMut::with_capacity(TEXTS_BYTES.max(json.len()));
                        }
                        texts.extend_from_slice(&json);
                        Some(texts.split().freeze())
                    })
                });
            }
        }
    }
    if let Some(stranger) = stranger {
        let message = format!(
            "a row of {} came under the unexpected key {stranger}",
            resource.name
        );
        return Err(SourceError::Altered(message));
    }
    let found = found.into_iter().map(|found| found.unwrap_or(Ok(None)));
    Ok(found.collect())
}

/// Writes the document in a row of the statement into `json`, in the place of what is there.
fn document(
    resource: &Resource,
    row: &PgRow,
    document_bytes_max: usize,
    json: &mut Vec<u8>,
) -> Result<Result<(), SourceError>, sqlx::Error> {
    json.clear();
    let record = row.try_get_raw(1)?;
    if record.is_null() {
        return Ok(Err(SourceError::TooLarge));
    }
    let record = record.as_bytes().map_err(sqlx::Error::Decode)?;
    let written = resource.template.render(record, document_bytes_max, json);
    Ok(written.map_err(|error| match error {
        RenderError::TooLong => SourceError::TooLarge,
        RenderError::Type(_) => SourceError::Altered(format!("{}: {error}", resource.name)),
        error => SourceError::Unexpected(format!("{}: {error}", resource.name)),
    }))
}
