//! `?keys=`: many documents in one answer.

use axum::http::{Method, StatusCode};
use serde_json::json;

use super::{MEMORY, MISS, assert_problem, larder};

#[tokio::test(flavor = "multi_thread")]
async fn documents_come_in_the_order_asked_and_the_missing_are_named() {
    let larder = larder().await;
    let seven = larder.get("/items/7").await.body;
    let answer = larder.get("/items?keys=42,1,007,42,-3").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.header("content-type"), "application/json");
    let first = r#"{"id":42,"title":"answer"}"#;
    let expected = format!(r#"{{"documents":[{first},{seven},{first}],"missing":[1,-3]}}"#);
    assert_eq!(answer.body, expected);
    // One came out of memory, the others did not.
    assert_eq!(answer.cache_status(), MISS);
    let again = larder.get("/items?keys=42&keys=1,7&key=42&keys=-3").await;
    assert_eq!(again.body, expected);
    assert_eq!(again.cache_status(), MEMORY);

    let nothing = larder.get("/items?keys=1").await;
    assert_eq!(nothing.body, r#"{"documents":[],"missing":[1]}"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn long_documents_stand_between_short_ones() {
    let larder = larder().await;
    let sql = "insert into item select n, repeat('x', n * 1000) from generate_series(100, 103) n";
    larder.execute(sql).await;
    let mut expected = String::new();
    for key in [100, 42, 101, 102, 7, 42, 103] {
        let document = larder.get(&format!("/items/{key}")).await.body;
        expected.push_str(&document);
        expected.push(',');
    }
    let expected = expected.trim_end_matches(',');
    let expected = format!(r#"{{"documents":[{expected}],"missing":[1]}}"#);
    let path = "/items?keys=100,42,101,102,7,1,42,103";
    // Once with a key that no tier has yet, once out of memory alone.
    for _ in 0..2 {
        assert!(larder.get(path).await.body == expected);
    }
    let all = larder.get("/items?keys=103,100").await.body;
    assert_eq!(
        all.len(),
        203_000
            + r#"{"documents":[{"id":103,"title":""},{"id":100,"title":""}],"missing":[]}"#.len()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_split_before_they_are_decoded() {
    let larder = larder().await;
    let numbers = async |query: &str| {
        let answer = larder.get(&format!("/tags?{query}")).await.json();
        let documents = answer["documents"].as_array().unwrap();
        let numbers = documents.iter().map(|tag| tag["n"].as_i64().unwrap());
        (numbers.collect::<Vec<_>>(), answer["missing"].clone())
    };
    assert_eq!(
        numbers("keys=a%2Fb,,a%2Cb,a+b,a%20b,50%25").await,
        (vec![1, 2, 3, 7, 7, 4], json!([]))
    );
    assert_eq!(numbers("key=a,b&key=").await, (vec![3, 2], json!([])));
    let (_, missing) = numbers("keys=a,b%22,c%2Bd").await;
    assert_eq!(missing, json!(["a", "b\"", "c+d"]));

    let parts = larder.get("/parts?key=7,NO&key=07,N%2CO&key=8,SE").await;
    let parts = parts.json();
    assert_eq!(parts["documents"][0]["n"], 1);
    assert_eq!(parts["documents"][1]["n"], 2);
    assert_eq!(parts["missing"], json!([[8, "SE"]]));
    assert_problem(&larder.get("/parts?keys=7,NO").await, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_entity_tag_is_that_of_all_of_them() {
    let larder = larder().await;
    let path = "/items?keys=42,7,1";
    let before = larder.get(path).await;
    let etag = before.header("etag").to_owned();
    let headers = [("if-none-match", etag.as_str())];
    let unchanged = larder.request(Method::GET, path, &headers).await;
    assert_eq!(unchanged.status, StatusCode::NOT_MODIFIED);
    assert_eq!(unchanged.body, "");
    for other in [
        "/items?keys=7,42,1",
        "/items?keys=42,7",
        "/items?keys=42,7,2",
    ] {
        assert_ne!(larder.get(other).await.header("etag"), etag, "{other}");
    }
    larder
        .execute("insert into item values (1, 'one'); update item set title = 'new' where id = 7")
        .await;
    crate::harness::eventually("the changes", async || {
        let after = larder.request(Method::GET, path, &headers).await;
        (after.status == StatusCode::OK && after.json()["missing"] == json!([])).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_list_of_keys_is_refused() {
    let larder = larder().await;
    for query in [
        "keys=42,x",
        "keys=",
        "keys",
        "key=1,2",
        "keys=1&limit=2",
        "42",
    ] {
        assert_problem(&larder.get(&format!("/items?{query}")).await, 400);
    }
    let many = |count: usize| format!("/items?keys={}", vec!["42"; count].join(","));
    assert_eq!(larder.get(&many(1_000)).await.status, StatusCode::OK);
    assert_problem(&larder.get(&many(1_001)).await, 413);
    assert_problem(&larder.get("/items").await, 404);
    assert_problem(&larder.get("/items?").await, 404);
    assert_problem(&larder.get("/nothing?keys=1").await, 404);
    let refused = larder.request(Method::POST, "/items?keys=42", &[]).await;
    assert_problem(&refused, 405);
}
