//! Writes see no hidden rows, leave none, and conflict with their keys.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection};

use crate::harness::service::{TestResponse, TestService};

const SCHEMA: &str = "
    create table orders (id int primary key, state text not null default 'open', note text, code int unique);
    create table line (order_id int references orders, n int, text text, gone bool not null default false, primary key (order_id, n));
    create table part (id serial primary key, order_id int, n int, gone bool not null default false,
        foreign key (order_id, n) references line);
    insert into orders values (1, 'open', 'a', 1), (2, 'draft', 'b', 2);
    insert into line values (1, 1, 'x', false), (1, 2, 'y', true), (1, 3, 'z', false);
    insert into part values (101, 1, 1, false), (102, 1, 1, true), (103, 1, 2, false);";

const CONFIG: &str = "
    [[resource]]
    name = 'orders'
    table = 'orders'
    where = \"state <> 'draft'\"
      [[resource.children]]
      name = 'lines'
      table = 'line'
      where = 'not gone'
      fields = { n = 'n', text = 'text', gone = 'gone' }
        [[resource.children.children]]
        name = 'parts'
        table = 'part'
        where = 'not gone'
        fields = { id = 'id', gone = 'gone' }";

const HIDDEN_ROW: &str = "urn:problem-type:hidden-row";

async fn start() -> TestService {
    TestService::start(SCHEMA, CONFIG).await
}

