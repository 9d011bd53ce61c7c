//! Which flight is boarded: keys beside each other, flights forgotten, flights replaced.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;
use loom_tests::model::{explore, fires, grow_old};

use super::herd::{Call, Desk, End, KEY, Source, call_for, settled, together};
use super::onefill::{Deadline, Group, Join};

pub fn two_keys_do_not_meet() {
    const NAME: &str = "two_keys_do_not_meet";
    for other in [in_the_same_shard(), in_another_shard()] {
        explore(NAME, 2, None, 1, move || one_key_lands_while_another_is_up(other));
        explore(NAME, 3, Some(3), 48, move || two_herds(3, other));
        explore(NAME, 4, Some(2), 140, move || two_herds(4, other));
    }
}

/// As the registry of a model chooses among its two shards.
fn shard(key: u64) -> u64 {
    use std::hash::BuildHasher;
    foldhash::fast::FixedState::default().hash_one(key) >> 40 & 1
}

fn in_the_same_shard() -> u64 {
    (KEY + 1..).find(|key| shard(*key) == shard(KEY)).unwrap()
}

fn in_another_shard() -> u64 {
    (KEY + 1..).find(|key| shard(*key) != shard(KEY)).unwrap()
}

fn one_key_lands_while_another_is_up(other: u64) {
    let desk = Arc::new(Desk::new());
    let Ok(Join::Lead(lead)) = desk.join(&KEY, Deadline::NEVER) else { unreachable!() };
    let there = {
        let desk = Arc::clone(&desk);
        thread::spawn(move || desk.run(&other, || Ok(2)).unwrap())
    };
    assert_eq!(there.join().unwrap(), 2);
    assert_eq!(desk.len(), 1, "a flight in the air is not boarded");
    assert_eq!(lead.land(Ok(1)).unwrap(), 1);
    settled(&desk);
}

/// Callers of two keys by turns; the last one's deadline fires.
fn two_herds(callers: usize, other: u64) {
    let desk = Arc::new(Desk::new());
    let calls = {
        let desk = Arc::clone(&desk);
        let sources = [Source::new(), Source::new()];
        together(callers, move |me| {
            let (key, of_key) = ([KEY, other][me % 2], 100 * (me % 2));
            let deadline = if me + 1 == callers { fires() } else { Deadline::NEVER };
            call_for(&desk, key, deadline, End::Value, || of_key + sources[me % 2].load())
        })
    };
    for (me, call) in calls.iter().enumerate() {
        match call.got {
            Ok(ticket) => assert_eq!(ticket / 100, me % 2, "a value of another key"),
            Err(_) => assert!(call.timed_out() && me + 1 == callers, "{call:?}"),
        }
    }
    settled(&desk);
}

pub fn a_forgotten_flight_spares_its_successor() {
    const NAME: &str = "a_forgotten_flight_spares_its_successor";
    explore(NAME, 2, None, 5, || forget_among(0));
    explore(NAME, 3, Some(3), 190, || forget_among(1));
    explore(NAME, 4, Some(2), 390, || forget_among(2));
}

/// One flight is forgotten and followed by another while it lands, and `others` call as well.
pub fn forget_among(others: usize) {
    let desk = Arc::new(Desk::new());
    let Ok(Join::Lead(old)) = desk.join(&KEY, Deadline::NEVER) else { unreachable!() };
    let crew: Vec<_> = (0..1 + others)
        .map(|me| {
            let desk = Arc::clone(&desk);
            thread::spawn(move || {
                if me == 0 {
                    desk.forget(&KEY);
                }
                call_for(&desk, KEY, Deadline::NEVER, End::Value, || {
                    // Nobody forgets this one's flight.
                    assert!(me > 0 || desk.len() == 1, "a flight in the air is not boarded");
                    2 + me
                })
            })
        })
        .collect();
    assert_eq!(old.land(Ok(1)).unwrap(), 1);
    let calls: Vec<Call> = crew.into_iter().map(|caller| caller.join().unwrap()).collect();
    assert_ne!(calls[0].got.as_ref().unwrap(), &1, "joined the flight that was forgotten");
    assert!(calls.iter().all(|call| call.got.is_ok()), "{calls:?}");
    settled(&desk);
}

