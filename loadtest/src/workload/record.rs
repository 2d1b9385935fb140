//! What was committed and what was answered: shared by writers, readers and faults.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder::clock::Boottime;
use tokio::sync::watch;

use crate::workload::ExpectedDocument;
use crate::workload::history::{
    Digest, DocumentHistory, DocumentVersion, ReadVerdict, TransactionEnd, VersionId,
};
use crate::workload::viewer::Viewer;

/// What `Cache-Status` of a strict read ends with: it must not be older than its request.
pub(crate) const STRICT: &str = "; strict";
/// Told in full; more are only counted.
const VIOLATIONS_MAX: usize = 20;
/// So many versions of a violation's document are printed.
const VERSIONS_TOLD: usize = 8;

/// What goes on: a settling or a quiet time, or a fault by its number in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunPhase {
    Settling,
    Quiet,
    Fault(usize),
}

impl RunPhase {
    /// Settling, quiet, then the faults.
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Settling => 0,
            Self::Quiet => 1,
            Self::Fault(number) => number + 2,
        }
    }

    fn of_index(index: usize) -> Self {
        match index {
            0 => Self::Settling,
            1 => Self::Quiet,
            number => Self::Fault(number - 2),
        }
    }
}

/// An answer that larder promises never to give.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) key: u32,
    pub(crate) viewer: Viewer,
    pub(crate) verdict: ReadVerdict,
    pub(crate) began: Boottime,
    pub(crate) ended: Boottime,
    pub(crate) cache_status: String,
    pub(crate) body: String,
    pub(crate) phases: [RunPhase; 2],
    /// The newest versions as they were then.
    pub(crate) versions: Vec<DocumentVersion>,
}

/// One answer to a read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadAnswer<'a> {
    pub(crate) key: u32,
    pub(crate) viewer: Viewer,
    pub(crate) began: Boottime,
    pub(crate) phase: RunPhase,
    pub(crate) cache_status: &'a str,
    /// None for a 404.
    pub(crate) body: Option<&'a [u8]>,
}

/// See the module.
pub(crate) struct Record {
    pub(crate) began: Boottime,
    pub(crate) max_staleness: Duration,
    /// Of each document what each viewer sees of it. All have the same versions.
    histories: Vec<Mutex<[DocumentHistory; Viewer::ALL.len()]>>,
    /// The last key of resource `roots`; those above are of `notes`.
    roots: u32,
    revision: AtomicU64,
    phase: AtomicUsize,
    reads: AtomicU64,
    /// Those of customers.
    restricted_reads: AtomicU64,
    strict_reads: AtomicU64,
    commits: AtomicU64,
    violations: Mutex<VecDeque<Violation>>,
    violations_count: AtomicU64,
    stop: watch::Sender<bool>,
}

impl Record {
    pub(crate) fn new(roots: u32, notes: u32, max_staleness: Duration) -> Self {
        Self {
            began: Boottime::now(),
            max_staleness,
            histories: (0..roots + notes).map(|_| Mutex::default()).collect(),
            roots,
            // The tables begin with 1.
            revision: AtomicU64::new(2),
            phase: AtomicUsize::new(RunPhase::Settling.index()),
            reads: AtomicU64::new(0),
            restricted_reads: AtomicU64::new(0),
            strict_reads: AtomicU64::new(0),
            commits: AtomicU64::new(0),
            violations: Mutex::default(),
            violations_count: AtomicU64::new(0),
            stop: watch::channel(false).0,
        }
    }

    /// Keys are 1 to this.
    pub(crate) fn keys(&self) -> u32 {
        u32::try_from(self.histories.len()).unwrap_or(u32::MAX)
    }

    /// Where larder has the document.
    pub(crate) fn path(&self, key: u32) -> String {
        let resource = if key <= self.roots { "roots" } else { "notes" };
        format!("/{resource}/{key}")
    }

