//! Why a document was not written.

use sqlx::postgres::{PgDatabaseError, PgErrorPosition};

use crate::resource::Resource;
use crate::resource::body::BodyError;
use crate::resource::writable::Writable;
use crate::source::writes::violation::Violation;
use crate::source::{
    CONFLICTS, ENCODING_ERRORS, INSUFFICIENT_PRIVILEGE, LOCK_NOT_AVAILABLE, SourceError, message_of,
};

/// Why a document was not written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// PostgreSQL cannot be reached, or it reported an error that the client did not cause.
    #[error(transparent)]
    Source(SourceError),
    /// The connection was lost, or PostgreSQL did not respond in time, during the commit. The write may have been
    /// committed.
    #[error("the outcome of the commit is unknown")]
    Unknown,
    /// The time that a request has was over before the commit was sent. Nothing is written.
    #[error("PostgreSQL did not respond in time")]
    Deadline,
    /// PostgreSQL did not respond to the commit within the time that a request has. The write may have been committed.
    #[error("PostgreSQL did not respond to the commit in time")]
    CommitDeadline,
    /// A document with this key exists.
    #[error("the document exists")]
    Exists(Violation),
    /// The tables have rows with keys of the write that conditions hide. It has the JSON pointers of the rows of the write.
    #[error("hidden rows have these keys")]
    HiddenKey(Vec<String>),
    /// No document with this key exists.
    #[error("the document does not exist")]
    Absent,
    /// The document would have another owner than the principal.
    #[error("the document would have another owner")]
    ForeignOwner,
    /// The principal has no claim that the owner of a document could equal.
    #[error("the principal can't own documents")]
    NoClaim,
    /// Rows of the body point to rows that the principal may not make them point to: JSON pointers to their members.
    #[error("rows point to rows of others")]
    ForeignTargets(Vec<String>),
    /// The precondition does not hold.
    #[error("the precondition does not hold")]
    Precondition,
    /// The result of a patch does not fit the resource.
    #[error("the result of the patch does not fit the resource")]
    Body(BodyError),
    /// The document to patch is several times as long as `document_max`.
    #[error("the stored document is too long to be patched")]
    TooLongToPatch,
    /// A trigger of a table has prevented the change of a row. Nothing was changed.
    #[error("a trigger prevented the write")]
    Vetoed,
    /// Rows of the body exchange values that must be unique, so that no row can be updated before another one. Nothing was
    /// changed.
    #[error("rows exchange unique values")]
    Cycle {
        /// SQLSTATE, of a unique or an exclusion constraint.
        code: String,
        /// The name of the constraint or index, if PostgreSQL named it.
        constraint: Option<String>,
    },
    /// A trigger would give the document another key than the request names. Nothing was changed.
    #[error("a trigger changes the key")]
    KeyChanged,
    /// Another request was sent with the same `Idempotency-Key`.
    #[error("another request was sent with this Idempotency-Key")]
    KeyReused,
    /// PostgreSQL refused the write.
    #[error("PostgreSQL reported error {code}")]
    Refused {
        /// SQLSTATE.
        code: String,
        /// The meaning of the error for the client.
        refusal: Refusal,
        /// What PostgreSQL named, as far as the document shows it.
        violation: Violation,
    },
}

/// The meaning of PostgreSQL's error for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The write conflicts with existing rows (unique, foreign key or exclusion constraint).
    Conflict,
    /// The values do not fit the table.
    Invalid,
    /// A partitioned table has no partition for the values.
    Unpartitioned,
    /// larder's role lacks a privilege.
    Forbidden,
    /// Other transactions hold locks on rows, or prevented each attempt.
    Busy,
    /// Another transaction holds a lock on a table.
    TableLocked,
    /// A trigger refused the write with SQLSTATE `PT` and this HTTP status, as for PostgREST.
    Raised(u16),
}

impl From<SourceError> for WriteError {
    fn from(error: SourceError) -> Self {
        match error {
            // From a statement that only reads, in a transaction that writes.
            SourceError::Refused { code, .. } if is_busy_code(&code) => Self::Refused {
                code,
                refusal: Refusal::Busy,
                violation: Violation::default(),
            },
            error => Self::Source(error),
        }
    }
}

impl WriteError {
    /// A key, or another value that must be unique, exists.
    pub(super) fn unique_violation() -> Self {
        Self::Refused {
            code: UNIQUE_VIOLATION.into(),
            refusal: Refusal::Conflict,
            violation: Violation::default(),
        }
    }

    /// The key of a new document exists.
    pub(super) fn exists(writable: &Writable) -> Self {
        Self::Exists(Violation::of_key(writable))
    }

    /// The same error for a client that must not learn whether the row that it conflicts with is hidden.
    pub(super) fn without_hidden(self, resource: &Resource) -> Self {
        match (self, &resource.writable) {
            (Self::HiddenKey(pointers), Ok(writable)) if pointers.iter().all(String::is_empty) => {
                Self::exists(writable)
            }
            (error, _) => error.without_violation(),
        }
    }

