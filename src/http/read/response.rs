//! Responses with documents: 200, 206, 304 and 416, with content encodings.

use axum::body::{Body, Bytes};
use axum::http::header::{
    ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use tokio::sync::Semaphore;

use crate::cache::document::Document;
use crate::cache::encoding::Encoding;
use crate::http::answers::PIECE_BYTES;
use crate::http::full_body::FullBody;
use crate::http::headers::APPLICATION_JSON;
use crate::http::problem::Problem;
use crate::http::range::RangeRequest;
use crate::http::read::composition::Composed;
use crate::http::request::{Request, TargetPart};
use crate::http::work::run_blocking;

const ACCEPT_ENCODING: HeaderValue = HeaderValue::from_static("accept-encoding");
const BYTES: HeaderValue = HeaderValue::from_static("bytes");

/// Headers of a response, with those of `cache_headers`.
const HEADERS: usize = 6;
/// The same with `Content-Location`: a map of headers that grows is hashed again.
const HEADERS_BY_ALIAS: usize = 7;

/// A shorter body fits about one packet with or without an encoding, and clients do not request ranges of it.
const ENCODED_BYTES_MIN: usize = 1_024;

/// A longer body is encoded by tokio's threads for blocking work, not by the workers.
const INLINE_BYTES_MAX: usize = 16 << 10;

/// Longer bodies that are encoded at the same time. While so many are, others are sent without an encoding.
static ENCODERS: Semaphore = Semaphore::const_new(2);

/// The response with a whole document, from what the document already has. Ignores `If-Match`.
///
/// # Errors
/// The encoding that the client prefers, if the document does not have it yet.
pub(super) fn document_response(
    request: &Request<'_>,
    document: &Document,
) -> Result<Response<FullBody>, Encoding> {
    let etag = document.etag();
    if let Some(response) = not_modified(request, &etag) {
        return Ok(response);
    }
    let bytes = document.body().len();
    if let Some(encoding) = worthwhile_encoding(request, bytes) {
        let encoded = document.encoded(encoding).ok_or(encoding)?;
        if !encoded.as_ref().is_empty() {
            let body = FullBody::new(Bytes::from_owner(encoded));
            return Ok(ok_response(request, &etag, Some(encoding), bytes, body));
        }
    }
    Ok(unencoded_response(request, document, &etag))
}

/// 200 with a whole document without an encoding.
pub(super) fn unencoded_response(
    request: &Request<'_>,
    document: &Document,
    etag: &[u8],
) -> Response<FullBody> {
    let body = FullBody::new(Bytes::from_owner(document.clone()));
    ok_response(request, etag, None, document.body().len(), body)
}

/// The response with the bytes that `Range` names, without an encoding; `None` if the whole document is to be sent.
pub(super) fn range_response(
    request: &Request<'_>,
    document: &Document,
) -> Option<Response<FullBody>> {
    let etag = document.etag();
    let bytes = document.body().len();
    if request.preconditions().find_none_match(&etag).is_some() {
        return None;
    }
    let (content_range, part) = match request.range(&etag, bytes) {
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
            // A short range does not hold a long document while it is sent.
            let body = if part.len() <= PIECE_BYTES {
                Bytes::copy_from_slice(document.body().get(part).unwrap_or_default())
            } else {
                Bytes::from_owner(document.clone()).slice(part)
            };
            let mut response = ok_response(request, &etag, None, bytes, FullBody::new(body));
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

/// The response with a body that is built for it, in the encoding that the client prefers. It supports no ranges.
pub(super) async fn build_response(
    request: &Request<'_>,
    etag: &[u8],
    body: impl FnOnce() -> Vec<Bytes>,
) -> Response<FullBody> {
    if !request.preconditions().if_match_holds(etag) {
        return Problem::PRECONDITION_FAILED.into_full_response();
    }
    if let Some(response) = not_modified(request, etag) {
        return response;
    }
    let parts = body();
    let bytes = parts.iter().map(Bytes::len).sum();
    let wanted = worthwhile_encoding(request, bytes);
    let encoded = match wanted {
        Some(encoding) => encode_parts(encoding, &parts).await,
        None => None,
    };
    let mut response = match encoded.filter(|encoded| !encoded.is_empty()) {
        Some(encoded) => ok_response(request, etag, wanted, bytes, FullBody::new(encoded.into())),
        None => ok_response(request, etag, None, bytes, FullBody::from_parts(parts)),
    };
    response.headers_mut().remove(ACCEPT_RANGES);
    response
}

/// The response with a body of many documents. `HEAD` gets none, and the headers of a response without an encoding.
pub(super) async fn composed_response(request: &Request<'_>, composed: Composed) -> Response<Body> {
    let Composed {
        etag,
        bytes,
        parts,
        reservation,
    } = composed;
    let is_head = *request.method == Method::HEAD;
    let mut response = build_response(request, &etag, || parts).await;
    if is_head && response.status() == StatusCode::OK {
        let headers = response.headers_mut();
        headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes));
        if bytes >= ENCODED_BYTES_MIN {
            headers.insert(VARY, ACCEPT_ENCODING);
        }
    }
    response.map(|body| reservation.into_body(body))
}

/// Encodes the concatenation of `parts`. The result is empty if it would not be smaller, and `None` if too many bodies
/// are being encoded.
pub(super) async fn encode_parts(encoding: Encoding, parts: &[Bytes]) -> Option<Vec<u8>> {
    let bytes: usize = parts.iter().map(Bytes::len).sum();
    if bytes <= INLINE_BYTES_MAX {
        return Some(encoding.encode(parts).unwrap_or_default());
    }
    let _permit = ENCODERS.try_acquire().ok()?;
    let parts = parts.to_vec();
    let encoded = run_blocking(move || encoding.encode(&parts).unwrap_or_default());
    encoded.await.ok()
}

/// The encoding that the client prefers, if a body of so many bytes is long enough for one.
fn worthwhile_encoding(request: &Request<'_>, bytes: usize) -> Option<Encoding> {
    if bytes < ENCODED_BYTES_MIN {
        None
    } else {
        request.preferred_encoding()
    }
}

/// 304, or 412 to a `POST`, if the client has the body of `etag` in an encoding that it accepts.
fn not_modified(request: &Request<'_>, etag: &[u8]) -> Option<Response<FullBody>> {
    let tag = request.preconditions().find_none_match(etag)?;
    // RFC 9110, section 13.1.2. `:batch` reads by POST.
    if !request.method.is_safe() {
        return Some(Problem::PRECONDITION_FAILED.into_full_response());
    }
    let mut response = Response::new(FullBody::default());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    let mut headers = headers_of(request);
    if let Ok(tag) = HeaderValue::from_bytes(tag) {
        headers.insert(ETAG, tag);
    }
    headers.insert(VARY, ACCEPT_ENCODING);
    *response.headers_mut() = headers;
    Some(response)
}

/// An empty map with room for the headers of a response.
fn headers_of(request: &Request<'_>) -> HeaderMap {
    HeaderMap::with_capacity(match request.target.part {
        TargetPart::Alias { .. } => HEADERS_BY_ALIAS,
        _ => HEADERS,
    })
}

/// 200 with a JSON body that has `bytes` without an encoding. hyper adds `Content-Length`, and drops the body for `HEAD`.
fn ok_response(
    request: &Request<'_>,
    etag: &[u8],
    encoding: Option<Encoding>,
    bytes: usize,
    body: FullBody,
) -> Response<FullBody> {
    let mut headers = headers_of(request);
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
