//! Errors as `application/problem+json` (RFC 9457): only this module maps errors to statuses.
//!
//! Details are for clients: they contain no SQL, no host name and no value of a table. Causes are logged.

use std::borrow::Cow;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::StringRejection;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::Serialize;

use crate::cache::LookupError;
use crate::http::decoding::decoder::DecodingError;
use crate::http::full_body::FullBody;
use crate::http::headers::{ACCEPT_PATCH, JSON, MERGE_PATCH, PATCH_TYPES, add_allow};
use crate::http::internal_error::InternalError;
use crate::resource::body::BodyError;
use crate::resource::key::KeyError;
use crate::source::SourceError;
use crate::source::writes::{Refusal, Violation, WriteError};

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Seconds after which a client may try again: the feed connects within one second once PostgreSQL can be reached.
const RETRY_AFTER_SECONDS: u64 = 1;

/// `unique_violation` (PostgreSQL manual, appendix A).
const UNIQUE_VIOLATION: &str = "23505";

/// The error in a response.
#[derive(Debug)]
pub(super) struct Problem {
    problem_type: ProblemType,
    status: StatusCode,
    detail: Cow<'static, str>,
    /// SQLSTATE.
    code: Option<Box<str>>,
    /// The value of `Allow`.
    allow: Option<&'static str>,
    /// Seconds, the value of `Retry-After`.
    retry_after: Option<u64>,
    errors: Vec<FieldError>,
    /// What the body of a request may be instead of what it is.
    accepted: Option<AcceptedBodies>,
    /// The cause of a 500, for the log only.
    cause: Option<Box<str>>,
}

/// The type of a problem: what a client may tell it from others of its status by.
#[derive(Clone, Copy, Debug)]
enum ProblemType {
    /// The status says all.
    Status,
    /// A document can't be returned until it changes.
    UnreadableDocument,
    /// Hidden rows have keys that were to be written.
    HiddenRow,
}

impl ProblemType {
    fn uri(self) -> &'static str {
        match self {
            Self::Status => "about:blank",
            Self::UnreadableDocument => "urn:problem-type:unreadable-document",
            Self::HiddenRow => "urn:problem-type:hidden-row",
        }
    }
}

/// Which bodies are accepted, for a client that has sent another.
#[derive(Clone, Copy, Debug)]
enum AcceptedBodies {
    /// Those without an encoding.
    Identity,
    /// Those with an encoding that [`crate::http::decoding`] decodes.
    Decoded,
    /// Those of `PATCH`.
    Patches,
}

/// A fault of one member of a body, as in the example of RFC 9457, section 3.
#[derive(Debug, Serialize)]
struct FieldError {
    pointer: String,
    detail: String,
    /// The violated constraint.
    #[serde(skip_serializing_if = "Option::is_none")]
    constraint: Option<String>,
    /// SQLSTATE.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
}

impl FieldError {
    fn new(pointer: String, detail: impl Into<String>) -> Self {
        Self {
            pointer,
            detail: detail.into(),
            constraint: None,
            code: None,
        }
    }
}

/// The body of a response, which serializes to JSON.
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

