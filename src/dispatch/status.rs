//! What `/status` of `larder dispatch` shows.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};
use tokio::time::Instant;

use crate::dispatch::breaker::BreakerState;
use crate::dispatch::{Dispatch, letters};
use crate::source::SourceError;

/// The longest time that the database may take.
const READ_MAX: Duration = Duration::from_secs(5);

/// The shortest time between two reads.
const READ_PAUSE: Duration = Duration::from_secs(1);

/// The shortest time between two samples of the rows that were delivered.
const SAMPLE_PAUSE: Duration = Duration::from_secs(30);

/// The table with its partitions: updates and those that were HOT, dead rows, and the oldest snapshot that keeps dead rows.
const TABLE_SQL: &str = "\
    select coalesce(sum(s.n_tup_upd), 0)::int8, coalesce(sum(s.n_tup_hot_upd), 0)::int8, coalesce(sum(s.n_dead_tup), 0)::int8, \
      (select extract(epoch from now() - min(a.xact_start))::float8 from pg_stat_activity a \
       where a.backend_xmin is not null and a.pid <> pg_backend_pid()) \
    from pg_stat_user_tables s where s.relid::int8 = $1 or s.relid in (select i.relid from pg_partition_tree($1::oid::regclass) i)";

/// One dispatch.
#[derive(Debug, Serialize)]
pub struct DispatchStatus {
    name: String,
    /// An operator has paused it.
    paused: bool,
    breaker: BreakerState,
    /// The sink has answered that it will never take anything again.
    gone: bool,
    /// Slots that this process works on.
    slots: usize,
    /// How long the oldest due row had been due at the last look at its slot. Always 0 without an index on the due moment.
    lag_seconds: f64,
    /// Whether an index has the due moment after the columns of the partition.
    due_indexed: bool,
    /// Rows that were delivered since the start.
    delivered: u64,
    /// Rows per second that were delivered, over the last 30 s to 60 s.
    rate: f64,
    /// Of all processes; absent if the database does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    database: Option<TableStatus>,
}

/// What the database knows.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TableStatus {
    dead_letters: i64,
    /// The part of all updates that changed no index.
    hot_share: Option<f64>,
    dead_rows: i64,
    /// How long the oldest transaction has been open whose snapshot keeps dead rows.
    oldest_snapshot_seconds: Option<f64>,
}

/// How many rows had been delivered at the last two samples, which are at least [`SAMPLE_PAUSE`] apart.
#[derive(Debug)]
pub(super) struct RecentRate(Mutex<[(Instant, u64); 2]>);

impl RecentRate {
    pub(super) fn new() -> Self {
        Self(Mutex::new([(Instant::now(), 0); 2]))
    }

    /// Takes a sample if it is time to.
    fn note(&self, delivered: u64) {
        let mut samples = self.lock();
        if samples[1].0.elapsed() >= SAMPLE_PAUSE {
            *samples = [samples[1], (Instant::now(), delivered)];
        }
    }

    /// Returns the rows per second since the older sample.
    fn per_second(&self, delivered: u64) -> f64 {
        let (at, before) = self.lock()[0];
        let seconds = at.elapsed().as_secs_f64().max(f64::MIN_POSITIVE);
        delivered.saturating_sub(before) as f64 / seconds
    }

    fn lock(&self) -> MutexGuard<'_, [(Instant, u64); 2]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Dispatch {
    /// Takes a sample of the rows that were delivered, for the rate.
    pub(super) fn note_rate(&self) {
        self.recent_rate.note(self.delivered());
    }

    fn delivered(&self) -> u64 {
        self.counted("delivered")
    }

    fn counted(&self, result: &str) -> u64 {
        let labels = [self.name(), result];
        self.metrics.rows.with_label_values(&labels).get()
    }

    /// Logs what became of the rows of this process.
    pub fn log_counts(&self) {
        let (name, delivered, failed) = (self.name(), self.delivered(), self.counted("failed"));
        let dead = self.dead_letters.load(Ordering::Relaxed);
        if failed + dead == 0 {
            tracing::info!("dispatch {name}: {delivered} rows were delivered");
        } else {
            tracing::warn!(
                "dispatch {name}: {delivered} rows were delivered, {failed} attempts failed and are repeated (larder.delivery has \
                 the errors), {dead} rows are new dead letters"
            );
        }
    }

    /// Returns whether it will never send anything again.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }

    /// Reads the state of the dispatch.
    pub async fn status(&self) -> DispatchStatus {
        let name = self.name();
        let delivered = self.delivered();
        DispatchStatus {
            paused: self.is_paused.load(Ordering::Relaxed),
            breaker: self.breaker.state(),
            slots: self.slots.worked(),
            lag_seconds: self.metrics.lag.with_label_values(&[name]).get(),
            due_indexed: self.rows().is_due_indexed,
            delivered,
            rate: self.recent_rate.per_second(delivered),
            database: self.recent_table_status().await,
            gone: self.is_gone.load(Ordering::Relaxed),
            name: name.to_owned(),
        }
    }

    /// Reads what the database knows, at most once a second.
    async fn recent_table_status(&self) -> Option<TableStatus> {
        let mut recent = self.table_status.lock().await;
        match &*recent {
            Some((at, status)) if at.elapsed() < READ_PAUSE => status.clone(),
            _ => {
                let read = tokio::time::timeout(READ_MAX, self.table_status()).await;
                let status = read.ok().and_then(Result::ok);
                *recent = Some((Instant::now(), status.clone()));
                status
            }
        }
    }

    async fn table_status(&self) -> Result<TableStatus, SourceError> {
        let mut connection = self.setup.connect().await?;
        let counts = letters::count(&mut connection).await?;
        let dead_letters = counts.into_iter().find(|(name, _)| name == self.name());
        let oid = i64::from(self.rows().resource.root.table.oid);
        let row = sqlx::query(TABLE_SQL)
            .bind(oid)
            .fetch_one(&mut connection)
            .await?;
        let (updates, hot): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        let status = TableStatus {
            dead_letters: dead_letters.map_or(0, |(_, count)| count),
            hot_share: (updates > 0).then(|| hot as f64 / updates as f64),
            dead_rows: row.try_get(2)?,
            oldest_snapshot_seconds: row.try_get(3)?,
        };
        connection.close().await?;
        Ok(status)
    }

    /// Stops or continues the dispatch of all processes, also after a restart.
    ///
    /// # Errors
    /// PostgreSQL can't be reached or refuses the statement.
    pub async fn set_paused(&self, is_paused: bool) -> Result<(), SourceError> {
        let _one_at_a_time = self.table_status.lock().await;
        let mut connection: PgConnection = self.setup.connect().await?;
        let sql = "insert into larder.dispatch (name, is_paused) values ($1, $2) \
                   on conflict (name) do update set is_paused = excluded.is_paused";
        sqlx::query(sql)
            .bind(self.name())
            .bind(is_paused)
            .execute(&mut connection)
            .await?;
        self.note_pause(is_paused);
        connection.close().await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_rate_is_that_of_the_last_minute() {
        let (rate, mut delivered) = (RecentRate::new(), 0);
        assert_eq!(rate.per_second(delivered), 0.0);
        for rows in [10, 500, 0] {
            for _ in 0..90 {
                tokio::time::advance(Duration::from_secs(1)).await;
                delivered += rows;
                rate.note(delivered);
            }
            assert_eq!(rate.per_second(delivered), rows as f64);
        }
    }
}
