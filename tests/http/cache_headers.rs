//! `Cache-Control` and `Surrogate-Key`, as the configuration of a resource sets them.

use axum::http::Method;

use crate::harness::service::TestService;

const SCHEMA: &str = "
    create table item (id bigint primary key, title text);
    insert into item values (42, 'answer');
    create table part (item bigint, side text, primary key (item, side));
    insert into part values (7, 'N,O é');";

const CONFIG: &str = "
    [[resource]]
    name = 'items'
    table = 'item'
    cache_control = 'public, max-age=1'
    surrogate_key = 'item-{key} items'
    [[resource]]
    name = 'parts'
    table = 'part'
    surrogate_key = '{key}'
    [[resource]]
    name = 'plain'
    table = 'item'";

#[tokio::test(flavor = "multi_thread")]
async fn answers_have_the_headers_that_their_resource_sets() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    // A miss, then a hit.
    for _ in 0..2 {
        for (path, keys) in [
            ("/items/042", "item-42 items"),
            ("/items/1", "item-1 items"),
            ("/items/42?fields=id", "item-42 items"),
            ("/items", "items"),
            ("/items?keys=42,1", "items"),
        ] {
            let answer = larder.get(path).await;
            assert_eq!(
                answer.header("cache-control"),
                "public, max-age=1",
                "{path}"
            );
            assert_eq!(answer.header("surrogate-key"), keys, "{path}");
        }
        let part = larder.get("/parts/7,N%2CO%20%C3%A9").await;
        assert_eq!(part.header("surrogate-key"), "7,N%2CO%20%C3%A9");
        assert_eq!(part.header("cache-control"), "no-cache");
        let plain = larder.get("/plain/42").await;
        assert_eq!(plain.header("surrogate-key"), "");
        assert_eq!(plain.header("cache-control"), "no-cache");
    }
    let headers = [("if-none-match", "*")];
    let unchanged = larder.request(Method::GET, "/items/42", &headers).await;
    assert_eq!(unchanged.header("surrogate-key"), "item-42 items");
    // Errors must not be cached.
    assert_eq!(larder.get("/items/x").await.header("cache-control"), "");
}
