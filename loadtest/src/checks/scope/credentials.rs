//! API keys and tokens, as clients of larder have them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::{digest, hmac};
use serde_json::{Value, json};

/// Signs tokens.
pub(super) const SECRET: &str = "a secret of the load test, of more than thirty-two bytes";
/// Longer than any run.
const LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// Section `[auth.jwt]`, with which larder accepts [`token`]s.
pub(super) fn jwt_toml() -> String {
    format!("[auth.jwt]\nalgorithms = ['HS256']\nsecret = '{SECRET}'\n")
}

/// The SHA-256 of an API key, as the configuration has it.
pub(super) fn key_hash(key: &str) -> String {
    let hash = digest::digest(&digest::SHA256, key.as_bytes());
    hash.as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// An `[[auth.key]]` of this name, which is also the key, with a role and the claim `sub`.
pub(super) fn key_toml(key: &str, role: &str, claim: Option<&str>) -> String {
    let hash = key_hash(key);
    let claims = claim.map(|claim| format!("claims = {{ sub = '{claim}' }}\n"));
    let claims = claims.unwrap_or_default();
    format!("[[auth.key]]\nname = '{key}'\nhash = '{hash}'\nroles = ['{role}']\n{claims}")
}

/// A token with these claims that is valid now.
pub(super) fn token(mut claims: Value) -> anyhow::Result<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let claims_object = claims.as_object_mut().context("claims are an object")?;
    claims_object.insert("exp".to_owned(), json!((now + LIFETIME).as_secs()));
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!(
        "{}.{}",
        part(&json!({"alg": "HS256", "typ": "JWT"})),
        part(&claims)
    );
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    let signature = hmac::sign(&key, signed.as_bytes());
    let signature = BASE64_URL_SAFE_NO_PAD.encode(signature.as_ref());
    Ok(format!("{signed}.{signature}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_known_by_its_hash() {
        let hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        assert_eq!(key_hash("test"), hash);
    }

    #[test]
    fn a_token_has_three_parts() {
        let token = token(json!({"sub": "17"})).unwrap();
        assert_eq!(token.split('.').count(), 3);
    }
}
