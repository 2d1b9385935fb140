//! The dashboard, `GET /`: a page that shows what the other paths of the admin address tell. `larder dispatch` has one of its
//! own, which shares the files.
//!
//! Its files are in the binary, and no build makes them. They need no admin token, since they contain no data: the page
//! asks for the token. uPlot 1.6.32 (MIT), which draws the charts, comes from npm's `uplot`: `dashboard/renew` fetches it,
//! and `dashboard/uplot` holds it with its licence and checksums.

use std::slice::from_ref;

use axum::Router;

use crate::http::page::{HTML, PageFile, SCRIPT, STYLE, file_routes};

/// The page of `larder serve`.
pub(super) static SERVE_PAGE: PageFile = own("/", HTML, include_bytes!("dashboard/index.html"));

/// The page of `larder dispatch`.
pub(super) static DISPATCH_PAGE: PageFile =
    own("/", HTML, include_bytes!("dashboard/dispatch.html"));

/// What the pages load.
static FILES: [PageFile; 12] = [
    own(
        "/dashboard/style.css",
        STYLE,
        include_bytes!("dashboard/style.css"),
    ),
    own(
        "/dashboard/main.js",
        SCRIPT,
        include_bytes!("dashboard/main.js"),
    ),
    own(
        "/dashboard/api.js",
        SCRIPT,
        include_bytes!("dashboard/api.js"),
    ),
    own(
        "/dashboard/charts.js",
        SCRIPT,
        include_bytes!("dashboard/charts.js"),
    ),
    own(
        "/dashboard/dispatch.js",
        SCRIPT,
        include_bytes!("dashboard/dispatch.js"),
    ),
    own(
        "/dashboard/key.js",
        SCRIPT,
        include_bytes!("dashboard/key.js"),
    ),
    own(
        "/dashboard/live.js",
        SCRIPT,
        include_bytes!("dashboard/live.js"),
    ),
    own(
        "/dashboard/overview.js",
        SCRIPT,
        include_bytes!("dashboard/overview.js"),
    ),
    own(
        "/dashboard/tables.js",
        SCRIPT,
        include_bytes!("dashboard/tables.js"),
    ),
    own(
        "/dashboard/view.js",
        SCRIPT,
        include_bytes!("dashboard/view.js"),
    ),
    PageFile {
        path: "/dashboard/1.6.32/uPlot.js",
        media_type: SCRIPT,
        bytes: include_bytes!("dashboard/uplot/uPlot.iife.min.js.gz"),
        is_vendored: true,
    },
    PageFile {
        path: "/dashboard/1.6.32/uPlot.css",
        media_type: STYLE,
        bytes: include_bytes!("dashboard/uplot/uPlot.min.css.gz"),
        is_vendored: true,
    },
];

const fn own(path: &'static str, media_type: &'static str, bytes: &'static [u8]) -> PageFile {
    PageFile {
        path,
        media_type,
        bytes,
        is_vendored: false,
    }
}

/// Adds the routes of `page` and of the files.
pub(super) fn add_to<S: Clone + Send + Sync + 'static>(
    router: Router<S>,
    page: &'static PageFile,
) -> Router<S> {
    let routes = file_routes(from_ref(page)).chain(file_routes(&FILES));
    routes.fold(router, |router, (path, methods)| {
        router.route(path, methods)
    })
}

/// Whether a page or one of the files is at `path`.
pub(super) fn has_file(path: &str) -> bool {
    path == "/" || FILES.iter().any(|file| file.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a browser transfers at most for a page, as it is sent: the vendored files compressed, its own as they are.
    const TRANSFERRED_BYTES_MAX: usize = 150_000;

    #[test]
    fn the_pages_are_small() {
        let files: usize = FILES.iter().map(|file| file.bytes.len()).sum();
        let bytes = files + SERVE_PAGE.bytes.len();
        assert!(bytes <= TRANSFERRED_BYTES_MAX, "{bytes}");
    }

    /// A file that no page names is never loaded, or loaded late.
    #[test]
    fn the_pages_name_each_file() {
        let page = [SERVE_PAGE, DISPATCH_PAGE].map(|page| page.bytes).concat();
        let page = String::from_utf8(page).unwrap();
        for file in &FILES {
            assert!(
                page.contains(&format!("\"{}\"", &file.path[1..])),
                "{}",
                file.path
            );
        }
    }

    /// The markup of a name or a key must never become elements.
    #[test]
    fn no_script_parses_html() {
        let scripts = FILES
            .iter()
            .filter(|file| file.media_type == SCRIPT && !file.is_vendored);
        for file in scripts {
            let text = std::str::from_utf8(file.bytes).unwrap();
            for parser in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "DOMParser",
                "eval(",
            ] {
                assert!(!text.contains(parser), "{} has {parser}", file.path);
            }
        }
    }
}
