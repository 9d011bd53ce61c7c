//! How loads run: on which thread, how many at once, nested, and bounded by whose deadline.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, OnceLock};
use std::thread;
use std::time::Instant;

use onefill::{Cache, Clock, Source};

use super::support::{
    FAILED, Gate, Load, Numbers, Origin, STALE, Trapped, assert_got, assert_idle, at_clone, ms,
    numbers, on_workers, plain, reads, secs, wait_for, wait_for_followers, wait_for_quiet, watched,
};

/// A cache whose loader may ask it. The loader does not keep it open.
struct Nested(Arc<OnceLock<Numbers>>);

impl Deref for Nested {
    type Target = Numbers;
    fn deref(&self) -> &Numbers {
        self.0.get().expect("set before the first load")
    }
}

fn nested(
    workers: Option<usize>,
    admission: usize,
    loader: impl Fn(&Numbers, u64) -> Result<u64, String> + Send + Sync + 'static,
) -> Nested {
    let cache: Arc<OnceLock<Numbers>> = Arc::default();
    let itself = Arc::downgrade(&cache);
    let builder = plain().admission(admission).loader(move |load: &Load<'_>| {
        let itself = itself.upgrade().expect("the test waits for its loads");
        loader(&Nested(itself), *load.key())
    });
    let built = on_workers(builder, workers);
    assert!(cache.set(built.build().unwrap()).is_ok());
    Nested(cache)
}

/// On the threads of callers, and on workers; with a permit for each, and with one for all.
const KINDS: [(Option<usize>, usize); 4] = [(None, 64), (None, 1), (Some(1), 64), (Some(2), 1)];

#[test]
fn a_loader_may_ask_for_another_key() {
    watched(|| {
        for (workers, admission) in KINDS {
            let cache = nested(workers, admission, |cache, key| match key {
                0 => Ok(1),
                key => Ok(cache.get(&(key - 1)).unwrap().into_value().unwrap() + 1),
            });
            assert_got(cache.get(&100), 101, Source::Loaded);
            assert_eq!(cache.stats().loads, 101);
            assert_got(cache.get(&50), 51, Source::Local);
            wait_for_quiet(&cache);
        }
    });
}

#[test]
fn a_loader_that_asks_for_its_own_key_is_told_at_once() {
    watched(|| {
        for (workers, admission) in KINDS {
            let cache = nested(workers, admission, |cache, key| {
                let begun = Instant::now();
                let inner = cache.with().timeout(secs(20)).get(&key).unwrap_err();
                assert!(inner.is_would_deadlock() && begun.elapsed() < secs(10));
                Ok(1)
            });
            assert_got(cache.get(&1), 1, Source::Loaded);
            assert_got(cache.get(&1), 1, Source::Local);
            assert_eq!(cache.stats().would_deadlock, 1);
            wait_for_quiet(&cache);
        }
    });
}

#[test]
fn two_loaders_that_need_each_other_are_told_at_once() {
    watched(|| {
        for (workers, admission) in [(None, 64), (None, 2), (Some(2), 64), (Some(2), 2)] {
            let both = Barrier::new(2);
            let cache = nested(workers, admission, move |cache, key| {
                if key < 2 {
                    both.wait();
                    // One of the two is told, and the other one gets its answer.
                    match cache.with().timeout(secs(20)).get(&(1 - key)) {
                        Ok(answer) => return Ok(answer.into_value().unwrap() + 1),
                        Err(error) => assert!(error.is_would_deadlock(), "{error:?}"),
                    }
                }
                Ok(10)
            });
            let begun = Instant::now();
            thread::scope(|s| {
                let calls = [0, 1].map(|key| {
                    let cache = &cache;
                    s.spawn(move || cache.get(&key).unwrap().into_value().unwrap())
                });
                let mut got = calls.map(|call| call.join().unwrap());
                got.sort();
                assert_eq!(got, [10, 11]);
            });
            assert!(begun.elapsed() < secs(10));
            assert_eq!(cache.stats().would_deadlock, 1);
            wait_for_quiet(&cache);
        }
    });
}

