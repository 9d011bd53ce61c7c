//! Which flight is boarded under which key, and that nothing stays behind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

use crossbeam_channel::bounded;
use onefill::{Deadline, Group};

use crate::support::*;

type Numbers = Group<u64, u64, String>;

#[test]
fn a_group_counts_its_flights_and_those_who_wait() {
    within(|| {
        let group = Numbers::new();
        assert_idle(&group);
        thread::scope(|s| {
            let (one, two) = (lead(&group, &1), lead(&group, &2));
            assert_eq!((group.len(), group.waiting()), (2, 0));
            assert!(!group.is_empty());
            for key in [1, 1, 2] {
                let group = &group;
                s.spawn(move || group.run(&key, unwanted));
            }
            until_waiting(&group, 3);
            let settings = format!("{group:?}");
            assert!(settings.starts_with("Group { flights: 2, waiting: 3, "), "{settings}");
            one.land(Ok(1)).must();
            until_waiting(&group, 1);
            assert_eq!(group.len(), 1);
            two.land(Ok(2)).must();
        });
        assert_idle(&group);
    });
}

/// The first call's end once removed the second's entry, by key, so a third began although the
/// second was still running.
#[test]
fn the_end_of_a_forgotten_flight_leaves_its_successor_alone() {
    within(|| {
        let group = Numbers::new();
        thread::scope(|s| {
            let first = lead(&group, &1);
            assert!(group.forget(&1));
            // This thread leads both, which is as good as two threads.
            let second = lead(&group, &1);
            assert_eq!(first.land(Ok(1)).must(), 1);
            assert_eq!(group.len(), 1);
            let third = s.spawn(|| group.run(&1, unwanted));
            until_waiting(&group, 1);
            assert_eq!(second.land(Ok(2)).must(), 2);
            assert_eq!(third.join().unwrap().must(), 2);
        });
        assert_idle(&group);
    });
}

#[test]
fn those_in_a_forgotten_flight_stay_in_it() {
    within(|| {
        let group = Numbers::new();
        thread::scope(|s| {
            let old = lead(&group, &1);
            let follower = s.spawn(|| group.run(&1, unwanted));
            until_waiting(&group, 1);
            assert!(group.forget(&1));
            assert_eq!((group.len(), group.waiting()), (0, 1));
            assert!(!group.forget(&1));
            assert_eq!(group.run(&1, || Ok(2)).must(), 2);
            assert!(!follower.is_finished());
            old.land(Ok(1)).must();
            assert_eq!(follower.join().unwrap().must(), 1);
        });
        assert_idle(&group);
    });
}

#[test]
fn forgetting_what_is_not_there_is_no_matter() {
    let group = Numbers::new();
    assert!(!group.forget(&1));
    group.run(&1, || Ok(1)).must();
    assert!(!group.forget(&1), "a landed flight is not remembered");
    let _two = lead(&group, &2);
    assert!(!group.forget(&1));
    assert_eq!(group.len(), 1);
}

/// Two loads of one key would run at once otherwise: the follower's, and whoever's comes fresh.
#[test]
fn followers_of_a_forgotten_flight_that_is_given_up_ask_anew() {
    within(|| {
        let group: Group<Watched, u64, String> = Group::new();
        let key = Watched::default();
        thread::scope(|s| {
            let old = lead(&group, &key);
            let follower = s.spawn(|| group.run(&key, unwanted));
            until_waiting(&group, 1);
            assert!(group.forget(&key));
            let (new, found) = (lead(&group, &key), key.found());
            drop(old);
            until("the follower is back", || key.found() > found || follower.is_finished());
            new.land(Ok(2)).must();
            assert_eq!(follower.join().unwrap().must(), 2);
        });
        assert_idle(&group);
    });
}

/// One who gave up once took the flight out for everybody, and the next began a second load.
#[test]
fn one_who_gives_up_leaves_the_flight_to_the_others() {
    within(|| {
        let group = Numbers::new();
        thread::scope(|s| {
            let first = lead(&group, &1);
            let hasty = s.spawn(|| group.run_timeout(&1, ms(5), unwanted));
            assert!(hasty.join().unwrap().unwrap_err().is_timed_out());
            assert_eq!(group.len(), 1);
            let third = s.spawn(|| group.run(&1, unwanted));
            until_waiting(&group, 1);
            first.land(Ok(3)).must();
            assert_eq!(third.join().unwrap().must(), 3);
        });
        assert_idle(&group);
    });
}

