//! `larder check`: what it finds, what its SQL mends, and that it changes nothing.

mod faults;
mod indexes;

use std::path::Path;

use serde_json::Value;
use sqlx::{Connection, PgConnection};

use crate::command::{configured, value};
use crate::harness::cluster::{TestCluster, TestRole, start_postgres};
use crate::harness::eventually;
use crate::harness::larder_process::{LarderProcess, run, stderr, stdout};
use crate::harness::programs::run_program;
use crate::harness::reachable_directory;
use crate::harness::service::execute;
use crate::harness::swapping_pooler::SwappingPooler;

const SCHEMA_OF_REPORTS: &str = include_str!("../docs/check.schema.json");

const SCHEMA: &str = "
    create table shop (id int primary key);
    create table parent (id int primary key, shop_id int not null references shop, gone timestamptz);
    create index on parent (shop_id);
    create table child (id int primary key, parent_id int not null references parent, note text);
    insert into shop values (1);
    insert into parent values (1, 1);
    insert into child select i, 1, 'x' from generate_series(1, 100) i;";

const CONFIG: &str = "
    install = 'manual'
    [[resource]]
    name = 'parents'
    table = 'parent'
    where = 'gone is null'
      [[resource.children]]
      name = 'children'
      table = 'child'
    ";

/// The exit code and the report of `larder check --format json`.
async fn check(directory: &Path, url: &str, args: &[&str]) -> (Option<i32>, Value) {
    let args = [&["check", "--format", "json"], args].concat();
    let output = run(directory, Some(url), &args).await;
    let report = serde_json::from_slice(&output.stdout);
    let report = report.unwrap_or_else(|_| panic!("{}", stderr(&output)));
    let schema = serde_json::from_str(SCHEMA_OF_REPORTS).unwrap();
    let schema = jsonschema::draft202012::new(&schema).unwrap();
    assert!(schema.is_valid(&report), "{report}");
    (output.status.code(), report)
}

