//! What the tests of a fleet share: instances on one memory, loaders that wait for their cue, a
//! watchdog.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use onefill::fleet::memory::{Memory, Op};
use onefill::fleet::{
    Acquired, Committed, Entry, Epoch, Event, Fleet, FleetBuilder, Key, Lease, Listener, News,
    Notice, Origin, Ownership, Reaction, Seen, Stored, Table, Tier, Token, codec,
};
use onefill::{Answer, Cache, CacheBuilder, Clock, Deadline, Error, Fill, Load, TierError};

pub(super) type Pages = Cache<u64, String, &'static str>;
pub(super) type Builder = CacheBuilder<u64, String, &'static str>;
pub(super) type Asked<'a> = Load<'a, u64, String>;
pub(super) type Loaded = Result<Fill<String>, &'static str>;

/// Longer than anything in here takes on a busy machine: past it, something hangs.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// What a busy machine may add to a wait.
pub(super) const NOISE: Duration = Duration::from_secs(3);

/// For how long a value of [`Instance`] is fresh, unless its test says otherwise.
pub(super) const TTL: Duration = Duration::from_secs(60);

pub(super) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Runs the body of a test where it can hang without hanging the test.
pub(super) fn within<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = bounded(1);
    thread::spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(body));
        // Nobody receives it if the test was given up.
        let _ = done.send(result);
    });
    match ended.recv_timeout(PATIENCE) {
        Ok(Ok(value)) => value,
        Ok(Err(payload)) => resume_unwind(payload),
        Err(_) => panic!("some thread of this test hangs: no end within {PATIENCE:?}"),
    }
}

/// Waits until `condition` holds.
#[track_caller]
pub(super) fn until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        // Before `within` gives the test up, so that the message is this one.
        assert!(started.elapsed() < PATIENCE / 2, "waited in vain until {what}");
        thread::sleep(Duration::from_micros(200));
    }
}

/// How many claims an instance may make in this time for one key that another one is loading: the
/// first, and one for each time it has heard nothing for so long that the notice may be lost.
pub(super) fn claims_in(time: Duration) -> u64 {
    1 + (time.as_millis() / 187) as u64
}

/// The key of the instances' table, as the memory knows it.
pub(super) fn key(id: u64) -> Key {
    Key::new(&table(), &id)
}

pub(super) fn table() -> Table {
    Table::new("page")
}

/// A cache and its own connection to the memory, as a process would have.
pub(super) struct Instance {
    pub(super) cache: Pages,
    pub(super) fleet: Fleet,
    pub(super) link: Arc<Memory>,
}

/// An instance with a loader, and every setting but the budget, jitter and early refresh at its
/// default.
pub(super) fn instance(
    memory: &Memory,
    loader: impl Fn(&Asked<'_>) -> Loaded + Send + Sync + 'static,
) -> Instance {
    start(memory, |fleet| fleet, |cache| cache.loader(loader))
}

/// An instance with settings of its own.
pub(super) fn start(
    memory: &Memory,
    fleet: impl FnOnce(FleetBuilder) -> FleetBuilder,
    cache: impl FnOnce(Builder) -> Builder,
) -> Instance {
    let link = Arc::new(memory.peer());
    on(Arc::clone(&link), link, fleet, cache)
}

/// Two instances on one clock, whose loader says that nothing has changed if it is told of anything.
pub(super) fn two_that_see_no_change(memory: &Memory, clock: &Clock) -> [Instance; 2] {
    let unchanged = |load: &Asked<'_>| {
        Ok(load.previous().map_or(Fill::new("new".into()), |_| Fill::unchanged()))
    };
    [0; 2].map(|_| {
        let settings = |c: Builder| c.stale_if_error(TTL).clock(clock.clone());
        start(memory, |f| f, |c| settings(c).loader(unchanged))
    })
}

/// An instance on a tier that leads to `link`.
pub(super) fn on(
    tier: impl Tier + 'static,
    link: Arc<Memory>,
    fleet: impl FnOnce(FleetBuilder) -> FleetBuilder,
    cache: impl FnOnce(Builder) -> Builder,
) -> Instance {
    // So that on a busy machine no answer is too slow, but where that is the subject.
    let fleet = fleet(Fleet::builder(tier).budget(NOISE)).build();
    let builder = Pages::builder("page").ttl(TTL).jitter(0.0).early_refresh(0.0);
    let cache = cache(builder.fleet(&fleet, codec::Raw)).build().unwrap();
    Instance { cache, fleet, link }
}

