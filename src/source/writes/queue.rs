//! The writes that wait for a worker, and which of them share a transaction.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::source::SourceError;
use crate::source::writes::{QueuedWrite, Shared};

/// The most writes that may wait.
const WAITING_WRITES_MAX: usize = 4_096;

/// The most documents that share a transaction.
const DOCUMENTS_PER_TRANSACTION: usize = 64;

#[derive(Default)]
pub(super) struct WriteQueue {
    /// Documents to insert, which may share a transaction.
    inserts: VecDeque<QueuedWrite>,
    /// Writes that have a transaction of their own.
    others: VecDeque<QueuedWrite>,
    /// Whether `others` had the last turn.
    others_were_last: bool,
    /// Documents in shared transactions that run and are not late.
    in_flight: usize,
    /// A worker was woken and has not taken a write yet.
    is_waking: bool,
    closed: bool,
}

/// Counts the documents of a shared transaction as in flight until it is dropped.
pub(super) struct InFlightGuard<'s> {
    shared: &'s Shared,
    documents: usize,
}

impl<'s> InFlightGuard<'s> {
    /// For the documents that [`WriteQueue::take_next`] has counted.
    pub(super) fn new(shared: &'s Shared, documents: usize) -> Self {
        Self { shared, documents }
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.shared.queue().in_flight -= self.documents;
    }
}

impl WriteQueue {
    /// # Errors
    /// [`SourceError::Overloaded`] if too many writes wait.
    pub(super) fn push(&mut self, queued: QueuedWrite) -> Result<(), SourceError> {
        if self.inserts.len() + self.others.len() >= WAITING_WRITES_MAX || self.closed {
            return Err(SourceError::Overloaded);
        }
        if queued.write.is_groupable() {
            self.inserts.push_back(queued)
        } else {
            self.others.push_back(queued)
        }
        Ok(())
    }

    /// Whether a worker must be woken. Only one at a time is: it wakes the next if more writes may begin.
    pub(super) fn must_wake_worker(&mut self) -> bool {
        let has_work = self.inserts_may_begin() || !self.others.is_empty();
        has_work && !std::mem::replace(&mut self.is_waking, true)
    }

    /// Documents wait until those in flight are inserted, so that they share the next transaction. They begin at once
    /// if there are as many as in flight. A fixed number of transactions was no better: with one, two or three, 64
    /// connections inserted as many documents a second.
    fn inserts_may_begin(&self) -> bool {
        let enough = self.in_flight.min(DOCUMENTS_PER_TRANSACTION);
        !self.inserts.is_empty() && self.inserts.len() >= enough
    }

    /// Takes the writes of the next transaction. Returns them with the number of documents that it has counted as in
    /// flight.
    pub(super) fn take_next(&mut self) -> Option<(Vec<QueuedWrite>, usize)> {
        self.is_waking = false;
        // A write whose client has left is dropped.
        for lane in [&mut self.inserts, &mut self.others] {
            while lane.front().is_some_and(|queued| queued.done.is_closed()) {
                lane.pop_front();
            }
        }
        self.others_were_last = match (self.inserts_may_begin(), self.others.is_empty()) {
            (true, false) => !self.others_were_last,
            (inserts, _) => !inserts,
        };
        if self.others_were_last {
            return self.others.pop_front().map(|queued| (vec![queued], 0));
        }
        let taken = self.take_inserts();
        let documents = taken.len();
        self.in_flight += documents;
        Some((taken, documents))
    }

    /// Takes inserts into one resource, all under the same definition of it.
    fn take_inserts(&mut self) -> Vec<QueuedWrite> {
        let mut taken: Vec<QueuedWrite> = Vec::new();
        let mut left = VecDeque::new();
        for queued in self.inserts.drain(..) {
            let first = taken.first().unwrap_or(&queued);
            let fits = taken.len() < DOCUMENTS_PER_TRANSACTION
                && Arc::ptr_eq(&queued.write.resource, &first.write.resource);
            if queued.done.is_closed() {
                continue;
            }
            if fits {
                taken.push(queued);
            } else {
                left.push_back(queued);
            }
        }
        self.inserts = left;
        taken
    }

    /// Drops all writes that wait, and refuses further ones.
    pub(super) fn close(&mut self) {
        self.inserts.clear();
        self.others.clear();
        self.closed = true;
    }
}
