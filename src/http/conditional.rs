//! Conditional requests (RFC 9110, section 13).

use axum::http::HeaderMap;
use axum::http::header::{IF_MATCH, IF_NONE_MATCH};

use crate::cache::document::{digest, entity_tag};
use crate::cache::encoding::Encoding;
use crate::http::negotiate::accepts_encoding;
use crate::source::writes::Precondition;

/// The preconditions of a request, in its headers. Each is parsed when it is evaluated.
#[derive(Clone, Copy)]
pub(super) struct Preconditions<'r> {
    headers: &'r HeaderMap,
}

impl<'r> Preconditions<'r> {
    pub(super) fn of(headers: &'r HeaderMap) -> Self {
        Self { headers }
    }

    /// The entity tag in `If-None-Match` that matches `etag`, a strong tag with its quotes. It may be the tag of the same
    /// body in an encoding that the client accepts. For `*` it is `etag` itself.
    ///
    /// The comparison is weak, as section 13.1.2 requires: `W/` before a tag is ignored. Several header lines are one list.
    #[inline]
    pub(super) fn find_none_match<'t>(self, etag: &'t [u8]) -> Option<&'t [u8]>
    where
        'r: 't,
    {
        let mut lines = self.headers.get_all(IF_NONE_MATCH).iter();
        let accepts = |encoding| accepts_encoding(self.headers, encoding);
        lines.find_map(|value| find_tag(value.as_bytes(), etag, Comparison::Weak, accepts))
    }

    /// Whether the condition of `If-Match` holds for a body with `etag` (RFC 9110, section 13.1.1), in any encoding.
    pub(super) fn if_match_holds(self, etag: &[u8]) -> bool {
        let mut lists = self.headers.get_all(IF_MATCH).iter().peekable();
        let accepts = |_| true;
        lists.peek().is_none()
            || lists
                .any(|list| find_tag(list.as_bytes(), etag, Comparison::Strong, accepts).is_some())
    }

    /// Whether `If-Match` is sent.
    #[inline]
    pub(super) fn has_if_match(self) -> bool {
        self.headers.contains_key(IF_MATCH)
    }

    /// Whether `If-None-Match: *` is sent: the document must not exist.
    pub(super) fn is_if_none_match_any(self) -> bool {
        let mut values = self.headers.get_all(IF_NONE_MATCH).iter();
        values.any(|value| value.as_bytes().trim_ascii() == b"*")
    }

    /// Whether a condition names an entity tag, and not only `*`.
    pub(super) fn has_entity_tag(self) -> bool {
        let conditions = [IF_MATCH, IF_NONE_MATCH].into_iter();
        let mut values = conditions.flat_map(|name| self.headers.get_all(name));
        values.any(|value| value.as_bytes().trim_ascii() != b"*")
    }

    /// The condition of `If-Match` and `If-None-Match` on the document that a write finds.
    pub(super) fn of_write(self) -> Option<Precondition> {
        let lists = |name| -> Vec<Vec<u8>> {
            let values = self.headers.get_all(name).iter();
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
                    .any(|list| find_tag(list, &etag, Comparison::Strong, |_| true).is_some());
            matches
                && !unwanted
                    .iter()
                    .any(|list| find_tag(list, &etag, Comparison::Weak, |_| true).is_some())
        }))
    }
}

/// How tags are compared (RFC 9110, section 8.8.3.2).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Strong,
    Weak,
}

/// The first tag in `list` that matches `etag`, without an encoding or with one that `accepts` allows.
fn find_tag<'t>(
    mut list: &'t [u8],
    etag: &'t [u8],
    comparison: Comparison,
    accepts: impl Fn(Encoding) -> bool,
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
        // A tag may contain commas, so it ends at its closing quote.
        let inner = tag.strip_prefix(b"\"")?;
        let length = inner.iter().position(|&byte| byte == b'"')?;
        let (tag, rest) = tag.split_at(length + 2);
        let same = tag == etag || encoding_of(tag, etag).is_some_and(&accepts);
        if same && (comparison == Comparison::Weak || !weak) {
            return Some(tag);
        }
        list = rest;
    }
}

/// The encoding of `tag`, if `tag` is `etag` with the name of an encoding before the closing quote.
fn encoding_of(tag: &[u8], etag: &[u8]) -> Option<Encoding> {
    let plain = etag.strip_suffix(b"\"").unwrap_or(etag);
    let suffix = tag
        .strip_prefix(plain)
        .and_then(|rest| rest.strip_prefix(b"-"));
    let name = suffix?.strip_suffix(b"\"")?;
    let mut encodings = Encoding::ALL.into_iter();
    encodings.find(|encoding| encoding.name().as_bytes() == name)
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
                find_tag(list.as_bytes(), etag, Comparison::Strong, |_| true).is_some(),
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
                find_tag(list.as_bytes(), etag, Comparison::Strong, |_| true).is_none(),
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
                find_tag(list.as_bytes(), etag, Comparison::Weak, |_| true),
                Some(&etag[..]),
                "{list}"
            );
        }
        let encoded = b"\"x\", W/\"b-gzip\"";
        assert_eq!(
            find_tag(encoded, etag, Comparison::Weak, |_| true),
            Some(&b"\"b-gzip\""[..])
        );
        assert_eq!(
            find_tag(encoded, etag, Comparison::Weak, |_| false),
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
                find_tag(list.as_bytes(), etag, Comparison::Weak, |_| true),
                None,
                "{list}"
            );
        }
    }
}
