//! What onefill promises, one test a claim.

mod allocations;
