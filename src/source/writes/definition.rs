//! Compares the definition of a resource with the database, in a transaction that writes and has locked its tables: the
//! types of columns, what may be null, what PostgreSQL generates, and which tables have triggers.
//!
//! A mark is read by the statement that begins a transaction, so a comparison costs no statement of its own: the plan mark
//! (see `feed/definition`), which a connection keeps for each definition; or the rows of the catalogue behind a pooler,
//! where no statement stays prepared. The fingerprint is read where the mark is another one than at the last comparison.

use std::sync::PoisonError;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row, raw_sql};
use uuid::Uuid;

use crate::resource::fingerprint::Fingerprint;
use crate::source::SourceError;
use crate::source::loader::read_fingerprint;
use crate::source::session::{PlanMark, Session};
use crate::source::writes::error::{Failure, WriteError, write_failure};

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
    match &fingerprint.marks {
        Some(marks) if persistent => {
            sql.push_str(&plan_mark_sql(&mut session.plan_marks, of, &marks.plan));
        }
        Some(marks) => sql.extend(["; ", &marks.rows]),
        None => {}
    }
    let begun = raw_sql(AssertSqlSafe(sql));
    let begun = begun.fetch_all(&mut session.connection).await;
    let row = match begun.map(|mut rows| rows.pop()) {
        Ok(row) => row,
        Err(error) => {
            session.plan_marks.retain(|known| known.fingerprint != of);
            return Err(begin_failure(error));
        }
    };
    let mark: Option<String> = row
        .map(|row: PgRow| row.try_get(0))
        .transpose()
        .map_err(SourceError::from)?;
    if let Some(mark) = &mark
        && with_compared(session, fingerprint, persistent, |compared| {
            compared == mark
        })
    {
        return Ok(());
    }
    let found = read_fingerprint(session, fingerprint, persistent).await?;
    if !fingerprint.is_same(&found) {
        return Err(SourceError::Altered("a table was altered".into()).into());
    }
    if let Some(mark) = mark {
        with_compared(session, fingerprint, persistent, |compared| {
            *compared = mark
        });
    }
    Ok(())
}

/// Calls `used` with the mark of the last comparison.
fn with_compared<T: Default>(
    session: &mut Session,
    fingerprint: &Fingerprint,
    persistent: bool,
    used: impl FnOnce(&mut String) -> T,
) -> T {
    if persistent {
        let mut marks = session.plan_marks.iter_mut();
        let known = marks.find(|known| known.fingerprint == fingerprint.of_tables());
        known
            .map(|known| used(&mut known.value))
            .unwrap_or_default()
    } else {
        let compared = fingerprint.compared_rows.lock();
        used(&mut compared.unwrap_or_else(PoisonError::into_inner))
    }
}

/// The SQL that reads the plan mark of the fingerprint `of`, after other commands.
fn plan_mark_sql(marks: &mut Vec<PlanMark>, of: &str, mark_sql: &str) -> String {
    if let Some(known) = marks.iter().find(|known| known.fingerprint == of) {
        return format!("; execute {}", known.statement);
    }
    let oldest = (marks.len() == PLAN_MARKS_MAX).then(|| marks.remove(0));
    let deallocate = oldest.map(|oldest| format!("; deallocate {}", oldest.statement));
    // No other connection has the name, so a pooler that larder does not know of can't mix up two statements.
    let statement = format!("larder_mark_{}", Uuid::new_v4().simple());
    let sql = format!(
        "{}; prepare {statement} as {mark_sql}; execute {statement}",
        deallocate.unwrap_or_default()
    );
    marks.push(PlanMark {
        fingerprint: of.to_owned(),
        statement,
        value: String::new(),
    });
    sql
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
