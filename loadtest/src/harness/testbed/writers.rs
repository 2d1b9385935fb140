//! Writers: transactions on plots by plain SQL. Whether each was committed is known or found out.

use std::sync::Arc;
use std::time::Duration;

use larder::clock::Boottime;
use tokio::sync::Mutex;
use tokio::time::MissedTickBehavior;

use crate::harness::session::SqlSession;
use crate::workload::history::TransactionEnd;
use crate::workload::record::Record;
use crate::workload::{Plot, PlotChange, crossing, random};

const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Sometimes between two overlapping commits, so that readers fill the tiers between them.
const CROSSING_PAUSE_MILLIS_MAX: u64 = 20;
/// In percent of all transactions.
const ROLLBACKS: u32 = 8;
const CROSSINGS: u32 = 15;

impl SqlSession {
    /// Begins the transaction of `change`, up to its commit. Returns how many rows its statements affected.
    pub(crate) async fn begin(&mut self, plot: &Plot, change: &PlotChange) -> sqlx::Result<u64> {
        let (sql, revision) = (&change.sql, change.revision);
        let (number, slot) = (plot.number, self.slot);
        let affected = self
            .affected(&format!(
                "begin; {sql}update ledger set revision = {revision} where plot = {number} and slot = {slot}"
            ))
            .await?;
        // Without the row of the ledger.
        Ok(affected.saturating_sub(1))
    }

    /// Ends the transaction of `change`, which `sql` commits, and notes it in `record` and `plot`.
    ///
    /// Waits until it is known whether it was committed, and returns that; `None` if the load ends before.
    pub(crate) async fn commit(
        &mut self,
        sql: &str,
        plot: &mut Plot,
        change: PlotChange,
        record: &Record,
    ) -> Option<bool> {
        self.commit_all(sql, vec![(plot, change)], record).await
    }

    /// As [`SqlSession::commit`], of one transaction that changes several plots.
    pub(crate) async fn commit_all(
        &mut self,
        sql: &str,
        parts: Vec<(&mut Plot, PlotChange)>,
        record: &Record,
    ) -> Option<bool> {
        let mut tickets = Vec::new();
        for (plot, change) in &parts {
            let touched = plot.touched(change);
            tickets.extend(record.note(&touched, change.revision, TransactionEnd::Open));
        }
        let committed = match self.run(sql).await {
            Ok(()) => true,
            Err(_) => {
                let (plot, change) = parts.first()?;
                self.was_committed(plot, change, record).await?
            }
        };
        let outcome = if committed {
            TransactionEnd::Committed(Boottime::now())
        } else {
            TransactionEnd::RolledBack
        };
        record.settle(&tickets, outcome);
        if committed {
            for (plot, change) in parts {
                plot.apply(change);
            }
        }
        Some(committed)
    }

    /// Whether a transaction whose acknowledgement was lost was committed: its revision is in the ledger or not.
    async fn was_committed(
        &mut self,
        plot: &Plot,
        change: &PlotChange,
        record: &Record,
    ) -> Option<bool> {
        // `for update` waits for the transaction if it is still running.
        let sql = format!(
            "select revision::text from ledger where plot = {} and slot = {} for update",
            plot.number, self.slot
        );
        while !record.stopping() {
            if let Ok(found) = self.texts(&sql).await {
                return Some(found == [change.revision.to_string()]);
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
        None
    }

    /// Runs one transaction and commits it.
    pub(crate) async fn transact(
        &mut self,
        plot: &mut Plot,
        change: PlotChange,
        record: &Record,
    ) -> sqlx::Result<()> {
        self.begin(plot, &change).await?;
        self.commit("commit", plot, change, record).await;
        Ok(())
    }
}

/// Changes its plot at random.
pub(crate) struct WritingClient {
    pub(crate) record: Arc<Record>,
    pub(crate) plot: Arc<Mutex<Plot>>,
    pub(crate) sessions: [SqlSession; 2],
    pub(crate) rng: fastrand::Rng,
    /// From the start of one transaction to that of the next.
    pub(crate) pace: Duration,
}

impl WritingClient {
    /// Writes until the load is to end.
    pub(crate) async fn run(mut self) {
        let mut ticks = tokio::time::interval(self.pace);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.record.stopping() {
            ticks.tick().await;
            // An error may mean that PostgreSQL is down.
            if self.write().await.is_err() {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }

    async fn write(&mut self) -> sqlx::Result<()> {
        let plot = Arc::clone(&self.plot);
        let mut plot = plot.lock().await;
        let die = self.rng.u32(..100);
        if die < CROSSINGS {
            let revisions = [self.record.revision(), self.record.revision()];
            if let Some(changes) = crossing(&plot, revisions, &mut self.rng) {
                return self.cross(&mut plot, changes).await;
            }
        }
        let change = random(&plot, self.record.revision(), &mut self.rng);
        let [session, _] = &mut self.sessions;
        if (CROSSINGS..CROSSINGS + ROLLBACKS).contains(&die) {
            let touched = plot.touched(&change);
            self.record
                .note(&touched, change.revision, TransactionEnd::RolledBack);
            session.begin(&plot, &change).await?;
            return session.run("rollback").await;
        }
        session.transact(&mut plot, change, &self.record).await
    }

    /// Two transactions that overlap: both have run their statements before either commits.
    async fn cross(
        &mut self,
        plot: &mut Plot,
        [first, second]: [PlotChange; 2],
    ) -> sqlx::Result<()> {
        let [one, other] = &mut self.sessions;
        one.begin(plot, &first).await?;
        if let Err(error) = other.begin(plot, &second).await {
            one.run("rollback").await?;
            return Err(error);
        }
        let committed = one.commit("commit", plot, first, &self.record).await;
        if committed != Some(true) {
            return other.run("rollback").await;
        }
        let pause = self.rng.u64(..CROSSING_PAUSE_MILLIS_MAX);
        if pause > CROSSING_PAUSE_MILLIS_MAX / 2 {
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        other.commit("commit", plot, second, &self.record).await;
        Ok(())
    }
}