macro_rules! problems {
    ($($(#[$doc:meta])* $name:ident = $status:ident, $detail:literal;)*) => {
        impl Problem {
            $($(#[$doc])* pub(super) const $name: Self = Self::fixed(StatusCode::$status, $detail);)*
        }
    };
}

// The problems whose detail is always the same.
problems! {
    NO_SUCH_PATH = NOT_FOUND, "there is nothing at this path; documents are at /RESOURCE/KEY";
    /// As [`Problem::NO_SUCH_PATH`], on the admin address.
    NO_SUCH_OPERATION = NOT_FOUND, "there is nothing at this path of the admin address";
    /// On the admin address: PostgreSQL is not asked.
    NOT_KEPT = NOT_FOUND, "no tier has a document with this key";
    NO_SUCH_RESOURCE = NOT_FOUND, "there is no resource of this name";
    NO_SUCH_ALIAS = NOT_FOUND, "the resource has no alias of this name";
    /// As [`Problem::NO_SUCH_DOCUMENT`], for an alias.
    NO_ALIASED_DOCUMENT = NOT_FOUND, "there is no document with this alias";
    NO_SUCH_DOCUMENT = NOT_FOUND, "there is no document with this key";
    /// As [`Problem::method_not_allowed`], without `Allow`, which the router adds.
    METHOD_NOT_ALLOWED = METHOD_NOT_ALLOWED,
        "the method is not allowed here; the Allow header lists the methods that are";
    NOT_ACCEPTABLE = NOT_ACCEPTABLE, "only application/json is available, which the Accept header excludes";
    BODY_TOO_SLOW = REQUEST_TIMEOUT, "the request body arrived too slowly";
    NO_HOST = BAD_REQUEST, "the Host header is missing, which HTTP/1.1 requires";
    SEVERAL_HOSTS = BAD_REQUEST, "the Host header is sent more than once";
    INVALID_HOST = BAD_REQUEST, "the Host header, or the authority of the URI, is not a host with or without a port";
    TRANSFER_ENCODING = BAD_REQUEST, "Transfer-Encoding must be `chunked` alone";
    MALFORMED_HEAD = BAD_REQUEST,
        "the request line or a header field is malformed, or the length of the body is ambiguous";
    HEAD_TOO_LARGE = REQUEST_HEADER_FIELDS_TOO_LARGE,
        "the request head has more than 64 KiB or more than 100 header fields";
    URI_TOO_LONG = URI_TOO_LONG, "the path and query are too long";
    PRECONDITION_FAILED = PRECONDITION_FAILED, "the condition of If-Match or If-None-Match is not met";
    /// `fields` of a stored document whose bytes are not as larder writes them.
    NOT_PROJECTED = INTERNAL_SERVER_ERROR, "the stored document could not be split into fields";
    /// Making it panicked.
    NOT_DESCRIBED = INTERNAL_SERVER_ERROR, "the resources could not be described";
    /// Parsing panicked.
    NOT_PARSED = INTERNAL_SERVER_ERROR, "the body could not be parsed";

    NOT_READY = SERVICE_UNAVAILABLE, "the resource is not ready; /status on the admin address says why";
    UNREACHABLE = SERVICE_UNAVAILABLE, "PostgreSQL can't be reached, and the cached documents are not known to be fresh";
    STANDBY = SERVICE_UNAVAILABLE,
        "the PostgreSQL server is a standby or in recovery; larder reads from the primary and writes to it";
    ANSWERS_FULL = SERVICE_UNAVAILABLE, "too many answers with many documents are being made or sent";
    LONG_REQUESTS = SERVICE_UNAVAILABLE, "too many requests for much data are being processed";
    BULK_WRITES_FULL = SERVICE_UNAVAILABLE, "as many bulk writes run as may";
    BODIES_FULL = SERVICE_UNAVAILABLE, "too many request bodies are being received";
    BULK_WRITES_OF_CLIENT = SERVICE_UNAVAILABLE,
        "this client's bulk writes already run; one client may have a quarter of all";
    OVERLOADED = SERVICE_UNAVAILABLE, "too many requests wait for PostgreSQL";
    REQUESTS_FULL = SERVICE_UNAVAILABLE, "too many requests wait";
    REQUESTS_OF_CLIENT = SERVICE_UNAVAILABLE, "too many requests wait, which this client has sent";
    TABLE_ALTERED = SERVICE_UNAVAILABLE,
        "a table of the document was dropped or altered, or larder's role may not read it";
    READ_CONFLICT = SERVICE_UNAVAILABLE, "other transactions prevented the read by a deadlock or a conflict";
    TIMEOUT = GATEWAY_TIMEOUT, "PostgreSQL did not answer in time";
    /// RFC 9111, section 5.2.1.7.
    NOT_CACHED = GATEWAY_TIMEOUT, "only-if-cached: no tier has what was requested";
    DOCUMENT_TIMEOUT = GATEWAY_TIMEOUT,
        "PostgreSQL needs longer than statement_timeout for this document; it is tried again from time to time";
    NOT_READABLE = INTERNAL_SERVER_ERROR, "PostgreSQL could not return this document";
    UNEXPECTED = INTERNAL_SERVER_ERROR, "PostgreSQL returned an unexpected response";
    TOO_LARGE = INTERNAL_SERVER_ERROR, "the document is longer than document_max";
    AMBIGUOUS = INTERNAL_SERVER_ERROR, "several rows have this key";

    INVALID_DOCUMENT = UNPROCESSABLE_ENTITY, "the document does not match the resource; `errors` lists what is wrong";
    STORED_TOO_LARGE = PAYLOAD_TOO_LARGE, "the stored document would be longer than document_max";
    TOO_LONG_TO_PATCH = PAYLOAD_TOO_LARGE,
        "the stored document is longer than four times document_max: PUT and DELETE replace it";
    KEY_REUSED = UNPROCESSABLE_ENTITY, "the Idempotency-Key was used for another request";
    EXISTS = CONFLICT, "a document with this key exists";
    FOREIGN_OWNER = FORBIDDEN, "the document would have another owner than the client";
    NO_CLAIM = FORBIDDEN, "the credentials lack the claim that the owner of a document must equal";
    FOREIGN_TARGETS = FORBIDDEN, "the document would point to rows that are neither the client's own nor shared";
    HIDDEN_KEY = CONFLICT, "a hidden row has this key: it exists, but the condition of the resource is not true for it";
    VETOED = CONFLICT, "a trigger of the database prevented the change of a row; nothing was changed";
    KEY_CHANGED = CONFLICT,
        "a trigger of the database would change the key or delete the document; nothing was changed";
    COMMIT_UNKNOWN = SERVICE_UNAVAILABLE,
        "the connection to PostgreSQL was lost during the commit; the write may have been committed";
    COMMIT_TIMEOUT = GATEWAY_TIMEOUT,
        "PostgreSQL did not answer the commit in time; the write may have been committed";
    WRITE_TIMEOUT = GATEWAY_TIMEOUT, "PostgreSQL did not answer in time; nothing was written";
    WRITE_UNREACHABLE = SERVICE_UNAVAILABLE, "PostgreSQL can't be reached; nothing was written";
    /// PostgreSQL reported an error that the client did not cause.
    NOT_WRITTEN = INTERNAL_SERVER_ERROR, "PostgreSQL could not write this document; nothing was written";
    CONFLICT = CONFLICT, "another row, of the table or of the body, has a value that must be unique (unique constraint)";
    UNRELATED = CONFLICT,
        "a row that it refers to does not exist, or rows of another table still refer to what it changes (foreign key constraint)";
    EXCLUDED = CONFLICT, "it conflicts with an existing row (exclusion constraint)";
    CHANGED_BY_TRIGGER = CONFLICT,
        "a trigger of the database has changed the row that the write was about to change; nothing was changed";
    INVALID_VALUES = UNPROCESSABLE_ENTITY, "PostgreSQL rejected the values";
    UNPARTITIONED = UNPROCESSABLE_ENTITY, "the table has no partition for a row with these values";
    WRITE_FORBIDDEN = FORBIDDEN, "larder's role may not write this to the tables";
    ROWS_LOCKED = SERVICE_UNAVAILABLE, "other transactions hold locks on these rows";
    TABLE_LOCKED = SERVICE_UNAVAILABLE,
        "another transaction holds a lock on a table of this resource, as a migration does";
}

impl Problem {
    const fn fixed(status: StatusCode, detail: &'static str) -> Self {
        Self::with_detail(status, Cow::Borrowed(detail))
    }

    const fn with_detail(status: StatusCode, detail: Cow<'static, str>) -> Self {
        let retry_after = match status {
            StatusCode::SERVICE_UNAVAILABLE => Some(RETRY_AFTER_SECONDS),
            _ => None,
        };
        Self {
            problem_type: ProblemType::Status,
            status,
            detail,
            code: None,
            allow: None,
            retry_after,
            errors: Vec::new(),
            accepted: None,
            cause: None,
        }
    }

    fn new(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Self {
        Self::with_detail(status, detail.into())
    }

    pub(super) fn method_not_allowed(allow: &'static str) -> Self {
        let detail = format!("the method is not allowed here; allowed: {allow}");
        Self::not_allowed(allow, detail)
    }

    /// As [`Problem::method_not_allowed`], for a resource that can't be written, and why.
    pub(super) fn read_only(allow: &'static str, why: &str) -> Self {
        Self::not_allowed(allow, why.to_owned())
    }

    fn not_allowed(allow: &'static str, detail: String) -> Self {
        Self {
            allow: Some(allow),
            ..Self::new(StatusCode::METHOD_NOT_ALLOWED, detail)
        }
    }

    pub(super) fn bad_request(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// The caller adds `WWW-Authenticate`.
    pub(super) fn unauthorized(detail: &'static str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, detail)
    }

    pub(super) fn forbidden(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    /// The client sends more than it may; it may try again after so many `seconds`.
    pub(super) fn too_many_requests(detail: &'static str, seconds: u64) -> Self {
        Self {
            retry_after: Some(seconds),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, detail)
        }
    }

    /// larder can't answer now, for another reason than PostgreSQL.
    pub(super) fn unavailable(detail: &'static str) -> Self {
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

    /// The documents of a response have more bytes than one may have.
    pub(super) fn answer_too_large(bytes_max: usize) -> Self {
        let detail = format!(
            "the documents have more than {bytes_max} bytes together (limits.answer_max); ask for fewer, or for some fields"
        );
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    /// More documents than a response to a bulk write returns.
    pub(super) fn too_many_documents(documents_max: usize) -> Self {
        let detail = format!("return=representation returns at most {documents_max} documents");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    /// A transaction was open and waited for the body, of which `bytes` or the rest had to arrive within `limit`.
    pub(super) fn bulk_body_too_slow(bytes: usize, limit: Duration) -> Self {
        let kib = bytes >> 10;
        let detail = format!(
            "neither {kib} KiB nor the end of the body arrived within {limit:?}, so nothing was written"
        );
        Self::new(StatusCode::REQUEST_TIMEOUT, detail)
    }

    pub(super) fn unsupported_media_type(expected: &str) -> Self {
        let detail = format!("Content-Type must be {expected}");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail)
    }

    /// The body of a `PATCH` is no merge patch.
    pub(super) fn unsupported_patch() -> Self {
        Self {
            accepted: Some(AcceptedBodies::Patches),
            ..Self::unsupported_media_type(&format!("{MERGE_PATCH} or {JSON}"))
        }
    }

    /// A body of documents has another encoding than larder decodes, or several.
    pub(super) fn unsupported_encoding() -> Self {
        let detail = "Content-Encoding must be gzip or zstd, one of them and once";
        Self::wrong_encoding(AcceptedBodies::Decoded, detail)
    }

    /// A short body has an encoding.
    pub(super) fn encoded() -> Self {
        let detail = "the body must be sent without Content-Encoding";
        Self::wrong_encoding(AcceptedBodies::Identity, detail)
    }

    fn wrong_encoding(accepted: AcceptedBodies, detail: &'static str) -> Self {
        Self {
            accepted: Some(accepted),
            ..Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail)
        }
    }

    /// A body can't be decoded.
    pub(super) fn undecodable(error: DecodingError) -> Self {
        let status = match error {
            DecodingError::Malformed(_) | DecodingError::Truncated(_) => StatusCode::BAD_REQUEST,
            DecodingError::WindowTooLarge | DecodingError::TooDense | DecodingError::TooSparse => {
                StatusCode::PAYLOAD_TOO_LARGE
            }
            DecodingError::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }

    pub(super) fn range_not_satisfiable(bytes: usize) -> Self {
        let detail =
            format!("the range begins after the end of the document, which has {bytes} bytes");
        Self::new(StatusCode::RANGE_NOT_SATISFIABLE, detail)
    }

    /// A body whose part at `pointer` (RFC 6901) is not valid.
    pub(super) fn invalid_part(pointer: &str, why: &str) -> Self {
        let detail = match pointer {
            "" => format!("the body {why}"),
            pointer => format!("{pointer} {why}"),
        };
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    pub(super) fn internal(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    /// The cause of a 500, for the log; other problems are no errors of larder.
    pub(super) fn internal_cause(&self) -> Option<&str> {
        let is_internal = self.status == StatusCode::INTERNAL_SERVER_ERROR;
        is_internal.then(|| self.cause.as_deref().unwrap_or(&self.detail))
    }

    /// Adds the place of the problem in a body with many documents.
    pub(super) fn with_place(mut self, place: &str) -> Self {
        self.detail = format!("{place}: {}", self.detail).into();
        self
    }

    /// Adds that the problem is about the document at `index`, counted from 0, of the body.
    pub(super) fn in_document(mut self, index: u64) -> Self {
        for fault in &mut self.errors {
            fault.pointer.insert_str(0, &format!("/{index}"));
        }
        self.with_place(&format!("document {index}"))
    }

    /// Adds that the problem is about one of `count` documents from `first` on; it is not known which.
    pub(super) fn in_documents(mut self, first: u64, count: u64) -> Self {
        if count == 1 {
            return self.in_document(first);
        }
        self.errors.clear();
        let last = first + count.saturating_sub(1);
        self.with_place(&format!("one of the documents {first} to {last}"))
    }

    /// The body of the response.
    pub(super) fn body(&self) -> ProblemBody<'_> {
        ProblemBody {
            r#type: self.problem_type.uri(),
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
            code: self.code.as_deref(),
            errors: &self.errors,
        }
    }

    /// The response. For `HEAD` hyper drops the body and keeps its length.
    pub(super) fn into_response(self) -> Response {
        self.into_full_response().map(Body::new)
    }

    /// The response with the type of body that the middleware uses.
    pub(super) fn into_full_response(self) -> Response<FullBody> {
        // Strings and a number always serialise.
        let text = simd_json::to_string(&self.body()).unwrap_or_default();
        let mut response = Response::new(FullBody::new(text.into()));
        *response.status_mut() = self.status;
        let cause = self
            .internal_cause()
            .map(|cause| InternalError(cause.into()));
        if let Some(cause) = cause {
            response.extensions_mut().insert(cause);
        }
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, PROBLEM_JSON);
        if let Some(allow) = self.allow {
            add_allow(headers, allow);
        }
        if let Some(accepted) = self.accepted {
            let (name, value) = match accepted {
                AcceptedBodies::Identity => (ACCEPT_ENCODING, "identity"),
                AcceptedBodies::Decoded => (ACCEPT_ENCODING, "gzip, zstd"),
                AcceptedBodies::Patches => (ACCEPT_PATCH, PATCH_TYPES),
            };
            headers.insert(name, HeaderValue::from_static(value));
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
            LookupError::NotReady(_) => Self::NOT_READY,
            LookupError::NotCached => Self::NOT_CACHED,
            LookupError::Deadline => Self::TIMEOUT,
            LookupError::Source(error) => Self::from(error),
        }
    }
}

impl From<BodyError> for Problem {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::Malformed(detail) => Self::bad_request(detail),
            // RFC 5789, section 2.2: the request can't be applied to the state of the resource.
            BodyError::Stored(detail) => {
                let detail = format!("{detail}, so it can't be patched; replace it by PUT");
                Self::new(StatusCode::CONFLICT, detail)
            }
            BodyError::Mismatches(mismatches) => {
                let errors = mismatches.into_iter();
                let errors =
                    errors.map(|mismatch| FieldError::new(mismatch.pointer, mismatch.message));
                Self {
                    errors: errors.collect(),
                    ..Self::INVALID_DOCUMENT
                }
            }
        }
    }
}

impl From<WriteError> for Problem {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Source(error) => Self::of_write(error),
            WriteError::Unknown => Self::COMMIT_UNKNOWN,
            WriteError::CommitDeadline => Self::COMMIT_TIMEOUT,
            WriteError::Deadline => Self::WRITE_TIMEOUT,
            WriteError::Exists(violation) => {
                Self::EXISTS.with_violation(UNIQUE_VIOLATION.into(), violation, false)
            }
            WriteError::HiddenKey(pointers) => Self::hidden(pointers),
            WriteError::Absent => Self::NO_SUCH_DOCUMENT,
            WriteError::ForeignOwner => Self::FOREIGN_OWNER,
            WriteError::NoClaim => Self::NO_CLAIM,
            WriteError::ForeignTargets(pointers) => Self::foreign_targets(pointers),
            WriteError::Precondition => Self::PRECONDITION_FAILED,
            WriteError::Body(error) => Self::from(error),
            WriteError::TooLongToPatch => Self::TOO_LONG_TO_PATCH,
            WriteError::Vetoed => Self::VETOED,
            WriteError::Cycle { code, constraint } => Self::cycle(code, constraint.as_deref()),
            WriteError::KeyChanged => Self::KEY_CHANGED,
            WriteError::KeyReused => Self::KEY_REUSED,
            WriteError::Refused {
                code,
                refusal,
                violation,
            } => Self::refused(code, refusal, violation),
        }
    }
}

impl Problem {
    fn with_code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into().into_boxed_str());
        self
    }

    fn foreign_targets(pointers: Vec<String>) -> Self {
        let detail = "points to a row that is neither the client's own nor shared";
        let errors = pointers.into_iter();
        let errors = errors.map(|pointer| FieldError::new(pointer, detail));
        Self {
            errors: errors.collect(),
            ..Self::FOREIGN_TARGETS
        }
    }

    fn hidden(pointers: Vec<String>) -> Self {
        let errors = pointers.into_iter();
        let errors = errors.map(|pointer| FieldError::new(pointer, "has the key of a hidden row"));
        Self {
            problem_type: ProblemType::HiddenRow,
            errors: errors.collect(),
            ..Self::HIDDEN_KEY.with_code(UNIQUE_VIOLATION)
        }
    }

    fn cycle(code: String, constraint: Option<&str>) -> Self {
        let constraint = constraint.unwrap_or("a constraint");
        let detail = format!(
            "rows can't take the values that {constraint} wants to be unique: each has a value of another one or of \
             another document; nothing was changed"
        );
        Self::new(StatusCode::CONFLICT, detail).with_code(code)
    }

    fn refused(code: String, refusal: Refusal, violation: Violation) -> Self {
        let problem = match refusal {
            Refusal::Conflict => match code.as_str() {
                "23P01" => Self::EXCLUDED,
                "27000" => Self::CHANGED_BY_TRIGGER,
                "23503" | "23001" => Self::UNRELATED,
                _ => Self::CONFLICT,
            },
            Refusal::Invalid => Self::INVALID_VALUES,
            Refusal::Unpartitioned => Self::UNPARTITIONED,
            Refusal::Forbidden => Self::WRITE_FORBIDDEN,
            Refusal::Busy => Self::ROWS_LOCKED,
            Refusal::TableLocked => Self::TABLE_LOCKED,
            Refusal::Raised(status) => Self::new(
                StatusCode::from_u16(status).unwrap_or(StatusCode::UNPROCESSABLE_ENTITY),
                "a trigger of the database refused the write",
            ),
        };
        problem.with_violation(code, violation, refusal == Refusal::Invalid)
    }

    /// Adds the code, the name of the constraint, and the members that it is over. `is_invalid` is for values that do not fit
    /// the table.
    fn with_violation(mut self, code: String, violation: Violation, is_invalid: bool) -> Self {
        let Violation {
            constraint,
            pointers,
            ..
        } = violation;
        if let Some(constraint) = &constraint {
            self.detail = format!("{}: {constraint}", self.detail).into();
        }
        let detail = match code.as_str() {
            // not_null_violation, of a column that a trigger could have set
            "23502" => "must not be null",
            "23505" => "must be unique, and another row has this value, or these values together",
            "23503" | "23001" => {
                "refers to a row that does not exist, or is referred to by another row"
            }
            "23514" => "violates a check constraint",
            // 42: syntax errors of values; XX: errors that extensions raise.
            code if is_invalid
                && ["22", "42", "XX"]
                    .iter()
                    .any(|class| code.starts_with(class)) =>
            {
                "is not a value that the column can have"
            }
            _ => &*self.detail,
        };
        let errors = pointers.into_iter().map(|pointer| FieldError {
            constraint: constraint.clone(),
            code: Some(code.clone()),
            ..FieldError::new(pointer, detail)
        });
        let errors: Vec<FieldError> = errors.collect();
        self.errors = errors;
        self.with_code(code)
    }
}

impl From<SourceError> for Problem {
    fn from(error: SourceError) -> Self {
        let mut problem = Self::of_source(&error);
        if error.is_of_one_document() {
            problem.problem_type = ProblemType::UnreadableDocument;
        }
        problem
    }
}

impl Problem {
    /// For an error before the commit was sent: see [`WriteError::Unknown`] for others.
    fn of_write(error: SourceError) -> Self {
        match error {
            SourceError::TooLarge => Self::STORED_TOO_LARGE,
            SourceError::Timeout => Self::WRITE_TIMEOUT,
            SourceError::Standby => Self::STANDBY,
            error if error.is_connection_error() => {
                tracing::debug!("a document can't be written: {error}");
                Self::WRITE_UNREACHABLE
            }
            SourceError::Refused { ref code, .. }
                if !error.is_of_one_document() && !error.is_altered() =>
            {
                Self {
                    cause: Some(error.to_string().into()),
                    ..Self::NOT_WRITTEN.with_code(code)
                }
            }
            error => Self::from(error),
        }
    }

    fn of_source(error: &SourceError) -> Self {
        match error {
            SourceError::Standby => Self::STANDBY,
            SourceError::Url(_)
            | SourceError::Unavailable(_)
            | SourceError::Login { .. }
            | SourceError::TooManyConnections(_)
            | SourceError::OtherDatabase
            | SourceError::Privilege(_)
            | SourceError::Pooler(_)
            | SourceError::Setting { .. } => {
                tracing::debug!("PostgreSQL can't be used: {error}");
                Self::UNREACHABLE
            }
            SourceError::Overloaded => Self::OVERLOADED,
            SourceError::Timeout => Self::TIMEOUT,
            SourceError::DocumentTimeout | SourceError::SlowDocument => Self::DOCUMENT_TIMEOUT,
            SourceError::Refused { code, .. } if error.is_altered() => {
                tracing::debug!("a document can't be read: {error}");
                Self::TABLE_ALTERED.with_code(code)
            }
            SourceError::Altered(_) | SourceError::RowSecurity => {
                tracing::debug!("a document can't be read: {error}");
                Self::TABLE_ALTERED
            }
            SourceError::Refused { code, .. } if error.is_conflict() => {
                Self::READ_CONFLICT.with_code(code)
            }
            SourceError::Refused { code, .. } => Self {
                cause: Some(error.to_string().into()),
                ..Self::NOT_READABLE.with_code(code)
            },
            SourceError::TooLarge => Self::TOO_LARGE,
            SourceError::Ambiguous => Self::AMBIGUOUS,
            SourceError::NoValue(_) => Self::bad_request(error.to_string()),
            SourceError::Unexpected(_) => Self {
                cause: Some(error.to_string().into()),
                ..Self::UNEXPECTED
            },
        }
    }
}
