//! Redis and Valkey as the shared tier: [`Fleet::redis`](crate::fleet::Fleet::redis).
//!
//! ```no_run
//! use onefill::fleet::{Fleet, codec};
//! use onefill::{Cache, Load};
//! use std::time::Duration;
//!
//! let fleet = Fleet::redis("redis://cache.internal:6379").build()?; // one for each process
//!
//! let pages: Cache<u64, String, std::io::Error> = Cache::builder("page")
//!     .ttl(Duration::from_secs(300))
//!     .loader(|load: &Load<'_, u64, String>| std::fs::read_to_string(format!("{}.html", load.key())))
//!     .fleet(&fleet, codec::Raw)
//!     .build()?;
//! # Ok::<(), onefill::BuildError>(())
//! ```
//!
//! The tier is [`Redis`], and what it promises stands at [`Tier`](crate::fleet::Tier). It needs
//! connections that are [`Wire`]s, and whatever can [`Dial`] them will do.
//!
//! # What it asks of a server
//!
//! Redis 6.2 or later, or Valkey. No module, no setting, no server-side functions; scripts in Lua
//! must be allowed. It should be one that evicts rather than one that refuses when its memory is
//! full (`maxmemory-policy allkeys-lru`, say), though it may do either. A user of its own needs no
//! more than this, for the namespace `onefill`:
//!
//! ```text
//! ACL SETUSER app on >secret resetchannels ~onefill:* &onefill:* +get +set +del +pttl +pexpire +publish +subscribe +eval +evalsha
//! ```
//!
//! and `+select` for a database other than 0. Without the right to the channels, values are shared
//! all the same; but nobody hears of anything, so that copies in L1 live for a second.
//!
//! # What it stores
//!
//! | name | what | until |
//! |---|---|---|
//! | `onefill:v:{table/key}` | a value, as an [`envelope`](crate::fleet::envelope) | its TTL and stale windows end |
//! | `onefill:l:{table/key}` | the lease of whoever loads it: a [`Token`](crate::fleet::Token) | its time ends, 10 s unless it is renewed |
//! | `onefill:e:{table/}` | the [`Epoch`](crate::fleet::Epoch) of a table | ten years after it was last asked for |
//!
//! Long keys, and those with a `}` in them, have names of another form; see
//! [`Namespace`](crate::fleet::Namespace). Nothing is stored without an end. The channel `onefill:ev`
//! carries [notices](crate::fleet::Notice); `onefill:hb:` and a random number is one by which a
//! process listens to itself.
//!
//! # What it sends
//!
//! | what is done | commands | round trips |
//! |---|---|---:|
//! | a hit in L1 | | 0 |
//! | a hit in the shared tier | `PTTL`, `GET` | 1 |
//! | a miss that is loaded | `PTTL`, `GET`; `acquire`; `commit` | 3 |
//! | the same in a table that [expects misses](crate::CacheBuilder::expect_misses) | `acquire`; `commit` | 2 |
//! | a load that failed | the same with `release` | 3 |
//! | a refresh | `acquire`; `commit` | 2 |
//! | a wait for another process | `acquire`, at the beginning and where a notice was lost | 1 |
//! | a load that takes long | `renew`, at each third of the lease | |
//! | `put`, `invalidate`, `invalidate_all` | a script of that name | 1 |
//! | every 10 s, for each table in use | `epoch` | 1 |
//! | after 5 s in which nothing was heard | `PUBLISH` | 1 |
//!
//! The names in small letters are scripts: each is one step to everybody else, stores and publishes
//! at once, and takes keys that live in one slot of a cluster. They are sent by their digest
//! (`EVALSHA`), and as text to a server that does not know it.
//!
//! # Trouble
//!
//! None of it reaches a caller of [`Cache::get`](crate::Cache::get): what cannot be had from the
//! shared tier is loaded, once in each process, and under admission. Stale windows go on as ever.
//! Where something is `put` or invalidated it is done in this process, and the error says that it
//! was not done elsewhere. It is made up for
//! [before this process reads there again](crate::Cache::invalidate) what that was about.
//!
//! [`Fleet::health`](crate::fleet::Fleet::health) says what is wrong, by the last of the troubles and
//! by counts of each kind ([`Troubles`](crate::fleet::Troubles)). *Left alone* means that a breaker is
//! open: nobody waits for the tier until somebody has tried it again.
//!
//! | what happens | what callers see | in the shared tier | in the health |
//! |---|---|---|---|
//! | refused, unreachable, no such name | loads, after the wait for the pool three times (50 ms) | left alone, 250 ms to 5 s | `unreachable` |
//! | a restart, or connections that were cut | nothing: idempotent steps are sent again over a new connection | without its data, all is loaded again | `report.heard` counts |
//! | hangs, or is too slow | loads, after the budget three times (150 ms) | left alone; the connections are closed | `too_slow` |
//! | half an answer, or none of Redis's | loads | the connection is closed; left alone after three | `garbled` |
//! | memory full (`OOM`) | hits as ever; loads that are not stored | writes left alone; invalidations still go through | `refused(OutOfMemory)` |
//! | `READONLY`, `MISCONF`, `NOREPLICAS` | the same, but nothing is invalidated | writes left alone; after `READONLY` connections are made anew | `refused(ReadOnly)`, `NotPersisting`, `TooFewReplicas` |
//! | `LOADING`, `BUSY`, `MASTERDOWN`, `CLUSTERDOWN` | loads | left alone; connections are kept | `refused(Loading)`, `Busy`, `Incomplete` |
//! | a slot of a cluster on its way to another node (`TRYAGAIN`) | hits as ever; loads that are not stored | its keys are not invalidated; left alone after three in a row | the same |
//! | too many clients | loads | left alone; who is connected stays so | `unreachable` |
//! | a value larger than the server takes (`proto-max-bulk-len`) | the value | not stored; the connection is closed | `refused(Other)`, or `unreachable` |
//! | `NOAUTH`, `WRONGPASS`, `NOPERM` | loads | left alone for 5 s at once | `misconfigured`, `refused(Denied)` |
//! | one node of a cluster, as if it were all (`MOVED`) | loads, for most keys | the same | `misconfigured`, `refused(Misrouted)` |
//! | `SCRIPT FLUSH` | nothing | the text is sent again | |
//! | a list where a value should be | a load | replaced by the value | `report.foreign` |
//! | a list where a lease should be | the wait for another process, then loads | given an end, and not removed | `report.foreign` |
//! | bytes that are no envelope, or another key's; a value that is not to end when it should | a load | replaced by the value | [`undecodable`](crate::Stats::undecodable) |
//! | nothing is heard: just started, cut off, not allowed, 7 s of silence | hits in L1 for a second | as ever | `hears`, `report.deaf` |
//!
//! # Limits
//!
//! Replication is asynchronous. A failover can lose what was written just before it: a value, which
//! is loaded again; a lease, so that two processes load at once, and one of them stores; an
//! invalidation, so that an old value is back. Only its TTL bounds that last one, as it bounds a
//! notice that got lost.
//!
//! A lease is there for efficiency, not for correctness. Nothing prevents two loads of a key at once;
//! what is prevented is that the older one overwrites the newer.

mod builder;
mod client;
mod cluster;
mod connection;
mod ear;
mod frame;
mod pool;
mod refusal;
mod script;
mod sentinel;
mod server;
mod stream;
mod tier;
#[cfg(feature = "tls")]
mod tls;
mod url;
mod wire;

pub use builder::RedisBuilder;
pub use client::Client;
pub use cluster::Cluster;
pub(crate) use pool::{Pool, Settings};
pub use refusal::refusal;
pub use sentinel::Sentinel;
pub use server::Server;
pub use tier::Redis;
#[cfg(feature = "tls")]
pub use tls::{Tls, TlsBuilder};
pub use url::Address;
pub use wire::{Command, Dial, Message, Reply, Subscription, Wire};

#[cfg(test)]
mod fake;
#[cfg(test)]
mod stub;
