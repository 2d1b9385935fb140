//! Names of the database that a terminal would obey, or that look like other ones: what is printed of them.

use std::path::Path;

use super::{configured, value};
use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::larder_process::{LarderProcess, run, stderr, stdout};
use crate::harness::programs::run_program;
use crate::harness::raw_http::fetch;
use crate::harness::service::execute;

const PARENT: &str = "e\u{1b}[31m\nX\u{202e}\u{9b}2J\"'\\$larder$";
const CHILD: &str = "child\u{202e}";
const KEY: &str = "k\u{202e}\n'";
const REFERENCE: &str = "up\u{9b}\\";

/// The triggers on tables, and the objects of larder's schema.
const ADDED: &str = "
    select (select count(*) from pg_trigger where not tgisinternal)
         + (select count(*) from pg_namespace where nspname = 'larder')";

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn schema() -> String {
    let [parent, child, key, reference] = [PARENT, CHILD, KEY, REFERENCE].map(quoted);
    format!(
        "create table {parent} ({key} text primary key, note text);
         create table {child} (n int primary key, {reference} text not null references {parent});
         insert into {parent} values ('a', 'first');
         insert into {child} select i, 'a' from generate_series(1, 100) i"
    )
}

/// The configuration; TOML has the strings of JSON.
fn config() -> String {
    let [parent, child] = [PARENT, CHILD].map(|name| serde_json::to_string(name).unwrap());
    format!(
        "install = 'manual'\n[[resource]]\nname = 'parents'\ntable = {parent}\n\
         [[resource.children]]\nname = 'children'\ntable = {child}\n"
    )
}

/// What the command prints to stdout, which a terminal may show.
async fn printed(directory: &Path, url: &str, args: &[&str]) -> String {
    let output = run(directory, Some(url), args).await;
    let text = stdout(&output);
    assert!(!text.is_empty(), "{args:?}: {}", stderr(&output));
    let is_obeyed = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
    assert!(!text.contains(is_obeyed), "{args:?}: {text:?}");
    text
}

/// Runs SQL that a command prints, with psql.
async fn run_printed(directory: &Path, url: &str, args: &[&str]) {
    let file = directory.join("printed.sql");
    std::fs::write(&file, printed(directory, url, args).await).unwrap();
    let file = file.to_str().unwrap();
    let arguments = [
        "--no-psqlrc",
        "--set=ON_ERROR_STOP=1",
        "--dbname",
        url,
        "--file",
        file,
    ];
    run_program(url, "psql", &arguments).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn printed_sql_can_be_read_and_means_the_same() {
    let url = TestCluster::database().await.url;
    execute(&url, &schema()).await;
    let directory = configured(&config());
    let path = directory.path();
    for format in ["human", "json", "sarif", "github", "sql"] {
        printed(path, &url, &["check", "--format", format]).await;
    }
    let setting = "do $$ begin execute format('alter database %I set standard_conforming_strings to off', \
                   current_database()); end $$";
    for setting in ["select 1", setting] {
        execute(&url, setting).await;
        run_printed(path, &url, &["check", "--format", "sql"]).await;
        let checked = run(path, Some(&url), &["check"]).await;
        assert_eq!(checked.status.code(), Some(0), "{}", stdout(&checked));
        assert!(value::<i64>(&url, ADDED).await > 8);
        run_printed(path, &url, &["uninstall", "--print"]).await;
        assert_eq!(value::<i64>(&url, ADDED).await, 0);
    }
    run_printed(path, &url, &["install", "--print"]).await;
    let serving = LarderProcess::start(path, Some(&url), &[]).await;
    serving.ready().await;
    let shows = async |what: &str| {
        eventually(what, async || {
            let answer = fetch(serving.listen, "GET", "/parents/a").await;
            answer.body.contains(what).then_some(())
        })
        .await;
    };
    shows("\"n\":100").await;
    let (parent, child) = (quoted(PARENT), quoted(CHILD));
    execute(&url, &format!("insert into {child} values (101, 'a')")).await;
    shows("\"n\":101").await;
    execute(&url, &format!("update {parent} set note = 'second'")).await;
    shows("second").await;
    execute(&url, &format!("alter table {parent} rename to other")).await;
    let admin = serving.admin.to_string();
    eventually("the name", async || {
        let args = ["--admin", &admin, "status", "--format", "json"];
        let status = printed(path, &url, &args).await;
        status.contains("\\u202e\\u009b2J").then_some(())
    })
    .await;
    assert_eq!(serving.terminate().await.code(), Some(0));
}
