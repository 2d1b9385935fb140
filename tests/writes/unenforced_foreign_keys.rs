//! Rows that other clients add below a document while it is written, when the foreign key is not enforced for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::harness::eventually;
use crate::harness::service::TestService;
use crate::writes::{CONFIG, SCHEMA, dept, start};

/// The default of a new emp's key waits for a row in `gate`: a PATCH that adds an emp has then read the document, and
/// not changed it yet.
const GATE: &str = "
    create table gate ();
    create function drawn() returns bigint language plpgsql as $$ begin
      while not exists (select from gate) loop perform pg_sleep(0.01); end loop;
      return 50; end $$;
    alter table emp alter empno set default drawn();
";

/// Disables the triggers of the foreign keys of `emp` and `skill`; the constraints look enforced in the catalogue.
const UNENFORCED: &str = "do $$ declare t record; begin
    for t in select tgname, tgrelid::regclass as tgtable from pg_trigger
      where tgisinternal and tgrelid in ('dept'::regclass, 'emp'::regclass, 'skill'::regclass)
    loop execute format('alter table %s disable trigger %I', t.tgtable, t.tgname); end loop; end $$";

/// As the apply worker of a subscription has it.
const REPLICA: &str = "set session_replication_role = replica";

async fn run(connection: &mut PgConnection, sql: &str) {
    let sql = AssertSqlSafe(sql.to_owned());
    sqlx::raw_sql(sql).execute(connection).await.unwrap();
}

async fn patch_beside_an_insert(before: &str, of_session: &str) {
    let larder = TestService::start(&format!("{SCHEMA} {GATE}"), CONFIG).await;
    larder.post("/depts", &dept(1)).await;
    larder.execute(before).await;
    let mut other = larder.connect().await;
    run(&mut other, of_session).await;
    // The second emp goes, and one of the first one's skills.
    let patch = json!({"emps": [
        {"no": 10, "name": "KING", "skills": [{"name": "go", "level": 9}]}, {"name": "NEW"}]});
    let patching = larder.patch("/depts/1", &patch);
    let inserting = async {
        let waits = "select count(*)::text from pg_stat_activity \
            where datname = current_database() and wait_event = 'PgSleep'";
        eventually("the PATCH has read", async || {
            (larder.query(waits).await == "1").then_some(())
        })
        .await;
        let insert = "insert into emp (empno, ename, deptno) values (99, 'OTHER', 1); \
            insert into skill (empno, name) values (10, 'sql'); insert into gate default values";
        run(&mut other, insert).await;
    };
    let (answer, ()) = tokio::join!(patching, inserting);
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let emps = "select string_agg(empno::text, ' ' order by empno) from emp";
    assert_eq!(larder.query(emps).await, "10 50 99");
    let skills = "select string_agg(name || level, ' ' order by name) from skill";
    assert_eq!(larder.query(skills).await, "go9 sql1");
    let stored = answer.json();
    assert_eq!(stored["emps"].as_array().unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patch_keeps_rows_that_a_replication_role_adds_after_its_read() {
    patch_beside_an_insert("", REPLICA).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patch_keeps_rows_that_are_added_past_disabled_triggers_after_its_read() {
    patch_beside_an_insert(UNENFORCED, "").await;
}

/// 983 of 4,373 such rows were once deleted.
#[tokio::test(flavor = "multi_thread")]
async fn patches_of_the_name_alone_delete_nothing() {
    const PATCHES: usize = 40;
    const ROWS_MAX: usize = 2_000;
    let larder = Arc::new(start().await);
    larder.post("/depts", &dept(1)).await;
    let mut other = larder.connect().await;
    run(&mut other, REPLICA).await;
    let patched = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&patched);
    let inserting = tokio::spawn(async move {
        let mut inserted = 0;
        while inserted < ROWS_MAX && !until.load(Ordering::Relaxed) {
            inserted += 1;
            let insert = format!(
                "insert into emp (empno, deptno) values (1000 + {inserted}, 1); \
                 insert into skill (empno, name) values (1000 + {inserted}, 'sql')"
            );
            run(&mut other, &insert).await;
        }
        inserted
    });
    for name in 0..PATCHES {
        let patch = json!({"name": name.to_string()});
        let answer = larder.patch("/depts/1", &patch).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    }
    patched.store(true, Ordering::Relaxed);
    let inserted = inserting.await.unwrap();
    for table in ["emp", "skill"] {
        let left = format!("select count(*)::text from {table}");
        // With those of the document as it was posted.
        let expected = (inserted + 2).to_string();
        assert_eq!(larder.query(&left).await, expected, "{table}");
    }
}

/// A PUT and a DELETE with `If-Match` change exactly the rows that the condition was compared with.
#[tokio::test(flavor = "multi_thread")]
async fn writes_under_a_condition_change_all_that_they_read() {
    let larder = start().await;
    larder.post("/depts", &dept(1)).await;
    larder.post("/depts", &dept(2)).await;
    let any = [("if-match", "*")];
    let document: Value = json!({"no": 1, "name": "x", "loc": null, "code": "c1", "emps": [
        {"no": 11, "name": "FORD", "sal": 2.50, "badge": "b10", "skills": [{"name": "sql", "level": 1}]},
        {"no": 12, "name": "NEW", "sal": null, "badge": null, "skills": []}]});
    let body = document.to_string();
    let answer = larder.write(Method::PUT, "/depts/1", &any, &body).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!(answer.json(), document);
    let answer = larder.write(Method::DELETE, "/depts/1", &any, "").await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
    let left = "select concat_ws(' ', (select count(*) from dept), (select count(*) from emp), (select count(*) from skill))";
    assert_eq!(larder.query(left).await, "1 2 2");
}
