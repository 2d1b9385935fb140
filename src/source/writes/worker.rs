//! The workers: each takes what waits, and writes it, over a connection of its own.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::source::SourceError;
use crate::source::loader::wait_for_new_identity;
use crate::source::session::{Identity, Session};
use crate::source::writes::error::{Failure, WriteError};
use crate::source::writes::locks::{LockRetry, Pauses};
use crate::source::writes::queue::Prompt;
use crate::source::writes::transaction::Transaction;
use crate::source::writes::{GRACE, Job, Shared, Write, WriteOutcome, followed};

/// A transaction that takes longer keeps nobody waiting: another worker takes what waits.
const LATE: Duration = Duration::from_millis(20);

/// Attempts of one transaction where PostgreSQL asks for another (deadlock, serialization). Where others hold a lock,
/// the time decides.
const ATTEMPTS: usize = 4;

/// Attempts where no connection was to be had, or it was lost before it was to commit.
const CONNECTIONS_TRIED: usize = 2;

pub(super) struct Worker {
    shared: Arc<Shared>,
    /// With the identity that it has proved to reach.
    session: Option<(Arc<Identity>, Session)>,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            session: None,
        }
    }

    pub(super) async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let shared = Arc::clone(&self.shared);
        while !*stopped.borrow() {
            let taken = shared.queue().take();
            match taken {
                Some((jobs, documents)) => {
                    let prompt = Prompt::new(&shared, documents);
                    shared.call();
                    self.serve_promptly(jobs, prompt).await;
                }
                None => tokio::select! {
                    () = shared.bell.notified() => {}
                    _ = stopped.changed() => {}
                },
            }
        }
    }

    /// Answers all of `jobs`. What waits for them to end is left to others when they are late.
    async fn serve_promptly(&mut self, jobs: Vec<Job>, prompt: Prompt<'_>) {
        let shared = Arc::clone(&self.shared);
        let mut served = std::pin::pin!(self.serve(jobs));
        if tokio::time::timeout(LATE, &mut served).await.is_err() {
            drop(prompt);
            shared.call();
            served.await;
        }
    }

    async fn serve(&mut self, jobs: Vec<Job>) {
        let until = self.shared.writing_until();
        let lock_retry = match jobs.len() {
            0 | 1 => LockRetry::Always,
            _ => LockRetry::TableOnly,
        };
        if jobs.len() > 1 {
            let writes: Vec<&Write> = jobs.iter().map(|job| &job.write).collect();
            match self.transact(&writes, lock_retry, until).await {
                Ok(outcomes) => return answer(jobs, outcomes),
                Err(error) if !error.concerns_single_documents() => {
                    let outcomes = vec![Err(error); jobs.len()];
                    return answer(jobs, outcomes);
                }
                Err(_) => {}
            }
        }
        // Who has to wait for others' locks keeps nobody else waiting.
        let mut held = Vec::new();
        for job in jobs {
            match self.alone(&job, lock_retry, until).await {
                Err(error) if lock_retry == LockRetry::TableOnly && error.is_held() => {
                    held.push(job)
                }
                outcome => answer(vec![job], vec![outcome]),
            }
        }
        for job in held {
            let until = self.shared.writing_until();
            let outcome = self.alone(&job, LockRetry::Always, until).await;
            answer(vec![job], vec![outcome]);
        }
    }

    /// Writes one document, unless nobody waits for it any more.
    async fn alone(&mut self, job: &Job, lock_retry: LockRetry, until: Instant) -> WriteOutcome {
        if job.done.is_closed() {
            return Err(SourceError::Unavailable("the client has left".into()).into());
        }
        let mut outcomes = self.transact(&[&job.write], lock_retry, until).await?;
        let none = || SourceError::Unexpected("a write without an outcome".into());
        outcomes.pop().unwrap_or_else(|| Err(none().into()))
    }

    /// Writes all of `writes` in one transaction, again where that may help; no attempt begins after `until`.
    async fn transact(
        &mut self,
        writes: &[&Write],
        lock_retry: LockRetry,
        until: Instant,
    ) -> Result<Vec<WriteOutcome>, WriteError> {
        let mut following = self.shared.followed.clone();
        let mut pauses = Pauses::until(until);
        let mut attempt = 1;
        loop {
            let known = following.borrow_and_update().clone();
            let failure = match self.attempt(writes, lock_retry).await {
                Ok(outcomes) => return Ok(outcomes),
                Err(failure) => failure,
            };
            let error = &failure.error;
            let (is_connection_error, is_held) = (error.is_connection_error(), error.is_held());
            attempt += usize::from(!is_held);
            let again = match lock_retry {
                _ if !failure.again => false,
                _ if is_connection_error => attempt <= CONNECTIONS_TRIED,
                LockRetry::TableOnly if is_held && error.concerns_single_documents() => false,
                _ => attempt <= ATTEMPTS && pauses.pause().await,
            };
            if !again {
                return Err(failure.error);
            }
            if failure.is_of_other_database() {
                wait_for_new_identity(&mut following, known.as_ref()).await;
            }
        }
    }

    async fn attempt(
        &mut self,
        writes: &[&Write],
        lock_retry: LockRetry,
    ) -> Result<Vec<WriteOutcome>, Failure> {
        let mut following = self.shared.followed.clone();
        let followed = followed(&mut following)?;
        let kept = self.session.take();
        let kept = kept.filter(|(proved, _)| Arc::ptr_eq(proved, &followed));
        let session = match kept {
            Some((_, session)) => session,
            None => self.shared.connect(&followed).await?,
        };
        let mut transaction = Transaction {
            session,
            database: &self.shared.database,
            document_bytes_max: self.shared.document_bytes_max,
            followed: Arc::clone(&followed),
            lock_retry,
            locking_since: None,
            committing: false,
            committed: &self.shared.committed,
        };
        let limit = self.shared.limit();
        // sqlx panics where a row has fewer columns than its statement: the answer is another statement's.
        let running = AssertUnwindSafe(transaction.run(writes)).catch_unwind();
        let few = || SourceError::Pooler("an answer has too few columns");
        let running = running.map(|ran| ran.unwrap_or_else(|_| Err(few().into())));
        let ended = tokio::select! {
            ended = tokio::time::timeout(limit, running) => ended,
            // The feed had to find its database anew, so this connection may be half open.
            _ = following.changed() => Ok(Err(SourceError::no_response().into())),
        };
        // Dropping the connection closes its socket, and PostgreSQL rolls back what was not to commit.
        let has_timed_out = ended.is_err();
        match ended.unwrap_or_else(|_| Err(SourceError::Timeout.into())) {
            Err(failure) if has_timed_out || failure.error.is_connection_error() => {
                Err(if transaction.committing {
                    WriteError::Unknown.into()
                } else {
                    Failure {
                        again: !has_timed_out,
                        ..failure
                    }
                })
            }
            Err(failure) => {
                let rolled_back = tokio::time::timeout(GRACE, transaction.roll_back()).await;
                if matches!(rolled_back, Ok(Ok(()))) {
                    self.session = Some((Arc::clone(&followed), transaction.session));
                }
                Err(failure)
            }
            Ok(outcomes) => {
                self.session = Some((Arc::clone(&followed), transaction.session));
                Ok(outcomes)
            }
        }
    }
}

fn answer(jobs: Vec<Job>, outcomes: Vec<WriteOutcome>) {
    for (job, outcome) in jobs.into_iter().zip(outcomes) {
        // Whoever asked may have left.
        let _left = job.done.send(outcome).is_err();
    }
}
