//! What a fleet promises: several caches, as of several processes, on one shared tier in memory.

mod bytes;
mod ends;
mod epochs;
mod herd;
mod invalidation;
mod leases;
mod losers;
mod staleness;
mod support;
mod trouble;
