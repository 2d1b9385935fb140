//! `POST`, `PUT`, `PATCH` and `DELETE` of one document.

use std::mem;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_TYPE, ETAG, LOCATION};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use xxhash_rust::xxh3::Xxh3;

use crate::cache::document::{digest, entity_tag};
use crate::clock::Boottime;
use crate::documents::{Documents, Scope};
use crate::http::answers::AnswersMemory;
use crate::http::body::read_body;
use crate::http::full_body::FullBody;
use crate::http::headers::{
    APPLICATION_JSON, JSON, LARDER_TOKEN, MERGE_PATCH, PREFERENCE_APPLIED, RETURN_MINIMAL,
    RETURN_REPRESENTATION,
};
use crate::http::problem::Problem;
use crate::http::request::{Request, TargetPart, document_path};
use crate::http::work::{self, Waiting};
use crate::http::write::WriteScopes;
use crate::resource::body::{BodyError, Scratch, WriteMode, rows_of};
use crate::resource::key::key_parts;
use crate::resource::writable::Rows;
use crate::resource::{Resource, ResourceId};
use crate::source::SourceError;
use crate::source::writes::{Action, IdempotentRequest, Write, WriteEffect, WriteError, Written};

const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;

/// What a client may prefer to be returned.
const RETURNS: [&str; 2] = [RETURN_MINIMAL, RETURN_REPRESENTATION];

/// A request to change one document of a resource.
pub(super) struct DocumentWrite<'r> {
    pub(super) documents: &'r Documents,
    pub(super) answers: &'r AnswersMemory,
    pub(super) request: &'r Request<'r>,
    pub(super) id: ResourceId,
    pub(super) resource: Arc<Resource>,
    pub(super) part: TargetPart,
}

/// How often a write is attempted while tables are altered.
const DEFINITIONS_MAX: usize = 3;

/// Why an attempt failed.
struct Refused {
    problem: Problem,
    /// How the definition of the resource has to do with it.
    by: Option<ByDefinition>,
}

/// How a definition refuses a write.
#[derive(PartialEq)]
enum ByDefinition {
    /// The request does not fit it, and PostgreSQL was not asked.
    Mismatch,
    /// It is not that of the database any more.
    Altered,
}

impl Refused {
    fn mismatch(problem: impl Into<Problem>) -> Self {
        Self {
            problem: problem.into(),
            by: Some(ByDefinition::Mismatch),
        }
    }
}

impl<P: Into<Problem>> From<P> for Refused {
    fn from(problem: P) -> Self {
        Self {
            problem: problem.into(),
            by: None,
        }
    }
}

