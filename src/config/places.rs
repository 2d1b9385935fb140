//! The places that settings and resources were written at, for the messages about them.

use crate::resource::definition::{Mistake, Place};

/// The place that set each setting last; none while the default holds.
#[derive(Default)]
pub(super) struct Places(Vec<(&'static str, Place)>);

impl Places {
    /// Notes that `path` was set at `place`.
    pub(super) fn set(&mut self, path: &'static str, place: Place) {
        self.0.retain(|(other, _)| *other != path);
        self.0.push((path, place));
    }

    /// A mistake at the place of the first of `paths` that is set.
    pub(super) fn mistake(&self, paths: &[&str], message: impl Into<String>) -> Mistake {
        let set = |path: &&str| self.0.iter().find(|(other, _)| other == path);
        match paths.iter().find_map(set) {
            Some((_, place)) => mistake(place, message),
            None => mistake(&unlined("built-in default", paths.join(", ")), message),
        }
    }
}

/// The place of `key` in an origin without lines, such as the environment.
pub(super) fn unlined(origin: &str, key: impl Into<String>) -> Place {
    Place {
        origin: origin.into(),
        line: 0,
        key: key.into(),
    }
}

/// A mistake at `place`.
pub(super) fn mistake(place: &Place, message: impl Into<String>) -> Mistake {
    Mistake {
        place: place.clone(),
        message: message.into(),
    }
}
