//! Definitions changed behind larder's back.

use anyhow::{bail, ensure};

use crate::harness::testbed::Testbed;
use crate::workload::{TABLES, random};

/// larder's triggers on followed tables, as `trigger|table`.
const TRIGGERS: &str = "select t.tgname || '|' || c.relname from pg_trigger t join pg_class c on c.oid = t.tgrelid \
    where t.tgname like 'larder\\_%' and c.relnamespace = 'public'::regnamespace order by 1";
/// larder's trigger functions.
const FUNCTIONS: &str = "select p.proname::text from pg_proc p join pg_namespace n on n.oid = p.pronamespace \
    where n.nspname = 'larder' and p.proname like 'log\\_%' order by 1";
const BYPASSES: usize = 5;
const ATTEMPTS: u32 = 10;

/// One table after the other: each statement waits for the writers of its table.
pub(super) async fn disable_triggers(testbed: &mut Testbed) -> anyhow::Result<()> {
    for table in TABLES {
        let sql = format!("alter table {table} disable trigger user");
        testbed.session.run(&sql).await?;
        testbed.hold(0.3).await;
    }
    testbed.hold(0.5).await;
    Ok(())
}

pub(super) async fn drop_triggers(testbed: &mut Testbed) -> anyhow::Result<()> {
    // larder, which installs them again, and overlapping writers may have the locks.
    for _ in 0..ATTEMPTS {
        let mut dropped = 0;
        for (trigger, table) in triggers(testbed).await? {
            let sql = format!("drop trigger if exists {trigger} on {table}");
            dropped += u32::from(testbed.session.run(&sql).await.is_ok());
        }
        if dropped > 0 {
            testbed.hold(1.3).await;
            return Ok(());
        }
        testbed.hold(0.2).await;
    }
    bail!("no trigger could be dropped")
}

pub(super) async fn alter_triggers(testbed: &mut Testbed) -> anyhow::Result<()> {
    for (trigger, table) in triggers(testbed).await? {
        let sql = format!("alter trigger {trigger} on {table} rename to other_{trigger}");
        // larder may have installed what the first renaming has shown it to be missing.
        testbed.session.run(&sql).await.ok();
    }
    testbed.hold(0.6).await;
    for (trigger, table) in triggers(testbed).await? {
        let sql = format!("alter table {table} enable replica trigger {trigger}");
        testbed.session.run(&sql).await.ok();
    }
    testbed.hold(0.6).await;
    for function in testbed.session.texts(FUNCTIONS).await? {
        let sql = format!(
            "create or replace function larder.{function}() returns trigger language plpgsql \
             as 'begin return null; end'"
        );
        testbed.session.run(&sql).await?;
    }
    testbed.hold(1.0).await;
    let others = "select 'drop trigger ' || t.tgname || ' on ' || c.relname from pg_trigger t \
        join pg_class c on c.oid = t.tgrelid where t.tgname like 'other\\_%'";
    // Writers may have a table's lock for longer than a statement waits.
    for _ in 0..ATTEMPTS {
        let left = testbed.session.texts(others).await?;
        if left.is_empty() {
            return Ok(());
        }
        for sql in left {
            testbed.session.run(&sql).await.ok();
        }
    }
    bail!("triggers of other names are left")
}

/// Nothing is logged, and after the commit everything looks as before.
pub(super) async fn bypass_triggers(testbed: &mut Testbed) -> anyhow::Result<()> {
    let mut bypassed = 0;
    for number in 0..BYPASSES {
        // Others' locks on these tables could cross this transaction's.
        let mut plots = testbed.all_plots().await;
        let triggers = triggers(testbed).await?;
        let disable = TABLES.map(|table| format!("alter table {table} disable trigger user; "));
        let enable = triggers.iter().map(|(trigger, table)| {
            format!("alter table {table} enable always trigger {trigger}; ")
        });
        let plot = &mut plots[number];
        let mut change = random(plot, testbed.record.revision(), &mut testbed.rng);
        let enable: String = enable.collect();
        change.sql = [disable.concat(), change.sql, enable].concat();
        let outcome = testbed
            .session
            .transact(plot, change, &testbed.record)
            .await;
        drop(plots);
        // larder may have been installing what the last time made it doubt.
        bypassed += u32::from(outcome.is_ok());
        testbed.hold(0.3).await;
    }
    ensure!(bypassed > 0, "no transaction came through");
    Ok(())
}

/// There and back again, with other values each time.
pub(super) async fn change_column_type(testbed: &mut Testbed) -> anyhow::Result<()> {
    let table = TABLES[testbed.rng.usize(..TABLES.len())];
    for column_type in ["numeric", "bigint"] {
        let alter = |revision: u64| {
            format!(
                "alter table {table} alter column revision type {column_type} using {revision}::{column_type}"
            )
        };
        testbed.revise_all(&[table], alter).await?;
        testbed.hold(1.2).await;
    }
    Ok(())
}

async fn triggers(testbed: &mut Testbed) -> anyhow::Result<Vec<(String, String)>> {
    let found = testbed.session.texts(TRIGGERS).await?;
    let pair = |line: &String| {
        let (trigger, table) = line.split_once('|')?;
        Some((trigger.to_owned(), table.to_owned()))
    };
    Ok(found.iter().filter_map(pair).collect())
}
