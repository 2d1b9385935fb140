//! Web pages that are in the binary: `/docs`, and the dashboard of the admin address. They load nothing from other servers.

use std::future::ready;

use axum::body::{Body, Bytes};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use axum::routing::{MethodRouter, get};
use xxhash_rust::xxh3::xxh3_128;

use crate::cache::document::{ETAG_BYTES, entity_tag};
use crate::http::conditional::Preconditions;

/// Allows this server's own files and API, and icons that are in style sheets; nothing else.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// For paths with a version: their content never changes.
const FOREVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");
/// Caches must revalidate.
pub(super) const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache");

/// A file of a page.
#[derive(Clone, Copy)]
pub(super) struct PageFile {
    pub(super) path: &'static str,
    pub(super) media_type: &'static str,
    pub(super) bytes: &'static [u8],
    /// From a package: compressed with gzip, which all browsers accept, with the version in its path.
    pub(super) is_vendored: bool,
}

pub(super) const HTML: &str = "text/html; charset=utf-8";
pub(super) const SCRIPT: &str = "text/javascript; charset=utf-8";
pub(super) const STYLE: &str = "text/css; charset=utf-8";

/// The path of each of the files, with what answers there.
pub(super) fn file_routes<S: Clone + Send + Sync + 'static>(
    files: &'static [PageFile],
) -> impl Iterator<Item = (&'static str, MethodRouter<S>)> {
    files.iter().map(|file| {
        let respond = move |headers: HeaderMap| ready(file.response(&headers));
        (file.path, get(respond))
    })
}

impl PageFile {
    fn response(&self, request_headers: &HeaderMap) -> Response<Body> {
        let bytes = Bytes::from_static(self.bytes);
        let mut response = tagged(request_headers, self.media_type, bytes);
        let headers = response.headers_mut();
        headers.insert(CONTENT_SECURITY_POLICY, POLICY);
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if self.is_vendored {
            headers.insert(CACHE_CONTROL, FOREVER);
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }
}

/// As [`tagged_as`], with the entity tag of `body`.
fn tagged(request_headers: &HeaderMap, media_type: &'static str, body: Bytes) -> Response<Body> {
    let etag = entity_tag(xxh3_128(&body).to_be_bytes());
    tagged_as(&etag, request_headers, media_type, Body::from(body))
}

/// 200 with `body`, whose entity tag is `etag`, or 304 if the client has it. Caches must revalidate it.
pub(super) fn tagged_as(
    etag: &[u8; ETAG_BYTES],
    request_headers: &HeaderMap,
    media_type: &'static str,
    body: Body,
) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    if Preconditions::of(request_headers)
        .find_none_match(etag)
        .is_some()
    {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else {
        *response.body_mut() = body;
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CACHE_CONTROL, NO_CACHE);
    // A quoted hexadecimal number is always a valid header value.
    if let Ok(etag) = HeaderValue::from_bytes(etag) {
        headers.insert(ETAG, etag);
    }
    response
}
