//! `POST /signin`, `POST /refresh`, and the cookie.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use serde_json::json;
use tower::ServiceExt;

use super::tokens::{now, token};
use super::{assert_problem, basic, is_authorized, larder, principals};
use crate::harness::eventually;
use crate::harness::service::{TestResponse, TestService};

const SECRET: &str = "a secret that is thirty-two bytes";

async fn signing(more: &str) -> TestService {
    let jwt = format!("[auth.jwt]\nalgorithms = ['HS256']\nsecret = '{SECRET}'\n{more}\n");
    larder(&(jwt + &principals())).await
}

async fn sign_in(larder: &TestService, headers: &[(&str, &str)]) -> TestResponse {
    let anna = basic("anna", "anna's");
    let mut all = vec![("authorization", anna.as_str())];
    all.extend_from_slice(headers);
    larder.request(Method::POST, "/signin", &all).await
}

async fn refresh(larder: &TestService, token: &str) -> TestResponse {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str())];
    larder.request(Method::POST, "/refresh", &headers).await
}

fn token_of(answer: &TestResponse) -> String {
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    answer.json()["token"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn signing_in_returns_a_token_that_can_be_renewed() {
    let larder = signing("issuer = 'https://me'\naudience = 'me'\nlifetime = '100s'").await;
    let answer = sign_in(&larder, &[]).await;
    assert_eq!(answer.json()["expires_in"], 100);
    assert_eq!(answer.header("cache-control"), "no-store");
    assert_eq!(answer.header("set-cookie"), "");
    let token = token_of(&answer);
    let renewed = token_of(&refresh(&larder, &token).await);
    for token in [&token, &renewed] {
        let bearer = format!("Bearer {token}");
        assert!(is_authorized(&larder, Method::GET, "/closed/1", &bearer).await);
        assert!(is_authorized(&larder, Method::PUT, "/open/1", &bearer).await);
    }
}

async fn post_json(larder: &TestService, media_type: &str, body: &str) -> StatusCode {
    let request = Request::post("/signin")
        .header("host", "localhost")
        .header("content-type", media_type);
    let request = request.body(Body::from(body.to_owned())).unwrap();
    larder.public().oneshot(request).await.unwrap().status()
}

/// Repeated with a token, a user's request was executed again.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_has_the_same_idempotency_keys_with_password_and_token() {
    let jwt = format!(
        "idempotency_keys = true\n[auth.jwt]\nalgorithms = ['HS256']\nsecret = '{SECRET}'\n"
    );
    let larder = larder(&(jwt + &principals())).await;
    let token = token_of(&sign_in(&larder, &[]).await);
    for credential in [basic("anna", "anna's"), format!("Bearer {token}")] {
        let headers = [
            ("authorization", credential.as_str()),
            ("idempotency-key", "k"),
        ];
        let body = r#"{"title":"x"}"#;
        let answer = larder.write(Method::PUT, "/items/11", &headers, body).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn signing_in_takes_json_of_a_few_bytes() {
    let larder = signing("").await;
    let json = "application/json; charset=utf-8";
    let good = r#"{"name":"anna","password":"anna's"}"#;
    assert_eq!(post_json(&larder, json, good).await, StatusCode::OK);
    let long = format!("{{\"name\":\"{}\"}}", "x".repeat(5000));
    for (media_type, body, status) in [
        (
            json,
            r#"{"name":"anna","password":"x"}"#,
            StatusCode::UNAUTHORIZED,
        ),
        (
            json,
            r#"{"name":"zoe","password":"x"}"#,
            StatusCode::UNAUTHORIZED,
        ),
        (json, r#"{"name":"anna"}"#, StatusCode::BAD_REQUEST),
        (json, "", StatusCode::BAD_REQUEST),
        (json, &long, StatusCode::PAYLOAD_TOO_LARGE),
        ("text/plain", good, StatusCode::UNSUPPORTED_MEDIA_TYPE),
    ] {
        assert_eq!(post_json(&larder, media_type, body).await, status, "{body}");
    }
    let get = larder.get("/signin").await;
    assert_problem(&get, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(get.header("allow"), "POST");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_however_often_it_is_renewed() {
    let larder = signing("session_max = '2s'").await;
    let answer = sign_in(&larder, &[]).await;
    assert!(answer.json()["expires_in"].as_u64().unwrap() <= 2);
    let mut token = token_of(&answer);
    eventually("the session is over", async || {
        let answer = refresh(&larder, &token).await;
        if answer.status == StatusCode::OK {
            token = token_of(&answer);
            return None;
        }
        assert_problem(&answer, StatusCode::UNAUTHORIZED);
        Some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_tokens_of_users_who_signed_in_are_renewed() {
    let larder = signing("").await;
    let until = now() + 100;
    for claims in [
        json!({"sub": "anna", "exp": until}),
        // `auth_time` is a standard claim: this may be a token of another issuer with the same secret.
        json!({"sub": "anna", "exp": until, "auth_time": now()}),
        json!({"sub": "anna", "exp": until, "auth_time": now(), "iss": "larder"}),
        json!({"sub": "gone", "exp": until, "auth_time": now()}),
        json!({"sub": "anna", "exp": now() - 1, "auth_time": now()}),
        json!({"sub": "anna", "exp": until, "auth_time": now() - 50_000}),
    ] {
        let answer = refresh(&larder, &token(SECRET, &claims)).await;
        assert_problem(&answer, StatusCode::UNAUTHORIZED);
    }
    let anna = basic("anna", "anna's");
    for headers in [&[][..], &[("authorization", anna.as_str())]] {
        let answer = larder.request(Method::POST, "/refresh", headers).await;
        assert_problem(&answer, StatusCode::UNAUTHORIZED);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cookie_writes_from_pages_of_the_same_origin_only() {
    let larder = signing("cookie = 'larder'").await;
    let answer = sign_in(&larder, &[]).await;
    let token = token_of(&answer);
    let expected = format!("larder={token}; Max-Age=900; Path=/; HttpOnly; SameSite=Strict");
    assert_eq!(answer.header("set-cookie"), expected);
    let behind = sign_in(&larder, &[("x-forwarded-proto", "https")]).await;
    assert!(behind.header("set-cookie").ends_with("; Secure"));

    let cookie = format!("other=1; larder={token}");
    let ask = async |method: Method, path: &str, origin: Option<&str>| {
        let mut headers = vec![("cookie", cookie.as_str()), ("host", "larder.example")];
        headers.extend(origin.map(|origin| ("origin", origin)));
        larder.request(method, path, &headers).await.status
    };
    let own = Some("https://larder.example");
    let neighbour = Some("https://evil.example");
    assert_eq!(ask(Method::GET, "/closed/1", None).await, StatusCode::OK);
    assert_eq!(
        ask(Method::GET, "/closed/1", neighbour).await,
        StatusCode::OK
    );
    // Known by now or not, the cookie alone changes nothing.
    for (origin, expected) in [(None, false), (neighbour, false), (own, true)] {
        let status = ask(Method::DELETE, "/open/7", origin).await;
        assert_eq!(
            status != StatusCode::FORBIDDEN,
            expected,
            "{origin:?} {status}"
        );
        let status = ask(Method::POST, "/refresh", origin).await;
        assert_eq!(status == StatusCode::OK, expected, "{origin:?} {status}");
    }
    // A batch reads.
    let status = ask(Method::POST, "/closed:batch", neighbour).await;
    assert_ne!(status, StatusCode::FORBIDDEN);
}

/// With the token in the body, a script could read what `HttpOnly` hides from it.
#[tokio::test(flavor = "multi_thread")]
async fn a_cookie_is_renewed_without_showing_the_token() {
    let larder = signing("cookie = 'larder'").await;
    let token = token_of(&sign_in(&larder, &[]).await);
    let cookie = format!("larder={token}");
    let headers = [
        ("cookie", cookie.as_str()),
        ("host", "larder.example"),
        ("origin", "https://larder.example"),
    ];
    let renewed = larder.request(Method::POST, "/refresh", &headers).await;
    assert_eq!(renewed.json(), json!({"expires_in": 900}));
    let set = renewed.header("set-cookie");
    let (name, value) = set.split(';').next().unwrap().split_once('=').unwrap();
    assert_eq!(name, "larder");
    let bearer = format!("Bearer {value}");
    assert!(is_authorized(&larder, Method::GET, "/closed/1", &bearer).await);
}

/// A proxy that does not pass on `Host` made all writes with the cookie 403, which did not say why.
#[tokio::test(flavor = "multi_thread")]
async fn a_cookie_writes_through_a_proxy_that_names_the_host() {
    for (proxies, expected) in [
        ("['0.0.0.0']", StatusCode::OK),
        ("[]", StatusCode::FORBIDDEN),
    ] {
        let more = format!("cookie = 'larder'\n[limits]\ntrusted_proxies = {proxies}");
        let larder = signing(&more).await;
        let cookie = format!("larder={}", token_of(&sign_in(&larder, &[]).await));
        let sent = [
            ("cookie", cookie.as_str()),
            ("host", "internal:8080"),
            ("origin", "https://larder.example"),
        ];
        let answer = larder.request(Method::POST, "/refresh", &sent).await;
        assert_problem(&answer, StatusCode::FORBIDDEN);
        assert!(answer.body.contains("`internal:8080`"), "{answer:?}");
        for hosts in ["larder.example", "larder.example, internal:8080"] {
            let forwarded = [&sent[..], &[("x-forwarded-host", hosts)]].concat();
            let answer = larder.request(Method::POST, "/refresh", &forwarded).await;
            assert_eq!(answer.status, expected, "{answer:?}");
            let written = larder.request(Method::DELETE, "/open/7", &forwarded).await;
            let is_refused = written.status == StatusCode::FORBIDDEN;
            assert_eq!(is_refused, expected == StatusCode::FORBIDDEN, "{written:?}");
        }
        let forwarded = [&sent[..], &[("x-forwarded-host", "evil.example")]].concat();
        let answer = larder.request(Method::POST, "/refresh", &forwarded).await;
        assert_problem(&answer, StatusCode::FORBIDDEN);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cookie_writes_from_configured_origins_if_credentials_are_allowed() {
    for credentials in [true, false] {
        let cors = format!("origins = ['https://app.example']\ncredentials = {credentials}");
        let more = format!("cookie = 'larder'\nsame_site = 'none'\n[cors]\n{cors}");
        let larder = signing(&more).await;
        let answer = sign_in(&larder, &[]).await;
        let set = answer.header("set-cookie");
        assert!(set.ends_with("; HttpOnly; SameSite=None; Secure"), "{set}");
        let cookie = format!("larder={}", token_of(&answer));
        let app = ("origin", "https://app.example");
        let own = ("origin", "https://larder.example");
        let cross = ("sec-fetch-site", "cross-site");
        for (headers, expected) in [
            (&[app][..], credentials),
            (&[app, cross], credentials),
            (&[app, app], false),
            (&[own], true),
            (&[own, cross], false),
            (&[("origin", "moz-extension://larder.example")], false),
            (
                &[
                    ("x-forwarded-proto", "https"),
                    ("origin", "http://larder.example"),
                ],
                false,
            ),
        ] {
            let mut all = vec![("cookie", cookie.as_str()), ("host", "larder.example")];
            all.extend_from_slice(headers);
            for (method, path) in [(Method::DELETE, "/open/7"), (Method::POST, "/refresh")] {
                let status = larder.request(method, path, &all).await.status;
                assert_eq!(
                    status != StatusCode::FORBIDDEN,
                    expected,
                    "{path} {headers:?}"
                );
            }
        }
    }
}

/// A browser sends a cookie that has expired with every request.
#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_cookie_is_ignored_where_no_credentials_are_needed() {
    let larder = signing("cookie = 'larder'").await;
    let stale = token(SECRET, &json!({"sub": "anna", "exp": now() - 1}));
    let cookie = format!("larder={stale}");
    let bearer = format!("Bearer {stale}");
    let own = [("host", "a"), ("origin", "http://a")];
    for (method, path, credential, status) in [
        (
            Method::GET,
            "/open/1",
            ("cookie", cookie.as_str()),
            StatusCode::OK,
        ),
        // From memory now.
        (Method::GET, "/open/1", ("cookie", &cookie), StatusCode::OK),
        (Method::HEAD, "/open/1", ("cookie", &cookie), StatusCode::OK),
        (
            Method::GET,
            "/open?keys=1",
            ("cookie", &cookie),
            StatusCode::OK,
        ),
        (
            Method::GET,
            "/closed/1",
            ("cookie", &cookie),
            StatusCode::UNAUTHORIZED,
        ),
        (
            Method::DELETE,
            "/open/1",
            ("cookie", &cookie),
            StatusCode::UNAUTHORIZED,
        ),
        (
            Method::GET,
            "/open/1",
            ("authorization", &bearer),
            StatusCode::UNAUTHORIZED,
        ),
        (
            Method::GET,
            "/open/1",
            ("x-api-key", "wrong"),
            StatusCode::UNAUTHORIZED,
        ),
    ] {
        let headers = [credential, own[0], own[1]];
        let answer = larder.request(method, path, &headers).await;
        assert_eq!(answer.status, status, "{path} {credential:?}");
        let hints = answer.headers.get_all("www-authenticate").iter();
        let mut hints = hints.map(|hint| hint.to_str().unwrap());
        let is_hinted = hints.any(|hint| hint.contains("invalid_token"));
        assert!(is_hinted || credential.0 == "x-api-key", "{answer:?}");
    }
    let answer = larder.get("/open/1").await;
    assert_eq!(answer.header("www-authenticate"), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn signing_out_removes_the_cookie() {
    let larder = signing("cookie = 'larder'").await;
    let cookie = ("cookie", "larder=whatever");
    let sign_out =
        async |headers: &[(&str, &str)]| larder.request(Method::POST, "/signout", headers).await;
    let host = ("host", "larder.example");
    for headers in [
        &[][..],
        &[cookie, host, ("origin", "https://larder.example")],
    ] {
        let answer = sign_out(headers).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT);
        let expected = "larder=; Max-Age=0; Path=/; HttpOnly; SameSite=Strict";
        assert_eq!(answer.header("set-cookie"), expected);
        assert_eq!(answer.header("cache-control"), "no-store");
    }
    // A form of another site.
    let answer = sign_out(&[host, ("origin", "https://evil.example")]).await;
    assert_problem(&answer, StatusCode::FORBIDDEN);
    assert_eq!(answer.header("set-cookie"), "");
    let without_cookie = signing("").await;
    let answer = without_cookie.request(Method::POST, "/signout", &[]).await;
    assert_problem(&answer, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_users_the_paths_of_sign_in_are_404() {
    let larder = larder(&principals()).await;
    let answer = sign_in(&larder, &[]).await;
    assert_problem(&answer, StatusCode::NOT_FOUND);
}

/// A browser sends several cookies of one name if they were set for several paths or domains, and no script can leave one
/// out.
#[tokio::test(flavor = "multi_thread")]
async fn a_stale_or_long_cookie_hides_no_valid_one() {
    let larder = signing("cookie = 'session'").await;
    let token = token_of(&sign_in(&larder, &[]).await);
    let long = "x".repeat(9_000);
    for (cookies, path, status) in [
        (
            format!("session=stale; session={token}"),
            "/closed/1",
            StatusCode::OK,
        ),
        (
            format!("session={long}; session={token}"),
            "/closed/1",
            StatusCode::OK,
        ),
        (
            format!("session={token}; session=stale"),
            "/closed/1",
            StatusCode::OK,
        ),
        (
            "session=stale; session=older".to_owned(),
            "/closed/1",
            StatusCode::UNAUTHORIZED,
        ),
        (
            format!("session={long}"),
            "/closed/1",
            StatusCode::UNAUTHORIZED,
        ),
        (
            "session=stale; session=older".to_owned(),
            "/open/1",
            StatusCode::OK,
        ),
        (format!("session={long}"), "/open/1", StatusCode::OK),
    ] {
        let answer = larder
            .request(Method::GET, path, &[("cookie", &cookies)])
            .await;
        let start: String = cookies.chars().take(30).collect();
        assert_eq!(answer.status, status, "{start} {path}");
    }
    let cookies = format!("session=stale; session={token}");
    let headers = [("cookie", cookies.as_str()), ("origin", "http://localhost")];
    let renewed = larder.request(Method::POST, "/refresh", &headers).await;
    assert_eq!(renewed.status, StatusCode::OK, "{renewed:?}");
}

/// It would be taken for JSON that is wrong, and a password is too short to encode.
#[tokio::test(flavor = "multi_thread")]
async fn an_encoded_body_does_not_sign_in() {
    let larder = signing("").await;
    let headers = [
        ("content-type", "application/json"),
        ("content-encoding", "gzip"),
    ];
    let good = r#"{"name":"anna","password":"anna's"}"#;
    let answer = larder.send(Method::POST, "/signin", &headers, good).await;
    assert_problem(&answer, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(answer.header("accept-encoding"), "identity");
}
