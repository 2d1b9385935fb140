//! A request as one typed value, which the middleware stack makes once. What follows reads neither the path nor the
//! client's address again.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Uri, Version};
use ipnet::IpNet;
use percent_encoding::percent_decode_str;

use crate::auth::{Principal, Right};
use crate::cache::encoding::Encoding;
use crate::cache::{Demand, Strict};
use crate::clock::Boottime;
use crate::documents::Scope;
use crate::http::conditional::Preconditions;
use crate::http::forwarded;
use crate::http::headers::{
    IDEMPOTENCY_KEY, LARDER_TOKEN, cache_directives, find_preference, media_type, parse_tokens,
};
use crate::http::negotiate::{accepts_json, preferred_encoding};
use crate::http::problem::Problem;
use crate::http::range::{RangeRequest, requested_range};
use crate::http::scope::scope_of;
use crate::resource::{Resource, ResourceId};

/// Follows the name of a resource and a colon if the body names the documents. No resource's name contains a colon.
const BATCH: &str = "batch";

/// Follows the name of a resource, before the name of an alias.
const BY: &str = "by";

/// Exchanges a name and a password for a token.
pub(super) const SIGNIN: &str = "/signin";
/// Exchanges a token for a newer one.
pub(super) const REFRESH: &str = "/refresh";
/// Removes the cookie with the token.
pub(super) const SIGNOUT: &str = "/signout";
/// The paths of sessions.
const SESSIONS: [&str; 3] = [SIGNIN, REFRESH, SIGNOUT];

/// What the path of a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestTarget {
    /// The resource whose name begins the path, if there is one.
    pub(super) resource: Option<ResourceId>,
    pub(super) part: TargetPart,
}

/// The part of a resource that a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetPart {
    /// `/RESOURCE`: its documents.
    Collection,
    /// `/RESOURCE:batch`: the documents that the body names.
    Batch,
    /// `/RESOURCE/KEY`: one document.
    Document {
        /// Where the key begins in the path.
        key: usize,
    },
    /// `/RESOURCE/by/NAME/VALUE`: the document that an alias leads to.
    Alias {
        /// Where the name of the alias begins in the path.
        name: usize,
        /// Where its value begins.
        value: usize,
    },
    /// [`SIGNIN`], [`REFRESH`] or [`SIGNOUT`], unless a resource has that name.
    Session,
    /// No part of a resource.
    Unknown,
}

impl RequestTarget {
    /// Splits `path`; `id_of` finds a resource by its name, which may be percent-encoded in the path. The key is not decoded,
    /// since it has to be split at its commas before.
    #[inline]
    pub(super) fn parse(path: &str, id_of: impl FnOnce(&str) -> Option<ResourceId>) -> Self {
        let rest = path.strip_prefix('/').unwrap_or(path);
        let (segment, key) = match split_segment(rest) {
            Some((segment, key)) => (segment, Some(key)),
            None => (rest, None),
        };
        let segment = decoded(segment);
        let (name, operation) = match segment.split_once(':') {
            Some((name, operation)) => (name, Some(operation)),
            None => (&*segment, None),
        };
        let resource = id_of(name);
        let part = match (operation, key) {
            (None, None) if resource.is_none() && SESSIONS.contains(&path) => TargetPart::Session,
            (None, None) => TargetPart::Collection,
            (Some(BATCH), None) => TargetPart::Batch,
            (None, Some(rest)) => match split_segment(rest) {
                None => TargetPart::Document {
                    key: path.len() - rest.len(),
                },
                Some((by, rest)) if decoded(by) == BY => TargetPart::alias(path, rest),
                Some(_) => TargetPart::Unknown,
            },
            _ => TargetPart::Unknown,
        };
        Self { resource, part }
    }

    /// The right that a request with this method needs.
    pub(super) fn right(self, method: &Method) -> Right {
        match (method, self.part) {
            (&Method::GET | &Method::HEAD, _) | (&Method::POST, TargetPart::Batch) => Right::Read,
            _ => Right::Write,
        }
    }
}

impl TargetPart {
    /// The part that `path` names, which ends with `rest`: what follows [`BY`].
    fn alias(path: &str, rest: &str) -> Self {
        match split_segment(rest) {
            Some((name, value)) if split_segment(value).is_none() => Self::Alias {
                name: path.len() - value.len() - 1 - name.len(),
                value: path.len() - value.len(),
            },
            _ => Self::Unknown,
        }
    }

    /// The methods that are allowed, as in `Allow`; fewer if the resource is not `writable`.
    pub(super) fn methods(self, writable: bool) -> &'static str {
        match self {
            Self::Batch => "POST, OPTIONS",
            Self::Alias { .. } => "GET, HEAD, OPTIONS",
            _ if !writable => "GET, HEAD, OPTIONS",
            Self::Document { .. } => "GET, HEAD, PUT, PATCH, DELETE, OPTIONS",
            Self::Collection | Self::Session | Self::Unknown => "GET, HEAD, POST, OPTIONS",
        }
    }
}

