//! JSON Web Tokens: verifies them, and signs those of larder.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Header, Validation, decode, decode_header, encode};
use serde_json::{Map, Value};

use crate::auth::config::JwtConfig;
use crate::auth::keyring::{KeyLookupError, Keyring};
use crate::auth::keys::TokenKeys;

/// The claim with the time at which the user signed in (OpenID Connect Core, section 2). Renewals do not change it.
const AUTH_TIME: &str = "auth_time";
/// The claim `iss` of tokens that larder issues.
const OWN_ISSUER: &str = "larder";
/// Their header `typ`, by which no token of another issuer is taken for one of them (RFC 8725, section 3.11).
const OWN_TYPE: &str = "larder-session+jwt";

/// The claims of a valid token.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Claims {
    /// The claim `iss`; empty if there is none.
    pub(super) issuer: String,
    pub(super) name: String,
    pub(super) roles: Vec<String>,
    /// The Unix time, in seconds, from which the token is invalid.
    pub(super) until: u64,
    /// The Unix time, in seconds, at which the user signed in, if larder has issued the token.
    pub(super) signed_in_at: Option<u64>,
    /// All of them.
    all: Map<String, Value>,
}

impl Claims {
    /// The text of the claim at `path` that owners of documents are compared with: of a string, an integer or a boolean.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        match find(&self.all, path)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) if !number.is_f64() => Some(number.to_string()),
            Value::Bool(flag) => Some(flag.to_string()),
            _ => None,
        }
    }
}

/// Why a token is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum JwtError {
    /// The token is invalid; the text is for the client.
    Invalid(&'static str),
    /// No key has the token's `kid`; newer keys may.
    UnknownKey,
    /// The keys at hand do not verify the token; newer keys may, if the issuer has replaced a key without a new `kid`.
    /// The text is for the client.
    WrongKey(&'static str),
    /// The keys have never been fetched.
    NoKeys,
}

/// A token that larder has signed.
pub(crate) struct SignedToken {
    pub(crate) token: String,
    /// Seconds.
    pub(crate) expires_in: u64,
}

/// Verifies and signs.
pub(super) struct JwtVerifier {
    config: JwtConfig,
    keys: Arc<TokenKeys>,
}

impl JwtVerifier {
    pub(super) fn new(config: &JwtConfig, keys: Arc<TokenKeys>) -> Self {
        Self {
            config: config.clone(),
            keys,
        }
    }

    pub(super) fn keys(&self) -> &TokenKeys {
        &self.keys
    }

    /// Verifies a token. If the keys at hand can't verify it, newer keys are fetched once.
    pub(super) async fn verify(&self, token: &[u8]) -> Result<Claims, JwtError> {
        let now = unix_time();
        match self.verify_at(token, now) {
            Err(JwtError::UnknownKey | JwtError::WrongKey(_) | JwtError::NoKeys) => {
                self.keys.refresh().await;
                self.verify_at(token, now)
            }
            verified => verified,
        }
    }

    fn verify_at(&self, token: &[u8], now: u64) -> Result<Claims, JwtError> {
        let keyring = self.keys.current().ok_or(JwtError::NoKeys)?;
        verify(&self.config, &keyring, token, now)
    }

    /// A token for a user that signed in at `auth_time`; `None` if the session has reached its maximum length, or if there
    /// is no key to sign with.
    pub(super) fn sign(&self, name: &str, roles: &[String], auth_time: u64) -> Option<SignedToken> {
        let now = unix_time();
        let session = auth_time.saturating_add(self.config.session_max.as_secs());
        let until = session.min(now.saturating_add(self.config.lifetime.as_secs()));
        if until <= now {
            return None;
        }
        let &algorithm = self.config.algorithms.first()?;
        let claims = claims(&self.config, name, roles, auth_time, (now, until));
        let keyring = self.keys.current()?;
        let header = Header {
            typ: Some(OWN_TYPE.to_owned()),
            ..Header::new(algorithm)
        };
        let token = encode(&header, &claims, keyring.signing()?);
        if let Err(error) = &token {
            tracing::error!("a token can't be signed: {error}");
        }
        Some(SignedToken {
            token: token.ok()?,
            expires_in: until - now,
        })
    }
}

fn claims(
    config: &JwtConfig,
    name: &str,
    roles: &[String],
    auth_time: u64,
    (now, until): (u64, u64),
) -> Map<String, Value> {
    let mut claims = Map::new();
    claims.insert("iss".to_owned(), OWN_ISSUER.into());
    if let Some(audience) = &config.audience {
        claims.insert("aud".to_owned(), audience.as_str().into());
    }
    claims.insert("sub".to_owned(), name.into());
    claims.insert("iat".to_owned(), now.into());
    claims.insert("exp".to_owned(), until.into());
    claims.insert(AUTH_TIME.to_owned(), auth_time.into());
    if let Some(claim) = &config.roles_claim {
        claims.insert(claim.clone(), roles.into());
    }
    claims
}

/// Seconds of Unix time.
pub(crate) fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// RFC 7519, section 7.2, and RFC 8725.
fn verify(
    config: &JwtConfig,
    keyring: &Keyring,
    token: &[u8],
    now: u64,
) -> Result<Claims, JwtError> {
    let malformed = JwtError::Invalid("the token is malformed");
    let header = decode_header(token).map_err(|_| malformed)?;
    if !config.algorithms.contains(&header.alg) {
        return Err(JwtError::Invalid("the token's algorithm is not accepted"));
    }
    // RFC 7515, section 4.1.11: larder supports no extensions.
    if header.crit.is_some() {
        return Err(JwtError::Invalid(
            "the token requires an extension (crit) that is not supported",
        ));
    }
    let key = keyring.find(&header).map_err(|error| match error {
        KeyLookupError::Unknown => JwtError::UnknownKey,
        KeyLookupError::NoMatch => {
            JwtError::WrongKey("no key is configured for the token's header (alg and kid)")
        }
    })?;
    // Without a key to sign with, this larder accepts the tokens of other issuers alone.
    let is_own = header.typ.as_deref() == Some(OWN_TYPE) && keyring.signing().is_some();
    let issuer = Some(OWN_ISSUER)
        .filter(|_| is_own)
        .or(config.issuer.as_deref());
    let validation = validation(config, header.alg, issuer);
    let decoded = decode::<Map<String, Value>>(token, key, &validation);
    let claims = decoded
        .map_err(|error| match error.kind() {
            ErrorKind::InvalidSignature => JwtError::WrongKey("the token's signature is wrong"),
            _ => JwtError::Invalid(why(&error)),
        })?
        .claims;
    let number = |claim: &Value| claim.as_u64().or_else(|| claim.as_f64().map(|n| n as u64));
    let until = claims.get("exp").and_then(number).unwrap_or(0);
    let until = until.saturating_add(config.leeway.as_secs());
    // jsonwebtoken accepts a token in the second in which it expires.
    if until <= now {
        return Err(JwtError::Invalid(EXPIRED));
    }
    let signed_in_at = claims.get(AUTH_TIME).and_then(Value::as_u64);
    let signed_in_at = signed_in_at.filter(|_| is_own);
    if signed_in_at.is_some_and(|at| at > now.saturating_add(config.leeway.as_secs())) {
        return Err(JwtError::Invalid("the token's auth_time is in the future"));
    }
    let text = |claim| match claims.get(claim) {
        Some(Value::String(text)) => text.clone(),
        _ => String::new(),
    };
    Ok(Claims {
        issuer: text("iss"),
        name: text("sub"),
        roles: roles(config, &claims),
        until,
        signed_in_at,
        all: claims,
    })
}

const EXPIRED: &str = "the token has expired";

fn validation(config: &JwtConfig, algorithm: Algorithm, issuer: Option<&str>) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.leeway = config.leeway.as_secs();
    validation.validate_nbf = true;
    let mut required = vec!["exp"];
    if let Some(issuer) = issuer {
        validation.set_issuer(&[issuer]);
        required.push("iss");
    }
    if let Some(audience) = &config.audience {
        validation.set_audience(&[audience]);
        required.push("aud");
    }
    validation.set_required_spec_claims(&required);
    validation
}

