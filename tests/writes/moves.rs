//! Rows that move within a document, and rows that exchange unique values.

use axum::http::StatusCode;
use serde_json::json;

use crate::harness::service::TestService;
use crate::writes::{CONFIG, assert_stored};

/// A skill has a number of its own, so it can move to another emp. `hidden` is not shown; `note` refers to it.
const SCHEMA: &str = "
    create table dept (deptno bigint primary key, dname text not null, loc text, code text unique);
    create table emp (empno bigint primary key, ename text, sal numeric, badge text unique,
                      deptno bigint not null references dept);
    create table skill (no bigint primary key, name text, hidden text default 'h',
                        empno bigint not null references emp on delete cascade, unique (empno, name));
    create table note (skill bigint references skill on delete cascade, text text);
";

const ROWS: &str = "
    insert into dept values (1, 'd', 'here', 'c');
    insert into emp values (10, 'e', 1, 'a', 1), (11, 'f', 2, 'b', 1);
    insert into skill values (100, 'go', 'kept', 10), (101, 'sql', 'kept', 10), (110, 'go', 'kept', 11);
    insert into note values (100, 'n'), (110, 'n')";

const SKILLS: &str = "
    [[resource]]
    name = 'depts'
    table = 'dept'
    fields = { deptno = 'no', dname = 'name' }
      [[resource.children]]
      name = 'emps'
      table = 'emp'
      fields = { empno = 'no', badge = 'badge' }
        [[resource.children.children]]
        name = 'skills'
        table = 'skill'
        fields = { no = 'no', name = 'name' }
";

async fn start() -> TestService {
    TestService::start(&format!("{SCHEMA} {ROWS}"), SKILLS).await
}

const HIDDEN: &str = "select string_agg(concat_ws(' ', no, hidden, empno, text), ', ' order by no) \
     from skill left join note on skill = no";

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_moves_keeps_what_is_not_shown() {
    let larder = start().await;
    let moved = json!({"no": 1, "name": "d", "emps": [
        {"no": 10, "badge": "a", "skills": [{"no": 101, "name": "sql"}]},
        {"no": 11, "badge": "b", "skills": [{"no": 100, "name": "rust"}, {"no": 110, "name": "go"}]}]});
    let answer = larder.put("/depts/1", &moved).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_stored(&larder, &answer, "/depts/1", &moved).await;
    assert_eq!(
        larder.query(HIDDEN).await,
        "100 kept 11 n, 101 kept 10, 110 kept 11 n"
    );
    // The emp that the rows leave goes, and they go to one that is new.
    let patch = json!({"emps": [
        {"no": 10, "badge": "a", "skills": [{"no": 101, "name": "sql"}]},
        {"no": 12, "badge": "c", "skills": [{"no": 100, "name": "rust"}, {"no": 110, "name": "go"}]}]});
    let answer = larder.patch("/depts/1", &patch).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!(answer.json()["emps"], patch["emps"]);
    assert_eq!(
        larder.query(HIDDEN).await,
        "100 kept 12 n, 101 kept 10, 110 kept 12 n"
    );
    assert_eq!(
        larder
            .query("select string_agg(empno::text, ' ') from emp")
            .await,
        "10 12"
    );
    // The badge of the emp that goes is taken by another row, which only another order could do.
    let patch = json!({"emps": [
        {"no": 10, "badge": "c", "skills": [{"no": 101, "name": "sql"}, {"no": 100, "name": "rust"}]}]});
    let answer = larder.patch("/depts/1", &patch).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
    assert_eq!(answer.json()["code"], "23505");
}

