//! Reading a pass: what committed since a position, mapped to documents, in one snapshot.
//!
//! Snapshots decide which transactions are new, never the order of their numbers: a row of the log counts if its
//! transaction was not visible in the old position and is visible now. Keys that are not documents' keys are mapped in
//! the same statement. This is exact. Of the rows that link a changed row to its document, take the topmost that
//! differs between the two snapshots. All rows above it are equal in both, and its transaction has logged its old and
//! its new parent.
//!
//! A transaction that was prepared before a crash has lost its rows of the log. So `larder.epoch` names the
//! transactions that were prepared when it began. If one of them has become visible, the old position is not valid
//! (`tests/model`, module `prepared`).
//!
//! A new partition, or a trigger that was disabled for a while, logs nothing: see `definition`. So a pass also reads
//! the remainder in its snapshot, and, if it has to, the fingerprints.

pub(super) mod query;

use futures_util::TryStreamExt;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::feed::Change;
use crate::feed::change_log::query::{Extent, PassQuery};
use crate::feed::change_set::{ChangeSet, RowLimit};
use crate::feed::definition::{Definitions, Fingerprints, read_fingerprints};
use crate::feed::position::Position;
use crate::resource::ResourceId;
use crate::resource::proof::ProvedSql;
use crate::source::SourceError;

/// Settings of the connection that passes run on.
///
/// A log that was never analysed misleads the planner: a pass took 62 to 70 ms without these settings, 0.15 to 0.35 ms
/// with them. A lock on a table that a pass joins ends the statement, and the pass is read again without that table.
/// Heartbeats and pruning need not survive a crash, which begins a new epoch, and passes must not wait until they are
/// on disk.
pub(super) const SETTINGS: [(&str, &str); 7] = [
    ("synchronous_commit", "off"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("statement_timeout", "4s"),
    ("lock_timeout", "50ms"),
    ("idle_in_transaction_session_timeout", "30s"),
];

/// What one pass read.
#[derive(Debug)]
pub(super) struct PassReading {
    /// The snapshot that it read in.
    pub(super) position: Position,
    /// The log has all rows since the old position, and no transaction that was prepared when its epoch began has
    /// become visible.
    pub(super) is_valid: bool,
    /// The nonce of the log's epoch; `None` after a crash.
    pub(super) nonce: Option<String>,
    /// The remainder, as one text.
    pub(super) remainder: String,
    /// `None` if the pass did not compute them.
    pub(super) fingerprints: Option<Fingerprints>,
    pub(super) changes: Vec<Change>,
    /// The server process that ran the statement.
    pub(super) process: i32,
}

/// Reads a pass from `position`. If changes are expected, one statement finds and maps them. Otherwise a shorter one
/// looks whether there are any, and a second one follows if there are.
///
/// # Errors
/// [`SourceError::Pooler`] if another statement's result came; else what PostgreSQL said.
pub(super) async fn read(
    connection: &mut PgConnection,
    query: &PassQuery,
    definitions: &Definitions,
    position: &Position,
    with_fingerprints: bool,
    are_changes_expected: bool,
) -> Result<PassReading, SourceError> {
    let mut extent = Extent::new(are_changes_expected, with_fingerprints);
    loop {
        let sql = query.statement(extent);
        let reading = read_extent(connection, query, sql, definitions, position, extent);
        match reading.await {
            Ok((reading, false)) => return Ok(reading),
            Ok((_, true)) => extent.changes = true,
            Err(error) if error.is_encoding_error() && extent.changes => break,
            Err(error) => return Err(error),
        }
    }
    tracing::warn!(
        "larder.change has a key that is not valid UTF-8; the cache of its resource was emptied"
    );
    let sql = query.ascii_statement(extent);
    let reading = read_extent(connection, query, &sql, definitions, position, extent);
    Ok(reading.await?.0)
}

/// Runs `sql`, the statement for `extent`. Returns what it read, and whether the log has new rows that it did not map.
async fn read_extent(
    connection: &mut PgConnection,
    query: &PassQuery,
    sql: &ProvedSql,
    definitions: &Definitions,
    position: &Position,
    extent: Extent,
) -> Result<(PassReading, bool), SourceError> {
    let watched = &definitions.watched;
    let mut statement = sqlx::query(AssertSqlSafe(sql.as_str())).bind(position.as_str());
    if extent.fingerprints {
        statement = statement
            .bind(&watched.resources)
            .bind(&watched.oids)
            .bind(&watched.named);
    }
    let mut rows = statement.fetch(connection);
    let mut first = None;
    let mut changes = ChangeSet::default();
    while let Some(row) = rows.try_next().await? {
        if let Some(snapshot) = row.try_get::<Option<&str>, _>("now")? {
            let process = sql.proof().process(row.try_get("proof")?);
            let reading = PassReading {
                process: process.ok_or(SourceError::Pooler("another statement was answered"))?,
                position: Position::new(snapshot),
                is_valid: row.try_get("valid")?,
                nonce: row.try_get("nonce")?,
                remainder: row.try_get("remainder")?,
                fingerprints: if extent.fingerprints {
                    Some(read_fingerprints(&row)?)
                } else {
                    None
                },
                changes: Vec::new(),
            };
            first = Some((reading, row.try_get("new")?));
            continue;
        }
        let key: Option<String> = row.try_get("key")?;
        if let Some(number) = row.try_get::<Option<i32>, _>("path")? {
            query.add_changes(number, key.as_deref(), &mut changes);
        } else if let Ok(resource) = ResourceId::try_from(row.try_get::<i32, _>("resource")?) {
            match key {
                Some(key) => changes.add_key(resource, key, RowLimit::Limited),
                None => changes.add_all(resource),
            }
        }
    }
    let (mut reading, has_more) = first
        .ok_or_else(|| SourceError::Unexpected("the statement of a pass returned no row".into()))?;
    reading.changes = changes.into_changes();
    Ok((reading, has_more))
}
