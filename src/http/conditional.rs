//! Conditional requests (RFC 9110, section 13).

use axum::http::HeaderMap;
use axum::http::header::IF_NONE_MATCH;

use crate::cache::encoding::Encoding;

/// What of `If-None-Match` names `etag`, a strong entity tag with its quotes, or that of another encoding of the same:
/// that tag, or `etag` itself for `*`.
///
/// Comparison is weak, as section 13.1.2 asks: `W/` before a tag does not count. Several header lines are one list.
pub(super) fn none_match<'t>(headers: &'t HeaderMap, etag: &'t [u8]) -> Option<&'t [u8]> {
    let mut lines = headers.get_all(IF_NONE_MATCH).iter();
    lines.find_map(|value| named(value.as_bytes(), etag))
}

fn named<'t>(mut list: &'t [u8], etag: &'t [u8]) -> Option<&'t [u8]> {
    loop {
        list = list.trim_ascii_start();
        if list == b"*" {
            return Some(etag);
        }
        if let Some(rest) = list.strip_prefix(b",") {
            list = rest;
            continue;
        }
        let tag = list.strip_prefix(b"W/").unwrap_or(list);
        // A tag may hold commas, so it ends at its own closing quote.
        let inner = tag.strip_prefix(b"\"")?;
        let length = inner.iter().position(|&byte| byte == b'"')?;
        let (tag, rest) = tag.split_at(length + 2);
        if is_of_same(tag, etag) {
            return Some(tag);
        }
        list = rest;
    }
}

/// Whether `tag` is `etag`, or `etag` with the name of an encoding before its closing quote.
fn is_of_same(tag: &[u8], etag: &[u8]) -> bool {
    if tag == etag {
        return true;
    }
    let plain = etag.strip_suffix(b"\"").unwrap_or(etag);
    let suffix = tag
        .strip_prefix(plain)
        .and_then(|rest| rest.strip_prefix(b"-"));
    let name = suffix.and_then(|rest| rest.strip_suffix(b"\""));
    let mut encodings = Encoding::ALL.iter();
    name.is_some_and(|name| encodings.any(|encoding| encoding.name().as_bytes() == name))
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
            assert_eq!(named(list.as_bytes(), etag), Some(&etag[..]), "{list}");
        }
        let encoded = b"\"x\", W/\"b-gzip\"";
        assert_eq!(named(encoded, etag), Some(&b"\"b-gzip\""[..]));
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
            "\"b-\"",
            "\"b-lzma\"",
            "\"-gzip\"",
        ] {
            assert_eq!(named(list.as_bytes(), etag), None, "{list}");
        }
    }
}
