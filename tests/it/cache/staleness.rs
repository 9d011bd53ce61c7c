//! Windows, refreshes behind callers, refreshes ahead of time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use onefill::{Cache, Clock, Fill, Source, Why};

use super::support::{
    FAILED, Gate, Load, Numbers, Origin, STALE, Trapped, a_stale_answer_for_another, assert_got,
    assert_idle, at_hash, got, ms, numbers, reads, secs, wait_for, wait_for_quiet, watched,
};

#[test]
fn the_windows_begin_where_freshness_ends() {
    watched(|| {
        // A window longer than the TTL, and one that is shorter: the same total.
        for (ttl, window) in [(secs(600), secs(120)), (secs(120), secs(600))] {
            for behind in [true, false] {
                let clock = Clock::manual();
                let origin = Origin::new(1);
                let builder = numbers(&clock).ttl(ttl);
                let builder = match behind {
                    true => builder.stale_while_revalidate(window),
                    false => builder.stale_if_error(window),
                };
                let cache = builder.loader(reads(&origin)).build().unwrap();
                assert_got(cache.get(&1), 1, Source::Loaded);
                origin.go_away();
                clock.advance(ttl - ms(1));
                assert_got(cache.get(&1), 1, Source::Local);
                assert_eq!(origin.calls(), 1);
                clock.advance(ms(1));
                let stale = if behind { STALE } else { FAILED };
                assert_got(cache.get(&1), 1, stale);
                wait_for_quiet(&cache);
                clock.advance(window - ms(1));
                assert_got(cache.get(&1), 1, stale);
                wait_for_quiet(&cache);
                clock.advance(ms(1));
                assert!(cache.get(&1).unwrap_err().is_failed());
            }
        }
    });
}

#[test]
fn a_refreshed_value_has_a_whole_life_before_it() {
    watched(|| {
        let clock = Clock::manual();
        let origin = Origin::new(1);
        let cache = numbers(&clock)
            .ttl(secs(300))
            .stale_while_revalidate(secs(5))
            .loader(reads(&origin))
            .build()
            .unwrap();
        assert_got(cache.get(&1), 1, Source::Loaded);
        clock.advance(secs(301));
        origin.set(2);
        assert_got(cache.get(&1), 1, STALE);
        wait_for_quiet(&cache);
        for at in [0, 20, 299] {
            clock.advance(secs(at) - cache.peek(&1).unwrap().age());
            assert_got(cache.get(&1), 2, Source::Local);
        }
        assert_eq!(origin.calls(), 2);
        clock.advance(secs(1));
        assert_got(cache.get(&1), 2, STALE);
        wait_for_quiet(&cache);
    });
}

#[test]
fn a_stale_value_is_served_for_the_error_window_and_no_longer() {
    watched(|| {
        let clock = Clock::manual();
        let origin = Origin::new(1);
        let cache = numbers(&clock)
            .ttl(secs(1))
            .stale_if_error(secs(2))
            .refresh_backoff(ms(0))
            .loader(reads(&origin))
            .build()
            .unwrap();
        assert_got(cache.get(&1), 1, Source::Loaded);
        origin.go_away();
        for tenth in 1..60 {
            clock.advance(ms(100));
            match tenth {
                ..10 => assert_got(cache.get(&1), 1, Source::Local),
                10..30 => assert_got(cache.get(&1), 1, FAILED),
                _ => assert!(cache.get(&1).unwrap_err().is_failed()),
            }
        }
        assert_eq!(origin.calls(), 1 + 50);
        assert_eq!(cache.stats().stale, 20);
    });
}

/// A back-off does not make a value servable for longer.
#[test]
fn a_back_off_ends_with_the_window() {
    watched(|| {
        let clock = Clock::manual();
        let origin = Origin::new(1);
        let cache = numbers(&clock)
            .stale_if_error(secs(2))
            .refresh_backoff(secs(3_600))
            .loader(reads(&origin))
            .build()
            .unwrap();
        assert_got(cache.get(&1), 1, Source::Loaded);
        origin.go_away();
        clock.advance(secs(11));
        assert_got(cache.get(&1), 1, FAILED);
        origin.come_back();
        origin.set(2);
        assert_got(cache.get(&1), 1, FAILED);
        clock.advance(secs(1));
        assert_got(cache.get(&1), 2, Source::Loaded);
    });
}

