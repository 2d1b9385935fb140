//! `GET` and `HEAD` of one document.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header::{IF_MATCH, RANGE};
use axum::http::{HeaderMap, Method, Response};
use xxhash_rust::xxh3::xxh3_128;

use crate::cache::document::{Document, entity_tag};
use crate::clock::Boottime;
use crate::http::conditional::matches;
use crate::http::full_body::FullBody;
use crate::http::headers::LARDER_TOKEN;
use crate::http::problem::Problem;
use crate::http::read::cache_headers::detail;
use crate::http::read::negotiate::accepts_json;
use crate::http::read::reading::Reading;
use crate::http::read::{Answered, query, response};
use crate::http::request::{MissedKey, Part, Request};
use crate::http::state::HttpState;
use crate::resource::ResourceId;
use crate::resource::projection::Projection;

/// The answer, if the request gets a document that memory has and may answer; else its key is noted as missed. All else
/// is [`read_document`]'s; `HEAD` as well, since HTTP/2 sends the body that it is given.
#[inline]
pub(in crate::http) fn try_memory(
    state: &HttpState,
    request: &mut Request<'_>,
) -> Option<Response<FullBody>> {
    let (Some(id), Part::Document { key }) = (request.target.resource, request.target.part) else {
        return None;
    };
    let headers = request.headers;
    if *request.method != Method::GET
        || request.uri.query().is_some()
        || headers.contains_key(LARDER_TOKEN)
        || headers.contains_key(RANGE)
        || headers.contains_key(IF_MATCH)
        || !accepts_json(headers)
    {
        return None;
    }
    let began = Boottime::now();
    let current = state.documents.current(id);
    let resource = current.as_ref()?;
    let key = resource.key.canonical(request.key(key)).ok()?;
    let Some(answer) = state.documents.try_memory(id, &key, began) else {
        request.missed = Some(MissedKey {
            resource: Arc::clone(resource),
            key: key.into_owned(),
            at: began,
        });
        return None;
    };
    let mut response = match &answer.found {
        Some(document) => response::document(headers, document).ok()?,
        None => Problem::NO_SUCH_DOCUMENT.into_full_response(),
    };
    let cache_headers = state.cache_headers(id)?;
    let key = Some((&resource.key, &*key));
    cache_headers.add(&mut response, answer.provenance, key);
    state.count_hit(id, response.status(), began);
    Some(response)
}

/// Answers with the document whose key begins at `key` in the path.
pub(in crate::http) async fn read_document(
    state: &HttpState,
    mut request: Request<'_>,
    id: ResourceId,
    key: usize,
) -> Answered<Body> {
    let mut reading = Reading::begin(state, &request, id)?;
    if let Some(query) = request.uri.query() {
        reading.fields = query::fields(query, &reading.resource)?;
    }
    let missed = request.missed.take();
    let missed = missed.filter(|missed| Arc::ptr_eq(&missed.resource, &reading.resource));
    let (key, answer) = match missed {
        Some(MissedKey { key, at, .. }) => {
            let answer = reading.documents.read_missed(id, &key, at).await?;
            (key, answer)
        }
        None => {
            let key = reading
                .resource
                .key
                .canonical(request.key(key))?
                .into_owned();
            let answer = reading.documents.read(id, &key, &reading.tokens).await?;
            (key, answer)
        }
    };
    let mut response = match &answer.found {
        None => Problem::NO_SUCH_DOCUMENT.into_full_response(),
        Some(document) => match &reading.fields {
            Some(fields) => projected(&reading, fields, document).await?,
            None => whole_or_part(&reading, document, request.method).await,
        },
    };
    let key = (&reading.resource.key, &*key);
    let cache_headers = reading.cache_headers;
    cache_headers.add(&mut response, answer.provenance, Some(key));
    Ok((detail(answer.provenance), response.map(Body::new)))
}

/// The members of `document` that are wanted.
async fn projected(
    reading: &Reading<'_>,
    fields: &Projection,
    document: &Document,
) -> Result<Response<FullBody>, Problem> {
    let mut body = Vec::new();
    let written = fields.write(document.body(), &mut body);
    written.ok_or(Problem::NOT_PROJECTED)?;
    let etag = entity_tag(xxh3_128(&body).to_be_bytes());
    Ok(response::made(reading.headers, &etag, || vec![body.into()]).await)
}

/// `document`, or what `Range` asks for of it. An encoding that it does not have yet is made and kept beside it.
async fn whole_or_part(
    reading: &Reading<'_>,
    document: &Document,
    method: &Method,
) -> Response<FullBody> {
    let headers = reading.headers;
    if !matches(headers, &document.etag()) {
        return Problem::PRECONDITION_FAILED.into_full_response();
    }
    if *method == Method::GET
        && let Some(part) = response::part(headers, document)
    {
        return part;
    }
    let encoding = match response::document(headers, document) {
        Ok(response) => return response,
        Err(encoding) => encoding,
    };
    let body = [Bytes::from_owner(document.clone())];
    // Where it can't be made now, the document is sent as if it were no smaller.
    let response = match response::encoded(encoding, &body).await {
        Some(encoded) => {
            let documents = reading.documents;
            let document = documents.keep_encoded(reading.id, document, encoding, &encoded);
            response::document(headers, &document)
        }
        None => response::document(&HeaderMap::new(), document),
    };
    // An encoding that was just made is there.
    response.unwrap_or_else(|_| Problem::NOT_PROJECTED.into_full_response())
}
