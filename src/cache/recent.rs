//! What has happened recently, for the admin address: the last invalidations, when a key was last invalidated, and the
//! slowest loads.
//!
//! All of it is bounded. A load takes the lock only if it is one of the slowest. Nothing here decides whether an entry is
//! valid; that is `generation`.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::cache::lock;
use crate::clock::Boottime;
use crate::feed::{Affected, PassCause};
use crate::resource::ResourceId;
use crate::source::loader::Loaded;

/// The invalidations that are kept.
const INVALIDATIONS_MAX: usize = 200;
/// The loads that are kept, and for how long.
const LOADS_MAX: usize = 50;
const LOADS_KEPT: Duration = Duration::from_secs(15 * 60);
/// Of a longer key, only the beginning is kept.
const KEY_BYTES_MAX: usize = 256;
/// The keys whose last invalidation is kept, at most: 24 bytes each. A hash selects the slot.
const SLOTS: usize = 1 << 12;

/// Why entries were invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum InvalidationCause {
    /// Rows have changed, as a pass found after a notification or a write of this node.
    Bell,
    /// Rows have changed, as a pass found that nothing but the time had started.
    Poll,
    /// An operator asked for it.
    Purge,
    /// The audit has found a stale entry.
    Audit,
    /// The definition of the resource was checked again, or has changed.
    Definition,
    /// The feed does not know what has changed before its position.
    Reset,
}

impl InvalidationCause {
    /// The label `via` of metrics.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Bell => "bell",
            Self::Poll => "poll",
            Self::Purge => "purge",
            Self::Audit => "audit",
            Self::Definition => "definition",
            Self::Reset => "reset",
        }
    }
}

impl From<PassCause> for InvalidationCause {
    fn from(cause: PassCause) -> Self {
        match cause {
            PassCause::Bell => Self::Bell,
            PassCause::Poll => Self::Poll,
        }
    }
}

/// Which entries of a resource were invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Extent {
    /// That of one key.
    Key,
    /// Those of all keys in some ranges.
    Ranges,
    /// All absences.
    Absences,
    /// All.
    All,
}

impl From<&Affected> for Extent {
    fn from(affected: &Affected) -> Self {
        match affected {
            Affected::Key(_) => Self::Key,
            Affected::Ranges(_) => Self::Ranges,
            Affected::Absences => Self::Absences,
            Affected::All => Self::All,
        }
    }
}

/// The last invalidation of a key, as `/explain` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LastInvalidation {
    /// How long ago.
    pub seconds_ago: f64,
    /// Which entries.
    pub extent: Extent,
    /// Why.
    pub via: InvalidationCause,
}

/// One of the last invalidations, as `/recent` shows it.
#[derive(Clone, Debug, Serialize)]
pub struct RecentInvalidation {
    /// Its number since the start.
    pub number: u64,
    /// How long ago.
    pub seconds_ago: f64,
    /// The resource.
    pub resource: String,
    /// Which entries.
    pub extent: Extent,
    /// The canonical text of the key, if it is of one key; the beginning of it if it is long.
    pub key: Option<String>,
    /// `key` is only the beginning.
    pub is_cut: bool,
    /// Why.
    pub via: InvalidationCause,
}

/// One of the slowest loads, as `/recent` shows it.
#[derive(Clone, Debug, Serialize)]
pub struct SlowLoad {
    /// How long ago it ended.
    pub seconds_ago: f64,
    /// The resource.
    pub resource: String,
    /// The canonical text of the key; the beginning of it if it is long.
    pub key: String,
    /// `key` is only the beginning.
    pub is_cut: bool,
    /// From the request until the end of the load.
    pub seconds: f64,
    /// The part of it before the statement was sent.
    pub waiting_seconds: f64,
    /// Bytes of the document; `None` if there is none.
    pub bytes: Option<usize>,
    /// Why it failed, without values of rows; `None` if it did not.
    pub error: Option<String>,
}

/// `GET /recent`.
#[derive(Clone, Debug, Serialize)]
pub struct RecentEvents {
    /// The last invalidations, newest first.
    pub invalidations: Vec<RecentInvalidation>,
    /// The slowest loads of the last 15 minutes, slowest first.
    pub slow_loads: Vec<SlowLoad>,
}

