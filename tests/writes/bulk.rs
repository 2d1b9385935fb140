//! Bulk writes: many documents in one request.

use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Method, Request, StatusCode};
use futures_util::stream::{self, StreamExt};
use http_body_util::BodyExt;
use larder::server::Peer;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use testkit::fault_proxy::{FaultProxy, NetworkFault};
use tower::ServiceExt;

use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestResponse, TestService, execute};
use crate::harness::table_locks::{lock_table, unlock};
use crate::writes::{CONFIG, SCHEMA, dept, start};

const NDJSON: (&str, &str) = ("content-type", "application/x-ndjson");
const LENIENT: (&str, &str) = ("prefer", "handling=lenient");
const MINIMAL: (&str, &str) = ("prefer", "return=minimal");
const FULL: (&str, &str) = ("prefer", "return=representation");

/// More than a batch takes.
const MANY: i64 = 5_000;

/// A dept without emps on each line, numbered from `first` on.
fn lines(first: i64, count: i64) -> String {
    let mut lines = String::new();
    for no in first..first + count {
        writeln!(lines, r#"{{"no":{no},"name":"N"}}"#).unwrap();
    }
    lines
}

impl TestService {
    async fn post_many(&self, headers: &[(&str, &str)], body: &str) -> TestResponse {
        self.write(Method::POST, "/depts", headers, body).await
    }

    async fn depts(&self) -> i64 {
        let count = self.query("select count(*)::text from dept").await;
        count.parse().unwrap()
    }
}

#[track_caller]
fn refused(answer: &TestResponse, status: StatusCode, place: &str) {
    assert_eq!(answer.status, status, "{}", answer.body);
    assert_eq!(answer.header("content-type"), "application/problem+json");
    let detail = answer.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.starts_with(place), "{detail}");
}

