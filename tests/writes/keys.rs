//! Keys that PostgreSQL can store and no path can have.

use axum::http::StatusCode;
use serde_json::json;

use crate::harness::service::TestService;
use crate::writes::assert_refused;

/// POST answered 201 with a `Location` that was 400, and a list could not go on after such a row.
#[tokio::test(flavor = "multi_thread")]
async fn keys_that_are_too_long_are_refused_and_passed_over() {
    let larder = TestService::start(
        "create table t (id text primary key default repeat('d', 5000), n int);
         create table pair (a int, b varchar, primary key (a, b));",
        "[[resource]]\nname = 'ts'\ntable = 't'\n[[resource]]\nname = 'pairs'\ntable = 'pair'\n",
    )
    .await;
    for key in ["x".repeat(4097), "é".repeat(2049)] {
        assert_refused(&larder.post("/ts", &json!({"id": key})).await, "/id");
        assert_refused(
            &larder.post("/pairs", &json!({"a": 1, "b": key})).await,
            "/b",
        );
    }
    assert_refused(&larder.post("/ts", &json!({"n": 1})).await, "");
    let bulk = larder
        .post("/ts", &json!([{"id": "a"}, {"id": "b"}, {"n": 1}]))
        .await;
    assert_refused(&bulk, "/2");
    assert_eq!(larder.query("select count(*)::text from t").await, "0");
    let longest = "é".repeat(2048);
    let answer = larder.post("/ts", &json!({"id": longest})).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    let location = answer.header("location").to_owned();
    assert_eq!(larder.get(&location).await.status, StatusCode::OK);
    larder
        .execute(
            "delete from t;
             insert into t select 'a' || repeat('a', 5000 + i) from generate_series(1, 3) i;
             insert into t select unnest(array['a', 'b', 'c', 'z', 'b' || repeat('é', 2048), 'c' || repeat('é', 2047)]);
             insert into pair select 1, repeat('a', 5000 + i) from generate_series(1, 3) i;
             insert into pair values (1, 'z'), (2, ''), (0, 'x');",
        )
        .await;
    let long = format!("c{}", "é".repeat(2047));
    for (resource, expected) in [
        ("ts", json!(["a", "b", "c", long, "z"])),
        ("pairs", json!([[0, "x"], [1, "z"], [2, ""]])),
    ] {
        for limit in 1..=4 {
            let mut found = Vec::new();
            let mut path = format!("/{resource}?limit={limit}");
            loop {
                let page = larder.get(&path).await;
                assert_eq!(page.status, StatusCode::OK, "{path}: {}", page.body);
                for row in page.json().as_array().unwrap() {
                    found.push(match resource {
                        "ts" => row["id"].clone(),
                        _ => json!([row["a"], row["b"]]),
                    });
                }
                let Some(next) = page.header("link").strip_prefix('<') else {
                    break;
                };
                path = next.split('>').next().unwrap().to_owned();
            }
            assert_eq!(json!(found), expected, "{limit}");
        }
    }
}

/// `"NaN"` was stored under a `Location` that was 400, and `1.5` was 500.
#[tokio::test(flavor = "multi_thread")]
async fn numeric_keys_are_whole_numbers() {
    let larder = TestService::start(
        "create table t (id numeric(6,0) primary key, n numeric(6,0))",
        "[[resource]]\nname = 'ts'\ntable = 't'\n",
    )
    .await;
    for key in [json!("NaN"), json!(1.5), json!(-0.5)] {
        assert_refused(&larder.post("/ts", &json!({"id": key})).await, "/id");
    }
    let answer = larder.post("/ts", &json!({"id": 1e2, "n": "NaN"})).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(answer.header("location"), "/ts/100");
    larder
        .execute("insert into t values ('NaN', 1), (7, 1)")
        .await;
    let page = larder.get("/ts?limit=2").await;
    assert_eq!(page.json().as_array().unwrap().len(), 2, "{}", page.body);
    assert_eq!(page.header("link"), "", "{}", page.body);
}
