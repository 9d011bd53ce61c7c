//! Counters that add up, and ends that leave nothing behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use onefill::fleet::memory::{Memory, Moment, Op};
use onefill::fleet::{Fleet, codec};
use onefill::{Cache, Clock, Fill, Load, Source, TierError};

use super::support::*;

#[test]
fn after_a_storm_every_call_is_counted_once_and_nothing_is_left() {
    within(|| {
        const THREADS: u64 = 4;
        const CALLS: u64 = 1_500;
        let memory = Memory::new();
        let peak = Arc::new([const { AtomicUsize::new(0) }; 16]);
        let fleet = [0; 3].map(|_| {
            let running = Arc::clone(&peak);
            start(
                &memory,
                |f| f.lease(ms(2_000)).budget(ms(1_000)),
                |c| {
                    c.ttl(ms(20))
                        .absent_ttl(ms(10))
                        .stale_while_revalidate(ms(10))
                        .stale_if_error(ms(30))
                        .refresh_backoff(ms(5))
                        .admission(3)
                        .max_followers_per_key(2)
                        .loader(move |load: &Asked<'_>| {
                            let id = *load.key();
                            running[id as usize].fetch_add(1, SeqCst);
                            if id % 3 == 0 {
                                thread::sleep(Duration::from_micros(200));
                            }
                            running[id as usize].fetch_sub(1, SeqCst);
                            match id {
                                0 => Err("no"),
                                1 | 2 => Ok(Fill::absent()),
                                3 => Ok(Fill::new("3".into()).do_not_store()),
                                _ => Ok(Fill::new(id.to_string())),
                            }
                        })
                },
            )
        });
        thread::scope(|s| {
            for (nth, one) in fleet.iter().enumerate() {
                for thread in 0..THREADS {
                    s.spawn(move || {
                        for call in 0..CALLS {
                            let id = (call * 7 + thread * 3 + nth as u64) % 16;
                            let calls = one.cache.with();
                            let got = match call % 10 {
                                0 => calls.timeout(Duration::from_micros(50)).get(&id),
                                1 => calls.never_stale().get(&id),
                                _ => calls.get(&id),
                            };
                            if let Ok(answer) = got
                                && let Some(value) = answer.value()
                            {
                                assert_eq!(value, &id.to_string());
                            }
                            match call % 97 {
                                50 => one.cache.invalidate(&id).unwrap(),
                                51 => one.cache.put(&id, id.to_string()).unwrap(),
                                52 if call % 5 == 0 => one.cache.invalidate_all().unwrap(),
                                _ => {}
                            }
                        }
                    });
                }
            }
        });
        for one in &fleet {
            one.until_refreshed();
            let stats = one.cache.stats();
            assert_eq!(stats.calls(), THREADS * CALLS, "{stats}");
            let gauges = &stats.gauges;
            let left = [gauges.flights, gauges.waiting, gauges.loading, gauges.not_admitted];
            assert_eq!(left, [0; 4], "{stats}");
            assert_eq!(stats.loads_panicked + stats.undecodable, 0, "{stats}");
            assert!(stats.loads >= stats.loads_failed + stats.stored, "{stats}");
            let health = one.fleet.health();
            assert_eq!((health.leases, health.opened), (0, 0), "{health:?}");
        }
        assert_eq!(memory.leases(), 0);
    });
}

#[test]
fn a_hit_asks_nobody_and_what_the_tier_has_costs_one_question() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let [one, two] = [0; 2].map(|_| instance(&memory, meter.numbered()));
        let asked = |one: &Instance| Op::ALL.iter().map(|op| one.count(*op)).sum::<u64>();
        one.value(7);
        // The epoch, once a process; the value; the lease; the commit.
        assert_eq!(asked(&one), 4);
        two.value(7);
        assert_eq!(asked(&two), 2);
        for _ in 0..100 {
            one.value(7);
            two.value(7);
        }
        one.value(8);
        two.value(8);
        assert_eq!((asked(&one), asked(&two)), (4 + 3, 2 + 1));
    });
}

#[test]
fn a_burst_is_one_load_and_no_hit() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let [one, two] = [0; 2].map(|_| instance(&memory, stage.loader()));
        thread::scope(|s| {
            for one in [&one, &two] {
                for _ in 0..8 {
                    s.spawn(|| one.value(7));
                }
            }
            stage.begun();
            for one in [&one, &two] {
                one.until_claimed(1);
                one.until_following(7);
            }
            stage.end_with("tea");
        });
        let counts = [&one, &two].map(|one| {
            let stats = one.cache.stats();
            assert_eq!((stats.hits, stats.followed, stats.calls()), (0, 7, 8));
            (stats.loaded, stats.fleet_hits)
        });
        assert!(counts.contains(&(1, 0)) && counts.contains(&(0, 1)), "{counts:?}");
    });
}

#[test]
fn a_cache_that_is_closed_while_it_waits_for_another_instance_answers_whoever_waits() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let [one, two] = [0; 2].map(|_| instance(&memory, stage.loader()));
        thread::scope(|s| {
            let loads = s.spawn(|| one.value(7));
            stage.begun();
            let waits: Vec<_> = (0..3).map(|_| s.spawn(|| two.get(7))).collect();
            two.until_claimed(1);
            two.until_following(2);
            assert_eq!(two.cache.close(Duration::ZERO), 0);
            assert!(two.get(7).unwrap_err().is_closed());
            stage.end_with("tea");
            for caller in waits {
                assert_eq!(value(caller.join().unwrap()), "tea");
            }
            loads.join().unwrap();
        });
        assert_eq!(memory.leases(), 0);
    });
}

