//! Tables that become a subscription's targets: their rows change by logical replication, which fires no statement
//! trigger.
//!
//! The publisher is another database of the same server. It holds the rows of one plot, which no writer
//! changes here meanwhile; other plots are written as ever.

use std::time::Duration;

use anyhow::{Context, bail};
use larder::clock::Boottime;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::ancestors::{self, Lineage, define};
use crate::harness::session::SqlSession;
use crate::harness::testbed::Testbed;
use crate::workload::history::TransactionEnd;
use crate::workload::{PLOTS, Plot, PlotChange, SCHEMA, TABLES, fill, random, rekeyed};

/// The slot in `ledger` of this fault's transactions; the row is replicated with their changes.
const SLOT: i32 = 2;
const CHANGES: usize = 15;
/// One transaction in so many changes keys.
const REKEYED_SHARE: u32 = 4;
/// One fault in so many truncates a table, so that other plots change, too.
const TRUNCATE_SHARE: u32 = 3;
/// For a transaction of the publisher to be applied, or for the initial copy of a table.
const APPLY_TIMEOUT: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The order in which tables are copied: a document never changes by more than one table of a step.
const COPIES: [&[&[&str]]; 3] = [
    &[&["grandchild", "child"], &["root"]],
    &[&["root", "grandchild"], &["child"]],
    &[&["root"], &["child"], &["grandchild"]],
];
const DATABASE: &str = "select datname::text from pg_database where datname = 'publisher'";
/// Removes what a fault created on both sides; a slot that is still in use is dropped later.
const DROP_SUBSCRIPTION: &str = "alter subscription feed disable; alter subscription feed set (slot_name = none); \
    drop subscription feed";
const SLOTS: &str = "select slot_name::text from pg_replication_slots where database = 'publisher'";
const DROP_SLOTS: &str = "select pg_drop_replication_slot(slot_name) from pg_replication_slots \
    where database = 'publisher' and not active";
const RENAMED: &str = "select format('alter table %I rename to %I', relname, split_part(relname, '_above', 1)) \
    from pg_class where relname like '%\\_above\\_%' and relkind = 'r'";

/// A plot that is published, from the beginning of its subscription to its end.
struct Published {
    number: usize,
    publisher: SqlSession,
    url: String,
    /// A table whose ancestor is the target of the subscription instead.
    above: Option<Lineage>,
}

/// Documents change by replication: first copies, transactions, and sometimes a truncation.
pub(super) async fn subscribe(testbed: &mut Testbed) -> anyhow::Result<()> {
    let url = testbed.postgres.url().replace("/larder?", "/publisher?");
    if testbed.session.texts(DATABASE).await?.is_empty() {
        testbed.session.run("create database publisher").await?;
        SqlSession::new(&url, SLOT)?.run(SCHEMA).await?;
    }
    let above = testbed.rng.bool().then(|| {
        let table = TABLES[testbed.rng.usize(..TABLES.len())];
        Lineage::partition(table)
    });
    let mut published = Published {
        number: testbed.rng.usize(..PLOTS),
        publisher: SqlSession::new(&url, SLOT)?,
        url,
        above,
    };
    published.take_back(testbed).await?;
    let outcome = published.run(testbed).await;
    published.take_back(testbed).await?;
    outcome
}

impl Published {
    async fn run(&mut self, testbed: &mut Testbed) -> anyhow::Result<()> {
        if let Some(line) = &self.above {
            line.attach_all(testbed).await?;
        }
        let mut plot = testbed.plot(self.number).await;
        self.fill(&plot).await?;
        if testbed.rng.bool() {
            self.with_copy(testbed, &mut plot).await?
        } else {
            self.without_copy(testbed).await?
        }
        for _ in 0..CHANGES {
            let revision = testbed.record.revision();
            let rekeyed = match testbed.rng.u32(..REKEYED_SHARE) {
                0 => rekeyed(&plot, revision, &mut testbed.rng),
                _ => None,
            };
            let change = rekeyed.unwrap_or_else(|| random(&plot, revision, &mut testbed.rng));
            self.replicate(testbed, &mut [&mut plot], vec![change])
                .await?;
        }
        testbed.hold(1.2).await;
        if testbed.rng.u32(..TRUNCATE_SHARE) == 0 {
            self.truncate(testbed, plot).await?;
            testbed.hold(1.2).await;
        }
        Ok(())
    }

