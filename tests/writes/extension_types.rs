//! Types of extensions: rows of children that are identified by them, and values that they refuse.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::service::{TestService, execute};

/// The extensions are in a schema that is in no search path. Values of `ext.broken` are refused with SQLSTATE XX000.
const SQL: &str = "
    create schema ext; create extension citext schema ext; create extension ltree schema ext;
    create extension cube schema ext; create extension seg schema ext;
    create table t (id int primary key, path ext.ltree, size ext.seg, box ext.cube, query tsquery);
    create table tag (t_id int references t, name ext.citext, path ext.ltree, place ext.cube, note text, unique (t_id, note),
      primary key (t_id, name, path, place));
    insert into t values (1); insert into tag values (1, 'Abc', 'a.b', '(1)', 'x'), (1, 'Abd', 'a.b', '(1)', 'y');
    create table given (id int primary key, c ext.citext);
    insert into given values (1, 'Abc'), (2, 'abC'), (3, 'b');";

const CONFIG: &str = "
    [[resource]]
    name = 't'
    table = 't'
      [[resource.children]]
      name = 'tags'
      table = 'tag'
      fields = ['name', 'path', 'place', 'note']
    [[resource]]
    name = 'given'
    table = 'given'
    filters = ['c']
    ";

fn tags(of: &[(&str, &str)]) -> Value {
    let tag = |(name, note): &(&str, &str)| json!({"name": name, "path": "a.b", "place": "(1)", "note": note});
    json!({"tags": of.iter().map(tag).collect::<Vec<_>>()})
}

/// Rows were matched by `=` of the search path: `citext` by that of `text`, and `ltree` by none.
async fn rows_are_those_that_postgresql_calls_equal(larder: &TestService) {
    for (given, expected) in [
        (
            tags(&[("aBC", "new"), ("Abd", "y")]),
            [("Abc", "new"), ("Abd", "y")],
        ),
        // Values that must be unique are exchanged by way of the order of updates.
        (
            tags(&[("abc", "z"), ("ABD", "new")]),
            [("Abc", "z"), ("Abd", "new")],
        ),
    ] {
        let answer = larder.patch("/t/1", &given).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        assert_eq!(answer.json()["tags"], tags(&expected)["tags"]);
    }
    let twice = larder
        .patch("/t/1", &tags(&[("abc", "1"), ("ABC", "2")]))
        .await;
    assert_eq!(twice.status, StatusCode::UNPROCESSABLE_ENTITY, "{twice:?}");
    let filtered = larder.get("/given?c=eq.ABC").await;
    let expected = json!([{"id": 1, "c": "Abc"}, {"id": 2, "c": "abC"}]);
    assert_eq!(filtered.json(), expected, "{filtered:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_children_are_compared_by_their_own_operators() {
    let larder = TestService::start(SQL, CONFIG).await;
    rows_are_those_that_postgresql_calls_equal(&larder).await;
}

/// The operators have no name that larder's role may use.
#[tokio::test(flavor = "multi_thread")]
async fn values_are_compared_without_usage_of_their_schema() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    TestService::start_on(&url, CONFIG, &[]).await.stop().await;
    let role = TestRole::create(&url).await;
    let grants = format!(
        "grant select, insert, update, delete on t, tag, given to {name};
         grant usage on schema larder to {name}; grant execute on function pg_control_system() to {name};
         grant execute on all functions in schema larder to {name};
         grant select, insert, update, delete on all tables in schema larder to {name}",
        name = role.name
    );
    execute(&url, &grants).await;
    let larder = TestService::start_on(&role.url, CONFIG, &[("install", "manual")]).await;
    rows_are_those_that_postgresql_calls_equal(&larder).await;
}

/// The functions that read values raise errors of many classes; the answer was 500 or had no place.
#[tokio::test(flavor = "multi_thread")]
async fn values_that_types_refuse_are_pointed_to() {
    let larder = TestService::start(SQL, CONFIG).await;
    let long = "a".repeat(3000);
    let mut cases: Vec<(String, Value)> = [
        ("path", "a..b"),
        ("path", &long),
        ("size", "2 .. 1"),
        ("size", "x"),
        ("box", "(1"),
        ("query", "a &"),
        ("query", &long),
    ]
    .map(|(name, text)| (format!("/{name}"), json!({ name: text })))
    .into();
    let row = |path: &str| json!({"name": "n", "path": path, "place": "(1)", "note": ""});
    let rows = json!({"tags": [row("a"), row("a..b")]});
    cases.push(("/tags/1/path".into(), rows));
    for (pointer, body) in cases {
        let mut posted = body.clone();
        posted["id"] = json!(2);
        let answers = [
            larder.post("/t", &posted).await,
            larder.put("/t/2", &body).await,
            larder.put("/t/1", &body).await,
            larder.patch("/t/1", &body).await,
            larder.post("/t", &json!([{"id": 3}, posted])).await,
        ];
        for (number, answer) in answers.iter().enumerate() {
            let told = format!("{pointer} {number}: {answer:?}");
            assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{told}");
            let found = answer.json()["errors"][0]["pointer"].clone();
            let found = found.as_str().unwrap_or_default().to_owned();
            assert!(found.ends_with(&pointer), "{told}");
        }
    }
}
