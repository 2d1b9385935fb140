//! A worker: locks a slot, matches its due rows, and has them sent and rescheduled.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, interval_at, sleep};
use xxhash_rust::xxh3::xxh3_64;

use crate::dispatch::batch::{DueRow, MatchBounds, ROW_BYTES, divide, match_rows};
use crate::dispatch::definition::Delivery;
use crate::dispatch::lease::LeasedConnection;
use crate::dispatch::letters;
use crate::dispatch::request::{Attempted, attempt};
use crate::dispatch::settlement::{Fate, Settled, Settlement, Settler};
use crate::dispatch::slots::{Position, Slot};
use crate::dispatch::{Dispatch, ERROR_PAUSE};
use crate::feed::retry::retry_pauses;
use crate::resource::due::DueRows;
use crate::source::SourceError;

/// Delivered rows are rescheduled after this time, also while others of their batch are in flight.
const SETTLE_INTERVAL: Duration = Duration::from_secs(1);

/// The pause before rows that other transactions have locked are tried again.
const LOCKED_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause after an error of the database; it grows with each in a row.
const ERROR_PAUSE_MAX: Duration = Duration::from_secs(32);

/// How long PostgreSQL is waited for if rows were taken and not sent.
const RECONNECT_MAX: Duration = Duration::from_secs(60);

/// With a rate, a batch has the rows of so many seconds.
const RATE_SECONDS: usize = 5;

/// Works on slots until the dispatch stops.
pub(super) async fn run(dispatch: Arc<Dispatch>) {
    let mut kept: Option<LeasedConnection> = None;
    let (mut settler, mut row_bytes) = (Settler::new(), ROW_BYTES);
    let mut errors: u32 = 0;
    let mut pauses = retry_pauses(ERROR_PAUSE, ERROR_PAUSE_MAX);
    let is_over = || dispatch.is_stopping();
    while let Some(slot) = dispatch.slots.take(is_over).await {
        dispatch.show_slots();
        // The server ends a session that was idle for long.
        let opened = match kept.take() {
            Some(connection) if connection.lease.is_young() => Ok(connection),
            old => {
                if let Some(old) = old {
                    old.close().await;
                }
                dispatch.connect().await
            }
        };
        let outcome = match opened {
            Ok(connection) => {
                work(&dispatch, connection, &mut settler, &mut row_bytes, &slot).await
            }
            Err(error) => Err(error),
        };
        dispatch.slots.give_back(&slot);
        dispatch.show_slots();
        match outcome {
            Ok(usable) => {
                (kept, errors) = (Some(usable), 0);
                pauses = retry_pauses(ERROR_PAUSE, ERROR_PAUSE_MAX);
            }
            Err(error) => {
                errors += 1;
                dispatch.note_error(&error, errors).await;
                dispatch
                    .pause(pauses.next().unwrap_or(ERROR_PAUSE_MAX))
                    .await;
                dispatch.slots.queue(&slot);
            }
        }
    }
    if let Some(connection) = kept {
        connection.close().await;
    }
}

/// Works on a slot, unless another process does. Returns the connection.
async fn work(
    dispatch: &Arc<Dispatch>,
    mut connection: LeasedConnection,
    settler: &mut Settler,
    row_bytes: &mut usize,
    slot: &Slot,
) -> Result<LeasedConnection, SourceError> {
    let rows = dispatch.rows();
    let lock = lock_number(&rows, slot);
    let locked = connection.run(async |connection| {
        let lock = sqlx::query_scalar("select pg_try_advisory_lock($1)").bind(lock);
        Ok(lock.fetch_one(connection).await?)
    });
    if !locked.await? {
        // It is another process's now, with all that is due there; or the server has not yet ended a session of this one.
        let takeover = dispatch.setup.definition.takeover;
        dispatch.slots.forget_unsettled(slot, takeover * 2);
        return Ok(connection);
    }
    let mut worker = Worker {
        settler,
        row_bytes,
        unsettled: dispatch.slots.take_unsettled(slot),
        dispatch: Arc::clone(dispatch),
        rows,
        connection,
    };
    let outcome = worker.work_on(slot).await;
    dispatch
        .slots
        .keep_unsettled(slot, std::mem::take(&mut worker.unsettled));
    if outcome.is_err() {
        // What was matched and not sent is due again.
        dispatch.slots.with(slot, |state| state.position = None);
    }
    outcome?;
    let mut connection = worker.connection;
    let unlocked = connection.run(async |connection| {
        let unlock = sqlx::query_scalar("select pg_advisory_unlock($1)").bind(lock);
        let unlocked: bool = unlock.fetch_one(connection).await?;
        Ok(unlocked)
    });
    unlocked.await?;
    Ok(connection)
}

