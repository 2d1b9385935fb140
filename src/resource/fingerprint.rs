//! Fingerprints: hashes of what the definition of a resource depends on in PostgreSQL's catalogue.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use crate::resource::proof::ProvedSql;

/// The fingerprint that belongs to a definition, and how that of the database is read.
#[derive(Debug)]
pub struct Fingerprint {
    /// As PostgreSQL returned it.
    pub text: String,
    /// A statement that returns one row with the proof and the column `fingerprint`. Its parameters are the two lists.
    pub sql: Arc<ProvedSql>,
    /// The tables that the resource depends on.
    pub oids: Vec<i64>,
    /// Whether the resource's SQL names the table.
    pub named: Vec<bool>,
    /// How transactions that write notice that it may have changed; `None` while schema larder can't be used.
    pub marks: Option<MarkSql>,
    /// The text of [`MarkSql::rows`] when a transaction has compared the fingerprint last; empty before.
    pub compared_rows: Mutex<String>,
    /// A [`Boottime`](crate::clock::Boottime): a request has found it to be that of the database after this moment.
    pub compared_at: AtomicU64,
}

/// Statements that return one text, which is another one after the tables of a resource, or the types of their columns, were
/// altered.
#[derive(Debug)]
pub struct MarkSql {
    /// The plan mark: it has to stay prepared on a connection, which has texts of its own.
    pub plan: String,
    /// The rows of the catalogue, for poolers: costs more, and is the same text over all connections.
    pub rows: String,
}

impl Fingerprint {
    /// Whether `found` is the same fingerprint, apart from what depends on the role that reads it.
    pub fn is_same(&self, found: &str) -> bool {
        of_tables(found) == self.of_tables()
    }

    /// The part that does not depend on the role that reads it.
    pub fn of_tables(&self) -> &str {
        of_tables(&self.text)
    }
}

fn of_tables(text: &str) -> &str {
    text.split(['/', ' ']).next().unwrap_or_default()
}
