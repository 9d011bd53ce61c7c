//! [`CacheBuilder`]: every setting of a cache, with its default.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use crate::admission::Admission;
use crate::clock::Clock;
use crate::error::BuildError;
use crate::fleet::envelope::MAX_PAYLOAD;
use crate::fleet::{Codec, Fleet, FleetKey};
use crate::flight::{Group, GroupBuilder};
use crate::freshness::Policy;
use crate::local::{Capacity, Local};
use crate::stats::Counters;
use crate::sync::AtomicBool;
use crate::workers::Workers;

use super::remote::{Losers, Remote};
use super::{Cache, Declared, Fill, Handle, Load, Room};

/// Settings for a [`Cache`]. Made by [`Cache::builder`].
///
/// Only the [`ttl`](CacheBuilder::ttl) has no default. Durations are never refused for being long:
/// what exceeds ten years means ten years.
///
/// # Example
///
/// ```
/// use onefill::{Cache, Load};
/// use std::time::Duration;
///
/// let products: Cache<u64, String, std::io::Error> = Cache::builder("product")
///     .ttl(Duration::from_secs(300))
///     .absent_ttl(Duration::from_secs(30))
///     .stale_while_revalidate(Duration::from_secs(60))
///     .stale_if_error(Duration::from_secs(600))
///     .capacity(100_000)
///     .timeout(Duration::from_millis(250))
///     .workers(8)
///     .admission(32)
///     .loader(|load: &Load<'_, u64, String>| Ok(format!("product {}", load.key())))
///     .build()?;
/// assert_eq!(products.get(&42).unwrap().into_value().unwrap(), "product 42");
/// # Ok::<(), onefill::BuildError>(())
/// ```
#[must_use = "a builder does nothing until it builds"]
pub struct CacheBuilder<K, V, E> {
    name: String,
    ttl: Option<Duration>,
    policy: Policy,
    timeout: Option<Duration>,
    clock: Clock,
    capacity: Capacity<K, V>,
    absent_capacity: Option<usize>,
    group: GroupBuilder<K, super::Filled<V>, E>,
    admission: usize,
    workers: Option<usize>,
    queue: usize,
    loader: Option<Box<Declared<K, V, E>>>,
    /// Made when the cache is, by which time the schema's version is known.
    remote: Option<Box<MakeRemote<K, V>>>,
    schema_version: u32,
    max_stored: usize,
    loser_wait: Duration,
    losers: Losers,
    expects_misses: bool,
}

type MakeRemote<K, V> = dyn FnOnce(&str, u32, usize) -> Remote<K, V>;

/// Workers for refreshes and prewarm where [`CacheBuilder::workers`] is not set.
const REFRESHERS: usize = 2;

impl<K, V, E> CacheBuilder<K, V, E> {
    /// Every default of a cache, but for those of its [`Policy`].
    pub(super) fn new(name: String) -> Self {
        CacheBuilder {
            name,
            ttl: None,
            policy: Policy::new(Duration::ZERO),
            timeout: None,
            clock: Clock::system(),
            capacity: Capacity::Entries(10_000),
            absent_capacity: None,
            group: Group::builder(),
            admission: 64,
            workers: None,
            queue: 256,
            loader: None,
            remote: None,
            schema_version: 0,
            max_stored: 1024 * 1024,
            loser_wait: Duration::from_secs(2),
            losers: Losers::LoadAlone,
            expects_misses: false,
        }
    }

    /// How long a value is fresh, unless its loader says otherwise. Has no default. Zero means
    /// that values are shared among those who wait for them and not stored.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long it stays known that there is no value. Defaults to 30 s. Zero means that it is not
    /// stored.
    pub fn absent_ttl(mut self, ttl: Duration) -> Self {
        self.policy.absent_ttl = ttl;
        self
    }

    /// How long past its freshness a value is served at once, while it is refreshed behind. Absent
    /// entries have no such window. Defaults to zero: not at all.
    pub fn stale_while_revalidate(mut self, window: Duration) -> Self {
        self.policy.windows.stale_while_revalidate = window;
        self
    }

    /// How long past its freshness a value is served if loading it anew fails: the loader returns
    /// an error or panics, the deadline passes, or too many are waiting. Counted from the end of
    /// freshness, like the other window, and independent of it. Defaults to zero: not at all.
    ///
    /// On a fleet it is also what lets a value be served that is in doubt, because the connection was
    /// lost for a while. A value that another process was heard to invalidate or to put is never
    /// served, nor are the few, one in 4,096, that this process cannot tell from it.
    pub fn stale_if_error(mut self, window: Duration) -> Self {
        self.policy.windows.stale_if_error = window;
        self
    }

    /// By how much of itself a TTL is shortened at most, at random, so that what was loaded
    /// together does not expire together: a fraction from 0 to 1. Defaults to 0.10. Only the TTL
    /// is shortened; nothing is ever lengthened, and no window, back-off or wait is touched.
    pub fn jitter(mut self, fraction: f64) -> Self {
        self.policy.jitter = fraction;
        self
    }