impl DocumentWrite<'_> {
    /// Performs the write. It is repeated if a table was altered and larder has not noticed that yet, and a request that does
    /// not fit the definition is refused once that was compared with the database.
    pub(super) async fn write(mut self, mut body: Body) -> Result<Response<Body>, Problem> {
        let began = Boottime::now();
        let scopes = self.scopes();
        // The outcome would tell whether the document has the contents that the client has guessed.
        if !scopes.may_read_written() && self.request.preconditions().has_entity_tag() {
            let why = "an entity tag in If-Match or If-None-Match requires the right to read; `*` does not";
            return Err(Problem::forbidden(why));
        }
        let mut received = None;
        for _ in 1..DEFINITIONS_MAX {
            match self.attempt(&mut body, &mut received).await {
                Ok(response) => return Ok(response),
                Err(refused) => self.renew(refused, began).await?,
            }
        }
        let last = self.attempt(&mut body, &mut received).await;
        last.map_err(|refused| refused.problem)
    }

    /// Takes the definition that the database has now, if that may accept what was refused.
    ///
    /// # Errors
    /// The problem, if it may not.
    async fn renew(&mut self, refused: Refused, began: Boottime) -> Result<(), Problem> {
        let Refused { problem, by } = refused;
        let Some(by) = by else {
            return Err(problem);
        };
        let compared = self.documents.compared(self.id, began).await?;
        if by == ByDefinition::Mismatch && Arc::ptr_eq(&compared, &self.resource) {
            return Err(problem);
        }
        self.resource = compared;
        Ok(())
    }

    fn scopes(&self) -> WriteScopes {
        WriteScopes::of(self.request, self.id, &self.resource)
    }

    /// Reads the body of a request that may write documents in the scope `writer`; it is empty for `DELETE`. What is wrong
    /// before the body is found before it is read.
    async fn receive(&self, writer: &Scope<'_>, body: &mut Body) -> Result<Bytes, Refused> {
        let Self { request, part, .. } = self;
        let is_document = matches!(part, TargetPart::Document { .. });
        let media_types: &[&str] = match *request.method {
            Method::POST if *part == TargetPart::Collection => &[JSON],
            Method::PUT if is_document => &[JSON],
            Method::PATCH if is_document => &[MERGE_PATCH, JSON],
            Method::DELETE if is_document => &[],
            _ => return Err(Problem::method_not_allowed(part.methods(true)).into()),
        };
        self.key().map_err(Refused::mismatch)?;
        Documents::check_writer(writer, !is_document)?;
        if media_types.is_empty() {
            return Ok(Bytes::new());
        }
        if *request.method == Method::PATCH {
            let patch_type = request.media_type(media_types);
            patch_type.map_err(|_| Problem::unsupported_patch())?;
        }
        // RFC 9110, section 14.5. For other methods the header has no meaning and is ignored.
        if *request.method == Method::PUT && request.has_content_range() {
            let why = "a PUT with Content-Range would replace the whole document by a part; send the whole document, \
                       or a PATCH";
            return Err(Problem::bad_request(why).into());
        }
        let bytes_max = self.documents.document_bytes_max();
        let body = mem::take(body);
        Ok(read(request, body, media_types, bytes_max).await?)
    }

    /// The key that the path names, if it names one.
    fn key(&self) -> Result<Option<String>, Problem> {
        let TargetPart::Document { key } = self.part else {
            return Ok(None);
        };
        let key = self.resource.key.canonical(self.request.key(key))?;
        Ok(Some(key.into_owned()))
    }

    /// Performs the write under the definition that is known. The body is read once, and `received` then.
    async fn attempt(
        &self,
        body: &mut Body,
        received: &mut Option<Bytes>,
    ) -> Result<Response<Body>, Refused> {
        let Self {
            request, resource, ..
        } = self;
        check_writable(resource, self.part)?;
        let scopes = self.scopes();
        let body = match received {
            Some(body) => body.clone(),
            None => {
                let read = self.receive(&scopes.writer, body).await?;
                received.insert(read).clone()
            }
        };
        // A principal that may not read does not see what is stored.
        let mut preferred = if scopes.may_read() {
            request.preference(&RETURNS)
        } else {
            Some(RETURN_MINIMAL)
        };
        let WriteScopes { writer, reader } = scopes;
        let action = self.action(&writer, body.clone()).await?;
        if request.idempotency_key().is_some() && !self.documents.keeps_answers() {
            let why = "Idempotency-Key requires `idempotency_keys = true` in the configuration";
            return Err(Problem::bad_request(why).into());
        }
        let idempotency = idempotency(request, &writer, &body, preferred)?;
        let is_insert = matches!(action, Action::Insert { .. });
        let write = Write {
            resource: Arc::clone(resource),
            action,
            writer,
            reader,
            // The target of POST is the collection, which has no entity tag.
            precondition: request.preconditions().of_write().filter(|_| !is_insert),
            representation: preferred != Some(RETURN_MINIMAL),
            idempotency,
        };
        let mut written = match self.documents.write(write).await {
            Ok(written) => written,
            Err(WriteError::Exists(_)) if request.preconditions().is_if_none_match_any() => {
                return Err(Problem::PRECONDITION_FAILED.into());
            }
            Err(error @ WriteError::Source(SourceError::Altered(_))) => {
                return Err(Refused {
                    problem: error.into(),
                    by: Some(ByDefinition::Altered),
                });
            }
            Err(error) => return Err(error.into()),
        };
        if let Some(first) = &written.repeated {
            let first = first.preference.as_deref();
            preferred = RETURNS.into_iter().find(|known| first == Some(known));
        }
        let mut reservation = self.answers.reservation();
        let bytes = written.document.as_ref().map_or(0, Bytes::len);
        if reservation.grow(bytes).is_err() {
            // The write is committed. A preference may be ignored (RFC 7240, section 2).
            written.document = None;
            preferred = Some(RETURN_MINIMAL);
        }
        let response = respond(resource, written, preferred);
        Ok(response.map(|body| reservation.into_body(body)))
    }

    /// The action of the request, which may write the documents in the scope `writer`.
    async fn action(&self, writer: &Scope<'static>, body: Bytes) -> Result<Action, Refused> {
        let key = self.key().map_err(Refused::mismatch)?;
        Ok(match (self.request.method, key) {
            (&Method::PUT, Some(key)) => {
                let rows = self.rows(writer, Some(key.clone()), body).await?;
                // Else it is known at once.
                if let Err(error) = &rows
                    && !writer.is_restricted()
                {
                    return Err(body_refused(error.clone()));
                }
                Action::Replace { key, rows }
            }
            (&Method::PATCH, Some(key)) => Action::Patch { key, patch: body },
            (_, Some(key)) => Action::Delete { key },
            (_, None) => {
                let rows = self.rows(writer, None, body).await?;
                Action::Insert {
                    rows: rows.map_err(body_refused)?,
                }
            }
        })
    }

    /// The rows of a new document in the scope `writer`, or of the one that replaces the document of `key`. The inner error is
    /// that of the body.
    async fn rows(
        &self,
        writer: &Scope<'static>,
        key: Option<String>,
        body: Bytes,
    ) -> Result<Result<Rows, BodyError>, Problem> {
        let (resource, writer) = (Arc::clone(&self.resource), writer.clone());
        let bytes = body.len();
        let parse = move || {
            let writable = resource.writable.as_ref();
            let writable = writable.map_err(|_| Problem::NOT_PARSED)?;
            let parts = key
                .as_deref()
                .map(|key| key_parts(key, resource.key.columns.len()));
            let mode = parts
                .as_deref()
                .map_or(WriteMode::Insert, WriteMode::Replace);
            let mut rows = Rows::of(writable);
            let (claim, scratch) = (writer.claim(), &mut Scratch::default());
            let read = rows_of(writable, &body, mode, claim, scratch, &mut rows);
            Ok(read.map(|()| rows))
        };
        let waiting = Waiting {
            client: self.request.client(),
            wait_max: self.documents.request_timeout(),
        };
        work::run(waiting, bytes, Problem::NOT_PARSED, parse).await?
    }
}

