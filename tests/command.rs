//! The built binary as a user runs it: exit codes, messages, installing, serving.

mod banner;
mod hostile_names;
mod installing;
mod logs;
mod private_postgres;
mod refusals;
mod serving;
mod watching;

use std::fs::{self, File};
use std::process::Stdio;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;

use crate::harness::cluster::TestCluster;
use crate::harness::larder_process::{command, run, stderr, stdout};
use crate::harness::service::execute;

/// A directory with this `larder.toml`.
pub(crate) fn configured(toml: &str) -> TempDir {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("larder.toml"), toml).unwrap();
    directory
}

/// The value that `sql` returns.
pub(crate) async fn value<T>(url: &str, sql: &str) -> T
where
    T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
{
    let mut connection = PgConnection::connect(url).await.unwrap();
    let value = sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
        .fetch_one(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    value
}

#[tokio::test]
async fn wrong_usage_exits_2_and_help_and_version_0() {
    let directory = TempDir::new().unwrap();
    for args in [
        &["dance"][..],
        &["--listen", "nowhere"],
        &["serve", "--tiers", "tape"],
        &["config"],
        &["seed", "--depts", "many"],
        &["--log-level", "loud"],
    ] {
        let output = run(directory.path(), None, args).await;
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(
            stderr(&output).starts_with("error: "),
            "{}",
            stderr(&output)
        );
        assert_eq!(stdout(&output), "");
    }
    let version = run(directory.path(), None, &["--version"]).await;
    assert_eq!(version.status.code(), Some(0));
    assert_eq!(
        stdout(&version),
        format!("larder {}\n", env!("CARGO_PKG_VERSION"))
    );
    let help = run(directory.path(), None, &["--help"]).await;
    assert_eq!(help.status.code(), Some(0));
    assert!(stdout(&help).contains("78"));
    // None of this has left anything behind.
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// Help was lost without a word.
#[tokio::test]
async fn output_that_a_full_disk_loses_exits_1() {
    let directory = TempDir::new().unwrap();
    for args in [
        &["--help"][..],
        &["--version"],
        &["status", "--help"],
        &["config", "--example"],
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut larder = command(directory.path(), None, args);
        let larder = larder.stdout(full).stderr(Stdio::piped());
        let output = larder.spawn().unwrap().wait_with_output().await.unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let told = stderr(&output);
        assert!(told.contains("writing the output: "), "{args:?}: {told}");
    }
}

#[tokio::test]
async fn mistakes_in_the_file_exit_78_with_file_line_and_key() {
    let directory =
        configured("workers = 0\nlisen = '127.0.0.1:1'\n[memory]\nmax_bytes = 'much'\n");
    let url = "postgres://app:s3cret@127.0.0.1:1/app";
    for args in [
        &["serve"][..],
        &["install"],
        &["uninstall"],
        &["seed"],
        &["config", "--dump"],
        &["config", "--check"],
    ] {
        let output = run(directory.path(), Some(url), args).await;
        assert_eq!(output.status.code(), Some(78), "{args:?}");
        let told = stderr(&output);
        for part in [
            "larder.toml:1: workers: ",
            "larder.toml:2: lisen: ",
            "listen",
            "larder.toml:4: memory.max_bytes: ",
        ] {
            assert!(told.contains(part), "{part} in {told}");
        }
        assert_eq!(stdout(&output), "");
    }
    for (args, place) in [
        (&["--config", "none.toml"][..], "none.toml: --config: "),
        (&["--config", "."], ".: --config: "),
    ] {
        let output = run(directory.path(), None, args).await;
        assert_eq!(output.status.code(), Some(78), "{args:?}");
        assert!(stderr(&output).contains(place), "{}", stderr(&output));
    }
    let directory = configured("workers = 1");
    let output = run(directory.path(), Some("mysql://app:s3cret@db/app"), &[]).await;
    assert_eq!(output.status.code(), Some(78));
    let told = stderr(&output);
    assert!(
        told.contains("DATABASE_URL") && !told.contains("s3cret"),
        "{told}"
    );
}

#[tokio::test]
async fn mistakes_against_the_catalogue_exit_78_and_change_nothing() {
    let url = TestCluster::database().await.url;
    execute(&url, "create table item (id bigint primary key)").await;
    let directory = configured(
        "[[resource]]\nname = 'items'\ntable = 'item'\n\n[[resource]]\nname = 'more'\ntable = 'itm'\n",
    );
    let ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    for command in [&["serve"][..], &["install"], &["install", "--print"]] {
        let args = [command, &ports].concat();
        let output = run(directory.path(), Some(&url), &args).await;
        assert_eq!(output.status.code(), Some(78), "{command:?}");
        let told = stderr(&output);
        let expected =
            "larder.toml:7: resource[1].table: there is no table itm; did you mean item?";
        assert!(told.contains(expected), "{told}");
        assert_eq!(stdout(&output), "");
        assert!(value::<bool>(&url, "select to_regnamespace('larder') is null").await);
    }
}

#[tokio::test]
async fn example_is_a_configuration_and_the_dump_masks_passwords() {
    let directory = TempDir::new().unwrap();
    let example = run(directory.path(), None, &["config", "--example"]).await;
    assert_eq!(example.status.code(), Some(0));
    fs::write(directory.path().join("larder.toml"), &example.stdout).unwrap();

    let url = "postgres://app:s3cret@db.example/app?sslmode=require";
    let args = ["config", "--dump", "--listen", "127.0.0.1:9"];
    let dump = run(directory.path(), Some(url), &args).await;
    assert_eq!(dump.status.code(), Some(0), "{}", stderr(&dump));
    let text = stdout(&dump);
    assert!(text.contains("listen = \"127.0.0.1:9\"") && text.contains("db.example"));
    assert!(
        !text.contains("s3cret") && !stderr(&dump).contains("s3cret"),
        "{text}"
    );

    // The dump, read as a configuration, gives the same dump.
    fs::write(directory.path().join("larder.toml"), &text).unwrap();
    let again = run(directory.path(), None, &["config", "--dump"]).await;
    assert_eq!(stdout(&again), text, "{}", stderr(&again));
}

#[tokio::test]
async fn a_url_that_cannot_be_obeyed_is_refused_without_its_values() {
    let directory = TempDir::new().unwrap();
    for (parameter, name) in [
        ("channel_binding=require", "channel_binding"),
        ("ssl_mode=s3cret", "ssl_mode"),
        ("sslpassword=s3cret", "sslpassword"),
    ] {
        let url = format!("postgres://app@127.0.0.1:1/app?{parameter}");
        let refused = run(directory.path(), Some(&url), &[]).await;
        assert_eq!(refused.status.code(), Some(78), "{}", stderr(&refused));
        let text = stderr(&refused);
        assert!(text.contains(name) && !text.contains("s3cret"), "{text}");
    }
}
