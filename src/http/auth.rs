//! Who may: users with passwords, programs with keys, and whoever shows a token.
//!
//! Owns the check of every request of the public address before anything else looks at it, so that what may be refused
//! costs no database work. A credential is verified once; its verdict is then known for `VERDICT_MAX`, until its token
//! expires or until the keys change, and a hit waits for nothing. What was verified is never written to any log.

pub mod config;
mod credential;
mod grants;
mod keyring;
mod keys;
pub mod passwords;
mod principal;
mod refusal;
pub(super) mod session;
mod signatures;
mod tokens;
mod verdicts;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderMap, HeaderValue, Method, Response, Uri};
use axum::routing::post;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};
use tokio::task::JoinSet;

use crate::clock::Boottime;
use crate::http::auth::config::AuthConfig;
use crate::http::auth::credential::{Kind, Presented, is_forgery, presented};
use crate::http::auth::grants::{Grants, Rules};
use crate::http::auth::keys::Keys;
use crate::http::auth::passwords::{Busy, Passwords};
use crate::http::auth::refusal::{Denied, FORGED, WRONG, challenges};
use crate::http::auth::tokens::{Tokens, unix_time};
use crate::http::auth::verdicts::{Found, Verdicts};
use crate::http::body::Whole;
use crate::http::problem::Problem;
use crate::metrics::Metrics;
use crate::resource::definition::{Mistake, ResourceDefinition};

pub use crate::http::auth::principal::{Principal, PrincipalKind};

pub(super) use crate::http::auth::keyring::{line, mistake, read};

/// How long a verdict is known, at most.
const VERDICT_MAX: Duration = Duration::from_secs(5 * 60);
/// How long a wrong password is known to be wrong: who tries it again and again costs nothing meanwhile.
const REFUSAL_MAX: Duration = Duration::from_secs(10);
/// Eight credentials each.
const BUCKETS: usize = 1024;
const REFUSAL_BUCKETS: usize = 64;

/// Who may do what on the public address.
pub struct Auth {
    rules: Rules,
    anonymous: Grants,
    passwords: Passwords,
    /// By their SHA-256.
    keys: HashMap<[u8; 32], Arc<Principal>>,
    tokens: Option<Tokens>,
    cookie: Option<String>,
    /// The public address speaks TLS.
    tls: bool,
    signs_in: bool,
    challenges: Vec<HeaderValue>,
    admitted: Verdicts,
    refused: Verdicts,
    metrics: Arc<Metrics>,
    /// Follows changes of the keys; ends with this.
    _following: JoinSet<()>,
}

/// How clients may show who they are.
pub(super) struct Ways<'a> {
    /// Name and password.
    pub(super) basic: bool,
    /// A token or a key.
    pub(super) bearer: bool,
    /// `X-API-Key`
    pub(super) key: bool,
    /// The cookie that may hold a token.
    pub(super) cookie: Option<&'a str>,
    /// larder gives out tokens.
    pub(super) signs_in: bool,
}

/// What is known of a request at once.
pub(super) enum Glance {
    /// It may go on.
    Admitted(Admitted),
    /// It has its answer.
    Refused(Response<Whole>),
    /// Its credential has to be verified first.
    Unknown,
}

/// Who was let in.
pub(super) enum Admitted {
    Anonymous,
    Known(Found),
}

impl Admitted {
    /// Who it is; `None` who shows no credentials.
    pub(super) fn principal(&self) -> Option<Arc<Principal>> {
        match self {
            Self::Anonymous => None,
            Self::Known(found) => found.principal().map(Arc::clone),
        }
    }
}

