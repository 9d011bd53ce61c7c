//! [`Across`]: what a storm over real processes is like.

use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

use clap::{Args, value_parser};

use crate::duration::{self, Span};
use crate::strategy::BOTH;
#[cfg(any(feature = "redis", feature = "r2d2_redis"))]
use crate::strategy::Promise;
use crate::table::count;
use crate::tally::Pass;

/// Each needs `processes`, so that nothing is asked for that is then not done; see [`needs`](crate::needs).
#[derive(Args, Clone)]
#[command(next_help_heading = "Real processes (with the feature redis or r2d2_redis)")]
pub(crate) struct Across {
    /// Over how many real processes on a real Redis, up to 500, with 200 threads each unless told
    /// otherwise
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=500))]
    #[arg(conflicts_with_all = ["instances", "rounds"])]
    pub(crate) processes: Option<u16>,
    /// The server, which is left as it was found [default: a redis-server of its own, which must be
    /// in the PATH and is gone afterwards]
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,
    /// How many cold keys there are
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) keys: NonZeroUsize,
    /// How uneven they are: the key of rank r is asked for in proportion to 1 / r^S, so with 0 all
    /// alike
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = exponent, allow_negative_numbers = true)]
    pub(crate) zipf: f64,
    /// How many calls each thread makes, one after the other
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) calls: NonZeroU64,
    /// For how long a lease is taken; where it is not renewed, as with the lease alone, for a load
    /// longer [default: 10s, or 1s with --kill-holder]
    #[arg(long, value_name = "DURATION", value_parser = lease)]
    lease: Option<Duration>,
    /// How long a call may wait for Redis before it does without, for the library's way [default: a
    /// minute: here hundreds of threads share a core, and what takes long is their turn]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) budget: Option<Duration>,
    /// Redis stands still for so long, from the moment the first load begins (CLIENT PAUSE, so all
    /// who use that server are stopped)
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) pause_redis: Option<Duration>,
    /// The process whose load begins first is killed in the middle of it, and with it its callers
    #[arg(long)]
    pub(crate) kill_holder: bool,
    /// Loads of the hottest key take so much longer: longer than the lease, say
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) slow_load: Option<Duration>,
}

impl Across {
    pub(crate) fn lease(&self) -> Duration {
        let default = if self.kill_holder { 1 } else { 10 };
        self.lease.unwrap_or(Duration::from_secs(default))
    }

    /// What is asked for, and what is done to it meanwhile, after "asking for".
    pub(crate) fn what(&self) -> String {
        let mut what = match self.keys.get() {
            1 => "one cold key".to_string(),
            keys => format!("{} cold keys, Zipf {}", count(keys as u64), self.zipf),
        };
        match self.calls.get() {
            1 if self.keys.get() == 1 => what.push_str(" at once"),
            1 => what.push_str(", one each, at once"),
            calls => what.push_str(&format!(", {} calls each", count(calls))),
        }
        what
    }

    /// What is broken while the storm is on, a sentence each.
    pub(crate) fn troubles(&self) -> Vec<String> {
        let lease = Span(self.lease());
        let killed = self.kill_holder.then(|| {
            format!("The process whose load begins first is killed in it; leases last {lease}.")
        });
        let paused = self
            .pause_redis
            .map(|time| format!("Redis stands still for {} from the first load on.", Span(time)));
        let slow = self.slow_load.map(|time| {
            format!("Loads of the hottest key take {} longer; leases last {lease}.", Span(time))
        });
        [killed, paused, slow].into_iter().flatten().collect()
    }

    /// What is expected of both, coalescing and lease.
    pub(crate) fn expectation(&self) -> String {
        let keys = if self.keys.get() == 1 { "" } else { " of each key" };
        match self {
            Across { budget: Some(_), .. } => {
                "every caller answered, if need be by a load without the lease: no two of a key at \
                 once in one process"
                    .into()
            }
            Across { kill_holder: true, .. } => format!(
                "one load{keys}, and a second of the key whose holder was killed, once its lease \
                 had ended; every caller in the other processes answered"
            ),
            _ => format!(
                "one load{keys}, of each process one caller at most to claim its lease, every \
                 caller answered"
            ),
        }
    }

