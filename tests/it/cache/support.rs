//! What the tests of the cache have in common: sources that can be held, keys with a trap, and
//! watchdogs, so that a test fails and does not hang.

use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, LocalKey};
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use onefill::fleet::{FleetKey, KeyEncoder};
use onefill::{Answer, Cache, CacheBuilder, Clock, Error, Source, Why};

/// No test takes nearly as long, on a busy machine either.
const PATIENCE: Duration = Duration::from_secs(40);

pub(crate) const STALE: Source = Source::Stale(Why::Revalidating);
pub(crate) const FAILED: Source = Source::Stale(Why::Failed);

pub(crate) type Numbers = Cache<u64, u64, String>;
pub(crate) type Load<'l> = onefill::Load<'l, u64, u64>;

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A cache to be set up, on a clock that stands still: fresh for ten seconds, and nothing drawn.
pub(crate) fn numbers(clock: &Clock) -> CacheBuilder<u64, u64, String> {
    Cache::builder("numbers").clock(clock.clone()).ttl(secs(10)).jitter(0.0).early_refresh(0.0)
}

/// Such a cache, on a clock that nobody moves.
pub(crate) fn plain() -> CacheBuilder<u64, u64, String> {
    numbers(&Clock::manual())
}

/// On so many workers, or on the threads of its callers.
pub(crate) fn on_workers<K, V, E>(
    builder: CacheBuilder<K, V, E>,
    workers: Option<usize>,
) -> CacheBuilder<K, V, E> {
    match workers {
        Some(workers) => builder.workers(workers),
        None => builder,
    }
}

/// What a caller got, in short.
pub(crate) type Got = Result<(Option<u64>, Source), Error<String>>;

pub(crate) fn got(result: Result<Answer<u64>, Error<String>>) -> Got {
    result.map(|answer| (answer.value().copied(), answer.source()))
}

/// Panics unless `result` is this value from this source.
#[track_caller]
pub(crate) fn assert_got(result: Result<Answer<u64>, Error<String>>, value: u64, source: Source) {
    match got(result) {
        Ok(found) => assert_eq!(found, (Some(value), source)),
        Err(error) => panic!("{error:?}"),
    }
}

/// Runs `body`, and panics if it does not end.
#[track_caller]
pub(crate) fn watched<R: Send + 'static>(body: impl FnOnce() -> R + Send + 'static) -> R {
    let (over, is_over) = bounded::<()>(0);
    let test = thread::spawn(move || {
        let _over = over;
        body()
    });
    let ended = is_over.recv_timeout(PATIENCE) != Err(crossbeam_channel::RecvTimeoutError::Timeout);
    assert!(ended, "the test hangs");
    match test.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Waits until `what` is so.
#[track_caller]
pub(crate) fn wait_for(mut what: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < PATIENCE / 2, "what is waited for does not come");
        thread::yield_now();
    }
}

/// Waits until `n` callers wait for another one's load.
#[track_caller]
pub(crate) fn wait_for_followers<K, V, E>(cache: &Cache<K, V, E>, n: usize)
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    wait_for(|| cache.stats().gauges.waiting == n);
}

/// Waits until nothing goes on behind the callers.
#[track_caller]
pub(crate) fn wait_for_quiet<K, V, E>(cache: &Cache<K, V, E>)
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    wait_for(|| {
        let now = cache.stats().gauges;
        now.flights + now.queued + now.working == 0
    });
    assert_idle(cache);
}

/// Panics if anything is left of what calls have set off.
#[track_caller]
pub(crate) fn assert_idle<K, V, E>(cache: &Cache<K, V, E>)
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    let now = cache.stats().gauges;
    let left = (now.flights, now.waiting, now.loading, now.not_admitted, now.queued, now.working);
    assert_eq!(
        left,
        (0, 0, 0, 0, 0, 0),
        "flights, waiting, loading, not admitted, queued, working"
    );
}

/// Where those who come wait until they are let through.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<AtGate>,
    changed: Condvar,
}

#[derive(Default)]
struct AtGate {
    came: usize,
    passes: usize,
    open: bool,
}

impl Gate {
    pub(crate) fn new() -> Arc<Gate> {
        Arc::default()
    }

    /// Waits to be let through.
    pub(crate) fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.came += 1;
        self.changed.notify_all();
        let shut = |state: &mut AtGate| !state.open && state.passes == 0;
        let (mut state, _) = self.changed.wait_timeout_while(state, PATIENCE, shut).unwrap();
        if !state.open {
            state.passes = state.passes.checked_sub(1).expect("nobody opens the gate");
        }
    }

    /// Waits until `n` have come, in all.
    #[track_caller]
    pub(crate) fn wait_for(&self, n: usize) {
        let state = self.state.lock().unwrap();
        let (state, _) =
            self.changed.wait_timeout_while(state, PATIENCE / 2, |state| state.came < n).unwrap();
        assert!(state.came >= n, "{} instead of {n} have come to the gate", state.came);
    }

    pub(crate) fn came(&self) -> usize {
        self.state.lock().unwrap().came
    }

    /// Lets one more through.
    pub(crate) fn let_one_pass(&self) {
        self.state.lock().unwrap().passes += 1;
        self.changed.notify_all();
    }

    /// Lets everyone through, now and later.
    pub(crate) fn open(&self) {
        self.state.lock().unwrap().open = true;
        self.changed.notify_all();
    }
}