/// Checks that documents of `resource` can be written.
pub(super) fn check_writable(resource: &Resource, part: TargetPart) -> Result<(), Problem> {
    let writable = resource.writable.as_ref();
    let read_only = |why: &String| Problem::read_only(part.methods(false), why);
    writable.map_err(read_only)?;
    Ok(())
}

/// The problem of a body that has no rows.
fn body_refused(error: BodyError) -> Refused {
    match error {
        BodyError::Malformed(_) => error.into(),
        _ => Refused::mismatch(error),
    }
}

/// The hash of a request, by which `Idempotency-Key` recognizes the same request.
fn request_hash(request: &Request<'_>, body: &[u8]) -> [u8; 16] {
    let mut hash = Xxh3::new();
    for part in [request.method.as_str(), request.uri.path()] {
        hash.update(part.as_bytes());
        hash.update(&[0]);
    }
    hash.update(body);
    hash.digest128().to_be_bytes()
}

/// Parses `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header), with or without the quotes of a string.
fn idempotency(
    request: &Request<'_>,
    writer: &Scope<'_>,
    body: &[u8],
    preference: Option<&'static str>,
) -> Result<Option<IdempotentRequest>, Problem> {
    let Some(key) = request.idempotency_key() else {
        return Ok(None);
    };
    let principal = match request.principal.as_deref() {
        None => String::new(),
        Some(principal) => principal.scope().ok_or_else(|| {
            let why =
                "Idempotency-Key requires a principal with a name, and the token has no usable `sub`";
            Problem::bad_request(why)
        })?,
    };
    let principal = owner_of_keys(principal, writer);
    let key = key.to_str().unwrap_or_default().trim();
    let bare = key.strip_prefix('"').and_then(|key| key.strip_suffix('"'));
    let key = bare.unwrap_or(key);
    if key.is_empty() || key.len() > IDEMPOTENCY_KEY_BYTES_MAX {
        let why =
            format!("Idempotency-Key must have 1 to {IDEMPOTENCY_KEY_BYTES_MAX} ASCII characters");
        return Err(Problem::bad_request(why));
    }
    Ok(Some(IdempotentRequest {
        principal,
        key: key.to_owned(),
        request: request_hash(request, body),
        preference,
    }))
}

