//! The boot-time clock, which goes on while the machine is suspended and is never set.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A moment on the boot-time clock, in nanoseconds since the machine started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Boottime(pub u64);

impl Boottime {
    /// Before every other moment.
    pub const NEVER: Self = Self(0);

    /// Reads `CLOCK_BOOTTIME` (Linux 2.6.39; elsewhere the monotonic clock).
    pub fn now() -> Self {
        #[cfg(target_os = "linux")]
        const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
        #[cfg(not(target_os = "linux"))]
        const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;
        // The call fails only for a clock that the kernel does not have. NEVER is "not fresh", the safe side.
        match clock_gettime(CLOCK) {
            Ok(time) => Self(u64::try_from(Duration::from(time).as_nanos()).unwrap_or(u64::MAX)),
            Err(_) => Self::NEVER,
        }
    }

    /// Time since `earlier`; zero if it lies ahead.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