impl Instance {
    pub(super) fn get(&self, id: u64) -> Result<Answer<String>, Error<&'static str>> {
        self.cache.get(&id)
    }

    /// The value, where there must be one.
    #[track_caller]
    pub(super) fn value(&self, id: u64) -> String {
        value(self.get(id))
    }

    pub(super) fn count(&self, op: Op) -> u64 {
        self.link.count(op)
    }

    /// Waits until so many claims of this instance have been answered, or are about to be: it
    /// stood in line for what is heard of the key before it made them.
    #[track_caller]
    pub(super) fn until_claimed(&self, claims: u64) {
        until(&format!("{claims} claims were made"), || self.count(Op::Acquire) >= claims);
    }

    /// Waits until so many callers wait for another caller's load.
    #[track_caller]
    pub(super) fn until_following(&self, followers: usize) {
        until(&format!("{followers} callers follow"), || {
            self.cache.stats().gauges.waiting >= followers
        });
    }

    /// Waits until no job of the workers is left.
    #[track_caller]
    pub(super) fn until_refreshed(&self) {
        until("the workers are idle", || {
            let gauges = self.cache.stats().gauges;
            gauges.queued + gauges.working + gauges.flights == 0
        });
    }
}

#[track_caller]
pub(super) fn value(answer: Result<Answer<String>, Error<&'static str>>) -> String {
    match answer.map(Answer::into_value) {
        Ok(Some(value)) => value,
        Ok(None) => panic!("absent"),
        Err(error) => panic!("no value: {error}"),
    }
}

/// A holder that takes the lease of a key, whatever is stored there, and is never heard of again.
pub(super) fn dead_holder(memory: &Memory, id: u64, ttl: Duration) -> Token {
    let token = Token::random();
    let lease = Lease::new(token, ttl);
    let seen = memory.stored(&key(id)).and_then(|stored| Seen::of(&stored.bytes));
    assert_eq!(memory.acquire(&key(id), lease, seen, Deadline::NEVER), Ok(Acquired::Won));
    token
}

/// The loader of a test that decides when and how each load ends.
#[derive(Clone)]
pub(super) struct Stage {
    begun: (Sender<()>, Receiver<()>),
    ends: (Sender<Loaded>, Receiver<Loaded>),
    loads: Arc<AtomicUsize>,
}

impl Stage {
    pub(super) fn new() -> Stage {
        Stage { begun: unbounded(), ends: unbounded(), loads: Arc::default() }
    }

    pub(super) fn loader(&self) -> impl Fn(&Asked<'_>) -> Loaded + Send + Sync + 'static + use<> {
        let stage = self.clone();
        move |_| {
            stage.loads.fetch_add(1, SeqCst);
            stage.begun.0.send(()).unwrap();
            stage.ends.1.recv_timeout(PATIENCE).expect("a load is told its end")
        }
    }

    /// Waits for a load to begin.
    #[track_caller]
    pub(super) fn begun(&self) {
        self.begun.1.recv_timeout(PATIENCE / 2).expect("a load begins");
    }

    /// Ends one load.
    pub(super) fn end(&self, end: Loaded) {
        self.ends.0.send(end).unwrap();
    }

    pub(super) fn end_with(&self, value: &str) {
        self.end(Ok(Fill::new(value.to_string())));
    }

    pub(super) fn loads(&self) -> usize {
        self.loads.load(SeqCst)
    }
}

/// Counts the loads of all instances that are given its loaders.
#[derive(Clone, Default)]
pub(super) struct Meter(Arc<AtomicUsize>);

impl Meter {
    pub(super) fn loads(&self) -> usize {
        self.0.load(SeqCst)
    }

