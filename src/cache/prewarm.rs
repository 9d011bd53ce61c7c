//! [`Prewarm`]: loading keys ahead of their callers.

use std::fmt;
use std::hash::Hash;
use std::iter::Fuse;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Sender, unbounded};

use crate::admission::{self, Lane};
use crate::deadline::Deadline;
use crate::flight;
use crate::workers::contain;

use super::Cache;
use super::ladder::Terms;
use super::refresh::{Ended, Job, NoRoom};

/// A prewarm to be run. Made by [`Cache::prewarm`].
///
/// The keys are loaded by the declared loader, on the [workers](crate::CacheBuilder::workers) and
/// under the [admission](crate::CacheBuilder::admission) that the background has, so that callers go
/// first. A key that fails is counted and forgotten, one that hangs is left
/// behind when the budget is spent: nothing here can keep a service from starting.
///
/// # Example
///
/// ```
/// # use onefill::{Cache, Load};
/// # use std::time::Duration;
/// # let squares: Cache<u64, u64, String> = Cache::builder("squares")
/// #     .ttl(Duration::from_secs(60))
/// #     .loader(|load: &Load<'_, u64, u64>| if *load.key() == 13 { Err("unlucky".into()) } else { Ok(load.key() * load.key()) })
/// #     .build()?;
/// let report = squares
///     .prewarm(1..=100)
///     .budget(Duration::from_secs(10))
///     .on_progress(|progress| assert!(progress.done <= progress.asked))
///     .run();
/// assert_eq!((report.loaded, report.failed), (99, 1));
/// # Ok::<(), onefill::BuildError>(())
/// ```
#[must_use = "nothing is loaded until it is run"]
pub struct Prewarm<'c, K, V, E, I> {
    cache: &'c Cache<K, V, E>,
    keys: Fuse<I>,
    budget: Deadline,
    at_once: usize,
    on_progress: Box<dyn FnMut(&Progress) + 'c>,
}

impl<K, V, E, I> fmt::Debug for Prewarm<'_, K, V, E, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prewarm").field("budget", &self.budget).finish_non_exhaustive()
    }
}

/// How far a prewarm has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Keys taken from the iterator so far.
    pub asked: usize,
    /// Keys that are done with: loaded, there already, or failed.
    pub done: usize,
}

/// What became of a prewarm's keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrewarmReport {
    /// Loaded; those that turned out absent among them.
    pub loaded: usize,
    /// In L1, or being loaded for somebody else, in this process or another.
    pub already_there: usize,
    /// Their loader returned an error or panicked.
    pub failed: usize,
    /// Begun, and not done when the budget was spent.
    pub unfinished: usize,
}

impl fmt::Display for PrewarmReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PrewarmReport { loaded, already_there, failed, unfinished } = self;
        write!(
            f,
            "{loaded} loaded, {already_there} already there, {failed} failed, {unfinished} unfinished"
        )
    }
}

