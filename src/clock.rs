//! The boot-time clock, which goes on while the machine is suspended and is never set.

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

    /// Time since `earlier`; zero if it lies ahead, and without bound where one of them is `NEVER`.
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
}
