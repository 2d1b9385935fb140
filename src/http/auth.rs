//! Authentication of HTTP requests: the credential in their headers, refusals, and `/signin`.
//!
//! Owns the check of every request of the public address before anything else looks at it, so that what may be refused
//! costs no database work.

mod credential;
mod refusal;
pub(super) mod session;

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderValue, Method, Response};
use axum::routing::post;

use crate::auth::config::AuthConfig;
use crate::auth::{
    AuthSchemes, Authenticator, CachedPrincipal, Grants, Principal, Right, Scheme, WRONG,
};
use crate::http::auth::credential::{credential, is_forgery};
use crate::http::auth::refusal::{Denied, FORGED, challenges};
use crate::http::full_body::FullBody;
use crate::http::problem::Problem;
use crate::http::request::{REFRESH, Request, SIGNIN, TargetPart};
use crate::metrics::Metrics;
use crate::resource::definition::{Mistake, ResourceDefinition};

/// Decides which requests of the public address go on.
pub struct Auth {
    authenticator: Authenticator,
    /// The public address speaks TLS.
    tls: bool,
    challenges: Vec<HeaderValue>,
    metrics: Arc<Metrics>,
}

/// What is known of a request without verifying anything.
pub(super) enum Admission {
    /// It may go on.
    Admitted(Admitted),
    /// It has its answer.
    Refused(Response<FullBody>),
    /// Its credential has to be verified first.
    Unknown,
}

/// A request that may go on.
pub(super) enum Admitted {
    Anonymous,
    Known(CachedPrincipal),
}

impl Admitted {
    /// Its principal; `None` without credentials.
    pub(super) fn principal(&self) -> Option<Arc<Principal>> {
        match self {
            Self::Anonymous => None,
            Self::Known(found) => found.principal().map(Arc::clone),
        }
    }
}

impl Auth {
    /// Reads the keys; `None` where no credential is configured. Has to be called on a runtime, which then follows the
    /// keys' changes.
    ///
    /// # Errors
    /// Keys that can't be read, by file.
    pub fn start(
        config: &AuthConfig,
        resources: &[ResourceDefinition],
        tls: bool,
        metrics: Arc<Metrics>,
    ) -> Result<Option<Arc<Self>>, Mistake> {
        let authenticator = Authenticator::start(config, resources)?;
        Ok(authenticator.map(|authenticator| {
            Arc::new(Self {
                authenticator,
                tls,
                challenges: challenges(config),
                metrics,
            })
        }))
    }

    /// `POST /signin` and `/refresh`, where larder gives out tokens.
    pub(super) fn router(self: &Arc<Self>) -> Router {
        if !self.authenticator.signs_in() {
            return Router::new();
        }
        Router::new()
            .route(SIGNIN, post(session::signin))
            .route(REFRESH, post(session::refresh))
            // The router adds Allow, which it alone knows.
            .method_not_allowed_fallback(async || Problem::METHOD_NOT_ALLOWED.into_response())
            .with_state(Arc::clone(self))
    }

    /// The schemes that are configured.
    pub(super) fn schemes(&self) -> AuthSchemes<'_> {
        self.authenticator.schemes()
    }

    /// The roles of which one is needed for `right` on documents of `resource`; `None`: any authenticated principal.
    pub(super) fn roles(&self, resource: &str, right: Right) -> Option<&[String]> {
        self.authenticator.rules().roles(resource, right)
    }

    /// What is known of a request without verifying anything.
    pub(super) fn admission(&self, request: &Request<'_>) -> Admission {
        // These look at credentials of their own.
        if self.authenticator.signs_in() && request.target.part == TargetPart::Session {
            return Admission::Admitted(Admitted::Anonymous);
        }
        let outcome = match credential(request.headers, self.authenticator.cookie()) {
            Ok(Some(credential)) => match self.authenticator.known(credential) {
                None => return Admission::Unknown,
                Some(Some(found)) => authorize(credential.scheme, found.principal(), request)
                    .map(|()| Admitted::Known(found)),
                Some(None) => Err(Denied::Unauthorized(WRONG)),
            },
            Ok(None) => self.anonymous(request).map(|()| Admitted::Anonymous),
            Err(malformed) => Err(Denied::Unauthorized(malformed.0)),
        };
        match outcome {
            Ok(admitted) => Admission::Admitted(admitted),
            Err(denied) => Admission::Refused(self.refusal(denied)),
        }
    }

    /// Verifies the credential of a request that [`Auth::admission`] did not know.
    pub(super) async fn verify(
        &self,
        request: &Request<'_>,
    ) -> Result<Arc<Principal>, Response<FullBody>> {
        let verified = match credential(request.headers, self.authenticator.cookie()) {
            Ok(Some(credential)) => {
                let verified = self.authenticator.verify(credential, request.client());
                let verified = verified.await;
                verified.map_err(Denied::from).and_then(|principal| {
                    tracing::debug!("a credential was verified: {principal:?}");
                    let scheme = credential.scheme;
                    authorize(scheme, Some(&principal), request)?;
                    Ok(principal)
                })
            }
            // Not what the admission saw; can't be.
            Ok(None) | Err(_) => Err(Denied::Unauthorized(WRONG)),
        };
        verified.map_err(|denied| self.refusal(denied))
    }

    fn anonymous(&self, request: &Request<'_>) -> Result<(), Denied> {
        if allow(self.authenticator.anonymous(), request) {
            Ok(())
        } else {
            Err(Denied::Unauthorized("credentials are required"))
        }
    }
}

