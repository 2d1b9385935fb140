//! Writes of many clients at once.

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use futures_util::future::join_all;
use serde_json::json;

use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestService, execute};
use crate::harness::table_locks::{lock_table, unlock};
use crate::writes::{CONFIG, SCHEMA, dept, start};

const CLIENTS: usize = 64;

/// Each round all clients read, add one and write under the tag that they read.
#[tokio::test(flavor = "multi_thread")]
async fn of_conditional_writes_exactly_one_wins_each_round() {
    const ROUNDS: usize = 20;
    let larder = start().await;
    larder.post("/depts", &json!({"no": 1, "name": "0"})).await;
    for round in 0..ROUNDS {
        let read = larder.get("/depts/1").await;
        assert_eq!(read.json()["name"], round.to_string());
        let etag = read.header("etag").to_owned();
        let body = json!({"no": 1, "name": (round + 1).to_string()}).to_string();
        let headers = [("if-match", etag.as_str())];
        let writes = (0..CLIENTS).map(|client| {
            let method = [Method::PUT, Method::PATCH][client % 2].clone();
            larder.write(method, "/depts/1", &headers, &body)
        });
        let answers = join_all(writes).await;
        let count = |status| {
            answers
                .iter()
                .filter(|answer| answer.status == status)
                .count()
        };
        assert_eq!(count(StatusCode::OK), 1);
        assert_eq!(count(StatusCode::PRECONDITION_FAILED), CLIENTS - 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_concurrent_puts_one_creates_and_the_others_replace() {
    let larder = start().await;
    for no in 1..=10 {
        let path = format!("/depts/{no}");
        let document = dept(no);
        let answers = join_all((0..16).map(|_| larder.put(&path, &document))).await;
        let count = |status| {
            answers
                .iter()
                .filter(|answer| answer.status == status)
                .count()
        };
        assert_eq!(count(StatusCode::CREATED), 1);
        assert_eq!(count(StatusCode::OK), 15, "{answers:?}");
    }
}

/// They share transactions; the bad ones fail for their own reasons, the others not.
#[tokio::test(flavor = "multi_thread")]
async fn one_bad_document_among_many_fails_alone() {
    let larder = start().await;
    larder.post("/depts", &dept(7)).await;
    let documents: Vec<_> = (1..=CLIENTS as i64)
        .map(|no| {
            let mut document = dept(no);
            if no % 20 == 0 {
                document["emps"][0]["badge"] = json!("b70");
            }
            document
        })
        .collect();
    let answers = join_all(
        documents
            .iter()
            .map(|document| larder.post("/depts", document)),
    )
    .await;
    for (document, answer) in documents.iter().zip(answers) {
        let no = document["no"].as_i64().unwrap();
        if no == 7 || no % 20 == 0 {
            assert_eq!(answer.status, StatusCode::CONFLICT, "{no}: {}", answer.body);
        } else {
            assert_eq!(answer.status, StatusCode::CREATED, "{no}: {}", answer.body);
            assert_eq!(&answer.json(), document);
        }
    }
    assert_eq!(larder.query("select count(*)::text from dept").await, "61");
}

/// A key that was locked by another transaction delayed all documents of its group, and those retried alone after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_held_key_keeps_only_its_own_document() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    // Longer than any test may take.
    let patient = [
        ("database.statement_timeout", "10m"),
        ("request_timeout", "10m"),
    ];
    let larder = Arc::new(TestService::start_on(&url, CONFIG, &patient).await);
    let mut holder = larder.connect().await;
    let insert = "begin; insert into dept (deptno, dname) values (7, 'held')";
    sqlx::raw_sql(insert).execute(&mut holder).await.unwrap();
    let client = Arc::clone(&larder);
    let held = tokio::spawn(async move { client.post("/depts", &dept(7)).await });
    let documents: Vec<_> = (100..200).map(dept).collect();
    let posts = documents
        .iter()
        .map(|document| larder.post("/depts", document));
    // Those of key 7 come in between.
    let again = (0..3).map(|_| {
        let client = Arc::clone(&larder);
        tokio::spawn(async move { client.post("/depts", &dept(7)).await })
    });
    let again: Vec<_> = again.collect();
    for answer in join_all(posts).await {
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    }
    sqlx::raw_sql("rollback")
        .execute(&mut holder)
        .await
        .unwrap();
    let mut created = usize::from(held.await.unwrap().status == StatusCode::CREATED);
    for answer in again {
        created += usize::from(answer.await.unwrap().status == StatusCode::CREATED);
    }
    assert_eq!(created, 1);
}

/// Of equal keys in one shared transaction, one is inserted, with its own rows alone.
#[tokio::test(flavor = "multi_thread")]
async fn of_concurrent_posts_of_one_key_one_wins() {
    let larder = start().await;
    for no in 1..=5 {
        let documents: Vec<_> = (0..CLIENTS)
            .map(|client| {
                json!({"no": no, "name": client.to_string(), "loc": null, "code": null, "emps": [
                    {"no": no * 1000 + client as i64, "name": client.to_string(), "sal": null, "badge": null,
                     "skills": []}]})
            })
            .collect();
        let posts = documents
            .iter()
            .map(|document| larder.post("/depts", document));
        let answers = join_all(posts).await;
        let won: Vec<_> = answers
            .iter()
            .filter(|a| a.status == StatusCode::CREATED)
            .collect();
        assert_eq!(won.len(), 1);
        let stored = won[0].json();
        assert_eq!(stored["emps"].as_array().unwrap().len(), 1);
        assert_eq!(stored["emps"][0]["name"], stored["name"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_has_begun_ends_without_its_client() {
    let larder = Arc::new(start().await);
    let holder = lock_table(&larder.url, "dept").await;
    let client = Arc::clone(&larder);
    let request = tokio::spawn(async move { client.post("/depts", &dept(1)).await });
    let waits = "select count(*)::text from pg_stat_activity \
        where datname = current_database() and wait_event_type = 'Lock'";
    eventually("the write waits", async || {
        (larder.query(waits).await == "1").then_some(())
    })
    .await;
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
    unlock(holder).await;
    eventually("it is there", async || {
        (larder.get("/depts/1").await.status == StatusCode::OK).then_some(())
    })
    .await;
    assert_eq!(larder.get("/depts/1").await.json(), dept(1));
}
