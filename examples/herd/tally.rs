//! [`Tally`]: what became of the calls of one [`Pass`].

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::link::Asked;
use crate::loader::Loader;
use crate::strategy::{Column, Promise};

/// One run of all the calls under one strategy.
pub(crate) struct Pass {
    pub(crate) strategy: &'static str,
    pub(crate) promise: Promise,
    pub(crate) tally: Tally,
    /// How many loads there were of each key.
    pub(crate) loads: Vec<u64>,
    /// How many of them began while another load of their key was running in their instance.
    pub(crate) overlapping: u64,
    /// What the instances asked a shared tier for, if there was one.
    pub(crate) fleet: Option<Traffic>,
    /// How many loads ran at once, at most, if that was looked at.
    pub(crate) peak: Option<u64>,
    /// How many calls were not answered, as their process was killed.
    pub(crate) unanswered: u64,
}

/// What was asked of a shared tier, by all instances together.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Traffic {
    /// For the lease of a key, among them those that got the value instead.
    pub(crate) claims: u64,
    /// For anything.
    pub(crate) commands: u64,
    /// How many callers of one instance asked for the lease of one key, at most.
    pub(crate) most_claimants: usize,
    /// How many callers asked for the lease of a key, summed over instances and keys.
    pub(crate) claimants: u64,
    /// How many notices reached the instances.
    pub(crate) messages: u64,
}

impl Traffic {
    /// What one instance has to do with it so far.
    pub(crate) fn of(asked: &Asked) -> Traffic {
        Traffic {
            claims: asked.claims(),
            commands: asked.commands(),
            most_claimants: asked.most_claimants(),
            claimants: asked.claimants(),
            messages: asked.messages(),
        }
    }

    /// That and what another one has.
    pub(crate) fn and(self, other: Traffic) -> Traffic {
        Traffic {
            claims: self.claims + other.claims,
            commands: self.commands + other.commands,
            most_claimants: self.most_claimants.max(other.most_claimants),
            claimants: self.claimants + other.claimants,
            messages: self.messages + other.messages,
        }
    }
}

impl Pass {
    /// What came of `column`.
    pub(crate) fn new(column: &Column, loader: &Loader, tally: Tally) -> Pass {
        let asked = &column.asked;
        let fleet = asked.iter().map(|instance| Traffic::of(instance)).reduce(Traffic::and);
        Pass {
            strategy: column.name,
            promise: column.promise,
            tally,
            loads: loader.loads(),
            overlapping: loader.overlapping(),
            fleet,
            peak: None,
            unanswered: 0,
        }
    }

    pub(crate) fn all_loads(&self) -> u64 {
        self.loads.iter().sum()
    }

    /// Whether the strategy did what it promises, however the threads were scheduled.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        let name = self.strategy;
        if let Some(fault) = &self.tally.fault {
            return Err(format!("{name}: a call went wrong: {fault}"));
        }
        if self.promise >= Promise::Coalesces && self.overlapping > 0 {
            let loads = self.overlapping;
            return Err(format!(
                "{name}: {loads} loads began while another load of their key was running"
            ));
        }
        if self.promise >= Promise::Shares
            && let Some(loads) = self.loads.iter().find(|loads| **loads > 1)
        {
            return Err(format!("{name}: {loads} loads of one key, which is to be loaded once"));
        }
        match self.fleet {
            Some(Traffic { most_claimants: callers @ 2.., .. })
                if self.promise >= Promise::ClaimsOnce =>
            {
                Err(format!(
                    "{name}: {callers} callers of one instance asked for the lease of one key, \
                     where one is to ask for all"
                ))
            }
            _ => Ok(()),
        }
    }
}

/// What was seen of one call.
pub(crate) struct Sample {
    /// From the call to its return.
    pub(crate) waited: Duration,
    /// From the end of the loader to the return of the call, if this call ran the loader.
    pub(crate) led: Option<Duration>,
    /// How late the call came, if there was a time at which it was due.
    pub(crate) behind: Option<Duration>,
}

/// What was seen of all calls.
pub(crate) struct Tally {
    pub(crate) waits: Spread,
    pub(crate) leads: Spread,
    pub(crate) most_behind: Option<Duration>,
    /// How many calls went wrong.
    pub(crate) faults: u64,
    /// The first thing that did.
    pub(crate) fault: Option<String>,
}

impl Tally {
    pub(crate) fn new() -> Tally {
        let (waits, leads) = (Spread::new(), Spread::new());
        Tally { waits, leads, most_behind: None, faults: 0, fault: None }
    }

    pub(crate) fn wrong(&mut self, fault: String) {
        self.faults += 1;
        self.fault.get_or_insert(fault);
    }

