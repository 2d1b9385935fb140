//! Names: what PostgreSQL takes as an identifier, what a path takes as a segment, and what is taken already.

use super::text::TomlReader;
use super::value::echo;
use crate::resource::definition::{Located, OWN_PATHS, Place, is_path_character};

/// PostgreSQL cuts longer identifiers silently (`NAMEDATALEN` - 1).
const IDENTIFIER_BYTES_MAX: usize = 63;

/// The names that are taken already: within a row, among resources, or among users and keys with the keys' hashes.
#[derive(Default)]
pub(super) struct UniqueNames {
    taken: Vec<Located<String>>,
    /// With the lines that they are on.
    hashes: Vec<([u8; 32], usize)>,
}

impl UniqueNames {
    /// Takes `name`; a second one of the same spelling is a mistake.
    pub(super) fn claim(
        &mut self,
        name: &Located<String>,
        what: &str,
        reader: &mut TomlReader<'_>,
    ) {
        if let Some(first) = self.taken.iter().find(|taken| taken.value == name.value) {
            let message = format!(
                "duplicate {what} name: {} is already used on line {} by {}",
                echo(&name.value),
                first.place.line,
                first.place.key
            );
            reader.refuse_at(&name.place, message);
        } else {
            self.taken.push(name.clone());
        }
    }

    /// Takes the hash of a key; a second one is a mistake.
    pub(super) fn claim_hash(
        &mut self,
        hash: [u8; 32],
        place: &Place,
        reader: &mut TomlReader<'_>,
    ) {
        match self.hashes.iter().find(|(taken, _)| *taken == hash) {
            Some((_, line)) => {
                reader.refuse_at(place, format!("the key on line {line} has the same hash"));
            }
            None => self.hashes.push((hash, place.line)),
        }
    }
}

/// Whether PostgreSQL accepts `name` as an identifier without changing it; if not, that is a mistake.
pub(super) fn check_identifier(
    name: &Located<String>,
    what: &str,
    reader: &mut TomlReader<'_>,
) -> bool {
    let (name, place) = (&name.value, &name.place);
    let message = if name.is_empty() {
        format!("the {what} is empty")
    } else if name.len() > IDENTIFIER_BYTES_MAX {
        let bytes = name.len();
        format!(
            "the {what} has {bytes} bytes; PostgreSQL's identifiers have at most {IDENTIFIER_BYTES_MAX}"
        )
    } else if name.contains('\0') {
        format!("the {what} contains a NUL character")
    } else {
        return true;
    };
    reader.refuse_at(place, message);
    false
}

/// Checks that `name` is a segment of a path that no client, proxy or router rewrites. `what` names it in messages.
pub(super) fn check_segment(name: &Located<String>, what: &str, reader: &mut TomlReader<'_>) {
    if !check_identifier(name, what, reader) {
        return;
    }
    let usable =
        name.value.chars().all(is_path_character) && !matches!(name.value.as_str(), "." | "..");
    if !usable {
        let message = format!(
            "{} can't be a path segment: use letters, digits and _ . ~ -, but not . or .. alone",
            echo(&name.value)
        );
        reader.refuse_at(&name.place, message);
    }
}

/// Checks that the path of a resource called `name` is not one of larder's own.
pub(super) fn check_reserved(name: &Located<String>, reader: &mut TomlReader<'_>) {
    if OWN_PATHS.contains(&name.value.as_str()) {
        let message = format!("path /{} is reserved: choose another name", name.value);
        reader.refuse_at(&name.place, message);
    }
}
