//! Roles that may not read the tables: `database.url` with another role than `listen_url`, and a role that loses its
//! privileges while larder runs.

use axum::http::StatusCode;
use tempfile::TempDir;

use crate::freshness::testbed::is_hit;
use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::eventually;
use crate::harness::larder_process::LarderProcess;
use crate::harness::raw_http::fetch;
use crate::harness::service::{TestService, execute};
use crate::harness::swapping_pooler::SwappingPooler;
use crate::readiness::{ready, unready};

const SQL: &str = "create schema hr; \
     create table hr.dept (id int primary key, name text); \
     create table hr.emp (id int primary key, dept_id int references hr.dept, name text, pay int, gone date); \
     create table hr.skill (id int primary key, emp_id int references hr.emp, name text); \
     insert into hr.dept values (1, 'Sales'); \
     insert into hr.emp select i, 1, 'e' || i, 1000, null from generate_series(1, 100) i; \
     insert into hr.skill values (1, 1, 'Rust'); \
     create table note (id int primary key, text text); insert into note values (1, 'first')";

const CONFIG: &str = "
    [[resource]]
    name = 'emps'
    table = 'hr.emp'
    fields = ['id', 'name']
    where = 'gone is null'
    write = []
      [[resource.lookups]]
      name = 'dept'
      column = 'dept_id'
      table = 'hr.dept'
      [[resource.children]]
      name = 'skills'
      table = 'hr.skill'
    [[resource]]
    name = 'notes'
    table = 'note'
    write = []
    ";

const ALL: &str = "grant usage on schema hr to ROLE; grant select on all tables in schema hr, public to ROLE; \
     grant usage on schema larder to ROLE; grant select on larder.epoch to ROLE";

/// A database, its owner's URL, and a role that may read what larder keeps in it, and no table.
async fn database() -> (String, TestRole) {
    let direct = TestCluster::database().await.url;
    execute(&direct, SQL).await;
    // Creates schema larder.
    TestService::start_on(&direct, CONFIG, &[])
        .await
        .stop()
        .await;
    let role = TestRole::create(&direct).await;
    let sql = "grant usage on schema larder to ROLE; grant select on larder.epoch to ROLE";
    execute(&direct, &sql.replace("ROLE", &role.name)).await;
    (direct, role)
}

/// The statements that a message proposes.
fn proposed(message: &str) -> &str {
    let (_, sql) = message.rsplit_once("run: ").unwrap();
    sql.trim()
}

/// What `/status` says of the first resource.
async fn status(larder: &TestService) -> serde_json::Value {
    larder.admin("/status").await.json()["resources"][0].take()
}

/// Every request was refused, while larder was ready and its log empty.
#[tokio::test(flavor = "multi_thread")]
async fn the_role_of_url_has_to_read_the_tables() {
    let (direct, role) = database().await;
    let settings = [("database.listen_url", direct.as_str())];
    let larder = TestService::begin_in(TempDir::new().unwrap(), &role.url, CONFIG, &settings);
    // Without any request.
    let missing = "grant select (\"dept_id\", \"gone\", \"id\", \"name\") on \"hr\".\"emp\"";
    unready(&larder, missing).await;
    assert_eq!(larder.metric("larder_ready").await, 0.0);
    let status = status(&larder).await;
    assert_eq!(status["ready"], false, "{status}");
    let reason = status["unfit"].as_str().unwrap();
    assert!(reason.contains("42501"), "{reason}");
    let answer = larder.get("/emps/1").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{answer:?}");
    // At most three are named.
    execute(&direct, &ALL.replace("ROLE", &role.name)).await;
    ready(&larder).await;
    assert_eq!(larder.metric("larder_ready").await, 1.0);
    assert_eq!(larder.get("/emps/1").await.status, StatusCode::OK);
    let sql = format!(
        "revoke select on all tables in schema hr, public from {}",
        role.name
    );
    execute(&direct, &sql).await;
    unready(&larder, missing).await;
    execute(&direct, &ALL.replace("ROLE", &role.name)).await;
    ready(&larder).await;
    for path in ["/emps/2", "/emps?limit=3"] {
        assert_eq!(larder.get(path).await.status, StatusCode::OK, "{path}");
    }
}

/// Each is one privilege that is revoked, and what the message proposes. The other resource stays served.
const LOSSES: [(&str, &str); 5] = [
    (
        "revoke select on hr.emp from ROLE",
        "grant select (\"dept_id\", \"gone\", \"id\", \"name\") on \"hr\".\"emp\" to",
    ),
    (
        "revoke select on hr.emp from ROLE; grant select (id, dept_id, name) on hr.emp to ROLE",
        "grant select (\"dept_id\", \"gone\", \"id\", \"name\") on \"hr\".\"emp\" to",
    ),
    (
        "revoke select on hr.dept from ROLE",
        "grant select (\"id\", \"name\") on \"hr\".\"dept\" to",
    ),
    (
        "revoke select on hr.skill from ROLE",
        "grant select (\"emp_id\", \"id\", \"name\") on \"hr\".\"skill\" to",
    ),
    (
        "revoke usage on schema hr from ROLE",
        "grant usage on schema \"hr\" to",
    ),
];

