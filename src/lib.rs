//! **One fill per herd.** When many threads ask for the same thing at the same moment, one of them
//! loads it, and the others get its answer, each within its own deadline.
//!
//! onefill is for blocking servers: a thread per request, and a database client, a file or a slow
//! computation inside. There is no async in it and no unsafe code.
//!
//! - [`Group`] shares a load among those who ask while it runs, and remembers nothing.
//! - [`Cache`] stands on it and remembers: a read-through cache with TTLs, stale windows, refreshes
//!   behind its readers, absences, admission and counters. The [`guide`] says what happens when.
//! - A [`Fleet`](fleet::Fleet) puts the caches of several processes on one shared tier, with one
//!   load of a key between them: Redis or Valkey, with the feature `redis` or `r2d2_redis`; one
//!   [in memory](fleet::memory), for tests; or [your own](fleet::Tier).
//!
//! ```
//! use onefill::{Error, Group};
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! # #[derive(Debug)] struct Row { id: u64 }
//! # #[derive(Debug)] struct DbError;
//! # struct Db;
//! # impl Db { fn row(&self, id: u64) -> Result<Row, DbError> { Ok(Row { id }) } }
//! # let db = Db;
//! // One group for each kind of thing, shared by all threads.
//! let rows: Group<u64, Arc<Row>, DbError> = Group::new();
//!
//! // In each request. Of the threads that are in here for row 42 at once, one asks the database.
//! let row = rows.run_timeout(&42, Duration::from_millis(200), || db.row(42).map(Arc::new));
//!
//! match row {
//!     Ok(row) => assert_eq!(row.id, 42),
//!     Err(Error::TimedOut { waited }) => println!("no row after {waited:?}, try again"),
//!     Err(Error::Failed(error)) => println!("the database says {error:?}"),
//!     Err(error) => println!("{error:?}"),
//! }
//! ```
//!
//! # The ends of a load
//!
//! | the loader | its caller, the leader | those who wait, the followers | afterwards |
//! |---|---|---|---|
//! | returns a value | gets it | get clones of it, at once | nothing is kept |
//! | returns an error | gets it | get the same error, by default ([`FailurePolicy`]) | nothing is kept: the next caller loads |
//! | panics | the panic goes on | get [`Error::Panicked`], at once | nothing is kept |
//! | asks for its own key, or closes a circle of waits | gets [`Error::WouldDeadlock`] inside, at once | wait on | |
//! | takes too long | waits for itself: it cannot be interrupted | get [`Error::TimedOut`], each at its own deadline | the load goes on |
//! | hangs | the same | the same | past [`max_flight_age`](GroupBuilder::max_flight_age) the next caller leads |
//! | is never called: the [`Lead`] is dropped | | one of them leads, by default | |
//!
//! What exactly is promised stands at [`Group`].
//!
//! # What it does not do
//!
//! - **It is not a lock.** It spares work; it does not guard anything. Two loads of one key can
//!   overlap when a flight was forgotten or overdue.
//! - **It does not interrupt a loader.** A deadline ends the waiting of the caller that brought it.
//!   A caller that leads runs its loader to the end; give the loader its own timeout.
//! - **A group does not remember.** It shares a load among those who ask while it runs. What is to
//!   be kept is for a [`Cache`].
//! - **It does not bound different keys.** A cold start with a thousand keys is a thousand loads.
//! - **It is not async.** Callers block, as threads do.
//!
//! # How it is verified
//!
//! Every promise is a test named after it; those that depend on how threads interleave are also
//! scenarios for the [loom](https://docs.rs/loom) model checker, which runs the real source under
//! every schedule within its bounds, deadlines firing at any point. So that the scenarios cannot
//! pass for the wrong reason, bugs are seeded into copies of the source, one at a time, and each
//! must be caught. `cd loom-tests && cargo test` prints how many schedules and which bugs.
//!
//! You can check your own code the same way: built with `--cfg loom`, a [`Group`] runs on loom's
//! threads. `loom-tests/tests/downstream.rs` is an example.
//!
//! # Where to find what
//!
//! - [`Group`], [`GroupBuilder`], [`FailurePolicy`]: coalescing.
//! - [`Join`], [`Lead`]: the same as a guard, for code that cannot use a closure.
//! - [`Cache`], [`CacheBuilder`], [`Call`]: a cache, its settings, the options of one call.
//! - [`Load`], [`Fill`]: what a loader is told, and what it returns. [`Answer`]: what a caller gets.
//! - [`Stats`]: what a cache has done. [`Clock`]: where it takes the time from.
//! - [`fleet`]: a shared tier, its leases, keys and envelopes; `fleet::redis`, the manual for one on
//!   a server.
//! - [`Deadline`]: how long a caller waits.
//! - [`Error`], [`Cap`]: why a caller has no value.
//!
//! # Features
//!
//! `cache`, on by default, is all but `Group`; without it there are five small dependencies. `redis`
//! and `r2d2_redis` put a fleet on a server, with the client of that name to read its answers.
//! `json` and `postcard` are codecs for a shared tier, `metrics` and `tracing` tell others what
//! happens.
#![cfg_attr(not(loom), forbid(unsafe_code))]

#[cfg(feature = "cache")]
mod admission;
#[cfg(feature = "cache")]
mod cache;
#[cfg(feature = "cache")]
mod clock;
mod deadline;
mod error;
#[cfg(feature = "cache")]
pub mod fleet;
mod flight;
#[cfg(feature = "cache")]
mod freshness;
#[cfg(feature = "cache")]
pub mod guide;
#[cfg(feature = "cache")]
mod local;
mod moment;
#[cfg(feature = "cache")]
mod stats;
mod sync;
#[cfg(feature = "cache")]
mod telemetry;
#[cfg(feature = "cache")]
mod workers;

#[cfg(feature = "cache")]
pub use cache::{
    Answer, Cache, CacheBuilder, Call, Fill, Load, Losers, Prewarm, PrewarmReport, Progress,
    Source, Why,
};
#[cfg(feature = "cache")]
pub use clock::Clock;
pub use deadline::Deadline;
#[cfg(feature = "cache")]
pub use error::{BuildError, CodecError, Fault, Refusal, TierError};
pub use error::{Cap, Error};
pub use flight::{FailurePolicy, Group, GroupBuilder, Join, Lead};
#[cfg(feature = "cache")]
pub use stats::{Gauges, Histogram, Stats};

/// The README's example is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
