//! Requests and answers of the public address.

mod answers;
mod batch;
mod cache_headers;
mod connections;
mod content_negotiation;
mod cors;
mod fields;
mod index;
mod keys;
mod list;
mod middleware;
mod range;
mod reads;
mod refusal_order;
mod turns;

use axum::http::{Method, StatusCode};
use tempfile::TempDir;

use crate::harness::cluster::TestCluster;
use crate::harness::service::{TestResponse, TestService, execute};

const SCHEMA: &str = "
    create table item (id bigint primary key, title text);
    insert into item values (42, 'answer'), (7, 'seven');
    create table tag (name text primary key, n int);
    insert into tag values ('a/b', 1), ('', 2), ('a,b', 3), ('50%', 4), ('é', 5), ('..', 6), ('a b', 7);
    create table thing (id uuid primary key, n int);
    insert into thing values ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 1);
    create table part (item bigint, side text, n int, primary key (item, side));
    insert into part values (7, 'NO', 1), (7, 'N,O', 2), (7, '', 3), (7, '50%2C', 4);";

const CONFIG: &str = "
    [[resource]]
    name = 'items'
    table = 'item'
    tiers = ['memory']
    [[resource]]
    name = 'tags'
    table = 'tag'
    tiers = ['memory']
    [[resource]]
    name = 'things'
    table = 'thing'
    tiers = ['memory']
    [[resource]]
    name = 'parts'
    table = 'part'
    key = ['item', 'side']
    tiers = ['memory']";

const MISS: &str = "larder; fwd=miss; stored; detail=postgres";
const MEMORY: &str = "larder; hit; detail=memory";

async fn larder() -> TestService {
    TestService::start(SCHEMA, CONFIG).await
}

/// The type of problems of documents that can't be returned until they change.
const UNREADABLE: &str = "urn:problem-type:unreadable-document";

