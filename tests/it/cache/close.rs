//! The end of a cache: closed, or its last handle dropped, with calls and loads under way.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use onefill::{Clock, Error, Source};

use super::support::{
    Gate, Load, Numbers, STALE, assert_got, assert_idle, ms, numbers, on_workers, plain, secs,
    wait_for, wait_for_followers, wait_for_quiet, watched,
};

fn held(gate: &Arc<Gate>) -> impl Fn(&Load<'_>) -> Result<u64, String> + use<> {
    let gate = Arc::clone(gate);
    move |load| {
        gate.pass();
        Ok(*load.key())
    }
}

#[test]
fn a_closed_cache_says_so_at_once() {
    watched(|| {
        let cache = plain().loader(|_: &Load<'_>| Ok(1)).build().unwrap();
        cache.put(&1, 1).unwrap();
        assert_eq!(cache.close(secs(5)), 0);
        assert!(cache.get(&1).unwrap_err().is_closed(), "even what is there");
        assert!(cache.get(&2).unwrap_err().is_closed());
        assert!(cache.get_with(&3, |_| -> Result<u64, String> { unreachable!() }).is_err());
        let report = cache.prewarm(0..10).run();
        assert_eq!(report.to_string(), "0 loaded, 0 already there, 0 failed, 0 unfinished");
        let stats = cache.stats();
        assert_eq!((stats.closed, stats.calls(), stats.loads), (3, 3, 0));
        assert_eq!(cache.close(secs(5)), 0, "twice is as good as once");
    });
}

#[test]
fn callers_who_wait_when_it_closes_get_what_the_load_comes_to() {
    watched(|| {
        for workers in [None, Some(1)] {
            let gate = Gate::new();
            let builder = plain().loader(held(&gate));
            let cache = on_workers(builder, workers).build().unwrap();
            thread::scope(|s| {
                let callers = [(); 4].map(|()| s.spawn(|| cache.get(&7).unwrap().into_value()));
                wait_for_followers(&cache, if workers.is_some() { 4 } else { 3 });
                gate.wait_for(1);
                assert_eq!(cache.close(ms(0)), workers.unwrap_or(0), "busy still");
                assert!(cache.get(&7).unwrap_err().is_closed());
                gate.open();
                assert!(callers.into_iter().all(|caller| caller.join().unwrap() == Some(7)));
                assert_eq!(cache.close(secs(20)), 0);
            });
            assert_idle(&cache);
        }
    });
}

/// A load in the queue will not begin any more.
#[test]
fn callers_whose_load_has_not_begun_when_it_closes_are_told() {
    watched(|| {
        let gate = Gate::new();
        let cache = plain().workers(1).loader(held(&gate)).build().unwrap();
        thread::scope(|s| {
            let running = s.spawn(|| cache.get(&1));
            gate.wait_for(1);
            let queued = [(); 3].map(|()| s.spawn(|| cache.get(&2)));
            wait_for_followers(&cache, 4);
            assert_eq!(cache.close(ms(0)), 1);
            for caller in queued {
                assert!(caller.join().unwrap().unwrap_err().is_closed());
            }
            gate.open();
            assert_got(running.join().unwrap(), 1, Source::Loaded);
        });
        assert_eq!(gate.came(), 1);
        assert_eq!(cache.close(secs(20)), 0);
        assert_idle(&cache);
        let stats = cache.stats();
        assert_eq!((stats.closed, stats.loaded, stats.calls()), (3, 1, 4));
    });
}

#[test]
fn no_refresh_begins_once_it_is_closed() {
    watched(|| {
        let clock = Clock::manual();
        let gate = Gate::new();
        // One worker, and three in the queue.
        let cache = numbers(&clock)
            .stale_while_revalidate(secs(60))
            .workers(1)
            .loader(held(&gate))
            .build()
            .unwrap();
        for key in 1..=4 {
            cache.put(&key, 0).unwrap();
        }
        clock.advance(secs(12));
        assert_got(cache.get(&1), 0, STALE);
        gate.wait_for(1);
        for key in 2..=4 {
            assert_got(cache.get(&key), 0, STALE);
        }
        assert_eq!(cache.stats().gauges.queued, 3);
        assert_eq!(cache.close(ms(0)), 1);
        gate.open();
        assert_eq!(cache.close(secs(20)), 0);
        assert_eq!(gate.came(), 1);
        assert_eq!(cache.stats().loads, 1);
        assert_idle(&cache);
    });
}

#[test]
fn closing_waits_for_what_runs_and_no_longer_than_it_is_told() {
    watched(|| {
        let clock = Clock::manual();
        let gate = Gate::new();
        let cache =
            numbers(&clock).stale_while_revalidate(secs(60)).loader(held(&gate)).build().unwrap();
        cache.put(&1, 0).unwrap();
        clock.advance(secs(12));
        assert_got(cache.get(&1), 0, STALE);
        gate.wait_for(1);
        let begun = Instant::now();
        assert_eq!(cache.close(ms(60)), 1);
        assert!((ms(60)..secs(5)).contains(&begun.elapsed()));
        thread::scope(|s| {
            let closing = s.spawn(|| cache.close(secs(20)));
            gate.open();
            assert_eq!(closing.join().unwrap(), 0);
        });
        assert_eq!(cache.peek(&1).unwrap().into_value(), Some(1), "what it loaded is stored");
    });
}

#[test]
fn the_last_handle_closes_it_and_lets_go_of_everything() {
    watched(|| {
        let kept = Arc::new(());
        let held = Arc::clone(&kept);
        let cache = plain()
            .loader(move |load: &Load<'_>| {
                let _held = &held;
                Ok(*load.key())
            })
            .build()
            .unwrap();
        let other = cache.clone();
        assert_eq!(cache.prewarm(0..10).run().loaded, 10);
        drop(cache);
        assert_got(other.get(&1), 1, Source::Local);
        assert_got(other.get(&11), 11, Source::Loaded);
        drop(other);
        wait_for(|| Arc::strong_count(&kept) == 1);
    });
}

