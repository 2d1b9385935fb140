//! Rows become visible and hidden: documents, children, lookups, lists and remembered absences follow, in both tiers.

use axum::http::{Method, StatusCode};

use crate::harness::eventually;
use crate::harness::service::TestService;

const SCHEMA: &str = "
    create table site (id int primary key, city text, gone bool);
    create table dept (id int primary key, name text, site_id int references site, gone bool);
    create table emp (id int primary key, dept_id int references dept, name text, gone bool);
    create table skill (emp_id int references emp, name text, gone bool, primary key (emp_id, name));
    insert into site values (1, 'Ulm', false), (2, 'Bonn', true);
    insert into dept values (1, 'a', 1, false), (2, 'b', 2, null), (3, 'c', null, true);
    insert into emp values (1, 1, 'x', false), (2, 1, 'y', true), (3, 1, 'z', false), (4, 3, 'w', false);
    insert into skill values (1, 's', false), (1, 't', true), (2, 'u', false), (3, 'v', false);";

const CONFIG: &str = "
    [[resource]]
    name = 'depts'
    table = 'dept'
    where = 'gone is not true'
    filters = ['name']
    fields = { id = 'id', name = 'name' }
      [[resource.children]]
      name = 'emps'
      table = 'emp'
      where = 'not gone'
      fields = { id = 'id' }
        [[resource.children.children]]
        name = 'skills'
        table = 'skill'
        where = 'not gone'
        fields = { name = 'name' }
      [[resource.lookups]]
      name = 'site'
      table = 'site'
      column = 'site_id'
      where = 'not gone'
      fields = { city = 'city' }";

const FIRST: &str = r#"{"id":1,"name":"a","emps":[{"id":1,"skills":[{"name":"s"}]},{"id":3,"skills":[{"name":"v"}]}],"site":{"city":"Ulm"}}"#;

/// Waits until the document of department 1 is `expected`.
async fn becomes(larder: &TestService, expected: &str) {
    eventually(expected, async || {
        (larder.get("/depts/1").await.body == expected).then_some(())
    })
    .await;
}

