//! What a write does not change is not written.

use axum::http::StatusCode;
use serde_json::json;

use crate::harness::cluster::TestRole;
use crate::harness::service::TestService;
use crate::writes::{CONFIG, SCHEMA, dept};

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
           (2, null, null, null, null, null, null, null, null);
         insert into part values (5.0, 1, '[2:2]={7}', 'null')",
        "[[resource]]
         name = 'things'
         table = 'thing'
           [[resource.children]]
           name = 'parts'
           table = 'part'",
    )
    .await;
    let rows = "select string_agg(concat_ws(' ', t.ctid, t.numbers, t.j, t.b, t.js, t.p, p.ctid, p.id, p.numbers, p.b), '; ' order by t.id) \
         from thing t left join part p on p.thing = t.id";
    let before = larder.query(rows).await;
    for path in ["/things/1", "/things/2"] {
        let document = larder.get(path).await.json();
        let answer = larder.put(path, &document).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        let answer = larder.patch(path, &json!({})).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    }
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
