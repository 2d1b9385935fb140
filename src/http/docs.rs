//! `/docs`: the description of [`crate::http::openapi`] to be read in a browser, without any other server.
//!
//! Swagger UI 5.35.0 (Apache-2.0) out of npm's `swagger-ui-dist`, as `docs/renew` takes it; `docs/swagger-ui` holds it
//! with its licences and checksums. It is kept compressed and sent so to everyone: all browsers take gzip.

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

use crate::cache::document::entity_tag;
use crate::http::conditional::none_match;
use crate::http::problem::Problem;

/// Nothing but this server's own files and API, and Swagger UI's icons, which are in its style sheet.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// What a path with a version holds never changes.
const FOREVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache");

/// A file of the page.
#[derive(Clone, Copy)]
struct File {
    path: &'static str,
    media_type: &'static str,
    bytes: &'static [u8],
    /// Of the package: compressed, and its path holds the version.
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

/// Answers the page and its files.
pub(super) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let routes = FILES.into_iter().fold(Router::new(), |routes, file| {
        let answer = move |asked: HeaderMap| ready(file.answer(&asked));
        routes.route(file.path, get(answer))
    });
    // The router adds Allow, which it alone knows.
    routes.method_not_allowed_fallback(|| ready(Problem::wrong_method().into_response()))
}

impl File {
    fn answer(self, asked: &HeaderMap) -> Response<Body> {
        let bytes = Bytes::from_static(self.bytes);
        let mut response = tagged(asked, self.media_type, bytes);
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

/// 200 with `body`, or 304 where the client has it; to be asked for again each time.
pub(super) fn tagged(asked: &HeaderMap, media_type: &'static str, body: Bytes) -> Response<Body> {
    let etag = entity_tag(xxh3_128(&body).to_be_bytes());
    let mut response = Response::new(Body::empty());
    if none_match(asked, &etag).is_some() {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else {
        *response.body_mut() = Body::from(body);
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CACHE_CONTROL, NO_CACHE);
    // A quoted hexadecimal number is always a valid header value.
    if let Ok(etag) = HeaderValue::from_bytes(&etag) {
        headers.insert(ETAG, etag);
    }
    response
}