impl Auth {
    /// Reads the keys; `None` where nobody has to show who they are. Has to be called on a runtime, which then follows
    /// the keys' changes.
    ///
    /// # Errors
    /// Keys that can't be read, by file.
    pub fn start(
        config: &AuthConfig,
        resources: &[ResourceDefinition],
        tls: bool,
        metrics: Arc<Metrics>,
    ) -> Result<Option<Arc<Self>>, Mistake> {
        if !config.is_on() {
            return Ok(None);
        }
        signatures::install();
        let rules = Rules::new(resources);
        let mut following = JoinSet::new();
        let jwt = &config.jwt;
        let tokens = match jwt.is_on() {
            true => Some(Tokens::new(jwt, Keys::start(jwt, &mut following)?)),
            false => None,
        };
        let keys = config.keys.iter().map(|key| {
            let principal = Principal::new(&rules, PrincipalKind::Key, &key.name, &key.roles);
            (key.hash, principal)
        });
        let passwords = Passwords::new(&config.users, |user| {
            Principal::new(&rules, PrincipalKind::User, &user.name, &user.roles)
        });
        Ok(Some(Arc::new(Self {
            anonymous: rules.grants(None),
            keys: keys.collect(),
            passwords,
            tokens,
            cookie: jwt.cookie.clone(),
            tls,
            signs_in: config.signs_in(),
            challenges: challenges(config),
            admitted: Verdicts::new(BUCKETS),
            refused: Verdicts::new(REFUSAL_BUCKETS),
            metrics,
            rules,
            _following: following,
        })))
    }

    /// `POST /signin` and `/refresh`, where larder gives out tokens.
    pub(super) fn router(self: &Arc<Self>) -> Router {
        if !self.signs_in {
            return Router::new();
        }
        Router::new()
            .route(session::SIGNIN, post(session::signin))
            .route(session::REFRESH, post(session::refresh))
            // The router adds Allow, which it alone knows.
            .method_not_allowed_fallback(async || Problem::wrong_method().into_response())
            .with_state(Arc::clone(self))
    }