    /// Whether that is what came, and whether with the other strategies, too, nobody was left
    /// without an answer.
    pub(crate) fn verdict(&self, pass: &Pass, threads: usize) -> Result<(), String> {
        pass.verdict()?;
        let name = pass.strategy;
        let (processes, killed) =
            (u64::from(self.processes.unwrap_or(1)), u64::from(self.kill_holder));
        let calls = (threads as u64).saturating_mul(self.calls.get());
        let calls = calls.saturating_mul(processes - killed);
        if pass.tally.calls() != calls {
            let answered = count(pass.tally.calls());
            return Err(format!("{name}: {answered} answers instead of {}", count(calls)));
        }
        if name != BOTH || self.budget.is_some() {
            return Ok(());
        }
        let keys = pass.loads.iter().filter(|loads| **loads > 0).count() as u64;
        let loads = pass.all_loads();
        if loads != keys + killed {
            return Err(format!("{name}: {loads} loads instead of {}", keys + killed));
        }
        match pass.fleet {
            Some(fleet) if fleet.claimants > processes * keys => Err(format!(
                "{name}: {} callers asked for a lease, where one of each process is to ask for all",
                fleet.claimants
            )),
            _ => Ok(()),
        }
    }

    /// What of a strategy's promise is left with these troubles: who was killed had begun a load, and
    /// who may not wait for Redis loads without it.
    #[cfg(any(feature = "redis", feature = "r2d2_redis"))]
    pub(crate) fn leaves(&self, promise: Promise) -> Promise {
        match self.kill_holder || self.budget.is_some() {
            true => promise.min(Promise::Coalesces),
            false => promise,
        }
    }
}

fn exponent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(exponent) if (0.0..=10.0).contains(&exponent) => Ok(exponent),
        _ => Err("a number from 0 to 10".into()),
    }
}

/// A shorter one ends before it can be renewed.
fn lease(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        lease if lease < Duration::from_millis(20) => Err("20ms at least".into()),
        lease => Ok(lease),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::strategy::Promise;
    use crate::tally::{Sample, Tally, Traffic};

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        across: Across,
        /// Which an option of the storm is to have nothing to do with.
        #[arg(long)]
        instances: Option<u16>,
        #[arg(long)]
        rounds: Option<u16>,
    }

    /// Over two processes of ten threads.
    fn across(more: &[&str]) -> Across {
        let arguments = ["storm", "--processes", "2"].iter().chain(more);
        Arguments::parse_from(arguments).across
    }

    fn pass(calls: u64, loads: &[u64], claimants: u64) -> Pass {
        let mut tally = Tally::new();
        let waited = Duration::from_millis(1);
        (0..calls).for_each(|_| tally.add(&Sample { waited, led: None, behind: None }));
        Pass {
            strategy: BOTH,
            promise: Promise::Coalesces,
            tally,
            loads: loads.to_vec(),
            overlapping: 0,
            fleet: Some(Traffic { claimants, ..Traffic::default() }),
            peak: None,
            unanswered: 0,
        }
    }

    #[test]
    fn both_is_one_load_and_one_claimant_of_each_process() {
        let told = |pass: Pass| across(&[]).verdict(&pass, 10);
        assert_eq!(told(pass(20, &[1], 2)), Ok(()));
        assert_eq!(told(pass(20, &[1, 0, 1], 4)), Ok(()));
        assert!(told(pass(20, &[1], 3)).unwrap_err().contains("3 callers"));
        assert!(told(pass(20, &[2], 2)).unwrap_err().contains("2 loads instead of 1"));
        assert!(told(pass(19, &[1], 2)).unwrap_err().contains("19 answers instead of 20"));
        let other = Pass { strategy: "lease", ..pass(20, &[2], 20) };
        assert_eq!(told(other), Ok(()), "it promises nothing");
    }

    #[test]
    fn a_killed_process_is_one_load_more_and_its_callers_less() {
        let told = |pass: Pass| across(&["--kill-holder"]).verdict(&pass, 10);
        assert_eq!(told(pass(10, &[2], 1)), Ok(()));
        assert!(told(pass(10, &[1], 1)).unwrap_err().contains("1 loads instead of 2"));
        assert!(told(pass(20, &[2], 1)).unwrap_err().contains("instead of 10"));
    }

    #[test]
    fn who_may_not_wait_for_redis_may_load() {
        let across = across(&["--budget", "50ms"]);
        assert_eq!(across.verdict(&pass(20, &[2], 2), 10), Ok(()));
        let overlapping = Pass { overlapping: 1, ..pass(20, &[2], 2) };
        assert!(across.verdict(&overlapping, 10).is_err());
    }
}
