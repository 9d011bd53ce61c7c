//! onefill's own source, compiled against loom, and copies of it with one seeded bug each.
//!
//! Nothing here is a model of an idea: the rooms below are the files of `../src`. Around L1 alone
//! there is a wrapper, by which loom hears of it. What explores the rooms stands in [`model`]; what
//! is explored, in `tests/scenarios`; and [`doors`] lead to the rooms that the library keeps to
//! itself.

#[cfg(not(loom))]
compile_error!("`--cfg loom` comes from loom-tests/.cargo/config.toml: run cargo in loom-tests");

#[path = "../../src/admission.rs"]
mod admission;
#[path = "../../src/cache/mod.rs"]
mod cache;
#[path = "../../src/clock.rs"]
mod clock;
#[path = "../../src/deadline.rs"]
mod deadline;
#[path = "../../src/error.rs"]
mod error;
#[path = "../../src/fleet/mod.rs"]
pub mod fleet;
#[path = "../../src/flight/mod.rs"]
mod flight;
#[path = "../../src/freshness.rs"]
mod freshness;
#[path = "stepped.rs"]
mod local;
#[path = "../../src/moment.rs"]
mod moment;
#[path = "../../src/stats.rs"]
mod stats;
#[path = "../../src/sync.rs"]
mod sync;
#[path = "../../src/telemetry.rs"]
mod telemetry;
#[path = "../../src/local.rs"]
mod unstepped;
#[path = "../../src/workers.rs"]
mod workers;

pub mod bugs;
pub mod doors;
pub mod model;

/// The same source with one seeded bug each: see [`bugs`].
#[allow(warnings, clippy::all)]
pub mod mutants {
    include!(concat!(env!("OUT_DIR"), "/mutants.rs"));
}

pub use cache::{
    Answer, Cache, CacheBuilder, Call, Fill, Load, Losers, Prewarm, PrewarmReport, Progress,
    Source, Why,
};
pub use clock::Clock;
pub use deadline::Deadline;
pub use error::{BuildError, Cap, CodecError, Error, Fault, Refusal, TierError};
pub use flight::{FailurePolicy, Group, GroupBuilder, Join, Lead};
pub use stats::{Gauges, Histogram, Stats};
