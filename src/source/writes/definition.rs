//! Compares the definition of a resource with the database, in a transaction that writes and has locked its tables: the
//! types of columns, what may be null, what PostgreSQL generates, and which tables have triggers.
//!
//! A mark is read by the statement that begins a transaction, so a comparison costs no statement of its own: the plan mark
//! (see `feed/definition`), which a connection keeps for each definition; or the rows of the catalogue behind a pooler,
//! where no statement stays prepared. The fingerprint is read where the mark is another one than at the last comparison.

use std::sync::{MutexGuard, PoisonError};

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row, raw_sql};
use uuid::Uuid;

use crate::resource::fingerprint::Fingerprint;
use crate::source::SourceError;
use crate::source::loader::read_fingerprint;
use crate::source::session::{PlanMark, Session, has_code};
use crate::source::writes::error::{Failure, WriteError, write_failure};

/// `invalid_sql_statement_name`: something has discarded the connection's statements.
const INVALID_STATEMENT_NAME: &str = "26000";

/// The most plan marks of a connection: as many as sqlx keeps statements.
const PLAN_MARKS_MAX: usize = 100;

/// Runs the commands `sql`, which begin a transaction and lock tables, and compares the definition with `fingerprint`.
///
/// # Errors
/// [`SourceError::Altered`] if the database has another one; else why the commands failed.
pub(super) async fn begin_compared(
    session: &mut Session,
    mut sql: String,
    fingerprint: &Fingerprint,
    persistent: bool,
) -> Result<(), Failure> {
    let of = fingerprint.of_tables();
    let mut prepared = None;
    match &fingerprint.marks {
        Some(marks) if persistent => {
            let (read_sql, mark) = plan_mark_sql(&session.plan_marks, of, &marks.plan);
            sql.push_str(&read_sql);
            prepared = mark;
        }
        Some(marks) => sql.extend(["; ", &marks.rows]),
        None => {}
    }
    let begun = raw_sql(AssertSqlSafe(sql));
    let begun = begun.fetch_all(&mut session.connection).await;
    let row = match begun.map(|mut rows| rows.pop()) {
        Ok(row) => row,
        Err(error) => {
            if has_code(&error, INVALID_STATEMENT_NAME) {
                session.plan_marks.retain(|known| known.fingerprint != of);
            }
            return Err(begin_failure(error));
        }
    };
    if let Some(prepared) = prepared {
        if session.plan_marks.len() == PLAN_MARKS_MAX {
            session.plan_marks.remove(0);
        }
        session.plan_marks.push(prepared);
    }
    let mark: Option<String> = row
        .map(|row: PgRow| row.try_get(0))
        .transpose()
        .map_err(SourceError::from)?;
    let is_known = |mark: &String| is_compared(session, fingerprint, persistent, mark);
    if mark.as_ref().is_some_and(is_known) {
        return Ok(());
    }
    let found = read_fingerprint(session, fingerprint, persistent).await?;
    if !fingerprint.is_same(&found) {
        return Err(SourceError::Altered("a table was altered".into()).into());
    }
    if let Some(mark) = mark {
        keep_mark(session, fingerprint, persistent, mark);
    }
    Ok(())
}

/// Whether `mark` is that of the last comparison.
fn is_compared(session: &Session, fingerprint: &Fingerprint, persistent: bool, mark: &str) -> bool {
    if !persistent {
        return *rows_of(fingerprint) == mark;
    }
    let mut marks = session.plan_marks.iter();
    let known = marks.find(|known| known.fingerprint == fingerprint.of_tables());
    known.is_some_and(|known| known.value == mark)
}

/// Keeps the mark of a comparison.
fn keep_mark(session: &mut Session, fingerprint: &Fingerprint, persistent: bool, mark: String) {
    if !persistent {
        *rows_of(fingerprint) = mark;
        return;
    }
    let mut marks = session.plan_marks.iter_mut();
    let known = marks.find(|known| known.fingerprint == fingerprint.of_tables());
    if let Some(known) = known {
        known.value = mark;
    }
}

fn rows_of(fingerprint: &Fingerprint) -> MutexGuard<'_, String> {
    let rows = fingerprint.compared_rows.lock();
    rows.unwrap_or_else(PoisonError::into_inner)
}

/// The SQL that reads the plan mark of the fingerprint `of`, after other commands; and the statement that it prepares, if it
/// is the first for this fingerprint. The oldest of `marks` is deallocated then, if there are too many.
fn plan_mark_sql(marks: &[PlanMark], of: &str, mark_sql: &str) -> (String, Option<PlanMark>) {
    if let Some(known) = marks.iter().find(|known| known.fingerprint == of) {
        return (format!("; execute {}", known.statement), None);
    }
    let oldest = marks.first().filter(|_| marks.len() == PLAN_MARKS_MAX);
    let deallocate = oldest.map(|oldest| format!("; deallocate {}", oldest.statement));
    // No other connection has the name, so a pooler that larder does not know of can't mix up two statements.
    let statement = format!("larder_mark_{}", Uuid::new_v4().simple());
    let sql = format!(
        "{}; prepare {statement} as {mark_sql}; execute {statement}",
        deallocate.unwrap_or_default()
    );
    let prepared = PlanMark {
        fingerprint: of.to_owned(),
        statement,
        value: String::new(),
    };
    (sql, Some(prepared))
}

/// Why a transaction could not be begun.
fn begin_failure(error: sqlx::Error) -> Failure {
    let failure = write_failure(error, None);
    let error = match failure.error.into_table_lock() {
        // A table is gone, or schema larder.
        WriteError::Source(error @ SourceError::Refused { .. }) => {
            SourceError::Altered(error.to_string()).into()
        }
        error => error,
    };
    Failure { error, ..failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_keeps_a_bounded_number_of_plan_marks() {
        let mut marks = Vec::new();
        for number in 0..PLAN_MARKS_MAX {
            let (sql, prepared) = plan_mark_sql(&marks, &number.to_string(), "select 1");
            assert!(!sql.contains("deallocate"), "{sql}");
            marks.extend(prepared);
        }
        let (sql, prepared) = plan_mark_sql(&marks, "7", "select 1");
        assert_eq!(sql, format!("; execute {}", marks[7].statement));
        assert!(prepared.is_none());
        let (sql, prepared) = plan_mark_sql(&marks, "new", "select 1");
        assert!(sql.starts_with(&format!("; deallocate {}; prepare ", marks[0].statement)));
        assert!(prepared.is_some());
    }
}
