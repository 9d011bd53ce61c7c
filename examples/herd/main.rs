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

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

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

impl Herd {
    /// The arguments; or an error, if they do not go together.
    fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Herd, clap::Error> {
        let mut command = Herd::command();
        let matches = command.try_get_matches_from_mut(arguments)?;
        let (name, given) = matches.subcommand().unwrap_or(("", &matches));
        let lonely = match name {
            "replay" => needs::<study::Arguments>(given, "instances"),
            "" | "storm" => needs::<across::Across>(given, "processes"),
            _ => None,
        };
        if let Some(reason) = lonely {
            let command = match name {
                "" => &mut command,
                name => command.find_subcommand_mut(name).expect("it was found before"),
            };
            return Err(command.error(ErrorKind::MissingRequiredArgument, reason));
        }
        Herd::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }
}

/// What is wrong if an option of this group was given, and not the one that the others need.
///
/// `requires` would not do: where the one that is required conflicts with another that was given,
/// clap takes it for dispensed with, and whoever gave the option would wait for it in vain.
fn needs<Group: Args>(given: &ArgMatches, needed: &str) -> Option<String> {
    let was_given = |id: &str| given.value_source(id) == Some(ValueSource::CommandLine);
    if was_given(needed) {
        return None;
    }
    let group = Group::augment_args(clap::Command::new("group"));
    let lonely = group.get_arguments().find(|argument| was_given(argument.get_id().as_str()))?;
    Some(format!("--{} goes with --{needed} only", lonely.get_long()?))
}

fn main() -> ExitCode {
    let herd = Herd::read(env::args_os()).unwrap_or_else(|error| error.exit());
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
    use super::*;

    #[test]
    fn the_arguments_do_not_contradict_each_other() {
        Herd::command().debug_assert();
    }

    /// All options of a group, alone and beside what conflicts with the option that they need.
    #[test]
    fn an_option_without_the_one_that_it_needs_is_refused() {
        let across = across::Across::augment_args(clap::Command::new("across"));
        let fleet = study::Arguments::augment_args(clap::Command::new("fleet"));
        for (group, needed, starts) in [
            (
                &across,
                "processes",
                &[&["storm"][..], &[], &["storm", "--instances", "3"], &["--rounds", "2"]][..],
            ),
            (
                &fleet,
                "instances",
                &[&["replay", "-"][..], &["replay", "-", "--longest-pause", "1s"]],
            ),
        ] {
            let options = group.get_arguments().filter(|option| option.get_id() != needed);
            let options: Vec<_> = options.collect();
            assert!(options.len() > 5);
            for (option, start) in options.iter().flat_map(|o| starts.iter().map(move |s| (o, s))) {
                let long = format!("--{}", option.get_long().unwrap());
                let value = match option.get_id().as_str() {
                    _ if !option.get_action().takes_values() => None,
                    "keys" | "calls" | "zipf" | "seed" => Some("2"),
                    "spread" => Some("client"),
                    "redis" | "report" => Some("somewhere"),
                    _ => Some("300ms"),
                };
                let read = |start: &[&str], more: Option<&str>| {
                    let words = ["herd"].iter().chain(start).copied().chain([&*long]).chain(value);
                    Herd::read(words.chain(more).map(OsString::from))
                };
                let Err(error) = read(start, None) else {
                    panic!("accepted: {start:?} {long}");
                };
                let text = error.to_string();
                assert!(text.contains(&long) && text.contains(&format!("--{needed}")), "{text}");
                let with = format!("--{needed}=2");
                assert!(read(starts[0], Some(&with)).is_ok(), "{long}");
            }
        }
    }
}
