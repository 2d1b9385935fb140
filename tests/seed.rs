//! `larder seed` adds what is missing and touches nothing else.
use std::process::Stdio;

use larder::commands::seed::{SeedError, Seeded, seed};
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;
use tokio::process::Command;

use crate::command::value;
use crate::harness::cluster::TestCluster;
use crate::harness::larder_process::{run, stderr};

#[tokio::test]
async fn seeding_again_adds_only_missing_rows() {
    let database = TestCluster::database().await;
    let url = &database.url;
    let first = seed(url, 3, 10).await.unwrap();
    assert_eq!(first, Seeded { depts: 3, emps: 30 });
    let second = seed(url, 3, 10).await.unwrap();
    assert_eq!(second, Seeded { depts: 0, emps: 0 });

    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(
        "update dept set dname = 'MINE' where deptno = 1; delete from emp where deptno = 2",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    let third = seed(url, 4, 12).await.unwrap();
    assert_eq!(third, Seeded { depts: 1, emps: 28 });
    let mine: String = sqlx::query_scalar("select dname from dept where deptno = 1")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(mine, "MINE");
}

/// The second time nothing is changed.
#[tokio::test]
async fn subscribers_are_due_in_480_slots_and_never_overwritten() {
    let directory = TempDir::new().unwrap();
    for (layout, filled, index) in [
        ("due", None, "(worker_id, timezone, notify_after)"),
        ("slot", Some("fillfactor=45"), "(worker_id, timezone)"),
    ] {
        let database = TestCluster::database().await;
        let seed = async |rows: &str| {
            let args = ["seed", "--subscribers", rows, "--layout", layout];
            run(directory.path(), Some(&database.url), &args).await
        };
        let seeded = seed("100480").await;
        assert!(seeded.status.success(), "{}", stderr(&seeded));
        let url = &database.url;
        let storage = "select reloptions[1] from pg_class where oid = 'subscribers'::regclass";
        assert_eq!(
            value::<Option<String>>(url, storage).await.as_deref(),
            filled
        );
        let indexed = "select pg_get_indexdef(indexrelid) from pg_index \
            where indrelid = 'subscribers'::regclass and not indisprimary";
        assert!(value::<String>(url, indexed).await.ends_with(index));
        let slots = "select array_agg(distinct n order by n) from (select count(*) n from subscribers \
            where notify_after between now() - interval '25 h' and now() and worker_id < 20 and timezone < 24 \
            group by worker_id, timezone) slots";
        assert_eq!(value::<Vec<i64>>(url, slots).await, [209, 210]);
        let again = seed("7").await;
        assert_eq!(again.status.code(), Some(1));
        assert!(stderr(&again).contains("drop table public.subscribers"));
        let ids = "select array[count(*), min(id), max(id)] from subscribers";
        assert_eq!(value::<Vec<i64>>(url, ids).await, [100_480, 1, 100_480]);
    }
}

#[tokio::test]
async fn too_many_emps_are_refused_before_anything_is_done() {
    let error = seed("postgres://127.0.0.1:1/none", 1, 100_001)
        .await
        .unwrap_err();
    assert!(matches!(error, SeedError::TooManyEmps(100_001)));
}

/// What `larder seed` writes to stderr, on a terminal of its own or to a pipe.
async fn drawn(url: &str, on_terminal: bool) -> String {
    let larder = env!("CARGO_BIN_EXE_larder");
    let seed = format!("'{larder}' --log-level off seed --depts 20000");
    let mut command = if on_terminal {
        let mut script = Command::new("script");
        script.args(["-qec", &seed, "/dev/null"]);
        script
    } else {
        let mut shell = Command::new("sh");
        shell.args(["-c", &seed]);
        shell
    };
    let directory = TempDir::new().unwrap();
    let output = command
        .current_dir(directory.path())
        .env("DATABASE_URL", url)
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[tokio::test]
async fn progress_is_shown_on_a_terminal_only() {
    let database = TestCluster::database().await;
    let shown = drawn(&database.url, true).await;
    assert!(shown.contains("/220,000 rows"), "{shown}");
    let database = TestCluster::database().await;
    assert_eq!(drawn(&database.url, false).await, "");
}