#[test]
fn reading_a_value_does_not_make_it_younger() {
    watched(|| {
        let clock = Clock::manual();
        let origin = Origin::new(1);
        let cache = numbers(&clock).ttl(ms(500)).loader(reads(&origin)).build().unwrap();
        let start = std::sync::Barrier::new(5);
        thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..220 {
                        start.wait();
                        assert!(cache.get(&1).unwrap().age() < ms(500));
                        start.wait();
                    }
                });
            }
            for _ in 0..220 {
                start.wait();
                start.wait();
                clock.advance(ms(10));
            }
        });
        // At 0, 0.5, 1, 1.5 and 2 seconds.
        assert_eq!(origin.calls(), 5);
    });
}

/// A load may take longer than its value is fresh.
#[test]
fn a_load_slower_than_its_values_are_fresh_still_brings_new_ones() {
    watched(|| {
        let clock = Clock::manual();
        let (origin, count) = (Origin::new(0), AtomicU64::new(0));
        let (counted, hand) = (Arc::clone(&origin), clock.clone());
        let loader = move |_: &Load<'_>| {
            let _counted = counted.count();
            hand.advance(ms(300));
            Ok(count.fetch_add(1, SeqCst))
        };
        let cache = numbers(&clock)
            .ttl(ms(100))
            .stale_while_revalidate(secs(10))
            .loader(loader)
            .build()
            .unwrap();
        assert_got(cache.get(&1), 0, Source::Loaded);
        for round in 0..5 {
            clock.advance(ms(150));
            for _ in 0..3 {
                assert!(cache.get(&1).unwrap().into_value().unwrap() >= round);
            }
            wait_for_quiet(&cache);
            assert!(cache.get(&1).unwrap().into_value().unwrap() > round);
            wait_for_quiet(&cache);
        }
        assert_eq!(origin.most(), 1);
        assert!(origin.calls() <= 11, "{}", origin.calls());
    });
}

#[test]
fn a_refresh_that_hangs_keeps_no_value_past_its_windows() {
    watched(|| {
        let clock = Clock::manual();
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |load: &Load<'_>| {
            if load.previous().is_some() {
                held.pass();
            }
            Ok(1)
        };
        let cache = numbers(&clock)
            .ttl(ms(100))
            .stale_while_revalidate(ms(400))
            .loader(loader)
            .build()
            .unwrap();
        assert_got(cache.get(&1), 1, Source::Loaded);
        for tick in 1..25 {
            clock.advance(ms(20));
            let source = if tick < 5 { Source::Local } else { STALE };
            assert_got(cache.with().timeout(ms(50)).get(&1), 1, source);
        }
        // Until it has begun, a caller could take it over.
        gate.wait_for(1);
        let stale = cache.stats().stale;
        for _ in 0..5 {
            clock.advance(ms(20));
            let begun = Instant::now();
            assert!(cache.with().timeout(ms(50)).get(&1).unwrap_err().is_timed_out());
            assert!((ms(50)..secs(5)).contains(&begun.elapsed()));
        }
        assert_eq!(cache.stats().stale, stale);
        assert!(cache.peek(&1).is_none());
        assert_eq!(gate.came(), 1);
        gate.open();
        wait_for_quiet(&cache);
        assert_got(cache.get(&1), 1, Source::Local);
    });
}

