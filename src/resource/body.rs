//! The bodies of writes: from JSON text to the rows of a document, with every value checked against the catalogue.
//!
//! Nothing here asks PostgreSQL. Each value becomes a text that PostgreSQL reads as a value of the column's type.
//! PostgreSQL checks what only it can know: a check constraint, or the syntax of an `inet`. Every document that a `GET`
//! returns is a body that leads to the same rows. So a body may contain lookups and generated columns, which are
//! ignored, and columns of types that can't be written, whose values are compared with the stored ones.

mod decimal;
mod merge;
mod parse;
mod rows;
mod split;
#[cfg(test)]
pub(super) mod testing;
mod values;

use std::borrow::Cow;

use crate::resource::body::decimal::Decimal;
use crate::resource::writable::pointer_token;

pub use self::merge::{join_refused, merge_patch};
pub use self::parse::{BYTE_ORDER_MARK, DEPTH_MAX, HAS_BYTE_ORDER_MARK, Scratch};
pub use self::rows::rows_of;
pub use self::split::{Framing, SplitError, Splitter, is_space};
pub(super) use self::values::text_in_query;

/// The most mismatches that are reported for one document. The rest of the document is not checked then.
pub const MISMATCHES_MAX: usize = 100;

/// The most digits that PostgreSQL may have to write for the numbers of a document that have an exponent. Without a bound,
/// a body of 40 KB can be a document of 500 MB.
const WRITTEN_DIGITS_MAX: usize = 1 << 20;

/// What a write does with the body.
#[derive(Clone, Copy, Debug)]
pub enum WriteMode<'k> {
    /// Inserts it as a new document. The key is in the body, or the default of its column.
    Insert,
    /// Replaces the document whose key has these parts. The body may repeat the key.
    Replace(&'k [Cow<'k, str>]),
}

/// Why a body can't be read as rows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// It is not JSON. The sentence says why.
    #[error("{0}")]
    Malformed(String),
    /// It is a stored document that larder can't take back, so no patch can be merged with it. The sentence says why.
    #[error("{0}")]
    Stored(String),
    /// It is JSON, but does not fit the resource: all mismatches that were found, at most [`MISMATCHES_MAX`].
    #[error("the body does not fit the resource in {} places", .0.len())]
    Mismatches(Vec<Mismatch>),
}

impl BodyError {
    /// The same error about a stored document, which was read as a body.
    pub fn of_stored(self) -> Self {
        Self::Stored(match self {
            Self::Malformed(why) => why.replacen("the body", "the stored document", 1),
            Self::Stored(why) => why,
            Self::Mismatches(mismatches) => match mismatches.first() {
                Some(Mismatch { pointer, message }) => {
                    format!("{pointer} of the stored document {message}")
                }
                None => "the stored document does not fit the resource".to_owned(),
            },
        })
    }
}

/// A value in a body that does not fit the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The place of the value: a JSON pointer (RFC 6901).
    pub pointer: String,
    /// The end of a sentence about the place, such as `must be an integer`. It never repeats a value of the body.
    pub message: String,
}

/// The mismatches found so far, and the place of the value that is being read.
#[derive(Default)]
struct Mismatches {
    found: Vec<Mismatch>,
    /// A JSON pointer.
    path: String,
    /// Digits that PostgreSQL writes for the numbers with an exponent so far.
    digits: usize,
}

impl Mismatches {
    /// Goes to the member `name`. The result is for [`Self::leave`].
    fn enter(&mut self, name: &str) -> usize {
        let outside = self.path.len();
        self.path.push('/');
        if name.contains(['~', '/']) {
            self.path.push_str(&pointer_token(name))
        } else {
            self.path.push_str(name)
        }
        outside
    }

    /// Goes to the element `place` of an array. The result is for [`Self::leave`].
    fn enter_element(&mut self, place: usize) -> usize {
        let outside = self.path.len();
        self.path.push('/');
        self.path.push_str(itoa::Buffer::new().format(place));
        outside
    }

    /// Returns to the place of the array or object.
    fn leave(&mut self, outside: usize) {
        self.path.truncate(outside);
    }

    /// Calls `read` at the place of the member `name`.
    fn within<R>(&mut self, name: &str, read: impl FnOnce(&mut Self) -> R) -> R {
        let outside = self.enter(name);
        let read = read(self);
        self.leave(outside);
        read
    }

    /// Counts a number by the digits that PostgreSQL will write for it: 1e131071 is stored in a few bytes and read as
    /// 131,072 digits. Adds a mismatch and returns false if the document has too many.
    fn count_digits(&mut self, number: &str) -> bool {
        let digits = if number.contains(['e', 'E']) {
            Decimal::parse(number).map_or(0, |number| number.written_digits())
        } else {
            0
        };
        self.add_digits(digits)
    }

    /// Counts digits that PostgreSQL will write for numbers with an exponent. Adds a mismatch and returns false if the
    /// document has too many.
    fn add_digits(&mut self, digits: usize) -> bool {
        let did_fit = self.digits <= WRITTEN_DIGITS_MAX;
        self.digits = self.digits.saturating_add(digits);
        let fits = self.digits <= WRITTEN_DIGITS_MAX;
        // Others than the first one that is too long may be short.
        if did_fit && !fits {
            self.add(format!(
                "makes the numbers with an exponent longer than {WRITTEN_DIGITS_MAX} digits in all, as PostgreSQL writes them"
            ));
        }
        fits
    }

    /// Adds a mismatch at the present place, unless there are enough.
    fn add(&mut self, message: impl Into<String>) {
        if !self.are_full() {
            self.found.push(Mismatch {
                pointer: self.path.clone(),
                message: message.into(),
            });
        }
    }

    fn are_full(&self) -> bool {
        self.found.len() >= MISMATCHES_MAX
    }
}
