//! PostgreSQL as the source of documents: connections, the catalogue, the loader that reads documents, and writes.
//!
//! This module knows no tier and no HTTP. larder checks which database a connection has reached before it reads a
//! document over it.

mod availability;
pub mod catalogue;
pub mod connections;
pub mod embedded;
pub mod facts;
pub mod loader;
pub mod plans;
pub(crate) mod rights;
pub mod session;
pub mod survey;
pub mod token;
pub mod writes;

use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::postgres::PgDatabaseError;

use crate::resource::row_security::UNCHANGED;
use crate::source::session::url::UrlError;

/// How larder connects to PostgreSQL.
#[derive(Clone, Debug)]
pub struct SourceConfig {
    /// The most connections of larder, those of the feed among them.
    pub connections: usize,
    /// The longest time that one statement may take.
    pub statement_timeout: Duration,
    /// Whether the URL leads to a transaction pooler.
    pub pooler: bool,
    /// A longer document is an error.
    pub document_bytes_max: u64,
    /// Loads that take as long are logged; zero: none is.
    pub log_slow: Duration,
}

/// Why a statement failed, or why there is no connection to run it on.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SourceError {
    /// The URL is not a PostgreSQL URL, or larder can't obey it.
    #[error("the database URL {0}")]
    Url(#[from] UrlError),
    /// PostgreSQL cannot be reached, or it closed the connection.
    #[error("PostgreSQL cannot be reached: {0}")]
    Unavailable(String),
    /// PostgreSQL does not let larder in: by the credentials, the role, the database or `pg_hba.conf`.
    #[error("PostgreSQL refuses the connection (SQLSTATE {code}): {message}; {remedy}")]
    Login {
        /// SQLSTATE.
        code: String,
        /// PostgreSQL's message.
        message: String,
        /// What to do.
        remedy: &'static str,
    },
    /// PostgreSQL, the database or the role has as many connections as it may have.
    #[error("too many connections (SQLSTATE 53300): {0}")]
    TooManyConnections(String),
    /// The server is a standby or in recovery.
    #[error("the server is a standby or in recovery; larder follows the primary")]
    Standby,
    /// The connection reached another database than the one that the feed follows.
    #[error("the connection reached another database than the one that the change feed follows")]
    OtherDatabase,
    /// larder's role may not read by which larder knows its database.
    #[error("larder's role lacks a privilege: {0}")]
    Privilege(String),
    /// Too many requests wait for PostgreSQL.
    #[error("too many requests wait for PostgreSQL")]
    Overloaded,
    /// A statement took longer than `statement_timeout`.
    #[error("the statement took longer than statement_timeout")]
    Timeout,
    /// PostgreSQL reported an error.
    #[error("PostgreSQL reported error {code}: {message}")]
    Refused {
        /// SQLSTATE.
        code: String,
        /// PostgreSQL's message, for the log only.
        message: String,
    },
    /// The document is longer than `document_max`.
    #[error("the document is longer than document_max")]
    TooLarge,
    /// The statement for this document alone took longer than `statement_timeout`.
    #[error("PostgreSQL needs longer than statement_timeout for this document")]
    DocumentTimeout,
    /// The document took longer than its share of the time of a request for many documents. Alone it may be read.
    #[error("PostgreSQL needs long for this document, and other documents were requested with it")]
    SlowDocument,
    /// A filter, or the key that a page begins after, has a text that is no value of its column's type. It has the name of the
    /// query's parameter.
    #[error("{0} has a text that is no value of its column's type")]
    NoValue(String),
    /// Several rows have the key.
    #[error("several rows have this key")]
    Ambiguous,
    /// A connection pooler shares server connections among clients although `pooler` is not set, or it does not keep a
    /// transaction on one server connection.
    #[error(
        "a connection pooler stands between larder and PostgreSQL ({0}): set `pooler = true` and give `listen_url`, a \
         direct connection; the pooler has to keep a transaction on one server connection"
    )]
    Pooler(&'static str),
    /// A setting of the connection has another value than larder set.
    #[error(
        "the connection's setting {name} is '{found}', although larder set it to '{expected}': what stands between \
         larder and PostgreSQL must pass on startup parameters, or set `pooler = true` and give `listen_url`"
    )]
    Setting {
        /// The name of the setting.
        name: String,
        /// The value that larder set.
        expected: String,
        /// The value that PostgreSQL shows.
        found: String,
    },
    /// Row security shows larder's role other rows than when the resource was checked. If that lasts, the feed notices
    /// it.
    #[error("row security lets larder's role see other rows than when the tables were checked")]
    RowSecurity,
    /// A table was altered since the resource was checked, and the feed has not noticed it yet.
    #[error("a table was altered: {0}")]
    Altered(String),
    /// PostgreSQL returned what the statement cannot return.
    #[error("unexpected response from PostgreSQL: {0}")]
    Unexpected(String),
}

