//! Loading ahead of callers: a report, never a failure, and always an end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use onefill::{Cache, Clock, Group, PrewarmReport, Source};

use super::support::{
    Gate, Load, Numbers, Origin, assert_got, assert_idle, ms, numbers, on_workers, plain, reads,
    secs, wait_for, wait_for_quiet, watched,
};

fn told(report: PrewarmReport) -> (usize, usize, usize, usize) {
    (report.loaded, report.already_there, report.failed, report.unfinished)
}

/// Of a hundred keys ten fail and one hangs.
#[test]
fn what_fails_or_hangs_does_not_keep_a_service_from_starting() {
    watched(|| {
        let (gate, origin) = (Gate::new(), Origin::new(0));
        let (held, counted) = (Arc::clone(&gate), Arc::clone(&origin));
        let loader = move |load: &Load<'_>| {
            let _counted = counted.count();
            match *load.key() {
                0 => held.pass(),
                1..=5 => return Err("away".into()),
                6..=10 => panic!("out of order"),
                _ => thread::sleep(ms(1)),
            }
            Ok(*load.key())
        };
        let cache = plain().workers(8).loader(loader).build().unwrap();
        let begun = Instant::now();
        let report = cache.prewarm(0..100).budget(secs(2)).run();
        assert!((secs(2)..secs(10)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        assert_eq!(told(report), (89, 0, 10, 1));
        assert_eq!(report.to_string(), "89 loaded, 0 already there, 10 failed, 1 unfinished");
        assert!(origin.most() <= 2);

        for key in 11..100 {
            assert_got(cache.get(&key), key, Source::Local);
        }
        assert!(cache.with().timeout(ms(20)).get(&0).unwrap_err().is_timed_out());
        assert!(cache.get(&1).unwrap_err().is_failed(), "asked anew");
        assert!(cache.get(&6).unwrap_err().is_panicked());
        gate.open();
        wait_for_quiet(&cache);
        assert_got(cache.get(&0), 0, Source::Local);
        let stats = cache.stats();
        assert_eq!((stats.loads_failed, stats.loads_panicked), (6, 6));
        assert_eq!(stats.calls(), 93, "a prewarm is no call");
    });
}

#[test]
fn what_is_there_or_under_way_is_not_loaded_again() {
    watched(|| {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |load: &Load<'_>| {
            if *load.key() == 5 {
                held.pass();
            }
            Ok((*load.key() != 6).then_some(1))
        };
        let cache = plain().loader(loader).build().unwrap();
        cache.put(&1, 9).unwrap();
        thread::scope(|s| {
            let under_way = s.spawn(|| cache.get(&5));
            gate.wait_for(1);
            let report = cache.prewarm([1, 2, 2, 5, 6, 6]).at_once(1).run();
            assert_eq!(told(report), (2, 4, 0, 0));
            gate.open();
            assert_got(under_way.join().unwrap(), 1, Source::Loaded);
        });
        assert_got(cache.get(&1), 9, Source::Local);
        assert!(cache.get(&6).unwrap().is_absent());
        assert_eq!(cache.stats().loads, 3);
    });
}

#[test]
fn what_is_stale_is_loaded_anew() {
    watched(|| {
        let clock = Clock::manual();
        let origin = Origin::new(2);
        let cache = numbers(&clock)
            .stale_while_revalidate(secs(60))
            .loader(reads(&origin))
            .build()
            .unwrap();
        cache.put(&1, 1).unwrap();
        clock.advance(secs(12));
        assert_eq!(told(cache.prewarm([1]).run()), (1, 0, 0, 0));
        assert_got(cache.get(&1), 2, Source::Local);
    });
}

#[test]
fn progress_is_told_after_each_key_and_ends_at_the_end() {
    watched(|| {
        let loader = |load: &Load<'_>| match load.key() % 4 {
            0 => Err("away".to_string()),
            _ => Ok(1),
        };
        let cache = plain().workers(12).loader(loader).build().unwrap();
        cache.put(&1, 1).unwrap();
        let mut seen = Vec::new();
        let report = cache.prewarm(0..20).on_progress(|now| seen.push(*now)).run();
        assert_eq!(told(report), (14, 1, 5, 0));
        assert_eq!(seen.len(), 20);
        for (n, now) in seen.iter().enumerate() {
            assert_eq!(now.done, n + 1);
            assert!(now.done <= now.asked && now.asked <= 20 && now.asked - now.done <= 3);
        }
        assert_eq!(seen.last().unwrap().asked, 20);
        // Of nothing there is nothing to tell.
        assert_eq!(told(cache.prewarm([]).on_progress(|_| unreachable!()).run()), (0, 0, 0, 0));
    });
}

