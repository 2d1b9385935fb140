//! Aliases of documents that have owners.

use axum::http::{Method, StatusCode};
use serde_json::json;
use testkit::fault_proxy::{FaultProxy, NetworkFault};

use super::{Client, RESOURCES, SCHEMA, config, customer, larder, learned, staff};
use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestResponse, TestService, execute};

fn path(resource: &str, order: u32) -> String {
    format!("/{resource}/by/number/N%2F{order}")
}

/// Has memory know where the aliases of all orders lead.
async fn warm(larder: &TestService, resource: &str) {
    for order in 1..=10 {
        let seen = staff().get(larder, &path(resource, order)).await;
        assert_eq!(seen.status, StatusCode::OK, "{}", seen.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn aliases_of_foreign_documents_lead_nowhere() {
    let larder = larder().await;
    for (resource, _) in RESOURCES {
        for is_warm in [false, true] {
            if is_warm {
                warm(&larder, resource).await;
            }
            for who in [customer(17), Client(None)] {
                let absent = who.get(&larder, &path(resource, 11)).await;
                assert_eq!(absent.status, StatusCode::NOT_FOUND);
                assert_eq!(absent.cache_status(), "larder; fwd=miss");
                for order in [5, 9, 12] {
                    let other = who.get(&larder, &path(resource, order)).await;
                    assert_eq!(learned(&other), learned(&absent), "{resource}");
                }
            }
            let own = customer(17).get(&larder, &path(resource, 1)).await;
            let by_key = staff().get(&larder, &format!("/{resource}/1")).await;
            assert_eq!((own.status, own.body), (StatusCode::OK, by_key.body));
            let query = "?by=number&keys=N%2F1,N%2F5,N%2F11,N%2F9,N%2F2&fields=id";
            let batch = format!("/{resource}{query}");
            let batch = customer(17).get(&larder, &batch).await;
            let expected = json!({
                "documents": [{"id": 1}, {"id": 2}],
                "missing": ["N/5", "N/11", "N/9"]
            });
            assert_eq!(batch.json(), expected, "{resource}");
            // Until the disk tier has both documents, the answers may differ.
            eventually("what others have does not count", async || {
                let status = async |keys: &str| {
                    let path = format!("/{resource}?by=number&keys={keys}");
                    let batch = customer(17).get(&larder, &path).await;
                    batch.cache_status().to_owned()
                };
                let visible = status("N%2F1,N%2F2").await;
                (status("N%2F1,N%2F5,N%2F2").await == visible).then_some(())
            })
            .await;
        }
    }
    let hit = customer(17).get(&larder, &path("memory", 1)).await;
    assert_eq!(hit.cache_status(), "larder; hit; detail=memory");
}

/// A number that goes over to another document, and a document that goes over to another owner.
#[tokio::test(flavor = "multi_thread")]
async fn aliases_and_owners_change_independently() {
    let larder = larder().await;
    for (resource, _) in RESOURCES {
        warm(&larder, resource).await;
        let seen = async |customer_number: u32, order: u32| {
            let path = path(resource, order);
            customer(customer_number).get(&larder, &path).await
        };
        larder
            .execute(
                "begin; update orders set number = 'x' where id = 1; \
                 update orders set number = 'N/1' where id = 5; update orders set number = 'N/5' where id = 1; commit",
            )
            .await;
        // PostgreSQL decides, so its new owner waits for no pass.
        assert_eq!(seen(18, 1).await.json()["id"], 5, "{resource}");
        assert_eq!(seen(17, 5).await.json()["id"], 1);
        eventually("it leads to a foreign document", async || {
            (seen(17, 1).await.status == StatusCode::NOT_FOUND).then_some(())
        })
        .await;
        larder
            .execute("update orders set customer_id = 18 where id = 1")
            .await;
        assert_eq!(seen(18, 5).await.json()["id"], 1, "{resource}");
        eventually("it is foreign", async || {
            (seen(17, 5).await.status == StatusCode::NOT_FOUND).then_some(())
        })
        .await;
        larder
            .execute(
                "begin; update orders set number = 'x' where id = 1; update orders set number = 'N/5' where id = 5; \
                 update orders set number = 'N/1', customer_id = 17 where id = 1; commit",
            )
            .await;
        eventually("it is as before", async || {
            let (one, five) = (seen(17, 1).await, seen(18, 5).await);
            let is_as_before = one.status == StatusCode::OK
                && one.json()["id"] == 1
                && five.status == StatusCode::OK
                && five.json()["id"] == 5;
            is_as_before.then_some(())
        })
        .await;
    }
}

/// Where the hints of others lead is not read for a client that may not see it.
#[tokio::test(flavor = "multi_thread")]
async fn hints_of_others_cause_no_reads() {
    let larder = larder().await;
    let loads = async || larder.metric("larder_source_batch_keys_count").await;
    for (resource, _) in RESOURCES {
        warm(&larder, resource).await;
        larder.post_admin(&format!("/purge/{resource}/5")).await;
        let before = loads().await;
        let other = customer(17).get(&larder, &path(resource, 5)).await;
        assert_eq!(other.status, StatusCode::NOT_FOUND);
        assert!(loads().await == before, "{resource}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_postgres_hints_lead_to_own_documents_alone() {
    let database = TestCluster::database().await;
    execute(&database.url, SCHEMA).await;
    let proxy = FaultProxy::start(&database.url).await.unwrap();
    let lasting = [
        ("feed.max_staleness", "60s"),
        ("feed.poll_interval", "20ms"),
        ("disk.linger", "1ms"),
    ];
    let larder = TestService::start_on(&proxy.url, &config(), &lasting).await;
    warm(&larder, "orders").await;
    let who = customer(17);
    who.get(&larder, &path("orders", 1)).await;
    proxy.set(NetworkFault::Cut);
    let own = who.get(&larder, &path("orders", 1)).await;
    assert_eq!(own.cache_status(), "larder; hit; detail=memory");
    let mut others: Vec<TestResponse> = Vec::new();
    for order in [5, 9, 11] {
        for method in [Method::GET, Method::GET] {
            let path = path("orders", order);
            others.push(who.send(&larder, method, &path, &[], "").await);
        }
    }
    for other in &others {
        assert_eq!(other.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(learned(other), learned(&others[0]));
    }
    // The hints of others are theirs.
    let unasked = who.get(&larder, &path("orders", 2)).await;
    assert_eq!(learned(&unasked), learned(&others[0]));
    let seen = staff().get(&larder, &path("orders", 5)).await;
    assert_eq!(seen.cache_status(), "larder; hit; detail=memory");
}