    /// A loader whose values say which load they are of: `1`, `2`, …
    pub(super) fn numbered(&self) -> impl Fn(&Asked<'_>) -> Loaded + Send + Sync + 'static + use<> {
        self.loader(|nth| Ok(Fill::new(nth.to_string())))
    }

    pub(super) fn loader<F>(
        &self,
        load: F,
    ) -> impl Fn(&Asked<'_>) -> Loaded + Send + Sync + 'static + use<F>
    where
        F: Fn(usize) -> Loaded + Send + Sync + 'static,
    {
        let loads = Arc::clone(&self.0);
        move |_| load(loads.fetch_add(1, SeqCst) + 1)
    }
}

/// A tier that can be deaf, or not know when leases end, and that knows which threads renew them.
#[derive(Debug)]
pub(super) struct Tapped {
    pub(super) memory: Arc<Memory>,
    pub(super) deaf: bool,
    pub(super) endless: bool,
    /// Whether it panics, whatever it is asked.
    pub(super) panics: AtomicBool,
    /// Whether a notice comes with the answer to each claim.
    pub(super) noisy: bool,
    /// How many claims it has answered with something of no use, if it does so.
    pub(super) rubbish: Option<AtomicUsize>,
    pub(super) renewers: Mutex<Vec<ThreadId>>,
    pub(super) listener: Mutex<Option<Weak<dyn Listener>>>,
}

impl Tapped {
    pub(super) fn new(memory: &Arc<Memory>) -> Tapped {
        let memory = Arc::clone(memory);
        let (renewers, listener) = (Mutex::default(), Mutex::default());
        let panics = AtomicBool::new(false);
        let (deaf, endless, noisy) = (false, false, false);
        Tapped { memory, deaf, endless, panics, noisy, rubbish: None, renewers, listener }
    }

    fn trip(&self) {
        assert!(!self.panics.load(SeqCst), "the tier is broken");
    }

    /// Tells whoever listens through this tier.
    pub(super) fn tell(&self, event: &Event) {
        let listener = self.listener.lock().unwrap().as_ref().and_then(Weak::upgrade);
        listener.expect("somebody listens").hear(event);
    }
}

/// An instance that never hears of any other, as where the subscription is refused.
pub(super) fn start_deaf(
    memory: &Memory,
    fleet: impl FnOnce(FleetBuilder) -> FleetBuilder,
    cache: impl FnOnce(Builder) -> Builder,
) -> Instance {
    let link = Arc::new(memory.peer());
    on(Tapped { deaf: true, ..Tapped::new(&link) }, link, fleet, cache)
}

impl Tier for Tapped {
    fn lookup(&self, key: &Key, deadline: Deadline) -> Result<Option<Stored>, TierError> {
        self.trip();
        self.memory.lookup(key, deadline)
    }

    fn acquire(
        &self,
        key: &Key,
        lease: Lease,
        seen: Option<Seen>,
        deadline: Deadline,
    ) -> Result<Acquired, TierError> {
        self.trip();
        if let Some(answered) = &self.rubbish {
            answered.fetch_add(1, SeqCst);
            return Ok(Acquired::Hit(Stored { bytes: b"rubbish".to_vec(), left: Some(TTL) }));
        }
        if self.noisy {
            let news = News::Invalidated { key: key.fingerprint() };
            self.tell(&Event::Notice(Notice { from: Origin::random(), news }));
        }
        Ok(match self.memory.acquire(key, lease, seen, deadline)? {
            Acquired::Held { .. } if self.endless => {
                Acquired::Held { holder: None, left: Duration::ZERO }
            }
            acquired => acquired,
        })
    }

    fn commit(
        &self,
        key: &Key,
        entry: Entry<'_>,
        from: Origin,
        deadline: Deadline,
    ) -> Result<Committed, TierError> {
        self.trip();
        self.memory.commit(key, entry, from, deadline)
    }

    fn renew(&self, key: &Key, lease: Lease, deadline: Deadline) -> Result<Ownership, TierError> {
        self.trip();
        self.renewers.lock().unwrap().push(thread::current().id());
        self.memory.renew(key, lease, deadline)
    }

    fn release(
        &self,
        key: &Key,
        token: Token,
        reaction: Reaction,
        from: Origin,
        deadline: Deadline,
    ) -> Result<Ownership, TierError> {
        self.trip();
        self.memory.release(key, token, reaction, from, deadline)
    }

    fn invalidate(&self, key: &Key, from: Origin, deadline: Deadline) -> Result<(), TierError> {
        self.trip();
        self.memory.invalidate(key, from, deadline)
    }

    fn put(
        &self,
        key: &Key,
        entry: Entry<'_>,
        from: Origin,
        deadline: Deadline,
    ) -> Result<(), TierError> {
        self.trip();
        self.memory.put(key, entry, from, deadline)
    }

    fn epoch(&self, table: &Table, deadline: Deadline) -> Result<Epoch, TierError> {
        self.memory.epoch(table, deadline)
    }

    fn invalidate_all(
        &self,
        table: &Table,
        epoch: Epoch,
        from: Origin,
        deadline: Deadline,
    ) -> Result<(), TierError> {
        self.memory.invalidate_all(table, epoch, from, deadline)
    }

    fn listen(&self, listener: Weak<dyn Listener>) {
        *self.listener.lock().unwrap() = Some(Weak::clone(&listener));
        if !self.deaf {
            self.memory.listen(listener);
        }
    }
}