/// A load that has ended.
pub(super) struct EndedLoad<'l> {
    pub(super) resource: ResourceId,
    pub(super) key: &'l str,
    pub(super) asked_at: Boottime,
    pub(super) sent_at: Option<Boottime>,
    pub(super) ended_at: Boottime,
    pub(super) loaded: &'l Loaded,
}

/// What has happened recently.
pub(super) struct Recent {
    seed: u64,
    invalidations: Mutex<Invalidations>,
    /// The nanoseconds that a load must exceed to be kept.
    slowest_min: AtomicU64,
    loads: Mutex<Vec<KeptLoad>>,
}

struct Invalidations {
    count: u64,
    last: VecDeque<KeptInvalidation>,
    keys: Vec<KeySlot>,
    /// By resource, the last one of more than one key.
    resources: Vec<Option<(Boottime, Extent, InvalidationCause)>>,
}

#[derive(Clone, Copy)]
struct KeySlot {
    hash: u64,
    at: Boottime,
    via: InvalidationCause,
}

struct KeptInvalidation {
    at: Boottime,
    resource: ResourceId,
    extent: Extent,
    key: Option<ShownKey>,
    via: InvalidationCause,
}

struct KeptLoad {
    at: Boottime,
    resource: ResourceId,
    key: ShownKey,
    took: Duration,
    waited: Duration,
    /// Bytes of the document, or why it could not be read.
    outcome: Result<Option<usize>, String>,
}

/// A key, or the beginning of a long one.
struct ShownKey {
    text: Box<str>,
    is_cut: bool,
}

impl ShownKey {
    fn new(key: &str) -> Self {
        let end = key.floor_char_boundary(KEY_BYTES_MAX);
        Self {
            text: key.get(..end).unwrap_or_default().into(),
            is_cut: end < key.len(),
        }
    }
}

impl Recent {
    pub(super) fn new(resources: usize) -> Self {
        let none = KeySlot {
            hash: 0,
            at: Boottime::NEVER,
            via: InvalidationCause::Reset,
        };
        Self {
            seed: RandomState::new().hash_one(resources),
            invalidations: Mutex::new(Invalidations {
                count: 0,
                last: VecDeque::with_capacity(INVALIDATIONS_MAX),
                keys: vec![none; SLOTS],
                resources: vec![None; resources],
            }),
            slowest_min: AtomicU64::new(0),
            loads: Mutex::default(),
        }
    }

    fn hash(&self, resource: ResourceId, key: &str) -> u64 {
        let seed = self.seed.wrapping_add(resource.index() as u64);
        xxh3_64_with_seed(key.as_bytes(), seed)
    }

    /// Notes an invalidation; `key` if it is of one key.
    pub(super) fn note_invalidation(
        &self,
        resource: ResourceId,
        extent: Extent,
        key: Option<&str>,
        via: InvalidationCause,
    ) {
        let at = Boottime::now();
        let slot = key.map(|key| self.hash(resource, key));
        let kept = KeptInvalidation {
            at,
            resource,
            extent,
            key: key.map(ShownKey::new),
            via,
        };
        let mut invalidations = lock(&self.invalidations);
        invalidations.count += 1;
        match slot {
            Some(hash) => {
                if let Some(slot) = invalidations.keys.get_mut(hash as usize % SLOTS) {
                    *slot = KeySlot { hash, at, via };
                }
            }
            None => {
                if let Some(last) = invalidations.resources.get_mut(resource.index()) {
                    *last = Some((at, extent, via));
                }
            }
        }
        if invalidations.last.len() == INVALIDATIONS_MAX {
            invalidations.last.pop_front();
        }
        invalidations.last.push_back(kept);
    }

    /// The number of invalidations since the start.
    pub(super) fn invalidations(&self) -> u64 {
        lock(&self.invalidations).count
    }

    /// The last invalidation that `key` may have been part of; `None` if none is known any more.
    pub(super) fn last_of(&self, resource: ResourceId, key: &str) -> Option<LastInvalidation> {
        let hash = self.hash(resource, key);
        let (of_key, of_resource) = {
            let invalidations = lock(&self.invalidations);
            let slot = invalidations.keys.get(hash as usize % SLOTS).copied();
            let of_resource = invalidations.resources.get(resource.index());
            (slot, of_resource.copied().flatten())
        };
        let of_key = of_key.filter(|slot| slot.hash == hash && slot.at != Boottime::NEVER);
        let of_key = of_key.map(|slot| (slot.at, Extent::Key, slot.via));
        let newest = of_key.into_iter().chain(of_resource);
        let (at, extent, via) = newest.max_by_key(|(at, _, _)| *at)?;
        Some(LastInvalidation {
            seconds_ago: Boottime::now().since(at).as_secs_f64(),
            extent,
            via,
        })
    }