/// Every flight is overdue as soon as it is up.
fn impatient() -> Desk {
    Group::builder().max_flight_age(Duration::ZERO).build()
}

pub fn an_overdue_flight_is_replaced() {
    const NAME: &str = "an_overdue_flight_is_replaced";
    explore(NAME, 2, None, 3, || replace_among(1));
    explore(NAME, 3, Some(3), 79, || replace_among(2));
    explore(NAME, 4, Some(2), 220, || replace_among(3));
}

/// `others` call for a key whose flight is overdue and lands.
pub fn replace_among(others: usize) {
    let desk = Arc::new(impatient());
    let Ok(Join::Lead(old)) = desk.join(&KEY, Deadline::NEVER) else { unreachable!() };
    let crew: Vec<_> = (0..others)
        .map(|me| {
            let desk = Arc::clone(&desk);
            thread::spawn(move || {
                call_for(&desk, KEY, Deadline::NEVER, End::Value, || {
                    // Only another one that came later could have taken it out.
                    assert!(others > 1 || desk.len() == 1, "a flight in the air is not boarded");
                    2 + me
                })
            })
        })
        .collect();
    assert_eq!(old.land(Ok(1)).unwrap(), 1);
    for (me, caller) in crew.into_iter().enumerate() {
        assert_eq!(caller.join().unwrap().led, Some(2 + me), "followed a flight that was overdue");
    }
    settled(&desk);
}

pub fn the_followers_of_an_overdue_flight_stay_with_it() {
    const NAME: &str = "the_followers_of_an_overdue_flight_stay_with_it";
    explore(NAME, 3, Some(3), 120, || grow_old_among(1));
    explore(NAME, 4, Some(2), 300, || grow_old_among(2));
}

/// While `others` call for a key, its flight becomes overdue, and is called for again.
pub fn grow_old_among(others: usize) {
    let desk: Arc<Desk> =
        Arc::new(Group::builder().max_flight_age(Duration::from_secs(3600)).build());
    let Ok(Join::Lead(old)) = desk.join(&KEY, Deadline::NEVER) else { unreachable!() };
    let crew: Vec<_> = (0..1 + others)
        .map(|me| {
            let desk = Arc::clone(&desk);
            thread::spawn(move || {
                if me == 0 {
                    grow_old();
                }
                call_for(&desk, KEY, Deadline::NEVER, End::Value, || 2 + me)
            })
        })
        .collect();
    assert_eq!(old.land(Ok(1)).unwrap(), 1);
    let calls: Vec<Call> = crew.into_iter().map(|caller| caller.join().unwrap()).collect();
    assert_eq!(calls[0].led, Some(2), "followed a flight that was overdue");
    for call in &calls[1..] {
        let Ok(ticket) = call.got else { panic!("an end that should not be: {call:?}") };
        let somebodys = calls.iter().any(|other| other.led == Some(ticket));
        assert!(ticket == 1 && call.led.is_none() || somebodys, "{call:?}");
    }
    settled(&desk);
}

pub fn ones_own_flight_is_never_overdue() {
    const NAME: &str = "ones_own_flight_is_never_overdue";
    explore(NAME, 1, None, 1, || {
        let desk = impatient();
        let outer = desk.run(&KEY, || {
            let inner = desk.run(&KEY, || Ok(2));
            Ok(usize::from(inner.unwrap_err().is_would_deadlock()))
        });
        assert_eq!(outer.unwrap(), 1);
        settled(&desk);
    });
}

pub fn a_thread_leads_a_key_twice_at_most() {
    const NAME: &str = "a_thread_leads_a_key_twice_at_most";
    explore(NAME, 1, None, 1, || {
        let desk = Desk::new();
        let outer = desk.run(&KEY, || {
            assert!(desk.forget(&KEY));
            let inner = desk.run(&KEY, || {
                assert!(desk.forget(&KEY));
                let innermost = desk.run(&KEY, || Ok(3));
                Ok(usize::from(innermost.unwrap_err().is_would_deadlock()))
            });
            Ok(inner.unwrap())
        });
        assert_eq!(outer.unwrap(), 1);
        settled(&desk);
    });
}