    /// A revision that no other transaction has.
    pub(crate) fn revision(&self) -> u64 {
        self.revision.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn phase(&self) -> RunPhase {
        RunPhase::of_index(self.phase.load(Ordering::Relaxed))
    }

    pub(crate) fn enter(&self, phase: RunPhase) {
        self.phase.store(phase.index(), Ordering::Relaxed);
    }

    /// The load is to end.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    pub(crate) fn stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Ends when the load is to end.
    pub(crate) async fn stopped(&self) {
        let mut stop = self.stop.subscribe();
        // The sender lives as long as this.
        let _stopped = stop.wait_for(|&stop| stop).await;
    }

    /// Answers that were judged.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// How many of the reads are those of customers.
    pub(crate) fn restricted_reads(&self) -> u64 {
        self.restricted_reads.load(Ordering::Relaxed)
    }

    pub(crate) fn strict_reads(&self) -> u64 {
        self.strict_reads.load(Ordering::Relaxed)
    }

    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    pub(crate) fn violations(&self) -> u64 {
        self.violations_count.load(Ordering::Relaxed)
    }

    /// The first of them, to be told.
    pub(crate) fn first_violations(&self) -> Vec<Violation> {
        lock(&self.violations).iter().cloned().collect()
    }

    /// Notes what a transaction makes of documents, before its end can be seen.
    pub(crate) fn note(
        &self,
        made: &[ExpectedDocument],
        revision: u64,
        outcome: TransactionEnd,
    ) -> Vec<(u32, VersionId)> {
        made.iter()
            .map(|made| {
                let mut histories = self.histories(made.key);
                let tickets = Viewer::ALL.map(|viewer| {
                    let digest = if made.audience.has(viewer) {
                        made.digest
                    } else {
                        Digest::ABSENT
                    };
                    histories[viewer.index()].note(digest, revision, outcome)
                });
                (made.key, tickets[0])
            })
            .collect()
    }

    /// The transaction behind `tickets` ended.
    pub(crate) fn settle(&self, tickets: &[(u32, VersionId)], outcome: TransactionEnd) {
        if matches!(outcome, TransactionEnd::Committed(_)) {
            self.commits.fetch_add(1, Ordering::Relaxed);
        }
        for (key, ticket) in tickets {
            let mut histories = self.histories(*key);
            let viewers = Viewer::ALL.into_iter();
            let seen = viewers.filter(|viewer| histories[viewer.index()].settle(*ticket, outcome));
            if let [viewer, ..] = seen.collect::<Vec<_>>()[..] {
                let versions = histories[viewer.index()].latest(VERSIONS_TOLD);
                drop(histories);
                let now = Boottime::now();
                self.note_violation(Violation {
                    key: *key,
                    viewer,
                    verdict: ReadVerdict::RolledBack {
                        revision: versions.last().map_or(0, |version| version.revision),
                    },
                    began: now,
                    ended: now,
                    cache_status: "seen before the transaction's end was known".into(),
                    body: String::new(),
                    phases: [self.phase(); 2],
                    versions,
                });
            }
        }
    }

    /// Judges an answer that has just come.
    pub(crate) fn judge(&self, read: &ReadAnswer<'_>) -> ReadVerdict {
        let digest = read.body.map_or(Digest::ABSENT, Digest::of);
        let mut histories = self.histories(read.key);
        let history = &mut histories[read.viewer.index()];
        let is_strict = read.cache_status.ends_with(STRICT);
        let allowed = if is_strict {
            Duration::ZERO
        } else {
            self.max_staleness
        };
        let verdict = history.judge(digest, read.began, allowed);
        self.strict_reads
            .fetch_add(u64::from(is_strict), Ordering::Relaxed);
        self.reads.fetch_add(1, Ordering::Relaxed);
        let is_restricted = read.viewer != Viewer::Staff;
        self.restricted_reads
            .fetch_add(u64::from(is_restricted), Ordering::Relaxed);
        if matches!(verdict, ReadVerdict::Current | ReadVerdict::Older(_)) {
            return verdict;
        }
        let versions = history.latest(VERSIONS_TOLD);
        drop(histories);
        let body = read.body.map(String::from_utf8_lossy);
        self.note_violation(Violation {
            key: read.key,
            viewer: read.viewer,
            verdict: verdict.clone(),
            began: read.began,
            ended: Boottime::now(),
            cache_status: read.cache_status.to_owned(),
            body: body.map_or("(404)".into(), |body| body.into_owned()),
            phases: [read.phase, self.phase()],
            versions,
        });
        verdict
    }

    fn note_violation(&self, violation: Violation) {
        self.violations_count.fetch_add(1, Ordering::Relaxed);
        let mut violations = lock(&self.violations);
        if violations.len() < VIOLATIONS_MAX {
            violations.push_back(violation);
        }
    }

    fn histories(&self, key: u32) -> MutexGuard<'_, [DocumentHistory; Viewer::ALL.len()]> {
        // Keys are 1 to keys().
        let place = usize::try_from(key.saturating_sub(1)).unwrap_or(usize::MAX);
        lock(&self.histories[place])
    }
}

