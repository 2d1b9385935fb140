//! Requests of every kind by keys of every type.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::eventually;
use crate::harness::service::TestService;

/// A type of keys with values.
struct KeyCase {
    name: &'static str,
    type_sql: &'static str,
    /// In PostgreSQL's order: SQL, the canonical text, and the JSON in documents. All but the last are stored.
    values: Vec<(&'static str, &'static str, Value)>,
    /// Another spelling of a value, by its place.
    spelled: (usize, &'static str),
    /// A text that is no value.
    wrong: Option<&'static str>,
}

fn moments(type_sql: &'static str) -> KeyCase {
    let value = |sql, text: &'static str| (sql, text, json!(text));
    KeyCase {
        name: type_sql,
        type_sql,
        values: vec![
            value("0044-03-15 00:00:00+00 BC", "0044-03-15T00:00:00+00:00 BC"),
            value("2024-02-29 12:00:00.5+00", "2024-02-29T12:00:00.5+00:00"),
            value("10000-01-01 00:00:00+00", "10000-01-01T00:00:00+00:00"),
            value("infinity", "infinity"),
        ],
        spelled: (1, "2024-02-29t13:30:00.50+01:30"),
        wrong: Some("2024-02-30T12:00:00Z"),
    }
}

fn plain(name: &'static str, values: [&'static str; 4]) -> KeyCase {
    KeyCase {
        name,
        type_sql: name,
        values: values.map(|text| (text, text, json!(text))).into(),
        spelled: (0, values[0]),
        wrong: Some("-"),
    }
}

fn cases() -> Vec<KeyCase> {
    vec![
        moments("timestamp"),
        moments("timestamptz"),
        KeyCase {
            values: vec![
                ("\\x00", "00", json!("AA==")),
                ("\\x0aff", "0aff", json!("Cv8=")),
                ("\\xff", "ff", json!("/w==")),
                ("\\xffab", "ffab", json!("/6s=")),
            ],
            spelled: (1, "0AfF"),
            ..plain("bytea", ["", "", "", ""])
        },
        KeyCase {
            spelled: (2, "2001:0DB8:0::1/128"),
            ..plain(
                "inet",
                [
                    "10.0.0.1",
                    "192.168.1.5/24",
                    "2001:db8::1",
                    "2001:db8::1:0:0:2",
                ],
            )
        },
        KeyCase {
            spelled: (2, "2001:0DB8:0::/32"),
            wrong: Some("10.0.0.1/8"),
            ..plain(
                "cidr",
                [
                    "10.0.0.0/8",
                    "192.168.1.5/32",
                    "2001:db8::/32",
                    "2001:db9::/32",
                ],
            )
        },
        KeyCase {
            spelled: (1, "08-00-2B-01-02-03"),
            ..plain(
                "macaddr",
                [
                    "00:00:00:00:00:00",
                    "08:00:2b:01:02:03",
                    "fe:00:00:00:00:00",
                    "ff:ff:ff:ff:ff:ff",
                ],
            )
        },
        KeyCase {
            wrong: None,
            type_sql: "feeling",
            ..plain("mood", ["wild", "so, so", "100%", "calm"])
        },
        KeyCase {
            values: vec![
                ("false", "false", json!(false)),
                ("true", "true", json!(true)),
            ],
            wrong: Some("f"),
            ..plain("boolean", ["false", "true", "", ""])
        },
    ]
}

