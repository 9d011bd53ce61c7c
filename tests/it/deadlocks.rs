//! Waits that could never end are refused, and no others.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

use crossbeam_channel::bounded;
use onefill::{Error, FailurePolicy, Group};

use crate::support::*;

type Numbers = Group<u64, u64, String>;

/// Loading inside the map's own critical section hung as soon as a loader asked for another key.
#[test]
fn a_loader_may_ask_for_other_keys() {
    within(|| {
        let group: Group<String, String, String> = Group::new();
        let (a, b) = ("A".to_string(), "B".to_string());
        let value = group.run(&a, || Ok(format!("a+{}", group.run(&b, || Ok("b".into())).must())));
        assert_eq!(value.must(), "a+b");
        assert_idle(&group);
    });
}

#[test]
fn loaders_may_be_nested_a_hundred_deep_in_one_shard() {
    fn depth(group: &Group<Crowded, u64, String>, meter: &Meter, key: u64) -> u64 {
        let load = || Ok(if key == 100 { 0 } else { 1 + depth(group, meter, key + 1) });
        group.run(&Crowded(key), || meter.count(load)).must()
    }
    within(|| {
        let (group, meter) = (Group::new(), Meter::new());
        assert_eq!(depth(&group, &meter, 1), 99);
        assert_eq!((meter.runs(), meter.highest()), (100, 100));
        assert_idle(&group);
    });
}

/// A load was once handed to the pool whose only thread was waiting for it.
#[test]
fn a_loader_runs_on_its_callers_own_thread() {
    within(|| {
        let group: Group<u64, thread::ThreadId, String> = Group::new();
        let here = thread::current().id();
        let outer = group.run(&1, || {
            assert_eq!(group.run(&2, || Ok(thread::current().id())).must(), here);
            Ok(thread::current().id())
        });
        assert_eq!(outer.must(), here);
    });
}

/// Logging code in a loader asked for the very key that was being loaded.
#[test]
fn a_loader_that_asks_for_its_own_key_is_told_so_at_once() {
    within(|| {
        let group = Numbers::new();
        let value = group.run_timeout(&1, ms(60_000), || {
            let asked = Instant::now();
            let ends = [
                group.run(&1, unwanted),
                group.run_timeout(&1, ms(60_000), unwanted),
                group.run_timeout(&1, ms(0), unwanted),
                group.try_run(&1, unwanted),
                group.join(&1, ms(60_000)).map(|_| 0),
                // At second hand, and from beside an unrelated key.
                group.run(&2, || Ok(group.run(&1, unwanted).unwrap_or(7))),
            ];
            assert!(asked.elapsed() < NOISE);
            let [run, timeout, zero, tried, joined, nested] = ends;
            for end in [run, timeout, zero, tried, joined] {
                assert!(end.unwrap_err().is_would_deadlock());
            }
            Ok(nested.must())
        });
        assert_eq!(value.must(), 7);
        assert_idle(&group);
    });
}

#[test]
fn a_guard_counts_as_loading_for_as_long_as_it_is_held() {
    within(|| {
        let group = Numbers::new();
        let held = lead(&group, &1);
        assert!(group.run(&1, unwanted).unwrap_err().is_would_deadlock());
        assert_eq!(group.run(&2, || Ok(2)).must(), 2);
        assert!(group.run(&1, unwanted).unwrap_err().is_would_deadlock());
        held.land(Ok(1)).must();
        assert_eq!(group.run(&1, || Ok(3)).must(), 3);
        drop(lead(&group, &1));
        assert_eq!(group.run(&1, || Ok(4)).must(), 4);
        panic_of(|| group.run(&1, || panic!("five")));
        assert_eq!(group.run(&1, || Ok(6)).must(), 6);
    });
}

/// Two loaders that need each other's key.
#[test]
fn of_two_loaders_that_need_each_other_one_is_told_and_both_end() {
    within(|| {
        let group = Numbers::new();
        let (both_lead, refused) = (Barrier::new(2), AtomicUsize::new(0));
        let load = |own: u64, other: u64| {
            group.run_timeout(&own, ms(60_000), || {
                both_lead.wait();
                match group.run_timeout(&other, ms(60_000), unwanted) {
                    Ok(value) => Ok(value),
                    Err(error) => {
                        assert!(error.is_would_deadlock(), "{error}");
                        refused.fetch_add(1, SeqCst);
                        Ok(99)
                    }
                }
            })
        };
        let started = Instant::now();
        thread::scope(|s| {
            let (a, b) = (s.spawn(|| load(1, 2)), s.spawn(|| load(2, 1)));
            assert_eq!((a.join().unwrap().must(), b.join().unwrap().must()), (99, 99));
        });
        assert!(started.elapsed() < NOISE);
        assert_eq!(refused.into_inner(), 1);
        assert_idle(&group);
        assert_eq!(group.run(&1, || Ok(1)).must(), 1);
    });
}

