//! [`Group`]: the entrance to the flights of one kind of thing.

use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::error::Error;
use crate::moment::Moment;
use crate::sync::{Arc, AtomicUsize, Handle, Ordering};

use super::lead::Lead;
use super::registry::{Boarded, Registry, Role};
use super::waits::{self, Driven};
use super::{Flight, Followed, Outcome, Wait};

/// Coalesces concurrent loads by key: one caller loads, the others wait for its outcome.
///
/// A group remembers nothing. The first caller of a key *leads* a flight and runs its loader on
/// its own thread; callers of the same key that come before the flight has landed *follow*: they
/// wait, each until its own deadline, and get the very same outcome. When the last of them has
/// left, nothing is kept. What should be kept is the caller's to keep, or a cache's.
///
/// The first loader wins: a follower's own loader never runs (unless it is made to lead after
/// all). So a key must name everything its loader depends on.
///
/// # What is promised
///
/// As differences from Go's `singleflight` and from a map of `OnceLock`s:
///
/// - **Every wait has a deadline of its own.** It bounds the wait of the caller that brought it and
///   nobody else's; the load goes on. It does not bound the loader: a leader runs it on its own
///   thread and cannot be interrupted.
/// - **Landed beats late.** An outcome that is there is returned, even if the deadline has passed.
/// - **A failure is not remembered.** It reaches those who waited; the next caller loads again. A
///   caller that comes after an outcome was published never gets that outcome.
/// - **A panic is not a hang.** It goes on in the leader's thread, and those who waited get
///   [`Error::Panicked`] at once. Panics of the key's `Hash`, `Eq`, `Clone` and `Drop`, and of the
///   value's `Clone` and `Drop`, reach the caller whose call ran them, and wedge nothing.
/// - **A deadlock is an error.** A thread that asks for a key it is loading, or whose wait would
///   close a circle of waits over any number of keys, threads and groups, gets
///   [`Error::WouldDeadlock`] at once. A thread whose own flight was [forgotten](Group::forget)
///   may load the key once more inside; if that flight is forgotten, too, it is told the same. (A
///   loader that hands its work to another thread and waits for it is beyond what can be seen here;
///   the deadline remains.)
/// - **The leader does not pay for its herd.** It wakes one follower and returns; the followers
///   wake each other.
/// - **A load that nobody joins costs little.** Two short locks, a clone of the key, and no
///   allocation: what a flight shares is made by the first who joins it.
///
/// # Example
///
/// ```
/// use onefill::Group;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// let group: Group<u64, String, std::io::Error> = Group::new();
/// let loads = AtomicUsize::new(0);
///
/// let herd = 32;
/// std::thread::scope(|s| {
///     for _ in 0..herd {
///         s.spawn(|| {
///             let page = group.run(&7, || {
///                 loads.fetch_add(1, Ordering::Relaxed);
///                 while group.waiting() < herd - 1 {
///                     std::thread::yield_now(); // a slow load, so that all the others come
///                 }
///                 Ok("page seven".to_string())
///             });
///             assert_eq!(page.unwrap(), "page seven");
///         });
///     }
/// });
/// assert_eq!(loads.into_inner(), 1);
/// assert!(group.is_empty());
/// ```
pub struct Group<K, V, E> {
    pub(super) registry: Registry<K, V, E>,
    pub(super) settings: Settings,
    /// Followers in their seats, over all flights.
    parked: AtomicUsize,
}

/// What the followers of a flight do when its leader has no value for them.
///
/// Set for a loader's errors with [`GroupBuilder::on_failure`] and for guards dropped without an
/// outcome with [`GroupBuilder::on_abandoned`]. The leader itself gets its error in any case. A
/// panic is always shared.
///
/// # Example
///
/// ```
/// use onefill::{FailurePolicy, Group};
///
/// let group: Group<u64, u64, String> =
///     Group::builder().on_failure(FailurePolicy::HandOver).build();
/// assert!(group.run(&1, || Err("the database is away".into())).unwrap_err().is_failed());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailurePolicy {
    /// All of them get the error. One failing load answers the whole herd.
    Share,
    /// The follower with the most time left leads the flight in the leader's place, with its own
    /// loader; the others wait on. A failing source is asked once per caller, one after the
    /// other, for as long as their deadlines let them.
    HandOver,
    /// Each of them calls anew, at the same moment: one leads a new flight, and the others join
    /// it, along with whoever comes fresh.
    RetryEach,
}

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) on_failure: FailurePolicy,
    pub(super) on_abandoned: FailurePolicy,
    pub(super) max_flight_age: Option<Duration>,
    max_followers_per_key: usize,
    max_followers: usize,
}

