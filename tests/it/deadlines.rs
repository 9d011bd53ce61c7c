//! Deadlines: each bounds the wait of the caller that brought it, and nothing else.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use onefill::{Deadline, Error, Group};

use crate::support::*;

type Numbers = Group<u64, u64, String>;

/// Calls with `timeout` for a key that somebody leads, which must time out, and not too early.
fn times_out(group: &Numbers, timeout: Duration) {
    let called = Instant::now();
    let error = group.run_timeout(&1, timeout, unwanted).unwrap_err();
    let took = called.elapsed();
    let Error::TimedOut { waited } = error else { panic!("{error}") };
    assert!(took >= timeout, "{took:?} is too early for {timeout:?}");
    assert!(took < timeout + NOISE, "{took:?} is too late for {timeout:?}");
    assert!(waited <= took, "cannot have waited {waited:?} in {took:?}");
}

#[test]
fn a_follower_waits_until_its_deadline_and_no_longer() {
    within(|| {
        let group = Numbers::new();
        thread::scope(|s| {
            let lead = lead(&group, &1);
            let others =
                [s.spawn(|| times_out(&group, ms(80))), s.spawn(|| times_out(&group, ms(20)))];
            for other in others {
                other.join().unwrap();
            }
            assert_eq!((group.len(), group.waiting()), (1, 0), "the load goes on");
            assert_eq!(lead.land(Ok(1)).unwrap(), 1);
        });
        assert_idle(&group);
    });
}

#[test]
fn how_long_a_caller_waited_is_told() {
    within(|| {
        let group = Numbers::new();
        let _lead = lead(&group, &1);
        thread::scope(|s| {
            let caller = s.spawn(|| group.run_timeout(&1, ms(50), unwanted).unwrap_err());
            let Error::TimedOut { waited } = caller.join().unwrap() else { panic!() };
            // Its clock starts a moment after the deadline was made.
            assert!(waited > ms(40) && waited < ms(50) + NOISE, "{waited:?}");
        });
    });
}

/// The load once ran under the context of its first caller: when that one's time was up, everybody
/// got its cancellation. Here the leader runs its loader itself, so it gets its value, late.
#[test]
fn a_leaders_deadline_is_no_business_of_its_followers() {
    within(|| {
        let group = Numbers::new();
        thread::scope(|s| {
            let leader = s.spawn(|| {
                let called = Instant::now();
                group.run_timeout(&1, ms(10), || {
                    until_waiting(&group, 10);
                    until("the leader is late", || called.elapsed() > ms(20));
                    Ok(1)
                })
            });
            until("the leader leads", || group.len() == 1);
            let followers: Vec<_> = (0..10)
                .map(|_| s.spawn(|| group.run_timeout(&1, ms(3_600_000), unwanted)))
                .collect();
            for follower in followers {
                assert_eq!(follower.join().unwrap().unwrap(), 1);
            }
            assert_eq!(leader.join().unwrap().unwrap(), 1);
        });
        assert_idle(&group);
    });
}

/// Timeouts were shorter than a load, each caller that gave up took the load with it, and the
/// cache stayed empty for as long as people asked. The cache is the test's own map here.
#[test]
fn impatient_callers_do_not_keep_a_load_from_its_end() {
    within(|| {
        let group = Numbers::new();
        let cache = Mutex::new(HashMap::new());
        let meter = Meter::new();
        let (release, released) = bounded::<()>(0);
        thread::scope(|s| {
            let leader = s.spawn(|| {
                group.run_timeout(&1, ms(5), || {
                    meter.count(|| {
                        released.recv().unwrap();
                        cache.lock().unwrap().insert(1, 8);
                        Ok(8)
                    })
                })
            });
            until("the leader leads", || group.len() == 1);
            for _ in 0..20 {
                times_out(&group, ms(5));
            }
            let patient = s.spawn(|| group.run(&1, unwanted));
            until_waiting(&group, 1);
            release.send(()).unwrap();
            assert_eq!(patient.join().unwrap().unwrap(), 8);
            assert_eq!(leader.join().unwrap().unwrap(), 8);
        });
        assert_eq!(meter.runs(), 1);
        assert_eq!(cache.lock().unwrap()[&1], 8);
        assert_idle(&group);
    });
}