/// `text` as it stands in a path.
fn encoded(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    let bytes = text.bytes().map(|byte| {
        if plain(&byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    });
    bytes.collect()
}

impl KeyCase {
    fn sql(&self) -> String {
        let Self { name, type_sql, .. } = self;
        let mut sql = format!(
            "create table \"{name}\" (k {type_sql} primary key, twin {type_sql} not null unique, mark {type_sql}, note text);
             create index on \"{name}\" (mark, k);
             create table \"{name}_part\" (k {type_sql} references \"{name}\" on delete cascade, n int, primary key (k, n));
             create table \"{name}_pair\" (k {type_sql}, n int, note text, primary key (k, n));"
        );
        for (value, ..) in self.stored() {
            sql.push_str(&format!(
                "insert into \"{name}\" values ('{value}', '{value}', '{value}', 'old');
                 insert into \"{name}_part\" values ('{value}', 1);
                 insert into \"{name}_pair\" values ('{value}', 1, 'old'), ('{value}', 2, 'old');"
            ));
        }
        sql
    }

    fn toml(&self) -> String {
        let name = self.name;
        format!(
            "[[resource]]
             name = '{name}'
             table = '{name}'
             filters = ['mark']
             [[resource.by]]
             name = 'twin'
             columns = ['twin']
             [[resource.children]]
             name = 'parts'
             table = '{name}_part'
             [[resource]]
             name = '{name}_pair'
             table = '{name}_pair'
            "
        )
    }

    fn stored(&self) -> &[(&'static str, &'static str, Value)] {
        let (_, stored) = self.values.split_last().unwrap();
        stored
    }

    /// The value that is not stored.
    fn unstored(&self) -> &(&'static str, &'static str, Value) {
        self.values.last().unwrap()
    }

    /// A canonical text as JSON in keys.
    fn key_json(&self, text: &str) -> Value {
        match self.name {
            "boolean" => json!(text == "true"),
            _ => json!(text),
        }
    }

    fn path(&self, text: &str) -> String {
        format!("/{}/{}", self.name, encoded(text))
    }

    fn document(&self, place: usize) -> Value {
        let value = &self.values[place].2;
        json!({"k": value, "twin": value, "mark": value, "note": "old", "parts": [{"k": value, "n": 1}]})
    }
}

async fn larder() -> TestService {
    let cases = cases();
    let tables: String = cases.iter().map(KeyCase::sql).collect();
    let sql = format!(
        "create type feeling as enum ('wild', 'so, so', '100%', 'calm'); set timezone = 'UTC'; {tables}"
    );
    let toml: String = cases.iter().map(KeyCase::toml).collect();
    TestService::start(&sql, &toml).await
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_read_by_every_spelling() {
    let larder = larder().await;
    for case in cases() {
        for (place, (_, text, _)) in case.stored().iter().enumerate() {
            let path = case.path(text);
            let read = larder.get(&path).await;
            assert_eq!(read.status, StatusCode::OK, "{path}: {read:?}");
            assert_eq!(read.json(), case.document(place), "{path}");
            let again = larder.request(Method::HEAD, &path, &[]).await;
            assert_eq!(again.cache_status(), "larder; hit; detail=memory");
            assert_eq!(again.header("etag"), read.header("etag"));
            let twin = format!("/{}/by/twin/{}", case.name, encoded(text));
            let twin = larder.get(&twin).await;
            assert_eq!(twin.body, read.body, "{path}");
            assert_eq!(twin.header("content-location"), path);
        }
        let (place, spelling) = case.spelled;
        let spelled = larder.get(&case.path(spelling)).await;
        assert_eq!(spelled.json(), case.document(place), "{spelling}");
        assert_eq!(spelled.cache_status(), "larder; hit; detail=memory");
        let (_, new, _) = case.unstored();
        assert_eq!(
            larder.get(&case.path(new)).await.status,
            StatusCode::NOT_FOUND
        );
        if let Some(wrong) = case.wrong {
            let refused = larder.get(&case.path(wrong)).await;
            assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{wrong}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_take_keys_as_json() {
    let larder = larder().await;
    for case in cases() {
        let keys = case.values.iter().map(|(_, text, _)| case.key_json(text));
        let keys: Vec<Value> = keys.collect();
        let (name, new) = (case.name, keys.last().unwrap());
        let body = json!({"keys": keys}).to_string();
        let batch = larder
            .write(Method::POST, &format!("/{name}:batch"), &[], &body)
            .await;
        let documents: Vec<Value> = (0..keys.len() - 1)
            .map(|place| case.document(place))
            .collect();
        let expected = json!({"documents": documents, "missing": [new]});
        assert_eq!(batch.json(), expected, "{name}");
        let pairs: Vec<Value> = keys.iter().map(|key| json!([key, 2])).collect();
        let body = json!({"keys": pairs}).to_string();
        let batch = larder
            .write(Method::POST, &format!("/{name}_pair:batch"), &[], &body)
            .await
            .json();
        assert_eq!(batch["missing"], json!([[new, 2]]), "{name}");
        assert_eq!(batch["documents"].as_array().unwrap().len(), keys.len() - 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_follow_the_order_of_the_type() {
    let larder = larder().await;
    for case in cases() {
        let stored = case.stored();
        for (path, times) in [
            (case.name.to_owned(), 1),
            (format!("{}_pair", case.name), 2),
        ] {
            let mut next = Some(format!("/{path}?limit=1"));
            let mut seen = Vec::new();
            while let Some(path) = next {
                let page = larder.get(&path).await;
                assert_eq!(page.status, StatusCode::OK, "{path}: {page:?}");
                seen.push(page.json()[0]["k"].clone());
                let link = page.header("link");
                next = link
                    .strip_prefix('<')
                    .map(|link| link[..link.find('>').unwrap()].to_owned());
            }
            let expected = stored
                .iter()
                .flat_map(|(_, _, value)| vec![value.clone(); times]);
            assert_eq!(seen, expected.collect::<Vec<_>>(), "{path}");
        }
        let (place, spelling) = case.spelled;
        let filtered = format!("/{}?mark=eq.{}", case.name, encoded(spelling));
        let filtered = larder.get(&filtered).await.json();
        assert_eq!(filtered, json!([case.document(place)]), "{}", case.name);
        let (_, new, _) = case.unstored();
        let none = format!("/{}?mark=eq.{}", case.name, encoded(new));
        assert_eq!(larder.get(&none).await.body, "[]");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_by_sql_reach_documents() {
    let larder = larder().await;
    for case in cases() {
        let name = case.name;
        let (value, text, json) = &case.stored()[0];
        let (path, pair) = (case.path(text), format!("/{name}_pair/{},2", encoded(text)));
        for path in [&path, &pair] {
            assert_eq!(larder.get(path).await.json()["note"], "old", "{path}");
        }
        let settings = "set timezone = 'Asia/Kathmandu'; set datestyle = 'German'; set bytea_output = 'escape'";
        let update = format!(
            "{settings}; update \"{name}\" set note = 'new' where k = '{value}';
             update \"{name}_pair\" set note = 'new' where k = '{value}' and n = 2"
        );
        larder.execute(&update).await;
        for path in [&path, &pair] {
            eventually("the row", async || {
                (larder.get(path).await.json()["note"] == "new").then_some(())
            })
            .await;
        }
        let insert = format!(
            "{settings}; insert into \"{name}_part\" select k, 2 from \"{name}_part\" where k = '{value}'"
        );
        larder.execute(&insert).await;
        let expected = json!([{"k": json, "n": 1}, {"k": json, "n": 2}]);
        eventually("the child", async || {
            (larder.get(&path).await.json()["parts"] == expected).then_some(())
        })
        .await;
        larder
            .execute(&format!("delete from \"{name}\" where k = '{value}'"))
            .await;
        eventually("the end", async || {
            (larder.get(&path).await.status == StatusCode::NOT_FOUND).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_written_by_every_type() {
    let larder = larder().await;
    for case in cases() {
        let (_, new, value) = case.unstored();
        let path = case.path(new);
        let body =
            json!({"k": value, "twin": value, "mark": null, "note": "a", "parts": [{"n": 7}]});
        let posted = larder
            .write(
                Method::POST,
                &format!("/{}", case.name),
                &[],
                &body.to_string(),
            )
            .await;
        assert_eq!(posted.status, StatusCode::CREATED, "{path}: {posted:?}");
        assert_eq!(posted.header("location"), path);
        assert_eq!(
            larder.get(&path).await.json()["parts"],
            json!([{"k": value, "n": 7}])
        );
        let patch = r#"{"note":"b"}"#;
        let patched = larder.write(Method::PATCH, &path, &[], patch).await;
        assert!(patched.status.is_success(), "{path}: {patched:?}");
        assert_eq!(larder.get(&path).await.json()["note"], "b");
        let (place, spelling) = case.spelled;
        let mut document = case.document(place);
        document["note"] = json!("c");
        let spelled = case.path(spelling);
        let put = larder
            .write(Method::PUT, &spelled, &[], &document.to_string())
            .await;
        assert!(put.status.is_success(), "{spelled}: {put:?}");
        assert_eq!(larder.get(&spelled).await.json(), document, "{spelled}");
        if document["k"] == json!(case.values[place].1) {
            let mut other = document.clone();
            other["parts"][0]["k"] = json!(spelling);
            let same = larder
                .write(Method::PUT, &spelled, &[], &other.to_string())
                .await;
            assert!(same.status.is_success(), "{spelled}: {same:?}");
        }
        document["k"] = value.clone();
        let other = larder
            .write(Method::PUT, &spelled, &[], &document.to_string())
            .await;
        assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY, "{spelled}");
        let deleted = larder.write(Method::DELETE, &path, &[], "").await;
        assert_eq!(
            deleted.status,
            StatusCode::NO_CONTENT,
            "{path}: {deleted:?}"
        );
        assert_eq!(larder.get(&path).await.status, StatusCode::NOT_FOUND);
    }
}

/// Labels of an enum change without a change of any row.
#[tokio::test(flavor = "multi_thread")]
async fn labels_are_renamed_and_added_while_larder_runs() {
    let larder = larder().await;
    assert_eq!(larder.get("/mood/wild").await.status, StatusCode::OK);
    assert_eq!(larder.get("/mood/tame").await.status, StatusCode::NOT_FOUND);
    larder
        .execute("alter type feeling rename value 'wild' to 'tame'; alter type feeling add value 'gone, 50%'")
        .await;
    larder
        .execute("insert into mood values ('gone, 50%', 'gone, 50%', 'tame', 'new')")
        .await;
    eventually("the new name", async || {
        let (old, new) = (
            larder.get("/mood/wild").await,
            larder.get("/mood/tame").await,
        );
        let is_known = new.status == StatusCode::OK && new.json()["k"] == "tame";
        (old.status == StatusCode::NOT_FOUND && is_known).then_some(())
    })
    .await;
    let added = larder.get("/mood/gone%2C%2050%25").await;
    assert_eq!(added.json()["note"], "new", "{added:?}");
    let page = larder.get("/mood?limit=1").await;
    assert_eq!(page.json()[0]["k"], "tame");
    // A label that is gone has no place in the order.
    let refused = larder.get("/mood?after=wild").await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{refused:?}");
    let filtered = larder.get("/mood?mark=eq.tame").await.json();
    assert_eq!(filtered.as_array().unwrap().len(), 2);
    assert_eq!(larder.get("/mood?mark=eq.wild").await.body, "[]");
    let body = r#"{"k":"gone, 50%","twin":"gone, 50%","mark":"tame","note":"put","parts":[]}"#;
    // Bodies are checked against the labels that the catalogue had when larder checked the tables again.
    eventually("the new labels in bodies", async || {
        let put = larder
            .write(Method::PUT, "/mood/gone%2C%2050%25", &[], body)
            .await;
        put.status.is_success().then_some(())
    })
    .await;
    let deleted = larder.write(Method::DELETE, "/mood/wild", &[], "").await;
    assert_eq!(deleted.status, StatusCode::NOT_FOUND);
    let deleted = larder.write(Method::DELETE, "/mood/tame", &[], "").await;
    assert_eq!(deleted.status, StatusCode::NO_CONTENT);
}

/// Triggers stay when the type of a column changes, until larder has noticed it.
#[tokio::test(flavor = "multi_thread")]
async fn no_writer_fails_after_a_change_of_the_type() {
    let larder = larder().await;
    for case in cases() {
        let table = format!("\"{}_pair\"", case.name);
        let changes = [
            "int using hashtext(k::text)",
            "text using k::text || 'x'",
            "int[] using array[hashtext(k)]",
        ];
        let change = |change: &str| {
            format!(
                "alter table {table} alter k type {change}; update {table} set note = 'new';
                 insert into {table} select k, n + 10, note from {table}; delete from {table} where n > 10;"
            )
        };
        let changes = changes.map(change).concat();
        larder.execute(&format!("begin; {changes} rollback")).await;
        larder.execute(&changes).await;
    }
}
