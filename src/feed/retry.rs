//! Pauses between attempts.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// An endless iterator of pauses.
pub(crate) type RetryPauses = ExponentialBackoff;

/// Pauses that grow from `min` to `max`, with jitter.
pub(crate) fn retry_pauses(min: Duration, max: Duration) -> RetryPauses {
    ExponentialBuilder::new()
        .with_min_delay(min)
        .with_max_delay(max)
        .with_jitter()
        .without_max_times()
        .build()
}