/// Every default of a group.
impl Default for Settings {
    fn default() -> Self {
        Settings {
            on_failure: FailurePolicy::Share,
            on_abandoned: FailurePolicy::HandOver,
            max_flight_age: None,
            max_followers_per_key: usize::MAX,
            max_followers: usize::MAX,
        }
    }
}

/// What [`Group::join`] made of its caller.
#[derive(Debug)]
#[must_use = "a lead that is dropped abandons its flight"]
pub enum Join<'g, K, V, E> {
    /// Another caller's load landed with this value.
    Landed(V),
    /// The caller leads: it is to load the value and land it.
    Lead(Lead<'g, K, V, E>),
}

impl<K, V, E> Group<K, V, E> {
    /// A group with every setting at its default.
    ///
    /// ```
    /// let group: onefill::Group<String, u32, std::io::Error> = onefill::Group::new();
    /// assert_eq!(group.len(), 0);
    /// ```
    pub fn new() -> Self {
        GroupBuilder::default().build()
    }

    /// A group with settings of its own.
    ///
    /// ```
    /// use onefill::Group;
    /// use std::time::Duration;
    ///
    /// let group: Group<u64, u64, String> = Group::builder()
    ///     .max_flight_age(Duration::from_secs(30))
    ///     .max_followers_per_key(500)
    ///     .build();
    /// ```
    pub fn builder() -> GroupBuilder<K, V, E> {
        GroupBuilder::default()
    }

    /// How many flights are boarded: the keys that are being loaded right now.
    ///
    /// A snapshot, taken shard by shard. A flight that was forgotten or replaced is not counted,
    /// though it may be in progress still.
    pub fn len(&self) -> usize {
        self.registry.len()
    }

    /// Whether no flight is boarded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tells it apart from every other group while it has flights that are driven.
    pub(super) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// How many callers are waiting right now, over all keys.
    ///
    /// ```
    /// let group: onefill::Group<u64, u64, String> = onefill::Group::new();
    /// assert_eq!(group.waiting(), 0);
    /// ```
    pub fn waiting(&self) -> usize {
        self.parked.load(Ordering::Relaxed)
    }
}

