//! Filters on types that are none of keys.

use axum::http::StatusCode;
use serde_json::json;

use crate::harness::service::TestService;

/// A type, its value in SQL, texts of a query that equal it, one that does not, and one that is no value of the type.
type FilterCase = (
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static str,
    &'static str,
);

const CASES: &[FilterCase] = &[
    ("numeric", "1.50", &["1.5", "1.500", "15e-1"], "1.51", "1,5"),
    ("numeric(6,2)", "-7.25", &["-7.25"], "7.25", "10000"),
    ("numeric(40,0)", "12", &["12", "%2B012"], "13", "1.5"),
    ("real", "0.1", &["0.1", "0.10000000149"], "0.2", "1e39"),
    ("float8", "0.1", &["0.1", "1e-1"], "0.10000000149", "x"),
    ("float8", "NaN", &["NaN"], "0", "nan"),
    (
        "time",
        "09:30:00.5",
        &["09:30:00.50"],
        "09:30:01",
        "25:00:00",
    ),
    (
        "timetz",
        "09:30:00+02",
        &["09:30:00%2B02:00"],
        "09:30:00Z",
        "09:30:00",
    ),
    (
        "interval",
        "1 day 2 hours",
        &["26:00:00", "1%20day%2002:00:00"],
        "1 day",
        "one day",
    ),
    ("name", "larder", &["larder"], "x", "%00"),
    ("\"char\"", "a", &["a"], "b", "ab"),
    ("bit(4)", "0101", &["0101", "x5"], "1101", "01"),
    ("varbit", "01", &["01"], "010", "2"),
    ("money", "12.50", &["$12.50", "12.5"], "12", "many"),
    ("oid", "17", &["17"], "18", "-x"),
    (
        "macaddr8",
        "08:00:2b:01:02:03:04:05",
        &["08-00-2B-01-02-03-04-05"],
        "08:00:2b:01:02:03:04:06",
        "g",
    ),
    ("pg_lsn", "16/B374D848", &["16/b374d848"], "0/0", "16"),
    (
        "text collate folded",
        "Ärger",
        &["Ärger", "ärger"],
        "arger",
        "%00",
    ),
    ("small", "1.5", &["1.50"], "2", "-"),
    ("feeling", "so, so", &["so,%20so"], "calm", "%00"),
    ("boolean", "true", &["true"], "false", "t"),
    ("bytea", "\\x00ff", &["00FF"], "00", "AP8="),
    (
        "timestamptz",
        "2024-01-02 03:04:05+00",
        &["2024-01-02T03:04:05Z"],
        "infinity",
        "yesterday",
    ),
    // PostgreSQL searched their operators in pg_catalog, where it took the one of `text`, or none.
    ("citext", "Abc", &["Abc", "aBC"], "ab", "%00"),
    ("folded_name", "Abc", &["abc"], "ab", "ABCDEFGHIJ%00"),
    ("ext.ltree", "a.b", &["a.b"], "a", "a..b"),
    (
        "ext.isbn13",
        "978-0-393-04002-9",
        &["9780393040029"],
        "978-0-306-40615-7",
        "x",
    ),
    ("ext.cube", "(1, 2)", &["(1,2)", "1.0,2"], "(1)", "(1"),
    ("ext.seg", "1 .. 2", &["1..2"], "1..3", "2 .. 1"),
    // It has the operator class of `text`.
    ("code", "a b", &["a b"], "A b", "%00"),
    // Texts that are no values raise errors of many classes.
    ("tsquery", "a & b", &["a %26 b"], "a", "a %26"),
    ("tsvector", "a:1 b", &["b a:1"], "a", "'"),
    (
        "interval",
        "1 day",
        &["1 day"],
        "2 days",
        "1000000000 years",
    ),
];

/// A table for each case: row 1 has the value, row 2 null.
fn schema() -> String {
    let mut sql = "create collation folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
        create type feeling as enum ('calm', 'so, so'); create domain small as numeric check (value < 10);
        create schema ext; create extension citext; create extension ltree schema ext; create extension isn schema ext;
        create extension cube schema ext; create extension seg schema ext; create domain folded_name as citext;
        create type code; create function code_in(cstring) returns code immutable strict language internal as 'textin';
        create function code_out(code) returns cstring immutable strict language internal as 'textout';
        create type code (input = code_in, output = code_out, like = text, collatable = true); create cast (code as text) without function as implicit;"
        .to_owned();
    for (number, (type_sql, value, ..)) in CASES.iter().enumerate() {
        sql.push_str(&format!(
            "create table t{number} (id int primary key, v {type_sql});
             insert into t{number} values (1, '{value}'), (2, null); create index on t{number} (v, id);"
        ));
    }
    sql
}

fn toml() -> String {
    let resource = |number| {
        format!("[[resource]]\nname = 't{number}'\ntable = 't{number}'\nfilters = ['v']\n")
    };
    (0..CASES.len()).map(resource).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_scalar_type_can_be_filtered_by() {
    let larder = TestService::start(&schema(), &toml()).await;
    for (number, (type_sql, _, equal, other, wrong)) in CASES.iter().enumerate() {
        let get = async |condition: &str| {
            let condition = condition.replace(' ', "%20").replace('Ä', "%C3%84");
            let condition = condition.replace('ä', "%C3%A4");
            larder.get(&format!("/t{number}?v={condition}")).await
        };
        let ids = async |condition: &str| {
            let page = get(condition).await;
            assert_eq!(
                page.status,
                StatusCode::OK,
                "{type_sql} {condition}: {page:?}"
            );
            let page = page.json();
            let ids = page
                .as_array()
                .unwrap()
                .iter()
                .map(|item| item["id"].clone());
            json!(ids.collect::<Vec<_>>())
        };
        for text in *equal {
            assert_eq!(
                ids(&format!("eq.{text}")).await,
                json!([1]),
                "{type_sql} {text}"
            );
        }
        assert_eq!(ids(&format!("eq.{other}")).await, json!([]), "{type_sql}");
        assert_eq!(ids("is.null").await, json!([2]), "{type_sql}");
        let refused = get(&format!("eq.{wrong}")).await;
        assert_eq!(
            refused.status,
            StatusCode::BAD_REQUEST,
            "{type_sql} {wrong}: {refused:?}"
        );
        assert!(refused.json()["detail"].as_str().unwrap().starts_with("v "));
    }
}
