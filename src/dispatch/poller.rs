//! The poller: finds slots with due rows.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};
use tokio::time::Instant;

use crate::dispatch::Dispatch;
use crate::dispatch::fit::read_rows;
use crate::dispatch::slots::{Beginning, Slot};
use crate::resource::due::{DueRows, SLOTS_MAX};
use crate::source::SourceError;

/// The pause between two deletions of what is known of attempts for rows that were changed since.
const HOUSEKEEPING_PAUSE: Duration = Duration::from_secs(600);

/// The pause of all processes is read at least so often.
const PAUSE_READ_MAX: Duration = Duration::from_secs(5);

/// After so many pauses between two polls the table is looked at again: it may have been replaced, and no statement fails then;
/// or it has more columns, or an index on the due moment.
const RENEW_POLLS: u32 = 10;

/// The shortest pause before that: all resources are read.
const RENEW_MIN: Duration = Duration::from_secs(5);

/// The longest time that a look may take.
const POLL_MAX: Duration = Duration::from_secs(60);

/// Looks for due rows until the dispatch stops; with `once`, until there are none.
pub(super) async fn run(dispatch: Arc<Dispatch>) {
    let pause = dispatch.setup.definition.poll_interval.min(PAUSE_READ_MAX);
    let mut errors = 0;
    let mut poller = Poller {
        connection: None,
        polled_at: None,
        listing: Beginning::default(),
        cleaned_at: Instant::now(),
        renewed_at: Instant::now(),
        dispatch: Arc::clone(&dispatch),
    };
    let mut stopped = dispatch.stop.subscribe();
    while !dispatch.is_stopping() {
        dispatch.note_rate();
        let polled = tokio::select! {
            polled = tokio::time::timeout(POLL_MAX, poller.poll()) => polled,
            _ = stopped.wait_for(|stop| *stop) => break,
        };
        match polled.unwrap_or_else(|_| Err(SourceError::no_response())) {
            Ok(()) => errors = 0,
            Err(error) => {
                poller.connection = None;
                errors += 1;
                dispatch.note_error(&error, errors).await;
            }
        }
        dispatch.pause(pause).await;
    }
}

struct Poller {
    dispatch: Arc<Dispatch>,
    connection: Option<PgConnection>,
    /// When it has looked for due rows last.
    polled_at: Option<Instant>,
    /// The last time that all slots were listed.
    listing: Beginning,
    /// When housekeeping was done last.
    cleaned_at: Instant,
    /// When the table's definition was read last.
    renewed_at: Instant,
}

