//! The values of columns, as they are written and stored.

use axum::http::{Method, StatusCode};
use serde_json::json;
use sqlx::{Connection, PgConnection};

use crate::harness::cluster::TestCluster;
use crate::harness::service::{TestService, execute};
use crate::writes::assert_refused;

/// A resource `ts` of a table `t` that has the columns `columns` beside its key.
async fn start(columns: &str) -> TestService {
    TestService::start(
        &format!("create table t (id int primary key, {columns})"),
        "[[resource]]\nname = 'ts'\ntable = 't'\n",
    )
    .await
}

/// Readers use the last of several members with one name; a patch changed the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_patch_changes_the_last_of_several_members_with_one_name() {
    let larder = start("j json").await;
    larder
        .execute(r#"insert into t values (1, '{"a":{"x":1},"b":0,"a":{"y":2}}')"#)
        .await;
    let answer = larder.patch("/ts/1", &json!({"j": {}})).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert!(answer.body.contains(r#"{"a":{"x":1},"b":0,"a":{"y":2}}"#));
    let answer = larder.patch("/ts/1", &json!({"j": {"a": {"z": 3}}})).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let stored = larder.query("select j::text from t").await;
    assert_eq!(stored, r#"{"b":0,"a":{"y":2,"z":3}}"#);
}

/// PostgreSQL's code for them is that of a statement with a syntax error.
#[tokio::test(flavor = "multi_thread")]
async fn syntax_errors_in_values_are_those_of_the_body() {
    let larder = start("p jsonpath, q tsquery, v tsvector").await;
    for body in [json!({"p": "$.["}), json!({"q": "a &"}), json!({"v": "'"})] {
        let body = body.to_string();
        let put = larder.write(Method::PUT, "/ts/1", &[], &body).await;
        assert_eq!(put.status, StatusCode::UNPROCESSABLE_ENTITY, "{put:?}");
        assert_eq!(put.json()["code"], "42601");
    }
}

/// The part replaced the whole document.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_a_document_can_not_be_put() {
    let larder = start("a int, b int").await;
    let range = [("content-range", "bytes 0-13/30")];
    let part = json!({"a": 2}).to_string();
    let answer = larder.write(Method::PUT, "/ts/1", &range, &part).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.body);
    larder.put("/ts/1", &json!({"a": 1, "b": 1})).await;
    let answer = larder.write(Method::PUT, "/ts/1", &range, &part).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.body);
    assert!(answer.body.contains("Content-Range"), "{}", answer.body);
    assert_eq!(larder.query("select a::text || b from t").await, "11");
}

/// The answer was 200, and nothing changed.
#[tokio::test(flavor = "multi_thread")]
async fn identity_columns_that_are_generated_always_do_not_change() {
    let larder = TestService::start(
        "create table t (id int primary key, n int generated always as identity, note text);
         create table part (t_id int references t, name text, n bigint generated always as identity, note text,
                            primary key (t_id, name));",
        "[[resource]]\nname = 'ts'\ntable = 't'\n[[resource.children]]\nname = 'parts'\ntable = 'part'\n\
         fields = { name = 'name', n = 'n', note = 'note' }\n",
    )
    .await;
    let mut document = json!({"id": 1, "n": 70, "note": "a", "parts": [
        {"name": "x", "n": 80, "note": "b"}, {"name": "y", "n": 81, "note": "c"}]});
    let answer = larder.put("/ts/1", &document).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(answer.json(), document);
    document["note"] = json!("other");
    document["parts"][1]["note"] = json!("other");
    let answer = larder.put("/ts/1", &document).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let answer = larder.patch("/ts/1", &document).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!(answer.json(), document);
    // A row that is left out of the body, or inserted, or has no value for the column, changes nothing.
    let stored = document.clone();
    document["parts"] = json!([{"name": "y", "note": "c"}, {"name": "z", "n": 99, "note": null}]);
    let mut expected = document.clone();
    expected["parts"][0]["n"] = json!(81);
    let answer = larder.put("/ts/1", &document).await;
    assert_eq!(answer.json(), expected, "{}", answer.body);
    larder.put("/ts/1", &stored).await;
    let mut changed = stored.clone();
    changed["n"] = json!(71);
    changed["parts"][1]["n"] = json!(82);
    for answer in [
        larder.put("/ts/1", &changed).await,
        larder.patch("/ts/1", &changed).await,
    ] {
        assert_eq!(
            answer.status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{}",
            answer.body
        );
        let errors = answer.json()["errors"].clone();
        assert_eq!(errors[0]["pointer"], "/n", "{errors}");
        assert_eq!(errors[1]["pointer"], "/parts/1/n", "{errors}");
    }
    let answer = larder.patch("/ts/1", &json!({"n": 71})).await;
    assert_eq!(
        answer.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{}",
        answer.body
    );
    assert_eq!(larder.get("/ts/1").await.json(), stored);
}

