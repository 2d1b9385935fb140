//! `Idempotency-Key`: a repeated request gets the first answer.

use axum::http::{Method, StatusCode};
use futures_util::future::join_all;
use serde_json::json;

use crate::harness::eventually;
use crate::harness::service::{TestService, execute};
use crate::writes::{CONFIG, dept, start};

const KEY: [(&str, &str); 1] = [("idempotency-key", "k 1")];

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_gets_the_first_answer_and_writes_nothing() {
    let larder = start().await;
    let body = dept(1).to_string();
    let first = larder.write(Method::POST, "/depts", &KEY, &body).await;
    assert_eq!(first.status, StatusCode::CREATED, "{}", first.body);
    larder.put("/depts/1", &json!({"name": "since"})).await;
    let again = larder.write(Method::POST, "/depts", &KEY, &body).await;
    assert_eq!(again.status, StatusCode::CREATED);
    assert_eq!(again.body, first.body);
    for name in ["location", "etag", "larder-token"] {
        assert_eq!(again.header(name), first.header(name), "{name}");
    }
    assert_eq!(larder.get("/depts/1").await.json()["name"], "since");
    // Another body, another path, another method.
    let other = dept(2).to_string();
    for (method, path) in [
        (Method::POST, "/depts"),
        (Method::PUT, "/depts/2"),
        (Method::DELETE, "/depts/1"),
    ] {
        let answer = larder.write(method, path, &KEY, &other).await;
        assert_eq!(
            answer.status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{}",
            answer.body
        );
    }
    let long = "x".repeat(256);
    let long = [("idempotency-key", long.as_str())];
    let answer = larder.write(Method::POST, "/depts", &long, &other).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_failed_leaves_its_key_free() {
    let larder = start().await;
    larder.post("/depts", &dept(1)).await;
    let body = dept(1).to_string();
    let kept = "select count(*)::text from larder.answer";
    let answer = larder.write(Method::POST, "/depts", &KEY, &body).await;
    assert_eq!(answer.status, StatusCode::CONFLICT);
    assert_eq!(larder.query(kept).await, "0");
    larder.delete("/depts/1").await;
    let answer = larder.write(Method::POST, "/depts", &KEY, &body).await;
    assert_eq!(answer.status, StatusCode::CREATED);
    assert_eq!(larder.query(kept).await, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_concurrent_repeats_one_is_done() {
    let larder = start().await;
    larder
        .post("/depts", &json!({"no": 1, "name": "a", "emps": []}))
        .await;
    for round in 0..5 {
        let patch = json!({"name": round.to_string()}).to_string();
        let key = format!("round {round}");
        let headers = [("idempotency-key", key.as_str())];
        let repeats = (0..16).map(|_| larder.write(Method::PATCH, "/depts/1", &headers, &patch));
        let answers = join_all(repeats).await;
        for answer in &answers {
            assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
            assert_eq!(answer.body, answers[0].body);
            let token = answers[0].header("larder-token");
            assert_eq!(answer.header("larder-token"), token);
        }
    }
    let kept = larder
        .query("select count(*)::text from larder.answer")
        .await;
    assert_eq!(kept, "5");
}

/// An installation of an earlier larder lacks the table.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_installation_is_upgraded() {
    let larder = start().await;
    let url = larder.url.clone();
    let state = larder.stop().await;
    execute(&url, "drop table larder.answer").await;
    let larder = TestService::start_in(state, &url, CONFIG, &[]).await;
    let body = dept(1).to_string();
    let answer = larder.write(Method::POST, "/depts", &KEY, &body).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
}

/// The feed deletes what is too old to be repeated.
#[tokio::test(flavor = "multi_thread")]
async fn old_idempotency_answers_are_deleted() {
    let larder = start().await;
    let old = "insert into larder.answer (principal, key, request, answered_at) \
        select '', n::text, '', now() - make_interval(hours => n) from generate_series(1, 48) n";
    larder.execute(old).await;
    eventually("half are gone", async || {
        let kept = larder
            .query("select count(*)::text from larder.answer")
            .await;
        (kept == "23").then_some(())
    })
    .await;
}
