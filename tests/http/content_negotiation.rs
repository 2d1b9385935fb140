//! Content negotiation: `Accept` and `Accept-Encoding`.

use std::io::Read;

use axum::http::{Method, StatusCode};

use super::{MEMORY, assert_problem};
use crate::harness::eventually;
use crate::harness::service::{TestResponse, TestService};

const SCHEMA: &str = "
    create table item (id bigint primary key, title text);
    insert into item select n, repeat('title ' || n, 300) from generate_series(1, 20) n;
    insert into item values (100, 'short'), (101, repeat('long', 20000));
    -- No encoding makes it smaller.
    insert into item select 102, string_agg(encode(sha512(n::text::bytea), 'base64'), '') from generate_series(1, 9) n;";

const CONFIG: &str = "
    [[resource]]
    name = 'items'
    table = 'item'
    tiers = ['memory']
    [[resource]]
    name = 'untiered'
    table = 'item'
    tiers = []";

const ENCODINGS: [&str; 3] = ["zstd", "br", "gzip"];

async fn get(larder: &TestService, path: &str, encodings: &str) -> TestResponse {
    let headers = [("accept-encoding", encodings)];
    larder.request(Method::GET, path, &headers).await
}

fn decoded(answer: &TestResponse) -> String {
    let bytes = answer.bytes.as_slice();
    let mut text = Vec::new();
    match answer.header("content-encoding") {
        "zstd" => zstd::stream::copy_decode(bytes, &mut text).unwrap(),
        "br" => brotli::BrotliDecompress(&mut &*bytes, &mut text).unwrap(),
        "gzip" => drop(
            flate2::read::GzDecoder::new(bytes)
                .read_to_end(&mut text)
                .unwrap(),
        ),
        _ => text = bytes.to_vec(),
    }
    String::from_utf8(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_encoded_as_accepted_with_entity_tags_of_their_own() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    for path in [
        "/items/1",
        "/items/101",
        "/untiered/2",
        "/items?limit=3",
        "/items?keys=1,2",
        "/items/1?fields=title",
    ] {
        let plain = larder.get(path).await;
        assert_eq!(plain.header("content-encoding"), "", "{path}");
        assert_eq!(plain.header("vary"), "accept-encoding", "{path}");
        let etag = plain.header("etag").trim_matches('"').to_owned();
        let mut tags = vec![plain.header("etag").to_owned()];
        for encoding in ENCODINGS {
            // Made the first time, kept the second.
            for _ in 0..2 {
                let answer = get(&larder, path, encoding).await;
                assert_eq!(answer.header("content-encoding"), encoding, "{path}");
                assert_eq!(
                    answer.header("etag"),
                    format!("\"{etag}-{encoding}\""),
                    "{path}"
                );
                assert_eq!(answer.header("vary"), "accept-encoding");
                let ranges = if path.contains('?') { "" } else { "bytes" };
                assert_eq!(answer.header("accept-ranges"), ranges, "{path}");
                assert!(answer.bytes.len() < plain.bytes.len() / 2, "{path}");
                assert_eq!(decoded(&answer), plain.body, "{path}");
            }
            tags.push(format!("\"{etag}-{encoding}\""));
        }
        for tag in &tags {
            for encodings in ["", "gzip", "br", "*"] {
                let headers = [
                    ("if-none-match", tag.as_str()),
                    ("accept-encoding", encodings),
                ];
                let answer = larder.request(Method::GET, path, &headers).await;
                // A client that no longer accepts the encoding gets the document again.
                let has = *tag == tags[0]
                    || encodings == "*"
                    || tag.trim_matches('"') == format!("{etag}-{encodings}");
                let unchanged = answer.status == StatusCode::NOT_MODIFIED;
                assert_eq!(unchanged, has, "{path} {tag} {encodings}");
                assert!(!unchanged || answer.header("etag") == tag);
            }
        }
        let none = get(&larder, path, "gzip;q=0, br;q=0, zstd;q=0").await;
        assert_eq!(none.body, plain.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_with_if_match_gets_that_version_or_412() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    for path in [
        "/items/1",
        "/untiered/2",
        "/items?limit=3",
        "/items?keys=1,2",
        "/items/1?fields=title",
    ] {
        let read = larder.get(path).await;
        let etag = read.header("etag").to_owned();
        let encoded = format!("\"x\", {}-gzip\"", etag.strip_suffix('"').unwrap());
        let weak = format!("W/{etag}");
        for (tags, status) in [
            (etag.as_str(), StatusCode::OK),
            (&encoded, StatusCode::OK),
            ("*", StatusCode::OK),
            (&weak, StatusCode::PRECONDITION_FAILED),
            ("\"x\"", StatusCode::PRECONDITION_FAILED),
        ] {
            // It takes precedence over the others.
            let headers = [
                ("if-match", tags),
                ("if-none-match", "\"y\""),
                ("range", "lines=1"),
            ];
            for (method, headers) in [
                (Method::GET, &headers[..1]),
                (Method::GET, &headers),
                (Method::HEAD, &headers[..1]),
            ] {
                let answer = larder.request(method, path, headers).await;
                assert_eq!(answer.status, status, "{path} {tags}");
            }
        }
    }
    // `If-Match` changes no answer that is an error without it.
    let absent = larder
        .request(Method::GET, "/items/404", &[("if-match", "\"x\"")])
        .await;
    assert_problem(&absent, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encoding_is_made_once_and_kept_in_memory() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    let plain = larder.get("/items/3").await;
    let bytes = async || larder.metric("larder_tier_bytes{tier=\"memory\"}").await;
    get(&larder, "/items/3", "gzip").await;
    let after = bytes().await;
    let again = get(&larder, "/items/3", "gzip").await;
    assert_eq!(again.cache_status(), MEMORY);
    assert_eq!(bytes().await, after);
    // A changed document does not keep the encodings of the previous one.
    larder
        .execute("update item set title = repeat('other', 500) where id = 3")
        .await;
    eventually("the change", async || {
        let answer = get(&larder, "/items/3", "gzip").await;
        (decoded(&answer) != plain.body).then_some(())
    })
    .await;
    let whole = larder.get("/items/3").await.body;
    assert_eq!(decoded(&get(&larder, "/items/3", "gzip").await), whole);
    let head = larder
        .request(Method::HEAD, "/items/3", &[("accept-encoding", "gzip")])
        .await;
    assert_eq!(head.header("content-encoding"), "gzip");
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_that_would_not_shrink_are_sent_unencoded() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    larder.get("/items/100").await;
    let short = get(&larder, "/items/100", "gzip").await;
    assert_eq!(
        (short.header("content-encoding"), short.header("vary")),
        ("", "")
    );
    let sql = "update item set title = substr(title, 1, 1100) where id = 102";
    larder.execute(sql).await;
    for _ in 0..2 {
        let answer = get(&larder, "/items/102", "zstd, gzip, br").await;
        assert_eq!(decoded(&answer), larder.get("/items/102").await.body);
    }
    assert_problem(&get(&larder, "/items/404", "gzip").await, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_do_not_accept_json_are_406() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    for path in ["/items/1", "/items", "/items?keys=1"] {
        for accept in ["text/html", "application/json;q=0, */*", "image/*"] {
            let headers = [("accept", accept)];
            assert_problem(&larder.request(Method::GET, path, &headers).await, 406);
        }
        for accept in ["application/json", "text/html, */*;q=0.1", "application/*"] {
            let headers = [("accept", accept)];
            let answer = larder.request(Method::GET, path, &headers).await;
            assert_eq!(answer.status, StatusCode::OK, "{path} {accept}");
        }
    }
    let headers = [("accept", "text/html")];
    assert_problem(
        &larder.request(Method::GET, "/nothing/1", &headers).await,
        404,
    );
}
