//! [`Cache`]: values that are loaded once, kept for a while, and refreshed behind their readers.

mod answer;
mod builder;
mod call;
mod fill;
mod ladder;
mod leader;
mod prewarm;
mod refresh;
mod remote;
mod untold;

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

pub use answer::{Answer, Source, Why};
pub use builder::CacheBuilder;
pub use call::Call;
pub use fill::{Fill, Load};
pub use prewarm::{Prewarm, PrewarmReport, Progress};
pub use remote::Losers;

use crate::admission::{Admission, Lane};
use crate::clock::Clock;
use crate::deadline::Deadline;
use crate::error::{Error, TierError};
use crate::fleet::Mark;
use crate::flight::Group;
use crate::freshness::{Phase, Policy};
use crate::local::{Asked, Displaced, Kept, Local};
use crate::stats::{Counters, Gauges, Stats};
use crate::sync::{AtomicBool, Ordering};
use crate::workers::{LINGER, Workers};

use self::ladder::{Loader, Terms};
use self::leader::Loaded;
use self::remote::Remote;

/// A read-through cache for one kind of thing: a key that is not there is loaded, once, however
/// many callers ask for it.
///
/// A handle: clones are the same cache. When the last handle is dropped the cache
/// [closes](Cache::close). (A declared loader that owns a handle of its own cache keeps it open for
/// ever; let it borrow one from a `static`.)
///
/// What is where: fresh values in L1, in this process; callers of a key that is not there in one
/// flight (as in a [`Group`], with all that is promised there); loads over all keys under
/// [admission](CacheBuilder::admission); refreshes on [workers](CacheBuilder::workers). The
/// [`guide`](crate::guide) says which window does what, and what happens when a loader fails, is
/// slow or panics, and when a key is invalidated.
///
/// The value is cloned for each caller: put a big one in an [`Arc`]. Its `Clone`, and the `Eq` of
/// the key, run while a part of L1 is locked, so they must not call the cache. All other code of
/// yours may.
///
/// # Example
///
/// ```
/// use onefill::{Cache, Load};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// # #[derive(Debug)] struct Product { id: u64 }
/// # #[derive(Debug)] struct DbError;
/// # struct Db;
/// # impl Db { fn product(&self, id: u64) -> Result<Option<Arc<Product>>, DbError> { Ok((id < 100).then(|| Arc::new(Product { id }))) } }
/// # let db = Db;
/// let products: Cache<u64, Arc<Product>, DbError> = Cache::builder("product")
///     .ttl(Duration::from_secs(300))
///     .stale_while_revalidate(Duration::from_secs(60)) // answer now, refresh behind
///     .stale_if_error(Duration::from_secs(600))        // better old than nothing
///     .capacity(100_000)
///     .loader(move |load: &Load<'_, u64, Arc<Product>>| db.product(*load.key()))
///     .build()?;
///
/// let product = products.get(&42).unwrap();
/// assert_eq!(product.value().unwrap().id, 42);
/// assert!(products.get(&1234).unwrap().is_absent()); // an answer, too, and remembered
///
/// products.invalidate(&42)?; // the row has changed
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Cache<K, V, E> {
    room: Arc<Room<K, V, E>>,
    /// Held by handles only, so that its end is the end of the last of them.
    _handle: Arc<Handle<K, V, E>>,
}

/// What all handles, callers and workers of a cache share.
struct Room<K, V, E> {
    name: Box<str>,
    policy: Policy,
    /// How long a call waits that does not say; `None` for as long as it takes.
    timeout: Option<Duration>,
    clock: Clock,
    local: Local<K, V>,
    group: Group<K, Filled<V>, E>,
    admission: Arc<Admission>,
    workers: Workers,
    /// How many jobs of a lane may wait for a worker.
    queue: usize,
    /// Whether workers run the loads that callers wait for, too.
    workers_load: bool,
    loader: Option<Box<Declared<K, V, E>>>,
    /// The table's part of a fleet, if the cache is on one.
    remote: Option<Remote<K, V>>,
    /// How long to wait for another process's load, and what to do then.
    loser_wait: Duration,
    losers: Losers,
    /// Whether the lease is asked for without a look first.
    expects_misses: bool,
    counters: Counters,
    /// Set once, before the workers are closed.
    closed: AtomicBool,
}