#[tokio::test(flavor = "multi_thread")]
async fn arrays_and_lines_are_inserted_with_all_levels() {
    let larder = start().await;
    assert_eq!(larder.get("/depts/1").await.status, StatusCode::NOT_FOUND);
    let array = json!([dept(1), dept(2)]).to_string();
    let answer = larder.post_many(&[], &format!(" \n{array}")).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(answer.body, r#"{"count":2}"#);
    assert!(!answer.header("larder-token").is_empty());
    assert_eq!(larder.get("/depts/1").await.json(), dept(1));
    let text = format!("{}\n\n{}", dept(3), dept(4));
    let answer = larder.post_many(&[NDJSON, MINIMAL], &text).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(answer.body, "");
    assert_eq!(answer.header("preference-applied"), "return=minimal");
    for no in 1..=4 {
        assert_eq!(larder.get(&format!("/depts/{no}")).await.json(), dept(no));
    }
    let array = json!([dept(6), dept(5)]).to_string();
    let answer = larder.post_many(&[FULL], &array).await;
    assert_eq!(answer.body, array);
    for (headers, body) in [(&[][..], "[ ]"), (&[NDJSON], "\n"), (&[NDJSON], "")] {
        let answer = larder.post_many(headers, body).await;
        assert_eq!(answer.status, StatusCode::CREATED);
        assert_eq!(answer.body, r#"{"count":0}"#);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_keys_reach_the_rows_below() {
    let larder = TestService::start(
        "create table o (id int generated always as identity primary key, label text default 'fresh');
         create table line (id uuid primary key default gen_random_uuid(), o_id int not null references o, n int);
         create index on line (o_id);
         create table part (line_id uuid references line, name text, primary key (line_id, name));",
        "[[resource]]\nname = 'os'\ntable = 'o'\n[[resource.children]]\nname = 'lines'\ntable = 'line'\norder_by = 'n'\n\
         fields = { id = 'id', n = 'n' }\n\
         [[resource.children.children]]\nname = 'parts'\ntable = 'part'\nfields = { name = 'name' }\n",
    )
    .await;
    let document = |n: i64| {
        let parts = json!([{"name": n.to_string()}]);
        json!({"lines": [{"n": n, "parts": parts}, {"n": n + 1, "parts": []}]})
    };
    let documents: Vec<Value> = (0..300).map(|n| document(10 * n)).collect();
    let body = json!(documents).to_string();
    let answer = larder.write(Method::POST, "/os", &[FULL], &body).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    let found = answer.json();
    for (n, stored) in found.as_array().unwrap().iter().enumerate() {
        assert_eq!(stored["id"], n + 1);
        assert_eq!(stored["label"], "fresh");
        assert_eq!(stored["lines"][0]["n"], 10 * n);
        assert_eq!(
            stored["lines"][0]["parts"],
            json!([{"name": (10 * n).to_string()}])
        );
        assert_eq!(stored["lines"][1]["parts"], json!([]));
    }
    assert_eq!(larder.get("/os/300").await.json(), found[299]);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_invalid_document_fails_all() {
    let larder = start().await;
    larder.post("/depts", &dept(1)).await;
    let many = lines(1_000_000, MANY);
    for (last, status, place) in [
        ("{", StatusCode::BAD_REQUEST, "line 5001: "),
        (
            "{\"no\":1}",
            StatusCode::UNPROCESSABLE_ENTITY,
            "document 5000: ",
        ),
        (
            r#"{"no":1,"name":""}"#,
            StatusCode::CONFLICT,
            "document 5000: ",
        ),
        (
            r#"{"no":1000000,"name":""}"#,
            StatusCode::CONFLICT,
            "document 5000: ",
        ),
        (
            r#"{"no":2,"name":"","emps":[{"no":10}]}"#,
            StatusCode::CONFLICT,
            "document 5000: ",
        ),
    ] {
        let answer = larder.post_many(&[NDJSON], &format!("{many}{last}")).await;
        refused(&answer, status, place);
        assert_eq!(larder.depts().await, 1, "{last}");
    }
    let array = json!([dept(2), {"no": 3, "name": "x", "emps": [{"no": 1, "x": 2}]}]);
    let answer = larder.post("/depts", &array).await;
    refused(&answer, StatusCode::UNPROCESSABLE_ENTITY, "document 1: ");
    assert_eq!(answer.json()["errors"][0]["pointer"], "/1/emps/0/x");
    for wrong in ["[", "[{}", "[,]", "[]]", r#"[{"no":7,"name":"x"}] 1"#] {
        let answer = larder.post_many(&[], wrong).await;
        assert!(answer.status.is_client_error(), "{wrong}: {}", answer.body);
    }
    assert_eq!(larder.depts().await, 1);
    let answer = larder.post_many(&[NDJSON], &many).await;
    assert_eq!(answer.body, format!("{{\"count\":{MANY}}}"));
    assert_eq!(larder.depts().await, MANY + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_postgresql_refuses_is_named() {
    let schema = format!("{SCHEMA} alter table dept add check (dname <> 'odd')");
    let larder = TestService::start(&schema, CONFIG).await;
    let with_emp = |no: i64| format!("{{\"no\":{no},\"name\":\"\",\"emps\":[{{\"no\":1}}]}}\n");
    let (first, second) = (with_emp(1), with_emp(2));
    let few = format!("{first}{}{second}{}", lines(10, 3), lines(20, 5));
    let many = format!("{first}{}{second}", lines(10, MANY));
    // Of documents that were inserted before PostgreSQL refuses, nothing is known any more.
    for (text, place) in [
        (few, "document 4: "),
        (many, "one of the documents 4096 to 5001: "),
    ] {
        let answer = larder.post_many(&[NDJSON], &text).await;
        refused(&answer, StatusCode::CONFLICT, place);
        assert_eq!(answer.json()["code"], "23505");
        assert_eq!(larder.depts().await, 0);
    }
    let text = format!("{}{{\"no\":1,\"name\":\"odd\"}}", lines(10, 99));
    let answer = larder.post_many(&[NDJSON], &text).await;
    refused(&answer, StatusCode::UNPROCESSABLE_ENTITY, "document 99: ");
    assert_eq!(larder.depts().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_bulk_write_holds_no_lock_when_it_is_answered() {
    let database = TestCluster::database().await;
    execute(&database.url, SCHEMA).await;
    let proxy = FaultProxy::start(&database.url).await.unwrap();
    let larder = TestService::start_on(&proxy.url, CONFIG, &[]).await;
    let mut direct = PgConnection::connect(&database.url).await.unwrap();
    // PostgreSQL notices late that a connection is closed.
    proxy.set(NetworkFault::Delay(Duration::from_millis(50)));
    for (refused, status) in [("", StatusCode::CONFLICT), ("?", StatusCode::BAD_REQUEST)] {
        let text = format!("{}{}{refused}", lines(1, MANY), lines(1, 1));
        let answer = larder.post_many(&[NDJSON], &text).await;
        assert_eq!(answer.status, status, "{}", answer.body);
        let open = "select count(*)::text from pg_stat_activity \
            where datname = current_database() and backend_xid is not null";
        let open: String = sqlx::query_scalar(open)
            .fetch_one(&mut direct)
            .await
            .unwrap();
        assert_eq!(open, "0");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_above_the_limits_are_refused() {
    let larder = start().await;
    let many = lines(1, 1_001);
    let answer = larder.post_many(&[NDJSON, FULL], &many).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    let key = ("idempotency-key", "a");
    let answer = larder.post_many(&[key], "[]").await;
    refused(&answer, StatusCode::BAD_REQUEST, "Idempotency-Key");
    let url = larder.url.clone();
    let state = larder.stop().await;
    let brief = [("document_max", "400B")];
    let larder = TestService::start_in(state, &url, CONFIG, &brief).await;
    let long = format!("{}{{\"name\":\"{}\"}}", lines(1, 100), "x".repeat(400));
    let answer = larder.post_many(&[NDJSON], &long).await;
    refused(&answer, StatusCode::PAYLOAD_TOO_LARGE, "document 100: ");
    assert_eq!(larder.depts().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn lenient_handling_gives_each_document_its_own_outcome() {
    let larder = start().await;
    larder.post("/depts", &dept(1)).await;
    let mut taken = dept(3);
    taken["emps"][0]["no"] = json!(10);
    let text = format!(
        "{}\n{{\n{}\n{taken}\n{{\"no\":1}}\n{}\n",
        dept(2),
        dept(1),
        dept(4)
    );
    let answer = larder.post_many(&[NDJSON, LENIENT], &text).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.header("content-type"), "application/x-ndjson");
    assert_eq!(answer.header("preference-applied"), "handling=lenient");
    let outcomes = answer.body.lines().map(serde_json::from_str);
    let outcomes: Vec<Value> = outcomes.map(Result::unwrap).collect();
    let statuses: Vec<_> = outcomes.iter().map(|outcome| &outcome["status"]).collect();
    assert_eq!(statuses, [201, 400, 409, 409, 422, 201]);
    for (index, outcome) in outcomes.iter().enumerate() {
        assert_eq!(outcome["index"], index);
        let is_stored = outcome["status"] == 201;
        assert_eq!(outcome["problem"].is_null(), is_stored, "{outcome}");
        assert_eq!(outcome["token"].is_string(), is_stored, "{outcome}");
    }
    assert_eq!(outcomes[5]["location"], "/depts/4");
    assert_eq!(outcomes[4]["problem"]["errors"][0]["pointer"], "/name");
    assert_eq!(larder.get("/depts/4").await.json(), dept(4));
    assert_eq!(larder.get("/depts/3").await.status, StatusCode::NOT_FOUND);
    assert_eq!(larder.depts().await, 3);
    // An array that breaks off, or goes on: what came before it is stored.
    for (no, rest) in [(5, ","), (6, "] x")] {
        let answer = larder
            .post_many(&[LENIENT], &format!("[{}{rest}", dept(no)))
            .await;
        let outcomes: Vec<&str> = answer.body.lines().collect();
        assert_eq!(outcomes.len(), 2, "{outcomes:?}");
        let last = r#"{"index":1,"status":400"#;
        assert!(outcomes[1].starts_with(last), "{outcomes:?}");
    }
    let answer = larder
        .post_many(&[NDJSON, LENIENT], &lines(1_000, MANY))
        .await;
    assert_eq!(answer.body.matches("\"status\":201").count() as i64, MANY);
    assert_eq!(larder.depts().await, MANY + 5);
}

/// The outcomes tell of each document that arrived whole.
#[tokio::test(flavor = "multi_thread")]
async fn lenient_handling_stores_what_came_before_the_body_broke_off() {
    let larder = start().await;
    let parts = [Ok(lines(1, 3)), Err(std::io::Error::other("reset"))];
    let mut request = request(Body::from_stream(stream::iter(parts)));
    let lenient = HeaderValue::from_static(LENIENT.1);
    request.headers_mut().insert(LENIENT.0, lenient);
    let response = larder.public().oneshot(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let outcomes = body.split(|byte| *byte == b'\n');
    let outcomes = outcomes.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let statuses: Vec<_> = outcomes.map(|outcome| outcome["status"].clone()).collect();
    assert_eq!(statuses, [201, 201, 201, 400]);
    assert_eq!(larder.depts().await, 3);
}

fn request(body: Body) -> Request<Body> {
    let request = Request::post("/depts")
        .header("host", "localhost")
        .header(NDJSON.0, NDJSON.1);
    request.body(body).unwrap()
}

/// More than a batch, and no end.
fn begun() -> Body {
    let begun = stream::iter([Ok::<_, Infallible>(lines(1, 30_000))]);
    Body::from_stream(begun.chain(stream::pending()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_waits_for_its_client_for_a_bounded_time() {
    let larder = start().await;
    let url = larder.url.clone();
    let state = larder.stop().await;
    let brief = [("request_timeout", "300ms")];
    let larder = TestService::start_in(state, &url, CONFIG, &brief).await;
    let response = larder.public().oneshot(request(begun())).await.unwrap();
    assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT);
    assert_eq!(larder.depts().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_disconnects_stores_nothing() {
    let larder = start().await;
    let url = larder.url.clone();
    let state = larder.stop().await;
    let one = [
        ("database.connections", "5"),
        ("database.statement_timeout", "2s"),
    ];
    let larder = TestService::start_in(state, &url, CONFIG, &one).await;
    let client = tokio::spawn(larder.public().oneshot(request(begun())));
    // Between two batches it is idle for a moment only.
    let open = "select count(*)::text from pg_stat_activity where datname = current_database() \
        and backend_xid is not null";
    let idle = format!(
        "{open} and state = 'idle in transaction' and clock_timestamp() - state_change > '200 ms'"
    );
    eventually("a transaction that waits", async || {
        (larder.query(&idle).await == "1").then_some(())
    })
    .await;
    // There is one connection for such, and it is taken.
    let answer = larder.post_many(&[NDJSON], &lines(20, 1)).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    // Single writes go on; what the transaction has inserted waits for its end, but not for ever.
    let (free, held) = (dept(100_000), dept(1));
    let created = larder.post("/depts", &free).await;
    assert_eq!(created.status, StatusCode::CREATED);
    let answer = larder.post("/depts", &held).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.json()["code"], "55P03");
    client.abort();
    eventually("the end of it", async || {
        (larder.query(open).await == "0").then_some(())
    })
    .await;
    assert_eq!(larder.depts().await, 1);
    let answer = larder.post_many(&[NDJSON], &lines(1, 10)).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
}

/// No more of a stream without end is taken than batches hold while PostgreSQL waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_read_no_faster_than_it_is_inserted() {
    let larder = start().await;
    let url = larder.url.clone();
    let state = larder.stop().await;
    let brief = [("database.statement_timeout", "500ms")];
    let larder = TestService::start_in(state, &url, CONFIG, &brief).await;
    let holder = lock_table(&url, "dept").await;
    let taken = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&taken);
    let endless = stream::iter((0..).step_by(100)).map(move |first| {
        let part = Bytes::from(lines(first, 100));
        counter.fetch_add(part.len(), Ordering::SeqCst);
        Ok::<_, Infallible>(part)
    });
    let body = Body::from_stream(endless);
    let response = larder.public().oneshot(request(body)).await.unwrap();
    assert!(response.status().is_server_error(), "{}", response.status());
    let taken = taken.load(Ordering::SeqCst);
    assert!((1 << 18..3 << 20).contains(&taken), "{taken} bytes");
    unlock(holder).await;
    assert_eq!(larder.depts().await, 0);
}

/// The time limit held for all documents that arrived together.
#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_write_that_makes_progress_is_not_ended() {
    let larder = TestService::start(
        "create table slow (id int primary key);
         create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.1); return new; end $$;
         create trigger slow before insert on slow for each row execute function slow()",
        "[[resource]]\nname = 'slow'\ntable = 'slow'",
    )
    .await;
    let url = larder.url.clone();
    let state = larder.stop().await;
    // The limit is 1.4 s.
    let brief = [("database.statement_timeout", "200ms")];
    let larder = TestService::start_in(
        state,
        &url,
        "[[resource]]\nname = 'slow'\ntable = 'slow'",
        &brief,
    )
    .await;
    let lines: Vec<String> = (0..20).map(|id| format!("{{\"id\":{id}}}\n")).collect();
    let answer = larder
        .write(Method::POST, "/slow", &[NDJSON], &lines.concat())
        .await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(answer.json(), json!({"count": 20}));
}

/// One client took all, and bulk writes of others were refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_has_a_quarter_of_the_bulk_writes() {
    let larder = start().await;
    let url = larder.url.clone();
    let state = larder.stop().await;
    // Eight bulk writes.
    let many = [("database.connections", "26")];
    let larder = TestService::start_in(state, &url, CONFIG, &many).await;
    let begun = |first| {
        let begun = stream::iter([Ok::<_, Infallible>(lines(first, 30_000))]);
        request(Body::from_stream(begun.chain(stream::pending())))
    };
    let clients: Vec<_> = [1_000_000, 2_000_000]
        .map(|first| tokio::spawn(larder.public().oneshot(begun(first))))
        .into();
    let open = "select count(*)::text from pg_stat_activity where datname = current_database() \
        and state = 'idle in transaction'";
    eventually("two transactions that wait", async || {
        (larder.query(open).await == "2").then_some(())
    })
    .await;
    let answer = larder.post_many(&[NDJSON], &lines(1, 1)).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.body.contains("quarter"), "{}", answer.body);
    let other = Peer {
        address: [192, 0, 2, 1].into(),
        is_proxied: false,
    };
    let other = larder.public().for_connection(other);
    let response = other
        .oneshot(request(Body::from(lines(1, 1))))
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::CREATED);
    for client in clients {
        client.abort();
    }
    eventually("room for another", async || {
        let answer = larder.post_many(&[NDJSON], &lines(2, 1)).await;
        (answer.status == StatusCode::CREATED).then_some(())
    })
    .await;
}

/// What the log has of a failed document has this id.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_fails_with_500_has_the_id_of_its_request() {
    let larder = start().await;
    larder
        .execute(
            "create function broken() returns trigger language plpgsql as
                 'begin perform from missing; return new; end';
             create trigger broken before insert on dept for each row when (new.dname = 'LOST')
                 execute function broken()",
        )
        .await;
    let id = ("x-request-id", "request-1");
    let text = "{\"no\":1,\"name\":\"N\"}\n{\"no\":2,\"name\":\"LOST\"}\n";
    let answer = larder.post_many(&[NDJSON, LENIENT, id], text).await;
    let outcomes: Vec<Value> = answer
        .body
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(outcomes[0]["status"], 201, "{}", answer.body);
    assert!(outcomes[0]["request_id"].is_null());
    assert_eq!(outcomes[1]["status"], 500, "{}", answer.body);
    assert_eq!(outcomes[1]["request_id"], "request-1");
}

/// Defaults are evaluated in the order of the body, also if the keys have another one.
#[tokio::test(flavor = "multi_thread")]
async fn documents_are_inserted_in_the_order_of_the_body() {
    let larder = TestService::start(
        "create table item (id int primary key, number serial, t text)",
        "[[resource]]\nname = 'items'\ntable = 'item'\nfields = { id = 'id', t = 't' }",
    )
    .await;
    let items = r#"[{"id":3},{"id":1},{"id":2},{"id":9},{"id":5}]"#;
    let answer = larder.write(Method::POST, "/items", &[], items).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    let order = "select string_agg(id::text, ' ' order by number) from item";
    assert_eq!(larder.query(order).await, "3 1 2 9 5");
}

/// Documents that shared a transaction could refer to each other, although none of them could be inserted alone.
#[tokio::test(flavor = "multi_thread")]
async fn documents_that_refer_to_each_other_do_not_share_a_transaction() {
    for table in [
        "create table knot (id int primary key, up int references knot)",
        "create table knot (id int primary key, up int references knot deferrable initially deferred)",
        "create table knot (id int primary key);
         create table leaf (id int primary key, node int references knot, up int references knot);
         create index on leaf (node);",
    ] {
        let has_leaves = table.contains("leaf");
        let leaves = "[[resource.children]]\nname = 'leaves'\ntable = 'leaf'\nforeign_key = 'node'";
        let file = format!(
            "[[resource]]\nname = 'knots'\ntable = 'knot'\n{}",
            if has_leaves { leaves } else { "" }
        );
        let larder = TestService::start(table, &file).await;
        let node = |id: i64, up: i64| {
            if has_leaves {
                json!({"id": id, "leaves": [{"id": id, "up": up}]})
            } else {
                json!({"id": id, "up": up})
            }
        };
        let body = json!([node(1, 2), node(2, 1)]).to_string();
        let lenient = [("prefer", "handling=lenient")];
        let answer = larder.write(Method::POST, "/knots", &lenient, &body).await;
        let statuses = answer.body.matches("\"status\":409,\"problem\"").count();
        assert_eq!(statuses, 2, "{table}: {}", answer.body);
        assert_eq!(larder.query("select count(*)::text from knot").await, "0");
        // All in one transaction they may.
        let answer = larder.write(Method::POST, "/knots", &[], &body).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    }
}
