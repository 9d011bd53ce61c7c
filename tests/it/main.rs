//! What onefill promises, one test a claim.

mod allocations;
mod bookkeeping;
mod caps;
mod deadlines;
mod deadlocks;
mod ends;
mod errors;
mod overdue;
mod policies;
mod support;
mod tidy;
mod user_code;
