//! Due rows as they are matched, and as elements of requests.

use std::fmt::Write as _;
use std::time::Duration;

use axum::body::Bytes;
use ring::digest::{SHA256, digest};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres, Row, ValueRef, raw_sql};
use tokio::time::Instant;

use crate::dispatch::lease::LeasedConnection;
use crate::dispatch::slots::Position;
use crate::resource::document::RenderError;
use crate::resource::due::DueRows;
use crate::resource::key::key_parts;
use crate::source::SourceError;

/// The rows of the first piece of a batch.
const PIECE_ROWS: usize = 16;
/// The most rows of the first piece, if the mean length of rows is that of another slot.
const FIRST_ROWS_MAX: usize = 128;
/// The most rows of a piece.
const PIECE_ROWS_MAX: usize = 1_000;
/// The bytes of a row, as long as no row is known.
pub(super) const ROW_BYTES: usize = PIECE_BYTES / PIECE_ROWS;
/// The bytes that a piece should have: a server that sends a piece to a stopped process must not hang, so it has to fit the
/// buffers of the sockets.
const PIECE_BYTES: usize = 64 << 10;

/// The bytes of most elements beside the row.
const ELEMENT_BYTES: usize = 128;

/// Hexadecimal digits of an id.
const ID_DIGITS: usize = 32;

/// A row that is due.
#[derive(Clone, Debug)]
pub(super) struct DueRow {
    /// The canonical text of its key.
    pub(super) key: String,
    /// Its due moment, as PostgreSQL writes it.
    pub(super) due: String,
    /// The due moment before the first attempt.
    pub(super) first_due: String,
    /// The number of the next attempt, from 1.
    pub(super) attempt: i32,
    /// The id, the same at each attempt.
    pub(super) id: String,
    /// `{"id":…,"attempt":…,"due":…,"row":{…}}`
    pub(super) element: Bytes,
    /// Why it can't be sent, whatever the sink.
    pub(super) fault: Option<String>,
}

impl DueRow {
    /// Returns where reading goes on after it.
    pub(super) fn position(&self) -> Position {
        Position {
            due: self.due.clone(),
            key: self.key.clone(),
        }
    }
}

/// How much is matched at a time.
pub(super) struct MatchBounds {
    /// The most rows.
    pub(super) rows: usize,
    /// No piece is begun after this time.
    pub(super) time: Duration,
    /// The longest JSON of a row.
    pub(super) document_bytes: usize,
}

/// The rows of a match, as they come in pieces.
struct Matching<'m> {
    connection: &'m mut LeasedConnection,
    rows: &'m DueRows,
    slot: &'m [String],
    bounds: &'m MatchBounds,
    matched: Vec<DueRow>,
    /// The bytes that the rows have taken on the way from PostgreSQL, about.
    bytes: usize,
    /// The document of a row; its memory is used again for each.
    document: Vec<u8>,
}

/// Matches due rows of a slot, `after` a position. Returns whether there are no more. `row_bytes` is the mean number of
/// bytes of a row in the last match, and becomes that of this one.
///
/// # Errors
/// PostgreSQL can't be reached or refuses a statement.
pub(super) async fn match_rows(
    connection: &mut LeasedConnection,
    rows: &DueRows,
    slot: &[String],
    after: Option<&Position>,
    bounds: &MatchBounds,
    row_bytes: &mut usize,
) -> Result<(Vec<DueRow>, bool), SourceError> {
    let mut matching = Matching {
        connection,
        rows,
        slot,
        bounds,
        matched: Vec::new(),
        bytes: 0,
        document: Vec::new(),
    };
    let is_end = matching.read(after, *row_bytes).await?;
    let Matching { matched, bytes, .. } = matching;
    if !matched.is_empty() {
        *row_bytes = bytes / matched.len();
    }
    Ok((matched, is_end))
}

