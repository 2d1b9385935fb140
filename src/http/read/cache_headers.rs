//! Headers for caches: where a response came from, how long it may be kept, and the keys that it is purged by.

use axum::body::Bytes;
use axum::http::header::{AGE, CACHE_CONTROL, CACHE_STATUS, HeaderName, WARNING};
use axum::http::{HeaderValue, Response};

use crate::cache::Provenance;
use crate::resource::key::KeyShape;

const NO_CACHE: &str = "no-cache";
/// RFC 7234, section 5.5.1. RFC 9111 made it obsolete, but caches still send it.
const STALE_WARNING: HeaderValue = HeaderValue::from_static("110 larder \"Response is Stale\"");
/// Names by which shared caches purge several responses; Fastly and Varnish use this header.
const SURROGATE_KEY: HeaderName = HeaderName::from_static("surrogate-key");
/// `Cache-Status` of most responses. The compiler checks the characters of a constant; those of the others are checked for
/// each response.
const MEMORY_HIT: HeaderValue = HeaderValue::from_static("larder; hit; detail=memory");
/// What `Cache-Status` of a strict read ends with.
const STRICT: &[u8] = b"; strict";
/// The placeholder for the key in a resource's surrogate keys.
const KEY: &str = "{key}";

/// Who may read a document of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Everyone, without credentials.
    Everyone,
    /// Clients with certain credentials, all of the documents.
    Authenticated,
    /// Some clients all of the documents, others those that they own.
    Owners,
}

/// The headers for caches in a resource's responses, as configured.
#[derive(Clone, Debug)]
pub struct CacheHeaders {
    cache_control: HeaderValue,
    /// `Cache-Control` of a response that may be stale.
    stale: HeaderValue,
    surrogate_key: Option<String>,
    /// Whether requests may be strict.
    pub(in crate::http) allows_strict: bool,
}

impl CacheHeaders {
    /// Takes values that the configuration has checked: `Cache-Control`, and surrogate keys, in which `{key}` is replaced
    /// by a document's key.
    ///
    /// If credentials are needed, `private` is added, unless `Cache-Control` has `public` or `private` already: a shared
    /// cache does not reuse the response to a request with `Authorization` (RFC 9111, section 3.5), but it may reuse one to
    /// a request with a cookie or `X-API-Key`. `Vary` on these headers would prevent that too, but a cache would then store
    /// a copy for each client, and return it even after the credential has been revoked; and many caches store nothing that
    /// has such a `Vary`. For owners `public` is removed, since one client must not get what another one was answered.
    pub fn new(
        cache_control: Option<&str>,
        surrogate_key: Option<&str>,
        audience: Audience,
    ) -> Self {
        let configured = cache_control.unwrap_or(NO_CACHE);
        let has = |directive| {
            configured
                .split(',')
                .any(|member| is_directive(member, directive))
        };
        let private = |directives: &str| match directives {
            "" => "private".to_owned(),
            directives => format!("private, {directives}"),
        };
        let value = |directives: &str| {
            HeaderValue::try_from(match audience {
                Audience::Authenticated if !has("public") && !has("private") => private(directives),
                Audience::Owners if !has("private") => private(&without_public(directives)),
                Audience::Owners => without_public(directives),
                Audience::Everyone | Audience::Authenticated => directives.to_owned(),
            })
        };
        let no_cache = HeaderValue::from_static(NO_CACHE);
        Self {
            cache_control: value(configured).unwrap_or_else(|_| no_cache.clone()),
            stale: value(NO_CACHE).unwrap_or(no_cache),
            surrogate_key: surrogate_key.map(str::to_owned),
            allows_strict: true,
        }
    }

    /// As `strict_reads` of the resource is configured.
    #[must_use]
    pub fn with_strict_reads(self, allows_strict: bool) -> Self {
        Self {
            allows_strict,
            ..self
        }
    }

    /// Adds the headers to a response that came from `provenance`, to a strict read or not. `key` is the canonical key of a response with one
    /// document.
    pub(in crate::http) fn add(
        &self,
        response: &mut Response<impl Sized>,
        provenance: Provenance,
        is_strict: bool,
        key: Option<(&KeyShape, &str)>,
    ) {
        let headers = response.headers_mut();
        let mut status = cache_status(provenance);
        if is_strict {
            let strict = [status.as_bytes(), STRICT].concat();
            status = HeaderValue::from_maybe_shared(Bytes::from(strict)).unwrap_or(status);
        }
        headers.insert(CACHE_STATUS, status);
        if let Provenance::Stale { age } = provenance {
            headers.insert(CACHE_CONTROL, self.stale.clone());
            headers.insert(AGE, HeaderValue::from(age.as_secs()));
            headers.insert(WARNING, STALE_WARNING);
        } else {
            headers.insert(CACHE_CONTROL, self.cache_control.clone());
        }
        let names = self.surrogate_key.as_ref();
        let names = names.map(|template| surrogate_key(template, key));
        if let Some(names) = names.filter(|names| !names.is_empty())
            && let Ok(value) = HeaderValue::try_from(names)
        {
            headers.insert(SURROGATE_KEY, value);
        }
    }
}

/// Whether a member of `Cache-Control` is this directive without an argument.
fn is_directive(member: &str, directive: &str) -> bool {
    member.trim_ascii().eq_ignore_ascii_case(directive)
}

