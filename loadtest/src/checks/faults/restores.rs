//! The database is dumped, and restored over itself beside the running larder: each table is dropped and created again
//! in a transaction of its own.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, ensure};
use larder::clock::Boottime;
use tokio::process::Command;
use tokio::sync::OwnedMutexGuard;

use crate::harness::process::find_program;
use crate::harness::testbed::Testbed;
use crate::workload::history::TransactionEnd;
use crate::workload::{ExpectedDocument, Plot};

const INSTALL: &str = "apt-get install postgresql";
/// Transactions that are lost, besides those of the writers.
const CHANGES: usize = 15;
/// Replaced tables are trusted again after half a minute without a change.
const TRUSTED_WITHIN: Duration = Duration::from_secs(90);
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(60);
/// What is dumped, and what of it is restored: everything, a dump of schema public, schema public of everything.
const FORMS: [[&[&str]; 2]; 3] = [
    [&[], &[]],
    [&["--schema=public"], &[]],
    [&[], &["--schema=public"]],
];

/// Only larder uses the database meanwhile, so whatever fails is larder's.
pub(super) async fn restore(testbed: &mut Testbed) -> anyhow::Result<()> {
    let [dumped, restored] = FORMS[testbed.rng.usize(..FORMS.len())];
    let file = testbed.run_directory.directory().join("dump");
    let plots = testbed.all_plots().await;
    let saved: Vec<Plot> = plots.iter().map(|plot| (**plot).clone()).collect();
    let dump = [&["--format=custom"], dumped].concat();
    run(testbed, "pg_dump", &dump, &["--file"], &file).await?;
    drop(plots);
    testbed.write(CHANGES, "").await?;
    testbed.hold(0.8).await;
    let mut plots = testbed.all_plots().await;
    let tickets = note(testbed, &saved);
    let restore = [&["--clean", "--if-exists"], restored].concat();
    let outcome = run(testbed, "pg_restore", &restore, &[], &file).await;
    // A dump of schema public alone creates the schema again, without this default privilege.
    testbed.renew_session().await;
    let grant = "grant usage on schema public to public";
    testbed.session.run(grant).await?;
    let now = TransactionEnd::Committed(Boottime::now());
    for tickets in &tickets {
        testbed.record.settle(tickets, now);
    }
    replace_plots(&mut plots, saved);
    drop(plots);
    outcome?;
    testbed.hold(1.2).await;
    testbed.larder.cached(TRUSTED_WITHIN).await
}

fn replace_plots(plots: &mut [OwnedMutexGuard<Plot>], saved: Vec<Plot>) {
    for (plot, saved) in plots.iter_mut().zip(saved) {
        **plot = saved;
    }
}

/// What documents may be until the end: absent while their table is empty; without the site while that one is, whose
/// data comes last; and what was dumped.
fn note(testbed: &Testbed, saved: &[Plot]) -> [Vec<(u32, crate::workload::history::VersionId)>; 3] {
    let revision = testbed.record.revision();
    let keys = 1..=testbed.record.keys();
    let absent: Vec<ExpectedDocument> = keys.map(ExpectedDocument::absent).collect();
    let without = saved.iter().flat_map(Plot::made_without_sites).collect();
    let plots = saved.iter();
    let mut whole: Vec<ExpectedDocument> = plots
        .flat_map(|plot| plot.keys().map(|key| plot.made(key)))
        .collect();
    whole.extend(testbed.notes.made());
    [absent, without, whole].map(|made| testbed.record.note(&made, revision, TransactionEnd::Open))
}

/// Runs a program on the database; all its errors count as caused by larder.
async fn run(
    testbed: &Testbed,
    program: &str,
    arguments: &[&str],
    file_flag: &[&str],
    file: &Path,
) -> anyhow::Result<()> {
    let mut command = Command::new(find_program(program, INSTALL)?);
    command
        .args(arguments)
        .args(["--dbname", testbed.postgres.url()])
        .args(file_flag)
        .arg(file)
        .kill_on_drop(true);
    let ended = tokio::time::timeout(PROGRAM_TIMEOUT, command.output()).await;
    let output: Output = ended.with_context(|| format!("{program} does not end"))??;
    let text = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("error:"))
        .collect();
    for error in &errors {
        testbed.interference.note_program(program, error);
    }
    ensure!(
        output.status.success(),
        "{program} {arguments:?}: {} errors, the first: {}",
        errors.len(),
        errors.first().unwrap_or(&text.trim())
    );
    Ok(())
}
