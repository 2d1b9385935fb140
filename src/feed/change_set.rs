//! The changes that a pass has found: each key once, and not more than a bound.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::feed::ranges::Ranges;
use crate::feed::{Affected, Change};
use crate::resource::ResourceId;

/// The most keys, and the most ranges, of one resource; and the most rows of one arm of a pass's statement. If there
/// are more keys, the pass names ranges; if there are more ranges, the whole resource.
pub(super) const KEYS_MAX: usize = 100_000;

/// The most keys and ranges of all resources together. If there are more, each resource that has changes is named
/// whole.
const CHANGES_MAX: usize = 1_000_000;

/// Whether a key came from an arm that returns only the first rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RowLimit {
    Unlimited,
    Limited,
}

/// The changes of one resource.
#[derive(Default)]
struct ResourceChanges {
    keys: HashSet<String>,
    ranges: Ranges,
    absences: bool,
    /// Rows that came from arms with a limit, repeated keys included. An arm that reached its limit may hide keys,
    /// however few different keys it returned.
    limited_rows: usize,
}

/// The changes that a pass has found.
#[derive(Default)]
pub(super) struct ChangeSet {
    /// `None` for a resource that has changed as a whole, or has too many changes.
    resources: HashMap<ResourceId, Option<ResourceChanges>>,
    /// Keys and ranges in `resources`.
    total: usize,
}

impl ChangeSet {
    pub(super) fn add_key(&mut self, resource: ResourceId, key: String, limit: RowLimit) {
        self.add(resource, |changes| {
            changes.limited_rows += usize::from(limit == RowLimit::Limited);
            changes.keys.insert(key);
            changes.limited_rows <= KEYS_MAX
        });
    }

    /// Adds a range as the log has it. A text that is not a range stands for all keys.
    pub(super) fn add_range(&mut self, resource: ResourceId, range: &str) {
        self.add(resource, |changes| changes.ranges.add(range));
    }

    pub(super) fn add_absences(&mut self, resource: ResourceId) {
        self.add(resource, |changes| {
            changes.absences = true;
            true
        });
    }

    pub(super) fn add_all(&mut self, resource: ResourceId) {
        self.add(resource, |_| false);
    }

    /// Adds to the changes of a resource. If `add` fails, or the changes are too many then, all of it has changed.
    fn add(&mut self, resource: ResourceId, add: impl FnOnce(&mut ResourceChanges) -> bool) {
        let entry = self.resources.entry(resource);
        let entry = entry.or_insert_with(|| Some(ResourceChanges::default()));
        let Some(changes) = entry else {
            return;
        };
        let before = changes.count();
        let added = add(changes);
        self.total += changes.count() - before;
        if !added || changes.keys.len() > KEYS_MAX || changes.ranges.len() > KEYS_MAX {
            self.total -= changes.count();
            *entry = None;
        }
        if self.total > CHANGES_MAX {
            let resources = self.resources.values_mut();
            resources.for_each(|changes| *changes = None);
            self.total = 0;
        }
    }

    pub(super) fn into_changes(self) -> Vec<Change> {
        let mut list = Vec::with_capacity(self.total);
        for (resource, changes) in self.resources {
            let mut push = |affected| list.push(Change { resource, affected });
            let Some(changes) = changes else {
                push(Affected::All);
                continue;
            };
            if changes.absences {
                push(Affected::Absences);
            }
            if changes.ranges.len() > 0 {
                push(Affected::Ranges(Arc::new(changes.ranges)));
            }
            changes.keys.into_iter().map(Affected::Key).for_each(push);
        }
        list
    }
}

impl ResourceChanges {
    fn count(&self) -> usize {
        self.keys.len() + self.ranges.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(index: usize) -> ResourceId {
        ResourceId::new(index)
    }

    /// The changes as text, in a fixed order.
    fn sorted(changes: ChangeSet) -> Vec<String> {
        let changes = changes.into_changes();
        let mut sorted: Vec<String> = changes
            .into_iter()
            .map(|change| format!("{} {:?}", change.resource.index(), change.affected))
            .collect();
        sorted.sort();
        sorted
    }

    #[test]
    fn each_key_comes_once_and_a_whole_resource_without_keys() {
        let mut changes = ChangeSet::default();
        for (resource, key) in [(1, "a"), (1, "a"), (2, "b")] {
            changes.add_key(id(resource), key.to_owned(), RowLimit::Unlimited);
        }
        changes.add_range(id(2), "7:100");
        changes.add_all(id(2));
        changes.add_absences(id(2));
        changes.add_key(id(2), "c".to_owned(), RowLimit::Unlimited);
        changes.add_absences(id(3));
        changes.add_range(id(4), "no range");
        assert_eq!(
            sorted(changes),
            [r#"1 Key("a")"#, "2 All", "3 Absences", "4 All"]
        );
    }

    #[test]
    fn a_resource_has_changes_of_every_kind() {
        let mut changes = ChangeSet::default();
        changes.add_absences(id(1));
        changes.add_range(id(1), "7:100");
        changes.add_range(id(1), "7:101");
        changes.add_key(id(1), "a".to_owned(), RowLimit::Unlimited);
        let changes = changes.into_changes();
        let ranges = |change: &Change| matches!(&change.affected, Affected::Ranges(ranges) if ranges.len() == 2);
        assert_eq!(changes.len(), 3);
        assert!(changes.iter().any(ranges));
    }

    #[test]
    fn repeated_keys_count_only_if_the_rows_are_limited() {
        for (limit, expected) in [
            (RowLimit::Unlimited, r#"1 Key("a")"#),
            (RowLimit::Limited, "1 All"),
        ] {
            let mut changes = ChangeSet::default();
            for _ in 0..=KEYS_MAX {
                changes.add_key(id(1), "a".to_owned(), limit);
            }
            changes.add_key(id(2), "b".to_owned(), limit);
            assert_eq!(sorted(changes), [expected, r#"2 Key("b")"#]);
        }
    }

    #[test]
    fn the_whole_is_bounded() {
        let mut changes = ChangeSet::default();
        let resources = CHANGES_MAX / KEYS_MAX + 1;
        for resource in 0..resources {
            let id = id(resource);
            for key in 0..KEYS_MAX {
                match resource % 2 {
                    0 => changes.add_key(id, key.to_string(), RowLimit::Unlimited),
                    _ => changes.add_range(id, &format!("9:{key}")),
                }
                assert!(changes.total <= CHANGES_MAX);
            }
        }
        let changes = changes.into_changes();
        assert!((0..resources - 1).all(|resource| changes.contains(&Change {
            resource: id(resource),
            affected: Affected::All
        })));
    }
}