/// A loader that was declared with the cache.
type Declared<K, V, E> = dyn Fn(&Load<'_, K, V>) -> Result<Fill<V>, E> + Send + Sync;

/// What a flight of a cache lands with.
#[derive(Clone, Debug)]
enum Filled<V> {
    /// Something, with its stamp, as L1 may remember it, and where the leader had it from.
    With(Kept<V>, Source),
    /// Something that is in its stale-while-revalidate window, while another process loads. For
    /// those who take it.
    Stale(Kept<V>),
    /// The loader said that nothing changed, and there was nothing.
    NothingUnchanged,
    /// The loader of another process failed.
    FailedElsewhere,
    /// Another process was waited for, for so long, and those who wait are to fail then.
    InVain { waited: Duration },
}

impl<K, V, E> Room<K, V, E> {
    #[inline]
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Forgets a key in this process.
    fn forget(&self, key: Asked<'_, K>)
    where
        K: Hash + Eq + Clone,
        V: Clone,
    {
        let mut removed = None;
        // In one step: a flight that is forgotten after the removal could store in between (seeded
        // bug: `remove_before_forget`), and one that is boarded before it could find there what it is
        // to replace (seeded bug: `forget_and_remove_in_two_steps`).
        self.group.forget_and(key.hash, key.key, || removed = Some(self.local.remove(key)));
        drop(removed);
    }

    /// Closes the workers, and says how many of them were still busy at the deadline.
    fn close(&self, deadline: Deadline) -> usize {
        // First, or a call whose job the workers give back would not know why (seeded bug:
        // `closed_after_the_workers`).
        self.closed.store(true, Ordering::Relaxed);
        self.workers.close(deadline)
    }
}

/// What the handles of a cache have in common. Its end closes the cache.
struct Handle<K, V, E>(Arc<Room<K, V, E>>);

impl<K, V, E> Drop for Handle<K, V, E> {
    fn drop(&mut self) {
        self.0.close(Deadline::after(LINGER));
    }
}

impl<K, V, E> Cache<K, V, E> {
    /// A cache for a table of this name, to be set up. The name appears in threads' names, in
    /// telemetry and in the keys of a shared tier.
    ///
    /// ```
    /// # use onefill::Cache;
    /// # use std::time::Duration;
    /// let sessions: Cache<String, u64, std::io::Error> =
    ///     Cache::builder("session").ttl(Duration::from_secs(60)).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder(name: impl Into<String>) -> CacheBuilder<K, V, E> {
        CacheBuilder::new(name.into())
    }

    /// Options for one call.
    ///
    /// ```
    /// # use onefill::Cache;
    /// # use std::time::Duration;
    /// # let products: Cache<u64, u64, std::io::Error> = Cache::builder("product")
    /// #     .ttl(Duration::from_secs(300)).loader(|load: &onefill::Load<'_, u64, u64>| Ok(*load.key())).build()?;
    /// let product = products.with().timeout(Duration::from_millis(80)).never_stale().get(&42);
    /// # assert_eq!(product.unwrap().into_value(), Some(42));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with(&self) -> Call<'_, K, V, E> {
        Call::new(self, self.terms())
    }

    /// Closes the cache: calls get [`Error::Closed`] from now on, no refresh begins any more, and
    /// those that run are waited for until `deadline`. Calls that are waiting for a load get what
    /// it comes to. Returns how many workers were still busy.
    ///
    /// Dropping the last handle does the same, waiting for a second at most.
    ///
    /// ```
    /// # use onefill::Cache;
    /// # use std::time::Duration;
    /// # let products: Cache<u64, u64, std::io::Error> = Cache::builder("product")
    /// #     .ttl(Duration::from_secs(300)).loader(|load: &onefill::Load<'_, u64, u64>| Ok(*load.key())).build()?;
    /// assert_eq!(products.close(Duration::from_secs(5)), 0);
    /// assert!(products.get(&42).unwrap_err().is_closed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(&self, deadline: impl Into<Deadline>) -> usize {
        self.room.close(deadline.into())
    }

    fn terms(&self) -> Terms {
        let deadline = self.room.timeout.map_or(Deadline::NEVER, Deadline::after);
        Terms { deadline, windows: self.room.policy.windows }
    }
}

