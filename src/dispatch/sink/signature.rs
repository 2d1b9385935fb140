//! Signatures of requests by Standard Webhooks 1.0.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use ring::signature::Ed25519KeyPair;

/// The prefixes of secrets: keys of HMAC-SHA256, and private keys of Ed25519.
const HMAC_PREFIX: &str = "whsec_";
const ED25519_PREFIX: &str = "whsk_";

/// The bytes that a key of HMAC may have.
const HMAC_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// The bytes of an Ed25519 seed. A private key may be followed by its public one.
const SEED_BYTES: usize = 32;

/// A text that is no secret. The message repeats nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected whsec_ and 24 to 64 bytes in base64, or whsk_ and an Ed25519 key of 32 or 64 bytes in base64 (not shown)"
)]
pub(crate) struct SecretError;

/// A key that signs requests.
pub(crate) enum SigningKey {
    /// `v1`.
    Hmac(hmac::Key),
    /// `v1a`.
    Ed25519(Ed25519KeyPair),
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey")
    }
}

impl SigningKey {
    /// Reads a secret such as `whsec_…` or `whsk_…`.
    ///
    /// # Errors
    /// [`SecretError`].
    pub(crate) fn parse(secret: &str) -> Result<Self, SecretError> {
        let decoded = |text: &str| STANDARD.decode(text).map_err(|_| SecretError);
        if let Some(text) = secret.strip_prefix(HMAC_PREFIX) {
            let key = decoded(text)?;
            if !HMAC_BYTES.contains(&key.len()) {
                return Err(SecretError);
            }
            return Ok(Self::Hmac(hmac::Key::new(hmac::HMAC_SHA256, &key)));
        }
        let key = decoded(secret.strip_prefix(ED25519_PREFIX).ok_or(SecretError)?)?;
        let (seed, public) = key.split_at_checked(SEED_BYTES).ok_or(SecretError)?;
        let pair = match public {
            [] => Ed25519KeyPair::from_seed_unchecked(seed),
            public => Ed25519KeyPair::from_seed_and_public_key(seed, public),
        };
        pair.map(Self::Ed25519).map_err(|_| SecretError)
    }

    /// Makes the signature of a request: `v1,…` or `v1a,…`.
    fn sign(&self, content: &[u8]) -> String {
        match self {
            Self::Hmac(key) => format!("v1,{}", STANDARD.encode(hmac::sign(key, content))),
            Self::Ed25519(pair) => format!("v1a,{}", STANDARD.encode(pair.sign(content))),
        }
    }
}

/// Makes the value of `webhook-signature`: a signature by each key, separated by spaces. `timestamp` is in seconds since
/// 1970.
pub(super) fn signatures(keys: &[SigningKey], id: &str, timestamp: u64, body: &[u8]) -> String {
    let mut content = format!("{id}.{timestamp}.").into_bytes();
    content.extend_from_slice(body);
    let signatures = keys.iter().map(|key| key.sign(&content));
    signatures.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use ring::signature::{ED25519, KeyPair, UnparsedPublicKey};

    use super::*;

    /// The example of the specification's library.
    #[test]
    fn hmac_is_that_of_the_specification() {
        let key = SigningKey::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let body = br#"{"test": 2432232314}"#;
        let signed = signatures(&[key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn each_key_signs() {
        let seed = [7; SEED_BYTES];
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).unwrap();
        let public = pair.public_key().as_ref();
        for key in [seed.to_vec(), [&seed[..], public].concat()] {
            let keys = [
                SigningKey::parse(&format!("whsec_{}", STANDARD.encode([1; 24]))).unwrap(),
                SigningKey::parse(&format!("whsk_{}", STANDARD.encode(key))).unwrap(),
            ];
            let signed = signatures(&keys, "id", 1, b"{}");
            let (hmac, ed25519) = signed.split_once(" v1a,").unwrap();
            assert!(hmac.starts_with("v1,"));
            let signature = STANDARD.decode(ed25519).unwrap();
            let verifier = UnparsedPublicKey::new(&ED25519, public);
            verifier.verify(b"id.1.{}", &signature).unwrap();
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let short = STANDARD.encode([1; 23]);
        let long = STANDARD.encode([1; 65]);
        let other_public = STANDARD.encode([1; 64]);
        for text in [
            String::new(),
            "s3cret".to_owned(),
            "whsec_***".to_owned(),
            format!("whsec_{short}"),
            format!("whsec_{long}"),
            format!("whsk_{short}"),
            format!("whsk_{other_public}"),
        ] {
            assert_eq!(SigningKey::parse(&text).unwrap_err(), SecretError, "{text}");
        }
    }
}