/// Waits until `path` is answered with `expected`.
async fn has_status(larder: &TestService, path: &str, expected: StatusCode) {
    eventually(path, async || {
        (larder.get(path).await.status == expected).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hidden_rows_are_in_no_document() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    assert_eq!(larder.get("/depts/1").await.body, FIRST);
    assert_eq!(
        larder.get("/depts/2").await.body,
        r#"{"id":2,"name":"b","emps":[],"site":null}"#
    );
    let hidden = larder.get("/depts/3").await;
    let absent = larder.get("/depts/9").await;
    assert_eq!(hidden.status, StatusCode::NOT_FOUND);
    assert_eq!(hidden.body, absent.body);
    let batch = larder.get("/depts?keys=3,2,1,9").await.json();
    assert_eq!(batch["missing"], serde_json::json!([3, 9]));
    assert_eq!(batch["documents"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn tiers_follow_rows_that_become_hidden_and_visible() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    becomes(&larder, FIRST).await;
    for (hide, hidden) in [
        (
            "update emp set gone = $ where id = 1",
            r#"{"id":1,"name":"a","emps":[{"id":3,"skills":[{"name":"v"}]}],"site":{"city":"Ulm"}}"#,
        ),
        (
            "update skill set gone = $ where emp_id = 3",
            r#"{"id":1,"name":"a","emps":[{"id":1,"skills":[{"name":"s"}]},{"id":3,"skills":[]}],"site":{"city":"Ulm"}}"#,
        ),
        (
            "update site set gone = $ where id = 1",
            r#"{"id":1,"name":"a","emps":[{"id":1,"skills":[{"name":"s"}]},{"id":3,"skills":[{"name":"v"}]}],"site":null}"#,
        ),
    ] {
        larder.execute(&hide.replace('$', "true")).await;
        becomes(&larder, hidden).await;
        larder.execute(&hide.replace('$', "false")).await;
        becomes(&larder, FIRST).await;
    }
    // A row below a hidden one changes, which nobody sees; then the hidden one becomes visible.
    larder
        .execute("update skill set name = 'changed' where emp_id = 2; update emp set gone = false where id = 2")
        .await;
    let all = FIRST.replace(
        r#"{"id":3"#,
        r#"{"id":2,"skills":[{"name":"changed"}]},{"id":3"#,
    );
    becomes(&larder, &all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_becomes_visible_ends_a_remembered_absence() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    has_status(&larder, "/depts/3", StatusCode::NOT_FOUND).await;
    eventually("a remembered absence", async || {
        let absent = larder.get("/depts/3").await;
        (absent.cache_status() == "larder; hit; detail=memory").then_some(())
    })
    .await;
    for (gone, expected) in [
        ("false", StatusCode::OK),
        ("true", StatusCode::NOT_FOUND),
        ("null", StatusCode::OK),
    ] {
        let update = format!("update dept set gone = {gone} where id = 3");
        larder.execute(&update).await;
        has_status(&larder, "/depts/3", expected).await;
    }
    larder
        .execute("insert into dept values (4, 'd', null, true)")
        .await;
    has_status(&larder, "/depts/4", StatusCode::NOT_FOUND).await;
    larder
        .execute("update dept set gone = false where id = 4")
        .await;
    has_status(&larder, "/depts/4", StatusCode::OK).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_full_and_have_only_visible_rows() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    larder
        .execute(
            "insert into dept select n, n % 2, null, n % 3 = 0 from generate_series(10, 69) n;
             update dept set gone = true where id < 10",
        )
        .await;
    let mut found = Vec::new();
    let mut path = "/depts?limit=7".to_owned();
    loop {
        let page = larder.get(&path).await;
        let documents = page.json();
        let ids = documents.as_array().unwrap().iter();
        let ids: Vec<i64> = ids
            .map(|document| document["id"].as_i64().unwrap())
            .collect();
        let link = page.header("link");
        assert!(link.is_empty() || ids.len() == 7, "{ids:?}");
        found.extend(ids);
        match link.split(['<', '>']).nth(1) {
            Some(next) => path = next.to_owned(),
            None => break,
        }
    }
    let expected: Vec<i64> = (10..70).filter(|n| n % 3 != 0).collect();
    assert_eq!(found, expected);
    let odd = larder.get("/depts?name=eq.1&limit=1000").await.json();
    assert_eq!(odd.as_array().unwrap().len(), 20);
}

/// The shape decides the bytes of documents: what was stored under another condition is not taken over.
#[tokio::test(flavor = "multi_thread")]
async fn what_another_condition_has_left_on_disk_is_not_used() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    let url = larder.url.clone();
    becomes(&larder, FIRST).await;
    let state = larder.stop().await;
    let resumed = TestService::start_in(state, &url, CONFIG, &[]).await;
    eventually("a hit on disk", async || {
        let hit = resumed.get("/depts/1").await;
        assert_eq!(hit.body, FIRST);
        (hit.cache_status() == "larder; hit; detail=disk").then_some(())
    })
    .await;
    let state = resumed.stop().await;
    let other = CONFIG.replacen("where = 'not gone'", "where = 'id = 1 and not gone'", 1);
    let changed = TestService::start_in(state, &url, &other, &[]).await;
    let expected = FIRST.replace(r#",{"id":3,"skills":[{"name":"v"}]}"#, "");
    assert_eq!(changed.get("/depts/1").await.body, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_hold_behind_a_transaction_pooler() {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    let url = larder.url.clone();
    let settings = [("database.pooler", "true"), ("database.listen_url", &*url)];
    let larder = TestService::start_on(&url, CONFIG, &settings).await;
    becomes(&larder, FIRST).await;
    let hidden = larder.get("/depts?limit=1000").await.json();
    assert_eq!(hidden.as_array().unwrap().len(), 2);
    let patch = larder
        .write(
            Method::PATCH,
            "/depts/1",
            &[],
            r#"{"emps":[{"id":1,"skills":[]}]}"#,
        )
        .await;
    assert_eq!(patch.status, StatusCode::OK, "{}", patch.body);
    let patch = larder.write(Method::PATCH, "/depts/3", &[], "{}").await;
    assert_eq!(patch.status, StatusCode::NOT_FOUND);
}
