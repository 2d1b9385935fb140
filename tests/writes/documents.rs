//! Writes of single documents with several levels of rows.

use axum::http::{Method, StatusCode};
use serde_json::json;

use crate::harness::service::TestService;
use crate::writes::{assert_stored, dept, start};

#[tokio::test(flavor = "multi_thread")]
async fn post_stores_all_levels_and_answers_with_what_is_stored() {
    let larder = start().await;
    let answer = larder.post("/depts", &dept(1)).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(answer.header("location"), "/depts/1");
    assert_eq!(answer.header("content-type"), "application/json");
    assert_stored(&larder, &answer, "/depts/1", &dept(1)).await;
    let again = larder.post("/depts", &dept(1)).await;
    assert_eq!(again.status, StatusCode::CONFLICT);
    assert_eq!(again.json()["code"], "23505");
    assert_eq!(larder.query("select count(*)::text from skill").await, "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn put_creates_then_replaces() {
    let larder = start().await;
    let answer = larder.put("/depts/1", &dept(1)).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(answer.header("location"), "/depts/1");
    assert_stored(&larder, &answer, "/depts/1", &dept(1)).await;
    // The second emp goes, a third comes, the first loses a skill, gains one and changes one.
    let mut other = dept(1);
    other["name"] = json!("R&D");
    other["emps"][1] = json!({"no": 12, "name": "NEW", "sal": 1, "badge": "b12",
                              "skills": [{"name": "sql", "level": 5}]});
    other["emps"][0]["skills"] = json!([{"name": "ada", "level": 1}, {"name": "go", "level": 9}]);
    let answer = larder.put("/depts/1", &other).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!(answer.header("location"), "");
    assert_stored(&larder, &answer, "/depts/1", &other).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn put_does_not_touch_rows_that_stay_the_same() {
    let larder = start().await;
    larder.post("/depts", &dept(1)).await;
    larder.execute("update emp set hidden = 'kept'").await;
    let rows = "select string_agg(r, ' ' order by r) from (select 'd' || deptno || ':' || xmin || hidden as r from dept \
        union all select 'e' || empno || ':' || xmin || hidden from emp \
        union all select 's' || empno || name || ':' || xmin from skill) rows";
    let before = larder.query(rows).await;
    let answer = larder.put("/depts/1", &dept(1)).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(larder.query(rows).await, before);
    let mut other = dept(1);
    other["emps"][0]["skills"][0]["level"] = json!(7);
    larder.put("/depts/1", &other).await;
    let after = larder.query(rows).await;
    let changed = before.split(' ').zip(after.split(' '));
    let changed: Vec<_> = changed.filter(|(before, after)| before != after).collect();
    assert_eq!(changed.len(), 1, "{before} {after}");
    assert!(changed[0].0.starts_with("s10go"));
    // What differs only in its digits differs.
    other["emps"][0]["sal"] = serde_json::from_str("10.50").unwrap();
    let answer = larder.put("/depts/1", &other).await;
    assert!(answer.body.contains("10.50"), "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn unique_values_move_from_deleted_children_to_kept_and_new_ones() {
    let larder = start().await;
    larder.post("/depts", &dept(1)).await;
    let mut other = dept(1);
    other["emps"] = json!([
        {"no": 10, "name": "KING", "sal": 1, "badge": "b11", "skills": []},
        {"no": 12, "name": "NEW", "sal": 1, "badge": "b10", "skills": []}]);
    let answer = larder.put("/depts/1", &other).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_stored(&larder, &answer, "/depts/1", &other).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn children_are_never_taken_from_another_document() {
    let larder = start().await;
    larder.post("/depts", &dept(1)).await;
    larder.post("/depts", &dept(2)).await;
    let mut thief = dept(2);
    thief["emps"][0] = dept(1)["emps"][0].clone();
    for answer in [
        larder.put("/depts/2", &thief).await,
        larder.patch("/depts/2", &thief).await,
    ] {
        assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
        assert_eq!(answer.json()["code"], "23505");
    }
    assert_eq!(larder.get("/depts/1").await.json(), dept(1));
    assert_eq!(larder.get("/depts/2").await.json(), dept(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn patch_merges_into_the_stored_document() {
    let larder = start().await;
    larder.post("/depts", &dept(1)).await;
    larder
        .execute("update dept set hidden = 'kept'; update emp set hidden = 'kept'")
        .await;
    let merge = [("content-type", "application/merge-patch+json")];
    let patch = json!({"loc": "BOSTON", "code": null}).to_string();
    let answer = larder
        .write(Method::PATCH, "/depts/1", &merge, &patch)
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let mut expected = dept(1);
    expected["loc"] = json!("BOSTON");
    expected["code"] = json!(null);
    assert_stored(&larder, &answer, "/depts/1", &expected).await;
    // An array is replaced as a whole.
    expected["emps"].as_array_mut().unwrap().truncate(1);
    expected["emps"][0]["skills"] = json!([]);
    let answer = larder
        .patch("/depts/1", &json!({"emps": expected["emps"]}))
        .await;
    assert_stored(&larder, &answer, "/depts/1", &expected).await;
    assert_eq!(larder.query("select hidden from emp").await, "kept");
    let answer = larder.patch("/depts/9", &json!({"loc": "X"})).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_takes_all_levels() {
    let larder = start().await;
    larder.post("/depts", &dept(1)).await;
    larder.post("/depts", &dept(2)).await;
    let answer = larder.delete("/depts/1").await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
    assert_eq!(answer.body, "");
    assert!(!answer.header("larder-token").is_empty());
    assert_eq!(larder.get("/depts/1").await.status, StatusCode::NOT_FOUND);
    assert_eq!(larder.get("/depts/2").await.json(), dept(2));
    assert_eq!(
        larder.delete("/depts/1").await.status,
        StatusCode::NOT_FOUND
    );
    let rows = "select ((select count(*) from emp) + (select count(*) from skill))::text";
    assert_eq!(larder.query(rows).await, "4");
}

#[tokio::test(flavor = "multi_thread")]
async fn minimal_answers_have_no_body() {
    let larder = start().await;
    let minimal = [("prefer", "return=minimal")];
    let body = dept(1).to_string();
    let answer = larder.write(Method::POST, "/depts", &minimal, &body).await;
    assert_eq!(answer.status, StatusCode::CREATED);
    assert_eq!(
        (answer.body.as_str(), answer.header("location")),
        ("", "/depts/1")
    );
    assert_eq!(answer.header("preference-applied"), "return=minimal");
    let answer = larder.write(Method::PUT, "/depts/1", &minimal, &body).await;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (StatusCode::NO_CONTENT, "")
    );
    let full = [("prefer", "return=representation")];
    let answer = larder.write(Method::PUT, "/depts/1", &full, &body).await;
    assert_eq!(answer.header("preference-applied"), "return=representation");
    assert_stored(&larder, &answer, "/depts/1", &dept(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_keys_and_defaults_reach_the_rows_below() {
    let larder = TestService::start(
        "create table o (id int generated always as identity primary key, label text default 'fresh',
                         made int generated always as (length(label)) stored);
         create table line (id uuid primary key default gen_random_uuid(), o_id int not null references o, n serial);
         create index on line (o_id);
         create table part (line_id uuid references line, name text, primary key (line_id, name));",
        "[[resource]]\nname = 'os'\ntable = 'o'\n[[resource.children]]\nname = 'lines'\ntable = 'line'\norder_by = 'n'\n\
         fields = { id = 'id', n = 'n' }\n\
         [[resource.children.children]]\nname = 'parts'\ntable = 'part'\nfields = { name = 'name' }\n",
    )
    .await;
    for no in 1..=2 {
        let body = json!({"lines": [{"parts": [{"name": "a"}, {"name": "b"}]}, {"parts": [{"name": "c"}]}]});
        let answer = larder.post("/os", &body).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        assert_eq!(answer.header("location"), format!("/os/{no}"));
        let found = answer.json();
        assert_eq!(
            (&found["id"], &found["label"], &found["made"]),
            (&json!(no), &json!("fresh"), &json!(5))
        );
        assert_eq!(
            found["lines"][0]["parts"],
            json!([{"name": "a"}, {"name": "b"}])
        );
        assert_eq!(found["lines"][1]["parts"], json!([{"name": "c"}]));
        assert_stored(&larder, &answer, &format!("/os/{no}"), &found).await;
    }
    // One's own value for an identity, and lines that are kept, gone and new.
    let answer = larder
        .put("/os/7", &json!({"label": "own", "lines": [{"parts": []}]}))
        .await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    let mut found = answer.json();
    assert_eq!(found["id"], 7);
    found["lines"]
        .as_array_mut()
        .unwrap()
        .push(json!({"parts": [{"name": "z"}]}));
    let kept = found["lines"][0]["id"].clone();
    let answer = larder.put("/os/7", &found).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let found = answer.json();
    assert_eq!(found["lines"][0]["id"], kept);
    assert_eq!(found["lines"][1]["parts"], json!([{"name": "z"}]));
}

#[tokio::test(flavor = "multi_thread")]
async fn composite_keys_and_texts_with_commas() {
    let larder = TestService::start(
        "create table t (a text, b date, v json, w int[], primary key (a, b));
         create table u (a text, b date, n int, primary key (a, b, n), foreign key (a, b) references t)",
        "[[resource]]\nname = 'ts'\ntable = 't'\n[[resource.children]]\nname = 'us'\ntable = 'u'\nfields = { n = 'n' }\n",
    )
    .await;
    let body = json!({"a": "x,%y/ä", "b": "2024-02-29", "v": {"k": [1]}, "w": null, "us": [{"n": 2}, {"n": 3}]});
    let answer = larder.post("/ts", &body).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    let path = "/ts/x%2C%25y%2F%C3%A4,2024-02-29";
    assert_eq!(answer.header("location"), path);
    assert_stored(&larder, &answer, path, &body).await;
    let mut other = body.clone();
    other["v"] = json!({"k": [2]});
    other["us"] = json!([{"n": 1}, {"n": 3}]);
    let answer = larder.put(path, &other).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_stored(&larder, &answer, path, &other).await;
    assert_eq!(larder.delete(path).await.status, StatusCode::NO_CONTENT);
    assert_eq!(larder.get(path).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread")]
async fn written_documents_are_counted_by_operation() {
    let larder = start().await;
    let body = dept(1).to_string();
    // A repeat writes nothing.
    for _ in 0..2 {
        let key = [("idempotency-key", "k")];
        larder.write(Method::POST, "/depts", &key, &body).await;
    }
    // Nor does a conflict.
    larder.post("/depts", &dept(1)).await;
    larder.put("/depts/2", &dept(2)).await;
    larder.put("/depts/2", &json!({"name": "other"})).await;
    larder.patch("/depts/2", &json!({"name": "third"})).await;
    larder.delete("/depts/2").await;
    let many = json!([dept(3), dept(4), dept(5)]);
    larder.post("/depts", &many).await;
    let lenient = [("prefer", "handling=lenient")];
    let many = json!([dept(5), dept(6)]).to_string();
    larder.write(Method::POST, "/depts", &lenient, &many).await;
    for (operation, count) in [("insert", 6.0), ("update", 2.0), ("delete", 1.0)] {
        let name = format!("larder_documents_written_total{{operation=\"{operation}\"}}");
        assert_eq!(larder.metric(&name).await, count, "{operation}");
    }
    // The bulk write, which lasts as long as its client sends, is not among them.
    let durations = "larder_write_duration_seconds_count";
    assert_eq!(larder.metric(durations).await, 9.0);
}
