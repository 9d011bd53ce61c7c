//! Times and factors that mean nothing, or everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use onefill::{Cache, CacheBuilder, Clock, Fill, Source};

use super::support::{
    Gate, Load, Origin, assert_got, assert_idle, ms, numbers, plain, reads, secs,
    wait_for_followers, wait_for_quiet, watched,
};

const LONG: [Duration; 3] =
    [Duration::from_millis(u64::MAX), Duration::from_secs(u64::MAX), Duration::MAX];

#[test]
fn no_duration_is_too_long() {
    watched(|| {
        type Builder = CacheBuilder<u64, u64, String>;
        let settings: [fn(Builder, Duration) -> Builder; 9] = [
            |builder, long| builder.ttl(long),
            |builder, long| builder.absent_ttl(long),
            |builder, long| builder.stale_while_revalidate(long),
            |builder, long| builder.stale_if_error(long),
            |builder, long| builder.refresh_backoff(long),
            |builder, long| builder.timeout(long),
            |builder, long| builder.max_flight_age(long),
            |builder, long| builder.loser_wait(long),
            |builder, long| {
                builder
                    .ttl(long)
                    .absent_ttl(long)
                    .stale_while_revalidate(long)
                    .stale_if_error(long)
                    .refresh_backoff(long)
            },
        ];
        for long in LONG {
            for (number, set) in settings.iter().enumerate() {
                let clock = Clock::manual();
                let origin = Origin::new(1);
                let builder = set(numbers(&clock).early_refresh(1.0), long).jitter(0.1);
                let cache = builder.loader(reads(&origin)).build().unwrap();
                assert_got(cache.get(&1), 1, Source::Loaded);
                clock.advance(secs(1));
                assert_got(cache.get(&1), 1, Source::Local);
                // Whatever it is that has no end: nothing breaks at the end of time.
                origin.go_away();
                for step in [secs(12), secs(400 * 24 * 3_600), long, long] {
                    clock.advance(step);
                    let _ = cache.get(&1);
                    wait_for_quiet(&cache);
                    let _ = cache.get(&1).map(|answer| answer.age());
                }
                assert!(origin.calls() >= 1, "setting {number}");
            }
        }
    });
}

#[test]
fn a_time_to_live_without_an_end_means_ten_years() {
    let clock = Clock::manual();
    let cache = numbers(&clock).ttl(Duration::MAX).build().unwrap();
    cache.put(&1, 1).unwrap();
    let years = |n: u64| secs(n * 365 * 24 * 3_600);
    clock.advance(years(10) - ms(1));
    assert_got(cache.get(&1), 1, Source::Local);
    clock.advance(ms(1));
    assert!(cache.peek(&1).is_none());
}

#[test]
fn a_deadline_without_an_end_is_none() {
    watched(|| {
        for long in LONG {
            let gate = Gate::new();
            let held = Arc::clone(&gate);
            let loader = move |load: &Load<'_>| {
                assert!(load.deadline().remaining().is_none_or(|left| left > secs(1 << 40)));
                held.pass();
                Ok(1)
            };
            let cache = plain().timeout(long).loader(loader).build().unwrap();
            thread::scope(|s| {
                let leader = s.spawn(|| cache.get(&1));
                gate.wait_for(1);
                let follower = s.spawn(|| cache.with().timeout(long).get(&1));
                wait_for_followers(&cache, 1);
                gate.open();
                assert_got(leader.join().unwrap(), 1, Source::Loaded);
                assert_got(follower.join().unwrap(), 1, Source::Followed);
            });
            assert_idle(&cache);
        }
    });
}

#[test]
fn zero_means_not_stored_and_never_for_ever() {
    watched(|| {
        let origin = Origin::new(1);
        let cache = plain()
            .ttl(ms(0))
            .stale_while_revalidate(secs(60))
            .stale_if_error(secs(60))
            .loader(reads(&origin))
            .build()
            .unwrap();
        for _ in 0..3 {
            assert_got(cache.get(&1), 1, Source::Loaded);
        }
        // One of its own is stored nevertheless.
        cache.put(&2, Fill::new(2).ttl(secs(1))).unwrap();
        assert_got(cache.get(&2), 2, Source::Local);

        let read = Arc::clone(&origin);
        let loader = move |_: &Load<'_>| read.read().map(|_| None);
        let cache = plain().absent_ttl(ms(0)).loader(loader).build().unwrap();
        for _ in 0..3 {
            assert_eq!(cache.get(&1).unwrap().source(), Source::Loaded);
        }
        assert_eq!(origin.calls(), 6);
        assert_eq!(cache.stats().gauges.absences, 0);
    });
}

#[test]
fn a_time_to_live_of_less_than_a_second_is_not_rounded() {
    for ttl in [Duration::from_micros(400), ms(345), ms(999), ms(1_500), ms(1_999)] {
        let clock = Clock::manual();
        let cache = numbers(&clock).build().unwrap();
        cache.put(&1, Fill::new(1).ttl(ttl)).unwrap();
        clock.advance(ttl - Duration::from_nanos(1));
        assert_got(cache.get(&1), 1, Source::Local);
        clock.advance(Duration::from_nanos(1));
        assert!(cache.peek(&1).is_none());
    }
}

