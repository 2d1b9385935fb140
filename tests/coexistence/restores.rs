//! Dumps that are restored beside a running larder.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::command::value;
use crate::freshness::testbed::is_hit;
use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::programs::{program, run_program};
use crate::harness::service::{TestService, execute};

const SQL: &str = "create table a (id int primary key, name text); create table b (id int primary key, name text); \
    create table part (id int primary key, a int references a); create index on part (a); \
    insert into a select n, 'first' from generate_series(1, 1000) n; insert into b values (1, 'first'); \
    insert into part select n, n from generate_series(1, 1000) n";
const CONFIG: &str = "[[resource]]\nname = 'a'\ntable = 'a'\n[[resource.children]]\nname = 'parts'\ntable = 'part'\n\
    [[resource]]\nname = 'b'\ntable = 'b'\n";

/// What stands unchanged for half a minute is trusted again.
const LATE: Duration = Duration::from_secs(90);

/// As `pg_restore --clean` does it, statement by statement, with pauses between them in which larder may do its worst.
async fn restore_slowly(url: &str, file: &str, options: &[&str]) {
    let script = format!("{file}.sql");
    let restore = ["--file", &script, file];
    run_program(url, "pg_restore", &[options, &restore].concat()).await;
    let pause = "select pg_sleep(0.03);\n";
    let mut slow = String::new();
    for line in std::fs::read_to_string(&script).unwrap().lines() {
        let begins = line.starts_with("-- Name: ");
        slow.push_str(if begins { pause } else { "" });
        slow.push_str(line);
        slow.push('\n');
        let drops = line.starts_with("DROP ") || line.starts_with("ALTER TABLE IF EXISTS");
        slow.push_str(if drops { pause } else { "" });
    }
    std::fs::write(&script, slow).unwrap();
    let run_script = [
        "--quiet",
        "--set",
        "ON_ERROR_STOP=1",
        "--output",
        "/dev/null",
        "--file",
        &script,
        url,
    ];
    run_program(url, "psql", &run_script).await;
}

async fn is_cached(larder: &TestService, path: &str, text: &str) {
    let end = Instant::now() + LATE;
    loop {
        let answer = larder.get(path).await;
        if is_hit(&answer) && answer.body.contains(text) {
            return;
        }
        assert!(Instant::now() < end, "{path} {}", answer.body);
        sleep(Duration::from_millis(50)).await;
    }
}

/// Reads until told to stop: no answer is an error of larder's.
fn read(larder: Arc<TestService>, stopped: watch::Receiver<bool>) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let mut id = 0;
        while !*stopped.borrow() {
            id = id % 1000 + 1;
            for path in [format!("/a/{id}"), "/b/1".to_owned()] {
                let answer = larder.get(&path).await;
                let fine = [
                    StatusCode::OK,
                    StatusCode::NOT_FOUND,
                    StatusCode::SERVICE_UNAVAILABLE,
                ];
                assert!(
                    fine.contains(&answer.status),
                    "{path} {} {}",
                    answer.status,
                    answer.body
                );
            }
            sleep(Duration::from_millis(1)).await;
        }
    })
}

/// Neither fails pg_restore, nor does a document come that is not in the dump.
pub(crate) async fn a_restore_goes_through() {
    for only_public in [false, true] {
        let url = TestCluster::database().await.url;
        execute(&url, SQL).await;
        let larder = Arc::new(TestService::start_on(&url, CONFIG, &[]).await);
        for path in ["/a/1", "/b/1"] {
            is_cached(&larder, path, "first").await;
        }
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("dump");
        let file = file.to_str().unwrap();
        let mut dump = vec!["--format=custom", "--file", file, &url];
        if only_public {
            dump.extend(["--schema", "public"]);
        }
        run_program(&url, "pg_dump", &dump).await;
        execute(
            &url,
            "update a set name = 'second'; update b set name = 'second'",
        )
        .await;
        let (stop, stopped) = watch::channel(false);
        let reader = read(Arc::clone(&larder), stopped);
        restore_slowly(&url, file, &["--clean", "--if-exists"]).await;
        eventually("PostgreSQL answers", async || {
            let answer = larder.get("/a/1").await;
            (answer.status == StatusCode::OK && answer.body.contains("first")).then_some(())
        })
        .await;
        stop.send_replace(true);
        reader.await.unwrap();
        execute(&url, "update b set name = 'third'").await;
        eventually("the change", async || {
            larder
                .get("/b/1")
                .await
                .body
                .contains("third")
                .then_some(())
        })
        .await;
        for (path, name) in [("/a/1", "first"), ("/b/1", "third")] {
            is_cached(&larder, path, name).await;
        }
        execute(&url, "update a set name = 'fourth' where id = 1").await;
        is_cached(&larder, "/a/1", "fourth").await;
    }
}

