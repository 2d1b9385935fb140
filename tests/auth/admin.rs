//! The token of the admin address.

use axum::http::{Method, StatusCode};

use super::{ITEMS, SCHEMA, assert_problem};
use crate::harness::cluster::TestCluster;
use crate::harness::service::{TestService, execute};

const TOKEN: &str = "0123456789abcdef";

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_address_needs_the_token_except_for_probes() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let token = [("auth.admin_token", TOKEN)];
    let larder = TestService::start_on(&url, ITEMS, &token).await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(larder.admin(path).await.status, StatusCode::OK, "{path}");
    }
    let right = format!("Bearer {TOKEN}");
    let wrong = format!("Bearer {TOKEN}0");
    for path in [
        "/metrics",
        "/status",
        "/explain/items/1",
        "/nothing",
        "/log-level",
    ] {
        let answer = larder.admin(path).await;
        assert_problem(&answer, StatusCode::UNAUTHORIZED);
        assert!(answer.header("www-authenticate").starts_with("Bearer"));
        for credential in [wrong.as_str(), TOKEN, "Bearer ", "Basic x"] {
            let headers = [("authorization", credential)];
            let answer = larder.request_admin_with(Method::GET, path, &headers).await;
            assert_eq!(
                answer.status,
                StatusCode::UNAUTHORIZED,
                "{path} {credential}"
            );
        }
        let headers = [("authorization", right.as_str())];
        let answer = larder.request_admin_with(Method::GET, path, &headers).await;
        assert_ne!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
    }
    let purge = "/purge/items";
    let answer = larder.post_admin(purge).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    let headers = [("authorization", right.as_str())];
    let answer = larder
        .request_admin_with(Method::POST, purge, &headers)
        .await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
}