#[test]
fn no_more_keys_than_told_are_loaded_at_once() {
    watched(|| {
        for (workers, at_once, most) in [(16, 2, 2), (8, 100, 2), (2, 100, 1), (16, 0, 1)] {
            let origin = Origin::new(0);
            let counted = Arc::clone(&origin);
            let loader = move |load: &Load<'_>| {
                let _counted = counted.count();
                thread::sleep(ms(1));
                Ok(*load.key())
            };
            let cache = plain().workers(workers).loader(loader).build().unwrap();
            assert_eq!(cache.prewarm(0..30).at_once(at_once).run().loaded, 30);
            assert!(origin.most() <= most, "{} at once, not {most}", origin.most());
        }
    });
}

/// Keys are taken as they are needed: an endless supply of them is no obstacle.
#[test]
fn a_budget_ends_what_has_no_end() {
    watched(|| {
        let cache = plain().loader(|load: &Load<'_>| Ok(*load.key())).build().unwrap();
        let begun = Instant::now();
        let report = cache.prewarm(0..).budget(ms(60)).run();
        assert!((ms(60)..secs(10)).contains(&begun.elapsed()));
        assert!(report.loaded > 0 && report.failed == 0 && report.unfinished <= 2, "{report}");
        // All there already: no wait in which it could notice.
        let report = cache.prewarm(std::iter::repeat(0)).budget(ms(60)).run();
        assert!(report.already_there > 0 && report.loaded <= 1, "{report}");
        assert_eq!(told(cache.prewarm(0..9).budget(Duration::ZERO).run()), (0, 0, 0, 0));
        wait_for_quiet(&cache);
    });
}

#[test]
fn a_full_queue_is_waited_for() {
    watched(|| {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |load: &Load<'_>| {
            if *load.key() >= 1_000 {
                held.pass();
            }
            Ok(*load.key())
        };
        let cache = plain().workers(1).queue(0).loader(loader).build().unwrap();
        thread::scope(|s| {
            let busy = s.spawn(|| cache.get(&1_000));
            gate.wait_for(1);
            let report = cache.prewarm(0..5).budget(ms(50)).run();
            assert_eq!(told(report), (0, 0, 0, 1));
            let prewarm = s.spawn(|| cache.prewarm(0..5).run());
            thread::sleep(ms(30));
            assert!(!prewarm.is_finished());
            gate.open();
            assert_eq!(told(prewarm.join().unwrap()), (5, 0, 0, 0));
            assert_got(busy.join().unwrap(), 1_000, Source::Loaded);
        });
        wait_for_quiet(&cache);
    });
}

/// Whether its loads run, wait in the queue, or have yet to begin.
#[test]
fn a_prewarm_ends_when_its_cache_is_closed() {
    watched(|| {
        for (workers, behind, busy) in [(1, 1, false), (1, 1, true), (8, 2, false), (8, 2, true)] {
            let gate = Gate::new();
            let held = Arc::clone(&gate);
            let loader = move |load: &Load<'_>| {
                held.pass();
                Ok(*load.key())
            };
            let cache = plain().workers(workers).loader(loader).build().unwrap();
            thread::scope(|s| {
                let callers: Vec<_> = (0..if busy { workers as u64 } else { 0 })
                    .map(|n| {
                        let cache = &cache;
                        s.spawn(move || cache.get(&(1_000 + n)))
                    })
                    .collect();
                gate.wait_for(callers.len());
                let prewarm = s.spawn(|| cache.prewarm(0..50).run());
                match busy {
                    true => wait_for(|| cache.stats().gauges.queued == behind),
                    false => gate.wait_for(behind),
                }
                assert_eq!(cache.close(ms(0)), if busy { workers } else { behind });
                if busy {
                    let report = prewarm.join().unwrap();
                    assert_eq!((report.loaded, report.failed), (0, 0), "{report}");
                    gate.open();
                } else {
                    gate.open();
                    let report = prewarm.join().unwrap();
                    assert_eq!(report.loaded + report.unfinished, behind, "{report}");
                }
                callers.into_iter().for_each(|caller| assert!(caller.join().unwrap().is_ok()));
            });
            assert_eq!(cache.close(secs(20)), 0);
            assert_idle(&cache);
        }
    });
}

