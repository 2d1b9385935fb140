//! Conditions together with owners: hidden documents are hidden from everyone, and a restricted client does not learn that
//! the row which it conflicts with is hidden.

use axum::http::{Method, StatusCode};

use crate::harness::service::TestService;
use crate::scope::clients;

const SCHEMA: &str = "
    create table orders (id int primary key, customer int, note text, gone bool not null default false);
    create table line (id int primary key, order_id int references orders, gone bool not null default false);
    insert into orders values (1, 17, 'a', false), (2, 17, 'b', true), (3, 18, 'c', false), (4, 18, 'd', true);
    insert into line values (11, 1, false), (12, 1, true), (31, 3, false), (32, 3, true);";

const RESOURCES: &str = "
    [[resource]]
    name = 'orders'
    table = 'orders'
    where = 'not gone'
    read = ['customer', 'staff']
    write = ['customer', 'staff']
    fields = { id = 'id', customer = 'customer', note = 'note' }
      [resource.owner]
      column = 'customer'
      claim = 'sub'
      roles = ['customer']
      [[resource.children]]
      name = 'lines'
      table = 'line'
      where = 'not gone'
      fields = { id = 'id' }";

async fn start() -> TestService {
    TestService::start(SCHEMA, &format!("{}{RESOURCES}", clients())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn restricted_writes_do_not_see_hidden_documents() {
    let larder = start().await;
    for client in ["c17", "c18", "staff"] {
        for id in [2, 4, 9] {
            for (method, body) in [(Method::PATCH, r#"{"note":"x"}"#), (Method::DELETE, "")] {
                let path = format!("/orders/{id}");
                let response = larder.by(client, method, &path, &[], body).await;
                assert_eq!(response.status, StatusCode::NOT_FOUND, "{client} {id}");
            }
        }
    }
    let own = larder
        .by("c17", Method::PATCH, "/orders/1", &[], r#"{"note":"x"}"#)
        .await;
    assert_eq!(own.status, StatusCode::OK, "{}", own.body);
    let gone = larder
        .text("select string_agg(note, ' ' order by id) from orders")
        .await;
    assert_eq!(gone, "x b c d");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restricted_client_is_not_told_that_the_row_it_conflicts_with_is_hidden() {
    let larder = start().await;
    let post = |client: &'static str, body: &'static str| {
        larder.by(client, Method::POST, "/orders", &[], body)
    };
    for (hidden, visible) in [
        (r#"{"id":4}"#, r#"{"id":3}"#),
        (r#"{"id":2}"#, r#"{"id":1}"#),
        (
            r#"{"id":5,"lines":[{"id":32}]}"#,
            r#"{"id":5,"lines":[{"id":31}]}"#,
        ),
        (r#"[{"id":5},{"id":4}]"#, r#"[{"id":5},{"id":3}]"#),
        (
            r#"[{"id":5},{"id":6,"lines":[{"id":32}]}]"#,
            r#"[{"id":5},{"id":6,"lines":[{"id":31}]}]"#,
        ),
    ] {
        let told = post("c17", hidden).await;
        assert_eq!(told.status, StatusCode::CONFLICT, "{hidden}: {}", told.body);
        assert_eq!(told.body, post("c17", visible).await.body, "{hidden}");
        let told = post("staff", hidden).await.json();
        assert_eq!(
            told["type"], "urn:problem-type:hidden-row",
            "{hidden}: {told}"
        );
    }
    let put = larder
        .by("c17", Method::PUT, "/orders/4", &[], r#"{"note":"x"}"#)
        .await;
    assert_eq!(put.status, StatusCode::CONFLICT);
    assert_eq!(put.json()["type"], "about:blank");
}
