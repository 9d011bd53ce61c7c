//! What is explored, over whichever library the including module calls `onefill`: the sound one,
//! or one with a seeded bug.
//!
//! A scenario's function explores it at several sizes. Two callers are explored under every
//! schedule, three under those with three preemptions at most, four under those with two; of a pool
//! or a cache, whose calls have more steps, two under those with three or four in places, and three
//! under those with two. What stands after the bound is how many executions there must be at least.

use super::onefill;

pub mod behind;
pub mod caps;
pub mod changes;
pub mod closing;
pub mod hand_over;
pub mod herd;
pub mod landing;
pub mod passing_on;
pub mod permits;
pub mod pool;
pub mod reading;
pub mod registry;
pub mod shop;
pub mod waits;
