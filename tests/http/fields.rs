//! `?fields=`: parts of documents.

use axum::http::{Method, StatusCode};
use serde_json::json;

use super::assert_problem;
use crate::harness::service::TestService;

const SCHEMA: &str = r#"
    create table dept (deptno bigint primary key, dname text, budget numeric, extra json);
    create table emp (empno bigint primary key, ename text, deptno bigint references dept);
    create index on emp (deptno);
    insert into dept values (10, 'A"},{', 1.500000000000000000000000000001, ' {"a" : [1, "]"]} '), (20, 'B', 2, null);
    insert into emp values (1, 'K,', 10), (2, 'L', 10);"#;

const CONFIG: &str = "
    [[resource]]
    name = 'depts'
    table = 'dept'
      [[resource.children]]
      name = 'emps'
      table = 'emp'";

/// Each name was one more level of nesting, and dropping them overflowed the stack and ended the process.
#[tokio::test(flavor = "multi_thread")]
async fn paths_nest_no_deeper_than_rows_can() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    let answer = larder
        .get(&format!("/depts/10?fields={}", ".".repeat(40_000)))
        .await;
    assert_problem(&answer, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_batches_and_lists_are_projected() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    let whole = larder.get("/depts/10").await;
    let answer = larder.get("/depts/10?fields=emps.ename,budget").await;
    let ten =
        r#"{"budget":1.500000000000000000000000000001,"emps":[{"ename":"K,"},{"ename":"L"}]}"#;
    assert_eq!(answer.body, ten);
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(answer.cache_status(), super::MEMORY);
    let etag = answer.header("etag");
    assert_ne!(etag, whole.header("etag"));
    let headers = [("if-none-match", etag)];
    let path = "/depts/10?fields=budget,emps.ename";
    let same = larder.request(Method::GET, path, &headers).await;
    assert_eq!(same.status, StatusCode::NOT_MODIFIED);
    let extra = larder.get("/depts/10?fields=extra").await;
    assert_eq!(extra.body, r#"{"extra": {"a" : [1, "]"]} }"#);
    let all = larder
        .get("/depts/10?fields=deptno,dname,budget,extra,emps")
        .await;
    assert_eq!(all.body, whole.body);

    let twenty = r#"{"budget":2,"emps":[]}"#;
    let keys = larder
        .get("/depts?keys=20,30,10&fields=emps.ename,budget")
        .await;
    let expected = format!(r#"{{"documents":[{twenty},{ten}],"missing":[30]}}"#);
    assert_eq!(keys.body, expected);
    let path = "/depts:batch?fields=emps.ename,budget";
    let body = r#"{"keys":[20,30,10]}"#;
    let batch = larder.send(Method::POST, path, &[], body).await;
    assert_eq!(
        (&batch.body, batch.header("etag")),
        (&expected, keys.header("etag"))
    );
    let list = larder.get("/depts?fields=emps.ename,budget").await;
    assert_eq!(list.body, format!("[{ten},{twenty}]"));
    // A change of a field that is not selected does not change the tag.
    let etag = list.header("etag");
    larder.execute("update dept set dname = 'C'").await;
    crate::harness::eventually("the change", async || {
        let dept = larder.get("/depts/20").await.json();
        (dept["dname"] == json!("C")).then_some(())
    })
    .await;
    let headers = [("if-none-match", etag)];
    let same = larder
        .request(Method::GET, "/depts?fields=emps.ename,budget", &headers)
        .await;
    assert_eq!(same.status, StatusCode::NOT_MODIFIED);
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_fields_are_named() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    for (fields, named) in [
        ("dname,dnam", "no dnam"),
        ("emps.x,y", "no emps.x, y"),
        ("extra.a", "no extra.a"),
        ("dname&fields=deptno", "twice"),
        ("", "one is empty"),
        ("dname,", "one is empty"),
        ("emps..x", "one is empty"),
        ("%ff", "no "),
    ] {
        for path in ["/depts/10?", "/depts/404?", "/depts?keys=10&", "/depts?"] {
            let answer = larder.get(&format!("{path}fields={fields}")).await;
            assert_problem(&answer, 400);
            assert!(answer.body.contains(named), "{answer:?}");
        }
    }
    assert_problem(&larder.get("/depts/404?fields=dname").await, 404);
}

/// `?field=dname` returned the whole document.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_parameters_are_refused() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    for path in [
        "/depts/10?field=dname",
        "/depts/404?field=dname",
        "/depts?field=dname",
    ] {
        for method in [Method::GET, Method::HEAD] {
            let answer = larder.request(method.clone(), path, &[]).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{method} {path}");
        }
        let answer = larder.get(path).await;
        assert_problem(&answer, 400);
        assert!(
            answer.body.contains("unknown parameter field"),
            "{answer:?}"
        );
    }
    let path = "/depts:batch?limit=1";
    let batch = larder.send(Method::POST, path, &[], r#"{"keys":[10]}"#);
    assert_problem(&batch.await, 400);
}
