//! What the followers do when their leader has no value for them.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use onefill::FailurePolicy::{HandOver, RetryEach, Share};
use onefill::{Deadline, Error, FailurePolicy, Group, Join, Lead};

use crate::support::*;

type Numbers = Group<u64, u64, String>;

const POLICIES: [FailurePolicy; 3] = [Share, HandOver, RetryEach];

#[test]
fn by_default_failures_are_shared_and_abandoned_flights_handed_over() {
    within(|| {
        let group = Numbers::new();
        let by_name: Numbers = Group::builder().on_failure(Share).on_abandoned(HandOver).build();
        assert_eq!(format!("{group:?}"), format!("{by_name:?}"));
        thread::scope(|s| {
            let lead = lead(&group, &1);
            let follower = s.spawn(|| group.run(&1, unwanted));
            until_waiting(&group, 1);
            lead.land(Err("away".into())).unwrap_err();
            assert!(follower.join().unwrap().unwrap_err().is_failed());
        });
        thread::scope(|s| {
            let lead = lead(&group, &1);
            let follower = s.spawn(|| group.run(&1, || Ok(2)));
            until_waiting(&group, 1);
            drop(lead);
            assert_eq!(follower.join().unwrap().must(), 2);
        });
        assert_idle(&group);
    });
}

#[test]
fn the_leader_gets_its_own_error_by_any_policy() {
    within(|| {
        for policy in POLICIES {
            let group: Numbers = Group::builder().on_failure(policy).build();
            for followers in [0, 1, 5] {
                thread::scope(|s| {
                    let lead = lead(&group, &1);
                    for _ in 0..followers {
                        s.spawn(|| group.run(&1, || Ok(2)));
                    }
                    until_waiting(&group, followers);
                    let error = lead.run(|| Err("mine".into())).unwrap_err();
                    assert_eq!(error.failure().unwrap(), "mine", "{policy:?}");
                });
                assert_idle(&group);
            }
        }
    });
}

#[test]
fn a_panic_is_shared_by_any_policy() {
    within(|| {
        for policy in POLICIES {
            let group: Numbers = Group::builder().on_failure(policy).on_abandoned(policy).build();
            thread::scope(|s| {
                let lead = lead(&group, &1);
                let followers: Vec<_> =
                    (0..5).map(|_| s.spawn(|| group.run(&1, unwanted))).collect();
                until_waiting(&group, 5);
                panic_of(|| lead.run(|| quiet_panic()));
                for follower in followers {
                    assert!(follower.join().unwrap().unwrap_err().is_panicked(), "{policy:?}");
                }
            });
            assert_idle(&group);
        }
    });
}

#[test]
fn an_abandoned_flight_that_is_shared_is_an_error_for_all() {
    within(|| {
        let group: Numbers = Group::builder().on_abandoned(Share).build();
        thread::scope(|s| {
            let lead = lead(&group, &1);
            let followers: Vec<_> = (0..5).map(|_| s.spawn(|| group.run(&1, unwanted))).collect();
            until_waiting(&group, 5);
            drop(lead);
            for follower in followers {
                assert!(follower.join().unwrap().unwrap_err().is_abandoned());
            }
        });
        assert_idle(&group);
        assert_eq!(group.run(&1, || Ok(1)).must(), 1);
    });
}