impl<K, V, E> Cache<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// The value of `key`, from wherever it is to be had: L1, another caller's load, or a load of
    /// this call's own, by the loader declared with the cache.
    ///
    /// Waits for the cache's [`timeout`](CacheBuilder::timeout) at most, by default as long as it
    /// takes. The timeout bounds all waiting together. It does not bound a loader that runs on
    /// this thread; with [`workers`](CacheBuilder::workers) loaders run on threads of their own,
    /// and it bounds the call.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] or [`Error::Panicked`] if the load came to that,
    /// [`Error::TimedOut`], [`Error::Overloaded`], [`Error::WouldDeadlock`], [`Error::Closed`], or
    /// [`Error::NoLoader`]. Within the stale-if-error window, a stale value instead.
    ///
    /// # Panics
    ///
    /// If the loader runs on this thread and panics.
    ///
    /// # Example
    ///
    /// ```
    /// # use onefill::{Cache, Load};
    /// # use std::time::Duration;
    /// let squares: Cache<u64, u64, String> = Cache::builder("squares")
    ///     .ttl(Duration::from_secs(60))
    ///     .loader(|load: &Load<'_, u64, u64>| Ok(load.key() * load.key()))
    ///     .build()?;
    /// assert_eq!(squares.get(&7).unwrap().into_value(), Some(49));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn get(&self, key: &K) -> Result<Answer<V>, Error<E>> {
        self.get_on(key, || self.terms())
    }

    /// Like [`get`](Cache::get), with a loader of the call's own, which may borrow from it.
    ///
    /// Such a loader runs on this thread or not at all. So nothing can be refreshed with it behind
    /// a caller's back: in the stale-while-revalidate window one caller at a time loads for
    /// itself, and the others get the stale value at once.
    ///
    /// # Errors
    ///
    /// As [`get`](Cache::get), but never [`Error::NoLoader`].
    ///
    /// # Panics
    ///
    /// If the loader is called and panics.
    ///
    /// # Example
    ///
    /// ```
    /// # use onefill::Cache;
    /// # use std::time::Duration;
    /// let rows: Cache<u64, String, String> =
    ///     Cache::builder("rows").ttl(Duration::from_secs(60)).build()?;
    /// let request = String::from("this request's connection");
    /// let row = rows.get_with(&7, |load| Ok(format!("row {} by {request}", load.key())));
    /// assert_eq!(row.unwrap().into_value().unwrap(), "row 7 by this request's connection");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_with<F, R>(&self, key: &K, loader: F) -> Result<Answer<V>, Error<E>>
    where
        F: FnOnce(&Load<'_, K, V>) -> Result<R, E>,
        R: Into<Fill<V>>,
    {
        self.get_with_on(key, || self.terms(), loader)
    }

    /// What L1 has for `key`, fresh or in its stale-while-revalidate window, and not in doubt.
    /// Loads nothing, refreshes nothing, waits for nothing, and does not count as a call.
    ///
    /// ```
    /// # use onefill::Cache;
    /// # use std::time::Duration;
    /// let ages: Cache<&str, u64, String> =
    ///     Cache::builder("ages").ttl(Duration::from_secs(60)).build()?;
    /// assert!(ages.peek(&"Ada").is_none());
    /// ages.put(&"Ada", 36)?;
    /// assert_eq!(ages.peek(&"Ada").unwrap().into_value(), Some(36));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peek(&self, key: &K) -> Option<Answer<V>> {
        let room = &self.room;
        let now = room.clock.now();
        let kept =
            room.local.get(room.local.asked(key)).filter(|kept| room.is_current(&kept.stamp))?;
        match kept.stamp.span.phase(room.policy.windows, now) {
            Phase::Fresh => Some(kept.answer(Source::Local, now)),
            Phase::Stale if kept.found.is_some() => {
                Some(kept.answer(Source::Stale(Why::Revalidating), now))
            }
            _ => None,
        }
    }

    /// Stores `fill`, a value or a [`Fill`], as if it had just been loaded. It wins over a load in
    /// flight: that one's result goes to those who wait for it, and is not stored.
    ///
    /// A fill that is not to be stored, or that is `unchanged`, only forgets what there was.
    ///
    /// # Errors
    ///
    /// [`TierError`] if the cache is on a fleet whose shared tier could not be told. This process
    /// has the new value then, for as long as L1 keeps it, and no older one after that; others may
    /// have the old one until it expires, or until the tier is told, as after
    /// [`invalidate`](Cache::invalidate).
    ///
    /// ```
    /// # use onefill::{Cache, Fill};
    /// # use std::time::Duration;
    /// let ages: Cache<&str, u64, String> =
    ///     Cache::builder("ages").ttl(Duration::from_secs(60)).build()?;
    /// ages.put(&"Ada", 36)?;
    /// ages.put(&"Bob", Fill::absent().ttl(Duration::from_secs(5)))?;
    /// assert!(ages.peek(&"Bob").unwrap().is_absent());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn put(&self, key: &K, fill: impl Into<Fill<V>>) -> Result<(), TierError> {
        let room = &self.room;
        // First of all: nothing has been done if the user's `Hash` panics.
        let asked = room.local.asked(key);
        let fill = fill.into();
        let (fleet_key, mark, at_most) = match &room.remote {
            None => (None, Mark::LOCAL, Duration::MAX),
            Some(remote) => {
                let fleet_key = remote.key(key);
                let mark = remote.mark(&fleet_key);
                (Some(fleet_key), mark, remote.at_most())
            }
        };
        let shared = room.remote.as_ref().map(Remote::shared);
        let writing = shared.zip(fleet_key.as_ref()).map(|(shared, key)| shared.write(key));
        let loaded = Loaded { ended: room.clock.exact(), took: Duration::ZERO };
        let filled = room.filled(fill, None, loaded, at_most, mark);
        // The shared tier first: a process that reads it after this must not find the old value.
        let told = match (&room.remote, &fleet_key, &filled) {
            (Some(remote), Some(fleet_key), Some((kept, Some(lifetime)))) => {
                remote.put_sealed(fleet_key, kept, *lifetime, &room.counters)
            }
            (Some(remote), Some(fleet_key), _) => remote.invalidate(fleet_key),
            _ => Ok(()),
        };
        match filled {
            Some((kept, Some(_))) => {
                // The weigher is the user's, and the others have been told.
                let unknown = Unknown { room, key: asked };
                let mut ready = room.local.ready(asked, kept);
                std::mem::forget(unknown);
                let mut displaced = Displaced::default();
                // In one step: a load that boarded in between could store over it (seeded bug:
                // `put_in_two_steps`).
                room.group.forget_and(asked.hash, key, || {
                    // Of two at once the one that is second here may have been first there.
                    if writing.as_ref().is_some_and(|writing| !writing.is_alone()) {
                        ready.kept.stamp.mark = ready.kept.stamp.mark.outdated();
                    }
                    room.local.store(ready, &mut displaced);
                });
                drop(displaced);
            }
            _ => room.forget(asked),
        }
        told
    }

    /// Forgets `key`: no call that begins after this has returned gets a value that was loaded
    /// before it began.
    ///
    /// A load in flight goes on for those who wait for it, and is not stored; the next caller
    /// loads anew. On a fleet that is so in every process: its L1 as soon as it has heard of it,
    /// and at the latest after its TTL.
    ///
    /// A loader that invalidates its own key may ask for it: it is loaded anew inside, once, and a
    /// third time gets [`Error::WouldDeadlock`].
    ///
    /// # Errors
    ///
    /// [`TierError`] if the cache is on a fleet whose shared tier could not be told, or did not say
    /// so. This process has forgotten the key then, and others may have it until it expires.
    ///
    /// This process remembers that, for as long as the cache is there. When it is to load the key
    /// again it tells the tier first, and while it cannot, it loads without: it never reads there
    /// what it has invalidated. A second after the last failure, each load of another key tells of
    /// one such key besides. It is remembered of 4,096 keys, of 1 MiB together when they are encoded;
    /// with more, the whole table counts as invalidated, and the tier is told that before it is asked
    /// for anything.
    ///
    /// ```
    /// # use onefill::Cache;
    /// # use std::time::Duration;
    /// let ages: Cache<&str, u64, String> =
    ///     Cache::builder("ages").ttl(Duration::from_secs(60)).build()?;
    /// ages.put(&"Ada", 36)?;
    /// ages.invalidate(&"Ada")?;
    /// assert!(ages.peek(&"Ada").is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn invalidate(&self, key: &K) -> Result<(), TierError> {
        let asked = self.room.local.asked(key);
        // The shared tier first: what this process forgets before that, it could read there again.
        let remote = self.room.remote.as_ref().map(|remote| (remote, remote.key(key)));
        let _writing = remote.as_ref().map(|(remote, key)| remote.shared().write(key));
        let told = remote.as_ref().map_or(Ok(()), |(remote, key)| remote.invalidate(key));
        self.room.forget(asked);
        told
    }

    /// Forgets every key, as [`invalidate`](Cache::invalidate) forgets one.
    ///
    /// # Errors
    ///
    /// As [`invalidate`](Cache::invalidate): until the tier can be told, this process loads
    /// without it.
    ///
    /// ```
    /// # use onefill::Cache;
    /// # use std::time::Duration;
    /// let ages: Cache<&str, u64, String> =
    ///     Cache::builder("ages").ttl(Duration::from_secs(60)).build()?;
    /// ages.put(&"Ada", 36)?;
    /// ages.invalidate_all()?;
    /// assert!(ages.peek(&"Ada").is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn invalidate_all(&self) -> Result<(), TierError> {
        let told = self.room.remote.as_ref().map_or(Ok(()), Remote::invalidate_all);
        let mut cleared = None;
        // In one step for the same reasons (seeded bug: `clear_before_forgetting_all`).
        self.room.group.forget_all(|| cleared = Some(self.room.local.clear()));
        drop(cleared);
        told
    }

    /// Loads `keys` ahead of their callers, on the workers, those that are not in L1 already.
    ///
    /// ```
    /// # use onefill::{Cache, Load};
    /// # use std::time::Duration;
    /// # let squares: Cache<u64, u64, String> = Cache::builder("squares")
    /// #     .ttl(Duration::from_secs(60))
    /// #     .loader(|load: &Load<'_, u64, u64>| Ok(load.key() * load.key()))
    /// #     .build()?;
    /// let report = squares.prewarm(1..=100).budget(Duration::from_secs(10)).run();
    /// assert_eq!(report.to_string(), "100 loaded, 0 already there, 0 failed, 0 unfinished");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prewarm<I: IntoIterator<Item = K>>(&self, keys: I) -> Prewarm<'_, K, V, E, I::IntoIter> {
        Prewarm::new(self, keys.into_iter())
    }

    /// What the cache has done so far, and how things stand.
    pub fn stats(&self) -> Stats {
        let room = &self.room;
        let (values, absences) = room.local.len();
        let lanes = [Lane::Foreground, Lane::Background].map(|lane| room.admission.gauge(lane));
        let workers = room.workers.gauge();
        Stats {
            gauges: Gauges {
                values,
                absences,
                weight: room.local.weight(),
                flights: room.group.len(),
                oldest_flight: room.group.oldest().unwrap_or_default(),
                waiting: room.group.waiting(),
                loading: lanes.iter().map(|lane| lane.running).sum(),
                not_admitted: lanes.iter().map(|lane| lane.waiting).sum(),
                queued: workers.queued,
                working: workers.running,
            },
            ..room.counters.snapshot()
        }
    }

    /// Hands what [`stats`](Cache::stats) says to the installed `metrics` recorder: the counters
    /// `onefill_calls_total` (by `end`) and `onefill_events_total` (by `event`), the gauges
    /// `onefill_now` (by `what`), `onefill_oldest_flight_seconds`, `onefill_load_seconds` and
    /// `onefill_call_seconds` (by `quantile`), all by `cache`. To be called every few seconds, or when somebody comes to scrape.
    ///
    /// ```
    /// # use onefill::Cache;
    /// # use std::time::Duration;
    /// let ages: Cache<&str, u64, String> =
    ///     Cache::builder("ages").ttl(Duration::from_secs(60)).build()?;
    /// ages.publish_metrics();
    /// # Ok::<(), onefill::BuildError>(())
    /// ```
    #[cfg(feature = "metrics")]
    pub fn publish_metrics(&self) {
        crate::telemetry::publish(&self.room.name, &self.stats());
    }

    #[inline]
    fn get_on(&self, key: &K, terms: impl FnOnce() -> Terms) -> Result<Answer<V>, Error<E>> {
        self.room.get(key, terms, || match &self.room.loader {
            Some(loader) => Loader::Declared(loader.as_ref()),
            None => Loader::None,
        })
    }

    fn get_with_on<F, R>(
        &self,
        key: &K,
        terms: impl FnOnce() -> Terms,
        loader: F,
    ) -> Result<Answer<V>, Error<E>>
    where
        F: FnOnce(&Load<'_, K, V>) -> Result<R, E>,
        R: Into<Fill<V>>,
    {
        let mut once = Some(loader);
        let mut loader = |load: &Load<'_, K, V>| match once.take() {
            Some(loader) => loader(load).map(Into::into),
            None => unreachable!("a call leads once at most"),
        };
        self.room.get(key, terms, || Loader::Borrowed(&mut loader))
    }
}

/// Forgets a key when dropped, by a panic: others may know more of it by now.
struct Unknown<'a, K: Hash + Eq + Clone, V: Clone, E> {
    room: &'a Room<K, V, E>,
    key: Asked<'a, K>,
}

impl<K: Hash + Eq + Clone, V: Clone, E> Drop for Unknown<'_, K, V, E> {
    fn drop(&mut self) {
        self.room.forget(self.key);
    }
}

impl<K, V, E> Clone for Cache<K, V, E> {
    fn clone(&self) -> Self {
        Cache { room: Arc::clone(&self.room), _handle: Arc::clone(&self._handle) }
    }
}

impl<K, V, E> fmt::Debug for Cache<K, V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("name", &self.room.name)
            .field("policy", &self.room.policy)
            .field("group", &self.room.group)
            .finish_non_exhaustive()
    }
}
