//! `GET` and `HEAD /RESOURCE/KEY`.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{
    AGE, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderName, WARNING,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use percent_encoding::percent_decode_str;
use tokio::time::Instant;

use crate::cache::document::Document;
use crate::cache::{Answer, Way};
use crate::feed::position::{Token, TokenError};
use crate::http::Api;
use crate::http::conditional::none_match_fails;
use crate::http::problem::Problem;

const LARDER_TOKEN: HeaderName = HeaderName::from_static("larder-token");
const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");
const APPLICATION_JSON: HeaderValue = HeaderValue::from_static("application/json");
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache");
/// RFC 7234, section 5.5.1; obsolete since RFC 9111, but what caches say.
const STALE_WARNING: HeaderValue = HeaderValue::from_static("110 larder \"Response is Stale\"");
const METHODS: &str = "GET, HEAD";

/// Answers every path of the public address.
pub(super) async fn answer(State(api): State<Api>, request: Request<Body>) -> Response<Body> {
    let began = Instant::now();
    // No method answered here reads a body.
    let (head, _body) = request.into_parts();
    let name = head.uri.path().split('/').nth(1).unwrap_or_default();
    let name = percent_decode_str(name)
        .decode_utf8()
        .unwrap_or(Cow::Borrowed(""));
    let index = api.cache.index_of(&name);
    let outcome = lookup(&api, index, &head).await;
    let (detail, response) = match outcome {
        Ok(answer) => (detail(answer.way), respond(&answer, &head.headers)),
        Err(problem) => {
            let detail = if problem.status().is_client_error() {
                "request"
            } else {
                "postgres"
            };
            (detail, problem.into_response())
        }
    };
    // Only configured names become labels: clients must not be able to add any.
    let label: &str = if index.is_some() { &name } else { "" };
    let status = response.status();
    api.metrics
        .requests
        .with_label_values(&[label, detail, status.as_str()])
        .inc();
    api.metrics
        .request_duration
        .observe(began.elapsed().as_secs_f64());
    response
}

async fn lookup(api: &Api, index: Option<usize>, head: &Parts) -> Result<Answer, Problem> {
    let mut segments = head.uri.path().split('/').skip(2);
    let (key, index) = match (segments.next(), segments.next(), index) {
        (Some(key), None, Some(index)) => (key, index),
        (Some(_), None, None) => return Err(Problem::no_such_resource()),
        _ => return Err(Problem::no_such_path()),
    };
    if !matches!(head.method, Method::GET | Method::HEAD) {
        return Err(Problem::method_not_allowed(METHODS));
    }
    let tokens = tokens(&head.headers)?;
    let key = api.cache.canonical_key(index, key)??;
    Ok(match tokens.as_slice() {
        [] => api.cache.lookup(index, &key).await?,
        tokens => api.cache.lookup_after(index, &key, tokens).await?,
    })
}

/// The transactions that the answer must show. Whoever stands between may join several headers (RFC 9110, 5.3).
fn tokens(headers: &HeaderMap) -> Result<Vec<Token>, Problem> {
    let values = headers.get_all(LARDER_TOKEN).iter();
    let listed = values.flat_map(|value| value.to_str().unwrap_or_default().split(','));
    listed
        .map(|token| token.trim().parse())
        .map(|token| {
            token.map_err(|why: TokenError| Problem::bad_request(format!("Larder-Token: {why}")))
        })
        .collect()
}

/// The value of label `detail`.
fn detail(way: Way) -> &'static str {
    match way {
        Way::Memory => "memory",
        Way::Disk => "disk",
        Way::Miss { .. } => "postgres",
        Way::Bypass { .. } => "feed",
        Way::Ahead { .. } => "token",
        Way::Stale { .. } => "stale",
    }
}

/// RFC 9211.
fn cache_status(way: Way) -> HeaderValue {
    HeaderValue::from_static(match way {
        Way::Memory => "larder; hit; detail=memory",
        Way::Disk => "larder; hit; detail=disk",
        Way::Miss {
            stored: true,
            collapsed: false,
        } => "larder; fwd=miss; stored; detail=postgres",
        Way::Miss {
            stored: true,
            collapsed: true,
        } => "larder; fwd=miss; stored; detail=postgres; collapsed",
        Way::Miss {
            stored: false,
            collapsed: false,
        } => "larder; fwd=miss; detail=postgres",
        Way::Miss {
            stored: false,
            collapsed: true,
        } => "larder; fwd=miss; detail=postgres; collapsed",
        Way::Bypass { collapsed: false } => "larder; fwd=bypass; detail=feed",
        Way::Bypass { collapsed: true } => "larder; fwd=bypass; detail=feed; collapsed",
        Way::Ahead { collapsed: false } => "larder; fwd=request; detail=token",
        Way::Ahead { collapsed: true } => "larder; fwd=request; detail=token; collapsed",
        Way::Stale { .. } => "larder; hit; detail=stale",
    })
}

fn respond(answer: &Answer, headers: &HeaderMap) -> Response<Body> {
    let mut response = match &answer.found {
        None => Problem::no_such_document().into_response(),
        Some(document) => document_response(document, headers),
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_STATUS, cache_status(answer.way));
    headers.insert(CACHE_CONTROL, NO_CACHE);
    if let Way::Stale { age } = answer.way {
        headers.insert(AGE, HeaderValue::from(age.as_secs()));
        headers.insert(WARNING, STALE_WARNING);
    }
    response
}

fn document_response(document: &Arc<Document>, headers: &HeaderMap) -> Response<Body> {
    let mut response = if none_match_fails(headers, &document.etag) {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        let mut response = Response::new(Body::from(document.body.clone()));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, APPLICATION_JSON);
        // For HEAD the server leaves the body away and sends this all the same.
        headers.insert(CONTENT_LENGTH, HeaderValue::from(document.body.len()));
        response
    };
    // A quoted hexadecimal number is always a valid header value.
    if let Ok(etag) = HeaderValue::from_maybe_shared(document.etag.clone()) {
        response.headers_mut().insert(ETAG, etag);
    }
    response
}
