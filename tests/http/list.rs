//! Lists of documents: pages, order and filters.

use axum::http::{Method, StatusCode};
use serde_json::json;

use super::assert_problem;
use crate::harness::eventually;
use crate::harness::service::{TestResponse, TestService};

const SCHEMA: &str = r#"
    create collation numeric_order (provider = icu, locale = 'en-u-kn');
    create table item (id bigint primary key, city text, code char(3), day date, note json);
    insert into item select n, (array['BOSTON', 'DALLAS', 'a b+c,é'])[(n % 3 + 3) % 3 + 1], 'X', date '2024-01-01' + n % 2
        from generate_series(-5, 244) n;
    insert into item values (1000, null, 'Y', null);
    create index on item (city);
    create table tag (name text collate numeric_order primary key);
    insert into tag values ('n10'), ('n9'), ('N9'), ('é'), ('f'), (''), ('a,b'), ('50%'), ('a b'), ('z&x=y');
    create table part (item int, side text collate "C", primary key (item, side));
    insert into part select n, side from generate_series(1, 3) n, unnest(array['a', 'B', 'a,b', '']) side;
    create table loose (id int unique, n int);
    insert into loose values (2, 2), (null, 0), (1, 1);"#;

const CONFIG: &str = "
    [[resource]]
    name = 'items'
    table = 'item'
    tiers = ['memory']
    filters = ['town', 'code', 'day']
    fields = { id = 'id', city = 'town', code = 'code', day = 'day', note = 'note' }
    [[resource]]
    name = 'tags'
    table = 'tag'
    [[resource]]
    name = 'parts'
    table = 'part'
    key = ['item', 'side']
    [[resource]]
    name = 'loose'
    table = 'loose'
    key = 'id'";

async fn larder() -> TestService {
    TestService::start(SCHEMA, CONFIG).await
}

/// The target of `Link`.
fn next(answer: &TestResponse) -> Option<String> {
    let link = answer.header("link");
    let (path, relation) = link.strip_prefix('<')?.split_once('>')?;
    assert_eq!(relation, "; rel=\"next\"");
    Some(path.to_owned())
}