#[test]
fn a_refresh_that_finds_the_queue_full_is_skipped_and_not_forgotten() {
    watched(|| {
        let clock = Clock::manual();
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |load: &Load<'_>| {
            if *load.key() != 0 {
                held.pass();
            }
            Ok(2)
        };
        let cache = numbers(&clock)
            .stale_while_revalidate(secs(60))
            .workers(1)
            .queue(1)
            .loader(loader)
            .build()
            .unwrap();
        for key in 0..3 {
            cache.put(&key, 1).unwrap();
        }
        clock.advance(secs(12));
        assert_got(cache.get(&1), 1, STALE);
        gate.wait_for(1);
        assert_got(cache.get(&2), 1, STALE);
        for skipped in 1..=3 {
            assert_got(cache.get(&0), 1, STALE);
            assert_eq!(cache.stats().refreshes_skipped, skipped);
        }
        gate.open();
        wait_for_quiet(&cache);
        assert_got(cache.get(&0), 1, STALE);
        wait_for_quiet(&cache);
        assert_got(cache.get(&0), 2, Source::Local);
        let stats = cache.stats();
        assert_eq!((stats.refreshes_started, stats.refreshes_skipped), (3, 3));
    });
}

#[test]
fn many_stale_hits_are_one_refresh() {
    watched(|| {
        let clock = Clock::manual();
        let (gate, origin) = (Gate::new(), Origin::new(2));
        let (held, read) = (Arc::clone(&gate), reads(&origin));
        let loader = move |load: &Load<'_>| {
            held.pass();
            read(load)
        };
        let cache =
            numbers(&clock).stale_while_revalidate(secs(60)).loader(loader).build().unwrap();
        cache.put(&1, 1).unwrap();
        clock.advance(secs(12));
        thread::scope(|s| {
            for _ in 0..16 {
                s.spawn(|| (0..63).for_each(|_| assert_got(cache.get(&1), 1, STALE)));
            }
        });
        gate.open();
        wait_for_quiet(&cache);
        assert_got(cache.get(&1), 2, Source::Local);
        let stats = cache.stats();
        assert_eq!((stats.stale, stats.refreshes_started, stats.loads), (16 * 63, 1, 1));
    });
}

#[test]
fn refreshes_of_many_keys_are_bounded_by_workers_and_queue() {
    watched(|| {
        let clock = Clock::manual();
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |_: &Load<'_>| {
            held.pass();
            Ok(2)
        };
        let cache = numbers(&clock)
            .stale_while_revalidate(secs(60))
            .capacity(20_000)
            .workers(2)
            .queue(64)
            .loader(loader)
            .build()
            .unwrap();
        for key in 0..10_000 {
            cache.put(&key, 1).unwrap();
        }
        clock.advance(secs(12));
        for key in 0..10_000 {
            assert_got(cache.get(&key), 1, STALE);
            let now = cache.stats().gauges;
            assert!(now.working <= 1 && now.queued <= 64);
        }
        let stats = cache.stats();
        assert_eq!((stats.refreshes_started, stats.refreshes_skipped), (65, 10_000 - 65));
        gate.open();
        wait_for_quiet(&cache);
        assert_eq!(cache.stats().stored, 65);
    });
}

/// Loads 2 at once, and refreshes when the gate lets them.
fn refreshes_hang(gate: &Arc<Gate>) -> impl Fn(&Load<'_>) -> Result<u64, String> + use<> {
    let held = Arc::clone(gate);
    move |load| {
        if load.previous().is_some() {
            held.pass();
        }
        Ok(2)
    }
}

/// With one thread for all there is none to leave.
#[test]
fn a_hung_refresh_leaves_threads_for_loads() {
    watched(|| {
        for (workers, behind) in [(2, 1), (4, 1), (8, 2)] {
            let (clock, gate) = (Clock::manual(), Gate::new());
            let cache = numbers(&clock)
                .stale_while_revalidate(secs(60))
                .workers(workers)
                .timeout(secs(20))
                .loader(refreshes_hang(&gate))
                .build()
                .unwrap();
            for key in 0..16 {
                cache.put(&key, 1).unwrap();
            }
            clock.advance(secs(12));
            // As many as would take every thread, and more.
            for key in 0..16 {
                assert_got(cache.get(&key), 1, STALE);
            }
            gate.wait_for(behind);
            thread::scope(|s| {
                for thread in 0..8 {
                    let cache = &cache;
                    s.spawn(move || {
                        for key in (100..200).filter(|key| key % 8 == thread) {
                            assert_got(cache.get(&key), 2, Source::Loaded);
                        }
                    });
                }
            });
            wait_for(|| cache.stats().gauges.working == behind);
            assert_eq!((cache.stats().gauges.queued, gate.came()), (16 - behind, behind));
            gate.open();
            wait_for_quiet(&cache);
            assert_got(cache.get(&15), 2, Source::Local);
        }
    });
}

