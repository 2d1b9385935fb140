//! `GET` and `HEAD` of one document.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_LOCATION;
use axum::http::{HeaderValue, Method, Response};
use xxhash_rust::xxh3::xxh3_128;

use crate::auth::{Principal, Right};
use crate::cache::Answer;
use crate::cache::document::{Document, entity_tag};
use crate::clock::Boottime;
use crate::documents::DocumentName;
use crate::http::answers::PIECE_BYTES;
use crate::http::full_body::FullBody;
use crate::http::problem::Problem;
use crate::http::read::cache_headers::{CacheHeaders, detail};
use crate::http::read::reading::ReadRequest;
use crate::http::read::response::{
    build_response, document_response, encode_parts, range_response, unencoded_response,
};
use crate::http::read::{ReadResult, query};
use crate::http::request::{MissedKey, Request, TargetPart, document_path};
use crate::http::scope::scope_of;
use crate::http::state::HttpState;
use crate::http::work;
use crate::resource::projection::Projection;
use crate::resource::{Resource, ResourceId};

/// A longer document takes part in the memory of answers (`http::answers`).
const UNRESERVED_BYTES_MAX: usize = 64 << 10;

/// A longer `Content-Location` is left out: clients and proxies accept only so many bytes of headers.
const LOCATION_BYTES_MAX: usize = 4 << 10;

/// What a request names one document by. The texts are canonical.
enum Named<'r> {
    Key(Cow<'r, str>),
    /// The number of the alias, and its text.
    Alias(usize, Cow<'r, str>),
}

impl<'r> Named<'r> {
    /// Reads the path of `request`, which names one document of `resource`.
    ///
    /// # Errors
    /// 400 if the text is not of the columns' types, 404 if the resource has no such alias, or if the path names anything
    /// else.
    #[inline]
    fn of(request: &Request<'r>, resource: &Resource) -> Result<Self, Problem> {
        match request.target.part {
            TargetPart::Document { key } => {
                let key = resource.key.canonical(request.key(key))?;
                Ok(Self::Key(key))
            }
            TargetPart::Alias { name, value } => {
                let name = request.alias_name(name, value);
                let Some((number, alias)) = resource.alias(&name) else {
                    return Err(Problem::NO_SUCH_ALIAS);
                };
                let text = alias.key.canonical(request.key(value))?;
                Ok(Self::Alias(number, text))
            }
            _ => Err(Problem::NO_SUCH_PATH),
        }
    }

    #[inline]
    fn name(&self) -> DocumentName<'_> {
        match self {
            Self::Key(key) => DocumentName::Key(key),
            Self::Alias(alias, text) => DocumentName::Alias(*alias, text),
        }
    }

    /// The key of the document that was found; `None` if only an alias is known.
    fn key<'k>(&'k self, found: Option<&'k Document>) -> Option<&'k str> {
        match self {
            Self::Key(key) => Some(key),
            Self::Alias(..) => found.map(Document::key_text),
        }
    }

    /// The response if there is no such document.
    fn absent(&self) -> Problem {
        match self {
            Self::Key(_) => Problem::NO_SUCH_DOCUMENT,
            Self::Alias(..) => Problem::NO_ALIASED_DOCUMENT,
        }
    }

    /// Adds the headers of a response to a request of `resource` that was answered with `answer`.
    fn add_headers(
        &self,
        response: &mut Response<FullBody>,
        request: &Request<'_>,
        resource: &Resource,
        cache_headers: &CacheHeaders,
        is_strict: bool,
        answer: &Answer,
    ) {
        let key = self.key(answer.found.as_ref());
        let named = key.map(|key| (&resource.key, key));
        cache_headers.add(response, answer.provenance, is_strict, named);
        if let (Self::Alias(..), Some(key)) = (self, key) {
            let mut location = document_path(resource, key);
            if let Some(query) = request.uri.query() {
                location.push('?');
                location.push_str(query);
            }
            // Paths consist of valid characters, so this does not fail.
            if location.len() <= LOCATION_BYTES_MAX
                && let Ok(location) = HeaderValue::try_from(location)
            {
                response.headers_mut().insert(CONTENT_LOCATION, location);
            }
        }
    }
}

