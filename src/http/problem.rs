//! Errors as `application/problem+json` (RFC 9457): the one place where an error gets its status.
//!
//! Details are for clients: no SQL, no host name, no value out of a table. Causes are logged.

use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::StringRejection;
use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::Serialize;

use crate::cache::LookupError;
use crate::http::full_body::FullBody;
use crate::resource::body::BodyError;
use crate::resource::key::KeyError;
use crate::source::SourceError;
use crate::source::writes::{Refusal, WriteError};

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Seconds after which a client may try again: the feed finds a returned PostgreSQL within one.
const RETRY_AFTER_SECONDS: u64 = 1;

/// `unique_violation` (PostgreSQL manual, appendix A).
const UNIQUE_VIOLATION: &str = "23505";

/// An error on its way to a client.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    detail: String,
    /// SQLSTATE.
    code: Option<String>,
    allow: Option<&'static str>,
    /// Seconds after which to ask again.
    retry_after: Option<u64>,
    errors: Vec<FieldError>,
}

/// One of several faults, as the example of RFC 9457, section 3, has them.
#[derive(Debug, Serialize)]
struct FieldError {
    pointer: String,
    detail: String,
}

/// The body of an answer.
#[derive(Serialize)]
pub(super) struct ProblemBody<'a> {
    r#type: &'static str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'a str>,
    #[serde(skip_serializing_if = "<[FieldError]>::is_empty")]
    errors: &'a [FieldError],
}

