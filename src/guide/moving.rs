//! From something else.
//!
//! # From Go's `singleflight`
//!
//! | there | here |
//! |---|---|
//! | `g.Do(key, fn)` | [`group.run(&key, fn)`](crate::Group::run) |
//! | `g.DoChan` and a `select` with a timeout | [`group.run_timeout`](crate::Group::run_timeout), [`run_deadline`](crate::Group::run_deadline) |
//! | `g.Forget(key)` | [`group.forget(&key)`](crate::Group::forget) |
//! | `v, err, shared` | the outcome; a [`Cache`](crate::Cache) says [`Source::Followed`](crate::Source::Followed) |
//! | one type of value, by `any` | [`Group<K, V, E>`](crate::Group): keys of any type, values and errors of their own |
//! | a panic ends the process | the leader's goes on, the others get [`Panicked`](crate::Error::Panicked) |
//! | a call of one's own key waits for ever | [`WouldDeadlock`](crate::Error::WouldDeadlock), at once |
//!
//! The call that was forgotten goes on there as here; here what it brings is never stored by a
//! [`Cache`](crate::Cache) over something newer.
//!
//! # From moka's `get_with` and `try_get_with`
//!
//! | there | here |
//! |---|---|
//! | `cache.try_get_with(key, init)` | [`cache.get_with(&key, loader)`](crate::Cache::get_with); or a loader that is declared, and [`get`](crate::Cache::get) |
//! | those who wait, wait for as long as it takes | each until its deadline |
//! | `time_to_live` | [`ttl`](crate::CacheBuilder::ttl), per entry by [`Fill::ttl`](crate::Fill::ttl); a tenth shorter at random, unless [`jitter(0.0)`](crate::CacheBuilder::jitter) |
//! | `optionally_get_with` | [`Fill::absent`](crate::Fill::absent), which is remembered for as long as [`absent_ttl`](crate::CacheBuilder::absent_ttl) says |
//! | `invalidate`, while a load is in flight, may be undone by it | never |
//! | `weigher`, `max_capacity` | [`capacity_by_weight`](crate::CacheBuilder::capacity_by_weight), [`capacity`](crate::CacheBuilder::capacity) |
//! | `time_to_idle`, listeners, iteration | no |
//!
//! A declared loader is what makes refreshes behind the callers' backs possible; a closure that is
//! handed to a call can only run in it.
//!
//! # From `dogpile.cache`
//!
//! | there | here |
//! |---|---|
//! | `region.get_or_create(key, creator)` | [`get`](crate::Cache::get) with a declared loader |
//! | `expiration_time` | [`ttl`](crate::CacheBuilder::ttl) |
//! | one creates, the others get the old value | [`stale_while_revalidate`](crate::CacheBuilder::stale_while_revalidate): a window, and nothing outside of it |
//! | `async_creation_runner` | [`workers`](crate::CacheBuilder::workers) |
//! | `should_cache_fn` | [`Fill::do_not_store`](crate::Fill::do_not_store), decided by the loader |
//! | `NO_VALUE` | no marker values: [`Answer::is_absent`](crate::Answer::is_absent) |
//! | the Redis lock, `distributed_lock=True` | a [`Fleet`](crate::fleet::Fleet): the lease is taken inside of the flight, so one thread of each process asks for it |
//! | `region.invalidate()`, by this process's clock | [`invalidate_all`](crate::Cache::invalidate_all), for all processes and by no clock |
//!
//! # From a `SET NX` of one's own
//!
//! What is usually written first is: look; if there is nothing, `SET lock 1 NX EX 10`; if that worked,
//! load, `SET`, `DEL lock`; if not, sleep and look again. What it lacks, and where that is here:
//!
//! | it | here |
//! |---|---|
//! | asks for the lock from every thread | one claim of each process, whatever its threads: coalesce outside, lease inside |
//! | deletes a lock that has long been somebody else's | a token, compared in the step that deletes |
//! | stores a value that was read before an invalidation | the token is compared in the step that stores; an invalidation takes the lease away |
//! | holds up everybody when its holder dies | a lease that ends by itself, is short, and is renewed while its load runs |
//! | polls | a message comes with the value; polling is the net |
//! | fails when the server does | loads, once in each process |
//! | is five round trips | three |
//!
//! In code, that is a line more than a cache in one process:
//!
//! ```
//! # use onefill::fleet::{Fleet, codec, memory::Memory};
//! # use onefill::{Cache, Load};
//! # use std::time::Duration;
//! # let fleet = Fleet::on(Memory::new()); // Fleet::redis("redis://…").build()?
//! let pages: Cache<String, String, std::io::Error> = Cache::builder("page")
//!     .ttl(Duration::from_secs(300))
//!     .loader(|load: &Load<'_, String, String>| Ok(format!("<h1>{}</h1>", load.key())))
//!     .fleet(&fleet, codec::Raw) // this one
//!     .build()?;
//! # assert!(pages.get(&"home".to_string()).is_ok());
//! # Ok::<(), onefill::BuildError>(())
//! ```
