//! Counters: every call ends in exactly one of them, so that they add up to the calls.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thread_local::ThreadLocal;

use crate::sync::local;

/// How a call ended. One of these is counted for each call, and no call counts twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Hit,
    AbsentHit,
    FleetHit,
    Stale,
    Loaded,
    Followed,
    Failed,
    Panicked,
    Abandoned,
    TimedOut,
    Overloaded,
    WouldDeadlock,
    Closed,
}

/// What happens besides, any number of times in a call or behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Load,
    LoadFailed,
    LoadPanicked,
    RefreshStarted,
    RefreshSkipped,
    Stored,
    NotStored,
    TooHeavy,
    Degraded,
    LoadedAlone,
    LeaseLost,
    FleetWriteFailed,
    NotEncoded,
    Undecodable,
}

const ENDS: usize = End::Closed as usize + 1;
const EVENTS: usize = Event::Undecodable as usize + 1;

/// Buckets of a histogram: each ends at twice the one before, from a microsecond to 19 hours.
const BUCKETS: usize = 37;

/// One thread's counters. Only their thread writes them, so that counting is a load and a store
/// and no atomic addition: a hit costs not much more than that.
#[derive(Default)]
pub(crate) struct Counts {
    /// Whether it is not one thread's: then counting is an atomic addition after all.
    shared: bool,
    ends: [AtomicU64; ENDS],
    events: [AtomicU64; EVENTS],
    loads: Times,
    waits: Times,
}

/// How often something took how long, and how long together.
struct Times {
    buckets: [AtomicU64; BUCKETS],
    micros: AtomicU64,
}

impl Default for Times {
    fn default() -> Self {
        Times { buckets: [const { AtomicU64::new(0) }; BUCKETS], micros: AtomicU64::new(0) }
    }
}

impl Times {
    fn add(&self, took: Duration, shared: bool) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - micros.leading_zeros()) as usize;
        add(&self.buckets[bucket.min(BUCKETS - 1)], 1, shared);
        add(&self.micros, micros, shared);
    }

    fn add_to(&self, histogram: &mut Histogram) {
        sum(&mut histogram.buckets, &self.buckets);
        histogram.micros = histogram.micros.wrapping_add(self.micros.load(Ordering::Relaxed));
    }
}

impl Counts {
    /// Counts the end of a call.
    #[inline]
    pub(crate) fn end(&self, end: End) {
        add(&self.ends[end as usize], 1, self.shared);
    }

    /// Counts an event.
    #[inline]
    pub(crate) fn event(&self, event: Event) {
        add(&self.events[event as usize], 1, self.shared);
    }

    /// How long a call took that L1 did not answer.
    pub(crate) fn call_took(&self, took: Duration) {
        self.waits.add(took, self.shared);
    }

    /// How long a loader took.
    pub(crate) fn load_took(&self, took: Duration) {
        self.loads.add(took, self.shared);
    }
}

local! {
    /// Without a destructor, so that a thread that is leaving finds it.
    static STANDING: Cell<Standing> = Cell::new(Standing::New);
    /// Notes that the thread is leaving.
    static FAREWELL: Farewell = Farewell;
}

/// Whether the calling thread can have counters of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It has not asked for any.
    New,
    Counted,
    /// It is running the destructors of its variables, and to ask for one that has been destroyed
    /// would end the process.
    Leaving,
}

struct Farewell;

impl Drop for Farewell {
    fn drop(&mut self) {
        // Gone itself only in a model, where all variables have destructors.
        let _ = STANDING.try_with(|standing| standing.set(Standing::Leaving));
    }
}

/// The counters of one cache. A thread that exits leaves its counts to the next.
pub(crate) struct Counters {
    /// Boxed: for a thread, room is made for as many as there have been threads at once, up to the
    /// next power of two; in a process of ten thousand that would be megabytes for each cache.
    threads: ThreadLocal<Box<Counts>>,
    /// For calls in the destructors of a thread's variables, when it has no counters any more.
    late: Counts,
}

impl Default for Counters {
    fn default() -> Self {
        let late = Counts { shared: true, ..Counts::default() };
        Counters { threads: ThreadLocal::default(), late }
    }
}