/// Whether the principal that a credential shows may do what a request asks for.
fn authorize(
    scheme: Scheme,
    principal: Option<&Arc<Principal>>,
    request: &Request<'_>,
) -> Result<(), Denied> {
    let principal = principal.ok_or(Denied::Unauthorized(WRONG))?;
    if is_forgery(scheme, request.method, request.uri, request.headers) {
        return Err(Denied::Forbidden(FORGED));
    }
    if allow(principal.grants(), request) {
        Ok(())
    } else {
        Err(Denied::Forbidden(
            "a role is required that the credentials do not have",
        ))
    }
}

/// Whether `grants` allow a request. A path of no resource, such as the description of all, takes the right to read any.
fn allow(grants: &Grants, request: &Request<'_>) -> bool {
    let (method, target) = (request.method, request.target);
    let reads = matches!(*method, Method::GET | Method::HEAD);
    // A preflight comes without credentials (Fetch, section 3.3.5), and its answer holds nothing of any document.
    if (reads && grants.reads_all) || *method == Method::OPTIONS {
        return true;
    }
    match target.resource {
        Some(resource) => grants.allow(resource, target.right(method)),
        None => grants.reads_any,
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;
    use crate::auth::Rules;
    use crate::config::Config;
    use crate::http::request::{RequestHead, RequestTarget};
    use crate::resource::ResourceId;

    const RESOURCES: &str = "
        [auth.jwt]
        algorithms = ['HS256']
        secret = 'x'
        [[resource]]
        name = 'open'
        table = 't'
        read = ['anonymous']
        write = ['staff']
        [[resource]]
        name = 'plain'
        table = 't'
        [[resource]]
        name = 'closed'
        table = 't'
        read = ['staff', 'boss']
        write = []";

    #[track_caller]
    fn check(roles: Option<&[&str]>, allowed: &[(&str, &str)], refused: &[(&str, &str)]) {
        let resources = Config::from_toml(RESOURCES, &[]).unwrap().resources;
        let rules = Rules::new(&resources);
        let id_of = |name: &str| {
            let place = resources
                .iter()
                .position(|resource| resource.name.value == name);
            place.map(ResourceId::new)
        };
        let roles: Option<Vec<String>> =
            roles.map(|roles| roles.iter().map(|&role| role.to_owned()).collect());
        let grants = rules.grants(roles.as_deref());
        for (requests, expected) in [(allowed, true), (refused, false)] {
            for (method, path) in requests {
                let request = axum::http::Request::builder().method(*method).uri(*path);
                let request = request.body(Body::empty()).unwrap();
                let target = RequestTarget::parse(path, id_of);
                let peer = [127, 0, 0, 1].into();
                let allows = allow(
                    &grants,
                    &Request::new(RequestHead::of(&request), target, peer, &[]),
                );
                assert_eq!(allows, expected, "{roles:?} {method} {path}");
            }
        }
    }

    #[test]
    fn roles_say_who_reads_and_who_writes() {
        check(
            None,
            &[
                ("GET", "/open/1"),
                ("HEAD", "/open"),
                ("OPTIONS", "/closed/1"),
                ("GET", "/docs"),
            ],
            &[
                ("PUT", "/open/1"),
                ("GET", "/plain/1"),
                ("GET", "/closed/1"),
                ("POST", "/open"),
            ],
        );
        check(
            Some(&[]),
            &[
                ("GET", "/open/1"),
                ("GET", "/plain/1"),
                ("DELETE", "/plain/1"),
            ],
            &[
                ("PUT", "/open/1"),
                ("GET", "/closed/1"),
                ("BREW", "/open/1"),
            ],
        );
        check(
            Some(&["staff"]),
            &[
                ("GET", "/open/1"),
                ("PATCH", "/open/1"),
                ("GET", "/closed/1"),
            ],
            &[("PUT", "/closed/1"), ("POST", "/closed")],
        );
        check(
            Some(&["boss"]),
            &[("GET", "/closed/1")],
            &[("PUT", "/open/1")],
        );
    }

    #[test]
    fn no_spelling_of_a_path_gets_around() {
        let spellings = [
            "/closed",
            "/%63losed/1",
            "/closed/",
            "/closed:batch",
            "/closed%3Abatch",
        ];
        for path in spellings {
            check(Some(&[]), &[], &[("GET", path), ("POST", path)]);
        }
        check(
            Some(&["boss"]),
            &[("POST", "/closed:batch")],
            &[("POST", "/closed")],
        );
        check(
            Some(&["boss"]),
            &[],
            &[("PUT", "/closed:batch"), ("POST", "/closed:other")],
        );
    }
}
