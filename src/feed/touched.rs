//! What a pass has found, each key once, within bounds.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::feed::ranges::Ranges;
use crate::feed::{Change, What};
use crate::resource::ResourceId;

/// Documents of one resource that a pass names, at most, and rows that it reads of the keys that are documents' and of
/// each way that is mapped. Where there are more, it names ranges; more of these empty the resources concerned.
pub(super) const KEYS_MAX: usize = 100_000;

/// Documents and ranges of all resources that a pass names, at most; more empty each resource that was touched.
const CHANGES_MAX: usize = 1_000_000;

/// Whether the rows of an arm may be fewer than there are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    No,
    AtLimit,
}

/// What of one resource is touched.
#[derive(Default)]
struct Parts {
    keys: HashSet<String>,
    ranges: Ranges,
    absences: bool,
    /// Rows that came out of arms with a limit, repeated keys counted: an arm that reached its limit may hide keys,
    /// however few it showed.
    rows: usize,
}

/// What a pass has found, each key once; a resource that is touched whole, or by too many keys, without them.
#[derive(Default)]
pub(super) struct Touched {
    /// By resource; none where it is touched whole.
    parts: HashMap<ResourceId, Option<Parts>>,
    total: usize,
}

impl Touched {
    pub(super) fn add_key(&mut self, resource: ResourceId, key: String, cut: Cut) {
        self.add(resource, |parts| {
            parts.rows += usize::from(cut == Cut::AtLimit);
            parts.keys.insert(key);
            parts.rows <= KEYS_MAX
        });
    }

    /// Whatever is no range stands for all keys.
    pub(super) fn add_range(&mut self, resource: ResourceId, range: &str) {
        self.add(resource, |parts| parts.ranges.add(range));
    }

    pub(super) fn add_absences(&mut self, resource: ResourceId) {
        self.add(resource, |parts| {
            parts.absences = true;
            true
        });
    }

    pub(super) fn add_all(&mut self, resource: ResourceId) {
        self.add(resource, |_| false);
    }

    /// Adds to the parts of a resource; if that fails, or gives too many, it is touched whole.
    fn add(&mut self, resource: ResourceId, add: impl FnOnce(&mut Parts) -> bool) {
        let entry = self.parts.entry(resource);
        let entry = entry.or_insert_with(|| Some(Parts::default()));
        let Some(parts) = entry else {
            return;
        };
        let before = parts.count();
        let added = add(parts);
        self.total += parts.count() - before;
        if !added || parts.keys.len() > KEYS_MAX || parts.ranges.len() > KEYS_MAX {
            self.total -= parts.count();
            *entry = None;
        }
        if self.total > CHANGES_MAX {
            self.parts.values_mut().for_each(|parts| *parts = None);
            self.total = 0;
        }
    }

    pub(super) fn into_changes(self) -> Vec<Change> {
        let mut changes = Vec::with_capacity(self.total);
        for (resource, parts) in self.parts {
            let mut push = |what| changes.push(Change { resource, what });
            let Some(parts) = parts else {
                push(What::All);
                continue;
            };
            if parts.absences {
                push(What::Absences);
            }
            if parts.ranges.len() > 0 {
                push(What::Ranges(Arc::new(parts.ranges)));
            }
            parts.keys.into_iter().map(What::Key).for_each(push);
        }
        changes
    }
}

impl Parts {
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

    /// What was found, in an order.
    fn told(touched: Touched) -> Vec<String> {
        let changes = touched.into_changes();
        let mut told: Vec<String> = changes
            .into_iter()
            .map(|change| format!("{} {:?}", change.resource.index(), change.what))
            .collect();
        told.sort();
        told
    }

    #[test]
    fn each_key_comes_once_and_a_whole_resource_without_parts() {
        let mut touched = Touched::default();
        for (resource, key) in [(1, "a"), (1, "a"), (2, "b")] {
            touched.add_key(id(resource), key.to_owned(), Cut::No);
        }
        touched.add_range(id(2), "7:100");
        touched.add_all(id(2));
        touched.add_absences(id(2));
        touched.add_key(id(2), "c".to_owned(), Cut::No);
        touched.add_absences(id(3));
        touched.add_range(id(4), "no range");
        assert_eq!(
            told(touched),
            [r#"1 Key("a")"#, "2 All", "3 Absences", "4 All"]
        );
    }

    #[test]
    fn parts_of_every_kind_stand_beside_each_other() {
        let mut touched = Touched::default();
        touched.add_absences(id(1));
        touched.add_range(id(1), "7:100");
        touched.add_range(id(1), "7:101");
        touched.add_key(id(1), "a".to_owned(), Cut::No);
        let changes = touched.into_changes();
        let ranges =
            |change: &Change| matches!(&change.what, What::Ranges(ranges) if ranges.len() == 2);
        assert_eq!(changes.len(), 3);
        assert!(changes.iter().any(ranges));
    }

    #[test]
    fn repeated_keys_count_only_where_an_arm_may_have_been_cut() {
        for (cut, expected) in [(Cut::No, r#"1 Key("a")"#), (Cut::AtLimit, "1 All")] {
            let mut touched = Touched::default();
            for _ in 0..=KEYS_MAX {
                touched.add_key(id(1), "a".to_owned(), cut);
            }
            touched.add_key(id(2), "b".to_owned(), cut);
            assert_eq!(told(touched), [expected, r#"2 Key("b")"#]);
        }
    }

    #[test]
    fn the_whole_is_bounded() {
        let mut touched = Touched::default();
        let resources = CHANGES_MAX / KEYS_MAX + 1;
        for resource in 0..resources {
            let id = id(resource);
            for key in 0..KEYS_MAX {
                match resource % 2 {
                    0 => touched.add_key(id, key.to_string(), Cut::No),
                    _ => touched.add_range(id, &format!("9:{key}")),
                }
                assert!(touched.total <= CHANGES_MAX);
            }
        }
        let changes = touched.into_changes();
        assert!((0..resources - 1).all(|resource| changes.contains(&Change {
            resource: id(resource),
            what: What::All
        })));
    }
}