/// An explicit cast cuts a value; its assignment to a column fails.
#[tokio::test(flavor = "multi_thread")]
async fn keys_that_are_too_long_for_a_domain_are_not_cut() {
    let larder = TestService::start(
        "create domain v3 as varchar(3);
         create domain w3 as v3;
         create domain c3 as char(3);
         create table v (k w3 primary key, note text);
         create table c (k c3 primary key, note text);
         insert into v values ('abc', 'v');
         insert into c values ('abc', 'c');",
        "[[resource]]\nname = 'vs'\ntable = 'v'\n[[resource]]\nname = 'cs'\ntable = 'c'\n",
    )
    .await;
    for path in ["/vs/abcdef", "/cs/abcdef"] {
        let answer = larder.put(path, &json!({"note": "other"})).await;
        assert_eq!(
            answer.status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{path}: {answer:?}"
        );
        assert_eq!(larder.get(path).await.status, StatusCode::NOT_FOUND);
        assert_eq!(larder.delete(path).await.status, StatusCode::NOT_FOUND);
        let collection = path.strip_suffix("/abcdef").unwrap();
        let answer = larder.post(collection, &json!({"k": "abcdef"})).await;
        assert_refused(&answer, "/k");
    }
    // The assignment removes blanks beyond.
    assert_refused(&larder.put("/vs/x%20%20%20", &json!({})).await, "");
    let kept = "select (select string_agg(k || note, '') from v) || (select string_agg(k || note, '') from c)";
    assert_eq!(larder.query(kept).await, "abcvabcc");
}

