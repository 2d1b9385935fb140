//! The writes that wait for a worker, and which of them share a transaction.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::source::SourceError;
use crate::source::writes::{Job, Shared};

/// Writes that may wait.
const WAITING_WRITES_MAX: usize = 4_096;

/// Documents that share a transaction, at most.
const DOCUMENTS_PER_TRANSACTION: usize = 64;

#[derive(Default)]
pub(super) struct Queue {
    /// Documents to insert, which may share a transaction.
    inserts: VecDeque<Job>,
    /// Each has a transaction of its own.
    others: VecDeque<Job>,
    /// Whether the others are next; both lanes get their turn.
    others_next: bool,
    /// Documents in shared transactions that are under way and not late.
    prompt: usize,
    /// A worker has been called and has not come yet.
    called: bool,
    closed: bool,
}

/// Documents that others wait for to be written, counted until it is dropped.
pub(super) struct Prompt<'s> {
    shared: &'s Shared,
    documents: usize,
}

impl<'s> Prompt<'s> {
    /// Of what [`Queue::take`] gave.
    pub(super) fn new(shared: &'s Shared, documents: usize) -> Self {
        Self { shared, documents }
    }
}

impl Drop for Prompt<'_> {
    fn drop(&mut self) {
        self.shared.queue().prompt -= self.documents;
    }
}

impl Queue {
    /// # Errors
    /// [`SourceError::Overloaded`] where too many wait.
    pub(super) fn push(&mut self, job: Job) -> Result<(), SourceError> {
        if self.inserts.len() + self.others.len() >= WAITING_WRITES_MAX || self.closed {
            return Err(SourceError::Overloaded);
        }
        if job.write.is_groupable() {
            self.inserts.push_back(job)
        } else {
            self.others.push_back(job)
        }
        Ok(())
    }

    /// Whether a worker must be called. One at a time: it calls the next if that has something to do.
    pub(super) fn calls(&mut self) -> bool {
        let wanted = self.inserts_may_go() || !self.others.is_empty();
        wanted && !std::mem::replace(&mut self.called, true)
    }

    /// Documents wait for those that are being inserted, to share the next transaction; where there are as many, they
    /// are worth one of their own at once. A fixed number of transactions was no better: as many documents a second
    /// from 64 connections with one, two or three.
    fn inserts_may_go(&self) -> bool {
        let enough = self.prompt.min(DOCUMENTS_PER_TRANSACTION);
        !self.inserts.is_empty() && self.inserts.len() >= enough
    }

    /// What a worker is to do next, in one transaction, and how many documents of it count as [`Prompt`].
    pub(super) fn take(&mut self) -> Option<(Vec<Job>, usize)> {
        self.called = false;
        // Whoever left before the write began wants none.
        for lane in [&mut self.inserts, &mut self.others] {
            while lane.front().is_some_and(|job| job.done.is_closed()) {
                lane.pop_front();
            }
        }
        self.others_next = match (self.inserts_may_go(), self.others.is_empty()) {
            (true, false) => !self.others_next,
            (inserts, _) => !inserts,
        };
        if self.others_next {
            return self.others.pop_front().map(|job| (vec![job], 0));
        }
        let taken = self.take_inserts();
        let documents = taken.len();
        self.prompt += documents;
        Some((taken, documents))
    }

    /// Inserts into one resource, by one definition of it.
    fn take_inserts(&mut self) -> Vec<Job> {
        let mut taken: Vec<Job> = Vec::new();
        let mut left = VecDeque::new();
        for job in self.inserts.drain(..) {
            let first = taken.first().unwrap_or(&job);
            let fits = taken.len() < DOCUMENTS_PER_TRANSACTION
                && Arc::ptr_eq(&job.write.resource, &first.write.resource);
            match fits {
                _ if job.done.is_closed() => {}
                true => taken.push(job),
                false => left.push_back(job),
            }
        }
        self.inserts = left;
        taken
    }

    /// Drops what waits; nothing more is taken in.
    pub(super) fn close(&mut self) {
        self.inserts.clear();
        self.others.clear();
        self.closed = true;
    }
}
