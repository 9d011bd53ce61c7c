//! There is no such thing: an answer like any other. And values that look like nothing.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;

use onefill::{Cache, Clock, Fill, Source};

use super::support::{Load, Origin, assert_got, got, numbers, plain, secs, watched};

fn nothing(origin: &Arc<Origin>) -> impl Fn(&Load<'_>) -> Result<Fill<u64>, String> + use<> {
    let origin = Arc::clone(origin);
    move |_| origin.read().map(|_| Fill::absent())
}

#[test]
fn an_absence_is_remembered_for_a_time_of_its_own() {
    watched(|| {
        let clock = Clock::manual();
        let origin = Origin::new(0);
        let cache = numbers(&clock).absent_ttl(secs(3)).loader(nothing(&origin)).build().unwrap();
        assert_eq!(got(cache.get(&1)).unwrap(), (None, Source::Loaded));
        clock.advance(secs(2));
        let answer = cache.get(&1).unwrap();
        assert!(answer.is_absent() && answer.value().is_none());
        assert_eq!((answer.source(), answer.age()), (Source::Local, secs(2)));
        clock.advance(secs(1));
        assert_eq!(got(cache.get(&1)).unwrap(), (None, Source::Loaded));
        assert_eq!(origin.calls(), 2);
        let stats = cache.stats();
        assert_eq!((stats.hits, stats.absent_hits, stats.loaded), (0, 1, 2));
        assert_eq!((stats.gauges.values, stats.gauges.absences), (0, 1));
    });
}

#[test]
fn an_absence_has_no_stale_windows() {
    watched(|| {
        let clock = Clock::manual();
        let origin = Origin::new(0);
        let cache = numbers(&clock)
            .absent_ttl(secs(3))
            .stale_while_revalidate(secs(60))
            .stale_if_error(secs(60))
            .loader(nothing(&origin))
            .build()
            .unwrap();
        assert_eq!(got(cache.get(&1)).unwrap(), (None, Source::Loaded));
        origin.go_away();
        clock.advance(secs(3));
        assert!(cache.peek(&1).is_none());
        assert!(cache.get(&1).unwrap_err().is_failed());
    });
}

#[test]
fn a_record_that_has_just_been_made_is_seen_at_once() {
    watched(|| {
        let origin = Origin::new(5);
        let found = Arc::clone(&origin);
        let cache = plain().loader(move |_: &Load<'_>| Ok(found.read().ok())).build().unwrap();
        origin.go_away();
        assert!(cache.get(&1).unwrap().is_absent());
        assert!(cache.get(&2).unwrap().is_absent());
        origin.come_back();
        cache.invalidate(&1).unwrap();
        assert_got(cache.get(&1), 5, Source::Loaded);
        cache.put(&2, 6).unwrap();
        assert_got(cache.get(&2), 6, Source::Local);
        assert_eq!(cache.stats().gauges.absences, 0);
    });
}

/// Fifty callers, twenty times a second, for five seconds, for what is not there.
#[test]
fn the_end_of_an_absence_is_met_by_one_load() {
    watched(|| {
        let clock = Clock::manual();
        let origin = Origin::new(0);
        let cache = numbers(&clock).absent_ttl(secs(1)).loader(nothing(&origin)).build().unwrap();
        let step = Barrier::new(51);
        thread::scope(|s| {
            for _ in 0..50 {
                s.spawn(|| {
                    for _ in 0..100 {
                        step.wait();
                        assert!(cache.get(&1).unwrap().is_absent());
                        step.wait();
                    }
                });
            }
            for _ in 0..100 {
                step.wait();
                step.wait();
                clock.advance(super::support::ms(50));
            }
        });
        assert_eq!((origin.calls(), origin.most()), (5, 1));
    });
}

/// Ten gets of a value that looks like nothing: one load, nine hits.
fn is_a_value<V>(value: V)
where
    V: Clone + PartialEq + std::fmt::Debug + Send + Sync + 'static,
{
    let loads = Arc::new(AtomicUsize::new(0));
    let (counted, loaded) = (Arc::clone(&loads), value.clone());
    let loader = move |_: &onefill::Load<'_, u64, V>| {
        counted.fetch_add(1, SeqCst);
        Ok::<_, String>(Fill::new(loaded.clone()))
    };
    let cache = Cache::builder("empty").ttl(secs(60)).loader(loader).build().unwrap();
    for _ in 0..10 {
        assert_eq!(cache.get(&1).unwrap().into_value(), Some(value.clone()));
    }
    assert_eq!((loads.load(SeqCst), cache.stats().hits), (1, 9));
    assert_eq!(cache.stats().gauges.values, 1);
}

#[test]
fn a_value_that_looks_like_nothing_is_a_value() {
    is_a_value(None::<u64>);
    is_a_value(0_u64);
    is_a_value(String::new());
    is_a_value(Vec::<u64>::new());
    is_a_value(false);
    is_a_value(());
}

#[test]
fn a_scan_for_what_does_not_exist_pushes_out_nothing_that_does() {
    watched(|| {
        let cache = plain()
            .capacity(200)
            .loader(|load: &Load<'_>| Ok((*load.key() < 100).then_some(1)))
            .build()
            .unwrap();
        for key in 0..100 {
            assert_got(cache.get(&key), 1, Source::Loaded);
        }
        for key in 1_000..11_000 {
            assert!(cache.get(&key).unwrap().is_absent());
        }
        for key in 0..100 {
            assert_got(cache.get(&key), 1, Source::Local);
        }
        let now = cache.stats().gauges;
        assert_eq!(now.values, 100);
        assert!((1..=20).contains(&now.absences), "{}", now.absences);
    });
}

#[test]
fn absences_have_room_in_the_smallest_cache() {
    for capacity in [1, 2, 8] {
        let cache = plain().capacity(capacity).build().unwrap();
        cache.put(&1, Fill::absent()).unwrap();
        assert!(cache.get(&1).unwrap().is_absent());
        cache.put(&2, 2).unwrap();
        assert_got(cache.get(&2), 2, Source::Local);
        assert!(cache.get(&1).unwrap().is_absent());
    }
}

#[test]
fn without_room_for_absences_none_is_kept() {
    let cache = plain().absent_capacity(0).build().unwrap();
    cache.put(&1, Fill::absent()).unwrap();
    assert!(cache.peek(&1).is_none());
    assert_eq!(cache.stats().gauges.absences, 0);
    cache.put(&2, 2).unwrap();
    assert_got(cache.get(&2), 2, Source::Local);
}