/// What loaders read. Counts them.
#[derive(Default)]
pub(crate) struct Origin {
    value: AtomicU64,
    away: AtomicBool,
    calls: AtomicUsize,
    running: AtomicUsize,
    most: AtomicUsize,
}

impl Origin {
    pub(crate) fn new(value: u64) -> Arc<Origin> {
        Arc::new(Origin { value: AtomicU64::new(value), ..Origin::default() })
    }

    pub(crate) fn set(&self, value: u64) {
        self.value.store(value, SeqCst);
    }

    pub(crate) fn go_away(&self) {
        self.away.store(true, SeqCst);
    }

    pub(crate) fn come_back(&self) {
        self.away.store(false, SeqCst);
    }

    pub(crate) fn read(&self) -> Result<u64, String> {
        let _counted = self.count();
        if self.away.load(SeqCst) { Err("away".into()) } else { Ok(self.value.load(SeqCst)) }
    }

    /// Counts one loader as running until this is dropped.
    pub(crate) fn count(&self) -> Counted<'_> {
        self.calls.fetch_add(1, SeqCst);
        self.most.fetch_max(self.running.fetch_add(1, SeqCst) + 1, SeqCst);
        Counted(self)
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(SeqCst)
    }

    /// How many loaders ran at once at most.
    pub(crate) fn most(&self) -> usize {
        self.most.load(SeqCst)
    }
}

pub(crate) struct Counted<'o>(&'o Origin);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, SeqCst);
    }
}

/// A declared loader that reads `origin` whatever the key.
pub(crate) fn reads(origin: &Arc<Origin>) -> impl Fn(&Load<'_>) -> Result<u64, String> + use<> {
    let origin = Arc::clone(origin);
    move |_| origin.read()
}

/// A key in whose hashing, and in whose cloning, a test can step in: between the steps of a call.
/// So it can where the key is written down for a fleet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Trapped(pub(crate) u64);

/// How many calls are left until the trap springs, and what it does.
type Trap = (usize, Box<dyn FnOnce()>);

thread_local! {
    static IN_HASH: RefCell<Option<Trap>> = const { RefCell::new(None) };
    static IN_CLONE: RefCell<Option<Trap>> = const { RefCell::new(None) };
    static IN_WRITING: RefCell<Option<Trap>> = const { RefCell::new(None) };
}

fn step_on(trap: &'static LocalKey<RefCell<Option<Trap>>>) {
    let sprung = trap.with(|trap| {
        let mut trap = trap.borrow_mut();
        let (left, _) = trap.as_mut()?;
        *left -= 1;
        if *left == 0 { trap.take() } else { None }
    });
    if let Some((_, step_in)) = sprung {
        step_in();
    }
}

fn with_trap<R>(
    trap: &'static LocalKey<RefCell<Option<Trap>>>,
    n: usize,
    step_in: impl FnOnce() + 'static,
    call: impl FnOnce() -> R,
) -> (R, bool) {
    trap.set(Some((n, Box::new(step_in))));
    let result = call();
    (result, trap.take().is_none())
}

impl Hash for Trapped {
    fn hash<H: Hasher>(&self, state: &mut H) {
        step_on(&IN_HASH);
        self.0.hash(state);
    }
}

impl Clone for Trapped {
    fn clone(&self) -> Trapped {
        step_on(&IN_CLONE);
        Trapped(self.0)
    }
}

impl FleetKey for Trapped {
    fn encode(&self, out: &mut KeyEncoder) {
        step_on(&IN_WRITING);
        self.0.encode(out);
    }
}

/// The call of another one, who gets what is stale, and the end of whatever it sets off.
pub(crate) fn a_stale_answer_for_another<V>(
    cache: &Cache<Trapped, V, String>,
) -> impl FnOnce() + use<V>
where
    V: Clone + Send + Sync + 'static,
{
    let other = cache.clone();
    move || {
        let call = thread::spawn(move || {
            assert!(other.get(&Trapped(1)).unwrap().is_stale());
            wait_for_quiet(&other);
        });
        call.join().unwrap();
    }
}

/// Calls `step_in` at the `n`th hash from now on that this thread makes in `call`. Returns whether
/// there were as many.
pub(crate) fn at_hash<R>(
    n: usize,
    step_in: impl FnOnce() + 'static,
    call: impl FnOnce() -> R,
) -> (R, bool) {
    with_trap(&IN_HASH, n, step_in, call)
}

/// The same where the key is written down for the `n`th time.
pub(crate) fn at_writing<R>(
    n: usize,
    step_in: impl FnOnce() + 'static,
    call: impl FnOnce() -> R,
) -> (R, bool) {
    with_trap(&IN_WRITING, n, step_in, call)
}

/// The same at the `n`th clone.
pub(crate) fn at_clone<R>(
    n: usize,
    step_in: impl FnOnce() + 'static,
    call: impl FnOnce() -> R,
) -> (R, bool) {
    with_trap(&IN_CLONE, n, step_in, call)
}
