//! `[auth]` as configured.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use jsonwebtoken::Algorithm;

/// The role of everybody, with credentials or without.
pub const ANONYMOUS: &str = "anonymous";

/// Who may.
#[derive(Clone, Debug, Default)]
pub struct AuthConfig {
    /// Who signs in by name and password.
    pub users: Vec<UserDefinition>,
    /// Programs with a key of their own.
    pub keys: Vec<KeyDefinition>,
    /// Tokens that others sign, or larder itself.
    pub jwt: JwtConfig,
    /// What the admin address asks for.
    pub admin_token: Option<Secret>,
    /// Where that stands instead.
    pub admin_token_file: Option<PathBuf>,
}

impl AuthConfig {
    /// Whether anybody has to show who they are.
    pub fn is_on(&self) -> bool {
        !self.users.is_empty() || !self.keys.is_empty() || self.jwt.is_on()
    }

    /// Whether larder gives out tokens.
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
    /// Who it is; no key has the same name.
    pub name: String,
    /// The password's hash by argon2, as a PHC string.
    pub password: Secret,
    /// What the user may be asked for.
    pub roles: Vec<String>,
}

/// `[[auth.key]]`
#[derive(Clone)]
pub struct KeyDefinition {
    /// Who it is; no user has the same name.
    pub name: String,
    /// SHA-256 of the key. Keys are drawn, not thought up, so a slow hash would protect nothing that this one does not.
    pub hash: [u8; 32],
    /// What the key may be used for.
    pub roles: Vec<String>,
}

impl fmt::Debug for KeyDefinition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyDefinition")
            .field("name", &self.name)
            .field("roles", &self.roles)
            .finish_non_exhaustive()
    }
}

/// `[auth.jwt]`; the keys come from at most one place.
#[derive(Clone, Debug, Default)]
pub struct JwtConfig {
    /// All that are accepted, all for a secret or all for public keys; tokens are signed with the first.
    pub algorithms: Vec<Algorithm>,
    /// The secret of an HMAC.
    pub secret: Option<Secret>,
    /// Where that stands instead.
    pub secret_file: Option<PathBuf>,
    /// A public key.
    pub public_key_file: Option<PathBuf>,
    /// Its private key, where larder signs.
    pub private_key_file: Option<PathBuf>,
    /// Public keys (RFC 7517).
    pub jwks_file: Option<PathBuf>,
    /// Where they are fetched instead; it may hold a password.
    pub jwks_url: Option<Secret>,
    /// What `iss` has to be.
    pub issuer: Option<String>,
    /// What `aud` has to name.
    pub audience: Option<String>,
    /// The claim that holds the roles: its name, or a dotted path.
    pub roles_claim: Option<String>,
    /// How far another clock may be off.
    pub leeway: Duration,
    /// The cookie that may hold a token.
    pub cookie: Option<String>,
    /// How long a token that larder signs is good.
    pub lifetime: Duration,
    /// How long after signing in tokens are renewed.
    pub session_max: Duration,
}

impl JwtConfig {
    /// Whether tokens are accepted.
    pub fn is_on(&self) -> bool {
        !self.keys().is_empty()
    }

    /// The settings that say where the keys are.
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

/// A text that is never shown.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Keeps `text` from being shown.
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The text itself, for whoever checks or uses it.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
