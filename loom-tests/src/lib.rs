//! onefill's own source, compiled against loom, and copies of it with one seeded bug each.
//!
//! Nothing here is a model of an idea: the rooms below are the files of `../src`. What explores
//! them stands in [`model`]; what is explored, in `tests/scenarios`.

#[cfg(not(loom))]
compile_error!("`--cfg loom` comes from loom-tests/.cargo/config.toml: run cargo in loom-tests");

#[path = "../../src/deadline.rs"]
mod deadline;
#[path = "../../src/error.rs"]
mod error;
#[path = "../../src/flight/mod.rs"]
mod flight;
#[path = "../../src/sync.rs"]
mod sync;

pub mod bugs;
pub mod model;

/// The same source with one seeded bug each: see [`bugs`].
#[allow(warnings, clippy::all)]
pub mod mutants {
    include!(concat!(env!("OUT_DIR"), "/mutants.rs"));
}

pub use deadline::Deadline;
pub use error::{Cap, Error};
pub use flight::{FailurePolicy, Group, GroupBuilder, Join, Lead};