/// One found the flight, the leader then landed and called everyone, and only then did that one
/// take its seat. Nobody was left to call it.
#[test]
fn nobody_sits_down_after_the_landing() {
    within(|| {
        let group = Numbers::new();
        thread::scope(|s| {
            for _ in 0..64 {
                s.spawn(|| {
                    for _ in 0..2_000 {
                        // So that others come before the landing as often as after it.
                        let load = || {
                            thread::yield_now();
                            Ok(1)
                        };
                        assert_eq!(group.run_timeout(&1, ms(20_000), load).must(), 1);
                    }
                });
            }
        });
        assert_idle(&group);
    });
}

/// A caller that starts after a load has returned to anyone loads again: what it gets is never
/// older than its own call.
#[test]
fn no_caller_gets_an_outcome_that_was_there_before_it_came() {
    within(|| {
        let group = Numbers::new();
        let (loaded, returned) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for round in 0..3_000 {
                        let before = returned.load(SeqCst);
                        let load = || {
                            if round % 8 == 0 {
                                thread::yield_now();
                            }
                            Ok(loaded.fetch_add(1, SeqCst) + 1)
                        };
                        let value = group.run(&1, load).must();
                        assert!(value > before, "{value} had been returned to somebody before");
                        returned.fetch_max(value, SeqCst);
                    }
                });
            }
        });
        assert_idle(&group);
    });
}

/// Dead entries of panicked and abandoned loads once piled up for the life of the process.
#[test]
fn ten_thousand_panics_failures_and_time_outs_leave_nothing() {
    const KEYS: u64 = 10_000;
    const THREADS: u64 = 8;
    within(|| {
        let group = Numbers::new();
        thread::scope(|s| {
            for thread in 0..THREADS {
                let group = &group;
                let (ask, asked) = bounded::<u64>(0);
                let (gave_up, gives_up) = bounded::<()>(0);
                s.spawn(move || {
                    for key in (thread..KEYS).step_by(THREADS as usize) {
                        let panics = || group.run(&key, || quiet_panic());
                        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
                        let fails = group.run(&(KEYS + key), || Err("away".into()));
                        assert!(fails.unwrap_err().is_failed());

                        let slow = 2 * KEYS + key;
                        let lead = lead(group, &slow);
                        ask.send(slow).unwrap();
                        gives_up.recv().unwrap();
                        lead.land(Ok(slow)).must();
                    }
                });
                s.spawn(move || {
                    for slow in asked {
                        let late = group.run_timeout(&slow, ms(1), unwanted);
                        assert!(late.unwrap_err().is_timed_out());
                        gave_up.send(()).unwrap();
                    }
                });
            }
        });
        assert_idle(&group);
        for key in [17, KEYS + 17, 2 * KEYS + 17] {
            assert_eq!(group.run_timeout(&key, ms(100), || Ok(key)).must(), key);
        }
        assert_idle(&group);
    });
}

#[test]
fn a_million_keys_come_and_go() {
    const AT_ONCE: u64 = 1_000;
    within(|| {
        let group = Numbers::new();
        thread::scope(|s| {
            for half in 0..2 {
                let group = &group;
                s.spawn(move || {
                    for batch in 0..500 {
                        let first = (2 * batch + half) * AT_ONCE;
                        let leads: Vec<_> =
                            (first..first + AT_ONCE).map(|key| lead(group, &key)).collect();
                        assert!((AT_ONCE..=2 * AT_ONCE).contains(&(group.len() as u64)));
                        for (lead, key) in leads.into_iter().zip(first..) {
                            assert_eq!(lead.land(Ok(key)).must(), key);
                        }
                    }
                });
            }
        });
        assert_idle(&group);
    });
}