impl<K: Hash + Eq + Clone, V: Clone, E> Group<K, V, E> {
    /// The outcome of the load of `key` that is in progress, or of `loader` if none is. Waits as
    /// long as it takes.
    ///
    /// What the loader can end with, and what comes of it, stands at [`Lead::run`].
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] if the loader that ran returned an error, [`Error::Panicked`] if it
    /// panicked in another caller's thread; [`Error::WouldDeadlock`], [`Error::Overloaded`] at
    /// once; [`Error::Abandoned`] if the group is set to.
    ///
    /// # Panics
    ///
    /// If this caller leads and its loader panics.
    ///
    /// # Example
    ///
    /// ```
    /// # use onefill::{Error, Group};
    /// let group: Group<u64, u64, String> = Group::new();
    /// assert_eq!(group.run(&21, || Ok(42)).unwrap(), 42);
    ///
    /// // Asking for the key that is being loaded would wait for itself.
    /// let outer = group.run(&1, || match group.run(&1, || Ok(0)) {
    ///     Err(Error::WouldDeadlock) => Ok(7),
    ///     other => panic!("{other:?}"),
    /// });
    /// assert_eq!(outer.unwrap(), 7);
    /// ```
    pub fn run(&self, key: &K, loader: impl FnOnce() -> Result<V, E>) -> Result<V, Error<E>> {
        self.run_by(key, Deadline::NEVER, loader)
    }

    /// Like [`run`](Group::run), waiting no longer than `timeout` from now.
    ///
    /// The timeout bounds the wait for another caller's load. It does not bound the loader: a
    /// caller that leads, even with a timeout of zero, runs its loader to the end. A timeout too
    /// long for the clock is none.
    ///
    /// # Errors
    ///
    /// As [`run`](Group::run), and [`Error::TimedOut`]. The load goes on, for the others.
    ///
    /// # Panics
    ///
    /// As [`run`](Group::run).
    ///
    /// # Example
    ///
    /// ```
    /// # use onefill::Group;
    /// # use std::sync::Barrier;
    /// # use std::time::Duration;
    /// let group: Group<u64, u64, String> = Group::new();
    /// let (boarded, release) = (Barrier::new(2), Barrier::new(2));
    ///
    /// std::thread::scope(|s| {
    ///     let leader = s.spawn(|| {
    ///         group.run(&1, || {
    ///             boarded.wait();
    ///             release.wait();
    ///             Ok(42)
    ///         })
    ///     });
    ///     boarded.wait();
    ///     let late = group.run_timeout(&1, Duration::from_millis(20), || Ok(0));
    ///     assert!(late.unwrap_err().is_timed_out());
    ///
    ///     release.wait();
    ///     assert_eq!(leader.join().unwrap().unwrap(), 42); // only its own deadline could matter
    /// });
    /// ```
    pub fn run_timeout(
        &self,
        key: &K,
        timeout: Duration,
        loader: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, Error<E>> {
        self.run_by(key, Deadline::after(timeout), loader)
    }

    /// Like [`run`](Group::run), waiting until `deadline` at most.
    ///
    /// A deadline that has passed means not to wait at all; if nobody else is loading the key the
    /// caller leads even then, and an outcome that is already there is returned.
    ///
    /// # Errors
    ///
    /// As [`run_timeout`](Group::run_timeout).
    ///
    /// # Panics
    ///
    /// As [`run`](Group::run).
    ///
    /// # Example
    ///
    /// ```
    /// # use onefill::Group;
    /// # use std::time::{Duration, Instant};
    /// let group: Group<u64, u64, String> = Group::new();
    /// let deadline = Instant::now() + Duration::from_millis(80); // one for all that follows
    /// let a = group.run_deadline(&1, deadline, || Ok(1)).unwrap();
    /// let b = group.run_deadline(&2, deadline, || Ok(a + 1)).unwrap();
    /// assert_eq!(b, 2);
    /// ```
    pub fn run_deadline(
        &self,
        key: &K,
        deadline: impl Into<Deadline>,
        loader: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, Error<E>> {
        self.run_by(key, deadline.into(), loader)
    }

    /// Like [`run`](Group::run), but never waits for another caller.
    ///
    /// # Errors
    ///
    /// [`Error::WouldBlock`] if another caller is loading the key; otherwise as
    /// [`run`](Group::run).
    ///
    /// # Panics
    ///
    /// As [`run`](Group::run).
    ///
    /// # Example
    ///
    /// ```
    /// # use onefill::{Deadline, Group, Join};
    /// let group: Group<u64, u64, String> = Group::new();
    /// assert_eq!(group.try_run(&1, || Ok(42)).unwrap(), 42);
    ///
    /// let Ok(Join::Lead(lead)) = group.join(&1, Deadline::NEVER) else { unreachable!() };
    /// std::thread::scope(|s| {
    ///     s.spawn(|| assert!(group.try_run(&1, || Ok(0)).unwrap_err().is_would_block()));
    /// });
    /// drop(lead);
    /// ```
    pub fn try_run(&self, key: &K, loader: impl FnOnce() -> Result<V, E>) -> Result<V, Error<E>> {
        // A moment ago: whatever would wait finds its deadline passed.
        match self.run_by(key, Deadline::after(Duration::ZERO), loader) {
            Err(Error::TimedOut { .. }) => Err(Error::WouldBlock),
            result => result,
        }
    }

    /// The guard form of [`run`](Group::run), for code that cannot use a closure: waits for the
    /// load in progress, or makes the caller lead.
    ///
    /// `deadline` is a [`Deadline`], an [`Instant`], or a [`Duration`] from now.
    ///
    /// # Errors
    ///
    /// As [`run_timeout`](Group::run_timeout).
    ///
    /// # Example
    ///
    /// ```
    /// use onefill::{Group, Join};
    /// use std::time::Duration;
    ///
    /// let group: Group<u64, u64, std::fmt::Error> = Group::new();
    /// let value = match group.join(&42, Duration::from_millis(50))? {
    ///     Join::Landed(value) => value,
    ///     Join::Lead(lead) => {
    ///         let row = 6 * 7; // any amount of code, with `?` and early returns
    ///         lead.land(Ok(row))?
    ///     }
    /// };
    /// assert_eq!(value, 42);
    /// # Ok::<(), onefill::Error<std::fmt::Error>>(())
    /// ```
    pub fn join(
        &self,
        key: &K,
        deadline: impl Into<Deadline>,
    ) -> Result<Join<'_, K, V, E>, Error<E>> {
        self.join_by(self.registry.hash(key), key, deadline.into(), None)
    }

    /// Forgets the flight of `key`, if there is one: the next caller leads a new flight. Returns
    /// whether there was one.
    ///
    /// Those who are in the forgotten flight stay in it and get its outcome. If it is given up
    /// without one they join the new flight.
    ///
    /// A loader may forget its own flight, and load the key once more inside. A loader that did so
    /// each time it is called would never end: in the second flight of a key on one thread to be
    /// forgotten a call gets [`Error::WouldDeadlock`].
    ///
    /// # Example
    ///
    /// ```
    /// # use onefill::{Deadline, Group, Join};
    /// let group: Group<u64, &str, String> = Group::new();
    /// let Ok(Join::Lead(old)) = group.join(&1, Deadline::NEVER) else { unreachable!() };
    ///
    /// // The row has just been changed: what is being loaded may be the row of before.
    /// assert!(group.forget(&1));
    /// assert_eq!(group.run(&1, || Ok("after")).unwrap(), "after");
    /// assert_eq!(old.land(Ok("before")).unwrap(), "before");
    /// ```
    pub fn forget(&self, key: &K) -> bool {
        self.registry.forget(self.registry.hash(key), key, || ())
    }

    fn run_by(
        &self,
        key: &K,
        deadline: Deadline,
        loader: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, Error<E>> {
        match self.join_by(self.registry.hash(key), key, deadline, None)? {
            Join::Landed(value) => Ok(value),
            Join::Lead(lead) => lead.run(loader),
        }
    }

    /// [`join`](Group::join), by a caller that has hashed the key, and has read the clock `now`, or
    /// has not.
    #[inline]
    pub(crate) fn join_by(
        &self,
        hash: u64,
        key: &K,
        deadline: Deadline,
        mut now: Option<Moment>,
    ) -> Result<Join<'_, K, V, E>, Error<E>> {
        let mut started = None;
        loop {
            // A flight that is boarded after a wait is as young as any.
            match self.board(hash, key, now.take(), Boarded::shared)? {
                Role::Lead(boarding) => return Ok(Join::Lead(Lead::first(self, boarding))),
                Role::Follow(flight) => {
                    // Once, so that a caller that asks anew is told all of its waiting.
                    started = started.or_else(|| deadline.instant().map(|_| Instant::now()));
                    if let Some(join) = self.follow(flight, deadline, started, true)? {
                        return Ok(join);
                    }
                }
            }
        }
    }

    /// What `follow` makes of the flight of `key`, or a new one that the caller leads.
    ///
    /// A thread whose flight was forgotten or replaced may lead another of the same key, once: what it
    /// has changed itself it may want to load anew. A third in the second would be one in each
    /// (seeded bug: `forgotten_and_asked_without_end`). Those that are not boarded are taken for
    /// flights of this key if they have its hash; of those that are, this one's is found here.
    #[inline]
    pub(super) fn board<F>(
        &self,
        hash: u64,
        key: &K,
        now: Option<Moment>,
        follow: impl FnOnce(&mut Boarded<K, V, E>) -> F,
    ) -> Result<Role<F>, Error<E>> {
        let is_forgotten = |driven: &Driven| !self.registry.is_boarded(hash, driven.number);
        let forgotten = waits::driving(self.address(), hash..=hash, is_forgotten);
        if forgotten > 1 {
            return Err(Error::WouldDeadlock);
        }
        Ok(self.registry.board(hash, key, self.settings.max_flight_age, now, follow))
    }

    /// Follows `flight` to its end; `None` if it is to be asked for anew.
    pub(super) fn follow(
        &self,
        flight: Handle<Flight<V, E>>,
        deadline: Deadline,
        started: Option<Instant>,
        takes_over: bool,
    ) -> Result<Option<Join<'_, K, V, E>>, Error<E>> {
        let wait = Wait {
            takes_over,
            deadline,
            started,
            max_per_key: self.settings.max_followers_per_key,
            max_in_all: self.settings.max_followers,
            parked: &self.parked,
        };
        match flight.follow(&wait)? {
            Followed::Landed(Outcome::Value(value)) => Ok(Some(Join::Landed(value.clone()))),
            Followed::Landed(Outcome::Failed(error)) => Err(Error::Failed(Arc::clone(error))),
            Followed::Landed(Outcome::Panicked(message)) => Err(Error::Panicked(message.clone())),
            Followed::Landed(Outcome::Abandoned) => Err(Error::Abandoned),
            Followed::Landed(Outcome::Disbanded) => Ok(None),
            Followed::Promoted => Ok(Some(Join::Lead(Lead::next(self, flight)))),
            // Seeded bug: `late_promotion_keeps_the_lead`.
            Followed::PromotedLate(timed_out) => {
                Lead::next(self, flight).hand_over();
                Err(timed_out)
            }
        }
    }
}