    /// Notes a load that has ended, if it is one of the slowest.
    pub(super) fn note_load(&self, load: &EndedLoad<'_>) {
        let at = load.ended_at;
        let took = at.since(load.asked_at);
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if nanoseconds <= self.slowest_min.load(Ordering::Relaxed) {
            return;
        }
        let sent_at = load.sent_at.unwrap_or(at);
        let kept = KeptLoad {
            at,
            resource: load.resource,
            key: ShownKey::new(load.key),
            took,
            waited: sent_at.since(load.asked_at),
            outcome: match load.loaded {
                Ok(found) => Ok(found.as_ref().map(|found| found.body().len())),
                Err(error) => Err(error.without_values()),
            },
        };
        let mut loads = lock(&self.loads);
        remove_old(&mut loads, at);
        if loads.len() == LOADS_MAX {
            let least = loads.iter().enumerate().min_by_key(|(_, load)| load.took);
            if let Some((index, _)) = least {
                loads.swap_remove(index);
            }
        }
        loads.push(kept);
        self.set_slowest_min(&loads);
    }

    /// Makes room for other loads in place of those that are too old.
    pub(super) fn forget_old_loads(&self) {
        let mut loads = lock(&self.loads);
        remove_old(&mut loads, Boottime::now());
        self.set_slowest_min(&loads);
    }

    fn set_slowest_min(&self, loads: &[KeptLoad]) {
        let least = loads.iter().map(|load| load.took).min();
        let least = least.filter(|_| loads.len() == LOADS_MAX);
        let nanoseconds = least.map_or(0, |least| least.as_nanos());
        let nanoseconds = u64::try_from(nanoseconds).unwrap_or(u64::MAX);
        self.slowest_min.store(nanoseconds, Ordering::Relaxed);
    }

    /// All of it; `name` tells the names of resources.
    pub(super) fn events(&self, name: impl Fn(ResourceId) -> String) -> RecentEvents {
        self.forget_old_loads();
        let now = Boottime::now();
        let ago = |at: Boottime| now.since(at).as_secs_f64();
        let invalidations = {
            let invalidations = lock(&self.invalidations);
            let numbers = (1..=invalidations.count).rev();
            let newest = numbers.zip(invalidations.last.iter().rev());
            let shown = newest.map(|(number, kept)| RecentInvalidation {
                number,
                seconds_ago: ago(kept.at),
                resource: name(kept.resource),
                extent: kept.extent,
                key: kept.key.as_ref().map(|key| key.text.to_string()),
                is_cut: kept.key.as_ref().is_some_and(|key| key.is_cut),
                via: kept.via,
            });
            shown.collect()
        };
        let mut slow_loads: Vec<SlowLoad> = lock(&self.loads)
            .iter()
            .map(|load| SlowLoad {
                seconds_ago: ago(load.at),
                resource: name(load.resource),
                key: load.key.text.to_string(),
                is_cut: load.key.is_cut,
                seconds: load.took.as_secs_f64(),
                waiting_seconds: load.waited.as_secs_f64(),
                bytes: load.outcome.clone().ok().flatten(),
                error: load.outcome.clone().err(),
            })
            .collect();
        slow_loads.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        RecentEvents {
            invalidations,
            slow_loads,
        }
    }
}

