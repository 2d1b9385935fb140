//! How far the feed has followed the database.

use std::fmt;
use std::sync::Arc;

/// A `pg_snapshot` in PostgreSQL's own text: every transaction that it calls committed has been applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position(Arc<str>);

/// How far the disk tier's content reflects the database: what this larder would come back to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Persisted {
    /// It is being opened.
    Unknown,
    /// It holds nothing that could be come back to.
    Nothing,
    /// Its content reflects all up to here.
    At(Position),
}

impl Position {
    /// Takes what `pg_current_snapshot()::text` gave.
    pub fn new(snapshot: &str) -> Self {
        Self(Arc::from(snapshot))
    }

    /// The snapshot's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
