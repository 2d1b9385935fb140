//! The rows that workers fetch, made from their ids, and the buffer that they are read into.

use std::iter::repeat_with;
use std::ops::Range;

use anyhow::Result;
use fastrand::Rng;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// When all rows of a fill are due, in seconds since 1970.
pub(super) const FILLED: u32 = 1_700_000_000;
/// Rows become due within so many seconds before [`FILLED`].
pub(super) const DUE_WITHIN: u32 = 86_400;
const ENDPOINT_BYTES: Range<usize> = 120..256;
/// Of an endpoint.
const CHARACTERS_MAX: usize = 255;

/// Columns of numbers. The places of those that have at most 255 are in [`SMALL`].
pub(super) const NUMBERS: [&str; 9] = [
    "id",
    "notify_after",
    "worker_id",
    "timezone",
    "partner",
    "stream",
    "widget",
    "os",
    "browser",
];
pub(super) const SMALL: [usize; 4] = [2, 3, 7, 8];
pub(super) const TEXTS: [&str; 3] = ["endpoint", "country", "language"];

/// What a match reads of each row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Columns {
    /// What a worker needs to send.
    Short,
    Full,
}

impl Columns {
    /// Returns how many of [`NUMBERS`] and of [`TEXTS`] it has: the first ones.
    pub(super) fn counts(self) -> (usize, usize) {
        match self {
            Self::Short => (4, 1),
            Self::Full => (NUMBERS.len(), TEXTS.len()),
        }
    }

    /// Returns the names of the columns, numbers first, as SQL lists them.
    pub(super) fn list(self) -> String {
        let (numbers, texts) = self.counts();
        [&NUMBERS[..numbers], &TEXTS[..texts]].concat().join(", ")
    }
}

/// One combination of worker and time zone, by their numbers.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Slot(pub(super) u32, pub(super) u32);

/// A row: the values of [`NUMBERS`] and [`TEXTS`]. No text has a character that SQL or `COPY` would escape.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Subscriber {
    pub(super) numbers: [u32; NUMBERS.len()],
    pub(super) texts: [String; TEXTS.len()],
}

impl Subscriber {
    /// Creates the rows of the least and the greatest values.
    pub(super) fn extremes() -> [Self; 2] {
        let endpoint = char::MAX.to_string().repeat(CHARACTERS_MAX);
        let mut numbers = [u32::MAX; NUMBERS.len()];
        for place in SMALL {
            numbers[place] = u8::MAX.into();
        }
        let texts = [endpoint.as_str(), "ZZ", "zz"].map(str::to_owned);
        let greatest = Self { numbers, texts };
        let texts = ["", "AA", "aa"].map(str::to_owned);
        let numbers = [0; NUMBERS.len()];
        [Self { numbers, texts }, greatest]
    }

    pub(super) fn id(&self) -> u32 {
        self.numbers[0]
    }

    pub(super) fn notify_after(&self) -> u32 {
        self.numbers[1]
    }

    pub(super) fn slot(&self) -> Slot {
        Slot(self.numbers[2], self.numbers[3])
    }

    pub(super) fn is_due(&self, slot: Slot, moment: u32) -> bool {
        self.slot() == slot && self.notify_after() <= moment
    }

    /// Sets the values of `columns` by their places in [`Columns::list`]; texts keep their memory.
    pub(super) fn read<'t>(
        &mut self,
        columns: Columns,
        number: impl Fn(usize) -> Result<u32>,
        text: impl Fn(usize) -> Result<&'t str>,
    ) -> Result<()> {
        let (numbers, texts) = columns.counts();
        for (place, value) in self.numbers.iter_mut().take(numbers).enumerate() {
            *value = number(place)?;
        }
        for (place, value) in self.texts.iter_mut().take(texts).enumerate() {
            value.clear();
            value.push_str(text(numbers + place)?);
        }
        Ok(())
    }

    /// Copies the values of `columns` from `other`.
    pub(super) fn copy(&mut self, other: &Self, columns: Columns) -> Result<()> {
        let (numbers, _) = columns.counts();
        let text = |place: usize| Ok(other.texts[place - numbers].as_str());
        self.read(columns, |place| Ok(other.numbers[place]), text)
    }

    /// Writes all values in the order of [`Columns::Full`], texts between quotes.
    pub(super) fn values(&self, separator: &str, quote: &str) -> String {
        let mut values: Vec<String> = self.numbers.iter().map(u32::to_string).collect();
        values.extend(
            self.texts
                .iter()
                .map(|text| format!("{quote}{text}{quote}")),
        );
        values.join(separator)
    }

    /// Hashes all values. The sum of many does not depend on their order.
    pub(super) fn digest(&self) -> u64 {
        xxh3_64(self.values("\t", "").as_bytes())
    }
}

