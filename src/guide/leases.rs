//! What the lease of a fleet is worth, and when to do without.
//!
//! Coalescing makes one load of a herd in each process. The lease makes one of those. What the one
//! and the other remove is arithmetic: with `p` processes of `t` threads that all ask for a cold key
//! at once, there are
//!
//! | with | loads | claims sent to the shared tier |
//! |---|---:|---:|
//! | nothing | `p` × `t` | 0 |
//! | coalescing alone | `p` | 0 |
//! | the lease alone | 1 | `p` × `t` |
//! | the lease inside of coalescing, as here | 1 | `p` |
//!
//! So coalescing is worth a factor of `t` and costs a mutex; the lease is worth a factor of `p`, of
//! what is left, and costs a round trip for each miss: it is asked for together with the value, so a
//! miss without competition is three round trips, one to look, one to take the lease, one to store
//! the value and give it back.
//!
//! # When it is not worth it
//!
//! - **A load is not much slower than a round trip.** Where a load takes a millisecond, `p` of them
//!   are over before the losers have been told.
//! - **There are few processes.** Two processes load twice, and that harms no source.
//! - **Keys are seldom hot in two processes at once.** A herd in one process is coalesced without it.
//!
//! Then a [`Cache`](crate::Cache) without a fleet, or one whose values are on a fleet for other
//! reasons. There is no switch that shares values without leases: what a lease prevents is not only
//! a second load, but also that a load from before an invalidation stores what it read.
//!
//! # What the losers do
//!
//! They serve something stale if there is something and they may. If not, they wait: for the
//! message that is sent with the value, at most until the lease ends, their deadline passes or
//! [`loser_wait`](crate::CacheBuilder::loser_wait) is over; and then
//! [load alone](crate::Losers::LoadAlone), under admission, or [fail](crate::Losers::Fail). Of each
//! process one waits, whatever the number of its callers. A holder that fails says so, and the losers
//! get an error without loading, or their stale value.
//!
//! # What it is not
//!
//! **Not mutual exclusion.** A process that stands still for longer than its lease wakes up without
//! it, and does not know. What is prevented is that it *stores*: the token of the lease is compared
//! in the very step that writes the value. If your database is to be guarded, too, hand it
//! [`Load::token`](crate::Load::token) and let it compare.
//!
//! ```
//! use onefill::fleet::{Fleet, codec, memory::Memory};
//! use onefill::{Cache, Load};
//! use std::time::Duration;
//!
//! let tier = Memory::new();
//! let fleet = Fleet::builder(tier).lease(Duration::from_secs(5)).build();
//! let reports: Cache<u64, String, std::io::Error> = Cache::builder("report")
//!     .ttl(Duration::from_secs(3_600))
//!     .loader(|load: &Load<'_, u64, String>| {
//!         assert!(load.token().is_some(), "this process has the lease");
//!         Ok(format!("report {}", load.key()))
//!     })
//!     .fleet(&fleet, codec::Raw)
//!     .build()?;
//! assert_eq!(reports.get(&7).unwrap().value().unwrap(), "report 7");
//! # Ok::<(), onefill::BuildError>(())
//! ```
//!
//! **Not Redlock.** The lease lives where the value lives. When that server fails over, both may be
//! lost, and a load more is the price.
