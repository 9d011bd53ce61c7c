//! The storm: many threads, one cold key; in one process, over many instances, or over many real
//! processes.

use std::io::{self, Write};
use std::num::NonZeroUsize;

use clap::{Args, value_parser};
use parking_lot::Mutex;

use crate::across::Across;
use crate::caller::Caller;
use crate::figures::{Figures, Scene};
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
///
/// With --processes the instances are real processes, which this program starts, and the tier is a
/// real Redis; tier commands are those that were sent to it. There is a fifth way to see, the lease
/// outside: every thread asks for the lease, and coalesces when it has it. That is the wrong order.
/// If with both it took more than one load of a key, more than one caller of a process asked for its
/// lease, or a caller was not answered, herd ends with an error; some options break things while the
/// storm is on, and change what is expected.
#[derive(Args)]
#[command(args_override_self = true)]
pub(crate) struct Storm {
    /// How many threads ask at once, in each instance or process if there are several [default: 200,
    /// or 50 with --instances]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Over how many instances of a server, each with its own connection to one shared tier, up to
    /// 10000 [default: one process, and no tier]
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=10_000))]
    instances: Option<u16>,
    /// How often, each time for another cold key
    #[arg(long, value_name = "N", default_value = "1")]
    rounds: NonZeroUsize,
    /// Write all figures as JSON, instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    price: Price,
    #[command(flatten)]
    across: Across,
}

pub(crate) fn run(storm: &Storm, out: &mut impl Write) -> Result<(), Failure> {
    storm.can_be()?;
    if !storm.json {
        // Before, so that there is something to read meanwhile.
        storm.announce(out)?;
    }
    let passes = storm.raise()?;
    let verdict = passes.iter().try_for_each(|pass| match storm.across.processes {
        None => verdict(pass, storm),
        Some(_) => storm.across.verdict(pass, storm.threads()),
    });
    let printed = match storm.json {
        true => storm.write_json(&passes, verdict.as_ref().err(), out),
        false => writeln!(out, "{}", table::costs(&passes).trim_fmt()),
    };
    // Whether anyone wanted to see the table or not.
    verdict.map_err(Failure::Told)?;
    printed?;
    if storm.across.processes.is_some() && !storm.json {
        writeln!(out, "\nAs expected of both: {}.", storm.across.expectation())?;
    }
    Ok(())
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
    /// Refuses what cannot be done, before anything is.
    fn can_be(&self) -> Result<(), Failure> {
        let redis = cfg!(any(feature = "redis", feature = "r2d2_redis"));
        match self.across.processes {
            Some(processes) if !redis => Err(Failure::Told(format!(
                "--processes is for a real Redis, and this program was built without a client. With \
                 one: cargo run --release --example herd --features redis -- storm --processes \
                 {processes}"
            ))),
            Some(1) if self.across.kill_holder => {
                Err(Failure::Told("--kill-holder leaves nobody: take two processes or more".into()))
            }
            _ => Ok(()),
        }
    }

    fn announce(&self, out: &mut impl Write) -> io::Result<()> {
        let each = table::counted(self.threads(), "thread");
        let all = table::counted(self.all_threads(), "thread");
        let threads = match (self.across.processes, self.instances) {
            (Some(1), _) => format!("{each} in 1 process"),
            (Some(processes), _) => format!("{all} in {processes} processes"),
            (None, None) => each,
            (None, Some(1)) => format!("{each} in 1 instance"),
            (None, Some(instances)) => {
                format!("{all} in {} instances", table::count(instances.into()))
            }
        };
        let rounds = match self.rounds.get() {
            1 => String::new(),
            rounds => format!(", in each of {rounds} rounds"),
        };
        writeln!(out, "{threads} asking for {}{rounds}; {}.", self.across.what(), self.price)?;
        for trouble in self.across.troubles() {
            writeln!(out, "{trouble}")?;
        }
        writeln!(out)
    }

    fn raise(&self) -> Result<Vec<Pass>, Failure> {
        if self.across.processes.is_some() {
            return self.over_processes();
        }
        let columns = match self.instances {
            None => strategy::one_process(),
            Some(instances) => strategy::fleet(instances.into(), self.price.load),
        };
        columns.iter().map(|column| pass(column, self)).collect()
    }

    #[cfg(any(feature = "redis", feature = "r2d2_redis"))]
    fn over_processes(&self) -> Result<Vec<Pass>, Failure> {
        crate::processes::run(&self.across, self.threads(), &self.price)
    }

    #[cfg(not(any(feature = "redis", feature = "r2d2_redis")))]
    fn over_processes(&self) -> Result<Vec<Pass>, Failure> {
        unreachable!("it was refused")
    }

    fn write_json(
        &self,
        passes: &[Pass],
        fault: Option<&String>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let scene = Scene {
            processes: self.across.processes,
            instances: self.instances,
            threads: self.threads(),
            calls: self.across.calls.get() * self.rounds.get() as u64,
            keys: self.across.keys.get() * self.rounds.get(),
            load: &self.price.to_string(),
            troubles: self.across.troubles(),
        };
        Figures::new(scene, passes, fault).write(out)
    }

    /// In each instance, or process.
    fn threads(&self) -> usize {
        let default = if self.instances.is_some() { 50 } else { 200 };
        self.threads.map_or(default, NonZeroUsize::get)
    }

    fn all_threads(&self) -> usize {
        let places = self.across.processes.or(self.instances).unwrap_or(1);
        self.threads().saturating_mul(places.into())
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
            peak: None,
            unanswered: 0,
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
