//! The keys that verify tokens, and the key that signs those of larder.

use std::path::Path;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, EncodingKey, Header};

use crate::auth::config::JwtConfig;
use crate::resource::definition::{Mistake, Place};

/// The most keys of a set; others are ignored.
const KEYS_MAX: usize = 100;
/// The most bytes of a file or a response with keys.
pub(super) const BYTES_MAX: u64 = 256 << 10;

/// Keys, each with the algorithms that it may be used for.
pub(super) struct Keyring {
    keys: Vec<VerifyingKey>,
    signing: Option<EncodingKey>,
}

struct VerifyingKey {
    /// Its name in a set.
    kid: Option<String>,
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

/// Why no key was found for a token.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KeyLookupError {
    /// No key has the `kid` of the token. A newer set may have it.
    Unknown,
    /// No key is for the token's algorithm, or several are and the token has no `kid`.
    NoMatch,
}

impl Keyring {
    /// Reads the keys from the configuration or from files; `None` if they are fetched from a URL.
    ///
    /// Blocks on the file system.
    /// # Errors
    /// A file can't be read or contains no key of the right type. The message has the setting and the file, and nothing of
    /// the file's content. A set without a key is no error, since its issuer may have revoked all.
    pub(super) fn read(config: &JwtConfig) -> Result<Option<Self>, Mistake> {
        let algorithms = config.algorithms.as_slice();
        let Some(&algorithm) = algorithms.first() else {
            return Ok(None);
        };
        if let Some(secret) = secret(config)? {
            return Ok(Some(Self {
                keys: vec![VerifyingKey::single(
                    algorithms,
                    DecodingKey::from_secret(&secret),
                )],
                signing: Some(EncodingKey::from_secret(&secret)),
            }));
        }
        if let Some(path) = &config.public_key_file {
            let setting = "auth.jwt.public_key_file";
            let key = public_key(algorithm, &read_file(path, setting)?);
            let key = key.ok_or_else(|| wrong_key_type(path, setting, algorithm, "public"))?;
            let setting = "auth.jwt.private_key_file";
            let signing = config.private_key_file.as_ref().map(|path| {
                let key = private_key(algorithm, &read_file(path, setting)?);
                key.ok_or_else(|| wrong_key_type(path, setting, algorithm, "private"))
            });
            return Ok(Some(Self {
                keys: vec![VerifyingKey::single(algorithms, key)],
                signing: signing.transpose()?,
            }));
        }
        let Some(path) = &config.jwks_file else {
            return Ok(None);
        };
        let setting = "auth.jwt.jwks_file";
        let keyring = Self::parse_set(&read_file(path, setting)?, algorithms);
        let message = || "contains no JSON Web Key Set (RFC 7517)".to_owned();
        keyring
            .map(Some)
            .ok_or_else(|| file_mistake(path, setting, message()))
    }

    /// The keys of a JSON Web Key Set (RFC 7517) that are for one of `algorithms`; `None` if the text is not a set.
    ///
    /// Keys that larder can't parse are ignored.
    pub(super) fn parse_set(json: &[u8], algorithms: &[Algorithm]) -> Option<Self> {
        let set: serde_json::Value = serde_json::from_slice(json).ok()?;
        let keys = set.get("keys")?.as_array()?.iter().take(KEYS_MAX);
        let keys = keys.filter_map(|key| {
            let jwk: Jwk = serde_json::from_value(key.clone()).ok()?;
            VerifyingKey::from_jwk(&jwk, algorithms)
        });
        Some(Self {
            keys: keys.collect(),
            signing: None,
        })
    }

    /// Whether no token can be verified.
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The key for a token with this header.
    pub(super) fn find(&self, header: &Header) -> Result<&DecodingKey, KeyLookupError> {
        let fit = |key: &&VerifyingKey| key.algorithms.contains(&header.alg);
        if let Some(kid) = &header.kid {
            // A key that is configured alone has no name, and verifies tokens with any `kid`.
            let named = |key: &&VerifyingKey| key.kid.as_ref().is_none_or(|name| name == kid);
            let mut named = self.keys.iter().filter(named).peekable();
            named.peek().ok_or(KeyLookupError::Unknown)?;
            return named
                .find(fit)
                .map(|found| &found.key)
                .ok_or(KeyLookupError::NoMatch);
        }
        let mut fitting = self.keys.iter().filter(fit);
        match (fitting.next(), fitting.next()) {
            (Some(only), None) => Ok(&only.key),
            _ => Err(KeyLookupError::NoMatch),
        }
    }

