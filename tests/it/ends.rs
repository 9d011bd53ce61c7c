//! The ends of a load, and that everybody who waited for it gets that very end.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Instant;

use onefill::{Deadline, Error, FailurePolicy, Group, Join};

use crate::support::*;

/// The error of a loader. Not `Clone`: what is shared is a handle.
#[derive(Debug)]
struct Away(u32);

/// A one-slot hand-off once served one follower, and the others woke to nothing.
#[test]
fn every_follower_gets_the_value() {
    within(|| {
        let group: Group<u64, String, Away> = Group::new();
        let meter = Meter::new();
        thread::scope(|s| {
            let callers: Vec<_> = (0..32)
                .map(|_| {
                    s.spawn(|| {
                        group.run(&1, || {
                            meter.count(|| {
                                until_waiting(&group, 31);
                                Ok("v1".to_string())
                            })
                        })
                    })
                })
                .collect();
            for caller in callers {
                assert_eq!(caller.join().unwrap().unwrap(), "v1");
            }
        });
        assert_eq!(meter.runs(), 1);
        assert_idle(&group);
    });
}

#[test]
fn followers_get_the_error_itself() {
    within(|| {
        let group: Group<u64, u64, Away> = Group::new();
        thread::scope(|s| {
            let lead = lead(&group, &1);
            let followers: Vec<_> =
                (0..8).map(|_| s.spawn(|| group.run(&1, unwanted).unwrap_err())).collect();
            until_waiting(&group, 8);
            let Err(Error::Failed(of_leader)) = lead.land(Err(Away(3))) else {
                panic!("the leader gets its error")
            };
            assert_eq!(of_leader.0, 3);
            for follower in followers {
                let Error::Failed(shared) = follower.join().unwrap() else {
                    panic!("a follower gets the error")
                };
                assert!(Arc::ptr_eq(&of_leader, &shared));
            }
        });
        assert_idle(&group);
    });
}

/// Completion was once ordinary code after the call, so a panic skipped it: the waiting hung, and
/// so did all later callers.
#[test]
fn a_panic_goes_on_in_the_leader_and_reaches_the_followers_at_once() {
    within(|| {
        let group: Group<u64, u64, Away> = Group::new();
        let meter = Meter::new();
        let panicked = Mutex::new(None);
        thread::scope(|s| {
            let callers: Vec<_> = (0..8)
                .map(|_| {
                    s.spawn(|| {
                        let call = || {
                            group.run_timeout(&1, ms(60_000), || {
                                meter.count(|| {
                                    until_waiting(&group, 7);
                                    *panicked.lock().unwrap() = Some(Instant::now());
                                    panic!("no table")
                                })
                            })
                        };
                        (catch_unwind(AssertUnwindSafe(call)), Instant::now())
                    })
                })
                .collect();
            let ends: Vec<_> = callers.into_iter().map(|caller| caller.join().unwrap()).collect();

            let panicked = panicked.lock().unwrap().unwrap();
            assert!(ends.iter().all(|(_, at)| at.duration_since(panicked) < NOISE));
            let leaders = ends.iter().filter_map(|(end, _)| end.as_ref().err());
            let said: Vec<_> = leaders.map(|payload| payload.downcast_ref::<&str>()).collect();
            assert_eq!(said, [Some(&"no table")]);
            let followers: Vec<_> = ends.iter().filter_map(|(end, _)| end.as_ref().ok()).collect();
            assert_eq!(followers.len(), 7);
            for end in followers {
                assert!(matches!(end, Err(Error::Panicked(Some(said))) if &**said == "no table"));
            }
        });
        assert_idle(&group);
        assert_eq!(group.run(&1, || meter.count(|| Ok(42))).unwrap(), 42);
        assert_eq!(meter.runs(), 2);
    });
}

#[test]
fn what_a_panic_said_is_passed_on_if_it_was_a_string() {
    within(|| {
        type Say = fn() -> Result<u64, Away>;
        let group: Group<u64, u64, Away> = Group::new();
        let cases: [(Say, Option<&str>); 4] = [
            (|| panic!("literal"), Some("literal")),
            (|| panic!("number {}", Away(7).0), Some("number 7")),
            (|| panic_any(7_u64), None),
            (|| panic_any(Away(7)), None),
        ];
        for (loader, said) in cases {
            thread::scope(|s| {
                let lead = lead(&group, &1);
                let follower = s.spawn(|| group.run(&1, unwanted));
                until_waiting(&group, 1);
                let payload = catch_unwind(AssertUnwindSafe(|| lead.run(loader))).unwrap_err();
                assert_eq!(text(&*payload), said, "the payload is the loader's own");
                match follower.join().unwrap() {
                    Err(Error::Panicked(heard)) => assert_eq!(heard.as_deref(), said),
                    other => panic!("{other:?}"),
                }
            });
            assert_idle(&group);
        }
    });

    fn text(payload: &(dyn Any + Send)) -> Option<&str> {
        payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(|text| &**text))
    }
}

