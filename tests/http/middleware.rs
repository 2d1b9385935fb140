//! The middleware that every request passes: rate limit and access log.

use axum::http::{Method, StatusCode};
use tempfile::TempDir;

use crate::harness::eventually;
use crate::harness::service::TestService;

#[tokio::test(flavor = "multi_thread")]
async fn rate_limit_and_access_log_see_hits_misses_and_refusals() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("access.log");
    let config = format!(
        "access_log = 'json'\naccess_log_file = '{}'\n\
         [limits]\nrequests_per_second = 1\nburst = 3\ntrusted_proxies = ['0.0.0.0']\n\
         [[resource]]\nname = 'items'\ntable = 'item'",
        file.display()
    );
    let schema = "create table item (id int primary key); insert into item values (1)";
    let larder = TestService::start(schema, &config).await;
    let get = async |client: &str, path: &str| {
        let forwarded = ("x-forwarded-for", client);
        larder.request(Method::GET, path, &[forwarded]).await
    };
    let statuses = [
        get("192.0.2.1", "/items/1").await,
        get("192.0.2.1", "/items/1").await,
        get("192.0.2.1", "/items/2?fields=id").await,
    ]
    .map(|answer| answer.status);
    let found = StatusCode::OK;
    assert_eq!(statuses, [found, found, StatusCode::NOT_FOUND]);
    let mut refused = 0;
    while refused == 0 {
        let answer = get("192.0.2.1", "/items/1").await;
        refused += usize::from(answer.status == StatusCode::TOO_MANY_REQUESTS);
    }
    assert_eq!(get("192.0.2.2", "/items/1").await.status, StatusCode::OK);
    let lines = eventually("the last line", async || {
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map_while(|line| serde_json::from_str(line).ok())
            .collect();
        (lines.last()?["client"] == "192.0.2.2").then_some(lines)
    })
    .await;
    let caches: Vec<_> = lines[..3].iter().map(|line| &line["cache"]).collect();
    assert_eq!(caches[0], "larder; fwd=miss; stored; detail=postgres");
    assert_eq!(caches[1], "larder; hit; detail=memory");
    assert_eq!(lines[2]["target"], "/items/2?fields=id");
    let statuses = lines.iter().map(|line| line["status"].as_u64().unwrap());
    assert_eq!(statuses.filter(|status| *status == 429).count(), refused);
}