impl Counters {
    /// This thread's own, if it can have any.
    #[inline]
    pub(crate) fn here(&self) -> &Counts {
        match STANDING.try_with(Cell::get) {
            Ok(Standing::Counted) => self.threads.get_or_default(),
            Ok(Standing::New) => self.for_a_new_thread(),
            _ => &self.late,
        }
    }

    #[cold]
    fn for_a_new_thread(&self) -> &Counts {
        // The variable of the crate before ours: what was made last is destroyed first, so theirs is
        // there for as long as ours is. If theirs has gone, because others have used it in this
        // thread and it is leaving, there is a panic, which may go no further than here.
        let own = catch_unwind(AssertUnwindSafe(|| &**self.threads.get_or_default()));
        let own = own.ok().filter(|_| FAREWELL.try_with(|_| ()).is_ok());
        let standing = if own.is_some() { Standing::Counted } else { Standing::Leaving };
        let _ = STANDING.try_with(|is| is.set(standing));
        own.unwrap_or(&self.late)
    }

    /// Counts an event.
    pub(crate) fn event(&self, event: Event) {
        self.here().event(event);
    }

    pub(crate) fn snapshot(&self) -> Stats {
        let mut ends = [0; ENDS];
        let mut events = [0; EVENTS];
        let mut load_times = Histogram::default();
        let mut call_times = Histogram::default();
        for counts in self.threads.iter().map(|own| &**own).chain([&self.late]) {
            sum(&mut ends, &counts.ends);
            sum(&mut events, &counts.events);
            counts.loads.add_to(&mut load_times);
            counts.waits.add_to(&mut call_times);
        }
        let end = |end: End| ends[end as usize];
        let event = |event: Event| events[event as usize];
        Stats {
            hits: end(End::Hit),
            absent_hits: end(End::AbsentHit),
            fleet_hits: end(End::FleetHit),
            stale: end(End::Stale),
            loaded: end(End::Loaded),
            followed: end(End::Followed),
            failed: end(End::Failed),
            panicked: end(End::Panicked),
            abandoned: end(End::Abandoned),
            timed_out: end(End::TimedOut),
            overloaded: end(End::Overloaded),
            would_deadlock: end(End::WouldDeadlock),
            closed: end(End::Closed),
            loads: event(Event::Load),
            loads_failed: event(Event::LoadFailed),
            loads_panicked: event(Event::LoadPanicked),
            refreshes_started: event(Event::RefreshStarted),
            refreshes_skipped: event(Event::RefreshSkipped),
            stored: event(Event::Stored),
            not_stored: event(Event::NotStored),
            too_heavy: event(Event::TooHeavy),
            degraded: event(Event::Degraded),
            loaded_alone: event(Event::LoadedAlone),
            leases_lost: event(Event::LeaseLost),
            fleet_writes_failed: event(Event::FleetWriteFailed),
            not_encoded: event(Event::NotEncoded),
            undecodable: event(Event::Undecodable),
            load_times,
            call_times,
            gauges: Gauges::default(),
        }
    }
}

#[inline]
fn add(count: &AtomicU64, more: u64, shared: bool) {
    if shared {
        count.fetch_add(more, Ordering::Relaxed);
    } else {
        count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }
}

fn sum<const N: usize>(into: &mut [u64; N], counts: &[AtomicU64; N]) {
    for (sum, count) in into.iter_mut().zip(counts) {
        *sum = sum.wrapping_add(count.load(Ordering::Relaxed));
    }
}

