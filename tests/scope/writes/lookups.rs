//! Rows of restricted clients point to rows of their own, or to shared ones.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::harness::service::{TestResponse, TestService};
use crate::scope::clients;
use crate::scope::writes::{is, order, start, with};

#[track_caller]
fn is_refused(answer: &TestResponse, pointers: &[&str]) {
    is(answer, StatusCode::FORBIDDEN);
    let problem = answer.json();
    let errors = problem["errors"].as_array().unwrap().iter();
    let told: Vec<&str> = errors
        .map(|error| error["pointer"].as_str().unwrap())
        .collect();
    assert_eq!(told, pointers, "{}", answer.body);
}

/// Otherwise an address of anybody could be read by pointing to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_document_points_to_nothing_of_others() {
    let larder = start("").await;
    let body = with(order(5), "addressId", json!(1));
    let answer = larder.post_by("c17", "/orders", &body).await;
    is(&answer, StatusCode::CREATED);
    assert_eq!(answer.json()["address"], json!({"city": "Bern"}));
    // Of another customer, of nobody, and none at all: the same answer.
    let mut told = Vec::new();
    for address in [2, 3, 99] {
        let body = with(order(6), "addressId", json!(address));
        let post = larder.post_by("c17", "/orders", &body).await;
        is_refused(&post, &["/addressId"]);
        let put = larder.put_by("c17", "/orders/6", &body).await;
        assert_eq!(put.body, post.body);
        told.push(post.body);
    }
    told.dedup();
    assert_eq!(told.len(), 1);
    let lines = |lines: Value| with(order(6), "lines", lines);
    for (line, pointer) in [
        (json!({"id": 61, "giftId": 1}), "/lines/0/giftId"),
        (json!({"id": 61, "sentTo": 2}), "/lines/0/sentTo"),
    ] {
        let answer = larder
            .post_by("c17", "/orders", &lines(json!([line])))
            .await;
        is_refused(&answer, &[pointer]);
    }
    let both = json!([{"id": 61, "sentTo": 1}, {"id": 62, "sentTo": 2, "giftId": 2}]);
    let answer = larder.post_by("c17", "/orders", &lines(both)).await;
    is_refused(&answer, &["/lines/1/giftId", "/lines/1/sentTo"]);
    assert_eq!(larder.stored(6).await, "none");
    let shared = lines(json!([{"id": 61, "sentTo": 1, "giftId": null}]));
    let shared = shared.replacen('{', "{\"depotId\":2,", 1);
    let answer = larder.post_by("c17", "/orders", &shared).await;
    is(&answer, StatusCode::CREATED);
    let foreign = with(order(7), "addressId", json!(2));
    let answer = larder.post_by("staff", "/orders", &foreign).await;
    is(&answer, StatusCode::CREATED);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_changes_is_checked() {
    // Staff has made the document point to rows of others; the client may keep that, and end it.
    let larder = start(
        "insert into line values (12, 1, 'cup', 2, 2); update orders set address_id = 2 where id = 1",
    )
    .await;
    let lines = json!([
        {"id": 11, "item": "pen", "giftId": 1, "sentTo": 1},
        {"id": 12, "item": "jug", "giftId": 2, "sentTo": 2},
    ]);
    let document =
        json!({"number": "a", "note": "kept", "addressId": 2, "depotId": 2, "lines": lines});
    let put = async |document: &Value| {
        let body = document.to_string();
        larder.put_by("c17", "/orders/1", &body).await
    };
    is(&put(&document).await, StatusCode::OK);
    let kept = "(1,17,a,kept,2,2)(11,1,pen,1,1)(12,1,jug,2,2)";
    assert_eq!(larder.stored(1).await, kept);
    for (pointer, value) in [
        ("/addressId", json!(3)),
        ("/lines/0/sentTo", json!(2)),
        ("/lines/1/giftId", json!(1)),
        ("/lines/1/sentTo", json!(3)),
    ] {
        let mut changed = document.clone();
        *changed.pointer_mut(pointer).unwrap() = value;
        is_refused(&put(&changed).await, &[pointer]);
        let patch = json!({"addressId": changed["addressId"], "lines": changed["lines"]});
        let patched = larder
            .patch_by("c17", "/orders/1", &patch.to_string())
            .await;
        is_refused(&patched, &[pointer]);
    }
    let mut added = document.clone();
    let lines = added["lines"].as_array_mut().unwrap();
    lines.push(json!({"id": 13, "item": "new", "sentTo": 2}));
    is_refused(&put(&added).await, &["/lines/2/sentTo"]);
    assert_eq!(larder.stored(1).await, kept);
    let mut own = document.clone();
    own["lines"][1] = json!({"id": 12, "item": "jug", "giftId": null, "sentTo": 1});
    own["addressId"] = json!(1);
    is(&put(&own).await, StatusCode::OK);
    let stored = "(1,17,a,kept,1,2)(11,1,pen,1,1)(12,1,jug,,1)";
    assert_eq!(larder.stored(1).await, stored);
}

/// The client chooses one column, the other one has a default in new rows, and stays what it is in others.
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_several_columns_are_checked_as_a_whole() {
    let schema = "create table address (tenant int, id int, customer_id int, primary key (tenant, id));
        create table thing (id int primary key, owner int, tenant int not null default 1, address_id int,
                            foreign key (tenant, address_id) references address);
        insert into address values (1, 1, 17), (1, 3, 18), (2, 2, 17), (2, 3, 17);
        insert into thing values (1, 17, 2, 2)";
    let toml = format!(
        "{}[[resource]]\nname = 'things'\ntable = 'thing'\nread = ['customer']\nwrite = ['customer']\n\
         fields = {{ id = 'id', address_id = 'addressId' }}\n\
         [resource.owner]\ncolumn = 'owner'\nclaim = 'sub'\nroles = ['customer']\n\
         [[resource.lookups]]\nname = 'address'\ntable = 'address'\ncolumn = ['tenant', 'address_id']\n\
         owner = 'customer_id'\n",
        clients()
    );
    let larder = TestService::start(schema, &toml).await;
    let post = async |id: i64, address: i64| {
        let body = json!({"id": id, "addressId": address}).to_string();
        larder.post_by("c17", "/things", &body).await
    };
    is(&post(5, 1).await, StatusCode::CREATED);
    // 2 is an address of the other tenant only, and 3 is another's here.
    for address in [2, 3] {
        is_refused(&post(6, address).await, &["/addressId"]);
    }
    for (address, status) in [
        (json!(2), StatusCode::OK),
        (json!(null), StatusCode::OK),
        (json!(3), StatusCode::OK),
        (json!(1), StatusCode::FORBIDDEN),
    ] {
        let body = json!({"addressId": address}).to_string();
        is(&larder.patch_by("c17", "/things/1", &body).await, status);
    }
    let rows = "select string_agg(t::text, '' order by id) from thing t";
    assert_eq!(larder.text(rows).await, "(1,17,2,3)(5,17,1,1)");
}
