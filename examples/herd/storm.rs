//! The storm: many threads, one cold key; in one process, or over many.

use std::io::Write;
use std::num::NonZeroUsize;

use clap::{Args, value_parser};
use parking_lot::Mutex;

use crate::caller::Caller;
use crate::loader::{Loader, Price};
use crate::progress::Progress;
use crate::strategy::{self, Column, Promise};
use crate::tally::{Pass, Tally};
use crate::{Failure, crew, table};

/// Raise a storm: many threads ask for one cold key at once
///
/// Also what herd does without a command. With --instances it is raised four times: with no help
/// at all; coalescing, a `Group` in each instance; with a lease, for which every caller asks the
/// shared tier by itself, and waits for the notice that the key is filled; and with both, a `Cache`
/// in each instance on one `Fleet`. If it took more than one load with the lease or with both, or
/// if with both more than one caller of an instance asked for the lease, herd ends with an error.
///
/// Lease claims are how often the shared tier was asked for the lease, tier commands how often for
/// anything. Who waits for another instance's load claims again a few times a second, in case the
/// notice was lost; so with loads that take that long there are more claims than instances.
#[derive(Args)]
#[command(args_override_self = true)]
pub(crate) struct Storm {
    /// How many threads ask at once, in each instance if there are several [default: 200, or 50
    /// with --instances]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Over how many instances of a server, each with its own connection to one shared tier, up to
    /// 1000 [default: one process, and no tier]
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=1000))]
    instances: Option<u16>,
    /// How often, each time for another cold key
    #[arg(long, value_name = "N", default_value = "1")]
    rounds: NonZeroUsize,
    #[command(flatten)]
    price: Price,
}

pub(crate) fn run(storm: &Storm, out: &mut impl Write) -> Result<(), Failure> {
    let price = &storm.price;
    let each = table::counted(storm.threads(), "thread");
    let threads = match storm.instances {
        None => each,
        Some(1) => format!("{each} in 1 instance"),
        Some(instances) => {
            let all = table::counted(storm.all_threads(), "thread");
            format!("{all} in {} instances", table::count(instances.into()))
        }
    };
    let rounds = match storm.rounds.get() {
        1 => String::new(),
        rounds => format!(", in each of {rounds} rounds"),
    };
    writeln!(out, "{threads} asking for one cold key at once{rounds}; {price}.\n")?;
    let columns = match storm.instances {
        None => strategy::one_process(),
        Some(instances) => strategy::fleet(instances.into(), price.load),
    };
    let passes =
        columns.iter().map(|column| pass(column, storm)).collect::<Result<Vec<Pass>, Failure>>()?;
    let printed = writeln!(out, "{}", table::costs(&passes).trim_fmt());
    // Whether anyone wanted to see the table or not.
    passes.iter().try_for_each(|pass| verdict(pass, storm)).map_err(Failure::Told)?;
    Ok(printed?)
}

fn pass(column: &Column, storm: &Storm) -> Result<Pass, Failure> {
    let rounds = storm.rounds.get();
    let loader = Loader::new(&storm.price, rounds, column.instances.len());
    let tally = Mutex::new(Tally::new());
    let progress = Progress::bar(column.name, rounds);
    for key in 0..rounds {
        let call = |number, _| Caller::new(number, column, &loader, &tally).call(key, None);
        crew::run(storm.all_threads(), |_| (), call)?;
        progress.set(key as u64 + 1);
    }
    Ok(Pass::new(column, &loader, tally.into_inner()))
}

impl Storm {
    /// In each instance.
    fn threads(&self) -> usize {
        let default = if self.instances.is_some() { 50 } else { 200 };
        self.threads.map_or(default, NonZeroUsize::get)
    }

    fn all_threads(&self) -> usize {
        self.threads().saturating_mul(self.instances.unwrap_or(1).into())
    }
}

/// One load a round is what coalescing is for in one process, and what a lease is for in many. In
/// many instances, each of which coalesces for itself and keeps nothing, there may be any number:
/// it takes a while until all threads of a large herd have had a turn.
fn verdict(pass: &Pass, storm: &Storm) -> Result<(), String> {
    pass.verdict()?;
    let (name, loads, rounds) = (pass.strategy, pass.all_loads(), storm.rounds.get() as u64);
    if pass.promise == Promise::Coalesces && storm.instances.is_none() && loads != rounds {
        return Err(format!(
            "{name}: {loads} loads instead of {rounds}. No two of one key overlapped: a part of \
             the herd came when a load was over already. On a busy machine let loads take longer \
             (--load)"
        ));
    }
    if pass.promise >= Promise::Shares && loads != rounds {
        return Err(format!("{name}: {loads} loads instead of {rounds}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        storm: Storm,
    }

    fn storm(arguments: &[&str]) -> Storm {
        Arguments::parse_from(["storm"].iter().chain(arguments)).storm
    }

    fn pass(loads: &[u64], promise: Promise) -> Pass {
        Pass {
            strategy: "with",
            promise,
            tally: Tally::new(),
            loads: loads.to_vec(),
            overlapping: 0,
            fleet: None,
        }
    }

    #[test]
    fn a_second_load_of_a_cold_key_is_a_failure() {
        let storm = storm(&["--rounds", "2"]);
        let told = |loads, promise| verdict(&pass(loads, promise), &storm);
        assert!(told(&[1, 1], Promise::Coalesces).is_ok());
        assert!(told(&[1, 2], Promise::Coalesces).unwrap_err().contains("3 loads instead of 2"));
        assert!(told(&[200, 200], Promise::Nothing).is_ok());
    }

    #[test]
    fn over_instances_only_a_lease_makes_it_one_load() {
        let storm = storm(&["--instances", "4", "--rounds", "2"]);
        let told = |loads, promise| verdict(&pass(loads, promise), &storm);
        assert!(told(&[4, 4], Promise::Coalesces).is_ok());
        for promise in [Promise::Shares, Promise::ClaimsOnce] {
            assert!(told(&[1, 1], promise).is_ok());
            assert!(told(&[1, 2], promise).unwrap_err().contains("2 loads"));
            assert!(told(&[1, 0], promise).unwrap_err().contains("1 loads instead of 2"));
        }
    }

    #[test]
    fn there_are_fifty_threads_to_an_instance_unless_told_otherwise() {
        let threads = |arguments| storm(arguments).all_threads();
        assert_eq!(threads(&[]), 200);
        assert_eq!(threads(&["--instances", "40"]), 2_000);
        assert_eq!(threads(&["--instances", "40", "--threads", "5"]), 200);
    }
}
