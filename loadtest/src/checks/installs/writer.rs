//! One writer: transactions of several statements, each of another table, in a random order.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::harness::session::SqlSession;
use crate::workload::TABLES;

/// Rows of the first writer; each has one in every table.
const FIRST_ID: usize = 1;
/// Between two statements of a transaction, and between two transactions.
const PAUSE_MILLIS_MAX: u64 = 20;
/// One transaction in so many is long.
const LONG_SHARE: u32 = 200;
const LONG_MILLIS: std::ops::Range<u64> = 200..1_500;
/// So many reasons of aborted transactions are printed.
const REASONS_MAX: usize = 3;

/// The statements that insert a writer's rows.
pub(super) fn rows(number: usize) -> String {
    let id = FIRST_ID + number;
    format!(
        "insert into site values ({id}, 1); insert into root values ({id}, {id}, 1, ''); \
         insert into child values ({id}, {id}, 1); insert into grandchild values ({id}, {id}, 1)"
    )
}

/// How many transactions of a writer were committed and aborted.
#[derive(Debug, Default)]
pub(super) struct WriterTotals {
    pub(super) committed: u64,
    pub(super) aborted: u64,
    pub(super) reasons: Vec<String>,
    /// The longest time of a statement.
    pub(super) longest: Duration,
    /// Its server processes.
    pub(super) pids: Vec<i32>,
}

/// A writer with rows of its own.
pub(super) struct RowWriter {
    id: usize,
    session: SqlSession,
    rng: fastrand::Rng,
    written: WriterTotals,
}

impl RowWriter {
    pub(super) fn new(number: usize, session: SqlSession, rng: fastrand::Rng) -> Self {
        Self {
            id: FIRST_ID + number,
            session,
            rng,
            written: WriterTotals::default(),
        }
    }

    /// Writes until it is to stop.
    pub(super) async fn run(mut self, stop: watch::Receiver<bool>) -> WriterTotals {
        let mut is_connected = false;
        while !*stop.borrow() {
            let outcome = self.transaction(is_connected).await;
            is_connected = outcome.is_ok();
            match outcome {
                Ok(()) => self.written.committed += 1,
                Err(error) => {
                    self.written.aborted += 1;
                    if self.written.reasons.len() < REASONS_MAX {
                        self.written.reasons.push(error.to_string());
                    }
                }
            }
            self.pause().await;
        }
        self.written
    }

    async fn transaction(&mut self, is_connected: bool) -> sqlx::Result<()> {
        if !is_connected {
            let pid = self.session.texts("select pg_backend_pid()::text").await?;
            self.written.pids.extend(pid.concat().parse::<i32>());
        }
        let mut tables = TABLES;
        self.rng.shuffle(&mut tables);
        let count = self.rng.usize(2..=tables.len());
        let is_long = self.rng.u32(..LONG_SHARE) == 0;
        self.session.run("begin").await?;
        for table in &tables[..count] {
            let id = self.id;
            let update = format!("update {table} set revision = revision + 1 where id = {id}");
            let began = Instant::now();
            let outcome = self.session.run(&update).await;
            self.written.longest = self.written.longest.max(began.elapsed());
            outcome?;
            self.pause().await;
        }
        if is_long {
            sleep(Duration::from_millis(self.rng.u64(LONG_MILLIS))).await;
        }
        self.session.run("commit").await
    }

    async fn pause(&mut self) {
        let millis = self.rng.u64(..PAUSE_MILLIS_MAX);
        sleep(Duration::from_millis(millis)).await;
    }
}