#[test]
fn a_caller_may_take_a_key_from_the_queue_of_a_prewarm() {
    watched(|| {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |load: &Load<'_>| {
            if *load.key() == 9 {
                held.pass();
            }
            Ok(*load.key())
        };
        let cache = plain().workers(1).loader(loader).build().unwrap();
        thread::scope(|s| {
            let busy = s.spawn(|| cache.get(&9));
            gate.wait_for(1);
            let prewarm = s.spawn(|| cache.prewarm([1, 2]).run());
            wait_for(|| cache.stats().gauges.queued == 1);
            // A loader that asks for what waits behind others loads it itself.
            let asked = cache.get_with(&5, |_| Ok(cache.get(&1).unwrap().into_value().unwrap()));
            assert_got(asked, 1, Source::Loaded);
            gate.open();
            let report = prewarm.join().unwrap();
            assert_eq!(report.loaded + report.already_there, 2, "{report}");
            assert_got(busy.join().unwrap(), 9, Source::Loaded);
        });
        assert_eq!(cache.stats().loads, 4);
        wait_for_quiet(&cache);
    });
}

/// It has the only worker there is, and waits for what a worker is to do.
#[test]
fn a_loader_may_prewarm() {
    watched(|| {
        for workers in [None, Some(1), Some(2)] {
            let itself: Arc<OnceLock<Numbers>> = Arc::default();
            let known = Arc::downgrade(&itself);
            let loader = move |load: &Load<'_>| match *load.key() {
                0 => {
                    let known = known.upgrade().unwrap();
                    let report = known.get().unwrap().prewarm(0..6).run();
                    assert_eq!(told(report), (3, 1, 2, 0), "itself is under way");
                    Ok(0)
                }
                4 => Err("away".into()),
                5 => panic!("out of order"),
                key => Ok(key),
            };
            let builder = plain().loader(loader);
            let cache = on_workers(builder, workers);
            assert!(itself.set(cache.build().unwrap()).is_ok());
            let cache = itself.get().unwrap();
            assert_got(cache.get(&0), 0, Source::Loaded);
            assert_got(cache.get(&3), 3, Source::Local);
            wait_for_quiet(cache);
        }
    });
}

#[test]
fn callers_go_first() {
    watched(|| {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let order = Arc::new(AtomicUsize::new(0));
        let numbered = Arc::clone(&order);
        let loader = move |load: &Load<'_>| {
            if *load.key() == 0 {
                held.pass();
            }
            Ok(numbered.fetch_add(1, SeqCst) as u64)
        };
        // Callers load on their own threads, a prewarm on a worker, and one at a time.
        let cache = plain().admission(1).loader(loader).build().unwrap();
        thread::scope(|s| {
            let first = s.spawn(|| cache.get(&0));
            gate.wait_for(1);
            let prewarm = s.spawn(|| cache.prewarm([1]).run());
            wait_for(|| cache.stats().gauges.not_admitted == 1);
            let caller = s.spawn(|| cache.get(&2));
            wait_for(|| cache.stats().gauges.not_admitted == 2);
            gate.open();
            assert_got(first.join().unwrap(), 0, Source::Loaded);
            assert_got(caller.join().unwrap(), 1, Source::Loaded);
            assert_eq!(told(prewarm.join().unwrap()), (1, 0, 0, 0));
        });
        assert_got(cache.get(&1), 2, Source::Local);
    });
}

#[test]
fn without_a_loader_what_is_not_there_has_failed() {
    let cache: Numbers = plain().build().unwrap();
    cache.put(&1, 1).unwrap();
    assert_eq!(told(cache.prewarm([1, 2, 3]).run()), (0, 1, 2, 0));
    assert_idle(&cache);
}