/// One lock for the whole cache once stopped everything behind one slow load.
#[test]
fn a_slow_load_holds_up_no_other_key_of_its_shard() {
    within(|| {
        let group: Group<Crowded, u64, String> = Group::new();
        let slow = lead(&group, &Crowded(0));
        thread::scope(|s| {
            for thread in 0..8 {
                let group = &group;
                s.spawn(move || {
                    for key in (1 + thread..=100).step_by(8) {
                        assert_eq!(group.run(&Crowded(key), || Ok(key)).must(), key);
                    }
                });
            }
        });
        assert_eq!(group.len(), 1);
        slow.land(Ok(0)).must();
        assert_idle(&group);
    });
}

/// Parts of a key, once joined with a separator, were the same for two different pairs.
#[test]
fn keys_that_hash_alike_are_told_apart() {
    within(|| {
        let group: Group<(&str, &str), usize, String> = Group::new();
        let pairs = [
            ("a:b", "c"),
            ("a", "b:c"),
            ("AA", "B"),
            ("A", "AB"),
            ("", "a:b"),
            ("a", "b"),
            ("a:", "b"),
            ("a", ":b"),
        ];
        assert_all_apart(&group, &pairs);
        let crowded: Vec<_> = (0..100).map(Crowded).collect();
        assert_all_apart(&Group::new(), &crowded);
    });

    fn assert_all_apart<K>(group: &Group<K, usize, String>, keys: &[K])
    where
        K: std::hash::Hash + Eq + Clone + Sync + Send,
    {
        let leads: Vec<_> = keys.iter().map(|key| lead(group, key)).collect();
        assert_eq!(group.len(), keys.len());
        thread::scope(|s| {
            let followers: Vec<_> =
                keys.iter().map(|key| s.spawn(move || group.run(key, unwanted))).collect();
            until_waiting(group, keys.len());
            for (value, lead) in leads.into_iter().enumerate() {
                lead.land(Ok(value)).must();
            }
            for (value, follower) in followers.into_iter().enumerate() {
                assert_eq!(follower.join().unwrap().must(), value);
            }
        });
        assert_idle(group);
    }
}

/// Two tenants once shared one flight, and one was given the other's row; or two tables with
/// values of different types, and the follower's cast failed.
#[test]
fn groups_share_nothing() {
    within(|| {
        let (numbers, names) = (Numbers::new(), Group::<u64, String, std::fmt::Error>::new());
        for key in 0..50 {
            thread::scope(|s| {
                let leads = (lead(&numbers, &key), lead(&names, &key));
                let number = s.spawn(|| numbers.run(&key, unwanted).must());
                let name = s.spawn(|| names.run(&key, unwanted).must());
                until_waiting(&numbers, 1);
                until_waiting(&names, 1);
                leads.0.land(Ok(7)).must();
                leads.1.land(Ok("x".into())).must();
                assert_eq!((number.join().unwrap(), name.join().unwrap()), (7, "x".to_string()));
            });
        }
        assert_idle(&numbers);
        assert_idle(&names);
    });
}

/// A table of bounded size once dropped the entry of a running load under the churn of others.
#[test]
fn no_churn_of_other_keys_pushes_a_flight_out() {
    within(|| {
        let group = Numbers::new();
        let kept = lead(&group, &0);
        for key in 1..=10_000 {
            group.run(&key, || Ok(key)).must();
        }
        thread::scope(|s| {
            let callers = [0; 5].map(|_| s.spawn(|| group.run(&0, unwanted)));
            until_waiting(&group, 5);
            kept.land(Ok(7)).must();
            assert!(callers.into_iter().all(|caller| caller.join().unwrap().must() == 7));
        });
        assert_idle(&group);
    });
}

#[test]
fn a_join_tells_a_leader_from_a_follower() {
    within(|| {
        let group = Numbers::new();
        thread::scope(|s| {
            let lead = lead(&group, &1);
            let follower = s.spawn(|| match group.join(&1, Deadline::NEVER) {
                Ok(onefill::Join::Landed(value)) => value,
                other => panic!("{other:?}"),
            });
            until_waiting(&group, 1);
            lead.land(Ok(1)).must();
            assert_eq!(follower.join().unwrap(), 1);
        });
    });
}
