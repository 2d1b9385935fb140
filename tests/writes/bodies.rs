//! Bodies of requests: their type, their length, what they hold.

use axum::http::{Method, StatusCode};

use crate::harness::service::TestService;
use crate::writes::{CONFIG, dept, start};

#[tokio::test(flavor = "multi_thread")]
async fn only_json_is_taken() {
    let larder = start().await;
    let body = dept(1).to_string();
    for wrong in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/merge-patch+json",
        "",
    ] {
        let answer = larder
            .write(Method::POST, "/depts", &[("content-type", wrong)], &body)
            .await;
        assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{wrong}");
    }
    for wrong in ["", "{", "[", "nul"] {
        let answer = larder.write(Method::PUT, "/depts/1", &[], wrong).await;
        assert_eq!(
            answer.status,
            StatusCode::BAD_REQUEST,
            "{wrong}: {}",
            answer.body
        );
    }
    // Some editors write a byte order mark at the start of a file; it was told as "not JSON".
    let marked = format!("\u{feff}{body}");
    for (method, path) in [
        (Method::POST, "/depts"),
        (Method::PUT, "/depts/1"),
        (Method::POST, "/depts:batch"),
    ] {
        let answer = larder.write(method, path, &[], &marked).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}");
        assert!(answer.body.contains("byte order mark"), "{}", answer.body);
    }
    let lines = [("content-type", "application/x-ndjson")];
    let answer = larder.write(Method::POST, "/depts", &lines, &marked).await;
    assert!(answer.body.contains("byte order mark"), "{}", answer.body);
    // RFC 5789, sections 2.2 and 3.1.
    let text = [("content-type", "text/plain")];
    let answer = larder.write(Method::PATCH, "/depts/1", &text, "{}").await;
    assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let types = "application/merge-patch+json, application/json";
    assert_eq!(answer.header("accept-patch"), types);
    let json = [("content-type", "Application/JSON; charset=utf-8")];
    let answer = larder.write(Method::POST, "/depts", &json, &body).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn long_bodies_are_refused() {
    let larder = start().await;
    let url = larder.url.clone();
    let state = larder.stop().await;
    let bound = [("document_max", "400B")];
    let larder = TestService::start_in(state, &url, CONFIG, &bound).await;
    let body = dept(1).to_string();
    assert!(body.len() < 400);
    let answer = larder.write(Method::POST, "/depts", &[], &body).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    let long = body.replace("SALES", &"S".repeat(400));
    let answer = larder.write(Method::PUT, "/depts/1", &[], &long).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    // Below the bound, and above it once it is written as it is stored.
    let patch = format!("{{\"loc\":\"{}\"}}", "x".repeat(300));
    let answer = larder.write(Method::PATCH, "/depts/1", &[], &patch).await;
    assert_eq!(
        answer.status,
        StatusCode::PAYLOAD_TOO_LARGE,
        "{}",
        answer.body
    );
    assert_eq!(larder.get("/depts/1").await.json(), dept(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_is_too_large_is_a_fault_of_its_member() {
    let larder = start().await;
    larder.post("/depts", &dept(1)).await;
    let big = "9".repeat(60);
    for (patch, pointer) in [
        (format!("{{\"emps\":[{{\"no\":{big}}}]}}"), "/emps/0/no"),
        (format!("{{\"no\":{big}}}"), "/no"),
        ("{\"no\":1e999}".to_owned(), "/no"),
    ] {
        let answer = larder.write(Method::PATCH, "/depts/1", &[], &patch).await;
        assert_eq!(
            answer.status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{}",
            answer.body
        );
        assert_eq!(
            answer.json()["errors"][0]["pointer"],
            pointer,
            "{}",
            answer.body
        );
    }
}
