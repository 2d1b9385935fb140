//! Authentication of HTTP requests: the credential in their headers, refusals, and `/signin`.
//!
//! Owns the check of every request of the public address before anything else looks at it, so that what may be refused
//! costs no database work.

mod credential;
mod operation;
mod refusal;
pub(super) mod session;

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderMap, HeaderValue, Method, Response, Uri};
use axum::routing::post;

use crate::auth::config::AuthConfig;
use crate::auth::{
    AuthSchemes, Authenticator, CachedPrincipal, Grants, Principal, Right, Scheme, WRONG,
};
use crate::http::auth::credential::{credential, is_forgery};
use crate::http::auth::refusal::{Denied, FORGED, challenges};
use crate::http::body::Whole;
use crate::http::problem::Problem;
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
    Refused(Response<Whole>),
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
            .route(session::SIGNIN, post(session::signin))
            .route(session::REFRESH, post(session::refresh))
            // The router adds Allow, which it alone knows.
            .method_not_allowed_fallback(async || Problem::wrong_method().into_response())
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
    pub(super) fn admission(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Admission {
        // These look at credentials of their own.
        if self.authenticator.signs_in() && session::is_path(uri.path()) {
            return Admission::Admitted(Admitted::Anonymous);
        }
        let outcome = match credential(headers, self.authenticator.cookie()) {
            Ok(Some(credential)) => match self.authenticator.known(credential) {
                None => return Admission::Unknown,
                Some(Some(found)) => self
                    .authorize(credential.scheme, found.principal(), method, uri, headers)
                    .map(|()| Admitted::Known(found)),
                Some(None) => Err(Denied::Unauthorized(WRONG)),
            },
            Ok(None) => self.anonymous(method, uri).map(|()| Admitted::Anonymous),
            Err(malformed) => Err(Denied::Unauthorized(malformed.0)),
        };
        match outcome {
            Ok(admitted) => Admission::Admitted(admitted),
            Err(denied) => Admission::Refused(self.refusal(denied)),
        }
    }

    /// Verifies the credential of a request from `address` that [`Auth::admission`] did not know.
    pub(super) async fn verify(
        &self,
        address: IpAddr,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Arc<Principal>, Response<Whole>> {
        let verified = match credential(headers, self.authenticator.cookie()) {
            Ok(Some(credential)) => {
                let verified = self.authenticator.verify(credential, address).await;
                verified.map_err(Denied::from).and_then(|principal| {
                    tracing::debug!("a credential was verified: {principal:?}");
                    let scheme = credential.scheme;
                    self.authorize(scheme, Some(&principal), method, uri, headers)?;
                    Ok(principal)
                })
            }
            // Not what the admission saw; can't be.
            Ok(None) | Err(_) => Err(Denied::Unauthorized(WRONG)),
        };
        verified.map_err(|denied| self.refusal(denied))
    }

    fn anonymous(&self, method: &Method, uri: &Uri) -> Result<(), Denied> {
        match self.allow(self.authenticator.anonymous(), method, uri) {
            true => Ok(()),
            false => Err(Denied::Unauthorized("credentials are required")),
        }
    }

    fn authorize(
        &self,
        scheme: Scheme,
        principal: Option<&Arc<Principal>>,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), Denied> {
        let principal = principal.ok_or(Denied::Unauthorized(WRONG))?;
        if is_forgery(scheme, method, uri, headers) {
            return Err(Denied::Forbidden(FORGED));
        }
        match self.allow(principal.grants(), method, uri) {
            true => Ok(()),
            false => Err(Denied::Forbidden(
                "a role is required that the credentials do not have",
            )),
        }
    }

    fn allow(&self, grants: &Grants, method: &Method, uri: &Uri) -> bool {
        operation::allow(self.authenticator.rules(), grants, method, uri.path())
    }
}