#[test]
fn a_panic_payload_that_panics_when_dropped_is_left_to_its_catcher() {
    struct Spiteful;
    impl Drop for Spiteful {
        fn drop(&mut self) {
            // A second panic would take the other tests along.
            if !thread::panicking() {
                quiet_panic()
            }
        }
    }
    within(|| {
        let group: Group<u64, u64, Away> = Group::new();
        thread::scope(|s| {
            let lead = lead(&group, &1);
            let follower = s.spawn(|| group.run(&1, unwanted));
            until_waiting(&group, 1);
            let call = || lead.run(|| std::panic::resume_unwind(Box::new(Spiteful)));
            let payload = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
            assert!(payload.is::<Spiteful>());
            assert!(matches!(follower.join().unwrap(), Err(Error::Panicked(None))));
            panic_of(|| drop(payload));
        });
        assert_idle(&group);
        assert_eq!(group.run(&1, || Ok(1)).unwrap(), 1);
    });
}

/// After a leader's death each follower once cleaned up behind it, the later ones behind its
/// successor, and several loads of one key ran side by side.
#[test]
fn those_who_call_again_after_a_panic_share_one_load() {
    within(|| {
        let group: Group<u64, u64, Away> = Group::new();
        let (meter, all_are_told) = (Meter::new(), Barrier::new(9));
        thread::scope(|s| {
            let callers: Vec<_> = (0..10)
                .map(|_| {
                    s.spawn(|| {
                        let call = |followers| {
                            group.run(&1, || {
                                meter.count(|| {
                                    until_waiting(&group, followers);
                                    if meter.runs() == 1 { quiet_panic() } else { Ok(1) }
                                })
                            })
                        };
                        match catch_unwind(AssertUnwindSafe(|| call(9))) {
                            Ok(Err(Error::Panicked(_))) => {
                                all_are_told.wait();
                                Some(call(8))
                            }
                            Ok(other) => panic!("{other:?}"),
                            Err(_) => None,
                        }
                    })
                })
                .collect();
            let retried: Vec<_> =
                callers.into_iter().filter_map(|caller| caller.join().unwrap()).collect();
            assert_eq!(retried.len(), 9);
            assert!(retried.into_iter().all(|end| matches!(end, Ok(1))));
        });
        assert_eq!((meter.runs(), meter.highest()), (2, 1));
        assert_idle(&group);
    });
}

/// A holder once kept the error of its first run and threw it on every access ever after.
#[test]
fn a_failure_is_not_remembered() {
    within(|| {
        let group: Group<u64, u64, Away> = Group::new();
        let meter = Meter::new();
        let load = |followers| {
            group.run(&1, || {
                meter.count(|| {
                    until_waiting(&group, followers);
                    if meter.runs() == 1 { Err(Away(1)) } else { Ok(5) }
                })
            })
        };
        thread::scope(|s| {
            let callers: Vec<_> = (0..5).map(|_| s.spawn(|| load(4))).collect();
            let errors: Vec<_> =
                callers.into_iter().map(|caller| caller.join().unwrap().unwrap_err()).collect();
            assert!(errors.iter().all(|error| error.failure().unwrap().0 == 1));
        });
        assert_eq!(meter.runs(), 1);
        assert_eq!(load(0).unwrap(), 5);
        assert_eq!(meter.runs(), 2);
    });
}

/// Behind a lock per key each waiter repeated the failing load, one after the other: N calls to a
/// source in trouble, and N times the wait.
#[test]
fn a_failing_source_is_asked_once_for_the_whole_herd() {
    within(|| {
        let group: Group<u64, u64, Away> = Group::new();
        let meter = Meter::new();
        thread::scope(|s| {
            let callers: Vec<_> = (0..12)
                .map(|_| {
                    s.spawn(|| {
                        group.run(&1, || {
                            meter.count(|| {
                                until_waiting(&group, 11);
                                Err(Away(9))
                            })
                        })
                    })
                })
                .collect();
            let ends = callers.into_iter().map(|caller| caller.join().unwrap());
            let errors: Vec<Arc<Away>> = ends
                .map(|end| match end {
                    Err(Error::Failed(error)) => error,
                    other => panic!("{other:?}"),
                })
                .collect();
            assert!(errors.iter().all(|error| Arc::ptr_eq(error, &errors[0])));
        });
        assert_eq!(meter.runs(), 1);
        assert!(group.run(&1, || meter.count(|| Err(Away(10)))).unwrap_err().is_failed());
        assert_eq!(meter.runs(), 2);
    });
}