/// Two caches, each with its own workers and permits, whose loaders ask the other one.
#[test]
fn a_circle_through_two_caches_is_told_at_once() {
    watched(|| {
        for workers in [false, true] {
            let others: Arc<[OnceLock<Numbers>; 2]> = Arc::default();
            let both = Arc::new(Barrier::new(2));
            for this in 0..2 {
                let (known, both) = (Arc::downgrade(&others), Arc::clone(&both));
                let loader = move |load: &Load<'_>| {
                    if *load.key() == 0 {
                        both.wait();
                        let known = known.upgrade().unwrap();
                        let other = known[1 - this].get().unwrap();
                        return match other.with().timeout(secs(20)).get(&0) {
                            Ok(answer) => Ok(answer.into_value().unwrap() + 1),
                            Err(error) => Ok(u64::from(error.is_would_deadlock()) * 10),
                        };
                    }
                    Ok(0)
                };
                let builder = plain().admission(1).loader(loader);
                let cache = if workers { builder.workers(1) } else { builder }.build().unwrap();
                others[this].set(cache).unwrap();
            }
            thread::scope(|s| {
                let calls = [0, 1].map(|cache| {
                    let cache = others[cache].get().unwrap();
                    s.spawn(move || cache.get(&0).unwrap().into_value().unwrap())
                });
                let mut got = calls.map(|call| call.join().unwrap());
                got.sort();
                assert_eq!(got, [10, 11]);
            });
            for cache in others.iter() {
                wait_for_quiet(cache.get().unwrap());
            }
        }
    });
}

/// The key that a loader asks for is in the queue, behind that very loader.
#[test]
fn a_loader_does_not_wait_for_the_queue_it_holds_up() {
    watched(|| {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let cache = nested(Some(1), 64, move |cache, key| match key {
            1 => {
                held.pass();
                Ok(cache.get(&2).unwrap().into_value().unwrap() + 1)
            }
            _ => Ok(2),
        });
        thread::scope(|s| {
            let first = s.spawn(|| cache.get(&1));
            gate.wait_for(1);
            let queued = s.spawn(|| cache.get(&2));
            wait_for(|| cache.stats().gauges.queued == 1);
            gate.open();
            assert_got(first.join().unwrap(), 3, Source::Loaded);
            assert_eq!(queued.join().unwrap().unwrap().into_value(), Some(2));
        });
        assert_eq!(cache.stats().loads, 2);
        wait_for_quiet(&cache);
    });
}

/// The loader comes to wait for the key just before that is put into the queue.
#[test]
fn a_loader_that_waits_for_a_key_keeps_it_out_of_the_queue() {
    watched(|| {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let itself: Arc<OnceLock<Cache<Trapped, u64, String>>> = Arc::default();
        let known = Arc::downgrade(&itself);
        let cache = Cache::<Trapped, u64, String>::builder("trapped")
            .ttl(secs(60))
            .workers(1)
            .loader(move |load: &onefill::Load<'_, Trapped, u64>| match load.key().0 {
                1 => {
                    held.pass();
                    let known = known.upgrade().unwrap();
                    let part = known.get().unwrap().get(&Trapped(2)).unwrap();
                    Ok(part.into_value().unwrap() + 1)
                }
                _ => Ok(2),
            })
            .build()
            .unwrap();
        assert!(itself.set(cache.clone()).is_ok());
        thread::scope(|s| {
            let first = s.spawn(|| cache.get(&Trapped(1)).unwrap().into_value());
            gate.wait_for(1);
            let (gate, other) = (Arc::clone(&gate), cache.clone());
            // The first clone is the registry's. By the second the key is boarded.
            let step_in = move || {
                gate.open();
                wait_for_followers(&other, 2);
            };
            let (second, sprung) = at_clone(2, step_in, || cache.get(&Trapped(2)));
            assert!(sprung);
            assert_eq!(second.unwrap().into_value(), Some(2));
            assert_eq!(first.join().unwrap(), Some(3));
        });
        assert_eq!(cache.stats().loads, 2);
        wait_for_quiet(&cache);
    });
}

