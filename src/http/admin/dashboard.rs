//! The dashboard, `GET /`: a page that shows what the other paths of the admin address tell.
//!
//! Its files are in the binary, and no build makes them. They need no admin token, since they contain no data: the page
//! asks for the token. uPlot 1.6.32 (MIT), which draws the charts, comes from npm's `uplot`: `dashboard/renew` fetches it,
//! and `dashboard/uplot` holds it with its licence and checksums.

use axum::Router;

use crate::http::page::{HTML, PageFile, SCRIPT, STYLE, file_routes};

static FILES: [PageFile; 11] = [
    own("/", HTML, include_bytes!("dashboard/index.html")),
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
        "/dashboard/key.js",
        SCRIPT,
        include_bytes!("dashboard/key.js"),
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

/// Adds the routes of the page and its files.
pub(super) fn add_to<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    file_routes(&FILES).fold(router, |router, (path, methods)| {
        router.route(path, methods)
    })
}

/// Whether the page or one of its files is at `path`.
pub(super) fn has_file(path: &str) -> bool {
    FILES.iter().any(|file| file.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a browser transfers for the page, as it is sent: the vendored files compressed, its own as they are.
    const TRANSFERRED_BYTES_MAX: usize = 150_000;

    #[test]
    fn the_page_is_small() {
        let bytes: usize = FILES.iter().map(|file| file.bytes.len()).sum();
        assert!(bytes <= TRANSFERRED_BYTES_MAX, "{bytes}");
    }

    /// A file that the page does not name is never loaded, or loaded late.
    #[test]
    fn the_page_names_each_file() {
        let page = include_str!("dashboard/index.html");
        for file in FILES.iter().filter(|file| file.path != "/") {
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