/// Lets a flight of four followers end without a value, and them with errors of their own.
/// Returns who led when, by what was left of its time in hours.
fn succession(group: &Numbers, end: impl FnOnce(Lead<'_, u64, u64, String>)) -> Vec<u64> {
    const FOREVER: u64 = u64::MAX;
    let led = Mutex::new(Vec::new());
    let meter = Meter::new();
    thread::scope(|s| {
        let lead = lead(group, &1);
        let followers = [2, FOREVER, 4, 1].map(|hours| {
            let (led, meter) = (&led, &meter);
            s.spawn(move || {
                let timeout = Duration::from_secs(hours.saturating_mul(3_600));
                let error = group.run_timeout(&1, timeout, || {
                    meter.count(|| {
                        led.lock().unwrap().push(hours);
                        Err(format!("{hours}"))
                    })
                });
                // Not the leader's, not another follower's.
                assert_eq!(*error.unwrap_err().failure().unwrap(), format!("{hours}"));
            })
        });
        until_waiting(group, 4);
        end(lead);
        for follower in followers {
            follower.join().unwrap();
        }
    });
    assert_eq!(meter.highest(), 1, "one at a time");
    assert_idle(group);
    led.into_inner().unwrap()
}

#[test]
fn a_flight_is_handed_over_to_the_follower_with_the_most_time_left() {
    within(|| {
        let group: Numbers = Group::builder().on_failure(HandOver).build();
        let in_order = [u64::MAX, 4, 2, 1];
        assert_eq!(succession(&group, |lead| drop(lead.land(Err("0".into())))), in_order);
        assert_eq!(succession(&group, |lead| drop(lead.run(|| Err("0".into())))), in_order);
        assert_eq!(succession(&group, |lead| drop(lead)), in_order, "as an abandoned one is");
    });
}

#[test]
fn a_successors_value_is_for_all_who_wait_still() {
    within(|| {
        let group: Numbers = Group::builder().on_failure(HandOver).build();
        let meter = Meter::new();
        thread::scope(|s| {
            let lead = lead(&group, &1);
            let followers: Vec<_> = (0..6)
                .map(|_| {
                    s.spawn(|| {
                        group.run(&1, || {
                            meter.count(|| {
                                // The third is the first with a value, for the other three.
                                if meter.runs() < 3 { Err("away".into()) } else { Ok(7) }
                            })
                        })
                    })
                })
                .collect();
            until_waiting(&group, 6);
            drop(lead);
            let ends: Vec<_> =
                followers.into_iter().map(|follower| follower.join().unwrap()).collect();
            assert_eq!(ends.iter().filter(|end| end.is_err()).count(), 2);
            assert!(ends.into_iter().flatten().all(|value| value == 7));
        });
        assert_eq!((meter.runs(), meter.highest()), (3, 1));
        assert_idle(&group);
    });
}

#[test]
fn a_flight_stays_boarded_while_it_is_handed_over() {
    within(|| {
        let group = Numbers::new();
        thread::scope(|s| {
            let lead = lead(&group, &1);
            let successor = s.spawn(|| {
                group.run(&1, || {
                    until_waiting(&group, 2);
                    Ok(2)
                })
            });
            until_waiting(&group, 1);
            drop(lead);
            // One comes while the successor may still be asleep, one while it loads.
            assert_eq!(group.len(), 1);
            let fresh = [s.spawn(|| group.run(&1, unwanted)), s.spawn(|| group.run(&1, unwanted))];
            for caller in fresh {
                assert_eq!(caller.join().unwrap().must(), 2);
            }
            assert_eq!(successor.join().unwrap().must(), 2);
        });
        assert_idle(&group);
    });
}

#[test]
fn a_successor_of_a_guard_is_led_by_a_guard_too() {
    within(|| {
        let group = Numbers::new();
        thread::scope(|s| {
            let first = lead(&group, &1);
            let second = s.spawn(|| lead(&group, &1).land(Ok(2)));
            until_waiting(&group, 1);
            drop(first);
            assert_eq!(second.join().unwrap().must(), 2);
        });
        assert_idle(&group);
    });
}

#[test]
fn a_successors_panic_is_shared_with_the_rest() {
    within(|| {
        let group = Numbers::new();
        thread::scope(|s| {
            let lead = lead(&group, &1);
            let successor = s.spawn(|| panic_of(|| group.run(&1, || panic!("second"))));
            let other = s.spawn(|| group.run_timeout(&1, ms(3_600_000), unwanted));
            until_waiting(&group, 2);
            drop(lead);
            assert_eq!(successor.join().unwrap(), "second");
            let error = other.join().unwrap().unwrap_err();
            assert!(matches!(error, Error::Panicked(Some(said)) if &*said == "second"));
        });
        assert_idle(&group);
    });
}

/// Lets a flight of eight followers end so that each of them, and one who comes fresh, calls anew.
fn all_call_anew(end: impl FnOnce(Lead<'_, Watched, u64, String>)) {
    let group: Group<Watched, u64, String> =
        Group::builder().on_failure(RetryEach).on_abandoned(RetryEach).build();
    let (key, meter) = (Watched::default(), Meter::new());
    thread::scope(|s| {
        let lead = lead(&group, &key);
        let call = || {
            group.run(&key, || {
                meter.count(|| {
                    // Those who found the first flight, then this one.
                    until("the other eight are back", || key.found() == 8 + 8);
                    Ok(7)
                })
            })
        };
        let followers: Vec<_> = (0..8).map(|_| s.spawn(call)).collect();
        until_waiting(&group, 8);
        end(lead);
        assert_eq!(call().must(), 7);
        for follower in followers {
            assert_eq!(follower.join().unwrap().must(), 7);
        }
    });
    assert_eq!(meter.runs(), 1);
    assert_idle(&group);
}

#[test]
fn followers_that_call_anew_share_one_new_flight() {
    within(|| {
        all_call_anew(|lead| drop(lead.land(Err("away".into()))));
        all_call_anew(|lead| drop(lead));
    });
}

#[test]
fn callers_that_call_anew_keep_their_deadline() {
    within(|| {
        let group: Numbers = Group::builder().on_abandoned(RetryEach).build();
        let at = Instant::now() + ms(500);
        thread::scope(|s| {
            let first = lead(&group, &1);
            let follower = s.spawn(|| {
                let end = group.run_deadline(&1, at, unwanted);
                (end, Instant::now())
            });
            until_waiting(&group, 1);
            let waits_since = Instant::now();
            until("most of its time is over", || at - ms(30) <= Instant::now());
            // The next flight is boarded before the follower can come back to ask.
            group.forget(&1);
            let second = lead(&group, &1);
            drop(first);
            let (end, ended) = follower.join().unwrap();
            let Err(Error::TimedOut { waited }) = end else { panic!("{end:?}") };
            assert!((at..at + NOISE).contains(&ended));
            assert!(waited >= at - waits_since, "{waited:?}: it waited for both flights");
            second.land(Ok(1)).must();
        });
        assert_idle(&group);
    });
}

/// A lock per key was once removed while somebody was queued for it: that one went on with the
/// old lock, the next to come with a new one.
#[test]
fn by_any_policy_one_key_has_one_loader_at_a_time() {
    within(|| {
        for policy in POLICIES {
            let group: Numbers = Group::builder().on_failure(policy).on_abandoned(policy).build();
            let meter = Meter::new();
            thread::scope(|s| {
                for caller in 0..3 {
                    let (group, meter) = (&group, &meter);
                    s.spawn(move || {
                        for round in 0..600 {
                            let load = || {
                                if round % 4 == 0 {
                                    thread::yield_now();
                                }
                                match (caller + round) % 3 {
                                    0 => Ok(1),
                                    1 => Err("away".to_string()),
                                    _ => Ok(2),
                                }
                            };
                            if round % 5 == 0 {
                                if let Ok(Join::Lead(_lead)) = group.join(&1, Deadline::NEVER) {
                                    meter.count(|| ());
                                }
                            } else {
                                let _ = group.run(&1, || meter.count(load));
                            }
                        }
                    });
                }
            });
            assert_eq!(meter.highest(), 1, "{policy:?}");
            assert_idle(&group);
        }
    });
}

/// A flight may be handed to a follower in the very moment in which that one gives up. It must
/// pass it on to whoever sat down meanwhile, or those would wait for nobody.
#[test]
fn one_who_is_promoted_too_late_passes_the_flight_on() {
    within(|| {
        let group = Numbers::new();
        for round in 0..200 {
            let meter = Meter::new();
            let at = Instant::now() + ms(3);
            thread::scope(|s| {
                let lead = lead(&group, &1);
                let late = s.spawn(|| group.run_deadline(&1, at, || meter.count(|| Ok(1))));
                let landing = at + Duration::from_micros(round % 100);
                while Instant::now() < landing {
                    std::hint::spin_loop();
                }
                drop(lead);
                let fresh = group.run(&1, || meter.count(|| Ok(2)));
                match late.join().unwrap() {
                    Ok(value) => assert!([1, 2].contains(&value)),
                    Err(error) => assert!(error.is_timed_out(), "{error}"),
                }
                assert!([1, 2].contains(&fresh.must()));
            });
            assert_eq!(meter.highest(), 1);
            assert_idle(&group);
        }
    });
}

/// Each of those who are handed a flight answers for its own loader only.
#[test]
fn errors_of_a_succession_are_not_shared() {
    within(|| {
        let group: Group<u64, u64, Arc<str>> = Group::builder().on_failure(HandOver).build();
        thread::scope(|s| {
            let lead = lead(&group, &1);
            let follower = s.spawn(|| group.run(&1, || Err("second".into())).unwrap_err());
            until_waiting(&group, 1);
            let first = lead.land(Err("first".into())).unwrap_err();
            assert_eq!(&**first.failure().unwrap(), "first");
            assert_eq!(&**follower.join().unwrap().failure().unwrap(), "second");
        });
        assert_idle(&group);
    });
}
