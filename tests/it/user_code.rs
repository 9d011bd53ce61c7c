//! The user's own code: `Hash`, `Eq`, `Clone` and `Drop` of keys and values, and loaders.
//!
//! If it panics, the panic reaches the caller whose call ran it and wedges nothing. If it calls
//! the group, it does not hang: the group holds none of its locks then. `Eq` and `Clone` of keys
//! are the exception, as they run while a flight boards: they may panic, but not call the group.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread;

use onefill::{Error, FailurePolicy, Group};

use crate::support::*;

/// A place where the user's code runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Hash,
    Eq,
    KeyClone,
    /// Of the group's own copy.
    KeyDrop,
    ValueClone,
    /// Of the loaded value, not of a copy.
    ValueDrop,
    ErrorDisplay,
    ErrorDebug,
    ErrorDrop,
}

/// Does something once, when the user's code is next run at some place.
#[derive(Clone, Default)]
struct Trap(Arc<Mutex<Option<Armed>>>);

type Armed = (At, Box<dyn FnOnce() + Send>);

impl Trap {
    fn set(&self, at: At, then: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap() = Some((at, Box::new(then)));
    }

    fn is_set(&self) -> bool {
        self.0.lock().unwrap().is_some()
    }

    fn step(&self, at: At) {
        // A panic while unwinding would take all other tests along. The trap stays set, which
        // fails the test: the group runs nobody's code while unwinding.
        if thread::panicking() {
            return;
        }
        let sprung = self.0.lock().unwrap().take_if(|(armed, _)| *armed == at);
        if let Some((_, then)) = sprung {
            then();
        }
    }
}

impl fmt::Debug for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trap")
    }
}

/// All keys share a shard.
#[derive(Debug)]
struct Key {
    number: u64,
    is_copy: bool,
    trap: Trap,
}

fn key(number: u64, trap: &Trap) -> Key {
    Key { number, is_copy: false, trap: trap.clone() }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.trap.step(At::Hash);
        state.write_u8(0);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.trap.step(At::Eq);
        self.number == other.number
    }
}

impl Eq for Key {}

impl Clone for Key {
    fn clone(&self) -> Key {
        self.trap.step(At::KeyClone);
        Key { number: self.number, is_copy: true, trap: self.trap.clone() }
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        if self.is_copy {
            self.trap.step(At::KeyDrop);
        }
    }
}

#[derive(Debug)]
struct Value {
    number: u64,
    is_copy: bool,
    trap: Trap,
}

fn value(number: u64, trap: &Trap) -> Value {
    Value { number, is_copy: false, trap: trap.clone() }
}

impl Clone for Value {
    fn clone(&self) -> Value {
        self.trap.step(At::ValueClone);
        Value { number: self.number, is_copy: true, trap: self.trap.clone() }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        if !self.is_copy {
            self.trap.step(At::ValueDrop);
        }
    }
}

struct Trouble(Trap);

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.step(At::ErrorDisplay);
        f.write_str("trouble")
    }
}

impl fmt::Debug for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.step(At::ErrorDebug);
        f.write_str("Trouble")
    }
}

impl Drop for Trouble {
    fn drop(&mut self) {
        self.0.step(At::ErrorDrop);
    }
}

impl std::error::Error for Trouble {}

type Trapped = Group<Key, Value, Trouble>;

/// Number 0 is the key that misbehaves.
const BAD: u64 = 0;

/// A single panic once poisoned a lock, and each later request with it.
#[track_caller]
fn assert_works(group: &Trapped, trap: &Trap) {
    assert!(!trap.is_set(), "what was to misbehave did not run");
    assert_idle(group);
    for number in 1..=100 {
        let loaded = group.run(&key(number, trap), || Ok(value(number, trap)));
        assert_eq!(loaded.must().number, number);
    }
    assert_eq!(group.run(&key(BAD, trap), || Ok(value(7, trap))).must().number, 7);
    assert_idle(group);
}

fn spring() {
    quiet_panic()
}

#[test]
fn a_panic_in_hash_reaches_its_caller_only() {
    within(|| {
        let (group, trap) = (Trapped::new(), Trap::default());
        let calls: [&dyn Fn(&Key); 2] =
            [&|key| drop(group.run(key, unwanted)), &|key| assert!(!group.forget(key))];
        for call in calls {
            trap.set(At::Hash, spring);
            panic_of(|| call(&key(BAD, &trap)));
            assert_works(&group, &trap);
        }
    });
}

