//! `invalidate` and `invalidate_all`: nothing that was loaded before is seen after.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

use onefill::fleet::{Fleet, codec, memory::Memory};
use onefill::{Cache, Clock, Fill, Source, Why};

use super::support::{
    FAILED, Gate, Load, Numbers, Origin, STALE, Trapped, assert_got, assert_idle, at_clone,
    at_hash, at_writing, numbers, on_workers, plain, reads, secs, wait_for, wait_for_followers,
    wait_for_quiet, watched,
};

/// How to forget one key: by its name, or with all others.
const WAYS: [fn(&Numbers, u64); 2] =
    [|cache, key| cache.invalidate(&key).unwrap(), |cache, _| cache.invalidate_all().unwrap()];

/// A loader that reads a cell, and is then held before it returns.
fn read_and_wait(
    cell: &Arc<AtomicU64>,
    gate: &Arc<Gate>,
) -> impl Fn(&Load<'_>) -> Result<u64, String> + use<> {
    let (cell, gate) = (Arc::clone(cell), Arc::clone(gate));
    move |_| {
        let read = cell.load(SeqCst);
        gate.pass();
        Ok(read)
    }
}

#[test]
fn what_was_read_before_an_invalidation_is_not_stored_after_it() {
    watched(|| {
        for forget in WAYS {
            for workers in [false, true] {
                let (cell, gate) = (Arc::new(AtomicU64::new(1)), Gate::new());
                let builder = plain().loader(read_and_wait(&cell, &gate));
                let cache = if workers { builder.workers(2) } else { builder }.build().unwrap();
                thread::scope(|s| {
                    let before = s.spawn(|| cache.get(&1).unwrap().into_value());
                    gate.wait_for(1);
                    cell.store(2, SeqCst);
                    forget(&cache, 1);
                    gate.let_one_pass();
                    assert_eq!(before.join().unwrap(), Some(1));
                    assert!(cache.peek(&1).is_none());
                    gate.open();
                    assert_got(cache.get(&1), 2, Source::Loaded);
                });
                assert_got(cache.get(&1), 2, Source::Local);
                assert_eq!(gate.came(), 2);
                wait_for_quiet(&cache);
            }
        }
    });
}

#[test]
fn what_a_refresh_read_before_an_invalidation_is_not_stored_after_it() {
    watched(|| {
        for forget in WAYS {
            let clock = Clock::manual();
            let (cell, gate) = (Arc::new(AtomicU64::new(1)), Gate::new());
            let cache = numbers(&clock)
                .stale_while_revalidate(secs(10))
                .loader(read_and_wait(&cell, &gate))
                .build()
                .unwrap();
            cache.put(&1, 0).unwrap();
            clock.advance(secs(12));
            assert_got(cache.get(&1), 0, STALE);
            gate.wait_for(1);
            cell.store(2, SeqCst);
            forget(&cache, 1);
            assert!(cache.peek(&1).is_none(), "not even stale");
            gate.let_one_pass();
            wait_for(|| cache.stats().not_stored == 1);
            assert!(cache.peek(&1).is_none());
            gate.open();
            assert_got(cache.get(&1), 2, Source::Loaded);
            assert_eq!(gate.came(), 2);
            wait_for_quiet(&cache);
        }
    });
}

/// Whatever step of an invalidation a load ends before, its value is gone afterwards. On a fleet: there
/// the key is written down between the first step and those that follow.
#[test]
fn no_load_ends_between_the_steps_of_an_invalidation() {
    watched(|| {
        for hashed in [true, false] {
            let gate = Gate::new();
            let held = Arc::clone(&gate);
            let cache: Cache<Trapped, Vec<u8>, String> = Cache::builder("trapped")
                .ttl(secs(60))
                .loader(move |_: &onefill::Load<'_, Trapped, Vec<u8>>| {
                    held.pass();
                    Ok(vec![1])
                })
                .fleet(&Fleet::on(Memory::new()), codec::Raw)
                .build()
                .unwrap();
            let other = cache.clone();
            let load = thread::spawn(move || other.get(&Trapped(1)).unwrap().into_value());
            gate.wait_for(1);
            let step_in = move || {
                gate.open();
                assert_eq!(load.join().unwrap(), Some(vec![1]));
            };
            let (told, sprung) = match hashed {
                true => at_hash(1, step_in, || cache.invalidate(&Trapped(1))),
                false => at_writing(1, step_in, || cache.invalidate(&Trapped(1))),
            };
            told.unwrap();
            assert!(sprung && cache.peek(&Trapped(1)).is_none());
            assert_eq!(cache.get(&Trapped(1)).unwrap().source(), Source::Loaded);
        }
    });
}

