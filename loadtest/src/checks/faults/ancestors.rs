//! Tables above those that larder follows: attached and detached, and documents changed through them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::sync::{Mutex, watch};

use crate::harness::session::SqlSession;
use crate::harness::testbed::{FAULT_SLOT, Testbed};
use crate::workload::record::Record;
use crate::workload::{PLOTS, Plot, TABLES, random};

/// Tables that get ancestors in one fault.
const LINES: usize = 2;
const LEVELS_MAX: usize = 3;
/// Transactions through a table's ancestors.
const WRITES: usize = 25;
/// Transactions that are drawn until one names a table that has ancestors.
const DRAWS_MAX: usize = 250;
/// Between two transactions through an ancestor.
const WRITE_PAUSE: Duration = Duration::from_millis(5);
/// A definition that waits longer for a lock is tried again.
const LOCK_TIMEOUT: &str = "set lock_timeout = '500ms'";
const ATTEMPTS: usize = 6;
/// Every link to an ancestor: its kind, the descendant, the ancestor, whether it is being detached.
const LINKS: &str = "select format('%s|%s|%s|%s', p.relkind, c.relname, p.relname, i.inhdetachpending) \
    from pg_inherits i join pg_class p on p.oid = i.inhparent join pg_class c on c.oid = i.inhrelid \
    where p.relname like '%\\_above\\_%' order by 1";
/// What is left once no link is: ancestors, and constraints that `detach … concurrently` adds.
const REMAINS: &str = "select format('drop table %I', relname) from pg_class \
    where relname like '%\\_above\\_%' and relkind in ('r', 'p') \
      and not exists (select from pg_inherits where inhparent = pg_class.oid) \
    union all select format('alter table %s drop constraint %I', conrelid::regclass, conname) from pg_constraint \
    where contype = 'c' and conrelid in ('root'::regclass, 'child'::regclass, 'grandchild'::regclass, 'site'::regclass)";

/// How a table has ancestors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AncestorKind {
    Inheritance,
    Partitions,
}

/// A table that larder follows and the tables above it.
#[derive(Clone, Debug)]
pub(super) struct Lineage {
    pub(super) table: &'static str,
    kind: AncestorKind,
    pub(super) levels: usize,
}

impl Lineage {
    /// Of other tables each, in a random order.
    pub(super) fn draw(rng: &mut fastrand::Rng) -> Vec<Self> {
        let mut tables = TABLES;
        rng.shuffle(&mut tables);
        let line = |table| Self {
            table,
            kind: [AncestorKind::Inheritance, AncestorKind::Partitions][rng.usize(..2)],
            levels: rng.usize(1..=LEVELS_MAX),
        };
        tables.into_iter().take(LINES).map(line).collect()
    }

    /// No ancestor.
    pub(super) fn itself(table: &'static str) -> Self {
        Self {
            table,
            kind: AncestorKind::Inheritance,
            levels: 0,
        }
    }

    pub(super) fn is_partitioned(&self) -> bool {
        self.kind == AncestorKind::Partitions
    }

    /// One ancestor that rows are also inserted through.
    pub(super) fn partition(table: &'static str) -> Self {
        Self {
            table,
            kind: AncestorKind::Partitions,
            levels: 1,
        }
    }

    /// The table itself is at level 0.
    pub(super) fn name(&self, level: usize) -> String {
        match level {
            0 => self.table.to_owned(),
            level => format!("{}_above_{level}", self.table),
        }
    }

    /// The ancestors, with nothing below them.
    fn create(&self) -> String {
        let (table, by) = match self.kind {
            AncestorKind::Inheritance => (self.table, ""),
            AncestorKind::Partitions => (self.table, " partition by range (id)"),
        };
        (1..=self.levels)
            .map(|level| format!("create table {} (like {table}){by}; ", self.name(level)))
            .collect()
    }

    /// Puts the table at `level` below the next one.
    fn attach(&self, level: usize) -> String {
        let (below, above) = (self.name(level), self.name(level + 1));
        match self.kind {
            AncestorKind::Inheritance => format!("alter table {below} inherit {above}"),
            AncestorKind::Partitions => format!(
                "alter table {above} attach partition {below} for values from (minvalue) to (maxvalue)"
            ),
        }
    }

