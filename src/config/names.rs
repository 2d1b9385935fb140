//! Names: what PostgreSQL takes as an identifier, what a path takes as a segment, and what is taken already.

use super::text::Reader;
use super::value::echo;
use crate::resource::definition::{Located, Place};

/// PostgreSQL cuts longer identifiers silently (`NAMEDATALEN` - 1).
const IDENTIFIER_BYTES_MAX: usize = 63;

/// Paths of the public address that are no resources.
const RESERVED: [&str; 2] = ["docs", "openapi.json"];

/// The names that one row, or the list of resources, has given away.
#[derive(Default)]
pub(super) struct Names {
    taken: Vec<Located<String>>,
}

impl Names {
    /// Takes `name`; a second one of the same spelling is a mistake.
    pub(super) fn claim(&mut self, name: &Located<String>, what: &str, reader: &mut Reader<'_>) {
        if let Some(first) = self.taken.iter().find(|taken| taken.value == name.value) {
            let message = format!(
                "two {what}s of one name: {} is already taken on line {} by {}",
                echo(&name.value),
                first.place.line,
                first.place.key
            );
            reader.refuse_at(&name.place, message);
        } else {
            self.taken.push(name.clone());
        }
    }
}

/// Whether PostgreSQL takes `name` as an identifier without changing it.
pub(super) fn identifier(name: &str, place: &Place, what: &str, reader: &mut Reader<'_>) -> bool {
    let message = if name.is_empty() {
        format!("the {what} is empty")
    } else if name.len() > IDENTIFIER_BYTES_MAX {
        let bytes = name.len();
        format!(
            "the {what} has {bytes} bytes; PostgreSQL's identifiers have at most {IDENTIFIER_BYTES_MAX}"
        )
    } else if name.contains('\0') {
        format!("the {what} holds a zero character")
    } else {
        return true;
    };
    reader.refuse_at(place, message);
    false
}

/// Whether `name` is one segment of a path that no client, proxy or router rewrites.
pub(super) fn segment(name: &Located<String>, reader: &mut Reader<'_>) -> bool {
    if !identifier(&name.value, &name.place, "resource's name", reader) {
        return false;
    }
    let unreserved = |c: char| c.is_ascii_alphanumeric() || "_.~-".contains(c);
    let usable = name.value.chars().all(unreserved) && !matches!(name.value.as_str(), "." | "..");
    if !usable {
        let message = format!(
            "{} can't be a path segment: use letters, digits and _ . ~ -, and not just dots",
            echo(&name.value)
        );
        reader.refuse_at(&name.place, message);
    }
    let reserved = RESERVED.contains(&name.value.as_str());
    if reserved {
        let message = format!("/{} is larder's own path: choose another name", name.value);
        reader.refuse_at(&name.place, message);
    }
    usable && !reserved
}
