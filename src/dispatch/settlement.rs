//! Rescheduling: what becomes of rows after an attempt.
//!
//! A row is rescheduled only while its due moment is the matched one, so the application's changes win. Rows that other
//! transactions have locked are passed over, and tried again later. One statement holds the locks of rows for a short time
//! only: it has as many rows as fit that time by the statements before.

use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};
use tokio::time::Instant;

use crate::dispatch::DispatchError;
use crate::dispatch::batch::DueRow;
use crate::dispatch::definition::DispatchDefinition;
use crate::dispatch::lease::LeasedConnection;
use crate::resource::definition::Mistake;
use crate::resource::due::DueRows;
use crate::source::SourceError;
use crate::source::loader::bind_keys;

/// How long a statement should hold locks of rows: below the 50 ms that an application may have to wait.
const LOCKS_TIME: Duration = Duration::from_millis(25);
/// The rows of the first statement.
const CHUNK_ROWS: usize = 100;
const CHUNK_ROWS_MIN: usize = 10;

/// The most characters of an error that are stored.
const ERROR_CHARS_MAX: usize = 1_000;

/// Attempts to run a statement that other transactions prevent.
const TRIES: u32 = 4;
const TRY_PAUSE: Duration = Duration::from_millis(100);

/// What an attempt to send a row came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It was delivered.
    Delivered,
    /// It failed, and is tried again after a pause.
    Failed {
        /// Why.
        error: String,
        /// The pause.
        delay: Duration,
    },
    /// It failed, and no attempt is left.
    Dead {
        /// Why.
        error: String,
    },
}

/// A row with what its attempt came to.
#[derive(Clone, Debug)]
pub(super) struct Settlement {
    pub(super) row: DueRow,
    pub(super) fate: Fate,
}

/// What became of a settlement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// The row has a new due moment, which is told only if the dispatch needs it; or it was deleted.
    Moved(Option<String>),
    /// The row is gone, or the application has set another due moment.
    Changed,
    /// Another transaction has locked the row.
    Locked,
    /// The row can't be rescheduled; says why.
    Stuck(String),
}

/// Reschedules rows over one connection.
pub(super) struct Settler {
    /// The rows of the next statement.
    chunk: usize,
}

impl Settler {
    pub(super) fn new() -> Self {
        Self { chunk: CHUNK_ROWS }
    }

    /// Reschedules rows, and adds to `settled` what became of each.
    ///
    /// # Errors
    /// The connection is lost, or PostgreSQL can't write now; with the rows of which is not known whether they are rescheduled.
    pub(super) async fn settle(
        &mut self,
        connection: &mut LeasedConnection,
        rows: &DueRows,
        settlements: Vec<Settlement>,
        settled: &mut Vec<(Settlement, Settled)>,
    ) -> Result<(), (SourceError, Vec<Settlement>)> {
        // The last part is next.
        let mut parts = vec![settlements];
        while let Some(mut part) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            if part.len() > self.chunk {
                let rest = part.split_off(self.chunk);
                parts.push(rest);
            }
            let began = Instant::now();
            let error = match run_patiently(connection, rows, &part).await {
                Ok(outcomes) => {
                    self.measure(part.len(), began.elapsed());
                    settled.extend(part.into_iter().zip(outcomes));
                    continue;
                }
                Err(error) => error,
            };
            if !is_of_a_row(connection, rows, &error).await {
                self.chunk = (self.chunk / 4).max(1);
                parts.push(part);
                return Err((error, parts.concat()));
            }
            if part.len() == 1 {
                let stuck = Settled::Stuck(error.to_string());
                settled.extend(part.into_iter().map(|one| (one, stuck.clone())));
            } else {
                let half = part.split_off(part.len() / 2);
                parts.extend([half, part]);
            }
        }
        Ok(())
    }

    /// Adapts the number of rows to the time that a statement took.
    fn measure(&mut self, rows: usize, took: Duration) {
        let fitting = rows as f64 * LOCKS_TIME.as_secs_f64() / took.as_secs_f64().max(1e-6);
        // A short statement says little about a long one.
        let most = rows.max(self.chunk / 2) * 2;
        // A statement may take longer whatever its rows are: the commit, the way to the server.
        let least = if took < LOCKS_TIME * 10 {
            CHUNK_ROWS_MIN
        } else {
            rows.min(CHUNK_ROWS_MIN)
        };
        self.chunk = (fitting as usize).clamp(least, most.max(least));
    }
}

