//! Roles and databases with hostile defaults: documents, lists, writes and freshness are the same under all of them.

use std::str::FromStr;

use axum::http::{Method, StatusCode};
use futures_util::future::join_all;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::eventually;
use crate::harness::service::{TestService, execute};

/// A column for each setting that decides how a value is written or read.
const SQL: &str = r#"
  create table kind (id int primary key, f8 float8, f4 float4, span interval, at timestamptz, local timestamp,
    day date, bin bytea, markup xml, words text[], sums numeric[], amount numeric, body jsonb, note text);
  insert into kind values (1, 0.30000000000000004, 0.1, '1 year 2 mons -3 days 04:05:06.789', '2024-03-04 05:06:07.89+02',
    '2024-03-04 05:06:07', '2024-03-04', '\x00ff5c', '<p>a</p>b', '{a,"null",null,"q\"x\\y"}', '{1.50,null}', 1.10,
    '{"a": [1.0, null]}', E'it''s \\ "fine"');
  create schema evil;
  create function evil.never(int, int) returns bool language sql as 'select false';
  create operator evil.= (leftarg = int, rightarg = int, function = evil.never);
  create function evil.unnest(text[]) returns setof text language sql as $$ select 'evil'::text $$;
  create function evil.pg_backend_pid() returns int language sql as 'select 1';
  create function evil.count(anyelement) returns bigint language sql as 'select 0::bigint';
"#;

const CONFIG: &str = "[[resource]]\nname = 'kinds'\ntable = 'public.kind'\n";

/// Settings, each of a role of its own, and all of a database.
const DEFAULTS: [(&str, &str); 27] = [
    ("default_transaction_isolation", "'repeatable read'"),
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_read_only", "on"),
    ("default_transaction_deferrable", "on"),
    ("search_path", "evil, pg_catalog"),
    ("timezone", "'Asia/Kathmandu'"),
    ("datestyle", "'German, DMY'"),
    ("intervalstyle", "iso_8601"),
    ("bytea_output", "escape"),
    ("extra_float_digits", "-15"),
    ("xmlbinary", "hex"),
    ("xmloption", "document"),
    ("row_security", "off"),
    ("array_nulls", "off"),
    ("transform_null_equals", "on"),
    ("quote_all_identifiers", "on"),
    ("standard_conforming_strings", "off"),
    ("gin_fuzzy_search_limit", "1"),
    ("client_encoding", "latin1"),
    ("statement_timeout", "1"),
    ("lock_timeout", "1"),
    ("idle_in_transaction_session_timeout", "1"),
    ("idle_session_timeout", "20"),
    ("exit_on_error", "on"),
    ("plan_cache_mode", "force_custom_plan"),
    ("jit_above_cost", "0"),
    ("work_mem", "64"),
];

