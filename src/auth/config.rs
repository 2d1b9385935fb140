//! The configuration of `[auth]`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use jsonwebtoken::Algorithm;

/// The role of every request, with or without credentials.
pub const ANONYMOUS: &str = "anonymous";

/// Section `[auth]`.
#[derive(Clone, Debug, Default)]
pub struct AuthConfig {
    /// Users with a name and a password.
    pub users: Vec<UserDefinition>,
    /// API keys of programs.
    pub keys: Vec<KeyDefinition>,
    /// Tokens, which other issuers or larder itself sign.
    pub jwt: JwtConfig,
    /// The token of the admin address.
    pub admin_token: Option<Secret>,
    /// The file that contains it instead.
    pub admin_token_file: Option<PathBuf>,
}

impl AuthConfig {
    /// Whether requests are authenticated.
    pub fn is_on(&self) -> bool {
        !self.users.is_empty() || !self.keys.is_empty() || self.jwt.is_on()
    }

    /// Whether larder issues tokens.
    pub fn signs_in(&self) -> bool {
        let jwt = &self.jwt;
        let signs =
            jwt.secret.is_some() || jwt.secret_file.is_some() || jwt.private_key_file.is_some();
        signs && !self.users.is_empty()
    }
}

/// `[[auth.user]]`
#[derive(Clone, Debug)]
pub struct UserDefinition {
    /// The name; no key has the same.
    pub name: String,
    /// The password's hash by argon2, as a PHC string.
    pub password: Secret,
    /// The roles of the user.
    pub roles: Vec<String>,
    /// The claims of the user, by the names that resources have for them.
    pub claims: BTreeMap<String, String>,
}

/// `[[auth.key]]`
#[derive(Clone)]
pub struct KeyDefinition {
    /// The name; no user has the same.
    pub name: String,
    /// SHA-256 of the key. Keys are random and can't be guessed, so a slow hash would protect them no better.
    pub hash: [u8; 32],
    /// The roles of the key.
    pub roles: Vec<String>,
    /// The claims of the key, by the names that resources have for them.
    pub claims: BTreeMap<String, String>,
}

impl fmt::Debug for KeyDefinition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyDefinition")
            .field("name", &self.name)
            .field("roles", &self.roles)
            .field("claims", &self.claims)
            .finish_non_exhaustive()
    }
}

/// `[auth.jwt]`; the keys come from at most one place.
#[derive(Clone, Debug, Default)]
pub struct JwtConfig {
    /// The accepted algorithms: all for a secret, or all for public keys. Tokens are signed with the first.
    pub algorithms: Vec<Algorithm>,
    /// The secret of an HMAC.
    pub secret: Option<Secret>,
    /// The file that contains it instead.
    pub secret_file: Option<PathBuf>,
    /// A public key.
    pub public_key_file: Option<PathBuf>,
    /// Its private key, if larder signs tokens.
    pub private_key_file: Option<PathBuf>,
    /// A JSON Web Key Set (RFC 7517).
    pub jwks_file: Option<PathBuf>,
    /// The URL that the set is fetched from; it may contain a password.
    pub jwks_url: Option<Secret>,
    /// The required value of `iss`.
    pub issuer: Option<String>,
    /// The required value of `aud`.
    pub audience: Option<String>,
    /// The claim that holds the roles: its name, or a dotted path.
    pub roles_claim: Option<String>,
    /// The accepted difference of the issuer's clock.
    pub leeway: Duration,
    /// The cookie that may hold a token.
    pub cookie: Option<String>,
    /// From which pages browsers send that cookie.
    pub same_site: SameSite,
    /// How long a token that larder signs is valid.
    pub lifetime: Duration,
    /// How long after signing in tokens are renewed.
    pub session_max: Duration,
}

/// The attribute `SameSite` of the cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SameSite {
    /// Browsers send it from pages of the same site.
    #[default]
    Strict,
    /// They send it from pages of other sites, too, over TLS only.
    None,
}

impl JwtConfig {
    /// Whether tokens are accepted.
    pub fn is_on(&self) -> bool {
        !self.keys().is_empty()
    }

    /// The settings with the keys, or with the places of the keys.
    pub fn keys(&self) -> Vec<&'static str> {
        let places = [
            ("auth.jwt.secret", self.secret.is_some()),
            ("auth.jwt.secret_file", self.secret_file.is_some()),
            ("auth.jwt.public_key_file", self.public_key_file.is_some()),
            ("auth.jwt.jwks_file", self.jwks_file.is_some()),
            ("auth.jwt.jwks_url", self.jwks_url.is_some()),
        ];
        places
            .iter()
            .filter_map(|(place, set)| set.then_some(*place))
            .collect()
    }
}

/// Stands in place of a secret in everything that is shown.
pub(crate) const MASK: &str = "***";

/// A text that is never logged.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Wraps `text`.
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The text itself.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}
