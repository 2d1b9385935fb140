//! The boot-time clock, which goes on while the machine is suspended and is never set.
//!
//! A hypervisor that pauses the machine may stop this clock, too. Then larder can't tell how long the pause was: what
//! it knew before counts as fresh until `max_staleness` has passed after the machine resumed, or until the next pass,
//! whichever comes first. Comparing clocks can't shorten that, since those that went on (PostgreSQL's, the wall clock)
//! can only be read by a round trip or be set by anybody.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A moment on the boot-time clock, in nanoseconds since the machine started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Boottime(pub u64);

impl Boottime {
    /// Before every other moment, and no time after it is short.
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
        // The call fails only for a clock that the kernel does not have. NEVER is "not fresh", the safe side.
        match clock_gettime(CLOCK) {
            Ok(time) => Self(u64::try_from(Duration::from(time).as_nanos()).unwrap_or(u64::MAX)),
            Err(_) => Self::NEVER,
        }
    }

    /// Whether no more than `limit` has passed since `earlier`. A moment that lies ahead is of another clock (a process
    /// that was moved to another machine), and nothing is known of how long ago it was: never.
    pub fn is_within(self, limit: Duration, earlier: Self) -> bool {
        earlier <= self && self.since(earlier) <= limit
    }

    /// Time since `earlier`, to be measured or told; zero if it lies ahead, and without bound where one of them is
    /// `NEVER`. What may be trusted is decided by [`Boottime::is_within`].
    pub fn since(self, earlier: Self) -> Duration {
        if self == Self::NEVER || earlier == Self::NEVER {
            return Duration::MAX;
        }
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A clock that a test sets, thread by thread.
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

    /// From here on it is `now` on this thread.
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
