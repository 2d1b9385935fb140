//! Types of a schema that larder's role may not use. PostgreSQL needs no right on it to read and write their columns, so
//! neither does larder.

use axum::http::{Method, StatusCode};
use serde_json::json;
use sqlx::{Connection, PgConnection};

use crate::freshness::testbed::is_hit;
use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::eventually;
use crate::harness::service::{TestService, execute};
use crate::harness::table_locks::unlock;
use crate::writes::grants_on_larder;

/// `code` refuses null, also where a statement needs a row of its table without values.
const SQL: &str = "
    create schema types;
    create type types.mood as enum ('a', 'b', 'c,d');
    create domain types.code as text not null check (length(value) < 9);
    create domain types.feeling as types.mood;
    create type types.pair as (n int, m types.mood);
    create type types.span as range (subtype = int);
    create table t (m types.mood primary key, v text);
    insert into t values ('a', 'x'), ('b', 'y');
    create table kid (id int primary key, m types.mood references t, f types.feeling, v types.code, ms types.mood[],
      p types.pair, s types.span, cs types.code[]);
    insert into kid values (1, 'a', 'b', 'q', '{a,b}', '(1,b)', '[1,3)', '{x}');
    create table part (m types.mood, n int, v text, primary key (m, n));
    insert into part values ('c,d', 1, 'p');
    create table other (id int primary key, v text); insert into other values (1, 'o');";

const CONFIG: &str = "
    [[resource]]
    name = 't'
    table = 't'
    [[resource]]
    name = 'kid'
    table = 'kid'
    where = \"v <> 'hidden'\"
      [[resource.lookups]]
      name = 'looked'
      table = 't'
      column = 'm'
    [[resource]]
    name = 'part'
    table = 'part'
    key = ['m', 'n']
    filters = ['m']
    [[resource]]
    name = 'other'
    table = 'other'
    ";

/// The case types-in-another-schema.sh: a key of such a type ended larder, every write was 403, and each change of a row
/// that is looked up by one emptied the tiers of all resources.
#[tokio::test(flavor = "multi_thread")]
async fn types_of_a_schema_without_usage_are_keys_fields_and_lookups() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    TestService::start_on(&url, CONFIG, &[]).await.stop().await;
    let role = TestRole::create(&url).await;
    let grants = format!(
        "grant select, insert, update, delete on t, kid, part, other to {name};
         grant usage on schema larder to {name}; grant execute on function pg_control_system() to {name};
         grant execute on all functions in schema larder to {name};
         grant select, insert, update, delete on all tables in schema larder to {name}",
        name = role.name
    );
    execute(&url, &grants).await;
    let larder = TestService::start_on(&role.url, CONFIG, &[("install", "manual")]).await;

    assert_eq!(larder.get("/t/b").await.json(), json!({"m": "b", "v": "y"}));
    assert_eq!(larder.get("/t/no").await.status, StatusCode::NOT_FOUND);
    let page = larder.get("/part?m=eq.c,d&after=a,1").await;
    assert_eq!(
        page.json(),
        json!([{"m": "c,d", "n": 1, "v": "p"}]),
        "{page:?}"
    );

    let written = json!({"id": 2, "m": "b", "f": "a", "v": "new", "ms": ["b", null], "p": {"n": 2, "m": "a"},
        "s": "[5,8)", "cs": ["y", "z"], "looked": {"m": "b", "v": "y"}});
    let mut body = written.clone();
    body.as_object_mut().unwrap().remove("looked");
    let answer = larder.post("/kid", &body).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{answer:?}");
    assert_eq!(answer.json(), written);
    let patch = json!({"v": "again", "f": null, "ms": ["a"], "p": {"n": 3, "m": "b"}, "m": "a"});
    let headers = [("content-type", "application/merge-patch+json")];
    let answer = larder
        .write(Method::PATCH, "/kid/2", &headers, &patch.to_string())
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(answer.json()["ms"], json!(["a"]));
    assert_eq!(answer.json()["p"], json!({"n": 3, "m": "b"}));
    let answer = larder.put("/part/a,7", &json!({"v": "seven"})).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{answer:?}");
    let answer = larder.delete("/t/b").await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{answer:?}");

    let gaps = larder.metric("larder_feed_gaps_total").await;
    larder.get("/other/1").await;
    for value in ["v1", "v2"] {
        larder.get("/kid/1").await;
        execute(&url, &format!("update t set v = '{value}' where m = 'a'")).await;
        eventually("the looked-up row", async || {
            let kid = larder.get("/kid/1").await.json();
            (kid["looked"]["v"] == value).then_some(())
        })
        .await;
        assert!(is_hit(&larder.get("/other/1").await));
    }
    assert_eq!(larder.metric("larder_feed_gaps_total").await, gaps);
}