impl Matching<'_> {
    async fn read(
        &mut self,
        after: Option<&Position>,
        row_bytes: usize,
    ) -> Result<bool, SourceError> {
        let began = Instant::now();
        if !self.rows.is_due_indexed {
            return self.read_by_cursor(after, began).await;
        }
        // An index gives the first rows without reading the others, and most slots have no more.
        // The rows of another slot may be longer.
        let piece = piece_rows(1, row_bytes).min(FIRST_ROWS_MAX);
        let piece = piece.min(self.bounds.rows);
        if self.read_first(after, piece).await? < piece {
            return Ok(true);
        }
        let last = self.matched.last().map(DueRow::position);
        if self.matched.len() == self.bounds.rows {
            return Ok(false);
        }
        self.read_by_cursor(last.as_ref(), began).await
    }

    /// Reads the first rows by a statement that PostgreSQL keeps planned. Returns how many there are.
    async fn read_first(
        &mut self,
        after: Option<&Position>,
        piece: usize,
    ) -> Result<usize, SourceError> {
        let sql = self.rows.match_sql(after.is_some());
        let query = self.bind(sqlx::query(AssertSqlSafe(sql)), after, piece);
        let fetching = self
            .connection
            .run(async |connection| Ok(query.fetch_all(connection).await?));
        let fetched = fetching.await?;
        self.add(&fetched)
    }

    /// Reads rows in pieces. Returns whether there are no more.
    async fn read_by_cursor(
        &mut self,
        after: Option<&Position>,
        began: Instant,
    ) -> Result<bool, SourceError> {
        let declare = format!(
            "declare larder_match no scroll cursor for {}",
            self.rows.match_sql(after.is_some())
        );
        let rows_max = self.bounds.rows - self.matched.len();
        let declare = self.bind(sqlx::query(AssertSqlSafe(declare)), after, rows_max);
        let declaring = self.connection.run(async |connection| {
            raw_sql("begin").execute(&mut *connection).await?;
            declare.execute(connection).await?;
            Ok(())
        });
        declaring.await?;
        let mut piece = if self.matched.is_empty() {
            PIECE_ROWS
        } else {
            piece_rows(self.matched.len(), self.bytes)
        };
        let is_end = loop {
            let fetch = format!("fetch forward {piece} from larder_match");
            let fetching = self.connection.run(async |connection| {
                Ok(sqlx::query(AssertSqlSafe(fetch))
                    .fetch_all(connection)
                    .await?)
            });
            let fetched = fetching.await?;
            if self.add(&fetched)? < piece {
                break self.matched.len() < self.bounds.rows;
            }
            if began.elapsed() > self.bounds.time {
                break false;
            }
            piece = piece_rows(self.matched.len(), self.bytes);
        };
        let ending = self.connection.run(async |connection| {
            raw_sql("commit").execute(connection).await?;
            Ok(())
        });
        ending.await?;
        Ok(is_end)
    }

    /// Binds the parameters of a match.
    fn bind<'q>(
        &self,
        mut query: Query<'q, Postgres, PgArguments>,
        after: Option<&Position>,
        rows_max: usize,
    ) -> Query<'q, Postgres, PgArguments> {
        let template = &self.rows.resource.template;
        let record_bytes_max = template.record_bytes_max(self.bounds.document_bytes);
        for value in self.slot {
            query = query.bind(value.clone());
        }
        query = query
            .bind(i64::try_from(record_bytes_max).unwrap_or(i64::MAX))
            .bind(i64::try_from(rows_max).unwrap_or(i64::MAX));
        if let Some(Position { due, key }) = after {
            if self.rows.is_due_indexed {
                query = query.bind(due.clone());
            }
            for part in key_parts(key, self.rows.resource.key.columns.len()) {
                query = query.bind(part.into_owned());
            }
        }
        query
    }

    /// Adds rows that PostgreSQL has sent. Returns how many they are.
    fn add(&mut self, fetched: &[PgRow]) -> Result<usize, SourceError> {
        for row in fetched {
            self.bytes += record(row)?.map_or(0, <[u8]>::len) + ELEMENT_BYTES;
            self.document.clear();
            let bytes_max = self.bounds.document_bytes;
            let row = due_row(self.rows, row, bytes_max, &mut self.document)?;
            self.matched.push(row);
        }
        Ok(fetched.len())
    }
}

/// Returns the rows of the next piece: a power of two, so that few statements are prepared.
fn piece_rows(rows: usize, bytes: usize) -> usize {
    let fitting = PIECE_BYTES / (bytes / rows.max(1)).max(1);
    let fitting = fitting.clamp(1, PIECE_ROWS_MAX);
    1 << fitting.ilog2()
}

fn record(row: &PgRow) -> Result<Option<&[u8]>, SourceError> {
    let record = row.try_get_raw(1)?;
    if record.is_null() {
        return Ok(None);
    }
    Ok(Some(row.try_get(1)?))
}

/// Makes a row of what PostgreSQL has sent. `document` is empty.
fn due_row(
    rows: &DueRows,
    row: &PgRow,
    document_bytes_max: usize,
    document: &mut Vec<u8>,
) -> Result<DueRow, SourceError> {
    let (key, due): (String, String) = (row.try_get(0)?, row.try_get(2)?);
    let first_due: Option<String> = row.try_get(3)?;
    let first_due = first_due.unwrap_or_else(|| due.clone());
    let due_json: &str = row.try_get(4)?;
    let attempt = row.try_get::<i32, _>(5)?.saturating_add(1);
    let id = id(&rows.dispatch, &key, &first_due);
    let fault = match record(row)? {
        None => Some("the row is longer than document_max".to_owned()),
        Some(record) => {
            match rows
                .resource
                .template
                .render(record, document_bytes_max, document)
            {
                Ok(()) => None,
                // A column has another type by now.
                Err(error @ RenderError::Type(_)) => {
                    return Err(SourceError::Altered(error.to_string()));
                }
                Err(error) => Some(error.to_string()),
            }
        }
    };
    let document = if fault.is_some() {
        "null"
    } else {
        std::str::from_utf8(document).unwrap_or("null")
    };
    let mut element = String::with_capacity(document.len() + ELEMENT_BYTES);
    // Writing to a string can't fail.
    let _ = write!(
        element,
        r#"{{"id":"{id}","attempt":{attempt},"due":{due_json},"row":{document}}}"#
    );
    Ok(DueRow {
        key,
        due,
        first_due,
        attempt,
        id,
        element: element.into(),
        fault,
    })
}