/// Runs the statement again if other transactions prevented it.
async fn run_patiently(
    connection: &mut LeasedConnection,
    rows: &DueRows,
    settlements: &[Settlement],
) -> Result<Vec<Settled>, SourceError> {
    let mut tries = 1;
    loop {
        let running = connection.run(async |connection| run(connection, rows, settlements).await);
        match running.await {
            Err(error) if tries < TRIES && (error.is_conflict() || error.is_lock_timeout()) => {
                tries += 1;
                tokio::time::sleep(TRY_PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

async fn run(
    connection: &mut PgConnection,
    rows: &DueRows,
    settlements: &[Settlement],
) -> Result<Vec<Settled>, SourceError> {
    let keys: Vec<&str> = settlements.iter().map(|one| &*one.row.key).collect();
    let is_plain = |one: &Settlement| one.row.attempt == 1 && one.fate == Fate::Delivered;
    // Without rows the whole statement is checked.
    let is_plain = !settlements.is_empty() && settlements.iter().all(is_plain);
    let sql = rows.settle_sql(is_plain);
    let query = bind_keys(sqlx::query(AssertSqlSafe(sql)), &rows.resource.key, &keys)?;
    let of_row = |of: fn(&DueRow) -> &str| {
        let values = settlements.iter().map(|one| of(&one.row));
        values.collect::<Vec<&str>>()
    };
    let delays = settlements.iter().map(|one| match &one.fate {
        Fate::Failed { delay, .. } => Some(delay.as_secs_f64()),
        _ => None,
    });
    let errors = settlements.iter().map(|one| match &one.fate {
        Fate::Failed { error, .. } | Fate::Dead { error } => Some(storable(error, rows)),
        Fate::Delivered => None,
    });
    let dead = |of: fn(&DueRow) -> &str| {
        let values = settlements
            .iter()
            .map(|one| matches!(one.fate, Fate::Dead { .. }).then(|| of(&one.row)));
        values.collect::<Vec<Option<&str>>>()
    };
    let mut query = query.bind(of_row(|row| &row.due));
    if !is_plain {
        query = query
            .bind(delays.collect::<Vec<_>>())
            .bind(
                settlements
                    .iter()
                    .map(|one| one.row.attempt)
                    .collect::<Vec<_>>(),
            )
            .bind(of_row(|row| &row.first_due))
            .bind(errors.collect::<Vec<_>>())
            .bind(dead(|row| &row.id))
            .bind(dead(element_text));
    }
    let mut settled = vec![Settled::Moved(None); settlements.len()];
    for row in query.fetch_all(connection).await? {
        let number: i64 = row.try_get("n")?;
        let place = usize::try_from(number - 1)
            .ok()
            .and_then(|place| settled.get_mut(place));
        let place = place.ok_or_else(|| SourceError::Unexpected("a row of no number".into()))?;
        let is_later: Option<bool> = row.try_get("is_later")?;
        *place = if is_later == Some(true) {
            Settled::Moved(row.try_get("due")?)
        } else if row.try_get("locked")? {
            let why = "its new due moment is not later than the old one, or a trigger keeps the row as it is";
            Settled::Stuck(why.to_owned())
        } else if row.try_get("waiting")? {
            Settled::Locked
        } else {
            Settled::Changed
        };
    }
    Ok(settled)
}

/// Returns the element of a row as text.
pub(super) fn element_text(row: &DueRow) -> &str {
    // It was made of text.
    std::str::from_utf8(&row.element).unwrap_or("null")
}

/// Makes a text of bounded length that the database can store.
pub(super) fn storable(error: &str, rows: &DueRows) -> String {
    let is_stored = |c: &char| *c != '\0' && (rows.is_utf8 || c.is_ascii());
    error
        .chars()
        .filter(is_stored)
        .take(ERROR_CHARS_MAX)
        .collect()
}

/// Returns whether a statement failed because of one of its rows: of a value, of a constraint, or by a trigger of users,
/// which may raise any error. What makes a statement without rows fail as well is of none.
async fn is_of_a_row(
    connection: &mut LeasedConnection,
    rows: &DueRows,
    error: &SourceError,
) -> bool {
    if !may_be_of_a_row(error) {
        return false;
    }
    let running = connection.run(async |connection| run(connection, rows, &[]).await);
    running.await.is_ok()
}

/// Returns whether an error may be that of one row.
pub(super) fn may_be_of_a_row(error: &SourceError) -> bool {
    let SourceError::Refused { code, .. } = error else {
        return false;
    };
    // The state of the transaction, the login, conflicts, objects that are in use or not in the right state, the system
    // (PostgreSQL manual, appendix A).
    let of_others = ["25", "28", "3D", "40", "55", "58", "XX"];
    !of_others.contains(&code.get(..2).unwrap_or_default())
}

/// Checks that PostgreSQL takes the statement that reschedules rows.
///
/// # Errors
/// [`DispatchError::Unfit`] if it refuses the expression of `next`; else what it says.
pub(super) async fn check_settlement(
    connection: &mut PgConnection,
    definition: &DispatchDefinition,
    rows: &DueRows,
) -> Result<(), DispatchError> {
    let checked = run(connection, rows, &[]).await;
    match (checked, &definition.next) {
        (Ok(_), _) => Ok(()),
        (Err(error @ SourceError::Refused { .. }), Some(next)) if !error.is_privilege_error() => {
            let mistake = Mistake {
                place: next.place.clone(),
                message: format!("PostgreSQL refuses the expression: {error}"),
            };
            Err(DispatchError::Unfit(vec![mistake]))
        }
        (Err(error), _) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_have_as_many_rows_as_fit_the_time() {
        let mut settler = Settler { chunk: 200 };
        for (rows, took, chunk) in [
            (200, 5, 400),
            (400, 10, 800),
            (800, 100, 200),
            (3, 1, 75),
            (75, 1_000, 10),
            (10, 40, 10),
            (3, 1_000, 3),
            (1, 1, 10),
        ] {
            settler.measure(rows, Duration::from_millis(took));
            assert_eq!(settler.chunk, chunk, "{rows} in {took} ms");
        }
    }

    #[test]
    fn only_errors_of_rows_divide_a_batch() {
        let refused = |code: &str| SourceError::Refused {
            code: code.to_owned(),
            message: String::new(),
        };
        for (code, expected) in [
            ("23514", true),
            ("22003", true),
            ("P0001", true),
            ("44000", true),
            ("U0001", true),
            ("40001", false),
            ("40P01", false),
            ("55P03", false),
            ("25006", false),
            ("42P01", true),
            ("27000", true),
            ("54000", true),
            ("XX000", false),
        ] {
            assert_eq!(may_be_of_a_row(&refused(code)), expected, "{code}");
        }
        assert!(!may_be_of_a_row(&SourceError::no_response()));
        assert!(!may_be_of_a_row(&SourceError::Timeout));
    }
}