#[test]
fn a_load_goes_before_the_refreshes_in_the_queue() {
    watched(|| {
        let (clock, gate) = (Clock::manual(), Gate::new());
        let order = Arc::new(AtomicU64::new(0));
        let (held, numbered) = (Arc::clone(&gate), Arc::clone(&order));
        let loader = move |load: &Load<'_>| {
            if *load.key() == 0 {
                held.pass();
            }
            Ok(numbered.fetch_add(1, SeqCst))
        };
        let cache = numbers(&clock)
            .stale_while_revalidate(secs(60))
            .workers(1)
            .loader(loader)
            .build()
            .unwrap();
        for key in 0..3 {
            cache.put(&key, 9).unwrap();
        }
        clock.advance(secs(12));
        for key in 0..3 {
            assert_got(cache.get(&key), 9, STALE);
        }
        gate.wait_for(1);
        thread::scope(|s| {
            let caller = s.spawn(|| cache.get(&7));
            wait_for(|| cache.stats().gauges.queued == 3);
            gate.open();
            assert_got(caller.join().unwrap(), 1, Source::Loaded);
        });
        wait_for_quiet(&cache);
        for (key, place) in [(0, 0), (1, 2), (2, 3)] {
            assert_got(cache.get(&key), place, Source::Local);
        }
    });
}

#[test]
fn a_queue_full_of_refreshes_turns_no_load_away() {
    watched(|| {
        let (clock, gate) = (Clock::manual(), Gate::new());
        let cache = numbers(&clock)
            .stale_while_revalidate(secs(60))
            .workers(1)
            .queue(1)
            .loader(refreshes_hang(&gate))
            .build()
            .unwrap();
        for key in 0..3 {
            cache.put(&key, 1).unwrap();
        }
        clock.advance(secs(12));
        for key in 0..3 {
            assert_got(cache.get(&key), 1, STALE);
        }
        assert_eq!(cache.stats().refreshes_skipped, 1);
        thread::scope(|s| {
            let caller = s.spawn(|| cache.get(&7));
            wait_for(|| cache.stats().gauges.queued == 2);
            gate.open();
            assert_got(caller.join().unwrap(), 2, Source::Loaded);
        });
        wait_for_quiet(&cache);
        assert_eq!(cache.stats().overloaded, 0);
    });
}

/// Another one's refresh ends before a call has looked. Between its look and its lead there is nothing
/// of the user's to step in: that is for the model to show.
#[test]
fn a_refresh_that_has_ended_is_not_begun_again() {
    watched(|| {
        let clock = Clock::manual();
        let cache: Cache<Trapped, u64, String> = Cache::builder("trapped")
            .clock(clock.clone())
            .ttl(secs(10))
            .stale_while_revalidate(secs(60))
            .loader(|load: &onefill::Load<'_, Trapped, u64>| {
                Ok(load.previous().map_or(1, |previous| previous + 1))
            })
            .build()
            .unwrap();
        cache.put(&Trapped(1), 1).unwrap();
        clock.advance(secs(12));
        let step_in = a_stale_answer_for_another(&cache);
        let (answer, sprung) = at_hash(1, step_in, || cache.get(&Trapped(1)));
        assert!(sprung);
        let _ = answer.unwrap();
        wait_for_quiet(&cache);
        assert_eq!(cache.get(&Trapped(1)).unwrap().into_value(), Some(2));
        assert_eq!(cache.stats().loads, 1);
    });
}