/// PostgreSQL cuts some of them even on assignment.
#[tokio::test(flavor = "multi_thread")]
async fn values_that_are_too_long_are_not_cut() {
    let larder = TestService::start(
        "create domain v3 as varchar(3);
         create domain w3 as v3;
         create domain c3 as char(3);
         create domain b3 as bit(3);
         create domain n as name;
         create table t (id int primary key, v w3, c c3, b bit(3), db b3, vb varbit(3), n n, ch \"char\",
                         va v3[], ba b3[], cha \"char\"[]);",
        "[[resource]]\nname = 'ts'\ntable = 't'\n",
    )
    .await;
    let octal = TestCluster::version() >= 15;
    let document = json!({"id": 1, "v": "abc", "c": "abc", "b": "101", "db": "101", "vb": "101", "n": "n", "ch": "x",
        "va": ["abc"], "ba": ["101"], "cha": ["", if octal { "\\377" } else { "\\" }]});
    let answer = larder.put("/ts/1", &document).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(answer.json(), document);
    let name = "é".repeat(31) + "n";
    let patch = json!({"n": name, "ch": "", "vb": "1"});
    let answer = larder.patch("/ts/1", &patch).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let stored = answer.json();
    assert_eq!(stored["n"], json!(name));
    let refused = [
        ("v", json!("abcd"), "/v"),
        ("c", json!("abcd"), "/c"),
        ("b", json!("1010"), "/b"),
        ("b", json!("10"), "/b"),
        ("db", json!("1010"), "/db"),
        ("vb", json!("1010"), "/vb"),
        ("n", json!("é".repeat(32)), "/n"),
        ("ch", json!("xy"), "/ch"),
        ("ch", json!("é"), "/ch"),
        ("va", json!(["abcd"]), "/va/0"),
        ("ba", json!(["1010"]), "/ba/0"),
        ("cha", json!(["xy"]), "/cha/0"),
    ];
    // Older versions would store a backslash.
    let refused_before_15 = [
        ("ch", json!("\\377"), "/ch"),
        ("cha", json!(["\\377"]), "/cha/0"),
    ];
    let refused_before_15 = refused_before_15.into_iter().filter(|_| !octal);
    for (member, value, pointer) in refused.into_iter().chain(refused_before_15) {
        let answer = larder.patch("/ts/1", &json!({member: value})).await;
        assert_refused(&answer, pointer);
    }
    assert_eq!(larder.get("/ts/1").await.json(), stored);
}

/// `to_json` writes a timestamp in a composite value without an offset and a `bytea` in hexadecimal; base64 in a body was
/// taken for the characters that it has.
#[tokio::test(flavor = "multi_thread")]
async fn timestamps_and_bytes_have_one_form_at_every_depth() {
    let larder = TestService::start(
        "create type visit as (at timestamp, raw bytea); create domain moment as timestamp;
         create type stay as (a moment, ts timestamp[], visits visit[], note text);
         create table guest (id int primary key, seen timestamp, visits visit[], stay stay, moments moment[], raws bytea[]);
         insert into guest values (1, '2026-01-01 10:00', array[array[row('2026-01-01 10:00', '\\x00ff')::visit]],
           row('0044-03-15 00:00 BC', array['infinity', '2026-01-01 10:00:00.5'::timestamp],
             array[row(null, '')::visit, null], '2026-01-01T10:00:00'), array[['2026-01-01 10:00'::moment]],
           array[['\\x00ff'::bytea, null]]);",
        "[[resource]]\nname = 'guests'\ntable = 'guest'\n",
    )
    .await;
    let document = larder.get("/guests/1").await.json();
    let (at, raw) = ("2026-01-01T10:00:00+00:00", "AP8=");
    let expected = json!({
        "id": 1, "seen": at, "visits": [[{"at": at, "raw": raw}]],
        "stay": {
            "a": "0044-03-15T00:00:00+00:00 BC", "ts": ["infinity", "2026-01-01T10:00:00.5+00:00"],
            "visits": [{"at": null, "raw": ""}, null], "note": "2026-01-01T10:00:00"
        },
        "moments": [[at]], "raws": [[raw, null]]
    });
    assert_eq!(document, expected);
    let rows = "select guest::text from guest where id = 1";
    let before = larder.query(rows).await;
    let answer = larder.put("/guests/1", &document).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!(larder.query(rows).await, before);
    let patch = json!({"visits": [{"at": "2026-01-01T11:00:00+01:00", "raw": "/w=="}]});
    let answer = larder.patch("/guests/1", &patch).await;
    assert_eq!(
        answer.json()["visits"],
        json!([{"at": at, "raw": "/w=="}]),
        "{}",
        answer.body
    );
    let stored = "select ((visits[1]).raw = '\\xff' and (visits[1]).at = '2026-01-01 10:00')::text from guest";
    assert_eq!(larder.query(stored).await, "true");
    let hexadecimal = json!({"visits": [{"at": at, "raw": "\\x00ff"}]});
    assert_refused(
        &larder.patch("/guests/1", &hexadecimal).await,
        "/visits/0/raw",
    );
}

/// A document whose columns `i`, `o`, `b`, `p` and `d`, and `i` of its part, can't be written.
async fn start_with_unwritable_columns() -> TestService {
    TestService::start(
        "create type pair as (a int2vector, b int, at timestamp[], raw bytea);
         create table t (id int primary key, note text, i int2vector, o oidvector, b box[], p pair, d box[] default '{}');
         create table part (t_id int references t, name text, i int2vector, note text, primary key (t_id, name));
         insert into t values (1, 'a', '1 2', '3 4', '{(1,1),(0,0);(2,2),(0,0)}', row('5 6', 7, array[array['2026-01-01 10:00'::timestamp]], '\\x00ff'));
         insert into t (id) values (2);
         insert into part values (1, 'x', '1', 'n');",
        "[[resource]]\nname = 'ts'\ntable = 't'\n[[resource.children]]\nname = 'parts'\ntable = 'part'\n\
         fields = { name = 'name', i = 'i', note = 'note' }\n",
    )
    .await
}

/// GET shows these types as objects or arrays; the writer wanted strings, and a patch of another member was 422.
#[tokio::test(flavor = "multi_thread")]
async fn columns_that_can_not_be_written_stay() {
    let larder = start_with_unwritable_columns().await;
    let rows =
        "select string_agg(t::text, ' ' order by id) || (select part::text from part) from t";
    let before = larder.query(rows).await;
    let mut document = larder.get("/ts/1").await.json();
    assert_eq!(document["i"], json!([1, 2]));
    let pair = json!({"a": [5, 6], "b": 7, "at": [["2026-01-01T10:00:00+00:00"]], "raw": "AP8="});
    assert_eq!(document["p"], pair);
    let answer = larder.put("/ts/1", &document).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!(larder.query(rows).await, before);
    document["note"] = json!("other");
    document["parts"][0]["note"] = json!("other");
    let patch = json!({"note": document["note"], "parts": document["parts"]});
    let answer = larder.patch("/ts/1", &patch).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!(answer.json(), document);
    // What a body leaves out stays.
    let body = json!({"note": "other", "parts": [{"name": "x", "note": "other"}]});
    let answer = larder.put("/ts/1", &body).await;
    assert_eq!(answer.json(), document, "{}", answer.body);
    let new = json!({"id": 3, "i": null, "parts": [{"name": "y", "i": null, "note": null}]});
    let answer = larder.post("/ts", &new).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(answer.json()["d"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_that_can_not_be_written_are_read_only() {
    let larder = start_with_unwritable_columns().await;
    let document = larder.get("/ts/1").await.json();
    for (member, value) in [
        ("i", json!([1])),
        ("i", json!(null)),
        ("o", json!([])),
        ("b", json!("x")),
        (
            "p",
            json!({"a": [5, 6], "b": 7, "at": [["2026-01-01T10:00:00+00:00"]], "raw": "AP4="}),
        ),
        ("d", json!(["(1,1),(0,0)"])),
    ] {
        let mut changed = document.clone();
        changed[member] = value;
        let pointer = format!("/{member}");
        let put = larder.put("/ts/1", &changed).await;
        assert_refused(&put, &pointer);
        assert!(put.body.contains("read-only"), "{}", put.body);
        let patch = json!({member: changed[member]});
        assert_refused(&larder.patch("/ts/1", &patch).await, &pointer);
    }
    for path in ["/ts/2", "/ts/3"] {
        let body = json!({"i": [1], "parts": []});
        assert_refused(&larder.put(path, &body).await, "/i");
    }
    for (member, value) in [("o", json!([1])), ("p", document["p"].clone())] {
        let new = json!({"id": 3, member: value});
        let pointer = format!("/{member}");
        assert_refused(&larder.post("/ts", &new).await, &pointer);
    }
    let parts = json!([document["parts"][0], {"name": "y", "i": [1]}]);
    let patch = json!({"parts": parts});
    assert_refused(&larder.patch("/ts/1", &patch).await, "/parts/1/i");
    assert_eq!(larder.get("/ts/1").await.json(), document);
}

/// An hstore is an object in documents.
#[tokio::test(flavor = "multi_thread")]
async fn an_hstore_is_read_only() {
    let url = TestCluster::database().await.url;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let available = "select exists (select from pg_available_extensions where name = 'hstore')";
    let available: bool = sqlx::query_scalar(available)
        .fetch_one(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    if !available {
        return;
    }
    execute(
        &url,
        "create extension hstore; create table h (id int primary key, note text, h hstore, hs hstore[]);
         insert into h values (1, 'a', 'a=>1', array['b=>2'::hstore])",
    )
    .await;
    let larder = TestService::start_on(&url, "[[resource]]\nname = 'hs'\ntable = 'h'\n", &[]).await;
    let answer = larder.patch("/hs/1", &json!({"note": "b"})).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!(
        answer.json(),
        json!({"id": 1, "note": "b", "h": {"a": "1"}, "hs": [{"b": "2"}]})
    );
    let answer = larder.put("/hs/1", &answer.json()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let answer = larder.put("/hs/1", &json!({"h": {"a": "2"}})).await;
    assert_eq!(
        answer.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{}",
        answer.body
    );
    assert_eq!(answer.json()["errors"][0]["pointer"], "/h");
}

/// The body was called invalid JSON.
#[tokio::test(flavor = "multi_thread")]
async fn a_stored_value_that_can_not_be_read_is_not_blamed_on_the_body() {
    let larder = TestService::start(
        r#"create table t (id int primary key, note text, j json);
           create table part (t_id int references t, name text, primary key (t_id, name));
           create table one (id int primary key, note text, j json);
           insert into t values (1, 'a', '["\ud800"]'), (2, 'a', '["\ud800"]');
           insert into one select * from t;"#,
        "[[resource]]\nname = 'ts'\ntable = 't'\n[[resource.children]]\nname = 'parts'\ntable = 'part'\n\
         fields = { name = 'name' }\n[[resource]]\nname = 'ones'\ntable = 'one'\n",
    )
    .await;
    for path in ["/ts/1", "/ones/1"] {
        let read = larder.get(path).await;
        assert_eq!(read.status, StatusCode::OK, "{}", read.body);
        let answer = larder.patch(path, &json!({"note": "b"})).await;
        assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
        let detail = answer.json()["detail"].clone();
        let detail = detail.as_str().unwrap();
        assert!(
            detail.starts_with("the stored document has an invalid escape"),
            "{detail}"
        );
        let matching = [("if-match", read.header("etag"))];
        let body = json!({"note": "b", "j": 1}).to_string();
        let answer = larder.write(Method::PUT, path, &matching, &body).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        let answer = larder.patch(path, &json!({"note": "c"})).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    }
    for path in ["/ts/2", "/ones/2"] {
        let any = [("if-match", "*")];
        let answer = larder.request(Method::DELETE, path, &any).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
    }
}
