//! source
use std::time::Duration;

pub mod embedded;

/// How PostgreSQL is reached.
#[derive(Clone, Debug)]
pub struct SourceConfig {
    /// Connections that load documents.
    pub connections: usize,
    /// The longest run of one statement.
    pub statement_timeout: Duration,
    /// The URL leads to a transaction pooler.
    pub pooler: bool,
    /// Documents above this many bytes are an error.
    pub document_bytes_max: u64,
}
