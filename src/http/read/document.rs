//! `GET` and `HEAD` of one document.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{Method, Response};
use xxhash_rust::xxh3::xxh3_128;

use crate::auth::{Principal, Right};
use crate::cache::document::{Document, entity_tag};
use crate::clock::Boottime;
use crate::http::answers::PIECE_BYTES;
use crate::http::full_body::FullBody;
use crate::http::problem::Problem;
use crate::http::read::cache_headers::detail;
use crate::http::read::reading::ReadRequest;
use crate::http::read::response::{
    build_response, document_response, encode_parts, range_response, unencoded_response,
};
use crate::http::read::{ReadResult, query};
use crate::http::request::{MissedKey, Request, TargetPart};
use crate::http::scope::scope_of;
use crate::http::state::HttpState;
use crate::http::work;
use crate::resource::ResourceId;
use crate::resource::projection::Projection;

/// A longer document takes part in the memory of answers (`http::answers`).
const UNRESERVED_BYTES_MAX: usize = 64 << 10;

/// The response, if the request is a `GET` of one document that memory may answer. If memory does not have the key, it is
/// noted in the request as missed. Other requests are left to [`read_document`]; `HEAD` too, since hyper would send the
/// body over HTTP/2.
#[inline]
pub(in crate::http) fn try_memory(
    state: &HttpState,
    request: &mut Request<'_>,
    principal: Option<&Principal>,
) -> Option<Response<FullBody>> {
    let (Some(id), TargetPart::Document { key }) = (request.target.resource, request.target.part)
    else {
        return None;
    };
    if *request.method != Method::GET || request.uri.query().is_some() || !request.is_plain() {
        return None;
    }
    let began = Boottime::now();
    let current = state.documents.current(id);
    let resource = current.as_ref()?;
    let key = resource.key.canonical(request.key(key)).ok()?;
    let scope = scope_of(principal, id, resource.owner.as_ref(), Right::Read);
    let Some(answer) = state.documents.try_memory(id, &key, &scope, began) else {
        request.missed = Some(MissedKey {
            resource: Arc::clone(resource),
            key: key.into_owned(),
            at: began,
        });
        return None;
    };
    let mut response = match &answer.found {
        Some(document) if document.body().len() > UNRESERVED_BYTES_MAX => return None,
        Some(document) => document_response(request, document).ok()?,
        None => Problem::NO_SUCH_DOCUMENT.into_full_response(),
    };
    let cache_headers = state.cache_headers(id)?;
    let key = Some((&resource.key, &*key));
    cache_headers.add(&mut response, answer.provenance, key);
    state.count_hit(id, response.status(), began);
    Some(response)
}

/// Answers with the document of the key that begins at `key` in the path.
pub(in crate::http) async fn read_document(
    state: &HttpState,
    mut request: Request<'_>,
    id: ResourceId,
    key: usize,
) -> ReadResult<Body> {
    let missed = request.missed.take();
    let request = &request;
    let mut read = ReadRequest::begin(state, request, id)?;
    if let Some(query) = request.uri.query() {
        read.fields = query::parse_fields(query, &read.resource)?.map(Arc::new);
    }
    let missed = missed.filter(|missed| Arc::ptr_eq(&missed.resource, &read.resource));
    let (key, answer) = match missed {
        Some(MissedKey { key, at, .. }) => {
            let answer = read
                .documents
                .read_missed(id, &key, &read.scope, at)
                .await?;
            (key, answer)
        }
        None => {
            let key = read.resource.key.canonical(request.key(key))?.into_owned();
            let documents = read.documents;
            let answer = documents.read(id, &key, &read.tokens, &read.scope).await?;
            (key, answer)
        }
    };
    let mut response = match &answer.found {
        None => Problem::NO_SUCH_DOCUMENT.into_full_response(),
        Some(document) => match &read.fields {
            Some(fields) => project(&read, fields, document).await?,
            None => whole_or_part(&read, document).await,
        },
    };
    let key = (&read.resource.key, &*key);
    let cache_headers = read.cache_headers;
    cache_headers.add(&mut response, answer.provenance, Some(key));
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
        None => Ok(unencoded_response(document)),
    };
    // The document has the encoding that was just made, so this does not fail.
    response.unwrap_or_else(|_| Problem::NOT_PROJECTED.into_full_response())
}
