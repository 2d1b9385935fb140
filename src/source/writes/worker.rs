//! The workers: each takes writes that wait, and runs them over a connection that it takes for a transaction.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::source::SourceError;
use crate::source::connections::Purpose;
use crate::source::session::wait_for_new_identity;
use crate::source::writes::error::{Failure, WriteError};
use crate::source::writes::locks::{AttemptPauses, LockRetry};
use crate::source::writes::queue::InFlightGuard;
use crate::source::writes::transaction::Transaction;
use crate::source::writes::{QueuedWrite, Shared, TIMEOUT_MARGIN, WriteResult, followed};

/// A transaction that takes longer is late: documents that wait for its end are taken by another worker.
const LATE_AFTER: Duration = Duration::from_millis(20);

/// How often a transaction is attempted that fails by a deadlock or a serialization failure. Attempts that meet a lock
/// are limited by time.
const CONFLICT_ATTEMPTS: usize = 4;

/// How often the write of a document is attempted that violates a unique constraint. Another transaction may have
/// inserted its key, or have deleted it since; or rows have to be updated in another order.
const UNIQUE_ATTEMPTS: usize = 3;

/// How often a transaction is attempted if no connection can be opened, or if it is lost before the commit.
const CONNECTION_ATTEMPTS: usize = 2;

pub(super) struct Worker {
    shared: Arc<Shared>,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    pub(super) async fn run(self, mut stopped: watch::Receiver<bool>) {
        let shared = Arc::clone(&self.shared);
        while !*stopped.borrow() {
            let taken = shared.queue().take_next();
            match taken {
                Some((group, documents)) => {
                    let in_flight = InFlightGuard::new(&shared, documents);
                    shared.wake_worker();
                    self.write_group(group, in_flight).await;
                }
                None => tokio::select! {
                    () = shared.wake_up.notified() => {}
                    _ = stopped.changed() => {}
                },
            }
        }
    }

    /// Runs the writes of `group`. If they are late, wakes another worker for the documents that wait.
    async fn write_group(&self, group: Vec<QueuedWrite>, in_flight: InFlightGuard<'_>) {
        let shared = Arc::clone(&self.shared);
        let mut written = std::pin::pin!(self.write(group));
        if tokio::time::timeout(LATE_AFTER, &mut written)
            .await
            .is_err()
        {
            drop(in_flight);
            shared.wake_worker();
            written.await;
        }
    }

    async fn write(&self, group: Vec<QueuedWrite>) {
        let until = self.shared.attempts_end();
        let lock_retry = match group.len() {
            0 | 1 => LockRetry::Always,
            _ => LockRetry::TableOnly,
        };
        if group.len() > 1 {
            let writes: Vec<&QueuedWrite> = group.iter().collect();
            match self.write_with_retries(&writes, lock_retry, until).await {
                Ok(outcomes) => return send_outcomes(group, outcomes),
                Err(error) if !error.concerns_single_documents() => {
                    let outcomes = vec![Err(error); group.len()];
                    return send_outcomes(group, outcomes);
                }
                Err(_) => {}
            }
        }
        // Writes that meet a lock come last, so that the others need not wait for it.
        let mut locked = Vec::new();
        for queued in group {
            match self.write_single(&queued, lock_retry, until).await {
                Err(error) if lock_retry == LockRetry::TableOnly && error.is_lock_timeout() => {
                    locked.push(queued)
                }
                outcome => send_outcomes(vec![queued], vec![outcome]),
            }
        }
        for queued in locked {
            let until = self.shared.attempts_end();
            let outcome = self.write_single(&queued, LockRetry::Always, until).await;
            send_outcomes(vec![queued], vec![outcome]);
        }
    }

    /// Writes one document, unless its client has left.
    async fn write_single(
        &self,
        queued: &QueuedWrite,
        lock_retry: LockRetry,
        until: Instant,
    ) -> WriteResult {
        if queued.done.is_closed() {
            return Err(SourceError::Unavailable("the client has left".into()).into());
        }
        let mut outcomes = self
            .write_with_retries(&[queued], lock_retry, until)
            .await?;
        let none = || SourceError::Unexpected("a write without an outcome".into());
        outcomes.pop().unwrap_or_else(|| Err(none().into()))
    }

    /// Runs `writes` in one transaction, and repeats it if it may succeed then. No attempt begins after `until`.
    async fn write_with_retries(
        &self,
        writes: &[&QueuedWrite],
        lock_retry: LockRetry,
        until: Instant,
    ) -> Result<Vec<WriteResult>, WriteError> {
        let outcomes = self.repeat(writes, lock_retry, until).await;
        if self.shared.followed.borrow().is_some() {
            self.shared.note_outcome(&outcomes);
        }
        outcomes
    }

