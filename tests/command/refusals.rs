//! What PostgreSQL refuses to larder is told by its cause, with what to do.

use std::path::Path;

use super::{configured, value};
use crate::harness::cluster::{TestCluster, TestRole, start_postgres};
use crate::harness::eventually;
use crate::harness::larder_process::{LarderProcess, run, stderr};
use crate::harness::raw_http::fetch;
use crate::harness::reachable_directory;
use crate::harness::service::execute;

const SCHEMA: &str =
    "create schema \"Shop\"; create table \"Shop\".item (id int primary key, title text)";

const ITEMS: &str = "[[resource]]\nname = 'items'\ntable = 'Shop.item'\n";

/// Runs `larder` with `args`, which ends with `code`, and returns what it says.
async fn refused(directory: &Path, url: &str, args: &[&str], code: i32) -> String {
    let output = run(directory, Some(url), args).await;
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{told}");
    told
}

fn contains(told: &str, parts: &[&str]) {
    for part in parts {
        assert!(told.contains(part), "{part}: {told}");
    }
}

/// All of these were "PostgreSQL cannot be reached".
#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_let_in_is_told_why() {
    let directory = configured(ITEMS);
    let path = directory.path();
    let base = reachable_directory();
    let hba = base.path().join("hba.conf");
    std::fs::write(&hba, "host all larder 127.0.0.1/32 scram-sha-256\n").unwrap();
    let settings = [("hba_file", hba.to_str().unwrap())];
    let postgres = start_postgres(base.path(), &settings).await;
    let url = postgres.url();
    let (_, server) = url.split_once('@').unwrap();
    let (_, password) = url.split_once("larder:").unwrap();
    let (password, _) = password.split_once('@').unwrap();

    for (url, code, remedy) in [
        (
            format!("postgres://larder:wrong@{server}"),
            "28P01",
            "check the user and the password",
        ),
        (
            format!("postgres://larder%3A{password}@{server}"),
            "28000",
            "user \"larder:***\"",
        ),
        (
            format!("postgres://other:wrong@{server}"),
            "28000",
            "pg_hba.conf",
        ),
        (
            format!("{url}_that_is_not"),
            "3D000",
            "create the database, or name another",
        ),
    ] {
        for args in [&["install"][..], &["check"], &["init", "--output", "-"]] {
            let told = refused(path, &url, args, 1).await;
            contains(&told, &["PostgreSQL refuses the connection", code, remedy]);
            assert!(!told.contains("cannot be reached"), "{told}");
            assert!(!told.contains(password), "{told}");
        }
    }
    let serving =
        LarderProcess::start_without_stdout(path, &format!("postgres://larder:wrong@{server}"))
            .await;
    eventually("the reason", async || {
        let answer = fetch(serving.admin, "GET", "/readyz").await;
        answer
            .body
            .contains("PostgreSQL refuses the connection (SQLSTATE 28P01)")
            .then_some(())
    })
    .await;
    assert_eq!(serving.terminate().await.code(), Some(0));
    postgres.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_role_and_a_closed_database_are_told() {
    let url = TestCluster::database().await.url;
    let directory = configured(ITEMS);
    let (_, server) = url.split_once('@').unwrap();
    let unknown = format!("postgres://no_such_role@{server}");
    let told = refused(directory.path(), &unknown, &["install"], 1).await;
    contains(&told, &["28000", "create role … login"]);
    let role = TestRole::create(&url).await;
    let (_, database) = url.rsplit_once('/').unwrap();
    execute(
        &url,
        &format!("revoke connect on database {database} from public"),
    )
    .await;
    let told = refused(directory.path(), &role.url, &["install"], 1).await;
    contains(&told, &["42501", "grant connect on database"]);
}