/// New rows whose keys PostgreSQL draws were 403 with the rights that `larder install --print` names: `returning *` reads hidden
/// columns, too.
#[tokio::test(flavor = "multi_thread")]
async fn keys_are_drawn_without_a_right_to_read_hidden_columns() {
    let url = TestCluster::database().await.url;
    let sql = "
        create table p (id int generated always as identity primary key, name text, secret text);
        create table c (id int generated always as identity primary key, p_id int not null references p on delete cascade,
          t text, hidden text);
        create table r (id int primary key, t text, hidden text);
        insert into p (name) values ('a');
        create function same() returns trigger language plpgsql as 'begin return new; end';
        create trigger same before insert on r for each row execute function same();";
    execute(&url, sql).await;
    let config = "
        [[resource]]
        name = 'p'
        table = 'p'
        fields = ['id', 'name']
          [[resource.children]]
          name = 'cs'
          table = 'c'
          fields = ['id', 'p_id', 't']
        [[resource]]
        name = 'r'
        table = 'r'
        fields = ['id', 't']
        ";
    TestService::start_on(&url, config, &[]).await.stop().await;
    let role = TestRole::create(&url).await;
    let grants = format!(
        "grant select (id, name), insert (id, name), update (name), delete on p to {name};
         grant select (id, p_id, t), insert (id, p_id, t), update (p_id, t), delete on c to {name};
         grant select (id, t), insert (id, t), update (t), delete on r to {name};
         grant usage on schema larder to {name}; grant execute on function pg_control_system() to {name};
         grant execute on all functions in schema larder to {name};
         grant select, insert, update, delete on all tables in schema larder to {name}",
        name = role.name
    );
    execute(&url, &grants).await;
    let larder = TestService::start_on(&role.url, config, &[("install", "manual")]).await;
    let child = json!({"cs": [{"t": "q"}]});
    let answer = larder.patch("/p/1", &child).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(answer.json()["cs"][0]["t"], "q");
    let answer = larder.put("/r/1", &json!({"t": "new"})).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{answer:?}");
    let answer = larder
        .post("/p", &json!({"name": "b", "cs": [{"t": "q"}]}))
        .await;
    assert_eq!(answer.status, StatusCode::CREATED, "{answer:?}");
}

/// To lock a row takes the privilege to update it: a patch of a root member was 403 for a role that may only read the rows below.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_not_update_children_writes_the_other_rows() {
    let url = TestCluster::database().await.url;
    let sql = "
        create table p (id int primary key, body text);
        create table c (id int primary key, p_id int not null references p, t text); create index on c (p_id);
        create table g (id int primary key, c_id int not null references c, t text); create index on g (c_id);
        insert into p values (1, 'b'); insert into c values (1, 1, 't'); insert into g values (1, 1, 'u')";
    execute(&url, sql).await;
    let config = "
        [[resource]]
        name = 'p'
        table = 'p'
          [[resource.children]]
          name = 'cs'
          table = 'c'
            [[resource.children.children]]
            name = 'gs'
            table = 'g'
        ";
    TestService::start_on(&url, config, &[]).await.stop().await;
    let role = TestRole::create(&url).await;
    let grants = format!(
        "grant select, insert, update, delete on p to {name}; grant select on c to {name};
         grant select, insert, delete on g to {name}; {larder}",
        name = role.name,
        larder = grants_on_larder(&role.name)
    );
    execute(&url, &grants).await;
    let larder = TestService::start_on(&role.url, config, &[("install", "manual")]).await;
    let child = |t: &str, grandchild: i32| json!({"id": 1, "p_id": 1, "t": t, "gs": [{"id": grandchild, "c_id": 1, "t": "u"}]});
    let answer = larder.patch("/p/1", &json!({"body": "patched"})).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(answer.json()["body"], "patched");
    let whole = json!({"id": 1, "body": "put", "cs": [child("t", 2)]});
    let answer = larder.put("/p/1", &whole).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(larder.get("/p/1").await.json(), whole);
    let answer = larder.patch("/p/1", &json!({"cs": [child("x", 2)]})).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN, "{answer:?}");
    assert_eq!(larder.get("/p/1").await.json(), whole);
}

/// The rows of `ds` are locked although those of `cs` can't be: the write waits for a transaction that has changed them.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_a_role_may_lock_are_locked_beside_those_that_it_may_not() {
    let url = TestCluster::database().await.url;
    let sql = "
        create table p (id int primary key, body text);
        create table c (id int primary key, p_id int not null references p); create index on c (p_id);
        create table d (id int primary key, p_id int not null references p, t text); create index on d (p_id);
        insert into p values (1, 'b'); insert into c values (1, 1); insert into d values (1, 1, 't')";
    execute(&url, sql).await;
    let config = "
        [[resource]]
        name = 'p'
        table = 'p'
          [[resource.children]]
          name = 'cs'
          table = 'c'
          [[resource.children]]
          name = 'ds'
          table = 'd'
        ";
    TestService::start_on(&url, config, &[]).await.stop().await;
    let role = TestRole::create(&url).await;
    let grants = format!(
        "grant select, update on p, d to {name}; grant select on c to {name}; {larder}",
        name = role.name,
        larder = grants_on_larder(&role.name)
    );
    execute(&url, &grants).await;
    let patient = [
        ("install", "manual"),
        ("request_timeout", "1m"),
        ("database.statement_timeout", "1m"),
    ];
    let larder = TestService::start_on(&role.url, config, &patient).await;
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let update = "begin; update d set t = 'other'";
    sqlx::raw_sql(update).execute(&mut holder).await.unwrap();
    let other = async {
        let blocked = "select exists (select from pg_locks where not granted and pg_backend_pid() = any(pg_blocking_pids(pid)))";
        eventually("a session that waits", async || {
            let is_blocked: bool = sqlx::query_scalar(blocked)
                .fetch_one(&mut holder)
                .await
                .unwrap();
            is_blocked.then_some(())
        })
        .await;
        unlock(holder).await;
    };
    let whole = json!({
        "id": 1, "body": "put", "cs": [{"id": 1, "p_id": 1}], "ds": [{"id": 1, "p_id": 1, "t": "t"}]
    });
    let (answer, ()) = tokio::join!(larder.put("/p/1", &whole), other);
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(answer.json(), whole);
}
