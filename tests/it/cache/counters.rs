//! Every call ends in one counter, and the counters add up.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

use crossbeam_channel::{Sender, unbounded};
use onefill::{Cache, Clock, Source, Stats};

use super::support::{
    Gate, Load, Numbers, assert_got, assert_idle, ms, numbers, on_workers, plain, secs,
    wait_for_followers, wait_for_quiet, watched,
};

#[test]
fn those_who_wait_are_not_counted_as_hits() {
    watched(|| {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |_: &Load<'_>| {
            held.pass();
            Ok(1)
        };
        let cache = plain().loader(loader).build().unwrap();
        thread::scope(|s| {
            (0..8).for_each(|_| drop(s.spawn(|| cache.get(&1).unwrap())));
            wait_for_followers(&cache, 7);
            gate.open();
        });
        let stats = cache.stats();
        assert_eq!((stats.hits, stats.fleet_hits, stats.loads, stats.followed), (0, 0, 1, 7));
        assert_got(cache.get(&1), 1, Source::Local);
        assert_eq!((cache.stats().hits, cache.stats().calls()), (1, 9));
    });
}

/// What the callers of a storm saw, to compare with the counters.
#[derive(Default)]
struct Seen {
    calls: AtomicU64,
    hits: AtomicU64,
    absent_hits: AtomicU64,
    stale: AtomicU64,
    loaded: AtomicU64,
    followed: AtomicU64,
    failed: AtomicU64,
    panicked: AtomicU64,
    abandoned: AtomicU64,
    timed_out: AtomicU64,
    overloaded: AtomicU64,
    would_deadlock: AtomicU64,
    closed: AtomicU64,
}

type Counted = Cache<u64, u64, String>;

impl Seen {
    fn call(&self, call: impl FnOnce() -> Result<onefill::Answer<u64>, onefill::Error<String>>) {
        use onefill::Error::*;
        self.calls.fetch_add(1, SeqCst);
        let counter = match catch_unwind(AssertUnwindSafe(call)) {
            Err(_) => &self.panicked,
            Ok(Ok(answer)) => match answer.source() {
                Source::Local if answer.is_absent() => &self.absent_hits,
                Source::Local => &self.hits,
                Source::Stale(_) => &self.stale,
                Source::Loaded => &self.loaded,
                Source::Followed => &self.followed,
                source => panic!("{source:?}"),
            },
            Ok(Err(error)) => match error {
                Failed(_) => &self.failed,
                Panicked(_) => &self.panicked,
                Abandoned => &self.abandoned,
                TimedOut { .. } => &self.timed_out,
                Overloaded { .. } => &self.overloaded,
                WouldDeadlock => &self.would_deadlock,
                Closed => &self.closed,
                error => panic!("{error:?}"),
            },
        };
        counter.fetch_add(1, SeqCst);
    }

    fn compare(&self, stats: &Stats) {
        let pairs = [
            ("calls", &self.calls, stats.calls()),
            ("hits", &self.hits, stats.hits),
            ("absent hits", &self.absent_hits, stats.absent_hits),
            ("stale", &self.stale, stats.stale),
            ("loaded", &self.loaded, stats.loaded),
            ("followed", &self.followed, stats.followed),
            ("failed", &self.failed, stats.failed),
            ("panicked", &self.panicked, stats.panicked),
            ("abandoned", &self.abandoned, stats.abandoned),
            ("timed out", &self.timed_out, stats.timed_out),
            ("overloaded", &self.overloaded, stats.overloaded),
            ("would deadlock", &self.would_deadlock, stats.would_deadlock),
            ("closed", &self.closed, stats.closed),
        ];
        for (what, seen, counted) in pairs {
            assert_eq!(seen.load(SeqCst), counted, "{what}");
        }
    }
}

