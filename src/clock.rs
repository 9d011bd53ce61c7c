//! [`Clock`]: where the time comes from.
//!
//! To look an entry up takes about 12 ns, and [`Instant::now`](std::time::Instant::now) another 20
//! to 30. So there are two ways to ask. [`Clock::now`] is for hits: on Linux it reads what the
//! kernel noted at its last timer tick, which takes 2 or 3. [`Clock::exact`] is for what happens
//! once in a load: when the entry was loaded, and what that cost.
//!
//! The cheap reading lags behind the exact one and is never ahead of it. So an entry with exact
//! stamps is never taken for expired before its time, and may be served for one tick after it. A
//! tick is 4 ms on most kernels and from 1 to 10 ms on others, and a virtual machine that does not
//! get its turn can miss one or two.

use std::fmt;
use std::time::Duration;

// Not a model's, though `sync` is the door to those: the hand of a manual clock tells a number and
// orders nothing, and a model is to explore schedules, not times of day.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::freshness::{Moment, nanos};

/// What a clock reads at its start: 100 years, ten times the longest lifetime of an entry. An
/// entry that comes from elsewhere may be older than the clock, and its past must have a number.
const START: u64 = 100 * 365 * 24 * 60 * 60 * 1_000_000_000;

/// Where a cache takes the time from: the system, or a test.
///
/// Clones of a clock are handles of one clock.
///
/// The system's clock is monotonic: it takes no part in steps of the wall clock. On Linux it stands
/// still while the machine is suspended, and a hit reads it as of the kernel's last tick: 4 ms ago
/// at most on most systems, 10 on some, and more while a virtual machine does not get its turn. So
/// an entry is never dropped before its time, and may be served for one tick after it.
///
/// A manual clock moves only when it is told to, which makes tests of what expires fast, and
/// exact. Deadlines and waits are on the system's clock always.
///
/// # Example
///
/// ```
/// use onefill::Clock;
/// use std::time::Duration;
///
/// let clock = Clock::manual();
/// let hand = clock.clone();
/// hand.advance(Duration::from_secs(90));
/// assert_eq!(format!("{clock:?}"), "Clock(manual, at 90s)");
/// ```
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    System,
    /// What it reads, in nanoseconds.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The system's monotonic clock.
    pub const fn system() -> Clock {
        Clock(Source::System)
    }

    /// A clock that stands still until it is [advanced](Clock::advance).
    pub fn manual() -> Clock {
        Clock(Source::Manual(Arc::new(AtomicU64::new(START))))
    }

    /// Moves a manual clock and all its clones forward by `by`.
    ///
    /// # Panics
    ///
    /// If this is the system's clock, which moves by itself.
    pub fn advance(&self, by: Duration) {
        let Source::Manual(hand) = &self.0 else { panic!("the system's clock cannot be advanced") };
        // Never an error: the new reading is always there. It stops at the last one there is.
        let _ = hand.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| {
            Some(at.saturating_add(nanos(by)))
        });
    }

    /// The time, as of the last tick: for hits. Never ahead of [`exact`](Clock::exact).
    #[inline]
    pub(crate) fn now(&self) -> Moment {
        self.read(system::ticked)
    }

    /// The time: for stamps, and for what a load costs.
    pub(crate) fn exact(&self) -> Moment {
        self.read(system::exact)
    }

    #[inline]
    fn read(&self, system: impl FnOnce() -> u64) -> Moment {
        Moment::from_nanos(match &self.0 {
            Source::System => START.saturating_add(system()),
            Source::Manual(hand) => hand.load(Ordering::Relaxed),
        })
    }
}

/// The system's.
impl Default for Clock {
    fn default() -> Self {
        Clock::system()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Source::System => f.write_str("Clock(system)"),
            Source::Manual(_) => {
                let moved = self.exact().since(Moment::from_nanos(START));
                write!(f, "Clock(manual, at {moved:?})")
            }
        }
    }
}

