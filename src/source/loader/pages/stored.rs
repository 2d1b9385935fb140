//! Pages of a table with keys that UTF-8 can't carry: those are left out, and the page goes on past them.
//!
//! The keys of a page come in one statement, as the bytes that the database stores. They are converted apart from that,
//! by halves where one of them can't be: a conversion is of no snapshot.

use sqlx::{AssertSqlSafe, Row};

use crate::resource::proof::{PROOF, ProvedSql};
use crate::source::SourceError;
use crate::source::loader::Shared;
use crate::source::loader::link::{Link, Statement};
use crate::source::loader::pages::Keys;
use crate::source::session::Session;

/// The encoding of databases that convert nothing (PostgreSQL manual, "Character Set Support").
const SQL_ASCII: &str = "SQL_ASCII";

/// As many keys of a page as it asks for, where there are as many that UTF-8 can carry.
///
/// # Errors
/// Why PostgreSQL gave none, among it a key to go on from that the database's encoding lacks.
pub(super) async fn representable(
    link: &mut Link,
    shared: &Shared,
    keys: &Keys,
) -> Result<Vec<String>, SourceError> {
    let limit = keys.page.limit;
    let mut found = Vec::new();
    let mut passed = 0;
    loop {
        let window = Window { keys, passed };
        let stored = match link.ask(shared, &window).await {
            Ok(stored) => stored,
            // A filter by what no row can hold.
            Err(error) if error.is_encoding_error() && keys.page.after.is_none() => {
                return Ok(found);
            }
            Err(error) => return Err(error),
        };
        let count = stored.keys.len();
        passed += count;
        if stored.encoding == SQL_ASCII {
            let texts = stored.keys.into_iter().map(String::from_utf8);
            found.extend(texts.filter_map(Result::ok));
        } else {
            convert(link, shared, keys, stored.keys, &mut found).await?;
        }
        if count < limit || found.len() >= limit {
            found.truncate(limit);
            return Ok(found);
        }
    }
}

/// Adds those of `stored` to `found` that can be converted, in their order.
async fn convert(
    link: &mut Link,
    shared: &Shared,
    keys: &Keys,
    stored: Vec<Vec<u8>>,
    found: &mut Vec<String>,
) -> Result<(), SourceError> {
    // The part that comes next is the last.
    let mut parts = vec![stored];
    while let Some(mut part) = parts.pop() {
        let conversion = Conversion {
            stored: &part,
            persistent: keys.persistent,
        };
        match link.ask(shared, &conversion).await {
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

/// The keys after `passed` of a page's, as they are stored.
struct Window<'k> {
    keys: &'k Keys,
    passed: usize,
}

struct Stored {
    encoding: String,
    keys: Vec<Vec<u8>>,
}

impl Statement for Window<'_> {
    type Found = Stored;

    async fn run(&self, session: &mut Session) -> Result<Stored, SourceError> {
        let sql = self
            .keys
            .page
            .stored_sql(&self.keys.resource, self.keys.row_security());
        let passed = i64::try_from(self.passed).unwrap_or(i64::MAX);
        let query = self.keys.bound(&sql).bind(passed);
        let rows = query.fetch_all(&mut session.connection).await?;
        session.check_rows_proof(sql.proof(), &rows)?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(Stored {
            encoding: row.try_get("encoding")?,
            keys: row.try_get("keys")?,
        })
    }
}

/// Keys as they are stored, to be made UTF-8.
struct Conversion<'k> {
    stored: &'k [Vec<u8>],
    persistent: bool,
}

impl Statement for Conversion<'_> {
    type Found = Vec<String>;

    async fn run(&self, session: &mut Session) -> Result<Vec<String>, SourceError> {
        let sql = ProvedSql::new(&format!(
            "select {PROOF} as proof, array(select pg_catalog.convert(u.k, pg_catalog.getdatabaseencoding(), 'UTF8') \
             from pg_catalog.unnest($1::bytea[]) with ordinality u (k, n) order by u.n) as keys"
        ));
        let rows = sqlx::query(AssertSqlSafe(sql.as_str()))
            .bind(self.stored)
            .persistent(self.persistent)
            .fetch_all(&mut session.connection)
            .await?;
        session.check_rows_proof(sql.proof(), &rows)?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let keys: Vec<Vec<u8>> = row.try_get("keys")?;
        let texts = keys.into_iter().map(String::from_utf8);
        let texts: Result<_, _> = texts.collect();
        texts.map_err(|error| SourceError::Unexpected(error.to_string()))
    }
}
