//! What a write does not change is not written.

use axum::http::{Method, StatusCode};
use serde_json::json;

use crate::harness::cluster::TestRole;
use crate::harness::service::TestService;
use crate::writes::{CONFIG, SCHEMA, dept, grants_on_larder};

/// Records each update with the columns that differ.
const AUDIT: &str = "
    create table audit (number serial, what text);
    create function audit() returns trigger language plpgsql as $$ begin
      insert into audit (what) values (tg_op || ' ' || tg_table_name || coalesce(' ' || tg_argv[0], ''));
      return null; end $$;
    create trigger dept_changes after insert or update or delete on dept for each row execute function audit();
    create trigger emp_changes after insert or update or delete on emp for each row execute function audit();
    create trigger emp_statements after insert or update or delete on emp for each statement execute function audit('statement');
    create trigger sal after update of sal on emp for each row execute function audit('of sal');
    create trigger skill_changes after insert or update or delete on skill for each row execute function audit();
    create function guarded() returns trigger language plpgsql as $$ begin
      raise exception 'loc is guarded'; end $$;
    create trigger guarded before update of loc on dept for each row execute function guarded();
";

async fn audited(larder: &TestService) -> String {
    let audit = larder
        .query("select coalesce(string_agg(what, ', ' order by number), '') from audit")
        .await;
    larder.execute("truncate audit").await;
    audit
}

#[tokio::test(flavor = "multi_thread")]
async fn only_changed_columns_of_changed_rows_are_set() {
    let larder = TestService::start(&format!("{SCHEMA} {AUDIT}"), CONFIG).await;
    larder.post("/depts", &dept(1)).await;
    audited(&larder).await;
    let answer = larder.put("/depts/1", &dept(1)).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let answer = larder.patch("/depts/1", &json!({})).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!(audited(&larder).await, "");
    let mut document = dept(1);
    document["name"] = json!("R&D");
    let answer = larder.put("/depts/1", &document).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!(audited(&larder).await, "UPDATE dept");
    document["emps"][0]["name"] = json!("FIRST");
    document["emps"][1]["name"] = json!("SECOND");
    larder.put("/depts/1", &document).await;
    let both = "UPDATE emp, UPDATE emp, UPDATE emp statement";
    assert_eq!(audited(&larder).await, both);
    document["emps"][0]["sal"] = json!(1);
    document["emps"][1]["name"] = json!("2ND");
    let answer = larder
        .patch("/depts/1", &json!({"emps": document["emps"]}))
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let each =
        "UPDATE emp, UPDATE emp of sal, UPDATE emp statement, UPDATE emp, UPDATE emp statement";
    assert_eq!(audited(&larder).await, each);
}

/// Values that a document shows in the same way.
#[tokio::test(flavor = "multi_thread")]
async fn rows_stay_byte_for_byte() {
    let larder = TestService::start(
        "create type pair as (a jsonb, b int);
         create table thing (id int primary key, numbers int[], j json, b jsonb, js jsonb[], p pair, n numeric, c char(5), note text);
         create table part (id numeric primary key, thing int references thing, numbers int[], b jsonb);
         insert into thing values
           (1, '[0:2]={1,2,3}', 'null', 'null', array['null'::jsonb, null], row('null'::jsonb, 1), 1.50, 'ab', 'x'),
           (2, null, null, null, null, null, null, null, null),
           (3, null, '  [1,  2] ', null, null, null, null, null, null),
           (4, null, '{\"a\" : {\"b\": 1}}', null, null, null, null, null, null);
         insert into part values (5.0, 1, '[2:2]={7}', 'null')",
        "[[resource]]
         name = 'things'
         table = 'thing'
           [[resource.children]]
           name = 'parts'
           table = 'part'",
    )
    .await;
    let rows = "select string_agg(concat_ws(' ', t.ctid, t.xmin, t.numbers, t.j, t.b, t.js, t.p, p.ctid, p.id, p.numbers, p.b), '; ' order by t.id) \
         from thing t left join part p on p.thing = t.id";
    let before = larder.query(rows).await;
    for path in ["/things/1", "/things/2", "/things/3"] {
        let document = larder.get(path).await.body;
        let answer = larder.write(Method::PUT, path, &[], &document).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        let answer = larder.patch(path, &json!({})).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    }
    let same = json!({"j": {"a": {"b": 1, "c": null}}});
    let answer = larder.patch("/things/4", &same).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!(larder.query(rows).await, before);
    let answer = larder.patch("/things/1", &json!({"note": "y"})).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let values = "select concat_ws(' ', numbers, j, b, js, p, note) from thing where id = 1";
    assert_eq!(
        larder.query(values).await,
        "[0:2]={1,2,3} null null {\"null\",NULL} (null,1) y"
    );
    let answer = larder.patch("/things/1", &json!({"n": 1.5})).await;
    assert_eq!(answer.json()["n"].to_string(), "1.5");
}