/// A value that takes `cost` to load, in a cache that refreshes early.
fn costly(clock: &Clock, cost: Duration, beta: f64, origin: &Arc<Origin>) -> Numbers {
    let (hand, read) = (clock.clone(), reads(origin));
    let loader = move |load: &Load<'_>| {
        hand.advance(cost);
        read(load)
    };
    numbers(clock).ttl(secs(60)).early_refresh(beta).loader(loader).build().unwrap()
}

#[test]
fn a_value_that_is_dear_is_refreshed_before_its_freshness_ends() {
    watched(|| {
        let clock = Clock::manual();
        let origin = Origin::new(1);
        let cache = costly(&clock, secs(1), 1e300, &origin);
        assert_got(cache.get(&1), 1, Source::Loaded);
        origin.set(2);
        clock.advance(secs(1));
        // So eager that it is due at once. The caller gets what there is.
        assert_got(cache.get(&1), 1, Source::Local);
        wait_for_quiet(&cache);
        let stats = cache.stats();
        assert_eq!((stats.refreshes_started, stats.loads), (1, 2));
        let answer = cache.peek(&1).unwrap();
        assert_eq!((answer.value(), answer.age()), (Some(&2), ms(0)));
    });
}

#[test]
fn a_value_is_refreshed_the_likelier_the_nearer_its_end() {
    watched(|| {
        let clock = Clock::manual();
        let cache = {
            let hand = clock.clone();
            let loader = move |load: &Load<'_>| {
                // A refresh changes nothing, so that the hits are all of one value.
                match load.previous() {
                    None => {
                        hand.advance(secs(1));
                        Ok(1)
                    }
                    Some(_) => Err("not now".into()),
                }
            };
            numbers(&clock)
                .ttl(secs(60))
                .early_refresh(1.0)
                .refresh_backoff(ms(0))
                .loader(loader)
                .build()
                .unwrap()
        };
        // How many of a thousand hits set off a refresh, so long before the end.
        let share = |before: u64| {
            cache.invalidate(&1).unwrap();
            assert_got(cache.get(&1), 1, Source::Loaded);
            clock.advance(secs(60) - ms(before));
            let begun = cache.stats().refreshes_started;
            for _ in 0..1_000 {
                assert_got(cache.get(&1), 1, Source::Local);
                wait_for_quiet(&cache);
            }
            cache.stats().refreshes_started - begun
        };
        assert_eq!(share(40_000), 0, "at 40 times the cost one in 10^17");
        let (far, near, last) = (share(2_000), share(1_000), share(1));
        // exp(-2), exp(-1) and exp(-0.001) of a thousand, give or take seven sigmas.
        assert!((60..=211).contains(&far), "{far}");
        assert!((261..=475).contains(&near), "{near}");
        assert!(last >= 980, "{last}");
    });
}

#[test]
fn what_has_no_cost_or_no_loader_or_no_value_is_not_refreshed_early() {
    watched(|| {
        let clock = Clock::manual();
        let origin = Origin::new(1);
        let check = |cache: &Numbers, key: u64| {
            for _ in 0..100 {
                clock.advance(ms(100));
                assert_eq!(cache.get(&key).unwrap().source(), Source::Local);
            }
            let stats = cache.stats();
            assert_eq!(stats.refreshes_started + stats.refreshes_skipped, 0);
        };
        // Eager, but it cost nothing; dear, but not eager.
        for (cost, beta) in [(ms(0), 1e300), (secs(1), 0.0)] {
            let cache = costly(&clock, cost, beta, &origin);
            assert_got(cache.get(&1), 1, Source::Loaded);
            check(&cache, 1);
        }
        // What a value that was put would cost is not known.
        let cache = costly(&clock, secs(1), 1e300, &origin);
        cache.put(&1, 5).unwrap();
        check(&cache, 1);
        // A borrowed loader is gone.
        let cache = numbers(&clock).ttl(secs(60)).early_refresh(1e300).build().unwrap();
        let hand = clock.clone();
        let loaded = cache.get_with(&1, |_| {
            hand.advance(secs(1));
            Ok(1)
        });
        assert_got(loaded, 1, Source::Loaded);
        check(&cache, 1);
        // And of an absence there is nothing to refresh.
        let hand = clock.clone();
        let loader = move |_: &Load<'_>| {
            hand.advance(secs(1));
            Ok(None)
        };
        let cache = numbers(&clock)
            .absent_ttl(secs(60))
            .early_refresh(1e300)
            .loader(loader)
            .build()
            .unwrap();
        assert_eq!(got(cache.get(&1)).unwrap(), (None, Source::Loaded));
        check(&cache, 1);
    });
}