/// Nanoseconds of the system's monotonic clock, read in two ways with one origin.
#[cfg(any(target_os = "linux", target_os = "android"))]
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
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod system {
    use std::time::Instant;

    use crate::sync::LazyLock;

    static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

    #[inline]
    pub(super) fn ticked() -> u64 {
        exact()
    }

    #[inline]
    pub(super) fn exact() -> u64 {
        u64::try_from(ORIGIN.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;
    use std::thread;
    use std::time::Instant;

    use super::*;

    /// No kernel ticks less often; three of them, because a busy machine is late.
    const TICKS: Duration = Duration::from_millis(30);

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let clock = Clock::manual();
        let start = clock.now();
        thread::sleep(ms(5));
        assert_eq!(clock.now(), start);
        assert_eq!(clock.exact(), start);

        clock.advance(ms(7));
        clock.advance(Duration::from_nanos(1));
        assert_eq!(clock.now().since(start), Duration::from_nanos(7_000_001));
        assert_eq!(clock.exact(), clock.now());
    }

    #[test]
    fn the_clones_of_a_manual_clock_are_one_clock() {
        let clock = Clock::manual();
        let start = clock.now();
        thread::scope(|s| {
            for _ in 0..4 {
                let hand = clock.clone();
                s.spawn(move || (0..1_000).for_each(|_| hand.advance(ms(1))));
            }
        });
        assert_eq!(clock.now().since(start), ms(4_000));
    }

    #[test]
    fn two_manual_clocks_are_two() {
        let (here, there) = (Clock::manual(), Clock::manual());
        here.advance(ms(1));
        assert_eq!(here.now().since(there.now()), ms(1));
    }

    #[test]
    fn a_manual_clock_stops_at_its_last_moment() {
        let clock = Clock::manual();
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Moment::from_nanos(u64::MAX));
        clock.advance(ms(1));
        assert_eq!(clock.now(), Moment::from_nanos(u64::MAX));
    }

    #[test]
    #[should_panic(expected = "the system's clock cannot be advanced")]
    fn the_system_clock_cannot_be_advanced() {
        Clock::system().advance(ms(1));
    }

    #[test]
    fn every_clock_has_a_past_longer_than_any_life() {
        let lives = crate::freshness::LONGEST * 2;
        for clock in [Clock::manual(), Clock::system(), Clock::default()] {
            let now = clock.now();
            assert_eq!(now.since(now.minus(lives)), lives);
        }
    }

    #[test]
    fn the_system_clock_is_monotonic_and_the_cheap_reading_is_never_ahead() {
        let clock = Clock::system();
        let begin = Instant::now();
        let mut before = (clock.now(), clock.exact());
        while begin.elapsed() < ms(50) {
            let now = clock.now();
            let exact = clock.exact();
            assert!(before.0 <= now && before.1 <= exact && now <= exact);
            before = (now, exact);
        }
    }

    #[test]
    fn the_system_clock_keeps_up_with_instant() {
        let clock = Clock::system();
        // More than a second, so that both parts of a reading have changed. On a busy machine a
        // tick is late, or this thread between its readings; not five times over.
        let kept_up = (0..5).any(|_| {
            let (begin, now, exact) = (Instant::now(), clock.now(), clock.exact());
            thread::sleep(ms(1_050));
            let (now, exact) = (clock.now().since(now), clock.exact().since(exact));
            let real = begin.elapsed();
            now.abs_diff(real) <= TICKS && exact.abs_diff(real) <= ms(1)
        });
        assert!(kept_up);
    }

    #[test]
    fn the_exact_reading_does_not_wait_for_a_tick() {
        let clock = Clock::system();
        let readings: BTreeSet<_> = (0..1_000).map(|_| clock.exact()).collect();
        assert!(readings.len() >= 10, "{} of 1,000 readings differ", readings.len());
    }

    #[test]
    fn threads_share_a_clock() {
        fn is_send_sync<T: Send + Sync + 'static>() {}
        is_send_sync::<Clock>();
    }
}
