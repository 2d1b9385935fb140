//! The log of loads: slow ones in few lines, each one at level debug.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Boottime;
use crate::source::SourceError;
use crate::source::loader::Load;

/// Lines are counted for this long.
const WINDOW: Duration = Duration::from_secs(60);
/// The most lines within that time. Further slow loads are only counted.
const LINES_MAX: u32 = 10;
/// The most keys that a line names.
const KEYS_MAX: usize = 3;
/// The most characters of a key in a line.
const KEY_CHARACTERS_MAX: usize = 64;

/// Logs the loads of statements that have ended.
pub(super) struct LoadLog {
    /// A load that takes as long is slow; zero: none is.
    slow_from: Duration,
    lines: Mutex<Lines>,
}

/// The lines of the current window.
#[derive(Default)]
struct Lines {
    began: Option<Instant>,
    written: u32,
    /// Slow statements without a line since the last line.
    suppressed: u64,
}

/// How long the loads of a statement took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    /// The longest time until the statement was sent: for a turn, a lock and a connection.
    waited: Duration,
    /// Since then.
    in_postgres: Duration,
}

impl LoadLog {
    /// Loads are slow from `slow_from` on; none is if that is zero.
    pub(super) fn new(slow_from: Duration) -> Self {
        Self {
            slow_from,
            lines: Mutex::default(),
        }
    }

    /// Notes that `loads`, all of one resource, have ended with one statement, or with `error`.
    pub(super) fn note(&self, loads: &[Load], error: Option<&SourceError>) {
        let Some(first) = loads.first() else {
            return;
        };
        let now = Boottime::now();
        let resource = first.resource.name.as_str();
        let times = Times::of(loads, now);
        let outcome = || error.map_or_else(|| "read".to_owned(), ToString::to_string);
        tracing::debug!(
            resource,
            keys = ?few_keys(loads.iter()),
            count = loads.len(),
            waited = ?times.waited,
            in_postgres = ?times.in_postgres,
            outcome = outcome(),
            "load"
        );
        let is_slow = |load: &&Load| now.since(load.asked_at) >= self.slow_from;
        if self.slow_from.is_zero() || !loads.iter().any(|load| is_slow(&load)) {
            return;
        }
        let Some(suppressed) = self.begin_line(Instant::now()) else {
            return;
        };
        let slow = loads.iter().filter(is_slow);
        let count = slow.clone().count();
        tracing::info!(
            resource,
            keys = ?few_keys(slow),
            count,
            waited = ?times.waited,
            in_postgres = ?times.in_postgres,
            outcome = outcome(),
            suppressed,
            "slow load"
        );
    }

    /// The number of slow statements without a line since the last line; `None` if this one gets no line either.
    fn begin_line(&self, now: Instant) -> Option<u64> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.began.is_none_or(|began| now - began >= WINDOW) {
            lines.began = Some(now);
            lines.written = 0;
        }
        if lines.written >= LINES_MAX {
            lines.suppressed += 1;
            return None;
        }
        lines.written += 1;
        Some(std::mem::take(&mut lines.suppressed))
    }
}

impl Times {
    fn of(loads: &[Load], now: Boottime) -> Self {
        let waits = loads.iter().map(|load| {
            let sent_at = load.sent_at.get().unwrap_or(now);
            sent_at.since(load.asked_at)
        });
        let sent = loads.iter().filter_map(|load| load.sent_at.get());
        let since = sent.map(|sent_at| now.since(sent_at));
        Self {
            waited: waits.max().unwrap_or_default(),
            in_postgres: since.max().unwrap_or_default(),
        }
    }
}

/// The first keys, none of them long.
fn few_keys<'l>(loads: impl Iterator<Item = &'l Load>) -> Vec<String> {
    let short = |load: &Load| {
        let mut characters = load.key.chars();
        let mut key: String = characters.by_ref().take(KEY_CHARACTERS_MAX).collect();
        if characters.next().is_some() {
            key.push('…');
        }
        key
    };
    loads.take(KEYS_MAX).map(short).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::resource::testing::named;
    use crate::source::loader::SentAt;

    fn load(key: &str, asked_at: u64, sent_at: Option<u64>) -> Load {
        let load = Load {
            resource: Arc::new(named("items")),
            key: key.into(),
            asked_at: Boottime(asked_at),
            until: None,
            sent_at: SentAt::default(),
            done: Box::new(|_, _| ()),
        };
        if let Some(sent_at) = sent_at {
            load.sent_at.mark(Boottime(sent_at));
        }
        load
    }

    #[tokio::test(start_paused = true)]
    async fn ten_lines_a_minute_and_then_the_number_of_the_others() {
        let log = LoadLog::new(Duration::from_millis(1));
        for _ in 0..LINES_MAX {
            assert_eq!(log.begin_line(Instant::now()), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(log.begin_line(Instant::now()), None);
        }
        tokio::time::advance(WINDOW).await;
        assert_eq!(log.begin_line(Instant::now()), Some(7));
        assert_eq!(log.begin_line(Instant::now()), Some(0));
    }

    #[test]
    fn the_wait_is_told_apart_from_the_time_in_postgresql() {
        let loads = [load("1", 1_000, Some(5_000)), load("2", 3_000, Some(5_000))];
        let times = Times::of(&loads, Boottime(12_000));
        assert_eq!(times.waited, Duration::from_nanos(4_000));
        assert_eq!(times.in_postgres, Duration::from_nanos(7_000));
        let never_sent = Times::of(&[load("3", 1_000, None)], Boottime(9_000));
        assert_eq!(never_sent.waited, Duration::from_nanos(8_000));
        assert!(never_sent.in_postgres.is_zero());
    }

    #[test]
    fn a_line_names_few_and_short_keys() {
        let long = "x".repeat(1_000);
        let loads: Vec<Load> = (0..9).map(|_| load(&long, 1, None)).collect();
        let keys = few_keys(loads.iter());
        assert_eq!(keys.len(), KEYS_MAX);
        assert_eq!(keys[0].chars().count(), KEY_CHARACTERS_MAX + 1);
    }
}
