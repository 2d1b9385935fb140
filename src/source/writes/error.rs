//! Why a document was not written.

use sqlx::postgres::PgDatabaseError;

use crate::resource::body::BodyError;
use crate::resource::writable::{Writable, pointer_token};
use crate::source::SourceError;

/// Why a document was not written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// PostgreSQL gave no answer, or one that no client is to blame for.
    #[error(transparent)]
    Source(SourceError),
    /// The connection was lost, or PostgreSQL did not answer in time, while it was to commit: what is stored is not
    /// known.
    #[error("what became of the commit is not known")]
    Unknown,
    /// PostgreSQL did not answer within the time that a request has: the write may go on, or have been done.
    #[error("PostgreSQL did not answer in time")]
    Deadline,
    /// There is a document with this key, or with another value that must be unique.
    #[error("the document exists")]
    Exists,
    /// There is no document with this key.
    #[error("the document does not exist")]
    Absent,
    /// The condition did not hold.
    #[error("the condition does not hold")]
    Precondition,
    /// What a patch comes to is no document of the resource.
    #[error("what the patch comes to does not fit")]
    Body(BodyError),
    /// Another request had the same `Idempotency-Key`.
    #[error("the Idempotency-Key is another request's")]
    KeyReused,
    /// PostgreSQL refused it.
    #[error("PostgreSQL says {code}")]
    Refused {
        /// SQLSTATE.
        code: String,
        /// What that means to the client.
        refusal: Refusal,
        /// The member that PostgreSQL named, as a JSON pointer.
        pointer: Option<String>,
    },
}

/// What PostgreSQL's refusal means to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Other rows stand against it: a unique or a foreign key, or an exclusion.
    Conflict,
    /// The values don't fit the table.
    Invalid,
    /// larder's role may not.
    Forbidden,
    /// Others hold locks on rows, or were faster each time.
    Busy,
    /// Others hold a lock on a table.
    TableLocked,
}

impl From<SourceError> for WriteError {
    fn from(error: SourceError) -> Self {
        match error {
            // By a statement that only reads, within a transaction that writes.
            SourceError::Refused { code, .. } if BUSY.contains(&code.as_str()) => Self::Refused {
                code,
                refusal: Refusal::Busy,
                pointer: None,
            },
            error => Self::Source(error),
        }
    }
}

impl WriteError {
    /// Of documents that share a transaction, each may fare better alone.
    pub(super) fn concerns_single_documents(&self) -> bool {
        match self {
            Self::Unknown
            | Self::Deadline
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

    /// Others hold a lock, and it was not waited for any longer.
    pub(super) fn is_held(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == LOCK_NOT_AVAILABLE)
    }

    /// The same again may succeed, as others hold locks or were faster.
    fn is_busy(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if BUSY.contains(&code.as_str()))
    }

    /// larder's role lacks a privilege.
    pub(super) fn is_forbidden(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                refusal: Refusal::Forbidden,
                ..
            }
        )
    }

    /// The same of a table where it is of a row.
    pub(super) fn of_table(self) -> Self {
        match self {
            Self::Refused {
                code,
                refusal: Refusal::Busy,
                pointer,
            } => Self::Refused {
                code,
                refusal: Refusal::TableLocked,
                pointer,
            },
            error => error,
        }
    }

    /// The connection is of no use any more.
    pub(super) fn is_connection_error(&self) -> bool {
        matches!(self, Self::Source(error) if error.is_connection_error())
    }
}

/// `lock_not_available`, which `lock_timeout` raises (PostgreSQL manual, appendix A).
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// With it `serialization_failure` and `deadlock_detected`.
const BUSY: [&str; 3] = [LOCK_NOT_AVAILABLE, "40001", "40P01"];

/// An attempt that failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: WriteError,
    /// The same again may succeed.
    pub(super) again: bool,
}

impl Failure {
    /// The connection did not reach what the feed follows.
    pub(super) fn is_of_other_database(&self) -> bool {
        matches!(self.error, WriteError::Source(SourceError::OtherDatabase))
    }
}

impl<E: Into<WriteError>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        Self {
            again: error.is_busy(),
            error,
        }
    }
}

/// What `error`, from a statement that writes, means.
pub(super) fn failure(error: sqlx::Error, writable: Option<&Writable>) -> Failure {
    let sqlx::Error::Database(database) = &error else {
        return SourceError::from(error).into();
    };
    let code = database.code().unwrap_or_default().into_owned();
    let refusal = match code.as_str() {
        "23505" | "23503" | "23001" | "23P01" => Refusal::Conflict,
        "42501" => Refusal::Forbidden,
        code if BUSY.contains(&code) => Refusal::Busy,
        // read_only_sql_transaction: the server has become a standby.
        "25006" => return SourceError::Standby.into(),
        // What a trigger of the table raised, and a view's check option.
        "P0001" | "44000" => Refusal::Invalid,
        // 22: data exception, 23: integrity constraint violation, 54: program limit exceeded, as by an index's entry.
        code if ["22", "23", "54"]
            .iter()
            .any(|class| code.starts_with(class)) =>
        {
            Refusal::Invalid
        }
        _ => return SourceError::from(error).into(),
    };
    let named = database.try_downcast_ref::<PgDatabaseError>();
    let pointer = named
        .zip(writable)
        .and_then(|(error, writable)| pointer(error, writable));
    tracing::debug!("PostgreSQL refuses a write with {code}");
    WriteError::Refused {
        code,
        refusal,
        pointer,
    }
    .into()
}

/// The root row's member whose column PostgreSQL names; which of several rows below it means, it does not say.
fn pointer(error: &PgDatabaseError, writable: &Writable) -> Option<String> {
    let root = writable.levels.first()?;
    let is_root = error.table() == Some(root.table.name.as_str())
        && error.schema() == Some(root.table.schema.as_str());
    let column = error.column().filter(|_| is_root)?;
    let mut columns = root.columns.iter();
    let field = columns
        .find(|known| known.column == column)?
        .field
        .as_ref()?;
    Some(format!("/{}", pointer_token(field)))
}