    /// The name of the target at the publisher.
    fn target(&self, table: &str) -> String {
        match &self.above {
            Some(line) if line.table == table => line.name(1),
            _ => table.to_owned(),
        }
    }

    fn targets(&self, tables: &[&str]) -> String {
        let targets: Vec<String> = tables.iter().map(|table| self.target(table)).collect();
        targets.join(", ")
    }

    /// The publisher holds the plot's rows as they are here, and a slot keeps what it does from now on.
    async fn fill(&mut self, plot: &Plot) -> anyhow::Result<()> {
        let rows = fill(plot, &TABLES);
        let number = plot.number;
        self.publisher
            .run(&format!(
                "truncate root, child, grandchild, site, ledger; {rows}insert into ledger values ({number}, {SLOT}, 0)"
            ))
            .await?;
        if let Some(line) = &self.above {
            let rename = format!("alter table {} rename to {}", line.table, line.name(1));
            self.publisher.run(&rename).await?;
        }
        let first = self.targets(&["site", "ledger"]);
        let create = format!("create publication feed for table {first}");
        self.publisher.run(&create).await?;
        let slot = "select pg_create_logical_replication_slot('publisher', 'pgoutput')";
        Ok(self.publisher.run(slot).await?)
    }

    /// Creates the subscription without a slot: within one server, creating the slot would wait for this transaction.
    async fn create(&self, testbed: &mut Testbed) -> anyhow::Result<()> {
        let sql = format!(
            "create subscription feed connection '{}' publication feed \
             with (create_slot = false, slot_name = 'publisher', copy_data = false)",
            self.url
        );
        Ok(testbed.session.run(&sql).await?)
    }

    async fn publish(&mut self, tables: &[&str]) -> anyhow::Result<()> {
        let sql = format!("alter publication feed add table {}", self.targets(tables));
        Ok(self.publisher.run(&sql).await?)
    }

    async fn without_copy(&mut self, testbed: &mut Testbed) -> anyhow::Result<()> {
        let tables = ["root", "child", "grandchild"];
        if testbed.rng.bool() {
            self.publish(&tables).await?;
            return self.create(testbed).await;
        }
        self.create(testbed).await?;
        testbed.hold(0.3).await;
        self.publish(&tables).await?;
        let refresh = "alter subscription feed refresh publication with (copy_data = false)";
        Ok(testbed.session.run(refresh).await?)
    }

    /// The plot's documents are deleted here, and come back by the tables' first copies.
    async fn with_copy(
        &mut self,
        testbed: &mut Testbed,
        plot: &mut OwnedMutexGuard<Plot>,
    ) -> anyhow::Result<()> {
        let full = (**plot).clone();
        let keys = plot.keys();
        let mut change = full.only(&[], testbed.record.revision());
        change.sql = format!(
            "delete from root where id >= {} and id < {}; ",
            keys.start, keys.end
        );
        let record = std::sync::Arc::clone(&testbed.record);
        testbed.session.transact(plot, change, &record).await?;
        self.create(testbed).await?;
        // So that the tiers hold their absence.
        testbed.hold(0.7).await;
        let mut there = Vec::new();
        for tables in COPIES[testbed.rng.usize(..COPIES.len())] {
            there.extend_from_slice(tables);
            let change = full.only(&there, testbed.record.revision());
            self.publish(tables).await?;
            let touched = plot.touched(&change);
            let tickets = record.note(&touched, change.revision, TransactionEnd::Open);
            let refresh = "alter subscription feed refresh publication with (copy_data = true)";
            testbed.session.run(refresh).await?;
            let copied =
                "select coalesce(bool_and(srsubstate = 'r'), false)::text from pg_subscription_rel";
            reach(&mut testbed.session, copied, "true").await?;
            record.settle(&tickets, TransactionEnd::Committed(Boottime::now()));
            plot.apply(change);
        }
        Ok(())
    }

