//! The boot-time clock, which goes on while the machine is suspended and is never set.
//!
//! A hypervisor that pauses the machine may stop this clock, too. Then larder can't know how long the pause was. After
//! the machine resumes, the tiers count as fresh until `max_staleness` is over or the next pass is applied, whichever
//! comes first. Comparing with another clock does not help: PostgreSQL's clock takes a round trip to read, and the wall
//! clock can be set.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A moment on the boot-time clock, in nanoseconds since the machine started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Boottime(pub u64);

impl Boottime {
    /// A moment before every other one. The time since it is longer than every limit.
    pub const NEVER: Self = Self(0);

    /// Reads `CLOCK_BOOTTIME` (Linux 2.6.39; elsewhere the monotonic clock).
    pub fn now() -> Self {
        #[cfg(target_os = "linux")]
        const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
        #[cfg(not(target_os = "linux"))]
        const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;
        #[cfg(test)]
        if let Some(now) = stopped::now() {
            return now;
        }
        // The call fails only if the kernel does not have this clock. With NEVER the tiers are not fresh.
        match clock_gettime(CLOCK) {
            Ok(time) => Self(u64::try_from(Duration::from(time).as_nanos()).unwrap_or(u64::MAX)),
            Err(_) => Self::NEVER,
        }
    }

    /// Whether `earlier` is at most `limit` ago. False if it is later than `self`: it was read from another clock then,
    /// since the process was moved to another machine.
    pub fn is_within(self, limit: Duration, earlier: Self) -> bool {
        earlier <= self && self.since(earlier) <= limit
    }

    /// The moment after `time`.
    pub fn after(self, time: Duration) -> Self {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanoseconds))
    }

    /// The moment before `time`, but after `NEVER`.
    pub fn before(self, time: Duration) -> Self {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(nanoseconds).max(1))
    }

    /// The time since `earlier`, for metrics and messages: zero if that is later than `self`, [`Duration::MAX`] if one
    /// of the two is `NEVER`. To decide whether tiers are fresh, use [`Boottime::is_within`].
    pub fn since(self, earlier: Self) -> Duration {
        if self == Self::NEVER || earlier == Self::NEVER {
            return Duration::MAX;
        }
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A clock that a test sets for its thread.
#[cfg(test)]
pub(crate) mod stopped {
    use std::cell::Cell;

    use super::Boottime;

    thread_local! {
        static NOW: Cell<Option<Boottime>> = const { Cell::new(None) };
    }

    pub(super) fn now() -> Option<Boottime> {
        NOW.get()
    }

    /// Sets the clock of this thread. It stands still until it is set again.
    pub(crate) fn set(now: Boottime) {
        NOW.set(Some(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_since_never_is_short() {
        assert_eq!(Boottime(5).since(Boottime::NEVER), Duration::MAX);
        assert_eq!(Boottime::NEVER.since(Boottime(5)), Duration::MAX);
        assert_eq!(Boottime(5).since(Boottime(7)), Duration::ZERO);
        assert_eq!(Boottime(7).since(Boottime(5)), Duration::from_nanos(2));
    }

    #[test]
    fn nothing_is_within_a_limit_of_what_lies_ahead() {
        let limit = Duration::from_nanos(2);
        let is_within = |now, earlier| Boottime(now).is_within(limit, Boottime(earlier));
        assert!(is_within(7, 7));
        assert!(is_within(7, 5));
        assert!(!is_within(7, 4));
        assert!(!is_within(7, 8));
        assert!(!is_within(1, Boottime::NEVER.0));
        assert!(!is_within(Boottime::NEVER.0, Boottime::NEVER.0));
    }
}