    /// How eagerly a value is refreshed before its freshness ends, so that no herd meets its end:
    /// the β of XFetch (Vattani, Chierichetti and Lowenstein, "Optimal Probabilistic Cache Stampede
    /// Prevention", VLDB 2015). Defaults to 1; above it earlier, below it later, 0 never. Needs a
    /// [declared loader](CacheBuilder::loader), whose cost is measured.
    pub fn early_refresh(mut self, beta: f64) -> Self {
        self.policy.early_refresh = beta;
        self
    }

    /// How long after a failed load of a key that has a stale value the next may begin. Defaults
    /// to 5 s.
    pub fn refresh_backoff(mut self, backoff: Duration) -> Self {
        self.policy.refresh_backoff = backoff;
        self
    }

    /// How many values L1 holds at most. Defaults to 10,000. Zero means that none is kept.
    ///
    /// They are divided evenly among shards, four for each core at most and none of fewer than 32. A shard
    /// that is full pushes out while others have room: of as many keys as the capacity some are not kept,
    /// one in a hundred for large shards and up to one in ten for small ones.
    pub fn capacity(mut self, entries: usize) -> Self {
        self.capacity = Capacity::Entries(entries);
        self
    }

    /// How much the values in L1 may weigh together, in the weigher's units, instead of how many
    /// there may be. A weight of 0 counts as 1. A value too heavy for L1 is not kept there, and
    /// pushes nothing out: that is anything heavier than 97 in 100 of the capacity, or, with a
    /// capacity of a million units and more, of one shard's part, of which there are four for each
    /// core at most.
    ///
    /// The weigher is called once for each value stored, and under no lock.
    pub fn capacity_by_weight(
        mut self,
        weight: u64,
        weigher: impl Fn(&K, &V) -> u32 + Send + Sync + 'static,
    ) -> Self {
        self.capacity = Capacity::Weight(weight, Arc::new(weigher));
        self
    }

    /// How many absent entries L1 holds at most, in a share of their own. Defaults to a tenth of the
    /// capacity, at least 1, or 1,000 if that is by weight. Zero means that none is kept.
    pub fn absent_capacity(mut self, entries: usize) -> Self {
        self.absent_capacity = Some(entries);
        self
    }

    /// How long a call waits that does not say so itself. Defaults to as long as it takes.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Has all loads by the declared loader run on `threads` threads of the cache's own, so that a
    /// caller's deadline bounds its call even if it leads. Defaults to loads on the threads of
    /// their callers, with two workers for refreshes and prewarm. Threads start when they are
    /// needed.
    ///
    /// What a loader asks for is loaded on its own thread if no worker is free, and a worker does
    /// so always: a loader that waited for the queue could wait for itself.
    ///
    /// Refreshes and prewarm run on them, too: on a quarter of the threads at most, at least one, and
    /// a thread that becomes free takes a load that a caller waits for first. So a hung refresh
    /// leaves threads for loads, however many keys are to be refreshed. It keeps its own, though:
    /// while all that refreshes may have hang nothing else is refreshed, and if there is one thread
    /// in all, no load begins either. Let there be two at least, and give the loader a timeout.
    pub fn workers(mut self, threads: usize) -> Self {
        self.workers = Some(threads);
        self
    }

    /// How many loads may wait for a worker that callers wait for, and beside them how many that
    /// nobody does. Defaults to 256. A refresh that finds its queue full is skipped; a caller gets
    /// [`Error::Overloaded`](crate::Error::Overloaded), or a stale value.
    pub fn queue(mut self, loads: usize) -> Self {
        self.queue = loads;
        self
    }

    /// How many loaders may run at once, over all keys. Defaults to 64. Callers wait for their
    /// turn within their deadlines; refreshes and prewarm use a quarter at most, and none while a
    /// caller waits.
    pub fn admission(mut self, loads: usize) -> Self {
        self.admission = loads;
        self
    }

    /// As [`GroupBuilder::max_flight_age`]. Defaults to as long as it takes.
    pub fn max_flight_age(mut self, age: Duration) -> Self {
        self.group = self.group.max_flight_age(age);
        self
    }

    /// As [`GroupBuilder::max_followers_per_key`]. Defaults to any number.
    pub fn max_followers_per_key(mut self, followers: usize) -> Self {
        self.group = self.group.max_followers_per_key(followers);
        self
    }

    /// As [`GroupBuilder::max_followers`]. Defaults to any number.
    pub fn max_followers(mut self, followers: usize) -> Self {
        self.group = self.group.max_followers(followers);
        self
    }

