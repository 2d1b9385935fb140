//! Kept values: texts of a root row that stay with its document in every tier, shown or not. They say who owns the
//! document and which aliases lead to it, so that no JSON is parsed to find out.
//!
//! The statement that reads documents appends them to the record as canonical texts. Here they become one block of bytes,
//! which the tiers keep between key and body: the number of values (1 byte), the length of each (2 bytes, big-endian), and
//! the texts. A resource without owner and aliases has none, and its documents have no block.

use crate::resource::key::sql::kept_key_sql;
use crate::resource::key::{KEY_BYTES_MAX, KeyColumn};
use crate::resource::{Alias, Owner};

/// The most aliases of a resource: the number of values takes one byte.
pub const ALIASES_MAX: usize = 100;

/// The length of a null.
const NULL: u16 = u16::MAX;

/// The owner's column and the columns of each alias, in the order of the kept values.
#[derive(Clone, Debug, Default)]
pub(super) struct KeptColumns<'r>(Vec<&'r [KeyColumn]>);

impl<'r> KeptColumns<'r> {
    /// Without an owner the first value is null.
    pub(super) fn new(owner: Option<&'r Owner>, by: &'r [Alias]) -> Self {
        if owner.is_none() && by.is_empty() {
            return Self::default();
        }
        let owner = owner.map_or(&[][..], |owner| std::slice::from_ref(&owner.column));
        let aliases = by.iter().map(|alias| alias.key.columns.as_slice());
        Self([owner].into_iter().chain(aliases).collect())
    }

    /// SQL for each value of the row called `alias`: a text, or null.
    pub(super) fn sql(&self, alias: &str) -> Vec<String> {
        let values = self.0.iter().map(|columns| match columns {
            [] => "null::text".to_owned(),
            columns => kept_key_sql(columns, alias),
        });
        values.collect()
    }

    /// The number of values.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The most bytes of the values in a record: type, length, and the text, in which each byte may be escaped.
    pub(super) fn record_bytes_max(&self) -> usize {
        let bytes = self.0.iter().map(|columns| {
            let text = columns.len() * (3 * KEY_BYTES_MAX + 1);
            8 + text
        });
        bytes.sum()
    }
}

/// The kept values of a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept<'b>(&'b [u8]);

impl<'b> Kept<'b> {
    /// The block at the beginning of `bytes`; `None` if it is damaged. Its texts are not checked.
    #[inline]
    pub fn parse(bytes: &'b [u8]) -> Option<Self> {
        let count = usize::from(*bytes.first()?);
        let lengths = bytes.get(1..1 + 2 * count)?;
        let end = 1 + 2 * count + texts_bytes(lengths);
        bytes.get(..end).map(Self)
    }

    /// All of `bytes`, which [`Kept::parse`] has returned before.
    #[inline]
    pub fn whole(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    /// The block; empty without values.
    pub fn as_bytes(self) -> &'b [u8] {
        self.0
    }

    /// The canonical text of the owner's column.
    #[inline]
    pub fn owner(self) -> Option<&'b [u8]> {
        self.value(0)
    }

    /// The canonical text of the columns of the alias with this number.
    #[inline]
    pub fn alias(self, number: usize) -> Option<&'b [u8]> {
        self.value(number + 1)
    }

    #[inline]
    fn value(self, number: usize) -> Option<&'b [u8]> {
        let count = usize::from(*self.0.first()?);
        let (lengths, texts) = self.0.get(1..)?.split_at_checked(2 * count)?;
        let (before, from) = lengths.split_at_checked(2 * number)?;
        let length = u16::from_be_bytes(*from.first_chunk()?);
        let begin = texts_bytes(before);
        (length != NULL).then(|| texts.get(begin..begin + usize::from(length)))?
    }

    /// Writes the block of `values` to `out`. A text that is too long, or not UTF-8, becomes null: no claim and no alias
    /// equals it.
    pub(super) fn write(values: &[Option<&[u8]>], out: &mut Vec<u8>) {
        let texts = values.iter().map(|value| {
            let text = value.filter(|text| std::str::from_utf8(text).is_ok())?;
            let length = u16::try_from(text.len()).ok()?;
            (length != NULL).then_some((length, text))
        });
        // Bounded by ALIASES_MAX.
        out.push(values.len() as u8);
        for text in texts.clone() {
            let length = text.map_or(NULL, |(length, _)| length);
            out.extend_from_slice(&length.to_be_bytes());
        }
        for (_, text) in texts.flatten() {
            out.extend_from_slice(text);
        }
    }
}

/// The length of the texts with these `lengths` together.
fn texts_bytes(lengths: &[u8]) -> usize {
    let (lengths, _) = lengths.as_chunks();
    let lengths = lengths.iter().map(|length| u16::from_be_bytes(*length));
    lengths
        .filter(|&length| length != NULL)
        .map(usize::from)
        .sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(values: &[Option<&[u8]>]) -> Vec<u8> {
        let mut block = Vec::new();
        Kept::write(values, &mut block);
        block
    }

    #[test]
    fn without_a_block_nobody_owns_and_nothing_leads_there() {
        let kept = Kept::default();
        assert_eq!((kept.owner(), kept.alias(0)), (None, None));
        assert!(kept.as_bytes().is_empty());
    }

    #[test]
    fn texts_that_nothing_can_equal_are_null() {
        let long = vec![b'x'; usize::from(NULL)];
        let values = [Some(&long[..]), Some(b"\xff"), Some(&long[1..]), Some(b"")];
        let block = block(&values);
        let kept = Kept::parse(&block).unwrap();
        assert_eq!((kept.owner(), kept.alias(0)), (None, None));
        assert_eq!(kept.alias(1), Some(&long[1..]));
        assert_eq!((kept.alias(2), kept.alias(3)), (Some(&b""[..]), None));
    }

    proptest! {
        #[test]
        fn values_come_back_and_no_damage_panics(
            values in prop::collection::vec(prop::option::of("\\PC{0,40}"), 1..6),
            after in prop::collection::vec(any::<u8>(), 0..8),
            damage in any::<(prop::sample::Index, u8)>(),
        ) {
            let texts: Vec<_> = values.iter().map(|value| value.as_deref().map(str::as_bytes)).collect();
            let block = block(&texts);
            let mut stored = [&block, &*after].concat();
            let kept = Kept::parse(&stored).unwrap();
            prop_assert_eq!(kept.as_bytes(), &*block);
            prop_assert_eq!(kept.owner(), texts[0]);
            for (number, text) in texts[1..].iter().enumerate() {
                prop_assert_eq!(kept.alias(number), *text);
            }
            prop_assert_eq!(kept.alias(texts.len() - 1), None);
            for end in 0..block.len() {
                prop_assert_eq!(Kept::parse(&block[..end]), None);
            }
            let (place, byte) = damage;
            *place.get_mut(&mut stored) ^= byte;
            if let Some(kept) = Kept::parse(&stored) {
                for number in 0..300 {
                    let text = kept.value(number);
                    prop_assert!(text.is_none_or(|text| text.len() < stored.len()));
                }
            }
        }
    }
}