/// One load hung on a dead connection, and everything queued up behind it without a bound.
#[test]
fn a_load_that_hangs_holds_nobody_past_a_deadline_and_no_other_key() {
    within(|| {
        let group = Numbers::new();
        let (release, released) = bounded::<()>(0);
        thread::scope(|s| {
            let hung = s.spawn(|| {
                group.run(&1, || {
                    released.recv().unwrap();
                    Ok(1)
                })
            });
            until("the load hangs", || group.len() == 1);
            let followers: Vec<_> =
                (0..49).map(|_| s.spawn(|| times_out(&group, ms(100)))).collect();
            let others: Vec<_> = (100..150)
                .map(|key| {
                    let group = &group;
                    s.spawn(move || group.run_timeout(&key, ms(100), || Ok(key)).unwrap() == key)
                })
                .collect();
            assert!(others.into_iter().all(|other| other.join().unwrap()));
            for follower in followers {
                follower.join().unwrap();
            }
            assert_eq!((group.len(), group.waiting()), (1, 0), "the one that hangs");
            release.send(()).unwrap();
            assert_eq!(hung.join().unwrap().unwrap(), 1);
        });
        assert_idle(&group);
    });
}

/// Any return from a timed wait was once taken for the event, or began the timeout anew.
#[test]
fn wake_ups_meant_for_others_neither_shorten_nor_stretch_a_wait() {
    within(|| {
        let group: Group<Crowded, u64, String> = Group::new();
        let over = AtomicBool::new(false);
        thread::scope(|s| {
            let lead = lead(&group, &Crowded(0));
            let waiter = s.spawn(|| {
                for _ in 0..20 {
                    let (called, timeout) = (Instant::now(), ms(25));
                    let end = group.run_timeout(&Crowded(0), timeout, unwanted);
                    assert!(end.unwrap_err().is_timed_out());
                    assert!((timeout..timeout + NOISE).contains(&called.elapsed()));
                }
                over.store(true, SeqCst);
            });
            let (group, over, waiter) = (&group, &over, waiter.thread().clone());
            // Landings in the same shard, as fast as they go, and wake-ups for no reason at all.
            s.spawn(move || {
                while !over.load(SeqCst) {
                    let busy = self::lead(group, &Crowded(1));
                    thread::scope(|s| {
                        s.spawn(|| group.run(&Crowded(1), || Ok(2)).unwrap());
                        until("one more waits", || group.waiting() > 0);
                        waiter.unpark();
                        busy.land(Ok(1)).unwrap();
                    });
                }
            });
            until("the waiter is done", || over.load(SeqCst));
            lead.land(Ok(0)).unwrap();
        });
        assert_idle(&group);
    });
}

/// Followers whose deadline falls on the landing, so that they wake to find both. Whoever is told
/// that it was late must have been so before the landing was complete.
#[test]
fn landed_beats_late() {
    const FOLLOWERS: usize = 16;
    within(|| {
        let group = Numbers::new();
        for round in 0..100 {
            let at = Instant::now() + ms(10);
            thread::scope(|s| {
                let lead = lead(&group, &1);
                let followers: Vec<_> = (0..FOLLOWERS)
                    .map(|_| {
                        s.spawn(|| {
                            let called = Instant::now();
                            (called, group.run_deadline(&1, at, || Ok(2)))
                        })
                    })
                    .collect();
                // Timers fire late by some 50 µs; around that the landing overtakes them.
                let landing = at + Duration::from_micros(round);
                while Instant::now() < landing {
                    std::hint::spin_loop();
                }
                lead.land(Ok(1)).unwrap();
                let landed = Instant::now();
                for follower in followers {
                    match follower.join().unwrap() {
                        // A thread that was slow to start may have led, or found one that did.
                        (_, Ok(value)) => assert!([1, 2].contains(&value)),
                        (called, Err(Error::TimedOut { .. })) if called >= at => (),
                        (called, Err(Error::TimedOut { waited })) => {
                            assert!(called + waited <= landed, "late beat landed");
                        }
                        (_, Err(other)) => panic!("{other}"),
                    }
                }
            });
            assert_idle(&group);
        }
    });
}

#[test]
fn a_passed_deadline_does_not_wait() {
    within(|| {
        let group = Numbers::new();
        thread::scope(|s| {
            let _lead = lead(&group, &1);
            s.spawn(|| {
                let past = Instant::now().checked_sub(ms(1_000)).unwrap();
                let calls = [
                    group.run_timeout(&1, Duration::ZERO, unwanted),
                    group.run_deadline(&1, past, unwanted),
                    group.run_deadline(&1, Instant::now(), unwanted),
                    group.join(&1, Deadline::at(past)).map(|_| 0),
                ];
                for end in calls {
                    let Err(Error::TimedOut { waited }) = end else { panic!("{end:?}") };
                    assert_eq!(waited, Duration::ZERO);
                }
            })
            .join()
            .unwrap();
        });
    });
}