/// Whoever may create a table chooses its name, and an operator's terminal shows it.
const HOSTILE: &str = "odd\u{1b}[2J\u{202e}\nx";
const HOSTILE_TOML: &str = r#""odd\u001b[2J\u202e\nx""#;
const HOSTILE_SHOWN: &str = r"odd\u{1b}[2J\u{202e}\nx";

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_obeys_no_name_in_readiness() {
    let url = TestCluster::database().await.url;
    let table = format!("{SCHEMA}; create table \"{HOSTILE}\" (id int primary key)");
    execute(&url, &table).await;
    let odd = format!("[[resource]]\nname = 'odd'\ntable = {HOSTILE_TOML}\n");
    let directory = configured(&format!("{ITEMS}{odd}"));
    let before = LarderProcess::start(directory.path(), Some(&url), &[]).await;
    before.ready().await;
    eventually("both are known to fit", async || {
        let served: i64 = value(&url, "select count(*) from larder.served").await;
        (served == 2).then_some(())
    })
    .await;
    assert_eq!(before.terminate().await.code(), Some(0));
    execute(&url, &format!("drop table \"{HOSTILE}\"")).await;
    let serving = LarderProcess::start(directory.path(), Some(&url), &[]).await;
    eventually("that one resource does not fit", async || {
        let answer = fetch(serving.admin, "GET", "/readyz").await;
        let is_told = answer.body.contains("but resource odd: ");
        assert!(
            !is_told || answer.body.contains(HOSTILE_SHOWN),
            "{answer:?}"
        );
        is_told.then_some(())
    })
    .await;
    assert_eq!(serving.terminate().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_obeys_no_name_in_an_error() {
    let url = TestCluster::database().await.url;
    let directory = configured(&format!(
        "[[resource]]\nname = 'odd'\ntable = {HOSTILE_TOML}\n"
    ));
    let absent = refused(directory.path(), &url, &["install"], 78).await;
    contains(&absent, &["larder.toml:3: ", HOSTILE_SHOWN]);
    let unknown = format!("{url}%0Alarder:%1B%5B2J");
    let unknown = refused(directory.path(), &unknown, &["install"], 1).await;
    contains(&unknown, &[r"\nlarder:\u{1b}[2J"]);
    for told in [absent, unknown] {
        assert!(!told.contains(['\u{1b}', '\u{202e}']), "{told}");
        let begun = told.lines().filter(|line| line.starts_with("larder:"));
        assert_eq!(begun.count(), 1, "{told}");
    }
}

/// Each step of an installation by a role that may do nothing names what it needs.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_privilege_names_its_grant() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let role = TestRole::create(&url).await;
    let directory = configured(ITEMS);
    let (path, name) = (directory.path(), &role.name);
    let (_, database) = url.rsplit_once('/').unwrap();

    let create = format!("grant create on database \"{database}\" to \"{name}\"");
    let told = refused(path, &role.url, &["install"], 1).await;
    contains(&told, &["permission denied for database", &create]);
    execute(&url, &create).await;

    let usage = format!("grant usage on schema \"Shop\" to \"{name}\"");
    let select = format!("grant select (\"id\", \"title\") on \"Shop\".\"item\" to \"{name}\"");
    let told = refused(path, &role.url, &["install"], 78).await;
    contains(
        &told,
        &["permission denied for schema Shop", &usage, &select],
    );
    execute(&url, &format!("{usage}; {select}")).await;

    let told = refused(path, &role.url, &["install"], 1).await;
    contains(
        &told,
        &[
            "only the owner of a table may add triggers",
            // Not to be made a member of the owner, which is a superuser here.
            &format!("alter table \"Shop\".\"item\" owner to \"{name}\""),
        ],
    );

    let temporary = format!("revoke temporary on database {database} from public");
    execute(&url, &temporary).await;
    let condition = configured(&format!("{ITEMS}where = 'id > 0'\n"));
    let told = refused(condition.path(), &role.url, &["install"], 78).await;
    contains(&told, &["grant temporary on database"]);
}

/// Schema larder is there, and another role owns it.
#[tokio::test(flavor = "multi_thread")]
async fn serve_names_the_grants_on_schema_larder() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let role = TestRole::create(&url).await;
    let directory = configured(&format!("install = 'manual'\n{ITEMS}"));
    let installed = run(directory.path(), Some(&url), &["install"]).await;
    assert_eq!(installed.status.code(), Some(0), "{}", stderr(&installed));
    let grants = format!(
        "grant usage on schema \"Shop\" to {0}; grant select on \"Shop\".item to {0}",
        role.name
    );
    execute(&url, &grants).await;
    let serving = LarderProcess::start_without_stdout(directory.path(), &role.url).await;
    eventually("the grant", async || {
        let answer = fetch(serving.admin, "GET", "/readyz").await;
        let grant = format!(
            "grant select on all tables in schema larder to \"{}\";",
            role.name
        );
        answer.body.contains(&grant).then_some(())
    })
    .await;
    assert_eq!(serving.terminate().await.code(), Some(0));
}

/// A column that only `where` uses, and a type that it has a constant of. Without the right on the column, `larder check` could
/// not tell which columns the condition has.
#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_only_a_condition_needs_is_named() {
    let url = TestCluster::database().await.url;
    let sql = "create schema ty; create type ty.mood as enum ('sad', 'ok');
        create table p (id int primary key, secret text, m ty.mood)";
    execute(&url, sql).await;
    let role = TestRole::create(&url).await;
    let name = &role.name;
    let config = |condition: &str| {
        let resource =
            "[[resource]]\nname = 'p'\ntable = 'p'\nwrite = []\nfields = ['id', 'm']\nwhere = ";
        configured(&format!("install = 'manual'\n{resource}\"{condition}\""))
    };
    let (_, database) = url.rsplit_once('/').unwrap();
    let grants = format!(
        "revoke temporary on database \"{database}\" from public; grant create on database \"{database}\" to \"{name}\";
         grant select (id, m) on p to \"{name}\""
    );
    execute(&url, &grants).await;
    let hidden = config("secret is not null");
    let constant = config("m <> 'sad'");
    run(hidden.path(), Some(&url), &["install"]).await;
    let usage = format!("grant usage on schema \"ty\" to \"{name}\"");
    let said = async |path: &Path, args: &[&str]| {
        let output = run(path, Some(&role.url), args).await;
        String::from_utf8(output.stdout.clone()).unwrap() + &stderr(&output)
    };
    for args in [
        &["install", "--print"][..],
        &["check"],
        &["check", "--format", "sql"],
    ] {
        let told = said(hidden.path(), args).await;
        contains(&told, &["select (\"id\", \"m\", \"secret\") on"]);
        assert!(!told.contains(&usage), "{args:?}: {told}");
        contains(&said(constant.path(), args).await, &[&usage]);
    }
    execute(
        &url,
        &format!("grant temporary on database \"{database}\" to \"{name}\""),
    )
    .await;
    let told = refused(constant.path(), &role.url, &["install", "--print"], 78).await;
    contains(
        &told,
        &[
            "a constant of a type in a schema",
            &format!("grant usage on schema ty to {name}"),
        ],
    );
}