/// A borrowed view of a request's head, independent of the type that owns it.
#[derive(Clone, Copy)]
pub(super) struct RequestHead<'r> {
    pub(super) method: &'r Method,
    pub(super) uri: &'r Uri,
    pub(super) version: Version,
    pub(super) headers: &'r HeaderMap,
}

impl<'r> RequestHead<'r> {
    pub(super) fn of<B>(request: &'r axum::http::Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            version: request.version(),
            headers: request.headers(),
        }
    }

    pub(super) fn of_parts(parts: &'r Parts) -> Self {
        Self {
            method: &parts.method,
            uri: &parts.uri,
            version: parts.version,
            headers: &parts.headers,
        }
    }
}

/// A request: its head, and what the middleware has found out about it.
pub(super) struct Request<'r> {
    pub(super) method: &'r Method,
    pub(super) uri: &'r Uri,
    pub(super) version: Version,
    pub(super) headers: &'r HeaderMap,
    pub(super) target: RequestTarget,
    /// `None` for a request without credentials.
    pub(super) principal: Option<Arc<Principal>>,
    /// The key that memory does not have.
    pub(super) missed: Option<MissedKey>,
    peer: IpAddr,
    trusted_proxies: &'r [IpNet],
    client: OnceLock<IpAddr>,
    /// As [`Request::forwarded_host`], of a request that passes the router.
    forwarded_host: Option<HeaderValue>,
}

/// The canonical key of a document that memory did not have.
#[derive(Clone)]
pub(super) struct MissedKey {
    /// The definition of the resource that made the key canonical. A lookup under a newer definition makes it canonical
    /// again.
    pub(super) resource: Arc<Resource>,
    pub(super) key: String,
    /// The time of the lookup in memory.
    pub(super) at: Boottime,
}

/// What the middleware has found out about a request. It passes axum's router as an extension of the request.
#[derive(Clone)]
pub(super) struct RequestContext {
    target: RequestTarget,
    principal: Option<Arc<Principal>>,
    missed: Option<MissedKey>,
    client: IpAddr,
    forwarded_host: Option<HeaderValue>,
}

impl<'r> Request<'r> {
    /// A request from `peer`, which is the client unless it is one of the `trusted_proxies`.
    #[inline]
    pub(super) fn new(
        head: RequestHead<'r>,
        target: RequestTarget,
        peer: IpAddr,
        trusted_proxies: &'r [IpNet],
    ) -> Self {
        let RequestHead {
            method,
            uri,
            version,
            headers,
        } = head;
        Self {
            method,
            uri,
            version,
            headers,
            target,
            principal: None,
            missed: None,
            peer,
            trusted_proxies,
            client: OnceLock::new(),
            forwarded_host: None,
        }
    }

