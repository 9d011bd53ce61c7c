//! [`Orders`]: what one process of a history is to do, and how it does it.

use std::cell::{Cell, RefCell};
use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use onefill::fleet::redis::Client;
use onefill::fleet::{Fleet, codec};
use onefill::{Cache, Error, Fill, Load, Source};

use super::database::{self, KEYS};
use super::record::{End, Log, Seen, Time, What, nanos, now};
use super::witness::Witness;

/// By which a process is told its orders.
const ORDERS: &str = "ONEFILL_HISTORY";

pub(crate) const NAMESPACE: &str = "history";
const TABLE: &str = "page";

/// For how long a value is fresh, and may be served after that while it is refreshed: together as
/// long as an invalidation may go unheard of.
pub(crate) const TTL: Duration = Duration::from_secs(4);
pub(crate) const STALE: Duration = Duration::from_millis(500);
/// Short, so that there are slow loads during which it is renewed, and some that lose it.
pub(crate) const LEASE: Duration = Duration::from_millis(600);
const LEASE_CAP: Duration = Duration::from_millis(900);
/// The longest of loads.
pub(crate) const LOAD: Duration = Duration::from_millis(1_800);
/// What a call may spend on the tier.
pub(crate) const BUDGET: Duration = Duration::from_millis(150);

/// Each fifth version of a key says that there is nothing.
pub(crate) fn is_absent(version: u64) -> bool {
    version.is_multiple_of(5)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Orders {
    pub(crate) process: usize,
    pub(crate) threads: usize,
    /// When to stop.
    pub(crate) until: Time,
    pub(crate) client: Client,
    pub(crate) url: String,
    /// Where the database is, and where the log is to be.
    pub(crate) directory: PathBuf,
}

impl Orders {
    /// As the environment of the process that is to follow them.
    pub(crate) fn to_environment(&self) -> (&'static str, String) {
        let Orders { process, threads, until, client, url, directory } = self;
        let orders =
            format!("{process} {threads} {until} {client:?} {url} {}", directory.display());
        (ORDERS, orders)
    }

    /// What this process is to do, if it is one of a history.
    pub(crate) fn of_this_process() -> Option<Orders> {
        let orders = env::var(ORDERS).ok()?;
        let words = orders.splitn(6, ' ').collect::<Vec<_>>();
        let [process, threads, until, client, url, directory] = words[..] else {
            panic!("{orders:?} are no orders");
        };
        let client = match client {
            #[cfg(feature = "redis")]
            "Redis" => Client::Redis,
            #[cfg(feature = "r2d2_redis")]
            "R2d2Redis" => Client::R2d2Redis,
            _ => panic!("{client} is no client of this build"),
        };
        Some(Orders {
            process: process.parse().expect("a number"),
            threads: threads.parse().expect("a number"),
            until: until.parse().expect("a number"),
            client,
            url: url.to_string(),
            directory: directory.into(),
        })
    }

    pub(crate) fn log(&self) -> PathBuf {
        log_of(&self.directory, self.process)
    }

    /// Does it.
    pub(crate) fn follow(&self) {
        let log = Arc::new(Log::create(&self.log(), self.process));
        let tier = Fleet::redis(&self.url).client(self.client).namespace(NAMESPACE);
        let tier = tier.tier().expect("these settings mean something");
        let witness = Witness::new(tier, TABLE, Arc::clone(&log));
        let fleet =
            Fleet::builder(witness).lease(LEASE).lease_cap(LEASE_CAP).budget(BUDGET).build();

        let builder = Cache::<u64, String, &'static str>::builder(TABLE).ttl(TTL).absent_ttl(TTL);
        let builder = builder.stale_while_revalidate(STALE).fleet(&fleet, codec::Raw);
        // Every other process has its loads done by workers.
        let builder = if self.process % 2 == 1 { builder.workers(4) } else { builder };
        let loader = {
            let (log, directory) = (Arc::clone(&log), self.directory.clone());
            move |load: &Load<'_, u64, String>| load_one(*load.key(), &directory, &log)
        };
        let cache = builder.loader(loader).build().expect("these settings mean something");

        thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(|| self.work(&cache, &log));
            }
            scope.spawn(|| self.watch_the_machine(&log));
        });
        assert_eq!(cache.close(Duration::from_secs(30)), 0, "a worker is busy still");
        log.write(0, now(), now(), counted(&cache));
        drop((cache, fleet));
        log.flush();
    }

    /// Writes down when threads are not woken in time.
    fn watch_the_machine(&self, log: &Log) {
        while now() < self.until {
            let begin = now();
            thread::sleep(Duration::from_millis(20));
            let end = now();
            if end - begin > nanos(Duration::from_millis(100)) {
                log.write(thread_number(), begin, end, What::Stalled);
            }
        }
    }

    /// What a thread does.
    fn work(&self, cache: &Cache<u64, String, &'static str>, log: &Log) {
        let me = thread_number();
        let mut draw = fastrand::Rng::with_seed(now() ^ (self.process * 1_000 + me) as u64);
        while now() < self.until {
            thread::sleep(Duration::from_micros(draw.u64(0..20_000)));
            match draw.u32(0..1_000) {
                0..30 => {
                    // Some keys are written often, and some hardly ever.
                    let key = draw.u64(0..KEYS) * draw.u64(0..KEYS) / KEYS;
                    let put = draw.bool();
                    let since = now();
                    let version = in_database(&self.directory, |database| database.write(key));
                    let begin = now();
                    let written = match put {
                        true => cache.put(&key, fill(key, version)),
                        false => cache.invalidate(&key),
                    };
                    let done = written.is_ok();
                    log.write(me, begin, now(), What::Wrote { key, version, put, done, since });
                }
                _ => {
                    let key = draw.u64(0..KEYS);
                    let patience = Duration::from_millis(draw.u64(20..1_500));
                    LOADING.set(0);
                    let begin = now();
                    let got = cache.with().timeout(patience).get(&key);
                    let end = now();
                    let loading = LOADING.get();
                    let age = got.as_ref().map_or(0, |answer| nanos(answer.age()));
                    let seen = match &got {
                        Ok(answer) => answer
                            .value()
                            .map_or(Seen::Absent, |value| Seen::Version(version(key, value))),
                        Err(_) => Seen::Nothing,
                    };
                    let patience = nanos(patience);
                    let how = how_it_ended(&got);
                    let what = What::Got { key, patience, loading, end: how, seen, age };
                    log.write(me, begin, end, what);
                }
            }
        }
    }
}

