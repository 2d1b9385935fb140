//! Keys that PostgreSQL can store and no path can have.

use axum::http::{Method, StatusCode};
use serde_json::json;

use crate::harness::service::{TestResponse, TestService};
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

/// One of the rows was lost, and the answer was 200.
#[tokio::test(flavor = "multi_thread")]
async fn keys_that_are_equal_in_different_spellings_are_refused() {
    let larder = TestService::start(
        "create collation nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
         create domain amount as numeric(6, 2);
         create table root (id int primary key);
         create table part (id int references root, n amount, t text collate nocase, s interval, note text,
                            primary key (id, n, t, s));
         create table item (id int references root, f float8, primary key (id, f));",
        "[[resource]]\nname = 'roots'\ntable = 'root'\n[[resource.children]]\nname = 'parts'\ntable = 'part'\n\
         fields = { n = 'n', t = 't', s = 's', note = 'note' }\n\
         [[resource.children]]\nname = 'items'\ntable = 'item'\nfields = { f = 'f' }\n",
    )
    .await;
    let part =
        |n: &str, t: &str, s: &str| format!(r#"{{"n":{n},"t":"{t}","s":"{s}","note":null}}"#);
    let root = |no: i32, parts: [&str; 2], items: &str| {
        let parts = parts.join(",");
        format!(r#"{{"id":{no},"parts":[{parts}],"items":[{items}]}}"#)
    };
    let other = &part("1", "a", "1 day");
    let good = root(
        1,
        [other, &part("1.01", "á", "24:00:00")],
        r#"{"f":1},{"f":2}"#,
    );
    let answer = larder.write(Method::PUT, "/roots/1", &[], &good).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    let before = larder.get("/roots/1").await.body;
    let refused = |answer: &TestResponse, pointer: &str, first: &str| {
        assert_refused(answer, pointer);
        assert_eq!(answer.json()["errors"][1]["pointer"], first);
    };
    for equal in [&part("1.0", "a", "1 day"), &part("1.001", "A", "24:00:00")] {
        let body = root(1, [other, equal], "");
        let put = larder.write(Method::PUT, "/roots/1", &[], &body).await;
        refused(&put, "/parts/1", "/parts/0");
        // What is wrong with the body is told before the condition.
        for condition in ["*", "\"other\""] {
            let condition = [("if-match", condition)];
            let put = larder
                .write(Method::PUT, "/roots/1", &condition, &body)
                .await;
            refused(&put, "/parts/1", "/parts/0");
        }
        let body = root(2, [other, equal], "");
        let put = larder.write(Method::PUT, "/roots/2", &[], &body).await;
        refused(&put, "/parts/1", "/parts/0");
        let post = larder.write(Method::POST, "/roots", &[], &body).await;
        refused(&post, "/parts/1", "/parts/0");
        let patch = format!(r#"{{"parts":[{other},{equal}]}}"#);
        let patch = larder.write(Method::PATCH, "/roots/1", &[], &patch).await;
        refused(&patch, "/parts/1", "/parts/0");
        let lines = format!(
            "[{},{body}]",
            good.replace("\"id\":1", "\"id\":3").replace("1.01", "7")
        );
        let bulk = larder.write(Method::POST, "/roots", &[], &lines).await;
        refused(&bulk, "/1/parts/1", "/1/parts/0");
    }
    let body = root(
        2,
        [other, &part("3", "a", "1 day")],
        r#"{"f":1},{"f":2},{"f":1.0}"#,
    );
    let post = larder.write(Method::POST, "/roots", &[], &body).await;
    refused(&post, "/items/2", "/items/0");
    assert_eq!(larder.get("/roots/1").await.body, before);
    assert_eq!(larder.query("select count(*)::text from root").await, "1");
}

/// They were 409, as PostgreSQL refuses them.
#[tokio::test(flavor = "multi_thread")]
async fn equal_keys_below_a_row_whose_key_is_a_default_are_refused() {
    let larder = TestService::start(
        "create table root (id int generated by default as identity primary key);
         create table part (id int references root, n int, primary key (id, n));",
        "[[resource]]\nname = 'roots'\ntable = 'root'\n[[resource.children]]\nname = 'parts'\ntable = 'part'\n\
         fields = { n = 'n' }\n",
    )
    .await;
    let equal = json!({"parts": [{"n": 1}, {"n": 2}, {"n": 1}]});
    assert_refused(&larder.post("/roots", &equal).await, "/parts/2");
    let answer = larder
        .post("/roots", &json!({"parts": [{"n": 1}, {"n": 2}]}))
        .await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    let both = json!([{"parts": [{"n": 1}]}, {"parts": [{"n": 1}]}]);
    let answer = larder.post("/roots", &both).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
}

/// The keys of the rows above are drawn when these are inserted, so they can't tell the rows apart before.
#[tokio::test(flavor = "multi_thread")]
async fn spellings_are_compared_below_one_row_whose_key_is_drawn() {
    let larder = TestService::start(
        "create table root (id int primary key);
         create table part (id int generated always as identity primary key, root_id int not null references root);
         create index on part (root_id);
         create table size (part_id int references part, n numeric, primary key (part_id, n))",
        "[[resource]]\nname = 'roots'\ntable = 'root'\n[[resource.children]]\nname = 'parts'\ntable = 'part'\n\
         fields = { id = 'id' }\n[[resource.children.children]]\nname = 'sizes'\ntable = 'size'\nfields = { n = 'n' }\n",
    )
    .await;
    let sizes =
        |first: &str, other: &str| format!("{{\"sizes\":[{{\"n\":{first}}},{{\"n\":{other}}}]}}");
    let document = |id: i32, parts: &str| format!("{{\"id\":{id},\"parts\":[{parts}]}}");
    let equal = document(1, &sizes("5", "5.0"));
    let answer = larder.write(Method::POST, "/roots", &[], &equal).await;
    assert_refused(&answer, "/parts/0/sizes/1");
    let different = [sizes("5", "6"), sizes("5.0", "6.0")].join(",");
    let different = document(1, &different);
    let answer = larder.write(Method::POST, "/roots", &[], &different).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
}

/// A key that PostgreSQL rounds is that of the stored row. It was 409, or the row was deleted and inserted again.
#[tokio::test(flavor = "multi_thread")]
async fn keys_with_a_precision_are_rounded_before_they_are_compared() {
    for (number, (kind, stored, given)) in [
        ("numeric(6,2)", json!(1.25), json!(1.249)),
        ("rounded", json!(2), json!(2.004)),
        (
            "timestamp(0)",
            json!("2020-01-01T00:00:01+00:00"),
            json!("2020-01-01T00:00:00.7"),
        ),
        ("time(1)", json!("10:00:00.5"), json!("10:00:00.52")),
        ("interval(0)", json!("00:00:02"), json!("00:00:01.7")),
    ]
    .into_iter()
    .enumerate()
    {
        let larder = TestService::start(
            &format!(
                "create domain rounded as numeric(6,2);
                 create table item (id int primary key);
                 create table part (k {kind} primary key, item int references item, t text, kept text default 'new');
                 create index on part (item);"
            ),
            "[[resource]]\nname = 'items'\ntable = 'item'\n\
             [[resource.children]]\nname = 'parts'\ntable = 'part'\nfields = { k = 'k', t = 't' }",
        )
        .await;
        let body = json!({"id": 1, "parts": [{"k": stored, "t": "a"}]});
        let answer = larder.post("/items", &body).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        larder.execute("update part set kept = 'old'").await;
        let answer = larder
            .put(
                "/items/1",
                &json!({"parts": [{"k": given, "t": format!("b{number}")}]}),
            )
            .await;
        assert_eq!(answer.status, StatusCode::OK, "{kind}: {}", answer.body);
        let rows = larder
            .query("select string_agg(t || kept, ' ') from part")
            .await;
        assert_eq!(rows, format!("b{number}old"), "{kind}");
    }
}

/// A client that reads `Location` as a reference would take them for parts of the path.
#[tokio::test(flavor = "multi_thread")]
async fn dots_are_encoded_in_locations() {
    let larder = TestService::start(
        "create table t (id text primary key)",
        "[[resource]]\nname = 'ts'\ntable = 't'\n",
    )
    .await;
    for (key, path) in [
        (".", "/ts/%2E"),
        ("..", "/ts/%2E%2E"),
        ("...", "/ts/..."),
        (".a", "/ts/.a"),
    ] {
        let answer = larder.post("/ts", &json!({"id": key})).await;
        assert_eq!(answer.header("location"), path);
        assert_eq!(larder.get(path).await.json(), json!({"id": key}));
    }
}
