//! What a pass has found, each key once, within bounds.

use std::collections::{HashMap, HashSet};

use crate::feed::Change;

/// Documents of one resource that a pass names, at most, and rows that it reads of the keys that are documents' and of
/// each way that is mapped; more empty the resources concerned.
pub(super) const KEYS_MAX: usize = 100_000;

/// Documents of all resources that a pass names, at most; more empty each resource that was touched.
const CHANGES_MAX: usize = 1_000_000;

/// Whether the rows of an arm may be fewer than there are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    No,
    AtLimit,
}

/// What a pass has found, each key once; a resource that is touched whole, or by too many keys, without them.
#[derive(Default)]
pub(super) struct Touched {
    /// By resource; none where it is touched whole.
    keys: HashMap<usize, Option<HashSet<String>>>,
    /// Rows by resource that came out of arms with a limit, repeated keys counted: an arm that reached its limit may
    /// hide keys, however few it showed.
    rows: HashMap<usize, usize>,
    total: usize,
}

impl Touched {
    pub(super) fn add(&mut self, resource: usize, key: Option<String>, cut: Cut) {
        let Some(keys) = self
            .keys
            .entry(resource)
            .or_insert_with(|| Some(HashSet::new()))
        else {
            return;
        };
        let Some(key) = key else {
            return self.touch_whole(resource);
        };
        let rows = self.rows.entry(resource).or_insert(0);
        *rows += usize::from(cut == Cut::AtLimit);
        let rows = *rows;
        self.total += usize::from(keys.insert(key));
        if rows > KEYS_MAX || keys.len() > KEYS_MAX {
            self.touch_whole(resource);
        }
        if self.total > CHANGES_MAX {
            for keys in self.keys.values_mut() {
                *keys = None;
            }
            self.total = 0;
        }
    }

    fn touch_whole(&mut self, resource: usize) {
        if let Some(Some(keys)) = self.keys.insert(resource, None) {
            self.total -= keys.len();
        }
    }

    pub(super) fn into_changes(self) -> Vec<Change> {
        let mut changes = Vec::with_capacity(self.total);
        for (resource, keys) in self.keys {
            match keys {
                None => changes.push(Change {
                    resource,
                    key: None,
                }),
                Some(keys) => changes.extend(keys.into_iter().map(|key| Change {
                    resource,
                    key: Some(key),
                })),
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(touched: Touched) -> Vec<(usize, Option<String>)> {
        let changes = touched.into_changes().into_iter();
        let mut keys: Vec<_> = changes
            .map(|change| (change.resource, change.key))
            .collect();
        keys.sort();
        keys
    }

    #[test]
    fn each_key_comes_once_and_a_whole_resource_without_keys() {
        let mut touched = Touched::default();
        for (resource, key) in [
            (1, Some("a")),
            (1, Some("a")),
            (2, Some("b")),
            (2, None),
            (2, Some("c")),
        ] {
            touched.add(resource, key.map(str::to_owned), Cut::No);
        }
        assert_eq!(keys(touched), [(1, Some("a".to_owned())), (2, None)]);
    }

    #[test]
    fn repeated_keys_count_only_where_an_arm_may_have_been_cut() {
        for (cut, expected) in [(Cut::No, Some("a".to_owned())), (Cut::AtLimit, None)] {
            let mut touched = Touched::default();
            for _ in 0..=KEYS_MAX {
                touched.add(1, Some("a".to_owned()), cut);
            }
            touched.add(2, Some("b".to_owned()), cut);
            assert_eq!(keys(touched), [(1, expected), (2, Some("b".to_owned()))]);
        }
    }

    #[test]
    fn the_whole_is_bounded() {
        let mut touched = Touched::default();
        let resources = CHANGES_MAX / KEYS_MAX + 1;
        for resource in 0..resources {
            for key in 0..KEYS_MAX {
                touched.add(resource, Some(key.to_string()), Cut::No);
                assert!(touched.total <= CHANGES_MAX);
            }
        }
        let changes = touched.into_changes();
        assert!((0..resources - 1).all(|resource| changes.contains(&Change {
            resource,
            key: None
        })));
    }
}
