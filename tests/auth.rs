//! Authentication and authorization over the real service.

mod admin;
mod binary;
mod sessions;
mod tokens;

use std::net::IpAddr;

use argon2::password_hash::{PasswordHasher, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::{join, join_all};
use larder::server::Peer;
use tower::ServiceExt;

pub(crate) use self::tokens::{now, token};
use crate::harness::cluster::TestCluster;
use crate::harness::service::{TestResponse, TestService, execute};

const SCHEMA: &str = "
    create table item (id bigint primary key, title text);
    insert into item values (1, 'one')";

const RESOURCES: &str = "
    [[resource]]
    name = 'items'
    table = 'item'
    [[resource]]
    name = 'open'
    table = 'item'
    read = ['anonymous']
    write = ['staff']
    [[resource]]
    name = 'closed'
    table = 'item'
    read = ['staff']
    write = []";

/// A resource that needs no role.
const ITEMS: &str = "[[resource]]\nname = 'items'\ntable = 'item'";

const MEMORY: &str = "larder; hit; detail=memory";

/// A key and its SHA-256.
const KEY: (&str, &str) = (
    "test",
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
);

/// A hash with the cheapest parameters.
fn hash(password: &str) -> String {
    let params = Params::new(8, 1, 1, None).unwrap();
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    let salt = SaltString::encode_b64(b"salt of the test").unwrap();
    let hash = argon2.hash_password(password.as_bytes(), &salt);
    hash.unwrap().to_string()
}

/// Two users, `anna` with role `staff` and `bert`, and the program `job` with role `staff`.
fn principals() -> String {
    format!(
        "[[auth.user]]\nname = 'anna'\npassword = '{}'\nroles = ['staff']\n\
         [[auth.user]]\nname = 'bert'\npassword = '{}'\n\
         [[auth.key]]\nname = 'job'\nhash = '{}'\nroles = ['staff']\n",
        hash("anna's"),
        hash("bert:s"),
        KEY.1
    )
}

async fn larder(auth: &str) -> TestService {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    TestService::start_on(&url, &format!("{auth}\n{RESOURCES}"), &[]).await
}

fn basic(name: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))
}