#[test]
fn callers_in_a_load_outlive_the_handle_they_were_not_given() {
    watched(|| {
        let gate = Gate::new();
        let cache = plain().workers(1).loader(held(&gate)).build().unwrap();
        let callers: Vec<_> = (0..4)
            .map(|_| {
                let cache = cache.clone();
                thread::spawn(move || cache.get(&7).unwrap().into_value())
            })
            .collect();
        wait_for_followers(&cache, 4);
        drop(cache);
        gate.open();
        assert!(callers.into_iter().all(|caller| caller.join().unwrap() == Some(7)));
    });
}

/// Dropped while a refresh hangs: it waits for a second, and no longer.
#[test]
fn a_refresh_that_hangs_does_not_keep_a_handle_from_being_dropped() {
    watched(|| {
        let clock = Clock::manual();
        let gate = Gate::new();
        let cache =
            numbers(&clock).stale_while_revalidate(secs(60)).loader(held(&gate)).build().unwrap();
        cache.put(&1, 0).unwrap();
        clock.advance(secs(12));
        assert_got(cache.get(&1), 0, STALE);
        gate.wait_for(1);
        let begun = Instant::now();
        drop(cache);
        assert!((secs(1)..secs(15)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        // It ends later, with nobody left to know.
        gate.open();
        wait_for(|| Arc::strong_count(&gate) == 1);
    });
}

/// The last handle is dropped by the loader itself, on a caller's thread and on a worker.
#[test]
fn a_loader_may_drop_the_last_handle() {
    watched(|| {
        for workers in [None, Some(1)] {
            let last: Arc<Mutex<Option<Numbers>>> = Arc::default();
            let (gate, handle, done) = (Gate::new(), Arc::clone(&last), Arc::new(()));
            let (held, ends) = (Arc::clone(&gate), Arc::clone(&done));
            let clock = Clock::manual();
            let builder =
                numbers(&clock).stale_while_revalidate(secs(60)).loader(move |load: &Load<'_>| {
                    let _ends = &ends;
                    held.pass();
                    drop(handle.lock().unwrap().take());
                    Ok(*load.key())
                });
            let cache = on_workers(builder, workers).build().unwrap();
            cache.put(&1, 0).unwrap();
            clock.advance(secs(12));
            // In a refresh, so that no caller has a handle.
            assert_got(cache.get(&1), 0, STALE);
            gate.wait_for(1);
            *last.lock().unwrap() = Some(cache);
            let begun = Instant::now();
            gate.open();
            wait_for(|| Arc::strong_count(&done) == 1);
            assert!(begun.elapsed() < secs(10));
        }
    });
}

#[test]
fn a_loader_may_close_its_cache() {
    watched(|| {
        for workers in [None, Some(1)] {
            let handle: Arc<Mutex<Option<Numbers>>> = Arc::default();
            let itself = Arc::downgrade(&handle);
            let builder = plain().loader(move |load: &Load<'_>| {
                let itself = itself.upgrade().unwrap();
                let itself = itself.lock().unwrap().clone().unwrap();
                itself.close(secs(20));
                assert!(itself.get(&(load.key() + 1)).unwrap_err().is_closed());
                Ok(*load.key())
            });
            let cache = on_workers(builder, workers).build().unwrap();
            *handle.lock().unwrap() = Some(cache.clone());
            assert_got(cache.get(&1), 1, Source::Loaded);
            assert!(matches!(cache.get(&1), Err(Error::Closed)));
            assert_eq!(cache.close(secs(20)), 0);
            *handle.lock().unwrap() = None;
        }
    });
}

#[test]
fn closing_in_a_storm_leaves_nobody_waiting() {
    watched(|| {
        for round in 0..30 {
            let clock = Clock::manual();
            let builder =
                numbers(&clock).stale_while_revalidate(secs(60)).admission(2).queue(4).loader(
                    |load: &Load<'_>| {
                        thread::sleep(ms(load.key() % 3));
                        Ok(*load.key())
                    },
                );
            let cache = if round % 2 == 0 { builder.workers(2) } else { builder }.build().unwrap();
            thread::scope(|s| {
                for thread in 0..6_u64 {
                    let (cache, clock) = (&cache, &clock);
                    s.spawn(move || {
                        for n in 0.. {
                            match cache.get(&((n * (thread + 1)) % 20)) {
                                Err(Error::Closed) => break,
                                Err(error) => assert!(error.is_overloaded(), "{error:?}"),
                                Ok(answer) => assert!(answer.into_value().is_some()),
                            }
                            if n % 16 == 0 {
                                clock.advance(secs(12));
                            }
                        }
                    });
                }
                thread::sleep(ms(5));
                assert!(cache.close(secs(20)) <= 2);
            });
            wait_for_quiet(&cache);
        }
    });
}
