//! A copy of the data directory, put back in the place of a later one.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use larder::clock::Boottime;
use testkit::fault_proxy::NetworkFault;

use crate::harness::testbed::Testbed;
use crate::workload::history::TransactionEnd;

/// Transactions that are lost, beside those of the writers, and the first ones after them.
const CHANGES: usize = 15;
/// As a cold copy is made: with owners, times and links.
const COPY: [&str; 2] = ["-a", "--reflink=auto"];

/// What becomes of larder while the copy is put back.
#[derive(Clone, Copy, Debug)]
enum LarderDuringCopy {
    /// It runs on, and may connect at once.
    Connected,
    /// It runs on, and connects once the database has counted as many transactions as were lost.
    Cut,
    Terminated,
    Killed,
}

/// Copies the database while it is stopped, and puts the copy back after transactions that are lost by it.
pub(super) async fn restore(testbed: &mut Testbed) -> anyhow::Result<()> {
    let copy = testbed.postgres.beside("copy");
    remove(&copy)?;
    let plots = testbed.all_plots().await;
    let saved: Vec<_> = plots.iter().map(|plot| (**plot).clone()).collect();
    let copied = testbed.postgres.while_stopped(|data| {
        let status = Command::new("cp").args(COPY).arg(data).arg(&copy).status();
        ensure!(status?.success(), "cp failed");
        Ok(())
    });
    copied.await?;
    drop(plots);
    testbed.renew_session().await;
    testbed.larder.ready().await?;
    testbed.write(CHANGES, "").await?;
    testbed.hold(0.8).await;
    let meanwhile = [
        LarderDuringCopy::Connected,
        LarderDuringCopy::Cut,
        LarderDuringCopy::Terminated,
        LarderDuringCopy::Killed,
    ][testbed.rng.usize(..4)];
    match meanwhile {
        LarderDuringCopy::Connected => {}
        LarderDuringCopy::Cut => {
            testbed.feed.set(NetworkFault::Cut);
            testbed.loader.set(NetworkFault::Cut);
        }
        LarderDuringCopy::Terminated => testbed.larder.terminate().await?,
        LarderDuringCopy::Killed => testbed.larder.kill().await?,
    }
    let restored = put_back(testbed, &copy, saved).await;
    testbed.feed.set(NetworkFault::None);
    testbed.loader.set(NetworkFault::None);
    if matches!(
        meanwhile,
        LarderDuringCopy::Terminated | LarderDuringCopy::Killed
    ) {
        testbed.larder.start_ready().await?;
    }
    restored?;
    testbed.larder.ready().await?;
    testbed.hold(1.2).await;
    Ok(())
}

/// Puts the copy back and has the database count as many transactions as were lost, and more.
async fn put_back(
    testbed: &mut Testbed,
    copy: &Path,
    saved: Vec<crate::workload::Plot>,
) -> anyhow::Result<()> {
    let mut plots = testbed.all_plots().await;
    let lost = transaction(testbed).await?;
    let revision = testbed.record.revision();
    let mut tickets = Vec::new();
    for (plot, saved) in plots.iter().zip(&saved) {
        let keys = plot
            .keys()
            .filter(|key| plot.made(*key) != saved.made(*key));
        let made: Vec<_> = keys.map(|key| saved.made(key)).collect();
        tickets.extend(testbed.record.note(&made, revision, TransactionEnd::Open));
    }
    ensure!(!tickets.is_empty(), "nothing was lost");
    let swapped = testbed.postgres.while_stopped(|data| {
        remove(data)?;
        std::fs::rename(copy, data).context("the copy")
    });
    swapped.await?;
    testbed
        .record
        .settle(&tickets, TransactionEnd::Committed(Boottime::now()));
    for (plot, saved) in plots.iter_mut().zip(saved) {
        **plot = saved;
    }
    drop(plots);
    testbed.renew_session().await;
    let from = transaction(testbed).await?;
    ensure!(from < lost, "the copy has all of its transactions");
    let count = lost - from;
    testbed
        .session
        .run(&format!(
            "do 'begin for number in 1..{count} loop perform pg_current_xact_id(); commit; end loop; end'"
        ))
        .await?;
    testbed.write(CHANGES, "").await
}

/// A transaction's number.
async fn transaction(testbed: &mut Testbed) -> anyhow::Result<u64> {
    let found = testbed.session.texts("select pg_current_xact_id()::text");
    Ok(found.await?.concat().parse()?)
}

fn remove(directory: &Path) -> anyhow::Result<()> {
    if directory.exists() {
        Ok(std::fs::remove_dir_all(directory)?)
    } else {
        Ok(())
    }
}
