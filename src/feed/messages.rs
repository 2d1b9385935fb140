//! Waiting for transactions that have committed and have yet to send invalidation messages: PostgreSQL tells its other
//! server processes by these what has changed in the catalogue.

use std::time::Duration;

use sqlx::postgres::PgConnection;
use tokio::time::Instant;

use crate::source::SourceError;

/// Pauses between two queries for such transactions.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// How long the wait takes until it is logged.
const LOG_AFTER: Duration = Duration::from_secs(1);

/// Transactions that have committed and still hold the lock of their own number. `pg_locks` shows the lower 32 bits of
/// the number. The upper ones are those of the newest number, or one less if the result were beyond it.
const COMMITTED_WITH_LOCKS_SQL: &str = "\
    select x.xid::text from ( \
      select (n.newest - (n.newest - l.transactionid::text::int8 + 2147483648) % 4294967296 + 2147483648)::text::xid8 as xid \
      from pg_locks l cross join (select pg_snapshot_xmax(pg_current_snapshot())::text::int8 as newest) n \
      where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted) x \
    where pg_xact_status(x.xid) = 'committed'";

/// Waits until every transaction that is visible now has sent its invalidation messages.
///
/// A transaction that commits becomes visible, then sends its messages, then releases its locks, among them the one of
/// its own number. Before it has sent them, the catalogue shows the new rows, but other server processes still render
/// values by the enums and composite types that they have cached. A load that began then may not be stored. With
/// `commit prepared` this may take long, since it deletes the files of dropped tables in between
/// (`FinishPreparedTransaction` in PostgreSQL's twophase.c).
pub(super) async fn await_invalidation_messages(
    connection: &mut PgConnection,
) -> Result<(), SourceError> {
    // Those of the first query: later transactions need not be waited for.
    let mut awaited: Option<Vec<String>> = None;
    let mut pause = PAUSE_MIN;
    let (began, mut is_logged) = (Instant::now(), false);
    loop {
        let mut left: Vec<String> = sqlx::query_scalar(COMMITTED_WITH_LOCKS_SQL)
            .fetch_all(&mut *connection)
            .await?;
        left.retain(|xid| awaited.as_ref().is_none_or(|awaited| awaited.contains(xid)));
        if left.is_empty() {
            return Ok(());
        }
        if began.elapsed() > LOG_AFTER && !std::mem::replace(&mut is_logged, true) {
            let left = left.join(", ");
            tracing::warn!(
                "waiting for transactions {left}: they have committed and still hold locks"
            );
        }
        awaited = Some(left);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
