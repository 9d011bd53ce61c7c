//! L1: how much it holds, and when it lets go.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread;

use onefill::{Cache, Clock, Fill, Source};

use super::support::{
    Load, Numbers, STALE, Trapped, assert_got, assert_idle, at_hash, ms, numbers, plain, secs,
    wait_for_quiet, watched,
};

/// A cache by weight, whose values are their own weights.
fn weighed(capacity: u64) -> Numbers {
    plain()
        .capacity_by_weight(capacity, |_, weight| u32::try_from(*weight).unwrap_or(u32::MAX))
        .loader(|load: &Load<'_>| Ok(*load.key() / 1_000))
        .build()
        .unwrap()
}

#[test]
fn a_value_too_heavy_is_not_kept_and_pushes_nothing_out() {
    watched(|| {
        let cache = weighed(100);
        let tens: Vec<u64> = (10_000..10_009).collect();
        for key in tens.iter().chain(&tens) {
            assert_eq!(cache.get(key).unwrap().into_value(), Some(10));
        }
        for heavy in [1_000, 101, u64::from(u32::MAX), 100, 99, 98] {
            assert_got(cache.get(&(heavy * 1_000)), heavy, Source::Loaded);
            assert!(cache.peek(&(heavy * 1_000)).is_none());
        }
        assert_eq!(cache.stats().too_heavy, 6, "counted, and not as stored");
        assert_eq!(cache.stats().stored, 9);
        for key in &tens {
            assert_got(cache.get(key), 10, Source::Local);
        }
        assert_got(cache.get(&60_000), 60, Source::Loaded);
        assert!(cache.stats().gauges.weight <= 100);
        assert_got(cache.get(&97_000), 97, Source::Loaded);
        assert!(cache.stats().gauges.weight <= 100);
    });
}

/// A value that is too heavy takes the place of the one before it: by being nowhere.
#[test]
fn a_value_too_heavy_does_not_leave_the_one_before_it() {
    let cache = weighed(100);
    cache.put(&1, 10).unwrap();
    cache.put(&1, 1_000).unwrap();
    assert!(cache.peek(&1).is_none());
    cache.put(&1, 98).unwrap();
    assert!(cache.peek(&1).is_none());
}

#[test]
fn values_that_grow_make_room_for_themselves() {
    let cache = weighed(100);
    for round in 1..=9 {
        for key in 0..10 {
            cache.put(&key, round * 10).unwrap();
            let weight = cache.stats().gauges.weight;
            assert!(weight <= 100, "{weight} in round {round}");
        }
    }
}

#[test]
fn what_weighs_nothing_counts_as_one() {
    let cache = plain().capacity_by_weight(10, |_, _| 0).build().unwrap();
    for key in 0..1_000 {
        cache.put(&key, 0).unwrap();
    }
    let now = cache.stats().gauges;
    assert!(now.values <= 10 && now.weight <= 10, "{now:?}");
    assert!(now.values >= 5, "{now:?}");
}

/// The weigher is the user's: it may ask the cache, and it is asked once a value.
#[test]
fn the_weigher_is_called_once_for_each_value_and_under_no_lock() {
    watched(|| {
        let cache: Arc<OnceLock<Numbers>> = Arc::default();
        let (itself, calls) = (Arc::downgrade(&cache), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&calls);
        let weigher = move |key: &u64, _: &u64| {
            counted.fetch_add(1, SeqCst);
            if let Some(itself) = itself.upgrade() {
                let itself = itself.get().unwrap();
                itself.put(&(key + 1_000), Fill::absent()).unwrap();
                itself.invalidate(&(key + 2_000)).unwrap();
                let _ = (itself.peek(key), itself.stats());
            }
            1
        };
        let built = plain()
            .capacity_by_weight(10, weigher)
            .loader(|load: &Load<'_>| Ok(*load.key()))
            .build()
            .unwrap();
        assert!(cache.set(built).is_ok());
        let cache = cache.get().unwrap();
        for key in 0..100 {
            cache.put(&key, 1).unwrap();
        }
        assert_eq!(calls.load(SeqCst), 100);
        for key in 100..200 {
            assert_got(cache.get(&key), key, Source::Loaded);
        }
        assert_eq!(calls.load(SeqCst), 200);
    });
}

#[test]
fn a_small_cache_holds_what_it_says() {
    for capacity in [1, 2, 3, 10, 100] {
        let cache = plain().capacity(capacity).build().unwrap();
        for key in 0..1_000 {
            cache.put(&key, key).unwrap();
            assert_got(cache.get(&key), key, Source::Local);
        }
        assert_eq!(cache.stats().gauges.values, capacity);
    }
}

/// Counts its drops, and asks a cache while it is dropped: no lock may be held.
struct Tracked {
    id: u64,
    tracks: Arc<Tracks>,
}

#[derive(Default)]
struct Tracks {
    made: AtomicUsize,
    dropped: AtomicUsize,
    cache: OnceLock<Cache<u64, Arc<Tracked>, String>>,
}

impl Tracks {
    fn make(self: &Arc<Self>, id: u64) -> Arc<Tracked> {
        self.made.fetch_add(1, SeqCst);
        Arc::new(Tracked { id, tracks: Arc::clone(self) })
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.tracks.dropped.fetch_add(1, SeqCst);
        if let Some(cache) = self.tracks.cache.get() {
            for key in [self.id, self.id + 1] {
                let _ = (cache.peek(&key), cache.invalidate(&(key + 1_000_000)));
            }
            let _ = cache.stats();
        }
    }
}

#[test]
fn no_value_is_dropped_under_a_lock() {
    watched(|| {
        let tracks: Arc<Tracks> = Arc::default();
        let clock = Clock::manual();
        let loaded = Arc::clone(&tracks);
        let cache = Cache::<u64, Arc<Tracked>, String>::builder("tracked")
            .clock(clock.clone())
            .ttl(secs(10))
            .stale_while_revalidate(secs(10))
            .capacity(10)
            .loader(move |load: &onefill::Load<'_, u64, Arc<Tracked>>| Ok(loaded.make(*load.key())))
            .build()
            .unwrap();
        assert!(tracks.cache.set(cache.clone()).is_ok());
        // Evicted, replaced by a load, by a put, by an absence, by what is not stored.
        for key in 0..200 {
            let _ = cache.get(&(key % 37)).unwrap();
            cache.put(&(key % 11), tracks.make(key)).unwrap();
            if key % 20 == 0 {
                clock.advance(secs(12));
                let _ = cache.get(&(key % 11)).unwrap();
            }
        }
        wait_for_quiet(&cache);
        cache.put(&1, Fill::absent()).unwrap();
        cache.put(&2, Fill::new(tracks.make(2)).do_not_store()).unwrap();
        cache.invalidate(&3).unwrap();
        cache.invalidate_all().unwrap();
        assert_eq!(cache.stats().gauges.values, 0);
        assert_eq!(tracks.made.load(SeqCst), tracks.dropped.load(SeqCst));
        assert_idle(&cache);
    });
}

/// Half a million values and as many absences, each asked for once.
#[test]
fn what_nobody_asks_for_again_takes_no_more_room() {
    watched(|| {
        // A debug build does a tenth of it.
        let keys: u64 = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
        let tracks: Arc<Tracks> = Arc::default();
        let clock = Clock::manual();
        let loaded = Arc::clone(&tracks);
        let cache = Cache::<u64, Arc<Tracked>, String>::builder("tracked")
            .clock(clock.clone())
            .ttl(ms(50))
            .absent_ttl(ms(50))
            .capacity(10_000)
            .loader(move |load: &onefill::Load<'_, u64, Arc<Tracked>>| {
                Ok((load.key() % 2 == 0).then(|| loaded.make(*load.key())))
            })
            .build()
            .unwrap();
        thread::scope(|s| {
            for thread in 0..8 {
                let (cache, clock) = (&cache, &clock);
                s.spawn(move || {
                    for key in (thread..keys).step_by(8) {
                        assert_eq!(cache.get(&key).unwrap().is_absent(), key % 2 == 1);
                        if key % 4_096 == 0 {
                            clock.advance(ms(10));
                        }
                    }
                });
            }
        });
        clock.advance(secs(1));
        let _ = cache.get(&0).unwrap();
        let now = cache.stats().gauges;
        assert!(now.values <= 10_000 && now.absences <= 1_000, "{now:?}");
        assert_idle(&cache);
        let alive = tracks.made.load(SeqCst) - tracks.dropped.load(SeqCst);
        assert_eq!(alive, now.values, "what is not in L1 is nowhere");
        drop(cache);
        assert_eq!(tracks.made.load(SeqCst) as u64, keys / 2 + 1);
        assert_eq!(tracks.dropped.load(SeqCst), tracks.made.load(SeqCst));
    });
}

/// Readers, writers and failing refreshes of a few keys in an L1 that has room for fewer: whatever
/// is served was put under its key.
#[test]
fn entries_are_never_mixed_up_however_often_they_are_pushed_out() {
    watched(|| {
        let clock = Clock::manual();
        let cache = numbers(&clock)
            .capacity(4)
            .stale_while_revalidate(secs(1_000))
            .stale_if_error(secs(1_000))
            .refresh_backoff(ms(1))
            .loader(|load: &Load<'_>| match load.key() % 3 {
                0 => Err("away".into()),
                1 => Ok(None),
                _ => Ok(Some(load.key() * 1_000)),
            })
            .build()
            .unwrap();
        thread::scope(|s| {
            for thread in 0..6_u64 {
                let (cache, clock) = (&cache, &clock);
                s.spawn(move || {
                    for n in 0..2_000 {
                        let key = (n * (thread + 1)) % 12;
                        match n % 7 {
                            0 => cache.put(&key, key * 1_000 + n % 1_000).unwrap(),
                            1 if n % 3 == 0 => cache.invalidate(&key).unwrap(),
                            2 => clock.advance(secs(3)),
                            _ => {
                                let answer = cache.with().timeout(secs(20)).get(&key);
                                match answer.map(|answer| answer.into_value()) {
                                    Ok(Some(value)) => assert_eq!(value / 1_000, key),
                                    Ok(None) => assert_eq!(key % 3, 1),
                                    Err(error) => assert!(error.is_failed() && key % 3 == 0),
                                }
                            }
                        }
                    }
                });
            }
        });
        wait_for_quiet(&cache);
        let now = cache.stats().gauges;
        assert!(now.values <= 4 && now.absences <= 1, "{now:?}");
    });
}

#[test]
fn an_expired_value_is_let_go_when_it_is_loaded_anew() {
    watched(|| {
        let clock = Clock::manual();
        let cache = numbers(&clock)
            .stale_while_revalidate(secs(1))
            .loader(|_: &Load<'_>| Ok(2))
            .build()
            .unwrap();
        cache.put(&1, 1).unwrap();
        clock.advance(secs(10));
        assert_got(cache.get(&1), 1, STALE);
        wait_for_quiet(&cache);
        clock.advance(secs(100));
        assert_got(cache.get(&1), 2, Source::Loaded);
        assert_eq!(cache.stats().gauges.values, 1);
    });
}

/// A full L1 of four, in which whatever comes pushes something out.
fn crowded() -> Cache<Trapped, u64, String> {
    let cache = Cache::builder("crowded")
        .ttl(secs(60))
        .capacity(4)
        .loader(|load: &onefill::Load<'_, Trapped, u64>| Ok(load.key().0))
        .build()
        .unwrap();
    for key in 0..20 {
        assert_got(cache.get(&Trapped(key)), key, Source::Loaded);
    }
    cache
}

#[test]
fn what_is_pushed_out_is_not_hashed_again() {
    watched(|| {
        let hashes = |cache: &Cache<Trapped, u64, String>, key| {
            let is_hashed =
                |n| at_hash(n, || (), || cache.get(&Trapped(key + n as u64)).unwrap()).1;
            (1..).take_while(|n| is_hashed(*n)).count()
        };
        let roomy = Cache::builder("roomy")
            .ttl(secs(60))
            .capacity(1_000)
            .loader(|load: &onefill::Load<'_, Trapped, u64>| Ok(load.key().0))
            .build()
            .unwrap();
        assert_eq!(hashes(&crowded(), 1_000), hashes(&roomy, 1_000));
    });
}

#[test]
fn a_hash_may_call_the_cache_whatever_is_pushed_out() {
    watched(|| {
        let cache = crowded();
        for n in 1.. {
            let other = cache.clone();
            let step_in = move || {
                for key in 0..2_000 {
                    other.peek(&Trapped(key));
                    other.put(&Trapped(key), key).unwrap();
                }
            };
            let key = 10_000 + n as u64;
            let (answer, sprung) = at_hash(n, step_in, || cache.get(&Trapped(key)));
            assert_got(answer, key, Source::Loaded);
            if !sprung {
                break;
            }
        }
        assert!(cache.stats().gauges.values <= 4);
        assert_idle(&cache);
    });
}

#[test]
fn a_hash_that_panics_costs_l1_nothing() {
    watched(|| {
        let cache = crowded();
        let mut panics = 0;
        for round in 0..20 {
            for n in 1.. {
                let key = 10_000 + 100 * round + n as u64;
                let call = || catch_unwind(AssertUnwindSafe(|| cache.get(&Trapped(key))));
                let (answer, sprung) = at_hash(n, || panic!("a hash panics once"), call);
                panics += u64::from(answer.is_err());
                if !sprung {
                    break;
                }
            }
        }
        // One hash a call.
        assert_eq!(panics, 20);
        let gauges = cache.stats().gauges;
        assert!(gauges.values <= 4 && gauges.weight <= 4, "{gauges:?}");
        for key in 0..2_000 {
            cache.invalidate(&Trapped(key)).unwrap();
            assert_got(cache.get(&Trapped(key)), key, Source::Loaded);
            assert!(cache.peek(&Trapped(key)).is_some());
        }
        let there = (0..20_000).filter(|key| cache.peek(&Trapped(*key)).is_some()).count();
        assert_eq!(there, cache.stats().gauges.values);
        assert_idle(&cache);
    });
}

/// A long key may take a while to hash.
#[test]
fn a_key_is_hashed_once_in_a_call() {
    let cache = crowded();
    let missed = Trapped(10_000);
    let calls: [&dyn Fn(); 6] = [
        &|| assert_got(cache.get(&missed), 10_000, Source::Loaded),
        &|| assert_got(cache.get(&missed), 10_000, Source::Local),
        &|| assert!(cache.peek(&missed).is_some()),
        &|| cache.put(&missed, 2).unwrap(),
        &|| cache.invalidate(&missed).unwrap(),
        &|| assert_got(cache.get_with(&missed, |_| Ok(3)), 3, Source::Loaded),
    ];
    for (n, call) in calls.into_iter().enumerate() {
        // At the second there is nobody to spring the trap.
        assert!(!at_hash(2, || (), call).1, "call {n}");
        assert!(at_hash(1, || (), || cache.peek(&Trapped(1))).1);
    }
}
