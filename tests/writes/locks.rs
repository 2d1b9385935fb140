//! Other clients' transactions beside writes: PostgreSQL ends none of them because of a deadlock with larder.

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use futures_util::future::join_all;
use serde_json::json;
use sqlx::AssertSqlSafe;

use crate::harness::cluster::TestRole;
use crate::harness::service::TestService;
use crate::writes::{CONFIG, dept, grants_on_larder, start};

const DEPTS: i64 = 4;

/// A transaction does `first`, then `second` after longer than `deadlock_timeout`, beside a PATCH of each document. Its
/// own wait for `second` is the later one, so that PostgreSQL would end it if a PATCH held that and waited for `first`.
async fn beside_patches(first: &str, second: &str) {
    let larder = Arc::new(start().await);
    for no in 1..=DEPTS {
        larder.post("/depts", &dept(no)).await;
    }
    let mut other = larder.connect().await;
    let first = AssertSqlSafe(format!("begin; {first}"));
    sqlx::raw_sql(first).execute(&mut other).await.unwrap();
    let patches = (1..=DEPTS).map(|no| {
        let larder = Arc::clone(&larder);
        async move {
            let patch = json!({"name": "PATCHED"});
            larder.patch(&format!("/depts/{no}"), &patch).await
        }
    });
    let second = AssertSqlSafe(format!("select pg_sleep(1.5); {second}; commit"));
    let (answers, ended) =
        tokio::join!(join_all(patches), sqlx::raw_sql(second).execute(&mut other));
    ended.unwrap();
    for answer in answers {
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    }
    let patched = "select count(*)::text from dept where dname = 'PATCHED'";
    assert_eq!(larder.query(patched).await, DEPTS.to_string());
}

/// 6 of 6 migrations were.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_of_the_child_and_then_the_parent_is_never_ended() {
    beside_patches(
        "alter table emp add column hired date",
        "alter table dept add column founded date",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_updates_the_child_and_then_the_parent_is_never_ended() {
    beside_patches(
        "update emp set sal = 1",
        "update dept set loc = 'there' where deptno <= 4",
    )
    .await;
}

/// A key drawn by default takes half a second where a gate is up; the row below notes how long it may wait for a lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_holds_locks_for_long_waits_for_no_more() {
    let larder = TestService::start(
        "create table slow ();
         create function drawn() returns int language plpgsql as $$ begin
           if exists (select from slow) then perform pg_sleep(0.5); end if; return 1; end $$;
         create function note() returns trigger language plpgsql as $$ begin
           new.waits := current_setting('lock_timeout'); return new; end $$;
         create table t (id int primary key default drawn());
         create table c (t_id int references t on delete cascade, no int, waits text, primary key (t_id, no));
         create trigger note before insert on c for each row execute function note()",
        "[[resource]]\nname = 'ts'\ntable = 't'\n[[resource.children]]\nname = 'cs'\ntable = 'c'\n",
    )
    .await;
    let document = json!({"cs": [{"no": 1}]});
    let answer = larder.post("/ts", &document).await;
    assert_eq!(answer.json()["cs"][0]["waits"], "50ms", "{}", answer.body);
    larder
        .execute("delete from t; insert into slow default values")
        .await;
    let answer = larder.post("/ts", &document).await;
    assert_eq!(answer.json()["cs"][0]["waits"], "1ms", "{}", answer.body);
    // A bulk write, which takes long at any rate, can't begin anew.
    larder.execute("delete from t").await;
    let headers = [
        ("content-type", "application/x-ndjson"),
        ("prefer", "return=representation"),
    ];
    let line = format!("{document}\n");
    let answer = larder.write(Method::POST, "/ts", &headers, &line).await;
    assert_eq!(
        answer.json()[0]["cs"][0]["waits"],
        "50ms",
        "{}",
        answer.body
    );
}

/// `lock table` asks for a privilege on the whole table.
#[tokio::test(flavor = "multi_thread")]
async fn privileges_on_columns_are_enough_to_write() {
    let larder = start().await;
    let role = TestRole::create(&larder.url).await;
    let grants = format!(
        "{larder} grant select on dept, emp, skill to {name};
         grant insert (deptno, dname, loc, code), update (dname, loc, code) on dept to {name};
         grant insert (empno, ename, sal, badge, deptno) on emp to {name};
         grant insert (empno, name, level) on skill to {name}",
        larder = grants_on_larder(&role.name),
        name = role.name
    );
    larder.execute(&grants).await;
    let writer = TestService::start_on(&role.url, CONFIG, &[("install", "manual")]).await;
    let answer = writer.post("/depts", &dept(1)).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(answer.json(), dept(1));
    // To lock rows of emps takes a privilege that it has not, and none of them is changed.
    let mut document = dept(1);
    document["loc"] = json!("MARS");
    let answer = writer.put("/depts/1", &document).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    document["emps"][0]["name"] = json!("other");
    let answer = writer.put("/depts/1", &document).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN, "{}", answer.body);
}