    /// The key that signs tokens.
    pub(super) fn signing(&self) -> Option<&EncodingKey> {
        self.signing.as_ref()
    }
}

impl VerifyingKey {
    fn single(algorithms: &[Algorithm], key: DecodingKey) -> Self {
        Self {
            kid: None,
            algorithms: algorithms.to_vec(),
            key,
        }
    }

    fn from_jwk(jwk: &Jwk, accepted: &[Algorithm]) -> Option<Self> {
        // RFC 7517, sections 4.2 and 4.3: without `use` or `key_ops` a key may be used for all that its type allows.
        let is_for_signatures = |used: &PublicKeyUse| *used == PublicKeyUse::Signature;
        let verifies = |operations: &Vec<_>| operations.contains(&KeyOperations::Verify);
        let common = &jwk.common;
        if !common.public_key_use.as_ref().is_none_or(is_for_signatures)
            || !common.key_operations.as_ref().is_none_or(verifies)
        {
            return None;
        }
        let fits = |algorithm: &Algorithm| match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => algorithm.family() == AlgorithmFamily::Rsa,
            AlgorithmParameters::EllipticCurve(key) => match algorithm {
                Algorithm::ES256 => key.curve == EllipticCurve::P256,
                Algorithm::ES384 => key.curve == EllipticCurve::P384,
                _ => false,
            },
            AlgorithmParameters::OctetKeyPair(key) => {
                *algorithm == Algorithm::EdDSA && key.curve == EllipticCurve::Ed25519
            }
            // A set is public, so a secret in it is not secret.
            AlgorithmParameters::OctetKey(_) => false,
        };
        let said = jwk.common.key_algorithm.map(|said| said.to_string());
        let said = |algorithm: &Algorithm| {
            said.as_ref()
                .is_none_or(|said| *said == format!("{algorithm:?}"))
        };
        let algorithms = accepted.iter().copied();
        let algorithms: Vec<Algorithm> = algorithms
            .filter(|algorithm| fits(algorithm) && said(algorithm))
            .collect();
        if algorithms.is_empty() {
            return None;
        }
        Some(Self {
            kid: jwk.common.key_id.clone(),
            algorithms,
            key: DecodingKey::from_jwk(jwk).ok()?,
        })
    }
}

fn public_key(algorithm: Algorithm, pem: &[u8]) -> Option<DecodingKey> {
    let key = match algorithm.family() {
        AlgorithmFamily::Rsa => DecodingKey::from_rsa_pem(pem),
        AlgorithmFamily::Ec => DecodingKey::from_ec_pem(pem),
        AlgorithmFamily::Ed => DecodingKey::from_ed_pem(pem),
        AlgorithmFamily::Hmac => return None,
    };
    key.ok()
}

fn private_key(algorithm: Algorithm, pem: &[u8]) -> Option<EncodingKey> {
    let key = match algorithm.family() {
        AlgorithmFamily::Rsa => EncodingKey::from_rsa_pem(pem),
        AlgorithmFamily::Ec => EncodingKey::from_ec_pem(pem),
        AlgorithmFamily::Ed => EncodingKey::from_ed_pem(pem),
        AlgorithmFamily::Hmac => return None,
    };
    key.ok()
}

/// The secret of HMACs. It has to be as long as the hash (RFC 7518, section 3.2); a shorter one could be guessed.
fn secret(config: &JwtConfig) -> Result<Option<Vec<u8>>, Mistake> {
    let hash_bytes = |algorithm: &Algorithm| match algorithm {
        Algorithm::HS384 => 48,
        Algorithm::HS512 => 64,
        _ => 32,
    };
    let least = config.algorithms.iter().map(hash_bytes).max().unwrap_or(32);
    let (secret, origin, setting) = match (&config.secret, &config.secret_file) {
        (Some(secret), _) => {
            let bytes = secret.expose().as_bytes().to_vec();
            (bytes, Path::new("configuration"), "auth.jwt.secret")
        }
        (None, Some(path)) => {
            let setting = "auth.jwt.secret_file";
            (
                without_line_break(&read_file(path, setting)?).to_vec(),
                path.as_path(),
                setting,
            )
        }
        (None, None) => return Ok(None),
    };
    if secret.len() < least {
        let message =
            format!("needs at least {least} bytes; `openssl rand -hex {least}` makes one");
        return Err(file_mistake(origin, setting, message));
    }
    Ok(Some(secret))
}

