//! PostgreSQL, as the place that documents come from: connections, catalogue, the loader that reads documents, and the
//! writes.
//!
//! Knows no tier and no HTTP. Every connection proves which database it reaches before a document is read over it.

pub mod catalogue;
pub mod embedded;
pub mod loader;
pub mod session;
pub mod token;
pub mod writes;

use std::time::Duration;

use crate::resource::row_security::UNCHANGED;

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

/// Why PostgreSQL gave no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SourceError {
    /// The URL is no PostgreSQL URL.
    #[error(
        "the database URL is not of the form postgres://user:password@host:port/database?sslmode=…"
    )]
    Url,
    /// PostgreSQL can't be reached, or it ended the connection.
    #[error("PostgreSQL is out of reach: {0}")]
    Unavailable(String),
    /// The server is a standby or in recovery.
    #[error("the server is a standby or in recovery; larder follows the primary")]
    Standby,
    /// The connection leads to another database than the feed's.
    #[error("the connection leads to another database than the feed's")]
    OtherDatabase,
    /// Too many keys wait for PostgreSQL.
    #[error("too many keys wait for PostgreSQL")]
    Overloaded,
    /// A statement took longer than `statement_timeout`.
    #[error("the statement took too long")]
    Timeout,
    /// PostgreSQL refused a statement.
    #[error("PostgreSQL says {code}: {message}")]
    Refused {
        /// SQLSTATE.
        code: String,
        /// PostgreSQL's message, for the log only.
        message: String,
    },
    /// The document is longer than `document_max`.
    #[error("the document is longer than document_max")]
    TooLarge,
    /// Several rows have the key.
    #[error("several rows have this key")]
    Ambiguous,
    /// Something between larder and PostgreSQL shares server connections among clients, and larder was not told of it,
    /// or it does not even keep a transaction on one of them.
    #[error(
        "a connection pooler stands between larder and PostgreSQL ({0}): set `pooler = true` and give `listen_url`, a \
         direct connection; the pooler has to keep a transaction on one server connection"
    )]
    Pooler(&'static str),
    /// A connection has another setting than larder gave it.
    #[error(
        "the connection's setting {name} is '{found}', although larder set it to '{expected}': what stands between \
         larder and PostgreSQL must pass on startup parameters, or set `pooler = true` and give `listen_url`"
    )]
    Setting {
        /// Its name.
        name: String,
        /// As larder set it.
        expected: String,
        /// As PostgreSQL has it.
        found: String,
    },
    /// Larder's role does not see what it saw when the resource was checked; the feed notices if it lasts.
    #[error("row security lets larder's role see other rows than when the tables were checked")]
    RowSecurity,
    /// A table is not as it was when the resource was checked; the feed is about to notice.
    #[error("a table was altered: {0}")]
    Altered(String),
    /// PostgreSQL answered what it can't have answered.
    #[error("unexpected answer from PostgreSQL: {0}")]
    Unexpected(String),
}

impl SourceError {
    /// PostgreSQL owes an answer.
    pub(crate) fn silent() -> Self {
        Self::Unavailable("it does not answer".into())
    }

    /// Whether the same statement may do better later: the connection was lost, or a lock was waited for.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::Unavailable(_)) || self.is_of_lock()
    }

    /// Whether a lock was waited for, for as long as `lock_timeout` allows.
    pub(crate) fn is_of_lock(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == LOCK_NOT_AVAILABLE)
    }

    /// Whether the connection is of no use any more.
    pub(crate) fn is_of_connection(&self) -> bool {
        matches!(
            self,
            Self::Unavailable(_)
                | Self::OtherDatabase
                | Self::Standby
                | Self::Pooler(_)
                | Self::Setting { .. }
        )
    }

    /// Whether a value has characters that the encoding at the other end lacks: one that was sent the database's, or one
    /// that is stored UTF-8.
    pub(crate) fn is_of_encoding(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if OF_ENCODING.contains(&code.as_str()))
    }

    /// Whether a statement that checks row security was refused for that, or could not check it.
    fn is_of_row_security(&self) -> bool {
        match self {
            Self::RowSecurity => true,
            Self::Refused { code, .. } => OF_MISSING_CHECK.contains(&code.as_str()),
            _ => false,
        }
    }

    /// Whether asking for each key alone could do better than asking for many.
    fn concerns_single_keys(&self) -> bool {
        matches!(
            self,
            Self::Refused { .. } | Self::Timeout | Self::Altered(_) | Self::Unexpected(_)
        )
    }
}

/// `lock_not_available`, which `lock_timeout` raises (PostgreSQL manual, appendix A).
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// `character_not_in_repertoire` and `untranslatable_character` (PostgreSQL manual, appendix A).
const OF_ENCODING: [&str; 2] = ["22021", "22P05"];

/// What is said where the domain or the function of the check is missing or forbidden: `undefined_object`,
/// `undefined_function`, `invalid_schema_name` and `insufficient_privilege` (PostgreSQL manual, appendix A).
const OF_MISSING_CHECK: [&str; 4] = ["42704", "42883", "3F000", "42501"];

/// `query_canceled`, which `statement_timeout` raises (PostgreSQL manual, appendix A).
const QUERY_CANCELED: &str = "57014";

/// `invalid_sql_statement_name` and `duplicate_prepared_statement` (PostgreSQL manual, appendix A): a connection of
/// larder's own has prepared what it executes, once.
const NAMES_OF_OTHERS: [&str; 2] = ["26000", "42P05"];

impl From<sqlx::Error> for SourceError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(database) => {
                let code = database.code().unwrap_or_default().into_owned();
                let message = database.message().to_owned();
                match code.get(..2) {
                    _ if database.constraint() == Some(UNCHANGED) => Self::RowSecurity,
                    _ if code == QUERY_CANCELED => Self::Timeout,
                    _ if NAMES_OF_OTHERS.contains(&code.as_str()) => {
                        Self::Pooler("prepared statements of others share its server connection")
                    }
                    // 08: connection exception, 53: too many connections or out of memory, 57: shutdown.
                    Some("08" | "53" | "57") => Self::Unavailable(message),
                    _ => Self::Refused { code, message },
                }
            }
            sqlx::Error::Decode(_)
            | sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::RowNotFound => Self::Unexpected(error.to_string()),
            _ => Self::Unavailable(error.to_string()),
        }
    }
}