#[test]
fn an_early_refresh_that_fails_is_not_repeated_at_once() {
    watched(|| {
        let clock = Clock::manual();
        let origin = Origin::new(1);
        let cache = costly(&clock, ms(1), 1e300, &origin);
        assert_got(cache.get(&1), 1, Source::Loaded);
        origin.go_away();
        for _ in 0..10 {
            clock.advance(ms(400));
            assert_got(cache.get(&1), 1, Source::Local);
            wait_for_quiet(&cache);
        }
        assert_eq!(cache.stats().refreshes_started, 1);
        clock.advance(secs(2));
        assert_got(cache.get(&1), 1, Source::Local);
        wait_for_quiet(&cache);
        assert_eq!(cache.stats().refreshes_started, 2);
    });
}

#[test]
fn a_refresh_may_find_that_there_is_nothing_any_more() {
    watched(|| {
        let clock = Clock::manual();
        let loader = |load: &Load<'_>| Ok(if load.previous().is_some() { None } else { Some(1) });
        let cache =
            numbers(&clock).stale_while_revalidate(secs(60)).loader(loader).build().unwrap();
        assert_got(cache.get(&1), 1, Source::Loaded);
        clock.advance(secs(12));
        assert_got(cache.get(&1), 1, STALE);
        wait_for_quiet(&cache);
        assert_eq!(got(cache.get(&1)).unwrap(), (None, Source::Local));
        let now = cache.stats().gauges;
        assert_eq!((now.values, now.absences), (0, 1));
    });
}

#[test]
fn a_refresh_whose_result_is_not_to_be_stored_leaves_the_old_value_to_its_windows() {
    watched(|| {
        let clock = Clock::manual();
        let cache = numbers(&clock)
            .stale_while_revalidate(secs(10))
            .loader(|load: &Load<'_>| {
                let fill = Fill::new(2);
                Ok(if load.previous().is_some() { fill.do_not_store() } else { fill })
            })
            .build()
            .unwrap();
        cache.put(&1, 1).unwrap();
        clock.advance(secs(12));
        assert_got(cache.get(&1), 1, STALE);
        wait_for_quiet(&cache);
        clock.advance(secs(8));
        assert_got(cache.get(&1), 2, Source::Loaded);
    });
}

/// Those who take nothing stale wait for the refresh that is under way.
#[test]
fn a_refresh_serves_those_who_take_nothing_stale() {
    watched(|| {
        let clock = Clock::manual();
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |_: &Load<'_>| {
            held.pass();
            Ok(2)
        };
        let cache =
            numbers(&clock).stale_while_revalidate(secs(10)).loader(loader).build().unwrap();
        cache.put(&1, 1).unwrap();
        clock.advance(secs(12));
        assert_got(cache.get(&1), 1, STALE);
        gate.wait_for(1);
        thread::scope(|s| {
            let strict = s.spawn(|| cache.with().never_stale().get(&1));
            wait_for(|| cache.stats().gauges.waiting == 1);
            assert_got(cache.get(&1), 1, STALE);
            gate.open();
            assert_got(strict.join().unwrap(), 2, Source::Followed);
        });
        wait_for_quiet(&cache);
    });
}

