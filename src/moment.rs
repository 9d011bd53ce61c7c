//! [`Moment`]: a reading of a monotonic clock.
//!
//! To look an entry up takes about 12 ns, and an exact reading of the system's clock another 20 to
//! 30. So there are two ways to read it. [`Moment::ticked`] is for hits: on Linux that is what the
//! kernel noted at its last timer tick, which takes 2 or 3. [`Moment::now`] is for what happens once
//! in a load.
//!
//! The cheap reading lags behind the exact one and is never ahead of it. So an entry with exact
//! stamps is never taken for expired before its time, and may be served for one tick after it. A
//! tick is 4 ms on most kernels and from 1 to 10 ms on others, and a virtual machine that does not
//! get its turn can miss one or two.

use std::time::Duration;

/// A reading of a monotonic clock, in nanoseconds.
///
/// Only readings of one clock can be compared. The system's, and a manual one, read [`START`] at
/// first or more: what comes from elsewhere may be older than the clock, and its past must have a
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moment(pub(crate) u64);

/// 100 years, ten times the longest lifetime of an entry.
pub(crate) const START: Moment = Moment(100 * 365 * 24 * 60 * 60 * 1_000_000_000);

impl Moment {
    /// The system's time.
    #[inline]
    pub(crate) fn now() -> Moment {
        START.plus_nanos(system::exact())
    }

    /// The system's time as of the last tick. Never ahead of [`now`](Moment::now).
    #[cfg(feature = "cache")]
    #[inline]
    pub(crate) fn ticked() -> Moment {
        START.plus_nanos(system::ticked())
    }

    /// `wait` later, or the last moment there is.
    #[cfg(feature = "cache")]
    pub(crate) fn plus(self, wait: Duration) -> Moment {
        self.plus_nanos(nanos(wait))
    }

    #[inline]
    pub(crate) fn plus_nanos(self, wait: u64) -> Moment {
        Moment(self.0.saturating_add(wait))
    }

    /// `age` earlier, or the origin.
    #[cfg(feature = "cache")]
    pub(crate) fn minus(self, age: Duration) -> Moment {
        Moment(self.0.saturating_sub(nanos(age)))
    }

    /// The time from `earlier` to this moment; zero if `earlier` is the later one, so a clock that
    /// seems to run backwards stands still.
    pub(crate) fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// `duration` in nanoseconds, at most the 584 years that fit.
#[cfg(feature = "cache")]
pub(crate) fn nanos(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(duration.subsec_nanos().into())
}

/// Nanoseconds of the system's monotonic clock, read in two ways with one origin.
#[cfg(all(feature = "cache", any(target_os = "linux", target_os = "android")))]
mod system {
    use rustix::time::{ClockId, clock_gettime};

    /// As of the kernel's last timer tick.
    #[inline]
    pub(super) fn ticked() -> u64 {
        read(ClockId::MonotonicCoarse)
    }

    #[inline]
    pub(super) fn exact() -> u64 {
        read(ClockId::Monotonic)
    }

    #[inline]
    fn read(clock: ClockId) -> u64 {
        // Both parts count up from the start of the machine: neither is ever negative.
        let time = clock_gettime(clock);
        (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
    }
}

/// Elsewhere the standard library's clock, for hits too.
#[cfg(not(all(feature = "cache", any(target_os = "linux", target_os = "android"))))]
mod system {
    use std::time::Instant;

    use crate::sync::LazyLock;

    static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

    #[cfg(feature = "cache")]
    #[inline]
    pub(super) fn ticked() -> u64 {
        exact()
    }

    #[inline]
    pub(super) fn exact() -> u64 {
        u64::try_from(ORIGIN.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
