//! Tables that are locked for seconds.

use std::time::Duration;

use anyhow::ensure;
use larder::clock::Boottime;

use crate::harness::http;
use crate::harness::testbed::{FAULT_SLOT, Testbed};
use crate::workload::viewer::Viewer;

const TABLES: [&str; 5] = ["root", "child", "grandchild", "site", "note"];
const LOCKED_MILLIS: std::ops::Range<u64> = 1_200..3_000;
/// Each read of the other resource must be answered within this time.
const ANSWER_MAX: Duration = Duration::from_millis(500);
const READ_PAUSE: Duration = Duration::from_millis(20);
/// Values of `keys_per_statement`: each needs triggers of its own.
const FEW: std::ops::Range<u32> = 1_000..9_000;
const CHANGES: usize = 30;

/// ACCESS EXCLUSIVE on one table: reads of the resource that does not use it go on.
pub(super) async fn lock(testbed: &mut Testbed) -> anyhow::Result<()> {
    let table = TABLES[testbed.rng.usize(..TABLES.len())];
    let locked = Duration::from_millis(testbed.rng.u64(LOCKED_MILLIS));
    let mut session = testbed.new_session(FAULT_SLOT)?;
    let lock = format!("begin; lock table {table} in access exclusive mode");
    if session.run(&lock).await.is_err() {
        // A writer's two overlapping transactions and this lock waited for each other.
        let plots = testbed.all_plots().await;
        session.run(&lock).await?;
        drop(plots);
    }
    let began = Boottime::now();
    let outcome = read_others(testbed, table, began, locked).await;
    session.run("commit").await?;
    outcome?;
    testbed.hold(1.2).await;
    Ok(())
}

/// ROW EXCLUSIVE on one table keeps larder from creating other triggers: it keeps nothing of the resources that need
/// them. Then it comes back as it was before.
pub(super) async fn keep_from_installing(testbed: &mut Testbed) -> anyhow::Result<()> {
    let table = TABLES[testbed.rng.usize(..TABLES.len())];
    let mut session = testbed.new_session(FAULT_SLOT)?;
    let lock = format!("begin; lock table {table} in row exclusive mode");
    session.run(&lock).await?;
    testbed.larder.terminate().await?;
    let few = testbed.rng.u32(FEW).to_string();
    let few = ("LARDER_FEED__KEYS_PER_STATEMENT".to_owned(), few);
    testbed.larder.config.environment = vec![few];
    let started = testbed.larder.start_ready().await;
    testbed.larder.config.environment.clear();
    started?;
    testbed.write(CHANGES, "").await?;
    testbed.hold(0.8).await;
    testbed.larder.terminate().await?;
    session.run("commit").await?;
    testbed.larder.start_ready().await?;
    testbed.hold(1.2).await;
    Ok(())
}

async fn read_others(
    testbed: &mut Testbed,
    table: &str,
    began: Boottime,
    locked: Duration,
) -> anyhow::Result<()> {
    let notes = testbed.notes.keys();
    let keys = match table {
        "note" => 1..notes.start,
        _ => notes,
    };
    let (mut slow, mut slowest, mut odd) = (0, Duration::ZERO, Vec::new());
    while Boottime::now().since(began) < locked {
        let path = testbed.record.path(testbed.rng.u32(keys.clone()));
        let asked = Boottime::now();
        let status = http::send(testbed.larder.config.listen, Viewer::Staff.get(&path)).await;
        let took = Boottime::now().since(asked);
        slow += u32::from(took > ANSWER_MAX);
        slowest = slowest.max(took);
        match status {
            Ok((200 | 404, _)) => {}
            Ok((status, _)) => odd.push(status.to_string()),
            Err(error) => odd.push(format!("{error:#}")),
        }
        tokio::time::sleep(READ_PAUSE).await;
    }
    ensure!(
        slow == 0 && odd.is_empty(),
        "with {table} locked, reads of the other resource: {slow} slow, up to {slowest:.1?}; {} not answered: {:?}",
        odd.len(),
        &odd[..odd.len().min(3)]
    );
    Ok(())
}