/// The same over a caller's own thread: a worker waits for the caller, and what the caller's loader
/// asks for would have to wait for the worker.
#[test]
fn a_loader_on_a_callers_thread_does_not_wait_for_workers_that_wait_for_it() {
    watched(|| {
        // With the key in the queue already, and without.
        for queued in [true, false] {
            let (gate, ready) = (Gate::new(), Gate::new());
            let held = Arc::clone(&gate);
            let cache = nested(Some(1), 64, move |cache, key| match key {
                1 => {
                    held.pass();
                    Ok(cache.get(&0).unwrap().into_value().unwrap() + 1)
                }
                _ => Ok(2),
            });
            thread::scope(|s| {
                let caller = s.spawn(|| {
                    cache.get_with(&0, |_| {
                        ready.pass();
                        Ok(cache.get(&2).unwrap().into_value().unwrap() + 1)
                    })
                });
                ready.wait_for(1);
                let on_worker = s.spawn(|| cache.get(&1));
                gate.wait_for(1);
                gate.open();
                // Two wait: for the worker, and the worker for the caller.
                wait_for_followers(&cache, 2);
                let in_queue = queued.then(|| {
                    let in_queue = s.spawn(|| cache.get(&2));
                    wait_for(|| cache.stats().gauges.queued == 1);
                    in_queue
                });
                ready.open();
                assert_got(caller.join().unwrap(), 3, Source::Loaded);
                assert_got(on_worker.join().unwrap(), 4, Source::Loaded);
                if let Some(in_queue) = in_queue {
                    assert_eq!(in_queue.join().unwrap().unwrap().into_value(), Some(2));
                }
            });
            wait_for_quiet(&cache);
        }
    });
}

/// The one thread of the pool refreshes a key whose loader asks for others.
#[test]
fn a_refresh_may_ask_for_other_keys() {
    watched(|| {
        let clock = Clock::manual();
        let handle: Arc<OnceLock<Numbers>> = Arc::default();
        let itself = Arc::downgrade(&handle);
        let origin = Origin::new(0);
        let counted = Arc::clone(&origin);
        let hand = clock.clone();
        let loader = move |load: &Load<'_>| {
            let _counted = counted.count();
            let on = thread::current().name().unwrap_or_default().to_owned();
            let handle = itself.upgrade().unwrap();
            match *load.key() {
                1 => {
                    let part = handle.get().unwrap().get(&2).unwrap().into_value().unwrap();
                    Ok(part + load.previous().unwrap_or(&0) + 1)
                }
                _ => {
                    // In its stale window again by the time it is asked for.
                    hand.advance(secs(1));
                    Ok(if on.starts_with("onefill-") { 100 } else { 10 })
                }
            }
        };
        let cache = numbers(&clock)
            .stale_while_revalidate(secs(60))
            .workers(1)
            .queue(1)
            .loader(loader)
            .build()
            .unwrap();
        let _ = handle.set(cache.clone());
        assert_got(cache.get(&1), 101, Source::Loaded);
        cache.invalidate(&2).unwrap();
        clock.advance(secs(12));
        assert_got(cache.get(&1), 101, STALE);
        wait_for_quiet(&cache);
        assert_got(cache.get(&1), 202, Source::Local);
        assert_eq!((origin.calls(), cache.stats().timed_out), (4, 0));
    });
}

#[test]
fn a_slow_load_holds_nobody_else_up() {
    watched(|| {
        for workers in [None, Some(4)] {
            let gate = Gate::new();
            let held = Arc::clone(&gate);
            let loader = move |load: &Load<'_>| {
                if *load.key() == 0 {
                    held.pass();
                }
                Ok(*load.key())
            };
            let builder = plain().loader(loader);
            let cache = on_workers(builder, workers).build().unwrap();
            thread::scope(|s| {
                let slow = s.spawn(|| cache.get(&0));
                gate.wait_for(1);
                let others: Vec<_> = (0..8)
                    .map(|thread| {
                        let cache = &cache;
                        s.spawn(move || {
                            for key in (1..=100).filter(|key| key % 8 == thread) {
                                assert_eq!(cache.get(&key).unwrap().into_value(), Some(key));
                            }
                        })
                    })
                    .collect();
                others.into_iter().for_each(|other| other.join().unwrap());
                assert!(!slow.is_finished());
                assert_eq!(cache.stats().loaded + cache.stats().followed, 100);
                gate.open();
                assert_got(slow.join().unwrap(), 0, Source::Loaded);
            });
            wait_for_quiet(&cache);
        }
    });
}

