//! [`Figures`]: all that was measured in a storm, as JSON.

use std::io::{self, Write};

use serde::Serialize;

use crate::tally::{Pass, Spread};

#[derive(Serialize)]
pub(crate) struct Figures<'a> {
    storm: Scene<'a>,
    strategies: Vec<Strategy<'a>>,
    /// What was not as it should be.
    fault: Option<&'a str>,
}

/// What the storm was like.
#[derive(Serialize)]
pub(crate) struct Scene<'a> {
    pub(crate) processes: Option<u16>,
    pub(crate) instances: Option<u16>,
    /// In each of those.
    pub(crate) threads: usize,
    /// By each thread.
    pub(crate) calls: u64,
    pub(crate) keys: usize,
    /// What a load costs, as a person would say it.
    pub(crate) load: &'a str,
    /// What was broken meanwhile.
    pub(crate) troubles: Vec<String>,
}

#[derive(Serialize)]
struct Strategy<'a> {
    name: &'a str,
    calls: u64,
    /// Among them.
    faults: u64,
    killed_with_their_process: u64,
    loads: u64,
    loads_of_one_key_at_most: u64,
    loads_at_once_at_most: Option<u64>,
    claims: Option<u64>,
    /// Without those of callers that claim again while they wait.
    claimants: Option<u64>,
    commands: Option<u64>,
    messages: Option<u64>,
    wait: Times,
    leaders_return: Times,
}

/// In nanoseconds.
#[derive(Serialize)]
struct Times {
    p50: Option<u64>,
    p99: Option<u64>,
    max: Option<u64>,
}

impl<'a> Figures<'a> {
    pub(crate) fn new(storm: Scene<'a>, passes: &'a [Pass], fault: Option<&'a String>) -> Self {
        let strategies = passes.iter().map(Strategy::of).collect();
        Figures { storm, strategies, fault: fault.map(String::as_str) }
    }

    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        writeln!(out)
    }
}

impl<'a> Strategy<'a> {
    fn of(pass: &'a Pass) -> Self {
        Strategy {
            name: pass.strategy,
            calls: pass.tally.calls(),
            faults: pass.tally.faults,
            killed_with_their_process: pass.unanswered,
            loads: pass.all_loads(),
            loads_of_one_key_at_most: pass.loads.iter().copied().max().unwrap_or_default(),
            loads_at_once_at_most: pass.peak,
            claims: pass.fleet.map(|fleet| fleet.claims),
            claimants: pass.fleet.map(|fleet| fleet.claimants),
            commands: pass.fleet.map(|fleet| fleet.commands),
            messages: pass.fleet.map(|fleet| fleet.messages),
            wait: Times::of(&pass.tally.waits),
            leaders_return: Times::of(&pass.tally.leads),
        }
    }
}

impl Times {
    fn of(spread: &Spread) -> Times {
        let nanos = |quantile| {
            spread.quantile(quantile).map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        };
        Times { p50: nanos(0.5), p99: nanos(0.99), max: nanos(1.0) }
    }
}
