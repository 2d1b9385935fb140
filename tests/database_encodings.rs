//! Databases with another encoding than UTF-8: a value that can't be converted makes only its own document fail.

use axum::http::{Method, StatusCode};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestService, execute};

const CONFIG: &str = "[[resource]]\nname = 'words'\ntable = 'public.word'\nfilters = ['body']\n";

/// A larder on a new database of this encoding, in which `sql` was run as it is stored there.
async fn larder_in(encoding: &str, sql: &str) -> TestService {
    let url = database_of(encoding, sql).await;
    TestService::start_on(&url, CONFIG, &[]).await
}

/// A new database of this encoding, in which `sql` was run.
pub(crate) async fn database_of(encoding: &str, sql: &str) -> String {
    let url = database_with(&format!("encoding '{encoding}' locale 'C'")).await;
    execute(
        &url,
        "create table word (id text collate \"C\" primary key, body text)",
    )
    .await;
    execute(&url, sql).await;
    url
}

/// A new database with these options of `create database`.
pub(crate) async fn database_with(options: &str) -> String {
    let url = TestCluster::database().await.url;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let name = format!("test_{}", Uuid::new_v4().simple());
    let create = format!("create database {name} template template0 {options}");
    sqlx::raw_sql(AssertSqlSafe(create))
        .execute(&mut connection)
        .await
        .unwrap();
    let (server, _) = url.rsplit_once('/').unwrap();
    format!("{server}/{name}")
}

/// A row with this text, of bytes of the database's encoding.
fn row(id: &str, body: &str) -> String {
    let stored = |text: &str| format!("convert_from('{text}'::bytea, getdatabaseencoding())");
    format!(
        "insert into word values ({}, {});",
        stored(id),
        stored(body)
    )
}