#[test]
fn a_refresh_in_the_queue_is_not_waited_for_by_a_loader() {
    watched(|| {
        let clock = Clock::manual();
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |load: &Load<'_>| {
            if *load.key() == 9 {
                held.pass();
            }
            Ok(2)
        };
        // One worker, which is busy; callers load on their own threads.
        let cache =
            numbers(&clock).stale_while_revalidate(secs(10)).loader(loader).build().unwrap();
        for key in [1, 9, 10] {
            cache.put(&key, 1).unwrap();
        }
        clock.advance(secs(12));
        thread::scope(|s| {
            let busy: Vec<_> = (0..2)
                .map(|n| {
                    let cache = &cache;
                    s.spawn(move || cache.prewarm([9 + n]).run())
                })
                .collect();
            gate.wait_for(1);
            assert_got(cache.get(&1), 1, STALE);
            let asked = cache.get_with(&5, |_| {
                Ok(cache.with().never_stale().get(&1).unwrap().into_value().unwrap())
            });
            assert_got(asked, 2, Source::Loaded);
            gate.open();
            busy.into_iter().for_each(|busy| assert_eq!(busy.join().unwrap().failed, 0));
        });
        wait_for_quiet(&cache);
    });
}

#[test]
fn why_a_value_is_stale_is_said() {
    watched(|| {
        let clock = Clock::manual();
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |_: &Load<'_>| {
            held.pass();
            Err::<u64, _>("away".into())
        };
        let cache = numbers(&clock)
            .stale_while_revalidate(secs(5))
            .stale_if_error(secs(60))
            .workers(1)
            .max_followers(1)
            .loader(loader)
            .build()
            .unwrap();
        cache.put(&1, 1).unwrap();
        clock.advance(secs(20));
        let why = |call: onefill::Call<'_, u64, u64, String>| match call.get(&1).unwrap().source() {
            Source::Stale(why) => why,
            source => panic!("{source:?}"),
        };
        assert_eq!(why(cache.with().timeout(ms(20))), Why::TimedOut);
        thread::scope(|s| {
            let waiting = s.spawn(|| why(cache.with()));
            wait_for(|| cache.stats().gauges.waiting == 1);
            assert_eq!(why(cache.with()), Why::Overloaded);
            gate.open();
            assert_eq!(waiting.join().unwrap(), Why::Failed);
        });
        assert_eq!(why(cache.with().stale_while_revalidate(secs(30))), Why::Revalidating);
        wait_for_quiet(&cache);
        assert_idle(&cache);
    });
}

/// Keys 0 and up are loaded when the gate lets them, once they are stale.
fn slow_when_stale(
    gate: &Arc<Gate>,
    hang_below: u64,
) -> impl Fn(&Load<'_>) -> Result<u64, String> + use<> {
    let held = Arc::clone(gate);
    move |load| {
        if load.previous().is_some() && *load.key() < hang_below {
            held.pass();
        }
        Ok(*load.key())
    }
}

/// A refresh that has yet to begin holds its key. Whoever must have the value now takes it over.
#[test]
fn who_must_have_it_fresh_does_not_wait_behind_a_queue_of_refreshes() {
    watched(|| {
        let (clock, gate) = (Clock::manual(), Gate::new());
        let builder = numbers(&clock).ttl(secs(1)).stale_while_revalidate(secs(10));
        let cache = builder.loader(slow_when_stale(&gate, 2)).build().unwrap();
        for key in 0..3 {
            assert_got(cache.get(&key), key, Source::Loaded);
        }
        clock.advance(secs(2));
        for key in 0..3 {
            assert_got(cache.get(&key), key, STALE);
        }
        // Both workers are busy, and the third refresh is in the queue.
        gate.wait_for(2);
        assert_eq!(cache.stats().gauges.queued, 1);
        assert_got(cache.with().never_stale().get(&2), 2, Source::Loaded);
        gate.open();
        wait_for_quiet(&cache);
        assert_idle(&cache);
    });
}