    /// The same error for a client that must not learn which value another row has.
    fn without_violation(self) -> Self {
        match self {
            Self::HiddenKey(_) => Self::unique_violation(),
            error if error.is_unique_violation() => match error {
                Self::Refused { code, refusal, .. } => Self::Refused {
                    code,
                    refusal,
                    violation: Violation::default(),
                },
                error => error,
            },
            error => error,
        }
    }

    /// A row of the body is gone, or refers to nothing, since a row that the body lacks was deleted.
    pub(super) fn foreign_key_violation() -> Self {
        Self::Refused {
            code: FOREIGN_KEY_VIOLATION.into(),
            refusal: Refusal::Conflict,
            violation: Violation::default(),
        }
    }

    /// A policy of row security does not let larder's role change a row.
    pub(super) fn forbidden() -> Self {
        Self::Refused {
            code: INSUFFICIENT_PRIVILEGE.into(),
            refusal: Refusal::Forbidden,
            violation: Violation::default(),
        }
    }

    /// Whether a key, or another value that must be unique, exists.
    pub(super) fn is_unique_violation(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == UNIQUE_VIOLATION || code == EXCLUSION_VIOLATION)
    }

    /// Whether a row refers to one that does not exist, or is referred to.
    pub(super) fn is_foreign_key_violation(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == FOREIGN_KEY_VIOLATION)
    }

    /// Whether each of the documents that shared the transaction may succeed in one of its own.
    pub(super) fn concerns_single_documents(&self) -> bool {
        match self {
            Self::Unknown
            | Self::CommitDeadline
            | Self::Refused {
                refusal: Refusal::TableLocked,
                ..
            } => false,
            Self::Source(error) => matches!(
                error,
                SourceError::Refused { .. }
                    | SourceError::Timeout
                    | SourceError::TooLarge
                    | SourceError::Ambiguous
                    | SourceError::Altered(_)
                    | SourceError::Unexpected(_)
            ),
            _ => true,
        }
    }

    /// Whether PostgreSQL refused the write, or failed at it, maybe since it can't read a value.
    pub(super) fn may_be_of_values(&self) -> bool {
        match self {
            Self::Refused { .. } => true,
            Self::Source(error) => error.may_be_of_text(),
            _ => false,
        }
    }

    /// Whether a lock was not available within `lock_timeout`.
    pub(super) fn is_lock_timeout(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == LOCK_NOT_AVAILABLE)
    }

    /// Whether another transaction held a lock or caused a deadlock or a serialization failure, so that the write may
    /// succeed if it is repeated.
    fn is_busy(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if is_busy_code(code))
    }

    /// Whether larder's role lacks a privilege.
    pub(super) fn is_forbidden(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                refusal: Refusal::Forbidden,
                ..
            }
        )
    }

    /// The same error, about a lock of a table instead of a row.
    pub(super) fn into_table_lock(self) -> Self {
        match self {
            Self::Refused {
                code,
                refusal: Refusal::Busy,
                violation,
            } => Self::Refused {
                code,
                refusal: Refusal::TableLocked,
                violation,
            },
            error => error,
        }
    }

    /// Whether PostgreSQL refused a value with a character that the database's encoding lacks.
    pub(super) fn is_encoding_error(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if ENCODING_ERRORS.contains(&code.as_str()))
    }

    /// Whether the connection must not be used any more.
    pub(super) fn is_connection_error(&self) -> bool {
        matches!(self, Self::Source(error) if error.is_connection_error())
    }
}

/// `unique_violation` (PostgreSQL manual, appendix A).
const UNIQUE_VIOLATION: &str = "23505";

/// `foreign_key_violation` (PostgreSQL manual, appendix A).
const FOREIGN_KEY_VIOLATION: &str = "23503";

/// `exclusion_violation` (PostgreSQL manual, appendix A).
const EXCLUSION_VIOLATION: &str = "23P01";

/// Whether another transaction held a lock, or caused a deadlock or a serialization failure.
fn is_busy_code(code: &str) -> bool {
    code == LOCK_NOT_AVAILABLE || CONFLICTS.contains(&code)
}

/// Why an attempt failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: WriteError,
    /// Whether the attempt may succeed if it is repeated.
    pub(super) is_retryable: bool,
}

impl Failure {
    /// Whether a document is longer than it may be.
    pub(super) fn is_too_large(&self) -> bool {
        matches!(self.error, WriteError::Source(SourceError::TooLarge))
    }

    /// Whether nothing was committed.
    pub(super) fn is_certain(&self) -> bool {
        !matches!(self.error, WriteError::Unknown)
    }

    /// Whether the connection reached another database than the one that the feed follows.
    pub(super) fn is_other_database(&self) -> bool {
        matches!(self.error, WriteError::Source(SourceError::OtherDatabase))
    }
}