/// Checks that an error is as RFC 9457 requires, and shows no SQL, host or table.
#[track_caller]
fn assert_problem(answer: &TestResponse, status: u16) {
    let what = format!("{answer:?}");
    assert_eq!(answer.status.as_u16(), status, "{what}");
    let media_type = answer.header("content-type");
    assert_eq!(media_type, "application/problem+json", "{what}");
    let problem = answer.json();
    assert_eq!(problem["status"], status, "{what}");
    let types = ["about:blank", UNREADABLE];
    assert!(types.contains(&problem["type"].as_str().unwrap()), "{what}");
    for member in ["title", "detail"] {
        assert!(!problem[member].as_str().unwrap().is_empty(), "{what}");
    }
    let text = answer.body.to_lowercase();
    for secret in ["select ", "127.0.0.1", "public.", "larder:"] {
        assert!(!text.contains(secret), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn head_has_the_headers_of_get() {
    let larder = larder().await;
    larder.get("/items/42").await;
    for path in ["/items/42", "/items/404", "/items/x", "/nothing"] {
        // The first request of a missing key is a miss, the second a hit.
        larder.get(path).await;
        let get = larder.get(path).await;
        let head = larder.request(Method::HEAD, path, &[]).await;
        assert_eq!(get.status, head.status, "{path}");
        for (name, value) in &get.headers {
            assert_eq!(head.headers.get(name), Some(value), "{path}: {name}");
        }
    }
    let get = larder.get("/items/42").await;
    assert_eq!(get.header("content-type"), "application/json");
    assert_eq!(get.header("cache-control"), "no-cache");
    assert_eq!(get.body, r#"{"id":42,"title":"answer"}"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn if_none_match_is_a_weak_comparison_with_a_list() {
    let larder = larder().await;
    let etag = larder.get("/items/42").await.header("etag").to_owned();
    assert!(
        etag.starts_with('"') && etag.ends_with('"') && etag.len() > 10,
        "{etag}"
    );

    let weak = format!("W/{etag}");
    let list = format!("\"other\", {etag}");
    for lines in [
        &[etag.as_str()][..],
        &[&weak],
        &[&list],
        &["*"],
        &["\"other\"", &etag],
    ] {
        let headers: Vec<_> = lines.iter().map(|line| ("if-none-match", *line)).collect();
        for method in [Method::GET, Method::HEAD] {
            let answer = larder.request(method, "/items/42", &headers).await;
            assert_eq!(answer.status, StatusCode::NOT_MODIFIED, "{lines:?}");
            assert_eq!(answer.header("etag"), etag);
            assert_eq!(answer.cache_status(), MEMORY);
            assert_eq!(answer.header("cache-control"), "no-cache");
            // RFC 9110, section 8.6: the document's or none.
            assert_eq!(answer.header("content-length"), "");
            assert_eq!(answer.body, "");
        }
    }
    for line in [
        "\"other\"",
        "",
        "garbage",
        etag.trim_matches('"'),
        "\"unclosed",
    ] {
        let headers = [("if-none-match", line)];
        let answer = larder.request(Method::GET, "/items/42", &headers).await;
        assert_eq!(answer.status, StatusCode::OK, "{line}");
    }
    // There is nothing that `*` could match.
    let headers = [("if-none-match", "*")];
    let answer = larder.request(Method::GET, "/items/404", &headers).await;
    assert_problem(&answer, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn absence_is_remembered_and_ends_with_the_insert() {
    let larder = larder().await;
    let first = larder.get("/items/1").await;
    assert_problem(&first, 404);
    assert_eq!(first.cache_status(), MISS);
    let second = larder.get("/items/1").await;
    assert_problem(&second, 404);
    assert_eq!(second.cache_status(), MEMORY);
    assert_eq!(second.header("etag"), "");

    larder.execute("insert into item values (1, 'one')").await;
    crate::harness::eventually("the inserted item", async || {
        (larder.get("/items/1").await.status == StatusCode::OK).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_methods_are_405_with_allow() {
    let larder = larder().await;
    let methods = ["POST", "TRACE", "PURGE", "get"];
    for method in methods {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        for path in ["/items/42", "/items/no-number"] {
            let answer = larder.request(method.clone(), path, &[]).await;
            assert_problem(&answer, 405);
            assert_eq!(
                answer.header("allow"),
                "GET, HEAD, PUT, PATCH, DELETE, OPTIONS"
            );
        }
        let answer = larder.request(method, "/nothing/42", &[]).await;
        assert_problem(&answer, 404);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_paths_are_404() {
    let larder = larder().await;
    for path in [
        "//",
        "/nothing",
        "/nothing:batch",
        "/items:bath",
        "/nothing/1",
        "/items/42/",
        "/items/42/more",
        "//items/42",
        "/items//42",
        "/./items/42",
        "/items/../items/42",
        "/ITEMS/42",
        "/items%2F42",
        "/%ff/42",
        "/items%00/42",
        "/larder/42",
        "*",
    ] {
        assert_problem(&larder.get(path).await, 404);
    }
    // A name may be percent-encoded, and a query or an absolute form changes nothing.
    for path in [
        "/%69tems/42",
        "/items/42?fields=id,title",
        "http://localhost/items/42",
    ] {
        let answer = larder.get(path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        assert_eq!(answer.json()["title"], "answer");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn entity_tag_is_the_same_in_every_tier_and_after_a_restart() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let config = "[[resource]]\nname = 'items'\ntable = 'item'";
    let settings = [("disk.linger", "1ms")];
    let larder = TestService::start_on(&url, config, &settings).await;
    let miss = larder.get("/items/42").await;
    assert_eq!(miss.cache_status(), MISS);
    let memory = larder.get("/items/42").await;
    assert_eq!(memory.cache_status(), MEMORY);
    let state = larder.stop().await;

    let larder = TestService::start_in(state, &url, config, &settings).await;
    let disk = larder.get("/items/42").await;
    assert_eq!(disk.cache_status(), "larder; hit; detail=disk");
    let promoted = larder.get("/items/42").await;
    assert_eq!(promoted.cache_status(), MEMORY);
    larder.stop().await;

    let larder = TestService::start_in(TempDir::new().unwrap(), &url, config, &[]).await;
    let anew = larder.get("/items/42").await;
    for other in [&memory, &disk, &promoted, &anew] {
        assert_eq!(other.header("etag"), miss.header("etag"));
        assert_eq!(other.body, miss.body);
    }
    let seven = larder.get("/items/7").await;
    assert_ne!(seven.header("etag"), miss.header("etag"));
}
