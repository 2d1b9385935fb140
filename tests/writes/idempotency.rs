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

/// An installation of an earlier larder lacks the table, or columns of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_installation_is_upgraded() {
    let larder = start().await;
    let url = larder.url.clone();
    let mut state = larder.stop().await;
    for (no, older) in [
        (1, "drop table larder.answer"),
        (
            2,
            "alter table larder.answer drop resource, drop preference",
        ),
    ] {
        execute(&url, older).await;
        let larder = TestService::start_in(state, &url, CONFIG, &[]).await;
        let key = no.to_string();
        let headers = [("idempotency-key", key.as_str())];
        let body = dept(no).to_string();
        let answer = larder.write(Method::POST, "/depts", &headers, &body).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        state = larder.stop().await;
    }
}

/// It was that of the request that repeats the first one.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_has_the_preference_of_the_first_request() {
    let larder = start().await;
    let minimal = ("prefer", "return=minimal");
    let whole = ("prefer", "return=representation");
    for (no, preferences) in [(1, [minimal, whole]), (2, [whole, minimal])] {
        let key = no.to_string();
        let body = dept(no).to_string();
        let mut first = None;
        for preference in preferences {
            let headers = [("idempotency-key", key.as_str()), preference];
            let answer = larder.write(Method::POST, "/depts", &headers, &body).await;
            assert_eq!(answer.status, StatusCode::CREATED);
            let told = answer.header("preference-applied").to_owned();
            let (told, body) = first
                .get_or_insert((told.clone(), answer.body.clone()))
                .clone();
            assert_eq!(told, preferences[0].1);
            assert_eq!(answer.header("preference-applied"), told);
            assert_eq!(answer.body, body);
        }
    }
}

/// Who repeated a request read documents that were deleted long ago.
#[tokio::test(flavor = "multi_thread")]
async fn documents_that_were_deleted_are_not_returned_and_erased() {
    let larder = start().await;
    let bodies = "select count(document)::text from larder.answer";
    for no in [1, 2, 3] {
        let key = no.to_string();
        let headers = [("idempotency-key", key.as_str())];
        let created = larder
            .write(Method::POST, "/depts", &headers, &dept(no).to_string())
            .await;
        assert!(created.body.contains("SALES"));
    }
    larder.delete("/depts/1").await;
    eventually("the erasure", async || {
        (larder.query(bodies).await == "2").then_some(())
    })
    .await;
    // Until a pass sees the deletion, the body is there.
    larder
        .execute("update larder.answer set document = '{}' where key = '1'")
        .await;
    let key = [("idempotency-key", "1")];
    let again = larder
        .write(Method::POST, "/depts", &key, &dept(1).to_string())
        .await;
    assert_eq!((again.status, &*again.body), (StatusCode::CREATED, ""));
    assert_eq!(larder.query(bodies).await, "3");
    larder.delete("/depts/2").await;
    eventually("the erasure", async || {
        (larder.query(bodies).await == "2").then_some(())
    })
    .await;
    larder.execute("truncate dept cascade").await;
    eventually("the erasure of all", async || {
        (larder.query(bodies).await == "0").then_some(())
    })
    .await;
    let kept = larder
        .query("select count(*)::text from larder.answer")
        .await;
    assert_eq!(kept, "3");
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
