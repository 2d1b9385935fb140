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

use super::ancestors::{self, Line, define};
use crate::harness::session::Session;
use crate::harness::stage::Stage;
use crate::workload::history::Outcome;
use crate::workload::{Change, PLOTS, Plot, SCHEMA, TABLES, fill, random, rekeyed};

/// Of this fault's transactions in `ledger`: a row that is replicated with what they change.
const SLOT: i32 = 2;
const CHANGES: usize = 15;
/// Of the transactions, one in so many changes keys.
const REKEYED_SHARE: u32 = 4;
/// One fault in so many truncates a table, so that other plots change, too.
const TRUNCATE_SHARE: u32 = 3;
/// From a commit at the publisher to its commit here, or for a table's first copy.
const APPLY_TIMEOUT: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// In which order tables are copied: at no time does a document change by more than one of a step's tables.
const COPIES: [&[&[&str]]; 3] = [
    &[&["grandchild", "child"], &["root"]],
    &[&["root", "grandchild"], &["child"]],
    &[&["root"], &["child"], &["grandchild"]],
];
const DATABASE: &str = "select datname::text from pg_database where datname = 'publisher'";
/// Both sides without what a fault has made; a slot that is still in use is dropped later.
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
    publisher: Session,
    url: String,
    /// A table whose ancestor is the target in its place.
    above: Option<Line>,
}

/// Documents change by replication: first copies, transactions, and sometimes a truncation.
pub(super) async fn subscribe(stage: &mut Stage) -> anyhow::Result<()> {
    let url = stage.postgres.url().replace("/larder?", "/publisher?");
    if stage.session.texts(DATABASE).await?.is_empty() {
        stage.session.run("create database publisher").await?;
        Session::new(&url, SLOT)?.run(SCHEMA).await?;
    }
    let above = stage.rng.bool().then(|| {
        let table = TABLES[stage.rng.usize(..TABLES.len())];
        Line::partition(table)
    });
    let mut published = Published {
        number: stage.rng.usize(..PLOTS),
        publisher: Session::new(&url, SLOT)?,
        url,
        above,
    };
    published.take_back(stage).await?;
    let outcome = published.run(stage).await;
    published.take_back(stage).await?;
    outcome
}

impl Published {
    async fn run(&mut self, stage: &mut Stage) -> anyhow::Result<()> {
        if let Some(line) = &self.above {
            line.attach_all(stage).await?;
        }
        let mut plot = stage.plot(self.number).await;
        self.fill(&plot).await?;
        match stage.rng.bool() {
            true => self.with_copy(stage, &mut plot).await?,
            false => self.without_copy(stage).await?,
        }
        for _ in 0..CHANGES {
            let revision = stage.record.revision();
            let rekeyed = match stage.rng.u32(..REKEYED_SHARE) {
                0 => rekeyed(&plot, revision, &mut stage.rng),
                _ => None,
            };
            let change = rekeyed.unwrap_or_else(|| random(&plot, revision, &mut stage.rng));
            self.replicate(stage, &mut [&mut plot], vec![change])
                .await?;
        }
        stage.hold(1.2).await;
        if stage.rng.u32(..TRUNCATE_SHARE) == 0 {
            self.truncate(stage, plot).await?;
            stage.hold(1.2).await;
        }
        Ok(())
    }

    /// As the target is called at the publisher.
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

    /// Without a slot of its own making: within one server that would wait for itself.
    async fn create(&self, stage: &mut Stage) -> anyhow::Result<()> {
        let sql = format!(
            "create subscription feed connection '{}' publication feed \
             with (create_slot = false, slot_name = 'publisher', copy_data = false)",
            self.url
        );
        Ok(stage.session.run(&sql).await?)
    }

    async fn publish(&mut self, tables: &[&str]) -> anyhow::Result<()> {
        let sql = format!("alter publication feed add table {}", self.targets(tables));
        Ok(self.publisher.run(&sql).await?)
    }

    async fn without_copy(&mut self, stage: &mut Stage) -> anyhow::Result<()> {
        let tables = ["root", "child", "grandchild"];
        if stage.rng.bool() {
            self.publish(&tables).await?;
            return self.create(stage).await;
        }
        self.create(stage).await?;
        stage.hold(0.3).await;
        self.publish(&tables).await?;
        let refresh = "alter subscription feed refresh publication with (copy_data = false)";
        Ok(stage.session.run(refresh).await?)
    }

