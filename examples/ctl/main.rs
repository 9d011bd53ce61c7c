//! Looks into a fleet, from outside: what is stored, who is loading what, what processes tell each
//! other. And invalidates, so that all of them hear.
//!
//! ```sh
//! alias onefill-ctl='cargo run --quiet --release --example ctl --features redis,json --'
//! onefill-ctl --redis redis://cache.internal inspect product        # all keys of a table
//! onefill-ctl --redis redis://cache.internal inspect product 42 --json
//! onefill-ctl --redis redis://cache.internal invalidate product 42
//! onefill-ctl --redis redis://cache.internal invalidate product --all
//! onefill-ctl --redis redis://cache.internal watch product
//! ```
//!
//! Besides what a fleet asks of its server, `inspect` of a whole table, and the names in `watch`,
//! need the right to `SCAN`. Nothing that looks changes anything.

mod inspect;
mod invalidate;
mod keys;
mod server;
mod show;
mod watch;

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use server::Place;

/// Looks into a fleet on Redis or Valkey.
#[derive(Parser)]
#[command(name = "onefill-ctl", version)]
struct Ctl {
    /// Where the shared tier is: what the fleet is given.
    #[arg(long, value_name = "URL", global = true, default_value = "redis://127.0.0.1:6379")]
    redis: String,
    /// Of a cluster: a master whose keys are listed. All of them, for all keys.
    #[arg(long = "node", value_name = "URL", global = true)]
    nodes: Vec<String>,
    /// The namespace that the fleet is given.
    #[arg(long, global = true, default_value = "onefill")]
    namespace: String,
    /// How long to wait for each answer, in milliseconds.
    #[arg(long, global = true, default_value_t = 2_000, value_name = "MS")]
    timeout_ms: u64,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Inspect(inspect::Inspect),
    Invalidate(invalidate::Invalidate),
    Watch(watch::Watch),
}

/// Why this has to end with another exit code than zero.
enum Failure {
    /// The reason, as it is told to the user.
    Told(String),
    /// Standard output could not be written.
    Output(io::Error),
}

impl Failure {
    fn told(reason: impl Into<String>) -> Failure {
        Failure::Told(reason.into())
    }
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
    let ctl = Ctl::parse();
    let timeout = Duration::from_millis(ctl.timeout_ms);
    let mut out = io::stdout().lock();
    let place = Place::new(ctl.redis, &ctl.nodes, &ctl.namespace, timeout);
    let end = place.and_then(|place| match &ctl.command {
        Command::Inspect(inspect) => inspect.run(&place, &mut out),
        Command::Invalidate(invalidate) => invalidate.run(&place, &mut out),
        Command::Watch(watch) => watch.run(&place, &mut out),
    });
    match end {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has read enough of it, as `head` does.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            // If standard error is gone too, the exit code is all that can be said.
            let _ = writeln!(io::stderr(), "onefill-ctl: {failure}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_arguments_do_not_contradict_each_other() {
        super::Ctl::command().debug_assert();
    }
}