    fn detach(&self, level: usize, concurrently: bool) -> String {
        let (below, above) = (self.name(level), self.name(level + 1));
        let concurrently = if concurrently { " concurrently" } else { "" };
        match self.kind {
            AncestorKind::Inheritance => format!("alter table {below} no inherit {above}"),
            AncestorKind::Partitions => {
                format!("alter table {above} detach partition {below}{concurrently}")
            }
        }
    }

    /// Creates the ancestors and attaches them, from either end.
    pub(super) async fn attach_all(&self, testbed: &mut Testbed) -> anyhow::Result<()> {
        define(testbed, &self.create()).await?;
        let mut levels: Vec<usize> = (0..self.levels).collect();
        testbed.rng.shuffle(&mut levels);
        for level in levels {
            define(testbed, &self.attach(level)).await?;
        }
        Ok(())
    }
}

/// Attaches one table after the other and changes documents through what is then above it, at once.
pub(super) async fn attach(testbed: &mut Testbed) -> anyhow::Result<()> {
    take_back(testbed).await?;
    let outcome = attach_and_write(testbed).await;
    take_back(testbed).await?;
    outcome
}

async fn attach_and_write(testbed: &mut Testbed) -> anyhow::Result<()> {
    let lines = Lineage::draw(&mut testbed.rng);
    for line in lines {
        line.attach_all(testbed).await?;
        let mut writer = Through::new(testbed, vec![line.clone()])?;
        let mut written = 0;
        for _ in 0..WRITES {
            written += u32::from(writer.write().await?);
        }
        ensure!(
            written > 0,
            "nothing was written through the ancestors of {}",
            line.table
        );
        if testbed.rng.bool() {
            let above = line.name(line.levels);
            let all = |revision| format!("update {above} set revision = {revision}");
            testbed.revise_all(&[line.table], all).await?;
        }
        testbed.hold(1.3).await;
    }
    Ok(())
}

/// Detaches and attaches tables again, at any level, while documents change through what is above them.
pub(super) async fn detach(testbed: &mut Testbed) -> anyhow::Result<()> {
    take_back(testbed).await?;
    let outcome = detach_and_write(testbed).await;
    take_back(testbed).await?;
    outcome
}

async fn detach_and_write(testbed: &mut Testbed) -> anyhow::Result<()> {
    let lines = Lineage::draw(&mut testbed.rng);
    for line in &lines {
        line.attach_all(testbed).await?;
    }
    let writer = Through::new(testbed, lines.clone())?;
    let stop = watch::channel(false).0;
    let writing = tokio::spawn(writer.run(stop.subscribe()));
    let outcome = detach_each(testbed, &lines).await;
    stop.send_replace(true);
    let written = writing.await??;
    outcome?;
    ensure!(written > 0, "nothing was written through ancestors");
    testbed.hold(1.2).await;
    Ok(())
}

async fn detach_each(testbed: &mut Testbed, lines: &[Lineage]) -> anyhow::Result<()> {
    // larder gets to know the ancestors, and what it misses from then on shows.
    testbed.hold(2.2).await;
    for line in lines {
        let level = testbed.rng.usize(..line.levels);
        let concurrently = line.kind == AncestorKind::Partitions && testbed.rng.bool();
        define(testbed, &line.detach(level, concurrently)).await?;
        testbed.hold(0.2).await;
        if testbed.rng.bool() {
            define(testbed, &line.attach(level)).await?;
            testbed.hold(0.2).await;
            define(testbed, &line.detach(level, false)).await?;
        }
        testbed.hold(0.3).await;
    }
    Ok(())
}

/// Changes a definition while writers go on. They and the change may wait for each other's locks, so it is tried several
/// times, the last time while the writers pause.
pub(super) async fn define(testbed: &mut Testbed, sql: &str) -> anyhow::Result<()> {
    let mut session = testbed.new_session(FAULT_SLOT)?;
    for attempt in 1..=ATTEMPTS {
        let last = attempt == ATTEMPTS;
        let plots = if last {
            testbed.all_plots().await
        } else {
            Vec::new()
        };
        session.run(LOCK_TIMEOUT).await?;
        let outcome = session.run(sql).await;
        drop(plots);
        match outcome {
            Ok(()) => return Ok(()),
            Err(error) if last => return Err(error).context(sql.to_owned()),
            // A second attempt would say that it is being detached already.
            Err(_) if sql.ends_with("concurrently") => finalize(testbed).await?,
            Err(_) => {}
        }
        if sql.ends_with("concurrently") && !is_linked(testbed, sql).await? {
            return Ok(());
        }
    }
    bail!("never came through: {sql}")
}

