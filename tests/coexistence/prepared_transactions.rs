//! A transaction that was prepared before a crash: its rows come, what it logged does not.

use std::fs;
use std::os::unix::fs::MetadataExt;

use larder::source::embedded::Embedded;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use sqlx::{Connection, PgConnection};
use tokio::process::Command;

use crate::command::value;
use crate::freshness::testbed::is_hit;
use crate::harness::cluster::start_postgres;
use crate::harness::service::{TestService, execute};
use crate::harness::{eventually, reachable_directory};

const CONFIG: &str = "[disk]\nlinger = '1ms'\n\
    [[resource]]\nname = 'items'\ntable = 'item'\n[[resource]]\nname = 'disk'\ntable = 'item'\ntiers = ['disk']";

async fn is_first(larder: &TestService) {
    for path in ["/items/1", "/disk/1"] {
        eventually("a hit", async || {
            let answer = larder.get(path).await;
            (is_hit(&answer) && answer.body.contains("first")).then_some(())
        })
        .await;
    }
}

async fn is_second(larder: &TestService) {
    for path in ["/items/1", "/disk/1"] {
        eventually("the change", async || {
            larder.get(path).await.body.contains("second").then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_prepared_before_a_crash_is_seen() {
    let base = reachable_directory();
    let settings = [("max_prepared_transactions", "4")];
    let server = start_postgres(base.path(), &settings).await;
    pass_four_billion_transactions(server).await;
    let server = start_postgres(base.path(), &settings).await;
    let url = server.url();
    let sql = "create table item (id int primary key, name text); insert into item values (1, 'first'), (2, 'first')";
    execute(url, sql).await;
    let larder = TestService::start_on(url, CONFIG, &[]).await;
    is_first(&larder).await;
    for name in ["seen running", "seen after a start"] {
        let prepare = format!(
            "begin; update item set name = 'second' where id = 1; prepare transaction '{name}'"
        );
        execute(url, &prepare).await;
        execute(url, &format!("rollback prepared '{name}'")).await;
        execute(url, &prepare).await;
        if name == "seen running" {
            crash(url).await;
            is_first(&larder).await;
            execute(url, &format!("commit prepared '{name}'")).await;
            is_second(&larder).await;
            execute(url, "update item set name = 'first'").await;
            is_first(&larder).await;
        } else {
            break;
        }
    }
    crash(url).await;
    // The new epoch has begun before larder stops.
    is_first(&larder).await;
    let state = larder.stop().await;
    execute(url, "commit prepared 'seen after a start'").await;
    let larder = TestService::start_in(state, url, CONFIG, &[]).await;
    is_second(&larder).await;
    drop(larder);
    server.stop().await;
}

/// Stops the server. Its next transaction's number has more than 32 bits, of which `pg_prepared_xacts` has the lower
/// ones.
async fn pass_four_billion_transactions(server: Embedded) {
    let programs = "select setting from pg_config where name = 'BINDIR'";
    let programs: String = value(server.url(), programs).await;
    let data = server.data_directory().to_owned();
    server.stop().await;
    let owner = fs::metadata(&data).unwrap();
    let mut command = Command::new(format!("{programs}/pg_resetwal"));
    command.args(["-e", "1"]).arg(&data);
    if Uid::effective().is_root() {
        command.uid(owner.uid()).gid(owner.gid());
    }
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// PostgreSQL starts again when one of its processes is killed, and empties what is unlogged.
async fn crash(url: &str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let pid: i32 = sqlx::query_scalar("select pg_backend_pid()")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    eventually("the server is back", async || {
        let mut connection = PgConnection::connect(url).await.ok()?;
        let up = sqlx::query("select").execute(&mut connection).await;
        up.is_ok().then_some(())
    })
    .await;
}