/// The leader's deadline is the leader's.
#[test]
fn with_workers_a_leader_that_gives_up_takes_nobody_with_it() {
    watched(|| {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |_: &Load<'_>| {
            held.pass();
            Ok(1)
        };
        let cache = plain().workers(1).loader(loader).build().unwrap();
        thread::scope(|s| {
            let leader = s.spawn(|| {
                let begun = Instant::now();
                let result = cache.with().timeout(ms(80)).get(&1);
                (result.unwrap_err().is_timed_out(), begun.elapsed())
            });
            gate.wait_for(1);
            let followers = [(); 10].map(|()| s.spawn(|| cache.with().timeout(secs(30)).get(&1)));
            let (timed_out, took) = leader.join().unwrap();
            assert!(timed_out && (ms(80)..secs(5)).contains(&took), "{took:?}");
            wait_for_followers(&cache, 10);
            gate.open();
            for follower in followers {
                assert_got(follower.join().unwrap(), 1, Source::Followed);
            }
        });
        assert_eq!(gate.came(), 1);
        wait_for_quiet(&cache);
    });
}

#[test]
fn without_workers_a_leader_gets_its_value_however_late() {
    watched(|| {
        let loader = |_: &Load<'_>| {
            thread::sleep(ms(30));
            Ok(1)
        };
        let cache = plain().timeout(ms(1)).loader(loader).build().unwrap();
        assert_got(cache.get(&1), 1, Source::Loaded);
        assert_got(cache.get(&1), 1, Source::Local);
    });
}

/// A load that takes longer than any caller waits fills the cache for the callers to come.
#[test]
fn with_workers_a_load_goes_on_when_all_have_given_up() {
    watched(|| {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |_: &Load<'_>| {
            held.pass();
            Ok(8)
        };
        let cache = plain().workers(2).timeout(ms(30)).loader(loader).build().unwrap();
        thread::scope(|s| {
            let callers = [(); 20].map(|()| s.spawn(|| cache.get(&1)));
            for caller in callers {
                assert!(caller.join().unwrap().unwrap_err().is_timed_out());
            }
        });
        gate.open();
        wait_for_quiet(&cache);
        assert_got(cache.get(&1), 8, Source::Local);
        assert_eq!(gate.came(), 1);
        let stats = cache.stats();
        assert_eq!((stats.loads, stats.timed_out, stats.hits), (1, 20, 1));
    });
}

#[test]
fn no_more_loads_run_at_once_than_are_admitted() {
    watched(|| {
        for workers in [None, Some(8)] {
            let origin = Origin::new(0);
            let counted = Arc::clone(&origin);
            let loader = move |load: &Load<'_>| {
                let _counted = counted.count();
                thread::sleep(ms(1));
                Ok(*load.key())
            };
            let builder = plain().admission(3).loader(loader);
            let cache = on_workers(builder, workers).build().unwrap();
            thread::scope(|s| {
                for thread in 0..12 {
                    let cache = &cache;
                    s.spawn(move || {
                        for key in 0..10 {
                            let key = thread * 100 + key;
                            assert_eq!(cache.get(&key).unwrap().into_value(), Some(key));
                        }
                    });
                }
            });
            assert_eq!((origin.calls(), origin.most()), (120, 3));
            wait_for_quiet(&cache);
        }
    });
}

#[test]
fn a_deadline_bounds_the_wait_for_admission() {
    watched(|| {
        for workers in [None, Some(4)] {
            let clock = Clock::manual();
            let gate = Gate::new();
            let held = Arc::clone(&gate);
            let loader = move |load: &Load<'_>| {
                if *load.key() == 0 {
                    held.pass();
                }
                Ok(2)
            };
            let builder = numbers(&clock).admission(1).stale_if_error(secs(60)).loader(loader);
            let cache = on_workers(builder, workers).build().unwrap();
            cache.put(&2, 1).unwrap();
            clock.advance(secs(12));
            thread::scope(|s| {
                let busy = s.spawn(|| cache.get(&0));
                gate.wait_for(1);
                let begun = Instant::now();
                assert!(cache.with().timeout(ms(50)).get(&1).unwrap_err().is_timed_out());
                assert!((ms(50)..secs(5)).contains(&begun.elapsed()));
                // Better old than late.
                let stale = Source::Stale(onefill::Why::TimedOut);
                assert_got(cache.with().timeout(ms(50)).get(&2), 1, stale);
                gate.open();
                assert_got(busy.join().unwrap(), 2, Source::Loaded);
            });
            wait_for_quiet(&cache);
            assert_eq!(cache.get(&1).unwrap().into_value(), Some(2));
        }
    });
}

