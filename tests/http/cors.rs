//! CORS: requests from pages of other origins, and `OPTIONS`.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use larder::server::Peer;
use tower::ServiceExt;

use super::{assert_problem, larder};
use crate::harness::service::TestService;

const SCHEMA: &str = "create table item (id bigint primary key); insert into item values (42);";
const RESOURCE: &str = "[[resource]]\nname = 'items'\ntable = 'item'\n";
const ORIGIN: (&str, &str) = ("origin", "https://app.example");
const PREFLIGHT: (&str, &str) = ("access-control-request-method", "GET");

#[tokio::test(flavor = "multi_thread")]
async fn options_are_204_with_allow() {
    let larder = larder().await;
    for (path, allow) in [
        ("/items/42", "GET, HEAD, PUT, PATCH, DELETE, OPTIONS"),
        ("/items/x", "GET, HEAD, PUT, PATCH, DELETE, OPTIONS"),
        ("/items", "GET, HEAD, POST, OPTIONS"),
        ("/items:batch", "POST, OPTIONS"),
        ("*", "GET, HEAD, POST, OPTIONS"),
    ] {
        let answer = larder.request(Method::OPTIONS, path, &[]).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{path}");
        assert_eq!(answer.header("allow"), allow, "{path}");
        let is_patched = !answer.header("accept-patch").is_empty();
        assert_eq!(is_patched, allow.contains("PATCH"), "{path}");
    }
    assert_problem(&larder.request(Method::OPTIONS, "/nothing", &[]).await, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_origins_are_denied_unless_configured() {
    // Not on loopback, where without [auth] the request itself would be refused.
    let beyond = format!("insecure = true\nlisten = '0.0.0.0:80'\n{RESOURCE}");
    let larder = TestService::start(SCHEMA, &beyond).await;
    for method in [Method::GET, Method::OPTIONS] {
        let answer = larder
            .request(method, "/items/42", &[ORIGIN, PREFLIGHT])
            .await;
        assert!(answer.status.is_success());
        let allowed = answer
            .headers
            .keys()
            .any(|name| name.as_str().starts_with("access-control"));
        assert!(!allowed, "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn named_origins_may_read_what_they_ask_for() {
    let cors =
        "[cors]\norigins = ['https://app.example', 'http://localhost:3000']\ncredentials = true\n";
    let larder = TestService::start(SCHEMA, &format!("{cors}max_age = '2m'\n{RESOURCE}")).await;
    let preflight = larder
        .request(Method::OPTIONS, "/items/42", &[ORIGIN, PREFLIGHT])
        .await;
    assert_eq!(preflight.status, StatusCode::NO_CONTENT);
    for (name, value) in [
        ("access-control-allow-origin", "https://app.example"),
        (
            "access-control-allow-methods",
            "GET, HEAD, POST, PUT, PATCH, DELETE",
        ),
        ("access-control-allow-credentials", "true"),
        ("access-control-max-age", "120"),
        ("vary", "origin"),
    ] {
        assert_eq!(preflight.header(name), value, "{name}");
    }
    assert!(
        preflight
            .header("access-control-allow-headers")
            .contains("larder-token")
    );
    larder.get("/items/42").await;
    // A hit, a miss, a list, errors.
    for path in ["/items/42", "/items/7", "/items", "/items/x", "/nothing"] {
        let answer = larder.request(Method::GET, path, &[ORIGIN]).await;
        assert_eq!(
            answer.header("access-control-allow-origin"),
            ORIGIN.1,
            "{path}"
        );
        let exposed = answer.header("access-control-expose-headers");
        for name in ["accept-ranges", "etag", "preference-applied"] {
            assert!(exposed.split(", ").any(|shown| shown == name), "{exposed}");
        }
        let stranger = [("origin", "https://evil.example")];
        for headers in [&stranger[..], &[]] {
            let answer = larder.request(Method::GET, path, headers).await;
            assert_eq!(answer.header("access-control-allow-origin"), "", "{path}");
            assert_eq!(answer.header("vary"), "origin", "{path}");
        }
    }
    let stranger = [("origin", "https://evil.example"), PREFLIGHT];
    let refused = larder
        .request(Method::OPTIONS, "/items/42", &stranger)
        .await;
    assert_eq!(refused.status, StatusCode::NO_CONTENT);
    assert_eq!(refused.header("access-control-allow-methods"), "");
    // Not every OPTIONS is a preflight.
    let options = larder
        .request(Method::OPTIONS, "/items/42", &[ORIGIN])
        .await;
    assert!(options.header("allow").contains("PATCH"));
}

#[tokio::test(flavor = "multi_thread")]
async fn all_origins_may_read_if_configured() {
    let larder = TestService::start(SCHEMA, &format!("[cors]\norigins = ['*']\n{RESOURCE}")).await;
    let answer = larder.request(Method::GET, "/items/42", &[ORIGIN]).await;
    assert_eq!(answer.header("access-control-allow-origin"), "*");
    assert_eq!(answer.header("vary"), "");
    let without = larder.get("/items/42").await;
    assert_eq!(without.header("access-control-allow-origin"), "");
}

/// A page of any site could write, and with a name that resolves to loopback read.
#[tokio::test(flavor = "multi_thread")]
async fn without_auth_web_pages_of_other_sites_are_refused_on_loopback() {
    let config = format!(
        "hosts = ['larder.internal']\n[cors]\norigins = ['https://app.example']\n\
         [limits]\ntrusted_proxies = ['192.0.2.0/24']\n{RESOURCE}"
    );
    let larder = TestService::start(SCHEMA, &config).await;
    let own = ("host", "localhost:8080");
    let foreign = ("host", "evil.example");
    let evil = ("origin", "https://evil.example");
    let cross = ("sec-fetch-site", "cross-site");
    for (method, headers, status) in [
        (Method::GET, &[own][..], 200),
        (Method::GET, &[("host", "larder.internal")], 200),
        (Method::GET, &[foreign], 403),
        (Method::GET, &[own, cross], 403),
        (Method::DELETE, &[own, evil], 403),
        (Method::DELETE, &[own, ORIGIN, cross], 204),
    ] {
        let answer = larder.request(method, "/items/42", headers).await;
        assert_eq!(answer.status.as_u16(), status, "{headers:?}");
        if status == 403 {
            assert_problem(&answer, status);
        }
    }
    let sent_from = async |address: [u8; 4], is_proxied| {
        let peer = Peer {
            address: address.into(),
            is_proxied,
        };
        let request = Request::get("/items/42").header("host", "evil.example");
        let request = request.body(Body::empty()).unwrap();
        let public = larder.public().for_connection(peer);
        public.oneshot(request).await.unwrap().status().as_u16()
    };
    assert_eq!(sent_from([127, 0, 0, 1], false).await, 403);
    assert_eq!(sent_from([127, 0, 0, 1], true).await, 404);
    assert_eq!(sent_from([192, 0, 2, 1], false).await, 404);

    let beyond = format!("insecure = true\nlisten = '0.0.0.0:80'\n{RESOURCE}");
    let larder = TestService::start(SCHEMA, &beyond).await;
    let answer = larder.request(Method::GET, "/items/42", &[foreign]).await;
    assert_eq!(answer.status, StatusCode::OK);
}