/// What a cache has done so far: a snapshot, made by [`Cache::stats`](crate::Cache::stats).
///
/// The first thirteen are the ends of calls. Each call of `get` counts in exactly one of them when
/// it ends, so on a quiet cache their sum, [`calls`](Stats::calls), is the number of calls.
/// [`Display`](fmt::Display) prints those that are not zero.
///
/// # Example
///
/// ```
/// # use onefill::Cache;
/// # use std::time::Duration;
/// let squares: Cache<u64, u64, std::io::Error> = Cache::builder("squares")
///     .ttl(Duration::from_secs(60))
///     .loader(|load: &onefill::Load<'_, u64, u64>| Ok(load.key() * load.key()))
///     .build()?;
/// for key in [1, 2, 1] {
///     squares.get(&key).unwrap();
/// }
/// let stats = squares.stats();
/// assert_eq!((stats.hits, stats.loaded, stats.calls()), (1, 2, 3));
/// assert!(stats.to_string().starts_with("3 calls: 1 hits, 2 loaded"));
/// # Ok::<(), onefill::BuildError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Answered with a fresh value from L1.
    pub hits: u64,
    /// Answered from L1 that there is no such thing.
    pub absent_hits: u64,
    /// Answered from the shared tier.
    pub fleet_hits: u64,
    /// Answered with a value past its freshness, within a stale window.
    pub stale: u64,
    /// Answered by the load that the call set off.
    pub loaded: u64,
    /// Answered by another caller's load.
    pub followed: u64,
    /// Ended with the loader's error, the call's own or shared
    /// ([`Error::Failed`](crate::Error::Failed)); or with
    /// [`FailedElsewhere`](crate::Error::FailedElsewhere),
    /// [`NothingUnchanged`](crate::Error::NothingUnchanged) or
    /// [`NoLoader`](crate::Error::NoLoader).
    pub failed: u64,
    /// Ended with a panic: the call's own, of its loader or of the key's, the value's, the weigher's
    /// or the codec's code that it ran; or [`Panicked`](crate::Error::Panicked), for one of those on
    /// the thread that it waited for.
    pub panicked: u64,
    /// Ended because the leader gave up without an outcome.
    pub abandoned: u64,
    /// Ended because the deadline passed.
    pub timed_out: u64,
    /// Ended because too many were waiting.
    pub overloaded: u64,
    /// Ended because waiting would never have ended.
    pub would_deadlock: u64,
    /// Ended because the cache was closed.
    pub closed: u64,

    /// Loaders called, for callers and behind them.
    pub loads: u64,
    /// Loaders that returned an error.
    pub loads_failed: u64,
    /// Loaders that panicked.
    pub loads_panicked: u64,
    /// Refreshes handed to the workers. Some are skipped there.
    pub refreshes_started: u64,
    /// Refreshes that were due and not begun: they found the workers' queue full, or were handed to
    /// a worker, and counted as started, and were not admitted at once.
    pub refreshes_skipped: u64,
    /// Loads whose result was stored in L1.
    pub stored: u64,
    /// Loads whose result was not stored: it was not to be, or an invalidation, a put or a
    /// replaced flight came first.
    pub not_stored: u64,
    /// Values heavier than L1 admits.
    pub too_heavy: u64,
    /// Loads without the shared tier, because there was trouble with it.
    pub degraded: u64,
    /// Loads without the lease, because the process that had it took too long or does not share.
    pub loaded_alone: u64,
    /// Values refused by the shared tier, because the lease was lost or the key was invalidated.
    pub leases_lost: u64,
    /// Values that could not be written to the shared tier.
    pub fleet_writes_failed: u64,
    /// Values that could not be encoded, or were too large, for the shared tier.
    pub not_encoded: u64,
    /// Things in the shared tier that are no value of the key they are stored under, or one whose
    /// age cannot be known because it is not to end when it should.
    pub undecodable: u64,

    /// How long loaders took.
    pub load_times: Histogram,
    /// How long those calls took that L1 did not answer: their own load, or waiting for another.
    pub call_times: Histogram,

    /// How things stand at this moment.
    pub gauges: Gauges,
}

/// How often something took how long, to a factor of two.
///
/// ```
/// use onefill::Histogram;
/// use std::time::Duration;
///
/// let nothing = Histogram::default();
/// assert_eq!((nothing.count(), nothing.quantile(0.99)), (0, Duration::ZERO));
/// assert_eq!(nothing.total(), Duration::ZERO);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; BUCKETS],
    micros: u64,
}

impl Histogram {
    /// How often.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// How long all of them took together: over [`count`](Histogram::count), the mean.
    pub fn total(&self) -> Duration {
        Duration::from_micros(self.micros)
    }

    /// What the fraction `q` of them took no longer than: the end of a bucket, so up to twice as
    /// long as it was. Zero if there are none.
    pub fn quantile(&self, q: f64) -> Duration {
        // At least one, so that the smallest is the smallest there is.
        let wanted = ((self.count() as f64 * q.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        bucket.map_or(Duration::ZERO, |bucket| Duration::from_micros(1 << bucket))
    }

    /// The buckets that are not empty: the time each ends at, and how many are in it.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let ends = (0..BUCKETS).map(|bucket| Duration::from_micros(1 << bucket));
        ends.zip(self.buckets).filter(|(_, count)| *count > 0)
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: [0; BUCKETS], micros: 0 }
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.buckets()).finish()
    }
}