impl<K, V, E> Default for Group<K, V, E> {
    fn default() -> Self {
        Group::new()
    }
}

impl<K, V, E> fmt::Debug for Group<K, V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("flights", &self.len())
            .field("waiting", &self.waiting())
            .field("settings", &self.settings)
            .finish()
    }
}

/// Settings for a [`Group`]. Made by [`Group::builder`].
///
/// # Example
///
/// ```
/// use onefill::{FailurePolicy, Group};
/// use std::time::Duration;
///
/// let group: Group<u64, u64, String> = Group::builder()
///     .on_failure(FailurePolicy::Share)
///     .on_abandoned(FailurePolicy::HandOver)
///     .max_flight_age(Duration::from_secs(30))
///     .max_followers_per_key(500)
///     .max_followers(2_000)
///     .build();
/// assert!(group.is_empty());
/// ```
#[must_use = "a builder does nothing until it builds"]
pub struct GroupBuilder<K, V, E> {
    settings: Settings,
    group: PhantomData<fn(K) -> (V, E)>,
}

impl<K, V, E> GroupBuilder<K, V, E> {
    /// What the followers do when the loader returns an error. Defaults to
    /// [`FailurePolicy::Share`].
    pub fn on_failure(mut self, policy: FailurePolicy) -> Self {
        self.settings.on_failure = policy;
        self
    }

