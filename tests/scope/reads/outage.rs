//! Reads while PostgreSQL is out of reach.

use axum::http::{Method, StatusCode};
use futures_util::future::join_all;
use testkit::fault_proxy::{FaultProxy, NetworkFault};
use tokio::time::Instant;

use super::{Client, RESOURCES, SCHEMA, config, customer, learned, staff};
use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestResponse, TestService, execute};

/// A larder behind a proxy whose tiers have orders 1, 2, 5 and 6, and know that 11 is absent. It stays fresh for long.
async fn warmed(overrides: &[(&str, &str)]) -> (TestService, FaultProxy) {
    let database = TestCluster::database().await;
    execute(&database.url, SCHEMA).await;
    let proxy = FaultProxy::start(&database.url).await.unwrap();
    let larder = TestService::start_on(&proxy.url, &config(), overrides).await;
    warm(&larder).await;
    (larder, proxy)
}

/// The same whose feed and whose reads have a proxy each, and the database's direct URL.
async fn warmed_apart(overrides: &[(&str, &str)]) -> (TestService, FaultProxy, FaultProxy, String) {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let feed = FaultProxy::start(&url).await.unwrap();
    let reads = FaultProxy::start(&url).await.unwrap();
    let settings = [&[("database.listen_url", &*feed.url)], overrides].concat();
    let larder = TestService::start_on(&reads.url, &config(), &settings).await;
    warm(&larder).await;
    (larder, feed, reads, url)
}

pub(super) async fn warm(larder: &TestService) {
    for resource in ["orders", "memory", "disk"] {
        for key in [1, 2, 5, 6, 11] {
            staff().get(larder, &format!("/{resource}/{key}")).await;
        }
    }
    for path in ["/orders/11", "/disk/11"] {
        eventually("on disk", async || {
            let explained = larder.admin(&format!("/explain{path}")).await.json();
            (!explained["disk"].is_null()).then_some(())
        })
        .await;
    }
}

pub(super) const LASTING: [(&str, &str); 3] = [
    ("feed.max_staleness", "60s"),
    ("feed.poll_interval", "20ms"),
    ("disk.linger", "1ms"),
];

/// What a client learns of a document that the tiers have, of one that they have not, and of an absent one.
async fn of_others(larder: &TestService, who: &Client, resource: &str) -> Vec<TestResponse> {
    let mut responses = Vec::new();
    for key in [5, 8, 11, 12] {
        responses.push(who.get(larder, &format!("/{resource}/{key}")).await);
    }
    responses
}

