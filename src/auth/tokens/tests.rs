use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::EncodingKey;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::json;

use super::*;
use crate::auth::config::Secret;
use crate::auth::signatures;

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const NOW: u64 = 1_000_000;
const RSA: &str = include_str!("../../../tests/auth/rsa.pem");
const RSA_PUBLIC: &str = include_str!("../../../tests/auth/rsa.pub.pem");

fn hmac() -> (JwtConfig, Keyring) {
    signatures::install();
    let config = JwtConfig {
        algorithms: vec![Algorithm::HS256],
        secret: Some(Secret::new(SECRET)),
        roles_claim: Some("roles".to_owned()),
        ..JwtConfig::default()
    };
    let keyring = Keyring::read(&config).unwrap().unwrap();
    (config, keyring)
}

fn sign(header: &Header, claims: &Value, key: &[u8]) -> String {
    signatures::install();
    encode(header, claims, &EncodingKey::from_secret(key)).unwrap()
}

/// A token with these claims, signed with the secret.
fn token(claims: &Value) -> String {
    sign(&Header::new(Algorithm::HS256), claims, SECRET.as_bytes())
}

/// jsonwebtoken also compares `exp` and `nbf` with the real clock, so they are relative to it.
fn far() -> u64 {
    unix_time() + 1000
}

