//! Every document is what the tables hold, byte for byte, for all types, keys and links.

mod document_max;
pub(crate) mod oracle;
mod random_tables;
pub(crate) mod rendering;
mod round_trip;
pub(crate) mod shapes;

use sqlx::{Connection, PgConnection};

use crate::harness::service::TestService;

pub(crate) const SCHEMA: &str = include_str!("documents/schema.sql");
pub(crate) const ROWS: &str = include_str!("documents/data.sql");
pub(crate) const CONFIG: &str = include_str!("documents/larder.toml");

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_what_the_tables_hold() {
    let larder = TestService::start(&format!("{SCHEMA}{ROWS}"), CONFIG).await;
    let mut connection = PgConnection::connect(&larder.url).await.unwrap();
    let expected = oracle::documents(&mut connection, &shapes::documented()).await;
    assert!(expected.len() > 40, "{}", expected.len());
    let mut wrong = Vec::new();
    for (path, document) in &expected {
        let answer = larder.get(path).await;
        let value: serde_json::Value = serde_json::from_str(document).unwrap();
        // The bytes say more: no white space, the members in the order of the file, every digit.
        if answer.status != 200 || answer.body != *document || answer.json() != value {
            wrong.push(format!(
                "{path}: {}\n  larder {}\n  oracle {document}",
                answer.status, answer.body
            ));
        }
        let again = larder.get(path).await;
        assert_eq!(again.body, answer.body);
        assert!(again.cache_status().contains("hit") || path.starts_with("/meters/"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_spelling_of_a_key_is_one_document() {
    let larder = TestService::start(&format!("{SCHEMA}{ROWS}"), CONFIG).await;
    for spellings in [
        &["/regions/1", "/regions/01", "/regions/+1", "/regions/%31"][..],
        &["/regions/-4", "/regions/-04"],
        &[
            "/authors/9223372036854775807",
            "/authors/+0009223372036854775807",
        ],
        &["/accounts/0", "/accounts/-0", "/accounts/000"],
        &[
            "/products/a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            "/products/A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
        ],
        &["/countries/NO", "/countries/NO%20%20%20", "/countries/%4eO"],
        &["/countries/a,b", "/countries/a%2Cb%20"],
        &["/orders/1,a%2Cb", "/orders/+01,%61%2cb"],
        &["/orders/3,%252C", "/orders/03,%25%32C"],
        &["/orders/3,"],
        &["/days/0044-03-15%20BC"],
    ] {
        let first = larder.get(spellings[0]).await;
        assert_eq!(first.status, 200, "{}", spellings[0]);
        for spelling in spellings {
            let answer = larder.get(spelling).await;
            assert_eq!(
                answer.cache_status(),
                "larder; hit; detail=memory",
                "{spelling}"
            );
            assert_eq!(answer.body, first.body);
        }
    }
}