impl<E: Into<WriteError>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        Self {
            is_retryable: error.is_busy(),
            error,
        }
    }
}

/// The meaning of `error`, from a statement that writes.
pub(super) fn write_failure(error: sqlx::Error, writable: Option<&Writable>) -> Failure {
    let sqlx::Error::Database(database) = &error else {
        return SourceError::from(error).into();
    };
    let code = database.code().unwrap_or_default().into_owned();
    let named = database.try_downcast_ref::<PgDatabaseError>();
    // `raise` of PL/pgSQL may have any code, also those of PostgreSQL itself.
    let is_raised = named.is_some_and(|error| error.routine() == Some("exec_stmt_raise"));
    let context = named.and_then(PgDatabaseError::r#where);
    let is_in_function = context.is_some();
    // A context alone may also be the parameters of the statement (`log_parameter_max_length_on_error`).
    let is_in_statement_of_function = matches!(
        named.and_then(PgDatabaseError::position),
        Some(PgErrorPosition::Internal { .. })
    );
    let refusal = match code.as_str() {
        // The last one: a trigger has changed the row that a statement is about to change.
        "23505" | "23503" | "23001" | "23P01" | "27000" => Refusal::Conflict,
        INSUFFICIENT_PRIVILEGE => Refusal::Forbidden,
        // check_violation, which names no constraint then.
        "23514" if named.is_some_and(|error| error.routine() == Some("ExecFindPartition")) => {
            Refusal::Unpartitioned
        }
        code if is_busy_code(code) => Refusal::Busy,
        // read_only_sql_transaction: the server has become a standby.
        "25006" if !is_raised => return SourceError::Standby.into(),
        // raise_exception, for example in a trigger, and with_check_option_violation of a view.
        "P0001" | "44000" => Refusal::Invalid,
        // 22: data exception, 23: integrity constraint violation, 54: program limit exceeded, for example by the entry
        // of an index.
        code if ["22", "23", "54"]
            .iter()
            .any(|class| code.starts_with(class)) =>
        {
            Refusal::Invalid
        }
        // Of a text of type `jsonpath`, `tsquery` or `tsvector`; a statement with this error has a position.
        "42601" if named.is_some_and(|error| error.position().is_none()) => Refusal::Invalid,
        code if is_raised => raised_status(code).map_or(Refusal::Invalid, Refusal::Raised),
        // What a function finds in rows: 20: case not found, 21: several rows instead of one, 38 and 39: functions in other
        // languages, P0: `into strict` and `assert` of PL/pgSQL.
        code if is_in_function
            && ["20", "21", "38", "39", "P0"]
                .iter()
                .any(|class| code.starts_with(class)) =>
        {
            Refusal::Invalid
        }
        // A table or column that a trigger's function names is missing: nothing of the resource was altered. larder's own
        // functions miss theirs while schema larder is created again.
        code if code.starts_with("42")
            && is_in_statement_of_function
            && !context.is_some_and(has_logger) =>
        {
            let message = format!(
                "a trigger failed with error {code}: {}",
                message_of(database.as_ref())
            );
            return SourceError::Unexpected(message).into();
        }
        _ => return SourceError::from(error).into(),
    };
    let violation = named.zip(writable);
    let violation = violation.map(|(error, writable)| Violation::of(error, writable));
    tracing::debug!("PostgreSQL refuses a write with {code}");
    WriteError::Refused {
        code,
        refusal,
        violation: violation.unwrap_or_default(),
    }
    .into()
}

/// Whether functions in which an error occurred are among larder's that log changes: `log_` and 16 hexadecimal digits. The
/// context says it in the server's language, and with their schema only where it is not in the search path.
fn has_logger(context: &str) -> bool {
    let after = context.split("log_").skip(1);
    let mut hashes = after.filter_map(|after| after.as_bytes().first_chunk::<16>());
    hashes.any(|hash| hash.iter().all(u8::is_ascii_hexdigit))
}

/// The HTTP status that SQLSTATE `PT400` to `PT599` names.
fn raised_status(code: &str) -> Option<u16> {
    let status = code.strip_prefix("PT")?.parse().ok()?;
    (400..=599).contains(&status).then_some(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loggers_are_told_from_functions_of_users() {
        for context in [
            "PL/pgSQL function larder.log_5e731cdfa8a234e2() line 9 at SQL statement",
            "SQL statement \"insert …\"\nPL/pgSQL-Funktion log_5e731cdfa8a234e2() Zeile 9 bei SQL-Anweisung",
        ] {
            assert!(has_logger(context), "{context}");
        }
        for context in [
            "PL/pgSQL function log_change() line 3 at SQL statement",
            "PL/pgSQL function blog_5e73() line 3 at PERFORM",
        ] {
            assert!(!has_logger(context), "{context}");
        }
    }
}
