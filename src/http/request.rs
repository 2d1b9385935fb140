//! A request as one typed value, which the middleware stack makes once. What follows reads neither the path nor the
//! client's address again.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri, Version};
use ipnet::IpNet;
use percent_encoding::percent_decode_str;

use crate::auth::{Principal, Right};
use crate::clock::Boottime;
use crate::http::forwarded;
use crate::http::headers::parse_tokens;
use crate::http::problem::Problem;
use crate::resource::{Resource, ResourceId};
use crate::source::token::Token;

/// Follows the name of a resource where a body names its documents. No resource's name holds a colon.
const BATCH: &str = "batch";

/// Exchanges a name and a password for a token.
pub(super) const SIGNIN: &str = "/signin";
/// Exchanges a token for a newer one.
pub(super) const REFRESH: &str = "/refresh";

/// What the path of a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The resource whose name begins the path, if there is one.
    pub(super) resource: Option<ResourceId>,
    pub(super) part: Part,
}

/// What of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// `/RESOURCE`: its documents.
    Collection,
    /// `/RESOURCE:batch`: those of its documents that a body names.
    Batch,
    /// `/RESOURCE/KEY`: one document.
    Document {
        /// Where the key begins in the path.
        key: usize,
    },
    /// [`SIGNIN`] or [`REFRESH`], unless a resource has that name.
    Session,
    /// Nothing of it.
    Unknown,
}

impl Target {
    /// Splits `path`; `id_of` knows the resources' names. The name may be percent-encoded. The key is split at its commas
    /// before it is decoded, so it stays as it is.
    #[inline]
    pub(super) fn parse(path: &str, id_of: impl FnOnce(&str) -> Option<ResourceId>) -> Self {
        let rest = path.strip_prefix('/').unwrap_or(path);
        let (segment, key) = match rest.split_once('/') {
            Some((segment, key)) => (segment, Some(key)),
            None => (rest, None),
        };
        let segment = if segment.contains('%') {
            percent_decode_str(segment)
                .decode_utf8()
                .unwrap_or_default()
        } else {
            Cow::Borrowed(segment)
        };
        let (name, operation) = match segment.split_once(':') {
            Some((name, operation)) => (name, Some(operation)),
            None => (&*segment, None),
        };
        let resource = id_of(name);
        let part = match (operation, key) {
            (None, None) if resource.is_none() && (path == SIGNIN || path == REFRESH) => {
                Part::Session
            }
            (None, None) => Part::Collection,
            (Some(BATCH), None) => Part::Batch,
            (None, Some(key)) if !key.contains('/') => Part::Document {
                key: path.len() - key.len(),
            },
            _ => Part::Unknown,
        };
        Self { resource, part }
    }

    /// The right that an operation on it takes.
    pub(super) fn right(self, method: &Method) -> Right {
        match (method, self.part) {
            (&Method::GET | &Method::HEAD, _) | (&Method::POST, Part::Batch) => Right::Read,
            _ => Right::Write,
        }
    }
}

impl Part {
    /// The methods that it answers, for `Allow`; fewer where the resource is not `writable`.
    pub(super) fn methods(self, writable: bool) -> &'static str {
        match self {
            Self::Batch => "POST, OPTIONS",
            _ if !writable => "GET, HEAD, OPTIONS",
            Self::Document { .. } => "GET, HEAD, PUT, PATCH, DELETE, OPTIONS",
            Self::Collection | Self::Session | Self::Unknown => "GET, HEAD, POST, OPTIONS",
        }
    }
}

/// The head of a request, wherever it was read.
#[derive(Clone, Copy)]
pub(super) struct Head<'r> {
    pub(super) method: &'r Method,
    pub(super) uri: &'r Uri,
    pub(super) version: Version,
    pub(super) headers: &'r HeaderMap,
}

impl<'r> Head<'r> {
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

/// A request: its head, which the protocol's implementation has read, and what the middleware stack found out.
pub(super) struct Request<'r> {
    pub(super) method: &'r Method,
    pub(super) uri: &'r Uri,
    pub(super) version: Version,
    pub(super) headers: &'r HeaderMap,
    pub(super) target: Target,
    /// `None` where no credentials were shown.
    pub(super) principal: Option<Arc<Principal>>,
    /// The key of a document that memory did not have just now.
    pub(super) missed: Option<MissedKey>,
    peer: IpAddr,
    trusted_proxies: &'r [IpNet],
    client: OnceLock<IpAddr>,
}

/// The canonical key of a document that memory did not have.
#[derive(Clone)]
pub(super) struct MissedKey {
    /// The definition by whose types it is canonical. A lookup under a newer one makes another.
    pub(super) resource: Arc<Resource>,
    pub(super) key: String,
    /// When memory was asked.
    pub(super) at: Boottime,
}

/// What the middleware stack has found out of a request. It goes past the router among the request's extensions.
#[derive(Clone)]
pub(super) struct Resolved {
    target: Target,
    principal: Option<Arc<Principal>>,
    missed: Option<MissedKey>,
    client: IpAddr,
}

