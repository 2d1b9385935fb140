//! Writes of clients that are restricted to documents of their own.

mod bulk;
mod lookups;
mod races;
mod unusual;

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::auth::{now, token};
use crate::harness::service::{TestResponse, TestService};
use crate::scope::clients;

const SCHEMA: &str = "
    create table customer (id int primary key, name text);
    create table address (id int primary key, customer_id int references customer, city text);
    create table depot (id int primary key, place text);
    create table orders (id bigint primary key, customer_id int references customer, number text unique,
                         note text, address_id int references address, depot_id int references depot);
    create index on orders (customer_id, id);
    create table line (id bigint primary key, order_id bigint not null references orders, item text,
                       gift_id int references depot, sent_to int references address);
    create index on line (order_id);
    create index on line (gift_id);
    insert into customer values (17, 'Ann'), (18, 'Bob');
    insert into address values (1, 17, 'Bern'), (2, 18, 'Basel'), (3, null, 'Chur');
    insert into depot values (1, 'north'), (2, 'south');
    insert into orders values (1, 17, 'a', 'mine', 1, 1), (2, 18, 'b', 'theirs', 2, 1), (3, null, 'c', 'nobody', 3, 1);
    insert into line values (11, 1, 'pen', 1, 1), (21, 2, 'ink', 1, 2);
";

/// The same documents twice: with the owner, and without it.
const RESOURCES: &str = "
    [[resource]]
    name = 'orders'
    table = 'orders'
    read = ['customer', 'staff']
    write = ['customer', 'staff']
    fields = { id = 'id', customer_id = 'customer', number = 'number', note = 'note', address_id = 'addressId', depot_id = 'depotId' }
      [resource.owner]
      column = 'customer_id'
      claim = 'sub'
      roles = ['customer']
      [[resource.lookups]]
      name = 'address'
      table = 'address'
      column = 'address_id'
      owner = 'customer_id'
      fields = { city = 'city' }
      [[resource.lookups]]
      name = 'depot'
      table = 'depot'
      column = 'depot_id'
      shared = true
      [[resource.children]]
      name = 'lines'
      table = 'line'
      fields = { id = 'id', item = 'item', gift_id = 'giftId', sent_to = 'sentTo' }
        [[resource.children.lookups]]
        name = 'gift'
        table = 'depot'
        column = 'gift_id'
        [[resource.children.lookups]]
        name = 'to'
        table = 'address'
        column = 'sent_to'
        owner = 'customer_id'
    [[resource]]
    name = 'notes'
    table = 'orders'
    read = ['customer', 'staff', 'clerk']
    write = ['customer', 'staff', 'clerk']
    fields = { id = 'id', note = 'note' }
      [resource.owner]
      column = 'customer_id'
      claim = 'sub'
      roles = ['customer']
    [[resource]]
    name = 'clerks'
    table = 'orders'
    read = ['customer']
    write = ['clerk', 'staff']
    fields = { id = 'id', note = 'note' }
      [resource.owner]
      column = 'customer_id'
      claim = 'sub'
      roles = ['customer']
";

async fn start(more: &str) -> TestService {
    let toml = format!("{}{RESOURCES}", clients());
    TestService::start(&format!("{SCHEMA}{more}"), &toml).await
}

/// An order that names no owner.
fn order(id: i64) -> Value {
    json!({"id": id, "number": format!("n{id}"), "note": "new", "lines": []})
}

fn with(mut document: Value, name: &str, value: Value) -> String {
    document[name] = value;
    document.to_string()
}

impl TestService {
    /// The rows of an order, with the ids of its lines.
    async fn stored(&self, id: i64) -> String {
        self.text(&format!(
            "select coalesce((select o::text || coalesce((select string_agg(l::text, '' order by l.id) \
             from line l where l.order_id = o.id), '') from orders o where o.id = {id}), 'none')"
        ))
        .await
    }

    async fn put_by(&self, client: &str, path: &str, body: &str) -> TestResponse {
        self.by(client, Method::PUT, path, &[], body).await
    }

    async fn post_by(&self, client: &str, path: &str, body: &str) -> TestResponse {
        self.by(client, Method::POST, path, &[], body).await
    }

    async fn patch_by(&self, client: &str, path: &str, body: &str) -> TestResponse {
        self.by(client, Method::PATCH, path, &[], body).await
    }
}

#[track_caller]
fn is(answer: &TestResponse, status: StatusCode) {
    assert_eq!(answer.status, status, "{}", answer.body);
}

