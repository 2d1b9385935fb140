//! The documents that PostgreSQL can't return, or that are too long, remembered until they change.
//!
//! An entry has the version that its load noted before it read. It holds while that version is the current one and the
//! tiers are fresh, as an entry in memory does. It needs no removal by invalidations: a version that was overtaken never
//! becomes current again. Entries take at most `BYTES_MAX`; beyond that the oldest are forgotten.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::cache::generation::{Version, Versions};
use crate::cache::lock;
use crate::resource::ResourceId;
use crate::source::SourceError;

/// Entries together, with [`OVERHEAD_BYTES`] for each: some 4,000 of short keys.
const BYTES_MAX: usize = 1 << 20;

/// What an entry takes besides its key: places in map and queue, the error and its message.
const OVERHEAD_BYTES: usize = 256;

/// How long a document that took too long is not tried again. Doubled each time: each try may take a gigabyte of
/// PostgreSQL's memory.
const RETRY_PAUSE_MIN: Duration = Duration::from_secs(5);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(300);

struct Entry {
    version: Version,
    error: SourceError,
    /// When the document is tried again, and the pause until then, if it may become readable without a change.
    retry: Option<(Instant, Duration)>,
}

/// Remembers why documents can't be read.
pub(super) struct Unreadable {
    state: Mutex<State>,
}

struct State {
    /// By resource.
    entries: Vec<HashMap<Arc<str>, Entry>>,
    /// All entries, oldest first.
    order: VecDeque<(ResourceId, Arc<str>)>,
    bytes: usize,
}

impl Unreadable {
    pub(super) fn new(resources: usize) -> Self {
        Self {
            state: Mutex::new(State {
                entries: (0..resources).map(|_| HashMap::new()).collect(),
                order: VecDeque::new(),
                bytes: 0,
            }),
        }
    }

    /// Why the document of `key` can't be read, if it was tried since the key was last invalidated.
    pub(super) fn get(
        &self,
        resource: ResourceId,
        key: &str,
        versions: &Versions,
    ) -> Option<SourceError> {
        let state = lock(&self.state);
        let entry = state.entries[resource.index()].get(key)?;
        let stripe = versions.stripe(resource, key);
        let is_due = entry.retry.is_some_and(|(at, _)| Instant::now() >= at);
        let is_current = !is_due && versions.is_current(resource, stripe, entry.version);
        is_current.then(|| entry.error.clone())
    }

    /// Remembers that a load that noted `version` could not read the document of `key`. Returns false if that was known
    /// for this version.
    pub(super) fn note(
        &self,
        resource: ResourceId,
        key: &Arc<str>,
        version: Version,
        error: SourceError,
    ) -> bool {
        let mut state = lock(&self.state);
        let entries = &mut state.entries[resource.index()];
        let former = entries.get(key).filter(|former| former.version == version);
        let pause = former
            .and_then(|former| former.retry)
            .map_or(RETRY_PAUSE_MIN, |(_, pause)| {
                (2 * pause).min(RETRY_PAUSE_MAX)
            });
        let is_timeout = matches!(
            error,
            SourceError::DocumentTimeout | SourceError::SlowDocument
        );
        let retry = is_timeout.then(|| (Instant::now() + pause, pause));
        let entry = Entry {
            version,
            error,
            retry,
        };
        if let Some(former) = entries.insert(Arc::clone(key), entry) {
            return former.version != version;
        }
        state.order.push_back((resource, Arc::clone(key)));
        state.bytes += bytes(key);
        while state.bytes > BYTES_MAX
            && let Some((resource, oldest)) = state.order.pop_front()
        {
            state.entries[resource.index()].remove(&oldest);
            state.bytes -= bytes(&oldest);
        }
        true
    }
}

fn bytes(key: &str) -> usize {
    key.len() + OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::testing::ITEMS;

    fn note(unreadable: &Unreadable, versions: &Versions, key: &str) -> bool {
        let version = versions.version(ITEMS, versions.stripe(ITEMS, key));
        unreadable.note(ITEMS, &Arc::from(key), version, SourceError::TooLarge)
    }

    #[tokio::test(start_paused = true)]
    async fn a_document_that_took_too_long_is_tried_again_after_growing_pauses() {
        let (unreadable, versions) = (Unreadable::new(1), Versions::new(1));
        let version = versions.version(ITEMS, versions.stripe(ITEMS, "1"));
        let key = Arc::from("1");
        for (number, pause) in [5, 10, 20, 40, 80, 160, 300, 300].into_iter().enumerate() {
            let error = match number % 2 {
                0 => SourceError::DocumentTimeout,
                _ => SourceError::SlowDocument,
            };
            let is_new = unreadable.note(ITEMS, &key, version, error);
            assert_eq!(is_new, number == 0, "it is logged once");
            tokio::time::advance(Duration::from_secs(pause - 1)).await;
            assert!(unreadable.get(ITEMS, "1", &versions).is_some());
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(unreadable.get(ITEMS, "1", &versions).is_none());
        }
    }

    #[test]
    fn what_can_not_be_read_is_remembered_for_its_version() {
        let (unreadable, versions) = (Unreadable::new(1), Versions::new(1));
        let is_known = || unreadable.get(ITEMS, "1", &versions).is_some();
        assert!(!is_known());
        assert!(note(&unreadable, &versions, "1") && is_known());
        assert!(!note(&unreadable, &versions, "1"), "noted twice");
        versions.raise(versions.stripe(ITEMS, "1"));
        assert!(!is_known());
        assert!(note(&unreadable, &versions, "1") && is_known());
        versions.renew_epoch(ITEMS);
        assert!(!is_known());
    }

    #[test]
    fn a_load_that_was_overtaken_is_not_believed() {
        let (unreadable, versions) = (Unreadable::new(1), Versions::new(1));
        let stripe = versions.stripe(ITEMS, "1");
        let before = versions.version(ITEMS, stripe);
        versions.raise(stripe);
        unreadable.note(ITEMS, &Arc::from("1"), before, SourceError::TooLarge);
        assert!(unreadable.get(ITEMS, "1", &versions).is_none());
    }

    #[test]
    fn the_oldest_entries_are_forgotten() {
        let (unreadable, versions) = (Unreadable::new(1), Versions::new(1));
        let key = |number: usize| format!("{number:04000}");
        for number in 0..1_000 {
            assert!(note(&unreadable, &versions, &key(number)));
            assert!(lock(&unreadable.state).bytes <= BYTES_MAX);
        }
        assert!(unreadable.get(ITEMS, &key(0), &versions).is_none());
        assert!(unreadable.get(ITEMS, &key(999), &versions).is_some());
        let state = lock(&unreadable.state);
        let kept = BYTES_MAX / bytes(&key(0));
        assert_eq!((state.order.len(), state.entries[0].len()), (kept, kept));
    }
}
