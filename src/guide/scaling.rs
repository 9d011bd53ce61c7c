//! How what is sent grows with the number of processes, and what to do past one server.
//!
//! Two things grow, and they grow differently. What a *miss* costs the server is a claim from each
//! process that wants the key. What a *fill* costs it is a message to each process there is, whether
//! it wants the key or not.
//!
//! | with `p` processes of `t` threads | for each key that is filled |
//! |---|---:|
//! | loads | 1 |
//! | claims, at once | as many as miss it: `p` at most, whatever `t` |
//! | claims, while the load goes on | four a second from each process that waits, in case a message is lost |
//! | messages published | 1 |
//! | messages delivered | `p` |
//!
//! # A simulation
//!
//! One cold key, one caller in each instance, a load of 150 ms. The instances stand for processes:
//! each has its own cache and its own connection, but they share one tier in memory, one lock, and
//! two cores.
//!
//! | instances | loads | claims | messages delivered | the last answer, after the load |
//! |---:|---:|---:|---:|---:|
//! | 10 | 1 | 10 | 10 | 0.5 ms |
//! | 100 | 1 | 100 | 100 | 3.5 ms |
//! | 1,000 | 1 | 1,000 | 1,000 | 22 ms |
//! | 10,000 | 1 | 54,000, repeated ones among them | 10,000 | 850 ms |
//!
//! ```sh
//! cargo run --release --example herd -- storm --instances 1000 --threads 1 --load 150ms
//! ```
//!
//! The last row is of a load of 3 s (`--load 3s`): ten thousand threads on two cores need more than
//! 150 ms to get as far as to ask, and who comes late finds the value. With ten threads in each
//! instance the claims are the same 10, 100 and 1,000; with a lease alone, asked for by each thread,
//! they are 100, 1,000 and 10,000.
//!
//! The counts are what a fleet of real processes has, too. The times are not: there is no network
//! here, and no machine for each process. What costs time at ten thousand is that so many threads
//! are woken on two cores. For real processes, as many as a machine has room for, on a real server:
//! `storm --processes 40 --threads 200`, with the feature `redis`.
//!
//! # When it matters
//!
//! Claims are short, and come only with misses. Deliveries are what fills a server first: fills a
//! second times processes. A Redis 7.0 spent about 5 µs of its one core on each, measured with 10,
//! 100 and 1,000 subscribers and messages of 150 bytes on a busy machine of two cores; so some
//! 200,000 deliveries a second are all that it can do, and half of that is where to stop.
//!
//! | keys in use | TTL | fills a second | processes | deliveries a second | of one core |
//! |---:|---:|---:|---:|---:|---:|
//! | 10,000 | 5 min | 33 | 40 | 1,300 | 1 % |
//! | 10,000 | 5 min | 33 | 1,000 | 33,000 | 17 % |
//! | 100,000 | 5 min | 333 | 400 | 133,000 | 67 % |
//! | 1,000,000 | 5 min | 3,333 | 1,000 | 3,300,000 | seventeen of them |
//!
//! A process hears every fill of its fleet: 3,333 messages a second in the last row. It reads each,
//! and looks whether somebody waits for it; the server does a thousand times that.
//!
//! # What to do
//!
//! In this order, as each costs more than the one before it.
//!
//! - **Longer TTLs, and an [`invalidate`](crate::Cache::invalidate) with each write.** Fills are
//!   keys by TTL. Twice the TTL is half of everything here.
//! - **Leave the [`jitter`](crate::CacheBuilder::jitter) on.** It changes no sum. But keys that were
//!   filled in one minute are not all filled anew in one second.
//! - **Small values.** Up to 4 KiB, encoded, a value goes along with the message, and who waits for
//!   it need not ask again. A larger one is read by each process that waited. A compact codec is
//!   often the difference.
//! - **A fleet of its own for what is filled often.** Each namespace has a channel of its own, and a
//!   process listens to those of the fleets that it has. A table with a million lukewarm keys in
//!   another namespace, on another server, is heard only by those who use it.
//! - **Groups of processes, each with a server.** A fleet for each zone or rack: a key is loaded once
//!   in each group, and a fill is delivered within its group. With `g` groups that is `g` loads in
//!   place of one, for a `g`-th of the deliveries on each server. The source stands a handful of
//!   loads; it was the thousand that it did not. But an `invalidate` reaches its own group alone: what
//!   is in the others ends with its TTL, unless each group is told.
//! - **A cluster** spreads values and leases over its nodes by key. Messages it does not: what is
//!   published at one node goes over the cluster's bus to all, and each delivers to its own
//!   subscribers. So it is of help where reads or memory are the trouble, and of less where it is
//!   deliveries. Each process subscribes at a node that it draws.
//!
//! ```
//! use onefill::fleet::{Fleet, codec, memory::Memory};
//! use onefill::{Cache, Load};
//! use std::time::Duration;
//!
//! // Fleet::redis("redis://cache-1").namespace("pages").build()?, and one of "redis://cache-2".
//! let (pages, thumbnails) = (Fleet::on(Memory::new()), Fleet::on(Memory::new()));
//!
//! // Few, wanted everywhere, changed seldom.
//! let pages: Cache<String, String, std::io::Error> = Cache::builder("page")
//!     .ttl(Duration::from_secs(3_600))
//!     .loader(|load: &Load<'_, String, String>| Ok(format!("<h1>{}</h1>", load.key())))
//!     .fleet(&pages, codec::Raw)
//!     .build()?;
//! // Many: their fills are heard by those who have this fleet.
//! let thumbnails: Cache<u64, Vec<u8>, std::io::Error> = Cache::builder("thumbnail")
//!     .ttl(Duration::from_secs(300))
//!     .loader(|load: &Load<'_, u64, Vec<u8>>| Ok(load.key().to_be_bytes().to_vec()))
//!     .fleet(&thumbnails, codec::Raw)
//!     .build()?;
//! # assert!(pages.get(&"home".to_string()).is_ok() && thumbnails.get(&7).is_ok());
//! # Ok::<(), onefill::BuildError>(())
//! ```