/// The rows of all three tables, hidden ones too.
async fn rows(larder: &TestService) -> String {
    let mut connection = larder.connect().await;
    let sql = "select concat_ws('; ', \
        (select string_agg(concat_ws(' ', id, state, note), ',' order by id) from orders), \
        (select string_agg(concat_ws(' ', order_id, n, text, gone::text), ',' order by order_id, n) from line), \
        (select string_agg(concat_ws(' ', id, n, gone::text), ',' order by id) from part))";
    let rows = sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_one(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    rows
}

const ROWS: &str =
    "1 open a,2 draft b; 1 1 x false,1 2 y true,1 3 z false; 101 1 false,102 1 true,103 2 false";

#[track_caller]
fn assert_hidden_key(response: &TestResponse, pointers: &[&str]) {
    assert_eq!(response.status, StatusCode::CONFLICT, "{}", response.body);
    let problem = response.json();
    assert_eq!(problem["type"], HIDDEN_ROW, "{problem}");
    assert_eq!(problem["code"], "23505");
    assert_pointers(&problem, pointers);
}

#[track_caller]
fn assert_would_be_hidden(response: &TestResponse, pointers: &[&str]) {
    assert_eq!(
        response.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{}",
        response.body
    );
    let problem = response.json();
    assert_eq!(problem["type"], "about:blank");
    assert!(
        problem["errors"][0]["detail"]
            .as_str()
            .unwrap()
            .contains("hidden"),
        "{problem}"
    );
    assert_pointers(&problem, pointers);
}

#[track_caller]
fn assert_pointers(problem: &Value, pointers: &[&str]) {
    let errors = problem["errors"].as_array().unwrap().iter();
    let told: Vec<&str> = errors
        .map(|error| error["pointer"].as_str().unwrap())
        .collect();
    assert_eq!(told, pointers, "{problem}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_difference_neither_sees_nor_deletes_hidden_rows() {
    let larder = start().await;
    let put = larder
        .write(
            Method::PUT,
            "/orders/1",
            &[],
            r#"{"state":"open","note":"a","code":1,"lines":[{"n":1,"text":"x","parts":[]}]}"#,
        )
        .await;
    assert_eq!(put.status, StatusCode::OK, "{}", put.body);
    let expected = json!({"id": 1, "state": "open", "note": "a", "code": 1,
        "lines": [{"n": 1, "text": "x", "gone": false, "parts": []}]});
    assert_eq!(put.json(), expected);
    // Line 3 and part 101 are gone. Line 2 is hidden, and part 103 is below it.
    assert_eq!(
        rows(&larder).await,
        "1 open a,2 draft b; 1 1 x false,1 2 y true; 102 1 true,103 2 false"
    );
    let patch = larder
        .write(
            Method::PATCH,
            "/orders/1",
            &[],
            r#"{"lines":[{"n":1,"text":"changed"},{"n":4,"text":"new"}]}"#,
        )
        .await;
    assert_eq!(patch.status, StatusCode::OK, "{}", patch.body);
    assert_eq!(
        rows(&larder).await,
        "1 open a,2 draft b; 1 1 changed false,1 2 y true,1 4 new false; 102 1 true,103 2 false"
    );
}

/// The foreign key of the hidden row decides, as it does for any row that the document does not show.
#[tokio::test(flavor = "multi_thread")]
async fn hidden_rows_below_are_left_to_their_foreign_keys() {
    let larder = start().await;
    for (method, body) in [(Method::DELETE, ""), (Method::PATCH, r#"{"lines":[]}"#)] {
        let response = larder.write(method, "/orders/1", &[], body).await;
        assert_eq!(response.status, StatusCode::CONFLICT);
        assert_eq!(response.json()["code"], "23503");
        assert_eq!(rows(&larder).await, ROWS);
    }
    larder
        .execute(
            "alter table line drop constraint line_order_id_fkey, add foreign key (order_id) references orders on delete cascade;
             alter table part drop constraint part_order_id_n_fkey,
               add foreign key (order_id, n) references line on delete cascade",
        )
        .await;
    let deleted = larder.write(Method::DELETE, "/orders/1", &[], "").await;
    assert_eq!(deleted.status, StatusCode::NO_CONTENT, "{}", deleted.body);
    assert_eq!(rows(&larder).await, "2 draft b");
}

#[tokio::test(flavor = "multi_thread")]
async fn hidden_documents_are_404_and_their_keys_409() {
    let larder = start().await;
    for (method, body) in [
        (Method::DELETE, ""),
        (Method::PATCH, r#"{"note":"c"}"#),
        (Method::PATCH, r#"{"state":"open"}"#),
    ] {
        let hidden = larder.write(method.clone(), "/orders/2", &[], body).await;
        let absent = larder.write(method, "/orders/9", &[], body).await;
        assert_eq!(hidden.status, StatusCode::NOT_FOUND);
        assert_eq!(hidden.body, absent.body);
    }
    let document = r#"{"id":2,"state":"open"}"#;
    let post = larder.write(Method::POST, "/orders", &[], document).await;
    assert_hidden_key(&post, &[""]);
    let put = larder.write(Method::PUT, "/orders/2", &[], document).await;
    assert_hidden_key(&put, &[""]);
    for (header, status) in [
        ("if-match", StatusCode::PRECONDITION_FAILED),
        ("if-none-match", StatusCode::CONFLICT),
    ] {
        let put = larder
            .write(Method::PUT, "/orders/2", &[(header, "*")], document)
            .await;
        assert_eq!(put.status, status);
    }
    let post = larder
        .write(Method::POST, "/orders", &[], r#"{"id":1}"#)
        .await;
    assert_eq!(post.json()["type"], "about:blank");
    assert_eq!(rows(&larder).await, ROWS);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_hidden_children_are_409() {
    let larder = start().await;
    let lines = r#"{"lines":[{"n":1,"text":"x","parts":[{"id":101},{"id":102}]},{"n":2,"text":"y"},{"n":3,"text":"z"}]}"#;
    let patch = larder.write(Method::PATCH, "/orders/1", &[], lines).await;
    assert_hidden_key(&patch, &["/lines/1", "/lines/0/parts/1"]);
    let post = r#"{"id":3,"lines":[{"n":1,"parts":[{"id":103},{"id":102}]}]}"#;
    let post = larder.write(Method::POST, "/orders", &[], post).await;
    assert_hidden_key(&post, &["/lines/0/parts/1"]);
    // Another conflict than that with a key.
    let post = larder
        .write(Method::POST, "/orders", &[], r#"{"id":3,"code":2}"#)
        .await;
    assert_eq!(post.json()["type"], "about:blank");
    assert_eq!(rows(&larder).await, ROWS);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_be_hidden_is_422() {
    let larder = start().await;
    for (method, path, body, pointers) in [
        (
            Method::POST,
            "/orders",
            r#"{"id":3,"state":"draft"}"#,
            &[""][..],
        ),
        (Method::PUT, "/orders/3", r#"{"state":"draft"}"#, &[""]),
        (
            Method::PUT,
            "/orders/1",
            r#"{"state":"draft","lines":[{"n":1,"text":"x","parts":[{"id":101}]}]}"#,
            &[""],
        ),
        (Method::PATCH, "/orders/1", r#"{"state":"draft"}"#, &[""]),
        (
            Method::POST,
            "/orders",
            r#"{"id":3,"lines":[{"n":1},{"n":2,"gone":true,"parts":[{"gone":true},{}]}]}"#,
            &["/lines/1", "/lines/1/parts/0"],
        ),
        (
            Method::PATCH,
            "/orders/1",
            r#"{"lines":[{"n":1,"text":"x","parts":[{"id":101,"gone":true}]},{"n":3,"text":"z","gone":true},{"n":4,"gone":true}]}"#,
            &["/lines/1", "/lines/2", "/lines/0/parts/0"],
        ),
    ] {
        let response = larder.write(method, path, &[], body).await;
        assert_would_be_hidden(&response, pointers);
        assert_eq!(rows(&larder).await, ROWS, "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bulk_writes_pass_the_same_checks() {
    let larder = start().await;
    let post = async |headers: &[(&str, &str)], body: &str| {
        larder.write(Method::POST, "/orders", headers, body).await
    };
    let response = post(&[], r#"[{"id":3},{"id":2},{"id":4}]"#).await;
    assert_hidden_key(&response, &["/1"]);
    let response = post(
        &[],
        r#"[{"id":3},{"id":4,"lines":[{"n":1,"parts":[{"id":102}]}]}]"#,
    )
    .await;
    assert_hidden_key(&response, &["/1/lines/0/parts/0"]);
    let response = post(&[], r#"[{"id":3},{"id":4,"lines":[{"n":1,"gone":true}]}]"#).await;
    assert_would_be_hidden(&response, &["/1/lines/0"]);
    assert_eq!(rows(&larder).await, ROWS);
    let lenient = ("prefer", "handling=lenient");
    let documents = r#"[{"id":3},{"id":2},{"id":4,"state":"draft"},{"id":1},{"id":5}]"#;
    let response = post(&[lenient], documents).await;
    let lines: Vec<Value> = response
        .body
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let statuses: Vec<&Value> = lines.iter().map(|line| &line["status"]).collect();
    assert_eq!(statuses, [201, 409, 422, 409, 201]);
    assert_eq!(lines[1]["problem"]["type"], HIDDEN_ROW);
    assert_eq!(lines[3]["problem"]["type"], "about:blank");
    let all = ROWS.replacen(';', ",3 open,5 open;", 1);
    assert_eq!(rows(&larder).await, all);
}

/// Single documents share transactions where several wait.
#[tokio::test(flavor = "multi_thread")]
async fn documents_that_share_a_transaction_have_outcomes_of_their_own() {
    let larder = start().await;
    let documents: Vec<String> = (2..60)
        .map(|id| {
            let state = if id % 3 == 0 { "draft" } else { "open" };
            format!(r#"{{"id":{id},"state":"{state}"}}"#)
        })
        .collect();
    let posts = documents
        .iter()
        .map(|body| larder.write(Method::POST, "/orders", &[], body));
    let responses = futures_util::future::join_all(posts).await;
    for (id, response) in (2..60).zip(&responses) {
        match id {
            2 => assert_hidden_key(response, &[""]),
            id if id % 3 == 0 => assert_would_be_hidden(response, &[""]),
            _ => assert_eq!(response.status, StatusCode::CREATED, "{}", response.body),
        }
    }
    let list = larder.get("/orders?limit=1000").await.json();
    assert_eq!(
        list.as_array().unwrap().len(),
        1 + responses
            .iter()
            .filter(|r| r.status == StatusCode::CREATED)
            .count()
    );
}

/// An answer that was kept is sent without the document once it is hidden.
#[tokio::test(flavor = "multi_thread")]
async fn a_replayed_answer_does_not_show_a_hidden_document() {
    let url = larder_with_answers().await;
    let larder = TestService::start_on(&url, CONFIG, &[("idempotency_keys", "true")]).await;
    let key = ("idempotency-key", "k1");
    let first = larder
        .write(Method::POST, "/orders", &[key], r#"{"id":3}"#)
        .await;
    assert_eq!(first.status, StatusCode::CREATED);
    let again = larder
        .write(Method::POST, "/orders", &[key], r#"{"id":3}"#)
        .await;
    assert_eq!(
        (again.status, &again.body),
        (StatusCode::CREATED, &first.body)
    );
    larder
        .execute("update orders set state = 'draft' where id = 3")
        .await;
    let hidden = larder
        .write(Method::POST, "/orders", &[key], r#"{"id":3}"#)
        .await;
    assert_eq!(
        (hidden.status, hidden.body.as_str()),
        (StatusCode::CREATED, "")
    );
}

async fn larder_with_answers() -> String {
    use crate::harness::cluster::TestCluster;
    use crate::harness::service::execute;
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    url
}
