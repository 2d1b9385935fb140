//! The admin address.

mod dashboard;

use axum::http::{Method, StatusCode};
use tempfile::TempDir;
use testkit::http::Request;

use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::larder_process::LarderProcess;
use crate::harness::raw_http::{fetch, send};
use crate::harness::service::{TestResponse, TestService, execute};

const SCHEMA: &str = "
    create table item (id bigint primary key, title text);
    insert into item values (42, 'answer'), (7, 'seven');
    create table tag (name text primary key);
    insert into tag values ('a/b'), (''), ('secret-key')";

const CONFIG: &str = "
    [[resource]]
    name = 'items'
    table = 'item'
    [[resource]]
    name = 'tags'
    table = 'tag'";

const MISS: &str = "larder; fwd=miss; stored; detail=postgres";
const MEMORY: &str = "larder; hit; detail=memory";

async fn larder() -> TestService {
    larder_with(&[]).await
}

/// The same with further settings.
async fn larder_with(overrides: &[(&str, &str)]) -> TestService {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let all = [&[("disk.linger", "1ms")], overrides].concat();
    TestService::start_on(&url, CONFIG, &all).await
}

#[track_caller]
fn assert_problem(answer: &TestResponse, status: u16) {
    assert_eq!(answer.status.as_u16(), status, "{answer:?}");
    let media_type = answer.header("content-type");
    assert_eq!(media_type, "application/problem+json", "{answer:?}");
    assert_eq!(answer.json()["status"], status);
    assert!(!answer.json()["detail"].as_str().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_readiness_are_two_things() {
    let config = "[[resource]]\nname = 'items'\ntable = 'item'";
    // Nothing listens there.
    let url = "postgres://app:s3cret@127.0.0.1:1/app";
    let larder = TestService::begin_in(TempDir::new().unwrap(), url, config, &[]);
    assert_eq!(larder.admin("/healthz").await.status, StatusCode::OK);
    let reason = eventually("a reason", async || {
        let answer = larder.admin("/readyz").await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        answer
            .body
            .contains("cannot be reached")
            .then_some(answer.body)
    })
    .await;
    assert!(!reason.contains("s3cret"), "{reason}");
    for path in ["/status", "/metrics", "/explain/items/1", "/purge/items/1"] {
        assert!(!larder.admin(path).await.body.contains("s3cret"), "{path}");
    }

    let larder = self::larder().await;
    assert_eq!(larder.admin("/healthz").await.status, StatusCode::OK);
    let ready = larder.admin("/readyz").await;
    assert_eq!(
        (ready.status, ready.body.as_str()),
        (StatusCode::OK, "ready\n")
    );
    let head = larder.request_admin(Method::HEAD, "/readyz").await;
    assert_eq!(head.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_have_the_names_of_the_interface_and_no_key() {
    let larder = larder().await;
    for path in [
        "/items/42",
        "/items/42",
        "/tags/secret-key",
        "/tags/secret-absent",
        "/secret-resource/1",
        "/items/secret-malformed",
    ] {
        larder.get(path).await;
    }
    larder.execute("update item set title = 'new'").await;
    let metrics = eventually("metrics of the update and the write to disk", async || {
        let body = larder.admin("/metrics").await.body;
        let all = !body.contains("larder_invalidation_lag_seconds_count 0")
            && !body.contains("larder_disk_batch_entries_count 0");
        all.then_some(body)
    })
    .await;
    for line in [
        "larder_requests_total{detail=\"memory\",resource=\"items\",status=\"200\"} 1",
        "larder_requests_total{detail=\"postgres\",resource=\"tags\",status=\"404\"} 1",
        "larder_requests_total{detail=\"request\",resource=\"\",status=\"404\"} 1",
        "larder_requests_total{detail=\"request\",resource=\"items\",status=\"400\"} 1",
        "larder_request_duration_seconds_count{detail=\"memory\"} 1",
        "larder_request_duration_seconds_count{detail=\"postgres\"} 3",
        "larder_request_duration_seconds_count{detail=\"request\"} 2",
        "larder_tier_bytes{tier=\"memory\"} ",
        "larder_tier_bytes{tier=\"disk\"} ",
        "larder_tier_entries{tier=\"memory\"} ",
        "larder_tier_entries{tier=\"disk\"} ",
        "larder_tier_max_bytes{tier=\"memory\"} 268435456",
        "larder_tier_max_bytes{tier=\"disk\"} 4294967296",
        "larder_source_connections{pool=\"read\",state=\"idle\"} 1",
        "larder_source_connections{pool=\"read\",state=\"used\"} 0",
        "larder_evictions_total 0",
        "larder_lookups_total{outcome=\"memory\",resource=\"items\"} 1",
        "larder_lookups_total{outcome=\"miss\",resource=\"items\"} 1",
        "larder_lookups_total{outcome=\"miss\",resource=\"tags\"} 2",
        "larder_invalidation_lag_seconds_count ",
        "larder_feed_gaps_total ",
        "larder_fills_void_total ",
        "larder_source_batch_keys_count 3",
        "larder_load_duration_seconds_count 3",
        "larder_disk_errors_total 0",
        "larder_disk_batch_entries_count ",
    ] {
        assert!(
            metrics.contains(&format!("\n{line}")),
            "{line} in {metrics}"
        );
    }
    assert!(!metrics.contains("secret"), "{metrics}");
    let documented = documented_metrics();
    let served = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "));
    for name in served.filter_map(|line| line.split(' ').next()) {
        let is_documented = documented.iter().any(|(documented, _)| *documented == name);
        assert!(is_documented || !name.starts_with("larder_"), "{name}");
    }
    // Without TLS there is no certificate.
    let absent = "larder_tls_certificate_expiry_timestamp_seconds";
    for (name, _) in documented {
        let is_served = metrics.contains(&format!("# TYPE {name} "));
        assert_eq!(is_served, name != absent, "{name}");
    }
}

/// `rate()` of Prometheus loses the first increment of a counter that begins with it.
#[tokio::test(flavor = "multi_thread")]
async fn counters_begin_at_zero() {
    let larder = larder().await;
    let before = larder.admin("/metrics").await.body;
    let is_counter = |line: &&str| {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        name.starts_with("larder_") && (name.ends_with("_total") || name.ends_with("_count"))
    };
    let names = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(is_counter);
        let names = lines.filter_map(|line| line.rsplit_once(' '));
        names.map(|(name, _)| name.to_owned()).collect()
    };
    let first = names(&before);
    let begun = |name: &str| {
        let line = format!("{name} 0");
        assert!(before.lines().any(|begun| begun == line), "{name}");
    };
    for resource in ["items", "tags"] {
        for via in ["bell", "poll", "purge", "audit"] {
            let labels = format!("{{resource=\"{resource}\",via=\"{via}\"}}");
            begun(&format!("larder_invalidations_total{labels}"));
        }
    }
    for operation in ["insert", "update", "delete"] {
        let labels = format!("{{operation=\"{operation}\"}}");
        begun(&format!("larder_documents_written_total{labels}"));
    }
    for path in [
        "/items/42",
        "/items/42",
        "/tags/none",
        "/tags/none",
        "/items/x",
        "/none/1",
    ] {
        larder.get(path).await;
        larder
            .request(Method::GET, path, &[("if-none-match", "*")])
            .await;
    }
    larder.get("/items?keys=7,42").await;
    larder.post_admin("/purge/items").await;
    larder.execute("update item set title = 'new'").await;
    eventually("the update", async || {
        let lag = larder.metric("larder_invalidation_lag_seconds_count").await;
        (lag > 0.0).then_some(())
    })
    .await;
    let after = names(&larder.admin("/metrics").await.body);
    let late: Vec<&String> = after.iter().filter(|name| !first.contains(name)).collect();
    assert!(late.is_empty(), "{late:?} began later");
}

/// The metrics in the table of the interface, with their labels.
fn documented_metrics() -> Vec<(&'static str, &'static str)> {
    let rows = include_str!("../docs/interface.md").lines();
    let rows = rows.filter_map(|line| line.strip_prefix("| "));
    let rows = rows.filter(|row| row.starts_with("`larder_"));
    let rows = rows.filter_map(|row| {
        let mut cells = row.split('|').map(str::trim);
        let (names, labels) = (cells.next()?, cells.next()?);
        Some(names.split(", ").map(move |name| (name, labels)))
    });
    rows.flatten()
        .map(|(name, labels)| (name.trim_matches('`'), labels))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn status_counts_and_explain_says_where_a_document_is() {
    let larder = larder().await;
    larder.get("/items/42").await;
    larder.get("/items/042").await;
    larder.get("/tags/none").await;
    let status = larder.admin("/status").await;
    assert_eq!(status.header("content-type"), "application/json");
    let status = status.json();
    assert_eq!(status["resources"][0]["name"], "items");
    assert_eq!(status["resources"][0]["lookups"], 2);
    assert_eq!(status["resources"][0]["hits_memory"], 1);
    assert_eq!(status["memory"]["entries"], 2);
    assert!(status["memory"]["bytes"].as_u64().unwrap() > 0);
    assert_eq!(status["feed"]["fresh"], true);
    assert!(status["feed"]["position"].is_string());

    let explained = eventually("a copy on disk", async || {
        let answer = larder.admin("/explain/items/+42").await.json();
        (!answer["disk"].is_null()).then_some(answer)
    })
    .await;
    assert_eq!(explained["resource"], "items");
    assert_eq!(explained["key"], "42");
    assert_eq!(explained["memory"]["found"], true);
    assert_eq!(explained["disk"]["found"], true);
    assert_eq!(explained["fresh"], true);
    let absent = larder.admin("/explain/tags/none").await.json();
    assert_eq!(absent["memory"]["found"], false);
    let unknown = larder.admin("/explain/items/7").await.json();
    assert!(unknown["memory"].is_null() && unknown["disk"].is_null());
}

#[tokio::test(flavor = "multi_thread")]
async fn purged_documents_are_missed_once() {
    let larder = larder().await;
    let paths = [
        "/items/42",
        "/items/7",
        "/tags/a%2Fb",
        "/tags/",
        "/tags/none",
    ];
    for path in paths {
        assert_eq!(larder.get(path).await.cache_status(), MISS, "{path}");
    }
    for path in ["/items/042", "/tags/a%2Fb", "/tags/", "/tags/none"] {
        let answer = larder.post_admin(&format!("/purge{path}")).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{path}");
        assert_eq!(larder.get(path).await.cache_status(), MISS, "{path}");
        assert_eq!(larder.get(path).await.cache_status(), MEMORY, "{path}");
    }
    assert_eq!(larder.get("/items/7").await.cache_status(), MEMORY);

    let answer = larder.post_admin("/purge/%69tems").await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    assert_eq!(larder.get("/items/42").await.cache_status(), MISS);
    assert_eq!(larder.get("/items/7").await.cache_status(), MISS);
    assert_eq!(larder.get("/tags/none").await.cache_status(), MEMORY);
    // An empty key, perhaps a mistake, does not purge the whole resource.
    assert_problem(&larder.post_admin("/purge/items/").await, 400);
    assert_eq!(larder.get("/items/7").await.cache_status(), MEMORY);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_problems_and_allow_is_true() {
    let larder = larder().await;
    for path in [
        "/nothing",
        "/depts/1",
        "/status/",
        "/explain",
        "/explain/items",
        "/explain/none/1",
        "/explain/items/1/2",
        "/log-level",
        "//healthz",
    ] {
        assert_problem(&larder.admin(path).await, 404);
    }
    assert_problem(&larder.admin("/explain/items/x").await, 400);
    assert_problem(&larder.post_admin("/purge/none").await, 404);
    assert_problem(&larder.post_admin("/purge").await, 404);
    assert_problem(&larder.post_admin("/purge/items/4e1").await, 400);
    assert_problem(&larder.post_admin("/purge/tags/%00").await, 400);
    for (method, path, allow) in [
        (Method::POST, "/healthz", "GET,HEAD"),
        (Method::DELETE, "/status", "GET,HEAD"),
        (Method::GET, "/purge/items", "POST"),
        (Method::GET, "/purge/items/42", "POST"),
        (Method::PUT, "/explain/items/42", "GET,HEAD"),
        (Method::POST, "/log-level", "GET,HEAD,PUT"),
    ] {
        let answer = larder.request_admin(method, path).await;
        assert_problem(&answer, 405);
        assert_eq!(answer.header("allow"), allow, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn log_level_changes_while_running() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let directory = TempDir::new().unwrap();
    std::fs::write(directory.path().join("larder.toml"), CONFIG).unwrap();
    let serving =
        LarderProcess::start(directory.path(), Some(&url), &["--log-level", "warn"]).await;
    let put = async |filter: &'static [u8]| {
        let request = Request::new("PUT", "/log-level").with_body("text/plain", filter);
        send(serving.admin, request).await
    };
    let level = async || fetch(serving.admin, "GET", "/log-level").await.body;
    assert_eq!(level().await, "warn\n");
    assert_eq!(
        put(b"larder=debug,info\n").await.status,
        StatusCode::NO_CONTENT
    );
    let changed = level().await;
    assert!(changed.contains("larder=debug"), "{changed}");
    for refused in [b"loud".as_slice(), b"larder=\xff", b"a=b=c"] {
        assert_problem(&put(refused).await, 400);
        assert_eq!(level().await, changed);
    }
    assert_problem(&put(&[b'a'; 3 << 20]).await, 413);
    assert_eq!(serving.terminate().await.code(), Some(0));
}

/// A page of any site could purge, and with a name that resolves to loopback read the status.
#[tokio::test(flavor = "multi_thread")]
async fn web_pages_of_other_sites_do_not_use_it() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let hosts = [("admin_hosts", "admin.internal")];
    let larder = TestService::start_on(&url, CONFIG, &hosts).await;
    let own = ("host", "127.0.0.1:8081");
    for (method, path, headers, status) in [
        (Method::POST, "/purge/items", &[own][..], 204),
        (
            Method::POST,
            "/purge/items",
            &[own, ("origin", "http://127.0.0.1:8081")],
            204,
        ),
        (
            Method::POST,
            "/purge/items",
            &[own, ("origin", "https://evil.example")],
            403,
        ),
        (
            Method::POST,
            "/purge/items",
            &[own, ("sec-fetch-site", "cross-site")],
            403,
        ),
        (Method::GET, "/status", &[("host", "localhost:8081")], 200),
        (Method::GET, "/status", &[("host", "admin.internal")], 200),
        (
            Method::GET,
            "/status",
            &[("host", "evil.example:8081")],
            403,
        ),
        (
            Method::GET,
            "/readyz",
            &[("host", "evil.example:8081")],
            200,
        ),
        (
            Method::GET,
            "/healthz",
            &[("host", "evil.example:8081")],
            200,
        ),
    ] {
        let answer = larder.request_admin_with(method, path, headers).await;
        assert_eq!(answer.status.as_u16(), status, "{path} {headers:?}");
        if status == 403 {
            assert_problem(&answer, status);
        }
    }
}
