//! `put`: as if it had just been loaded, and over whatever is being loaded.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use onefill::{Cache, Clock, Fill, Source};

use super::support::{
    Gate, Load, Origin, STALE, Trapped, assert_got, assert_idle, at_clone, at_hash, ms, numbers,
    plain, reads, secs, wait_for_followers, wait_for_quiet, watched,
};

#[test]
fn a_put_wins_over_a_load_in_flight() {
    watched(|| {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |_: &Load<'_>| {
            held.pass();
            Ok(1)
        };
        let cache = plain().loader(loader).build().unwrap();
        thread::scope(|s| {
            let callers = [(); 2].map(|()| s.spawn(|| cache.get(&1).unwrap().into_value()));
            wait_for_followers(&cache, 1);
            cache.put(&1, 2).unwrap();
            assert_got(cache.get(&1), 2, Source::Local);
            gate.open();
            for caller in callers {
                assert_eq!(caller.join().unwrap(), Some(1), "they were waiting for the load");
            }
        });
        assert_got(cache.get(&1), 2, Source::Local);
        let stats = cache.stats();
        assert_eq!((stats.loads, stats.stored, stats.not_stored), (1, 0, 1));
        assert_idle(&cache);
    });
}

#[test]
fn a_put_wins_over_a_refresh_in_flight() {
    watched(|| {
        let clock = Clock::manual();
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |_: &Load<'_>| {
            held.pass();
            Ok(7)
        };
        let cache =
            numbers(&clock).stale_while_revalidate(secs(10)).loader(loader).build().unwrap();
        cache.put(&1, 1).unwrap();
        clock.advance(secs(12));
        assert_got(cache.get(&1), 1, STALE);
        gate.wait_for(1);
        cache.put(&1, 2).unwrap();
        gate.open();
        wait_for_quiet(&cache);
        assert_got(cache.get(&1), 2, Source::Local);
    });
}

/// Whatever step of a `put` a caller comes before, once the `put` has returned its value is there
/// to stay.
#[test]
fn no_load_comes_between_a_put_and_its_value() {
    watched(|| {
        let mut steps = 0;
        for n in 1.. {
            let gate = Gate::new();
            let held = Arc::clone(&gate);
            let cache: Cache<Trapped, u64, String> = Cache::builder("trapped")
                .ttl(secs(60))
                .loader(move |_: &onefill::Load<'_, Trapped, u64>| {
                    held.pass();
                    Ok(1)
                })
                .build()
                .unwrap();
            let (send, caller) = crossbeam_channel::bounded(1);
            let (other, loading) = (cache.clone(), Arc::clone(&gate));
            let step_in = move || {
                let call = thread::spawn(move || other.get(&Trapped(1)).unwrap());
                // If the put has the key to itself by now, the call will not get that far.
                let begun = std::time::Instant::now();
                while loading.came() == 0 && begun.elapsed() < Duration::from_millis(20) {
                    thread::yield_now();
                }
                send.send(call).unwrap();
            };
            // A key is hashed first, and cloned when its value is about to be stored.
            let (told, sprung) = match n {
                1 => at_hash(1, step_in, || cache.put(&Trapped(1), 2)),
                n => at_clone(n - 1, step_in, || cache.put(&Trapped(1), 2)),
            };
            told.unwrap();
            if !sprung {
                break;
            }
            steps += 1;
            gate.open();
            if let Ok(caller) = caller.try_recv() {
                let _ = caller.join().unwrap();
            }
            let answer = cache.get(&Trapped(1)).unwrap();
            assert_eq!((answer.value(), answer.source()), (Some(&2), Source::Local), "step {n}");
            assert_idle(&cache);
        }
        assert!(steps >= 2, "{steps}");
    });
}

#[test]
fn what_is_put_is_fresh_for_as_long_as_it_says() {
    let clock = Clock::manual();
    let cache = numbers(&clock).stale_while_revalidate(secs(1)).build().unwrap();
    cache.put(&1, 1).unwrap();
    cache.put(&2, Fill::new(2).ttl(secs(2))).unwrap();
    clock.advance(secs(2));
    assert_got(cache.get(&1), 1, Source::Local);
    assert_got(cache.get(&2), 2, STALE);
    clock.advance(secs(1));
    assert!(cache.peek(&2).is_none());
    cache.put(&2, 3).unwrap();
    let answer = cache.get(&2).unwrap();
    assert_eq!((answer.into_value(), answer_age(&cache, 2)), (Some(3), ms(0)));
}

fn answer_age(cache: &super::support::Numbers, key: u64) -> Duration {
    cache.peek(&key).unwrap().age()
}

#[test]
fn an_absence_can_be_put() {
    let clock = Clock::manual();
    let cache = numbers(&clock).absent_ttl(secs(3)).build().unwrap();
    cache.put(&1, 1).unwrap();
    cache.put(&1, Fill::absent()).unwrap();
    assert!(cache.get(&1).unwrap().is_absent());
    assert_eq!((cache.stats().gauges.values, cache.stats().gauges.absences), (0, 1));
    clock.advance(secs(3));
    assert!(cache.peek(&1).is_none());
    cache.put(&1, Fill::absent().ttl(secs(5))).unwrap();
    clock.advance(secs(4));
    assert!(cache.peek(&1).unwrap().is_absent());
    cache.put(&1, None).unwrap();
    cache.put(&1, Some(4)).unwrap();
    assert_got(cache.get(&1), 4, Source::Local);
    assert_eq!((cache.stats().gauges.values, cache.stats().gauges.absences), (1, 0));
}

#[test]
fn what_is_not_to_be_stored_only_replaces_what_there_was() {
    watched(|| {
        let fills: [fn() -> Fill<u64>; 4] = [
            || Fill::new(9).do_not_store(),
            || Fill::new(9).ttl(ms(0)),
            || Fill::absent().do_not_store(),
            Fill::unchanged,
        ];
        for fill in fills {
            let origin = Origin::new(5);
            let cache = plain().loader(reads(&origin)).build().unwrap();
            cache.put(&1, 1).unwrap();
            cache.put(&1, fill()).unwrap();
            assert!(cache.peek(&1).is_none());
            assert_got(cache.get(&1), 5, Source::Loaded);

            // A load in flight may have read what is replaced.
            let gate = Gate::new();
            thread::scope(|s| {
                let caller = s.spawn(|| {
                    cache.get_with(&2, |_| {
                        gate.pass();
                        Ok(1)
                    })
                });
                gate.wait_for(1);
                cache.put(&2, fill()).unwrap();
                gate.open();
                assert_got(caller.join().unwrap(), 1, Source::Loaded);
            });
            assert!(cache.peek(&2).is_none());
            assert_idle(&cache);
        }
    });
}