#[track_caller]
fn refused(outcome: Result<Claims, JwtError>, why: &str) {
    match outcome {
        Err(JwtError::Invalid(told) | JwtError::WrongKey(told)) => {
            assert!(told.contains(why), "{told}")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_valid_token_has_a_name_and_roles() {
    let (config, keyring) = hmac();
    let until = far();
    let claims = json!({"iss": "https://issuer", "sub": "anna", "exp": until, "roles": ["a", 1, "b"], "auth_time": 5});
    let expected = Claims {
        issuer: "https://issuer".to_owned(),
        name: "anna".to_owned(),
        roles: vec!["a".to_owned(), "b".to_owned()],
        until,
        signed_in_at: None,
        all: claims.as_object().unwrap().clone(),
    };
    let verified = verify(&config, &keyring, token(&claims).as_bytes(), NOW);
    assert_eq!(verified, Ok(expected));
}

#[test]
fn roles_stand_in_lists_texts_and_deeper() {
    let (mut config, keyring) = hmac();
    let mut seen = |claim: &str, claims: Value| {
        config.roles_claim = Some(claim.to_owned());
        let mut claims = claims;
        claims["exp"] = far().into();
        let verified = verify(&config, &keyring, token(&claims).as_bytes(), NOW);
        verified.unwrap().roles.join("+")
    };
    assert_eq!(seen("scope", json!({"scope": " a  b "})), "a+b");
    assert_eq!(seen("realm.roles", json!({"realm": {"roles": ["a"]}})), "a");
    assert_eq!(seen("https://x.y/r", json!({"https://x.y/r": ["a"]})), "a");
    assert_eq!(seen("roles", json!({})), "");
    assert_eq!(seen("roles", json!({"roles": {"a": 1}})), "");
}

#[test]
fn claims_of_owners_are_texts_integers_and_booleans() {
    let (config, keyring) = hmac();
    let claims = json!({
        "exp": far(), "sub": "17", "no": 17, "big": u64::MAX, "low": -3, "is": true, "app": {"id": {"no": "x"}},
        "https://x.y/id": "y", "a.b": "first", "a": {"b": "second"},
        "half": 17.0, "none": null, "list": ["17"],
    });
    let claims = verify(&config, &keyring, token(&claims).as_bytes(), NOW).unwrap();
    for (path, expected) in [
        ("sub", "17"),
        ("no", "17"),
        ("big", "18446744073709551615"),
        ("low", "-3"),
        ("is", "true"),
        ("app.id.no", "x"),
        ("https://x.y/id", "y"),
        ("a.b", "first"),
    ] {
        assert_eq!(claims.text(path).as_deref(), Some(expected), "{path}");
    }
    for path in [
        "half", "none", "list", "app", "app.id", "app.no", "no.no", "", "x",
    ] {
        assert_eq!(claims.text(path), None, "{path}");
    }
}

#[test]
fn a_token_is_void_from_the_second_it_expires_in() {
    let (mut config, keyring) = hmac();
    let until = far();
    let token = token(&json!({"exp": until}));
    let at = |config: &JwtConfig, now| verify(config, &keyring, token.as_bytes(), now);
    assert!(at(&config, until - 1).is_ok());
    refused(at(&config, until), "expired");
    config.leeway = std::time::Duration::from_secs(5);
    assert!(at(&config, until + 4).is_ok());
    refused(at(&config, until + 5), "expired");
}

#[test]
fn times_are_required_and_numbers() {
    let (config, keyring) = hmac();
    let now = unix_time();
    for (claims, why) in [
        (json!({}), "lacks"),
        (json!({"exp": now - 5}), "expired"),
        (json!({"exp": "99999999999"}), "lacks"),
        (json!({"exp": null}), "lacks"),
        (json!({"exp": -1}), "lacks"),
        (json!({"exp": far(), "nbf": now + 100}), "not valid yet"),
        (json!({"exp": far(), "nbf": "soon"}), "malformed"),
    ] {
        refused(
            verify(&config, &keyring, token(&claims).as_bytes(), NOW),
            why,
        );
    }
    let begun = token(&json!({"exp": far(), "nbf": now}));
    assert!(verify(&config, &keyring, begun.as_bytes(), NOW).is_ok());
}

#[test]
fn issuer_and_audience_are_the_configured_ones() {
    let (mut config, keyring) = hmac();
    let with = |config: &JwtConfig, mut claims: Value| {
        claims["exp"] = far().into();
        verify(config, &keyring, token(&claims).as_bytes(), NOW)
    };
    refused(with(&config, json!({"aud": "anything"})), "audience");
    config.issuer = Some("https://a".to_owned());
    config.audience = Some("larder".to_owned());
    assert!(with(&config, json!({"iss": "https://a", "aud": "larder"})).is_ok());
    assert!(with(&config, json!({"iss": "https://a", "aud": ["x", "larder"]})).is_ok());
    refused(with(&config, json!({"iss": "https://a"})), "lacks");
    refused(with(&config, json!({"aud": "larder"})), "lacks");
    refused(
        with(&config, json!({"iss": "https://b", "aud": "larder"})),
        "issuer",
    );
    refused(
        with(&config, json!({"iss": "https://a", "aud": "x"})),
        "audience",
    );
    refused(with(&config, json!({"iss": 1, "aud": "larder"})), "lacks");
    refused(
        with(&config, json!({"iss": "https://a", "aud": {}})),
        "lacks",
    );
}

#[test]
fn only_tokens_that_larder_has_issued_tell_when_the_user_signed_in() {
    let (mut config, keyring) = hmac();
    config.issuer = Some("https://a".to_owned());
    let signed_in_at = |typ: &str, claims: Value| {
        let mut all = json!({"sub": "anna", "exp": far(), "auth_time": NOW});
        let claims = claims.as_object().unwrap().clone();
        all.as_object_mut().unwrap().extend(claims);
        let mut header = Header::new(Algorithm::HS256);
        header.typ = Some(typ.to_owned());
        let token = sign(&header, &all, SECRET.as_bytes());
        verify(&config, &keyring, token.as_bytes(), NOW).map(|claims| claims.signed_in_at)
    };
    let own = json!({"iss": OWN_ISSUER});
    assert_eq!(signed_in_at(OWN_TYPE, own.clone()), Ok(Some(NOW)));
    assert_eq!(signed_in_at("JWT", json!({"iss": "https://a"})), Ok(None));
    for (typ, claims, why) in [
        (OWN_TYPE, json!({"iss": "https://a"}), "issuer"),
        (OWN_TYPE, json!({}), "lacks"),
        ("JWT", own, "issuer"),
        (
            OWN_TYPE,
            json!({"iss": OWN_ISSUER, "auth_time": NOW + 1}),
            "future",
        ),
    ] {
        match signed_in_at(typ, claims) {
            Err(JwtError::Invalid(told) | JwtError::WrongKey(told)) => {
                assert!(told.contains(why), "{told}")
            }
            other => panic!("{typ} {why} {other:?}"),
        }
    }
}

#[test]
fn the_token_does_not_choose_its_algorithm() {
    let (config, keyring) = hmac();
    let claims = json!({"exp": far()});
    for algorithm in [Algorithm::HS384, Algorithm::HS512] {
        let other = sign(&Header::new(algorithm), &claims, SECRET.as_bytes());
        refused(
            verify(&config, &keyring, other.as_bytes(), NOW),
            "not accepted",
        );
    }
    let encoded = |text: &str| URL_SAFE_NO_PAD.encode(text);
    for header in [
        r#"{"alg":"none"}"#,
        r#"{"alg":"NONE"}"#,
        r#"{"alg":""}"#,
        "{}",
        "[]",
    ] {
        for signature in ["", "AAAA"] {
            let claims = encoded(&claims.to_string());
            let none = format!("{}.{claims}.{signature}", encoded(header));
            refused(verify(&config, &keyring, none.as_bytes(), NOW), "malformed");
        }
    }
    let mut header = Header::new(Algorithm::HS256);
    header.crit = Some(vec!["x".to_owned()]);
    let insisting = sign(&header, &claims, SECRET.as_bytes());
    refused(
        verify(&config, &keyring, insisting.as_bytes(), NOW),
        "extension",
    );
}

/// The classic: the public key, which is not secret, used as the secret of an HMAC.
#[test]
fn a_public_key_is_no_secret() {
    signatures::install();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rsa.pub.pem");
    std::fs::write(&path, RSA_PUBLIC).unwrap();
    let private = directory.path().join("rsa.pem");
    std::fs::write(&private, RSA).unwrap();
    let mut config = JwtConfig {
        algorithms: vec![Algorithm::RS256, Algorithm::PS512],
        public_key_file: Some(path),
        private_key_file: Some(private),
        ..JwtConfig::default()
    };
    let keyring = Keyring::read(&config).unwrap().unwrap();
    let claims = json!({"exp": far()});
    for &algorithm in &config.algorithms {
        let good = encode(&Header::new(algorithm), &claims, keyring.signing().unwrap()).unwrap();
        assert!(verify(&config, &keyring, good.as_bytes(), NOW).is_ok());
    }
    let forged = token_by(RSA_PUBLIC.as_bytes(), &claims);
    refused(
        verify(&config, &keyring, forged.as_bytes(), NOW),
        "not accepted",
    );
    // Even if the configuration could name both, the key is for RSA only.
    config.algorithms.push(Algorithm::HS256);
    refused(verify(&config, &keyring, forged.as_bytes(), NOW), "no key");
}

fn token_by(secret: &[u8], claims: &Value) -> String {
    sign(&Header::new(Algorithm::HS256), claims, secret)
}

/// Key pairs of both curves and the set of their public keys.
fn set() -> (EncodingKey, EncodingKey, Value) {
    signatures::install();
    let random = SystemRandom::new();
    let ed = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
    let ec = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(ed.as_ref()).unwrap();
    let x = URL_SAFE_NO_PAD.encode(pair.public_key());
    let pair =
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, ec.as_ref(), &random).unwrap();
    let point = pair.public_key().as_ref();
    let (x1, y1) = point[1..].split_at(32);
    let (x1, y1) = (URL_SAFE_NO_PAD.encode(x1), URL_SAFE_NO_PAD.encode(y1));
    let set = json!({"keys": [
        {"kty": "unknown", "kid": "odd"},
        {"kty": "oct", "kid": "secret", "k": URL_SAFE_NO_PAD.encode(SECRET)},
        {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": x},
        {"kty": "EC", "crv": "P-256", "kid": "ec", "use": "sig", "alg": "ES256", "x": x1, "y": y1},
    ]});
    let keys = (
        EncodingKey::from_ed_der(ed.as_ref()),
        EncodingKey::from_ec_der(ec.as_ref()),
    );
    (keys.0, keys.1, set)
}

#[test]
fn the_kid_selects_the_key_and_the_key_its_algorithm() {
    let (ed, ec, set) = set();
    let config = JwtConfig {
        algorithms: vec![Algorithm::EdDSA, Algorithm::ES256, Algorithm::HS256],
        ..JwtConfig::default()
    };
    let keyring = Keyring::parse_set(set.to_string().as_bytes(), &config.algorithms).unwrap();
    let claims = json!({"exp": far()});
    let verified = |algorithm, kid: Option<&str>, key: &EncodingKey| {
        let mut header = Header::new(algorithm);
        header.kid = kid.map(str::to_owned);
        let token = encode(&header, &claims, key).unwrap();
        verify(&config, &keyring, token.as_bytes(), NOW)
    };
    for kid in [Some("ed"), None] {
        assert!(verified(Algorithm::EdDSA, kid, &ed).is_ok());
    }
    for kid in [Some("ec"), None] {
        assert!(verified(Algorithm::ES256, kid, &ec).is_ok());
    }
    refused(verified(Algorithm::ES256, Some("ed"), &ec), "no key");
    let unknown = verified(Algorithm::EdDSA, Some("new"), &ed);
    assert_eq!(unknown, Err(JwtError::UnknownKey));
    // A secret in a set of public keys is public.
    let secret = EncodingKey::from_secret(SECRET.as_bytes());
    let by_secret = verified(Algorithm::HS256, Some("secret"), &secret);
    assert_eq!(by_secret, Err(JwtError::UnknownKey));
    refused(verified(Algorithm::HS256, None, &secret), "no key");
    let only = [Algorithm::RS256];
    let none = Keyring::parse_set(set.to_string().as_bytes(), &only).unwrap();
    assert!(none.is_empty());
}

#[test]
fn a_changed_token_is_refused() {
    let (config, keyring) = hmac();
    let claims = json!({"sub": "anna", "exp": far()});
    let good = token(&claims);
    for at in 0..good.len() {
        let mut changed = good.clone().into_bytes();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        let verified = verify(&config, &keyring, &changed, NOW);
        // The last characters of a part hold bits that mean nothing.
        assert!(verified.is_err() || at + 1 == good.len(), "{at}");
    }
    let other = token_by(b"another secret of the same length", &claims);
    refused(
        verify(&config, &keyring, other.as_bytes(), NOW),
        "signature",
    );
    for length in 0..good.len() {
        assert!(verify(&config, &keyring, &good.as_bytes()[..length], NOW).is_err());
    }
}

#[test]
fn garbage_of_any_length_is_refused() {
    let (config, keyring) = hmac();
    let alphabet = b"ey.A_-\xff\0{\".";
    // A linear congruential generator (Knuth, MMIX).
    let mut state = 42_u64;
    for length in (0..300).chain([1000, 4096, 8192]) {
        let draw = |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let drawn = (state >> 33) as usize;
            alphabet.get(drawn % 13).copied().unwrap_or(drawn as u8)
        };
        let garbage: Vec<u8> = (0..length).map(draw).collect();
        assert!(
            verify(&config, &keyring, &garbage, NOW).is_err(),
            "{garbage:?}"
        );
    }
}

#[test]
fn a_short_secret_is_refused() {
    let (mut config, _) = hmac();
    config.secret = Some(Secret::new("short"));
    let mistake = Keyring::read(&config).err().unwrap().to_string();
    assert!(
        mistake.contains("at least 32 bytes") && !mistake.contains("short"),
        "{mistake}"
    );
}