/// The value of `Cache-Control` without the directive `public`.
fn without_public(directives: &str) -> String {
    let members = directives.split(',');
    let members: Vec<&str> = members
        .filter(|member| !is_directive(member, "public"))
        .collect();
    members.join(",").trim_ascii_start().to_owned()
}

/// The value of `Surrogate-Key`. For many documents it has only the names without a key: with the others the header
/// would be longer than proxies accept.
fn surrogate_key(template: &str, key: Option<(&KeyShape, &str)>) -> String {
    match key {
        Some((shape, key)) => template.replace(KEY, &shape.encoded(key)),
        None => {
            let words = template.split_ascii_whitespace();
            let words: Vec<&str> = words.filter(|word| !word.contains(KEY)).collect();
            words.join(" ")
        }
    }
}

/// The value of the metrics' label `detail`.
pub(in crate::http) fn detail(provenance: Provenance) -> &'static str {
    match provenance {
        Provenance::Memory => "memory",
        Provenance::Disk => "disk",
        Provenance::Miss { .. } | Provenance::Undisclosed => "postgres",
        Provenance::Bypass { .. } => "feed",
        Provenance::Uncached { .. } => "uncached",
        Provenance::Token { .. } => "token",
        Provenance::Stale { .. } => "stale",
    }
}

/// The value of `Cache-Status` (RFC 9211).
fn cache_status(provenance: Provenance) -> HeaderValue {
    HeaderValue::from_static(match provenance {
        Provenance::Memory => return MEMORY_HIT,
        Provenance::Disk => "larder; hit; detail=disk",
        Provenance::Miss {
            stored: true,
            collapsed: false,
        } => "larder; fwd=miss; stored; detail=postgres",
        Provenance::Miss {
            stored: true,
            collapsed: true,
        } => "larder; fwd=miss; stored; detail=postgres; collapsed",
        Provenance::Miss {
            stored: false,
            collapsed: false,
        } => "larder; fwd=miss; detail=postgres",
        Provenance::Miss {
            stored: false,
            collapsed: true,
        } => "larder; fwd=miss; detail=postgres; collapsed",
        Provenance::Bypass { collapsed: false } => "larder; fwd=bypass; detail=feed",
        Provenance::Bypass { collapsed: true } => "larder; fwd=bypass; detail=feed; collapsed",
        Provenance::Uncached { collapsed: false } => "larder; fwd=bypass; detail=uncached",
        Provenance::Uncached { collapsed: true } => {
            "larder; fwd=bypass; detail=uncached; collapsed"
        }
        Provenance::Token { collapsed: false } => "larder; fwd=request; detail=token",
        Provenance::Token { collapsed: true } => "larder; fwd=request; detail=token; collapsed",
        Provenance::Stale { .. } => "larder; hit; detail=stale",
        Provenance::Undisclosed => "larder; fwd=miss",
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::metrics::Metrics;

    use super::*;

    #[test]
    fn every_detail_begins_at_zero() {
        let metrics = Metrics::new().unwrap();
        metrics.begin_resource("items");
        let text = metrics.render().unwrap();
        let (stored, collapsed) = (true, true);
        let age = Duration::ZERO;
        for provenance in [
            Provenance::Memory,
            Provenance::Disk,
            Provenance::Miss { stored, collapsed },
            Provenance::Undisclosed,
            Provenance::Bypass { collapsed },
            Provenance::Uncached { collapsed },
            Provenance::Token { collapsed },
            Provenance::Stale { age },
        ] {
            let detail = detail(provenance);
            let labels = format!("{{detail=\"{detail}\",resource=\"items\",status=\"200\"}}");
            assert!(
                text.contains(&format!("larder_requests_total{labels} 0\n")),
                "{detail}"
            );
            let duration =
                format!("larder_request_duration_seconds_count{{detail=\"{detail}\"}} 0\n");
            assert!(text.contains(&duration), "{detail}");
        }
    }

    #[test]
    fn shared_caches_keep_only_what_needs_no_credentials() {
        let of = |cache_control, audience| {
            let headers = CacheHeaders::new(cache_control, None, audience);
            headers.cache_control.to_str().unwrap().to_owned()
        };
        for (said, limited) in [
            (None, "private, no-cache"),
            (Some("max-age=60"), "private, max-age=60"),
            (Some("max-age=60, Public"), "max-age=60, Public"),
            (Some("private"), "private"),
            (Some("private=\"etag\""), "private, private=\"etag\""),
            (Some("publicly"), "private, publicly"),
        ] {
            assert_eq!(of(said, Audience::Authenticated), limited);
            let unlimited = of(said, Audience::Everyone);
            assert_eq!(unlimited, said.unwrap_or(NO_CACHE));
        }
        for (said, owned) in [
            (None, "private, no-cache"),
            (Some("max-age=60, Public"), "private, max-age=60"),
            (Some("public,max-age=60"), "private, max-age=60"),
            (Some("no-cache, private"), "no-cache, private"),
            (Some("public, private"), "private"),
            (Some("public"), "private"),
        ] {
            assert_eq!(of(said, Audience::Owners), owned);
        }
        let stale = |audience| CacheHeaders::new(None, None, audience).stale;
        assert_eq!(stale(Audience::Authenticated), "private, no-cache");
        assert_eq!(stale(Audience::Owners), "private, no-cache");
        assert_eq!(stale(Audience::Everyone), NO_CACHE);
    }
}
