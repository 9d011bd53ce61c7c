//! [`Clock`]: where the time comes from, the system or a test.

use std::fmt;
use std::time::Duration;

// Not a model's, though `sync` is the door to those: the hand of a manual clock tells a number and
// orders nothing, and a model is to explore schedules, not times of day.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::moment::{Moment, START, nanos};

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
        Clock(Source::Manual(Arc::new(AtomicU64::new(START.0))))
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
        self.read(Moment::ticked)
    }

    /// The time: for stamps, and for what a load costs.
    pub(crate) fn exact(&self) -> Moment {
        self.read(Moment::now)
    }

    /// The time, for one that has [read](Moment::now) the system's clock just now: a clock that is
    /// the system's need not be read again.
    pub(crate) fn at(&self, now: Moment) -> Moment {
        self.read(|| now)
    }

    #[inline]
    fn read(&self, system: impl FnOnce() -> Moment) -> Moment {
        match &self.0 {
            Source::System => system(),
            Source::Manual(hand) => Moment(hand.load(Ordering::Relaxed)),
        }
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
                let moved = self.exact().since(START);
                write!(f, "Clock(manual, at {moved:?})")
            }
        }
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
        assert_eq!(clock.now(), Moment(u64::MAX));
        clock.advance(ms(1));
        assert_eq!(clock.now(), Moment(u64::MAX));
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
