//! Transactions that have committed and have yet to tell other server processes what they changed.

use std::time::Duration;

use sqlx::postgres::PgConnection;
use tokio::time::Instant;

use crate::source::SourceError;

/// Pauses between two looks for transactions that have yet to tell what they changed.
const MESSAGES_PAUSE_MIN: Duration = Duration::from_millis(2);
const MESSAGES_PAUSE_MAX: Duration = Duration::from_millis(50);
/// A wait for them that is worth a line in the log.
const MESSAGES_LATE: Duration = Duration::from_secs(1);

/// Transactions that have committed and still hold the lock of their own number, which `pg_locks` shows without its
/// upper half: that of the newest number, or the one before where that would lie ahead.
const COMMITTED_WITH_LOCKS_SQL: &str = "\
    select x.xid::text from ( \
      select (n.newest - (n.newest - l.transactionid::text::int8 + 2147483648) % 4294967296 + 2147483648)::text::xid8 as xid \
      from pg_locks l cross join (select pg_snapshot_xmax(pg_current_snapshot())::text::int8 as newest) n \
      where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted) x \
    where pg_xact_status(x.xid) = 'committed'";

/// Waits until every transaction that is visible now has told the other server processes what it changed.
///
/// A commit becomes visible, then sends its invalidations, then lets its locks go, that of its own number among them.
/// Between the first two another process renders values by what it remembers of enums and composite types, while the
/// catalogue's rows show the new ones: no load may be kept that began then. `commit prepared` deletes the files of
/// dropped tables in between (`FinishPreparedTransaction` in PostgreSQL's twophase.c).
pub(super) async fn await_invalidation_messages(
    connection: &mut PgConnection,
) -> Result<(), SourceError> {
    let mut silent: Option<Vec<String>> = None;
    let mut pause = MESSAGES_PAUSE_MIN;
    let (began, mut said) = (Instant::now(), false);
    loop {
        let mut left: Vec<String> = sqlx::query_scalar(COMMITTED_WITH_LOCKS_SQL)
            .fetch_all(&mut *connection)
            .await?;
        left.retain(|xid| silent.as_ref().is_none_or(|silent| silent.contains(xid)));
        if left.is_empty() {
            return Ok(());
        }
        if began.elapsed() > MESSAGES_LATE && !std::mem::replace(&mut said, true) {
            let left = left.join(", ");
            tracing::warn!(
                "waiting for transactions {left}: they have committed and still hold locks"
            );
        }
        silent = Some(left);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MESSAGES_PAUSE_MAX);
    }
}