/// larder's role may update one column only.
#[tokio::test(flavor = "multi_thread")]
async fn columns_that_stay_need_no_privilege() {
    let notes = "[[resource]]
         name = 'notes'
         table = 'note'";
    let larder = TestService::start(
        "create table note (id int primary key, fixed text, text text);
         insert into note values (1, 'f', 'a');",
        notes,
    )
    .await;
    let role = TestRole::create(&larder.url).await;
    let name = &role.name;
    larder
        .execute(&format!(
            "grant select, update (text) on note to {name};
             grant usage on schema larder to {name};
             grant select, insert, update, delete on all tables in schema larder to {name}"
        ))
        .await;
    let state = larder.stop().await;
    let larder = TestService::start_in(state, &role.url, notes, &[]).await;
    let answer = larder.patch("/notes/1", &json!({"text": "b"})).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let note = json!({"id": 1, "fixed": "f", "text": "c"});
    let answer = larder.put("/notes/1", &note).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let answer = larder.patch("/notes/1", &json!({"fixed": "g"})).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN, "{}", answer.body);
}

/// The check of a domain holds for values that are written, not for those that were stored before it.
#[tokio::test(flavor = "multi_thread")]
async fn stored_values_that_a_later_check_refuses_may_stay() {
    let larder = TestService::start(
        "create domain positive as int;
         create table item (id int primary key, n positive, t text);
         insert into item values (1, -5, 'a');
         alter domain positive add check (value > 0) not valid",
        "[[resource]]\nname = 'items'\ntable = 'item'",
    )
    .await;
    let answer = larder.patch("/items/1", &json!({"t": "b"})).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let answer = larder.patch("/items/1", &json!({"n": -6})).await;
    assert_eq!(
        answer.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{}",
        answer.body
    );
}

/// Policies let larder read all rows, and change only some.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_policies_keep_are_told_and_those_that_stay_need_none() {
    let file = "[[resource]]\nname = 'orders'\ntable = 'purchase'\nrow_security = 'as-larder'\n\
        [[resource.children]]\nname = 'lines'\ntable = 'line'\nfields = { id = 'id', t = 't' }";
    let larder = TestService::start(
        "create table purchase (id int primary key, t text);
         create table line (id int primary key, purchase int references purchase, t text);
         insert into purchase values (1, 'a');
         insert into line values (1, 1, 'free'), (2, 1, 'kept'), (3, 1, 'fixed');
         alter table line enable row level security;
         create policy reads on line for select using (true);
         create policy inserts on line for insert with check (true);
         create policy updates on line for update using (t <> 'fixed');
         create policy deletes on line for delete using (t <> 'kept')",
        file,
    )
    .await;
    let role = TestRole::create(&larder.url).await;
    let grants = format!(
        "{larder} grant select, insert, update, delete on purchase, line to {name}",
        larder = grants_on_larder(&role.name),
        name = role.name
    );
    larder.execute(&grants).await;
    let writer = TestService::start_on(&role.url, file, &[("install", "manual")]).await;
    let read = writer.get("/orders/1").await;
    assert_eq!(read.status, StatusCode::OK, "{}", read.body);
    let mut document = read.json();
    let answer = writer.put("/orders/1", &document).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let answer = writer.patch("/orders/1", &json!({"t": "b"})).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    document["t"] = json!("b");
    let kept = |document: &mut serde_json::Value, id: i64| {
        let lines = document["lines"].as_array_mut().unwrap();
        lines.retain(|line| line["id"] != id);
    };
    let mut without = document.clone();
    kept(&mut without, 2);
    let answer = writer.put("/orders/1", &without).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN, "{}", answer.body);
    let mut changed = document.clone();
    changed["lines"][2]["t"] = json!("x");
    let answer = writer.put("/orders/1", &changed).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN, "{}", answer.body);
    kept(&mut document, 3);
    let answer = writer.put("/orders/1", &document).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!(answer.json(), document);
}