/// Makes the id of a delivery: the same at each attempt, and another one for each due moment that the application sets.
fn id(dispatch: &str, key: &str, first_due: &str) -> String {
    let hash = digest(
        &SHA256,
        format!("{dispatch}\0{key}\0{first_due}").as_bytes(),
    );
    hex(hash.as_ref(), "msg_")
}

/// Makes the id of a request with these rows.
pub(super) fn request_id(ids: &[&str]) -> String {
    match ids {
        [id] => (*id).to_owned(),
        ids => hex(digest(&SHA256, ids.join("\0").as_bytes()).as_ref(), "msgs_"),
    }
}

fn hex(bytes: &[u8], prefix: &str) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let digits = digits
        .take(ID_DIGITS)
        .filter_map(|digit| char::from_digit(digit.into(), 16));
    let mut text = String::with_capacity(prefix.len() + ID_DIGITS);
    text.push_str(prefix);
    text.extend(digits);
    text
}

/// Divides `rows` into requests of at most `rows_max` rows and `bytes_max` bytes. A retry is alone, so that it fails no other
/// row.
pub(super) fn divide(rows: Vec<DueRow>, rows_max: usize, bytes_max: u64) -> Vec<Vec<DueRow>> {
    let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
    let mut requests: Vec<Vec<DueRow>> = Vec::new();
    let (mut bytes, mut is_open) = (0, false);
    for row in rows {
        let length = row.element.len() + 1;
        let fits = is_open && bytes + length <= bytes_max;
        match requests
            .last_mut()
            .filter(|request| fits && request.len() < rows_max && row.attempt == 1)
        {
            Some(request) => {
                bytes += length;
                request.push(row);
            }
            None => {
                (bytes, is_open) = (length, row.attempt == 1);
                requests.push(vec![row]);
            }
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(attempt: i32, bytes: usize) -> DueRow {
        DueRow {
            key: String::new(),
            due: String::new(),
            first_due: String::new(),
            attempt,
            id: String::new(),
            element: vec![b' '; bytes].into(),
            fault: None,
        }
    }

    fn sizes(rows: &[(i32, usize)], rows_max: usize, bytes_max: u64) -> Vec<usize> {
        let rows = rows.iter().map(|(attempt, bytes)| row(*attempt, *bytes));
        let requests = divide(rows.collect(), rows_max, bytes_max);
        requests.iter().map(Vec::len).collect()
    }

    #[test]
    fn requests_have_as_many_rows_as_they_may() {
        assert_eq!(sizes(&[(1, 10); 7], 3, 1_000), [3, 3, 1]);
        assert_eq!(sizes(&[(1, 10); 5], 100, 22), [2, 2, 1]);
        assert_eq!(
            sizes(&[(1, 10), (1, 5_000), (1, 10)], 100, 1_000),
            [1, 1, 1]
        );
        assert!(sizes(&[], 3, 1_000).is_empty());
    }

    #[test]
    fn retries_are_alone() {
        let rows = [(1, 10), (2, 10), (1, 10), (1, 10), (3, 10), (3, 10)];
        assert_eq!(sizes(&rows, 100, 1_000), [1, 1, 2, 1, 1]);
    }

    #[test]
    fn ids_differ_by_dispatch_key_and_moment() {
        let ids = [
            id("a", "1", "x"),
            id("b", "1", "x"),
            id("a", "2", "x"),
            id("a", "1", "y"),
        ];
        for (place, one) in ids.iter().enumerate() {
            assert_eq!(one.len(), "msg_".len() + ID_DIGITS);
            assert!(ids[..place].iter().all(|other| other != one));
        }
        assert_eq!(request_id(&["one"]), "one");
        assert_ne!(request_id(&["one", "two"]), request_id(&["two", "one"]));
    }

    #[test]
    fn pieces_fit_the_buffers() {
        for (rows, bytes, piece) in [(16, 16 * 300, 128), (16, 0, 512), (16, 16 << 20, 1)] {
            assert_eq!(piece_rows(rows, bytes), piece, "{bytes}");
        }
    }
}