/// Nothing that a panic could leave half done is kept under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::viewer::Audience;

    fn made(text: &str) -> ExpectedDocument {
        let digest = Digest::of(text.as_bytes());
        ExpectedDocument {
            digest,
            audience: Audience::Owner(Some(1)),
            ..ExpectedDocument::absent(1)
        }
    }

    fn read(body: &str, began: u64) -> ReadAnswer<'_> {
        ReadAnswer {
            key: 1,
            viewer: Viewer::Customer(1),
            began: Boottime(began),
            phase: RunPhase::Quiet,
            cache_status: "larder; hit; detail=memory",
            body: Some(body.as_bytes()),
        }
    }

    #[test]
    fn a_planted_stale_read_is_recorded_with_its_history() {
        let record = Record::new(1, 0, Duration::from_nanos(100));
        for (text, revision, at) in [("one", 1, 10), ("two", 2, 1_000)] {
            let tickets = record.note(&[made(text)], revision, TransactionEnd::Open);
            record.settle(&tickets, TransactionEnd::Committed(Boottime(at)));
        }
        record.judge(&read("two", 2_000));
        record.judge(&read("one", 1_050));
        assert_eq!((record.reads(), record.violations()), (2, 0));
        record.judge(&read("one", 1_101));
        assert_eq!((record.reads(), record.violations()), (3, 1));
        let violation = record.first_violations().remove(0);
        assert!(matches!(violation.verdict, ReadVerdict::Stale(missed) if missed.required == 2));
        assert_eq!(violation.versions.len(), 2);
        assert_eq!(violation.body, "one");
    }

    #[test]
    fn a_document_is_absent_for_a_customer_that_does_not_own_it() {
        let record = Record::new(1, 0, Duration::from_nanos(100));
        let tickets = record.note(&[made("one")], 1, TransactionEnd::Open);
        record.settle(&tickets, TransactionEnd::Committed(Boottime(10)));
        let judge = |viewer, body| {
            record.judge(&ReadAnswer {
                viewer,
                body,
                ..read("one", 1_000)
            })
        };
        let body = Some(&b"one"[..]);
        assert_eq!(judge(Viewer::Staff, body), ReadVerdict::Current);
        assert_eq!(judge(Viewer::Customer(1), body), ReadVerdict::Current);
        assert_eq!(judge(Viewer::Customer(2), None), ReadVerdict::Current);
        assert_eq!(judge(Viewer::Customer(2), body), ReadVerdict::MadeUp);
    }

    #[test]
    fn keys_name_documents_of_two_resources() {
        let record = Record::new(2, 1, Duration::ZERO);
        assert_eq!(record.keys(), 3);
        let paths = [1, 2, 3].map(|key| record.path(key));
        assert_eq!(paths, ["/roots/1", "/roots/2", "/notes/3"]);
    }

    #[test]
    fn phases_keep_their_place() {
        for phase in [
            RunPhase::Settling,
            RunPhase::Quiet,
            RunPhase::Fault(0),
            RunPhase::Fault(9),
        ] {
            assert_eq!(RunPhase::of_index(phase.index()), phase);
        }
    }
}
