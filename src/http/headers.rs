//! Headers and media types that several modules use.

use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use axum::http::{HeaderMap, HeaderValue};

use crate::http::problem::Problem;
use crate::source::token::{Token, TokenError};

pub(super) const LARDER_TOKEN: HeaderName = HeaderName::from_static("larder-token");
pub(super) const LARDER_UNREADABLE: HeaderName = HeaderName::from_static("larder-unreadable");
pub(super) const ACCEPT_PATCH: HeaderName = HeaderName::from_static("accept-patch");
pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub(super) const PREFER: HeaderName = HeaderName::from_static("prefer");
pub(super) const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

pub(super) const JSON: &str = "application/json";
pub(super) const NDJSON: &str = "application/x-ndjson";
pub(super) const MERGE_PATCH: &str = "application/merge-patch+json";
/// The value of `Accept-Patch`.
pub(super) const PATCH_TYPES: &str = "application/merge-patch+json, application/json";
pub(super) const APPLICATION_JSON: HeaderValue = HeaderValue::from_static(JSON);

pub(super) const RETURN_MINIMAL: &str = "return=minimal";
pub(super) const RETURN_REPRESENTATION: &str = "return=representation";
pub(super) const HANDLING_LENIENT: &str = "handling=lenient";

/// The members of a list that may be spread over several header lines (RFC 9110, section 5.3); empty ones as well.
#[inline]
pub(super) fn members(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(name).iter();
    let members = lines.flat_map(|line| line.to_str().unwrap_or_default().split(','));
    members.map(str::trim_ascii)
}

/// Adds `Allow`, and where `methods` has `PATCH`, `Accept-Patch` (RFC 5789, section 3.1).
pub(super) fn add_allow(headers: &mut HeaderMap, methods: &'static str) {
    headers.insert(ALLOW, HeaderValue::from_static(methods));
    if methods.contains("PATCH") {
        headers.insert(ACCEPT_PATCH, HeaderValue::from_static(PATCH_TYPES));
    }
}

/// What `Cache-Control` of a request asks for (RFC 9111, section 5.2.1), as far as larder obeys it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CacheDirectives {
    /// `no-cache` or `max-age=0`.
    pub(super) strict: bool,
    pub(super) only_if_cached: bool,
}

/// Reads `Cache-Control` of a request.
#[inline]
pub(super) fn cache_directives(headers: &HeaderMap) -> CacheDirectives {
    let mut directives = CacheDirectives::default();
    for line in headers.get_all(CACHE_CONTROL) {
        for member in line.as_bytes().split(|byte| *byte == b',') {
            let mut parts = member.splitn(2, |byte| *byte == b'=');
            let name = parts.next().unwrap_or_default().trim_ascii();
            let argument = parts.next().unwrap_or_default().trim_ascii();
            if name.eq_ignore_ascii_case(b"no-cache") {
                directives.strict = true;
            } else if name.eq_ignore_ascii_case(b"only-if-cached") {
                directives.only_if_cached = true;
            } else if name.eq_ignore_ascii_case(b"max-age") {
                directives.strict |= is_zero(argument);
            }
        }
    }
    directives
}

/// Whether an argument, which may be quoted, is the number 0.
fn is_zero(argument: &[u8]) -> bool {
    let quoted = argument
        .strip_prefix(b"\"")
        .and_then(|rest| rest.strip_suffix(b"\""));
    let digits = quoted.unwrap_or(argument);
    !digits.is_empty() && digits.iter().all(|byte| *byte == b'0')
}

/// The transactions that the response must reflect.
///
/// # Errors
/// 400 if one of the tokens is malformed.
pub(super) fn parse_tokens(headers: &HeaderMap) -> Result<Vec<Token>, Problem> {
    let malformed = |why: TokenError| Problem::bad_request(format!("Larder-Token: {why}"));
    members(headers, LARDER_TOKEN)
        .map(|token| token.parse().map_err(malformed))
        .collect()
}

/// The one of the media types `accepted` that `Content-Type` names; its parameters are ignored.
///
/// # Errors
/// 415 if it names another.
pub(super) fn media_type<'a>(
    headers: &HeaderMap,
    accepted: &[&'a str],
) -> Result<&'a str, Problem> {
    let content_type = headers.get(CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok());
    let sent = content_type.and_then(|value| value.split(';').next());
    let sent = sent.unwrap_or_default().trim();
    let mut accepted_types = accepted.iter();
    let found = accepted_types.find(|accepted| accepted.eq_ignore_ascii_case(sent));
    let unsupported = || Problem::unsupported_media_type(&accepted.join(" or "));
    found.copied().ok_or_else(unsupported)
}

/// The first of the preferences `known` that the client sends (RFC 7240). They exclude each other.
pub(super) fn find_preference(headers: &HeaderMap, known: &[&'static str]) -> Option<&'static str> {
    let mut found = members(headers, PREFER).filter_map(|preference| {
        let preference = preference.split(';').next().unwrap_or_default();
        let plain: String = preference
            .chars()
            .filter(|sign| !matches!(sign, ' ' | '\t' | '"'))
            .collect();
        let same = |known: &&&str| known.eq_ignore_ascii_case(&plain);
        known.iter().find(same).copied()
    });
    found.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_have_any_case_and_any_number_of_lines() {
        let of = |lines: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(CACHE_CONTROL, HeaderValue::from_static(line));
            }
            let directives = cache_directives(&headers);
            (directives.strict, directives.only_if_cached)
        };
        for lines in [
            &["no-cache"][..],
            &["No-Cache"],
            &["no-store,NO-CACHE"],
            &["no-store", "no-cache"],
            &["max-age=0"],
            &["Max-Age = \"0\""],
            &["max-age=5, max-age=00"],
        ] {
            assert_eq!(of(lines), (true, false), "{lines:?}");
        }
        for lines in [
            &[][..],
            &[""],
            &["max-age=1"],
            &["max-age=10"],
            &["max-age"],
            &["max-age=-0"],
            &["no-store, no-transform"],
            &["no-cached", "xno-cache"],
        ] {
            assert_eq!(of(lines), (false, false), "{lines:?}");
        }
        assert_eq!(of(&["Only-If-Cached"]), (false, true));
        assert_eq!(of(&["max-age=0", "only-if-cached"]), (true, true));
    }

    #[test]
    fn the_first_known_preference_counts() {
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(PREFER, HeaderValue::from_static(value));
            }
            find_preference(&headers, &[RETURN_MINIMAL, RETURN_REPRESENTATION])
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&["respond-async"]), None);
        assert_eq!(of(&["return=minimal"]), Some(RETURN_MINIMAL));
        assert_eq!(
            of(&["wait=3, Return = \"minimal\"; x=1"]),
            Some(RETURN_MINIMAL)
        );
        let both = ["return=representation", "return=minimal"];
        assert_eq!(of(&both), Some(RETURN_REPRESENTATION));
    }
}
