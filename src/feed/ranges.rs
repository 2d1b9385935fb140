//! Ranges of keys, which triggers log instead of each key if a statement touches more than `keys_per_statement` keys.
//!
//! A range is all keys of one length that begin alike. Many keys fill few ranges if they were drawn from a sequence or
//! a clock. A range is written as the length of its keys in characters, a colon and their beginning: `7:100` is every
//! key of seven characters that begins with 100.

use std::collections::HashMap;

/// How many characters at the end of a key differ within a range. 4 first: 10,000 numbers. If that gives too many
/// ranges, 28, which leaves of a UUID of version 7 about a minute of its time.
pub(super) const OPEN_LENGTHS: [usize; 2] = [4, 28];

/// SQL for the range of the key in the column or variable `key`. `length` is SQL for the number of open characters,
/// negative.
pub(super) fn range_sql(key: &str, length: &str) -> String {
    format!("pg_catalog.concat(pg_catalog.length({key}), ':', pg_catalog.left({key}, {length}))")
}

/// Ranges of one resource's keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    /// The lengths of keys, in characters, by their beginning.
    lengths: HashMap<String, Vec<usize>>,
    count: usize,
}

impl Ranges {
    /// Adds a range as the log has it. Returns whether `range` is one.
    pub(crate) fn add(&mut self, range: &str) -> bool {
        let Some((length, beginning)) = range.split_once(':') else {
            return false;
        };
        let Ok(length) = length.parse() else {
            return false;
        };
        let lengths = self.lengths.entry(beginning.to_owned()).or_default();
        if !lengths.contains(&length) {
            lengths.push(length);
            self.count += 1;
        }
        true
    }

    /// The number of ranges.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Whether `key` is in one of the ranges.
    ///
    /// The database may count characters that are not ASCII in another way. A key with such characters is taken to be
    /// in every range whose beginning it has, of whatever length.
    pub fn contains(&self, key: &str) -> bool {
        if !key.is_ascii() {
            let ends = key.char_indices().map(|(end, _)| end);
            return ends
                .chain([key.len()])
                .any(|end| self.lengths.contains_key(&key[..end]));
        }
        let beginnings = OPEN_LENGTHS.map(|open| &key[..key.len().saturating_sub(open)]);
        beginnings.iter().any(|beginning| {
            let lengths = self.lengths.get(*beginning);
            lengths.is_some_and(|lengths| lengths.contains(&key.len()))
        })
    }

    /// The beginnings of the keys, without those that begin with another one.
    pub fn beginnings(&self) -> impl Iterator<Item = &str> {
        let mut beginnings: Vec<&str> = self.lengths.keys().map(String::as_str).collect();
        beginnings.sort_unstable();
        beginnings.dedup_by(|beginning, shorter| beginning.starts_with(*shorter));
        beginnings.into_iter()
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
            assert!(ranges.contains(key), "{key}");
        }
        for key in ["1010000", "10000000", "100000", "7", "4200"] {
            assert!(!ranges.contains(key), "{key}");
        }
    }

    #[test]
    fn ranges_of_both_open_lengths_are_found() {
        let uuid = "01936d5e-8f2a-7c3b-9d4e-5f6a7b8c9d0e";
        assert!(ranges(&["36:01936d5e"]).contains(uuid));
        assert!(ranges(&["36:01936d5e-8f2a-7c3b-9d4e-5f6a7b8c"]).contains(uuid));
        assert!(!ranges(&["36:01936d5f"]).contains(uuid));
    }

    /// A database in LATIN1 counts one byte for é, one in UTF8 one character, one in SQL_ASCII two bytes.
    #[test]
    fn of_a_key_that_is_not_ascii_only_the_beginning_counts() {
        for range in ["6:éa", "7:éa", "6:", "9:é"] {
            assert!(ranges(&[range]).contains("éabcde"), "{range}");
        }
        assert!(!ranges(&["6:eab"]).contains("éabcde"));
    }

    #[test]
    fn a_beginning_that_begins_with_another_one_is_left_out() {
        let ranges = ranges(&["7:100", "9:", "8:1001", "7:200"]);
        assert_eq!(ranges.beginnings().collect::<Vec<_>>(), [""]);
        let ranges = self::ranges(&["7:100", "8:1001", "7:200", "7:1"]);
        assert_eq!(ranges.beginnings().collect::<Vec<_>>(), ["1", "200"]);
    }

    #[test]
    fn a_text_that_is_not_a_range_is_refused() {
        for text in ["", "7", "x:100"] {
            assert!(!Ranges::default().add(text), "{text}");
        }
    }
}