/// All rows that can be: a row depends on its id and on this alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Population {
    pub(super) seed: u64,
    pub(super) workers: u32,
    pub(super) time_zones: u32,
}

impl Population {
    /// Creates that of the original experiment.
    pub(super) fn of(seed: u64) -> Self {
        let (workers, time_zones) = (20, 24);
        Self {
            seed,
            workers,
            time_zones,
        }
    }

    pub(super) fn subscriber(self, id: u32) -> Subscriber {
        let mut rng = Rng::with_seed(xxh3_64_with_seed(&id.to_le_bytes(), self.seed));
        let mut endpoint = format!("https://push.example/{id:08x}/");
        let missing = rng.usize(ENDPOINT_BYTES).saturating_sub(endpoint.len());
        endpoint.extend(repeat_with(|| rng.alphanumeric()).take(missing));
        let mut below = [self.workers, self.time_zones, 1_000, 10_000, 100_000, 8, 16].into_iter();
        let mut numbers = [id, FILLED - rng.u32(..DUE_WITHIN), 0, 0, 0, 0, 0, 0, 0];
        numbers[2..].fill_with(|| rng.u32(..below.next().unwrap_or(1)));
        let upper: String = repeat_with(|| rng.uppercase()).take(2).collect();
        let lower: String = repeat_with(|| rng.lowercase()).take(2).collect();
        let texts = [endpoint, upper, lower];
        Subscriber { numbers, texts }
    }

    pub(super) fn subscribers(self, ids: Range<u32>) -> Vec<Subscriber> {
        ids.map(|id| self.subscriber(id)).collect()
    }

    /// Returns all slots, worker by worker.
    pub(super) fn slots(self) -> impl Iterator<Item = Slot> {
        (0..self.workers).flat_map(move |worker| {
            (0..self.time_zones).map(move |time_zone| Slot(worker, time_zone))
        })
    }
}

/// The rows of a match, whose memory is used again after [`Buffer::clear`].
#[derive(Debug, Default)]
pub(super) struct Buffer {
    rows: Vec<Subscriber>,
    count: usize,
}

impl Buffer {
    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    /// Adds a row, whose values are those of an earlier one or the default.
    pub(super) fn add(&mut self) -> &mut Subscriber {
        if self.count == self.rows.len() {
            self.rows.push(Subscriber::default());
        }
        self.count += 1;
        &mut self.rows[self.count - 1]
    }

    pub(super) fn rows(&self) -> &[Subscriber] {
        &self.rows[..self.count]
    }

    pub(super) fn ids(&self) -> Vec<u32> {
        self.rows().iter().map(Subscriber::id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifted_rows_are_those_of_one_range() {
        let digest = |ids| {
            let rows = Population::of(1).subscribers(ids);
            rows.iter()
                .fold(0, |sum: u64, row| sum.wrapping_add(row.digest()))
        };
        let parts = digest(600..1_000).wrapping_add(digest(0..600));
        assert_eq!(digest(0..1_000), parts);
        assert_ne!(digest(1..1_001), parts);
    }

    #[test]
    fn rows_are_due_and_fill_every_slot() {
        let rows = Population::of(1).subscribers(0..20_000);
        for slot in Population::of(1).slots() {
            assert!(rows.iter().any(|row| row.is_due(slot, FILLED)), "{slot:?}");
        }
        let is_early = |row: &Subscriber| row.notify_after() <= FILLED - DUE_WITHIN;
        assert!(!rows.iter().any(is_early));
    }

    #[test]
    fn a_buffer_uses_its_memory_again() {
        let (row, mut buffer) = (Population::of(1).subscriber(1), Buffer::default());
        buffer.add().copy(&row, Columns::Full).unwrap();
        assert_eq!(buffer.rows(), std::slice::from_ref(&row));
        let place = buffer.rows()[0].texts[0].as_ptr();
        buffer.clear();
        buffer.add().copy(&row, Columns::Short).unwrap();
        assert_eq!(buffer.rows()[0].texts[0].as_ptr(), place);
        assert_eq!(buffer.ids(), [1]);
    }
}
