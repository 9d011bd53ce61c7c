//! [`Deadline`]: an instant, or never.

use std::fmt;
use std::time::{Duration, Instant};

#[cfg(feature = "cache")]
use crate::sync::{Condvar, MutexGuard};

/// How long a caller is willing to wait: until an instant, or for as long as it takes.
///
/// A deadline is made once, when a call begins, and spent by every wait inside that call; it is
/// never started afresh. It lives on the monotonic clock, so a step of the wall clock neither
/// shortens nor stretches it. A duration too long to be added to now means [`NEVER`].
///
/// Wherever a method takes `impl Into<Deadline>`, a [`Duration`] (from now on) or an [`Instant`]
/// will do.
///
/// [`NEVER`]: Deadline::NEVER
///
/// # Example
///
/// ```
/// use onefill::Deadline;
/// use std::time::Duration;
///
/// let deadline = Deadline::after(Duration::from_secs(5));
/// assert!(!deadline.has_passed());
/// assert!(deadline.remaining().unwrap() <= Duration::from_secs(5));
///
/// // As long as it takes: both ways of saying so mean the same.
/// assert_eq!(Deadline::after(Duration::MAX), Deadline::NEVER);
/// assert_eq!(Deadline::NEVER.remaining(), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// Waits as long as it takes.
    pub const NEVER: Deadline = Deadline(None);

    /// `wait` from now; [`NEVER`](Deadline::NEVER) if that is beyond what the clock can express.
    pub fn after(wait: Duration) -> Deadline {
        Deadline(Instant::now().checked_add(wait))
    }

    /// At `instant`, which may lie in the past: then nothing is waited for.
    pub const fn at(instant: Instant) -> Deadline {
        Deadline(Some(instant))
    }

    /// The instant, or `None` for never.
    pub const fn instant(self) -> Option<Instant> {
        self.0
    }

    /// What is left, zero once it has passed, or `None` for never.
    pub fn remaining(self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Whether it has passed. Reads the clock unless the deadline is never.
    pub fn has_passed(self) -> bool {
        self.0.is_some_and(|at| at <= Instant::now())
    }

    /// Waits on `condvar` once, until notified or until the deadline fires; `false` is the latter.
    /// What happened in the moment it fired is to be seen under the lock, which is held again.
    #[cfg(feature = "cache")]
    pub(crate) fn wait<T>(self, condvar: &Condvar, guard: &mut MutexGuard<'_, T>) -> bool {
        match self.0 {
            None => {
                condvar.wait(guard);
                true
            }
            Some(at) => !condvar.wait_until(guard, at).timed_out(),
        }
    }

    /// An equal part of what is left, for the first of so many.
    #[cfg(any(feature = "r2d2_redis", feature = "redis"))]
    pub(crate) fn share(self, among: usize) -> Deadline {
        match self.remaining() {
            None => Deadline::NEVER,
            Some(left) => Deadline::after(left / among.max(1) as u32),
        }
    }

    /// The earlier of the two.
    ///
    /// ```
    /// use onefill::Deadline;
    /// use std::time::{Duration, Instant};
    ///
    /// let soon = Instant::now() + Duration::from_millis(5);
    /// assert_eq!(Deadline::NEVER.earlier(soon), Deadline::at(soon));
    /// assert_eq!(Deadline::at(soon).earlier(Deadline::NEVER), Deadline::at(soon));
    /// ```
    pub fn earlier(self, other: impl Into<Deadline>) -> Deadline {
        match (self.0, other.into().0) {
            (Some(a), Some(b)) => Deadline(Some(a.min(b))),
            (a, b) => Deadline(a.or(b)),
        }
    }
}

/// A duration from now on.
impl From<Duration> for Deadline {
    fn from(wait: Duration) -> Deadline {
        Deadline::after(wait)
    }
}

impl From<Instant> for Deadline {
    fn from(instant: Instant) -> Deadline {
        Deadline::at(instant)
    }
}

impl fmt::Debug for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.remaining() {
            None => f.write_str("Deadline(never)"),
            Some(left) => write!(f, "Deadline(in {left:?})"),
        }
    }
}