/// The response, if the request is a `GET` of one document that memory may answer. If memory does not have the key, it is
/// noted in the request as missed. Other requests are left to [`read_document`]; `HEAD` too, since hyper would send the
/// body over HTTP/2.
#[inline]
pub(in crate::http) fn try_memory(
    state: &HttpState,
    request: &mut Request<'_>,
    principal: Option<&Principal>,
) -> Option<Response<FullBody>> {
    let (Some(id), TargetPart::Document { .. } | TargetPart::Alias { .. }) =
        (request.target.resource, request.target.part)
    else {
        return None;
    };
    let cache_headers = state.cache_headers(id)?;
    let is_plain = request.is_plain(cache_headers.allows_strict);
    if *request.method != Method::GET || request.uri.query().is_some() || !is_plain {
        return None;
    }
    let began = Boottime::now();
    let current = state.documents.current(id);
    let resource = current.as_ref()?;
    let named = Named::of(request, resource).ok()?;
    let scope = scope_of(principal, id, resource.owner.as_ref(), Right::Read);
    let found = state.documents.try_memory(id, named.name(), &scope, began);
    let Some(answer) = found else {
        if let Named::Key(key) = named {
            request.missed = Some(MissedKey {
                resource: Arc::clone(resource),
                key: key.into_owned(),
                at: began,
            });
        }
        return None;
    };
    let mut response = match &answer.found {
        Some(document) if document.body().len() > UNRESERVED_BYTES_MAX => return None,
        Some(document) => document_response(request, document).ok()?,
        None => named.absent().into_full_response(),
    };
    named.add_headers(
        &mut response,
        request,
        resource,
        cache_headers,
        false,
        &answer,
    );
    state.count_hit(id, response.status(), began);
    Some(response)
}

/// Answers with the document that the path names.
pub(in crate::http) async fn read_document(
    state: &HttpState,
    mut request: Request<'_>,
    id: ResourceId,
) -> ReadResult<Body> {
    let missed = request.missed.take();
    let request = &request;
    let mut read = ReadRequest::begin(state, request, id).await?;
    if let Some(query) = request.uri.query() {
        read.fields = query::parse_fields(query, &read.resource)?.map(Arc::new);
    }
    let missed = missed.filter(|missed| Arc::ptr_eq(&missed.resource, &read.resource));
    let (named, at) = match missed {
        Some(MissedKey { key, at, .. }) => (Named::Key(key.into()), Some(at)),
        None => (Named::of(request, &read.resource)?, None),
    };
    let (documents, name) = (read.documents, named.name());
    let (demand, scope) = (&read.demand, &read.scope);
    let answer = match at {
        Some(at) => documents.read_missed(id, name, demand, scope, at).await?,
        None => documents.read(id, name, demand, scope).await?,
    };
    let mut response = match &answer.found {
        None => named.absent().into_full_response(),
        Some(document) => match &read.fields {
            Some(fields) => project(&read, fields, document).await?,
            None => whole_or_part(&read, document).await,
        },
    };
    named.add_headers(
        &mut response,
        request,
        &read.resource,
        read.cache_headers,
        read.is_strict(),
        &answer,
    );
    let body = response.body();
    let mut reservation = read.answers.reservation();
    if *request.method != Method::HEAD && body.part().len() > PIECE_BYTES {
        match &answer.found {
            Some(document) if read.fields.is_none() => {
                reservation.share(body.part(), document.body().len())?;
            }
            _ => reservation.grow(body.part().len())?,
        }
    }
    let response = response.map(|body| reservation.into_body(body));
    Ok((detail(answer.provenance), response))
}

/// The response with the members of `document` that the request names.
async fn project(
    read: &ReadRequest<'_>,
    fields: &Arc<Projection>,
    document: &Document,
) -> Result<Response<FullBody>, Problem> {
    let (fields, document) = (Arc::clone(fields), document.clone());
    let bytes = document.body().len();
    let project = move || {
        let mut body = Vec::new();
        fields.write(document.body(), &mut body)?;
        Some((entity_tag(xxh3_128(&body).to_be_bytes()), body))
    };
    let projected = work::run(read.waiting(), bytes, Problem::NOT_PROJECTED, project).await?;
    let (etag, body) = projected.ok_or(Problem::NOT_PROJECTED)?;
    Ok(build_response(read.request, &etag, || vec![body.into()]).await)
}

/// The response with `document` or the range of it that the request names. An encoding that the document does not have
/// yet is made, and kept with the document.
async fn whole_or_part(read: &ReadRequest<'_>, document: &Document) -> Response<FullBody> {
    let request = read.request;
    if !request.preconditions().if_match_holds(&document.etag()) {
        return Problem::PRECONDITION_FAILED.into_full_response();
    }
    if *request.method == Method::GET
        && let Some(part) = range_response(request, document)
    {
        return part;
    }
    let encoding = match document_response(request, document) {
        Ok(response) => return response,
        Err(encoding) => encoding,
    };
    let body = [Bytes::from_owner(document.clone())];
    // If it can't be made now, the document is sent without it.
    let response = match encode_parts(encoding, &body).await {
        Some(encoded) => {
            let documents = read.documents;
            let document = documents.keep_encoded(read.id, document, encoding, &encoded);
            document_response(request, &document)
        }
        None => Ok(unencoded_response(request, document, &document.etag())),
    };
    // The document has the encoding that was just made, so this does not fail.
    response.unwrap_or_else(|_| Problem::NOT_PROJECTED.into_full_response())
}
