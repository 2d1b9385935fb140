//! larder's change log edited by hand, before larder has read what is in it.

use anyhow::{Context, ensure};
use nix::sys::signal::Signal;
use testkit::fault_proxy::NetworkFault;

use crate::harness::testbed::Testbed;

/// Statements that edit the log.
const EDITS: [&str; 8] = [
    "delete from larder.change",
    "delete from larder.change",
    "delete from larder.change where ctid in (select ctid from larder.change order by random() limit 10)",
    "update larder.change set key = '0'",
    "update larder.change set path = 'elsewhere'",
    "update larder.change set xid = '3'",
    "select larder.prune()",
    "select larder.prune('0 s')",
];
/// Transactions before each edit.
const CHANGES: usize = 12;
/// An edit may fail while statements of larder have locked the same rows.
const ATTEMPTS: u32 = 3;

/// Edits the log while larder runs, and again while it is stopped.
pub(super) async fn edit(testbed: &mut Testbed) -> anyhow::Result<()> {
    let edits = [draw(testbed), draw(testbed)];
    match testbed.rng.u32(..3) {
        0 => {
            // Results that arrive late were sent before the edit.
            testbed.feed.set(NetworkFault::BlackHole);
            let edited = change_and_edit(testbed, edits[0]).await;
            testbed.feed.set(NetworkFault::None);
            edited?;
        }
        1 => {
            testbed.larder.signal(Signal::SIGSTOP)?;
            let edited = change_and_edit(testbed, edits[0]).await;
            testbed.larder.signal(Signal::SIGCONT)?;
            edited?;
        }
        // No other session ever sees the rows.
        _ => testbed.write(CHANGES, &format!("{}; ", edits[0])).await?,
    }
    testbed.hold(1.3).await;
    if testbed.rng.bool() {
        testbed.larder.kill().await?
    } else {
        testbed.larder.terminate().await?
    }
    let edited = change_and_edit(testbed, edits[1]).await;
    testbed.larder.start_ready().await?;
    edited?;
    testbed.hold(1.3).await;
    Ok(())
}

fn draw(testbed: &mut Testbed) -> &'static str {
    EDITS[testbed.rng.usize(..EDITS.len())]
}

async fn change_and_edit(testbed: &mut Testbed, edit: &str) -> anyhow::Result<()> {
    testbed.write(CHANGES, "").await?;
    let mut edited = testbed.session.run(edit).await;
    for _ in 1..ATTEMPTS {
        if edited.is_err() {
            edited = testbed.session.run(edit).await;
        }
    }
    ensure!(
        testbed.session.run("select 1").await.is_ok(),
        "no PostgreSQL"
    );
    edited.context(edit.to_owned())
}