impl<'r> Request<'r> {
    /// A request that came from `peer`, which counts as the client unless it is one of the `trusted_proxies`.
    #[inline]
    pub(super) fn new(
        head: Head<'r>,
        target: Target,
        peer: IpAddr,
        trusted_proxies: &'r [IpNet],
    ) -> Self {
        let Head {
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
        }
    }

    /// The same request behind the router.
    pub(super) fn resume(head: &'r Parts, resolved: Resolved) -> Self {
        let Resolved {
            target,
            principal,
            missed,
            client,
        } = resolved;
        Self {
            principal,
            missed,
            client: OnceLock::from(client),
            ..Self::new(Head::of_parts(head), target, client, &[])
        }
    }

    /// What is known of it, to be taken past the router.
    pub(super) fn take_resolved(&mut self) -> Resolved {
        Resolved {
            client: self.client(),
            target: self.target,
            principal: self.principal.take(),
            missed: self.missed.take(),
        }
    }

    /// The client's address.
    pub(super) fn client(&self) -> IpAddr {
        let found = || forwarded::client(self.peer, self.headers, self.trusted_proxies);
        *self.client.get_or_init(found)
    }

    /// The resource and the part of it that the path names.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn resource(&self) -> Result<(ResourceId, Part), Problem> {
        match (self.target.resource, self.target.part) {
            (Some(resource), part) if part != Part::Unknown => Ok((resource, part)),
            (None, Part::Document { .. }) => Err(Problem::NO_SUCH_RESOURCE),
            _ => Err(Problem::NO_SUCH_PATH),
        }
    }

    /// The key of the document that the path names, as it stands there: `key` of [`Part::Document`].
    pub(super) fn key(&self, key: usize) -> &'r str {
        self.uri.path().get(key..).unwrap_or_default()
    }

    /// The name of the resource as it stands in the path, percent-encoded if the client has sent it so.
    pub(super) fn resource_name(&self) -> &'r str {
        let path = self.uri.path();
        let end = match self.target.part {
            Part::Document { key } => key - 1,
            _ => path.len(),
        };
        path.get(1..end).unwrap_or_default()
    }

    /// What follows `?`.
    pub(super) fn query(&self) -> &'r str {
        self.uri.query().unwrap_or_default()
    }

    /// The transactions that the answer must show.
    ///
    /// # Errors
    /// A token that is none.
    pub(super) fn tokens(&self) -> Result<Vec<Token>, Problem> {
        parse_tokens(self.headers)
    }

    /// Whether its principal may read the documents of `resource`.
    pub(super) fn may_read(&self, resource: ResourceId) -> bool {
        let principal = self.principal.as_ref();
        principal.is_none_or(|principal| principal.may_read(resource))
    }
}

impl Resolved {
    /// The client's address.
    pub(super) fn client(&self) -> IpAddr {
        self.client
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(path: &str) -> Target {
        Target::parse(path, |name| (name == "a").then(|| ResourceId::new(3)))
    }

    #[track_caller]
    fn is(path: &str, known: bool, part: Part) {
        let resource = known.then(|| ResourceId::new(3));
        assert_eq!(target(path), Target { resource, part }, "{path}");
    }

    #[test]
    fn a_path_is_split_once_however_it_is_spelt() {
        is("/a", true, Part::Collection);
        is("/%61", true, Part::Collection);
        is("/a:batch", true, Part::Batch);
        is("/a%3Abatch", true, Part::Batch);
        is("/a:other", true, Part::Unknown);
        is("/a:batch/1", true, Part::Unknown);
        is("/a/", true, Part::Document { key: 3 });
        is("/a/1,2%2C", true, Part::Document { key: 3 });
        is("/%61/1", true, Part::Document { key: 5 });
        is("/a/1/", true, Part::Unknown);
        is("/b/1", false, Part::Document { key: 3 });
        is("/b", false, Part::Collection);
        is("/signin", false, Part::Session);
        is("/refresh", false, Part::Session);
        is("/%73ignin", false, Part::Collection);
        is("/signin/1", false, Part::Document { key: 8 });
        is("/", false, Part::Collection);
        is("*", false, Part::Collection);
        is("/%ff/1", false, Part::Document { key: 5 });
    }

    #[test]
    fn only_a_batch_reads_by_post() {
        let right = |method, path| target(path).right(&method);
        assert_eq!(right(Method::GET, "/a/1"), Right::Read);
        assert_eq!(right(Method::HEAD, "/a:other"), Right::Read);
        assert_eq!(right(Method::POST, "/a:batch"), Right::Read);
        for (method, path) in [
            (Method::POST, "/a"),
            (Method::PUT, "/a:batch"),
            (Method::POST, "/a:other"),
            (Method::DELETE, "/a/1"),
        ] {
            assert_eq!(right(method, path), Right::Write, "{path}");
        }
    }
}