/// All pages from `path` on: how long each is, and the documents.
async fn pages(larder: &TestService, path: &str) -> (Vec<usize>, Vec<serde_json::Value>) {
    let mut lengths = Vec::new();
    let mut documents = Vec::new();
    let mut path = Some(path.to_owned());
    while let Some(asked) = path {
        let answer = larder.get(&asked).await;
        assert_eq!(answer.status, StatusCode::OK, "{asked}: {answer:?}");
        let page = answer.json().as_array().unwrap().clone();
        lengths.push(page.len());
        documents.extend(page);
        path = next(&answer);
    }
    (lengths, documents)
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_hold_every_document_once_in_the_order_of_numbers() {
    let larder = larder().await;
    let (lengths, documents) = pages(&larder, "/items").await;
    assert_eq!(lengths, [100, 100, 51]);
    let ids: Vec<i64> = documents
        .iter()
        .map(|item| item["id"].as_i64().unwrap())
        .collect();
    let expected: Vec<i64> = (-5..=244).chain([1000]).collect();
    assert_eq!(ids, expected);
    assert_eq!(documents[5], larder.get("/items/0").await.json());
    // The last page may be full.
    assert_eq!(pages(&larder, "/items?limit=251").await.0, [251]);
    assert_eq!(
        pages(&larder, "/items?after=%2B0242&limit=1&").await.0,
        [1, 1, 1]
    );
    let beyond = larder.get("/items?after=1000").await;
    assert_eq!((beyond.body.as_str(), next(&beyond)), ("[]", None));
    let first = larder.get("/items?after=7&limit=2&fields=id").await;
    assert_eq!(
        first.header("link"),
        "</items?limit=2&fields=id&after=9>; rel=\"next\""
    );
    assert_eq!(first.body, r#"[{"id":8},{"id":9}]"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_is_that_of_the_columns_collations() {
    let larder = larder().await;
    let mut connection = larder.connect().await;
    for (path, sql) in [
        ("/tags", "select name from tag order by name"),
        (
            "/parts",
            "select item || side from part order by item, side",
        ),
        (
            "/loose",
            "select n::text from loose where id is not null order by id",
        ),
    ] {
        let expected: Vec<String> = sqlx::query_scalar(sql)
            .fetch_all(&mut connection)
            .await
            .unwrap();
        for limit in [1, 2, 100] {
            let (_, documents) = pages(&larder, &format!("{path}?limit={limit}")).await;
            let shown = documents.iter().map(|document| match path {
                "/tags" => document["name"].as_str().unwrap().to_owned(),
                "/parts" => format!("{}{}", document["item"], document["side"].as_str().unwrap()),
                _ => document["n"].to_string(),
            });
            assert_eq!(shown.collect::<Vec<_>>(), expected, "{path} {limit}");
        }
    }
    let after = larder.get("/parts?after=2,a%2Cb").await.json();
    assert_eq!(after[0], json!({"item": 3, "side": ""}));
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_are_anded_and_typed_by_their_columns() {
    let larder = larder().await;
    let count = async |query: &str| pages(&larder, &format!("/items?{query}")).await.1.len();
    assert_eq!(count("town=eq.BOSTON").await, 83);
    assert_eq!(count("town=eq.a+b%2Bc,%C3%A9").await, 83);
    assert_eq!(count("town=eq.BOSTON&day=eq.2024-01-01&limit=7").await, 41);
    assert_eq!(count("town=eq.boston").await, 0);
    assert_eq!(count("town=eq.").await, 0);
    // char(3) pads.
    assert_eq!(count("code=eq.Y").await, 1);
    assert_eq!(count("code=eq.Y%20%20&town=is.null&day=is.null").await, 1);
    for query in ["town=is.null&after=999", "%74own=is.null"] {
        let page = larder.get(&format!("/items?{query}")).await;
        assert_eq!(page.json()[0]["id"], 1000, "{query}");
    }
    for query in [
        "id=eq.1",
        "city=eq.BOSTON",
        "town=BOSTON",
        "town=neq.BOSTON",
        "town=is.true",
        "day=eq.today",
        "day=eq.2024-02-30",
        "town=eq.%00",
        "town=eq.%ff",
        "town=eq.BOSTON&town=eq.DALLAS",
        "town=eq.BOSTON&keys=1",
        "limt=1",
    ] {
        assert_problem(&larder.get(&format!("/items?{query}")).await, 400);
    }
    let unknown = larder.get("/items?city=eq.BOSTON").await;
    assert!(
        unknown.body.contains("unknown parameter city"),
        "{unknown:?}"
    );
    assert!(unknown.body.contains("town, code, day"), "{unknown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_and_places_are_checked() {
    let larder = larder().await;
    for query in [
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=",
        "limit=x",
        "limit=1&limit=2",
        "after=x",
        "after=",
        "after=1,2",
        "after=1&after=2",
    ] {
        assert_problem(&larder.get(&format!("/items?{query}")).await, 400);
    }
    assert_eq!(larder.get("/items?limit=1000").await.status, StatusCode::OK);
    assert_problem(&larder.get("/parts?after=1").await, 400);
    assert_problem(&larder.get("/nothing?limit=1").await, 404);
    let head = larder.request(Method::HEAD, "/items?limit=3", &[]).await;
    let get = larder.get("/items?limit=3").await;
    for (name, value) in &get.headers {
        assert_eq!(head.headers.get(name), Some(value), "{name}");
    }
    assert_eq!(get.cache_status(), "larder; fwd=miss; detail=postgres");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_has_an_entity_tag_and_follows_changes() {
    let larder = larder().await;
    let path = "/items?town=eq.DALLAS&limit=5";
    let etag = larder.get(path).await.header("etag").to_owned();
    let headers = [("if-none-match", etag.as_str())];
    let unchanged = larder.request(Method::GET, path, &headers).await;
    assert_eq!(unchanged.status, StatusCode::NOT_MODIFIED);
    assert!(next(&unchanged).is_some());
    larder.execute("delete from item where id = 0").await;
    larder
        .execute("insert into item values (-100, 'DALLAS')")
        .await;
    eventually("the changes", async || {
        let page = larder.request(Method::GET, path, &headers).await;
        (page.status == StatusCode::OK && page.json()[0]["id"] == -100).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_read_with_a_token_has_the_inserted_document() {
    let larder = larder().await;
    let mut connection = larder.connect().await;
    for id in 2000..2010 {
        // The absence is cached by now.
        larder.get(&format!("/items/{id}")).await;
        let mut transaction = sqlx::Connection::begin(&mut connection).await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(format!(
            "insert into item values ({id}, 'NEW')"
        )))
        .execute(&mut *transaction)
        .await
        .unwrap();
        let token: String = sqlx::query_scalar("select larder.token()::text")
            .fetch_one(&mut *transaction)
            .await
            .unwrap();
        transaction.commit().await.unwrap();
        let headers = [("larder-token", token.as_str())];
        let page = larder
            .request(Method::GET, "/items?town=eq.NEW", &headers)
            .await;
        let last = page.json().as_array().unwrap().last().unwrap().clone();
        assert_eq!(last["id"], id);
    }
}
