//! Writes right after a table or a type was altered, while larder knows the definition of before.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::cluster::TestCluster;
use crate::harness::service::{TestService, execute};

/// The feed looks at the database only when a request needs it.
const NO_POLL: [(&str, &str); 3] = [
    ("feed.poll_interval", "10s"),
    ("feed.max_staleness", "10s"),
    ("feed.notify", "false"),
];

const SCHEMA: &str = "
    create type pair as (a int, b int); create type mood as enum ('sad', 'ok');
    create table pairs (id int primary key, v pair); insert into pairs values (1, '(1,2)');
    create table made (id int primary key, v text, g text generated always as (upper(v)) stored);
    insert into made values (1, 'x');
    create table codes (id int primary key, v int); insert into codes values (1, 7);
    create table texts (id int primary key, v json);
    create table bytes (id int primary key, v text);
    create table moods (id int primary key, v mood, w int); insert into moods values (1, 'ok', 1);
    create table needed (id int primary key, v int not null);
    create table short (id int primary key, v varchar(3));
    create table soft (id int primary key, v text); insert into soft values (1, 'x');
    create table moved (id int primary key, other int not null); insert into moved values (1, 2), (2, 1);
    create table parent (id int primary key); insert into parent values (1);
    create table child (id int primary key, parent_id int references parent); insert into child values (1, 1);
";

/// An alteration, the write after it, and the answer of plain SQL.
type Step = (&'static str, Method, &'static str, Value, Value);

fn types() -> Vec<Step> {
    let exchange = "alter type pair rename attribute a to t; alter type pair rename attribute b to a; \
        alter type pair rename attribute t to b";
    vec![
        (
            exchange,
            Method::POST,
            "/pairs",
            json!({"id": 2, "v": {"a": 10, "b": 20}}),
            json!({"id": 2, "v": {"a": 10, "b": 20}}),
        ),
        (
            exchange,
            Method::PATCH,
            "/pairs/2",
            json!({"v": {"a": 1, "b": 2}}),
            json!({"id": 2, "v": {"a": 1, "b": 2}}),
        ),
        (
            "alter table codes alter v type text",
            Method::PATCH,
            "/codes/1",
            json!({"v": "007"}),
            json!({"id": 1, "v": "007"}),
        ),
        (
            "alter table codes alter v type int using v::int",
            Method::POST,
            "/codes",
            json!({"id": 2, "v": 8}),
            json!({"id": 2, "v": 8}),
        ),
        (
            "alter table texts alter v type text",
            Method::POST,
            "/texts",
            json!({"id": 2, "v": "s"}),
            json!({"id": 2, "v": "s"}),
        ),
        (
            "alter table bytes alter v type bytea using v::bytea",
            Method::POST,
            "/bytes",
            json!({"id": 2, "v": "AP8="}),
            json!({"id": 2, "v": "AP8="}),
        ),
        (
            "alter type mood rename value 'sad' to 'blue'",
            Method::POST,
            "/moods",
            json!({"id": 2, "v": "blue", "w": 1}),
            json!({"id": 2, "v": "blue", "w": 1}),
        ),
        (
            "alter type mood rename value 'ok' to 'fine'; alter type mood rename to mood2",
            Method::PATCH,
            "/moods/1",
            json!({"w": 2}),
            json!({"id": 1, "v": "fine", "w": 2}),
        ),
    ]
}

