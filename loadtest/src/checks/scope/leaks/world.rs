//! What all tasks of the check share: whose each document was, and what was found.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder::clock::Boottime;
use testkit::http::{Answer, Request};

use crate::checks::scope::leaks::history::{History, Span, State};
use crate::checks::scope::leaks::signatures::Signatures;

/// Documents that plain SQL changes. Their keys are 1 to this.
pub(super) const ITEMS: i64 = 240;
/// The first of them are never deleted.
pub(super) const KEPT_ITEMS: i64 = 20;
/// The following ones are changed through larder alone.
pub(super) const HTTP_ITEMS: i64 = 80;
/// Keys from this on are those of new documents.
pub(super) const NEW_ITEMS: i64 = 10_000;
/// Keys from this on never have a document.
pub(super) const ABSENT_ITEMS: i64 = 900_000_000;
/// Rows of the table of lookups.
pub(super) const SITES: i64 = 40;
/// Owners that are principals; one more is nobody's.
pub(super) const CUSTOMERS: i64 = 4;
/// The API key of the staff.
pub(super) const STAFF_KEY: &str = "staff";
/// Larder's setting.
pub(super) const MAX_STALENESS: Duration = Duration::from_secs(1);
/// Told in full; more are only counted.
const VIOLATIONS_MAX: usize = 10;

/// Whether larder reaches PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Since a while.
    Up,
    /// Not at all.
    Down,
    /// It changes.
    Changing,
}

/// See the module.
pub(super) struct World {
    items: Vec<Mutex<History>>,
    sites: Vec<Mutex<History>>,
    /// Keys from [`NEW_ITEMS`] on.
    new_items: Mutex<Vec<History>>,
    pub(super) signatures: Mutex<Signatures>,
    /// The last entity tag that was seen of each document.
    etags: Mutex<BTreeMap<i64, String>>,
    versions: AtomicI64,
    phase: AtomicU8,
    requests: AtomicU64,
    requests_max: u64,
    commits: AtomicU64,
    statuses: Mutex<BTreeMap<(Phase, u16), u64>>,
    violations: Mutex<Vec<String>>,
    violations_count: AtomicU64,
    broken: AtomicBool,
}

impl World {
    pub(super) fn new(requests_max: u64) -> Self {
        let histories = |count: i64| (0..=count).map(|_| Mutex::default()).collect();
        Self {
            items: histories(ITEMS + HTTP_ITEMS),
            sites: histories(SITES),
            new_items: Mutex::default(),
            signatures: Mutex::default(),
            etags: Mutex::default(),
            versions: AtomicI64::new(1),
            phase: AtomicU8::new(Phase::Up as u8),
            requests: AtomicU64::new(0),
            requests_max,
            commits: AtomicU64::new(0),
            statuses: Mutex::default(),
            violations: Mutex::default(),
            violations_count: AtomicU64::new(0),
            broken: AtomicBool::new(false),
        }
    }

