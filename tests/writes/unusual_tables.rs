//! Tables with unusual names and constraints.

use axum::http::{Method, StatusCode};
use serde_json::json;

use crate::harness::eventually;
use crate::harness::service::TestService;

/// Such a table could not be named in the configuration.
#[tokio::test(flavor = "multi_thread")]
async fn names_may_have_double_quotes() {
    let larder = TestService::start(
        r#"create table "we""ird" (id int primary key, "a""b" text);
           create table """q" (id int primary key, w int references "we""ird");
           create index on """q" (w);"#,
        r#"
        [[resource]]
        name = 'ws'
        table = 'we"ird'
          [[resource.children]]
          name = 'qs'
          table = 'public."""q"'
        "#,
    )
    .await;
    let document = json!({"id": 1, "a\"b": "x", "qs": [{"id": 2, "w": 1}]});
    let answer = larder.put("/ws/1", &document).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(larder.get("/ws/1").await.json(), document);
    larder.execute(r#"update """q" set id = 3"#).await;
    eventually("the change is seen", async || {
        larder.get("/ws/1").await.json()["qs"][0]["id"]
            .eq(&3)
            .then_some(())
    })
    .await;
}

/// The configuration was refused: the table had "no primary key".
#[tokio::test(flavor = "multi_thread")]
async fn rows_with_a_deferrable_primary_key_are_only_read() {
    let larder = TestService::start(
        "create table t (id int primary key deferrable initially deferred, n int);
         create table p (id int primary key);
         create table c (id int primary key deferrable, p int references p);
         create index on c (p);
         insert into t values (1, 1), (2, 2);
         insert into p values (1);
         insert into c values (7, 1), (6, 1);",
        "[[resource]]\nname = 'ts'\ntable = 't'\n[[resource]]\nname = 'named'\ntable = 't'\nkey = 'id'\n\
         [[resource]]\nname = 'ps'\ntable = 'p'\n[[resource.children]]\nname = 'cs'\ntable = 'c'\n",
    )
    .await;
    assert_eq!(larder.get("/ts/1").await.json(), json!({"id": 1, "n": 1}));
    assert_eq!(larder.get("/named/2").await.json()["n"], 2);
    let document = json!({"id": 1, "cs": [{"id": 6, "p": 1}, {"id": 7, "p": 1}]});
    assert_eq!(larder.get("/ps/1").await.json(), document);
    larder
        .execute("begin; insert into t values (1, 5); delete from t where n = 1; commit")
        .await;
    eventually("the change is seen", async || {
        larder.get("/ts/1").await.json()["n"].eq(&5).then_some(())
    })
    .await;
    for path in ["/ts/1", "/named/1", "/ps/1"] {
        let answer = larder.put(path, &json!({})).await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{path}");
        let options = larder.request(Method::OPTIONS, path, &[]).await;
        assert_eq!(options.header("allow"), "GET, HEAD, OPTIONS");
        assert!(
            answer.body.contains("deferrable"),
            "{path}: {}",
            answer.body
        );
    }
}

/// PostgreSQL's limit for a table is 1,600 columns, and its limit for a row in a statement 1,664.
#[tokio::test(flavor = "multi_thread")]
async fn tables_with_many_columns_and_defaults_can_be_written() {
    for columns in [898, 1598] {
        let tables = |triggers: &str| {
            let wide = |name: &str, key: &str| {
                let more: Vec<String> = (0..columns)
                    .map(|number| format!("c{number} smallint default {number}"))
                    .collect();
                format!("create table {name} ({key}, {});", more.join(", "))
            };
            format!(
                "{}{}{triggers}",
                wide(
                    "t",
                    "id int primary key, x int generated always as identity"
                ),
                wide("u", "id int primary key, t int references t"),
            )
        };
        let config = "[[resource]]\nname = 'ts'\ntable = 't'\n[[resource.children]]\nname = 'us'\ntable = 'u'\n";
        let audit = "create index on u (t);
            create function same() returns trigger language plpgsql as $$ begin return new; end $$;
            create trigger same before insert or update on t for each row execute function same();";
        for triggers in ["create index on u (t);", audit] {
            let larder = TestService::start(&tables(triggers), config).await;
            let body = json!({"id": 1, "c1": 7, "us": [{"id": 1, "c2": null}]});
            let answer = larder.post("/ts", &body).await;
            assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
            let mut stored = answer.json();
            let last = format!("c{}", columns - 1);
            assert_eq!(stored["c0"], json!(0));
            assert_eq!(stored["c1"], json!(7));
            assert_eq!(stored[&last], json!(columns - 1));
            assert_eq!(stored["us"][0]["c2"], json!(null));
            assert_eq!(larder.get("/ts/1").await.json(), stored);
            stored["c0"] = json!(3);
            stored["us"][0][&last] = json!(4);
            let current = [("if-match", answer.header("etag"))];
            let text = json!({"c0": 3, "us": [{"id": 1, &last: 4}]}).to_string();
            let answer = larder.write(Method::PUT, "/ts/1", &current, &text).await;
            assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
            assert_eq!(answer.json(), stored);
            stored["c5"] = json!(6);
            let answer = larder.patch("/ts/1", &json!({"c5": 6})).await;
            assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
            assert_eq!(answer.json(), stored);
            let answer = larder.put("/ts/2", &json!({"us": []})).await;
            assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
            let answer = larder.delete("/ts/1").await;
            assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
        }
    }
}

/// Rows that point here by a unique column, and rows that no foreign key leads to.
#[tokio::test(flavor = "multi_thread")]
async fn references_lead_to_rows_without_a_foreign_key() {
    let larder = TestService::start(
        "create table orders (id int primary key, status int);
         create index on orders (status);
         create table status (id int primary key, code int not null unique, label text);
         create table shipment (id int primary key, order_id int not null unique references orders, sent date);
         insert into orders values (1, 10);
         insert into status values (10, 20, 'other'), (11, 10, 'paid');",
        "[[resource]]\nname = 'orders'\ntable = 'orders'\nfields = ['id']\nwrite = []\n\
         [[resource.lookups]]\nname = 'status'\ntable = 'status'\ncolumn = 'status'\nreferences = 'code'\nfields = ['label']\n\
         [[resource.lookups]]\nname = 'shipment'\ntable = 'shipment'\ncolumn = 'id'\nreferences = 'order_id'\nfields = ['sent']\n",
    )
    .await;
    let shown = async || larder.get("/orders/1").await.json();
    let expected = json!({"id": 1, "status": {"label": "paid"}, "shipment": null});
    assert_eq!(shown().await, expected);
    larder
        .execute("insert into shipment values (7, 1, '2026-11-27'); update status set label = 'sent' where id = 11")
        .await;
    let expected =
        json!({"id": 1, "status": {"label": "sent"}, "shipment": {"sent": "2026-11-27"}});
    eventually("both changes are seen", async || {
        shown().await.eq(&expected).then_some(())
    })
    .await;
}

/// Without `[auth]` it was refused, and without it every client may write.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_writes_where_no_role_may() {
    let larder = TestService::start(
        "create table t (id int primary key); insert into t values (1)",
        "[[resource]]\nname = 'ts'\ntable = 't'\nwrite = []\n",
    )
    .await;
    for (method, path) in [
        (Method::POST, "/ts"),
        (Method::PUT, "/ts/1"),
        (Method::PATCH, "/ts/1"),
        (Method::DELETE, "/ts/1"),
    ] {
        let answer = larder
            .send(
                method,
                path,
                &[("content-type", "application/json")],
                "{\"id\":1}",
            )
            .await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(answer.header("allow"), "GET, HEAD, OPTIONS");
        assert!(answer.body.contains("write = []"), "{}", answer.body);
    }
    let options = larder.request(Method::OPTIONS, "/ts/1", &[]).await;
    assert_eq!(options.header("allow"), "GET, HEAD, OPTIONS");
    assert_eq!(larder.get("/ts/1").await.body, "{\"id\":1}");
    let described = larder.get("/openapi.json").await.json();
    assert!(described["paths"]["/ts"]["post"].is_null(), "{described}");
}