fn tables() -> Vec<Step> {
    let soft = "create function public.keep() returns trigger language plpgsql as \
        'begin update soft set v = ''deleted'' where id = old.id; return null; end'; \
        create trigger k before delete on soft for each row execute function public.keep()";
    let other_key = "alter table moved add unique (other); alter table moved drop constraint moved_pkey, \
        add primary key (other)";
    let made = json!({"id": 1, "v": "x", "g": "mine"});
    vec![
        (
            "alter table made alter g drop expression",
            Method::PUT,
            "/made/1",
            made.clone(),
            made,
        ),
        (
            "alter table needed alter v drop not null",
            Method::POST,
            "/needed",
            json!({"id": 2}),
            json!({"id": 2, "v": null}),
        ),
        (
            "alter table short alter v type varchar(10)",
            Method::POST,
            "/short",
            json!({"id": 2, "v": "longer"}),
            json!({"id": 2, "v": "longer"}),
        ),
        (
            soft,
            Method::DELETE,
            "/soft/1",
            Value::Null,
            json!({"id": 1, "v": "deleted"}),
        ),
        (
            other_key,
            Method::PATCH,
            "/moved/1",
            json!({"id": 9}),
            json!({"id": 9, "other": 1}),
        ),
        (
            "alter table needed add extra int",
            Method::POST,
            "/needed",
            json!({"id": 3, "extra": 1}),
            json!({"id": 3, "v": null, "extra": 1}),
        ),
    ]
}

/// What larder remembered of the catalogue decided what was stored, for up to `max_staleness`.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_is_that_of_the_definition_of_its_moment() {
    write_after_alterations("false").await;
}

/// No statement stays prepared, as behind a pooler.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooled_write_is_that_of_the_definition_of_its_moment() {
    write_after_alterations("true").await;
}

async fn write_after_alterations(pooler: &str) {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let served = [
        "pairs", "made", "codes", "texts", "bytes", "moods", "needed", "short", "soft", "moved",
    ];
    let toml: String = served
        .map(|table| format!("[[resource]]\nname = '{table}'\ntable = '{table}'\n"))
        .concat();
    let mut settings = NO_POLL.to_vec();
    settings.extend([("database.pooler", pooler), ("database.listen_url", &url)]);
    let larder = TestService::start_on(&url, &toml, &settings).await;
    // The connection that writes has a plan mark of each definition.
    for table in served {
        let answer = larder
            .write(Method::DELETE, &format!("/{table}/77"), &[], "")
            .await;
        assert_eq!(
            answer.status,
            StatusCode::NOT_FOUND,
            "{table}: {}",
            answer.body
        );
    }
    for (sql, method, path, body, expected) in types().into_iter().chain(tables()) {
        larder.execute(sql).await;
        let answer = larder.write(method, path, &[], &body.to_string()).await;
        let stored: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        assert_eq!(stored, expected, "{sql}: {} {}", answer.status, answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bulk_writes_begin_with_the_definition_of_their_moment() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let toml = "[[resource]]\nname = 'short'\ntable = 'short'\n";
    let larder = TestService::start_on(&url, toml, &NO_POLL).await;
    let ndjson = [("content-type", "application/x-ndjson")];
    let lenient = [ndjson[0], ("prefer", "handling=lenient")];
    for (round, headers) in [&ndjson[..], &lenient[..]].into_iter().enumerate() {
        let length = 10 + 10 * round;
        larder
            .execute(&format!("alter table short alter v type varchar({length})"))
            .await;
        let body = format!("{{\"id\":{round},\"v\":\"{}\"}}\n", "x".repeat(length));
        let answer = larder.write(Method::POST, "/short", headers, &body).await;
        assert!(answer.status.is_success(), "{}", answer.body);
    }
    assert_eq!(larder.query("select count(*)::text from short").await, "2");
}

/// A resource that does not fit any more is not written to by its last definition.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_below_a_dropped_foreign_key() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let toml = "[[resource]]\nname = 'parents'\ntable = 'parent'\n[[resource.children]]\nname = 'children'\ntable = 'child'\n";
    let larder = TestService::start_on(&url, toml, &NO_POLL).await;
    larder
        .execute("alter table child drop constraint child_parent_id_fkey")
        .await;
    let answer = larder.patch("/parents/1", &json!({"children": []})).await;
    assert_eq!(
        answer.status,
        StatusCode::SERVICE_UNAVAILABLE,
        "{}",
        answer.body
    );
    assert_eq!(larder.query("select count(*)::text from child").await, "1");
}
