//! What the body of a write means: JSON text to the rows of a document, every value checked against the catalogue.
//!
//! Nothing here asks PostgreSQL. What passes is text that PostgreSQL reads as the column's type; what only it can know
//! (a check constraint, the grammar of an `inet`) is left to it. Every document that a `GET` shows is a body that means
//! the same rows, so lookups and generated columns may stand in a body, where they are passed over.

mod decimal;
mod merge;
mod parse;
mod rows;
mod split;
#[cfg(test)]
mod testing;
mod values;

use std::borrow::Cow;

use crate::resource::writable::pointer_token;

pub use self::merge::merge_patch;
pub use self::parse::{DEPTH_MAX, Scratch};
pub use self::rows::rows_of;
pub use self::split::{Framing, SplitError, Splitter, is_space};

/// Faults told of one document; the rest of it is not looked at.
pub const FAULTS_MAX: usize = 100;

/// What a body is to the document of its key.
#[derive(Clone, Copy, Debug)]
pub enum Mode<'k> {
    /// A new document, whose key the body says, or the key's default.
    Insert,
    /// The whole document of the key with these parts, which the body may repeat.
    Replace(&'k [Cow<'k, str>]),
}

/// Why a body means no rows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// It is not JSON, as this sentence says.
    #[error("{0}")]
    Malformed(String),
    /// It is JSON that does not fit the resource: all that was found, at most [`FAULTS_MAX`].
    #[error("the body does not fit the resource in {} places", .0.len())]
    Faults(Vec<Fault>),
}

/// Something in a body that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where: a JSON pointer (RFC 6901).
    pub pointer: String,
    /// What is wanted there, to follow the place: `must be …`. It never repeats a value.
    pub message: String,
}

/// The faults found so far, and where the reader is.
#[derive(Default)]
struct Faults {
    found: Vec<Fault>,
    /// A JSON pointer.
    path: String,
}

impl Faults {
    /// Goes to the member `name`; [`Self::leave`] takes what this gives.
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

    /// Goes to the place `place` of an array.
    fn enter_place(&mut self, place: usize) -> usize {
        let outside = self.path.len();
        self.path.push('/');
        self.path.push_str(itoa::Buffer::new().format(place));
        outside
    }

    fn leave(&mut self, outside: usize) {
        self.path.truncate(outside);
    }

    /// Reads the member `name`.
    fn within<R>(&mut self, name: &str, read: impl FnOnce(&mut Self) -> R) -> R {
        let outside = self.enter(name);
        let read = read(self);
        self.leave(outside);
        read
    }

    /// A fault at the present place.
    fn add(&mut self, message: impl Into<String>) {
        if !self.are_full() {
            self.found.push(Fault {
                pointer: self.path.clone(),
                message: message.into(),
            });
        }
    }

    fn are_full(&self) -> bool {
        self.found.len() >= FAULTS_MAX
    }
}
