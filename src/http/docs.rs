//! `/docs`: Swagger UI, which shows `/openapi.json` in a browser and loads nothing from other servers.
//!
//! Swagger UI 5.35.0 (Apache-2.0) comes from npm's `swagger-ui-dist`: `docs/renew` fetches it, and `docs/swagger-ui`
//! holds it with its licences and checksums.

use std::future::ready;

use axum::Router;

use crate::http::page::{HTML, PageFile, SCRIPT, STYLE, file_routes};
use crate::http::problem::Problem;
use crate::http::router::with_options;

const FILES: [PageFile; 4] = [
    PageFile {
        path: "/docs",
        media_type: HTML,
        bytes: include_bytes!("docs/index.html"),
        is_vendored: false,
    },
    PageFile {
        path: "/docs/start.js",
        media_type: SCRIPT,
        bytes: include_bytes!("docs/start.js"),
        is_vendored: false,
    },
    PageFile {
        path: "/docs/5.35.0/swagger-ui-bundle.js",
        media_type: SCRIPT,
        bytes: include_bytes!("docs/swagger-ui/swagger-ui-bundle.js.gz"),
        is_vendored: true,
    },
    PageFile {
        path: "/docs/5.35.0/swagger-ui.css",
        media_type: STYLE,
        bytes: include_bytes!("docs/swagger-ui/swagger-ui.css.gz"),
        is_vendored: true,
    },
];

/// The routes of the page and its files.
pub(super) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let routes = file_routes(&FILES).fold(Router::new(), |router, (path, methods)| {
        router.route(path, with_options(methods))
    });
    // The router adds Allow.
    routes.method_not_allowed_fallback(|| ready(Problem::METHOD_NOT_ALLOWED.into_response()))
}