/// The order of the rows in the body decides nothing.
#[tokio::test(flavor = "multi_thread")]
async fn unique_values_shift_in_any_order() {
    let larder = TestService::start(crate::writes::SCHEMA, CONFIG).await;
    const ROWS: i64 = 7;
    let emps = |shift: i64, order: &dyn Fn(i64) -> i64| {
        let emps = (0..ROWS).map(order).map(|row| {
            json!({"no": row, "name": null, "sal": null, "badge": format!("b{}", row + shift), "skills": []})
        });
        json!({"no": 1, "name": "x", "loc": null, "code": null, "emps": emps.collect::<Vec<_>>()})
    };
    let ascending = |row: i64| row;
    let descending = |row: i64| ROWS - 1 - row;
    let mixed = |row: i64| row * 3 % ROWS;
    larder.post("/depts", &emps(0, &ascending)).await;
    let orders: [&dyn Fn(i64) -> i64; 3] = [&ascending, &descending, &mixed];
    for (number, order) in orders.into_iter().enumerate() {
        for shift in [1, 0, -1, 0] {
            let answer = larder.put("/depts/1", &emps(shift, order)).await;
            assert_eq!(
                answer.status,
                StatusCode::OK,
                "{number} {shift}: {}",
                answer.body
            );
            let badges = "select string_agg(badge, ' ' order by empno) from emp";
            let expected: Vec<String> = (0..ROWS).map(|row| format!("b{}", row + shift)).collect();
            assert_eq!(larder.query(badges).await, expected.join(" "));
        }
        let mut swapped = emps(0, order);
        let badges = [&swapped["emps"][1]["badge"], &swapped["emps"][0]["badge"]].map(Clone::clone);
        for (row, badge) in badges.into_iter().enumerate() {
            swapped["emps"][row]["badge"] = badge;
        }
        let answer = larder.put("/depts/1", &swapped).await;
        assert_eq!(
            answer.status,
            StatusCode::CONFLICT,
            "{number}: {}",
            answer.body
        );
        assert!(answer.body.contains("emp_badge_key"), "{}", answer.body);
        let code = &answer.json()["code"];
        assert_eq!(*code, "23505", "{number}");
    }
}

/// Each row is updated once, whatever the order of the rows: a sequence counts what the trigger sees, attempts included.
#[tokio::test(flavor = "multi_thread")]
async fn each_value_of_a_long_list_shifts_at_its_first_try() {
    let larder = TestService::start(
        "create table dept (deptno bigint primary key, dname text not null);
         create table emp (empno bigint primary key, deptno bigint not null references dept, place int not null,
                           badge text unique, hidden int default 1, unique (place, deptno) include (hidden));
         create sequence calls;
         create function counted() returns trigger language plpgsql as $$ begin
           perform nextval('calls'); return new; end $$;
         create trigger counted before update on emp for each row execute function counted();",
        "[[resource]]
         name = 'depts'
         table = 'dept'
         fields = { deptno = 'no', dname = 'name' }
           [[resource.children]]
           name = 'emps'
           table = 'emp'
           fields = { empno = 'no', place = 'place', badge = 'badge' }",
    )
    .await;
    const ROWS: u64 = 200;
    // The badges are two chains, and the rows have no order.
    let emps = |shift: u64| {
        let emps = (0..ROWS).map(|row| row * 77 % ROWS).map(|row| {
            let badge = row / 2 + shift + row % 2 * 1000;
            json!({"no": row, "place": row + shift, "badge": badge.to_string()})
        });
        json!({"no": 1, "name": "x", "emps": emps.collect::<Vec<_>>()})
    };
    let answer = larder.post("/depts", &emps(0)).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    let answer = larder.put("/depts/1", &emps(1)).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let stored = "select string_agg(place || ' ' || badge, ', ' order by place) from emp where place in (1, 2, 200)";
    assert_eq!(larder.query(stored).await, "1 1, 2 1001, 200 1100");
    // The attempt to update all together comes before.
    let calls = larder.query("select last_value::text from calls").await;
    assert!(calls.parse::<u64>().unwrap() <= 2 * ROWS, "{calls}");
}

/// A cycle has the code and the name of the constraint that it violates.
#[tokio::test(flavor = "multi_thread")]
async fn ranges_that_are_exchanged_are_a_cycle_of_an_exclusion_constraint() {
    let larder = TestService::start(
        "create table house (id int primary key);
         create table room (id int primary key, house int not null references house, at int4range,
                            exclude using gist (at with &&));
         create index on room (house);
         insert into house values (1);
         insert into room values (1, 1, '[0,5)'), (2, 1, '[5,9)'), (3, 1, '[9,12)');",
        "[[resource]]\nname = 'houses'\ntable = 'house'\n[[resource.children]]\nname = 'rooms'\ntable = 'room'\nfields = { id = 'id', at = 'at' }\n",
    )
    .await;
    let house = |ranges: [&str; 3]| {
        let rooms = (1..)
            .zip(ranges)
            .map(|(id, at)| json!({"id": id, "at": at}));
        json!({"id": 1, "rooms": rooms.collect::<Vec<_>>()})
    };
    let shifted = house(["[5,9)", "[9,12)", "[12,20)"]);
    let answer = larder.put("/houses/1", &shifted).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_stored(&larder, &answer, "/houses/1", &shifted).await;
    let exchanged = house(["[9,12)", "[5,9)", "[12,20)"]);
    let answer = larder.put("/houses/1", &exchanged).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
    assert_eq!(answer.json()["code"], "23P01");
    assert!(answer.body.contains("room_at_excl"), "{}", answer.body);
}

