//! The circuit breaker of a sink: while it fails, no row is matched and no attempt is used up.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Failed requests in a row after which it opens.
const FAILURES_MAX: u32 = 5;

/// The pause before the first probe. It doubles with each probe that fails.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Whether a request may begin. A probe whose outcome is not noted, since its task has ended, is given back.
#[derive(Debug)]
pub(super) struct Admission<'b> {
    breaker: &'b Breaker,
    kind: AdmissionKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdmissionKind {
    /// It may.
    Admitted,
    /// It may, and its outcome opens or closes the breaker.
    Probe,
    /// It may not.
    Refused,
}

/// What the status shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum BreakerState {
    /// Requests are sent.
    Closed,
    /// None is sent before the next probe.
    Open,
    /// The next request is a probe, or one is in flight.
    HalfOpen,
}

/// Counts the outcomes of requests, and says whether the next may begin.
#[derive(Debug, Default)]
pub(super) struct Breaker(Mutex<Outcomes>);

#[derive(Debug, Default)]
struct Outcomes {
    /// Requests that failed since the last success.
    failures: u32,
    /// When the next probe may begin; `None`: it is closed.
    open_until: Option<Instant>,
    /// The last pause.
    pause: Duration,
    is_probing: bool,
}

impl Breaker {
    /// Returns whether a request may begin now.
    pub(super) fn admit(&self) -> Admission<'_> {
        let mut outcomes = self.lock();
        let kind = match outcomes.open_until {
            None => AdmissionKind::Admitted,
            Some(until) if until <= Instant::now() && !outcomes.is_probing => {
                outcomes.is_probing = true;
                AdmissionKind::Probe
            }
            Some(_) => AdmissionKind::Refused,
        };
        Admission {
            breaker: self,
            kind,
        }
    }

    /// Returns whether no request may begin now.
    pub(super) fn is_open(&self) -> bool {
        let outcomes = self.lock();
        let is_waiting = |until| until > Instant::now() || outcomes.is_probing;
        outcomes.open_until.is_some_and(is_waiting)
    }

    /// Returns when a probe may begin; `None` if the breaker is closed.
    pub(super) fn opens_at(&self) -> Option<Instant> {
        self.lock().open_until
    }

    pub(super) fn state(&self) -> BreakerState {
        let outcomes = self.lock();
        match outcomes.open_until {
            None => BreakerState::Closed,
            Some(until) if until > Instant::now() => BreakerState::Open,
            Some(_) => BreakerState::HalfOpen,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Outcomes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Admission<'_> {
    pub(super) fn is_admitted(&self) -> bool {
        self.kind != AdmissionKind::Refused
    }

    /// Notes that the request was answered as it should be.
    pub(super) fn succeed(&mut self, name: &str) {
        let mut outcomes = self.breaker.lock();
        if outcomes.open_until.is_some() {
            tracing::info!("dispatch {name}: the sink takes requests again");
        }
        *outcomes = Outcomes::default();
        self.kind = AdmissionKind::Admitted;
    }

    /// Notes that the request failed. A retry that fails says nothing about other rows.
    pub(super) fn fail(&mut self, name: &str, is_retry: bool, error: &str) {
        let mut outcomes = self.breaker.lock();
        if self.kind == AdmissionKind::Probe {
            outcomes.open(name, Duration::ZERO, error);
        } else if !is_retry {
            outcomes.failures += 1;
            if outcomes.failures >= FAILURES_MAX && outcomes.open_until.is_none() {
                outcomes.open(name, Duration::ZERO, error);
            }
        }
        self.kind = AdmissionKind::Admitted;
    }

    /// Opens the breaker: the sink has said that it takes nothing for a while.
    pub(super) fn refuse(&mut self, name: &str, retry_after: Option<Duration>, error: &str) {
        let pause = retry_after.unwrap_or_default();
        let mut outcomes = self.breaker.lock();
        if outcomes.open_until.is_none() || self.kind == AdmissionKind::Probe {
            outcomes.open(name, pause, error);
        } else {
            // One of several requests that were in flight.
            let until = Instant::now() + pause;
            outcomes.open_until = outcomes.open_until.max(Some(until));
        }
        self.kind = AdmissionKind::Admitted;
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        if self.kind == AdmissionKind::Probe {
            self.breaker.lock().is_probing = false;
        }
    }
}

impl Outcomes {
    /// Opens for a pause that doubles each time, at least for `pause_min`.
    fn open(&mut self, name: &str, pause_min: Duration, error: &str) {
        let pause = if self.pause.is_zero() {
            PAUSE_MIN
        } else {
            (self.pause * 2).min(PAUSE_MAX)
        };
        if self.open_until.is_none() {
            tracing::warn!(
                "dispatch {name}: no rows are sent for a while, since requests fail: {error}"
            );
        }
        self.pause = pause;
        self.is_probing = false;
        self.failures = 0;
        self.open_until = Some(Instant::now() + pause.max(pause_min));
    }
}

#[cfg(test)]
mod tests {
    use super::AdmissionKind::{Admitted, Probe, Refused};
    use super::*;

    async fn after(pause: Duration) {
        tokio::time::advance(pause).await;
    }

    #[tokio::test(start_paused = true)]
    async fn five_failures_open_it_and_one_probe_closes_it() {
        let breaker = Breaker::default();
        for number in 1..=5 {
            // Those of retries do not count.
            breaker.admit().fail("d", true, "");
            let mut admission = breaker.admit();
            assert_eq!(admission.kind, Admitted, "{number}");
            admission.fail("d", false, "");
        }
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!((breaker.admit().kind, breaker.is_open()), (Refused, true));
            after(Duration::from_secs(pause)).await;
            assert_eq!(breaker.state(), BreakerState::HalfOpen);
            assert!(!breaker.is_open());
            let mut probe = breaker.admit();
            assert_eq!(
                (probe.kind, breaker.admit().kind),
                (Probe, Refused),
                "{pause}"
            );
            probe.fail("d", true, "");
        }
        after(PAUSE_MAX).await;
        // Its task has ended.
        drop(breaker.admit());
        breaker.admit().succeed("d");
        assert_eq!(
            (breaker.admit().kind, breaker.state()),
            (Admitted, BreakerState::Closed)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_ends_the_count_and_a_sink_may_name_the_pause() {
        let breaker = Breaker::default();
        for _ in 0..3 {
            for _ in 0..4 {
                breaker.admit().fail("d", false, "");
            }
            breaker.admit().succeed("d");
        }
        assert!(!breaker.is_open());
        // They were in flight together.
        let mut admissions = [breaker.admit(), breaker.admit(), breaker.admit()];
        for (admission, seconds) in admissions.iter_mut().zip([0, 30, 7]) {
            admission.refuse("d", Some(Duration::from_secs(seconds)), "");
        }
        after(Duration::from_secs(29)).await;
        assert_eq!(breaker.admit().kind, Refused);
        after(Duration::from_secs(1)).await;
        let mut probe = breaker.admit();
        assert_eq!(probe.kind, Probe);
        // A pause of nothing is no pause.
        probe.refuse("d", Some(Duration::ZERO), "");
        after(Duration::from_secs(1)).await;
        assert_eq!(breaker.state(), BreakerState::Open);
        after(Duration::from_secs(1)).await;
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
    }
}