impl Problem {
    fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            code: None,
            allow: None,
            retry_after: (status == StatusCode::SERVICE_UNAVAILABLE).then_some(RETRY_AFTER_SECONDS),
            errors: Vec::new(),
        }
    }

    pub(super) fn no_such_path() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "there is nothing at this path; documents are at /RESOURCE/KEY",
        )
    }

    /// As [`Problem::no_such_path`], on the admin address.
    pub(super) fn no_such_operation() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "there is nothing at this path of the admin address",
        )
    }

    pub(super) fn no_such_resource() -> Self {
        Self::new(StatusCode::NOT_FOUND, "there is no resource of this name")
    }

    pub(super) fn no_such_document() -> Self {
        Self::new(StatusCode::NOT_FOUND, "there is no document with this key")
    }

    pub(super) fn method_not_allowed(allow: &'static str) -> Self {
        let detail = format!("the method is not allowed here; allowed: {allow}");
        Self {
            allow: Some(allow),
            ..Self::new(StatusCode::METHOD_NOT_ALLOWED, detail)
        }
    }

    /// As [`Problem::method_not_allowed`], where whoever sends it adds `Allow`.
    pub(super) fn wrong_method() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "the method is not allowed here; the Allow header lists the methods that are",
        )
    }

    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// Whoever sends it adds `WWW-Authenticate`.
    pub(super) fn unauthorized(detail: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, detail)
    }

    pub(super) fn forbidden(detail: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    /// Not as much at a time, but again after so many `seconds`.
    pub(super) fn too_many_requests(detail: &str, seconds: u64) -> Self {
        Self {
            retry_after: Some(seconds),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, detail)
        }
    }

    /// Not now, and not for want of PostgreSQL.
    pub(super) fn unavailable(detail: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    pub(super) fn too_many_keys(keys_max: usize) -> Self {
        let detail = format!("a request may name at most {keys_max} keys");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    pub(super) fn body_too_large(bytes_max: usize) -> Self {
        let detail = format!("the body must not exceed {bytes_max} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    pub(super) fn body_too_slow() -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "the request body arrived too slowly",
        )
    }

    pub(super) fn unsupported_media_type(expected: &str) -> Self {
        let detail = format!("Content-Type must be {expected}");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail)
    }

    pub(super) fn not_acceptable() -> Self {
        let detail = "only application/json is available, which the Accept header excludes";
        Self::new(StatusCode::NOT_ACCEPTABLE, detail)
    }

    pub(super) fn range_not_satisfiable(bytes: usize) -> Self {
        let detail = format!("the document has {bytes} bytes");
        Self::new(StatusCode::RANGE_NOT_SATISFIABLE, detail)
    }

    /// A body whose part at `pointer` (RFC 6901) does not fit.
    pub(super) fn unfit(pointer: &str, why: &str) -> Self {
        let detail = match pointer {
            "" => format!("the body {why}"),
            pointer => format!("{pointer} {why}"),
        };
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// A document whose bytes are not what its resource makes of rows.
    pub(super) fn unprojected() -> Self {
        Self::internal("the stored document could not be split into fields")
    }

    pub(super) fn uri_too_long() -> Self {
        Self::new(StatusCode::URI_TOO_LONG, "the path and query are too long")
    }

    /// As [`Problem::method_not_allowed`], where the resource is only read, and why.
    pub(super) fn only_read(allow: &'static str, why: &str) -> Self {
        Self {
            allow: Some(allow),
            ..Self::new(StatusCode::METHOD_NOT_ALLOWED, why)
        }
    }

    pub(super) fn precondition_failed() -> Self {
        Self::new(
            StatusCode::PRECONDITION_FAILED,
            "the condition of If-Match or If-None-Match is not met",
        )
    }

    pub(super) fn internal(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    /// The same, and which of many documents it is about: `place` names it.
    pub(super) fn at(mut self, place: &str) -> Self {
        self.detail = format!("{place}: {}", self.detail);
        self
    }

    /// The same of the document at `index`, counted from 0, of an array.
    pub(super) fn in_document(mut self, index: u64) -> Self {
        for fault in &mut self.errors {
            fault.pointer.insert_str(0, &format!("/{index}"));
        }
        self.at(&format!("document {index}"))
    }

    /// The same of one of `count` documents, it is not known which, `first` and those after it.
    pub(super) fn in_documents(mut self, first: u64, count: u64) -> Self {
        if count == 1 {
            return self.in_document(first);
        }
        self.errors.clear();
        let last = first + count.saturating_sub(1);
        self.at(&format!("one of the documents {first} to {last}"))
    }

    /// Of a body that a transaction waits for.
    pub(super) fn too_slow(bytes: usize, patience: Duration) -> Self {
        let kib = bytes >> 10;
        let detail = format!(
            "neither {kib} KiB nor the end of the body arrived within {patience:?}, so nothing was written"
        );
        Self::new(StatusCode::REQUEST_TIMEOUT, detail)
    }

    /// As [`Problem::body_too_large`], of documents to give back.
    pub(super) fn too_many_documents(documents_max: usize) -> Self {
        let detail = format!("return=representation returns at most {documents_max} documents");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    /// What there is to say, as JSON.
    pub(super) fn body(&self) -> ProblemBody<'_> {
        ProblemBody {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
            code: self.code.as_deref(),
            errors: &self.errors,
        }
    }

    /// The response; for `HEAD` the server leaves the body away and keeps its length.
    pub(super) fn into_response(self) -> Response {
        self.into_full_response().map(Body::new)
    }

    /// The same with its body as it is.
    pub(super) fn into_full_response(self) -> Response<FullBody> {
        // Strings and a number always serialise.
        let text = simd_json::to_string(&self.body()).unwrap_or_default();
        let mut response = Response::new(FullBody::new(text.into()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, PROBLEM_JSON);
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        if let Some(retry_after) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(retry_after));
        }
        response
    }
}

impl From<KeyError> for Problem {
    fn from(error: KeyError) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<StringRejection> for Problem {
    fn from(rejection: StringRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}

impl From<LookupError> for Problem {
    fn from(error: LookupError) -> Self {
        match error {
            LookupError::NotReady(_) => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "the resource is not ready; /status on the admin address says why",
            ),
            LookupError::Deadline => Self::new(
                StatusCode::GATEWAY_TIMEOUT,
                "PostgreSQL did not answer in time",
            ),
            LookupError::Source(error) => Self::from(error),
        }
    }
}

impl From<BodyError> for Problem {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::Malformed(detail) => Self::bad_request(detail),
            BodyError::Faults(faults) => {
                let faults = faults.into_iter().map(|fault| FieldError {
                    pointer: fault.pointer,
                    detail: fault.message,
                });
                Self {
                    errors: faults.collect(),
                    ..Self::new(
                        StatusCode::UNPROCESSABLE_ENTITY,
                        "the document does not fit the resource",
                    )
                }
            }
        }
    }
}