/// Behind a pooler on a busy machine, a timeout of a millisecond may expire before a transaction's own settings apply.
fn pooled(name: &str, value: &'static str) -> &'static str {
    match name {
        "statement_timeout" => "20",
        _ => value,
    }
}

/// For a client of the test's own.
const HARMLESS: [(&str, &str); 7] = [
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_read_only", "off"),
    ("search_path", "public"),
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("idle_session_timeout", "0"),
];

/// What a larder serves of the first row, as a document and as a list, and what becomes of a document that it writes.
#[derive(Debug, PartialEq, Eq)]
struct ServedDocuments {
    document: String,
    list: String,
    written: String,
}

/// Starts a larder with the role of `url`: it writes document `id`, another client changes it, and both changes are
/// seen.
async fn served(url: &str, pooler: bool, id: usize, context: &str) -> ServedDocuments {
    let pooled = [("database.pooler", "true"), ("database.listen_url", url)];
    let settings: &[_] = if pooler { &pooled } else { &[] };
    let larder = TestService::start_on(url, CONFIG, settings).await;
    let document = larder.get("/kinds/1").await;
    assert_eq!(document.status, StatusCode::OK, "{context}: {document:?}");
    let list = larder.get("/kinds?limit=1").await;
    assert_eq!(list.status, StatusCode::OK, "{context}: {list:?}");
    let path = format!("/kinds/{id}");
    let body = document
        .body
        .replacen("\"id\":1,", &format!("\"id\":{id},"), 1);
    let put = larder.write(Method::PUT, &path, &[], &body).await;
    assert_eq!(put.status, StatusCode::CREATED, "{context}: {put:?}");
    // Equal values compare equal, and rows are found.
    let put = larder.write(Method::PUT, &path, &[], &body).await;
    assert_eq!(put.status, StatusCode::OK, "{context}: {put:?}");
    let written = larder.get(&path).await.body;
    let options = PgConnectOptions::from_str(url).unwrap();
    let options = options.options(HARMLESS);
    let mut client = PgConnection::connect_with(&options).await.unwrap();
    let update = format!("update kind set note = 'changed' where id = {id}");
    sqlx::raw_sql(AssertSqlSafe(update))
        .execute(&mut client)
        .await
        .unwrap();
    eventually(context, async || {
        larder
            .get(&path)
            .await
            .body
            .contains("changed")
            .then_some(())
    })
    .await;
    let deleted = larder.request(Method::DELETE, &path, &[]).await;
    assert_eq!(
        deleted.status,
        StatusCode::NO_CONTENT,
        "{context}: {deleted:?}"
    );
    larder.stop().await;
    ServedDocuments {
        document: document.body,
        list: list.body,
        written: written.replacen(&format!("\"id\":{id},"), "\"id\":1,", 1),
    }
}

async fn role_with(url: &str, name: &str, value: &str) -> String {
    let role = TestRole::create(url).await;
    execute(url, &format!("alter role {} superuser", role.name)).await;
    execute(
        url,
        &format!("alter role {} set {name} = {value}", role.name),
    )
    .await;
    role.url
}

/// Defaults of a role change no answer: over direct connections, whose startup options hold for the session, and with
/// `pooler = true`, where each transaction sets its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_roles_defaults_change_nothing() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let expected = served(&url, false, 2, "no defaults").await;
    assert_eq!(expected.written, expected.document);
    assert!(
        expected.document.contains("0.30000000000000004"),
        "{expected:?}"
    );
    let cases = DEFAULTS
        .iter()
        .flat_map(|case| [(case, false), (case, true)]);
    // Behind a pooler, idle server connections are the pooler's.
    let cases = cases.filter(|((name, _), pooler)| !pooler || *name != "idle_session_timeout");
    let cases: Vec<_> = cases.enumerate().collect();
    for some in cases.chunks(6) {
        let looks = some.iter().map(async |(number, ((name, value), pooler))| {
            let value = if *pooler { pooled(name, value) } else { *value };
            let role = role_with(&url, name, value).await;
            let context = format!("{name} = {value}, pooler = {pooler}");
            let found = served(&role, *pooler, 10 + number, &context).await;
            assert_eq!(found, expected, "{context}");
        });
        join_all(looks).await;
    }
}

/// The same of a database, all at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_databases_defaults_change_nothing() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let expected = served(&url, false, 2, "no defaults").await;
    let (_, database) = url.rsplit_once('/').unwrap();
    let database = database.split('?').next().unwrap();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    for (name, value) in DEFAULTS {
        let sql = format!("alter database {database} set {name} = {value}");
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut connection)
            .await
            .unwrap();
    }
    for pooler in [false, true] {
        if pooler {
            let statement_timeout = pooled("statement_timeout", "");
            let sql = format!(
                "alter database {database} reset idle_session_timeout; \
                 alter database {database} set statement_timeout = {statement_timeout}"
            );
            sqlx::raw_sql(AssertSqlSafe(sql))
                .execute(&mut connection)
                .await
                .unwrap();
        }
        let context = format!("all at once, pooler = {pooler}");
        assert_eq!(
            served(&url, pooler, 3, &context).await,
            expected,
            "{context}"
        );
    }
}
