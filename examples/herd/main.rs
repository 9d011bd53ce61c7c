//! A herd of threads that all want the same thing, without and with [`onefill`].
//!
//! `herd` alone raises a storm: many threads ask for one cold key at once. `herd storm --instances
//! 40` raises it over many instances of a server, which share a tier, and `herd storm --processes
//! 40` over real processes on a real Redis. `herd replay FILE` replays the requests of a real access
//! log, and `herd replay FILE --instances 8` simulates a fleet under that log, and says which layers
//! it needs. All print what it cost, without and with coalescing.
//!
//! The use of the library itself is all in `strategy.rs`, and there it is a line or two for each
//! way; `lease.rs` is what one would write by hand instead.

mod across;
mod caller;
mod crew;
mod duration;
mod figures;
mod findings;
mod lease;
mod link;
mod loader;
mod log;
#[cfg(any(feature = "redis", feature = "r2d2_redis"))]
mod processes;
mod progress;
mod replay;
mod report;
mod requests;
mod schedule;
mod simulation;
mod source;
mod storm;
mod strategy;
mod study;
mod table;
mod tally;
mod verdict;

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What a herd of threads costs, without and with coalescing.
///
/// Without a command: a storm. Many threads ask for one cold key at the same moment, first each
/// with its own load, then through a `Group`, which lets one of them load and gives its answer to
/// all. If it took more than one load, herd ends with an error.
///
/// With --instances the storm comes over so many instances at once, which stand for processes
/// before one shared tier, here in memory. With --processes they are real processes, on a real Redis.
///
/// In the tables, a wait is the time from a call to its return. The leader is the caller whose load
/// ran; the leader's return is the time from the end of its load to the return of its call, and so
/// what it pays for those who wait.
#[derive(Parser)]
#[command(
    name = "herd",
    version,
    args_conflicts_with_subcommands = true,
    args_override_self = true
)]
struct Herd {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    storm: storm::Storm,
}

#[derive(Subcommand)]
enum Command {
    Storm(storm::Storm),
    Replay(replay::Replay),
    /// For a storm over processes, which are this program again.
    #[cfg(any(feature = "redis", feature = "r2d2_redis"))]
    #[command(name = processes::CHILD, hide = true)]
    Child,
}

/// Why herd has to end with another exit code than zero.
enum Failure {
    /// The reason, as it is told to the user.
    Told(String),
    /// Standard output could not be written.
    Output(io::Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Told(reason) => f.write_str(reason),
            Failure::Output(error) => write!(f, "cannot write the result: {error}"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Output(error)
    }
}

fn main() -> ExitCode {
    let herd = Herd::parse();
    let mut out = io::stdout();
    let end = match &herd.command {
        None => storm::run(&herd.storm, &mut out),
        Some(Command::Storm(storm)) => storm::run(storm, &mut out),
        Some(Command::Replay(replay)) => replay::run(replay, &mut out),
        #[cfg(any(feature = "redis", feature = "r2d2_redis"))]
        Some(Command::Child) => processes::child(),
    };
    match end {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has read enough of it, as `head` does.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            // If standard error is gone too, the exit code is all that can be said.
            let _ = writeln!(io::stderr(), "herd: {failure}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_arguments_do_not_contradict_each_other() {
        super::Herd::command().debug_assert();
    }
}
