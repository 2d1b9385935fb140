//! JSON web tokens of other issuers.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::{Method, StatusCode};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{MEMORY, assert_problem, basic, is_authorized, larder, principals, status};
use crate::harness::eventually;
use crate::harness::service::TestService;

const OLD: &str = "an old secret of thirty-two bytes";
const NEW: &str = "a new secret of thirty-two bytes!";

pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap().as_secs()
}

/// Signed as larder signs, which has to run already: it brings the signatures.
pub(crate) fn token(secret: &str, claims: &Value) -> String {
    let key = EncodingKey::from_secret(secret.as_bytes());
    encode(&Header::new(Algorithm::HS256), claims, &key).unwrap()
}

fn bearer(secret: &str, claims: &Value) -> String {
    format!("Bearer {}", token(secret, claims))
}

fn quoted(path: &Path) -> String {
    format!("{path:?}")
}

async fn by_secret(directory: &TempDir) -> TestService {
    let path = directory.path().join("secret");
    std::fs::write(&path, format!("{OLD}\n")).unwrap();
    let path = quoted(&path);
    larder(&format!(
        "[auth.jwt]\nalgorithms = ['HS256']\nsecret_file = {path}\n"
    ))
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_authenticates_until_it_expires() {
    let directory = TempDir::new().unwrap();
    let larder = by_secret(&directory).await;
    let long = bearer(OLD, &json!({"sub": "a", "exp": now() + 600}));
    assert_eq!(
        status(&larder, Method::GET, "/items/1", &long).await,
        StatusCode::OK
    );
    let headers = [("authorization", long.as_str())];
    let hit = larder.request(Method::GET, "/items/1", &headers).await;
    assert_eq!(hit.cache_status(), MEMORY);

    // The remembered result is valid no longer than the token.
    let until = now() + 3;
    let short = bearer(OLD, &json!({"sub": "a", "exp": until}));
    assert_eq!(
        status(&larder, Method::GET, "/items/1", &short).await,
        StatusCode::OK
    );
    let headers = [("authorization", short.as_str())];
    let refused = eventually("the token has expired", async || {
        let answer = larder.request(Method::GET, "/items/1", &headers).await;
        (answer.status != StatusCode::OK).then_some(answer)
    })
    .await;
    assert!(now() >= until, "not before");
    assert_problem(&refused, StatusCode::UNAUTHORIZED);
    assert!(refused.body.contains("expired"), "{refused:?}");
    let challenge = refused.header("www-authenticate");
    assert_eq!(
        challenge,
        "Bearer realm=\"larder\", error=\"invalid_token\""
    );
    assert_eq!(
        status(&larder, Method::GET, "/items/1", &long).await,
        StatusCode::OK
    );
}

/// The issuer of tokens may use a name that a user or an API key has here.
#[tokio::test(flavor = "multi_thread")]
async fn principals_of_the_same_name_have_separate_idempotency_keys() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("secret");
    std::fs::write(&path, OLD).unwrap();
    let jwt = format!(
        "idempotency_keys = true\n[auth.jwt]\nalgorithms = ['HS256']\nsecret_file = {path:?}\n"
    );
    let larder = larder(&format!("{jwt}{}", principals())).await;
    let claims = json!({"sub": "anna", "exp": now() + 600, "roles": "staff"});
    let put = async |credential: &str, id: u32| {
        let headers = [("authorization", credential), ("idempotency-key", "k")];
        let path = format!("/items/{id}");
        larder
            .write(Method::PUT, &path, &headers, r#"{"title":"x"}"#)
            .await
    };
    // With one scope the second would be the first's key for another request: 422.
    let anna = basic("anna", "anna's");
    assert_eq!(put(&anna, 11).await.status, StatusCode::CREATED);
    assert_eq!(
        put(&bearer(OLD, &claims), 12).await.status,
        StatusCode::CREATED
    );
    // Two issuers may have the same subject.
    for (id, issuer) in [(14, "https://one"), (15, "https://other")] {
        let claims = json!({"iss": issuer, "sub": "anna", "exp": now() + 600, "roles": "staff"});
        let answer = put(&bearer(OLD, &claims), id).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{answer:?}");
    }
    for nameless in [
        json!({"exp": now() + 600}),
        json!({"sub": "a\0", "exp": now() + 600}),
    ] {
        let refused = put(&bearer(OLD, &nameless), 13).await;
        assert_problem(&refused, StatusCode::BAD_REQUEST);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rotated_keys_void_known_tokens() {
    let directory = TempDir::new().unwrap();
    let larder = by_secret(&directory).await;
    let claims = json!({"sub": "a", "exp": now() + 600});
    let (old, new) = (bearer(OLD, &claims), bearer(NEW, &claims));
    assert!(is_authorized(&larder, Method::GET, "/items/1", &old).await);
    assert!(!is_authorized(&larder, Method::GET, "/items/1", &new).await);
    let path = directory.path().join("secret");
    std::fs::write(&path, NEW).unwrap();
    eventually("the new secret is in force", async || {
        is_authorized(&larder, Method::GET, "/items/1", &new)
            .await
            .then_some(())
    })
    .await;
    assert!(!is_authorized(&larder, Method::GET, "/items/1", &old).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_public_key_verifies_and_is_no_secret() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("rsa.pub.pem");
    let public = include_str!("rsa.pub.pem");
    std::fs::write(&path, public).unwrap();
    let path = quoted(&path);
    let larder = larder(&format!(
        "[auth.jwt]\nalgorithms = ['RS256']\npublic_key_file = {path}\nroles_claim = 'scope'\n"
    ))
    .await;
    let claims = json!({"sub": "a", "exp": now() + 600, "scope": "other staff"});
    let key = EncodingKey::from_rsa_pem(include_bytes!("rsa.pem")).unwrap();
    let good = encode(&Header::new(Algorithm::RS256), &claims, &key).unwrap();
    let good = format!("Bearer {good}");
    assert_eq!(
        status(&larder, Method::GET, "/closed/1", &good).await,
        StatusCode::OK
    );
    let forged = bearer(public, &claims);
    assert!(!is_authorized(&larder, Method::GET, "/items/1", &forged).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_token_is_accepted_before_keys_are_loaded() {
    // Nothing listens there.
    let larder =
        larder("[auth.jwt]\nalgorithms = ['RS256']\njwks_url = 'http://127.0.0.1:1/keys'\n").await;
    let key = EncodingKey::from_rsa_pem(include_bytes!("rsa.pem")).unwrap();
    let claims = json!({"exp": now() + 600});
    let token = encode(&Header::new(Algorithm::RS256), &claims, &key).unwrap();
    let headers = [("authorization", format!("Bearer {token}"))];
    let headers = headers
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));
    let answer = larder.request(Method::GET, "/items/1", &headers).await;
    assert_problem(&answer, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.header("retry-after"), "1");
    // A request without credentials still gets a challenge.
    assert!(is_authorized(&larder, Method::GET, "/open/1", "").await);
}
