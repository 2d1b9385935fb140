//! Triggers that mark rows as deleted instead of deleting them, and other triggers that hide rows.

use axum::http::{Method, StatusCode};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection};

use crate::harness::eventually;
use crate::harness::service::TestService;

/// Both tables mark rows: `doc` always, `item` where `soft`.
const SCHEMA: &str = "
    create table doc (id int primary key, name text, deleted_at timestamptz);
    create table item (id int primary key, doc_id int references doc, name text, soft bool default true, deleted_at timestamptz);
    create table note (id int primary key, item_id int references item);
    create function mark() returns trigger language plpgsql as $$ begin
        if to_jsonb(old)->>'soft' = 'false' then return old; end if;
        execute format('update %I set deleted_at = now() where id = $1', tg_table_name) using old.id;
        return null;
    end $$;
    create trigger mark before delete on doc for each row execute function mark();
    create trigger mark before delete on item for each row execute function mark();
    insert into doc values (1, 'a'), (2, 'b');
    insert into item values (1, 1, 'x', true), (2, 1, 'y', true), (3, 1, 'z', false);
    insert into note values (1, 1), (2, 3);";

/// Triggers that hide rows by their names.
const HIDING: &str = "
    create function hide() returns trigger language plpgsql as $$ begin
    if new.name = 'hide' then new.deleted_at := now(); end if;
    if new.name = 'key' then new.id := new.id + 100; new.deleted_at := now(); end if;
    return new; end $$;
    create function hide_later() returns trigger language plpgsql as $$ begin
    if new.name = 'later' then update item set deleted_at = now() where id = new.id; end if; return null; end $$;
    create trigger hide before insert or update on doc for each row execute function hide();
    create trigger hide before insert or update on item for each row execute function hide();
    create constraint trigger later after insert or update on item initially deferred
    for each row when (new.deleted_at is null) execute function hide_later()";

const CONFIG: &str = "
    [[resource]]
    name = 'files'
    table = 'doc'
    where = 'deleted_at is null'
    fields = { id = 'id', name = 'name' }
      [[resource.children]]
      name = 'items'
      table = 'item'
      where = 'deleted_at is null'
      fields = { id = 'id', name = 'name' }
        [[resource.children.children]]
        name = 'notes'
        table = 'note'
        fields = { id = 'id' }";

