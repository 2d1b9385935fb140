//! Transactions that are long, late or large.

use nix::sys::signal::Signal;

use crate::history::Outcome;
use crate::stage::Stage;
use crate::workload::{PLOTS, TABLES, random};

/// Prepared at the same time, one in each plot; the last is rolled back.
const PREPARED: usize = PLOTS;

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