#[test]
fn keys_that_panic_on_their_way_wedge_nothing() {
    watched(|| {
        let cache = plain().loader(|load: &Load<'_>| Ok(*load.key())).build().unwrap();
        let keys = (0..10).inspect(|key| assert!(*key < 5, "no more keys"));
        let prewarm = AssertUnwindSafe(|| cache.prewarm(keys).run());
        assert!(catch_unwind(prewarm).is_err());
        wait_for_quiet(&cache);
        assert_eq!(cache.prewarm(0..10).run().failed, 0);
    });
}

/// On a worker the keys would wait for the permit of the loader that waits for them.
#[test]
fn a_loader_that_prewarms_does_not_wait_for_itself() {
    watched(|| {
        let own: Arc<OnceLock<Numbers>> = Arc::default();
        let me = Arc::clone(&own);
        let loader = move |load: &Load<'_>| {
            let cache = me.get().unwrap();
            match *load.key() {
                1 => assert_eq!(told(cache.prewarm([2, 3]).run()), (2, 0, 0, 0)),
                // It would wait for whoever waits for it.
                2 => assert!(cache.get(&1).unwrap_err().is_would_deadlock()),
                _ => {}
            }
            Ok(*load.key())
        };
        let cache = plain().admission(1).loader(loader).build().unwrap();
        own.set(cache.clone()).unwrap();
        assert_got(cache.get(&1), 1, Source::Loaded);
        assert_got(cache.get(&3), 3, Source::Local);
        assert_idle(&cache);
    });
}

/// Its loader waits for what the workers do, in the sight of nobody, so the budget has to end it.
#[test]
fn the_budget_of_a_prewarm_bounds_the_loader_that_runs_it() {
    watched(|| {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |load: &Load<'_>| {
            if *load.key() == 0 {
                held.pass();
            }
            Ok(*load.key())
        };
        let cache = plain().admission(1).loader(loader).build().unwrap();
        let prewarm = |keys: [u64; 2]| cache.prewarm(keys).budget(ms(200)).run();
        thread::scope(|s| {
            // A key that hangs, and keys that find the one permit taken.
            let group: Group<&str, PrewarmReport, String> = Group::new();
            assert_eq!(told(group.run(&"start", || Ok(prewarm([0, 1]))).unwrap()), (0, 0, 0, 2));
            let other: Cache<&str, PrewarmReport, String> =
                Cache::builder("other").ttl(secs(10)).build().unwrap();
            let answer = other.get_with(&"start", |_| Ok(prewarm([2, 3]))).unwrap();
            assert_eq!(told(*answer.value().unwrap()), (0, 0, 0, 2));
            assert_eq!(gate.came(), 1);
            gate.open();
            s.spawn(|| wait_for_quiet(&cache));
        });
        for key in 0..=3 {
            assert_got(cache.get(&key), key, Source::Local);
        }
    });
}

#[test]
fn a_loader_of_a_prewarm_on_the_same_thread_is_told_the_end_of_the_budget() {
    watched(|| {
        let own: Arc<OnceLock<Numbers>> = Arc::default();
        let me = Arc::clone(&own);
        let loader = move |load: &Load<'_>| {
            let cache = me.get().unwrap();
            if *load.key() == 1 {
                assert_eq!(told(cache.prewarm([2]).budget(secs(60)).run()), (1, 0, 0, 0));
                assert_eq!(told(cache.prewarm([3]).run()), (1, 0, 0, 0));
                return Ok(0);
            }
            Ok(load.deadline().remaining().map_or(9, |left| left.as_secs() / 60 + 1))
        };
        let cache = plain().loader(loader).build().unwrap();
        own.set(cache.clone()).unwrap();
        assert_got(cache.get(&1), 0, Source::Loaded);
        assert_got(cache.get(&2), 1, Source::Local);
        assert_got(cache.get(&3), 9, Source::Local);
    });
}

#[test]
fn keys_that_have_ended_are_not_asked_for_another() {
    watched(|| {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |load: &Load<'_>| {
            held.pass();
            Ok(*load.key())
        };
        let cache = plain().loader(loader).build().unwrap();
        let mut left = 1;
        let opened = Arc::clone(&gate);
        let keys = std::iter::from_fn(move || {
            left -= 1;
            if left < 0 {
                // With a load under way: there is time to ask again.
                opened.open();
            }
            assert!(left >= -1, "asked after the end");
            (left == 0).then_some(1)
        });
        assert_eq!(told(cache.prewarm(keys).run()), (1, 0, 0, 0));
    });
}
