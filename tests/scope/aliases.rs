//! Documents by aliases: the same documents, wherever the alias leads by now.

use axum::http::{Method, StatusCode};
use serde_json::json;

use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestResponse, TestService, execute};

/// Item n has the number `0n`, and the side and place `(n % 2, "p,n")`.
const SCHEMA: &str = "
    create table item (id int primary key, number int not null unique, side bigint not null, place text not null,
      note text not null, unique (side, place));
    insert into item select n, n, n % 2, 'p,' || n, 'item ' || n || repeat('.', 3000) from generate_series(1, 20) n";

const ITEMS: &str = "
    [[resource]]
    name = 'items'
    table = 'item'
    [[resource.by]]
    name = 'number'
    columns = ['number']
    [[resource.by]]
    name = 'place'
    columns = ['side', 'place']";

const MEMORY: &str = "larder; hit; detail=memory";

async fn larder(overrides: &[(&str, &str)]) -> TestService {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    TestService::start_on(&url, ITEMS, overrides).await
}

async fn get(larder: &TestService, path: &str, headers: &[(&str, &str)]) -> TestResponse {
    larder.request(Method::GET, path, headers).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alias_leads_to_the_document_of_its_key() {
    let larder = larder(&[]).await;
    let by_key = larder.get("/items/7").await;
    let etag = by_key.header("etag").to_owned();
    let paths = [
        "/items/by/number/7",
        "/items/by/number/%2B007",
        "/%69tems/%62y/%6eumber/7",
        "/items/by/place/1,p%2C7",
        "/items/by/pl%61ce/%2b01,p%2c7",
    ];
    for path in paths {
        for _ in 0..2 {
            let seen = larder.get(path).await;
            assert_eq!(seen.body, by_key.body, "{path}");
            assert_eq!(seen.header("etag"), etag);
            let location = seen.header("content-location");
            assert_eq!(larder.get(location).await.body, by_key.body);
            assert!(location.ends_with("tems/7"));
            let head = larder.request(Method::HEAD, path, &[]).await;
            assert_eq!(
                head.header("content-length"),
                by_key.bytes.len().to_string()
            );
            assert_eq!(head.header("content-location"), location);
        }
        assert_eq!(larder.get(path).await.cache_status(), MEMORY, "{path}");
    }
    for (headers, status) in [
        (vec![("if-none-match", &*etag)], 304),
        (vec![("if-match", "\"other\"")], 412),
        (vec![("range", "bytes=0-3")], 206),
        (vec![("range", "bytes=99999-")], 416),
        (vec![("accept-encoding", "gzip")], 200),
        (vec![("accept", "text/html")], 406),
    ] {
        let by_key = async || get(&larder, "/items/7", &headers).await;
        // The second response has an encoding that the first one has made.
        let (_, by_key) = (by_key().await, by_key().await);
        let mut seen = get(&larder, paths[0], &headers).await;
        assert_eq!(seen.status.as_u16(), status);
        assert_eq!(seen.bytes, by_key.bytes, "{headers:?}");
        let location = seen.headers.remove("content-location");
        assert_eq!(location.is_some(), status != 406);
        assert_eq!(seen.headers, by_key.headers);
    }
    let part = larder.get("/items/by/number/7?fields=number").await;
    assert_eq!(part.body, r#"{"number":7}"#);
    assert_eq!(part.header("content-location"), "/items/7?fields=number");
    let long = format!("/items/by/number/7?fields=number{}", ",number".repeat(600));
    let part = larder.get(&long).await;
    assert_eq!(part.body, r#"{"number":7}"#);
    assert_eq!(part.header("content-location"), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_alias_is_refused() {
    let larder = larder(&[]).await;
    for (path, status) in [
        ("/items/by/number/21", 404),
        ("/items/by/other/1", 404),
        ("/other/by/number/1", 404),
        ("/items/by/number", 404),
        ("/items/by/number/1/", 404),
        ("/items/by/number/x", 400),
        ("/items/by/number/1,2", 400),
        ("/items/by/place/1", 400),
        ("/items/by/number/1?by=number", 400),
        ("/items?by=number", 400),
        ("/items?by=other&keys=1", 400),
        ("/items?by=number&by=number&keys=1", 400),
        ("/items?by=number&keys=x", 400),
        ("/items?by=number&limit=1", 400),
        ("/items?by=place&keys=1,2", 400),
        ("/items?by=place&key=1", 400),
    ] {
        let seen = larder.get(path).await;
        assert_eq!(seen.status.as_u16(), status, "{path} {}", seen.body);
        assert_eq!(seen.header("content-location"), "");
    }
    for method in [Method::PUT, Method::PATCH, Method::DELETE, Method::POST] {
        let path = "/items/by/number/1";
        let refused = larder.write(method, path, &[], "{}").await;
        assert_eq!(refused.status, StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(refused.header("allow"), "GET, HEAD, OPTIONS");
    }
    let options = larder.request(Method::OPTIONS, "/items/by/number/1", &[]);
    assert_eq!(options.await.header("allow"), "GET, HEAD, OPTIONS");
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_by_an_alias_name_its_texts() {
    let larder = larder(&[]).await;
    for _ in 0..2 {
        let path = "/items?by=number&keys=3,21,%2B1,3&key=22&fields=id";
        let by_query = larder.get(path).await;
        let expected = json!({"documents": [{"id": 3}, {"id": 1}, {"id": 3}], "missing": [21, 22]});
        assert_eq!(by_query.json(), expected);
        let body = r#"{"keys":[3,21,"+1",3,22]}"#;
        let path = "/items:batch?fields=id&by=number";
        let by_body = larder.write(Method::POST, path, &[], body).await;
        assert_eq!(by_body.body, by_query.body);
        let path = "/items?key=1,p%2C3&by=place&key=1,p%2C4&key=0,p%2C4&fields=id";
        let expected = json!({"documents": [{"id": 3}, {"id": 4}], "missing": [[1, "p,4"]]});
        assert_eq!(larder.get(path).await.json(), expected);
        let body = r#"{"keys":[[1,"p,3"],[1,"p,4"],[0,"p,4"]]}"#;
        let path = "/items:batch?by=place&fields=id";
        let by_body = larder.write(Method::POST, path, &[], body).await;
        assert_eq!(by_body.json(), expected);
    }
    let hits = larder.get("/items?by=number&keys=1,3").await;
    assert_eq!(hits.cache_status(), MEMORY);
}

/// That an alias leads nowhere is not remembered, and where it leads is proved by the document.
#[tokio::test(flavor = "multi_thread")]
async fn aliases_follow_the_table() {
    let larder = larder(&[("feed.poll_interval", "20ms")]).await;
    let id = async |number: u32| {
        let seen = larder.get(&format!("/items/by/number/{number}")).await;
        (seen.status == StatusCode::OK).then(|| seen.json()["id"].as_u64().unwrap())
    };
    assert_eq!(
        (id(1).await, id(2).await, id(30).await),
        (Some(1), Some(2), None)
    );
    larder
        .execute("insert into item values (30, 30, 0, '', '')")
        .await;
    assert_eq!(id(30).await, Some(30), "no absence is remembered");
    larder
        .execute("update item set number = 31 where id = 30")
        .await;
    assert_eq!(id(31).await, Some(30), "PostgreSQL knows where it leads");
    eventually("the former number leads nowhere", async || {
        id(30).await.is_none().then_some(())
    })
    .await;
    larder
        .execute("begin; update item set number = -1 where id = 1; update item set number = 1 where id = 2; commit")
        .await;
    eventually("the number leads to another document", async || {
        (id(1).await == Some(2)).then_some(())
    })
    .await;
    assert_eq!(id(2).await, None);
    larder.execute("delete from item where id = 2").await;
    eventually("it leads nowhere", async || {
        id(1).await.is_none().then_some(())
    })
    .await;
}

/// As long as the feed has not seen a change, tiers have the document as it was before.
#[tokio::test(flavor = "multi_thread")]
async fn what_tiers_do_not_know_yet_is_read_by_the_alias_and_not_kept() {
    let late = [
        ("feed.notify", "false"),
        ("feed.poll_interval", "5min"),
        ("feed.max_staleness", "10min"),
    ];
    let larder = larder(&late).await;
    let before = eventually("a hit", async || {
        let seen = larder.get("/items/by/number/1").await;
        (seen.cache_status() == MEMORY).then_some(seen)
    })
    .await;
    larder.feed_rests().await;
    larder
        .execute("update item set number = 41, note = 'new' where id = 1")
        .await;
    for _ in 0..2 {
        let new = larder.get("/items/by/number/41").await;
        assert_eq!(new.json()["note"], "new");
        assert_eq!(new.cache_status(), "larder; fwd=bypass; detail=feed");
        assert_eq!(new.header("content-location"), "/items/1");
        let batch = larder.get("/items?by=number&keys=41,2&fields=note").await;
        assert_eq!(batch.json()["documents"][0], json!({"note": "new"}));
        for path in ["/items/1", "/items/by/number/1"] {
            let old = larder.get(path).await;
            assert_eq!(old.cache_status(), MEMORY);
            assert_eq!(old.body, before.body);
        }
    }
    for path in ["/items/by/number/3", "/items?by=number&keys=3"] {
        let old = larder.get(path).await;
        let change =
            "with changed as (update item set note = note || '+' where id = 3 returning id)
            select larder.token() from changed";
        let token: String = sqlx::query_scalar(change)
            .fetch_one(&mut larder.connect().await)
            .await
            .unwrap();
        let seen = get(&larder, path, &[("larder-token", &token)]).await;
        assert_ne!(seen.body, old.body, "{path}");
    }
    let token = larder
        .write(Method::PATCH, "/items/2", &[], r#"{"number":42}"#)
        .await;
    assert_eq!(token.status, StatusCode::OK, "{}", token.body);
    let token = token.header("larder-token").to_owned();
    let seen = get(&larder, "/items/by/number/42", &[("larder-token", &token)]).await;
    assert_eq!(seen.json()["id"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_are_bounded_with_the_documents() {
    let bytes_max = 1 << 20;
    let larder = larder(&[("memory.max_bytes", "1MiB")]).await;
    larder
        .execute(
            "insert into item select n, n, 0, 'p' || n, 'short' from generate_series(100, 5099) n",
        )
        .await;
    for first in (100..5100).step_by(500) {
        let keys: Vec<String> = (first..first + 500).map(|key| key.to_string()).collect();
        let body = format!("{{\"keys\":[{}]}}", keys.join(","));
        let path = "/items:batch?by=number&fields=id";
        let seen = larder.write(Method::POST, path, &[], &body).await;
        assert_eq!(seen.json()["documents"].as_array().unwrap().len(), 500);
        let bytes = larder.metric("larder_tier_bytes{tier=\"memory\"}").await;
        assert!(bytes <= f64::from(bytes_max), "{bytes}");
    }
    assert!(larder.metric("larder_evictions_total").await > 0.0);
    let again = larder.get("/items/by/number/100").await;
    assert_eq!(again.json()["id"], 100);
}

/// Several rows may have one code, of which one at most is shown.
#[tokio::test(flavor = "multi_thread")]
async fn a_partial_index_is_enough_if_it_has_all_rows_of_the_condition() {
    let url = TestCluster::database().await.url;
    let schema = "
        create table part (id int primary key, code text not null, kind int not null, deleted_at timestamptz);
        create unique index on part (code) where deleted_at is null and kind > 0;
        create unique index on part (id, code) where part.* is not null;
        insert into part values (1, 'a', 2, now()), (2, 'a', 2, null), (3, 'a', 0, null)";
    execute(&url, schema).await;
    let parts = "
        [[resource]]
        name = 'parts'
        table = 'part'
        where = 'kind = 2 and deleted_at is null'
        [[resource.by]]
        name = 'code'
        columns = 'code'";
    let larder = TestService::start_on(&url, parts, &[]).await;
    let leads_to = async |id: Option<u64>| {
        eventually("the alias leads to the only document", async || {
            let seen = larder.get("/parts/by/code/a").await;
            let found = (seen.status == StatusCode::OK).then(|| seen.json()["id"].as_u64());
            (found.flatten() == id).then_some(())
        })
        .await;
    };
    leads_to(Some(2)).await;
    larder
        .execute("update part set deleted_at = now() where id = 2")
        .await;
    leads_to(None).await;
    larder
        .execute("update part set deleted_at = null where id = 1")
        .await;
    leads_to(Some(1)).await;
}