/// The caller that leads while it waits for admission goes when its time is up, and another one of
/// those who wait for the key leads.
#[test]
fn a_leader_that_is_not_admitted_in_time_is_followed_by_another() {
    watched(|| {
        for workers in [None, Some(4)] {
            let gate = Gate::new();
            let held = Arc::clone(&gate);
            let loader = move |load: &Load<'_>| {
                if *load.key() == 0 {
                    held.pass();
                }
                Ok(*load.key())
            };
            let builder = plain().admission(1).loader(loader);
            let cache = on_workers(builder, workers).build().unwrap();
            thread::scope(|s| {
                let busy = s.spawn(|| cache.get(&0));
                gate.wait_for(1);
                let hasty = s.spawn(|| cache.with().timeout(ms(60)).get(&1));
                wait_for(|| cache.stats().gauges.not_admitted == 1);
                let patient = [(); 3].map(|()| s.spawn(|| cache.get(&1)));
                assert!(hasty.join().unwrap().unwrap_err().is_timed_out());
                wait_for(|| cache.stats().gauges.not_admitted == 1);
                gate.open();
                assert_got(busy.join().unwrap(), 0, Source::Loaded);
                for patient in patient {
                    assert_eq!(patient.join().unwrap().unwrap().into_value(), Some(1));
                }
            });
            wait_for_quiet(&cache);
            assert_eq!(cache.stats().loads, 2);
        }
    });
}

/// However loads end, and whatever they ask for meanwhile, as many can run at once as before.
#[test]
fn no_permit_is_lost() {
    watched(|| {
        for workers in [None, Some(4)] {
            const PERMITS: usize = 4;
            let together = Arc::new(Barrier::new(PERMITS));
            let meet = Arc::clone(&together);
            let cache = nested(workers, PERMITS, move |cache, key| match key {
                1_000_000.. => {
                    // As many as there are permits, or nobody gets through.
                    meet.wait();
                    Ok(key)
                }
                _ => match key % 6 {
                    0 => Err("away".into()),
                    1 => panic!("no such key"),
                    2 => cache.get(&(key + 1)).map(|a| a.into_value().unwrap()).or(Ok(0)),
                    3 => Ok(cache.get(&key).map_or(3, |_| 0)),
                    4 => {
                        let waited = cache.with().timeout(ms(1)).get(&(key % 12));
                        Ok(waited.map_or(4, |a| a.into_value().unwrap()))
                    }
                    _ => Ok(key),
                },
            });
            thread::scope(|s| {
                for thread in 0..8 {
                    let cache = &cache;
                    s.spawn(move || {
                        for n in 0..60 {
                            let key = n * (1 + thread % 2);
                            let call = || cache.with().timeout(ms(1 + n % 3)).get(&key);
                            let _ = catch_unwind(AssertUnwindSafe(call));
                        }
                    });
                }
            });
            wait_for_quiet(&cache);
            thread::scope(|s| {
                for key in 0..PERMITS as u64 {
                    let cache = &cache;
                    s.spawn(move || cache.get(&(1_000_000 + key)).unwrap());
                }
            });
            wait_for_quiet(&cache);
        }
    });
}

