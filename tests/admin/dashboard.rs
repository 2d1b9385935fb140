//! What the dashboard shows: `/history`, `/recent`, `/document`, `/config` and the page itself.

use axum::http::{Method, StatusCode};
use serde_json::Value;

use super::{CONFIG, larder_with};
use crate::harness::eventually;
use crate::harness::service::TestService;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn sum(list: &Value) -> f64 {
    let values = list.as_array().unwrap().iter();
    values.map(|value| value.as_f64().unwrap_or(0.0)).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn history_counts_what_happens_in_each_second() {
    let larder = larder_with(&[]).await;
    let first = eventually("a sample", async || {
        let page = larder.admin("/history").await.json();
        page["at"].as_array().unwrap().last().cloned()
    })
    .await;
    let path = format!("/history?after={first}");
    // It stays in memory.
    larder.get("/items/7").await;
    // Enough that a second with a pause in it still has some.
    for _ in 0..20 {
        larder.get("/items/42").await;
    }
    larder.get("/items/x").await;
    larder
        .execute("update item set title = 'new' where id = 42")
        .await;
    let page = eventually("what happened", async || {
        let page = larder.admin(&path).await.json();
        let places = page["requests"].as_object().unwrap().values();
        let requests: f64 = places.map(sum).sum();
        (requests > 10.0 && sum(&page["invalidations"]) > 0.0).then_some(page)
    })
    .await;
    let samples = page["at"].as_array().unwrap();
    assert!(samples.iter().all(|at| at.as_u64() > first.as_u64()));
    assert!(samples.is_sorted_by_key(|at| at.as_u64()));
    for list in [
        "hit_ratio",
        "invalidation_lag_microseconds",
        "server_errors",
        "too_many_requests",
        "memory_bytes",
        "disk_bytes",
        "waiting_keys",
    ] {
        assert_eq!(
            page[list].as_array().unwrap().len(),
            samples.len(),
            "{list}"
        );
    }
    assert!(sum(&page["hit_ratio"]) > 0.5, "{page}");
    assert!(sum(&page["memory_bytes"]) > 0.0, "{page}");
    assert!(sum(&page["invalidation_lag_microseconds"]) > 0.0, "{page}");
    let latency = page["p99_microseconds"].as_object().unwrap().values();
    assert!(latency.map(sum).sum::<f64>() > 0.0, "{page}");

    let last = samples.last().unwrap();
    let later = larder.admin(&format!("/history?after={last}")).await.json();
    assert!(later["at"].as_array().unwrap().len() < samples.len());
    for query in ["?before=1", "?after=x", "?after=-1", "?"] {
        let answer = larder.admin(&format!("/history{query}")).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{query}");
    }
    let gzip = [("accept-encoding", "gzip, br")];
    let packed = larder.request_admin_with(Method::GET, "/history", &gzip);
    let packed = packed.await;
    assert_eq!(packed.header("content-encoding"), "gzip");
    assert!(packed.bytes.starts_with(&[0x1f, 0x8b]));
}

#[tokio::test(flavor = "multi_thread")]
async fn recent_has_invalidations_with_their_cause_and_slow_loads() {
    let larder = larder_with(&[]).await;
    larder.get("/items/42").await;
    larder.get("/tags/%3Cscript%3E").await;
    larder
        .execute("update item set title = 'new' where id = 42")
        .await;
    larder.post_admin("/purge/items/7").await;
    larder.post_admin("/purge/tags").await;
    let invalidations = eventually("an invalidation by the update", async || {
        let recent = larder.admin("/recent").await.json();
        let list = recent["invalidations"].as_array().unwrap().clone();
        let of_update = |event: &Value| event["key"] == "42" && event["via"] != "purge";
        list.iter().any(of_update).then_some(list)
    })
    .await;
    let find = |resource: &str, extent: &str, via: &str| {
        let mut list = invalidations.iter();
        list.find(|event| {
            event["resource"] == resource && event["extent"] == extent && event["via"] == via
        })
    };
    assert_eq!(find("items", "key", "purge").unwrap()["key"], "7");
    assert!(find("tags", "all", "purge").unwrap()["key"].is_null());
    // From the start.
    assert!(find("items", "all", "definition").is_some());
    assert!(find("items", "all", "reset").is_some());
    let numbers = invalidations.iter().map(|event| event["number"].as_u64());
    assert!(numbers.is_sorted_by(|a, b| a > b));

    let loads = larder.admin("/recent").await.json()["slow_loads"].clone();
    let loads = loads.as_array().unwrap();
    let of = |resource: &str| loads.iter().find(|load| load["resource"] == resource);
    let load = of("items").unwrap();
    assert_eq!(load["key"], "42");
    let (seconds, waiting) = (&load["seconds"], &load["waiting_seconds"]);
    assert!(seconds.as_f64() > waiting.as_f64(), "{load}");
    assert!(load["bytes"].as_u64().unwrap() > 10, "{load}");
    let absent = of("tags").unwrap();
    assert_eq!(absent["key"], "<script>");
    assert!(absent["bytes"].is_null() && absent["error"].is_null());
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_tells_size_tag_and_last_invalidation() {
    let larder = larder_with(&[]).await;
    let served = larder.get("/items/42").await;
    let explained = eventually("a copy on disk", async || {
        let answer = larder.admin("/explain/items/42").await.json();
        (!answer["disk"].is_null()).then_some(answer)
    })
    .await;
    for tier in ["memory", "disk"] {
        assert_eq!(explained[tier]["etag"], served.header("etag"), "{tier}");
        assert_eq!(explained[tier]["bytes"], served.bytes.len(), "{tier}");
    }
    assert_eq!(explained["invalidated"]["via"], "reset");
    larder.post_admin("/purge/items/42").await;
    let explained = larder.admin("/explain/items/42").await.json();
    assert_eq!(explained["invalidated"]["via"], "purge");
    assert_eq!(explained["invalidated"]["extent"], "key");
    assert!(explained["memory"].is_null());
    let other = larder.admin("/explain/items/7").await.json();
    assert_eq!(other["invalidated"]["via"], "reset");
}

#[tokio::test(flavor = "multi_thread")]
async fn status_tells_responses_version_and_what_is_wrong() {
    let larder = larder_with(&[]).await;
    larder.get("/items/42").await;
    larder.get("/items/42").await;
    let status = larder.admin("/status").await.json();
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert!(status["started_seconds_ago"].as_f64().unwrap() > 0.0);
    let items = &status["resources"][0];
    assert_eq!(
        (&items["name"], &items["lookups"]),
        (&"items".into(), &2.into())
    );
    for count in ["bypassed", "too_many_requests", "server_errors"] {
        assert_eq!(items[count], 0, "{count}");
    }
    assert!(status["definition_changed"].is_null());
    assert_eq!(status["requests_refused"], 0);

    larder
        .execute("alter table item add column note text")
        .await;
    let changed = eventually("the change of the definition", async || {
        let status = larder.admin("/status").await.json();
        let changed = status["definition_changed"].clone();
        changed.is_object().then_some(changed)
    })
    .await;
    assert_eq!(changed["resource"], "items");
    larder
        .execute("alter table tag drop constraint tag_pkey")
        .await;
    let fault = eventually("the fault", async || {
        let status = larder.admin("/status").await.json();
        let faults = status["faults"].as_array().unwrap().clone();
        faults.into_iter().find(|fault| fault["id"] == "unfit")
    })
    .await;
    assert_eq!(fault["severity"], "error");
    assert!(
        fault["message"].as_str().unwrap().contains("tags"),
        "{fault}"
    );
    assert!(fault["remedy"].as_str().unwrap().contains("larder check"));
    assert!(fault["seconds"].as_f64().unwrap() >= 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_larder_is_named_until_it_is_forgotten() {
    let first = larder_with(&[]).await;
    let second = TestService::start_on(&first.url, CONFIG, &[]).await;
    let nodes = eventually("the other larder", async || {
        let status = second.admin("/status").await.json();
        let nodes = status["feed"]["log"]["other_nodes"].as_array()?.clone();
        (!nodes.is_empty()).then_some(nodes)
    })
    .await;
    assert_eq!(nodes.len(), 1);
    assert!(nodes[0]["name"].as_str().unwrap().len() == 36);
    assert_eq!(nodes[0]["version"], env!("CARGO_PKG_VERSION"));
    assert!(nodes[0]["seen_seconds_ago"].as_f64().unwrap() >= 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_shown_with_an_admin_token_only() {
    let open = larder_with(&[]).await;
    open.get("/items/42").await;
    let answer = open.admin("/document/items/42").await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    assert!(!answer.body.contains("answer"), "{}", answer.body);
    assert_eq!(open.admin("/status").await.json()["shows_documents"], false);

    let larder = larder_with(&[("auth.admin_token", TOKEN)]).await;
    let served = larder.get("/items/42").await;
    larder.get("/items/1").await;
    let bearer = format!("Bearer {TOKEN}");
    let get = async |path: &str| {
        let headers = [("authorization", bearer.as_str())];
        larder.request_admin_with(Method::GET, path, &headers).await
    };
    let shown = get("/document/items/+42").await;
    assert_eq!(shown.status, StatusCode::OK);
    assert_eq!(shown.body, served.body);
    assert_eq!(shown.header("etag"), served.header("etag"));
    assert_eq!(shown.header("content-type"), "application/json");
    for (path, status) in [
        ("/document/items/7", 404),
        ("/document/items/1", 404),
        ("/document/none/1", 404),
        ("/document/items/x", 400),
    ] {
        assert_eq!(get(path).await.status.as_u16(), status, "{path}");
    }
    for path in [
        "/document/items/42",
        "/history",
        "/recent",
        "/config",
        "/status",
        "/explain/items/42",
    ] {
        let answer = larder.admin(path).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
    }
    let dump = get("/config").await;
    assert_eq!(dump.header("content-type"), "text/plain; charset=utf-8");
    assert!(dump.body.contains("admin_token = \"***\""), "{}", dump.body);
    assert!(dump.body.contains("name = \"items\"") && !dump.body.contains(TOKEN));
}

/// The paths of the page and its files.
async fn files(larder: &TestService) -> Vec<String> {
    let page = larder.admin("/").await.body;
    let parts = page.split(['"', '\'']);
    let files = parts.filter(|part| part.starts_with("dashboard/"));
    let mut files: Vec<String> = files.map(|file| format!("/{file}")).collect();
    files.push("/".to_owned());
    files
}

/// Without the token the page asks for it; its files must not tell anything else.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_needs_no_token_and_loads_nothing_from_elsewhere() {
    let larder = larder_with(&[("auth.admin_token", TOKEN)]).await;
    let files = files(&larder).await;
    for file in &files {
        let answer = larder.admin(file).await;
        assert_eq!(answer.status, StatusCode::OK, "{file}");
        let policy = answer.header("content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'"),
            "{file}"
        );
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{file}");
        for origin in ["http://", "https://", "url(//"] {
            assert!(!answer.body.contains(origin), "{file} names {origin}");
        }
        let etag = answer.header("etag");
        let known = [("if-none-match", etag)];
        let answer = larder.request_admin_with(Method::GET, file, &known).await;
        assert_eq!(answer.status, StatusCode::NOT_MODIFIED, "{file}");
        let post = larder.post_admin(file).await;
        assert_eq!(post.status, StatusCode::METHOD_NOT_ALLOWED, "{file}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_sites_use_no_new_path() {
    let larder = larder_with(&[]).await;
    let files = files(&larder).await;
    let paths = ["/history", "/recent", "/config", "/document/items/42"].map(str::to_owned);
    let own = ("host", "127.0.0.1:8081");
    for path in files.iter().chain(&paths) {
        for headers in [
            &[("host", "evil.example:8081")][..],
            &[own, ("origin", "https://evil.example")],
            &[own, ("sec-fetch-site", "cross-site")],
        ] {
            let answer = larder.request_admin_with(Method::GET, path, headers).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path} {headers:?}");
        }
    }
}
