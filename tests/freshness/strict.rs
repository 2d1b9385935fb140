//! Strict reads: `Cache-Control: no-cache` makes an answer reflect all that had committed when the request arrived.

use axum::http::{Method, StatusCode};
use futures_util::future::join_all;
use testkit::fault_proxy::{FaultProxy, NetworkFault};

use crate::freshness::testbed::is_hit;
use crate::harness::cluster::{TestCluster, has_statement_statistics, start_postgres};
use crate::harness::service::{TestResponse, TestService, execute};
use crate::harness::{eventually, reachable_directory};

const SCHEMA: &str = "create table item (id int primary key, label text, code text not null unique); \
    insert into item select n, 'old', 'C' || n from generate_series(1, 20) n";

const CONFIG: &str = "[[resource]]\nname = 'items'\ntable = 'item'\n\
    [[resource.by]]\nname = 'code'\ncolumns = ['code']\n\
    [[resource]]\nname = 'lax'\ntable = 'item'\nstrict_reads = false\n";

/// Finds no change by itself for longer than a test takes.
const SLEEPY: &str = "[feed]\nnotify = false\npoll_interval = '5min'\nmax_staleness = '10min'\n";

const STRICT: (&str, &str) = ("cache-control", "no-cache");
const CACHED: (&str, &str) = ("cache-control", "only-if-cached");

const HIT: &str = "larder; hit; detail=memory; strict";

async fn warm(larder: &TestService, path: &str) {
    eventually("a hit", async || {
        is_hit(&larder.get(path).await).then_some(())
    })
    .await;
}

async fn get(larder: &TestService, path: &str, headers: &[(&str, &str)]) -> TestResponse {
    larder.request(Method::GET, path, headers).await
}

async fn strict(larder: &TestService, path: &str) -> TestResponse {
    let answer = get(larder, path, &[STRICT]).await;
    assert!(answer.cache_status().ends_with("; strict"), "{answer:?}");
    answer
}