/// `bytes` without the line break that editors add at the end of a file.
pub(crate) fn without_line_break(bytes: &[u8]) -> &[u8] {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    bytes.strip_suffix(b"\r").unwrap_or(bytes)
}

/// Reads a file that a setting names, up to [`BYTES_MAX`].
pub(crate) fn read_file(path: &Path, setting: &str) -> Result<Vec<u8>, Mistake> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(BYTES_MAX).read_to_end(&mut bytes))
        .map_err(|error| file_mistake(path, setting, format!("can't be read: {error}")))?;
    Ok(bytes)
}

/// A mistake in a file that a setting names.
pub(crate) fn file_mistake(path: &Path, setting: &str, message: String) -> Mistake {
    let place = Place {
        origin: path.to_string_lossy().into(),
        line: 0,
        key: setting.to_owned(),
    };
    Mistake { place, message }
}

fn wrong_key_type(path: &Path, setting: &str, algorithm: Algorithm, which: &str) -> Mistake {
    let message = format!("expected a {which} key for {algorithm:?} in PEM");
    file_mistake(path, setting, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_not_for_verifying_verifies_nothing() {
        let x = "A".repeat(43);
        let is_used = |members: &str| {
            let set = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"{x}"{members}}}]}}"#);
            let keyring = Keyring::parse_set(set.as_bytes(), &[Algorithm::EdDSA]);
            !keyring.unwrap().is_empty()
        };
        assert!(is_used(""));
        assert!(is_used(r#","use":"sig","key_ops":["sign","verify"]"#));
        assert!(!is_used(r#","use":"enc""#));
        assert!(!is_used(r#","use":"tls""#));
        assert!(!is_used(r#","key_ops":["sign"]"#));
        assert!(!is_used(r#","key_ops":[]"#));
    }

    /// The keys of a set of one key of this type, `members` of which are written, for tokens of `algorithm`.
    fn of_type(members: &str, algorithm: Algorithm) -> Keyring {
        let x = "A".repeat(43);
        let set = format!(
            r#"{{"keys":[{{{members},"x":"{x}","y":"{x}","n":"{x}","e":"AQAB","k":"{x}"}}]}}"#
        );
        Keyring::parse_set(set.as_bytes(), &[algorithm]).unwrap()
    }

    #[test]
    fn a_key_verifies_only_what_its_type_and_its_algorithm_allow() {
        let (p256, p384) = (r#""kty":"EC","crv":"P-256""#, r#""kty":"EC","crv":"P-384""#);
        let (rsa, ed) = (r#""kty":"RSA""#, r#""kty":"OKP","crv":"Ed25519""#);
        let all = [
            Algorithm::HS256,
            Algorithm::RS256,
            Algorithm::PS256,
            Algorithm::ES256,
            Algorithm::ES384,
            Algorithm::EdDSA,
        ];
        for (members, expected) in [
            (p256, &[Algorithm::ES256][..]),
            (p384, &[Algorithm::ES384]),
            (rsa, &[Algorithm::RS256, Algorithm::PS256]),
            (r#""kty":"RSA","alg":"RS256""#, &[Algorithm::RS256]),
            (r#""kty":"RSA","alg":"RSA-OAEP""#, &[]),
            (ed, &[Algorithm::EdDSA]),
            (r#""kty":"OKP","crv":"P-256""#, &[]),
            (r#""kty":"oct""#, &[]),
        ] {
            for algorithm in all {
                let is_used = !of_type(members, algorithm).is_empty();
                assert_eq!(
                    is_used,
                    expected.contains(&algorithm),
                    "{members} {algorithm:?}"
                );
            }
        }
    }

    #[test]
    fn a_token_without_kid_needs_the_only_key_of_its_algorithm() {
        let x = "A".repeat(43);
        let key = format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{x}"}}"#);
        let set = |count: usize| {
            let keys = vec![key.as_str(); count].join(",");
            let set = format!(r#"{{"keys":[{keys}]}}"#);
            Keyring::parse_set(set.as_bytes(), &[Algorithm::EdDSA]).unwrap()
        };
        let header = Header::new(Algorithm::EdDSA);
        assert!(set(1).find(&header).is_ok());
        for count in [0, 2] {
            assert_eq!(
                set(count).find(&header).err(),
                Some(KeyLookupError::NoMatch)
            );
        }
        assert_eq!(set(KEYS_MAX + 1).keys.len(), KEYS_MAX);
    }
}