/// Whose `Idempotency-Key`s a request uses: those of the `principal`, and if it is restricted, of the same claim. Tokens of
/// one subject may have different claims.
fn owner_of_keys(principal: String, writer: &Scope<'_>) -> String {
    match writer {
        // The claim is in quotes, so that no claim and principal look like another pair.
        Scope::Own(Some(claim)) => format!("claim:{claim:?}:{principal}"),
        Scope::Own(None) | Scope::All => principal,
    }
}

/// Reads the body of a request.
///
/// # Errors
/// 415 if its media type is not one of `accepted`, 413 if it is longer than `bytes_max`, 400 if it is empty.
async fn read(
    request: &Request<'_>,
    body: Body,
    accepted: &[&str],
    bytes_max: usize,
) -> Result<Bytes, Problem> {
    request.media_type(accepted)?;
    request.check_content_length(bytes_max)?;
    let body = read_body(body, bytes_max).await?;
    if body.is_empty() {
        Err(Problem::bad_request("the request has no body"))
    } else {
        Ok(body)
    }
}

fn respond(
    resource: &Resource,
    written: Written,
    preferred: Option<&'static str>,
) -> Response<FullBody> {
    let status = match (written.effect, &written.document) {
        (WriteEffect::Created | WriteEffect::Moved, _) => StatusCode::CREATED,
        (WriteEffect::Replaced, Some(_)) | (WriteEffect::Kept, _) => StatusCode::OK,
        (WriteEffect::Replaced, None) | (WriteEffect::Deleted, _) => StatusCode::NO_CONTENT,
    };
    let mut headers = HeaderMap::new();
    // Tokens and locations consist of valid characters, so this does not fail.
    if let Ok(token) = HeaderValue::try_from(written.token.to_string()) {
        headers.insert(LARDER_TOKEN, token);
    }
    if written.effect == WriteEffect::Created
        && let Ok(location) = HeaderValue::try_from(document_path(resource, &written.key))
    {
        headers.insert(LOCATION, location);
    }
    let applies = !matches!(
        written.effect,
        WriteEffect::Deleted | WriteEffect::Kept | WriteEffect::Moved
    );
    // A response without the document, such as one that the writer may not read, does not represent it.
    let is_kept = |preferred: &&str| *preferred == RETURN_MINIMAL || written.document.is_some();
    if let Some(preferred) = preferred.filter(is_kept).filter(|_| applies) {
        headers.insert(PREFERENCE_APPLIED, HeaderValue::from_static(preferred));
    }
    let body = written.document.map(|document| {
        if let Ok(etag) = HeaderValue::from_bytes(&entity_tag(digest(&document))) {
            headers.insert(ETAG, etag);
        }
        headers.insert(CONTENT_TYPE, APPLICATION_JSON);
        FullBody::new(document)
    });
    let mut response = Response::new(body.unwrap_or_default());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::testing::named;

    #[test]
    fn a_preference_applies_if_the_response_shows_it() {
        let applied = |document: Option<&'static str>, preferred: Option<&'static str>| {
            let written = Written {
                effect: WriteEffect::Replaced,
                key: "1".into(),
                document: document.map(Bytes::from),
                repeated: None,
                token: "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11.7".parse().unwrap(),
            };
            let response = respond(&named("items"), written, preferred);
            let applied = response.headers().get(PREFERENCE_APPLIED);
            applied.map(|applied| applied.to_str().unwrap().to_owned())
        };
        let (minimal, whole) = (Some(RETURN_MINIMAL), Some(RETURN_REPRESENTATION));
        assert_eq!(applied(Some("{}"), whole).as_deref(), whole);
        assert_eq!(applied(None, whole), None);
        assert_eq!(applied(None, minimal).as_deref(), minimal);
        assert_eq!(applied(None, None), None);
    }
}