/// Returns the number of the slot's advisory lock. Other programs' locks with one number are as unlikely to be it as any.
fn lock_number(rows: &DueRows, slot: &Slot) -> i64 {
    let mut text = format!(
        "larder dispatch\0{}\0{}",
        rows.dispatch, rows.resource.root.table.oid
    );
    for value in slot.iter() {
        text.push('\0');
        text.push_str(value);
    }
    xxh3_64(text.as_bytes()).cast_signed()
}

/// A worker that holds the lock of a slot.
struct Worker<'w> {
    dispatch: Arc<Dispatch>,
    rows: Arc<DueRows>,
    connection: LeasedConnection,
    settler: &'w mut Settler,
    /// The mean bytes of a row in the last match of any slot.
    row_bytes: &'w mut usize,
    /// Rows that were sent and are not rescheduled yet: other transactions have locked them, or PostgreSQL has failed.
    unsettled: Vec<Settlement>,
}

impl Worker<'_> {
    /// Sends the due rows of the slot, until there are none or others wait for a worker.
    async fn work_on(&mut self, slot: &Slot) -> Result<(), SourceError> {
        let dispatch = Arc::clone(&self.dispatch);
        self.settle_rest().await?;
        while dispatch.may_match() && dispatch.slots.unsettled() <= dispatch.unsettled_max() {
            let position = dispatch.slots.with(slot, |state| state.position.clone());
            let began = Instant::now();
            let batch = dispatch.batch();
            let (mut matched, is_end) = self.match_after(slot, position.as_ref(), batch).await?;
            let last = matched.last().map(DueRow::position);
            if position.is_none() {
                let took = began.elapsed();
                dispatch
                    .slots
                    .with(slot, |state| state.beginning.note(took));
            }
            let sent: HashSet<&str> = self.unsettled.iter().map(|one| &*one.row.id).collect();
            matched.retain(|row| !sent.contains(&*row.id));
            let is_whole = matched.is_empty() || self.deliver(matched).await?;
            self.settle_rest().await?;
            // By key, reading begins anew once it has come to the end.
            let goes_on = is_whole && (self.rows.is_due_indexed || !is_end);
            let next = last.or(position).filter(|_| goes_on);
            dispatch.slots.with(slot, |state| state.position = next);
            if is_end || !is_whole || dispatch.slots.has_waiting() {
                break;
            }
        }
        self.leave(slot).await
    }

    async fn match_after(
        &mut self,
        slot: &Slot,
        after: Option<&Position>,
        batch: usize,
    ) -> Result<(Vec<DueRow>, bool), SourceError> {
        let bounds = MatchBounds {
            rows: batch,
            time: self.dispatch.setup.definition.takeover / 3,
            document_bytes: self.dispatch.setup.document_bytes_max,
        };
        match_rows(
            &mut self.connection,
            &self.rows,
            slot,
            after,
            &bounds,
            self.row_bytes,
        )
        .await
    }

    /// Waits for locked rows within bounds, and notes when the slot is read again.
    async fn leave(&mut self, slot: &Slot) -> Result<(), SourceError> {
        let until = Instant::now() + self.dispatch.setup.definition.takeover;
        while !self.unsettled.is_empty() && Instant::now() < until {
            sleep(LOCKED_PAUSE).await;
            self.settle_rest().await?;
        }
        if !self.unsettled.is_empty() {
            let rows = self.unsettled.len();
            tracing::warn!(
                "dispatch {}: {rows} rows that were sent are locked by other transactions; another process may send them again",
                self.dispatch.name()
            );
            self.dispatch
                .slots
                .with(slot, |state| state.position = None);
        }
        if !self.rows.is_due_indexed {
            self.note_earliest(slot).await?;
        }
        Ok(())
    }

    /// Notes when the next row of the slot is due, which is when it is read again without an index on the due moment.
    async fn note_earliest(&mut self, slot: &Slot) -> Result<(), SourceError> {
        let sql = self.rows.earliest_sql();
        let earliest: Option<f64> = self
            .connection
            .run(async |connection| {
                let mut query = sqlx::query_scalar(sqlx::AssertSqlSafe(sql));
                for value in slot.iter() {
                    query = query.bind(value);
                }
                Ok(query.fetch_one(connection).await?)
            })
            .await?;
        let pause_min = self.dispatch.setup.definition.poll_interval.as_secs_f64();
        // A row that is due already was locked, or has become due meanwhile.
        let pause = match earliest {
            Some(..=0.0) => 0.0,
            earliest => (earliest.unwrap_or(f64::MAX)).clamp(pause_min.min(60.0), 60.0),
        };
        let look_at = Instant::now() + Duration::from_secs_f64(pause);
        self.dispatch
            .slots
            .with(slot, |state| state.look_at = Some(look_at));
        Ok(())
    }

    /// Has rows sent and rescheduled. Returns whether all of them were sent.
    async fn deliver(&mut self, rows: Vec<DueRow>) -> Result<bool, SourceError> {
        let sink = &self.dispatch.sink;
        let rows = rows.into_iter().map(|row| DueRow {
            fault: row.fault.clone().or_else(|| sink.fault(&row)),
            ..row
        });
        let (unfit, rows): (Vec<DueRow>, Vec<DueRow>) = rows.partition(|row| row.fault.is_some());
        let dead = unfit.into_iter().map(|row| Settlement {
            fate: Fate::Dead {
                error: row.fault.clone().unwrap_or_default(),
            },
            row,
        });
        self.settle(dead.collect()).await?;
        match self.dispatch.setup.definition.delivery {
            Delivery::AtLeastOnce => {
                let (unsent, outcome) = self.send(rows, true).await;
                outcome.map(|()| unsent.is_empty())
            }
            Delivery::AtMostOnce => self.take_and_send(rows).await,
        }
    }

    /// Reschedules rows, and has those sent whose due moment was still the matched one. The rows that a closed sink holds back
    /// wait in memory. What was not sent in the end gets its due moment back.
    async fn take_and_send(&mut self, rows: Vec<DueRow>) -> Result<bool, SourceError> {
        let delivered = rows.into_iter().map(|row| Settlement {
            row,
            fate: Fate::Delivered,
        });
        let mut settled = Vec::new();
        let settling = self.settler.settle(
            &mut self.connection,
            &self.rows,
            delivered.collect(),
            &mut settled,
        );
        let mut outcome = settling.await.map_err(|(error, _)| error);
        let mut unsent = Vec::new();
        let mut taken: HashMap<String, Option<String>> = HashMap::new();
        for (settlement, settled) in settled {
            match settled {
                Settled::Moved(due) => {
                    taken.insert(settlement.row.id.clone(), due);
                    unsent.push(settlement.row);
                }
                Settled::Stuck(error) if outcome.is_ok() => {
                    outcome = self.note_stuck(&settlement.row, &error).await;
                }
                // It is matched again.
                Settled::Stuck(_) => {}
                Settled::Changed | Settled::Locked => self.dispatch.count("changed", 1),
            }
        }
        if outcome.is_ok() {
            outcome = self.send_taken(&mut unsent).await;
        }
        let is_whole = unsent.is_empty();
        let failed = std::mem::take(&mut self.unsettled);
        if is_whole && failed.is_empty() {
            return outcome.map(|()| true);
        }
        if outcome.is_err() {
            self.connection = self.dispatch.connect_patiently(unsent.len()).await?;
        }
        let given = self.give_back(&unsent, &taken).await;
        self.store_failed(failed).await?;
        given.and(outcome).map(|()| is_whole)
    }

    /// Gives rows that were taken and not sent their due moments back. If the connection is lost, another one goes on.
    async fn give_back(
        &mut self,
        unsent: &[DueRow],
        taken: &HashMap<String, Option<String>>,
    ) -> Result<(), SourceError> {
        let mut is_first = true;
        loop {
            let takeover = self.dispatch.setup.definition.takeover;
            let connection = &mut self.connection;
            match letters::give_back(connection, &self.rows, unsent, taken, takeover).await {
                Ok(dead) => {
                    self.dispatch.count_dead("dead", dead);
                    return Ok(());
                }
                Err(error) if std::mem::take(&mut is_first) && error.is_connection_error() => {
                    self.connection = self.dispatch.connect_patiently(unsent.len()).await?;
                }
                Err(error) => {
                    tracing::error!(
                        "dispatch {}: of {} rows that were taken and not sent, some may not be due again: {error}",
                        self.dispatch.name(),
                        unsent.len()
                    );
                    return Err(error);
                }
            }
        }
    }

    /// Has taken rows sent, until all are, or the dispatch stops.
    async fn send_taken(&mut self, unsent: &mut Vec<DueRow>) -> Result<(), SourceError> {
        loop {
            let (left, outcome) = self.send(std::mem::take(unsent), false).await;
            *unsent = left;
            outcome?;
            if unsent.is_empty() || self.dispatch.is_stopping() {
                return Ok(());
            }
            // A pause that operators have made ends at no known moment.
            let pause_max = self.dispatch.setup.definition.takeover / 3;
            let at = self.dispatch.breaker.opens_at();
            let pause = at.map_or(SETTLE_INTERVAL, |at| {
                at.saturating_duration_since(Instant::now())
            });
            self.dispatch
                .pause(pause.clamp(LOCKED_PAUSE, pause_max))
                .await;
            self.connection.ping().await?;
        }
    }

    /// Has rows sent, and with `settles` rescheduled. Returns those that were not sent. If the connection is lost, so is the
    /// lock of the slot: no further request begins, and what the others came to is in `unsettled`.
    async fn send(
        &mut self,
        rows: Vec<DueRow>,
        settles: bool,
    ) -> (Vec<DueRow>, Result<(), SourceError>) {
        let definition = &self.dispatch.setup.definition;
        let (sink, takeover) = (&definition.sink, definition.takeover);
        let mut requests = JoinSet::new();
        for request in divide(rows, sink.rows, sink.bytes) {
            let (dispatch, lease) = (Arc::clone(&self.dispatch), self.connection.lease.clone());
            requests.spawn(async move { attempt(&dispatch, &lease, request).await });
        }
        let pause = SETTLE_INTERVAL.min(takeover / 3);
        let mut ticks = interval_at(Instant::now() + pause, pause);
        let (mut unsent, mut ended, mut outcome) = (Vec::new(), Vec::new(), Ok(()));
        loop {
            let noted = tokio::select! {
                attempted = requests.join_next() => match attempted {
                    None => break,
                    Some(Ok(Attempted { rows, answer: Some(answer) })) => {
                        ended.extend(self.dispatch.fates(rows, answer, &mut unsent));
                        Ok(())
                    }
                    Some(Ok(Attempted { rows, answer: None })) => {
                        unsent.extend(rows);
                        Ok(())
                    }
                    Some(Err(error)) => Err(SourceError::Unexpected(error.to_string())),
                },
                _ = ticks.tick(), if outcome.is_ok() => {
                    self.note(std::mem::take(&mut ended), settles).await
                }
            };
            if noted.is_err() {
                self.connection.lease.end();
                outcome = noted;
            }
        }
        if outcome.is_ok() {
            outcome = self.note(ended, settles).await;
        } else {
            self.unsettled.extend(ended);
        }
        (unsent, outcome)
    }

    /// Reschedules rows, or stores those that failed; either way PostgreSQL hears of this process.
    async fn note(&mut self, ended: Vec<Settlement>, settles: bool) -> Result<(), SourceError> {
        if settles && !ended.is_empty() {
            return self.settle(ended).await;
        }
        let pinged = self.connection.ping().await;
        if pinged.is_err() {
            self.unsettled.extend(ended);
            return pinged;
        }
        self.store_failed(ended).await
    }

    /// Stores rows that failed as dead letters: taken rows have no second attempt. Those that can't be stored are kept for later.
    async fn store_failed(&mut self, ended: Vec<Settlement>) -> Result<(), SourceError> {
        let mut ended = ended.into_iter();
        while let Some(settlement) = ended.next() {
            match &settlement.fate {
                Fate::Delivered => self.dispatch.count("delivered", 1),
                Fate::Failed { error, .. } | Fate::Dead { error } => {
                    if let Err(error) = self.store(&settlement.row, error, false).await {
                        self.unsettled.push(settlement);
                        self.unsettled.extend(ended);
                        return Err(error);
                    }
                    self.dispatch.count_dead("dead", 1);
                }
            }
        }
        Ok(())
    }

    /// Reschedules rows that were sent. Those that other transactions have locked are kept for later, as are all after an error.
    async fn settle(&mut self, settlements: Vec<Settlement>) -> Result<(), SourceError> {
        let mut settled = Vec::new();
        let settling =
            self.settler
                .settle(&mut self.connection, &self.rows, settlements, &mut settled);
        let mut outcome = Ok(());
        if let Err((error, rest)) = settling.await {
            self.unsettled.extend(rest);
            outcome = Err(error);
        }
        let mut delivered = 0;
        for (settlement, settled) in settled {
            match (settled, &settlement.fate) {
                (Settled::Moved(_), Fate::Delivered) => delivered += 1,
                (Settled::Moved(_), Fate::Failed { .. }) => self.dispatch.count("failed", 1),
                (Settled::Moved(_), Fate::Dead { .. }) => self.dispatch.count_dead("dead", 1),
                (Settled::Changed, _) => self.dispatch.count("changed", 1),
                (Settled::Locked, _) => self.unsettled.push(settlement),
                (Settled::Stuck(_), _) if outcome.is_err() => self.unsettled.push(settlement),
                (Settled::Stuck(error), _) => {
                    outcome = self.note_stuck(&settlement.row, &error).await;
                }
            }
        }
        self.dispatch.count("delivered", delivered);
        outcome
    }

    async fn settle_rest(&mut self) -> Result<(), SourceError> {
        let unsettled = std::mem::take(&mut self.unsettled);
        if unsettled.is_empty() {
            return Ok(());
        }
        self.settle(unsettled).await
    }

    /// Stores that a row can't be rescheduled, so that it is matched no more while it has this due moment.
    async fn note_stuck(&mut self, row: &DueRow, error: &str) -> Result<(), SourceError> {
        self.dispatch.count_dead("stuck", 1);
        tracing::warn!(
            "dispatch {}: the row with the key {} can't be rescheduled: {error}",
            self.dispatch.name(),
            row.key
        );
        self.store(row, error, true).await
    }

    async fn store(
        &mut self,
        row: &DueRow,
        error: &str,
        is_stuck: bool,
    ) -> Result<(), SourceError> {
        let rows = &self.rows;
        let storing = self
            .connection
            .run(async |connection| letters::store(connection, rows, row, error, is_stuck).await);
        storing.await
    }
}