#[tokio::test(flavor = "multi_thread")]
async fn own_documents_of_the_tiers_are_served_and_others_are_not_told_apart() {
    let (larder, proxy) = warmed(&LASTING).await;
    proxy.set(NetworkFault::Cut);
    let who = customer(17);
    for (resource, tier) in [("orders", "memory"), ("memory", "memory"), ("disk", "disk")] {
        let own = who.get(&larder, &format!("/{resource}/1")).await;
        assert_eq!(own.status, StatusCode::OK, "{resource}");
        let hit = format!("larder; hit; detail={tier}");
        assert_eq!(own.cache_status(), hit);
        let others = of_others(&larder, &who, resource).await;
        for other in &others {
            assert_eq!(learned(other), learned(&others[0]), "{resource}");
        }
        assert_eq!(others[0].status, StatusCode::SERVICE_UNAVAILABLE);
        // Those that see all documents are served what the tiers have.
        let seen = staff().get(&larder, &format!("/{resource}/5")).await;
        assert_eq!(seen.status, StatusCode::OK);
        let batch = who.get(&larder, &format!("/{resource}?keys=1,2")).await;
        assert_eq!(batch.status, StatusCode::OK);
        let mixed = [
            who.get(&larder, &format!("/{resource}?keys=1,5")).await,
            who.get(&larder, &format!("/{resource}?keys=1,11")).await,
        ];
        assert_eq!(learned(&mixed[0]), learned(&mixed[1]));
        assert_eq!(mixed[0].status, StatusCode::SERVICE_UNAVAILABLE);
    }
    // Who owns nothing needs no PostgreSQL to learn that.
    let anonymous = Client(None).get(&larder, "/orders/1").await;
    assert_eq!(anonymous.status, StatusCode::NOT_FOUND);
    proxy.set(NetworkFault::None);
    eventually("PostgreSQL decides again", async || {
        let other = who.get(&larder, "/disk/5").await;
        (other.status == StatusCode::NOT_FOUND).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_documents_are_served_to_their_owners_alone() {
    let stale = [
        ("feed.on_loss", "serve-stale"),
        ("feed.max_staleness", "400ms"),
        ("feed.poll_interval", "20ms"),
        ("disk.linger", "1ms"),
    ];
    let (larder, proxy) = warmed(&stale).await;
    let by_number = async |who: &Client, resource: &str| {
        who.get(&larder, &format!("/{resource}/by/number/N%2F1"))
            .await
    };
    let who = customer(17);
    for (resource, _) in RESOURCES {
        by_number(&who, resource).await;
    }
    proxy.set(NetworkFault::Cut);
    for resource in ["orders", "memory", "disk"] {
        eventually("a stale document", async || {
            let own = who.get(&larder, &format!("/{resource}/1")).await;
            assert_eq!(own.status, StatusCode::OK, "{resource}");
            (own.cache_status() == "larder; hit; detail=stale").then_some(())
        })
        .await;
        let seen = staff().get(&larder, &format!("/{resource}/5")).await;
        assert_eq!(seen.cache_status(), "larder; hit; detail=stale");
        let own = by_number(&who, resource).await;
        // Hints are in memory.
        match resource {
            "disk" => assert_eq!(own.status, StatusCode::SERVICE_UNAVAILABLE),
            _ => assert_eq!(own.cache_status(), "larder; hit; detail=stale"),
        }
        let others = of_others(&larder, &who, resource).await;
        for other in &others {
            assert_eq!(learned(other), learned(&others[0]), "{resource}");
            assert_eq!(other.status, StatusCode::SERVICE_UNAVAILABLE);
        }
    }
}

/// The lookup on disk, which only a document that is there needs, does not show in the time of the error.
#[tokio::test(flavor = "multi_thread")]
async fn errors_come_no_sooner_for_documents_that_no_tier_has() {
    let (larder, proxy) = warmed(&LASTING).await;
    proxy.set(NetworkFault::Cut);
    for key in [5, 12] {
        for method in [Method::GET, Method::HEAD] {
            let began = Instant::now();
            let path = format!("/disk/{key}");
            let other = customer(17).send(&larder, method, &path, &[], "").await;
            assert_eq!(other.status, StatusCode::SERVICE_UNAVAILABLE);
            assert!(began.elapsed().as_millis() >= 250);
        }
    }
}

/// A strict read of a restricted client that neither a pass nor PostgreSQL covers is no stale document.
#[tokio::test(flavor = "multi_thread")]
async fn strict_reads_of_owners_are_never_stale() {
    let stale = [
        ("feed.on_loss", "serve-stale"),
        ("feed.max_staleness", "60s"),
        ("disk.linger", "1ms"),
    ];
    let (larder, feed, reads, url) = warmed_apart(&stale).await;
    let who = customer(17);
    let strict = async |key: &str, resource: &str| {
        let path = format!("/{resource}/{key}");
        let headers = [("cache-control", "no-cache")];
        who.send(&larder, Method::GET, &path, &headers, "").await
    };
    for (resource, _) in RESOURCES {
        who.get(&larder, &format!("/{resource}/by/number/N%2F1"))
            .await;
    }
    feed.set(NetworkFault::Cut);
    execute(&url, "update orders set note = 'new'").await;
    for (resource, _) in RESOURCES {
        for key in ["1", "by/number/N%2F1"] {
            let answer = strict(key, resource).await;
            assert_eq!(answer.status, StatusCode::OK, "{resource}/{key}");
            assert_eq!(answer.json()["note"], "new", "{resource}/{key}");
        }
        for key in ["5", "11", "12"] {
            let other = strict(key, resource).await;
            assert_eq!(other.status, StatusCode::NOT_FOUND, "{resource}/{key}");
        }
    }
    reads.set(NetworkFault::Cut);
    for resource in ["orders", "memory", "disk"] {
        let own = who.get(&larder, &format!("/{resource}/1")).await;
        assert_eq!(
            own.status,
            StatusCode::OK,
            "the tiers have it: {}",
            own.body
        );
        let absent = strict("12", resource).await;
        assert_eq!(absent.status, StatusCode::SERVICE_UNAVAILABLE);
        for key in ["1", "2", "5", "11"] {
            assert_eq!(learned(&strict(key, resource).await), learned(&absent));
        }
        let alias = strict("by/number/N%2F1", resource).await;
        assert_eq!(alias.status, StatusCode::SERVICE_UNAVAILABLE);
    }
}

/// While the feed was behind, owners' finds and aliases were read by the definition of before.
#[tokio::test(flavor = "multi_thread")]
async fn reads_of_owners_past_the_tiers_use_no_definition_of_before() {
    let settings = [
        ("feed.max_staleness", "400ms"),
        ("feed.poll_interval", "20ms"),
        ("request_timeout", "1s"),
    ];
    let (larder, feed, _reads, url) = warmed_apart(&settings).await;
    feed.set(NetworkFault::Cut);
    let altered = "alter table orders rename note to text; alter table orders add column note text default 'other'";
    execute(&url, altered).await;
    let clients = [customer(17), staff()];
    let paths = [
        "1",
        "by/number/N%2F1",
        "?by=number&keys=N%2F1",
        "?keys=1",
        "",
    ];
    let get = async |who: &Client, path: &str| {
        let path = format!("/orders/{path}").replace("/?", "?");
        who.get(&larder, path.trim_end_matches('/')).await
    };
    eventually("not the old form", async || {
        let answer = get(&clients[0], "1").await;
        (answer.status == StatusCode::SERVICE_UNAVAILABLE).then_some(())
    })
    .await;
    let reads = clients.iter().flat_map(|who| paths.map(|path| (who, path)));
    for (path, answer) in join_all(
        reads
            .clone()
            .map(async |(who, path)| (path, get(who, path).await)),
    )
    .await
    {
        assert_eq!(
            answer.status,
            StatusCode::SERVICE_UNAVAILABLE,
            "{path}: {}",
            answer.body
        );
        assert_eq!(answer.header("retry-after"), "1");
    }
    feed.set(NetworkFault::None);
    for (who, path) in reads {
        eventually("the new form", async || {
            let answer = get(who, path).await;
            if answer.status == StatusCode::SERVICE_UNAVAILABLE {
                return None;
            }
            assert!(
                answer.body.contains(r#""note":"other""#),
                "{path}: {}",
                answer.body
            );
            Some(())
        })
        .await;
    }
}
