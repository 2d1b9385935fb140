//! Conditional requests (RFC 9110, section 13).

use axum::http::HeaderMap;
use axum::http::header::IF_NONE_MATCH;

/// Whether `If-None-Match` names `etag`, a strong entity tag with its quotes, or `*`.
///
/// Comparison is weak, as section 13.1.2 asks: `W/` before a tag does not count. Several header lines are one list.
pub(super) fn none_match_fails(headers: &HeaderMap, etag: &[u8]) -> bool {
    headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .any(|value| names(value.as_bytes(), etag))
}

fn names(mut list: &[u8], etag: &[u8]) -> bool {
    loop {
        list = list.trim_ascii_start();
        if list == b"*" {
            return true;
        }
        if let Some(rest) = list.strip_prefix(b",") {
            list = rest;
            continue;
        }
        let tag = list.strip_prefix(b"W/").unwrap_or(list);
        // A tag may hold commas, so it ends at its own closing quote.
        let Some(length) = tag
            .strip_prefix(b"\"")
            .and_then(|inner| inner.iter().position(|&byte| byte == b'"'))
        else {
            return false;
        };
        let (tag, rest) = tag.split_at(length + 2);
        if tag == etag {
            return true;
        }
        list = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_searched_and_weakness_does_not_count() {
        let etag = b"\"b\"";
        for list in [
            "\"b\"",
            "W/\"b\"",
            "\"a\", \"b\"",
            "\"a,x\", W/\"b\"",
            "*",
            " , \"b\"",
        ] {
            assert!(names(list.as_bytes(), etag), "{list}");
        }
        // A tag has no escapes: this one ends before x, and what follows is no list.
        for list in [
            "\"a,\\\"x\", W/\"b\"",
            "",
            "\"a\"",
            "b",
            "\"b",
            "\"a\" \"c\"",
            "\"ab\"",
            ",",
        ] {
            assert!(!names(list.as_bytes(), etag), "{list}");
        }
    }
}
