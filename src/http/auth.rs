//! Authentication of HTTP requests: the credential in their headers, refusals, and `/signin`.
//!
//! Checks credential and rights of every request of the public address, before a request costs any work of the database.

mod credential;
mod refusal;
pub(super) mod session;

use std::sync::Arc;

use axum::Router;
use axum::http::header::HeaderName;
use axum::http::{HeaderMap, HeaderValue, Method, Response};
use axum::routing::post;

use crate::auth::config::{AuthConfig, SameSite};
use crate::auth::{
    AuthError, AuthSchemes, Authenticator, CachedPrincipal, Grants, Principal, Right, Scheme,
    WRONG_CREDENTIALS,
};
use crate::http::auth::credential::credentials;
use crate::http::auth::refusal::{AuthRefusal, INVALID_TOKEN, challenges};
use crate::http::full_body::FullBody;
use crate::http::middleware::cors::CorsConfig;
use crate::http::origin::{PageOrigin, host};
use crate::http::problem::Problem;
use crate::http::request::{REFRESH, Request, RequestHead, SIGNIN, SIGNOUT, TargetPart};
use crate::metrics::Metrics;
use crate::resource::ResourceId;
use crate::resource::definition::{Mistake, ResourceDefinition};

const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Decides which requests of the public address are admitted.
pub struct Auth {
    authenticator: Authenticator,
    /// The public address speaks TLS.
    tls: bool,
    same_site: SameSite,
    /// Other origins whose pages may write with the cookie.
    cookie_origins: Vec<String>,
    challenges: Vec<HeaderValue>,
    metrics: Arc<Metrics>,
}

/// The decision about a request from what is already known.
pub(super) enum Admission {
    /// It is admitted.
    Admitted(Admitted),
    /// It is refused with this response.
    Refused(Response<FullBody>),
    /// Its credential has to be verified first.
    Unknown,
}

/// A request whose credential was verified, and that is admitted.
pub(super) enum Verified {
    Known(Arc<Principal>),
    /// It has a cookie with an invalid token, and needs no credentials. The value of `WWW-Authenticate` says so.
    Anonymous(HeaderValue),
}

/// A request that is admitted.
pub(super) enum Admitted {
    Anonymous,
    Known(CachedPrincipal),
}

impl Admitted {
    /// Its principal; `None` without credentials.
    #[inline]
    pub(super) fn principal(&self) -> Option<&Arc<Principal>> {
        match self {
            Self::Anonymous => None,
            Self::Known(found) => found.principal(),
        }
    }
}

impl Auth {
    /// Reads the keys; `None` if authentication is off. Has to be called on a runtime, which then watches the keys for
    /// changes.
    ///
    /// # Errors
    /// A file with keys can't be used.
    pub fn start(
        config: &AuthConfig,
        resources: &[ResourceDefinition],
        tls: bool,
        cors: &CorsConfig,
        metrics: Arc<Metrics>,
    ) -> Result<Option<Arc<Self>>, Mistake> {
        let authenticator = Authenticator::start(config, resources)?;
        Ok(authenticator.map(|authenticator| {
            Arc::new(Self {
                authenticator,
                tls,
                same_site: config.jwt.same_site,
                // Without `credentials`, browsers do not show these pages what requests with the cookie return.
                cookie_origins: cors
                    .origins
                    .iter()
                    .filter(|_| cors.credentials)
                    .cloned()
                    .collect(),
                challenges: challenges(config),
                metrics,
            })
        }))
    }

