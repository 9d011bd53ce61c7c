//! What onefill promises, one test a claim.

mod allocations;
mod bookkeeping;
#[cfg(feature = "cache")]
mod cache;
mod caps;
mod deadlines;
mod deadlocks;
mod ends;
mod errors;
#[cfg(feature = "cache")]
mod fleet;
mod overdue;
mod policies;
mod support;
mod tidy;
mod user_code;