#[test]
fn in_a_storm_each_call_is_counted_once_as_what_its_caller_saw() {
    watched(|| {
        for workers in [None, Some(3)] {
            let clock = Clock::manual();
            let seen: Arc<Seen> = Arc::default();
            let cell: Arc<std::sync::OnceLock<Counted>> = Arc::default();
            let (itself, inner) = (Arc::downgrade(&cell), Arc::clone(&seen));
            let loader = move |load: &Load<'_>| {
                let key = *load.key();
                match key % 8 {
                    0 => Err("away".into()),
                    1 => panic!("out of order"),
                    2 => Ok(None),
                    3 => {
                        thread::sleep(ms(3));
                        Ok(Some(key))
                    }
                    4 => {
                        let itself = itself.upgrade().unwrap();
                        inner.call(|| itself.get().unwrap().get(&key));
                        Ok(Some(key))
                    }
                    5 if load.previous().is_some() => Err("away".into()),
                    _ => Ok(Some(key)),
                }
            };
            let builder = numbers(&clock)
                .absent_ttl(secs(3))
                .stale_while_revalidate(secs(5))
                .stale_if_error(secs(20))
                .refresh_backoff(secs(1))
                .admission(2)
                .queue(2)
                .max_followers_per_key(3)
                .max_followers(8)
                .capacity(40)
                .loader(loader);
            let cache = on_workers(builder, workers).build().unwrap();
            assert!(cell.set(cache.clone()).is_ok());
            thread::scope(|s| {
                for thread in 0..16_u64 {
                    let (cache, clock, seen) = (&cache, &clock, &seen);
                    s.spawn(move || {
                        for n in 0..if cfg!(debug_assertions) { 500 } else { 5_000 } {
                            let key = (n * 7 + thread / 4) % 48;
                            let call = cache.with().timeout(ms(n % 4));
                            seen.call(|| match n % 5 {
                                0 => call.never_stale().get(&key),
                                1 => call.get_with(&key, |_| Ok(key)),
                                2 => cache.get(&key),
                                _ => call.get(&key),
                            });
                            match n % 97 {
                                0 => clock.advance(secs(2)),
                                1 => cache.invalidate(&key).unwrap(),
                                2 => cache.put(&key, key).unwrap(),
                                _ => {}
                            }
                        }
                    });
                }
            });
            wait_for_quiet(&cache);
            cache.close(secs(20));
            seen.call(|| cache.get(&0));
            let stats = cache.stats();
            seen.compare(&stats);
            assert_eq!(
                stats.loads,
                stats.loads_failed
                    + stats.loads_panicked
                    + stats.stored
                    + stats.not_stored
                    + stats.too_heavy,
                "every load ends in one of these"
            );
            for (what, count) in [
                ("hits", stats.hits),
                ("absent hits", stats.absent_hits),
                ("stale", stats.stale),
                ("loaded", stats.loaded),
                ("failed", stats.failed),
                ("panicked", stats.panicked),
                ("would deadlock", stats.would_deadlock),
                ("closed", stats.closed),
            ] {
                assert!(count > 0, "the storm had no {what}");
            }
            assert_idle(&cache);
        }
    });
}

#[test]
fn counts_of_threads_that_have_gone_are_kept() {
    watched(|| {
        let cache = plain().loader(|_: &Load<'_>| Ok(1)).build().unwrap();
        for _ in 0..50 {
            thread::scope(|s| drop(s.spawn(|| cache.get(&1).unwrap())));
        }
        let stats = cache.stats();
        assert_eq!((stats.hits, stats.loaded, stats.calls()), (49, 1, 50));
    });
}

#[test]
fn times_are_added_up() {
    watched(|| {
        let clock = Clock::manual();
        let time = clock.clone();
        let loader = move |load: &Load<'_>| {
            time.advance(ms(*load.key()));
            Ok(1)
        };
        let cache = numbers(&clock).loader(loader).build().unwrap();
        for key in [0, 200, 1_300] {
            assert_got(cache.get(&key), 1, Source::Loaded);
        }
        let stats = cache.stats();
        assert_eq!((stats.load_times.count(), stats.load_times.total()), (3, ms(1_500)));
        // By the system's clock: how long callers waited is real.
        let upto = stats.call_times.quantile(1.0) * 3;
        assert!(stats.call_times.count() == 3 && stats.call_times.total() <= upto);
    });
}

#[test]
fn stats_tell_what_there_is_and_are_silent_about_what_is_not() {
    watched(|| {
        let clock = Clock::manual();
        let cache = numbers(&clock)
            .stale_while_revalidate(secs(60))
            .loader(|load: &Load<'_>| match load.key() {
                0 => Err("away".to_string()),
                _ => Ok(Some(1)),
            })
            .build()
            .unwrap();
        assert_eq!(
            cache.stats().to_string(),
            "0 calls; now 0 values, 0 absences, 0 flights, 0 waiting, 0 loading"
        );
        assert!(cache.get(&0).is_err());
        assert_got(cache.get(&1), 1, Source::Loaded);
        assert_got(cache.get(&1), 1, Source::Local);
        clock.advance(secs(12));
        let _ = cache.get(&1).unwrap();
        wait_for_quiet(&cache);
        assert_eq!(
            cache.stats().to_string(),
            "4 calls: 1 hits, 1 stale, 1 loaded, 1 failed; 3 loads, 1 loads failed, 1 refreshes, \
             2 stored; load times 3 within 1µs, 1µs, 1µs; now 1 values, 0 absences, 0 flights, 0 waiting, 0 loading"
        );
    });
}