impl Poller {
    async fn poll(&mut self) -> Result<(), SourceError> {
        let dispatch = Arc::clone(&self.dispatch);
        let interval = dispatch.setup.definition.poll_interval;
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                // The session is idle between two polls.
                let takeover = dispatch.setup.definition.takeover.max(interval * 3);
                dispatch
                    .setup
                    .database
                    .connect_for_dispatch(takeover, Duration::MAX)
                    .await?
            }
        };
        let is_paused = read_pause(&mut connection, dispatch.name()).await?;
        dispatch.note_pause(is_paused);
        if self.renewed_at.elapsed() > (interval * RENEW_POLLS).clamp(RENEW_MIN, POLL_MAX) {
            self.renewed_at = Instant::now();
            dispatch.renew_rows(read_rows(&mut connection, &dispatch.setup).await);
        }
        let rows = dispatch.rows();
        let is_time = self.polled_at.is_none_or(|at| at.elapsed() >= interval);
        if dispatch.may_match() && is_time {
            self.polled_at = Some(Instant::now());
            if self.listing.is_over(interval) {
                let began = Instant::now();
                let slots = list_slots(&mut connection, &rows).await?;
                self.listing.note(began.elapsed());
                dispatch.slots.replace(slots);
            }
            dispatch.slots.queue_unsettled();
            self.find_due(&mut connection, &rows).await?;
        } else if dispatch.setup.once && (is_paused || dispatch.breaker.is_open()) {
            dispatch.note_held_back(is_paused);
        }
        if self.cleaned_at.elapsed() > HOUSEKEEPING_PAUSE {
            self.cleaned_at = Instant::now();
            let clean = sqlx::query(AssertSqlSafe(rows.housekeeping_sql()));
            clean.execute(&mut connection).await?;
        }
        self.connection = Some(connection);
        Ok(())
    }

    /// Queues the slots that have due rows.
    async fn find_due(
        &mut self,
        connection: &mut PgConnection,
        rows: &DueRows,
    ) -> Result<(), SourceError> {
        let dispatch = &self.dispatch;
        if !rows.is_due_indexed {
            let now = Instant::now();
            let due = dispatch
                .slots
                .idle(|slot| slot.look_at.is_none_or(|at| at <= now));
            let due = due.into_iter().filter(|(_, is_due)| *is_due);
            due.for_each(|(slot, _)| dispatch.slots.queue(&slot));
            self.end_if_idle();
            return Ok(());
        }
        let (interval, once) = (dispatch.setup.definition.poll_interval, dispatch.setup.once);
        let asked = dispatch.slots.idle(|slot| {
            let begins = once || slot.beginning.is_over(interval);
            if begins {
                slot.position = None;
            }
            let from = slot.position.as_ref().map(|position| position.due.clone());
            (from, begins)
        });
        if asked.is_empty() {
            self.end_if_idle();
            return Ok(());
        }
        let began = Instant::now();
        let due = poll_slots(connection, rows, &asked).await?;
        let took = began.elapsed();
        for (slot, (_, begins)) in &asked {
            dispatch.slots.with(slot, |state| {
                state.lag = 0.0;
                if *begins {
                    state.beginning.note(took);
                }
            });
        }
        for (number, age) in &due {
            if let Some((slot, _)) = asked.get(*number) {
                dispatch.slots.with(slot, |state| state.lag = *age);
                dispatch.slots.queue(slot);
            }
        }
        let lag = dispatch.metrics.lag.with_label_values(&[dispatch.name()]);
        lag.set(dispatch.slots.lag());
        self.end_if_idle();
        Ok(())
    }

    /// Ends the dispatch with `once` if no slot has due rows.
    fn end_if_idle(&self) {
        if self.dispatch.setup.once && self.dispatch.slots.is_idle() {
            self.dispatch.stop();
        }
    }
}

async fn read_pause(connection: &mut PgConnection, name: &str) -> Result<bool, SourceError> {
    let sql = "select is_paused from larder.dispatch where name = $1";
    let paused: Option<bool> = sqlx::query_scalar(sql)
        .bind(name)
        .fetch_optional(connection)
        .await?;
    Ok(paused.unwrap_or(false))
}

pub(super) async fn list_slots(
    connection: &mut PgConnection,
    rows: &DueRows,
) -> Result<Vec<Slot>, SourceError> {
    let columns = rows.partition.len();
    if columns == 0 {
        return Ok(vec![Slot::from([])]);
    }
    let listed = sqlx::query(AssertSqlSafe(rows.slots_sql()))
        .fetch_all(connection)
        .await?;
    if listed.len() > SLOTS_MAX {
        return Err(SourceError::Unexpected(format!(
            "there are more than {SLOTS_MAX} slots"
        )));
    }
    let mut slots = Vec::with_capacity(listed.len());
    for row in listed {
        let values = (0..columns).map(|column| row.try_get(column));
        slots.push(values.collect::<Result<Slot, sqlx::Error>>()?);
    }
    Ok(slots)
}

/// Asks for those of the slots that have due rows: the place of each in `asked`, and how many seconds its first row has been
/// due.
async fn poll_slots(
    connection: &mut PgConnection,
    rows: &DueRows,
    asked: &[(Slot, (Option<String>, bool))],
) -> Result<Vec<(usize, f64)>, SourceError> {
    let mut query = sqlx::query(AssertSqlSafe(rows.poll_sql()));
    for column in 0..rows.partition.len() {
        let values = asked.iter().map(|(slot, _)| slot.get(column).cloned());
        query = query.bind(values.collect::<Vec<Option<String>>>());
    }
    let from = asked
        .iter()
        .map(|(_, (from, _))| from.as_deref().unwrap_or(rows.due_type.first()));
    query = query.bind(from.collect::<Vec<&str>>());
    let mut due = Vec::new();
    for row in query.fetch_all(connection).await? {
        let number: i64 = row.try_get(0)?;
        due.push((
            usize::try_from(number - 1).unwrap_or(usize::MAX),
            row.try_get(1)?,
        ));
    }
    Ok(due)
}
