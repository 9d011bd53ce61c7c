//! [`Cache`](onefill::Cache), in one process.

mod absence;
mod answers;
mod arithmetic;
mod close;
mod counters;
mod failures;
mod invalidation;
mod loads;
mod memory;
mod prewarm;
mod put;
mod staleness;
mod support;
