//! Authentication and authorization: a credential identifies a principal, and a principal has rights on resources.
//!
//! Independent of protocols, which read credentials from requests and pass them to `Authenticator`. A verified credential
//! is cached for `VERIFIED_MAX`, until its token expires or until the keys change, and a right password as long as there is
//! room for it, so that a hit does not wait.
//! Credentials are never logged.

pub mod config;
mod credential_cache;
mod grants;
mod keyring;
mod keys;
pub mod passwords;
mod principal;
mod signatures;
mod throttle;
mod tokens;
mod turns;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};
use tokio::task::JoinSet;

use crate::auth::config::AuthConfig;
use crate::auth::credential_cache::CredentialCache;
use crate::auth::keys::TokenKeys;
use crate::auth::passwords::{Passwords, TooManyChecks};
use crate::auth::tokens::{JwtError, JwtVerifier};
use crate::clock::Boottime;
use crate::resource::definition::{Mistake, ResourceDefinition};

pub use crate::auth::principal::{Principal, PrincipalKind};

pub(crate) use crate::auth::credential_cache::CachedPrincipal;
pub(crate) use crate::auth::grants::{Access, Grants, Right, Rules};
pub(crate) use crate::auth::keyring::{file_mistake, read_file, without_line_break};
pub(crate) use crate::auth::keys::web_client;
pub(crate) use crate::auth::tokens::{SignedToken, unix_time};

/// A protocol refuses a longer credential before it asks the [`Authenticator`].
pub(crate) const CREDENTIAL_BYTES_MAX: usize = 8 << 10;
/// How long a verified key or token is cached, at most.
const VERIFIED_MAX: Duration = Duration::from_secs(5 * 60);
/// How long a wrong password is cached, so that repeating it costs no hash.
const WRONG_MAX: Duration = Duration::from_secs(10);
/// Buckets of verified credentials, with eight credentials each.
const BUCKETS: usize = 1024;
const WRONG_BUCKETS: usize = 64;

/// How a credential is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// `name:password` in base64, as in HTTP Basic.
    Basic,
    /// A token or a key.
    Bearer,
    /// A key.
    Key,
    /// A token in a cookie.
    Cookie,
}

/// A credential as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credential<'r> {
    pub(crate) scheme: Scheme,
    /// Without the name of the scheme.
    pub(crate) bytes: &'r [u8],
}

