//! `larder install` and `larder uninstall`.

use axum::http::StatusCode;
use sqlx::{Connection, PgConnection};

use super::{configured, value};
use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::eventually;
use crate::harness::larder_process::{LarderProcess, run, stderr, stdout};
use crate::harness::raw_http::fetch;
use crate::harness::service::execute;

const SCHEMA: &str = r#"
    create schema "Shop";
    create table "Shop"."Order" (id bigint primary key, note text);
    create table "Shop".line (n int primary key, order_id bigint references "Shop"."Order" on delete cascade);
    create index on "Shop".line (order_id);
    insert into "Shop"."Order" values (1, 'first');
    insert into "Shop".line values (10, 1);"#;

const CONFIG: &str = "
    [[resource]]
    name = 'orders'
    table = 'Shop.Order'
      [[resource.children]]
      name = 'lines'
      table = 'Shop.line'
    ";

/// Counts everything that larder adds: the objects of its schema, and triggers that do not belong to foreign keys.
const ADDED: &str = "
    select (select count(*) from pg_class where relnamespace = to_regnamespace('larder'))
         + (select count(*) from pg_proc where pronamespace = to_regnamespace('larder'))
         + (select count(*) from pg_namespace where nspname = 'larder')
         + (select count(*) from pg_trigger where not tgisinternal)";

/// The row versions of larder's objects in the catalogue, which a second installation must not change.
const VERSIONS: &str = "
    select string_agg(x, ' ' order by x) from (
      select tgname || xmin::text from pg_trigger where not tgisinternal
      union all select proname || xmin::text from pg_proc where pronamespace = to_regnamespace('larder')
      union all select relname || xmin::text from pg_class where relnamespace = to_regnamespace('larder')
      union all select nonce::text from larder.epoch) as v (x)";

#[tokio::test(flavor = "multi_thread")]
async fn printed_sql_installs_and_grants_all_that_larder_needs() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let role = TestRole::create(&url).await;
    let directory = configured(&format!("install = 'manual'\n{CONFIG}"));

    let printed = run(directory.path(), Some(&role.url), &["install", "--print"]).await;
    assert_eq!(printed.status.code(), Some(0), "{}", stderr(&printed));
    let sql = stdout(&printed);
    assert!(sql.contains("grant ") && sql.contains(&role.name), "{sql}");
    assert!(!sql.contains("hidden"), "{sql}");
    assert_eq!(value::<i64>(&url, ADDED).await, 0);

    // The role owns nothing.
    let refused = run(directory.path(), Some(&role.url), &["install"]).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("42501"), "{}", stderr(&refused));
    assert_eq!(value::<i64>(&url, ADDED).await, 0);

    execute(&url, &sql).await;
    let serving = LarderProcess::start(directory.path(), Some(&role.url), &[]).await;
    serving.ready().await;
    let answer = fetch(serving.listen, "GET", "/orders/1").await;
    assert_eq!(
        answer.body,
        r#"{"id":1,"note":"first","lines":[{"n":10,"order_id":1}]}"#
    );
    execute(
        &url,
        r#"update "Shop"."Order" set note = 'second'; delete from "Shop".line"#,
    )
    .await;
    eventually("the change", async || {
        let answer = fetch(serving.listen, "GET", "/orders/1").await;
        (answer.body == r#"{"id":1,"note":"second","lines":[]}"#).then_some(())
    })
    .await;
    let answer = fetch(serving.listen, "DELETE", "/orders/1").await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
    assert_eq!(serving.terminate().await.code(), Some(0));

    // Nothing is missing, so no ownership is needed.
    let again = run(directory.path(), Some(&role.url), &["install"]).await;
    assert_eq!(again.status.code(), Some(0), "{}", stderr(&again));
}

#[tokio::test(flavor = "multi_thread")]
async fn manual_installation_is_waited_for() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let directory = configured(&format!("install = 'manual'\n{CONFIG}"));
    let serving = LarderProcess::start_without_stdout(directory.path(), &url).await;
    eventually("the reason", async || {
        let answer = fetch(serving.admin, "GET", "/readyz").await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        answer.body.contains("larder install").then_some(())
    })
    .await;
    let answer = fetch(serving.listen, "GET", "/orders/1").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(value::<i64>(&url, ADDED).await, 0);
    let installed = run(directory.path(), Some(&url), &["install"]).await;
    assert_eq!(installed.status.code(), Some(0), "{}", stderr(&installed));
    serving.ready().await;
    assert_eq!(serving.terminate().await.code(), Some(0));
}

#[tokio::test]
async fn second_installation_changes_nothing_and_locks_nothing() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let directory = configured(CONFIG);
    let first = run(directory.path(), Some(&url), &["install"]).await;
    assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
    let versions: String = value(&url, VERSIONS).await;

    let mut writer = PgConnection::connect(&url).await.unwrap();
    sqlx::raw_sql(
        r#"begin; lock table "Shop"."Order", "Shop".line in row exclusive mode;
           update "Shop"."Order" set note = 'held'"#,
    )
    .execute(&mut writer)
    .await
    .unwrap();
    let second = run(directory.path(), Some(&url), &["install"]).await;
    assert_eq!(second.status.code(), Some(0), "{}", stderr(&second));
    sqlx::raw_sql("commit").execute(&mut writer).await.unwrap();
    assert_eq!(value::<String>(&url, VERSIONS).await, versions);
}

#[tokio::test]
async fn uninstalling_removes_all_that_is_larders_and_nothing_else() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    execute(
        &url,
        r#"create function note() returns trigger language plpgsql as 'begin return new; end';
           create trigger larder_of_mine before insert on "Shop".line for each row execute function note()"#,
    )
    .await;
    let directory = configured(CONFIG);
    let args: [&[&str]; 3] = [&["install"], &["uninstall", "--print"], &["uninstall"]];
    let [install, print, uninstall] = args;
    let nothing = run(directory.path(), Some(&url), uninstall).await;
    assert_eq!(nothing.status.code(), Some(0), "{}", stderr(&nothing));
    run(directory.path(), Some(&url), install).await;
    let installed: i64 = value(&url, ADDED).await;
    assert!(installed > 10, "{installed}");

    let printed = run(directory.path(), Some(&url), print).await;
    assert_eq!(printed.status.code(), Some(0), "{}", stderr(&printed));
    assert_eq!(value::<i64>(&url, ADDED).await, installed);

    // With an object of a user in the schema, nothing is dropped.
    execute(&url, "create table larder.mine ()").await;
    let refused = run(directory.path(), Some(&url), uninstall).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("larder.mine"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(value::<i64>(&url, ADDED).await, installed + 1);
    execute(&url, "drop table larder.mine").await;
    // An earlier larder's triggers called this.
    execute(
        &url,
        "create function larder.installed(larder.change) returns boolean language sql as 'select true'",
    )
    .await;

    // Only the user's own trigger is left.
    execute(&url, &stdout(&printed)).await;
    assert_eq!(value::<i64>(&url, ADDED).await, 1);
    run(directory.path(), Some(&url), install).await;
    for _ in 0..2 {
        let output = run(directory.path(), Some(&url), uninstall).await;
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(value::<i64>(&url, ADDED).await, 1);
    }
    execute(&url, r#"insert into "Shop".line values (11, 1)"#).await;
}