/// The log of a process in this directory.
pub(crate) fn log_of(directory: &Path, process: usize) -> PathBuf {
    directory.join(format!("process-{process}.log"))
}

/// A loader that reads, and then takes its time: what happens meanwhile makes it out of date.
fn load_one(key: u64, directory: &Path, log: &Log) -> Result<Fill<String>, &'static str> {
    let begin = now();
    let version = in_database(directory, |database| database.read(key));
    let millis = match fastrand::u32(0..1_000) {
        0..5 => LOAD.as_millis() as u64,
        5..40 => 450,
        40..150 => fastrand::u64(20..80),
        _ => fastrand::u64(0..5),
    };
    thread::sleep(Duration::from_millis(millis));
    let failed = fastrand::u32(0..25) == 0;
    let end = now();
    LOADING.set(LOADING.get() + (end - begin));
    let loaded = What::Loaded { key, version: (!failed).then_some(version) };
    log.write(thread_number(), begin, end, loaded);
    if failed { Err("the database does not feel like it") } else { Ok(fill(key, version)) }
}

fn fill(key: u64, version: u64) -> Fill<String> {
    match is_absent(version) {
        true => Fill::absent(),
        false => Fill::new(format!("{key}:{version}")),
    }
}

#[track_caller]
fn version(key: u64, value: &str) -> u64 {
    match value.split_once(':') {
        Some((of, version)) if of == key.to_string() => version.parse().expect("a version"),
        _ => panic!("{value:?} is not a value of {key}"),
    }
}

fn how_it_ended(got: &Result<onefill::Answer<String>, Error<&'static str>>) -> End {
    match got {
        Ok(answer) => match answer.source() {
            Source::Local if answer.is_absent() => End::AbsentHit,
            Source::Local => End::Hit,
            Source::Stale(_) => End::Stale,
            Source::Fleet => End::FleetHit,
            Source::Loaded | Source::Alone => End::Loaded,
            Source::Followed => End::Followed,
            source => panic!("{source:?} is new here"),
        },
        Err(Error::TimedOut { .. } | Error::WouldBlock) => End::TimedOut,
        Err(Error::Overloaded { .. }) => End::Overloaded,
        Err(Error::Abandoned) => End::Abandoned,
        Err(Error::Panicked(_)) => End::Panicked,
        Err(Error::WouldDeadlock) => End::WouldDeadlock,
        Err(Error::Closed) => End::Closed,
        Err(_) => End::Failed,
    }
}

fn counted(cache: &Cache<u64, String, &'static str>) -> What {
    let stats = cache.stats();
    let of = |end: &End| match end {
        End::Hit => stats.hits,
        End::AbsentHit => stats.absent_hits,
        End::FleetHit => stats.fleet_hits,
        End::Stale => stats.stale,
        End::Loaded => stats.loaded,
        End::Followed => stats.followed,
        End::Failed => stats.failed,
        End::Panicked => stats.panicked,
        End::Abandoned => stats.abandoned,
        End::TimedOut => stats.timed_out,
        End::Overloaded => stats.overloaded,
        End::WouldDeadlock => stats.would_deadlock,
        End::Closed => stats.closed,
    };
    let ended = stats.stored
        + stats.not_stored
        + stats.too_heavy
        + stats.loads_failed
        + stats.loads_panicked;
    What::Counted { ends: End::ALL.iter().map(of).collect(), loads: stats.loads, ended }
}

thread_local! {
    /// For how long this thread has been in the loader since it last looked.
    static LOADING: Cell<Time> = const { Cell::new(0) };
    static DATABASE: RefCell<Option<database::Client>> = const { RefCell::new(None) };
    static NUMBER: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(1);
        THREADS.fetch_add(1, Relaxed)
    };
}

/// Which of the process's threads this is, in the order in which they were first seen.
pub(crate) fn thread_number() -> usize {
    NUMBER.with(|number| *number)
}

fn in_database<T>(directory: &Path, ask: impl FnOnce(&mut database::Client) -> T) -> T {
    DATABASE.with_borrow_mut(|database| {
        ask(database.get_or_insert_with(|| database::Client::connect(directory)))
    })
}