    /// A version that no other state has.
    pub(super) fn version(&self) -> i64 {
        self.versions.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::SeqCst) {
            0 => Phase::Up,
            1 => Phase::Down,
            _ => Phase::Changing,
        }
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::SeqCst);
    }

    /// Whether the load is to end.
    pub(super) fn is_over(&self) -> bool {
        self.requests.load(Ordering::Relaxed) >= self.requests_max
            || self.broken.load(Ordering::Relaxed)
    }

    /// A task can't go on.
    pub(super) fn stop(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    pub(super) fn violations(&self) -> u64 {
        self.violations_count.load(Ordering::Relaxed)
    }

    pub(super) fn first_violations(&self) -> Vec<String> {
        lock(&self.violations).clone()
    }

    /// How many answers had each status, with PostgreSQL there and not.
    pub(super) fn statuses(&self) -> BTreeMap<(Phase, u16), u64> {
        lock(&self.statuses).clone()
    }

    pub(super) fn count(&self, phase: Phase, status: u16) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        *lock(&self.statuses).entry((phase, status)).or_default() += 1;
    }

    pub(super) fn note_violation(
        &self,
        why: &str,
        who: &str,
        request: &Request,
        answer: &Answer,
        history: &str,
    ) {
        self.violations_count.fetch_add(1, Ordering::Relaxed);
        let mut violations = lock(&self.violations);
        if violations.len() < VIOLATIONS_MAX {
            let (request, answer) = (request.shown(), answer.shown());
            violations.push(format!("{why}\n{who}: {request}\n{answer}\n{history}"));
        }
    }

    pub(super) fn etag(&self, id: i64) -> Option<String> {
        lock(&self.etags).get(&id).cloned()
    }

    pub(super) fn note_etag(&self, id: i64, etag: &str) {
        lock(&self.etags).insert(id, etag.to_owned());
    }

    /// Notes a new document, which is not there yet, and whose number is that of its key; returns the key.
    pub(super) fn note_new(&self, version: i64, owner: i64) -> i64 {
        let mut new_items = lock(&self.new_items);
        let id = NEW_ITEMS + i64::try_from(new_items.len()).unwrap_or(0);
        let absent = State {
            version: self.version(),
            owner: None,
            is_visible: false,
            number: String::new(),
        };
        let state = State {
            version,
            owner: Some(owner),
            is_visible: true,
            number: number_of(id),
        };
        let mut history = History::default();
        history.note(absent, Boottime::now());
        history.note(state, Boottime::now());
        new_items.push(history);
        id
    }

    /// How many new documents there may be.
    pub(super) fn new_count(&self) -> i64 {
        i64::try_from(lock(&self.new_items).len()).unwrap_or(0)
    }

    /// Notes what a transaction will make of a document.
    pub(super) fn note(&self, id: i64, state: State) {
        self.with(id, |history| history.note(state, Boottime::now()));
    }

    /// The transaction was committed, or not.
    pub(super) fn settle(&self, id: i64, version: i64, is_committed: bool) {
        self.commits
            .fetch_add(u64::from(is_committed), Ordering::Relaxed);
        self.with(id, |history| {
            history.settle(version, is_committed, Boottime::now())
        });
    }

    /// The document as the last transaction leaves it.
    pub(super) fn last(&self, id: i64) -> Option<State> {
        self.with(id, |history| history.last().cloned())?
    }

    /// The states that an answer may show; none if there was never a document.
    pub(super) fn possible(&self, id: i64, span: Span) -> Vec<State> {
        let possible = self.with(id, |history| history.possible(span).cloned().collect());
        possible.unwrap_or_default()
    }

    /// The states of the documents that may have had this number; without it they are not visible.
    pub(super) fn with_number(&self, number: &str, span: Span) -> Vec<State> {
        // Only documents that plain SQL changes exchange their numbers.
        let own = number.rsplit_once(' ').and_then(|(_, id)| id.parse().ok());
        let ids = (1..=ITEMS).chain(own.filter(|id| *id > ITEMS));
        let mut all = Vec::new();
        for id in ids {
            let mut states = self.possible(id, span);
            if states.iter().all(|state| state.number != number) {
                continue;
            }
            for state in &mut states {
                state.is_visible &= state.number == number;
            }
            all.append(&mut states);
        }
        all
    }

    /// How a reader sees the last versions of a document.
    pub(super) fn shown(&self, id: i64) -> String {
        self.with(id, |history| history.shown()).unwrap_or_default()
    }

    fn with<T>(&self, id: i64, work: impl FnOnce(&mut History) -> T) -> Option<T> {
        if id >= NEW_ITEMS {
            let at = usize::try_from(id - NEW_ITEMS).ok()?;
            return lock(&self.new_items).get_mut(at).map(work);
        }
        let history = self.items.get(usize::try_from(id).ok()?)?;
        Some(work(&mut lock(history)))
    }

    pub(super) fn site(&self, id: i64) -> Option<MutexGuard<'_, History>> {
        self.sites.get(usize::try_from(id).ok()?).map(lock)
    }
}

/// The alias that a document has at first.
pub(super) fn number_of(id: i64) -> String {
    format!("No {id}")
}

/// Nothing that a panic could leave half done is kept under these locks.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
