//! The configuration checked against a real catalogue: all mistakes are reported at once, each with its line.

mod mistakes;
mod outputs;
mod policies;
mod transient_visibility;

use std::fmt::Write;

use axum::http::StatusCode;
use larder::config::Config;
use larder::feed::establish::EstablishError;
use larder::feed::install;
use larder::resource::definition::Mistake;
use larder::source::session::Database;
use sqlx::{Connection, PgConnection};

use self::mistakes::{ACCESS, CASES, CatalogueMistake, GUARDED, OPTIONAL, SCHEMA};
use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::eventually;
use crate::harness::service::{TestService, execute};

/// The file of all `cases`, and what each is to be told as: place and message.
fn file_of<'c>(
    cases: impl IntoIterator<Item = &'c CatalogueMistake>,
) -> (String, Vec<(String, &'c str)>) {
    let mut file = String::new();
    let mut expected = Vec::new();
    for (index, case) in cases.into_iter().enumerate() {
        write!(file, "[[resource]]\nname = 'r{index}'\n{}\n", case.toml).unwrap();
        let (before, _) = file.rsplit_once("# here").unwrap();
        let line = before.lines().count();
        let place = format!("larder.toml:{line}: resource[{index}].{}: ", case.key);
        expected.push((place, case.message));
    }
    (file, expected)
}

/// All mistakes that installing `toml` as the role of `url` finds; none if it installs.
pub(crate) async fn mistakes(url: &str, toml: &str) -> Vec<Mistake> {
    let config = Config::from_toml(toml, &[("database.url", url)]).unwrap();
    let database = Database::new(url, false, config.source.statement_timeout).unwrap();
    match install(&database, &config.resources, &config.feed).await {
        Ok(()) => Vec::new(),
        Err(EstablishError::Unfit(mistakes)) => mistakes,
        Err(error) => panic!("{error}"),
    }
}

#[track_caller]
fn assert_told(mistakes: &[Mistake], expected: &[(String, &str)]) {
    let told: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    for (place, message) in expected {
        let found = told
            .iter()
            .any(|told| told.starts_with(place) && told.contains(message));
        assert!(found, "{place}…{message} is not in\n{}", told.join("\n"));
    }
    assert_eq!(told.len(), expected.len(), "{}", told.join("\n"));
}

async fn has_schema_larder(url: &str) -> bool {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let there = sqlx::query_scalar("select to_regnamespace('larder') is not null")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    there
}

#[tokio::test]
async fn every_mistake_is_reported_with_its_line_and_nothing_is_installed() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let (file, expected) = file_of(CASES);
    assert_told(&mistakes(&url, &file).await, &expected);
    assert!(!has_schema_larder(&url).await);
}

#[tokio::test]
async fn mistakes_of_owners_and_aliases_are_reported() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let (file, expected) = file_of(ACCESS);
    let key = "[[auth.key]]\nname = 'k'\nclaims = { sub = '1' }\nhash = ";
    let file = format!("{file}{key}'{}'", "0".repeat(64));
    assert_told(&mistakes(&url, &file).await, &expected);
}

#[tokio::test]
async fn constraints_of_18_promise_no_more_than_they_say() {
    if !TestCluster::has(18, "`period` and no `not null … not valid`") {
        return;
    }
    let url = TestCluster::database().await.url;
    execute(&url, mistakes::SCHEMA_OF_18).await;
    let (file, expected) = file_of(mistakes::OF_18);
    assert_told(&mistakes(&url, &file).await, &expected);
}

