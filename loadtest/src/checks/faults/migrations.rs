//! Definitions changed as migrations of applications do it: table by table in a transaction, a constraint dropped and
//! added again later.

use std::time::Duration;

use anyhow::bail;
use larder::clock::Boottime;

use super::ancestors::define;
use crate::harness::http;
use crate::harness::testbed::Testbed;
use crate::workload::TABLES;
use crate::workload::viewer::Viewer;

/// What a migration does to a table; documents are the same before and after it.
const STEPS: [&str; 5] = [
    "alter table {} add column extra integer not null default 1; alter table {} drop column extra",
    "create index {}_extra on {} (revision); drop index {}_extra",
    "alter table {} add constraint {}_extra check (revision > 0) not valid; alter table {} drop constraint {}_extra",
    "alter table {} alter column revision drop not null; alter table {} alter column revision set not null",
    "alter table {} alter column revision set statistics 200; alter table {} alter column revision set default 0; \
     alter table {} alter column revision drop default",
];
/// First the child's table, then the parent's: loads lock them in the other order.
const PAIRS: [[&str; 2]; 4] = [
    ["child", "root"],
    ["grandchild", "child"],
    ["grandchild", "root"],
    ["site", "root"],
];
const MIGRATIONS: usize = 2;
const PAUSE: Duration = Duration::from_millis(1_500);
/// Tables with their foreign keys, and how documents are answered without them: the configuration names the first one's
/// column, and leaves the second to the catalogue.
const FOREIGN_KEYS: [(&str, &str, u16); 2] =
    [("child", "root_id", 200), ("grandchild", "child_id", 503)];
/// Until larder has noticed that a definition fits no more, or again.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Migrations beside reads alone, which then only larder can end, or beside writers, too.
pub(super) async fn migrate(testbed: &mut Testbed) -> anyhow::Result<()> {
    for number in 0..MIGRATIONS {
        let pair = PAIRS[testbed.rng.usize(..PAIRS.len())];
        let step = STEPS[testbed.rng.usize(..STEPS.len())];
        let [first, second] = pair.map(|table| step.replace("{}", table));
        let pause = PAUSE.as_secs_f64();
        let sql = format!("begin; {first}; select pg_sleep({pause}); {second}; commit");
        match number {
            0 => {
                let plots = testbed.all_plots().await;
                let outcome = testbed.session.run(&sql).await;
                drop(plots);
                outcome?;
            }
            // Writers take the tables in both orders, so that it may fail without larder, too.
            _ => define(testbed, &sql).await?,
        }
        testbed.hold(0.5).await;
    }
    testbed.hold(1.2).await;
    Ok(())
}

/// The resource alone is 503 until the key is there again; sometimes larder starts meanwhile.
pub(super) async fn drop_foreign_key(testbed: &mut Testbed) -> anyhow::Result<()> {
    let (table, column, expected) = FOREIGN_KEYS[testbed.rng.usize(..FOREIGN_KEYS.len())];
    let constraint = format!("{table}_{column}_fkey");
    // Without the key deletes of writers would not cascade.
    let mut plots = testbed.all_plots().await;
    let first = testbed
        .session
        .texts("select min(id)::text from root")
        .await?;
    let roots = &format!("/roots/{}", first.concat());
    let drop_key = format!("alter table {table} drop constraint {constraint}");
    testbed.session.run(&drop_key).await?;
    let without = async {
        await_status(testbed, expected, roots).await?;
        if testbed.rng.bool() {
            testbed.larder.kill().await?;
            testbed.larder.start()?;
            await_status(testbed, expected, roots).await?;
        }
        let all =
            |revision| TABLES.map(|table| format!("update {table} set revision = {revision}"));
        testbed
            .revise_held(&mut plots, &TABLES, |revision| all(revision).join("; "))
            .await?;
        let first = testbed.notes.keys().start;
        let note = format!("/notes/{first}");
        await_status(testbed, 200, &note).await?;
        testbed.hold(1.2).await;
        await_status(testbed, expected, roots).await
    };
    let outcome = without.await;
    testbed.renew_session().await;
    let parent = column.trim_end_matches("_id");
    let add_key = format!(
        "alter table {table} add constraint {constraint} foreign key ({column}) references {parent} on delete cascade"
    );
    testbed.session.run(&add_key).await?;
    drop(plots);
    outcome?;
    await_status(testbed, 200, roots).await?;
    testbed.hold(1.2).await;
    Ok(())
}

/// Waits until `path` is answered with this status.
async fn await_status(testbed: &Testbed, expected: u16, path: &str) -> anyhow::Result<()> {
    let began = Boottime::now();
    loop {
        let answer = http::send(testbed.larder.config.listen, Viewer::Staff.get(path)).await;
        let status = answer.map(|(status, _)| status);
        if status.as_ref().is_ok_and(|status| *status == expected) {
            return Ok(());
        }
        if Boottime::now().since(began) > NOTICE_TIMEOUT {
            bail!(
                "after {NOTICE_TIMEOUT:?} {path} is answered with {status:?} instead of {expected}"
            );
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