/// Completes what `detach … concurrently` has begun.
async fn finalize(testbed: &mut Testbed) -> anyhow::Result<()> {
    for link in links(testbed).await?.iter().filter(|link| link.pending) {
        let (below, above) = (&link.below, &link.above);
        let sql = format!("alter table {above} detach partition {below} finalize");
        Box::pin(define(testbed, &sql)).await?;
    }
    Ok(())
}

/// Whether the link that `detach` was to end is still there.
async fn is_linked(testbed: &mut Testbed, detach: &str) -> anyhow::Result<bool> {
    let links = links(testbed).await?;
    Ok(links.iter().any(|link| {
        detach.starts_with(&format!(
            "alter table {} detach partition {} ",
            link.above, link.below
        ))
    }))
}

/// A row of `pg_inherits`.
struct InheritanceRow {
    partition: bool,
    below: String,
    above: String,
    pending: bool,
}

async fn links(testbed: &mut Testbed) -> anyhow::Result<Vec<InheritanceRow>> {
    let found = testbed.session.texts(LINKS).await?;
    let link = |line: &String| {
        let mut parts = line.split('|');
        Some(InheritanceRow {
            partition: parts.next()? == "p",
            below: parts.next()?.to_owned(),
            above: parts.next()?.to_owned(),
            pending: parts.next()? == "t",
        })
    };
    Ok(found.iter().filter_map(link).collect())
}

/// No table that larder follows has an ancestor any more.
pub(super) async fn take_back(testbed: &mut Testbed) -> anyhow::Result<()> {
    finalize(testbed).await?;
    for InheritanceRow {
        partition,
        below,
        above,
        ..
    } in links(testbed).await?
    {
        let sql = if partition {
            format!("alter table {above} detach partition {below}")
        } else {
            format!("alter table {below} no inherit {above}")
        };
        define(testbed, &sql).await?;
    }
    for sql in testbed.session.texts(REMAINS).await? {
        define(testbed, &sql).await?;
    }
    Ok(())
}

/// Changes documents by statements that name ancestors.
pub(super) struct Through {
    session: SqlSession,
    plots: Vec<Arc<Mutex<Plot>>>,
    record: Arc<Record>,
    rng: fastrand::Rng,
    lines: Vec<Lineage>,
}

impl Through {
    pub(super) fn new(testbed: &mut Testbed, lines: Vec<Lineage>) -> anyhow::Result<Self> {
        Ok(Self {
            session: testbed.new_session(FAULT_SLOT)?,
            plots: testbed.plots[..PLOTS].to_vec(),
            record: Arc::clone(&testbed.record),
            rng: testbed.rng.fork(),
            lines,
        })
    }

    /// Writes until it is to stop. Returns how many transactions were committed.
    async fn run(mut self, stop: watch::Receiver<bool>) -> anyhow::Result<u32> {
        let mut written = 0;
        while !*stop.borrow() {
            written += u32::from(self.write().await?);
            tokio::time::sleep(WRITE_PAUSE).await;
        }
        Ok(written)
    }

    /// One transaction. Returns whether it was committed: not where a statement found no row, since its ancestor was
    /// not attached, or met a definition that was being changed.
    pub(super) async fn write(&mut self) -> anyhow::Result<bool> {
        let place = self.rng.usize(..self.plots.len());
        let plot = Arc::clone(&self.plots[place]);
        let mut plot = plot.lock().await;
        for _ in 0..DRAWS_MAX {
            let mut change = random(&plot, self.record.revision(), &mut self.rng);
            let mut redirected = false;
            for line in &self.lines {
                let above = line.name(self.rng.usize(1..=line.levels));
                // An inheritance parent keeps the rows that are inserted into it.
                let inserts = line.kind == AncestorKind::Partitions;
                redirected |= change.redirect(line.table, &above, inserts);
            }
            if !redirected {
                continue;
            }
            let rows = change.rows();
            // After an error the transaction is gone with its connection.
            return match self.session.begin(&plot, &change).await {
                Ok(affected) if affected == rows => {
                    let record = Arc::clone(&self.record);
                    let ended = self.session.commit("commit", &mut plot, change, &record);
                    Ok(ended.await == Some(true))
                }
                Ok(_) => {
                    self.session.run("rollback").await?;
                    Ok(false)
                }
                Err(_) => Ok(false),
            };
        }
        Ok(false)
    }
}
