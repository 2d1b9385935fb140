//! The bounds of answers with many documents.

use axum::http::{Method, StatusCode};
use serde_json::json;

use super::{UNREADABLE, assert_problem};
use crate::harness::cluster::{TestCluster, TestDatabase, TestRole};
use crate::harness::eventually;
use crate::harness::service::{TestService, execute};
use crate::harness::table_locks::{OPEN_GATE, gate_sql};

const SCHEMA: &str = "
    create table page (id bigint primary key, body text);
    insert into page select n, repeat('x', 300000) from generate_series(1, 9) n;";

const CONFIG: &str = "
    [limits]
    answer_max = '1MiB'
    [[resource]]
    name = 'pages'
    table = 'page'
    tiers = ['memory']";

async fn larder() -> TestService {
    TestService::start(SCHEMA, CONFIG).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_beyond_answer_max_is_413() {
    let larder = larder().await;
    let three = larder.get("/pages?keys=1,2,3").await;
    assert_eq!(three.status, StatusCode::OK);
    assert_eq!(three.json()["documents"].as_array().unwrap().len(), 3);
    let repeated = format!("/pages?keys={}&fields=body", ["1"; 1_000].join(","));
    for path in ["/pages?keys=1,2,3,4", "/pages?keys=1,1,2,2", &repeated] {
        // Once from PostgreSQL, once from memory.
        for _ in 0..2 {
            assert_problem(&larder.get(path).await, 413);
        }
        let head = larder.request(Method::HEAD, path, &[]).await;
        assert_eq!(head.status, StatusCode::PAYLOAD_TOO_LARGE);
    }
    // What is sent counts.
    let ids = larder.get("/pages?keys=1,2,3,4,5,6,7,8,9&fields=id").await;
    assert_eq!(ids.json()["documents"].as_array().unwrap().len(), 9);
    let repeated = format!("/pages?keys={}&fields=id", ["3"; 1_000].join(","));
    let ids = larder.get(&repeated).await.json();
    assert_eq!(ids["documents"], json!(vec![json!({"id": 3}); 1_000]));
    // It would fit without its companions, and no request can split it.
    let large = "insert into page values (10, repeat('x', 2000000))";
    larder.execute(large).await;
    assert_eq!(larder.get("/pages?keys=10").await.status, StatusCode::OK);
    assert_problem(&larder.get("/pages?keys=1,10").await, 413);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_ends_before_answer_max() {
    let larder = larder().await;
    let large = "update page set body = repeat('y', 2000000) where id = 5";
    larder.execute(large).await;
    let mut path = "/pages?limit=8".to_owned();
    let mut pages = Vec::new();
    let mut found = Vec::new();
    loop {
        let page = larder.get(&path).await;
        let documents = page.json();
        let documents = documents.as_array().unwrap();
        pages.push(documents.len());
        found.extend(documents.iter().map(|page| page["id"].as_i64().unwrap()));
        let Some((target, _)) = page.header("link").split_once('>') else {
            break;
        };
        path = target[1..].to_owned();
    }
    assert_eq!(found, (1..=9).collect::<Vec<_>>());
    assert_eq!(pages, [3, 1, 1, 3, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn head_of_many_documents_has_the_headers_of_get() {
    let larder = larder().await;
    for path in [
        "/pages?keys=1,2,77",
        "/pages?keys=1,2&fields=id",
        "/pages?keys=3,4,1&fields=body,id",
        "/pages?limit=2",
        "/pages?keys=77",
    ] {
        larder.get(path).await;
        let get = larder.get(path).await;
        let head = larder.request(Method::HEAD, path, &[]).await;
        assert_eq!((head.status, &*head.body), (StatusCode::OK, ""), "{path}");
        for (name, value) in &get.headers {
            assert_eq!(head.headers.get(name), Some(value), "{path}: {name}");
        }
        let length = get.body.len().to_string();
        assert_eq!(head.header("content-length"), length, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_not_inserted_if_the_answer_would_be_too_long() {
    let larder = larder().await;
    let document = |id: i64| json!({"id": id, "body": "z".repeat(300_000)});
    let json = ("content-type", "application/json");
    let full = ("prefer", "return=representation");
    let post = async |ids: &[i64], headers: &[(&str, &str)]| {
        let documents: Vec<_> = ids.iter().map(|id| document(*id)).collect();
        let body = json!(documents).to_string();
        larder.write(Method::POST, "/pages", headers, &body).await
    };
    assert_problem(&post(&[21, 22, 23, 24], &[json, full]).await, 413);
    assert_eq!(larder.get("/pages/21").await.status, StatusCode::NOT_FOUND);
    let answer = post(&[21, 22, 23], &[json, full]).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(
        answer.json(),
        json!([document(21), document(22), document(23)])
    );
    let answer = post(&[31, 32, 33, 34], &[json]).await;
    assert_eq!(answer.body, r#"{"count":4}"#);
}

/// PostgreSQL stores the numbers in a few bytes, and can't write them as one text.
#[tokio::test(flavor = "multi_thread")]
async fn documents_that_can_not_be_read_are_left_out_and_named() {
    let schema = "
        create table note (id bigint primary key, j jsonb);
        insert into note select n, to_jsonb(repeat('x', n)) from generate_series(1, 4) n;
        insert into note values (5, to_jsonb(repeat('x', 5000)));
        insert into note select 6, jsonb_agg('1e131071'::jsonb) from generate_series(1, 9000);";
    let config = "
        document_max = '4KiB'
        [[resource]]
        name = 'notes'
        table = 'note'";
    let larder = TestService::start(schema, config).await;
    let statements = async || larder.metric("larder_source_batch_keys_count").await;
    for path in ["/notes/5", "/notes/6"] {
        let problem = larder.get(path).await;
        assert_problem(&problem, 500);
        assert_eq!(problem.json()["type"], UNREADABLE);
    }
    let batch = larder.get("/notes?keys=6,1,9,5,2").await;
    assert_eq!(
        batch.body,
        r#"{"documents":[{"id":1,"j":"x"},{"id":2,"j":"xx"}],"missing":[9],"unreadable":[6,5]}"#
    );
    let list = larder.get("/notes").await;
    assert_eq!(list.json().as_array().unwrap().len(), 4);
    assert_eq!(list.header("larder-unreadable"), "5 6");
    // They are remembered until they change.
    let before = statements().await;
    assert_eq!(
        larder.get("/notes").await.header("larder-unreadable"),
        "5 6"
    );
    assert_problem(&larder.get("/notes/6").await, 500);
    assert_eq!(statements().await, before);
    larder
        .execute("update note set j = '7' where id in (5, 6)")
        .await;
    eventually("they can be read", async || {
        let list = larder.get("/notes").await;
        (list.json().as_array().unwrap().len() == 6 && list.header("larder-unreadable").is_empty())
            .then_some(())
    })
    .await;
    assert_eq!(larder.get("/notes/6").await.body, r#"{"id":6,"j":7}"#);
}

/// PostgreSQL needs seconds and hundreds of megabytes to write it. Each list that contains it would wait for that.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_takes_too_long_is_left_out_and_named() {
    let schema = "
        create table note (id bigint primary key, j jsonb);
        insert into note select n, to_jsonb(n) from generate_series(1, 4) n;
        insert into note select 5, jsonb_agg('1e131071'::jsonb) from generate_series(1, 1000);";
    let config = "
        [database]
        statement_timeout = '1s'
        [[resource]]
        name = 'notes'
        table = 'note'";
    let larder = TestService::start(schema, config).await;
    let problem = larder.get("/notes/5").await;
    // A fast machine writes it in time, and it is too long.
    assert!([500, 504].contains(&problem.status.as_u16()));
    assert_eq!(problem.json()["type"], UNREADABLE, "{}", problem.body);
    let list = larder.get("/notes").await;
    assert_eq!(list.status, StatusCode::OK, "{}", list.body);
    assert_eq!(list.json().as_array().unwrap().len(), 4);
    assert_eq!(list.header("larder-unreadable"), "5");
    larder.execute("update note set j = '7' where id = 5").await;
    eventually("it can be read", async || {
        let answer = larder.get("/notes/5").await;
        (answer.body == r#"{"id":5,"j":7}"#).then_some(())
    })
    .await;
}

/// A larder of 40 documents `notes`, with their keys. Those of `slow` stay slow until the gate is open.
async fn gated_notes(
    slow: &str,
    statement_timeout: &str,
    request_timeout: &str,
) -> (TestDatabase, TestService) {
    let database = TestCluster::database().await;
    let role = TestRole::create(&database.url).await;
    let schema = format!(
        "create table note (id bigint primary key);
         create table line (note bigint references note primary key);
         insert into note select generate_series(1, 40);
         insert into line select unnest('{{{slow}}}'::bigint[]);"
    );
    execute(&database.url, &schema).await;
    execute(&database.url, &gate_sql(&role, &["note", "line"], "line")).await;
    let config = "
        [[resource]]
        name = 'notes'
        table = 'note'
        row_security = 'as-larder'
        [[resource.children]]
        name = 'lines'
        table = 'line'";
    let settings = [
        ("database.statement_timeout", statement_timeout),
        ("request_timeout", request_timeout),
        ("feed.max_staleness", "1m"),
    ];
    let larder = TestService::start_on(&role.url, config, &settings).await;
    (database, larder)
}

/// Each took all its time in turn, so the first list and the first batch with some of them ended with 504.
#[tokio::test(flavor = "multi_thread")]
async fn slow_documents_are_left_out_in_time() {
    let (database, larder) = gated_notes("2, 4, 5, 7, 10, 12", "1s", "4s").await;
    let quick = [1, 3, 6, 8, 9, 11].map(|id| json!({"id": id, "lines": []}));
    let keys: Vec<String> = (1..=12).map(|id| id.to_string()).collect();
    let batch = format!("/notes?keys={},99", keys.join(","));
    let (list, batch) = tokio::join!(larder.get("/notes?limit=12"), larder.get(&batch));
    assert_eq!(list.status, StatusCode::OK, "{}", list.body);
    assert_eq!(list.json(), json!(quick));
    assert_eq!(list.header("larder-unreadable"), "2 4 5 7 10 12");
    assert_eq!(
        batch.json(),
        json!({"documents": quick, "missing": [99], "unreadable": [2, 4, 5, 7, 10, 12]})
    );
    assert_problem(&larder.get("/notes/2").await, 504);
    execute(&database.url, OPEN_GATE).await;
    let answer = larder.get("/notes/4").await.json();
    assert_eq!(answer, json!({"id": 4, "lines": [{"note": 4}]}));
}

/// Requests for many documents end in time though one statement may take longer than a request.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_document_that_is_requested_alone_is_waited_for() {
    let (database, larder) = gated_notes("2, 4, 5", "1m", "6s").await;
    let listed = async {
        let list = larder.get("/notes").await;
        execute(&database.url, OPEN_GATE).await;
        list
    };
    let alone = async {
        eventually("the list is sent", async || {
            let sent = larder.metric("larder_source_batch_keys_count").await;
            (sent > 0.0).then_some(())
        })
        .await;
        larder.get("/notes/2").await
    };
    let (list, alone) = tokio::join!(listed, alone);
    assert_eq!(list.status, StatusCode::OK, "{}", list.body);
    assert_eq!(list.header("larder-unreadable"), "2 4 5");
    assert_eq!(alone.status, StatusCode::OK, "{}", alone.body);
}

/// With more slow documents than there is time for, the page ends before them.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_ends_when_its_time_is_over() {
    let slow: Vec<String> = (9..=40).map(|id| id.to_string()).collect();
    let (_database, larder) = gated_notes(&slow.join(","), "1s", "2s").await;
    let page = larder.get("/notes").await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.body);
    assert_eq!(page.json().as_array().map(Vec::len), Some(8));
    assert_eq!(page.header("link"), "</notes?after=8>; rel=\"next\"");
}

/// Each page names as many keys as fit into its header.
#[tokio::test(flavor = "multi_thread")]
async fn pages_name_all_unreadable_documents() {
    let schema = "
        create table note (id text primary key, body text);
        insert into note select lpad(n::text, 1000, '0'), repeat('x', 5000) from generate_series(1, 9) n;
        insert into note values ('1', 'x');";
    let config = "
        document_max = '4KiB'
        [[resource]]
        name = 'notes'
        table = 'note'";
    let larder = TestService::start(schema, config).await;
    let mut path = "/notes".to_owned();
    let (mut named, mut documents) = (Vec::new(), 0);
    for _ in 0..3 {
        let page = larder.get(&path).await;
        let header = page.header("larder-unreadable");
        assert!(header.len() <= 4_100, "{}", header.len());
        named.extend(header.split(' ').map(str::to_owned));
        documents += page.json().as_array().unwrap().len();
        let next = page.header("link").split(['<', '>']).nth(1);
        path = next.unwrap_or_default().to_owned();
    }
    assert!(path.is_empty(), "{path}");
    let expected: Vec<String> = (1..=9).map(|n| format!("{n:01000}")).collect();
    assert_eq!((named, documents), (expected, 1));
}

/// A request holds 16 MiB of what it reads from PostgreSQL at a time.
#[tokio::test(flavor = "multi_thread")]
async fn documents_that_do_not_fit_a_window_come_with_the_next() {
    let schema = "
        create table page (id bigint primary key, body text);
        insert into page select n, repeat('x', case when n < 5 then n else 3000000 end::int) from generate_series(1, 16) n;";
    let config = CONFIG.replace("1MiB", "64MiB");
    let larder = TestService::start(schema, &config).await;
    let ids = [1, 16, 2, 15, 16, 14, 3, 3, 13, 12, 11, 99, 10, 4, 1];
    let keys: Vec<String> = ids.iter().map(ToString::to_string).collect();
    let batch = larder
        .get(&format!("/pages?keys={}&fields=id", keys.join(",")))
        .await
        .json();
    let expected: Vec<_> = ids
        .iter()
        .filter(|id| **id != 99)
        .map(|id| json!({"id": id}))
        .collect();
    assert_eq!(batch["documents"], json!(expected));
    assert_eq!(batch["missing"], json!([99]));
    let list = larder.get("/pages?fields=id").await.json();
    assert_eq!(
        list,
        json!((1..=16).map(|id| json!({"id": id})).collect::<Vec<_>>())
    );
}
