//! How a call's time is spent in a blocking server, and who keeps to it.
//!
//! A request has a moment by which its answer is of use: what its client waits for, less what is
//! left to do. That moment is made into a [`Deadline`](crate::Deadline) once, when the request comes
//! in, and handed down. Each wait inside takes from what is left; none starts afresh.
//!
//! ```
//! use onefill::{Cache, Deadline, Error, Load};
//! use std::time::Duration;
//!
//! # let pages: Cache<u64, String, std::io::Error> = Cache::builder("page")
//! #     .ttl(Duration::from_secs(60)).workers(2)
//! #     .loader(|load: &Load<'_, u64, String>| Ok(format!("page {}", load.key()))).build()?;
//! // At the door of the request.
//! let deadline = Deadline::after(Duration::from_millis(300));
//!
//! // Everywhere below.
//! match pages.with().deadline(deadline).get(&7) {
//!     Ok(page) => assert_eq!(page.value().unwrap(), "page 7"),
//!     Err(Error::TimedOut { waited }) => println!("503, after {waited:?}"),
//!     Err(error) => println!("500: {error}"),
//! }
//! # Ok::<(), onefill::BuildError>(())
//! ```
//!
//! # What keeps to it
//!
//! | a wait for | is bounded by the deadline | and besides |
//! |---|---|---|
//! | another caller's load | yes: each caller by its own | [caps](crate::CacheBuilder::max_followers_per_key) on how many wait |
//! | a permit of [`admission`](crate::CacheBuilder::admission) | yes | |
//! | a free worker | yes | a [queue](crate::CacheBuilder::queue) of bounded length; [three workers in four](crate::CacheBuilder::workers) that no refresh may have |
//! | the shared tier | yes: half of what is left at most | [`budget`](crate::fleet::FleetBuilder::budget), 150 ms |
//! | another process's load | yes | [`loser_wait`](crate::CacheBuilder::loser_wait), 2 s |
//! | **the loader, on the caller's own thread** | **no** | the loader's own timeouts |
//! | the loader, on a worker | yes | the load goes on without the caller |
//!
//! A thread cannot be interrupted. So the caller that leads, and runs its loader itself, comes back
//! when the loader does. There are two ways out, and they go together: give the loader a timeout, for
//! which [`Load::deadline`](crate::Load::deadline) is a good hint; and let
//! [`workers`](crate::CacheBuilder::workers) run the loads, then the caller that set one off waits
//! like any other.
//!
//! # A deadline is its caller's alone
//!
//! The caller with the shortest deadline does not end the load for the others, whether it leads or
//! follows: it leaves, and the load goes on and fills the cache. A load that nobody waits for any
//! more is finished all the same. Otherwise a key whose load takes longer than any one caller waits
//! would never be filled.
//!
//! An outcome that is there in the moment the deadline passes is returned: landed beats late.
//!
//! # What it is not
//!
//! No bound on the whole process: twenty callers with 300 ms each hold twenty threads for 300 ms.
//! The caps say how many may wait at all, for one key and in all; above them a call ends at once,
//! with a stale value if it takes one and with [`Overloaded`](crate::Error::Overloaded) if not.
