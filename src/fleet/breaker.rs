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
/// caller may try, and its success closes the breaker again. Where a setting is wrong, it is open
/// at once and for long: nothing becomes right by asking again.
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
    /// When that was decided.
    since: Option<Instant>,
    pause: Duration,
    opened: u64,
    /// Whether a setting is wrong, for all that is known.
    misconfigured: bool,
}

/// How a breaker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gauge {
    pub(super) open: bool,
    /// How many times it was opened.
    pub(super) opened: u64,
    pub(super) misconfigured: bool,
}

/// What an answer did to a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Opened,
    Closed,
}

impl Breaker {
    pub(super) fn new() -> Breaker {
        let state = State {
            troubles: 0,
            until: None,
            since: None,
            pause: SHORTEST,
            opened: 0,
            misconfigured: false,
        };
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
        state.misconfigured = false;
        state.until.take().map(|_| Change::Closed)
    }

    /// It did not, whoever asked it at `asked`. `draw` in 0..1 shortens the pause by up to a fifth,
    /// so that the processes of a fleet do not come back all at once.
    pub(super) fn trouble(&self, asked: Instant, now: Instant, draw: f64) -> Option<Change> {
        let mut state = self.state.lock();
        state.troubles = state.troubles.saturating_add(1);
        let open = state.until.is_some();
        if state.troubles < TROUBLES && !open {
            return None;
        }
        // Many calls meet one trouble. Those that were under way when it was found out have tried
        // nothing anew: if each of them made the pause longer, the first would be the longest.
        if open && state.since.is_some_and(|since| asked < since) {
            return None;
        }
        if open {
            state.pause = (state.pause * 2).min(LONGEST);
        }
        state.open_until(now, draw)
    }

    /// It did not, and will not before somebody changes a setting.
    pub(super) fn misconfigured(&self, now: Instant, draw: f64) -> Option<Change> {
        let mut state = self.state.lock();
        state.troubles = state.troubles.saturating_add(1);
        state.misconfigured = true;
        state.pause = LONGEST;
        state.open_until(now, draw)
    }

    pub(super) fn gauge(&self) -> Gauge {
        let State { until, opened, misconfigured, .. } = *self.state.lock();
        Gauge { open: until.is_some(), opened, misconfigured }
    }
}

impl State {
    /// Begins a pause.
    fn open_until(&mut self, now: Instant, draw: f64) -> Option<Change> {
        let pause = self.pause.mul_f64(1.0 - draw.clamp(0.0, 1.0) / 5.0);
        self.since = Some(now);
        if self.until.replace(now.checked_add(pause).unwrap_or(now)).is_some() {
            return None;
        }
        self.opened += 1;
        Some(Change::Opened)
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
        assert_eq!(breaker.trouble(start, start, 0.0), None);
        assert_eq!(breaker.trouble(start, start, 0.0), None);
        assert_eq!(breaker.well(), None);
        assert_eq!(breaker.trouble(start, start, 0.0), None);
        assert_eq!(breaker.trouble(start, start, 0.0), None);
        assert!(breaker.may_ask(start));
        assert_eq!(breaker.trouble(start, start, 0.0), Some(Change::Opened));
        assert!(!breaker.may_ask(at(start, 249)));
        assert_eq!(breaker.gauge(), Gauge { open: true, opened: 1, misconfigured: false });
    }

    #[test]
    fn after_the_pause_one_asks_and_the_others_do_not() {
        let (breaker, start) = (Breaker::new(), Instant::now());
        for _ in 0..3 {
            breaker.trouble(start, start, 0.0);
        }
        assert!(breaker.may_ask(at(start, 250)));
        assert!(!breaker.may_ask(at(start, 250)));
        assert_eq!(breaker.well(), Some(Change::Closed));
        assert!(breaker.may_ask(at(start, 250)));
        assert_eq!(breaker.gauge(), Gauge { open: false, opened: 1, misconfigured: false });
    }

    #[test]
    fn the_pause_doubles_up_to_its_longest_and_jitter_only_shortens_it() {
        let (breaker, start) = (Breaker::new(), Instant::now());
        for _ in 0..3 {
            breaker.trouble(start, start, 0.0);
        }
        let mut now = at(start, 250);
        for pause in [500, 1_000, 2_000, 4_000, 5_000, 5_000] {
            assert!(breaker.may_ask(now));
            assert_eq!(breaker.trouble(now, now, 1.0), None);
            let short = Duration::from_millis(pause) * 4 / 5;
            assert!(!breaker.may_ask(now + short - Duration::from_millis(1)));
            now += short + Duration::from_millis(1);
        }
        assert_eq!(breaker.gauge(), Gauge { open: true, opened: 1, misconfigured: false });
    }

    #[test]
    fn who_was_under_way_when_it_opened_does_not_make_the_pause_longer() {
        let (breaker, start) = (Breaker::new(), Instant::now());
        let found_out = at(start, 100);
        for nth in 1..20 {
            let change = breaker.trouble(start, found_out, 0.0);
            assert_eq!(change.is_some(), nth == 3);
        }
        assert!(!breaker.may_ask(at(start, 349)));
        assert!(breaker.may_ask(at(start, 350)));
        // Nor do those who are later than the next attempt.
        assert_eq!(breaker.trouble(at(start, 350), at(start, 400), 0.0), None);
        assert_eq!(breaker.trouble(start, at(start, 500), 0.0), None);
        assert!(!breaker.may_ask(at(start, 899)));
        assert!(breaker.may_ask(at(start, 900)));
    }

    #[test]
    fn a_wrong_setting_opens_it_at_once_and_for_as_long_as_it_goes() {
        let (breaker, start) = (Breaker::new(), Instant::now());
        assert_eq!(breaker.misconfigured(start, 0.0), Some(Change::Opened));
        assert_eq!(breaker.gauge(), Gauge { open: true, opened: 1, misconfigured: true });
        assert!(!breaker.may_ask(at(start, 4_999)));
        assert!(breaker.may_ask(at(start, 5_000)));
        assert_eq!(breaker.misconfigured(at(start, 5_001), 1.0), None);
        assert!(!breaker.may_ask(at(start, 9_000)));
        assert!(breaker.may_ask(at(start, 9_001)));

        assert_eq!(breaker.well(), Some(Change::Closed));
        assert!(!breaker.gauge().misconfigured, "somebody has changed it");
        assert_eq!(
            breaker.trouble(at(start, 9_002), at(start, 9_002), 0.0),
            None,
            "and it begins again"
        );
    }
}
