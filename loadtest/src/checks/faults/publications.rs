//! A publication for all tables: PostgreSQL then refuses updates and deletes of published tables that have no replica
//! identity.

use std::sync::Arc;

use super::transactions::update_all;
use crate::harness::stage::Stage;
use crate::workload::{PLOTS, TABLES, fill};

const CHANGES: usize = 30;
/// So that statements of this fault touch more documents than that.
const KEYS_PER_STATEMENT: [&str; 2] = ["LARDER_FEED__KEYS_PER_STATEMENT", "50"];

/// Under the publication larder starts, and statements change more documents than `keys_per_statement`.
pub(super) async fn publish(stage: &mut Stage) -> anyhow::Result<()> {
    take_back(stage).await?;
    let sql = "create publication everything for all tables";
    stage.session.run(sql).await?;
    let outcome = change(stage).await;
    stage.renew_session().await;
    take_back(stage).await?;
    outcome?;
    stage.larder.terminate().await?;
    stage.larder.start_ready().await?;
    stage.hold(1.2).await;
    Ok(())
}

async fn take_back(stage: &mut Stage) -> anyhow::Result<()> {
    let sql = "drop publication if exists everything";
    Ok(stage.session.run(sql).await?)
}

async fn change(stage: &mut Stage) -> anyhow::Result<()> {
    stage.larder.terminate().await?;
    let [name, value] = KEYS_PER_STATEMENT.map(str::to_owned);
    stage.larder.config.environment = vec![(name, value)];
    let started = stage.larder.start_ready().await;
    stage.larder.config.environment.clear();
    started?;
    stage.write(CHANGES, "").await?;
    update_all(stage).await?;
    let number = stage.rng.usize(..PLOTS);
    let record = Arc::clone(&stage.record);
    let mut plot = stage.plot(number).await;
    let (full, keys) = ((*plot).clone(), plot.keys());
    let mut emptied = full.only(&[], record.revision());
    emptied.sql = format!(
        "delete from root where id >= {} and id < {}; ",
        keys.start, keys.end
    );
    stage.session.transact(&mut plot, emptied, &record).await?;
    stage.hold(0.5).await;
    let mut filled = full.only(&TABLES, record.revision());
    filled.sql = fill(&full, &["root", "child", "grandchild"]);
    stage.session.transact(&mut plot, filled, &record).await?;
    drop(plot);
    stage.hold(1.2).await;
    Ok(())
}
