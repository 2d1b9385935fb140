//! A publication for all tables: PostgreSQL then refuses updates and deletes of published tables that have no replica
//! identity.

use std::sync::Arc;

use super::transactions::update_all;
use crate::harness::testbed::Testbed;
use crate::workload::{PLOTS, TABLES, fill};

const CHANGES: usize = 30;
/// Fewer than the documents that a statement of this fault touches.
const KEYS_PER_STATEMENT: [&str; 2] = ["LARDER_FEED__KEYS_PER_STATEMENT", "50"];

/// Under the publication larder starts, and statements change more documents than `keys_per_statement`.
pub(super) async fn publish(testbed: &mut Testbed) -> anyhow::Result<()> {
    take_back(testbed).await?;
    let sql = "create publication everything for all tables";
    testbed.session.run(sql).await?;
    let outcome = change(testbed).await;
    testbed.renew_session().await;
    take_back(testbed).await?;
    outcome?;
    testbed.larder.terminate().await?;
    testbed.larder.start_ready().await?;
    testbed.hold(1.2).await;
    Ok(())
}

async fn take_back(testbed: &mut Testbed) -> anyhow::Result<()> {
    let sql = "drop publication if exists everything";
    Ok(testbed.session.run(sql).await?)
}

async fn change(testbed: &mut Testbed) -> anyhow::Result<()> {
    testbed.larder.terminate().await?;
    let [name, value] = KEYS_PER_STATEMENT.map(str::to_owned);
    testbed.larder.config.environment = vec![(name, value)];
    let started = testbed.larder.start_ready().await;
    testbed.larder.config.environment.clear();
    started?;
    testbed.write(CHANGES, "").await?;
    update_all(testbed).await?;
    let number = testbed.rng.usize(..PLOTS);
    let record = Arc::clone(&testbed.record);
    let mut plot = testbed.plot(number).await;
    let (full, keys) = ((*plot).clone(), plot.keys());
    let mut emptied = full.only(&[], record.revision());
    emptied.sql = format!(
        "delete from root where id >= {} and id < {}; ",
        keys.start, keys.end
    );
    testbed
        .session
        .transact(&mut plot, emptied, &record)
        .await?;
    testbed.hold(0.5).await;
    let mut filled = full.only(&TABLES, record.revision());
    filled.sql = fill(&full, &["root", "child", "grandchild"]);
    testbed.session.transact(&mut plot, filled, &record).await?;
    drop(plot);
    testbed.hold(1.2).await;
    Ok(())
}
