//! `If-Match` and `If-None-Match` on writes.

use axum::http::{Method, StatusCode};
use serde_json::json;

use crate::writes::{dept, start};

#[tokio::test(flavor = "multi_thread")]
async fn if_match_is_held_against_the_stored_document() {
    let larder = start().await;
    let body = dept(1).to_string();
    for (method, content) in [
        (Method::PUT, &*body),
        (Method::PATCH, "{}"),
        (Method::DELETE, ""),
    ] {
        let answer = larder
            .write(method, "/depts/1", &[("if-match", "*")], content)
            .await;
        assert_eq!(answer.status, StatusCode::PRECONDITION_FAILED);
    }
    let etag = larder
        .post("/depts", &dept(1))
        .await
        .header("etag")
        .to_owned();
    // What the document rests on changes below it.
    larder
        .execute("update skill set level = 8 where name = 'go'")
        .await;
    for method in [Method::PUT, Method::PATCH, Method::DELETE] {
        let answer = larder
            .write(method, "/depts/1", &[("if-match", &etag)], &body)
            .await;
        assert_eq!(
            answer.status,
            StatusCode::PRECONDITION_FAILED,
            "{}",
            answer.body
        );
    }
    larder
        .execute("update skill set level = 2 where name = 'go'")
        .await;
    let patch = json!({"loc": "X"}).to_string();
    let answer = larder
        .write(Method::PATCH, "/depts/1", &[("if-match", &etag)], &patch)
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let encoded = format!(
        "\"none\", {}-gzip\"",
        answer.header("etag").strip_suffix('"').unwrap()
    );
    let weak = format!("W/{}", answer.header("etag"));
    let answer = larder
        .write(Method::PUT, "/depts/1", &[("if-match", &weak)], &body)
        .await;
    assert_eq!(answer.status, StatusCode::PRECONDITION_FAILED);
    let answer = larder
        .write(Method::PUT, "/depts/1", &[("if-match", &encoded)], &body)
        .await;
    assert_eq!(answer.status, StatusCode::OK);
    let answer = larder
        .write(Method::DELETE, "/depts/1", &[("if-match", "*")], "")
        .await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
}

#[tokio::test(flavor = "multi_thread")]
async fn if_none_match_creates_only() {
    let larder = start().await;
    let body = dept(1).to_string();
    let any = [("if-none-match", "*")];
    let answer = larder.write(Method::PUT, "/depts/1", &any, &body).await;
    assert_eq!(answer.status, StatusCode::CREATED);
    for (method, path) in [(Method::PUT, "/depts/1"), (Method::POST, "/depts")] {
        let answer = larder.write(method, path, &any, &body).await;
        assert_eq!(answer.status, StatusCode::PRECONDITION_FAILED);
    }
}