#[tokio::test]
async fn foreign_tables_and_loose_equalities_are_refused() {
    let url = TestCluster::database().await.url;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let available: Vec<String> =
        sqlx::query_scalar("select name::text from pg_available_extensions")
            .fetch_all(&mut connection)
            .await
            .unwrap();
    let icu: bool =
        sqlx::query_scalar("select exists (select from pg_collation where collprovider = 'i')")
            .fetch_one(&mut connection)
            .await
            .unwrap();
    connection.close().await.unwrap();
    let possible: Vec<_> = OPTIONAL
        .iter()
        .filter(|(extension, sql, _)| {
            available.iter().any(|name| name == extension) && (icu || !sql.contains("icu"))
        })
        .collect();
    for (_, sql, _) in &possible {
        execute(&url, sql).await;
    }
    let (file, mut expected) = file_of(possible.iter().map(|(_, _, case)| case));
    // A partitioned table with a foreign part can't have a unique index either.
    if let Some((place, _)) = expected
        .iter()
        .find(|(_, message)| message.contains("split_far"))
    {
        let (head, _) = place.split_once(" resource").unwrap();
        let line: usize = head
            .trim_end_matches(':')
            .rsplit(':')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        let index = place.split(['[', ']']).nth(1).unwrap();
        let key = format!("larder.toml:{}: resource[{index}].key: ", line + 1);
        expected.push((key, "is not unique"));
    }
    assert_told(&mistakes(&url, &file).await, &expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn row_security_is_refused_unless_accepted() {
    let url = TestCluster::database().await.url;
    let role = TestRole::create(&url).await;
    execute(
        &url,
        &format!(
            "create table guarded (id bigint primary key, owner text);
             insert into guarded values (1, 'a'), (2, 'b');
             create table open (id bigint primary key, guarded_id bigint references guarded);
             alter table guarded owner to {role}; alter table open owner to {role};
             alter table guarded enable row level security;
             alter table guarded force row level security;
             create policy only_a on guarded using (owner = 'a');
             grant create on database {database} to {role}",
            role = role.name,
            database = url.rsplit_once('/').unwrap().1,
        ),
    )
    .await;
    let (file, expected) = file_of(GUARDED);
    assert_told(&mistakes(&role.url, &file).await, &expected);
    let accepted = "[[resource]]\nname = 'guarded'\ntable = 'guarded'\nrow_security = 'as-larder'";
    let larder = TestService::start_on(&role.url, accepted, &[]).await;
    assert_eq!(larder.get("/guarded/1").await.status, StatusCode::OK);
    assert_eq!(larder.get("/guarded/2").await.status, StatusCode::NOT_FOUND);
    execute(&url, "alter policy only_a on guarded using (owner = 'b')").await;
    eventually("what the policy hides now", async || {
        (larder.get("/guarded/1").await.status == StatusCode::NOT_FOUND).then_some(())
    })
    .await;
    assert_eq!(larder.get("/guarded/2").await.status, StatusCode::OK);
    // It concerns roles that are subject to it only.
    assert!(mistakes(&url, &file).await.is_empty());
}

#[tokio::test]
async fn missing_privilege_names_the_resource_and_the_table() {
    let url = TestCluster::database().await.url;
    let role = TestRole::create(&url).await;
    execute(
        &url,
        "create table parent (id bigint primary key);
         create table child (id bigint primary key, parent_id bigint references parent)",
    )
    .await;
    let file = "[[resource]]\nname = 'parents'\ntable = 'parent'\n\
                [[resource.children]]\nname = 'c'\ntable = 'child'";
    assert!(mistakes(&url, file).await.is_empty());
    execute(
        &url,
        &format!(
            "grant usage on schema larder to {role};
             grant select on all tables in schema larder to {role};
             grant insert, update, delete on larder.change, larder.horizon, larder.epoch, larder.node to {role};
             grant select on parent to {role}",
            role = role.name
        ),
    )
    .await;
    let told = mistakes(&role.url, file).await;
    assert_told(
        &told,
        &[(
            "larder.toml:".to_owned(),
            "permission denied for table child",
        )],
    );
    assert!(told[0].to_string().contains("resource[0]"), "{}", told[0]);
    execute(&url, &format!("grant select on child to {}", role.name)).await;
    assert!(mistakes(&role.url, file).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn unique_index_found_foreign_key_and_quoted_names_serve() {
    let sql = r#"
        create schema "Shop";
        create table "Shop"."Order.s" ("Id" int primary key, "no" uuid not null, "say ""hi""" text);
        create unique index on "Shop"."Order.s" ("no");
        create table "Shop"."Line" (n int, "order" int references "Shop"."Order.s", "At" text collate "C", primary key ("order", n));
        insert into "Shop"."Order.s" values (1, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'hi');
        insert into "Shop"."Line" values (2, 1, 'b'), (1, 1, 'a');"#;
    let config = r#"
        [[resource]]
        name = 'orders'
        table = 'Shop."Order.s"'
        key = 'no'
          [[resource.children]]
          name = 'lines'
          table = '"Shop".Line'
          fields = { n = 'n', At = 'at "this"' }
        [[resource]]
        name = 'lines'
        table = '"Shop"."Line"'
        key = ['n', 'order']"#;
    let larder = TestService::start(sql, config).await;
    let order = larder
        .get("/orders/a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")
        .await;
    assert_eq!(
        order.body,
        r#"{"Id":1,"no":"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11","say \"hi\"":"hi","lines":[{"n":1,"at \"this\"":"a"},{"n":2,"at \"this\"":"b"}]}"#
    );
    // The key's parts come in the order of the configuration, not of the index.
    let line = larder.get("/lines/2,1").await;
    assert_eq!(line.body, r#"{"n":2,"order":1,"At":"b"}"#);
}