impl From<WriteError> for Problem {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Source(SourceError::TooLarge) => Self::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "the stored document would be longer than document_max",
            ),
            WriteError::Source(error) => Self::from(error),
            WriteError::Unknown => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "the connection to PostgreSQL was lost during the commit; the write may have been committed",
            ),
            WriteError::Deadline => Self::new(
                StatusCode::GATEWAY_TIMEOUT,
                "PostgreSQL did not answer in time; the write may have been committed",
            ),
            WriteError::Exists => Self {
                code: Some(UNIQUE_VIOLATION.into()),
                ..Self::new(
                    StatusCode::CONFLICT,
                    "a document with this key, or with another value that must be unique, exists",
                )
            },
            WriteError::Absent => Self::no_such_document(),
            WriteError::Precondition => Self::precondition_failed(),
            WriteError::Body(error) => Self::from(error),
            WriteError::KeyReused => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "the Idempotency-Key was used for another request",
            ),
            WriteError::Refused {
                code,
                refusal,
                pointer,
            } => Self::refused(code, refusal, pointer),
        }
    }
}

/// A migration or a restore is under way, and the feed is about to notice (PostgreSQL manual, appendix A): what a
/// statement names is gone (`undefined_table`, `undefined_column`, `undefined_object`, `invalid_schema_name`), forbidden
/// (`insufficient_privilege`), or of another kind or type (`wrong_object_type`, `undefined_function` for an operator,
/// `datatype_mismatch`, `cannot_coerce`, `feature_not_supported` for a plan whose result has another type).
const GONE: [&str; 10] = [
    "42P01", "42703", "42704", "3F000", "42501", "42809", "42883", "42804", "42846", "0A000",
];

impl Problem {
    fn gone() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "a table of the document was dropped or altered, or larder's role may not read it",
        )
    }

    fn refused(code: String, refusal: Refusal, pointer: Option<String>) -> Self {
        let (status, detail) = match refusal {
            Refusal::Conflict => (
                StatusCode::CONFLICT,
                "it conflicts with an existing row (unique or foreign key constraint)",
            ),
            Refusal::Invalid => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "PostgreSQL rejected the values",
            ),
            Refusal::Forbidden => (
                StatusCode::FORBIDDEN,
                "larder's role may not write this to the tables",
            ),
            Refusal::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "other transactions hold locks on these rows",
            ),
            Refusal::TableLocked => (
                StatusCode::SERVICE_UNAVAILABLE,
                "another transaction holds a lock on a table of this resource, as a migration does",
            ),
        };
        let fault = |pointer| FieldError {
            pointer,
            detail: detail.into(),
        };
        Self {
            code: Some(code),
            errors: pointer.map(fault).into_iter().collect(),
            ..Self::new(status, detail)
        }
    }
}

impl From<SourceError> for Problem {
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Url
            | SourceError::Unavailable(_)
            | SourceError::Standby
            | SourceError::OtherDatabase
            | SourceError::Pooler(_)
            | SourceError::Setting { .. } => {
                tracing::debug!("no answer from PostgreSQL: {error}");
                Self::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "PostgreSQL can't be reached, and the cached documents are not known to be fresh",
                )
            }
            SourceError::Overloaded => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many requests wait for PostgreSQL",
            ),
            SourceError::Timeout => Self::new(
                StatusCode::GATEWAY_TIMEOUT,
                "PostgreSQL did not answer in time",
            ),
            SourceError::Refused { ref code, .. } if GONE.contains(&code.as_str()) => {
                let code = Some(code.clone());
                tracing::debug!("a document can't be read: {error}");
                Self {
                    code,
                    ..Self::gone()
                }
            }
            SourceError::Altered(_) | SourceError::RowSecurity => {
                tracing::debug!("a document can't be read: {error}");
                Self::gone()
            }
            SourceError::Refused { ref code, .. } => {
                let code = Some(code.clone());
                tracing::error!("a document can't be read: {error}");
                Self {
                    code,
                    ..Self::internal("PostgreSQL could not return this document")
                }
            }
            SourceError::TooLarge => Self::internal("the document is longer than document_max"),
            SourceError::Ambiguous => Self::internal("several rows have this key"),
            SourceError::Unexpected(_) => {
                tracing::error!("a document can't be read: {error}");
                Self::internal("PostgreSQL returned an unexpected response")
            }
        }
    }
}
