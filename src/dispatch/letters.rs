//! Dead letters: rows that no attempt is left for, or that can't be rescheduled.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row};
use tokio::time::{Instant, sleep};

use crate::dispatch::DispatchError;
use crate::dispatch::batch::DueRow;
use crate::dispatch::definition::DispatchDefinition;
use crate::dispatch::lease::LeasedConnection;
use crate::dispatch::settlement::{element_text, may_be_of_a_row, storable};
use crate::dispatch::sink::{Answer, Sink};
use crate::resource::due::DueRows;
use crate::source::SourceError;
use crate::source::loader::bind_keys;

/// The pause before rows that other transactions have locked are given back again.
const RESTORE_PAUSE: Duration = Duration::from_millis(50);

/// The letters that are read at a time.
const PAGE: i64 = 500;

/// Letters of the dispatch `$1` after the id `$2`, with one of the keys `$3`.
const LETTERS_SQL: &str = "\
    select id, key, due, element, attempts, error, is_stuck, dead_at::text from larder.dead_letter \
    where dispatch = $1 and id > $2 and ($3::text[] is null or key = any($3)) order by id limit $4";

/// A dead letter.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// The id of the delivery.
    pub id: String,
    /// The canonical text of the row's key.
    pub key: String,
    /// What was sent.
    pub element: String,
    /// Attempts that failed.
    pub attempts: i32,
    /// Why the last attempt failed.
    pub error: String,
    /// The row can't be rescheduled, and is matched no more while it has its due moment.
    pub is_stuck: bool,
    /// When it became a dead letter, in UTC.
    pub dead_at: String,
    due: String,
}

/// Stores a row as a dead letter.
pub(super) async fn store(
    connection: &mut PgConnection,
    rows: &DueRows,
    row: &DueRow,
    error: &str,
    is_stuck: bool,
) -> Result<(), SourceError> {
    let sql = "insert into larder.dead_letter as d (dispatch, id, key, due, element, attempts, error, is_stuck) \
               values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict (dispatch, id) do update set due = excluded.due, \
               element = excluded.element, attempts = excluded.attempts, error = excluded.error, \
               is_stuck = excluded.is_stuck, dead_at = now()";
    let store = sqlx::query(sql)
        .bind(&rows.dispatch)
        .bind(&row.id)
        .bind(&row.key)
        .bind(&row.due)
        .bind(element_text(row))
        .bind(row.attempt)
        .bind(storable(error, rows))
        .bind(is_stuck);
    store.execute(connection).await?;
    Ok(())
}

/// Gives rows that were taken and not sent their former due moments back; those that were deleted, or can't get it within
/// `patience`, become dead letters. `taken` has the present moment of each by its id. Returns the number of dead letters. A
/// second call goes on after the connection of the first one was lost.
pub(super) async fn give_back(
    connection: &mut LeasedConnection,
    rows: &DueRows,
    unsent: &[DueRow],
    taken: &HashMap<String, Option<String>>,
    patience: Duration,
) -> Result<u64, SourceError> {
    let (mut lost, mut waiting) = (Vec::new(), Vec::new());
    for row in unsent {
        match taken.get(&row.id).and_then(Option::as_deref) {
            Some(now) => waiting.push((row, now)),
            None => lost.push((row, "it has no due moment to go back to".to_owned())),
        }
    }
    let until = Instant::now() + patience;
    while !waiting.is_empty() {
        let (kept, refused) = restore_all(connection, rows, waiting).await?;
        lost.extend(refused);
        if Instant::now() >= until {
            let why = "another transaction has locked it, or a trigger keeps it as it is";
            lost.extend(kept.into_iter().map(|(row, _)| (row, why.to_owned())));
            break;
        }
        if !kept.is_empty() {
            sleep(RESTORE_PAUSE).await;
        }
        waiting = kept;
    }
    let mut dead = 0;
    for (row, why) in lost {
        let error = format!("the row was taken and not sent, and it is not due again: {why}");
        let storing =
            connection.run(async |connection| store(connection, rows, row, &error, false).await);
        storing.await?;
        dead += 1;
    }
    Ok(dead)
}

/// A row, and its present due moment.
type Moved<'r> = (&'r DueRow, &'r str);

/// Gives rows their former due moments back, as far as possible. Returns those that can get theirs later, and those that are
/// refused, with the reason.
async fn restore_all<'r>(
    connection: &mut LeasedConnection,
    rows: &DueRows,
    moved: Vec<Moved<'r>>,
) -> Result<(Vec<Moved<'r>>, Vec<(&'r DueRow, String)>), SourceError> {
    let (mut kept, mut refused) = (Vec::new(), Vec::new());
    let mut parts = vec![moved];
    while let Some(mut part) = parts.pop() {
        let restoring = connection.run(async |connection| restore(connection, rows, &part).await);
        match restoring.await {
            Ok(rest) => kept.extend(rest),
            Err(error) if error.is_connection_error() => return Err(error),
            Err(error) if !may_be_of_a_row(&error) => kept.extend(part),
            Err(error) if part.len() == 1 => {
                refused.extend(part.iter().map(|(row, _)| (*row, error.to_string())));
            }
            Err(_) => {
                let half = part.split_off(part.len() / 2);
                parts.extend([half, part]);
            }
        }
    }
    Ok((kept, refused))
}

