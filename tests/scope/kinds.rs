//! Owners of every type of keys: a claim is made canonical as a key is.

use axum::http::{Method, StatusCode};
use serde_json::json;

use crate::harness::cluster::TestCluster;
use crate::harness::service::TestService;
use crate::plans::version;
use crate::scope::HASHES;

/// A type, a claim, its value in SQL, another value, and the claim's value in documents.
const CASES: &[(&str, &str, &str, &str, &str)] = &[
    (
        "timestamp",
        "2024-02-29T12:00:00Z",
        "2024-02-29 12:00:00",
        "infinity",
        "2024-02-29T12:00:00+00:00",
    ),
    (
        "timestamptz",
        "2024-02-29T13:00:00+01:00",
        "2024-02-29 12:00:00+00",
        "-infinity",
        "2024-02-29T12:00:00+00:00",
    ),
    ("bytea", "00FF", "\\x00ff", "\\x00", "AP8="),
    (
        "inet",
        "2001:DB8::1/128",
        "2001:db8::1",
        "10.0.0.1",
        "2001:db8::1",
    ),
    (
        "cidr",
        "10.0.0.0/8",
        "10.0.0.0/8",
        "10.0.0.0/9",
        "10.0.0.0/8",
    ),
    (
        "macaddr",
        "08-00-2B-01-02-03",
        "08:00:2b:01:02:03",
        "08:00:2b:01:02:04",
        "08:00:2b:01:02:03",
    ),
    ("feeling", "so, so", "so, so", "calm", "so, so"),
];

async fn larder() -> TestService {
    let mut sql =
        "create type feeling as enum ('calm', 'so, so'); set timezone = 'UTC';".to_owned();
    let (name, hash) = HASHES[0];
    let claims = CASES
        .iter()
        .map(|(of, claim, ..)| format!("c_{of} = '{claim}'"));
    let claims = claims.collect::<Vec<_>>().join(", ");
    let mut toml = format!(
        "[[auth.key]]\nname = '{name}'\nhash = '{hash}'\nroles = ['customer']\nclaims = {{ {claims} }}\n"
    );
    for (of, _, own, other, _) in CASES {
        sql.push_str(&format!(
            "create table r_{of} (id int primary key, o {of}); create index on r_{of} (o, id);
             insert into r_{of} values (1, '{own}'), (2, '{other}'), (3, null);"
        ));
        toml.push_str(&format!(
            "[[resource]]\nname = '{of}'\ntable = 'r_{of}'\nread = ['customer']\nwrite = ['customer']\n\
             [resource.owner]\ncolumn = 'o'\nclaim = 'c_{of}'\nroles = ['customer']\n"
        ));
    }
    TestService::start(&sql, &toml).await
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_are_of_every_type_of_keys() {
    let larder = larder().await;
    let (client, _) = HASHES[0];
    for (of, _, _, _, shown) in CASES {
        let get = async |path: &str| larder.by(client, Method::GET, path, &[], "").await;
        for _ in 0..2 {
            let own = get(&format!("/{of}/1")).await;
            assert_eq!(own.status, StatusCode::OK, "{of}: {own:?}");
            assert_eq!(own.json(), json!({"id": 1, "o": shown}));
            for id in [2, 3] {
                let other = get(&format!("/{of}/{id}")).await;
                assert_eq!(other.status, StatusCode::NOT_FOUND, "{of}/{id}");
            }
        }
        assert_eq!(
            get(&format!("/{of}")).await.json(),
            json!([{"id": 1, "o": shown}])
        );
        let write = async |method: Method, path: &str, body: &str| {
            larder.by(client, method, path, &[], body).await
        };
        let posted = write(Method::POST, &format!("/{of}"), r#"{"id":4}"#).await;
        assert_eq!(posted.status, StatusCode::CREATED, "{of}: {posted:?}");
        assert_eq!(
            get(&format!("/{of}/4")).await.json(),
            json!({"id": 4, "o": shown})
        );
        let named = json!({"id": 5, "o": shown}).to_string();
        let named = write(Method::POST, &format!("/{of}"), &named).await;
        assert_eq!(named.status, StatusCode::CREATED, "{of}: {named:?}");
        let deleted = write(Method::DELETE, &format!("/{of}/2"), "").await;
        assert_eq!(deleted.status, StatusCode::NOT_FOUND, "{of}");
        let foreign = write(Method::POST, &format!("/{of}"), r#"{"id":6,"o":null}"#).await;
        assert_eq!(foreign.status, StatusCode::FORBIDDEN, "{of}: {foreign:?}");
    }
}

/// PostgreSQL computes it when the row is read (18), so triggers need not see it.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_may_be_a_virtual_column() {
    if version(&TestCluster::database().await.url).await < 180_000 {
        return;
    }
    let (client, hash) = HASHES[0];
    let larder = TestService::start(
        "create table note (id int primary key, person text, o text generated always as (lower(person)));
         insert into note (id, person) values (1, 'Ann'), (2, 'Bob');",
        &format!(
            "[[auth.key]]\nname = '{client}'\nhash = '{hash}'\nroles = ['customer']\nclaims = {{ who = 'ann' }}\n\
             [[resource]]\nname = 'notes'\ntable = 'note'\nread = ['customer']\nwrite = ['customer']\n\
             [resource.owner]\ncolumn = 'o'\nclaim = 'who'\nroles = ['customer']\n"
        ),
    )
    .await;
    for _ in 0..2 {
        for (path, status) in [("/notes/1", 200), ("/notes/2", 404)] {
            let answer = larder.by(client, Method::GET, path, &[], "").await;
            assert_eq!(answer.status, status, "{path}: {answer:?}");
        }
    }
    for (body, status) in [
        (r#"{"id":3,"person":"ANN"}"#, 201),
        (r#"{"id":4,"person":"Bob"}"#, 403),
    ] {
        let answer = larder.by(client, Method::POST, "/notes", &[], body).await;
        assert_eq!(answer.status, status, "{body}: {answer:?}");
    }
}