/// The same with row triggers, which see each row once, as those of attempts are undone.
#[tokio::test(flavor = "multi_thread")]
async fn triggers_of_attempts_leave_no_effects() {
    let larder = start().await;
    larder
        .execute(
            "create table audit (what text);
             create function audit() returns trigger language plpgsql as $$ begin
               insert into audit values (old.badge || new.badge); return new; end $$;
             create trigger audit before update on emp for each row execute function audit();",
        )
        .await;
    let shifted = json!({"emps": [
        {"no": 10, "badge": "b", "skills": []}, {"no": 11, "badge": "c", "skills": []}]});
    let answer = larder.patch("/depts/1", &shifted).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let audit = "select string_agg(what, ' ' order by what) from audit";
    assert_eq!(larder.query(audit).await, "ab bc");
}

/// A foreign key between rows of one document removes or empties rows of the body: they were lost, and the answer was 200.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_a_deletion_takes_along_are_a_conflict() {
    let larder = TestService::start(
        "create table a (id int primary key, t text);
         create table b (id int primary key, a int not null references a, t text);
         create table c (id int primary key, a int not null references a, t text,
                         b int references b on delete cascade, m int references b on delete set null);
         insert into a values (1, 'a');
         insert into b values (1, 1, 'x'), (2, 1, 'y');
         insert into c values (1, 1, 'p', 1, null), (2, 1, 'q', 2, 1)",
        "[[resource]]\nname = 'as'\ntable = 'a'\n\
         [[resource.children]]\nname = 'bs'\ntable = 'b'\nfields = { id = 'id', t = 't' }\n\
         [[resource.children]]\nname = 'cs'\ntable = 'c'\nforeign_key = ['a']\n\
         fields = { id = 'id', t = 't', b = 'b', m = 'm' }",
    )
    .await;
    let before = larder.get("/as/1").await.json();
    for (b, m) in [(2, json!(2)), (1, json!(2)), (2, json!(1))] {
        let body = json!({"id": 1, "t": "a", "bs": [{"id": 2, "t": "y"}], "cs": [
            {"id": 1, "t": "p", "b": b, "m": null}, {"id": 2, "t": "q", "b": 2, "m": m}]});
        let answer = larder.put("/as/1", &body).await;
        assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
        assert_eq!(answer.json()["code"], "23503");
        assert_eq!(larder.get("/as/1").await.json(), before);
    }
    let body = json!({"id": 1, "t": "a", "bs": [{"id": 2, "t": "y"}], "cs": [
        {"id": 2, "t": "r", "b": 2, "m": null}]});
    let answer = larder.put("/as/1", &body).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_stored(&larder, &answer, "/as/1", &body).await;
}

/// The row that a trigger keeps would have lost one of the rows below it.
#[tokio::test(flavor = "multi_thread")]
async fn a_kept_row_that_loses_rows_to_another_is_a_conflict() {
    let keep =
        "create function keep() returns trigger language plpgsql as $$ begin return null; end $$;
         create trigger keep before delete on emp for each row execute function keep()";
    let larder = TestService::start(&format!("{SCHEMA} {ROWS}; {keep}"), SKILLS).await;
    let before = larder.get("/depts/1").await.json();
    let body = json!({"no": 1, "name": "d", "emps": [
        {"no": 11, "badge": "b", "skills": [{"no": 100, "name": "rust"}, {"no": 110, "name": "go"}]}]});
    let answer = larder.put("/depts/1", &body).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
    assert!(answer.body.contains("trigger"), "{}", answer.body);
    assert_eq!(larder.get("/depts/1").await.json(), before);
}