async fn loses_and_gets_back(larder: &TestService, direct: &str, role: &TestRole) {
    for (sql, grant) in LOSSES {
        execute(direct, &sql.replace("ROLE", &role.name)).await;
        let message = eventually(sql, async || {
            let answer = larder.admin("/readyz").await;
            let is_told = answer.body.contains("resource emps") && answer.body.contains(grant);
            // The others are ready.
            (answer.status == StatusCode::OK && is_told).then_some(answer.body)
        })
        .await;
        let refused = larder.get("/emps/1").await;
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE, "{sql}");
        assert_eq!(larder.get("/notes/1").await.status, StatusCode::OK, "{sql}");
        execute(direct, proposed(&message)).await;
        ready(larder).await;
        let served = larder.get("/emps/1").await;
        assert_eq!(served.status, StatusCode::OK, "{sql}: {served:?}");
        execute(direct, &ALL.replace("ROLE", &role.name)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_missing_privilege_is_told_with_its_grant() {
    let (direct, role) = database().await;
    execute(&direct, &ALL.replace("ROLE", &role.name)).await;
    let settings = [("database.listen_url", direct.as_str())];
    let larder = TestService::start_on(&role.url, CONFIG, &settings).await;
    loses_and_gets_back(&larder, &direct, &role).await;
}

/// The pooler is the one that knows the role.
#[tokio::test(flavor = "multi_thread")]
async fn privileges_are_those_of_the_role_behind_a_pooler() {
    let (direct, role) = database().await;
    execute(&direct, &ALL.replace("ROLE", &role.name)).await;
    let pooler = SwappingPooler::start(&role.url).await;
    let settings = [
        ("database.listen_url", direct.as_str()),
        ("database.pooler", "true"),
    ];
    let larder = TestService::start_on(&pooler.url, CONFIG, &settings).await;
    loses_and_gets_back(&larder, &direct, &role).await;
}

/// No definition shows that a role is a member of another one no more. A request does.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_loses_a_membership_is_noticed() {
    let (direct, role) = database().await;
    let group = TestRole::create(&direct).await;
    execute(&direct, &ALL.replace("ROLE", &group.name)).await;
    let membership = format!("{} to {}", group.name, role.name);
    execute(&direct, &format!("grant {membership}")).await;
    let settings = [("database.listen_url", direct.as_str())];
    let larder = TestService::start_on(&role.url, CONFIG, &settings).await;
    eventually("a hit", async || {
        is_hit(&larder.get("/notes/1").await).then_some(())
    })
    .await;
    let revoke = format!("revoke {} from {}", group.name, role.name);
    // Connections that are open lose it, too.
    execute(&direct, &revoke).await;
    // The last one is in memory.
    for path in ["/emps/1", "/notes?limit=1", "/notes/1"] {
        let refused = larder.get(path).await;
        assert_eq!(
            refused.status,
            StatusCode::SERVICE_UNAVAILABLE,
            "{path}: {refused:?}"
        );
    }
    unready(&larder, "run: grant usage on schema \"hr\"").await;
    execute(&direct, &format!("grant {membership}")).await;
    ready(&larder).await;
    for path in ["/emps/1", "/notes/1"] {
        assert_eq!(larder.get(path).await.status, StatusCode::OK, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_privilege_is_logged_once() {
    let (direct, role) = database().await;
    execute(&direct, &ALL.replace("ROLE", &role.name)).await;
    let directory = TempDir::new().unwrap();
    let toml = format!("[database]\nlisten_url = '{direct}'\n{CONFIG}");
    std::fs::write(directory.path().join("larder.toml"), toml).unwrap();
    let larder = LarderProcess::start(directory.path(), Some(&role.url), &[]).await;
    larder.ready().await;
    let log = directory.path().join("larder.log");
    let count = |text: &str| std::fs::read_to_string(&log).unwrap().matches(text).count();
    execute(
        &direct,
        &format!("revoke select on hr.emp from {}", role.name),
    )
    .await;
    eventually("the reason is logged", async || {
        (count("documents of emps can't be read: ") == 1).then_some(())
    })
    .await;
    for id in 1..=20 {
        let answer = fetch(larder.listen, "GET", &format!("/emps/{id}")).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    }
    execute(&direct, &ALL.replace("ROLE", &role.name)).await;
    eventually("its end is logged", async || {
        (count("documents of emps can be read again") == 1).then_some(())
    })
    .await;
    assert_eq!(count("documents of emps can't be read: "), 1);
}