/// Three groups of different types, whose places are numbered through.
#[derive(Default)]
struct Places {
    numbers: Group<u64, u64, String>,
    names: Group<String, Vec<u8>, std::fmt::Error>,
    pairs: Group<(u8, usize), Arc<str>, ()>,
}

/// Whether a call was refused; that it had another error is out of the question.
fn refused<V, E>(end: Result<V, Error<E>>) -> bool {
    match end {
        Ok(_) => false,
        Err(Error::WouldDeadlock) => true,
        Err(_) => panic!("neither a value nor a refusal"),
    }
}

impl Places {
    /// Asks for `place`, leading it through `load` if nobody does. Whether it was refused.
    fn ask(&self, place: usize, load: impl FnOnce()) -> bool {
        match place % 3 {
            0 => refused(self.numbers.run(&(place as u64), || {
                load();
                Ok(1)
            })),
            1 => refused(self.names.run(&place.to_string(), || {
                load();
                Ok(vec![1])
            })),
            _ => refused(self.pairs.run(&(1, place), || {
                load();
                Ok("one".into())
            })),
        }
    }

    fn waiting(&self) -> usize {
        self.numbers.waiting() + self.names.waiting() + self.pairs.waiting()
    }

    fn assert_idle(&self) {
        assert_idle(&self.numbers);
        assert_idle(&self.names);
        assert_idle(&self.pairs);
    }

    /// Each of `length` threads leads its place and asks for the next one's, the last for the
    /// first's; thread n asks once `go` lets it. Returns who was refused.
    fn ring(&self, length: usize, go: impl Fn(usize) + Sync) -> Vec<usize> {
        let all_lead = Barrier::new(length);
        let (all_lead, go) = (&all_lead, &go);
        thread::scope(|s| {
            let threads: Vec<_> = (0..length)
                .map(|place| {
                    s.spawn(move || {
                        let mut was_refused = false;
                        let outer = self.ask(place, || {
                            all_lead.wait();
                            go(place);
                            was_refused =
                                self.ask((place + 1) % length, || panic!("somebody leads it"));
                        });
                        assert!(!outer);
                        was_refused
                    })
                })
                .collect();
            let ends = threads.into_iter().map(|thread| thread.join().unwrap());
            ends.enumerate().filter_map(|(place, refused)| refused.then_some(place)).collect()
        })
    }
}

#[test]
fn of_a_ring_of_waits_exactly_one_is_refused() {
    within(|| {
        let places = Places::default();
        for length in 1..=6 {
            for _ in 0..30 {
                assert_eq!(places.ring(length, |_| ()).len(), 1, "of {length}");
                places.assert_idle();
            }
        }
    });
}

#[test]
fn it_is_the_one_that_closes_the_ring_who_is_refused() {
    within(|| {
        let places = Places::default();
        for length in 1..=6 {
            for first in 0..length {
                let refused = places.ring(length, |place| {
                    let turn = (place + length - first) % length;
                    until("it is this one's turn", || places.waiting() >= turn);
                    assert!(places.ask(place, || panic!("this thread leads it")));
                });
                assert_eq!(refused, [(first + length - 1) % length], "of {length}");
                places.assert_idle();
            }
        }
    });
}

#[test]
fn a_ring_is_seen_through_a_herd_that_leads_nothing() {
    within(|| {
        let group = Numbers::new();
        let (lead_a, led_a) = bounded::<()>(0);
        thread::scope(|s| {
            let b = lead(&group, &2);
            let other = s.spawn(|| {
                group.run(&1, || {
                    lead_a.send(()).unwrap();
                    group.run(&2, unwanted).map_err(|error| error.to_string())
                })
            });
            led_a.recv().unwrap();
            let herd: Vec<_> = (0..20)
                .map(|n| {
                    let group = &group;
                    s.spawn(move || group.run(&(1 + n % 2), unwanted))
                })
                .collect();
            until_waiting(&group, 21);
            pass_own_gate(&group, &2);
            assert!(group.run(&1, unwanted).unwrap_err().is_would_deadlock());
            b.land(Ok(5)).must();
            assert_eq!(other.join().unwrap().must(), 5);
            assert!(herd.into_iter().all(|member| member.join().unwrap().must() == 5));
        });
        assert_idle(&group);
    });
}

