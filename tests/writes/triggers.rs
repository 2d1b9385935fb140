//! Triggers of users: they see the order of an ordinary transaction, and nothing of a refused request stays.

use axum::http::{Method, StatusCode};
use serde_json::json;

use crate::harness::service::{TestService, execute};
use crate::harness::table_locks::{await_waiter, lock_table, unlock};
use crate::writes::{CONFIG, SCHEMA, assert_stored, dept};

/// Counts each call of a trigger on `dept` in a table of its own.
const AUDIT: &str = "
    create table audit (what text);
    create function audit() returns trigger language plpgsql as $$ begin
      insert into audit values (tg_op); return coalesce(new, old); end $$;
    create trigger audit before insert or update or delete on dept for each row execute function audit();
";

async fn start(triggers: &str) -> TestService {
    TestService::start(&format!("{SCHEMA} {triggers}"), CONFIG).await
}

async fn audited(larder: &TestService) -> String {
    larder
        .query("select string_agg(what, ' ') from audit")
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_inserts_leave_no_effects_of_triggers() {
    let larder = start(AUDIT).await;
    assert_eq!(
        larder.post("/depts", &dept(1)).await.status,
        StatusCode::CREATED
    );
    let answer = larder.post("/depts", &dept(1)).await;
    assert_eq!(answer.status, StatusCode::CONFLICT);
    assert_eq!(answer.json()["code"], "23505");
    let absent = [("if-none-match", "*"), ("content-type", "application/json")];
    let text = dept(1).to_string();
    let answer = larder.write(Method::POST, "/depts", &absent, &text).await;
    assert_eq!(answer.status, StatusCode::PRECONDITION_FAILED);
    let answer = larder.write(Method::PUT, "/depts/1", &absent, &text).await;
    assert_eq!(answer.status, StatusCode::PRECONDITION_FAILED);
    assert_eq!(audited(&larder).await, "INSERT");
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_lines_of_a_bulk_write_leave_no_effects_of_triggers() {
    let larder = start(AUDIT).await;
    larder.post("/depts", &dept(1)).await;
    let lines = json!([dept(1), dept(2)]).to_string();
    let lenient = [
        ("prefer", "handling=lenient"),
        ("content-type", "application/json"),
    ];
    let answer = larder.write(Method::POST, "/depts", &lenient, &lines).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(answer.body.contains("\"status\":409"), "{}", answer.body);
    assert_eq!(audited(&larder).await, "INSERT INSERT");
    let strict = json!([dept(3), dept(2)]).to_string();
    let answer = larder.write(Method::POST, "/depts", &[], &strict).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
    assert!(answer.body.contains("document 1"), "{}", answer.body);
    assert_eq!(audited(&larder).await, "INSERT INSERT");
    assert_eq!(larder.query("select count(*)::text from dept").await, "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_unique_value_that_exists_is_a_conflict() {
    let larder = start(AUDIT).await;
    larder.post("/depts", &dept(1)).await;
    let mut other = dept(2);
    other["code"] = json!("c1");
    for answer in [
        larder.post("/depts", &other).await,
        larder.put("/depts/2", &other).await,
    ] {
        assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
        assert_eq!(answer.json()["code"], "23505");
    }
    assert_eq!(audited(&larder).await, "INSERT");
}

/// Rows above are there when a trigger is called for rows below, also when the document is replaced or deleted.
#[tokio::test(flavor = "multi_thread")]
async fn triggers_see_the_rows_above() {
    let larder = start(
        "create function above() returns trigger language plpgsql as $$ begin
           if not exists (select from emp e join dept d using (deptno)
               where e.empno = coalesce(new.empno, old.empno) and d.loc = 'HERE') then
             raise exception 'no rows above';
           end if;
           return coalesce(new, old); end $$;
         create trigger above before insert or update or delete on skill for each row execute function above();",
    )
    .await;
    let mut here = dept(1);
    here["loc"] = json!("HERE");
    let answer = larder.post("/depts", &here).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_stored(&larder, &answer, "/depts/1", &here).await;
    larder.execute("update dept set loc = 'AWAY'").await;
    here["emps"][0]["skills"] = json!([{"name": "go", "level": 7}, {"name": "rust", "level": 3}, {"name": "sql", "level": 1}]);
    here["emps"][1]["skills"] = json!([{"name": "go", "level": 7}]);
    let answer = larder.put("/depts/1", &here).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_stored(&larder, &answer, "/depts/1", &here).await;
    let answer = larder.delete("/depts/1").await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
    assert_eq!(larder.query("select count(*)::text from emp").await, "0");
}

/// The order between updates and inserts is not the one of tables' names.
#[tokio::test(flavor = "multi_thread")]
async fn triggers_of_new_rows_see_the_changed_root() {
    let larder = start(
        "create function located() returns trigger language plpgsql as $$ begin
           new.ename := (select loc from dept where deptno = new.deptno); return new; end $$;
         create trigger located before insert or update on emp for each row execute function located();",
    )
    .await;
    let mut document = dept(1);
    document["loc"] = json!("OLD");
    larder.post("/depts", &document).await;
    document["loc"] = json!("NEW");
    let emps = document["emps"].as_array_mut().unwrap();
    emps[0]["sal"] = json!(99);
    emps.push(json!({"no": 12, "name": "?", "sal": 1, "badge": null, "skills": []}));
    let answer = larder.put("/depts/1", &document).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let names = "select string_agg(ename, ' ' order by empno) from emp where sal is not null";
    assert_eq!(larder.query(names).await, "NEW NEW");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_soft_delete_keeps_the_rows_below_and_returns_the_document() {
    let larder = start(
        "create function soft() returns trigger language plpgsql as $$ begin
           update dept set loc = 'DELETED' where deptno = old.deptno; return null; end $$;
         create trigger soft before delete on dept for each row execute function soft();",
    )
    .await;
    larder.post("/depts", &dept(1)).await;
    let mut kept = dept(1);
    kept["loc"] = json!("DELETED");
    let minimal = [("prefer", "return=minimal")];
    let answer = larder.request(Method::DELETE, "/depts/1", &minimal).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!(answer.header("preference-applied"), "");
    assert_stored(&larder, &answer, "/depts/1", &kept).await;
}

/// A role of the name `larder` makes its functions in larder's schema, which is the first in its search path. A deletion was
/// 204, though the row stayed.
#[tokio::test(flavor = "multi_thread")]
async fn functions_of_users_in_the_schema_of_larder_are_called_by_triggers_of_users() {
    let larder = start("").await;
    larder.post("/depts", &dept(1)).await;
    let url = larder.url.clone();
    larder.stop().await;
    execute(
        &url,
        "create function larder.soft() returns trigger language plpgsql as $$ begin
           update dept set loc = 'DELETED' where deptno = old.deptno; return null; end $$;
         create trigger soft before delete on dept for each row execute function larder.soft();",
    )
    .await;
    let larder = TestService::start_on(&url, CONFIG, &[]).await;
    let mut kept = dept(1);
    kept["loc"] = json!("DELETED");
    let answer = larder.delete("/depts/1").await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_stored(&larder, &answer, "/depts/1", &kept).await;
}

/// Prevents the operation that `vetoed` names, for emps whose number ends with 1.
const VETO: &str = "
    create table vetoed (operation text);
    create function veto() returns trigger language plpgsql as $$ begin
      if coalesce(new.empno, old.empno) % 10 = 1 and exists (select from vetoed where operation = tg_op) then
        return null; end if;
      return coalesce(new, old); end $$;
    create trigger veto before insert or update or delete on emp for each row execute function veto();
";

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_a_trigger_leaves_out_is_a_conflict_and_nothing_changes() {
    let larder = start(VETO).await;
    let same = |answer: &crate::harness::service::TestResponse| {
        assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
        assert!(answer.body.contains("trigger"), "{}", answer.body);
    };
    larder.post("/depts", &dept(1)).await;
    larder.execute("insert into vetoed values ('INSERT')").await;
    same(&larder.post("/depts", &dept(2)).await);
    assert_eq!(larder.get("/depts/2").await.status, StatusCode::NOT_FOUND);
    larder
        .execute("update vetoed set operation = 'UPDATE'")
        .await;
    let mut raised = dept(1);
    raised["name"] = json!("R&D");
    raised["emps"][1]["sal"] = json!(7);
    same(&larder.put("/depts/1", &raised).await);
    assert_eq!(larder.get("/depts/1").await.json(), dept(1));
}

/// A trigger on the lowest level keeps a row, and one on an inner level keeps the rows below, too.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_triggers_keep_are_shown_with_the_rows_below() {
    let larder = start(&format!(
        "{VETO} insert into vetoed values ('DELETE');
         create function keep() returns trigger language plpgsql as $$ begin
           update skill set level = 0 where empno = old.empno and name = old.name; return null; end $$;
         create trigger keep before delete on skill for each row when (old.name = 'kept') execute function keep();"
    ))
    .await;
    let mut document = dept(1);
    document["emps"][1]["skills"] =
        json!([{"name": "go", "level": 1}, {"name": "rust", "level": 2}]);
    document["emps"][0]["skills"] =
        json!([{"name": "go", "level": 1}, {"name": "kept", "level": 2}]);
    larder.post("/depts", &document).await;
    let mut fewer = document.clone();
    fewer["name"] = json!("R&D");
    fewer["emps"].as_array_mut().unwrap().pop();
    fewer["emps"][0]["skills"] = json!([]);
    let minimal = [
        ("prefer", "return=minimal"),
        ("content-type", "application/json"),
    ];
    let answer = larder
        .write(Method::PUT, "/depts/1", &minimal, &fewer.to_string())
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!(answer.header("preference-applied"), "");
    document["name"] = json!("R&D");
    document["emps"][0]["skills"] = json!([{"name": "kept", "level": 0}]);
    assert_stored(&larder, &answer, "/depts/1", &document).await;
    // The root can't be deleted before the emp that the trigger keeps.
    let answer = larder.delete("/depts/1").await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
    assert_eq!(answer.json()["code"], "23503");
    assert_eq!(larder.get("/depts/1").await.json(), document);
}

/// A trigger that keeps one row at first, and two when it is done again without the rows below.
#[tokio::test(flavor = "multi_thread")]
async fn triggers_that_keep_other_rows_when_it_is_done_again_are_a_conflict() {
    let larder = start(
        "create sequence calls;
         create function other() returns trigger language plpgsql as $$ begin
           if nextval('calls') in (1, 3, 4) then return null; end if; return old; end $$;
         create trigger other before delete on emp for each row execute function other();",
    )
    .await;
    let mut document = dept(1);
    document["emps"][1]["skills"] = json!([{"name": "go", "level": 1}]);
    larder.post("/depts", &document).await;
    let mut none = document.clone();
    none["emps"] = json!([]);
    let answer = larder.put("/depts/1", &none).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
    assert!(
        answer.body.contains("trigger") || answer.json()["code"] == "23503",
        "{}",
        answer.body
    );
    assert_eq!(larder.get("/depts/1").await.json(), document);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_triggers_change_are_told_and_taken_by_the_rows_below() {
    let larder = start(
        "create function moved() returns trigger language plpgsql as $$ begin
           if tg_table_name = 'dept' then new.deptno := new.deptno + 100;
           else new.empno := new.empno + 1000; end if; return new; end $$;
         create trigger moved before insert on dept for each row execute function moved();
         create trigger moved before insert on emp for each row execute function moved();",
    )
    .await;
    let answer = larder.post("/depts", &dept(1)).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(answer.header("location"), "/depts/101");
    let mut stored = dept(1);
    stored["no"] = json!(101);
    stored["emps"][0]["no"] = json!(1010);
    stored["emps"][1]["no"] = json!(1011);
    assert_stored(&larder, &answer, "/depts/101", &stored).await;
    let answer = larder.put("/depts/2", &dept(2)).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
    assert!(answer.body.contains("key"), "{}", answer.body);
    assert_eq!(larder.query("select count(*)::text from dept").await, "1");
}

/// Rows that have rows below are inserted by one statement in the order of the body, also if a trigger changes their
/// keys.
#[tokio::test(flavor = "multi_thread")]
async fn a_level_is_inserted_by_one_statement_in_the_order_of_the_body() {
    let larder = start(
        "create table seen (what text);
         create sequence numbers;
         create function moved() returns trigger language plpgsql as $$ begin
           new.empno := new.empno * 10 + nextval('numbers'); return new; end $$;
         create trigger moved before insert on emp for each row execute function moved();
         create function inserted() returns trigger language plpgsql as $$ begin
           insert into seen select string_agg(empno::text, ' ') from rows; return null; end $$;
         create trigger inserted after insert on emp referencing new table as rows
           for each statement execute function inserted();",
    )
    .await;
    let mut document = dept(1);
    let emps: Vec<_> = [30, 10, 20]
        .map(|no| {
            let skills = json!([{"name": format!("s{no}"), "level": 1}]);
            json!({"no": no, "name": "KING", "sal": 1, "badge": null, "skills": skills})
        })
        .into();
    document["emps"] = json!(emps);
    let answer = larder.post("/depts", &document).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    let seen = "select string_agg(what, ';') from seen";
    assert_eq!(larder.query(seen).await, "301 102 203");
    let skills = "select string_agg(empno || name, ' ' order by empno) from skill";
    assert_eq!(larder.query(skills).await, "102s10 203s20 301s30");
}

/// A row that has rows below is inserted elsewhere by a trigger; another is left out.
#[tokio::test(flavor = "multi_thread")]
async fn rows_below_follow_a_row_that_a_trigger_inserts_elsewhere() {
    let larder = start(
        "create table emp_old () inherits (emp);
         create function routed() returns trigger language plpgsql as $$ begin
           if new.ename = 'NONE' then return null; end if;
           if new.ename = 'OLD' then insert into emp_old values (new.*); return null; end if;
           return new; end $$;
         create trigger routed before insert on emp for each row execute function routed();",
    )
    .await;
    let mut document = dept(1);
    document["emps"][1]["skills"] = json!([{"name": "sql", "level": 1}]);
    let old = json!({"no": 9, "name": "OLD", "sal": null, "badge": null, "skills": []});
    document["emps"].as_array_mut().unwrap().insert(0, old);
    let answer = larder.post("/depts", &document).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_stored(&larder, &answer, "/depts/1", &document).await;
    let mut document = dept(2);
    document["emps"][1]["name"] = json!("NONE");
    let answer = larder.post("/depts", &document).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
    assert!(answer.body.contains("trigger"), "{}", answer.body);
    assert_eq!(larder.query("select count(*)::text from emp").await, "3");
}

#[tokio::test(flavor = "multi_thread")]
async fn deferred_triggers_run_before_the_document_is_read() {
    let larder = start(
        "create function late() returns trigger language plpgsql as $$ begin
           update dept set loc = loc || '!' where deptno = new.deptno and loc not like '%!'; return null; end $$;
         create constraint trigger late after insert or update on dept deferrable initially deferred
           for each row execute function late();",
    )
    .await;
    let mut document = dept(1);
    document["loc"] = json!("a");
    let answer = larder.post("/depts", &document).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    document["loc"] = json!("a!");
    assert_stored(&larder, &answer, "/depts/1", &document).await;
}

/// An insert trigger that puts rows into an inheriting table, as before declarative partitioning.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_a_trigger_inserts_elsewhere_are_no_conflict() {
    let larder = start(
        "create table skill_old () inherits (skill);
         create function routed() returns trigger language plpgsql as $$ begin
           insert into skill_old values (new.*); return null; end $$;
         create trigger routed before insert on skill for each row execute function routed();",
    )
    .await;
    let answer = larder.post("/depts", &dept(1)).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_stored(&larder, &answer, "/depts/1", &dept(1)).await;
    assert_eq!(
        larder.query("select count(*)::text from skill_old").await,
        "2"
    );
}

/// A root row that stood before is not one that the trigger has inserted elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_vetoed_insert_of_a_key_that_exists_is_a_conflict() {
    let larder = start(
        "create table dept_old () inherits (dept);
         create function routed() returns trigger language plpgsql as $$ begin
           if new.loc = 'SKIP' then update dept set dname = 'TOUCHED' where deptno = new.deptno;
           else insert into dept_old values (new.*); end if;
           return null; end $$;
         create trigger routed before insert on dept for each row execute function routed();",
    )
    .await;
    let document =
        |no: i64, loc| json!({"no": no, "name": "SALES", "loc": loc, "code": null, "emps": []});
    let answer = larder.post("/depts", &document(1, "HERE")).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_stored(&larder, &answer, "/depts/1", &document(1, "HERE")).await;
    let skipped = document(1, "SKIP").to_string();
    let answer = larder.write(Method::POST, "/depts", &[], &skipped).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
    assert!(answer.body.contains("exists"), "{}", answer.body);
    let absent = [("if-none-match", "*"), ("content-type", "application/json")];
    let answer = larder
        .write(Method::POST, "/depts", &absent, &skipped)
        .await;
    assert_eq!(answer.status, StatusCode::PRECONDITION_FAILED);
    let answer = larder.post("/depts", &document(2, "SKIP")).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
    assert!(answer.body.contains("trigger"), "{}", answer.body);
    // The key of the second line exists, since the first has inserted it in the same transaction.
    let lines = json!([document(3, "HERE"), document(3, "SKIP")]).to_string();
    let answer = larder.write(Method::POST, "/depts", &[], &lines).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
    assert!(answer.body.contains("document 1"), "{}", answer.body);
    let stored = "select string_agg(deptno || dname, ' ') from dept";
    assert_eq!(larder.query(stored).await, "1SALES");
}

/// A row that another transaction commits after the vetoed insert is not one that the trigger has inserted elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_vetoed_insert_of_a_key_that_another_transaction_inserts_is_a_conflict() {
    let larder = start(
        "create table gate ();
         create function skipped() returns trigger language plpgsql as $$ begin
           if new.loc = 'SKIP' then perform from gate; return null; end if; return new; end $$;
         create trigger skipped before insert on dept for each row execute function skipped();",
    )
    .await;
    let document =
        |no: i64| json!({"no": no, "name": "SALES", "loc": "SKIP", "code": null, "emps": []});
    for (no, method, status) in [
        (1, Method::POST, StatusCode::CONFLICT),
        (2, Method::PUT, StatusCode::OK),
    ] {
        let path = match no {
            1 => "/depts".to_owned(),
            _ => format!("/depts/{no}"),
        };
        let body = document(no).to_string();
        let mut gate = lock_table(&larder.url, "gate").await;
        let other = async {
            await_waiter(&mut gate, "gate").await;
            larder
                .execute(&format!("insert into dept values ({no}, 'OTHER')"))
                .await;
            unlock(gate).await;
        };
        let (answer, ()) = tokio::join!(larder.write(method, &path, &[], &body), other);
        assert_eq!(answer.status, status, "{}", answer.body);
    }
    let stored = "select string_agg(deptno || dname, ' ' order by deptno) from dept";
    assert_eq!(larder.query(stored).await, "1OTHER 2SALES");
}

/// Levels without rows have no statement, which a trigger would see.
#[tokio::test(flavor = "multi_thread")]
async fn deleted_levels_call_triggers_from_the_lowest_level_up() {
    for (timing, expected) in [
        (
            "row",
            "skill 0 4 2, skill 0 4 2, emp 0 2 2, emp 0 2 2, dept 0 2 1",
        ),
        ("statement", "skill 0 4 2, emp 0 2 2, dept 0 2 1"),
    ] {
        let triggers: String = ["dept", "emp", "skill"]
            .map(|table| {
                format!("create trigger audit after delete on {table} for each {timing} execute function audit();")
            })
            .concat();
        let larder = start(&format!(
            "create table audit (what text);
             create function audit() returns trigger language plpgsql as $$ begin
               insert into audit values (concat_ws(' ', tg_table_name, (select count(*) from skill where empno < 20),
                 (select count(*) from emp), (select count(*) from dept)));
               return null; end $$; {triggers}"
        ))
        .await;
        larder.post("/depts", &dept(1)).await;
        larder.post("/depts", &dept(2)).await;
        let answer = larder.write(Method::DELETE, "/depts/1", &[], "").await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
        let audited = "select string_agg(what, ', ') from audit";
        assert_eq!(larder.query(audited).await, expected);
        larder
            .post("/depts", &json!({"no": 3, "name": "EMPTY"}))
            .await;
        larder.execute("truncate audit").await;
        let answer = larder.write(Method::DELETE, "/depts/3", &[], "").await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
        assert_eq!(larder.query(audited).await, "dept 0 2 1");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_with_rules_are_read_only() {
    let larder = start("create rule none as on delete to skill do instead nothing;").await;
    let answer = larder.post("/depts", &dept(1)).await;
    assert_eq!(
        answer.status,
        StatusCode::METHOD_NOT_ALLOWED,
        "{}",
        answer.body
    );
    assert!(answer.body.contains("rules"), "{}", answer.body);
    assert_eq!(larder.get("/depts").await.status, StatusCode::OK);
}

/// `on conflict` has no arbiter among deferrable constraints.
#[tokio::test(flavor = "multi_thread")]
async fn a_deferrable_unique_constraint_does_not_prevent_writes() {
    let larder = start(
        "alter table dept drop constraint dept_code_key, add unique (code) deferrable initially deferred;",
    )
    .await;
    let answer = larder.post("/depts", &dept(1)).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    let mut other = dept(2);
    other["code"] = json!("c1");
    let answer = larder.post("/depts", &other).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
    assert_eq!(larder.query("select count(*)::text from dept").await, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn codes_that_triggers_raise_are_statuses_and_no_failures_of_postgresql() {
    let larder = start(
        "create function refuse() returns trigger language plpgsql as $$ begin
           raise exception 'refused' using errcode = new.loc; end $$;
         create trigger refuse before insert on dept for each row execute function refuse();",
    )
    .await;
    for (code, status) in [
        ("45000", 422),
        ("P0002", 422),
        ("PT409", 409),
        ("PT503", 503),
        ("PT399", 422),
        ("08006", 422),
        ("53000", 422),
        ("53300", 422),
        ("57P01", 422),
        ("25006", 422),
        ("42703", 422),
        ("23505", 409),
    ] {
        let mut document = dept(1);
        document["loc"] = json!(code);
        let answer = larder.post("/depts", &document).await;
        assert_eq!(answer.status.as_u16(), status, "{code}: {}", answer.body);
        assert_eq!(answer.json()["code"], code);
        let answer = larder.get("/depts/1").await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{code}");
    }
}

/// A trigger that is created while larder runs counts from the next definition on.
#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_that_is_created_later_counts() {
    let larder = start("").await;
    larder.post("/depts", &dept(1)).await;
    larder.execute(AUDIT).await;
    crate::harness::eventually("the trigger is known", async || {
        larder.execute("truncate audit").await;
        larder.post("/depts", &dept(1)).await;
        larder.delete("/depts/1").await;
        larder.post("/depts", &dept(1)).await;
        (audited(&larder).await == "DELETE INSERT").then_some(())
    })
    .await;
}

/// Such as a table of messages that a trigger takes in.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_document_that_a_trigger_moves_has_no_location() {
    let larder = start(
        "create function taken() returns trigger language plpgsql as $$ begin
           update dept set deptno = deptno + 100 where deptno = new.deptno; return null; end $$;
         create constraint trigger taken after insert on dept deferrable initially deferred
           for each row when (new.loc = 'INBOX') execute function taken();",
    )
    .await;
    let inbox = json!({"no": 1, "name": "x", "loc": "INBOX"});
    for prefer in ["return=minimal", "return=representation"] {
        let headers = [("prefer", prefer), ("content-type", "application/json")];
        let answer = larder
            .write(Method::POST, "/depts", &headers, &inbox.to_string())
            .await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        assert_eq!(answer.header("location"), "");
        assert_eq!(answer.body, "");
        larder.execute("delete from dept").await;
    }
    let answer = larder.post("/depts", &dept(1)).await;
    assert_eq!(answer.header("location"), "/depts/1");
}

/// A row moves to a new row, whose key a trigger changes.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_move_take_the_key_that_a_trigger_changes() {
    let larder = TestService::start(
        "create table a (id int primary key);
         create table b (a int references a, n text, primary key (a, n));
         create table c (id int primary key, a int, n text, t text, foreign key (a, n) references b);
         create function renamed() returns trigger language plpgsql as $$ begin
           new.n := new.n || '!'; return new; end $$;
         insert into a values (1); insert into b values (1, 'x'); insert into c values (5, 1, 'x', 'kept');
         create trigger renamed before insert on b for each row execute function renamed();",
        "[[resource]]\nname = 'as'\ntable = 'a'\n[[resource.children]]\nname = 'bs'\ntable = 'b'\n\
         fields = { n = 'n' }\n[[resource.children.children]]\nname = 'cs'\ntable = 'c'\nfields = { id = 'id' }\n",
    )
    .await;
    let body = json!({"id": 1, "bs": [{"n": "y", "cs": [{"id": 5}]}]});
    let answer = larder.put("/as/1", &body).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let stored = json!({"id": 1, "bs": [{"n": "y!", "cs": [{"id": 5}]}]});
    assert_stored(&larder, &answer, "/as/1", &stored).await;
    assert_eq!(larder.query("select t from c where id = 5").await, "kept");
}

/// PostgreSQL refuses it with 27000, which was 500.
#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_that_changes_the_row_of_its_statement_is_a_conflict() {
    let larder = start(
        "create function itself() returns trigger language plpgsql as $$ begin
           update dept set loc = 'elsewhere' where deptno = new.deptno; return new; end $$;
         create trigger itself before update of dname on dept for each row execute function itself();",
    )
    .await;
    larder.post("/depts", &dept(1)).await;
    let answer = larder.patch("/depts/1", &json!({"name": "R&D"})).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
    assert_eq!(answer.json()["code"], "27000");
    assert_eq!(larder.get("/depts/1").await.json(), dept(1));
}
