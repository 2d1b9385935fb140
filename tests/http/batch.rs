//! `?keys=` and `:batch`: many documents in one answer.

use axum::http::{Method, StatusCode};
use serde_json::json;

use super::{MEMORY, MISS, assert_problem, larder};

#[tokio::test(flavor = "multi_thread")]
async fn documents_come_in_the_order_of_keys_and_missing_keys_are_named() {
    let larder = larder().await;
    let seven = larder.get("/items/7").await.body;
    let answer = larder.get("/items?keys=42,1,007,42,-3").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.header("content-type"), "application/json");
    let first = r#"{"id":42,"title":"answer"}"#;
    let expected = format!(r#"{{"documents":[{first},{seven},{first}],"missing":[1,-3]}}"#);
    assert_eq!(answer.body, expected);
    // One came from memory, the others did not.
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
    // Once with a key that no tier has yet, once from memory alone.
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
    // RFC 9110, section 13.1.2: 304 is for GET and HEAD.
    let body = r#"{"keys":[42,7,1]}"#;
    let posted = larder.send(Method::POST, "/items:batch", &headers, body);
    assert_problem(&posted.await, 412);
    let other = [("if-none-match", "\"0\"")];
    let posted = larder.send(Method::POST, "/items:batch", &other, body);
    assert_eq!(posted.await.header("etag"), etag);
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

/// It was called no JSON.
#[tokio::test(flavor = "multi_thread")]
async fn an_integer_that_is_too_large_is_called_that() {
    let larder = larder().await;
    let body = format!("{{\"keys\":[{}]}}", "9".repeat(400));
    let answer = larder.send(Method::POST, "/items:batch", &[], &body).await;
    assert_problem(&answer, 400);
    assert!(answer.body.contains("too large"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_lists_of_keys_are_refused() {
    let larder = larder().await;
    for query in [
        "keys=42,x",
        "keys=",
        "keys",
        "key=1,2",
        "keys=1&limit=2",
        "keys=1&after=2",
        "42",
    ] {
        assert_problem(&larder.get(&format!("/items?{query}")).await, 400);
    }
    let many = |count: usize| format!("/items?keys={}", vec!["42"; count].join(","));
    assert_eq!(larder.get(&many(1_000)).await.status, StatusCode::OK);
    assert_problem(&larder.get(&many(1_001)).await, 413);
    assert_problem(&larder.get("/nothing?keys=1").await, 404);
    let refused = larder.request(Method::PUT, "/items?keys=42", &[]).await;
    assert_problem(&refused, 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_selects_documents_as_a_query_does() {
    let larder = larder().await;
    let json = [("content-type", "application/json; charset=utf-8")];
    let batch = async |path: &str, body: &str| larder.send(Method::POST, path, &json, body).await;
    let asked = larder.get("/items?keys=42,1,7,42,-3").await;
    let answer = batch("/items:batch", r#" {"keys": [42, "1", "007", [42], -3]} "#).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(answer.body, asked.body);
    assert_eq!(answer.header("etag"), asked.header("etag"));
    assert_eq!(answer.cache_status(), MEMORY);
    assert_eq!(
        batch("/items:batch", r#"{"keys":[]}"#).await.json()["documents"],
        json!([])
    );

    // Keys in JSON are not percent-encoded and may contain commas.
    let tags = batch("/tags:batch", r#"{"keys":["a/b","a,b","50%","\u00e9",7]}"#)
        .await
        .json();
    let numbers = tags["documents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tag| &tag["n"]);
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 3, 4, 5]);
    assert_eq!(tags["missing"], json!(["7"]));
    let parts = r#"{"keys":[[7,"NO"],["07","N,O"],[7,"50%2C"],[8,"SE"]]}"#;
    let parts = batch("/parts:batch", parts).await.json();
    let numbers = parts["documents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| &part["n"]);
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 2, 4]);
    assert_eq!(parts["missing"], json!([[8, "SE"]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_fit_names_the_place() {
    let larder = larder().await;
    let batch = async |path: &str, body: &str| larder.send(Method::POST, path, &[], body).await;
    for (body, pointer) in [
        ("[]", "the body is"),
        ("{}", "/keys is"),
        (r#"{"keys":1}"#, "/keys is"),
        (r#"{"keys":[1],"keys":[2]}"#, "/keys is"),
        (r#"{"keys":[1],"a/b":[2]}"#, "/a~1b is"),
        (r#"{"keys":[1,"x"]}"#, "/keys/1 is"),
        (r#"{"keys":[1,null]}"#, "/keys/1 is"),
        (r#"{"keys":[1,{"id":1}]}"#, "/keys/1 is"),
        (r#"{"keys":[1,[1,2]]}"#, "/keys/1 is"),
        (r#"{"keys":[[[1]]]}"#, "/keys/0/0 is"),
        (r#"{"keys":[1.5]}"#, "/keys/0 is"),
        (r#"{"keys":[4e1]}"#, "/keys/0 is"),
        (r#"{"keys":[9223372036854775808]}"#, "/keys/0 is"),
    ] {
        let answer = batch("/items:batch", body).await;
        assert_problem(&answer, 422);
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.starts_with(pointer), "{body}: {detail}");
    }
    let composite = batch("/parts:batch", r#"{"keys":[[7,"NO"],["x","NO"]]}"#).await;
    assert_problem(&composite, 422);
    assert!(
        composite.body.contains("/keys/1/0 is not a valid key"),
        "{composite:?}"
    );
    assert_problem(&batch("/parts:batch", r#"{"keys":["7,NO"]}"#).await, 422);
    let deep = format!("{{\"keys\":{}", "[".repeat(100_000));
    for body in ["", "{", "{\"keys\":[1}", deep.as_str()] {
        assert_problem(&batch("/items:batch", body).await, 400);
    }
    let many = |count: usize| format!("{{\"keys\":[{}]}}", vec!["42"; count].join(","));
    assert_eq!(
        batch("/items:batch", &many(1_000)).await.status,
        StatusCode::OK
    );
    assert_problem(&batch("/items:batch", &many(1_001)).await, 413);
    let long = format!("{}{}", many(1), " ".repeat(1 << 20));
    assert_problem(&batch("/items:batch", &long).await, 413);
    // Refused before it has arrived: so far it fits.
    let announced = [
        ("content-type", "application/json"),
        ("content-length", "1048577"),
    ];
    let refused = larder
        .send(Method::POST, "/items:batch", &announced, &many(1))
        .await;
    assert_problem(&refused, 413);
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let form = larder
        .send(Method::POST, "/items:batch", &form, &many(1))
        .await;
    assert_problem(&form, 415);
    let get = larder.get("/items:batch").await;
    assert_problem(&get, 405);
    assert!(get.header("allow").contains("POST"));
}
