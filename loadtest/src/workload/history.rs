//! What a document was, commit by commit, and whether an answer may still show it.
//!
//! One writer at a time changes a document and waits for the outcome of each commit, so its versions are in the order
//! of their commits. An answer is compared as a whole, by a digest of its bytes: it shows one of the versions or
//! something that never was, and so every revision in it is checked at once.
//!
//! No I/O, no clock: moments are given.

use std::collections::VecDeque;
use std::time::Duration;

use larder::clock::Boottime;
use xxhash_rust::xxh3::xxh3_64;

/// Older versions of a document are forgotten; an answer that shows one is called unknown, which is as bad.
const VERSIONS_MAX: usize = 256;

/// The bytes of an answer, or that there is no document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest(u64);

impl Digest {
    /// The digest of a 404.
    pub(crate) const ABSENT: Self = Self(0);

    /// The digest of a document.
    pub(crate) fn of(body: &[u8]) -> Self {
        // 0 is taken.
        Self(xxh3_64(body).max(1))
    }
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransactionEnd {
    /// The commit is under way, or its end is unknown: seen or not, both are right.
    Open,
    /// Acknowledged, or found to be committed, at this moment.
    Committed(Boottime),
    /// Rolled back: no answer may ever show it.
    RolledBack,
}

/// What one transaction made of the document.
#[derive(Clone, Debug)]
pub(crate) struct DocumentVersion {
    pub(crate) digest: Digest,
    pub(crate) revision: u64,
    pub(crate) outcome: TransactionEnd,
    seen: bool,
}

/// Names a version until the end of its transaction is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VersionId(u64);

/// The versions of one document.
#[derive(Debug, Default)]
pub(crate) struct DocumentHistory {
    versions: VecDeque<DocumentVersion>,
    forgotten: u64,
}

/// What an answer is worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadVerdict {
    /// Nothing newer was committed when the read began.
    Current,
    /// Something newer was committed so long before the read began, which is allowed.
    Older(Duration),
    /// Something newer was committed longer ago than is allowed.
    Stale(Missed),
    /// It shows what was rolled back.
    RolledBack {
        /// The transaction's revision.
        revision: u64,
    },
    /// It shows nothing that ever was.
    MadeUp,
}

/// The first commit that an answer should have shown, and does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missed {
    /// The revision that was seen.
    pub(crate) seen: u64,
    /// The revision that is missing.
    pub(crate) required: u64,
    /// When it was committed.
    pub(crate) committed_at: Boottime,
}

impl DocumentHistory {
    /// Notes what a transaction makes of the document, before its end can be seen.
    pub(crate) fn note(
        &mut self,
        digest: Digest,
        revision: u64,
        outcome: TransactionEnd,
    ) -> VersionId {
        let settled = |version: &DocumentVersion| version.outcome != TransactionEnd::Open;
        if self.versions.len() >= VERSIONS_MAX && self.versions.front().is_some_and(settled) {
            self.versions.pop_front();
            self.forgotten += 1;
        }
        self.versions.push_back(DocumentVersion {
            digest,
            revision,
            outcome,
            seen: false,
        });
        VersionId(self.forgotten + self.versions.len() as u64 - 1)
    }

    /// Tells how a transaction ended. Returns whether an answer showed what was then rolled back.
    pub(crate) fn settle(&mut self, ticket: VersionId, outcome: TransactionEnd) -> bool {
        let place = ticket.0.checked_sub(self.forgotten);
        let version = place
            .and_then(|place| usize::try_from(place).ok())
            .and_then(|place| self.versions.get_mut(place));
        version.is_some_and(|version| {
            version.outcome = outcome;
            outcome == TransactionEnd::RolledBack && version.seen
        })
    }

    /// Judges an answer to a read that began at `began`.
    pub(crate) fn judge(
        &mut self,
        digest: Digest,
        began: Boottime,
        max_staleness: Duration,
    ) -> ReadVerdict {
        let mut missed: Option<(u64, Boottime)> = None;
        let mut rolled_back = None;
        // The newest version that looks like this is the best that can be said of the answer.
        for version in self.versions.iter_mut().rev() {
            let same = version.digest == digest;
            match version.outcome {
                TransactionEnd::RolledBack if same => rolled_back = Some(version.revision),
                TransactionEnd::RolledBack => {}
                TransactionEnd::Open | TransactionEnd::Committed(_) if same => {
                    version.seen = true;
                    return verdict(version.revision, missed, began, max_staleness);
                }
                TransactionEnd::Open => {}
                TransactionEnd::Committed(at) => missed = Some((version.revision, at)),
            }
        }
        match rolled_back {
            Some(revision) => ReadVerdict::RolledBack { revision },
            None => ReadVerdict::MadeUp,
        }
    }

    /// The newest `count` versions, the oldest of them first.
    pub(crate) fn latest(&self, count: usize) -> Vec<DocumentVersion> {
        let first = self.versions.len().saturating_sub(count);
        self.versions.range(first..).cloned().collect()
    }
}

