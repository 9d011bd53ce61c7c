//! One fill per herd.
#![cfg_attr(not(loom), forbid(unsafe_code))]

mod deadline;
mod error;
mod flight;
mod sync;

pub use deadline::Deadline;
pub use error::{Cap, Error};
pub use flight::{FailurePolicy, Group, GroupBuilder, Join, Lead};
