//! One statement for all keys of a batch.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::str::FromStr;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::{TryStream, TryStreamExt};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Connection, Postgres, Row, ValueRef};

use crate::clock::Boottime;
use crate::resource::Resource;
use crate::resource::document::RenderError;
use crate::resource::key::{KeyShape, KeyType, key_parts};
use crate::resource::proof::{PROOF, ProvedSql};
use crate::source::SourceError;
use crate::source::loader::connection::LoaderStatement;
use crate::source::loader::{Load, Loaded, LoadedDocument, Shared};
use crate::source::session::Session;

/// Reads the documents of `loads`, all of one resource. Returns the outcome of each, in order.
pub(super) struct DocumentsStatement<'b> {
    shared: &'b Shared,
    loads: &'b [Load],
    /// PostgreSQL refuses the statement if row security is not as it was when the resource was checked.
    checked: bool,
    time_limit: Option<Duration>,
}

impl<'b> DocumentsStatement<'b> {
    pub(super) fn new(shared: &'b Shared, loads: &'b [Load], time_limit: Option<Duration>) -> Self {
        Self {
            shared,
            loads,
            checked: true,
            time_limit,
        }
    }

    /// The same statement without the check of row security; `None` if no table has row security.
    pub(super) fn unchecked(
        shared: &'b Shared,
        loads: &'b [Load],
        time_limit: Option<Duration>,
    ) -> Option<Self> {
        let resource = &loads.first()?.resource;
        resource.checked_sql.is_some().then_some(Self {
            shared,
            loads,
            checked: false,
            time_limit,
        })
    }
}

impl LoaderStatement for DocumentsStatement<'_> {
    type Found = Vec<Loaded>;

    fn time_limit(&self) -> Option<Duration> {
        self.time_limit
    }

    async fn run(&self, session: &mut Session) -> Result<Vec<Loaded>, SourceError> {
        read_loads(session, self).await
    }
}

/// Checks whether the database's encoding has all characters of a key. If it lacks one, no row has the key.
pub(super) struct KeyEncodingCheck<'k> {
    pub(super) key: &'k str,
    /// Whether the prepared statement is kept.
    pub(super) persistent: bool,
}

impl LoaderStatement for KeyEncodingCheck<'_> {
    type Found = bool;

    async fn run(&self, session: &mut Session) -> Result<bool, SourceError> {
        let statement = ProvedSql::new(&format!(
            "select {PROOF} as proof, pg_catalog.length(pg_catalog.convert_from($1, 'UTF8'))"
        ));
        let query = sqlx::query(AssertSqlSafe(statement.as_str()))
            .bind(self.key.as_bytes())
            .persistent(self.persistent);
        match session.fetch_checked(query, statement.proof()).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_encoding_error() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Binds `keys`, which are canonical, to the statement `sql`, which reads their documents.
///
/// # Errors
/// [`SourceError::Altered`] if a key is not of its column's type.
pub(crate) fn documents_query<'q>(
    resource: &'q Resource,
    sql: &'q ProvedSql,
    keys: &[&str],
    document_bytes_max: usize,
) -> Result<Query<'q, Postgres, PgArguments>, SourceError> {
    let query = bind_keys(
        sqlx::query(AssertSqlSafe(sql.as_str())),
        &resource.key,
        keys,
    )?;
    Ok(bind_bound(query, resource, document_bytes_max))
}

/// Binds the most bytes of a record.
fn bind_bound<'q>(
    query: Query<'q, Postgres, PgArguments>,
    resource: &Resource,
    document_bytes_max: usize,
) -> Query<'q, Postgres, PgArguments> {
    let record_bytes_max = resource.template.record_bytes_max(document_bytes_max);
    query.bind(i64::try_from(record_bytes_max).unwrap_or(i64::MAX))
}

/// Reads the only document that `query` returns, with its key: the statement `sql` of a search without its last parameter.
///
/// # Errors
/// [`SourceError::Ambiguous`] if there are several documents; else as [`read_documents`], of that document, too.
pub(super) async fn read_only_document(
    session: &mut Session,
    resource: &Resource,
    sql: &ProvedSql,
    query: Query<'_, Postgres, PgArguments>,
    document_bytes_max: usize,
) -> Result<Option<(String, LoadedDocument)>, SourceError> {
    let query = bind_bound(query, resource, document_bytes_max);
    let rows = query.fetch_all(&mut session.connection).await?;
    if rows.iter().any(|row| row_bytes(row) > BUFFER_BYTES_MAX) {
        session.connection.shrink_buffers();
    }
    let proof = rows.first().map(|row| row.try_get(1)).transpose()?;
    session.check_proof(sql.proof(), proof)?;
    let mut rendered = RenderedDocument::default();
    match rows.get(1..).unwrap_or_default() {
        [] => Ok(None),
        [row] => {
            let key = row.try_get(0)?;
            rendered.replace(resource, row, document_bytes_max)??;
            Ok(Some((key, rendered.append_to(&mut BytesMut::new()))))
        }
        _ => Err(SourceError::Ambiguous),
    }
}

