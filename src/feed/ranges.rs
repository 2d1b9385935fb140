//! Ranges of keys: what a statement that touches more keys than `keys_per_statement` says instead of each key.
//!
//! A range is all keys of one length that begin alike. Keys that are drawn in sequence, numbers or times, fill few
//! ranges, however many they are. A range is written as its keys' length in characters, a colon and their beginning:
//! `7:100` is every key of seven characters that begins with 100.

use std::collections::HashMap;

/// Characters at the end of a key that a range leaves open: 10,000 numbers first, then, where that gives too many
/// ranges, as much of a UUID of version 7 as leaves a minute of its time.
pub(super) const OPEN: [usize; 2] = [4, 28];

/// SQL for the range of the key `key`, a name; `left`, negative, says how many characters are open.
pub(super) fn range_sql(key: &str, left: &str) -> String {
    format!("pg_catalog.concat(pg_catalog.length({key}), ':', pg_catalog.left({key}, {left}))")
}

/// Ranges of one resource's keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    /// By beginning: lengths in characters.
    lengths: HashMap<String, Vec<usize>>,
    count: usize,
}

impl Ranges {
    /// Adds a range as the log has it. False if it is none.
    pub(crate) fn add(&mut self, range: &str) -> bool {
        let Some((length, begin)) = range.split_once(':') else {
            return false;
        };
        let Ok(length) = length.parse() else {
            return false;
        };
        let lengths = self.lengths.entry(begin.to_owned()).or_default();
        if !lengths.contains(&length) {
            lengths.push(length);
            self.count += 1;
        }
        true
    }

    /// How many they are.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Whether the key lies in one of them.
    ///
    /// Beyond ASCII the database may count characters otherwise: there a key lies in every range that begins like it.
    pub fn cover(&self, key: &str) -> bool {
        if !key.is_ascii() {
            let ends = key.char_indices().map(|(end, _)| end);
            return ends
                .chain([key.len()])
                .any(|end| self.lengths.contains_key(&key[..end]));
        }
        let begins = OPEN.map(|open| &key[..key.len().saturating_sub(open)]);
        begins.iter().any(|begin| {
            let lengths = self.lengths.get(*begin);
            lengths.is_some_and(|lengths| lengths.contains(&key.len()))
        })
    }

    /// How the keys begin; no way begins with another one.
    pub fn begins(&self) -> impl Iterator<Item = &str> {
        let mut begins: Vec<&str> = self.lengths.keys().map(String::as_str).collect();
        begins.sort_unstable();
        begins.dedup_by(|begin, shorter| begin.starts_with(*shorter));
        begins.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(texts: &[&str]) -> Ranges {
        let mut ranges = Ranges::default();
        assert!(texts.iter().all(|text| ranges.add(text)));
        ranges
    }

    #[test]
    fn a_range_is_keys_of_one_length_that_begin_alike() {
        let ranges = ranges(&["7:100", "2:", "7:100"]);
        assert_eq!(ranges.len(), 2);
        for key in ["1000000", "1009999", "42"] {
            assert!(ranges.cover(key), "{key}");
        }
        for key in ["1010000", "10000000", "100000", "7", "4200"] {
            assert!(!ranges.cover(key), "{key}");
        }
    }

    #[test]
    fn both_lengths_of_the_open_end_are_looked_for() {
        let uuid = "01936d5e-8f2a-7c3b-9d4e-5f6a7b8c9d0e";
        assert!(ranges(&["36:01936d5e"]).cover(uuid));
        assert!(ranges(&["36:01936d5e-8f2a-7c3b-9d4e-5f6a7b8c"]).cover(uuid));
        assert!(!ranges(&["36:01936d5f"]).cover(uuid));
    }

    /// A database in LATIN1 counts one byte for é, one in UTF8 one character, one in SQL_ASCII two bytes.
    #[test]
    fn beyond_ascii_only_the_beginning_counts() {
        for range in ["6:éa", "7:éa", "6:", "9:é"] {
            assert!(ranges(&[range]).cover("éabcde"), "{range}");
        }
        assert!(!ranges(&["6:eab"]).cover("éabcde"));
    }

    #[test]
    fn what_begins_with_another_range_is_not_looked_for_by_itself() {
        let ranges = ranges(&["7:100", "9:", "8:1001", "7:200"]);
        assert_eq!(ranges.begins().collect::<Vec<_>>(), [""]);
        let ranges = self::ranges(&["7:100", "8:1001", "7:200", "7:1"]);
        assert_eq!(ranges.begins().collect::<Vec<_>>(), ["1", "200"]);
    }

    #[test]
    fn what_is_no_range_is_none() {
        for text in ["", "7", "x:100"] {
            assert!(!Ranges::default().add(text), "{text}");
        }
    }
}