#[test]
fn a_cache_that_is_dropped_in_the_middle_of_a_refresh_gives_the_lease_back() {
    within(|| {
        let (memory, stage, clock) = (Memory::manual(), Stage::new(), Clock::manual());
        let settings = |c: Builder| c.stale_while_revalidate(TTL).clock(clock.clone());
        let one = start(&memory, |f| f, |c| settings(c).loader(stage.loader()));
        stage.end_with("1");
        one.value(7);
        stage.begun();
        clock.advance(TTL);
        memory.advance(TTL);
        assert!(one.get(7).unwrap().is_stale());
        stage.begun();
        let link = Arc::downgrade(&one.link);
        let dropped = thread::spawn(move || drop(one));
        assert!(memory.lease(&key(7)).is_some());
        stage.end_with("2");
        dropped.join().unwrap();
        until("the refresh is over", || memory.leases() == 0);
        until("nobody holds the connection", || link.strong_count() == 0);
    });
}

#[test]
fn the_last_handle_takes_thread_lease_and_connection_with_it() {
    within(|| {
        let memory = Memory::new();
        let link = Arc::new(memory.peer());
        let fleet = Fleet::on(Arc::clone(&link));
        let cache = |table: &str| -> Cache<u64, String, &'static str> {
            Cache::builder(table)
                .ttl(TTL)
                .loader(|_: &Asked<'_>| Ok("tea".to_string()))
                .fleet(&fleet, codec::Raw)
                .build()
                .unwrap()
        };
        let (one, two) = (cache("one"), cache("two"));
        assert_eq!(value(one.get(&1)), "tea");
        drop(one);
        // What one cache leaves, the other still has.
        assert_eq!(value(two.get(&1)), "tea");
        assert_eq!(two.get(&2).unwrap().source(), Source::Loaded);
        drop(fleet);
        assert_eq!(two.get(&3).unwrap().source(), Source::Loaded);
        drop(two);
        let alive = Arc::downgrade(&link);
        drop(link);
        until("nobody holds the connection", || alive.strong_count() == 0);
        assert_eq!(memory.leases(), 0);
    });
}

#[test]
fn warming_up_beside_another_instance_is_no_failure() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let [one, two] = [0; 2].map(|_| instance(&memory, stage.loader()));
        thread::scope(|s| {
            let warms = s.spawn(|| one.cache.prewarm([7]).run());
            stage.begun();
            let report = two.cache.prewarm([7]).run();
            assert_eq!((report.failed, report.already_there), (0, 1), "{report}");
            stage.end_with("tea");
            assert_eq!(warms.join().unwrap().loaded, 1);
        });
        assert_eq!(two.cache.prewarm([7]).run().loaded, 1);
        assert_eq!(two.get(7).unwrap().source(), Source::Local);
        assert_eq!(stage.loads(), 1);
    });
}

#[test]
fn a_value_that_is_too_slow_to_store_goes_to_its_callers_at_their_time() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let one = start(&memory, |f| f.budget(ms(200)), |c| c.loader(meter.numbered()));
        let commit = one.link.hold(Op::Commit, Moment::Request);
        let started = Instant::now();
        assert_eq!(one.value(7), "1");
        assert!(started.elapsed() < 2 * ms(200) + NOISE);
        drop(commit);
        assert_eq!(one.cache.stats().fleet_writes_failed, 1);
        assert_eq!(one.get(7).unwrap().source(), Source::Local);
    });
}

#[test]
fn a_burst_over_many_keys_and_instances_loads_each_key_once() {
    within(|| {
        const KEYS: u64 = 60;
        let memory = Memory::new();
        let loads = Arc::new([const { AtomicUsize::new(0) }; KEYS as usize]);
        let fleet = [0; 6].map(|_| {
            let loads = Arc::clone(&loads);
            instance(&memory, move |load: &Load<'_, u64, String>| {
                loads[*load.key() as usize].fetch_add(1, SeqCst);
                Ok(Fill::new(load.key().to_string()))
            })
        });
        thread::scope(|s| {
            for one in &fleet {
                for thread in 0..3 {
                    s.spawn(move || {
                        for nth in 0..KEYS {
                            let id = (nth + 20 * thread) % KEYS;
                            assert_eq!(one.value(id), id.to_string());
                        }
                    });
                }
            }
        });
        for (id, loads) in loads.iter().enumerate() {
            assert_eq!(loads.load(SeqCst), 1, "key {id}");
        }
        assert_eq!((memory.values(), memory.leases()), (KEYS as usize, 0));
        // A notice that came late may have put it in doubt.
        assert_eq!(fleet[1].value(1), "1");
        let refused = TierError::Unreachable("taken down".into());
        fleet[0].link.down();
        assert_eq!(fleet[0].cache.invalidate(&1), Err(refused));
        // Nobody else has noticed.
        assert_eq!(fleet[1].get(1).unwrap().source(), Source::Local);
    });
}
