//! Whether documents can be read from PostgreSQL, or written to it, as requests and probes have found.
//!
//! Each kind of failure is logged when it begins, once, and its end is logged when nothing has failed for a second.

use std::mem::{Discriminant, discriminant};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::source::SourceError;

/// A failure has ended if nothing has failed for this long.
const QUIET_TIME: Duration = Duration::from_secs(1);

/// Whether one kind of access to PostgreSQL works.
pub(in crate::source) struct Availability {
    /// What can't be done, for messages: "documents can't be …".
    access: &'static str,
    state: Mutex<State>,
    /// A success changes nothing. Written while `state` is locked.
    is_settled: AtomicBool,
    /// Wakes [`Availability::await_doubt`].
    in_doubt: Notify,
}

struct State {
    /// Whether it matters that this access works.
    is_needed: bool,
    /// It has worked at least once.
    has_worked: bool,
    failure: Option<Failure>,
}

struct Failure {
    began: Instant,
    last: Instant,
    /// The last error.
    reason: String,
    /// The kinds of errors that were logged.
    logged: Vec<Discriminant<SourceError>>,
}

impl Availability {
    /// `access` completes "documents can't be …".
    pub(super) fn new(access: &'static str, is_needed: bool) -> Self {
        Self {
            access,
            state: Mutex::new(State {
                is_needed,
                has_worked: false,
                failure: None,
            }),
            is_settled: AtomicBool::new(false),
            in_doubt: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on it matters that this access works.
    pub(super) fn require(&self) {
        self.state().is_needed = true;
        self.in_doubt.notify_one();
    }

    /// Notes that PostgreSQL was reached, and used as it should be.
    pub(in crate::source) fn note_success(&self) {
        if self.is_settled.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.state();
        state.has_worked = true;
        if let Some(failure) = state
            .failure
            .take_if(|failure| failure.last.elapsed() >= QUIET_TIME)
        {
            tracing::info!(
                "documents can be {} again, after {:.1} s",
                self.access,
                failure.began.elapsed().as_secs_f64()
            );
        }
        self.is_settled
            .store(state.failure.is_none(), Ordering::Relaxed);
    }

    /// Notes an error. Errors that one statement or one document may cause say that PostgreSQL was reached. A timeout
    /// and a full queue say nothing.
    pub(in crate::source) fn note_error(&self, error: &SourceError) {
        match error {
            SourceError::Timeout | SourceError::Overloaded => {}
            error if error.is_connection_error() => self.note_failure(error),
            _ => self.note_success(),
        }
    }

    fn note_failure(&self, error: &SourceError) {
        let mut state = self.state();
        self.is_settled.store(false, Ordering::Relaxed);
        let now = Instant::now();
        let failure = state.failure.get_or_insert_with(|| Failure {
            began: now,
            last: now,
            reason: String::new(),
            logged: Vec::new(),
        });
        failure.last = now;
        failure.reason = error.to_string();
        if !failure.logged.contains(&discriminant(error)) {
            failure.logged.push(discriminant(error));
            tracing::warn!("documents can't be {}: {error}", self.access);
        }
        drop(state);
        self.in_doubt.notify_one();
    }

    /// Why this access does not work, or is not known to; `None` if it works, or does not matter.
    pub(super) fn unavailable_reason(&self) -> Option<String> {
        let state = self.state();
        match &state.failure {
            _ if !state.is_needed => None,
            Some(failure) => Some(failure.reason.clone()),
            None if state.has_worked => None,
            None => Some("no connection has been opened yet".to_owned()),
        }
    }

    /// Waits until it matters that this access works, and it is not known to.
    pub(super) async fn await_doubt(&self) {
        while self.unavailable_reason().is_none() {
            self.in_doubt.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failure_ends_with_a_success_after_a_second_without_failures() {
        let availability = Availability::new("read", true);
        assert!(availability.unavailable_reason().is_some(), "not known yet");
        availability.note_success();
        assert_eq!(availability.unavailable_reason(), None);
        let refused = SourceError::Unavailable("refused".into());
        availability.note_error(&refused);
        availability.note_success();
        let reason = availability.unavailable_reason();
        assert!(reason.is_some_and(|reason| reason.contains("refused")));
        tokio::time::advance(QUIET_TIME).await;
        assert!(availability.unavailable_reason().is_some(), "no success");
        availability.note_success();
        assert_eq!(availability.unavailable_reason(), None);
    }

    #[test]
    fn a_kind_of_failure_is_logged_once() {
        let availability = Availability::new("read", true);
        for _ in 0..3 {
            availability.note_error(&SourceError::Standby);
            availability.note_error(&SourceError::no_response());
        }
        let state = availability.state();
        assert_eq!(state.failure.as_ref().unwrap().logged.len(), 2);
    }

    #[test]
    fn an_error_of_a_statement_is_no_failure() {
        let availability = Availability::new("read", true);
        availability.note_error(&SourceError::Timeout);
        assert!(availability.unavailable_reason().is_some(), "not known yet");
        availability.note_error(&SourceError::TooLarge);
        assert_eq!(availability.unavailable_reason(), None);
    }

    #[test]
    fn what_is_not_needed_is_not_missed() {
        let availability = Availability::new("written", false);
        availability.note_error(&SourceError::Standby);
        assert_eq!(availability.unavailable_reason(), None);
        availability.require();
        assert!(availability.unavailable_reason().is_some());
    }
}
