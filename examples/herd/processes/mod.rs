//! The storm over real processes, on a real server.
//!
//! [`parent`] starts the processes and sends them off, all at one moment of the clock that they have
//! in common; [`child`] is what each of them does; [`word`] is what they say to each other, a line
//! of JSON each, over the pipes that are a child's standard input and output.

mod child;
mod mix;
mod parent;
mod server;
mod way;
mod wire;
mod word;

pub(crate) use child::run as child;
pub(crate) use parent::run;

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The subcommand that makes a process of this program one of the storm's.
pub(crate) const CHILD: &str = "process-of-a-storm";

/// What the clock says that all processes of a machine have in common.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).expect("this clock begins at zero");
    let nanos = u32::try_from(now.tv_nsec).expect("a second has a billion of them");
    Duration::new(seconds, nanos)
}
