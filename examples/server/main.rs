//! An HTTP server with a thread for each request at work, a database, and [`onefill`] between them:
//! to be copied, and changed where yours differs.
//!
//! ```sh
//! cargo run --release --example server --features json
//! cargo run --release --example server --features json,redis -- --redis redis://127.0.0.1:6379
//! ```
//!
//! | file | what is in it |
//! |---|---|
//! | `main.rs` | the options, and how all of it is put together and taken down |
//! | `door.rs` | how requests come in: deadlines, a bounded queue, threads, the end |
//! | `routes.rs` | what is asked for, and what becomes of each answer and error of a cache |
//! | `reply.rs` | what is answered, before HTTP |
//! | `caches.rs` | **the use of the library**: two caches, and the fleet they are on |
//! | `database.rs` | SQLite: a few connections, and queries that cost something |
//! | `metrics.rs`, `health.rs` | how it is, for machines and for people |

mod caches;
mod database;
mod door;
mod health;
mod metrics;
mod reply;
mod routes;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use caches::{Caches, Freshness};
use database::Database;
use door::Door;
use routes::App;

/// A shop's catalogue over HTTP, in front of a database in which every answer costs something.
///
/// GET /products/{id}, PUT /products/{id} with {"name": "...", "price_cents": 0}, GET /report,
/// GET /metrics, GET /health. A request may say in X-Request-Timeout-Ms how long its answer is of
/// use.
#[derive(Parser)]
#[command(name = "server", version)]
struct Options {
    /// Where to listen. Port 0 is any that is free; the first line printed says which.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The shared tier, as redis://host:6379. Without it this process caches for itself.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// How many requests are worked on at once.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// The database's file, made and filled if there is none. Servers that are given the same one, or
    /// started from the same directory, share it.
    #[arg(long, default_value = "shop.sqlite")]
    db: PathBuf,
    /// How many sales to fill a new database with.
    #[arg(long, default_value_t = 300_000)]
    sales: u32,
    /// For how long a product and a report are fresh, in milliseconds.
    #[arg(long, default_value_t = 60_000, value_name = "MS")]
    fresh_ms: u64,
    /// For how long after that a product is served at once, while it is loaded behind.
    #[arg(long, default_value_t = 30_000, value_name = "MS")]
    stale_ms: u64,
    /// For how long a stop waits for the requests that are being worked on.
    #[arg(long, default_value_t = 10_000, value_name = "MS")]
    grace_ms: u64,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            // If standard error is gone too, the exit code is all that can be said.
            let _ = writeln!(io::stderr(), "server: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), String> {
    // First, so that a signal at any moment from here on is a stop in good order.
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| error.to_string())?;

    // From the inside out: the database, the caches in front of it, the routes, the door. Whatever
    // is wrong with the options is said before anybody is let in.
    let database = Database::open(&options.db, options.sales)
        .map_err(|error| format!("cannot use the database {}: {error}", options.db.display()))?;
    let database = Arc::new(database);
    let fleet = options.redis.as_deref().map(caches::fleet).transpose()?;
    let freshness = Freshness {
        fresh: Duration::from_millis(options.fresh_ms),
        stale: Duration::from_millis(options.stale_ms),
    };
    let caches = Caches::new(&database, fleet, freshness).map_err(|error| error.to_string())?;
    let listener = TcpListener::bind(options.listen)
        .map_err(|error| format!("cannot listen on {}: {error}", options.listen))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    let app = Arc::new(App::new(database, caches));
    let door = Door::open(listener, usize::from(options.threads), &app)?;

    // The first signal stops the door; the second ends the process, for whoever is in a hurry.
    let stop = door.stopper();
    std::thread::spawn(move || {
        let mut signals = signals.forever();
        if signals.next().is_some() {
            stop.stop();
        }
        if signals.next().is_some() {
            std::process::exit(1);
        }
    });

    // Nobody need read it: a supervisor may have closed it.
    let _ = writeln!(io::stdout(), "listening on http://{address}");
    let db = options.db.canonicalize().unwrap_or_else(|_| options.db.clone());
    let _ = writeln!(io::stdout(), "the database is {}", db.display());
    let end = door.serve(Duration::from_millis(options.grace_ms));

    // Nobody asks any more. What is being refreshed ends within its bound or is given up, and the
    // leases of this process with it.
    app.caches.close(Duration::from_secs(1));
    end
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_options_do_not_contradict_each_other() {
        super::Options::command().debug_assert();
    }
}