    /// One transaction at the publisher that changes `plots`, until it is committed here. Its ledger is the first's.
    async fn replicate(
        &mut self,
        testbed: &mut Testbed,
        plots: &mut [&mut Plot],
        mut changes: Vec<PlotChange>,
    ) -> anyhow::Result<()> {
        let first = changes.first_mut().context("a change")?;
        if let Some(line) = &self.above {
            first.redirect(line.table, &line.name(1), true);
        }
        let (revision, number) = (first.revision, plots[0].number);
        self.publisher.begin(plots[0], first).await?;
        let mut tickets = Vec::new();
        for (plot, change) in plots.iter().zip(&changes) {
            let touched = plot.touched(change);
            tickets.extend(
                testbed
                    .record
                    .note(&touched, revision, TransactionEnd::Open),
            );
        }
        self.publisher.run("commit").await?;
        let applied =
            format!("select revision::text from ledger where plot = {number} and slot = {SLOT}");
        reach(&mut testbed.session, &applied, &revision.to_string()).await?;
        testbed
            .record
            .settle(&tickets, TransactionEnd::Committed(Boottime::now()));
        for (plot, change) in plots.iter_mut().zip(changes) {
            plot.apply(change);
        }
        Ok(())
    }

    /// Truncates a table of all plots; then the others' rows come back by a transaction here.
    async fn truncate(
        &mut self,
        testbed: &mut Testbed,
        plot: OwnedMutexGuard<Plot>,
    ) -> anyhow::Result<()> {
        let mut plots = vec![plot];
        for number in (0..testbed.plots.len()).filter(|number| *number != self.number) {
            plots.push(testbed.plot(number).await);
        }
        let revision = testbed.record.revision();
        let saved: Vec<Plot> = plots.iter().map(|plot| (**plot).clone()).collect();
        let mut changes: Vec<PlotChange> = saved
            .iter()
            .map(|plot| plot.only(&["root", "child"], revision))
            .collect();
        changes[0].sql = format!("truncate {}; ", self.target("grandchild"));
        let mut all: Vec<&mut Plot> = plots.iter_mut().map(|plot| &mut **plot).collect();
        self.replicate(testbed, &mut all, changes).await?;
        testbed.hold(1.2).await;
        let revision = testbed.record.revision();
        let mut parts = Vec::new();
        let mut sql = String::new();
        for (plot, saved) in all.into_iter().zip(&saved).skip(1) {
            sql += &fill(saved, &["grandchild"]);
            parts.push((plot, saved.only(&TABLES, revision)));
        }
        let begin = format!("begin; {sql}update ledger set revision = {revision} where slot = 0");
        testbed.session.run(&begin).await?;
        let record = std::sync::Arc::clone(&testbed.record);
        testbed.session.commit_all("commit", parts, &record).await;
        Ok(())
    }

    /// Removes the subscription, the publication, the slot and the ancestor.
    async fn take_back(&mut self, testbed: &mut Testbed) -> anyhow::Result<()> {
        testbed.renew_session().await;
        let subscriptions = "select subname::text from pg_subscription where subname = 'feed'";
        if !testbed.session.texts(subscriptions).await?.is_empty() {
            for sql in DROP_SUBSCRIPTION.split("; ") {
                define(testbed, sql).await?;
            }
        }
        let publisher = &mut self.publisher;
        publisher.run("rollback").await.ok();
        publisher.run("drop publication if exists feed").await?;
        let deadline = Instant::now() + APPLY_TIMEOUT;
        while !publisher.texts(SLOTS).await?.is_empty() {
            // It may have become active since the check.
            publisher.run(DROP_SLOTS).await.ok();
            if Instant::now() > deadline {
                bail!("a replication slot stays in use");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        for sql in publisher.texts(RENAMED).await? {
            publisher.run(&sql).await?;
        }
        ancestors::take_back(testbed).await
    }
}

/// Waits until `sql` returns `wanted`.
async fn reach(session: &mut SqlSession, sql: &str, wanted: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + APPLY_TIMEOUT;
    while session.texts(sql).await? != [wanted] {
        if Instant::now() > deadline {
            bail!("after {APPLY_TIMEOUT:?} this does not find {wanted}: {sql}");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}