/// "No such row" once reached the waiting as a general error, and they asked the source again.
#[test]
fn not_found_is_an_answer_like_any_other() {
    within(|| {
        let group: Group<u64, Option<String>, Away> = Group::new();
        thread::scope(|s| {
            let lead = lead(&group, &1);
            let follower = s.spawn(|| group.run(&1, unwanted));
            until_waiting(&group, 1);
            assert_eq!(lead.land(Ok(None)).unwrap(), None);
            assert_eq!(follower.join().unwrap().unwrap(), None);
        });
    });
}

/// A second caller's other arguments were once silently answered with the first one's result. It
/// is so by design here, and said at `Group`: a key names everything its loader depends on.
#[test]
fn the_first_loader_wins() {
    within(|| {
        let group: Group<u64, u64, Away> = Group::new();
        thread::scope(|s| {
            let first = s.spawn(|| {
                group.run(&1, || {
                    until_waiting(&group, 1);
                    Ok(1)
                })
            });
            until("the first caller leads", || group.len() == 1);
            assert_eq!(group.run(&1, unwanted).unwrap(), 1);
            assert_eq!(first.join().unwrap().unwrap(), 1);
        });
        assert_eq!(group.run(&1, || Ok(2)).unwrap(), 2);
    });
}

/// All callers once got the same mutable list, and one filtered it under another's hands.
#[test]
fn what_one_caller_does_to_its_value_is_not_seen_by_another() {
    within(|| {
        let group: Group<u64, Vec<u32>, Away> = Group::new();
        let all_have_pushed = Barrier::new(10);
        thread::scope(|s| {
            let callers: Vec<_> = (0..10)
                .map(|_| {
                    s.spawn(|| {
                        let loaded = group.run(&1, || {
                            until_waiting(&group, 9);
                            Ok(vec![1, 2, 3])
                        });
                        let mut mine = loaded.unwrap();
                        let before = mine.clone();
                        mine.push(4);
                        all_have_pushed.wait();
                        (before, mine)
                    })
                })
                .collect();
            for caller in callers {
                let (before, mine) = caller.join().unwrap();
                assert_eq!((before, mine), (vec![1, 2, 3], vec![1, 2, 3, 4]));
            }
        });
        assert_eq!(group.run(&1, || Ok(vec![1, 2, 3])).unwrap(), [1, 2, 3]);
    });
}

#[test]
fn a_leader_without_followers_gets_its_value_uncloned() {
    #[derive(Debug)]
    struct Once;
    impl Clone for Once {
        fn clone(&self) -> Once {
            panic!("cloned for nobody")
        }
    }
    let group: Group<u64, Once, Away> = Group::new();
    group.run(&1, || Ok(Once)).unwrap();
    lead(&group, &1).land(Ok(Once)).unwrap();
}

/// Followers call each other out of a landed flight. One that is stuck in its own `Clone` must
/// have done so before, and hold no lock that the others need.
#[test]
fn a_caller_that_is_slow_to_clone_holds_nobody_up() {
    const CALLERS: usize = 32;

    /// The first clone, by the leader or else by a follower, waits for all the others.
    #[derive(Debug)]
    struct Slow {
        clones: Arc<AtomicUsize>,
        is_stuck: Arc<AtomicBool>,
        leader: thread::ThreadId,
        by_leader: bool,
    }
    impl Clone for Slow {
        fn clone(&self) -> Slow {
            self.clones.fetch_add(1, SeqCst);
            let is_leader = thread::current().id() == self.leader;
            if is_leader == self.by_leader && !self.is_stuck.swap(true, SeqCst) {
                let all = || self.clones.load(SeqCst) == CALLERS;
                until("all the others have theirs", all);
            }
            Slow {
                clones: Arc::clone(&self.clones),
                is_stuck: Arc::clone(&self.is_stuck),
                leader: self.leader,
                by_leader: self.by_leader,
            }
        }
    }

    within(|| {
        let group: Group<u64, Slow, Away> = Group::new();
        for by_leader in [true, false] {
            for _ in 0..10 {
                thread::scope(|s| {
                    let lead = lead(&group, &1);
                    for _ in 1..CALLERS {
                        s.spawn(|| group.run(&1, unwanted).unwrap());
                    }
                    until_waiting(&group, CALLERS - 1);
                    let leader = thread::current().id();
                    let (clones, is_stuck) = (Arc::default(), Arc::default());
                    lead.land(Ok(Slow { clones, is_stuck, leader, by_leader })).unwrap();
                });
                assert_idle(&group);
            }
        }
    });
}