fn verdict(
    seen: u64,
    missed: Option<(u64, Boottime)>,
    began: Boottime,
    max_staleness: Duration,
) -> ReadVerdict {
    match missed {
        Some((required, committed_at)) if committed_at < began => {
            let late = began.since(committed_at);
            if late > max_staleness {
                ReadVerdict::Stale(Missed {
                    seen,
                    required,
                    committed_at,
                })
            } else {
                ReadVerdict::Older(late)
            }
        }
        _ => ReadVerdict::Current,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_nanos(100);

    fn digest(text: &str) -> Digest {
        Digest::of(text.as_bytes())
    }

    fn committed(history: &mut DocumentHistory, text: &str, revision: u64, at: u64) {
        history.note(
            digest(text),
            revision,
            TransactionEnd::Committed(Boottime(at)),
        );
    }

    fn judge(history: &mut DocumentHistory, text: &str, began: u64) -> ReadVerdict {
        history.judge(digest(text), Boottime(began), LIMIT)
    }

    #[test]
    fn a_planted_stale_read_is_found() {
        let mut history = DocumentHistory::default();
        committed(&mut history, "one", 1, 10);
        committed(&mut history, "two", 2, 1_000);
        committed(&mut history, "three", 3, 1_050);
        assert_eq!(judge(&mut history, "three", 1_101), ReadVerdict::Current);
        assert_eq!(
            judge(&mut history, "two", 1_101),
            ReadVerdict::Older(Duration::from_nanos(51))
        );
        assert_eq!(
            judge(&mut history, "one", 1_100),
            ReadVerdict::Older(Duration::from_nanos(100))
        );
        // The first commit that it misses counts, not the last.
        let missed = Missed {
            seen: 1,
            required: 2,
            committed_at: Boottime(1_000),
        };
        assert_eq!(
            judge(&mut history, "one", 1_101),
            ReadVerdict::Stale(missed)
        );
    }

    #[test]
    fn a_read_that_began_before_the_commit_may_show_either() {
        let mut history = DocumentHistory::default();
        committed(&mut history, "one", 1, 10);
        committed(&mut history, "two", 2, 500);
        assert_eq!(judge(&mut history, "one", 500), ReadVerdict::Current);
        assert_eq!(judge(&mut history, "two", 500), ReadVerdict::Current);
    }

    #[test]
    fn what_never_was_is_made_up() {
        let mut history = DocumentHistory::default();
        committed(&mut history, "root 1, child 1", 1, 10);
        committed(&mut history, "root 2, child 2", 2, 20);
        assert_eq!(
            judge(&mut history, "root 2, child 1", 30),
            ReadVerdict::MadeUp
        );
        assert_eq!(
            history.judge(Digest::ABSENT, Boottime(30), LIMIT),
            ReadVerdict::MadeUp
        );
    }

    #[test]
    fn what_was_rolled_back_may_never_be_seen() {
        let mut history = DocumentHistory::default();
        committed(&mut history, "one", 1, 10);
        history.note(digest("two"), 2, TransactionEnd::RolledBack);
        assert_eq!(judge(&mut history, "one", 1_000), ReadVerdict::Current);
        let seen = ReadVerdict::RolledBack { revision: 2 };
        assert_eq!(judge(&mut history, "two", 1_000), seen);
    }

    #[test]
    fn an_open_commit_may_be_seen_and_need_not() {
        let mut history = DocumentHistory::default();
        committed(&mut history, "one", 1, 10);
        let ticket = history.note(digest("two"), 2, TransactionEnd::Open);
        assert_eq!(judge(&mut history, "one", 1_000), ReadVerdict::Current);
        assert!(!history.settle(ticket, TransactionEnd::Committed(Boottime(2_000))));
        assert_eq!(judge(&mut history, "one", 2_000), ReadVerdict::Current);
        assert!(matches!(
            judge(&mut history, "one", 2_101),
            ReadVerdict::Stale(_)
        ));
    }

    #[test]
    fn an_open_commit_that_was_seen_and_then_rolled_back_is_told() {
        for seen in [false, true] {
            let mut history = DocumentHistory::default();
            let ticket = history.note(digest("one"), 1, TransactionEnd::Open);
            if seen {
                assert_eq!(judge(&mut history, "one", 5), ReadVerdict::Current);
            }
            assert_eq!(history.settle(ticket, TransactionEnd::RolledBack), seen);
        }
    }

    #[test]
    fn a_document_that_looks_again_as_it_did_is_current() {
        let mut history = DocumentHistory::default();
        committed(&mut history, "without", 1, 10);
        committed(&mut history, "with", 2, 20);
        committed(&mut history, "without", 3, 30);
        assert_eq!(judge(&mut history, "without", 1_000), ReadVerdict::Current);
        assert!(matches!(
            judge(&mut history, "with", 1_000),
            ReadVerdict::Stale(_)
        ));
    }

    #[test]
    fn old_versions_are_forgotten_and_tickets_hold() {
        let mut history = DocumentHistory::default();
        for revision in 0..VERSIONS_MAX as u64 + 10 {
            committed(&mut history, &revision.to_string(), revision, revision + 1);
        }
        let ticket = history.note(digest("last"), 9_999, TransactionEnd::Open);
        assert_eq!(history.versions.len(), VERSIONS_MAX);
        assert_eq!(judge(&mut history, "3", 5), ReadVerdict::MadeUp);
        history.settle(ticket, TransactionEnd::Committed(Boottime(7)));
        let last = history.latest(1);
        assert_eq!(last[0].outcome, TransactionEnd::Committed(Boottime(7)));
    }
}