/// Binds `keys`, which are canonical and have this `shape`.
///
/// # Errors
/// As [`documents_query`].
pub(crate) fn bind_keys<'q>(
    mut query: Query<'q, Postgres, PgArguments>,
    shape: &KeyShape,
    keys: &[&str],
) -> Result<Query<'q, Postgres, PgArguments>, SourceError> {
    let columns = &shape.columns;
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
    Ok(query)
}

fn integers<'k, T: FromStr>(parts: impl Iterator<Item = &'k str>) -> Result<Vec<T>, SourceError> {
    let no_integer = |_| SourceError::Altered("a key is not of its column's type".into());
    parts.map(|part| part.parse().map_err(no_integer)).collect()
}

/// A connection keeps a buffer as long as the longest message. It is freed after messages that are longer than this.
const BUFFER_BYTES_MAX: usize = 256 << 10;

/// The size of the buffer that documents share. A longer document gets one of its own length.
const TEXTS_BYTES: usize = 64 << 10;

/// Reads the documents of the loads of `statement`. Returns the outcome of each, in order.
async fn read_loads(
    session: &mut Session,
    statement: &DocumentsStatement<'_>,
) -> Result<Vec<Loaded>, SourceError> {
    let DocumentsStatement {
        shared,
        loads,
        checked,
        ..
    } = *statement;
    let Some(first) = loads.first() else {
        return Ok(Vec::new());
    };
    let resource = &first.resource;
    // A key may be there twice: an overtaken load that still waits, and its successor. The statement takes it once,
    // since several rows of one key are an error.
    let mut keys: Vec<&str> = Vec::with_capacity(loads.len());
    let mut places: HashMap<&str, usize> = HashMap::with_capacity(loads.len());
    for load in loads {
        if let Entry::Vacant(place) = places.entry(&load.key) {
            place.insert(keys.len());
            keys.push(&load.key);
        }
    }
    let now = Boottime::now();
    for load in loads {
        load.sent_at.mark(now);
    }
    let sql = match (checked, &resource.checked_sql) {
        (true, Some(sql)) => sql,
        _ => &resource.documents_sql,
    };
    let persistent = checked && resource.may_keep_plans() && !shared.database().pooler();
    let bytes_max = shared.bytes_max(keys.len());
    let found = read_documents(
        session,
        resource,
        sql,
        &keys,
        persistent,
        bytes_max,
        Returned::Text,
    )
    .await?;
    let outcomes = loads.iter().map(|load| {
        let place = places.get(&*load.key);
        let loaded = place.and_then(|&place| found.get(place).cloned());
        loaded.unwrap_or(Ok(None))
    });
    Ok(outcomes.collect())
}

/// What [`read_documents`] returns of the documents that it has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::source) enum Returned {
    /// Their text.
    Text,
    /// Empty texts with the kept values: they can be read.
    Nothing,
}

/// Reads the documents of `keys`, which are canonical and differ, in their order: by one statement `sql`, in one
/// snapshot. Checks that the result is that of the statement.
///
/// # Errors
/// Those of the statement. The inner error concerns one document.
pub(in crate::source) async fn read_documents(
    session: &mut Session,
    resource: &Resource,
    sql: &ProvedSql,
    keys: &[&str],
    persistent: bool,
    document_bytes_max: usize,
    returned: Returned,
) -> Result<Vec<Loaded>, SourceError> {
    let query = documents_query(resource, sql, keys, document_bytes_max)?.persistent(persistent);
    let mut proof = None;
    let mut record_bytes = 0;
    let reading = async {
        let rows = query.fetch(&mut session.connection);
        let rows = rows.inspect_ok(|row| record_bytes = record_bytes.max(row_bytes(row)));
        let bytes_max = document_bytes_max;
        collect(rows, resource, keys, bytes_max, returned, &mut proof).await
    };
    let outcome = reading.await;
    if record_bytes > BUFFER_BYTES_MAX {
        session.connection.shrink_buffers();
    }
    match outcome {
        // A result of another statement rarely fits this one, so the proof is checked after an unexpected result, too.
        outcome @ (Ok(_) | Err(SourceError::Altered(_) | SourceError::Unexpected(_))) => {
            session.check_proof(sql.proof(), proof.as_deref())?;
            outcome
        }
        Err(error) => Err(error),
    }
}