fn remove_old(loads: &mut Vec<KeptLoad>, now: Boottime) {
    loads.retain(|load| now.since(load.at) <= LOADS_KEPT);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::stopped;
    use crate::resource::testing::ITEMS;
    use crate::source::SourceError;

    const SECOND: Duration = Duration::from_secs(1);

    fn events(recent: &Recent) -> RecentEvents {
        recent.events(|_| "items".into())
    }

    #[test]
    fn invalidations_are_bounded_and_long_keys_are_cut() {
        let recent = Recent::new(1);
        // Two bytes each, so that the bound is within a character for one of the two lengths.
        for key in ["é".repeat(1 << 19), format!("a{}", "é".repeat(1 << 19))] {
            let via = InvalidationCause::Bell;
            recent.note_invalidation(ITEMS, Extent::Key, Some(&key), via);
            let newest = &events(&recent).invalidations[0];
            let shown = newest.key.as_deref().unwrap();
            assert!(newest.is_cut && key.starts_with(shown));
            assert!((KEY_BYTES_MAX - 1..=KEY_BYTES_MAX).contains(&shown.len()));
        }
        for number in 0..1_000 {
            let key = number.to_string();
            let via = InvalidationCause::Poll;
            recent.note_invalidation(ITEMS, Extent::Key, Some(&key), via);
        }
        let invalidations = events(&recent).invalidations;
        assert_eq!(invalidations.len(), INVALIDATIONS_MAX);
        assert_eq!(invalidations[0].key.as_deref(), Some("999"));
        assert_eq!(invalidations[0].number, 1_002);
        assert_eq!(invalidations[199].number, 803);
        assert_eq!(recent.invalidations(), 1_002);
    }

    #[test]
    fn the_last_invalidation_of_a_key_may_be_one_of_its_resource() {
        use InvalidationCause::{Bell, Definition, Purge};
        let recent = Recent::new(1);
        let last = |key| {
            recent
                .last_of(ITEMS, key)
                .map(|last| (last.extent, last.via))
        };
        assert_eq!(last("1"), None);
        stopped::set(Boottime(1));
        recent.note_invalidation(ITEMS, Extent::Key, Some("1"), Bell);
        assert_eq!(last("1"), Some((Extent::Key, Bell)));
        assert_eq!(last("2"), None);
        stopped::set(Boottime(2));
        recent.note_invalidation(ITEMS, Extent::All, None, Definition);
        assert_eq!(last("1"), Some((Extent::All, Definition)));
        assert_eq!(last("2"), Some((Extent::All, Definition)));
        stopped::set(Boottime(3));
        recent.note_invalidation(ITEMS, Extent::Key, Some("1"), Purge);
        assert_eq!(last("1"), Some((Extent::Key, Purge)));
    }

    #[test]
    fn no_error_shows_a_value_of_a_row() {
        let recent = Recent::new(1);
        let now = Boottime::NEVER.after(SECOND);
        stopped::set(now);
        recent.note_load(&EndedLoad {
            resource: ITEMS,
            key: "1",
            asked_at: Boottime::NEVER,
            sent_at: Some(now),
            ended_at: now,
            loaded: &Err(SourceError::Refused {
                code: "22P02".into(),
                message: "invalid input syntax for type integer: \"secret\"".into(),
            }),
        });
        let shown = events(&recent).slow_loads.remove(0).error;
        assert_eq!(shown.as_deref(), Some("PostgreSQL reported error 22P02"));
    }

    #[test]
    fn the_slowest_loads_are_kept_until_they_are_old() {
        let recent = Recent::new(1);
        let load = |seconds: u32| {
            let took = SECOND * seconds;
            let now = Boottime::now();
            let asked_at = Boottime(now.0 - u64::try_from(took.as_nanos()).unwrap());
            recent.note_load(&EndedLoad {
                resource: ITEMS,
                key: &seconds.to_string(),
                asked_at,
                sent_at: Some(asked_at.after(SECOND / 2)),
                ended_at: now,
                loaded: &Err(SourceError::Overloaded),
            });
        };
        let keys = || {
            let loads = events(&recent).slow_loads.into_iter();
            loads.map(|load| load.key).collect::<Vec<_>>()
        };
        let start = Boottime::NEVER.after(1_000 * SECOND);
        stopped::set(start);
        (1..=60).rev().for_each(load);
        let expected: Vec<String> = (11..=60).rev().map(|key| key.to_string()).collect();
        assert_eq!(keys(), expected);
        let slowest = &events(&recent).slow_loads[0];
        assert_eq!((slowest.seconds, slowest.waiting_seconds), (60.0, 0.5));
        assert_eq!(slowest.error, Some(SourceError::Overloaded.to_string()));
        stopped::set(start.after(LOADS_KEPT));
        load(12);
        assert_eq!(keys().len(), LOADS_MAX);
        stopped::set(start.after(LOADS_KEPT + SECOND));
        recent.forget_old_loads();
        load(1);
        assert_eq!(keys(), ["12", "1"]);
    }
}