    /// Its head.
    pub(super) fn head(&self) -> RequestHead<'r> {
        RequestHead {
            method: self.method,
            uri: self.uri,
            version: self.version,
            headers: self.headers,
        }
    }

    /// The same request behind the router.
    pub(super) fn resume(head: &'r Parts, context: RequestContext) -> Self {
        let RequestContext {
            target,
            principal,
            missed,
            client,
            forwarded_host,
        } = context;
        Self {
            principal,
            missed,
            client: OnceLock::from(client),
            forwarded_host,
            ..Self::new(RequestHead::of_parts(head), target, client, &[])
        }
    }

    /// Takes out what is known about the request, so that it can pass the router.
    pub(super) fn take_context(&mut self) -> RequestContext {
        RequestContext {
            client: self.client(),
            forwarded_host: self.forwarded_host().cloned(),
            target: self.target,
            principal: self.principal.take(),
            missed: self.missed.take(),
        }
    }

    /// The client's address, which is found out at the first call.
    pub(super) fn client(&self) -> IpAddr {
        let found = || forwarded::client(self.peer, self.headers, self.trusted_proxies);
        *self.client.get_or_init(found)
    }

    /// The host that a trusted proxy was called by.
    pub(super) fn forwarded_host(&self) -> Option<&HeaderValue> {
        let found = || forwarded::host(self.peer, self.headers, self.trusted_proxies);
        self.forwarded_host.as_ref().or_else(found)
    }

    /// The resource and the part of it that the path names.
    ///
    /// # Errors
    /// 404 if it names none.
    pub(super) fn resource(&self) -> Result<(ResourceId, TargetPart), Problem> {
        match (self.target.resource, self.target.part) {
            (Some(resource), part) if part != TargetPart::Unknown => Ok((resource, part)),
            (None, TargetPart::Document { .. } | TargetPart::Alias { .. }) => {
                Err(Problem::NO_SUCH_RESOURCE)
            }
            _ => Err(Problem::NO_SUCH_PATH),
        }
    }

    /// The key of the document, as it stands in the path from the position `key` on: that of [`TargetPart::Document`].
    pub(super) fn key(&self, key: usize) -> &'r str {
        self.uri.path().get(key..).unwrap_or_default()
    }

    /// The text between two positions of the path: the name of an alias, as [`TargetPart::Alias`] has its begin and that of
    /// its value.
    pub(super) fn alias_name(&self, name: usize, value: usize) -> Cow<'r, str> {
        decoded(self.uri.path().get(name..value - 1).unwrap_or_default())
    }

    /// What follows `?`.
    pub(super) fn query(&self) -> &'r str {
        self.uri.query().unwrap_or_default()
    }

    /// What it demands of the documents that it reads, from now on. It may be strict if it `may_be_strict`.
    ///
    /// # Errors
    /// 400 if a token is malformed.
    pub(super) fn demand(&self, may_be_strict: bool) -> Result<Demand, Problem> {
        let directives = cache_directives(self.headers);
        let is_strict = directives.strict && may_be_strict;
        Ok(Demand {
            strict: is_strict.then(Strict::arriving),
            tokens: parse_tokens(self.headers)?,
            only_if_cached: directives.only_if_cached,
        })
    }

    /// Whether memory may answer it: it has no header that the answer of memory would ignore. `If-None-Match` and
    /// `Accept-Encoding` are obeyed. It may be strict if it `may_be_strict`.
    #[inline]
    pub(super) fn is_plain(&self, may_be_strict: bool) -> bool {
        let directives = cache_directives(self.headers);
        let is_strict = directives.strict && may_be_strict;
        !is_strict
            && !directives.only_if_cached
            && !self.headers.contains_key(LARDER_TOKEN)
            && !self.headers.contains_key(RANGE)
            && !self.preconditions().has_if_match()
            && self.accepts_json()
    }

    /// Whether the client accepts JSON.
    #[inline]
    pub(super) fn accepts_json(&self) -> bool {
        accepts_json(self.headers)
    }

    /// The encoding of a body that the client prefers; `None` for no encoding.
    #[inline]
    pub(super) fn preferred_encoding(&self) -> Option<Encoding> {
        preferred_encoding(self.headers)
    }

    /// The conditions on the document that it reads or writes.
    #[inline]
    pub(super) fn preconditions(&self) -> Preconditions<'r> {
        Preconditions::of(self.headers)
    }

    /// The range of a body of so many `bytes` that it asks for; the whole one if `If-Range` does not name `etag`.
    pub(super) fn range(&self, etag: &[u8], bytes: usize) -> RangeRequest {
        requested_range(self.headers, etag, bytes)
    }

    /// The first of the preferences `known` that the client sends. They exclude each other.
    pub(super) fn preference(&self, known: &[&'static str]) -> Option<&'static str> {
        find_preference(self.headers, known)
    }

    /// Which of the media types `accepted` its body has.
    ///
    /// # Errors
    /// 415 if it has another or none.
    pub(super) fn media_type<'a>(&self, accepted: &[&'a str]) -> Result<&'a str, Problem> {
        media_type(self.headers, accepted)
    }

    /// Whether `Content-Type` is sent.
    pub(super) fn has_media_type(&self) -> bool {
        self.headers.contains_key(CONTENT_TYPE)
    }

    /// Whether `Content-Range` is sent: the body is a part of a document.
    pub(super) fn has_content_range(&self) -> bool {
        self.headers.contains_key(CONTENT_RANGE)
    }

    /// Refuses a body before it arrives.
    ///
    /// # Errors
    /// 413 if the client tells that it is longer than `bytes_max`. The length of an encoded body is not known.
    pub(super) fn check_content_length(&self, bytes_max: usize) -> Result<(), Problem> {
        let length = self.headers.get(CONTENT_LENGTH);
        let length = length.filter(|_| !self.headers.contains_key(CONTENT_ENCODING));
        let length: Option<usize> = length.and_then(|length| length.to_str().ok()?.parse().ok());
        if length.is_some_and(|length| length > bytes_max) {
            Err(Problem::body_too_large(bytes_max))
        } else {
            Ok(())
        }
    }

    /// The value of `Idempotency-Key`.
    pub(super) fn idempotency_key(&self) -> Option<&'r HeaderValue> {
        self.headers.get(IDEMPOTENCY_KEY)
    }

    /// The documents of `resource`, whose number is `id`, on which it has `right`.
    pub(super) fn scope(&self, id: ResourceId, resource: &Resource, right: Right) -> Scope<'_> {
        scope_of(
            self.principal.as_deref(),
            id,
            resource.owner.as_ref(),
            right,
        )
    }

    /// Whether its principal may read the documents of `resource`.
    pub(super) fn may_read(&self, resource: ResourceId) -> bool {
        let principal = self.principal.as_ref();
        principal.is_none_or(|principal| principal.may_read(resource))
    }
}

