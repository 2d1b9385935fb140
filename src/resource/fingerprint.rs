//! Fingerprints: hashes of what the definition of a resource depends on in PostgreSQL's catalogue.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

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
    /// A statement that returns one text. Once it is prepared, it returns another text after the tables of the resource,
    /// or the types of their columns, were altered. `None` while schema larder can't be used.
    pub plan_mark_sql: Option<String>,
    /// A [`Boottime`](crate::clock::Boottime): a request has found it to be that of the database after this moment.
    pub compared_at: AtomicU64,
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
