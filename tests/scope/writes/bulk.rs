//! Many documents of a restricted client.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::scope::writes::{is, order, start, with};

#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_write_has_no_document_of_others() {
    let larder = start("").await;
    let own = with(order(7), "customer", json!(17));
    let lines = [order(5).to_string(), order(6).to_string(), own].join("\n");
    let ndjson = [("content-type", "application/x-ndjson")];
    let answer = larder.by("c17", Method::POST, "/orders", &ndjson, &lines);
    is(&answer.await, StatusCode::CREATED);
    let owners = "select string_agg(customer_id::text, ' ' order by id) from orders where id > 4";
    assert_eq!(larder.text(owners).await, "17 17 17");
    let foreign = with(order(9), "customer", json!(18));
    let array = format!("[{},{foreign},{}]", order(8), order(10));
    let answer = larder.post_by("c17", "/orders", &array).await;
    is(&answer, StatusCode::FORBIDDEN);
    let problem = answer.json();
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.starts_with("document 1: "), "{detail}");
    assert_eq!(larder.text(owners).await, "17 17 17");
    let answer = larder.post_by("nobody", "/orders", "[]").await;
    is(&answer, StatusCode::FORBIDDEN);
    let shown = [("prefer", "return=representation")];
    let array = format!("[{}]", order(10));
    let answer = larder.by("c17", Method::POST, "/orders", &shown, &array);
    assert_eq!(answer.await.json()[0]["customer"], 17);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_line_of_a_lenient_write_is_checked() {
    let larder = start("").await;
    let lines = [
        order(5).to_string(),
        with(order(6), "customer", json!(18)),
        with(order(7), "addressId", json!(2)),
        with(order(8), "addressId", json!(1)),
        order(2).to_string(),
    ];
    let headers = [
        ("prefer", "handling=lenient"),
        ("content-type", "application/x-ndjson"),
    ];
    let lines = lines.join("\n");
    let answer = larder.by("c17", Method::POST, "/orders", &headers, &lines);
    let answer = answer.await;
    let outcomes = answer.body.lines();
    let outcomes: Vec<Value> = outcomes
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let statuses: Vec<_> = outcomes
        .iter()
        .map(|line| line["status"].as_u64().unwrap())
        .collect();
    assert_eq!(statuses, [201, 403, 403, 201, 409]);
    let pointer = &outcomes[2]["problem"]["errors"][0]["pointer"];
    assert_eq!(pointer, "/addressId");
    let answer = larder.by("nobody", Method::POST, "/orders", &headers, &lines);
    is(&answer.await, StatusCode::FORBIDDEN);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_write_points_to_nothing_of_others() {
    let larder = start("").await;
    let with_address = |id, address: i64| with(order(id), "addressId", json!(address));
    let array = format!(
        "[{},{},{}]",
        with_address(5, 1),
        with_address(6, 2),
        with_address(7, 2)
    );
    let answer = larder.post_by("c17", "/orders", &array).await;
    is(&answer, StatusCode::FORBIDDEN);
    let problem = answer.json();
    assert_eq!(problem["errors"][0]["pointer"], "/1/addressId");
    assert_eq!(problem["errors"].as_array().unwrap().len(), 1);
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.starts_with("document 1: "), "{detail}");
    assert_eq!(larder.stored(5).await, "none");
}