/// The statements that have read documents.
async fn statements(larder: &TestService) -> f64 {
    larder.metric("larder_source_batch_keys_count").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strict_read_reflects_all_commits_and_what_is_unchanged_is_a_hit() {
    let larder = TestService::start(SCHEMA, &format!("{SLEEPY}{CONFIG}")).await;
    for key in 1..=4 {
        warm(&larder, &format!("/items/{key}")).await;
    }
    warm(&larder, "/lax/1").await;
    larder.feed_rests().await;
    let update = "update item set label = 'new' where id = 1";
    execute(&larder.url, update).await;
    for ignored in [("cache-control", "max-age=1"), ("pragma", "no-cache")] {
        let answer = get(&larder, "/items/1", &[ignored]).await;
        assert_eq!(answer.cache_status(), "larder; hit; detail=memory");
        assert!(answer.body.contains("old"), "{}", answer.body);
    }
    let answer = get(&larder, "/lax/1", &[STRICT]).await;
    assert!(is_hit(&answer) && answer.body.contains("old"), "{answer:?}");
    let lines = [
        ("cache-control", "no-store"),
        ("Cache-Control", "Max-Age=\"0\""),
    ];
    let answer = get(&larder, "/items/1", &lines).await;
    assert!(answer.body.contains("new"), "{}", answer.body);
    assert!(answer.cache_status().ends_with("; strict"), "{answer:?}");

    // Unchanged documents are hits, by key, by alias and in a batch; of a page PostgreSQL says the keys.
    assert!(
        strict(&larder, "/items/by/code/C2")
            .await
            .body
            .contains("old")
    );
    // On a busy machine no pass may come within 100 ms.
    eventually("hits without a statement", async || {
        let before = statements(&larder).await;
        for path in [
            "/items/1",
            "/items/2",
            "/items/by/code/C2",
            "/items?keys=1,2,3",
        ] {
            if strict(&larder, path).await.cache_status() != HIT {
                return None;
            }
        }
        strict(&larder, "/items?limit=4").await;
        (statements(&larder).await == before).then_some(())
    })
    .await;

    // Every read after a commit shows it: the position moves, or a trigger was disabled.
    for label in 0..20 {
        let trigger = ["", "alter table item disable trigger all; "][label % 2];
        let update = format!("{trigger}update item set label = 'label {label}'");
        execute(&larder.url, &update).await;
        let path = [
            "/items/1",
            "/items/by/code/C3",
            "/items?keys=1,2,3",
            "/items?limit=4",
        ][label / 2 % 4];
        let answer = strict(&larder, path).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        assert!(
            answer.body.contains(&format!("label {label}\"")),
            "{path}: {answer:?}"
        );
        assert!(
            !answer
                .body
                .contains(&format!("label {}\"", label.wrapping_sub(1)))
        );
    }
    assert!(larder.metric("larder_strict_wait_seconds_count").await > 20.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_if_cached_is_answered_by_tiers_alone() {
    let larder = TestService::start(SCHEMA, &format!("{SLEEPY}{CONFIG}")).await;
    for key in 1..=2 {
        warm(&larder, &format!("/items/{key}")).await;
    }
    let before = statements(&larder).await;
    for path in ["/items/1", "/items?keys=1,2"] {
        let answer = get(&larder, path, &[CACHED]).await;
        assert_eq!(answer.cache_status(), "larder; hit; detail=memory");
        eventually("a strict hit", async || {
            let answer = get(&larder, path, &[CACHED, STRICT]).await;
            (answer.cache_status() == HIT).then_some(())
        })
        .await;
    }
    for path in ["/items/3", "/items?keys=1,3", "/items", "/items/by/code/C1"] {
        for headers in [&[CACHED][..], &[CACHED, STRICT]] {
            let answer = get(&larder, path, headers).await;
            assert_eq!(answer.status, StatusCode::GATEWAY_TIMEOUT, "{path}");
        }
    }
    // The alias has a hint then.
    larder.get("/items/by/code/C1").await;
    assert!(is_hit(&get(&larder, "/items/by/code/C1", &[CACHED]).await));
    assert_eq!(statements(&larder).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_feed_postgres_answers_and_nothing_stale_is_served() {
    let database = TestCluster::database().await;
    execute(&database.url, SCHEMA).await;
    let feed = FaultProxy::start(&database.url).await.unwrap();
    let reads = FaultProxy::start(&database.url).await.unwrap();
    let settings = [
        ("database.listen_url", &*feed.url),
        ("feed.max_staleness", "60s"),
        ("feed.on_loss", "serve-stale"),
    ];
    let larder = TestService::start_on(&reads.url, CONFIG, &settings).await;
    warm(&larder, "/items/1").await;
    for fault in [NetworkFault::BlackHole, NetworkFault::Cut] {
        feed.set(fault);
        // What the feed does not see.
        let update = format!("update item set label = '{fault:?}'");
        execute(&database.url, &update).await;
        let answer = strict(&larder, "/items/1").await;
        assert_eq!(
            answer.cache_status(),
            "larder; fwd=bypass; detail=feed; strict"
        );
        assert!(
            answer.body.contains(&format!("{fault:?}")),
            "{}",
            answer.body
        );
        let alias = strict(&larder, "/items/by/code/C2").await;
        assert!(alias.body.contains(&format!("{fault:?}")), "{}", alias.body);
    }
    reads.set(NetworkFault::Cut);
    eventually("only stale documents", async || {
        let answer = larder.get("/items/1").await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        let strict = get(&larder, "/items/1", &[STRICT]).await;
        (strict.status == StatusCode::SERVICE_UNAVAILABLE).then_some(())
    })
    .await;
}

/// Reads that wait for the comparison of a definition did not each send a statement.
#[tokio::test(flavor = "multi_thread")]
async fn one_comparison_of_a_fingerprint_serves_all_reads_that_wait() {
    const READS: usize = 20;
    if !has_statement_statistics().await {
        return;
    }
    let base = reachable_directory();
    let library = ("shared_preload_libraries", "pg_stat_statements");
    let postgres = start_postgres(base.path(), &[library]).await;
    let url = postgres.url();
    execute(
        url,
        &format!("create extension pg_stat_statements; {SCHEMA}"),
    )
    .await;
    let feed = FaultProxy::start(url).await.unwrap();
    let settings = [
        ("database.listen_url", &*feed.url),
        ("feed.max_staleness", "60s"),
    ];
    let larder = TestService::start_on(url, CONFIG, &settings).await;
    warm(&larder, "/items/1").await;
    feed.set(NetworkFault::Cut);
    eventually("the feed is lost", async || {
        let answer = strict(&larder, "/items/1").await;
        answer.cache_status().contains("bypass").then_some(())
    })
    .await;
    let mut connection = larder.connect().await;
    let comparisons = "select coalesce(sum(calls), 0)::int8 from pg_stat_statements where query like '%hashtextextended%'";
    let count = sqlx::query_scalar::<_, i64>(comparisons);
    let before = count.fetch_one(&mut connection).await.unwrap();
    let metric = "larder_strict_reads_total{answer=\"postgres\"}";
    let arrived = larder.metric(metric).await;
    // The first comparison, which waits for a lock, has begun before the other reads arrive: it proves nothing to them.
    let begin = "begin; lock table pg_trigger in access exclusive mode";
    sqlx::raw_sql(begin).execute(&mut connection).await.unwrap();
    let first = strict(&larder, "/items/1");
    let others = join_all((0..READS).map(|number| {
        let paths = ["/items/1", "/items/by/code/C2", "/items?keys=1,2", "/items"];
        strict(&larder, paths[number % paths.len()])
    }));
    let (first, others, ()) = tokio::join!(
        first,
        async {
            blocked_comparisons(&larder).await;
            others.await
        },
        async {
            eventually("all reads wait", async || {
                let all = larder.metric(metric).await - arrived;
                (all == 1.0 + READS as f64).then_some(())
            })
            .await;
            assert_eq!(blocked_comparisons(&larder).await, 1);
            sqlx::raw_sql("commit")
                .execute(&mut connection)
                .await
                .unwrap();
        }
    );
    for answer in others.iter().chain([&first]) {
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    }
    let count = sqlx::query_scalar::<_, i64>(comparisons);
    assert_eq!(count.fetch_one(&mut connection).await.unwrap() - before, 2);
}

/// How many comparisons of fingerprints wait for a lock, once there is one.
async fn blocked_comparisons(larder: &TestService) -> i64 {
    let mut connection = larder.connect().await;
    eventually("a comparison that waits", async || {
        let waiting =
            "select count(*) from pg_locks where relation = 'pg_trigger'::regclass and not granted";
        let count: i64 = sqlx::query_scalar(waiting)
            .fetch_one(&mut connection)
            .await
            .unwrap();
        (count > 0).then_some(count)
    })
    .await
}
