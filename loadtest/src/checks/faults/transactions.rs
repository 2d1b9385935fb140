//! Transactions that are long, late or large.

use std::time::Duration;

use anyhow::bail;
use larder::clock::Boottime;
use nix::sys::signal::Signal;

use super::foreign::other_database;
use crate::harness::session::SqlSession;
use crate::harness::testbed::Testbed;
use crate::workload::history::TransactionEnd;
use crate::workload::{PLOTS, TABLES, random};

/// Transactions that are prepared at the same time, one in each plot; the last is rolled back.
const PREPARED: usize = PLOTS;
/// The retention of larder's log while a transaction of another database is open.
const RETENTION: [&str; 2] = ["LARDER_FEED__RETENTION", "1s"];
/// For all rows of the log to be pruned.
const PRUNE_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Commits a transaction that began before others that are committed already.
pub(super) async fn hold_open(testbed: &mut Testbed) -> anyhow::Result<()> {
    let number = testbed.rng.usize(..PLOTS);
    let mut plot = testbed.plot(number).await;
    let change = random(&plot, testbed.record.revision(), &mut testbed.rng);
    testbed.session.begin(&plot, &change).await?;
    testbed.hold(2.0).await;
    testbed
        .session
        .commit("commit", &mut plot, change, &testbed.record)
        .await;
    drop(plot);
    testbed.hold(0.5).await;
    Ok(())
}

/// A transaction in another database of the server is open for longer than `retention`, and the log is pruned.
pub(super) async fn hold_open_elsewhere(testbed: &mut Testbed) -> anyhow::Result<()> {
    let url = other_database(testbed).await?;
    testbed.larder.terminate().await?;
    let [name, value] = RETENTION.map(str::to_owned);
    testbed.larder.config.environment = vec![(name, value)];
    let started = testbed.larder.start_ready().await;
    testbed.larder.config.environment.clear();
    started?;
    let mut other = SqlSession::new(&url, 0)?;
    other.run("begin; select pg_current_xact_id()").await?;
    testbed.hold(1.0).await;
    let pruned = pruned(testbed).await;
    other.run("commit").await?;
    pruned?;
    testbed.larder.terminate().await?;
    testbed.larder.start_ready().await?;
    testbed.hold(1.0).await;
    Ok(())
}

/// Waits until all rows that the log has now are pruned.
async fn pruned(testbed: &mut Testbed) -> anyhow::Result<()> {
    let xid = testbed.session.texts("select pg_current_xact_id()::text");
    let xid = xid.await?.concat();
    let left = format!("select count(*)::text from larder.change where xid < '{xid}'");
    testbed.hold(1.2).await;
    let began = Boottime::now();
    loop {
        testbed.session.run("select larder.prune('1 s')").await?;
        let left = testbed.session.texts(&left).await?.concat();
        if left == "0" {
            return Ok(());
        }
        if Boottime::now().since(began) > PRUNE_TIMEOUT {
            bail!("{left} rows of the log are not pruned");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Prepares transactions. PostgreSQL has to be restarted with `max_prepared_transactions` for that; the bell does not
/// ring then.
pub(super) async fn prepare(testbed: &mut Testbed) -> anyhow::Result<()> {
    let sql = "alter system set max_prepared_transactions = 8";
    testbed.session.run(sql).await?;
    testbed.restart_postgres(Signal::SIGINT).await?;
    testbed.larder.ready().await?;
    let prepared = prepare_some(testbed).await;
    let sql = "alter system reset max_prepared_transactions";
    testbed.session.run(sql).await?;
    testbed.restart_postgres(Signal::SIGINT).await?;
    prepared
}

async fn prepare_some(testbed: &mut Testbed) -> anyhow::Result<()> {
    let mut waiting = Vec::new();
    for number in 0..PREPARED {
        let plot = testbed.plot(number).await;
        let change = random(&plot, testbed.record.revision(), &mut testbed.rng);
        testbed.session.begin(&plot, &change).await?;
        let sql = format!("prepare transaction 'plot {number}'");
        testbed.session.run(&sql).await?;
        waiting.push((plot, change));
        testbed.hold(0.2).await;
    }
    testbed.hold(0.5).await;
    for (number, (mut plot, change)) in waiting.into_iter().enumerate() {
        if number + 1 == PREPARED {
            let touched = plot.touched(&change);
            testbed
                .record
                .note(&touched, change.revision, TransactionEnd::RolledBack);
            let sql = format!("rollback prepared 'plot {number}'");
            testbed.session.run(&sql).await?;
        } else {
            let sql = format!("commit prepared 'plot {number}'");
            testbed
                .session
                .commit(&sql, &mut plot, change, &testbed.record)
                .await;
        }
        drop(plot);
        testbed.hold(0.2).await;
    }
    Ok(())
}

/// Updates each table in a transaction of its own, then all in one.
pub(super) async fn update_all(testbed: &mut Testbed) -> anyhow::Result<()> {
    let update = |table: &str, revision: u64| format!("update {table} set revision = {revision}");
    for table in TABLES {
        let sql = |revision| update(table, revision);
        testbed.revise_all(&[table], sql).await?;
        testbed.hold(0.2).await;
    }
    let all = |revision| TABLES.map(|table| update(table, revision)).join("; ");
    testbed.revise_all(&TABLES, all).await?;
    testbed.hold(1.2).await;
    Ok(())
}