/// The answer of a write has the stored document, that of a repeated one the document that was stored first.
#[tokio::test(flavor = "multi_thread")]
async fn write_only_roles_cannot_read() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let resource = "[[resource]]\nname = 'items'\ntable = 'item'\nread = ['staff']\nwrite = ['staff', 'feeder']";
    let users = format!(
        "{}[[auth.user]]\nname = 'cleo'\npassword = '{}'\nroles = ['feeder']\n",
        principals(),
        hash("cleo's")
    );
    let larder = TestService::start_on(
        &url,
        &format!("{users}{resource}"),
        &[("idempotency_keys", "true")],
    )
    .await;
    let [anna, cleo] =
        [("anna", "anna's"), ("cleo", "cleo's")].map(|(name, word)| basic(name, word));
    let json = ("content-type", "application/json");
    let patch = async |credential: &str, key: &str, body: &str| {
        let headers = [
            ("authorization", credential),
            json,
            ("idempotency-key", key),
        ];
        larder
            .write(Method::PATCH, "/items/1", &headers, body)
            .await
    };
    let seen = patch(&anna, "a", "{}").await;
    assert_eq!(
        (seen.status, seen.json()["title"].as_str()),
        (StatusCode::OK, Some("one"))
    );
    // The same key sent by another user is another key.
    let unseen = patch(&cleo, "a", "{}").await;
    assert_eq!(
        (unseen.status, unseen.body.as_str()),
        (StatusCode::NO_CONTENT, "")
    );
    let other = patch(&cleo, "b", r#"{"title":"two"}"#).await;
    assert_eq!(other.status, StatusCode::NO_CONTENT);
    let headers = [("authorization", cleo.as_str())];
    let read = larder.request(Method::GET, "/items/1", &headers).await;
    assert_problem(&read, StatusCode::FORBIDDEN);
    // The outcome would tell whether a guess of the contents is right.
    let headers = [("authorization", anna.as_str())];
    let known = larder.request(Method::GET, "/items/1", &headers).await;
    let put = async |credential: &str, name: &str, value: &str| {
        let headers = [("authorization", credential), (name, value)];
        let body = r#"{"title":"two"}"#;
        let answer = larder.write(Method::PUT, "/items/1", &headers, body).await;
        answer.status.as_u16()
    };
    let guesses = [known.header("etag"), "\"guess\"", "*, \"guess\""];
    for value in guesses {
        assert_eq!(put(&cleo, "if-match", value).await, 403, "{value}");
        assert_eq!(put(&cleo, "if-none-match", value).await, 403, "{value}");
    }
    assert_eq!(put(&cleo, "if-match", "*").await, 204);
    assert_eq!(put(&cleo, "if-none-match", "*").await, 412);
    assert_eq!(put(&anna, "if-match", "\"guess\"").await, 412);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_description_shows_what_the_client_may_use() {
    let larder = larder(&principals()).await;
    let (anna, bert) = (basic("anna", "anna's"), basic("bert", "bert:s"));
    let mut etags = Vec::new();
    // Again, from what was rendered before.
    for _ in 0..2 {
        for (credential, expected) in [
            ("", &["open"][..]),
            (bert.as_str(), &["items", "open"]),
            (anna.as_str(), &["items", "open", "closed"]),
        ] {
            let headers = [("authorization", credential)];
            let headers = if credential.is_empty() {
                &[][..]
            } else {
                &headers
            };
            let answer = larder.request(Method::GET, "/openapi.json", headers).await;
            let description = answer.json();
            let tags = description["tags"].as_array().unwrap().iter();
            let tags: Vec<&str> = tags.map(|tag| tag["name"].as_str().unwrap()).collect();
            assert_eq!(tags, expected, "{credential}");
            assert_eq!(
                answer.body.contains("/closed/"),
                expected.contains(&"closed")
            );
            assert_eq!(answer.header("cache-control"), "private, no-cache");
            assert_eq!(answer.header("vary"), "authorization, cookie, x-api-key");
            etags.push(answer.header("etag").to_owned());
        }
    }
    assert!(etags[0] != etags[1] && etags[1] != etags[2]);
    assert_eq!(etags[..3], etags[3..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn options_of_a_closed_resource_do_not_tell_whether_it_can_be_written() {
    let url = TestCluster::database().await.url;
    let sql = "create table note (id bigint primary key, item bigint not null references item, text text)";
    execute(&url, &format!("{SCHEMA}; {sql}")).await;
    // The children's primary key is not among the fields, so `shown` can't be written.
    let shown = "[[resource]]\nname = 'shown'\ntable = 'item'\nread = ['staff']\nwrite = ['staff']\n\
                 [[resource.children]]\nname = 'notes'\ntable = 'note'\nfields = { text = 'text' }";
    let toml = format!("{}{RESOURCES}\n{shown}", principals());
    let larder = TestService::start_on(&url, &toml, &[]).await;
    let (anna, bert) = (basic("anna", "anna's"), basic("bert", "bert:s"));
    let allow = async |path: &str, credential: &str| {
        let headers = [("authorization", credential)];
        let headers = if credential.is_empty() {
            &[][..]
        } else {
            &headers
        };
        let answer = larder.request(Method::OPTIONS, path, headers).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT);
        answer.header("allow").to_owned()
    };
    for credential in ["", &bert] {
        assert_eq!(
            allow("/shown/1", credential).await,
            allow("/closed/1", credential).await
        );
    }
    assert_eq!(allow("/shown/1", &anna).await, "GET, HEAD, OPTIONS");
}

#[track_caller]
fn assert_problem(answer: &TestResponse, status: StatusCode) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.header("content-type"), "application/problem+json");
}

async fn status(larder: &TestService, method: Method, path: &str, credential: &str) -> StatusCode {
    let headers = [("authorization", credential)];
    let headers = if credential.is_empty() {
        &[][..]
    } else {
        &headers
    };
    larder.request(method, path, headers).await.status
}

/// Whether the request is authorized, whatever its answer then is.
async fn is_authorized(larder: &TestService, method: Method, path: &str, credential: &str) -> bool {
    let status = status(larder, method, path, credential).await;
    status != StatusCode::UNAUTHORIZED && status != StatusCode::FORBIDDEN
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_and_wrong_credentials_are_challenged() {
    let larder = larder(&principals()).await;
    let wrong = [
        String::new(),
        basic("anna", "bert:s"),
        basic("nobody", "anna's"),
        basic("anna", ""),
        "Basic !!!".to_owned(),
        "Basic".to_owned(),
        "Bearer tesT".to_owned(),
        "Bearer a.b.c".to_owned(),
        "Digest a".to_owned(),
    ];
    for credential in &wrong {
        // The second time the result may be remembered.
        for _ in 0..2 {
            let headers = [("authorization", credential.as_str())];
            let headers = if credential.is_empty() {
                &[][..]
            } else {
                &headers
            };
            let answer = larder.request(Method::GET, "/items/1", headers).await;
            assert_problem(&answer, StatusCode::UNAUTHORIZED);
            let challenges: Vec<&str> = answer
                .headers
                .get_all("www-authenticate")
                .iter()
                .map(|value| value.to_str().unwrap())
                .collect();
            assert_eq!(challenges[0], "Basic realm=\"larder\", charset=\"UTF-8\"");
            assert!(challenges[1].starts_with("Bearer realm=\"larder\""));
        }
    }
    // Refused requests have caused no statement.
    assert_eq!(larder.metric("larder_source_batch_keys_count").await, 0.0);
    let counted = "larder_requests_total{detail=\"auth\",resource=\"\",status=\"401\"} 18";
    let metrics = larder.admin("/metrics").await.body;
    assert!(metrics.contains(counted), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn passwords_and_api_keys_authenticate() {
    let larder = larder(&principals()).await;
    let ways = [
        ("authorization", basic("anna", "anna's")),
        ("authorization", basic("bert", "bert:s")),
        ("authorization", format!("Bearer {}", KEY.0)),
        ("x-api-key", KEY.0.to_owned()),
    ];
    larder
        .request(Method::GET, "/items/1", &[("x-api-key", KEY.0)])
        .await;
    for (name, value) in &ways {
        for _ in 0..2 {
            let answer = larder
                .request(Method::GET, "/items/1", &[(*name, value.as_str())])
                .await;
            assert_eq!(answer.status, StatusCode::OK, "{name}: {value}");
            assert_eq!(answer.cache_status(), MEMORY);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_decide_reads_and_writes() {
    let larder = larder(&principals()).await;
    let (anna, bert) = (basic("anna", "anna's"), basic("bert", "bert:s"));
    let cases = [
        ("", "/items/1", false, false),
        ("", "/open/1", true, false),
        ("", "/closed/1", false, false),
        ("", "/%6Ftems/1", true, false),
        (bert.as_str(), "/items/1", true, true),
        (bert.as_str(), "/open/1", true, false),
        (bert.as_str(), "/closed/1", false, false),
        (bert.as_str(), "/%63losed/1", false, false),
        (anna.as_str(), "/items/1", true, true),
        (anna.as_str(), "/open/1", true, true),
        (anna.as_str(), "/closed/1", true, false),
    ];
    for (credential, path, reads, writes) in cases {
        for (method, expected) in [(Method::GET, reads), (Method::HEAD, reads)] {
            let is_authorized = is_authorized(&larder, method.clone(), path, credential).await;
            assert_eq!(is_authorized, expected, "{method} {path} {credential}");
        }
        if path.contains('%') {
            continue;
        }
        for method in [Method::PUT, Method::PATCH, Method::DELETE] {
            let is_authorized = is_authorized(&larder, method.clone(), path, credential).await;
            assert_eq!(is_authorized, writes, "{method} {path} {credential}");
        }
    }
    // 403 for a user without the role; 401 without credentials, which may follow.
    let refused = larder
        .request(Method::GET, "/closed/1", &[("authorization", &bert)])
        .await;
    assert_problem(&refused, StatusCode::FORBIDDEN);
    assert_eq!(refused.header("www-authenticate"), "");
    let status = status(&larder, Method::GET, "/closed/1", "").await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    // A request with a wrong credential is not anonymous.
    let wrong = basic("anna", "wrong");
    assert!(!is_authorized(&larder, Method::GET, "/open/1", &wrong).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_with_one_password_authenticate() {
    let larder = larder(&principals()).await;
    let anna = basic("anna", "anna's");
    let headers = [("authorization", anna.as_str())];
    let requests = (0..200).map(|_| larder.request(Method::GET, "/items/1", &headers));
    for answer in join_all(requests).await {
        assert_eq!(answer.status, StatusCode::OK);
    }
}

/// Shared caches respect `Authorization` by themselves, but neither `X-API-Key` nor cookies.
#[tokio::test(flavor = "multi_thread")]
async fn only_publicly_readable_documents_are_for_shared_caches() {
    let larder = larder(&principals()).await;
    for (path, cache_control) in [
        ("/items/1", "private, no-cache"),
        ("/closed/1", "private, no-cache"),
        ("/closed?keys=1", "private, no-cache"),
        ("/open/1", "no-cache"),
    ] {
        for _ in 0..2 {
            let answer = larder
                .request(Method::GET, path, &[("x-api-key", KEY.0)])
                .await;
            assert_eq!(answer.status, StatusCode::OK, "{path}");
            assert_eq!(answer.header("cache-control"), cache_control, "{path}");
        }
    }
}

/// As slow as real ones, so that checks overlap.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_password_checks_of_one_address_are_bounded() {
    let salt = SaltString::encode_b64(b"salt of the test").unwrap();
    let slow = Argon2::default().hash_password(b"anna's", &salt).unwrap();
    let auth = format!("[[auth.user]]\nname = 'anna'\npassword = '{slow}'\nroles = ['staff']\n");
    let larder = larder(&auth).await;
    let address = |last| Peer {
        address: IpAddr::from([192, 0, 2, last]),
        is_proxied: false,
    };
    let get = async |from, credential: String| {
        let request = Request::get("/items/1")
            .header("host", "localhost")
            .header("authorization", credential);
        let request = request.body(Body::empty()).unwrap();
        let public = larder.public().for_connection(address(from));
        public.oneshot(request).await.unwrap()
    };
    let wrong = (0..50).map(|number| get(1, basic("anna", &format!("wrong {number}"))));
    let (wrong, right) = join(join_all(wrong), get(2, basic("anna", "anna's"))).await;
    assert_eq!(right.status(), StatusCode::OK);
    let count = |status| {
        wrong
            .iter()
            .filter(|answer| answer.status() == status)
            .count()
    };
    let refused = count(StatusCode::TOO_MANY_REQUESTS);
    assert!(refused > 0);
    assert_eq!(count(StatusCode::UNAUTHORIZED) + refused, 50);
    let mut sent_away = wrong.iter();
    let sent_away = sent_away.find(|answer| answer.status() == StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(sent_away.unwrap().headers()["retry-after"], "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_guesses_passwords_is_held_up() {
    let larder = larder(&principals()).await;
    let get = async |from, credential: &str| {
        let peer = Peer {
            address: IpAddr::from([192, 0, 2, from]),
            is_proxied: false,
        };
        let request = Request::get("/items/1")
            .header("host", "localhost")
            .header("authorization", credential);
        let request = request.body(Body::empty()).unwrap();
        let public = larder.public().for_connection(peer);
        public.oneshot(request).await.unwrap()
    };
    let (anna, bert) = (basic("anna", "anna's"), basic("bert", "bert:s"));
    assert_eq!(get(1, &bert).await.status(), StatusCode::OK);
    for name in ["anna", "bert", "zoe"] {
        for number in 0..10 {
            let answer = get(1, &basic(name, &format!("wrong {number}"))).await;
            assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{name} {number}");
        }
        let answer = get(1, &basic(name, "wrong")).await;
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS, "{name}");
        let seconds = answer.headers()["retry-after"].to_str().unwrap();
        assert!((20..=31).contains(&seconds.parse().unwrap()), "{seconds}");
    }
    // The right password, too, unless it is known already; elsewhere it is checked.
    assert_eq!(get(1, &anna).await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(get(1, &bert).await.status(), StatusCode::OK);
    assert_eq!(get(2, &anna).await.status(), StatusCode::OK);
    let key = format!("Bearer {}", KEY.0);
    assert_eq!(get(1, &key).await.status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_auth_every_request_is_allowed() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let larder = TestService::start_on(&url, ITEMS, &[]).await;
    for (path, credential) in [("/items/1", ""), ("/items/1", "Bearer whatever")] {
        assert!(is_authorized(&larder, Method::GET, path, credential).await);
    }
}
