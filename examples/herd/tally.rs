//! [`Tally`]: what became of the calls of one [`Pass`].

use std::time::Duration;

use hdrhistogram::Histogram;

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
}

/// What was asked of a shared tier, by all instances together.
#[derive(Clone, Copy)]
pub(crate) struct Traffic {
    /// For the lease of a key, among them those that got the value instead.
    pub(crate) claims: u64,
    /// For anything.
    pub(crate) commands: u64,
    /// How many callers of one instance asked for the lease of one key, at most.
    pub(crate) most_claimants: usize,
}

impl Pass {
    /// What came of `column`.
    pub(crate) fn new(column: &Column, loader: &Loader, tally: Tally) -> Pass {
        let asked = &column.asked;
        let fleet = (!asked.is_empty()).then(|| Traffic {
            claims: asked.iter().map(|instance| instance.claims()).sum(),
            commands: asked.iter().map(|instance| instance.commands()).sum(),
            most_claimants: asked
                .iter()
                .map(|instance| instance.most_claimants())
                .max()
                .unwrap_or_default(),
        });
        Pass {
            strategy: column.name,
            promise: column.promise,
            tally,
            loads: loader.loads(),
            overlapping: loader.overlapping(),
            fleet,
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
    /// The first thing that went wrong.
    pub(crate) fault: Option<String>,
}

impl Tally {
    pub(crate) fn new() -> Tally {
        Tally { waits: Spread::new(), leads: Spread::new(), most_behind: None, fault: None }
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
            let fleet = Some(Traffic { claims: 50, commands: 100, most_claimants });
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
