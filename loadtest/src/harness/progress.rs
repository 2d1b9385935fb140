//! What a terminal shows while a run goes on, on stderr; nothing where stderr is no terminal.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// What is shown now.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

fn shown() -> Option<ProgressBar> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Shows `progress` in place of what was shown before.
pub(crate) fn show(progress: &ProgressBar) {
    progress.enable_steady_tick(Duration::from_secs(1));
    let mut shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(before) = shown.replace(progress.clone()) {
        before.finish_and_clear();
    }
}

/// Shows the time since the start of a run, until [`show`] replaces it.
pub(crate) fn start() -> anyhow::Result<()> {
    let style = ProgressStyle::with_template("{spinner} {elapsed_precise} {msg}")?;
    show(&ProgressBar::new_spinner().with_style(style));
    Ok(())
}

/// Shows how much of a run is done.
pub(crate) fn note(done: impl std::fmt::Display, all: impl std::fmt::Display, what: &str) {
    if let Some(shown) = shown() {
        shown.set_message(format!("{done} of {all} {what}"));
    }
}

/// Removes what is shown.
pub(crate) fn end() {
    let mut shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(progress) = shown.take() {
        progress.finish_and_clear();
    }
}

/// Prints a line above what is shown.
pub(crate) fn above(line: &str) {
    let print = || std::println!("{line}");
    match shown() {
        Some(progress) => progress.suspend(print),
        None => print(),
    }
}