/// Why a credential was not verified. The texts are for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthError {
    /// The token is wrong.
    Token(&'static str),
    /// Another credential is wrong.
    Credential(&'static str),
    /// The client has too many checks under way, or sent too many wrong passwords; it may try again after so many seconds.
    TooManyChecks(&'static str, u64),
    /// It can't be checked now.
    Unavailable(&'static str),
}

/// The text for a credential of no principal.
pub(crate) const WRONG_CREDENTIALS: &str = "the credentials are wrong";

/// The schemes that are configured.
pub(crate) struct AuthSchemes<'a> {
    /// Name and password.
    pub(crate) basic: bool,
    /// A token or a key.
    pub(crate) bearer: bool,
    /// `X-API-Key`
    pub(crate) key: bool,
    /// The cookie that may hold a token.
    pub(crate) cookie: Option<&'a str>,
    /// larder issues tokens.
    pub(crate) signs_in: bool,
}

/// Verifies credentials by users, keys and tokens.
pub(crate) struct Authenticator {
    rules: Rules,
    anonymous: Grants,
    passwords: Passwords,
    /// By their SHA-256.
    keys: HashMap<[u8; 32], Arc<Principal>>,
    tokens: Option<JwtVerifier>,
    cookie: Option<String>,
    signs_in: bool,
    verified: CredentialCache,
    wrong: CredentialCache,
    /// Watch the keys for changes; end when this is dropped.
    _following: JoinSet<()>,
}

impl Authenticator {
    /// Reads the keys; `None` if authentication is off. Has to be called on a runtime, which then watches the keys for
    /// changes.
    ///
    /// # Errors
    /// A file with keys can't be used.
    pub(crate) fn start(
        config: &AuthConfig,
        resources: &[ResourceDefinition],
    ) -> Result<Option<Self>, Mistake> {
        if !config.is_on() {
            return Ok(None);
        }
        signatures::install();
        let rules = Rules::new(resources);
        let mut following = JoinSet::new();
        let jwt = &config.jwt;
        let tokens = if jwt.is_on() {
            Some(JwtVerifier::new(
                jwt,
                TokenKeys::start(jwt, &mut following)?,
            ))
        } else {
            None
        };
        let keys = config.keys.iter().map(|key| {
            let claim = |claim: &str| key.claims.get(claim).cloned();
            let kind = PrincipalKind::Key;
            let principal = Principal::new(&rules, kind, &key.name, &key.roles, claim);
            (key.hash, principal)
        });
        let passwords = Passwords::new(&config.users, |user| {
            let claim = |claim: &str| user.claims.get(claim).cloned();
            let kind = PrincipalKind::User;
            Principal::new(&rules, kind, &user.name, &user.roles, claim)
        });
        Ok(Some(Self {
            anonymous: rules.grants(None),
            keys: keys.collect(),
            passwords,
            tokens,
            cookie: jwt.cookie.clone(),
            signs_in: config.signs_in(),
            verified: CredentialCache::new(BUCKETS),
            wrong: CredentialCache::new(WRONG_BUCKETS),
            rules,
            _following: following,
        }))
    }

    /// The schemes that are configured.
    pub(crate) fn schemes(&self) -> AuthSchemes<'_> {
        AuthSchemes {
            basic: !self.passwords.is_empty(),
            bearer: !self.keys.is_empty() || self.tokens.is_some(),
            key: !self.keys.is_empty(),
            cookie: self.cookie.as_deref().filter(|_| self.tokens.is_some()),
            signs_in: self.signs_in,
        }
    }

    /// The cookie that may hold a token, as configured.
    pub(crate) fn cookie(&self) -> Option<&str> {
        self.cookie.as_deref()
    }

    /// Users may sign in for tokens.
    pub(crate) fn signs_in(&self) -> bool {
        self.signs_in
    }

    /// The roles that resources require.
    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The rights of a request without credentials.
    pub(crate) fn anonymous(&self) -> &Grants {
        &self.anonymous
    }

    /// Looks a credential up without verifying it: `None` if it is unknown, `Some(None)` if it is wrong.
    pub(crate) fn known(&self, credential: Credential<'_>) -> Option<Option<CachedPrincipal>> {
        let Credential { scheme, bytes } = credential;
        let now = Boottime::now();
        let generation = self.generation(scheme);
        if let Some(found) = self.verified.get(scheme, bytes, generation, now) {
            return Some(Some(found));
        }
        let wrong = scheme == Scheme::Basic && self.wrong.get(scheme, bytes, 0, now).is_some();
        wrong.then_some(None)
    }

    /// The generation of the keys that verify credentials of this scheme.
    fn generation(&self, scheme: Scheme) -> u64 {
        match (scheme, &self.tokens) {
            (Scheme::Bearer | Scheme::Cookie, Some(tokens)) => tokens.keys().generation(),
            _ => 0,
        }
    }

    /// Verifies a credential that came from `address`, and remembers its principal.
    ///
    /// # Errors
    /// [`AuthError`]
    pub(crate) async fn verify(
        &self,
        credential: Credential<'_>,
        address: IpAddr,
    ) -> Result<Arc<Principal>, AuthError> {
        let Credential { scheme, bytes } = credential;
        // Read before the keys are used: a later change then makes the entry invalid.
        let generation = self.generation(scheme);
        let (principal, lasts) = match scheme {
            Scheme::Basic => return self.verify_password(credential, address).await,
            Scheme::Key => (
                self.find_key(bytes)
                    .ok_or(AuthError::Credential(WRONG_CREDENTIALS))?,
                VERIFIED_MAX,
            ),
            Scheme::Bearer | Scheme::Cookie => match self.find_key(bytes) {
                Some(principal) if scheme == Scheme::Bearer => (principal, VERIFIED_MAX),
                _ => self.verify_token(bytes).await?,
            },
        };
        let until = later(lasts.min(VERIFIED_MAX));
        self.verified
            .put(scheme, bytes, generation, until, Some(&principal));
        Ok(principal)
    }

    /// The principal of a name and a password, which it remembers. A pair that was recently wrong is not verified again.
    ///
    /// # Errors
    /// [`AuthError`]
    pub(crate) async fn verify_password(
        &self,
        credential: Credential<'_>,
        address: IpAddr,
    ) -> Result<Arc<Principal>, AuthError> {
        if self.passwords.is_empty() {
            return Err(AuthError::Credential(
                "signing in by password is not configured",
            ));
        }
        if let Some(known) = self.known(credential) {
            let principal = known.and_then(|found| found.principal().map(Arc::clone));
            return principal.ok_or(AuthError::Credential(WRONG_CREDENTIALS));
        }
        let Credential { scheme, bytes } = credential;
        let pair = STANDARD.decode(bytes).unwrap_or_default();
        let colon = pair.iter().position(|&byte| byte == b':');
        let parts = colon.and_then(|at| pair.split_at_checked(at));
        let name = parts.and_then(|(name, _)| std::str::from_utf8(name).ok());
        let (Some(name), Some((_, password))) = (name, parts) else {
            return Err(AuthError::Credential("the credentials are malformed"));
        };
        let password = password.get(1..).unwrap_or_default();
        let checked = self.passwords.check(address, bytes, name, password).await;
        let principal = checked.map_err(|busy| match busy {
            TooManyChecks::Client => AuthError::TooManyChecks(
                "too many passwords from this address are being checked",
                1,
            ),
            TooManyChecks::Wrong(seconds) => {
                let detail = "too many passwords of this user from this address were wrong";
                AuthError::TooManyChecks(detail, seconds)
            }
            TooManyChecks::All => AuthError::Unavailable("too many passwords are being checked"),
        })?;
        match &principal {
            Some(_) => {
                // Users do not change while larder runs, and a check could be held up by wrong passwords of others.
                let until = Boottime(u64::MAX);
                self.verified
                    .put(scheme, bytes, 0, until, principal.as_ref());
            }
            None => self.wrong.put(scheme, bytes, 0, later(WRONG_MAX), None),
        }
        principal.ok_or(AuthError::Credential(WRONG_CREDENTIALS))
    }

    fn find_key(&self, key: &[u8]) -> Option<Arc<Principal>> {
        if self.keys.is_empty() {
            return None;
        }
        let hash: [u8; 32] = digest(&SHA256, key).as_ref().try_into().ok()?;
        self.keys.get(&hash).map(Arc::clone)
    }

    /// The principal of a token, and how long the token is valid.
    async fn verify_token(&self, token: &[u8]) -> Result<(Arc<Principal>, Duration), AuthError> {
        let Some(tokens) = &self.tokens else {
            return Err(AuthError::Token(WRONG_CREDENTIALS));
        };
        let claims = tokens.verify(token).await?;
        let lasts = Duration::from_secs(claims.until.saturating_sub(unix_time()));
        let (rules, name, roles) = (&self.rules, &claims.name, &claims.roles);
        let principal = match claims.signed_in_at {
            Some(_) => {
                let user = self.passwords.user(name);
                let claim = |claim: &str| Some(user?.claim(claim)?.to_owned());
                Principal::new(rules, PrincipalKind::User, name, roles, claim)
            }
            None => {
                let issuer = claims.issuer.clone();
                let kind = PrincipalKind::Token { issuer };
                Principal::new(rules, kind, name, roles, |claim| claims.text(claim))
            }
        };
        Ok((principal, lasts))
    }

    /// The user of a token that larder has signed, and when that user signed in. `None` if no tokens are configured.
    ///
    /// # Errors
    /// [`AuthError::Token`] for another token, or if the user does not exist any more.
    pub(crate) async fn renew(
        &self,
        token: &[u8],
    ) -> Result<Option<(Arc<Principal>, u64)>, AuthError> {
        let Some(tokens) = &self.tokens else {
            return Ok(None);
        };
        let claims = tokens.verify(token).await?;
        // The user may have been removed since, or have other roles.
        match (self.passwords.user(&claims.name), claims.signed_in_at) {
            (Some(principal), Some(at)) => Ok(Some((Arc::clone(principal), at))),
            _ => Err(AuthError::Token("the token was not issued by this server")),
        }
    }

    /// A token for a user that signed in at `auth_time`; `None` if the session has reached its maximum length.
    pub(crate) fn sign(&self, principal: &Principal, auth_time: u64) -> Option<SignedToken> {
        let tokens = self.tokens.as_ref()?;
        tokens.sign(&principal.name, &principal.roles, auth_time)
    }
}

impl From<JwtError> for AuthError {
    fn from(error: JwtError) -> Self {
        match error {
            JwtError::Invalid(why) | JwtError::WrongKey(why) => Self::Token(why),
            JwtError::UnknownKey => {
                Self::Token("no key is configured for the token's header (alg and kid)")
            }
            JwtError::NoKeys => {
                Self::Unavailable("the keys that verify tokens have not been fetched yet")
            }
        }
    }
}

fn later(duration: Duration) -> Boottime {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    Boottime(Boottime::now().0.saturating_add(nanos))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::config::Config;

    /// A larder with one user, and the credential of that user.
    fn of_anna() -> (Config, String) {
        let hash = passwords::hash(b"anna's").unwrap();
        let text = format!("[[auth.user]]\nname = 'anna'\npassword = '{hash}'");
        let config = Config::from_toml(&text, &[]).unwrap();
        (config, STANDARD.encode("anna:anna's"))
    }

    #[tokio::test]
    async fn a_password_that_was_wrong_just_now_is_not_checked_again() {
        let (config, pair) = of_anna();
        let start = || Authenticator::start(&config.auth, &[]).unwrap().unwrap();
        let credential = Credential {
            scheme: Scheme::Basic,
            bytes: pair.as_bytes(),
        };
        let address = Ipv4Addr::LOCALHOST.into();
        let found = start().verify_password(credential, address).await;
        assert!(found.is_ok());
        let authenticator = start();
        let later = Boottime(u64::MAX);
        let wrong = &authenticator.wrong;
        wrong.put(Scheme::Basic, credential.bytes, 0, later, None);
        let found = authenticator.verify_password(credential, address).await;
        assert_eq!(found.err(), Some(AuthError::Credential(WRONG_CREDENTIALS)));
    }

    /// Another check could be held up by wrong passwords that others send.
    #[tokio::test]
    async fn a_password_that_was_right_is_not_checked_again() {
        let (config, pair) = of_anna();
        let authenticator = Authenticator::start(&config.auth, &[]).unwrap().unwrap();
        let credential = Credential {
            scheme: Scheme::Basic,
            bytes: pair.as_bytes(),
        };
        let address = Ipv4Addr::LOCALHOST.into();
        assert!(authenticator.known(credential).is_none());
        let found = authenticator.verify_password(credential, address).await;
        assert!(found.is_ok());
        let in_a_day = Boottime::now().0 + 86_400 * 1_000_000_000;
        crate::clock::stopped::set(Boottime(in_a_day));
        let known = authenticator.known(credential).flatten().unwrap();
        assert_eq!(known.principal().unwrap().name, "anna");
    }

    /// The name of a user in a token of another issuer is no proof of being that user.
    #[tokio::test]
    async fn claims_come_from_the_credential_and_for_users_from_the_configuration() {
        let hash = passwords::hash(b"anna's").unwrap();
        let secret = "0123456789abcdef0123456789abcdef";
        let text = format!(
            "[auth.jwt]\nalgorithms = ['HS256']\nsecret = '{secret}'\n\
             [[auth.user]]\nname = 'anna'\npassword = '{hash}'\nclaims = {{ sub = '17', other = '5' }}\n\
             [[auth.key]]\nname = 'job'\nhash = '{key}'\nclaims = {{ sub = '18' }}\n\
             [[resource]]\nname = 'orders'\ntable = 't'\n[resource.owner]\ncolumn = 'c'\nclaim = 'sub'",
            key = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683", // key
        );
        let config = Config::from_toml(&text, &[]).unwrap();
        let authenticator = Authenticator::start(&config.auth, &config.resources);
        let authenticator = authenticator.unwrap().unwrap();
        let claim = async |scheme, bytes: &str| {
            let bytes = bytes.as_bytes();
            let credential = Credential { scheme, bytes };
            let address = Ipv4Addr::LOCALHOST.into();
            let first = authenticator.verify(credential, address).await.unwrap();
            let known = authenticator.known(credential).flatten().unwrap();
            let claims = [&first, known.principal().unwrap()].map(|principal| {
                assert_eq!(principal.claim("other"), None, "no resource names it");
                principal.claim("sub").map(str::to_owned)
            });
            assert_eq!(claims[0], claims[1]);
            claims[0].clone()
        };
        let pair = STANDARD.encode("anna:anna's");
        assert_eq!(claim(Scheme::Basic, &pair).await.as_deref(), Some("17"));
        assert_eq!(claim(Scheme::Key, "key").await.as_deref(), Some("18"));
        let anna = authenticator.passwords.user("anna").unwrap();
        let own = authenticator.sign(anna, unix_time()).unwrap();
        assert_eq!(
            claim(Scheme::Bearer, &own.token).await.as_deref(),
            Some("17")
        );
        let renewed = authenticator.renew(own.token.as_bytes()).await.unwrap();
        assert_eq!(renewed.unwrap().0.claim("sub"), Some("17"));
        let foreign = |sub: &str| {
            let claims = serde_json::json!({"sub": sub, "exp": unix_time() + 1000});
            let key = jsonwebtoken::EncodingKey::from_secret(secret.as_bytes());
            jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap()
        };
        assert_eq!(
            claim(Scheme::Bearer, &foreign("9")).await.as_deref(),
            Some("9")
        );
        assert_eq!(
            claim(Scheme::Bearer, &foreign("anna")).await.as_deref(),
            Some("anna")
        );
        // A user that is gone has no claims, although its token is valid.
        let gone = Principal::named("gone");
        let gone = authenticator.sign(&gone, unix_time()).unwrap();
        assert_eq!(claim(Scheme::Bearer, &gone.token).await, None);
    }
}