/// How many, and what half of them, 99 in a hundred, and all of them took no longer than.
impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [half, most, all] = [0.5, 0.99, 1.0].map(|q| self.quantile(q));
        write!(f, "{} within {half:?}, {most:?}, {all:?}", self.count())
    }
}

/// How things stand at the moment of a [`Stats`] snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gauges {
    /// Values in L1, expired ones included.
    pub values: usize,
    /// Absences in L1, expired ones included.
    pub absences: usize,
    /// The weight of the values in L1; their number, where no weigher was set.
    pub weight: u64,
    /// Keys being loaded.
    pub flights: usize,
    /// For how long the one of them that began first has been loaded; zero if there is none. A
    /// source that hangs shows here before anything else does.
    pub oldest_flight: Duration,
    /// Callers waiting for another caller's load.
    pub waiting: usize,
    /// Loaders running.
    pub loading: usize,
    /// Loads waiting to be admitted.
    pub not_admitted: usize,
    /// Jobs waiting for a worker.
    pub queued: usize,
    /// Workers at work.
    pub working: usize,
}

impl Stats {
    /// The sum of the ends: how many calls have ended.
    pub fn calls(&self) -> u64 {
        self.ends().iter().map(|(_, count)| count).sum()
    }

    /// The ends of calls, each by its name.
    pub fn ends(&self) -> [(&'static str, u64); ENDS] {
        [
            ("hits", self.hits),
            ("absent hits", self.absent_hits),
            ("fleet hits", self.fleet_hits),
            ("stale", self.stale),
            ("loaded", self.loaded),
            ("followed", self.followed),
            ("failed", self.failed),
            ("panicked", self.panicked),
            ("abandoned", self.abandoned),
            ("timed out", self.timed_out),
            ("overloaded", self.overloaded),
            ("would deadlock", self.would_deadlock),
            ("closed", self.closed),
        ]
    }

    /// What happened besides, each by its name.
    pub fn events(&self) -> [(&'static str, u64); EVENTS] {
        [
            ("loads", self.loads),
            ("loads failed", self.loads_failed),
            ("loads panicked", self.loads_panicked),
            ("refreshes", self.refreshes_started),
            ("refreshes skipped", self.refreshes_skipped),
            ("stored", self.stored),
            ("not stored", self.not_stored),
            ("too heavy", self.too_heavy),
            ("degraded", self.degraded),
            ("loaded alone", self.loaded_alone),
            ("leases lost", self.leases_lost),
            ("fleet writes failed", self.fleet_writes_failed),
            ("not encoded", self.not_encoded),
            ("undecodable", self.undecodable),
        ]
    }
}

impl Gauges {
    /// What can be counted, each by its name; [`oldest_flight`](Gauges::oldest_flight) is a time.
    pub fn counts(&self) -> [(&'static str, u64); 9] {
        [
            ("values", self.values as u64),
            ("absences", self.absences as u64),
            ("weight", self.weight),
            ("flights", self.flights as u64),
            ("waiting", self.waiting as u64),
            ("loading", self.loading as u64),
            ("not admitted", self.not_admitted as u64),
            ("queued", self.queued as u64),
            ("working", self.working as u64),
        ]
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} calls", self.calls())?;
        list(f, ": ", &self.ends())?;
        list(f, "; ", &self.events())?;
        if self.load_times.count() > 0 {
            write!(f, "; load times {}", self.load_times)?;
        }
        let now = &self.gauges;
        write!(
            f,
            "; now {} values, {} absences, {} flights, {} waiting, {} loading",
            now.values, now.absences, now.flights, now.waiting, now.loading
        )?;
        if now.flights > 0 {
            write!(f, ", oldest flight {:?}", now.oldest_flight)?;
        }
        Ok(())
    }
}

fn list(f: &mut fmt::Formatter<'_>, lead: &str, counts: &[(&str, u64)]) -> fmt::Result {
    let mut between = lead;
    for (name, count) in counts.iter().filter(|(_, count)| *count > 0) {
        write!(f, "{between}{count} {name}")?;
        between = ", ";
    }
    Ok(())
}