impl Dispatch {
    async fn connect(&self) -> Result<LeasedConnection, SourceError> {
        let takeover = self.setup.definition.takeover;
        // A statement that went on after it was given up would keep the slot.
        let database = &self.setup.database;
        let connection = database
            .connect_for_dispatch(takeover, takeover * 3 / 4)
            .await?;
        Ok(LeasedConnection::new(connection, takeover))
    }

    /// Opens a connection for what is known of `rows` rows that were taken; waits for PostgreSQL within bounds.
    async fn connect_patiently(&self, rows: usize) -> Result<LeasedConnection, SourceError> {
        let until = Instant::now() + RECONNECT_MAX;
        loop {
            match self.connect().await {
                Err(error) if Instant::now() >= until => {
                    tracing::error!(
                        "dispatch {}: {rows} rows were taken and are not sent: {error}",
                        self.name()
                    );
                    return Err(error);
                }
                Err(_) => sleep(ERROR_PAUSE).await,
                connected => return connected,
            }
        }
    }

    /// Returns the rows of a batch: with a rate, at most those of some seconds, since the application may change rows that
    /// wait.
    fn batch(&self) -> usize {
        let definition = &self.setup.definition;
        let of_rate = usize::try_from(definition.rate).unwrap_or(usize::MAX);
        match of_rate.saturating_mul(RATE_SECONDS) {
            0 => definition.batch,
            rows => definition.batch.min(rows.max(definition.sink.rows)),
        }
    }

    /// Returns the most rows of this process that were sent and are not rescheduled.
    fn unsettled_max(&self) -> usize {
        let definition = &self.setup.definition;
        definition.batch.saturating_mul(definition.connections)
    }

    fn count(&self, result: &str, rows: u64) {
        let counter = self.metrics.rows.with_label_values(&[self.name(), result]);
        counter.inc_by(rows);
    }

    fn count_dead(&self, result: &str, rows: u64) {
        self.dead_letters.fetch_add(rows, Ordering::Relaxed);
        self.count(result, rows);
    }

    fn show_slots(&self) {
        let slots = i64::try_from(self.slots.worked()).unwrap_or(i64::MAX);
        self.metrics
            .slots
            .with_label_values(&[self.name()])
            .set(slots);
    }
}
