//! The environment of the process, read once and passed on from here.

use std::ffi::{OsStr, OsString};

/// A copy of environment variables.
///
/// An empty variable counts as absent: container platforms pass unset ones so.
#[derive(Clone)]
pub struct Environment(Vec<(OsString, OsString)>);

impl Environment {
    /// The variables of the process.
    pub fn of_process() -> Self {
        Self::of_pairs(std::env::vars_os())
    }

    /// These variables and no others.
    pub fn of_pairs<K: Into<OsString>, V: Into<OsString>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let pairs = pairs
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()));
        Self(pairs.filter(|(_, value)| !value.is_empty()).collect())
    }

    /// The value of a variable, which need not be UTF-8.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        let found = self.0.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_os_str())
    }

    /// The names that are UTF-8, in alphabetical order.
    pub(super) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .0
            .iter()
            .filter_map(|(name, _)| name.to_str())
            .collect();
        names.sort_unstable();
        names
    }
}