/// A look into the cache was once made outside the flight: a caller that had missed, slept through
/// another's whole load and then found no flight, loaded a second time.
///
/// The cache is a map of the test's own here. It shows what a group gives a cache to build on: who
/// becomes the leader finds in the cache whatever landed before.
#[test]
fn a_leader_that_looks_again_never_loads_what_has_landed() {
    const CALLERS: u64 = 32;
    const ROUNDS: u64 = 2_000;
    within(|| {
        let group: Group<u64, u64, Away> = Group::new();
        let cache = Mutex::new(HashMap::new());
        let (meter, round) = (Meter::new(), Barrier::new(CALLERS as usize));
        let look = |key: &u64| cache.lock().unwrap().get(key).copied();
        thread::scope(|s| {
            for _ in 0..CALLERS {
                s.spawn(|| {
                    for key in 0..ROUNDS {
                        round.wait();
                        let value = look(&key).unwrap_or_else(|| {
                            match group.join(&key, Deadline::NEVER).unwrap() {
                                Join::Landed(value) => value,
                                Join::Lead(lead) => {
                                    let value = look(&key).unwrap_or_else(|| {
                                        let value = meter.count(|| key * 3);
                                        cache.lock().unwrap().insert(key, value);
                                        value
                                    });
                                    lead.land(Ok(value)).unwrap()
                                }
                            }
                        });
                        assert_eq!(value, key * 3);
                    }
                });
            }
        });
        assert_eq!(meter.runs() as u64, ROUNDS);
        assert_idle(&group);
    });
}

#[test]
fn a_guard_dropped_by_a_panic_hands_its_flight_over() {
    within(|| {
        let group: Group<u64, u64, Away> = Group::new();
        thread::scope(|s| {
            let leader = s.spawn(|| {
                panic_of(|| {
                    let _lead = lead(&group, &1);
                    until_waiting(&group, 1);
                    panic!("between join and land")
                })
            });
            until("the leader leads", || group.len() == 1);
            assert_eq!(group.run(&1, || Ok(2)).unwrap(), 2);
            assert_eq!(leader.join().unwrap(), "between join and land");
        });
        assert_idle(&group);
    });
}

/// The ends of a loader are the same whichever method called it.
#[test]
fn every_method_ends_alike() {
    within(|| {
        let group: Group<u64, u64, Away> = Group::builder()
            .on_failure(FailurePolicy::Share)
            .on_abandoned(FailurePolicy::Share)
            .build();
        let far = ms(3_600_000);
        let methods: [&(dyn Fn(Loader) -> Result<u64, Error<Away>> + Sync); 5] = [
            &|loader| group.run(&1, loader),
            &|loader| group.run_timeout(&1, far, loader),
            &|loader| group.run_deadline(&1, Instant::now() + far, loader),
            &|loader| group.try_run(&1, loader),
            &|loader| match group.join(&1, far)? {
                Join::Landed(value) => Ok(value),
                Join::Lead(lead) => lead.run(loader),
            },
        ];
        for (number, call) in methods.into_iter().enumerate() {
            assert_eq!(call(|| Ok(1)).unwrap(), 1);
            assert_eq!(call(|| Err(Away(2))).unwrap_err().failure().unwrap().0, 2);
            assert_eq!(panic_of(|| call(|| panic!("three"))), "three");
            assert_idle(&group);

            let never_waits = number == 3;
            if never_waits {
                continue;
            }
            thread::scope(|s| {
                let lead = lead(&group, &1);
                let follower = s.spawn(|| call(unwanted));
                until_waiting(&group, 1);
                lead.land(Ok(4)).unwrap();
                assert_eq!(follower.join().unwrap().unwrap(), 4);
            });
            thread::scope(|s| {
                let lead = lead(&group, &1);
                let follower = s.spawn(|| call(unwanted));
                until_waiting(&group, 1);
                drop(lead);
                assert!(follower.join().unwrap().unwrap_err().is_abandoned());
            });
        }
        assert_idle(&group);
    });

    type Loader = fn() -> Result<u64, Away>;
}