/// Gives rows their former due moments back. Returns those that still have the present one.
async fn restore<'r>(
    connection: &mut PgConnection,
    rows: &DueRows,
    moved: &[Moved<'r>],
) -> Result<Vec<Moved<'r>>, SourceError> {
    let keys: Vec<&str> = moved.iter().map(|(row, _)| &*row.key).collect();
    let now: Vec<&str> = moved.iter().map(|(_, now)| *now).collect();
    let before: Vec<&str> = moved.iter().map(|(row, _)| &*row.due).collect();
    let query = sqlx::query(AssertSqlSafe(rows.restore_sql()));
    let query = bind_keys(query, &rows.resource.key, &keys)?;
    let mut kept = Vec::new();
    for row in query.bind(now).bind(before).fetch_all(connection).await? {
        let number: i64 = row.try_get(0)?;
        let place = usize::try_from(number - 1).ok();
        kept.extend(place.and_then(|place| moved.get(place)));
    }
    Ok(kept)
}

/// Calls `with` for each dead letter of a dispatch that has one of `keys`, or without any for all, in the order of their ids.
/// Returns how many there are, and the keys that none has.
///
/// # Errors
/// PostgreSQL can't be reached or refuses a statement; what `with` returns.
pub async fn for_each(
    connection: &mut PgConnection,
    dispatch: &str,
    keys: &[String],
    mut with: impl AsyncFnMut(&mut PgConnection, DeadLetter) -> anyhow::Result<()>,
) -> anyhow::Result<(u64, Vec<String>)> {
    let (mut after, mut count) = (String::new(), 0);
    let mut missing = keys.to_vec();
    loop {
        let page = sqlx::query(LETTERS_SQL)
            .bind(dispatch)
            .bind(&after)
            .bind(Some(keys).filter(|keys| !keys.is_empty()))
            .bind(PAGE)
            .fetch_all(&mut *connection)
            .await
            .map_err(SourceError::from)?;
        let Some(last) = page.last() else {
            return Ok((count, missing));
        };
        after = last.try_get("id").map_err(SourceError::from)?;
        for row in &page {
            let letter = letter(row).map_err(SourceError::from)?;
            count += 1;
            missing.retain(|key| *key != letter.key);
            with(connection, letter).await?;
        }
    }
}

fn letter(row: &PgRow) -> sqlx::Result<DeadLetter> {
    Ok(DeadLetter {
        id: row.try_get("id")?,
        key: row.try_get("key")?,
        due: row.try_get("due")?,
        element: row.try_get("element")?,
        attempts: row.try_get("attempts")?,
        error: row.try_get("error")?,
        is_stuck: row.try_get("is_stuck")?,
        dead_at: row.try_get("dead_at")?,
    })
}

/// Deletes a dead letter.
///
/// # Errors
/// PostgreSQL can't be reached or refuses the statement.
pub async fn discard(
    connection: &mut PgConnection,
    dispatch: &str,
    letter: &DeadLetter,
) -> Result<(), SourceError> {
    let sql = "delete from larder.dead_letter where dispatch = $1 and id = $2";
    sqlx::query(sql)
        .bind(dispatch)
        .bind(&letter.id)
        .execute(connection)
        .await?;
    Ok(())
}

/// Counts the dead letters of each dispatch.
///
/// # Errors
/// PostgreSQL can't be reached or refuses the statement.
pub async fn count(connection: &mut PgConnection) -> Result<Vec<(String, i64)>, SourceError> {
    let sql =
        "select dispatch, count(*) from larder.dead_letter group by dispatch order by dispatch";
    let rows = sqlx::query(sql).fetch_all(connection).await?;
    let counts = rows
        .iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    counts
        .collect::<sqlx::Result<_>>()
        .map_err(SourceError::from)
}

/// Sends dead letters again.
pub struct Replay {
    sink: Sink,
}

impl Replay {
    /// Reads the secrets of the sink. Blocks on the file system.
    ///
    /// # Errors
    /// A secret that can't be read.
    pub fn new(definition: &DispatchDefinition) -> Result<Self, DispatchError> {
        let sink = Sink::new(definition).map_err(|mistake| DispatchError::Unfit(vec![mistake]))?;
        Ok(Self { sink })
    }

    /// Sends the stored element under its id. Returns why the sink does not take it, if so.
    pub async fn send(&self, letter: DeadLetter) -> Result<(), String> {
        if letter.element.ends_with("\"row\":null}") {
            return Err(
                "it has no row, which was longer than document_max: set the row due again"
                    .to_owned(),
            );
        }
        let row = DueRow {
            key: letter.key,
            first_due: letter.due.clone(),
            due: letter.due,
            attempt: letter.attempts,
            id: letter.id,
            element: letter.element.into(),
            fault: None,
        };
        let (answer, _) = self.sink.send(std::slice::from_ref(&row)).await;
        match answer {
            Answer::Delivered(refused) => match refused.into_iter().find(|(id, _)| *id == row.id) {
                None => Ok(()),
                Some((_, error)) => Err(error),
            },
            Answer::Failed(error)
            | Answer::Unreachable(error)
            | Answer::Unavailable(error, _)
            | Answer::Gone(error) => Err(error),
        }
    }
}