    pub(crate) fn calls(&self) -> u64 {
        self.waits.0.len()
    }

    pub(crate) fn add(&mut self, sample: &Sample) {
        self.waits.add(sample.waited);
        if let Some(time) = sample.led {
            self.leads.add(time);
        }
        self.most_behind = self.most_behind.max(sample.behind);
    }
}

/// How a time is spread over the calls.
pub(crate) struct Spread(Histogram<u64>);

impl Spread {
    fn new() -> Spread {
        // To three digits, up to the longest time that can be added.
        let longest = u64::MAX / 2;
        Spread(Histogram::new_with_max(longest, 3).expect("a histogram keeps up to five digits"))
    }

    fn add(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Each time that was seen, in nanoseconds, and how often.
    #[cfg(any(feature = "redis", feature = "r2d2_redis"))]
    pub(crate) fn counts(&self) -> Vec<(u64, u64)> {
        let seen = self.0.iter_recorded();
        seen.map(|step| (step.value_iterated_to(), step.count_since_last_iteration())).collect()
    }

    /// Adds what [`counts`](Spread::counts) has of another one.
    #[cfg(any(feature = "redis", feature = "r2d2_redis"))]
    pub(crate) fn add_counts(&mut self, counts: &[(u64, u64)]) {
        for (nanos, times) in counts {
            self.0.saturating_record_n(*nanos, *times);
        }
    }

    /// `None` if nothing was seen.
    pub(crate) fn quantile(&self, quantile: f64) -> Option<Duration> {
        let any = !self.0.is_empty();
        any.then(|| Duration::from_nanos(self.0.value_at_quantile(quantile)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(overlapping: u64, fault: Option<&str>) -> Pass {
        Pass {
            strategy: "with",
            promise: Promise::Coalesces,
            tally: Tally { fault: fault.map(str::to_string), ..Tally::new() },
            loads: vec![2],
            overlapping,
            fleet: None,
            peak: None,
            unanswered: 0,
        }
    }

    #[test]
    fn overlapping_loads_break_the_promise_of_coalescing() {
        assert!(pass(0, None).verdict().is_ok());
        assert!(pass(1, None).verdict().unwrap_err().contains("another load"));
        assert!(Pass { promise: Promise::Nothing, ..pass(1, None) }.verdict().is_ok());
    }

    #[test]
    fn a_second_load_breaks_the_promise_of_a_lease() {
        let shared = |loads: &[u64]| Pass {
            promise: Promise::Shares,
            loads: loads.to_vec(),
            ..pass(0, None)
        };
        assert!(shared(&[1, 0, 1]).verdict().is_ok());
        assert!(shared(&[1, 2]).verdict().unwrap_err().contains("2 loads of one key"));
    }

    #[test]
    fn a_second_claimant_in_an_instance_breaks_the_promise_of_both() {
        let claimed = |most_claimants, promise| {
            let fleet = Some(Traffic { most_claimants, ..Traffic::default() });
            Pass { promise, loads: vec![1], fleet, ..pass(0, None) }.verdict()
        };
        assert!(claimed(1, Promise::ClaimsOnce).is_ok());
        assert!(claimed(2, Promise::ClaimsOnce).unwrap_err().contains("2 callers of one instance"));
        assert!(claimed(2, Promise::Shares).is_ok());
    }

    #[test]
    fn a_fault_is_told() {
        assert!(pass(0, Some("somebody else's row")).verdict().unwrap_err().contains("else's row"));
    }

    #[test]
    fn times_of_any_length_are_kept_to_three_digits() {
        let mut spread = Spread::new();
        assert_eq!(spread.quantile(1.0), None);
        let times = [Duration::from_millis(50), Duration::from_secs(3600 * 24), Duration::MAX];
        for (time, kept) in
            times.into_iter().zip([times[0], times[1], Duration::from_nanos(u64::MAX / 2)])
        {
            spread.add(time);
            let shown = spread.quantile(1.0).expect("a time was added");
            assert!(
                (shown.as_secs_f64() / kept.as_secs_f64() - 1.0).abs() < 1e-3,
                "{time:?}: {shown:?}"
            );
        }
    }

    #[test]
    fn only_calls_that_led_count_as_led() {
        let mut tally = Tally::new();
        let waited = Duration::from_nanos(500);
        tally.add(&Sample { waited, led: None, behind: None });
        assert_eq!((tally.calls(), tally.leads.quantile(0.5)), (1, None));
        tally.add(&Sample { waited, led: Some(Duration::ZERO), behind: Some(waited) });
        assert_eq!((tally.calls(), tally.leads.quantile(0.5)), (2, Some(Duration::ZERO)));
        assert_eq!(tally.most_behind, Some(waited));
    }
}