#[test]
fn who_follows_what_is_forgotten_on_its_way_to_a_worker_gets_its_value() {
    watched(|| {
        let builder = Cache::<Trapped, u64, String>::builder("trapped").workers(1).ttl(secs(10));
        let cache = builder.loader(|_: &onefill::Load<'_, Trapped, u64>| Ok(7)).build().unwrap();
        let (there, (send, follower)) = (cache.clone(), crossbeam_channel::bounded(1));
        let step_in = move || {
            let asks = there.clone();
            send.send(thread::spawn(move || asks.get(&Trapped(1)))).unwrap();
            wait_for_followers(&there, 1);
            there.invalidate(&Trapped(1)).unwrap();
        };
        // The registry's clone is the first, and the worker's the second.
        let (led, sprung) = at_clone(2, step_in, || cache.get(&Trapped(1)));
        assert!(sprung);
        assert_got(led, 7, Source::Loaded);
        assert_got(follower.recv().unwrap().join().unwrap(), 7, Source::Followed);
        assert!(cache.peek(&Trapped(1)).is_none());
        wait_for_quiet(&cache);
    });
}

#[test]
fn those_who_come_after_do_not_join_those_who_came_before() {
    watched(|| {
        for forget in WAYS {
            let numbers = Arc::new(AtomicU64::new(0));
            let gates = [Gate::new(), Gate::new()];
            let (count, held) = (Arc::clone(&numbers), gates.clone());
            let loader = move |_: &Load<'_>| {
                let number = count.fetch_add(1, SeqCst);
                held[number as usize].pass();
                Ok(number + 1)
            };
            let cache = plain().loader(loader).build().unwrap();
            thread::scope(|s| {
                let first = s.spawn(|| cache.get(&1));
                gates[0].wait_for(1);
                forget(&cache, 1);
                let second = s.spawn(|| cache.get(&1));
                gates[1].wait_for(1);
                gates[1].open();
                assert_got(second.join().unwrap(), 2, Source::Loaded);
                // The old one ends later, and changes nothing.
                gates[0].open();
                assert_got(first.join().unwrap(), 1, Source::Loaded);
            });
            assert_got(cache.get(&1), 2, Source::Local);
            assert_eq!(numbers.load(SeqCst), 2);
            assert_idle(&cache);
        }
    });
}

#[test]
fn the_end_of_an_old_flight_leaves_the_new_one_alone() {
    watched(|| {
        for forget in WAYS {
            let numbers = Arc::new(AtomicU64::new(0));
            let gates = [Gate::new(), Gate::new(), Gate::new()];
            let (count, held) = (Arc::clone(&numbers), gates.clone());
            let loader = move |_: &Load<'_>| {
                let number = count.fetch_add(1, SeqCst);
                held[number as usize].pass();
                Ok(number + 1)
            };
            let cache = plain().loader(loader).build().unwrap();
            thread::scope(|s| {
                let first = s.spawn(|| cache.get(&1));
                gates[0].wait_for(1);
                forget(&cache, 1);
                let second = s.spawn(|| cache.get(&1));
                gates[1].wait_for(1);
                gates[0].open();
                assert_got(first.join().unwrap(), 1, Source::Loaded);
                assert!(cache.peek(&1).is_none());
                let third = s.spawn(|| cache.get(&1));
                wait_for_followers(&cache, 1);
                gates[1].open();
                assert_got(second.join().unwrap(), 2, Source::Loaded);
                assert_got(third.join().unwrap(), 2, Source::Followed);
            });
            assert_got(cache.get(&1), 2, Source::Local);
            assert_eq!(numbers.load(SeqCst), 2);
        }
    });
}

#[test]
fn an_invalidation_leaves_nothing_of_a_key() {
    watched(|| {
        let states: [fn(&Numbers, &Clock, &Origin); 4] = [
            |_, _, _| (),
            // Stale.
            |_, clock, _| clock.advance(secs(12)),
            // An absence.
            |cache, _, _| cache.put(&1, Fill::absent()).unwrap(),
            // Stale, and not to be loaded for a while because the last load failed.
            |cache, clock, origin| {
                origin.go_away();
                clock.advance(secs(25));
                assert_got(cache.get(&1), 1, FAILED);
                origin.come_back();
            },
        ];
        for state in states {
            for forget in WAYS {
                let clock = Clock::manual();
                let origin = Origin::new(1);
                let cache = numbers(&clock)
                    .stale_while_revalidate(secs(10))
                    .stale_if_error(secs(60))
                    .loader(reads(&origin))
                    .build()
                    .unwrap();
                assert_got(cache.get(&1), 1, Source::Loaded);
                state(&cache, &clock, &origin);
                forget(&cache, 1);
                let now = cache.stats().gauges;
                assert_eq!((now.values, now.absences, now.weight), (0, 0, 0));
                assert!(cache.peek(&1).is_none());
                let loads = origin.calls();
                origin.set(2);
                let answer = cache.get(&1).unwrap();
                assert_eq!((answer.source(), answer.into_value()), (Source::Loaded, Some(2)));
                assert_eq!(origin.calls(), loads + 1);
            }
        }
    });
}

