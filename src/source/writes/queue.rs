//! The writes that wait for a worker, and which of them share a transaction.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::source::SourceError;
use crate::source::writes::{Job, Shared};

/// Writes that may wait.
const WAITING_WRITES_MAX: usize = 4_096;

/// Documents that share a transaction, at most.
const DOCUMENTS_PER_TRANSACTION: usize = 64;

/// Transactions at a time that are not late, unless there is more to do than one more could take: one writes while
/// another commits. What waits meanwhile shares the next one.
const PROMPT_MAX: usize = 2;

#[derive(Default)]
pub(super) struct Queue {
    jobs: VecDeque<Job>,
    /// Transactions under way that are not late.
    prompt: usize,
    closed: bool,
}

/// A transaction that others may wait for to end.
pub(super) struct Waiting<'s>(pub(super) &'s Shared);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.queue().prompt -= 1;
        self.0.bell.notify_one();
    }
}

impl Queue {
    /// # Errors
    /// [`SourceError::Overloaded`] where too many wait.
    pub(super) fn push(&mut self, job: Job) -> Result<(), SourceError> {
        if self.jobs.len() >= WAITING_WRITES_MAX || self.closed {
            return Err(SourceError::Overloaded);
        }
        self.jobs.push_back(job);
        Ok(())
    }

    /// What a worker is to do next, in one transaction; it then holds a [`Waiting`].
    pub(super) fn take(&mut self) -> Option<Vec<Job>> {
        if self.prompt >= PROMPT_MAX && self.jobs.len() < DOCUMENTS_PER_TRANSACTION {
            return None;
        }
        // Whoever left before the write began wants none.
        while self.jobs.front().is_some_and(|job| job.done.is_closed()) {
            self.jobs.pop_front();
        }
        let first = self.jobs.pop_front()?;
        self.prompt += 1;
        if !first.write.is_groupable() {
            return Some(vec![first]);
        }
        let resource = Arc::clone(&first.write.resource);
        let mut taken = vec![first];
        let mut left = VecDeque::new();
        for job in self.jobs.drain(..) {
            let fits = taken.len() < DOCUMENTS_PER_TRANSACTION
                && job.write.is_groupable()
                && Arc::ptr_eq(&job.write.resource, &resource)
                && !job.done.is_closed();
            match fits {
                true => taken.push(job),
                false => left.push_back(job),
            }
        }
        self.jobs = left;
        Some(taken)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Drops what waits; nothing more is taken in.
    pub(super) fn close(&mut self) {
        self.jobs.clear();
        self.closed = true;
    }
}
