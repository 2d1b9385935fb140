//! Pages of a table with keys that cannot be converted to UTF-8. Such keys are left out, and the page continues after
//! them.
//!
//! One statement reads the keys of a page as the bytes that the database stores. Further statements convert them, half
//! of them at a time if one cannot be converted. They need not share a snapshot, since they read no table.

use sqlx::{AssertSqlSafe, Row};

use crate::resource::proof::{PROOF, ProvedSql};
use crate::source::SourceError;
use crate::source::loader::Shared;
use crate::source::loader::connection::LoaderStatement;
use crate::source::loader::pages::PageStatement;
use crate::source::session::Session;

/// The encoding of a database in which PostgreSQL converts nothing (PostgreSQL manual, "Character Set Support").
const SQL_ASCII: &str = "SQL_ASCII";

/// Reads the keys of a page that can be converted to UTF-8, up to its limit.
///
/// # Errors
/// Those of the statements. [`SourceError::is_encoding_error`] if the page begins after a key that the database's encoding
/// cannot represent.
pub(super) async fn read_representable_keys(
    shared: &Shared,
    keys: &PageStatement,
) -> Result<Vec<String>, SourceError> {
    let limit = keys.page.limit;
    let mut found = Vec::new();
    let mut offset = 0;
    loop {
        let statement = StoredKeysStatement { keys, offset };
        let stored = match shared.run(&statement).await {
            Ok(stored) => stored,
            // The value of a filter cannot be represented, so no row has it.
            Err(error) if error.is_encoding_error() && keys.page.after.is_none() => {
                return Ok(found);
            }
            Err(error) => return Err(error),
        };
        let count = stored.keys.len();
        offset += count;
        let before = found.len();
        if stored.encoding == SQL_ASCII {
            let texts = stored.keys.into_iter().map(String::from_utf8);
            found.extend(texts.filter_map(Result::ok));
        } else {
            convert(shared, keys, stored.keys, &mut found).await?;
        }
        // Those that can't stand in a path.
        let mut converted = found.split_off(before);
        converted.retain(|key| keys.resource.key.check(key).is_ok());
        found.append(&mut converted);
        if count < limit || found.len() >= limit {
            found.truncate(limit);
            return Ok(found);
        }
    }
}

/// Adds the keys of `stored` that can be converted to `found`, in their order.
async fn convert(
    shared: &Shared,
    keys: &PageStatement,
    stored: Vec<Vec<u8>>,
    found: &mut Vec<String>,
) -> Result<(), SourceError> {
    // A stack: the last part is converted next.
    let mut parts = vec![stored];
    while let Some(mut part) = parts.pop() {
        let conversion = ConversionStatement {
            stored: &part,
            persistent: keys.persistent,
        };
        match shared.run(&conversion).await {
            Ok(texts) => found.extend(texts),
            Err(error) if !error.is_encoding_error() => return Err(error),
            Err(_) if part.len() > 1 => {
                let second = part.split_off(part.len() / 2);
                parts.extend([second, part]);
            }
            Err(_) => {}
        }
    }
    Ok(())
}

/// Reads the stored bytes of the keys of a page, without the first `offset` keys.
struct StoredKeysStatement<'k> {
    keys: &'k PageStatement,
    offset: usize,
}

struct StoredKeys {
    encoding: String,
    keys: Vec<Vec<u8>>,
}

impl LoaderStatement for StoredKeysStatement<'_> {
    type Found = StoredKeys;

    async fn run(&self, session: &mut Session) -> Result<StoredKeys, SourceError> {
        let sql = self
            .keys
            .page
            .stored_sql(&self.keys.resource, self.keys.row_security());
        let offset = i64::try_from(self.offset).unwrap_or(i64::MAX);
        let query = self.keys.bind(&sql).bind(offset);
        let rows = session.fetch_checked(query, sql.proof()).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(StoredKeys {
            encoding: row.try_get("encoding")?,
            keys: row.try_get("keys")?,
        })
    }
}

/// Converts stored keys to UTF-8.
struct ConversionStatement<'k> {
    stored: &'k [Vec<u8>],
    persistent: bool,
}

impl LoaderStatement for ConversionStatement<'_> {
    type Found = Vec<String>;

    async fn run(&self, session: &mut Session) -> Result<Vec<String>, SourceError> {
        let sql = ProvedSql::new(&format!(
            "select {PROOF} as proof, array(select pg_catalog.convert(u.k, pg_catalog.getdatabaseencoding(), 'UTF8') \
             from pg_catalog.unnest($1::bytea[]) with ordinality u (k, n) order by u.n) as keys"
        ));
        let query = sqlx::query(AssertSqlSafe(sql.as_str()))
            .bind(self.stored)
            .persistent(self.persistent);
        let rows = session.fetch_checked(query, sql.proof()).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let keys: Vec<Vec<u8>> = row.try_get("keys")?;
        let texts = keys.into_iter().map(String::from_utf8);
        let texts: Result<_, _> = texts.collect();
        texts.map_err(|error| SourceError::Unexpected(error.to_string()))
    }
}