    /// What the followers do when the leader drops its [`Lead`] without an outcome. Defaults to
    /// [`FailurePolicy::HandOver`]; with [`FailurePolicy::Share`] they get [`Error::Abandoned`].
    pub fn on_abandoned(mut self, policy: FailurePolicy) -> Self {
        self.settings.on_abandoned = policy;
        self
    }

    /// How long a flight may be up before it is *overdue*. Defaults to as long as it takes. A
    /// flight that is handed over begins anew.
    ///
    /// The next caller of an overdue key leads a new flight, which takes the old one's place. The
    /// followers of the old flight stay with it until it lands or their deadlines pass. So of one
    /// key two loaders can run at once, of which one has hung for this long. Should the old one be
    /// given up after all, its followers join the new one.
    ///
    /// Costs each leader a reading of the clock.
    pub fn max_flight_age(mut self, age: Duration) -> Self {
        self.settings.max_flight_age = Some(age);
        self
    }

    /// How many callers may wait for one key at once. Defaults to any number. One more gets
    /// [`Error::Overloaded`] at once: in a server with a pool of threads, callers that wait are
    /// threads that serve nobody.
    pub fn max_followers_per_key(mut self, followers: usize) -> Self {
        self.settings.max_followers_per_key = followers;
        self
    }

    /// How many callers may wait at once over all keys of the group. Defaults to any number. One
    /// more gets [`Error::Overloaded`] at once.
    pub fn max_followers(mut self, followers: usize) -> Self {
        self.settings.max_followers = followers;
        self
    }

    /// Makes the group.
    pub fn build(self) -> Group<K, V, E> {
        Group { registry: Registry::new(), settings: self.settings, parked: AtomicUsize::new(0) }
    }
}

impl<K, V, E> Default for GroupBuilder<K, V, E> {
    fn default() -> Self {
        GroupBuilder { settings: Settings::default(), group: PhantomData }
    }
}

impl<K, V, E> fmt::Debug for GroupBuilder<K, V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GroupBuilder").field(&self.settings).finish()
    }
}