/// As README says: dumps of a schema or a table name larder's triggers, whose functions are not in them.
pub(crate) async fn dumps_are_put_into_other_databases() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let larder = TestService::start_on(&url, CONFIG, &[]).await;
    is_cached(&larder, "/a/1", "first").await;
    larder.stop().await;
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let [dump, list] = [path("dump"), path("list")];
    let parts: [&[&str]; 3] = [&[], &["--schema", "public"], &["--table", "a"]];
    for part in parts {
        let arguments = ["--format=custom", "--file", &dump, &url];
        run_program(&url, "pg_dump", &[&arguments[..], part].concat()).await;
        let other = TestCluster::database().await.url;
        let mut restore = vec!["--dbname", &other];
        if !part.is_empty() {
            // There is a schema public already.
            let restore = program(&url, "pg_restore").await;
            let filter = format!(
                "{restore:?} -l {dump:?} | grep -v -e ' TRIGGER .* larder_' -e ' SCHEMA - public ' > {list:?}"
            );
            let filtered = Command::new("sh").args(["-c", &filter]).status().await;
            assert!(filtered.unwrap().success());
        }
        if !part.is_empty() {
            restore.extend(["-L", &list]);
        }
        restore.push(&dump);
        run_program(&url, "pg_restore", &restore).await;
        execute(&other, "update a set name = 'second' where id = 1").await;
        let a = CONFIG.split("[[resource.children").next().unwrap();
        let larder = TestService::start_on(&other, a, &[]).await;
        is_cached(&larder, "/a/1", "second").await;
        execute(&other, "update a set name = 'third' where id = 1").await;
        is_cached(&larder, "/a/1", "third").await;
    }
}

/// As README says: the rows of schema larder are of no use elsewhere. They come into tables that a larder follows, and
/// into some that none ever has.
#[tokio::test(flavor = "multi_thread")]
async fn a_dump_of_data_only_is_put_into_other_databases() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    // With rows that outlive a crash, too.
    let answers = [("idempotency_keys", "true")];
    let larder = TestService::start_on(&url, CONFIG, &answers).await;
    let key = [("idempotency-key", "a")];
    let written = larder
        .write(Method::PATCH, "/a/1000", &key, r#"{"name":"written"}"#)
        .await;
    assert_eq!(written.status, StatusCode::OK, "{}", written.body);
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("dump");
    let file = file.to_str().unwrap();
    let dump = ["--data-only", "--exclude-schema", "larder"];
    let to_file = ["--format=custom", "--file", file, &url];
    run_program(&url, "pg_dump", &[&dump[..], &to_file].concat()).await;
    for is_followed in [false, true] {
        let other = TestCluster::database().await.url;
        execute(&other, SQL).await;
        execute(&other, "truncate a, b, part").await;
        let mut follower = None;
        if is_followed {
            let larder = TestService::start_on(&other, CONFIG, &[]).await;
            eventually("it is known that there is none", async || {
                let answer = larder.get("/a/1").await;
                (answer.status == StatusCode::NOT_FOUND && is_hit(&answer)).then_some(())
            })
            .await;
            follower = Some(larder);
        }
        let restore = ["--data-only", "--exit-on-error", "--dbname", &other, file];
        run_program(&url, "pg_restore", &restore).await;
        let larder = match follower {
            Some(larder) => larder,
            None => TestService::start_on(&other, CONFIG, &[]).await,
        };
        for (path, name) in [("/a/1", "first"), ("/a/1000", "written"), ("/b/1", "first")] {
            is_cached(&larder, path, name).await;
        }
        execute(&other, "update a set name = 'second' where id = 1").await;
        is_cached(&larder, "/a/1", "second").await;
    }
}

