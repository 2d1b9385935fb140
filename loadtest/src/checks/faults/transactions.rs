//! Transactions that are long, late or large.

use std::time::Duration;

use anyhow::bail;
use larder::clock::Boottime;
use nix::sys::signal::Signal;

use super::foreign::other_database;
use crate::harness::session::Session;
use crate::harness::stage::Stage;
use crate::workload::history::Outcome;
use crate::workload::{PLOTS, TABLES, random};

/// Prepared at the same time, one in each plot; the last is rolled back.
const PREPARED: usize = PLOTS;
/// What larder's log is pruned by, while a transaction of another database is open.
const RETENTION: [&str; 2] = ["LARDER_FEED__RETENTION", "1s"];
/// Until nothing is left of what was logged before.
const PRUNE_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Commits after transactions that began, and committed, long after it began.
pub(super) async fn hold_open(stage: &mut Stage) -> anyhow::Result<()> {
    let number = stage.rng.usize(..PLOTS);
    let mut plot = stage.plot(number).await;
    let change = random(&plot, stage.record.revision(), &mut stage.rng);
    stage.session.begin(&plot, &change).await?;
    stage.hold(2.0).await;
    stage
        .session
        .commit("commit", &mut plot, change, &stage.record)
        .await;
    drop(plot);
    stage.hold(0.5).await;
    Ok(())
}

/// A transaction in another database of the server is open for longer than `retention`, and the log is pruned.
pub(super) async fn hold_open_elsewhere(stage: &mut Stage) -> anyhow::Result<()> {
    let url = other_database(stage).await?;
    stage.larder.terminate().await?;
    let [name, value] = RETENTION.map(str::to_owned);
    stage.larder.config.environment = vec![(name, value)];
    let started = stage.larder.start_ready().await;
    stage.larder.config.environment.clear();
    started?;
    let mut other = Session::new(&url, 0)?;
    other.run("begin; select pg_current_xact_id()").await?;
    stage.hold(1.0).await;
    let pruned = pruned(stage).await;
    other.run("commit").await?;
    pruned?;
    stage.larder.terminate().await?;
    stage.larder.start_ready().await?;
    stage.hold(1.0).await;
    Ok(())
}

/// Waits until nothing is left in the log of what is there now.
async fn pruned(stage: &mut Stage) -> anyhow::Result<()> {
    let xid = stage.session.texts("select pg_current_xact_id()::text");
    let xid = xid.await?.concat();
    let left = format!("select count(*)::text from larder.change where xid < '{xid}'");
    stage.hold(1.2).await;
    let began = Boottime::now();
    loop {
        stage.session.run("select larder.prune('1 s')").await?;
        let left = stage.session.texts(&left).await?.concat();
        if left == "0" {
            return Ok(());
        }
        if Boottime::now().since(began) > PRUNE_TIMEOUT {
            bail!("{left} rows of the log are not pruned");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// PostgreSQL prepares transactions only where it was started with room for them, and the bell is silent then.
pub(super) async fn prepare(stage: &mut Stage) -> anyhow::Result<()> {
    let sql = "alter system set max_prepared_transactions = 8";
    stage.session.run(sql).await?;
    stage.restart_postgres(Signal::SIGINT).await?;
    stage.larder.ready().await?;
    let prepared = prepare_some(stage).await;
    let sql = "alter system reset max_prepared_transactions";
    stage.session.run(sql).await?;
    stage.restart_postgres(Signal::SIGINT).await?;
    prepared
}

async fn prepare_some(stage: &mut Stage) -> anyhow::Result<()> {
    let mut waiting = Vec::new();
    for number in 0..PREPARED {
        let plot = stage.plot(number).await;
        let change = random(&plot, stage.record.revision(), &mut stage.rng);
        stage.session.begin(&plot, &change).await?;
        let sql = format!("prepare transaction 'plot {number}'");
        stage.session.run(&sql).await?;
        waiting.push((plot, change));
        stage.hold(0.2).await;
    }
    stage.hold(0.5).await;
    for (number, (mut plot, change)) in waiting.into_iter().enumerate() {
        if number + 1 == PREPARED {
            let touched = plot.touched(&change);
            stage
                .record
                .note(&touched, change.revision, Outcome::RolledBack);
            let sql = format!("rollback prepared 'plot {number}'");
            stage.session.run(&sql).await?;
        } else {
            let sql = format!("commit prepared 'plot {number}'");
            stage
                .session
                .commit(&sql, &mut plot, change, &stage.record)
                .await;
        }
        drop(plot);
        stage.hold(0.2).await;
    }
    Ok(())
}

/// Each table in a transaction of its own, then all in one.
pub(super) async fn update_all(stage: &mut Stage) -> anyhow::Result<()> {
    let update = |table: &str, revision: u64| format!("update {table} set revision = {revision}");
    for table in TABLES {
        let sql = |revision| update(table, revision);
        stage.revise_all(&[table], sql).await?;
        stage.hold(0.2).await;
    }
    let all = |revision| TABLES.map(|table| update(table, revision)).join("; ");
    stage.revise_all(&TABLES, all).await?;
    stage.hold(1.2).await;
    Ok(())
}