#[test]
fn a_panic_in_eq_reaches_its_caller_only() {
    within(|| {
        let (group, trap) = (Trapped::new(), Trap::default());
        let lead = lead(&group, &key(BAD, &trap));
        thread::scope(|s| {
            let others = s.spawn(|| {
                for _ in 0..3 {
                    trap.set(At::Eq, spring);
                    panic_of(|| group.run(&key(BAD, &trap), unwanted));
                    trap.set(At::Eq, spring);
                    panic_of(|| group.forget(&key(BAD, &trap)));
                    assert_eq!((group.len(), group.waiting()), (1, 0));
                }
            });
            others.join().unwrap();
            let follower = s.spawn(|| group.run(&key(BAD, &trap), unwanted));
            until_waiting(&group, 1);
            lead.land(Ok(value(1, &trap))).must();
            assert_eq!(follower.join().unwrap().must().number, 1);
        });
        assert_works(&group, &trap);
    });
}

#[test]
fn a_panic_in_the_keys_clone_reaches_its_caller_only() {
    within(|| {
        let (group, trap) = (Trapped::new(), Trap::default());
        trap.set(At::KeyClone, spring);
        panic_of(|| group.run(&key(BAD, &trap), unwanted));
        assert_works(&group, &trap);
    });
}

/// The group drops its copy of the key as the flight ends. Those who wait get its end all the same.
#[test]
fn a_panic_in_the_keys_drop_reaches_the_leader_only() {
    within(|| {
        type End = fn(Lead<'_>, &Trap);
        let ends: [End; 5] = [
            |lead, trap| drop(lead.land(Ok(value(1, trap)))),
            |lead, trap| drop(lead.land(Err(Trouble(trap.clone())))),
            |lead, trap| drop(lead.run(|| Ok(value(1, trap)))),
            |lead, _| drop(lead.run(|| quiet_panic())),
            |lead, _| drop(lead),
        ];
        for policy in [FailurePolicy::Share, FailurePolicy::RetryEach, FailurePolicy::HandOver] {
            for end in ends {
                for followers in [0, 1, 5] {
                    let group: Trapped =
                        Group::builder().on_failure(policy).on_abandoned(policy).build();
                    let trap = Trap::default();
                    thread::scope(|s| {
                        let lead = lead(&group, &key(BAD, &trap));
                        for _ in 0..followers {
                            // Its own end is a panic, if it is the one whose flight ends then.
                            s.spawn(|| {
                                let call = || group.run(&key(BAD, &trap), || Ok(value(2, &trap)));
                                let _ = catch_unwind(AssertUnwindSafe(call));
                            });
                        }
                        until_waiting(&group, followers);
                        trap.set(At::KeyDrop, spring);
                        let _ = catch_unwind(AssertUnwindSafe(|| end(lead, &trap)));
                    });
                    assert_works(&group, &trap);
                }
            }
        }
    });
}

type Lead<'g> = onefill::Lead<'g, Key, Value, Trouble>;

#[test]
fn a_panic_in_the_keys_drop_keeps_no_follower_from_its_value() {
    within(|| {
        let (group, trap) = (Trapped::new(), Trap::default());
        thread::scope(|s| {
            let lead = lead(&group, &key(BAD, &trap));
            let followers =
                [0; 5].map(|_| s.spawn(|| group.run(&key(BAD, &trap), unwanted).must().number));
            until_waiting(&group, 5);
            trap.set(At::KeyDrop, spring);
            panic_of(|| lead.land(Ok(value(3, &trap))));
            assert_eq!(followers.map(|follower| follower.join().unwrap()), [3; 5]);
        });
        assert_works(&group, &trap);
    });
}

#[test]
fn a_panic_in_the_keys_drop_at_forget_reaches_its_caller_only() {
    within(|| {
        let (group, trap) = (Trapped::new(), Trap::default());
        let lead = lead(&group, &key(BAD, &trap));
        trap.set(At::KeyDrop, spring);
        panic_of(|| group.forget(&key(BAD, &trap)));
        assert_eq!(group.len(), 0);
        lead.land(Ok(value(1, &trap))).must();
        assert_works(&group, &trap);
    });
}

#[test]
fn a_panic_in_the_values_clone_reaches_one_caller_only() {
    within(|| {
        // It may be the leader's clone or a follower's: whoever is first. All the others have
        // their value. Often enough for both to come up.
        for followers in [1, 2, 7] {
            for _ in 0..20 {
                let (group, trap) = (Trapped::new(), Trap::default());
                trap.set(At::ValueClone, spring);
                thread::scope(|s| {
                    let lead = lead(&group, &key(BAD, &trap));
                    let calls: Vec<_> = (0..followers)
                        .map(|_| {
                            s.spawn(|| {
                                let call = || group.run(&key(BAD, &trap), unwanted).must().number;
                                catch_unwind(AssertUnwindSafe(call)).ok()
                            })
                        })
                        .collect();
                    until_waiting(&group, followers);
                    let land = || lead.land(Ok(value(5, &trap))).must().number;
                    let mut ends = vec![catch_unwind(AssertUnwindSafe(land)).ok()];
                    ends.extend(calls.into_iter().map(|call| call.join().unwrap()));
                    ends.sort();
                    assert_eq!(ends[0], None);
                    assert!(ends[1..].iter().all(|end| *end == Some(5)), "{ends:?}");
                });
                assert_works(&group, &trap);
            }
        }
    });
}

#[test]
fn a_panic_in_a_followers_clone_is_not_the_leaders() {
    within(|| {
        let (group, trap) = (Trapped::new(), Trap::default());
        thread::scope(|s| {
            let lead = lead(&group, &key(BAD, &trap));
            let leader = thread::current().id();
            let follower = s.spawn(|| panic_of(|| group.run(&key(BAD, &trap), unwanted)));
            until_waiting(&group, 1);
            // Whoever comes first sets it again for the other, until it is the follower's turn.
            arm(&trap, leader);
            assert_eq!(lead.land(Ok(value(5, &trap))).must().number, 5);
            assert_eq!(follower.join().unwrap(), "a quiet panic");
        });
        assert_works(&group, &trap);
    });

    fn arm(trap: &Trap, spared: thread::ThreadId) {
        let again = trap.clone();
        trap.set(At::ValueClone, move || {
            if thread::current().id() == spared {
                arm(&again, spared);
            } else {
                quiet_panic()
            }
        });
    }
}

/// The loaded value itself is dropped by the last to leave the flight.
#[test]
fn a_panic_in_the_values_drop_reaches_one_caller_only() {
    within(|| {
        for followers in [1, 2, 7] {
            let (group, trap) = (Trapped::new(), Trap::default());
            trap.set(At::ValueDrop, spring);
            thread::scope(|s| {
                let lead = lead(&group, &key(BAD, &trap));
                let calls: Vec<_> = (0..followers)
                    .map(|_| {
                        s.spawn(|| {
                            let call = || group.run(&key(BAD, &trap), unwanted).must().number;
                            catch_unwind(AssertUnwindSafe(call)).ok()
                        })
                    })
                    .collect();
                until_waiting(&group, followers);
                let land = || lead.land(Ok(value(5, &trap))).must().number;
                let mut ends = vec![catch_unwind(AssertUnwindSafe(land)).ok()];
                ends.extend(calls.into_iter().map(|call| call.join().unwrap()));
                ends.sort();
                assert_eq!(ends[0], None);
                assert!(ends[1..].iter().all(|end| *end == Some(5)), "{ends:?}");
            });
            assert_works(&group, &trap);
        }
    });
}

#[test]
fn a_panic_in_an_errors_own_code_reaches_who_ran_it_only() {
    within(|| {
        let (group, trap) = (Trapped::new(), Trap::default());
        let (mine, theirs) = thread::scope(|s| {
            let lead = lead(&group, &key(BAD, &trap));
            let follower = s.spawn(|| group.run(&key(BAD, &trap), unwanted).unwrap_err());
            until_waiting(&group, 1);
            let mine = lead.land(Err(Trouble(trap.clone()))).unwrap_err();
            (mine, follower.join().unwrap())
        });
        type Show = fn(&Error<Trouble>) -> String;
        let shows: [(At, Show); 2] = [
            (At::ErrorDisplay, |error| format!("{error}")),
            (At::ErrorDebug, |error| format!("{error:?}")),
        ];
        for (at, show) in shows {
            trap.set(at, spring);
            panic_of(|| show(&mine));
            assert_eq!(show(&mine), show(&theirs));
        }
        trap.set(At::ErrorDrop, spring);
        drop(mine);
        assert!(trap.is_set(), "the other has it still");
        panic_of(|| drop(theirs));
        assert_works(&group, &trap);
    });
}

/// What the user's code does to a group it is called from: everything, and in the same shard.
fn call_back(group: &Trapped, number: u64) {
    // Keys without a trap of their own.
    let (one, two) = (key(number, &Trap::default()), key(number + 1, &Trap::default()));
    let nested = group.run(&one, || {
        assert!(group.run(&one, unwanted).unwrap_err().is_would_deadlock());
        group.run(&two, || Ok(value(2, &two.trap))).map_err(|_| Trouble(Trap::default()))
    });
    assert_eq!(nested.must().number, 2);
    assert!(!group.forget(&one));
    assert!(group.try_run(&one, || Err(Trouble(Trap::default()))).unwrap_err().is_failed());
    drop(lead(group, &two));
    let _ = (group.len(), group.waiting());
}

#[test]
fn hash_may_call_the_group() {
    within(|| {
        let (group, trap) = (Arc::new(Trapped::new()), Trap::default());
        let again = Arc::clone(&group);
        trap.set(At::Hash, move || call_back(&again, 200));
        assert_eq!(group.run(&key(BAD, &trap), || Ok(value(1, &trap))).must().number, 1);
        assert_works(&group, &trap);
    });
}

#[test]
fn a_loader_may_call_the_group() {
    within(|| {
        let (group, trap) = (Trapped::new(), Trap::default());
        let loaded = group.run(&key(BAD, &trap), || {
            call_back(&group, 200);
            Ok(value(1, &trap))
        });
        assert_eq!(loaded.must().number, 1);
        assert_works(&group, &trap);
    });
}

#[test]
fn drop_of_a_key_may_call_the_group() {
    within(|| {
        let (group, trap) = (Arc::new(Trapped::new()), Trap::default());
        let set = || {
            let again = Arc::clone(&group);
            trap.set(At::KeyDrop, move || {
                call_back(&again, 200);
                // The flight of the key that is being dropped has landed, so it can be led anew.
                let bad = key(BAD, &Trap::default());
                assert_eq!(again.run(&bad, || Ok(value(9, &bad.trap))).must().number, 9);
            });
        };
        for followers in [0, 3] {
            thread::scope(|s| {
                let lead = lead(&*group, &key(BAD, &trap));
                for _ in 0..followers {
                    s.spawn(|| group.run(&key(BAD, &trap), unwanted).must());
                }
                until_waiting(&group, followers);
                set();
                lead.land(Ok(value(1, &trap))).must();
            });
            assert_works(&group, &trap);
        }

        let forgotten = lead(&*group, &key(BAD, &trap));
        set();
        assert!(group.forget(&key(BAD, &trap)));
        forgotten.land(Ok(value(1, &trap))).must();
        assert_works(&group, &trap);
    });
}

#[test]
fn clone_and_drop_of_a_value_may_call_the_group() {
    within(|| {
        for at in [At::ValueClone, At::ValueDrop] {
            let (group, trap) = (Arc::new(Trapped::new()), Trap::default());
            for _ in 0..20 {
                thread::scope(|s| {
                    let lead = lead(&*group, &key(BAD, &trap));
                    for _ in 0..3 {
                        s.spawn(|| group.run(&key(BAD, &trap), unwanted).must());
                    }
                    until_waiting(&group, 3);
                    let again = Arc::clone(&group);
                    trap.set(at, move || {
                        call_back(&again, 200);
                        let bad = key(BAD, &Trap::default());
                        assert_eq!(again.run(&bad, || Ok(value(9, &bad.trap))).must().number, 9);
                    });
                    lead.land(Ok(value(1, &trap))).must();
                });
                assert_works(&group, &trap);
            }
        }
    });
}

#[test]
fn drop_of_a_loader_that_never_ran_may_call_the_group() {
    struct OnDrop<F: FnMut()>(F);
    impl<F: FnMut()> Drop for OnDrop<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    within(|| {
        let (group, trap) = (Trapped::new(), Trap::default());
        thread::scope(|s| {
            let lead = lead(&group, &key(BAD, &trap));
            for n in 0..3 {
                let (group, trap) = (&group, &trap);
                s.spawn(move || {
                    // Of its own: what another has just boarded would be there to be forgotten.
                    let on_drop = OnDrop(|| call_back(group, 200 + 10 * n));
                    let loader = move || {
                        let _ = &on_drop;
                        unwanted()
                    };
                    group.run(&key(BAD, trap), loader).must()
                });
            }
            until_waiting(&group, 3);
            lead.land(Ok(value(1, &trap))).must();
        });
        assert_works(&group, &trap);
    });
}
