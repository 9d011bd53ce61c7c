//! What the tests share: a watchdog, ways to wait for an interleaving, a meter for loaders.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use onefill::{Deadline, Error, Group, Join, Lead};

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Longer than anything in here takes on a busy machine: past it, something hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a busy machine may add to a wait.
pub(crate) const NOISE: Duration = Duration::from_secs(5);

/// Runs the body of a test where it can hang without hanging the test.
pub(crate) fn within<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
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

/// Spins until `condition` holds.
pub(crate) fn until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        // Before `within` gives the test up, so that the message is this one.
        assert!(started.elapsed() < PATIENCE / 2, "waited in vain until {what}");
        thread::yield_now();
    }
}

/// Spins until `followers` callers of `group` have a seat.
///
/// They are counted under the gate of their flight, so whatever its driver does from now on, it
/// does to seated followers.
pub(crate) fn until_waiting<K, V, E>(group: &Group<K, V, E>, followers: usize) {
    until(&format!("{followers} callers wait"), || group.waiting() == followers);
}

/// Goes through the gate of the flight of `key`, which this thread leads.
///
/// A follower that was counted there has drawn its edge in the graph of waits by then, too.
pub(crate) fn pass_own_gate<K, V, E>(group: &Group<K, V, E>, key: &K)
where
    K: Hash + Eq + Clone,
    V: Clone,
{
    assert!(group.try_run(key, unwanted).is_err_and(|error| error.is_would_deadlock()));
}

/// Leads a flight of `key`, which nobody else does.
pub(crate) fn lead<'g, K, V, E>(group: &'g Group<K, V, E>, key: &K) -> Lead<'g, K, V, E>
where
    K: Hash + Eq + Clone,
    V: Clone,
{
    match group.join(key, Deadline::NEVER) {
        Ok(Join::Lead(lead)) => lead,
        _ => panic!("somebody else leads this key"),
    }
}

/// The loader of a caller that must not lead.
pub(crate) fn unwanted<V, E>() -> Result<V, E> {
    panic!("a loader ran that had no business to")
}

/// Panics without the message on stderr, as thousands of tests of panics would like to.
pub(crate) fn quiet_panic() -> ! {
    resume_unwind(Box::new("a quiet panic"))
}

/// Calls `body`, which must panic, and returns what it said.
#[track_caller]
pub(crate) fn panic_of<T>(body: impl FnOnce() -> T) -> String {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(_) => panic!("no panic came"),
        Err(payload) => match payload.downcast::<&str>() {
            Ok(text) => text.to_string(),
            Err(payload) => *payload.downcast::<String>().expect("a panic says something"),
        },
    }
}

/// Nothing is in flight and nobody waits.
#[track_caller]
pub(crate) fn assert_idle<K, V, E>(group: &Group<K, V, E>) {
    assert_eq!((group.len(), group.waiting()), (0, 0), "flights and waiting callers left behind");
    assert!(group.is_empty());
}

/// The value, where there must be one.
pub(crate) trait Must<V> {
    #[track_caller]
    fn must(self) -> V;
}

impl<V, E: fmt::Display> Must<V> for Result<V, Error<E>> {
    #[track_caller]
    fn must(self) -> V {
        self.unwrap_or_else(|error| panic!("no value: {error}"))
    }
}

/// Counts loaders: how many ran, and how many at once.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    runs: AtomicUsize,
    running: AtomicUsize,
    highest: AtomicUsize,
}

impl Meter {
    pub(crate) fn new() -> Meter {
        Meter::default()
    }

    /// Runs a loader, even one that panics.
    pub(crate) fn count<T>(&self, loader: impl FnOnce() -> T) -> T {
        struct Running<'a>(&'a AtomicUsize);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, SeqCst);
            }
        }
        self.runs.fetch_add(1, SeqCst);
        let running = self.running.fetch_add(1, SeqCst) + 1;
        self.highest.fetch_max(running, SeqCst);
        let _running = Running(&self.running);
        loader()
    }

    /// How many loaders ran.
    pub(crate) fn runs(&self) -> usize {
        self.runs.load(SeqCst)
    }

    /// How many ran at once, at most.
    pub(crate) fn highest(&self) -> usize {
        self.highest.load(SeqCst)
    }
}

/// A key whose hash is that of all others: they share a shard and, as far as the hash goes, a
/// place in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Crowded(pub(crate) u64);

impl Hash for Crowded {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u8(0);
    }
}

/// A key that counts how often it is compared: once by each caller that finds its flight boarded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watched(Arc<AtomicUsize>);

impl Watched {
    /// How many callers have found a flight. From the next landing on they have its outcome.
    pub(crate) fn found(&self) -> usize {
        self.0.load(SeqCst)
    }
}

impl Hash for Watched {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u8(0);
    }
}

impl PartialEq for Watched {
    fn eq(&self, _: &Watched) -> bool {
        self.0.fetch_add(1, SeqCst);
        true
    }
}

impl Eq for Watched {}