impl SourceError {
    /// The error for clients that may not see documents: without PostgreSQL's message, which may have values of rows.
    pub(crate) fn without_values(&self) -> String {
        match self {
            Self::Refused { code, .. } => format!("PostgreSQL reported error {code}"),
            error => error.to_string(),
        }
    }

    /// PostgreSQL did not respond within the time that it had.
    pub(crate) fn no_response() -> Self {
        Self::Unavailable("it does not respond".into())
    }

    /// Whether the same statement may succeed later: there is no connection, or another transaction held a lock.
    pub(crate) fn is_transient(&self) -> bool {
        let no_connection = matches!(
            self,
            Self::Unavailable(_) | Self::Login { .. } | Self::TooManyConnections(_)
        );
        no_connection || self.is_lock_timeout()
    }

    /// Whether the statement waited for a lock for as long as `lock_timeout` allows.
    pub(crate) fn is_lock_timeout(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == LOCK_NOT_AVAILABLE)
    }

    /// Whether a table of the statement was altered since the resource was checked, so that the statement may succeed
    /// under the new definition.
    pub(crate) fn is_altered(&self) -> bool {
        match self {
            Self::Altered(_) | Self::RowSecurity => true,
            Self::Refused { code, .. } => ALTERED.contains(&code.as_str()),
            _ => false,
        }
    }

    /// Whether PostgreSQL refused the statement since larder's role lacks a privilege.
    pub(crate) fn is_privilege_error(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == INSUFFICIENT_PRIVILEGE)
    }

    /// Whether other transactions prevented the statement, by a deadlock or a conflict between serializable transactions.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if CONFLICTS.contains(&code.as_str()))
    }

    /// Whether the connection must not be used any more.
    pub(crate) fn is_connection_error(&self) -> bool {
        matches!(
            self,
            Self::Unavailable(_)
                | Self::Login { .. }
                | Self::TooManyConnections(_)
                | Self::OtherDatabase
                | Self::Privilege(_)
                | Self::Standby
                | Self::Pooler(_)
                | Self::Setting { .. }
        )
    }

    /// Whether a value has a character that the other encoding lacks: a parameter one that the database's encoding
    /// lacks, or a stored value one that UTF-8 lacks.
    pub(crate) fn is_encoding_error(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if ENCODING_ERRORS.contains(&code.as_str()))
    }

    /// Whether PostgreSQL may have refused a text that is no value of the type to which a statement casts it. The functions
    /// that read texts raise many errors, those of extensions any.
    pub(crate) fn may_be_of_text(&self) -> bool {
        matches!(self, Self::Refused { .. }) && !self.is_altered()
    }

    /// Whether the document of one key can't be returned: it is too long, takes too long, has a character that UTF-8 lacks, or is beyond
    /// what PostgreSQL can write in one piece. For a statement that reads one key.
    pub(crate) fn is_of_one_document(&self) -> bool {
        match self {
            Self::TooLarge | Self::Ambiguous | Self::DocumentTimeout | Self::SlowDocument => true,
            error => error.is_encoding_error() || error.is_size_error(),
        }
    }

    /// Whether a value is longer as text than PostgreSQL can write in one piece.
    pub(crate) fn is_size_error(&self) -> bool {
        matches!(
            self,
            Self::Refused { code, message }
                if code == PROGRAM_LIMIT_EXCEEDED || message.starts_with(ALLOCATION_TOO_LARGE)
        )
    }

    /// Whether a statement that checks row security failed because row security has changed, or because it could not
    /// check it.
    fn is_row_security_error(&self) -> bool {
        match self {
            Self::RowSecurity => true,
            Self::Refused { code, .. } => CHECK_UNAVAILABLE.contains(&code.as_str()),
            _ => false,
        }
    }

    /// Whether a statement for one key may succeed where this statement for many keys failed.
    fn concerns_single_keys(&self) -> bool {
        match self {
            Self::Refused { code, .. } => !UNDEFINED.contains(&code.as_str()),
            Self::Timeout | Self::Altered(_) | Self::Unexpected(_) => true,
            _ => false,
        }
    }
}

/// Of a longer message of PostgreSQL only the beginning is kept: it may repeat a value of any length, and a log would hold it.
const MESSAGE_BYTES_MAX: usize = 1000;

/// PostgreSQL's message; the beginning of it if it is long.
fn message_of(error: &dyn DatabaseError) -> String {
    beginning(error.message())
}

fn beginning(message: &str) -> String {
    let end = message.floor_char_boundary(MESSAGE_BYTES_MAX);
    match message.get(..end) {
        Some(beginning) if end < message.len() => format!("{beginning}…"),
        _ => message.to_owned(),
    }
}