#[test]
fn gauges_tell_who_waits_for_what() {
    watched(|| {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |_: &Load<'_>| {
            held.pass();
            Ok(1)
        };
        let cache = plain().workers(2).queue(1).admission(1).loader(loader).build().unwrap();
        thread::scope(|s| {
            let call = |key: u64| {
                let cache = &cache;
                s.spawn(move || cache.get(&key).unwrap())
            };
            let _ = call(1);
            gate.wait_for(1);
            let _ = call(2);
            super::support::wait_for(|| cache.stats().gauges.not_admitted == 1);
            let _ = call(3);
            super::support::wait_for(|| cache.stats().gauges.queued == 1);
            let _ = call(1);
            wait_for_followers(&cache, 4);
            let now = cache.stats().gauges;
            assert_eq!((now.flights, now.loading, now.working), (3, 1, 2));
            gate.open();
        });
        wait_for_quiet(&cache);
        assert_eq!(cache.stats().gauges.values, 3);
    });
}

/// A load that hangs takes nothing with it but its own callers, who leave at their deadlines; and
/// while it hangs there is a gauge that says so.
#[test]
fn a_load_that_hangs_shows_while_it_hangs() {
    watched(|| {
        const HANGS: u64 = 0;
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |load: &Load<'_>| {
            if *load.key() == HANGS {
                held.pass();
            }
            Ok(*load.key())
        };
        let cache = plain().loader(loader).build().unwrap();
        let began = Instant::now();
        thread::scope(|s| {
            let leader = s.spawn(|| cache.get(&HANGS));
            gate.wait_for(1);
            let followers: Vec<_> = (0..49)
                .map(|_| s.spawn(|| (Instant::now(), cache.with().timeout(ms(200)).get(&HANGS))))
                .collect();
            for key in 1..=50 {
                assert_got(cache.get(&key), key, Source::Loaded);
            }
            for follower in followers {
                let (asked, result) = follower.join().unwrap();
                assert!(matches!(result, Err(onefill::Error::TimedOut { .. })), "{result:?}");
                assert!(asked.elapsed() >= ms(200));
            }
            let now = cache.stats().gauges;
            assert_eq!(now.flights, 1);
            assert!(now.oldest_flight >= ms(200) && now.oldest_flight <= began.elapsed());
            gate.open();
            assert_got(leader.join().unwrap(), HANGS, Source::Loaded);
        });
        assert_idle(&cache);
        assert_eq!(cache.stats().gauges.oldest_flight, ms(0));
    });
}

/// The cache is asked by the destructor of a variable that is older than the thread's counters, or
/// has never seen any.
#[test]
fn a_thread_that_is_leaving_may_call_and_is_counted() {
    static CACHE: OnceLock<Numbers> = OnceLock::new();
    struct Asks(Sender<Option<u64>>);
    impl Drop for Asks {
        fn drop(&mut self) {
            for key in [1, 2, 1] {
                let value = CACHE.get().unwrap().get(&key).unwrap().into_value();
                let _ = self.0.send(value);
            }
        }
    }
    thread_local! { static LAST_WORDS: RefCell<Option<Asks>> = const { RefCell::new(None) }; }
    watched(|| {
        let cache = CACHE
            .get_or_init(|| plain().loader(|load: &Load<'_>| Ok(*load.key())).build().unwrap());
        let mut calls = 0;
        for asks_before in [true, false] {
            let (said, heard) = unbounded();
            let leaving = thread::spawn(move || {
                LAST_WORDS.set(Some(Asks(said)));
                if asks_before {
                    let _ = cache.get(&1).unwrap();
                }
            });
            leaving.join().unwrap();
            assert_eq!(heard.iter().collect::<Vec<_>>(), [Some(1), Some(2), Some(1)]);
            calls += 3 + u64::from(asks_before);
            let stats = cache.stats();
            assert_eq!((stats.calls(), stats.loads), (calls, 2));
        }
        // Several at once.
        let threads = [(); 8].map(|()| {
            let (said, _) = unbounded();
            thread::spawn(move || {
                LAST_WORDS.set(Some(Asks(said)));
                let _ = cache.get(&1).unwrap();
            })
        });
        for leaving in threads {
            leaving.join().unwrap();
        }
        assert_eq!(cache.stats().calls(), calls + 4 * 8);
    });
}
