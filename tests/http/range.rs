//! `Range` on documents.

use axum::http::{Method, StatusCode};

use super::{MEMORY, assert_problem};
use crate::harness::service::TestService;

const SCHEMA: &str = "
    create table item (id bigint primary key, title text);
    insert into item select n, repeat('title ' || n, 300) from generate_series(1, 3) n;";

const CONFIG: &str = "[[resource]]\nname = 'items'\ntable = 'item'\ntiers = ['memory']";

#[tokio::test(flavor = "multi_thread")]
async fn one_range_of_bytes_is_206_or_416() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    let path = "/items/1";
    larder.get(path).await;
    let whole = larder.get(path).await;
    assert_eq!(whole.header("accept-ranges"), "bytes");
    let bytes = whole.bytes.len();
    let range = async |range: &str| {
        // A range is of the unencoded document, whatever encodings are accepted.
        let headers = [("range", range), ("accept-encoding", "gzip")];
        larder.request(Method::GET, path, &headers).await
    };
    for (asked, first, last) in [
        ("bytes=0-0", 0, 0),
        ("bytes=10-19", 10, 19),
        ("bytes=10-", 10, bytes - 1),
        ("bytes=-5", bytes - 5, bytes - 1),
        ("bytes=-999999", 0, bytes - 1),
        ("bytes=5-999999", 5, bytes - 1),
    ] {
        let answer = range(asked).await;
        assert_eq!(answer.status, StatusCode::PARTIAL_CONTENT, "{asked}");
        assert_eq!(answer.body, whole.body[first..=last], "{asked}");
        assert_eq!(
            answer.header("content-range"),
            format!("bytes {first}-{last}/{bytes}")
        );
        assert_eq!(answer.header("etag"), whole.header("etag"));
        assert_eq!(answer.header("content-encoding"), "");
        assert_eq!(answer.cache_status(), MEMORY);
    }
    for asked in [format!("bytes={bytes}-"), "bytes=-0".to_owned()] {
        let answer = range(&asked).await;
        assert_problem(&answer, 416);
        assert_eq!(answer.header("content-range"), format!("bytes */{bytes}"));
    }
    for asked in ["bytes=2-1", "lines=1-2", "bytes=0-1,3-4", "garbage"] {
        let headers = [("range", asked)];
        let answer = larder.request(Method::GET, path, &headers).await;
        assert_eq!(
            (answer.status, &answer.body),
            (StatusCode::OK, &whole.body),
            "{asked}"
        );
    }
    let head = larder
        .request(Method::HEAD, path, &[("range", "bytes=0-0")])
        .await;
    assert_eq!(head.status, StatusCode::OK);
    let list = larder
        .request(Method::GET, "/items", &[("range", "bytes=0-0")])
        .await;
    assert_eq!(
        (list.status, list.header("accept-ranges")),
        (StatusCode::OK, "")
    );
    let absent = larder
        .request(Method::GET, "/items/9", &[("range", "bytes=0-0")])
        .await;
    assert_problem(&absent, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn if_range_asks_for_all_of_another_document() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    let etag = larder.get("/items/1").await.header("etag").to_owned();
    let weak = format!("W/{etag}");
    for (tag, status) in [
        (etag.as_str(), StatusCode::PARTIAL_CONTENT),
        ("\"other\"", StatusCode::OK),
        (&weak, StatusCode::OK),
        ("Sun, 06 Nov 1994 08:49:37 GMT", StatusCode::OK),
    ] {
        let headers = [("range", "bytes=0-0"), ("if-range", tag)];
        let answer = larder.request(Method::GET, "/items/1", &headers).await;
        assert_eq!(answer.status, status, "{tag}");
    }
    let headers = [("range", "bytes=0-0"), ("if-none-match", etag.as_str())];
    let unchanged = larder.request(Method::GET, "/items/1", &headers).await;
    assert_eq!(unchanged.status, StatusCode::NOT_MODIFIED);
}