/// `lock_not_available`, which `lock_timeout` raises (PostgreSQL manual, appendix A).
pub(crate) const LOCK_NOT_AVAILABLE: &str = "55P03";

/// `insufficient_privilege` (PostgreSQL manual, appendix A).
pub(crate) const INSUFFICIENT_PRIVILEGE: &str = "42501";

/// `serialization_failure` and `deadlock_detected` (PostgreSQL manual, appendix A).
pub(crate) const CONFLICTS: [&str; 2] = ["40001", "40P01"];

/// `undefined_table`, `undefined_column` and `invalid_schema_name` (PostgreSQL manual, appendix A): no row matters.
const UNDEFINED: [&str; 3] = ["42P01", "42703", "3F000"];

/// Error codes of statements on tables that a migration or a restore has changed, before the feed has seen the change
/// (PostgreSQL manual, appendix A). An object does not exist: `undefined_table`, `undefined_column`, `undefined_object`,
/// `invalid_schema_name`. Access is denied: `insufficient_privilege`. An object has another kind or type:
/// `wrong_object_type`, `undefined_function` (of an operator), `datatype_mismatch`, `cannot_coerce`,
/// `feature_not_supported` (a plan whose result has another type).
const ALTERED: [&str; 10] = [
    "42P01",
    "42703",
    "42704",
    "3F000",
    INSUFFICIENT_PRIVILEGE,
    "42809",
    "42883",
    "42804",
    "42846",
    "0A000",
];

/// `character_not_in_repertoire` and `untranslatable_character` (PostgreSQL manual, appendix A).
pub(crate) const ENCODING_ERRORS: [&str; 2] = ["22021", "22P05"];

/// `program_limit_exceeded` (PostgreSQL manual, appendix A): among others, a text of more than 1 GiB.
const PROGRAM_LIMIT_EXCEEDED: &str = "54000";

/// The message of an `internal_error`, which is not translated, for a value of more than 1 GiB (PostgreSQL's mcxt.c). Other
/// internal errors may pass: a table was just dropped, for example.
const ALLOCATION_TOO_LARGE: &str = "invalid memory alloc request size";

/// The errors of a statement that checks row security if the domain or the function of the check is missing, or
/// larder's role may not use it: `undefined_object`, `undefined_function`, `invalid_schema_name` and
/// `insufficient_privilege` (PostgreSQL manual, appendix A).
const CHECK_UNAVAILABLE: [&str; 4] = ["42704", "42883", "3F000", "42501"];

/// `too_many_connections`: the limit of the server, the database or the role (PostgreSQL manual, appendix A).
const TOO_MANY_CONNECTIONS: &str = "53300";

/// `query_canceled`, which `statement_timeout` raises (PostgreSQL manual, appendix A).
const QUERY_CANCELED: &str = "57014";

/// The errors of a server in recovery by SQLSTATE and PostgreSQL's routine: it can't read an unlogged table
/// (plancat.c), begin a transaction that writes (guc.c) or lock a table as a migration does (utility.c). From other
/// routines the codes have other meanings.
const STANDBY_ERRORS: [(&str, &str); 3] = [
    ("0A000", "get_relation_info"),
    ("0A000", "call_bool_check_hook"),
    ("25006", "PreventCommandDuringRecovery"),
];

fn is_of_standby(error: &dyn DatabaseError, code: &str) -> bool {
    let routine = error
        .try_downcast_ref::<PgDatabaseError>()
        .and_then(PgDatabaseError::routine);
    STANDBY_ERRORS
        .iter()
        .any(|(known, raised_by)| *known == code && routine == Some(raised_by))
}

/// `invalid_sql_statement_name` and `duplicate_prepared_statement` (PostgreSQL manual, appendix A). On a server
/// connection that only larder uses they cannot occur: larder prepares each statement once before it executes it.
const STATEMENT_NAME_ERRORS: [&str; 2] = ["26000", "42P05"];

impl From<sqlx::Error> for SourceError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(database) => {
                let code = database.code().unwrap_or_default().into_owned();
                let message = message_of(database.as_ref());
                match code.get(..2) {
                    _ if database.constraint() == Some(UNCHANGED) => Self::RowSecurity,
                    _ if code == QUERY_CANCELED => Self::Timeout,
                    _ if is_of_standby(database.as_ref(), &code) => Self::Standby,
                    _ if STATEMENT_NAME_ERRORS.contains(&code.as_str()) => Self::Pooler(
                        "other clients prepare statements on the same server connection",
                    ),
                    _ if code == TOO_MANY_CONNECTIONS => Self::TooManyConnections(message),
                    // 08: connection exception, 53: insufficient resources, 57: shutdown.
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
