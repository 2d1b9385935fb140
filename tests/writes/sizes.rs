//! What a write may leave behind: no document that is longer than `document_max`, or that PostgreSQL can't write as text.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::eventually;
use crate::harness::service::{TestResponse, TestService};

const SCHEMA: &str = "
    create table note (id bigint primary key, body text, other text, j jsonb);
    create table line (id bigint primary key, note bigint references note, body text default repeat('x', 1500));
    create domain price as numrange;
    create type offer as (name text, prices price[]);
    create table shape (id bigint primary key, r numrange, rs numrange[], m nummultirange, p jsonpath[], o offer[]);
    insert into note values (1, 'a', 'b', null), (2, repeat('x', 10000), 'b', null), (3, repeat('x', 10000), 'b', null),
                            (4, repeat('x', 10000), 'b', null), (5, repeat('x', 40000), 'b', null);";

const CONFIG: &str = "
    document_max = '4KiB'
    [[resource]]
    name = 'notes'
    table = 'note'
      [[resource.children]]
      name = 'lines'
      table = 'line'
      fields = { id = 'id', body = 'body' }
    [[resource]]
    name = 'shapes'
    table = 'shape'";

const MINIMAL: (&str, &str) = ("prefer", "return=minimal");

#[track_caller]
fn assert_too_long(answer: &TestResponse) {
    let problem = answer.json();
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE, "{answer:?}");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("document_max"), "{detail}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_write_leaves_a_document_beyond_document_max() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    let long = "y".repeat(3_000);
    let lines = |from: u64| json!([{"id": from}, {"id": from + 1}, {"id": from + 2}]);
    for headers in [&[][..], &[MINIMAL]] {
        let one = json!({"body": long}).to_string();
        let patch = async |body: &str| larder.write(Method::PATCH, "/notes/1", headers, body).await;
        assert!(patch(&one).await.status.is_success());
        assert_too_long(&patch(&json!({"other": long}).to_string()).await);
        assert!(patch(r#"{"body": "a"}"#).await.status.is_success());
        // Defaults, and the form that jsonb is written in, may be longer than the body.
        let spaced = json!({"id": 10, "j": vec![1; 1_500]}).to_string();
        let defaults = json!({"id": 10, "lines": lines(10)}).to_string();
        for body in [&spaced, &defaults] {
            let created = larder.write(Method::POST, "/notes", headers, body).await;
            assert_too_long(&created);
            let put = larder.write(Method::PUT, "/notes/10", headers, body).await;
            assert_too_long(&put);
        }
        assert_eq!(larder.get("/notes/10").await.status, StatusCode::NOT_FOUND);
    }
    assert_eq!(larder.get("/notes/1").await.json()["body"], "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_bulk_write_leaves_a_document_beyond_document_max() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    let lines = json!([{"id": 1}, {"id": 2}, {"id": 3}]);
    let body = json!([{"id": 20}, {"id": 21, "lines": lines}, {"id": 22}]).to_string();
    let refused = larder.write(Method::POST, "/notes", &[], &body).await;
    assert_too_long(&refused);
    let detail = refused.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.starts_with("document 1: "), "{detail}");
    assert_eq!(larder.get("/notes/20").await.status, StatusCode::NOT_FOUND);
    let lenient = [("prefer", "handling=lenient")];
    let each = larder.write(Method::POST, "/notes", &lenient, &body).await;
    let statuses: Vec<Value> = each
        .body
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["status"].clone())
        .collect();
    assert_eq!(statuses, [201, 413, 201]);
    assert_eq!(larder.get("/notes/21").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_beyond_document_max_can_be_shortened() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    let any = ("if-match", "*");
    for id in [2, 3, 4, 5] {
        let path = format!("/notes/{id}");
        assert_eq!(
            larder.get(&path).await.status,
            StatusCode::INTERNAL_SERVER_ERROR
        );
    }
    let write = async |method, path, headers: &[_], body: &str| {
        larder.write(method, path, headers, body).await
    };
    assert_too_long(&write(Method::PATCH, "/notes/2", &[MINIMAL], r#"{"other": "c"}"#).await);
    let short = r#"{"body": "short"}"#;
    let patched = write(Method::PATCH, "/notes/2", &[any], short).await;
    assert_eq!(patched.status, StatusCode::OK, "{patched:?}");
    let expected = r#"{"id":2,"body":"short","other":"b","j":null,"lines":[]}"#;
    assert_eq!(larder.get("/notes/2").await.body, expected);
    // Beyond four times document_max the document is not read.
    let longer = write(Method::PATCH, "/notes/5", &[], short).await;
    assert_too_long(&longer);
    assert!(longer.body.contains("PUT and DELETE"), "{longer:?}");
    let other = write(Method::PUT, "/notes/3", &[("if-match", "\"x\"")], short).await;
    assert_eq!(other.status, StatusCode::PRECONDITION_FAILED);
    let put = write(Method::PUT, "/notes/3", &[any], short).await;
    assert_eq!(put.status, StatusCode::OK, "{put:?}");
    assert_eq!(larder.get("/notes/3").await.json()["body"], "short");
    let put = write(Method::PUT, "/notes/5", &[], short).await;
    assert_eq!(put.status, StatusCode::OK, "{put:?}");
    let deleted = write(Method::DELETE, "/notes/4", &[any], "").await;
    assert_eq!(deleted.status, StatusCode::NO_CONTENT, "{deleted:?}");
    eventually("it is gone", async || {
        (larder.get("/notes/4").await.status == StatusCode::NOT_FOUND).then_some(())
    })
    .await;
}

/// PostgreSQL can hold values that it can't write as text, or not trim.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_postgresql_cannot_write_can_be_replaced_and_deleted() {
    let schema = "
        create table heavy (id bigint primary key, j jsonb, js json);
        insert into heavy select id, (select jsonb_agg('1e131071'::jsonb) from generate_series(1, 9000))
            from generate_series(1, 2) id;
        insert into heavy values (3, null, to_json(repeat('x', 140000000)));
        create table watched (like heavy including all);
        insert into watched select * from heavy;
        create function pass() returns trigger language plpgsql as 'begin return old; end';
        create trigger pass before delete on watched for each row execute function pass();";
    let config = "
        [[resource]]
        name = 'heavies'
        table = 'heavy'
        [[resource]]
        name = 'watched'
        table = 'watched'";
    let larder = TestService::start(schema, config).await;
    for path in ["/heavies/1", "/heavies/3", "/watched/1"] {
        let body = r#"{"j": [1.0], "js": 1}"#;
        let put = larder.write(Method::PUT, path, &[], body).await;
        assert_eq!(put.status, StatusCode::OK, "{path} {put:?}");
        assert_eq!(put.json()["j"], json!([1.0]));
    }
    for path in ["/heavies/2", "/watched/2", "/watched/3"] {
        let deleted = larder.write(Method::DELETE, path, &[], "").await;
        assert_eq!(deleted.status, StatusCode::NO_CONTENT, "{path} {deleted:?}");
    }
}

/// PostgreSQL stores `1e131071` in a few bytes and writes 131,072 digits.
#[tokio::test(flavor = "multi_thread")]
async fn numbers_in_ranges_and_paths_are_bounded() {
    let larder = TestService::start(SCHEMA, &CONFIG.replace("4KiB", "16MiB")).await;
    let post = async |body: Value| {
        let body = body.to_string();
        larder
            .write(Method::POST, "/shapes", &[MINIMAL], &body)
            .await
    };
    let (range, path) = ("[1e131071,1e131071]", "$.a == 1e131071");
    let many = vec![range; 40];
    let offer = json!([{"name": "n", "prices": many}]);
    let spread = r#"["1"e13"1071",)"#;
    for (id, members) in [
        json!({"rs": many}),
        json!({"rs": vec![spread; 40]}),
        json!({"m": format!("{{{}}}", vec!["(,1e-16000)"; 100].join(","))}),
        json!({"p": vec![path; 40]}),
        json!({"o": offer}),
    ]
    .into_iter()
    .enumerate()
    {
        let mut body = members;
        body["id"] = json!(id);
        let refused = post(body).await;
        assert_eq!(
            refused.status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{refused:?}"
        );
        assert!(
            refused.body.contains("longer than 1048576 digits"),
            "{refused:?}"
        );
    }
    let few = json!({"id": 9, "r": range, "rs": [range], "m": "{[1e3,1e4)}", "p": [path],
        "o": [{"name": "n", "prices": ["[1,2)", spread]}]});
    let stored = post(few).await;
    assert_eq!(stored.status, StatusCode::CREATED, "{stored:?}");
    let read = larder.get("/shapes/9").await;
    assert_eq!(read.status, StatusCode::OK);
    assert_eq!(read.json()["m"], "{[1000,10000)}");
}