async fn all_but_the_broken_ones(encoding: &str) {
    // The byte 81 (octal 201) is no UTF-8, and no character of WIN1252.
    let sql: String = [
        row("a", "one"),
        row("b", "\\201"),
        row("c", "three"),
        row("d\\201", "four"),
        row("e\\201", "five"),
        row("f", "six"),
    ]
    .concat();
    let larder = larder_in(encoding, &sql).await;
    for _ in 0..2 {
        let broken = larder.get("/words/b").await;
        assert_eq!(
            broken.status,
            StatusCode::INTERNAL_SERVER_ERROR,
            "{broken:?}"
        );
        let whole = larder.get("/words/a").await;
        assert_eq!(whole.body, r#"{"id":"a","body":"one"}"#, "{encoding}");
    }
    let batch = larder.get("/words?keys=a,b,c,none").await;
    assert_eq!(
        batch.body,
        r#"{"documents":[{"id":"a","body":"one"},{"id":"c","body":"three"}],"missing":["none"],"unreadable":["b"]}"#
    );
    let (a, c, f) = (
        r#"{"id":"a","body":"one"}"#,
        r#"{"id":"c","body":"three"}"#,
        r#"{"id":"f","body":"six"}"#,
    );
    let list = larder.get("/words").await;
    assert_eq!(list.body, format!("[{a},{c},{f}]"), "{encoding}");
    // Paging continues after keys that no URL can express.
    let mut listed = Vec::new();
    let mut path = "/words?limit=1".to_owned();
    for _ in 0..10 {
        let page = larder.get(&path).await;
        assert_eq!(page.status, StatusCode::OK, "{page:?}");
        listed.push(page.body.trim_matches(['[', ']']).to_owned());
        let Some(next) = page
            .header("link")
            .split(['<', '>'])
            .nth(1)
            .map(str::to_owned)
        else {
            break;
        };
        path = next;
    }
    listed.retain(|document| !document.is_empty());
    assert_eq!(listed, [a, c, f], "{encoding}");
    let written = larder
        .write(Method::PUT, "/words/g", &[], r#"{"body":"seven"}"#)
        .await;
    assert_eq!(written.status, StatusCode::CREATED, "{written:?}");
    assert_eq!(larder.get("/words/g").await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_utf_8_concern_their_own_row() {
    all_but_the_broken_ones("SQL_ASCII").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn characters_without_an_equivalent_concern_their_own_row() {
    all_but_the_broken_ones("WIN1252").await;
}

/// One such key in a batch once made the whole batch fail with 500.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_the_database_cannot_spell_is_missing() {
    let larder = larder_in(
        "LATIN1",
        "insert into word values ('a', 'one'), (U&'\\00e9', 'two')",
    )
    .await;
    for _ in 0..2 {
        let answer = larder.get("/words/%E2%82%AC").await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{answer:?}");
    }
    let accent = larder.get("/words/%C3%A9").await;
    assert_eq!(accent.body, r#"{"id":"é","body":"two"}"#);
    let batch = larder
        .get("/words?keys=a,%E2%82%AC,%F0%9F%98%80,%C3%A9")
        .await;
    assert_eq!(
        batch.body,
        r#"{"documents":[{"id":"a","body":"one"},{"id":"é","body":"two"}],"missing":["€","😀"]}"#
    );
    let filtered = larder.get("/words?body=eq.%E2%82%AC").await;
    assert_eq!(
        (filtered.status, filtered.body.as_str()),
        (StatusCode::OK, "[]")
    );
}

/// A pass with such a key invalidates the whole resource, and goes on with the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_utf8_lacks_empties_its_resource_alone() {
    for encoding in ["SQL_ASCII", "WIN1252"] {
        let sql = [
            row("a", "one"),
            "create table other (id int primary key, n int); \
            insert into other values (1, 1), (2, 1);"
                .to_owned(),
        ]
        .concat();
        let url = database_of(encoding, &sql).await;
        let config = format!(
            "[feed]\nmax_staleness = '30s'\n{CONFIG}[[resource]]\nname = 'others'\ntable = 'other'\n"
        );
        let larder = TestService::start_on(&url, &config, &[]).await;
        for path in ["/words/a", "/others/1", "/others/2"] {
            hit(&larder, path).await;
        }
        let change =
            "update other set n = 2 where id = 1; update word set body = 'two' where id = 'a'";
        let broken = row("e\\201", "broken");
        larder
            .execute(&format!("begin; {broken} {change}; commit"))
            .await;
        eventually("the change of the others", async || {
            (larder.get("/others/1").await.body == r#"{"id":1,"n":2}"#).then_some(())
        })
        .await;
        assert_eq!(
            larder.get("/words/a").await.body,
            r#"{"id":"a","body":"two"}"#
        );
        let untouched = larder.get("/others/2").await;
        assert_eq!(
            untouched.cache_status(),
            "larder; hit; detail=memory",
            "{encoding}"
        );
    }
}

async fn hit(larder: &TestService, path: &str) {
    eventually("a hit", async || {
        let answer = larder.get(path).await;
        answer
            .cache_status()
            .starts_with("larder; hit")
            .then_some(())
    })
    .await;
}

/// As a client without a claim: no document can be its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_the_encoding_lacks_owns_nothing() {
    let url = database_of("LATIN1", &row("a", "one")).await;
    let hash = "3c44f43ed3a9baa9a1780533ae5bc50412abdaa03496d52aa9ffc577171d85cb";
    let config = format!(
        "[[auth.key]]\nname = 'c17'\nhash = '{hash}'\nroles = ['customer']\nclaims = {{ sub = '日' }}\n\
         {CONFIG}read = ['customer']\nwrite = ['customer']\n\
         [resource.owner]\ncolumn = 'body'\nclaim = 'sub'\nroles = ['customer']\n"
    );
    let larder = TestService::start_on(&url, &config, &[]).await;
    let send = async |method: Method, path: &str, body: &str| {
        let headers = [("x-api-key", "c17")];
        let answer = larder.write(method, path, &headers, body).await;
        answer.status.as_u16()
    };
    for path in ["/words/a", "/words/b"] {
        assert_eq!(send(Method::GET, path, "").await, 404, "{path}");
        assert_eq!(send(Method::DELETE, path, "").await, 404, "{path}");
        let patched = send(Method::PATCH, path, r#"{"body":"two"}"#).await;
        assert_eq!(patched, 404, "{path}");
        let body = format!(r#"{{"id":"{}"}}"#, &path[7..]);
        assert_eq!(send(Method::PUT, path, &body).await, 404, "{path}");
    }
    assert_eq!(send(Method::DELETE, "/words/%E6%97%A5", "").await, 404);
    assert_eq!(send(Method::PUT, "/words/%E6%97%A5", "{}").await, 422);
}
