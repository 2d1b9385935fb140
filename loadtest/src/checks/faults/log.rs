//! larder's change log edited by hand, before larder has read what is in it.

use anyhow::{Context, ensure};
use nix::sys::signal::Signal;

use crate::harness::proxy::Weather;
use crate::harness::stage::Stage;

/// What becomes of the log's rows.
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
/// Edits wait for larder's own, and for each other's rows.
const ATTEMPTS: u32 = 3;

/// While larder runs, then while it is away.
pub(super) async fn edit(stage: &mut Stage) -> anyhow::Result<()> {
    let edits = [draw(stage), draw(stage)];
    match stage.rng.u32(..3) {
        0 => {
            // What arrives late was sent before the edit.
            stage.feed.set(Weather::BlackHole);
            let edited = change_and_edit(stage, edits[0]).await;
            stage.feed.set(Weather::Clear);
            edited?;
        }
        1 => {
            stage.larder.signal(Signal::SIGSTOP)?;
            let edited = change_and_edit(stage, edits[0]).await;
            stage.larder.signal(Signal::SIGCONT)?;
            edited?;
        }
        // Nobody else ever sees the rows.
        _ => stage.write(CHANGES, &format!("{}; ", edits[0])).await?,
    }
    stage.hold(1.3).await;
    match stage.rng.bool() {
        true => stage.larder.kill().await?,
        false => stage.larder.terminate().await?,
    }
    let edited = change_and_edit(stage, edits[1]).await;
    stage.larder.start_ready().await?;
    edited?;
    stage.hold(1.3).await;
    Ok(())
}

fn draw(stage: &mut Stage) -> &'static str {
    EDITS[stage.rng.usize(..EDITS.len())]
}

async fn change_and_edit(stage: &mut Stage, edit: &str) -> anyhow::Result<()> {
    stage.write(CHANGES, "").await?;
    let mut edited = stage.session.run(edit).await;
    for _ in 1..ATTEMPTS {
        if edited.is_err() {
            edited = stage.session.run(edit).await;
        }
    }
    ensure!(stage.session.run("select 1").await.is_ok(), "no PostgreSQL");
    edited.context(edit.to_owned())
}
