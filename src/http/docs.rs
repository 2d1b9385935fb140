//! `/docs`: Swagger UI, which shows `/openapi.json` in a browser and loads nothing from other servers.
//!
//! Swagger UI 5.35.0 (Apache-2.0) comes from npm's `swagger-ui-dist`: `docs/renew` fetches it, and `docs/swagger-ui`
//! holds it with its licences and checksums. It is stored and sent compressed, since all browsers accept gzip.

use std::future::ready;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use axum::routing::get;
use xxhash_rust::xxh3::xxh3_128;

use crate::cache::document::{ETAG_BYTES, entity_tag};
use crate::http::conditional::Preconditions;
use crate::http::problem::Problem;
use crate::http::router::with_options;

/// Allows this server's own files and API, and Swagger UI's icons, which are in its style sheet; nothing else.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// For paths with a version: their content never changes.
const FOREVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");
/// Caches must revalidate.
pub(super) const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache");

/// A file of the page.
#[derive(Clone, Copy)]
struct File {
    path: &'static str,
    media_type: &'static str,
    bytes: &'static [u8],
    /// From the package: compressed, with the version in its path.
    vendored: bool,
}

const FILES: [File; 4] = [
    File {
        path: "/docs",
        media_type: "text/html; charset=utf-8",
        bytes: include_bytes!("docs/index.html"),
        vendored: false,
    },
    File {
        path: "/docs/start.js",
        media_type: "text/javascript; charset=utf-8",
        bytes: include_bytes!("docs/start.js"),
        vendored: false,
    },
    File {
        path: "/docs/5.35.0/swagger-ui-bundle.js",
        media_type: "text/javascript; charset=utf-8",
        bytes: include_bytes!("docs/swagger-ui/swagger-ui-bundle.js.gz"),
        vendored: true,
    },
    File {
        path: "/docs/5.35.0/swagger-ui.css",
        media_type: "text/css; charset=utf-8",
        bytes: include_bytes!("docs/swagger-ui/swagger-ui.css.gz"),
        vendored: true,
    },
];

/// The routes of the page and its files.
pub(super) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let routes = FILES.into_iter().fold(Router::new(), |routes, file| {
        let respond = move |headers: HeaderMap| ready(file.response(&headers));
        routes.route(file.path, with_options(get(respond)))
    });
    // The router adds Allow.
    routes.method_not_allowed_fallback(|| ready(Problem::METHOD_NOT_ALLOWED.into_response()))
}

impl File {
    fn response(self, request_headers: &HeaderMap) -> Response<Body> {
        let bytes = Bytes::from_static(self.bytes);
        let mut response = tagged(request_headers, self.media_type, bytes);
        let headers = response.headers_mut();
        headers.insert(CONTENT_SECURITY_POLICY, POLICY);
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if self.vendored {
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