#[test]
fn a_passed_deadline_does_not_keep_its_caller_from_leading() {
    let group = Numbers::new();
    let past = Instant::now().checked_sub(ms(1_000)).unwrap();
    assert_eq!(group.run_deadline(&1, past, || Ok(1)).must(), 1);
    assert_eq!(group.run_timeout(&1, Duration::ZERO, || Ok(2)).must(), 2);
    assert_idle(&group);
}

/// A timeout that no clock can express once wrapped around, and was over at once.
#[test]
fn a_timeout_too_long_for_the_clock_is_none() {
    let forever = [
        Duration::MAX,
        Duration::MAX - Duration::from_secs(1),
        Duration::MAX / 2,
        ms(u64::MAX),
        ms(u64::MAX / 1_000),
        Duration::from_secs(u64::MAX / 4),
        Duration::from_secs(100 * 365 * 24 * 60 * 60),
    ];
    within(move || {
        let group = Numbers::new();
        thread::scope(|s| {
            let lead = lead(&group, &1);
            let followers = forever.map(|timeout| {
                let group = &group;
                s.spawn(move || group.run_timeout(&1, timeout, unwanted))
            });
            until_waiting(&group, forever.len());
            // A wrapped timeout would be over by now, or at any rate soon.
            thread::sleep(ms(30));
            assert_eq!(group.waiting(), forever.len());
            lead.land(Ok(1)).unwrap();
            for follower in followers {
                assert_eq!(follower.join().unwrap().unwrap(), 1);
            }
        });
        assert_idle(&group);
        assert!(forever.iter().all(|&timeout| group.run_timeout(&1, timeout, || Ok(2)).is_ok()));
    });
}

#[test]
fn try_run_never_waits() {
    within(|| {
        let group = Numbers::new();
        assert_eq!(group.try_run(&1, || Ok(1)).must(), 1);
        thread::scope(|s| {
            let lead = lead(&group, &1);
            s.spawn(|| {
                assert!(group.try_run(&1, unwanted).unwrap_err().is_would_block());
                assert_eq!(group.try_run(&2, || Ok(2)).must(), 2);
                assert_eq!(group.waiting(), 0);
            })
            .join()
            .unwrap();
            lead.land(Ok(1)).unwrap();
        });
        let failed = group.try_run(&1, || Err("away".into())).unwrap_err();
        assert_eq!(failed.failure().unwrap(), "away");
        assert_eq!(group.try_run(&1, || Ok(3)).must(), 3);
        assert_idle(&group);
    });
}

#[test]
fn one_deadline_is_spent_by_all_that_a_call_does() {
    within(|| {
        let group = Numbers::new();
        let _leads = [lead(&group, &1), lead(&group, &2), lead(&group, &3)];
        thread::scope(|s| {
            s.spawn(|| {
                let deadline = Deadline::after(ms(30));
                let called = Instant::now();
                for key in 1..=3 {
                    assert!(group.join(&key, deadline).unwrap_err().is_timed_out());
                }
                assert!(called.elapsed() < 3 * ms(30) + NOISE);
                assert!(deadline.has_passed());
                assert_eq!(deadline.remaining(), Some(Duration::ZERO));
            });
        });
    });
}

#[test]
fn a_deadline_says_what_is_left_of_it() {
    let never = Deadline::after(Duration::MAX);
    assert_eq!(never, Deadline::NEVER);
    assert!(!never.has_passed());
    assert_eq!((never.remaining(), never.instant()), (None, None));
    assert_eq!(format!("{never:?}"), "Deadline(never)");

    let (before, soon) = (Instant::now(), Deadline::from(ms(3_600_000)));
    assert!(soon.instant().unwrap() >= before + ms(3_600_000));
    assert!(soon.remaining().unwrap() <= ms(3_600_000));
    assert!(!soon.has_passed());

    let now = Instant::now();
    assert!(Deadline::at(now).has_passed());
    assert_eq!(Deadline::at(now).remaining(), Some(Duration::ZERO));
    assert_eq!(Deadline::from(now).instant(), Some(now));
    assert_eq!(format!("{:?}", Deadline::at(now)), "Deadline(in 0ns)");

    assert_eq!(soon.earlier(now), Deadline::at(now));
    assert_eq!(Deadline::at(now).earlier(soon), Deadline::at(now));
    assert_eq!(Deadline::NEVER.earlier(soon), soon);
    assert_eq!(soon.earlier(Deadline::NEVER), soon);
    assert_eq!(Deadline::NEVER.earlier(Duration::MAX), Deadline::NEVER);
}