/// The rules and objects of the findings.
fn found(report: &Value) -> Vec<(String, String)> {
    let findings = report["findings"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    findings
        .map(|finding| (text(&finding["id"]), text(&finding["object"])))
        .collect()
}

/// Runs what the report proposes.
async fn mend(url: &str, report: &Value) {
    for finding in report["findings"].as_array().unwrap() {
        for remedy in finding["remedies"].as_array().unwrap() {
            execute(url, remedy["sql"].as_str().unwrap()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_found_is_mended_by_its_sql() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let role = TestRole::create(&url).await;
    execute(&url, "revoke usage on schema public from public").await;
    let directory = configured(CONFIG);
    let (code, report) = check(directory.path(), &role.url, &[]).await;
    assert_eq!(code, Some(1), "{report}");
    let expected = [
        ("rights", "public.child"),
        ("rights", "public.parent"),
        ("rights", "schema public"),
        ("triggers", "public.child"),
        ("triggers", "public.parent"),
        ("triggers", "schema larder"),
    ];
    let of = |report: &Value| {
        let mut found = found(report);
        found.dedup();
        found
    };
    for (rule, object) in expected {
        let finding = (rule.to_owned(), object.to_owned());
        assert!(of(&report).contains(&finding), "{finding:?}: {report}");
    }
    // Each table has the line of its own.
    for (object, line) in [("public.parent", 5), ("public.child", 9)] {
        let findings = report["findings"].as_array().unwrap();
        let finding = findings
            .iter()
            .find(|finding| finding["object"] == object)
            .unwrap();
        assert_eq!(finding["line"], line, "{finding}");
    }
    mend(&url, &report).await;
    // Only now the role may plan the statements.
    let (_, report) = check(directory.path(), &role.url, &[]).await;
    mend(&url, &report).await;
    let rules: Vec<String> = found(&report).into_iter().map(|(rule, _)| rule).collect();
    assert!(rules.contains(&"missing-index".to_owned()), "{report}");
    let (code, report) = check(directory.path(), &role.url, &["--fail-on", "info"]).await;
    assert_eq!((code, found(&report)), (Some(0), Vec::new()), "{report}");
    assert_eq!(report["complete"], true, "{report}");

    execute(
        &url,
        "alter table parent disable trigger user; revoke select on child from public;
         drop index child_parent_id_idx",
    )
    .await;
    let (_, report) = check(directory.path(), &role.url, &[]).await;
    let broken = [
        ("triggers", "public.parent"),
        ("missing-index", "public.child"),
    ];
    let broken = broken.map(|(rule, object)| (rule.to_owned(), object.to_owned()));
    assert_eq!(of(&report), broken, "{report}");
    let ignored = [
        "--ignore",
        "triggers",
        "--ignore",
        "missing-index:public.child",
    ];
    let (code, report) = check(directory.path(), &role.url, &ignored).await;
    assert_eq!((code, found(&report)), (Some(0), Vec::new()), "{report}");
    let (code, _) = check(directory.path(), &role.url, &["--fail-on", "never"]).await;
    assert_eq!(code, Some(0));
}

/// Only the role of `listen_url` was checked.
#[tokio::test(flavor = "multi_thread")]
async fn the_role_of_url_is_checked_as_well() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let role = TestRole::create(&url).await;
    let config = format!("[database]\nlisten_url = '{url}'\n{CONFIG}");
    let directory = configured(&config.replace("install = 'manual'", ""));
    run(directory.path(), Some(&url), &["install"]).await;
    let rights = async || {
        let (_, report) = check(directory.path(), &role.url, &[]).await;
        let findings = report["findings"].as_array().unwrap().clone();
        let rights = findings
            .into_iter()
            .filter(|finding| finding["id"] == "rights");
        rights.collect::<Vec<Value>>()
    };
    let found = rights().await;
    for object in ["public.parent", "public.child", "schema larder"] {
        let finding = found.iter().find(|finding| finding["object"] == object);
        let reason = finding.unwrap()["reason"].as_str().unwrap();
        assert!(
            reason.contains("over database.url") && reason.contains(&role.name),
            "{reason}"
        );
    }
    mend(&url, &serde_json::json!({ "findings": found })).await;
    assert_eq!(rights().await, Vec::<Value>::new());
    let columns = format!(
        "revoke select on parent from {0}; grant select (id, shop_id) on parent to {0}",
        role.name
    );
    execute(&url, &columns).await;
    let found = rights().await;
    let sql = found[0]["remedies"][0]["sql"].as_str().unwrap();
    assert!(
        sql.starts_with("grant select (\"gone\", \"id\", \"shop_id\") on"),
        "{found:?}"
    );
    mend(&url, &serde_json::json!({ "findings": found })).await;
    assert_eq!(rights().await, Vec::<Value>::new());
    // That of `listen_url` has all of them.
    let (_, report) = check(directory.path(), &url, &[]).await;
    assert!(!report.to_string().contains("\"rights\""), "{report}");
}

/// What `pg_dump` writes, without the keys that it draws for psql.
async fn dump(url: &str) -> Vec<String> {
    let dumped = run_program(url, "pg_dump", &["--dbname", url]).await;
    let dumped = String::from_utf8(dumped).unwrap();
    let lines = dumped.lines().filter(|line| !line.contains("restrict "));
    lines.map(str::to_owned).collect()
}

/// Several rules see the same indexes; each statement runs, and nothing is left to be found.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_is_dropped_by_one_finding() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    execute(
        &url,
        "create index equal on parent (shop_id); create index longer on parent (shop_id, gone);
         create index broken on parent (shop_id);
         update pg_index set indisvalid = false where indexrelid = 'broken'::regclass;
         create index on child (parent_id); create index same_key on child (id)",
    )
    .await;
    let config = CONFIG.replace("where =", "filters = ['shop_id']\nwhere =");
    let directory = configured(&config);
    let (_, report) = check(directory.path(), &url, &[]).await;
    let expected = ["column-order public.parent", "prefix-index public.same_key"];
    let found_here: Vec<String> = found(&report)
        .into_iter()
        .filter(|(rule, _)| rule != "triggers")
        .map(|(rule, object)| format!("{rule} {object}"))
        .collect();
    assert_eq!(found_here, expected, "{report}");
    mend(&url, &report).await;
    let (_, report) = check(directory.path(), &url, &[]).await;
    assert_eq!(found(&report), [], "{report}");
}

/// Nor does it wait for those that vacuum, analyze or create indexes.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_writes_nothing_and_locks_nobody_out() {
    let base = reachable_directory();
    let postgres = start_postgres(base.path(), &[("autovacuum", "off")]).await;
    let url = postgres.url();
    execute(url, SCHEMA).await;
    let directory = configured(CONFIG);
    let mut holder = PgConnection::connect(url).await.unwrap();
    let lock = "begin; lock table parent, child, shop in share update exclusive mode";
    sqlx::raw_sql(lock).execute(&mut holder).await.unwrap();
    let next = "select pg_snapshot_xmax(pg_current_snapshot())::text";
    let before: String = value(url, next).await;
    let dumped = dump(url).await;
    std::fs::write(
        directory.path().join("queries.sql"),
        "select note from child where note = $1",
    )
    .unwrap();
    let all = ["--queries", "queries.sql", "--table", "shop"];
    let (_, report) = check(directory.path(), url, &all).await;
    assert_eq!(report["complete"], true, "{report}");
    assert_eq!(value::<String>(url, next).await, before);
    assert_eq!(dump(url).await, dumped);
    drop(holder);
    postgres.stop().await;
}

