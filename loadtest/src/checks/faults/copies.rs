//! A copy of the data directory, put back in the place of a later one.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use larder::clock::Boottime;

use crate::harness::proxy::Weather;
use crate::harness::stage::Stage;
use crate::workload::history::Outcome;

/// Transactions that are lost, beside those of the writers, and the first ones after them.
const CHANGES: usize = 15;
/// As a cold copy is made: with owners, times and links.
const COPY: [&str; 2] = ["-a", "--reflink=auto"];

/// What becomes of larder while the copy is put back.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    /// It runs on, and may connect at once.
    Connected,
    /// It runs on, and connects once the database has counted as many transactions as were lost.
    Cut,
    Terminated,
    Killed,
}

/// Copies the database while it is stopped, and puts the copy back after transactions that are lost by it.
pub(super) async fn restore(stage: &mut Stage) -> anyhow::Result<()> {
    let copy = stage.postgres.beside("copy");
    remove(&copy)?;
    let plots = stage.all_plots().await;
    let saved: Vec<_> = plots.iter().map(|plot| (**plot).clone()).collect();
    let copied = stage.postgres.while_stopped(|data| {
        let status = Command::new("cp").args(COPY).arg(data).arg(&copy).status();
        ensure!(status?.success(), "cp failed");
        Ok(())
    });
    copied.await?;
    drop(plots);
    stage.renew_session().await;
    stage.larder.ready().await?;
    stage.write(CHANGES, "").await?;
    stage.hold(0.8).await;
    let meanwhile = [
        Meanwhile::Connected,
        Meanwhile::Cut,
        Meanwhile::Terminated,
        Meanwhile::Killed,
    ][stage.rng.usize(..4)];
    match meanwhile {
        Meanwhile::Connected => {}
        Meanwhile::Cut => {
            stage.feed.set(Weather::Cut);
            stage.loader.set(Weather::Cut);
        }
        Meanwhile::Terminated => stage.larder.terminate().await?,
        Meanwhile::Killed => stage.larder.kill().await?,
    }
    let restored = put_back(stage, &copy, saved).await;
    stage.feed.set(Weather::Clear);
    stage.loader.set(Weather::Clear);
    if matches!(meanwhile, Meanwhile::Terminated | Meanwhile::Killed) {
        stage.larder.start_ready().await?;
    }
    restored?;
    stage.larder.ready().await?;
    stage.hold(1.2).await;
    Ok(())
}

/// Puts the copy back and has the database count as many transactions as were lost, and more.
async fn put_back(
    stage: &mut Stage,
    copy: &Path,
    saved: Vec<crate::workload::Plot>,
) -> anyhow::Result<()> {
    let mut plots = stage.all_plots().await;
    let lost = transaction(stage).await?;
    let revision = stage.record.revision();
    let mut tickets = Vec::new();
    for (plot, saved) in plots.iter().zip(&saved) {
        let keys = plot
            .keys()
            .filter(|key| plot.made(*key) != saved.made(*key));
        let made: Vec<_> = keys.map(|key| saved.made(key)).collect();
        tickets.extend(stage.record.note(&made, revision, Outcome::Open));
    }
    ensure!(!tickets.is_empty(), "nothing was lost");
    let swapped = stage.postgres.while_stopped(|data| {
        remove(data)?;
        std::fs::rename(copy, data).context("the copy")
    });
    swapped.await?;
    stage
        .record
        .settle(&tickets, Outcome::Committed(Boottime::now()));
    for (plot, saved) in plots.iter_mut().zip(saved) {
        **plot = saved;
    }
    drop(plots);
    stage.renew_session().await;
    let from = transaction(stage).await?;
    ensure!(from < lost, "the copy has all of its transactions");
    let count = lost - from;
    stage
        .session
        .run(&format!(
            "do 'begin for number in 1..{count} loop perform pg_current_xact_id(); commit; end loop; end'"
        ))
        .await?;
    stage.write(CHANGES, "").await
}

/// A transaction's number.
async fn transaction(stage: &mut Stage) -> anyhow::Result<u64> {
    let found = stage.session.texts("select pg_current_xact_id()::text");
    Ok(found.await?.concat().parse()?)
}

fn remove(directory: &Path) -> anyhow::Result<()> {
    match directory.exists() {
        true => Ok(std::fs::remove_dir_all(directory)?),
        false => Ok(()),
    }
}