    async fn repeat(
        &self,
        writes: &[&QueuedWrite],
        lock_retry: LockRetry,
        until: Instant,
    ) -> Result<Vec<WriteResult>, WriteError> {
        let mut following = self.shared.followed.clone();
        let mut pauses = AttemptPauses::until(until);
        let mut attempt = 1;
        let mut unique_attempt = 1;
        let mut was_forbidden = false;
        loop {
            let known = following.borrow_and_update().clone();
            let was_violated = unique_attempt > 1;
            let attempt_ended = self.attempt(writes, lock_retry, was_violated, was_forbidden);
            let failure = match attempt_ended.await {
                Ok(outcomes) => return Ok(outcomes),
                Err(failure) => failure,
            };
            let error = &failure.error;
            if error.is_forbidden() && !was_forbidden && writes.len() == 1 {
                was_forbidden = true;
                continue;
            }
            let (is_connection_error, is_lock_timeout) =
                (error.is_connection_error(), error.is_lock_timeout());
            attempt += usize::from(!is_lock_timeout);
            if error.is_unique_violation() && writes.len() == 1 {
                unique_attempt += 1;
                if unique_attempt <= UNIQUE_ATTEMPTS {
                    continue;
                }
            }
            let is_repeated = match lock_retry {
                _ if !failure.is_retryable => false,
                _ if is_connection_error => attempt <= CONNECTION_ATTEMPTS,
                LockRetry::TableOnly if is_lock_timeout && error.concerns_single_documents() => {
                    false
                }
                _ => attempt <= CONFLICT_ATTEMPTS && pauses.pause().await,
            };
            if !is_repeated {
                return Err(failure.error);
            }
            if failure.is_other_database() {
                wait_for_new_identity(&mut following, known.as_ref()).await;
            }
        }
    }

    async fn attempt(
        &self,
        writes: &[&QueuedWrite],
        lock_retry: LockRetry,
        was_violated: bool,
        was_forbidden: bool,
    ) -> Result<Vec<WriteResult>, Failure> {
        let mut following = self.shared.followed.clone();
        let followed = followed(&mut following)?;
        let session = self.shared.connect(Purpose::Write, &followed).await?;
        let was_reused = session.is_reused();
        let mut transaction = Transaction::new(&self.shared, session, followed, lock_retry);
        transaction.was_violated = was_violated;
        transaction.was_forbidden = was_forbidden;
        let limit = self.shared.time_limit();
        // sqlx panics if a row has fewer columns than its statement: then the result is that of another statement.
        let running = AssertUnwindSafe(transaction.run(writes)).catch_unwind();
        let few = || SourceError::Pooler("a result has too few columns");
        let running = running.map(|ended| ended.unwrap_or_else(|_| Err(few().into())));
        let ended = tokio::select! {
            ended = tokio::time::timeout(limit, running) => ended,
            // The feed lost its connection and has found its database anew, so this connection may be half open.
            _ = following.changed() => Ok(Err(SourceError::no_response().into())),
        };
        let has_timed_out = ended.is_err();
        let mut outcome = ended.unwrap_or_else(|_| Err(SourceError::Timeout.into()));
        let is_reusable = match &mut outcome {
            Ok(_) => true,
            // Dropping the connection closes its socket. PostgreSQL rolls the transaction back unless it commits
            // already.
            Err(failure) if has_timed_out || failure.error.is_connection_error() => {
                failure.is_retryable = !has_timed_out;
                if transaction.committing {
                    *failure = WriteError::Unknown.into();
                }
                false
            }
            Err(_) => {
                let ending = transaction.end_refused(writes, &mut outcome);
                let ended = tokio::time::timeout(TIMEOUT_MARGIN, ending).await;
                matches!(ended, Ok(Ok(())))
            }
        };
        if outcome.as_ref().is_err_and(Failure::is_certain) {
            for queued in writes {
                queued.gate.leave_commit();
            }
        }
        if is_reusable {
            transaction.session.put_back();
        } else if was_reused {
            // It may have been lost while it was idle, and others with it.
            drop(transaction);
            self.shared.connections.close_idle(Purpose::Write);
        }
        outcome
    }
}

/// Sends each outcome to the request that waits for it.
fn send_outcomes(group: Vec<QueuedWrite>, outcomes: Vec<WriteResult>) {
    for (queued, outcome) in group.into_iter().zip(outcomes) {
        // The client may have left.
        let _has_left = queued.done.send(outcome).is_err();
    }
}