impl<'c, K, V, E, I> Prewarm<'c, K, V, E, I>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
    I: Iterator<Item = K>,
{
    pub(super) fn new(cache: &'c Cache<K, V, E>, keys: I) -> Self {
        Prewarm {
            cache,
            keys: keys.fuse(),
            budget: Deadline::NEVER,
            at_once: usize::MAX,
            on_progress: Box::new(|_| ()),
        }
    }

    /// Returns when this much time has passed, whatever is unfinished. Defaults to as long as it
    /// takes. A loader that runs on this thread (see [`run`](Prewarm::run)) is not interrupted: then
    /// the budget bounds what is waited for, and no other key is begun after it.
    pub fn budget(mut self, budget: Duration) -> Self {
        self.budget = Deadline::after(budget);
        self
    }

    /// Loads this many keys at once at most. Defaults to as many as there are workers for the
    /// background.
    pub fn at_once(mut self, loads: usize) -> Self {
        self.at_once = loads.max(1);
        self
    }

    /// Called on this thread after each key.
    pub fn on_progress(mut self, on_progress: impl FnMut(&Progress) + 'c) -> Self {
        self.on_progress = Box::new(on_progress);
        self
    }

    /// Loads the keys and returns when all are done with, or the budget is spent.
    ///
    /// Without a declared loader every key that is not in L1 has failed.
    ///
    /// Run by a loader of this cache, the keys are loaded on its thread, one after the other: on a
    /// worker they could wait for that very loader, which waits for them. A loader of another cache or
    /// of a [`Group`](crate::Group) could be waited for in a roundabout way. So it does the same
    /// without a [budget](Prewarm::budget), and with one, which ends whatever waits, it leaves the
    /// keys to the workers.
    pub fn run(mut self) -> PrewarmReport {
        let (ended, ends) = unbounded();
        let at_once = self.at_once.min(self.cache.room.workers.background());
        let mut report = PrewarmReport::default();
        let mut progress = Progress::default();
        // Taken from the iterator, and not begun because there was no room in the queue.
        let mut pending = None;
        loop {
            if self.budget.has_passed() || self.cache.room.is_closed() {
                break;
            }
            if report.unfinished < at_once {
                let key = pending.take().or_else(|| {
                    progress.asked += 1;
                    self.keys.next()
                });
                match key.map(|key| (self.begin(&key, &ended), key)) {
                    Some((Begun::Now, _)) => {
                        report.unfinished += 1;
                        continue;
                    }
                    Some((Begun::Before, _)) => report.already_there += 1,
                    Some((Begun::Never, _)) => report.failed += 1,
                    Some((Begun::NoRoom, key)) => pending = Some(key),
                    None => {
                        progress.asked -= 1;
                        if report.unfinished == 0 {
                            break;
                        }
                    }
                }
                if report.done() > progress.done {
                    progress.done = report.done();
                    (self.on_progress)(&progress);
                    continue;
                }
            }
            // Nothing is heard of room in the queue, nor of loads that end up unrun because the
            // cache is closed.
            let pause = PACE.min(self.budget.remaining().unwrap_or(PACE));
            let heard = {
                let _lent = admission::lend();
                ends.recv_timeout(pause)
            };
            let Ok(ended) = heard else { continue };
            report.unfinished -= 1;
            match ended {
                Ended::Well => report.loaded += 1,
                Ended::Badly => report.failed += 1,
                Ended::Elsewhere => report.already_there += 1,
            }
            progress.done = report.done();
            (self.on_progress)(&progress);
        }
        report.unfinished += usize::from(pending.is_some());
        report
    }

    fn begin(&self, key: &K, ended: &Sender<Ended>) -> Begun {
        let room = &self.cache.room;
        let asked = room.local.asked(key);
        if room.local.get(asked).is_some_and(|kept| room.is_fresh(&kept)) {
            return Begun::Before;
        }
        if room.loader.is_none() {
            return Begun::Never;
        }
        if room.group.is_flying(asked.hash, key) {
            return Begun::Before;
        }
        let here = room.group.is_driven_here()
            || (flight::drives_here() && self.budget == Deadline::NEVER);
        let behind = room.behind();
        let job = Job {
            room: Arc::clone(room),
            key: asked.hashed(),
            flight: None,
            terms: if here { Terms { deadline: self.budget, ..behind } } else { behind },
            lane: Lane::Background,
            report: Some(ended.clone()),
        };
        if here {
            // What asks for this loader's own key on a worker would close a circle that nobody sees.
            contain(Box::new(|| job.run()));
            return Begun::Now;
        }
        match room.submit(job) {
            Ok(()) => Begun::Now,
            Err(NoRoom) => Begun::NoRoom,
        }
    }
}

/// What became of the attempt to begin a key.
enum Begun {
    Now,
    Before,
    Never,
    NoRoom,
}

/// How soon to look again for room in the workers' queue, and whether the cache is closed.
const PACE: Duration = Duration::from_millis(10);

impl PrewarmReport {
    fn done(&self) -> usize {
        self.loaded + self.already_there + self.failed
    }
}