/// Reads the rows of the statement: the outcome of each of `keys`. Stores the proof of the result in `proof`.
async fn collect(
    mut rows: impl TryStream<Ok = PgRow, Error = sqlx::Error> + Unpin,
    resource: &Resource,
    keys: &[&str],
    document_bytes_max: usize,
    returned: Returned,
    proof: &mut Option<Vec<u8>>,
) -> Result<Vec<Loaded>, SourceError> {
    let numbers = keys.iter().enumerate();
    let places: HashMap<&str, usize> = numbers.map(|(place, key)| (*key, place)).collect();
    let mut found: Vec<Option<Loaded>> = vec![None; keys.len()];
    let mut unexpected_key = None;
    // Documents share one buffer: they are short-lived, so none needs memory of its own.
    let mut texts = BytesMut::new();
    let mut rendered = RenderedDocument::default();
    while let Some(row) = rows.try_next().await? {
        let Some(key) = row.try_get::<Option<&str>, _>(0)? else {
            *proof = row.try_get(1)?;
            continue;
        };
        match places.get(key) {
            None => unexpected_key = Some(key.to_owned()),
            Some(&place) => {
                let outcome = rendered.replace(resource, &row, document_bytes_max)?;
                let is_ambiguous = found[place].is_some();
                found[place] = Some(if is_ambiguous {
                    Err(SourceError::Ambiguous)
                } else {
                    outcome.map(|()| {
                        Some(match returned {
                            Returned::Nothing => LoadedDocument::new(&rendered.kept, b""),
                            Returned::Text => rendered.append_to(&mut texts),
                        })
                    })
                });
            }
        }
    }
    if let Some(key) = unexpected_key {
        let message = format!(
            "PostgreSQL returned a row of {} with the unexpected key {key}",
            resource.name
        );
        return Err(SourceError::Altered(message));
    }
    let found = found.into_iter().map(|found| found.unwrap_or(Ok(None)));
    Ok(found.collect())
}

/// The length of the record in a row of the statement.
fn row_bytes(row: &PgRow) -> usize {
    let record = row.try_get_raw(1).ok();
    let bytes = record.and_then(|record| record.as_bytes().map(<[u8]>::len).ok());
    bytes.unwrap_or_default()
}

/// A document that was rendered, in buffers for the next one.
#[derive(Default)]
struct RenderedDocument {
    kept: Vec<u8>,
    json: Vec<u8>,
}

impl RenderedDocument {
    /// Renders the document in a row of the statement.
    fn replace(
        &mut self,
        resource: &Resource,
        row: &PgRow,
        document_bytes_max: usize,
    ) -> Result<Result<(), SourceError>, sqlx::Error> {
        let Self { kept, json } = self;
        kept.clear();
        json.clear();
        let record = row.try_get_raw(1)?;
        if record.is_null() {
            return Ok(Err(SourceError::TooLarge));
        }
        let record = record.as_bytes().map_err(sqlx::Error::Decode)?;
        let template = &resource.template;
        let rendered = template.render(record, document_bytes_max, json);
        let rendered = rendered.and_then(|()| template.write_kept(record, kept));
        Ok(rendered.map_err(|error| match error {
            RenderError::TooLong => SourceError::TooLarge,
            RenderError::Type(_) => SourceError::Altered(format!("{}: {error}", resource.name)),
            error => SourceError::Unexpected(format!("{}: {error}", resource.name)),
        }))
    }

    /// Copies the document to the end of `texts`, and takes it from there.
    fn append_to(&self, texts: &mut BytesMut) -> LoadedDocument {
        let bytes = self.kept.len() + self.json.len();
        if texts.capacity() < bytes {
            *texts = BytesMut::with_capacity(TEXTS_BYTES.max(bytes));
        }
        texts.extend_from_slice(&self.kept);
        texts.extend_from_slice(&self.json);
        LoadedDocument {
            text: texts.split().freeze(),
            kept_bytes: self.kept.len(),
        }
    }
}
