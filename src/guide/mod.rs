//! The guide: by topic, not by type.
//!
//! *L1* is what a process keeps in its own memory, *the shared tier* what the processes of a fleet
//! keep together; the other words are explained where they come first.
//!
//! - [`what_happens`]: which window does what; what happens when the loader fails, is slow, panics;
//!   what happens when I invalidate. To be read before it is three in the morning.
//! - [`policies`]: which settings for which kind of thing.
//! - [`deadlines`]: how a call's time is spent in a blocking server, and who keeps to it.
//! - [`leases`]: what the lease of a fleet is worth, and when to do without.
//! - [`scaling`]: how what is sent grows with the number of processes, and what to do past one
//!   server.
//! - [`moving`]: from `dogpile.cache`, from Go's `singleflight`, from moka's `get_with`, from a
//!   `SET NX` of one's own.
//! - [`models`]: how to model-check code of your own that stands on [`Group`](crate::Group).
//!
//! What callers, the shared tier and the health say of each kind of trouble is a table in the manual
//! of the tier: `fleet::redis`, with the feature `redis` or `r2d2_redis`.

pub mod deadlines;
pub mod leases;
pub mod models;
pub mod moving;
pub mod policies;
pub mod scaling;
pub mod what_happens;