#[test]
fn one_who_leads_may_wait_for_one_who_waits_for_nobody() {
    within(|| {
        let group = Numbers::new();
        thread::scope(|s| {
            let target = lead(&group, &0);
            // A star, and a chain on top of it: no ring.
            let waiters: Vec<_> = (1..=6)
                .map(|key| {
                    let group = &group;
                    s.spawn(move || {
                        group.run(&key, || {
                            let needed = u64::saturating_sub(key, 3);
                            until("what is needed is led", || group.len() == 7);
                            Ok(group.run(&needed, unwanted).must() + 1)
                        })
                    })
                })
                .collect();
            until_waiting(&group, 6);
            target.land(Ok(0)).must();
            let values: Vec<_> =
                waiters.into_iter().map(|waiter| waiter.join().unwrap().must()).collect();
            assert_eq!(values, [1, 1, 1, 2, 2, 2]);
        });
        assert_idle(&group);
    });
}

/// Another thread leads 1 and asks for 2, which this one leads beside 9. When its wait for 2 has
/// been ended by `end_it`, this thread asks for 1: no ring any more, so it gets its value.
fn no_ring_once(group: &Numbers, end_it: impl FnOnce(Lead<'_>)) {
    let (asking, asks) = bounded::<()>(0);
    thread::scope(|s| {
        let (two, nine) = (lead(group, &2), lead(group, &9));
        let other = s.spawn(move || {
            group.run(&1, || {
                asking.send(()).unwrap();
                let end = group.run(&2, || Ok(22));
                // Its own wait is over: whoever is waiting now is the thread that asks for 1.
                until_waiting(group, 1);
                Ok(end.unwrap_or(0))
            })
        });
        asks.recv().unwrap();
        until_waiting(group, 1);
        end_it(two);
        assert!(group.run(&1, unwanted).is_ok(), "a ring was seen where none is");
        other.join().unwrap().must();
        nine.land(Ok(9)).must();
    });
    assert_idle(group);
}

type Lead<'g> = onefill::Lead<'g, u64, u64, String>;

#[test]
fn one_who_has_landed_may_wait_for_its_former_followers() {
    within(|| {
        let group = Numbers::new();
        for _ in 0..100 {
            no_ring_once(&group, |two| assert_eq!(two.land(Ok(2)).must(), 2));
        }
        no_ring_once(&group, |two| assert!(two.land(Err("away".into())).is_err()));
        no_ring_once(&group, |two| {
            panic_of(|| two.run(|| panic!("two")));
        });
    });
}

#[test]
fn one_who_has_handed_over_may_wait_for_its_successor() {
    within(|| {
        let group = Numbers::new();
        for _ in 0..100 {
            no_ring_once(&group, |two| drop(two));
        }
        for policy in [FailurePolicy::Share, FailurePolicy::RetryEach] {
            no_ring_once(&Group::builder().on_abandoned(policy).build(), |two| drop(two));
        }
    });
}

#[test]
fn a_timed_out_wait_is_no_part_of_a_ring() {
    within(|| {
        let group = Numbers::new();
        let two = lead(&group, &2);
        let (give_up, gave_up) = bounded::<()>(0);
        thread::scope(|s| {
            let other = s.spawn(|| {
                group.run(&1, || {
                    let late = group.run_timeout(&2, ms(10), unwanted).unwrap_err();
                    assert!(late.is_timed_out());
                    give_up.send(()).unwrap();
                    until_waiting(&group, 1);
                    Ok(1)
                })
            });
            gave_up.recv().unwrap();
            assert_eq!(group.run(&1, unwanted).must(), 1);
            other.join().unwrap().must();
        });
        two.land(Ok(2)).must();
        assert_idle(&group);
    });
}

#[test]
fn a_refused_wait_is_no_part_of_a_ring() {
    within(|| {
        let group = Numbers::new();
        let (one, eight) = (lead(&group, &1), lead(&group, &8));
        let (with_one, has_one) = bounded::<()>(0);
        thread::scope(|s| {
            let other = s.spawn(|| {
                let two = lead(&group, &2);
                assert_eq!(group.run(&1, unwanted).must(), 1);
                with_one.send(()).unwrap();
                assert_eq!(group.run(&8, unwanted).must(), 8);
                two.land(Ok(2)).must()
            });
            until_waiting(&group, 1);
            pass_own_gate(&group, &1);
            assert!(group.run(&2, unwanted).unwrap_err().is_would_deadlock());
            one.land(Ok(1)).must();
            has_one.recv().unwrap();
            until_waiting(&group, 1);
            eight.land(Ok(8)).must();
            assert_eq!(other.join().unwrap(), 2);
        });
        assert_idle(&group);
    });
}

#[test]
fn one_who_was_turned_away_is_no_part_of_a_ring() {
    within(|| {
        let group = Numbers::new();
        let full: Numbers = Group::builder().max_followers_per_key(0).build();
        let full_in_all: Numbers = Group::builder().max_followers(0).build();
        let leads = [lead(&full, &2), lead(&full_in_all, &2)];
        let (turn_away, turned_away) = bounded::<()>(0);
        thread::scope(|s| {
            let other = s.spawn(|| {
                group.run(&1, || {
                    assert!(full.run(&2, unwanted).unwrap_err().is_overloaded());
                    assert!(full_in_all.run(&2, unwanted).unwrap_err().is_overloaded());
                    turn_away.send(()).unwrap();
                    until_waiting(&group, 1);
                    Ok(1)
                })
            });
            turned_away.recv().unwrap();
            assert_eq!(group.run(&1, unwanted).must(), 1);
            other.join().unwrap().must();
        });
        drop(leads);
    });
}

/// The follower that was promoted is the one everybody waits for now.
#[test]
fn a_ring_through_a_successor_is_seen() {
    within(|| {
        let group = Numbers::new();
        let (asking, asks) = bounded::<()>(0);
        thread::scope(|s| {
            let two = lead(&group, &2);
            let other = s.spawn(|| {
                group.run(&1, || {
                    asking.send(()).unwrap();
                    Ok(group.run_timeout(&2, ms(3_600_000), unwanted).must())
                })
            });
            asks.recv().unwrap();
            // Has the most time left, so it will be the one.
            let successor = s.spawn(|| {
                group.run(&2, || {
                    assert!(group.run(&1, unwanted).unwrap_err().is_would_deadlock());
                    Ok(5)
                })
            });
            until_waiting(&group, 2);
            drop(two);
            assert_eq!(successor.join().unwrap().must(), 5);
            assert_eq!(other.join().unwrap().must(), 5);
        });
        assert_idle(&group);
    });
}

/// A new flight has taken the place of the one this thread leads, so it can wait for that one.
#[test]
fn one_whose_flight_was_forgotten_may_wait_for_the_next() {
    within(|| {
        let group = Numbers::new();
        thread::scope(|s| {
            let old = lead(&group, &1);
            assert!(group.forget(&1));
            let other = s.spawn(|| {
                group.run(&1, || {
                    until_waiting(&group, 1);
                    Ok(2)
                })
            });
            until("the other leads", || group.len() == 1);
            assert_eq!(group.run(&1, unwanted).must(), 2);
            assert_eq!(old.land(Ok(1)).must(), 1);
            other.join().unwrap().must();
        });
        assert_idle(&group);
    });
}

/// What it has changed itself a loader may load anew. One that always does so would never end.
#[test]
fn a_thread_leads_a_key_once_more_when_its_flight_is_forgotten_and_no_more() {
    within(|| {
        let group = Numbers::new();
        let depth = AtomicUsize::new(0);
        fn load(group: &Numbers, depth: &AtomicUsize) -> Result<u64, String> {
            let nth = depth.fetch_add(1, SeqCst);
            // Another key's flight is no second one of this.
            assert_eq!(group.run(&2, || Ok(2)).must(), 2);
            assert!(group.forget(&1));
            match group.run(&1, || load(group, depth)) {
                Ok(inner) => Ok(inner + 1),
                Err(Error::WouldDeadlock) => {
                    assert!(group.try_run(&1, unwanted).unwrap_err().is_would_deadlock());
                    assert_eq!(nth, 1, "the first may");
                    Ok(10)
                }
                Err(error) => panic!("{error}"),
            }
        }
        for _ in 0..3 {
            assert_eq!(group.run(&1, || load(&group, &depth)).must(), 11);
            assert_eq!(depth.swap(0, SeqCst), 2);
            assert_idle(&group);
        }
    });
}

/// A thread drives many flights of keys with one hash, and forgets none.
#[test]
fn keys_that_share_a_hash_are_not_taken_for_one_that_was_forgotten() {
    within(|| {
        let group: Group<Crowded, u64, String> = Group::new();
        fn load(group: &Group<Crowded, u64, String>, key: u64) -> Result<u64, String> {
            Ok(if key == 0 {
                0
            } else {
                group.run(&Crowded(key - 1), || load(group, key - 1)).must() + 1
            })
        }
        assert_eq!(group.run(&Crowded(9), || load(&group, 9)).must(), 9);
        assert_idle(&group);
    });
}