/// The path of the document of `key`.
pub(super) fn document_path(resource: &Resource, key: &str) -> String {
    // No character of a resource's name needs to be percent-encoded.
    ["/", &resource.name, "/", &resource.key.encoded(key)].concat()
}

/// The first segment of a path and what follows the slash behind it; `None` if there is no slash. Segments are short: to
/// look at each byte is faster than `split_once`.
#[inline]
fn split_segment(path: &str) -> Option<(&str, &str)> {
    let slash = path.bytes().position(|byte| byte == b'/')?;
    Some((path.get(..slash)?, path.get(slash + 1..)?))
}

/// A segment of a path, percent-decoded; empty if that is not UTF-8.
fn decoded(segment: &str) -> Cow<'_, str> {
    if segment.contains('%') {
        percent_decode_str(segment)
            .decode_utf8()
            .unwrap_or_default()
    } else {
        Cow::Borrowed(segment)
    }
}

impl RequestContext {
    /// The host that a trusted proxy was called by.
    pub(super) fn forwarded_host(&self) -> Option<&HeaderValue> {
        self.forwarded_host.as_ref()
    }

    /// The client's address.
    pub(super) fn client(&self) -> IpAddr {
        self.client
    }

    /// `None` for a request without credentials.
    pub(super) fn principal(&self) -> Option<&Principal> {
        self.principal.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(path: &str) -> RequestTarget {
        RequestTarget::parse(path, |name| (name == "a").then(|| ResourceId::new(3)))
    }

    #[track_caller]
    fn is(path: &str, known: bool, part: TargetPart) {
        let resource = known.then(|| ResourceId::new(3));
        assert_eq!(target(path), RequestTarget { resource, part }, "{path}");
    }

    #[test]
    fn a_path_is_split_once_however_it_is_spelt() {
        is("/a", true, TargetPart::Collection);
        is("/%61", true, TargetPart::Collection);
        is("/a:batch", true, TargetPart::Batch);
        is("/a%3Abatch", true, TargetPart::Batch);
        is("/a:other", true, TargetPart::Unknown);
        is("/a:batch/1", true, TargetPart::Unknown);
        is("/a/", true, TargetPart::Document { key: 3 });
        is("/a/1,2%2C", true, TargetPart::Document { key: 3 });
        is("/%61/1", true, TargetPart::Document { key: 5 });
        is("/a/1/", true, TargetPart::Unknown);
        let alias = |name, value| TargetPart::Alias { name, value };
        is("/a/by/n/1%2F2", true, alias(6, 8));
        is("/%61/%62y/nn/", true, alias(10, 13));
        is("/b/by/n/1", false, alias(6, 8));
        is("/a/by", true, TargetPart::Document { key: 3 });
        for path in [
            "/a/by/",
            "/a/by/n",
            "/a/by/n/1/",
            "/a/by/n/1/2",
            "/a/b/n/1",
            "/a//n/1",
        ] {
            is(path, true, TargetPart::Unknown);
        }
        is("/a:batch/by/n/1", true, TargetPart::Unknown);
        is("/b/1", false, TargetPart::Document { key: 3 });
        is("/b", false, TargetPart::Collection);
        is("/signin", false, TargetPart::Session);
        is("/refresh", false, TargetPart::Session);
        is("/signout", false, TargetPart::Session);
        is("/%73ignin", false, TargetPart::Collection);
        is("/signin/1", false, TargetPart::Document { key: 8 });
        is("/", false, TargetPart::Collection);
        is("*", false, TargetPart::Collection);
        is("/%ff/1", false, TargetPart::Document { key: 5 });
    }

    #[test]
    fn only_a_batch_reads_by_post() {
        let right = |method, path| target(path).right(&method);
        assert_eq!(right(Method::GET, "/a/1"), Right::Read);
        assert_eq!(right(Method::HEAD, "/a:other"), Right::Read);
        assert_eq!(right(Method::GET, "/a/by/n/1"), Right::Read);
        assert_eq!(right(Method::POST, "/a:batch"), Right::Read);
        for (method, path) in [
            (Method::POST, "/a"),
            (Method::PUT, "/a:batch"),
            (Method::POST, "/a:other"),
            (Method::DELETE, "/a/1"),
            (Method::DELETE, "/a/by/n/1"),
        ] {
            assert_eq!(right(method, path), Right::Write, "{path}");
        }
    }
}