#[test]
fn invalidating_all_hides_what_was_put_a_moment_ago_and_not_what_is_put_a_moment_later() {
    let cache = plain().build().unwrap();
    for round in 0..10_000 {
        cache.put(&0, round).unwrap();
        cache.invalidate_all().unwrap();
        assert!(cache.peek(&0).is_none());
        cache.put(&0, 2).unwrap();
        assert_got(cache.get(&0), 2, Source::Local);
    }
}

#[test]
fn an_invalidation_touches_no_other_key() {
    let cache = plain().build().unwrap();
    for key in 0..100 {
        cache.put(&key, key).unwrap();
    }
    cache.invalidate(&50).unwrap();
    for key in 0..100 {
        assert_eq!(cache.peek(&key).is_some(), key != 50);
    }
    cache.invalidate_all().unwrap();
    assert!((0..100).all(|key| cache.peek(&key).is_none()));
}

/// A reader that begins after an invalidation has returned never sees what was there before it.
#[test]
fn in_a_storm_nobody_sees_what_was_invalidated_before_it_asked() {
    watched(|| {
        let clock = Clock::manual();
        let cell = Arc::new(AtomicU64::new(0));
        let source = Arc::clone(&cell);
        let cache = numbers(&clock)
            .stale_while_revalidate(secs(10))
            .stale_if_error(secs(10))
            .loader(move |_: &Load<'_>| Ok(source.load(SeqCst)))
            .build()
            .unwrap();
        let settled = AtomicU64::new(0);
        thread::scope(|s| {
            for _ in 0..6 {
                s.spawn(|| {
                    while settled.load(SeqCst) < 2_000 {
                        let least = settled.load(SeqCst);
                        let seen = cache.get(&1).unwrap().into_value().unwrap();
                        assert!(seen >= least, "{seen} was seen after {least} had been settled");
                    }
                });
            }
            for round in 1..=2_000 {
                // Now and then the readers find it stale, and have it refreshed.
                if round % 3 == 0 {
                    clock.advance(secs(11));
                }
                cell.store(round, SeqCst);
                match round % 2 {
                    0 => cache.invalidate(&1).unwrap(),
                    _ => cache.invalidate_all().unwrap(),
                }
                settled.store(round, SeqCst);
            }
        });
        wait_for_quiet(&cache);
    });
}

/// A change of a key, seen by nobody who asks for it later, while one who asked before is about to
/// load it: it has yet to come to lead.
#[test]
fn what_was_invalidated_before_a_load_began_is_not_what_it_replaces() {
    let unchanged_if_known = |gate: &Arc<Gate>| {
        let held = Arc::clone(gate);
        move |load: &Load<'_>| {
            if *load.key() == 0 {
                held.pass();
            }
            Ok(load.previous().map_or(Fill::new(2), |_| Fill::unchanged()))
        }
    };
    // A prewarm, which waits in the queue.
    watched(move || {
        let (gate, clock) = (Gate::new(), Clock::manual());
        let cache = numbers(&clock).stale_if_error(secs(1000)).workers(1);
        let cache = cache.loader(unchanged_if_known(&gate)).build().unwrap();
        cache.put(&1, 1).unwrap();
        clock.advance(secs(20));
        thread::scope(|s| {
            s.spawn(|| cache.get(&0));
            gate.wait_for(1);
            let prewarm = s.spawn(|| cache.prewarm([1]).run());
            wait_for(|| cache.stats().gauges.queued == 1);
            cache.invalidate(&1).unwrap();
            gate.open();
            assert_eq!(prewarm.join().unwrap().loaded, 1);
        });
        assert_got(cache.get(&1), 2, Source::Local);
        wait_for_quiet(&cache);
    });
    // A follower, whose leader gives up.
    for workers in [None, Some(3)] {
        watched(move || {
            let (gate, clock) = (Gate::new(), Clock::manual());
            let cache = numbers(&clock).stale_if_error(secs(1000)).admission(1);
            let cache = cache.loader(unchanged_if_known(&gate));
            let cache = on_workers(cache, workers);
            let cache = cache.build().unwrap();
            cache.put(&1, 1).unwrap();
            clock.advance(secs(20));
            thread::scope(|s| {
                s.spawn(|| cache.get(&0));
                gate.wait_for(1);
                let leader = s.spawn(|| cache.with().timeout(secs(1)).get(&1));
                wait_for(|| cache.stats().gauges.not_admitted == 1);
                let follower = s.spawn(|| cache.get(&1));
                // With workers those who lead wait as well.
                wait_for_followers(&cache, if workers.is_some() { 3 } else { 1 });
                cache.invalidate(&1).unwrap();
                assert_got(leader.join().unwrap(), 1, Source::Stale(Why::TimedOut));
                gate.open();
                let _ = follower.join().unwrap().unwrap();
            });
            // It may be another one's load that the follower has got, which is not stored then.
            assert_eq!(cache.get(&1).unwrap().into_value(), Some(2));
            wait_for_quiet(&cache);
        });
    }
}