/// The text for the client: how to correct the token, and nothing that helps to forge one.
fn why(error: &jsonwebtoken::errors::Error) -> &'static str {
    match error.kind() {
        ErrorKind::ExpiredSignature => EXPIRED,
        ErrorKind::ImmatureSignature => "the token is not valid yet",
        ErrorKind::InvalidIssuer => "the token's issuer (iss) is not accepted",
        ErrorKind::InvalidAudience => "the token's audience (aud) is not accepted",
        ErrorKind::MissingRequiredClaim(_) => "the token lacks a required claim (exp, iss or aud)",
        _ => "the token is malformed",
    }
}

/// The claim at `path`: its name, or a dotted path. The name of a claim may contain dots: "https://example.com/roles".
fn find<'c>(claims: &'c Map<String, Value>, path: &str) -> Option<&'c Value> {
    claims.get(path).or_else(|| {
        let mut parts = path.split('.');
        let first = claims.get(parts.next()?)?;
        parts.try_fold(first, |value, part| value.get(part))
    })
}

/// The roles of a token: an array, or a text with words as in the claim `scope` (RFC 8693, section 4.2).
fn roles(config: &JwtConfig, claims: &Map<String, Value>) -> Vec<String> {
    let path = config.roles_claim.as_deref().unwrap_or_default();
    match find(claims, path) {
        Some(Value::Array(roles)) => {
            let roles = roles.iter().filter_map(Value::as_str);
            roles.map(str::to_owned).collect()
        }
        Some(Value::String(roles)) => roles.split_whitespace().map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
