//! Answers that carry documents: 200, 206, 304 and 416, as they are or encoded.

use axum::body::Bytes;
use axum::http::header::{
    ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, ETAG, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use tokio::sync::Semaphore;

use crate::cache::document::Document;
use crate::cache::encoding::Encoding;
use crate::http::conditional::{matches, none_match};
use crate::http::full_body::FullBody;
use crate::http::headers::APPLICATION_JSON;
use crate::http::problem::Problem;
use crate::http::read::negotiate;
use crate::http::read::range::{self, RangeRequest};

const ACCEPT_ENCODING: HeaderValue = HeaderValue::from_static("accept-encoding");
const BYTES: HeaderValue = HeaderValue::from_static("bytes");

/// Headers of an answer, with those that say its way.
const HEADERS: usize = 6;

/// A shorter body fits a packet or so, however it is encoded, and nobody asks for parts of it.
const ENCODED_BYTES_MIN: usize = 1_024;

/// A longer body is encoded apart from the threads that answer.
const INLINE_BYTES_MAX: usize = 16 << 10;

/// Longer bodies that are encoded at once; while that many are, others are sent as they are.
static ENCODERS: Semaphore = Semaphore::const_new(2);

/// The answer with a whole document, ready at once. `If-Match` is not looked at.
///
/// # Errors
/// The encoding that is wanted and that the document does not have yet.
pub(super) fn document(
    headers: &HeaderMap,
    document: &Document,
) -> Result<Response<FullBody>, Encoding> {
    let etag = document.etag();
    if let Some(response) = not_modified(headers, &etag) {
        return Ok(response);
    }
    let bytes = document.body().len();
    if let Some(encoding) = encoding(headers, bytes) {
        let encoded = document.encoded(encoding).ok_or(encoding)?;
        if !encoded.as_ref().is_empty() {
            let body = FullBody::new(Bytes::from_owner(encoded));
            return Ok(found(&etag, Some(encoding), bytes, body));
        }
    }
    let body = FullBody::new(Bytes::from_owner(document.clone()));
    Ok(found(&etag, None, bytes, body))
}

/// The part of a document that `Range` asks for; none where it asks for all. Parts are never encoded.
pub(super) fn part(headers: &HeaderMap, document: &Document) -> Option<Response<FullBody>> {
    let etag = document.etag();
    let bytes = document.body().len();
    if none_match(headers, &etag).is_some() {
        return None;
    }
    let (content_range, part) = match range::requested(headers, &etag, bytes) {
        RangeRequest::Whole => return None,
        RangeRequest::Beyond => (format!("bytes */{bytes}"), None),
        RangeRequest::Part(part) => {
            let content_range = format!("bytes {}-{}/{bytes}", part.start, part.end - 1);
            (content_range, Some(part))
        }
    };
    let mut response = match part {
        None => Problem::range_not_satisfiable(bytes).into_full_response(),
        Some(part) => {
            let body = Bytes::from_owner(document.clone()).slice(part);
            let mut response = found(&etag, None, bytes, FullBody::new(body));
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            response
        }
    };
    let headers = response.headers_mut();
    headers.insert(ACCEPT_RANGES, BYTES);
    if let Ok(content_range) = HeaderValue::try_from(content_range) {
        headers.insert(CONTENT_RANGE, content_range);
    }
    Some(response)
}

/// The answer with a body that was made for it, encoded if it is wanted so. It takes no ranges.
pub(super) async fn made(
    headers: &HeaderMap,
    etag: &[u8],
    body: impl FnOnce() -> Vec<Bytes>,
) -> Response<FullBody> {
    if !matches(headers, etag) {
        return Problem::PRECONDITION_FAILED.into_full_response();
    }
    if let Some(response) = not_modified(headers, etag) {
        return response;
    }
    let parts = body();
    let bytes = parts.iter().map(Bytes::len).sum();
    let wanted = encoding(headers, bytes);
    let encoded = match wanted {
        Some(encoding) => encoded(encoding, &parts).await,
        None => None,
    };
    let mut response = match encoded.filter(|encoded| !encoded.is_empty()) {
        Some(encoded) => found(etag, wanted, bytes, FullBody::new(encoded.into())),
        None => found(etag, None, bytes, FullBody::from_parts(parts)),
    };
    response.headers_mut().remove(ACCEPT_RANGES);
    response
}

/// `parts`, one after the other, encoded: nothing where that is no smaller, none where it can't be done now.
pub(super) async fn encoded(encoding: Encoding, parts: &[Bytes]) -> Option<Vec<u8>> {
    let bytes: usize = parts.iter().map(Bytes::len).sum();
    if bytes <= INLINE_BYTES_MAX {
        return Some(encoding.encode(parts).unwrap_or_default());
    }
    let _permit = ENCODERS.try_acquire().ok()?;
    let parts = parts.to_vec();
    let made = tokio::task::spawn_blocking(move || encoding.encode(&parts).unwrap_or_default());
    made.await.ok()
}

/// The encoding that is wanted of a body of so many bytes, if it is worth any.
fn encoding(headers: &HeaderMap, bytes: usize) -> Option<Encoding> {
    if bytes < ENCODED_BYTES_MIN {
        None
    } else {
        negotiate::encoding(headers)
    }
}

/// 304 where the client has what `etag` stands for, in any encoding that it takes.
fn not_modified(headers: &HeaderMap, etag: &[u8]) -> Option<Response<FullBody>> {
    let tag = none_match(headers, etag)?;
    let mut response = Response::new(FullBody::default());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    let mut headers = HeaderMap::with_capacity(HEADERS);
    if let Ok(tag) = HeaderValue::from_bytes(tag) {
        headers.insert(ETAG, tag);
    }
    headers.insert(VARY, ACCEPT_ENCODING);
    *response.headers_mut() = headers;
    Some(response)
}

/// 200 with a JSON body that takes `bytes` where it is not encoded. The server adds the length, for `HEAD` as well,
/// where it leaves the body away.
fn found(
    etag: &[u8],
    encoding: Option<Encoding>,
    bytes: usize,
    body: FullBody,
) -> Response<FullBody> {
    let mut headers = HeaderMap::with_capacity(HEADERS);
    headers.insert(CONTENT_TYPE, APPLICATION_JSON);
    let tag = match encoding {
        // A quoted hexadecimal number is always a valid header value.
        None => HeaderValue::from_bytes(etag),
        Some(encoding) => {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding.name()));
            let plain = etag.strip_suffix(b"\"").unwrap_or(etag);
            HeaderValue::from_bytes(&[plain, b"-", encoding.name().as_bytes(), b"\""].concat())
        }
    };
    if let Ok(tag) = tag {
        headers.insert(ETAG, tag);
    }
    if bytes >= ENCODED_BYTES_MIN {
        headers.insert(VARY, ACCEPT_ENCODING);
        headers.insert(ACCEPT_RANGES, BYTES);
    }
    let mut response = Response::new(body);
    *response.headers_mut() = headers;
    response
}