/// Conditions on columns of the same name can be told apart where a statement has both tables, and a locked table ends only
/// what is checked of it.
#[tokio::test(flavor = "multi_thread")]
async fn conditions_and_locks_leave_the_rest_checked() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    execute(
        &url,
        "alter table child add gone timestamptz; create index on child (parent_id) where gone is null;
         create table other (parent_id int references parent); create index on other (parent_id)",
    )
    .await;
    let config = format!("{CONFIG}\nwhere = 'gone is null -- or not'");
    let directory = configured(&config);
    let ignored = ["--ignore", "triggers", "--ignore", "foreign-key"];
    let (code, report) = check(directory.path(), &url, &ignored).await;
    assert_eq!((code, found(&report)), (Some(0), Vec::new()), "{report}");

    let mut holder = PgConnection::connect(&url).await.unwrap();
    let lock = "begin; lock table child, other in access exclusive mode";
    sqlx::raw_sql(lock).execute(&mut holder).await.unwrap();
    execute(&url, "create index equal on parent (shop_id)").await;
    let (code, report) = check(directory.path(), &url, &ignored).await;
    let duplicate = (
        "duplicate-index".to_owned(),
        "public.parent_shop_id_idx".to_owned(),
    );
    assert_eq!(
        (code, found(&report)),
        (Some(1), vec![duplicate]),
        "{report}"
    );
    let unchecked: Vec<&str> = report["unchecked"]
        .as_array()
        .unwrap()
        .iter()
        .map(|unchecked| unchecked["name"].as_str().unwrap())
        .collect();
    for name in [
        "documents of parents",
        "indexes of public.child",
        "indexes of public.other",
    ] {
        assert!(unchecked.contains(&name), "{unchecked:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_is_named() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let pooler = SwappingPooler::start(&url).await;
    pooler.set_swapping(true);
    let directory = configured(CONFIG);
    let (code, report) = check(directory.path(), &pooler.url, &[]).await;
    assert_eq!(code, Some(1));
    assert_eq!(report["findings"][0]["id"], "pooler", "{report}");
    assert_eq!(report["complete"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_is_found_at_its_line() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    for (from, to) in [
        ("table = 'parent'", "table = 'parents'"),
        ("gone is null", "gone is nil"),
    ] {
        let directory = configured(&CONFIG.replace(from, to));
        let (code, report) = check(directory.path(), &url, &[]).await;
        assert_eq!(code, Some(78), "{report}");
        let unfit = &report["findings"][0];
        assert_eq!(unfit["id"], "unfit", "{report}");
        assert!(unfit["line"].as_u64().unwrap() >= 5, "{report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn formats_rules_and_usage() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let directory = configured(CONFIG);
    for (format, has) in [
        ("human", "error triggers schema larder"),
        ("sarif", "\"version\": \"2.1.0\""),
        (
            "github",
            "::error file=larder.toml,line=9,title=triggers::public.child",
        ),
        ("sql", "create index concurrently"),
    ] {
        let args = ["check", "--format", format];
        let output = run(directory.path(), Some(&url), &args).await;
        assert!(stdout(&output).contains(has), "{}", stdout(&output));
    }
    let list = run(directory.path(), None, &["check", "--list"]).await;
    assert_eq!(list.status.code(), Some(0));
    assert_eq!(stdout(&list).lines().count(), 15);
    for wrong in [
        ["check", "--ignore", "nonsense"],
        ["check", "--format", "xml"],
    ] {
        let output = run(directory.path(), None, &wrong).await;
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    }
    let directory = configured("[check]\nignore = ['unused-indexes']");
    let output = run(directory.path(), None, &["check"]).await;
    assert_eq!(output.status.code(), Some(78), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("2: check.ignore"),
        "{}",
        stderr(&output)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn serving_warns_of_what_can_be_mended_meanwhile() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let directory = configured(&CONFIG.replace("'manual'", "'auto'"));
    let larder = LarderProcess::start(directory.path(), Some(&url), &[]).await;
    eventually("a warning", async || {
        let log = std::fs::read_to_string(directory.path().join("larder.log")).unwrap();
        let warns = log.contains("missing-index public.child: ")
            && log.contains("run: create index concurrently");
        warns.then_some(())
    })
    .await;
    assert!(larder.terminate().await.success());
}
