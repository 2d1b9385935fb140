//! A request to the sink: whether it may begin, and what its rows came to.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use crate::dispatch::Dispatch;
use crate::dispatch::batch::DueRow;
use crate::dispatch::lease::Lease;
use crate::dispatch::settlement::{Fate, Settlement, element_text};
use crate::dispatch::sink::Answer;

/// The longest wait for the rate between two looks whether the request may still begin.
const RATE_PAUSE_MAX: Duration = Duration::from_secs(1);

/// The shares of a retry's pause by which it is shorter or longer, so that rows which failed together are not tried together.
const JITTER: f64 = 0.2;

/// What a request came to.
pub(super) struct Attempted {
    pub(super) rows: Vec<DueRow>,
    /// `None`: it was not sent.
    pub(super) answer: Option<Answer>,
}

/// Sends one request, if it may begin.
pub(super) async fn attempt(dispatch: &Dispatch, lease: &Lease, rows: Vec<DueRow>) -> Attempted {
    let unsent = |rows| Attempted { rows, answer: None };
    let Ok(_permit) = dispatch.permits.acquire().await else {
        return unsent(rows);
    };
    let may_begin = || dispatch.may_match() && lease.holds();
    while may_begin()
        && let Err(wait) = dispatch.rate.check(rows.len())
    {
        dispatch.pause(wait.min(RATE_PAUSE_MAX)).await;
    }
    if !may_begin() {
        return unsent(rows);
    }
    let mut admission = dispatch.breaker.admit();
    if !admission.is_admitted() {
        return unsent(rows);
    }
    let began = Instant::now();
    let (answer, status) = dispatch.sink.send(&rows).await;
    let (name, metrics) = (dispatch.name(), &dispatch.metrics);
    let duration = metrics.request_duration.with_label_values(&[name]);
    duration.observe(began.elapsed().as_secs_f64());
    metrics.requests.with_label_values(&[name, &status]).inc();
    let is_retry = rows.iter().any(|row| row.attempt > 1);
    match &answer {
        Answer::Delivered(_) => admission.succeed(name),
        Answer::Failed(error) => admission.fail(name, is_retry, error),
        // That is no fault of a row.
        Answer::Unreachable(error) => admission.fail(name, false, error),
        Answer::Unavailable(error, pause) => admission.refuse(name, *pause, error),
        Answer::Gone(error) => dispatch.note_gone(error),
    }
    let answer = Some(answer);
    Attempted { rows, answer }
}

impl Dispatch {
    /// Decides what becomes of the rows of a request. Those that the sink has not looked at go to `unsent`.
    pub(super) fn fates(
        &self,
        rows: Vec<DueRow>,
        answer: Answer,
        unsent: &mut Vec<DueRow>,
    ) -> Vec<Settlement> {
        let (refused, error) = match answer {
            Answer::Delivered(refused) => (refused, None),
            Answer::Failed(error) | Answer::Unreachable(error) => (Vec::new(), Some(error)),
            Answer::Unavailable(..) | Answer::Gone(_) => {
                unsent.extend(rows);
                return Vec::new();
            }
        };
        let refused: HashMap<String, String> = refused.into_iter().collect();
        let settlements = rows.into_iter().map(|row| {
            let error = refused.get(&row.id).or(error.as_ref()).cloned();
            let fate = match error {
                None => Fate::Delivered,
                Some(error) => self.fate_after(&row, error),
            };
            Settlement { row, fate }
        });
        settlements.collect()
    }

    /// Decides what becomes of a row whose attempt has failed.
    fn fate_after(&self, row: &DueRow, error: String) -> Fate {
        let done = usize::try_from(row.attempt - 1).unwrap_or_default();
        match self.setup.definition.retry.get(done) {
            None => Fate::Dead { error },
            Some(pause) => {
                let hash = xxh3_64(element_text(row).as_bytes()) % 1_001;
                let factor = 1.0 - JITTER + 2.0 * JITTER * hash as f64 / 1_000.0;
                let delay = pause.mul_f64(factor);
                Fate::Failed { error, delay }
            }
        }
    }

    /// Stops for good: the sink will never take anything again.
    fn note_gone(&self, error: &str) {
        if self.is_gone.swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::error!(
            "dispatch {}: stopped until it is started again: {error}",
            self.name()
        );
        if self.sink.ends_process() {
            self.fail(error);
        } else {
            self.stop();
        }
    }
}
