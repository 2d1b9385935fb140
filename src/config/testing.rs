//! What the tests of this module share.

use std::path::PathBuf;

use super::{Config, ConfigError, DEFAULT_FILE, Environment, Sources};

/// The mistakes of a file as `line: key: message`.
pub(super) fn mistakes(text: &str) -> Vec<String> {
    let error = Config::from_toml(text, &[]).unwrap_err();
    let lines = error.mistakes.iter().map(ToString::to_string);
    lines
        .map(|line| line.strip_prefix("larder.toml:").unwrap().to_owned())
        .collect()
}

/// The file has one mistake, which begins like this.
#[track_caller]
pub(super) fn only(text: &str, beginning: &str) {
    let mistakes = mistakes(text);
    assert!(
        mistakes.len() == 1 && mistakes[0].starts_with(beginning),
        "expected {beginning:?}, got {mistakes:#?}"
    );
}

/// Loads from a directory of its own with this `larder.toml`, if any.
pub(super) fn load(
    file: Option<&str>,
    environment: &[(&str, &str)],
    overrides: &[(&str, &str)],
) -> Result<Config, ConfigError> {
    let directory = tempfile::tempdir().unwrap();
    if let Some(text) = file {
        std::fs::write(directory.path().join(DEFAULT_FILE), text).unwrap();
    }
    Config::load(&sources(
        directory.path().to_owned(),
        environment,
        overrides,
    ))
}

/// Sources that look for `larder.toml` in `directory`.
pub(super) fn sources(
    directory: PathBuf,
    environment: &[(&str, &str)],
    overrides: &[(&str, &str)],
) -> Sources {
    let owned = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
    Sources {
        file: None,
        directory,
        environment: Environment::of_pairs(environment.iter().copied()),
        overrides: overrides.iter().map(owned).collect(),
        tiers: None,
    }
}