    /// Where the time comes from. Defaults to the system; a test may have a
    /// [manual](Clock::manual) clock.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Puts the cache on a fleet: values are shared with every process that has a cache of this
    /// name on the same shared tier, and one of them at a time loads a key. `codec` makes bytes of
    /// values. Defaults to a cache of this process alone.
    ///
    /// One cache of a name on one [`Fleet`](crate::fleet::Fleet): a second in the same process
    /// would not hear of what the first one does.
    pub fn fleet(mut self, fleet: &Fleet, codec: impl Codec<V> + 'static) -> Self
    where
        K: FleetKey + 'static,
        V: 'static,
    {
        let fleet = fleet.clone();
        self.remote = Some(Box::new(move |table, version, limit| {
            Remote::new(&fleet, table, version, codec, limit)
        }));
        self
    }

    /// The version of what is stored in the shared tier, to be raised with the shape of the
    /// values: those of another version are misses. Defaults to 0.
    pub fn schema_version(mut self, version: u32) -> Self {
        self.schema_version = version;
        self
    }

    /// How many bytes an encoded value may have to be stored in the shared tier. Defaults to
    /// 1 MiB, and may be 63 MiB at most: a longer reply of a server is taken for nonsense. A larger
    /// value stays in this process.
    pub fn max_stored(mut self, bytes: usize) -> Self {
        self.max_stored = bytes;
        self
    }

    /// How long to wait for another process's load, within the deadline. Defaults to 2 s.
    pub fn loser_wait(mut self, wait: Duration) -> Self {
        self.loser_wait = wait;
        self
    }

    /// What to do when that was in vain. Defaults to [`Losers::LoadAlone`].
    pub fn losers(mut self, losers: Losers) -> Self {
        self.losers = losers;
        self
    }

    /// For a table whose keys are seldom in the shared tier: asks for the value and, where there is
    /// none, for the lease in one step. That spares each miss a round trip, and makes a hit a
    /// script where it was two plain commands: on Redis some eight times the server's CPU. Defaults
    /// to looking first.
    pub fn expect_misses(mut self) -> Self {
        self.expects_misses = true;
        self
    }

    /// The loader of this cache: declared once, used by [`get`](Cache::get), by refreshes and by
    /// prewarm. It may run on any thread and for several keys at once.
    ///
    /// It returns anything that is [`Into<Fill<V>>`](Fill): a plain value, an `Option` of one, or
    /// a [`Fill`] that says how it is to be kept.
    pub fn loader<R: Into<Fill<V>>>(
        mut self,
        loader: impl Fn(&Load<'_, K, V>) -> Result<R, E> + Send + Sync + 'static,
    ) -> Self {
        self.loader = Some(Box::new(move |load| loader(load).map(Into::into)));
        self
    }
}

impl<K, V, E> CacheBuilder<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Makes the cache.
    ///
    /// # Errors
    ///
    /// [`BuildError`] names the setting that is missing or means nothing, and what it may be.
    pub fn build(self) -> Result<Cache<K, V, E>, BuildError> {
        let ttl = self.ttl.ok_or(BuildError::new("ttl", (), "set: it has no default"))?;
        let policy = Policy { ttl, ..self.policy };
        policy.check()?;
        at_least_one("admission", self.admission)?;
        // Where callers load on their own threads there is nobody to leave workers to.
        let (workers, background) =
            self.workers.map_or((REFRESHERS, REFRESHERS), |all| (all, (all / 4).max(1)));
        at_least_one("workers", workers)?;
        at_most_a_million("workers", workers)?;
        at_most_a_million("queue", self.queue)?;
        if self.max_stored > MAX_PAYLOAD {
            return Err(BuildError::new("max_stored", self.max_stored, "at most 63 MiB"));
        }
        let absences = self.absent_capacity.unwrap_or(match &self.capacity {
            Capacity::Entries(entries) => (entries / 10).max(1),
            Capacity::Weight(..) => 1_000,
        });
        let room = Arc::new(Room {
            policy,
            timeout: self.timeout,
            clock: self.clock,
            local: Local::new(&self.capacity, absences),
            group: self.group.build(),
            admission: Arc::new(Admission::new(self.admission)),
            workers: Workers::new(&self.name, workers, background, self.queue),
            queue: self.queue,
            workers_load: self.workers.is_some(),
            remote: self.remote.map(|make| make(&self.name, self.schema_version, self.max_stored)),
            loser_wait: self.loser_wait,
            losers: self.losers,
            expects_misses: self.expects_misses,
            name: self.name.into(),
            loader: self.loader,
            counters: Counters::default(),
            closed: AtomicBool::new(false),
        });
        Ok(Cache { _handle: Arc::new(Handle(Arc::clone(&room))), room })
    }
}

/// Beyond that there are more threads than a system has, and more loads than can wait for one.
fn at_most_a_million(field: &'static str, value: usize) -> Result<(), BuildError> {
    if value > 1_000_000 { Err(BuildError::new(field, value, "at most 1000000")) } else { Ok(()) }
}

fn at_least_one(field: &'static str, value: usize) -> Result<(), BuildError> {
    if value == 0 { Err(BuildError::new(field, value, "at least 1")) } else { Ok(()) }
}

impl<K, V, E> fmt::Debug for CacheBuilder<K, V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheBuilder")
            .field("name", &self.name)
            .field("ttl", &self.ttl)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}
