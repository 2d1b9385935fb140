//! The values of columns, as they are written and stored.

use axum::http::{Method, StatusCode};
use serde_json::json;

use crate::harness::service::TestService;

/// A resource `ts` of a table `t` that has the columns `columns` beside its key.
async fn start(columns: &str) -> TestService {
    TestService::start(
        &format!("create table t (id int primary key, {columns})"),
        "[[resource]]\nname = 'ts'\ntable = 't'\n",
    )
    .await
}

/// Readers use the last of several members with one name; a patch changed the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_patch_changes_the_last_of_several_members_with_one_name() {
    let larder = start("j json").await;
    larder
        .execute(r#"insert into t values (1, '{"a":{"x":1},"b":0,"a":{"y":2}}')"#)
        .await;
    let answer = larder.patch("/ts/1", &json!({"j": {}})).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert!(answer.body.contains(r#"{"a":{"x":1},"b":0,"a":{"y":2}}"#));
    let answer = larder.patch("/ts/1", &json!({"j": {"a": {"z": 3}}})).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let stored = larder.query("select j::text from t").await;
    assert_eq!(stored, r#"{"b":0,"a":{"y":2,"z":3}}"#);
}

/// The part replaced the whole document.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_a_document_can_not_be_put() {
    let larder = start("a int, b int").await;
    let range = [("content-range", "bytes 0-13/30")];
    let part = json!({"a": 2}).to_string();
    let answer = larder.write(Method::PUT, "/ts/1", &range, &part).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.body);
    larder.put("/ts/1", &json!({"a": 1, "b": 1})).await;
    let answer = larder.write(Method::PUT, "/ts/1", &range, &part).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.body);
    assert!(answer.body.contains("Content-Range"), "{}", answer.body);
    assert_eq!(larder.query("select a::text || b from t").await, "11");
}