    /// How clients may show who they are.
    pub(super) fn ways(&self) -> Ways<'_> {
        Ways {
            basic: !self.passwords.is_empty(),
            bearer: !self.keys.is_empty() || self.tokens.is_some(),
            key: !self.keys.is_empty(),
            cookie: self.cookie.as_deref().filter(|_| self.tokens.is_some()),
            signs_in: self.signs_in,
        }
    }

    /// Of which roles one is needed to read, or to write, documents of `resource`; `None`: of none.
    pub(super) fn roles(&self, resource: &str, reads: bool) -> Option<&[String]> {
        self.rules.roles(resource, reads)
    }

    /// What is known of a request without verifying anything.
    pub(super) fn glance(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Glance {
        // These look at credentials of their own.
        if self.signs_in && session::is_path(uri.path()) {
            return Glance::Admitted(Admitted::Anonymous);
        }
        let outcome = match presented(headers, self.cookie.as_deref()) {
            Ok(Some(presented)) => match self.known(presented) {
                None => return Glance::Unknown,
                Some(Some(found)) => self
                    .allowed(presented.kind, found.principal(), method, uri, headers)
                    .map(|()| Admitted::Known(found)),
                Some(None) => Err(Denied::Unauthorized(WRONG)),
            },
            Ok(None) => self.anonymous(method, uri).map(|()| Admitted::Anonymous),
            Err(malformed) => Err(Denied::Unauthorized(malformed.0)),
        };
        match outcome {
            Ok(admitted) => Glance::Admitted(admitted),
            Err(denied) => Glance::Refused(self.refusal(denied)),
        }
    }

    /// Verifies the credential of a request from `address` that [`Auth::glance`] did not know.
    pub(super) async fn verify(
        &self,
        address: IpAddr,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Arc<Principal>, Response<Whole>> {
        let verified = match presented(headers, self.cookie.as_deref()) {
            Ok(Some(presented)) => self.whose(presented, address).await.and_then(|principal| {
                tracing::debug!("a credential was verified: {principal:?}");
                self.allowed(presented.kind, Some(&principal), method, uri, headers)?;
                Ok(principal)
            }),
            // Not what the glance saw; can't be.
            Ok(None) | Err(_) => Err(Denied::Unauthorized(WRONG)),
        };
        verified.map_err(|denied| self.refusal(denied))
    }

    /// The verdict on a credential: none yet, somebody's (`Some(Some)`), or nobody's.
    fn known(&self, presented: Presented<'_>) -> Option<Option<Found>> {
        let Presented { kind, bytes } = presented;
        let now = Boottime::now();
        if let Some(found) = self.admitted.get(kind, bytes, self.generation(kind), now) {
            return Some(Some(found));
        }
        let refused = kind == Kind::Basic && self.refused.get(kind, bytes, 0, now).is_some();
        refused.then_some(None)
    }

    /// Of the keys that a credential of this kind is verified with.
    fn generation(&self, kind: Kind) -> u64 {
        match (kind, &self.tokens) {
            (Kind::Bearer | Kind::Cookie, Some(tokens)) => tokens.keys().generation(),
            _ => 0,
        }
    }

    /// Whose credential it is. Remembers the verdict.
    async fn whose(
        &self,
        presented: Presented<'_>,
        address: IpAddr,
    ) -> Result<Arc<Principal>, Denied> {
        let Presented { kind, bytes } = presented;
        // Before the keys are looked at: what changes from here on voids the verdict.
        let generation = self.generation(kind);
        let (principal, lasts) = match kind {
            Kind::Basic => (self.of_password(presented, address).await?, VERDICT_MAX),
            Kind::Key => (
                self.of_key(bytes).ok_or(Denied::Unauthorized(WRONG))?,
                VERDICT_MAX,
            ),
            Kind::Bearer | Kind::Cookie => match self.of_key(bytes) {
                Some(principal) if kind == Kind::Bearer => (principal, VERDICT_MAX),
                _ => self.of_token(bytes).await?,
            },
        };
        let until = later(lasts.min(VERDICT_MAX));
        self.admitted
            .put(kind, bytes, generation, until, Some(&principal));
        Ok(principal)
    }

    /// Whose name and password it is. One that was wrong just now is not looked at again.
    async fn of_password(
        &self,
        presented: Presented<'_>,
        address: IpAddr,
    ) -> Result<Arc<Principal>, Denied> {
        if self.passwords.is_empty() {
            return Err(Denied::Unauthorized("nobody signs in by password"));
        }
        if let Some(known) = self.known(presented) {
            let principal = known.and_then(|found| found.principal().map(Arc::clone));
            return principal.ok_or(Denied::Unauthorized(WRONG));
        }
        let Presented { kind, bytes } = presented;
        let pair = STANDARD.decode(bytes).unwrap_or_default();
        let colon = pair.iter().position(|&byte| byte == b':');
        let parts = colon.and_then(|at| pair.split_at_checked(at));
        let name = parts.and_then(|(name, _)| std::str::from_utf8(name).ok());
        let (Some(name), Some((_, password))) = (name, parts) else {
            return Err(Denied::Unauthorized("the credentials are malformed"));
        };
        let password = password.get(1..).unwrap_or_default();
        let checked = self.passwords.check(address, bytes, name, password).await;
        let principal = checked.map_err(|busy| match busy {
            Busy::Client => Denied::TooMany("too many passwords from this address at once"),
            Busy::All => Denied::Unavailable("too many sign in at once"),
        })?;
        if principal.is_none() {
            self.refused.put(kind, bytes, 0, later(REFUSAL_MAX), None);
        }
        principal.ok_or(Denied::Unauthorized(WRONG))
    }

    fn of_key(&self, key: &[u8]) -> Option<Arc<Principal>> {
        if self.keys.is_empty() {
            return None;
        }
        let hash: [u8; 32] = digest(&SHA256, key).as_ref().try_into().ok()?;
        self.keys.get(&hash).map(Arc::clone)
    }

    /// Whose token it is, and how long it is good.
    async fn of_token(&self, token: &[u8]) -> Result<(Arc<Principal>, Duration), Denied> {
        let Some(tokens) = &self.tokens else {
            return Err(Denied::Token(WRONG));
        };
        let claims = tokens.verify(token).await?;
        let lasts = Duration::from_secs(claims.until.saturating_sub(unix_time()));
        let kind = PrincipalKind::Token;
        let principal = Principal::new(&self.rules, kind, &claims.name, &claims.roles);
        Ok((principal, lasts))
    }

    fn anonymous(&self, method: &Method, uri: &Uri) -> Result<(), Denied> {
        if self.rules.allow(&self.anonymous, method, uri.path()) {
            Ok(())
        } else {
            Err(Denied::Unauthorized("this takes credentials"))
        }
    }

    fn allowed(
        &self,
        kind: Kind,
        principal: Option<&Arc<Principal>>,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), Denied> {
        let principal = principal.ok_or(Denied::Unauthorized(WRONG))?;
        if is_forgery(kind, method, uri, headers) {
            return Err(Denied::Forbidden(FORGED));
        }
        if self.rules.allow(&principal.grants, method, uri.path()) {
            Ok(())
        } else {
            Err(Denied::Forbidden("this takes a role that you do not have"))
        }
    }
}

fn later(duration: Duration) -> Boottime {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    Boottime(Boottime::now().0.saturating_add(nanos))
}
