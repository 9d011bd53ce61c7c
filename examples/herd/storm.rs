//! The storm: many threads, one cold key.

use std::io::Write;
use std::num::NonZeroUsize;

use clap::Args;
use parking_lot::Mutex;

use crate::caller::Caller;
use crate::loader::{Loader, Price};
use crate::progress::Progress;
use crate::strategy::{self, Strategy};
use crate::tally::{Pass, Tally};
use crate::{Failure, crew, table};

#[derive(Args)]
pub(crate) struct Storm {
    /// How many threads ask at once
    #[arg(long, value_name = "N", default_value = "200")]
    threads: NonZeroUsize,
    /// How often, each time for another cold key
    #[arg(long, value_name = "N", default_value = "1")]
    rounds: NonZeroUsize,
    #[command(flatten)]
    price: Price,
}

pub(crate) fn run(storm: &Storm, out: &mut impl Write) -> Result<(), Failure> {
    let price = &storm.price;
    let threads = table::counted(storm.threads.get(), "thread");
    let rounds = match storm.rounds.get() {
        1 => String::new(),
        rounds => format!(", in each of {rounds} rounds"),
    };
    writeln!(out, "{threads} asking for one cold key at once{rounds}; {price}.\n")?;
    let passes = strategy::all()
        .iter()
        .map(|strategy| pass(strategy.as_ref(), storm))
        .collect::<Result<Vec<Pass>, Failure>>()?;
    let printed = writeln!(out, "{}", table::costs(&passes).trim_fmt());
    // Whether anyone wanted to see the table or not.
    passes.iter().try_for_each(|pass| verdict(pass, storm)).map_err(Failure::Told)?;
    Ok(printed?)
}

fn pass(strategy: &dyn Strategy, storm: &Storm) -> Result<Pass, Failure> {
    let rounds = storm.rounds.get();
    let loader = Loader::new(&storm.price, rounds);
    let tally = Mutex::new(Tally::new());
    let progress = Progress::bar(strategy.name(), rounds);
    for key in 0..rounds {
        let call = |_| Caller::new(strategy, &loader, &tally).call(key, None);
        crew::run(storm.threads.get(), |_| (), call)?;
        progress.set(key as u64 + 1);
    }
    Ok(Pass {
        strategy: strategy.name(),
        coalesces: strategy.coalesces(),
        tally: tally.into_inner(),
        loads: loader.loads(),
        overlapping: loader.overlapping(),
    })
}

/// One load a round is what coalescing is for.
fn verdict(pass: &Pass, storm: &Storm) -> Result<(), String> {
    pass.verdict()?;
    let (loads, rounds) = (pass.all_loads(), storm.rounds.get() as u64);
    if pass.coalesces && loads != rounds {
        let name = pass.strategy;
        return Err(format!(
            "{name}: {loads} loads instead of {rounds}. No two of one key overlapped: a part of \
             the herd came when a load was over already. On a busy machine let loads take longer \
             (--load)"
        ));
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

    #[test]
    fn a_second_load_of_a_cold_key_is_a_failure() {
        let storm = Arguments::parse_from(["storm", "--rounds", "2"]).storm;
        let pass = |loads: &[u64], coalesces| Pass {
            strategy: "with",
            coalesces,
            tally: Tally::new(),
            loads: loads.to_vec(),
            overlapping: 0,
        };
        assert!(verdict(&pass(&[1, 1], true), &storm).is_ok());
        assert!(
            verdict(&pass(&[1, 2], true), &storm).unwrap_err().contains("3 loads instead of 2")
        );
        assert!(verdict(&pass(&[200, 200], false), &storm).is_ok());
    }
}