#[test]
fn jitter_shortens_by_a_tenth_at_most_and_spreads() {
    let clock = Clock::manual();
    let cache = Cache::<u64, u64, String>::builder("jitter")
        .clock(clock.clone())
        .ttl(ms(1_000))
        .capacity(2_000)
        .build()
        .unwrap();
    for key in 0..1_000 {
        cache.put(&key, key).unwrap();
    }
    let alive = || (0..1_000).filter(|key| cache.peek(key).is_some()).count();
    assert_eq!(alive(), 1_000);
    clock.advance(ms(899));
    assert_eq!(alive(), 1_000);
    let mut before = 1_000;
    for _ in 0..10 {
        clock.advance(ms(10));
        let now = alive();
        // A tenth of them in each hundredth of a second, give or take seven sigmas.
        assert!((33..=167).contains(&(before - now)) || now == 0, "{before} and then {now}");
        before = now;
    }
    clock.advance(ms(1));
    assert_eq!(alive(), 0);
}

#[test]
fn all_the_jitter_there_is_leaves_a_millisecond() {
    let clock = Clock::manual();
    let cache = numbers(&clock).ttl(ms(2)).jitter(1.0).build().unwrap();
    for _ in 0..1_000 {
        cache.put(&1, 1).unwrap();
        clock.advance(Duration::from_micros(999));
        assert_got(cache.get(&1), 1, Source::Local);
        clock.advance(ms(2));
        assert!(cache.peek(&1).is_none());
    }
}

#[test]
fn what_means_nothing_is_refused_by_name() {
    let refused = |builder: CacheBuilder<u64, u64, String>| {
        let error = builder.build().unwrap_err();
        (error.field().to_owned(), error.to_string())
    };
    for jitter in [1.5, -0.1, f64::NAN, f64::INFINITY] {
        let (field, text) = refused(plain().jitter(jitter));
        assert_eq!(field, "jitter");
        assert!(text.contains(&format!("{jitter:?}")), "{text}");
    }
    for beta in [-1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(refused(plain().early_refresh(beta)).0, "early_refresh");
    }
    assert_eq!(refused(plain().admission(0)).1, "admission is 0, but must be at least 1");
    assert_eq!(refused(plain().workers(0)).1, "workers is 0, but must be at least 1");
    // What is stored must be a reply that is read.
    let text = "max_stored is 66060289, but must be at most 63 MiB";
    assert_eq!(refused(plain().max_stored((63 << 20) + 1)).1, text);
    assert!(plain().max_stored(63 << 20).build().is_ok());
    assert_eq!(refused(Cache::builder("no ttl")).0, "ttl");
    for fine in [0.0, 1.0] {
        assert!(plain().jitter(fine).early_refresh(fine).build().is_ok());
    }
}

/// Costs and eagerness of all sizes, at all moments: no panic, and nothing early where it means
/// never.
#[test]
fn early_refresh_takes_any_cost_and_any_factor() {
    watched(|| {
        for cost in [ms(0), Duration::from_nanos(1), secs(1), Duration::MAX] {
            for beta in [0.0, 1.0, 1e300, f64::MAX] {
                let clock = Clock::manual();
                let (hand, loads) = (clock.clone(), Arc::new(AtomicUsize::new(0)));
                let counted = Arc::clone(&loads);
                let loader = move |_: &Load<'_>| {
                    counted.fetch_add(1, SeqCst);
                    hand.advance(cost);
                    Ok(1)
                };
                let cache = numbers(&clock)
                    .ttl(secs(60))
                    .early_refresh(beta)
                    .loader(loader)
                    .build()
                    .unwrap();
                for step in [0, 30, 29, 1, 1] {
                    clock.advance(secs(step));
                    let _ = cache.get(&1).unwrap();
                    wait_for_quiet(&cache);
                }
                if cost.is_zero() || beta == 0.0 {
                    assert_eq!(cache.stats().refreshes_started, 0, "{cost:?} {beta}");
                }
            }
        }
    });
}

#[test]
fn sizes_of_nothing_hold_nothing_and_break_nothing() {
    watched(|| {
        let origin = Origin::new(1);
        let cache = plain()
            .capacity(0)
            .absent_capacity(0)
            .queue(0)
            .workers(1)
            .loader(reads(&origin))
            .build()
            .unwrap();
        for _ in 0..3 {
            assert_got(cache.get(&1), 1, Source::Loaded);
            wait_for_quiet(&cache);
        }
        cache.put(&1, 2).unwrap();
        assert!(cache.peek(&1).is_none());
        let cache = plain().capacity_by_weight(0, |_, _| 0).build().unwrap();
        cache.put(&1, 2).unwrap();
        assert!(cache.peek(&1).is_none());
        let cache = plain().max_followers(0).max_followers_per_key(0).build().unwrap();
        assert_got(cache.get_with(&1, |_| Ok(1)), 1, Source::Loaded);
        // Overdue at once: another caller leads.
        let cache = plain().max_flight_age(ms(0)).build().unwrap();
        assert_got(cache.get_with(&1, |_| Ok(1)), 1, Source::Loaded);
        let begun = Instant::now();
        assert_eq!(cache.close(Duration::MAX), 0);
        assert!(begun.elapsed() < secs(10));
    });
}

/// More than there can be is a mistake, which shows before the first load.
#[test]
fn more_workers_or_a_longer_queue_than_there_can_be_are_refused() {
    for built in [
        plain().queue(usize::MAX).build(),
        plain().workers(usize::MAX).build(),
        plain().workers(0).build(),
    ] {
        assert!(built.is_err());
    }
    assert!(plain().queue(1_000_000).build().is_ok());
}
