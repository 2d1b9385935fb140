//! Conditional requests (RFC 9110, section 13).

use axum::http::HeaderMap;
use axum::http::header::{IF_MATCH, IF_NONE_MATCH};

use crate::cache::document::{digest, entity_tag};
use crate::cache::encoding::Encoding;
use crate::http::read::negotiate::allows;
use crate::source::writes::Condition;

/// What of `If-None-Match` names `etag`, a strong entity tag with its quotes, or that of another encoding of the same
/// that the client still takes: that tag, or `etag` itself for `*`.
///
/// Comparison is weak, as section 13.1.2 asks: `W/` before a tag does not count. Several header lines are one list.
pub(super) fn none_match<'t>(headers: &'t HeaderMap, etag: &'t [u8]) -> Option<&'t [u8]> {
    let mut lines = headers.get_all(IF_NONE_MATCH).iter();
    let takes = |encoding| allows(headers, encoding);
    lines.find_map(|value| named(value.as_bytes(), etag, Comparison::Weak, takes))
}

/// Whether `If-Match` lets what has `etag` be read (RFC 9110, section 13.1.1), in whichever encoding it names it.
pub(super) fn matches(headers: &HeaderMap, etag: &[u8]) -> bool {
    let mut lists = headers.get_all(IF_MATCH).iter().peekable();
    let takes = |_| true;
    lists.peek().is_none()
        || lists.any(|list| named(list.as_bytes(), etag, Comparison::Strong, takes).is_some())
}

/// How tags are compared (RFC 9110, section 8.8.3.2).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Strong,
    Weak,
}

/// The first tag in `list` of what has `etag`, as it is or in an encoding that `takes` says yes to.
fn named<'t>(
    mut list: &'t [u8],
    etag: &'t [u8],
    comparison: Comparison,
    takes: impl Fn(Encoding) -> bool,
) -> Option<&'t [u8]> {
    if list.trim_ascii() == b"*" {
        return Some(etag);
    }
    loop {
        list = list.trim_ascii_start();
        if let Some(rest) = list.strip_prefix(b",") {
            list = rest;
            continue;
        }
        let (weak, tag) = match list.strip_prefix(b"W/") {
            Some(tag) => (true, tag),
            None => (false, list),
        };
        // A tag may hold commas, so it ends at its own closing quote.
        let inner = tag.strip_prefix(b"\"")?;
        let length = inner.iter().position(|&byte| byte == b'"')?;
        let (tag, rest) = tag.split_at(length + 2);
        let same = tag == etag || encoding_of(tag, etag).is_some_and(&takes);
        if same && (comparison == Comparison::Weak || !weak) {
            return Some(tag);
        }
        list = rest;
    }
}

/// The encoding whose name `tag` has before its closing quote, where it is `etag` but for that.
fn encoding_of(tag: &[u8], etag: &[u8]) -> Option<Encoding> {
    let plain = etag.strip_suffix(b"\"").unwrap_or(etag);
    let suffix = tag
        .strip_prefix(plain)
        .and_then(|rest| rest.strip_prefix(b"-"));
    let name = suffix?.strip_suffix(b"\"")?;
    let mut encodings = Encoding::ALL.into_iter();
    encodings.find(|encoding| encoding.name().as_bytes() == name)
}

/// Whether `If-None-Match: *` says that nothing must exist.
pub(super) fn is_if_none_match_any(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(IF_NONE_MATCH).iter();
    values.any(|value| value.as_bytes().trim_ascii() == b"*")
}

/// What `If-Match` and `If-None-Match` ask of the document that a write finds.
pub(super) fn condition(headers: &HeaderMap) -> Option<Condition> {
    let lists = |name| -> Vec<Vec<u8>> {
        let values = headers.get_all(name).iter();
        values.map(|value| value.as_bytes().to_vec()).collect()
    };
    let (wanted, unwanted) = (lists(IF_MATCH), lists(IF_NONE_MATCH));
    if wanted.is_empty() && unwanted.is_empty() {
        return None;
    }
    Some(Box::new(move |document| {
        let Some(document) = document else {
            return wanted.is_empty();
        };
        let etag = entity_tag(digest(document));
        let matches = wanted.is_empty()
            || wanted
                .iter()
                .any(|list| named(list, &etag, Comparison::Strong, |_| true).is_some());
        matches
            && !unwanted
                .iter()
                .any(|list| named(list, &etag, Comparison::Weak, |_| true).is_some())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn if_match_is_strong_but_for_the_encoding() {
        let etag = b"\"b\"";
        for list in [
            "\"b\"",
            "\"a\", \"b\"",
            " , \"b-gzip\"",
            "*",
            " * ",
            "W/\"b\", \"b\"",
        ] {
            assert!(
                named(list.as_bytes(), etag, Comparison::Strong, |_| true).is_some(),
                "{list}"
            );
        }
        for list in [
            "",
            "W/\"b\"",
            "\"a\"",
            "b",
            "\"bc\"",
            "\"b",
            "\"a\", *",
            "\"a\" \"c\"",
        ] {
            assert!(
                named(list.as_bytes(), etag, Comparison::Strong, |_| true).is_none(),
                "{list}"
            );
        }
    }

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
            assert_eq!(
                named(list.as_bytes(), etag, Comparison::Weak, |_| true),
                Some(&etag[..]),
                "{list}"
            );
        }
        let encoded = b"\"x\", W/\"b-gzip\"";
        assert_eq!(
            named(encoded, etag, Comparison::Weak, |_| true),
            Some(&b"\"b-gzip\""[..])
        );
        assert_eq!(
            named(encoded, etag, Comparison::Weak, |_| false),
            None,
            "the client takes it no more"
        );
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
            assert_eq!(
                named(list.as_bytes(), etag, Comparison::Weak, |_| true),
                None,
                "{list}"
            );
        }
    }
}