/// Whatever else is wrong with the request: nothing is said of a document of others.
#[tokio::test(flavor = "multi_thread")]
async fn documents_of_others_are_absent_before_anything_else() {
    let larder = start("").await;
    let before = larder.stored(2).await;
    let tag = larder.by("c18", Method::GET, "/orders/2", &[], "").await;
    let tag = tag.header("etag").to_owned();
    assert!(!tag.is_empty());
    let bodies = [
        order(2).to_string(),
        with(order(2), "customer", json!(17)),
        with(order(2), "customer", json!(18)),
        with(order(2), "number", json!(5)),
        with(order(2), "addressId", json!(1)),
        with(order(9), "id", json!(9)),
        "{".to_owned(),
        "[]".to_owned(),
        "{}".to_owned(),
    ];
    let conditions: [&[(&str, &str)]; 5] = [
        &[],
        &[("if-match", "*")],
        &[("if-match", &tag)],
        &[("if-match", "\"x\"")],
        &[("if-none-match", "*")],
    ];
    let absent = larder.by("c17", Method::DELETE, "/orders/9", &[], "").await;
    is(&absent, StatusCode::NOT_FOUND);
    for condition in conditions {
        for body in &bodies {
            let foreign = larder.by("c17", Method::PUT, "/orders/2", condition, body);
            assert_eq!(foreign.await.body, absent.body, "{condition:?} {body}");
        }
        // A condition that requires a document is one that none fulfils.
        if condition
            .first()
            .is_some_and(|(name, _)| *name == "if-match")
        {
            let answer = larder.by("c17", Method::PUT, "/orders/9", condition, &bodies[0]);
            assert_eq!(answer.await.body, absent.body, "{condition:?}");
        }
        for method in [Method::PATCH, Method::DELETE] {
            for path in ["/orders/2", "/orders/3", "/orders/9"] {
                let answer = larder.by("c17", method.clone(), path, condition, &bodies[1]);
                let answer = answer.await;
                is(&answer, StatusCode::NOT_FOUND);
                let all = (&answer.headers, &answer.body);
                assert_eq!(all, (&absent.headers, &absent.body), "{condition:?} {path}");
            }
        }
    }
    assert_eq!(larder.stored(2).await, before);
    // The owner, and staff, get the answers that everyone got before.
    let answer = larder.put_by("c18", "/orders/2", "{").await;
    is(&answer, StatusCode::BAD_REQUEST);
    let wrong = with(order(2), "number", json!(5));
    is(
        &larder.put_by("c18", "/orders/2", &wrong).await,
        StatusCode::UNPROCESSABLE_ENTITY,
    );
    is(
        &larder.put_by("c17", "/orders/9", &wrong).await,
        StatusCode::UNPROCESSABLE_ENTITY,
    );
    let headers = [("if-match", "\"x\"")];
    let answer = larder.by("c18", Method::DELETE, "/orders/2", &headers, "");
    is(&answer.await, StatusCode::PRECONDITION_FAILED);
    let headers = [("if-match", tag.as_str())];
    let answer = larder.by("c18", Method::DELETE, "/orders/2", &headers, "");
    is(&answer.await, StatusCode::NO_CONTENT);
    let answer = larder.by("staff", Method::DELETE, "/orders/3", &[], "");
    is(&answer.await, StatusCode::NO_CONTENT);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_documents_are_of_the_client() {
    let larder = start("").await;
    let answer = larder
        .post_by("c17", "/orders", &order(5).to_string())
        .await;
    is(&answer, StatusCode::CREATED);
    assert_eq!(answer.json()["customer"], 17);
    let own = with(order(6), "customer", json!(17));
    is(
        &larder.put_by("c17", "/orders/6", &own).await,
        StatusCode::CREATED,
    );
    let spelt = with(order(7), "customer", json!(17)).replace("17", "1.7e1");
    is(
        &larder.post_by("c17", "/orders", &spelt).await,
        StatusCode::CREATED,
    );
    let hidden = larder
        .put_by("c18", "/notes/8", r#"{"note":"hidden"}"#)
        .await;
    is(&hidden, StatusCode::CREATED);
    assert_eq!(
        larder
            .text("select string_agg(customer_id::text, ' ' order by id) from orders where id > 4")
            .await,
        "17 17 17 18"
    );
    for other in [json!(18), json!(null), json!(99)] {
        let body = with(order(10), "customer", other);
        is(
            &larder.post_by("c17", "/orders", &body).await,
            StatusCode::FORBIDDEN,
        );
        is(
            &larder.put_by("c17", "/orders/10", &body).await,
            StatusCode::FORBIDDEN,
        );
    }
    // Without the claim no document can be one's own.
    let body = order(10).to_string();
    for document in [body.as_str(), "{", "[]"] {
        is(
            &larder.post_by("nobody", "/orders", document).await,
            StatusCode::FORBIDDEN,
        );
    }
    for path in ["/orders/10", "/orders/1"] {
        is(
            &larder.put_by("nobody", path, &body).await,
            StatusCode::NOT_FOUND,
        );
        is(
            &larder.patch_by("nobody", path, "{}").await,
            StatusCode::NOT_FOUND,
        );
        for headers in [&[][..], &[("if-match", "\"x\"")]] {
            let deleted = larder.by("nobody", Method::DELETE, path, headers, "");
            is(&deleted.await, StatusCode::NOT_FOUND);
        }
    }
    assert_eq!(larder.stored(10).await, "none");
    // A key tells that a row exists.
    is(
        &larder
            .post_by("c17", "/orders", &order(2).to_string())
            .await,
        StatusCode::CONFLICT,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn ones_own_documents_stay_ones_own() {
    let larder = start("").await;
    let line = json!([{"id": 11, "item": "pen", "giftId": 1, "sentTo": 1}]);
    let own = json!({"number": "a", "note": "again", "addressId": 1, "depotId": 1, "lines": line});
    // It is absent, or one's own.
    for body in [own.to_string(), with(own.clone(), "customer", json!(17))] {
        let answer = larder.put_by("c17", "/orders/1", &body).await;
        is(&answer, StatusCode::OK);
        assert_eq!(answer.json()["customer"], 17);
    }
    let before = larder.stored(1).await;
    assert_eq!(before, "(1,17,a,again,1,1)(11,1,pen,1,1)");
    for other in [json!(18), json!(null)] {
        let put = with(own.clone(), "customer", other.clone());
        is(
            &larder.put_by("c17", "/orders/1", &put).await,
            StatusCode::FORBIDDEN,
        );
        let patch = json!({"customer": other, "note": "moved"}).to_string();
        is(
            &larder.patch_by("c17", "/orders/1", &patch).await,
            StatusCode::FORBIDDEN,
        );
    }
    assert_eq!(larder.stored(1).await, before);
    is(
        &larder
            .patch_by("c17", "/orders/1", r#"{"customer":17,"note":"x"}"#)
            .await,
        StatusCode::OK,
    );
    is(
        &larder.put_by("c17", "/notes/1", r#"{"note":"y"}"#).await,
        StatusCode::OK,
    );
    is(
        &larder.patch_by("c17", "/notes/1", r#"{"note":"z"}"#).await,
        StatusCode::OK,
    );
    assert_eq!(larder.stored(1).await, "(1,17,a,z,1,1)(11,1,pen,1,1)");
    let deleted = larder.by("c17", Method::DELETE, "/orders/1", &[], "");
    is(&deleted.await, StatusCode::NO_CONTENT);
    assert_eq!(larder.stored(1).await, "none");
}

/// The hidden owner is no part of what a document says.
#[tokio::test(flavor = "multi_thread")]
async fn unrestricted_clients_write_all_documents() {
    let larder = start("").await;
    is(
        &larder
            .patch_by("staff", "/orders/1", r#"{"customer":18}"#)
            .await,
        StatusCode::OK,
    );
    assert_eq!(larder.stored(1).await, "(1,18,a,mine,1,1)(11,1,pen,1,1)");
    is(
        &larder.patch_by("c17", "/orders/1", "{}").await,
        StatusCode::NOT_FOUND,
    );
    is(
        &larder.patch_by("c18", "/orders/1", "{}").await,
        StatusCode::OK,
    );
    for client in ["staff", "mixed"] {
        let body = json!({"note": client}).to_string();
        is(
            &larder.put_by(client, "/notes/1", &body).await,
            StatusCode::OK,
        );
        assert_eq!(
            larder.stored(1).await,
            format!("(1,18,a,{client},1,1)(11,1,pen,1,1)")
        );
    }
    is(
        &larder
            .post_by("staff", "/notes", r#"{"id":30,"note":null}"#)
            .await,
        StatusCode::CREATED,
    );
    assert_eq!(larder.stored(30).await, "(30,,,,,)");
    let shown = with(order(31), "customer", json!(18));
    is(
        &larder.post_by("staff", "/orders", &shown).await,
        StatusCode::CREATED,
    );
}

/// Who may write all documents and read only some is shown only these.
#[tokio::test(flavor = "multi_thread")]
async fn answers_to_writes_show_what_the_client_may_read() {
    let larder = start("").await;
    let answer = larder
        .patch_by("mixed", "/clerks/1", r#"{"note":"own"}"#)
        .await;
    is(&answer, StatusCode::OK);
    assert_eq!(answer.json(), json!({"id": 1, "note": "own"}));
    let key = [("idempotency-key", "k")];
    for _ in 0..2 {
        let answer = larder.by("mixed", Method::PATCH, "/clerks/2", &key, r#"{"note":"x"}"#);
        let answer = answer.await;
        is(&answer, StatusCode::NO_CONTENT);
        assert_eq!((answer.body.as_str(), answer.header("etag")), ("", ""));
    }
    let tag = [("if-match", "\"guess\"")];
    let answer = larder.by("mixed", Method::PATCH, "/clerks/2", &tag, "{}");
    is(&answer.await, StatusCode::FORBIDDEN);
    let any = [("if-match", "*")];
    let answer = larder.by("mixed", Method::PATCH, "/clerks/2", &any, "{}");
    is(&answer.await, StatusCode::NO_CONTENT);
    is(
        &larder.patch_by("c17", "/clerks/1", "{}").await,
        StatusCode::FORBIDDEN,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_is_not_shown_what_is_others_by_now() {
    let larder = start("").await;
    let repeat = async |key: &str, method: Method, path: &str, body: &str| {
        let key = [("idempotency-key", key)];
        larder.by("c17", method, path, &key, body).await
    };
    let post = order(5).to_string();
    let patch = r#"{"note":"patched"}"#;
    let first = repeat("a", Method::POST, "/orders", &post).await;
    is(&first, StatusCode::CREATED);
    assert_eq!(
        repeat("a", Method::POST, "/orders", &post).await.body,
        first.body
    );
    let second = repeat("b", Method::PATCH, "/orders/1", patch).await;
    is(&second, StatusCode::OK);
    larder
        .execute("update orders set customer_id = 18 where id in (1, 5)")
        .await;
    let again = repeat("a", Method::POST, "/orders", &post).await;
    is(&again, StatusCode::CREATED);
    assert_eq!((again.body.as_str(), again.header("etag")), ("", ""));
    let again = repeat("b", Method::PATCH, "/orders/1", patch).await;
    is(&again, StatusCode::NO_CONTENT);
    assert_eq!(again.body, "");
    // Another client has keys of its own.
    let key = [("idempotency-key", "b")];
    let other = larder.by("c18", Method::PATCH, "/orders/1", &key, patch);
    assert_eq!(other.await.json()["note"], "patched");
}

/// Tokens of one subject may have different claims, as of a person who works for two customers.
#[tokio::test(flavor = "multi_thread")]
async fn each_claim_has_idempotency_keys_of_its_own() {
    const SECRET: &str = "a secret of thirty-two bytes or so";
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("secret");
    std::fs::write(&path, SECRET).unwrap();
    let jwt = format!(
        "idempotency_keys = true\n[auth.jwt]\nalgorithms = ['HS256']\nsecret_file = {path:?}\n\
         [[resource]]\nname = 'orders'\ntable = 'orders'\nread = ['customer']\nwrite = ['customer']\n\
         [resource.owner]\ncolumn = 'customer_id'\nclaim = 'customer'\nroles = ['customer']\n"
    );
    let larder = TestService::start(SCHEMA, &jwt).await;
    let put = async |customer: u32| {
        let claims =
            json!({"sub": "ann", "exp": now() + 600, "roles": "customer", "customer": customer});
        let bearer = format!("Bearer {}", token(SECRET, &claims));
        let headers = [("authorization", bearer.as_str()), ("idempotency-key", "k")];
        let path = "/orders/5";
        larder
            .write(Method::PUT, path, &headers, r#"{"note":"x"}"#)
            .await
    };
    for (customer, status) in [
        (17, StatusCode::CREATED),
        (17, StatusCode::CREATED),
        (18, StatusCode::NOT_FOUND),
    ] {
        is(&put(customer).await, status);
    }
}
