//! What happens when: windows, failures, slowness, invalidation.
//!
//! A page for the user of a [`Cache`](crate::Cache) who wants to know what a setting does before
//! it is three in the morning.
//!
//! # Which window does what
//!
//! ```text
//! loaded         TTL, less jitter           + stale_while_revalidate
//!   |------- fresh -------|···early···|------- stale -------|
//!                                     |------- + stale_if_error ----------------|
//! ```
//!
//! Both windows begin where freshness ends, and neither is added to the other.
//!
//! | an entry that is | a call gets | and |
//! |---|---|---|
//! | fresh | it, from L1 | nothing else; near the end, now and then, a refresh begins behind ([`early_refresh`]) |
//! | past its freshness, within [`stale_while_revalidate`] | it, at once | one refresh begins behind, on a worker |
//! | past that, within [`stale_if_error`] | the load's value; the entry, if the load fails | within [`refresh_backoff`] after a failure the entry, without another load |
//! | past both, or not there | the load's value or its error | |
//! | absent | that there is none, for [`absent_ttl`] | no window: then it is not there |
//!
//! [`early_refresh`]: crate::CacheBuilder::early_refresh
//! [`stale_while_revalidate`]: crate::CacheBuilder::stale_while_revalidate
//! [`stale_if_error`]: crate::CacheBuilder::stale_if_error
//! [`refresh_backoff`]: crate::CacheBuilder::refresh_backoff
//! [`absent_ttl`]: crate::CacheBuilder::absent_ttl
//!
//! A call can narrow or widen both windows for itself, up to what the cache keeps entries for:
//! [`with().never_stale()`](crate::Call::never_stale) takes nothing that is not fresh.
//!
//! ```
//! use onefill::{Cache, Clock, Load, Source, Why};
//! use std::sync::atomic::{AtomicBool, Ordering};
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! let (clock, away) = (Clock::manual(), Arc::new(AtomicBool::new(false)));
//! let database = Arc::clone(&away);
//! let prices: Cache<&str, u64, &str> = Cache::builder("price")
//!     .ttl(Duration::from_secs(60))
//!     .jitter(0.0)
//!     .stale_if_error(Duration::from_secs(600))
//!     .clock(clock.clone())
//!     .loader(move |_: &Load<'_, &str, u64>| match database.load(Ordering::Relaxed) {
//!         false => Ok(19),
//!         true => Err("the database is away"),
//!     })
//!     .build()?;
//!
//! assert_eq!(prices.get(&"tea").unwrap().source(), Source::Loaded);
//!
//! away.store(true, Ordering::Relaxed);
//! clock.advance(Duration::from_secs(90));
//! let old = prices.get(&"tea").unwrap();
//! assert_eq!((old.value(), old.source()), (Some(&19), Source::Stale(Why::Failed)));
//!
//! // Whoever must not have it says so, and gets the error.
//! assert!(prices.with().never_stale().get(&"tea").unwrap_err().is_failed());
//!
//! clock.advance(Duration::from_secs(600));
//! assert!(prices.get(&"tea").unwrap_err().is_failed());
//! # Ok::<(), onefill::BuildError>(())
//! ```
//!
//! # What happens when the loader
//!
//! | | the call that led | those who waited | afterwards |
//! |---|---|---|---|
//! | returns a value | gets it, [`Loaded`](crate::Source::Loaded) | get it, [`Followed`](crate::Source::Followed) | it is stored |
//! | returns an error | gets it, or a stale value | the same | nothing is remembered; a good value stays; the next refresh of it waits for the back-off |
//! | panics, or the key's, the value's, the weigher's or the codec's code in the same load | the panic goes on, if the load ran on its thread; otherwise [`Panicked`](crate::Error::Panicked) | `Panicked`, or a stale value | as after an error; a worker survives |
//! | says [`do_not_store`](crate::Fill::do_not_store) | gets the value | get it | nothing is stored |
//! | says [`unchanged`](crate::Fill::unchanged) | gets the [previous](crate::Load::previous) value | get it | it is stored for another TTL |
//! | is slow | waits for it; with [`workers`](crate::CacheBuilder::workers) until its deadline | each until its own deadline, then [`TimedOut`](crate::Error::TimedOut) or a stale value | the load goes on, and fills the cache |
//! | hangs | the same | the same | past [`max_flight_age`](crate::CacheBuilder::max_flight_age) the next call leads; refreshes that hang leave [`workers`](crate::CacheBuilder::workers) for loads |
//! | asks for another key | | | it is loaded on the same thread, under the same admission |
//! | asks for its own key, or closes a circle | gets [`WouldDeadlock`](crate::Error::WouldDeadlock) inside, at once | wait on | |
//! | invalidates its own key, and then asks for it | loads it anew inside, and in there the same again gets `WouldDeadlock` | wait on | it is not stored |
//!
//! As many loaders run at once as [`admission`](crate::CacheBuilder::admission) allows, over all
//! keys. Who is not admitted by its deadline times out, and the load passes to a follower with more
//! time.
//!
//! # What happens when I invalidate
//!
//! [`invalidate`](crate::Cache::invalidate) returns when no call that begins later, in this
//! process, can get a value whose load began before. A load in flight is not interrupted: those who
//! wait for it get its value, it is not stored, and the next call leads a new load, at once, beside
//! it. [`put`](crate::Cache::put) does the same and leaves its own value.
//!
//! So: first change the row, then invalidate the key.
//!
//! On a [fleet](crate::fleet::Fleet) the shared tier is told first: the value goes, and with it the
//! right of whoever is loading the key, in any process, to store what it is loading. The L1 of
//! another process learns of it by a notice, in well under a millisecond as a rule; if the notice
//! is lost, the end of the copy is: its TTL, and its stale windows. What was heard to be invalidated
//! is not served in any window, and no loader gets it as the previous value.
//!
//! If the tier cannot be told, this process forgets the key all the same, and the call says so. It
//! tells the tier [before it next reads the key](crate::Cache::invalidate) there, so it does
//! not find again what it has invalidated. Until then the others may have it.
//!
//! # What happens when the shared tier is in trouble
//!
//! Calls do without it: each process loads for itself, under admission and once for all its
//! callers. After three troubles in a row it is left alone for a while, so calls do not pay for
//! asking. What L1 has loaded meanwhile it keeps for no more than a second, unless notices still
//! come. What it had before is in doubt if notices may have been missed: it is loaded anew, and serves
//! within [`stale_if_error`] if that fails. [`Fleet::health`](crate::fleet::Fleet::health) says how things stand, and
//! [`Stats`](crate::Stats) counts what was done without it.
