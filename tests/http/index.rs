//! `GET /`: what the client may read, and where.

use axum::http::Method;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{assert_problem, larder};
use crate::harness::eventually;
use crate::harness::service::{TestResponse, TestService};

/// As a browser sends it.
const BROWSER: (&str, &str) = (
    "accept",
    "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
);

const SCHEMA: &str = r#"
    create table item (id bigint, "Süd/é" varchar(5), number int not null unique, primary key (id, "Süd/é"));
    insert into item values (7, 'a,b', 1);
    create table other (id uuid primary key)"#;

const ITEMS: &str = r#"
    [[resource]]
    name = "items"
    table = "item"
    key = ["id", "Süd/é"]
    read = ["reader"]
    write = []
    [[resource.by]]
    name = "number"
    columns = ["number"]
    [[resource]]
    name = "others"
    table = "other"
    read = ["anonymous"]
    write = ["writer"]
    [[resource]]
    name = "written"
    table = "other"
    read = []
    write = ["writer", "reader"]
    "#;

async fn get(larder: &TestService, headers: &[(&str, &str)]) -> TestResponse {
    larder.request(Method::GET, "/", headers).await
}

#[tokio::test(flavor = "multi_thread")]
async fn its_paths_lead_to_documents() {
    let larder = larder().await;
    let index = get(&larder, &[]).await;
    assert_eq!(index.status, 200);
    assert_eq!(index.header("content-type"), "application/json");
    assert_eq!(index.header("cache-control"), "no-cache");
    assert_eq!(index.header("vary"), "accept");
    let index = index.json();
    let expected = json!({
        "name": "items",
        "path": "/items",
        "list": "/items?limit=100",
        "document": "/items/{id}",
        "batch": "/items:batch",
        "key": [{"name": "id", "type": "bigint"}],
        "aliases": []
    });
    assert_eq!(index["resources"][0], expected);
    for path in [&index["openapi"], &index["docs"]] {
        assert_eq!(larder.get(path.as_str().unwrap()).await.status, 200);
    }
    for resource in index["resources"].as_array().unwrap() {
        let list = larder.get(resource["list"].as_str().unwrap()).await;
        assert_eq!(list.status, 200, "{resource}");
        assert!(!list.json().as_array().unwrap().is_empty());
    }
    let template = index["resources"][0]["document"].as_str().unwrap();
    let document = larder.get(&template.replace("{id}", "42")).await;
    assert_eq!(document.json()["title"], "answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_answers_as_other_paths_do() {
    let larder = larder().await;
    let whole = get(&larder, &[]).await;
    let head = larder.request(Method::HEAD, "/", &[]).await;
    assert_eq!(head.header("content-length"), whole.body.len().to_string());
    assert!(head.body.is_empty());
    let unchanged = get(&larder, &[("if-none-match", whole.header("etag"))]).await;
    assert_eq!(unchanged.status, 304);
    assert_eq!(unchanged.header("vary"), "accept");
    for path in ["/", "/docs", "/openapi.json"] {
        let options = larder.request(Method::OPTIONS, path, &[]).await;
        assert_eq!(options.status, 204, "{path}");
        assert_eq!(options.header("allow"), "GET, HEAD, OPTIONS");
    }
    let wrong = larder.request(Method::POST, "/", &[]).await;
    assert_problem(&wrong, 405);
    assert!(wrong.header("allow").contains("GET"));
    let foreign = [("host", "attacker.example")];
    assert_problem(&get(&larder, &foreign).await, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_is_sent_to_the_page() {
    let larder = larder().await;
    for method in [Method::GET, Method::HEAD] {
        let sent = larder.request(method, "/", &[BROWSER]).await;
        assert_eq!(sent.status, 303);
        // Below whatever path a proxy serves larder.
        assert_eq!(sent.header("location"), "docs");
        assert_eq!(sent.header("vary"), "accept");
        assert_eq!(sent.header("cache-control"), "no-cache");
    }
    let script = get(&larder, &[("accept", "application/json, text/plain, */*")]).await;
    assert_eq!(script.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_docs_there_is_none() {
    let url = TestService::start(
        SCHEMA,
        "docs = false\n[[resource]]\nname = 'others'\ntable = 'other'",
    );
    let larder = url.await;
    assert_problem(&get(&larder, &[]).await, 404);
    assert_problem(&get(&larder, &[BROWSER]).await, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_sees_what_it_may_read() {
    let user = |name: &str| {
        let hash = larder::auth::passwords::hash(name.as_bytes()).unwrap();
        format!("[[auth.user]]\nname = '{name}'\npassword = '{hash}'\nroles = ['{name}']\n")
    };
    let config = [
        "[cors]\norigins = ['https://app.example']\n",
        &user("reader"),
        &user("writer"),
        ITEMS,
    ];
    let larder = TestService::start(SCHEMA, &config.concat()).await;
    let sees = async |name: Option<&str>| {
        let basic = name.map(|name| format!("Basic {}", STANDARD.encode(format!("{name}:{name}"))));
        let headers: Vec<_> = basic
            .iter()
            .map(|basic| ("authorization", basic.as_str()))
            .collect();
        let index = get(&larder, &headers).await;
        assert_eq!(index.status, 200);
        assert_eq!(index.header("cache-control"), "private, no-cache");
        let vary: Vec<_> = index.headers.get_all("vary").iter().collect();
        assert_eq!(
            vary,
            ["authorization, cookie, x-api-key", "accept", "origin"]
        );
        index.json()["resources"].clone()
    };
    let names = |seen: &Value| -> Vec<String> {
        let seen = seen.as_array().unwrap().iter();
        seen.map(|resource| resource["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&sees(None).await), ["others"]);
    assert_eq!(names(&sees(Some("writer")).await), ["others"]);
    let all = sees(Some("reader")).await;
    assert_eq!(names(&all), ["items", "others"]);
    assert_eq!(all[0]["document"], "/items/{id},{S%C3%BCd%2F%C3%A9}");
    assert_eq!(
        all[0]["key"],
        json!([{"name": "id", "type": "bigint"}, {"name": "Süd/é", "type": "character varying(5)"}])
    );
    assert_eq!(
        all[0]["aliases"],
        json!([{
            "name": "number",
            "document": "/items/by/number/{number}",
            "key": [{"name": "number", "type": "integer"}]
        }])
    );
}

/// A definition that changes is described anew, also to clients that have seen the old one.
#[tokio::test(flavor = "multi_thread")]
async fn it_follows_the_tables() {
    let config = "[[resource]]\nname = 'others'\ntable = 'other'\n[[resource]]\nname = 'items'\ntable = 'item'\nkey = ['number']";
    let larder = TestService::start(SCHEMA, config).await;
    let types = async || {
        let index = get(&larder, &[]).await;
        (index.status == 200).then(|| index.json()["resources"][1]["key"][0]["type"].clone())
    };
    assert_eq!(types().await.unwrap(), "integer");
    larder
        .execute("alter table item alter column number type bigint")
        .await;
    eventually("described anew", async || {
        types().await.filter(|text| text == "bigint")
    })
    .await;
}
