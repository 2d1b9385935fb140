//! `POST`, `PUT`, `PATCH` and `DELETE` of one document.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_TYPE, ETAG, LOCATION};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use xxhash_rust::xxh3::Xxh3;

use crate::cache::document::{digest, entity_tag};
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

impl DocumentWrite<'_> {
    /// Performs the write.
    pub(super) async fn write(self, body: Body) -> Result<Response<Body>, Problem> {
        let Self {
            documents,
            answers,
            request,
            id,
            resource,
            part,
        } = self;
        let scopes = WriteScopes::of(request, id, &resource);
        // The outcome would tell whether the document has the contents that the client has guessed.
        if !scopes.may_read_written() && request.preconditions().has_entity_tag() {
            let why = "an entity tag in If-Match or If-None-Match requires the right to read; `*` does not";
            return Err(Problem::forbidden(why));
        }
        let mut hash = request_hash(request);
        let bytes_max = documents.document_bytes_max();
        let waiting = Waiting {
            client: request.client(),
            wait_max: documents.request_timeout(),
        };
        let body = BodyOfWrite {
            body,
            bytes_max,
            waiting,
        };
        let WriteScopes { writer, reader } = scopes.clone();
        let action = action(&resource, &writer, part, request, body, &mut hash).await?;
        if request.idempotency_key().is_some() && !documents.keeps_answers() {
            let why = "Idempotency-Key requires `idempotency_keys = true` in the configuration";
            return Err(Problem::bad_request(why));
        }
        // A principal that may not read does not see what is stored.
        let mut preferred = if scopes.may_read() {
            request.preference(&RETURNS)
        } else {
            Some(RETURN_MINIMAL)
        };
        let idempotency = idempotency(request, &writer, &hash, preferred)?;
        let is_insert = matches!(action, Action::Insert { .. });
        let write = Write {
            resource: Arc::clone(&resource),
            action,
            writer,
            reader,
            // The target of POST is the collection, which has no entity tag.
            precondition: request.preconditions().of_write().filter(|_| !is_insert),
            representation: preferred != Some(RETURN_MINIMAL),
            idempotency,
        };
        let mut written = match documents.write(write).await {
            Err(WriteError::Exists) if request.preconditions().is_if_none_match_any() => {
                return Err(Problem::PRECONDITION_FAILED);
            }
            written => written?,
        };
        if let Some(first) = &written.repeated {
            let first = first.preference.as_deref();
            preferred = RETURNS.into_iter().find(|known| first == Some(known));
        }
        let mut reservation = answers.reservation();
        let bytes = written.document.as_ref().map_or(0, Bytes::len);
        if reservation.grow(bytes).is_err() {
            // The write is committed. A preference may be ignored (RFC 7240, section 2).
            written.document = None;
            preferred = Some(RETURN_MINIMAL);
        }
        let response = respond(&resource, written, preferred);
        Ok(response.map(|body| reservation.into_body(body)))
    }
}

/// Begins the hash of a request, by which `Idempotency-Key` recognizes the same request; the body is added later.
fn request_hash(request: &Request<'_>) -> Xxh3 {
    let mut hash = Xxh3::new();
    for part in [request.method.as_str(), request.uri.path()] {
        hash.update(part.as_bytes());
        hash.update(&[0]);
    }
    hash
}

/// Parses `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header), with or without the quotes of a string.
fn idempotency(
    request: &Request<'_>,
    writer: &Scope<'_>,
    hash: &Xxh3,
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
        request: hash.digest128().to_be_bytes(),
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

/// The body of a write before it is read.
struct BodyOfWrite {
    body: Body,
    bytes_max: usize,
    waiting: Waiting,
}

/// The action of the request, which may write the documents in the scope `writer`. The body is added to `hash`.
async fn action(
    resource: &Arc<Resource>,
    writer: &Scope<'static>,
    part: TargetPart,
    request: &Request<'_>,
    body: BodyOfWrite,
    hash: &mut Xxh3,
) -> Result<Action, Problem> {
    let BodyOfWrite {
        body,
        bytes_max,
        waiting,
    } = body;
    if let Err(why) = &resource.writable {
        return Err(Problem::read_only(part.methods(false), why));
    }
    let document_key = |key| -> Result<String, Problem> {
        let key = resource.key.canonical(request.key(key))?;
        Documents::check_writer(writer, false)?;
        Ok(key.into_owned())
    };
    Ok(match (request.method, part) {
        (&Method::POST, TargetPart::Collection) => {
            Documents::check_writer(writer, true)?;
            let body = read(request, body, &[JSON], bytes_max).await?;
            hash.update(&body);
            let rows = rows(resource, writer, None, body, waiting).await??;
            Action::Insert { rows }
        }
        (&Method::PUT, TargetPart::Document { key }) => {
            // RFC 9110, section 14.5. For other methods the header has no meaning and is ignored.
            if request.has_content_range() {
                let why = "a PUT with Content-Range would replace the whole document by a part; send the whole document, \
                           or a PATCH";
                return Err(Problem::bad_request(why));
            }
            let key = document_key(key)?;
            let body = read(request, body, &[JSON], bytes_max).await?;
            hash.update(&body);
            let rows = rows(resource, writer, Some(key.clone()), body, waiting).await?;
            // Else it is known at once.
            if !writer.is_restricted() {
                rows.as_ref().map_err(BodyError::clone)?;
            }
            Action::Replace { key, rows }
        }
        (&Method::PATCH, TargetPart::Document { key }) => {
            let key = document_key(key)?;
            let patch_type = request.media_type(&[MERGE_PATCH, JSON]);
            let patch_type = patch_type.map_err(|_| Problem::unsupported_patch())?;
            let patch = read(request, body, &[patch_type], bytes_max).await?;
            hash.update(&patch);
            Action::Patch { key, patch }
        }
        (&Method::DELETE, TargetPart::Document { key }) => {
            let key = document_key(key)?;
            Action::Delete { key }
        }
        _ => return Err(Problem::method_not_allowed(part.methods(true))),
    })
}

/// The rows of a new document in the scope `writer`, or of the one that replaces the document of `key`. The inner error is
/// that of the body.
async fn rows(
    resource: &Arc<Resource>,
    writer: &Scope<'static>,
    key: Option<String>,
    body: Bytes,
    waiting: Waiting,
) -> Result<Result<Rows, BodyError>, Problem> {
    let (resource, writer) = (Arc::clone(resource), writer.clone());
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
    work::run(waiting, bytes, Problem::NOT_PARSED, parse).await?
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
