//! Reads by clients that see all documents, their own, or none.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use super::{
    Client, PROMPT, RESOURCES, SCHEMA, client, config, customer, larder, learned, resources, staff,
};
use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestResponse, TestService, execute};

const OWN: [u32; 4] = [1, 2, 3, 4];
const FOREIGN: [u32; 4] = [5, 8, 9, 10];
const ABSENT: [u32; 2] = [11, 4_000];

/// Reads all documents, so that tiers have them, and remember absences.
async fn warm(larder: &TestService, resource: &str) {
    for key in [&OWN[..], &FOREIGN, &ABSENT].concat() {
        staff().get(larder, &format!("/{resource}/{key}")).await;
    }
}

/// Waits until the disk tier has the document.
async fn on_disk(larder: &TestService, path: &str) {
    eventually("on disk", async || {
        let explained = larder.admin(&format!("/explain{path}")).await.json();
        (explained["disk"]["found"] == true).then_some(())
    })
    .await;
}

fn status(responses: &[TestResponse]) -> Vec<u16> {
    let responses = responses.iter();
    responses.map(|response| response.status.as_u16()).collect()
}

async fn get_each(
    larder: &TestService,
    who: &Client,
    resource: &str,
    keys: &[u32],
) -> Vec<TestResponse> {
    let mut responses = Vec::new();
    for key in keys {
        responses.push(who.get(larder, &format!("/{resource}/{key}")).await);
    }
    responses
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restricted_client_sees_its_own_documents_whatever_the_tiers_have() {
    let larder = larder().await;
    for (resource, _) in RESOURCES {
        for is_warm in [false, true] {
            if is_warm {
                warm(&larder, resource).await;
            }
            for _ in 0..2 {
                let own = get_each(&larder, &customer(17), resource, &OWN).await;
                assert_eq!(status(&own), [200; 4], "{resource}");
                let all = get_each(&larder, &staff(), resource, &OWN).await;
                for (own, seen) in own.iter().zip(all) {
                    assert_eq!(
                        (&own.body, own.header("etag")),
                        (&seen.body, seen.header("etag"))
                    );
                }
                let foreign = get_each(&larder, &customer(17), resource, &FOREIGN).await;
                let absent = get_each(&larder, &customer(17), resource, &ABSENT).await;
                for other in foreign.iter().chain(&absent) {
                    assert_eq!(learned(other), learned(&absent[0]), "{resource}");
                }
                assert_eq!(absent[0].status, StatusCode::NOT_FOUND);
                assert_eq!(absent[0].cache_status(), "larder; fwd=miss");
            }
        }
    }
    let memory = customer(17).get(&larder, "/memory/1").await;
    assert_eq!(memory.cache_status(), "larder; hit; detail=memory");
    let disk = customer(17).get(&larder, "/disk/1").await;
    assert_eq!(disk.cache_status(), "larder; hit; detail=disk");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_owns_nothing_sees_nothing() {
    let larder = larder().await;
    warm(&larder, "orders").await;
    let roles = json!(["customer"]);
    let nobodies = [
        Client(None),
        client(json!({"roles": roles})),
        client(json!({"customer": null, "roles": roles})),
        client(json!({"customer": "seventeen", "roles": roles})),
        client(json!({"customer": "", "roles": roles})),
        client(json!({"customer": "17\u{0}", "roles": roles})),
        client(json!({"customer": 17.0, "roles": roles})),
        client(json!({"customer": ["17"], "roles": roles})),
        client(json!({"customer": true, "roles": roles})),
        client(json!({"customer": "17000000000000000000", "roles": roles})),
        client(json!({"customer": "19", "roles": roles})),
    ];
    let empty = client(json!({"customer": "19", "roles": roles}));
    for who in nobodies {
        let absent = empty.get(&larder, "/orders/11").await;
        for key in 1..=11 {
            let seen = who.get(&larder, &format!("/orders/{key}")).await;
            assert_eq!(learned(&seen), learned(&absent));
        }
        let list = who.get(&larder, "/orders").await;
        assert_eq!((list.status, &*list.body), (StatusCode::OK, "[]"));
        assert_eq!(list.header("link"), "");
        let batch = who.get(&larder, "/orders?keys=1,5,9,11").await;
        assert_eq!(batch.body, r#"{"documents":[],"missing":[1,5,9,11]}"#);
        assert_eq!(batch.cache_status(), "larder; fwd=miss");
    }
}

/// Claims are compared as keys are; a role that is not restricted sees everything.
#[tokio::test(flavor = "multi_thread")]
async fn claims_are_values_of_the_columns_type() {
    let larder = larder().await;
    for claim in [json!("17"), json!(17), json!("+0017")] {
        let who = client(json!({"customer": claim, "roles": ["customer"]}));
        let own = get_each(&larder, &who, "orders", &OWN).await;
        assert_eq!(status(&own), [200; 4]);
        let foreign = get_each(&larder, &who, "orders", &FOREIGN).await;
        assert_eq!(status(&foreign), [404; 4]);
        let hit = who.get(&larder, "/orders/1").await;
        assert_eq!(hit.cache_status(), "larder; hit; detail=memory");
    }
    let all = get_each(&larder, &staff(), "orders", &FOREIGN).await;
    assert_eq!(status(&all), [200; 4]);
}

/// Each spelling of a request gets the answer that an absent document gets.
#[tokio::test(flavor = "multi_thread")]
async fn no_header_and_no_spelling_tells_foreign_from_absent() {
    let larder = larder().await;
    warm(&larder, "orders").await;
    let etag = staff().get(&larder, "/orders/5").await;
    let etag = etag.header("etag").to_owned();
    let weak = format!("W/{etag}");
    let headers = [
        vec![],
        vec![("if-none-match", &*etag)],
        vec![("if-none-match", &*weak)],
        vec![("if-none-match", "*")],
        vec![("if-match", &*etag)],
        vec![("if-match", "*")],
        vec![("if-match", "\"other\"")],
        vec![("range", "bytes=0-3")],
        vec![("range", "bytes=9999-")],
        vec![("range", "bytes=0-3"), ("if-range", &*etag)],
        vec![("accept-encoding", "gzip")],
        vec![("accept-encoding", "br, zstd"), ("if-none-match", &*etag)],
    ];
    for method in [Method::GET, Method::HEAD] {
        for headers in &headers {
            for query in ["", "?fields=note", "?fields=id,note"] {
                let send = async |key: &str| {
                    let path = format!("/orders/{key}{query}");
                    let who = customer(17);
                    who.send(&larder, method.clone(), &path, headers, "").await
                };
                let absent = send("11").await;
                assert_eq!(absent.status, StatusCode::NOT_FOUND);
                for key in ["5", "+5", "%35", "9"] {
                    assert_eq!(learned(&send(key).await), learned(&absent), "{headers:?}");
                }
            }
        }
    }
}

/// Preconditions, ranges and encodings of one's own documents are those of everyone.
#[tokio::test(flavor = "multi_thread")]
async fn own_documents_are_read_as_by_everyone() {
    let larder = larder().await;
    let etag = staff().get(&larder, "/orders/1").await;
    let etag = etag.header("etag").to_owned();
    let headers = [
        vec![("if-none-match", &*etag)],
        vec![("if-match", &*etag)],
        vec![("if-match", "\"other\"")],
        vec![("range", "bytes=0-3")],
        vec![("accept-encoding", "gzip")],
        vec![("accept-encoding", "zstd")],
    ];
    let mut statuses = Vec::new();
    for headers in &headers {
        for path in [
            "/orders/1",
            "/orders/1?fields=note",
            "/disk/1",
            "/neither/1",
        ] {
            let get = async |who: Client| {
                let response = who.send(&larder, Method::GET, path, headers, "").await;
                let encoding = response.header("content-encoding").to_owned();
                (response.status, encoding, response.bytes)
            };
            let own = get(customer(17)).await;
            statuses.push(own.0.as_u16());
            assert_eq!(own, get(staff()).await, "{path} {headers:?}");
        }
    }
    for status in [200, 206, 304, 412] {
        assert!(statuses.contains(&status), "{status}");
    }
}

fn keys(documents: &Value) -> Vec<i64> {
    let documents = documents.as_array().unwrap().iter();
    documents
        .map(|document| document["id"].as_i64().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_name_foreign_documents_as_missing() {
    let larder = larder().await;
    for (resource, _) in RESOURCES {
        for is_warm in [false, true] {
            if is_warm {
                warm(&larder, resource).await;
            }
            let who = customer(17);
            let path = format!("/{resource}?keys=5,1,11,9,2,5,%2B1");
            let by_query = who.get(&larder, &path).await;
            let body = by_query.json();
            assert_eq!(keys(&body["documents"]), [1, 2, 1], "{resource}");
            assert_eq!(body["missing"], json!([5, 11, 9, 5]));
            let path = format!("/{resource}:batch");
            let text = r#"{"keys":[5,1,11,9,2,5,1]}"#;
            let by_body = who.send(&larder, Method::POST, &path, &[], text).await;
            assert_eq!(by_body.body, by_query.body);
            // Until the disk tier has both documents, the answers may differ.
            eventually("what others have does not count", async || {
                let get = async |keys: &str| {
                    let path = format!("/{resource}?keys={keys}");
                    who.get(&larder, &path).await
                };
                let (visible, mixed) = (get("1,2").await, get("1,5,2").await);
                assert_eq!(mixed.header("cache-control"), "private, max-age=5");
                (mixed.cache_status() == visible.cache_status()).then_some(())
            })
            .await;
            let fields = format!("/{resource}?keys=1,5&fields=id");
            let fields = who.get(&larder, &fields).await;
            assert_eq!(fields.body, r#"{"documents":[{"id":1}],"missing":[5]}"#);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_have_own_documents_and_full_pages() {
    let larder = larder().await;
    larder
        .execute("update orders set customer_id = 17 where id in (6, 8, 10)")
        .await;
    for (resource, _) in RESOURCES {
        let who = customer(17);
        let mut path = format!("/{resource}?limit=3&fields=id");
        for expected in [&[1, 2, 3][..], &[4, 6, 8], &[10]] {
            let page = who.get(&larder, &path).await;
            assert_eq!(keys(&page.json()), expected, "{path}");
            assert_eq!(page.header("cache-control"), "private, max-age=5");
            let link = page.header("link").split(['<', '>']).nth(1);
            assert_eq!(link.is_some(), expected.len() == 3);
            path = link.unwrap_or_default().to_owned();
        }
        let note = format!("order%205{}", ".".repeat(3000));
        let filtered = format!("/{resource}?note=eq.{note}");
        assert_eq!(who.get(&larder, &filtered).await.body, "[]");
        assert_eq!(keys(&staff().get(&larder, &filtered).await.json()), [5]);
        // A page may begin after a foreign document.
        let after = format!("/{resource}?after=5&fields=id");
        assert_eq!(keys(&who.get(&larder, &after).await.json()), [6, 8, 10]);
    }
}

/// The tiers may have the document of the former owner when PostgreSQL has a new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_owner_counts_as_any_other_change() {
    let larder = larder().await;
    for (resource, _) in RESOURCES {
        warm(&larder, resource).await;
        let path = format!("/{resource}/2");
        let (one, other) = (customer(17), customer(18));
        for (from, to, owner) in [(&one, &other, "18"), (&other, &one, "17")] {
            assert_eq!(from.get(&larder, &path).await.status, StatusCode::OK);
            let update = format!("update orders set customer_id = {owner} where id = 2");
            larder.execute(&update).await;
            // PostgreSQL decides what its new owner sees, so it waits for no pass.
            let seen = to.get(&larder, &path).await;
            assert_eq!(seen.status, StatusCode::OK, "{resource}");
            let list = to.get(&larder, &format!("/{resource}?fields=id")).await;
            assert!(keys(&list.json()).contains(&2));
            eventually("it is foreign", async || {
                let seen = from.get(&larder, &path).await;
                (seen.status == StatusCode::NOT_FOUND).then_some(())
            })
            .await;
        }
        larder
            .execute("update orders set customer_id = null where id = 2")
            .await;
        eventually("nobody owns it", async || {
            let seen = one.get(&larder, &path).await;
            (seen.status == StatusCode::NOT_FOUND).then_some(())
        })
        .await;
        assert_eq!(staff().get(&larder, &path).await.status, StatusCode::OK);
        larder
            .execute("update orders set customer_id = 17 where id = 2")
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_survive_on_disk_and_are_explained() {
    let larder = larder().await;
    warm(&larder, "orders").await;
    for (key, owner) in [(1, json!("17")), (5, json!("18")), (9, Value::Null)] {
        let path = format!("/orders/{key}");
        on_disk(&larder, &path).await;
        let explained = larder.admin(&format!("/explain{path}")).await.json();
        for tier in ["memory", "disk"] {
            assert_eq!(explained[tier]["owner"], owner, "{tier} {key}");
        }
    }
    let url = larder.url.clone();
    let larder = TestService::start_in(larder.stop().await, &url, &config(), &PROMPT).await;
    eventually("the disk tier answers", async || {
        let own = customer(17).get(&larder, "/orders/1").await;
        assert_eq!(own.status, StatusCode::OK);
        (own.cache_status() == "larder; hit; detail=disk").then_some(())
    })
    .await;
    assert_eq!(
        customer(17).get(&larder, "/orders/5").await.status,
        StatusCode::NOT_FOUND
    );
    // Under another owner's column the content on disk is of no use.
    execute(&url, "alter table orders add other bigint default 18").await;
    let moved = resources().replace("'customer_id'", "'other'");
    let other = config().replace(&resources(), &moved);
    let larder = TestService::start_in(larder.stop().await, &url, &other, &PROMPT).await;
    let seen = customer(18).get(&larder, "/orders/1").await;
    assert_eq!(seen.status, StatusCode::OK);
    assert_eq!(
        customer(17).get(&larder, "/orders/1").await.status,
        StatusCode::NOT_FOUND
    );
}

/// Read your writes: a token of a write that made one the owner.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_shows_what_was_written() {
    let larder = larder().await;
    for (resource, _) in RESOURCES {
        warm(&larder, resource).await;
        let body = r#"{"id":2,"note":"new"}"#;
        let path = format!("/{resource}/2");
        let json = [("content-type", "application/json")];
        let written = staff().send(&larder, Method::PUT, &path, &json, body).await;
        let token = written.header("larder-token").to_owned();
        assert!(!token.is_empty(), "{}", written.body);
        let with_token = [("larder-token", &*token)];
        let get = async |who: Client| who.send(&larder, Method::GET, &path, &with_token, "").await;
        let own = get(customer(17)).await;
        assert_eq!(own.body, body, "{resource}");
        let foreign = get(customer(18)).await;
        let absent = customer(18).get(&larder, &format!("/{resource}/11")).await;
        assert_eq!(learned(&foreign), learned(&absent));
    }
}

/// A document that can't be read is an error for those that see it. For others PostgreSQL is not asked for the document,
/// whose reading would take its time.
#[tokio::test(flavor = "multi_thread")]
async fn foreign_documents_are_never_read() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let long = "update orders set note = repeat('x', 5000) where id in (1, 5)";
    execute(&url, long).await;
    let config = format!("document_max = '4KiB'\n{}", config());
    let larder = TestService::start_on(&url, &config, &PROMPT).await;
    let loads = async || larder.metric("larder_source_batch_keys_count").await;
    for (resource, _) in RESOURCES {
        let before = loads().await;
        let who = customer(17);
        let foreign = get_each(&larder, &who, resource, &FOREIGN).await;
        let absent = who.get(&larder, &format!("/{resource}/11")).await;
        for other in &foreign {
            assert_eq!(learned(other), learned(&absent), "{resource}");
        }
        let batch = who.get(&larder, &format!("/{resource}?keys=5,9,11")).await;
        assert_eq!(batch.json()["missing"], json!([5, 9, 11]));
        assert!(loads().await == before, "{resource}");
        for key in [1, 5] {
            let seen = staff().get(&larder, &format!("/{resource}/{key}")).await;
            assert_eq!(seen.status, StatusCode::INTERNAL_SERVER_ERROR);
        }
        let own = who.get(&larder, &format!("/{resource}/1")).await;
        assert_eq!(own.status, StatusCode::INTERNAL_SERVER_ERROR);
        let batch = who.get(&larder, &format!("/{resource}?keys=1,5,11")).await;
        assert_eq!(batch.json()["missing"], json!([5, 11]));
        assert_eq!(batch.json()["unreadable"], json!([1]));
        let list = who.get(&larder, &format!("/{resource}?fields=id")).await;
        assert_eq!(keys(&list.json()), [2, 3, 4]);
        assert_eq!(list.header("larder-unreadable"), "1");
    }
}