/// Each row of the tables, with a star if it is marked.
async fn rows(larder: &TestService) -> String {
    let mut connection = larder.connect().await;
    let sql = "select concat_ws('; ', \
        (select string_agg(id || case when deleted_at is null then '' else '*' end, ' ' order by id) from doc), \
        (select string_agg(id || case when deleted_at is null then '' else '*' end, ' ' order by id) from item), \
        (select string_agg(id::text, ' ' order by id) from note))";
    let rows = sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_one(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_is_marked_is_deleted() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    assert_eq!(larder.get("/files/1").await.status, StatusCode::OK);
    let deleted = larder.write(Method::DELETE, "/files/1", &[], "").await;
    assert_eq!(
        (deleted.status, deleted.body.as_str()),
        (StatusCode::NO_CONTENT, "")
    );
    assert_eq!(larder.get("/files/1").await.status, StatusCode::NOT_FOUND);
    // What a trigger keeps keeps the rows below it.
    assert_eq!(rows(&larder).await, "1* 2; 1 2 3; 1 2");
    let again = larder.write(Method::DELETE, "/files/1", &[], "").await;
    assert_eq!(again.status, StatusCode::NOT_FOUND);
    let post = larder
        .write(Method::POST, "/files", &[], r#"{"id":1}"#)
        .await;
    assert_eq!(post.json()["type"], "urn:problem-type:hidden-row");
    // It comes back by plain SQL.
    larder
        .execute("update doc set deleted_at = null where id = 1")
        .await;
    eventually("visible again", async || {
        (larder.get("/files/1").await.status == StatusCode::OK).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn children_that_are_marked_are_removed() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    let put = r#"{"name":"a","items":[{"id":2,"name":"changed","notes":[{"id":7}]}]}"#;
    let minimal = ("prefer", "return=minimal");
    let response = larder.write(Method::PUT, "/files/1", &[minimal], put).await;
    assert_eq!(
        (response.status, response.body.as_str()),
        (StatusCode::NO_CONTENT, "")
    );
    // Item 3 is deleted with its note; item 1 is marked, and keeps its note.
    assert_eq!(rows(&larder).await, "1 2; 1* 2; 1 7");
    let expected = json!({"id": 1, "name": "a", "items": [{"id": 2, "name": "changed", "notes": [{"id": 7}]}]});
    assert_eq!(larder.get("/files/1").await.json(), expected);
    // A row moves from an item that is marked then.
    larder
        .execute("insert into item values (4, 1, 'w'); insert into note values (8, 4)")
        .await;
    let patch = r#"{"items":[{"id":2,"name":"changed","notes":[{"id":7},{"id":8}]}]}"#;
    let response = larder.write(Method::PATCH, "/files/1", &[], patch).await;
    assert_eq!(response.status, StatusCode::OK, "{}", response.body);
    assert_eq!(rows(&larder).await, "1 2; 1* 2 4*; 1 7 8");
}

/// A row that a trigger keeps visible is no success.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_stay_visible_are_kept() {
    let veto = "create function veto() returns trigger language plpgsql as 'begin return null; end';
             create trigger a before delete on item for each row when (old.id = 2) execute function veto();
             create trigger a before delete on doc for each row when (old.id = 2) execute function veto()";
    let larder = TestService::start(&format!("{SCHEMA}{veto}"), CONFIG).await;
    let minimal = ("prefer", "return=minimal");
    let kept = larder
        .write(
            Method::PUT,
            "/files/1",
            &[minimal],
            r#"{"name":"a","items":[]}"#,
        )
        .await;
    assert_eq!(kept.status, StatusCode::OK);
    let expected = json!({"id": 1, "name": "a", "items": [{"id": 2, "name": "y", "notes": []}]});
    assert_eq!(kept.json(), expected);
    let kept = larder.write(Method::DELETE, "/files/2", &[], "").await;
    assert_eq!(
        (kept.status, kept.json()),
        (StatusCode::OK, json!({"id": 2, "name": "b", "items": []}))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_triggers_hide_is_422() {
    let larder = TestService::start(&format!("{SCHEMA}{HIDING}"), CONFIG).await;
    let before = rows(&larder).await;
    for (method, path, body, pointer) in [
        (Method::POST, "/files", r#"{"id":3,"name":"hide"}"#, ""),
        (Method::PUT, "/files/3", r#"{"name":"hide"}"#, ""),
        (Method::PATCH, "/files/1", r#"{"name":"hide"}"#, ""),
        (
            Method::POST,
            "/files",
            r#"{"id":3,"items":[{"id":9,"name":"hide"}]}"#,
            "/items/0",
        ),
        (
            Method::POST,
            "/files",
            r#"{"id":3,"items":[{"id":9,"name":"key"}]}"#,
            "/items/0",
        ),
        (
            Method::POST,
            "/files",
            r#"[{"id":3,"items":[{"id":9,"name":"key"}]}]"#,
            "/0/items/0",
        ),
        (
            Method::PATCH,
            "/files/2",
            r#"{"items":[{"id":9,"name":"ok"},{"id":10,"name":"key"}]}"#,
            "/items/1",
        ),
        (
            Method::POST,
            "/files",
            r#"{"id":3,"items":[{"id":9,"name":"later"}]}"#,
            "/items/0",
        ),
        (
            Method::PATCH,
            "/files/2",
            r#"{"items":[{"id":9,"name":"later"}]}"#,
            "/items/0",
        ),
    ] {
        let response = larder.write(method, path, &[], body).await;
        assert_eq!(
            response.status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{body}: {}",
            response.body
        );
        assert_eq!(response.json()["errors"][0]["pointer"], pointer, "{body}");
        assert_eq!(rows(&larder).await, before, "{body}");
    }
}

/// With triggers the unique constraint speaks first.
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_marked_rows_are_told_with_triggers_too() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    larder
        .execute("update doc set deleted_at = now() where id = 2; update item set deleted_at = now() where id = 1")
        .await;
    for (method, path, body, pointer) in [
        (Method::POST, "/files", r#"{"id":2}"#, ""),
        (Method::PUT, "/files/2", r#"{"name":"b"}"#, ""),
        (
            Method::POST,
            "/files",
            r#"{"id":3,"items":[{"id":1}]}"#,
            "/items/0",
        ),
        (
            Method::PATCH,
            "/files/1",
            r#"{"items":[{"id":2},{"id":1}]}"#,
            "/items/1",
        ),
        (Method::POST, "/files", r#"[{"id":3},{"id":2}]"#, "/1"),
        (
            Method::POST,
            "/files",
            r#"[{"id":3},{"id":4,"items":[{"id":1}]}]"#,
            "/1/items/0",
        ),
    ] {
        let response = larder.write(method, path, &[], body).await;
        let problem = response.json();
        assert_eq!(
            problem["type"], "urn:problem-type:hidden-row",
            "{body}: {problem}"
        );
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{body}");
    }
    assert_eq!(rows(&larder).await, "1 2*; 1* 2 3; 1 2");
}
