//! [`Breaker`]: a tier in trouble is left alone for a while, so that its trouble stays its own.

use std::time::{Duration, Instant};

use crate::sync::Mutex;

/// Troubles in a row after which the tier is left alone.
const TROUBLES: u32 = 3;
/// For how long the first time. Each time the next attempt fails, twice as long.
const SHORTEST: Duration = Duration::from_millis(250);
/// But no longer than this.
const LONGEST: Duration = Duration::from_secs(5);

/// Closed while all is well. Open after three troubles in a row: nobody asks. After a while one
/// caller may try, and its success closes the breaker again.
#[derive(Debug)]
pub(super) struct Breaker {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Troubles since the last success.
    troubles: u32,
    /// Open until then.
    until: Option<Instant>,
    pause: Duration,
    opened: u64,
}

/// What an answer did to a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Opened,
    Closed,
}

impl Breaker {
    pub(super) fn new() -> Breaker {
        let state = State { troubles: 0, until: None, pause: SHORTEST, opened: 0 };
        Breaker { state: Mutex::new(state) }
    }

    /// Whether the caller may ask. Of those who come after the pause one may; the pause begins
    /// anew for the others, so that they do not wait with it for a tier that still is not there.
    pub(super) fn may_ask(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        match state.until {
            None => true,
            Some(until) if now < until => false,
            Some(_) => {
                state.until = now.checked_add(state.pause);
                true
            }
        }
    }

    /// The tier answered as it should.
    pub(super) fn well(&self) -> Option<Change> {
        let mut state = self.state.lock();
        state.troubles = 0;
        state.pause = SHORTEST;
        state.until.take().map(|_| Change::Closed)
    }

    /// It did not. `draw` in 0..1 shortens the pause by up to a fifth, so that the processes of a
    /// fleet do not come back all at once.
    pub(super) fn trouble(&self, now: Instant, draw: f64) -> Option<Change> {
        let mut state = self.state.lock();
        state.troubles = state.troubles.saturating_add(1);
        let open = state.until.is_some();
        if state.troubles < TROUBLES && !open {
            return None;
        }
        if open {
            state.pause = (state.pause * 2).min(LONGEST);
        }
        let pause = state.pause.mul_f64(1.0 - draw.clamp(0.0, 1.0) / 5.0);
        state.until = now.checked_add(pause);
        if open {
            return None;
        }
        state.opened += 1;
        Some(Change::Opened)
    }

    /// Whether it is open, and how many times it was opened.
    pub(super) fn gauge(&self) -> (bool, u64) {
        let state = self.state.lock();
        (state.until.is_some(), state.opened)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn at(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn three_troubles_in_a_row_open_it() {
        let (breaker, start) = (Breaker::new(), Instant::now());
        assert_eq!(breaker.trouble(start, 0.0), None);
        assert_eq!(breaker.trouble(start, 0.0), None);
        assert_eq!(breaker.well(), None);
        assert_eq!(breaker.trouble(start, 0.0), None);
        assert_eq!(breaker.trouble(start, 0.0), None);
        assert!(breaker.may_ask(start));
        assert_eq!(breaker.trouble(start, 0.0), Some(Change::Opened));
        assert!(!breaker.may_ask(at(start, 249)));
        assert_eq!(breaker.gauge(), (true, 1));
    }

    #[test]
    fn after_the_pause_one_asks_and_the_others_do_not() {
        let (breaker, start) = (Breaker::new(), Instant::now());
        for _ in 0..3 {
            breaker.trouble(start, 0.0);
        }
        assert!(breaker.may_ask(at(start, 250)));
        assert!(!breaker.may_ask(at(start, 250)));
        assert_eq!(breaker.well(), Some(Change::Closed));
        assert!(breaker.may_ask(at(start, 250)));
        assert_eq!(breaker.gauge(), (false, 1));
    }

    #[test]
    fn the_pause_doubles_up_to_its_longest_and_jitter_only_shortens_it() {
        let (breaker, start) = (Breaker::new(), Instant::now());
        for _ in 0..3 {
            breaker.trouble(start, 0.0);
        }
        let mut now = at(start, 250);
        for pause in [500, 1_000, 2_000, 4_000, 5_000, 5_000] {
            assert!(breaker.may_ask(now));
            assert_eq!(breaker.trouble(now, 1.0), None);
            let short = Duration::from_millis(pause) * 4 / 5;
            assert!(!breaker.may_ask(now + short - Duration::from_millis(1)));
            now += short + Duration::from_millis(1);
        }
        assert_eq!(breaker.gauge(), (true, 1));
    }
}
