//! Whether the commit of a write was sent before its request gave up.

use std::sync::atomic::{AtomicU8, Ordering};

const OPEN: u8 = 0;
const COMMITTING: u8 = 1;
const GIVEN_UP: u8 = 2;

/// Shared by the request of a write and the transaction. One of them comes first: after the commit was sent, the request
/// can't say that nothing is written, and after the request has given up, no commit is sent.
#[derive(Debug, Default)]
pub(super) struct CommitGate(AtomicU8);

impl CommitGate {
    /// For the transaction, before it sends `commit`. Returns false if the request has given up.
    pub(super) fn enter_commit(&self) -> bool {
        self.0
            .compare_exchange(OPEN, COMMITTING, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// For the transaction, after it was certainly not committed.
    pub(super) fn leave_commit(&self) {
        // A request that has given up stays so.
        let _left = self
            .0
            .compare_exchange(COMMITTING, OPEN, Ordering::AcqRel, Ordering::Acquire);
    }

    /// For the request. Returns whether nothing is committed, now or later.
    pub(super) fn give_up(&self) -> bool {
        let given_up = self
            .0
            .compare_exchange(OPEN, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire);
        given_up.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_the_commit_is_sent_or_the_request_gives_up() {
        let gate = CommitGate::default();
        assert!(gate.enter_commit());
        assert!(!gate.give_up(), "it may have been committed");
        gate.leave_commit();
        assert!(gate.give_up());
        assert!(!gate.enter_commit());
        gate.leave_commit();
        assert!(!gate.enter_commit(), "given up for ever");
    }
}
