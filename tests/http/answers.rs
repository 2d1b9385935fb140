//! The bounds of answers with many documents.

use axum::http::{Method, StatusCode};
use serde_json::json;

use super::assert_problem;
use crate::harness::service::TestService;

const SCHEMA: &str = "
    create table page (id bigint primary key, body text);
    insert into page select n, repeat('x', 300000) from generate_series(1, 9) n;";

const CONFIG: &str = "
    [limits]
    answer_max = '1MiB'
    [[resource]]
    name = 'pages'
    table = 'page'
    tiers = ['memory']";

async fn larder() -> TestService {
    TestService::start(SCHEMA, CONFIG).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_beyond_answer_max_is_413() {
    let larder = larder().await;
    let three = larder.get("/pages?keys=1,2,3").await;
    assert_eq!(three.status, StatusCode::OK);
    assert_eq!(three.json()["documents"].as_array().unwrap().len(), 3);
    let repeated = format!("/pages?keys={}&fields=body", ["1"; 1_000].join(","));
    for path in ["/pages?keys=1,2,3,4", "/pages?keys=1,1,2,2", &repeated] {
        // Once from PostgreSQL, once from memory.
        for _ in 0..2 {
            assert_problem(&larder.get(path).await, 413);
        }
        let head = larder.request(Method::HEAD, path, &[]).await;
        assert_eq!(head.status, StatusCode::PAYLOAD_TOO_LARGE);
    }
    // What is sent counts.
    let ids = larder.get("/pages?keys=1,2,3,4,5,6,7,8,9&fields=id").await;
    assert_eq!(ids.json()["documents"].as_array().unwrap().len(), 9);
    let repeated = format!("/pages?keys={}&fields=id", ["3"; 1_000].join(","));
    let ids = larder.get(&repeated).await.json();
    assert_eq!(ids["documents"], json!(vec![json!({"id": 3}); 1_000]));
    // It would fit without its companions, and no request can split it.
    let large = "insert into page values (10, repeat('x', 2000000))";
    larder.execute(large).await;
    assert_eq!(larder.get("/pages?keys=10").await.status, StatusCode::OK);
    assert_problem(&larder.get("/pages?keys=1,10").await, 413);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_ends_before_answer_max() {
    let larder = larder().await;
    let large = "update page set body = repeat('y', 2000000) where id = 5";
    larder.execute(large).await;
    let mut path = "/pages?limit=8".to_owned();
    let mut pages = Vec::new();
    let mut found = Vec::new();
    loop {
        let page = larder.get(&path).await;
        let documents = page.json();
        let documents = documents.as_array().unwrap();
        pages.push(documents.len());
        found.extend(documents.iter().map(|page| page["id"].as_i64().unwrap()));
        let Some((target, _)) = page.header("link").split_once('>') else {
            break;
        };
        path = target[1..].to_owned();
    }
    assert_eq!(found, (1..=9).collect::<Vec<_>>());
    assert_eq!(pages, [3, 1, 1, 3, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn head_of_many_documents_has_the_headers_of_get() {
    let larder = larder().await;
    for path in [
        "/pages?keys=1,2,77",
        "/pages?keys=1,2&fields=id",
        "/pages?keys=3,4,1&fields=body,id",
        "/pages?limit=2",
        "/pages?keys=77",
    ] {
        larder.get(path).await;
        let get = larder.get(path).await;
        let head = larder.request(Method::HEAD, path, &[]).await;
        assert_eq!((head.status, &*head.body), (StatusCode::OK, ""), "{path}");
        for (name, value) in &get.headers {
            assert_eq!(head.headers.get(name), Some(value), "{path}: {name}");
        }
        let length = get.body.len().to_string();
        assert_eq!(head.header("content-length"), length, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_not_inserted_if_the_answer_would_be_too_long() {
    let larder = larder().await;
    let document = |id: i64| json!({"id": id, "body": "z".repeat(300_000)});
    let json = ("content-type", "application/json");
    let full = ("prefer", "return=representation");
    let post = async |ids: &[i64], headers: &[(&str, &str)]| {
        let documents: Vec<_> = ids.iter().map(|id| document(*id)).collect();
        let body = json!(documents).to_string();
        larder.write(Method::POST, "/pages", headers, &body).await
    };
    assert_problem(&post(&[21, 22, 23, 24], &[json, full]).await, 413);
    assert_eq!(larder.get("/pages/21").await.status, StatusCode::NOT_FOUND);
    let answer = post(&[21, 22, 23], &[json, full]).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(
        answer.json(),
        json!([document(21), document(22), document(23)])
    );
    let answer = post(&[31, 32, 33, 34], &[json]).await;
    assert_eq!(answer.body, r#"{"count":4}"#);
}

/// PostgreSQL stores the numbers in a few bytes, and can't write them as one text.
#[tokio::test(flavor = "multi_thread")]
async fn documents_that_can_not_be_read_are_left_out_and_named() {
    let schema = "
        create table note (id bigint primary key, j jsonb);
        insert into note select n, to_jsonb(repeat('x', n)) from generate_series(1, 4) n;
        insert into note values (5, to_jsonb(repeat('x', 5000)));
        insert into note select 6, jsonb_agg(('1e131071')::numeric) from generate_series(1, 9000);";
    let config = "
        document_max = '4KiB'
        [[resource]]
        name = 'notes'
        table = 'note'";
    let larder = TestService::start(schema, config).await;
    assert_problem(&larder.get("/notes/5").await, 500);
    assert_problem(&larder.get("/notes/6").await, 500);
    let batch = larder.get("/notes?keys=6,1,9,5,2").await;
    assert_eq!(
        batch.body,
        r#"{"documents":[{"id":1,"j":"x"},{"id":2,"j":"xx"}],"missing":[9],"unreadable":[6,5]}"#
    );
    // It came from PostgreSQL.
    let alone = larder.get("/notes?keys=5").await;
    let expected = r#"{"documents":[],"missing":[],"unreadable":[5]}"#;
    assert_eq!(alone.body, expected);
    assert_eq!(alone.cache_status(), "larder; fwd=miss; detail=postgres");
    let list = larder.get("/notes").await;
    assert_eq!(list.json().as_array().unwrap().len(), 4);
}