#[test]
fn callers_that_cannot_wait_for_a_worker_are_turned_away_or_get_what_is_old() {
    watched(|| {
        let clock = Clock::manual();
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |load: &Load<'_>| {
            if *load.key() < 10 {
                held.pass();
            }
            Ok(2)
        };
        let cache = numbers(&clock)
            .stale_if_error(secs(60))
            .workers(1)
            .queue(1)
            .loader(loader)
            .build()
            .unwrap();
        cache.put(&20, 1).unwrap();
        clock.advance(secs(12));
        thread::scope(|s| {
            let running = s.spawn(|| cache.get(&1));
            gate.wait_for(1);
            let queued = s.spawn(|| cache.get(&2));
            wait_for(|| cache.stats().gauges.queued == 1);
            let refused = cache.get(&3).unwrap_err();
            let expected = onefill::Cap::Workers;
            assert!(
                matches!(refused, onefill::Error::Overloaded { cap, limit: 1 } if cap == expected)
            );
            assert_got(cache.get(&20), 1, Source::Stale(onefill::Why::Overloaded));
            // Those of a key that is being loaded need no worker.
            let follower = s.spawn(|| cache.get(&1));
            wait_for_followers(&cache, 3);
            gate.open();
            for call in [running, queued, follower] {
                assert_eq!(call.join().unwrap().unwrap().into_value(), Some(2));
            }
        });
        wait_for_quiet(&cache);
        assert_got(cache.get(&3), 2, Source::Loaded);
        assert_eq!(cache.stats().overloaded, 1);
    });
}

#[test]
fn callers_above_the_caps_are_turned_away_or_get_what_is_old() {
    watched(|| {
        let clock = Clock::manual();
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |_: &Load<'_>| {
            held.pass();
            Ok(2)
        };
        let cache = numbers(&clock)
            .stale_if_error(secs(60))
            .max_followers_per_key(2)
            .max_followers(3)
            .loader(loader)
            .build()
            .unwrap();
        cache.put(&1, 1).unwrap();
        clock.advance(secs(12));
        thread::scope(|s| {
            let leaders = [1, 2].map(|key| {
                let cache = &cache;
                s.spawn(move || cache.get(&key))
            });
            gate.wait_for(2);
            let followers = [(); 2].map(|()| s.spawn(|| cache.get(&1)));
            wait_for_followers(&cache, 2);
            assert_got(cache.get(&1), 1, Source::Stale(onefill::Why::Overloaded));
            let per_key = cache.with().never_stale().get(&1).unwrap_err();
            assert!(per_key.is_overloaded(), "{per_key:?}");
            let last = s.spawn(|| cache.get(&2));
            wait_for_followers(&cache, 3);
            assert!(cache.get(&2).unwrap_err().is_overloaded());
            gate.open();
            for call in leaders.into_iter().chain(followers).chain([last]) {
                assert_eq!(call.join().unwrap().unwrap().into_value(), Some(2));
            }
        });
        assert_idle(&cache);
    });
}

#[test]
fn a_load_that_hangs_is_replaced_when_it_is_overdue() {
    watched(|| {
        let gates = [Gate::new(), Gate::new()];
        let (held, numbers) = (gates.clone(), AtomicUsize::new(0));
        let loader = move |_: &Load<'_>| {
            let number = numbers.fetch_add(1, SeqCst);
            held[number].pass();
            Ok(number as u64)
        };
        let cache = plain().max_flight_age(ms(50)).loader(loader).build().unwrap();
        thread::scope(|s| {
            let hangs = s.spawn(|| cache.get(&1));
            gates[0].wait_for(1);
            thread::sleep(ms(50));
            let next = s.spawn(|| cache.get(&1));
            gates[1].wait_for(1);
            gates[1].open();
            assert_got(next.join().unwrap(), 1, Source::Loaded);
            gates[0].open();
            assert_got(hangs.join().unwrap(), 0, Source::Loaded);
        });
        assert_got(cache.get(&1), 1, Source::Local);
        assert_idle(&cache);
    });
}

/// Under churn, too: what is being loaded is not part of what may be pushed out.
#[test]
fn a_flight_outlives_any_number_of_other_keys() {
    watched(|| {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |load: &Load<'_>| {
            if *load.key() == 0 {
                held.pass();
            }
            Ok(*load.key())
        };
        let cache = plain().capacity(8).absent_capacity(1).loader(loader).build().unwrap();
        thread::scope(|s| {
            let leader = s.spawn(|| cache.get(&0));
            gate.wait_for(1);
            for key in 1..=10_000 {
                assert_got(cache.get(&key), key, Source::Loaded);
            }
            let followers = [(); 5].map(|()| s.spawn(|| cache.get(&0)));
            wait_for_followers(&cache, 5);
            gate.open();
            assert_got(leader.join().unwrap(), 0, Source::Loaded);
            for follower in followers {
                assert_got(follower.join().unwrap(), 0, Source::Followed);
            }
        });
        assert_eq!(gate.came(), 1);
        assert_idle(&cache);
    });
}