    /// The routes of `POST /signin` and `/refresh`, if larder issues tokens, and of `/signout`, if they may be in a cookie.
    pub(super) fn router(self: &Arc<Self>) -> Router {
        if !self.authenticator.signs_in() {
            return Router::new();
        }
        let mut router = Router::new()
            .route(SIGNIN, post(session::signin))
            .route(REFRESH, post(session::refresh));
        if self.authenticator.cookie().is_some() {
            router = router.route(SIGNOUT, post(session::signout));
        }
        router
            // The router adds Allow.
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

    /// Whether `principal` may read or write documents of `resource`; `None`: a client without credentials.
    pub(super) fn allows_any(&self, principal: Option<&Principal>, resource: ResourceId) -> bool {
        self.grants(principal).allow_any(resource)
    }

    /// Whether `principal` has `right` on documents of `resource`; `None`: a client without credentials.
    pub(super) fn allows(
        &self,
        principal: Option<&Principal>,
        resource: ResourceId,
        right: Right,
    ) -> bool {
        self.grants(principal).allow(resource, right)
    }

    fn grants<'a>(&'a self, principal: Option<&'a Principal>) -> &'a Grants {
        principal.map_or_else(|| self.authenticator.anonymous(), Principal::grants)
    }

    /// Decides about a request without verifying a credential. Does not wait.
    pub(super) fn admission(&self, request: &Request<'_>) -> Admission {
        // The handlers of these paths check credentials themselves.
        if self.authenticator.signs_in() && request.target.part == TargetPart::Session {
            return Admission::Admitted(Admitted::Anonymous);
        }
        match self.admit_known(request) {
            Ok(Some(admitted)) => Admission::Admitted(admitted),
            Ok(None) => Admission::Unknown,
            Err(refusal) => Admission::Refused(self.refuse(refusal)),
        }
    }

    /// Admits a request with the first of its credentials that is known to be valid; `None` if one has to be verified.
    fn admit_known(&self, request: &Request<'_>) -> Result<Option<Admitted>, AuthRefusal> {
        let (mut is_unknown, mut is_wrong) = (false, false);
        for credential in credentials(request.headers, self.authenticator.cookie())? {
            match self.authenticator.known(credential) {
                None => is_unknown = true,
                Some(None) => is_wrong = true,
                Some(Some(found)) => {
                    self.authorize(credential.scheme, found.principal(), request)?;
                    return Ok(Some(Admitted::Known(found)));
                }
            }
        }
        if is_unknown {
            Ok(None)
        } else if is_wrong {
            Err(AuthRefusal::Unauthorized(WRONG_CREDENTIALS))
        } else {
            self.anonymous(request)?;
            Ok(Some(Admitted::Anonymous))
        }
    }

    /// Verifies the credential of a request for which [`Auth::admission`] was [`Admission::Unknown`].
    ///
    /// # Errors
    /// The response to a request that is refused.
    pub(super) async fn verify(
        &self,
        request: &Request<'_>,
    ) -> Result<Verified, Response<FullBody>> {
        let verified = self.verify_credentials(request).await;
        verified.map_err(|refusal| self.refuse(refusal))
    }

    async fn verify_credentials(&self, request: &Request<'_>) -> Result<Verified, AuthRefusal> {
        // The admission has found a credential in the same headers.
        let mut refusal = AuthRefusal::Unauthorized(WRONG_CREDENTIALS);
        for credential in credentials(request.headers, self.authenticator.cookie())? {
            let scheme = credential.scheme;
            match self
                .authenticator
                .verify(credential, request.client())
                .await
            {
                Ok(principal) => {
                    tracing::debug!("a credential was verified: {principal:?}");
                    self.authorize(scheme, Some(&principal), request)?;
                    return Ok(Verified::Known(principal));
                }
                // Another cookie may hold a valid token.
                Err(error @ AuthError::Token(_)) if scheme == Scheme::Cookie => {
                    refusal = error.into();
                }
                Err(error) => return Err(error.into()),
            }
        }
        if matches!(refusal, AuthRefusal::Token(_)) && self.is_cookie_optional(request) {
            Ok(Verified::Anonymous(INVALID_TOKEN))
        } else {
            Err(refusal)
        }
    }

    /// Whether a request may read without credentials, so that its invalid cookie is ignored. A browser sends a cookie that has
    /// expired with all requests, and a script can't leave it out.
    fn is_cookie_optional(&self, request: &Request<'_>) -> bool {
        request.method.is_safe() && allow(self.authenticator.anonymous(), request)
    }

    fn anonymous(&self, request: &Request<'_>) -> Result<(), AuthRefusal> {
        if allow(self.authenticator.anonymous(), request) {
            Ok(())
        } else {
            Err(AuthRefusal::Unauthorized("credentials are required"))
        }
    }

    /// Checks that the principal of a credential may do what the request does.
    fn authorize(
        &self,
        scheme: Scheme,
        principal: Option<&Arc<Principal>>,
        request: &Request<'_>,
    ) -> Result<(), AuthRefusal> {
        let principal = principal.ok_or(AuthRefusal::Unauthorized(WRONG_CREDENTIALS))?;
        let reads = request.method.is_safe() || request.target.right(request.method) == Right::Read;
        if !reads {
            self.check_origin(scheme, request.head(), request.forwarded_host())?;
        }
        if allow(principal.grants(), request) {
            Ok(())
        } else {
            Err(AuthRefusal::Forbidden(
                "a role is required that the credentials do not have",
            ))
        }
    }

    /// Checks that a write that is authenticated by a cookie is no cross-site request forgery. `forwarded_host` is what a
    /// trusted proxy was called by.
    ///
    /// A browser adds cookies to the requests of every page. `SameSite=Strict` excludes pages of other sites, but not those
    /// of another host of the same site, such as another subdomain. So the page has to have the origin of this address, or
    /// one that `[cors]` names and allows credentials. Clients that are not browsers have no need for a cookie.
    fn check_origin(
        &self,
        scheme: Scheme,
        head: RequestHead<'_>,
        forwarded_host: Option<&HeaderValue>,
    ) -> Result<(), AuthRefusal> {
        let origin = || self.page_origin(head, forwarded_host);
        if scheme != Scheme::Cookie || matches!(origin(), PageOrigin::Same | PageOrigin::Configured)
        {
            Ok(())
        } else {
            Err(AuthRefusal::forged(requested_host(head, forwarded_host)))
        }
    }

    /// The page that a request comes from; origins that may use the cookie count as configured.
    fn page_origin(
        &self,
        head: RequestHead<'_>,
        forwarded_host: Option<&HeaderValue>,
    ) -> PageOrigin {
        let is_configured =
            |origin: &HeaderValue| self.cookie_origins.iter().any(|other| origin == other);
        let host = requested_host(head, forwarded_host);
        PageOrigin::of(head, host, self.is_over_tls(head.headers), is_configured)
    }

    /// Whether the client uses TLS, which a proxy may end. A client that forges the header only affects itself.
    fn is_over_tls(&self, headers: &HeaderMap) -> bool {
        self.tls
            || headers
                .get(X_FORWARDED_PROTO)
                .is_some_and(|scheme| scheme == "https")
    }
}

/// The host that a browser has sent a request to. Of several forwarded ones, the first proxy has added the first.
fn requested_host<'r>(
    head: RequestHead<'r>,
    forwarded: Option<&'r HeaderValue>,
) -> Option<&'r str> {
    let forwarded = forwarded.and_then(|hosts| hosts.to_str().ok()?.split(',').next());
    forwarded.map(str::trim).or_else(|| host(head))
}

/// Whether `grants` allow a request. A path of no resource, such as `/docs`, needs a right on any resource.
fn allow(grants: &Grants, request: &Request<'_>) -> bool {
    let (method, target) = (request.method, request.target);
    let reads = matches!(*method, Method::GET | Method::HEAD);
    // A preflight request has no credentials (Fetch, section 3.3.5), and its answer holds nothing of any document.
    if (reads && grants.reads_all) || *method == Method::OPTIONS {
        return true;
    }
    match target.resource {
        Some(resource) => grants.allow(resource, target.right(method)),
        None => grants.allows_any,
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;
    use crate::auth::Rules;
    use crate::config::Config;
    use crate::http::request::RequestTarget;

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
    fn roles_decide_on_reads_and_writes() {
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
    fn no_spelling_of_a_path_avoids_the_check() {
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