/// The database is dropped and created under larder's feet, then filled from a dump that has schema larder, too. Part
/// of `coexistence::what_was_replaced_is_trusted_late`.
pub(crate) async fn a_database_that_is_created_anew_is_restored() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let larder = TestService::start_on(&url, CONFIG, &[]).await;
    is_cached(&larder, "/a/1", "first").await;
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("dump");
    let file = file.to_str().unwrap();
    run_program(&url, "pg_dump", &["--format=custom", "--file", file, &url]).await;
    let (_, name) = url.rsplit_once('/').unwrap();
    execute(
        TestCluster::url(),
        &format!("drop database {name} with (force)"),
    )
    .await;
    execute(TestCluster::url(), &format!("create database {name}")).await;
    eventually("larder is there", async || {
        let sql = format!("select count(*) from pg_stat_activity where datname = '{name}' and query like '%larder%'");
        (value::<i64>(TestCluster::url(), &sql).await > 0).then_some(())
    })
    .await;
    restore_slowly(&url, file, &[]).await;
    execute(&url, "update a set name = 'second' where id = 1").await;
    is_cached(&larder, "/a/1", "second").await;
}

/// As README says: what larder has added since a dump stands against dropping what the dump drops. Part of
/// `coexistence::what_was_replaced_is_trusted_late`.
pub(crate) async fn an_older_dump_is_restored_once_schema_larder_is_dropped() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let a = CONFIG.split("[[resource]]\nname = 'b'").next().unwrap();
    let state = TestService::start_on(&url, a, &[]).await.stop().await;
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("dump");
    let file = file.to_str().unwrap();
    run_program(&url, "pg_dump", &["--format=custom", "--file", file, &url]).await;
    let larder = TestService::start_in(state, &url, CONFIG, &[]).await;
    is_cached(&larder, "/b/1", "first").await;
    execute(&url, "drop schema larder cascade").await;
    let restore = [
        "--clean",
        "--if-exists",
        "--exit-on-error",
        "--dbname",
        &url,
        file,
    ];
    run_program(&url, "pg_restore", &restore).await;
    execute(&url, "update b set name = 'second'").await;
    is_cached(&larder, "/b/1", "second").await;
}

/// While larder waits for the end of a restore, it may for a moment not read another table, as where grants come last.
/// Nothing of that table changes, so it looks as before once it may.
#[tokio::test(flavor = "multi_thread")]
async fn what_may_not_be_read_for_a_while_is_trusted_again() {
    let database = TestCluster::database().await.url;
    let (server, name) = database.rsplit_once('/').unwrap();
    let (_, address) = server.rsplit_once('@').unwrap();
    let sql = format!(
        "create table a (id int primary key); insert into a values (1); create table b (like a including all); \
         create role reads_{name}; alter table a owner to reads_{name}; \
         create role serves_{name} login password 'secret' in role reads_{name}; \
         alter table b owner to serves_{name}; grant create on database {name} to serves_{name}; \
         grant create on schema public to serves_{name}"
    );
    execute(&database, &sql).await;
    let url = format!("postgres://serves_{name}:secret@{address}/{name}");
    let config = "[[resource]]\nname = 'a'\ntable = 'a'\n[[resource]]\nname = 'b'\ntable = 'b'\n";
    let larder = TestService::start_on(&url, config, &[]).await;
    let is_hit_of_a = async || is_hit(&larder.get("/a/1").await).then_some(());
    eventually("a hit", is_hit_of_a).await;
    let replace = "begin; alter table b rename to old; create table b (like old including all); drop table old; commit";
    execute(&url, replace).await;
    let held = async || {
        let status = larder.admin("/status").await.body;
        status.contains("a restore").then_some(())
    };
    eventually("larder waits", held).await;
    let revoke = format!("revoke reads_{name} from serves_{name}");
    execute(&database, &revoke).await;
    let refused = async || {
        let status = larder.get("/a/1").await.status;
        (status != StatusCode::OK).then_some(())
    };
    eventually("a refusal", refused).await;
    let distrusted = async || {
        let status = larder.admin("/status").await.json();
        (status["resources"][0]["ready"] == false).then_some(())
    };
    eventually("larder knows", distrusted).await;
    let grant = format!("grant reads_{name} to serves_{name}");
    execute(&database, &grant).await;
    eventually("a hit again", is_hit_of_a).await;
}
