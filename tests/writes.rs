//! Documents written over HTTP, and what PostgreSQL and later readers see of them.

mod altered;
mod bodies;
mod bulk;
mod circular;
mod concurrent;
mod conditions;
mod defaults;
mod documents;
mod encoded_bodies;
mod errors;
mod extension_types;
mod idempotency;
mod keys;
mod locks;
mod moves;
mod other_schemas;
mod sizes;
mod trigger_effects;
mod triggers;
mod unchanged;
mod unenforced_foreign_keys;
mod unusual_tables;
mod values;
mod visibility;

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::service::{TestResponse, TestService};

/// Three levels: a dept, its emps, their skills. The key of a skill contains the column that links it.
const SCHEMA: &str = "
    create table dept (deptno bigint primary key, dname text not null, loc text, code text unique,
                       hidden text default 'h');
    create table emp (empno bigint primary key, ename text, sal numeric, badge text unique,
                      deptno bigint not null references dept, hidden text default 'h');
    create index on emp (deptno);
    create table skill (empno bigint references emp, name text, level int default 1,
                        primary key (empno, name));
";

const CONFIG: &str = "
idempotency_keys = true
    [[resource]]
    name = 'depts'
    table = 'dept'
    fields = { deptno = 'no', dname = 'name', loc = 'loc', code = 'code' }
      [[resource.children]]
      name = 'emps'
      table = 'emp'
      fields = { empno = 'no', ename = 'name', sal = 'sal', badge = 'badge' }
        [[resource.children.children]]
        name = 'skills'
        table = 'skill'
        fields = { name = 'name', level = 'level' }
    [[resource]]
    name = 'emps'
    table = 'emp'
    fields = { empno = 'no', ename = 'name' }
";

async fn start() -> TestService {
    TestService::start(SCHEMA, CONFIG).await
}

/// A dept with two emps, the first of which has two skills.
fn dept(no: i64) -> Value {
    let (first, second) = (no * 10, no * 10 + 1);
    json!({"no": no, "name": "SALES", "loc": null, "code": format!("c{no}"), "emps": [
        {"no": first, "name": "KING", "sal": 10.5, "badge": format!("b{first}"), "skills": [
            {"name": "go", "level": 2}, {"name": "rust", "level": 3}]},
        {"no": second, "name": "FORD", "sal": null, "badge": format!("b{second}"), "skills": []}]})
}

impl TestService {
    async fn post(&self, path: &str, document: &Value) -> TestResponse {
        self.write(Method::POST, path, &[], &document.to_string())
            .await
    }

    async fn put(&self, path: &str, document: &Value) -> TestResponse {
        self.write(Method::PUT, path, &[], &document.to_string())
            .await
    }

    async fn patch(&self, path: &str, document: &Value) -> TestResponse {
        self.write(Method::PATCH, path, &[], &document.to_string())
            .await
    }

    async fn delete(&self, path: &str) -> TestResponse {
        self.request(Method::DELETE, path, &[]).await
    }

    /// The text that `sql` returns.
    async fn query(&self, sql: &str) -> String {
        use sqlx::Connection;
        let mut connection = self.connect().await;
        let text: Option<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(sql.to_owned()))
            .fetch_one(&mut connection)
            .await
            .unwrap();
        connection.close().await.unwrap();
        text.unwrap_or_default()
    }
}

/// The rights that larder's role needs on schema larder, if it does not own it.
fn grants_on_larder(role: &str) -> String {
    format!(
        "grant usage on schema larder to {role}; grant select on all tables in schema larder to {role};
         grant insert, update, delete on larder.change, larder.horizon, larder.epoch, larder.node, larder.logger to {role};
         grant execute on all functions in schema larder to {role};
         grant execute on function pg_control_system() to {role};"
    )
}

/// Checks that `answer` has the document `expected`, and that a read of `path` has the same.
async fn assert_stored(larder: &TestService, answer: &TestResponse, path: &str, expected: &Value) {
    assert_eq!(&answer.json(), expected);
    let read = larder.get(path).await;
    assert_eq!(read.status, StatusCode::OK);
    assert_eq!(read.body, answer.body);
    assert_eq!(read.header("etag"), answer.header("etag"));
}

/// Checks that `answer` is 422 and names `pointer`.
#[track_caller]
fn assert_refused(answer: &TestResponse, pointer: &str) {
    assert_eq!(
        answer.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{}",
        answer.body
    );
    let errors = answer.json()["errors"].clone();
    assert_eq!(errors[0]["pointer"], pointer, "{errors}");
}