    /// The plot's documents are deleted here, and come back by the tables' first copies.
    async fn with_copy(
        &mut self,
        stage: &mut Stage,
        plot: &mut OwnedMutexGuard<Plot>,
    ) -> anyhow::Result<()> {
        let full = (**plot).clone();
        let keys = plot.keys();
        let mut change = full.only(&[], stage.record.revision());
        change.sql = format!(
            "delete from root where id >= {} and id < {}; ",
            keys.start, keys.end
        );
        let record = std::sync::Arc::clone(&stage.record);
        stage.session.transact(plot, change, &record).await?;
        self.create(stage).await?;
        // Their absence is remembered.
        stage.hold(0.7).await;
        let mut there = Vec::new();
        for tables in COPIES[stage.rng.usize(..COPIES.len())] {
            there.extend_from_slice(tables);
            let change = full.only(&there, stage.record.revision());
            self.publish(tables).await?;
            let touched = plot.touched(&change);
            let tickets = record.note(&touched, change.revision, Outcome::Open);
            let refresh = "alter subscription feed refresh publication with (copy_data = true)";
            stage.session.run(refresh).await?;
            let copied =
                "select coalesce(bool_and(srsubstate = 'r'), false)::text from pg_subscription_rel";
            reach(&mut stage.session, copied, "true").await?;
            record.settle(&tickets, Outcome::Committed(Boottime::now()));
            plot.apply(change);
        }
        Ok(())
    }

    /// One transaction at the publisher that changes `plots`, until it is committed here. Its ledger is the first's.
    async fn replicate(
        &mut self,
        stage: &mut Stage,
        plots: &mut [&mut Plot],
        mut changes: Vec<Change>,
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
            tickets.extend(stage.record.note(&touched, revision, Outcome::Open));
        }
        self.publisher.run("commit").await?;
        let applied =
            format!("select revision::text from ledger where plot = {number} and slot = {SLOT}");
        reach(&mut stage.session, &applied, &revision.to_string()).await?;
        stage
            .record
            .settle(&tickets, Outcome::Committed(Boottime::now()));
        for (plot, change) in plots.iter_mut().zip(changes) {
            plot.apply(change);
        }
        Ok(())
    }

    /// Truncates a table of all plots; then the others' rows come back by a transaction here.
    async fn truncate(
        &mut self,
        stage: &mut Stage,
        plot: OwnedMutexGuard<Plot>,
    ) -> anyhow::Result<()> {
        let mut plots = vec![plot];
        for number in (0..stage.plots.len()).filter(|number| *number != self.number) {
            plots.push(stage.plot(number).await);
        }
        let revision = stage.record.revision();
        let saved: Vec<Plot> = plots.iter().map(|plot| (**plot).clone()).collect();
        let mut changes: Vec<Change> = saved
            .iter()
            .map(|plot| plot.only(&["root", "child"], revision))
            .collect();
        changes[0].sql = format!("truncate {}; ", self.target("grandchild"));
        let mut all: Vec<&mut Plot> = plots.iter_mut().map(|plot| &mut **plot).collect();
        self.replicate(stage, &mut all, changes).await?;
        stage.hold(1.2).await;
        let revision = stage.record.revision();
        let mut parts = Vec::new();
        let mut sql = String::new();
        for (plot, saved) in all.into_iter().zip(&saved).skip(1) {
            sql += &fill(saved, &["grandchild"]);
            parts.push((plot, saved.only(&TABLES, revision)));
        }
        let begin = format!("begin; {sql}update ledger set revision = {revision} where slot = 0");
        stage.session.run(&begin).await?;
        let record = std::sync::Arc::clone(&stage.record);
        stage.session.commit_all("commit", parts, &record).await;
        Ok(())
    }

    /// No subscription, no publication, no slot and no ancestor is left.
    async fn take_back(&mut self, stage: &mut Stage) -> anyhow::Result<()> {
        stage.renew_session().await;
        let subscriptions = "select subname::text from pg_subscription where subname = 'feed'";
        if !stage.session.texts(subscriptions).await?.is_empty() {
            for sql in DROP_SUBSCRIPTION.split("; ") {
                define(stage, sql).await?;
            }
        }
        let publisher = &mut self.publisher;
        publisher.run("rollback").await.ok();
        publisher.run("drop publication if exists feed").await?;
        let deadline = Instant::now() + APPLY_TIMEOUT;
        while !publisher.texts(SLOTS).await?.is_empty() {
            // It may have become active since it was looked at.
            publisher.run(DROP_SLOTS).await.ok();
            if Instant::now() > deadline {
                bail!("a replication slot stays in use");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        for sql in publisher.texts(RENAMED).await? {
            publisher.run(&sql).await?;
        }
        ancestors::take_back(stage).await
    }
}

/// Waits until `sql` finds `wanted`.
async fn reach(session: &mut Session, sql: &str, wanted: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + APPLY_TIMEOUT;
    while session.texts(sql).await? != [wanted] {
        if Instant::now() > deadline {
            bail!("after {APPLY_TIMEOUT:?} this does not find {wanted}: {sql}");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}