#[test]
fn loads_run_on_workers_named_after_the_cache() {
    watched(|| {
        let names = |cache: Cache<u64, String, String>| {
            let first = cache.get(&1).unwrap().into_value().unwrap();
            (first, cache.close(secs(5)))
        };
        let name = |_: &onefill::Load<'_, u64, String>| {
            Ok(thread::current().name().unwrap_or_default().to_owned())
        };
        let builder = || Cache::builder("product").ttl(secs(60)).loader(name);
        assert_eq!(names(builder().workers(1).build().unwrap()).0, "onefill-product-1");
        let here = thread::current().name().unwrap_or_default().to_owned();
        assert_eq!(names(builder().build().unwrap()), (here, 0));
    });
}

#[test]
fn a_failed_load_with_a_stale_value_behind_it_is_answered_with_that() {
    watched(|| {
        for workers in [None, Some(1)] {
            let clock = Clock::manual();
            let origin = Origin::new(1);
            let builder = numbers(&clock).stale_if_error(secs(60)).loader(reads(&origin));
            let cache = on_workers(builder, workers).build().unwrap();
            assert_got(cache.get(&1), 1, Source::Loaded);
            origin.go_away();
            clock.advance(secs(12));
            assert_got(cache.get(&1), 1, FAILED);
            wait_for_quiet(&cache);
        }
    });
}

/// A loader that changes its own key and asks for it, whoever runs it.
#[test]
fn a_loader_that_invalidates_its_own_key_and_asks_for_it_comes_to_an_end() {
    watched(|| {
        for workers in [None, Some(3)] {
            let own: Arc<OnceLock<Numbers>> = Arc::default();
            let (me, depth) = (Arc::clone(&own), Arc::new(AtomicUsize::new(0)));
            let nested = Arc::clone(&depth);
            let loader = move |load: &Load<'_>| {
                nested.fetch_add(1, SeqCst);
                let cache = me.get().unwrap();
                cache.invalidate(load.key()).unwrap();
                cache.prewarm([*load.key()]).run();
                match cache.get(load.key()) {
                    Ok(answer) => Ok(answer.value().unwrap() + 1),
                    Err(error) => {
                        assert!(error.is_would_deadlock(), "{error:?}");
                        Ok(10)
                    }
                }
            };
            let builder = plain().loader(loader);
            let cache = on_workers(builder, workers);
            own.set(cache.build().unwrap()).unwrap();
            let cache = own.get().unwrap();
            assert!(cache.get(&1).is_ok());
            // The outer one, the prewarm in it, and the call after that.
            assert!(depth.load(SeqCst) <= 3, "{depth:?} nested");
            wait_for_quiet(cache);
        }
    });
}

#[test]
fn a_late_caller_is_told_of_all_its_waiting() {
    watched(|| {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |load: &Load<'_>| {
            if *load.key() == 0 {
                held.pass();
            }
            Ok(1)
        };
        let cache = plain().workers(4).admission(1).loader(loader).build().unwrap();
        thread::scope(|s| {
            s.spawn(|| cache.get(&0));
            gate.wait_for(1);
            let first = s.spawn(|| cache.with().timeout(ms(400)).get(&1));
            wait_for(|| cache.stats().gauges.not_admitted == 1);
            // Waits for the first one's load, and, when that is given up, for one of its own.
            match cache.with().timeout(ms(800)).get(&1) {
                Err(onefill::Error::TimedOut { waited }) => assert!(waited > ms(600), "{waited:?}"),
                other => panic!("{other:?}"),
            }
            assert!(first.join().unwrap().unwrap_err().is_timed_out());
            gate.open();
        });
        wait_for_quiet(&cache);
    });
}
