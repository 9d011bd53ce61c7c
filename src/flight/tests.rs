//! Moments of a flight that are too short to be hit from outside: it is taken through them by hand.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use super::*;

type Numbers = Flight<u64, String>;

/// A flight led by another thread than this one, so that this one may follow it.
fn flight() -> Numbers {
    let driver = thread::spawn(waits::this_thread).join().unwrap();
    Flight::new(Boarding { hash: 0, number: 1, driver, at: None })
}

/// Takes a seat for this thread, with a deadline that has passed. The first to come has a row of
/// its own, those who come after it share the next.
fn sit(flight: &Numbers) -> Place {
    flight.seats.lock().sit(Deadline::at(Instant::now())).ok().unwrap()
}

/// Whether its sitter would find that it was called. It does not wait: it is late.
fn is_called(place: &Place) -> bool {
    place.wait() != Call::None
}

/// Its deadline has fired, it was called before it could say so, and nobody else will call those
/// it was to call.
#[test]
fn one_who_is_late_for_a_landing_gets_the_outcome_and_calls_the_next() {
    let flight = flight();
    let late = sit(&flight);
    let others = [(); 2].map(|()| sit(&flight));

    flight.land(Outcome::Value(1));
    assert!(is_called(&late), "the leader calls one");
    assert!(!others.iter().any(is_called));

    let end = flight.leave_late(&late, None).ok().unwrap();
    assert!(matches!(end, Followed::Landed(Outcome::Value(1))), "landed beats late");
    assert!(others.iter().all(is_called));
}

/// Its deadline has fired, the flight has landed, and nobody has called it yet.
#[test]
fn one_who_leaves_its_seat_in_a_landed_flight_calls_the_next() {
    let flight = flight();
    let late = sit(&flight);
    let others = [(); 2].map(|()| sit(&flight));

    // Published, but the driver has yet to come through the gate.
    flight.outcome.set(Outcome::Value(1)).unwrap();
    let end = flight.leave_late(&late, None).ok().unwrap();
    assert!(matches!(end, Followed::Landed(Outcome::Value(1))));
    assert!(others.iter().all(is_called));
}

/// There is nothing to return, but the others are to be called all the same.
#[test]
fn one_who_is_late_and_has_to_ask_anew_is_late_and_calls_the_next() {
    let flight = flight();
    let late = sit(&flight);
    let others = [(); 2].map(|()| sit(&flight));

    flight.land(Outcome::Disbanded);
    let end = flight.leave_late(&late, None);
    assert!(matches!(end, Err(Error::TimedOut { .. })));
    assert!(others.iter().all(is_called));
}

#[test]
fn one_who_is_promoted_as_its_deadline_fires_has_to_pass_the_flight_on() {
    let flight = flight();
    let late = sit(&flight);
    assert!(flight.hand_over());
    let end = flight.leave_late(&late, None).ok().unwrap();
    assert!(matches!(end, Followed::PromotedLate(Error::TimedOut { .. })));
    assert!(flight.seats.lock().driven_here(), "until it has");
}

#[test]
fn one_who_was_promoted_and_wakes_up_late_has_to_pass_the_flight_on() {
    let flight = flight();
    let late = sit(&flight);
    assert!(flight.hand_over());
    let call = late.wait();
    assert_eq!(call, Call::Lead);
    let end = flight.leave(&late, call, None).ok().unwrap();
    assert!(matches!(end, Followed::PromotedLate(Error::TimedOut { .. })));
}

/// One who waits at the gate while the flight lands behind it finds the outcome there.
#[test]
fn nobody_sits_down_in_a_landed_flight() {
    let flight = flight();
    thread::scope(|s| {
        let gate = flight.seats.lock();
        let follower = s.spawn(|| {
            let (parked, started) = (AtomicUsize::new(0), Some(Instant::now()));
            let deadline = Deadline::after(Duration::from_secs(5));
            let wait = Wait {
                takes_over: true,
                deadline,
                started,
                max_per_key: 1,
                max_in_all: 1,
                parked: &parked,
            };
            matches!(flight.follow(&wait), Ok(Followed::Landed(Outcome::Value(1))))
        });
        // Time to come to the gate. If it takes longer this proves less, and fails nobody.
        thread::sleep(Duration::from_millis(20));
        flight.outcome.set(Outcome::Value(1)).unwrap();
        drop(gate);
        flight.pass_on(|seats| seats.landed());
        assert!(follower.join().unwrap());
    });
}

/// What a follower of a forgotten flight shares is in the registry until the leader comes for it.
#[test]
fn nothing_is_left_of_a_forgotten_flight_that_was_followed() {
    for lands in [true, false] {
        let group: Group<u64, u64, String> = Group::new();
        let Ok(Join::Lead(lead)) = group.join(&1, Deadline::NEVER) else { unreachable!() };
        thread::scope(|s| {
            let follower = s.spawn(|| group.run(&1, || Ok(2)));
            while group.waiting() == 0 {
                thread::yield_now();
            }
            assert!(group.forget(&1));
            assert_eq!((group.len(), group.registry.unboarded()), (0, 1));
            if lands {
                lead.land(Ok(1)).unwrap();
            } else {
                // It asks anew, and leads.
                drop(lead);
            }
            assert_eq!(follower.join().unwrap().unwrap(), if lands { 1 } else { 2 });
        });
        assert_eq!((group.len(), group.registry.unboarded()), (0, 0));
    }
}

/// A key whose `Drop` looks whether the group can be asked anything.
#[derive(PartialEq, Eq, Hash)]
struct Asks(u64);

static ASKED: LazyLock<Group<Asks, u64, String>> = LazyLock::new(Group::new);

thread_local! {
    static ANSWERED: Cell<Option<bool>> = const { Cell::new(None) };
}

impl Clone for Asks {
    fn clone(&self) -> Asks {
        Asks(self.0)
    }
}

impl Drop for Asks {
    fn drop(&mut self) {
        let (send, answer) = std::sync::mpsc::channel();
        thread::spawn(move || send.send(ASKED.len()));
        ANSWERED.set(Some(answer.recv_timeout(Duration::from_secs(2)).is_ok()));
    }
}

/// The user's code that runs in one step with the registry's may panic, and the key is the user's, too.
#[test]
fn a_key_is_dropped_under_no_lock_if_the_step_panics() {
    let key = ManuallyDrop::new(Asks(1));
    let hash = ASKED.registry.hash(&key);
    let panics = || resume_unwind(Box::new("in the same step"));
    for forget in [false, true] {
        let Ok(Join::Lead(mut lead)) = ASKED.join(&key, Deadline::NEVER) else { unreachable!() };
        ANSWERED.set(None);
        let step = || match forget {
            false => {
                let _ = lead.land_storing(Ok(1), |_| panics());
            }
            true => {
                ASKED.registry.forget(hash, &key, panics);
            }
        };
        assert!(catch_unwind(AssertUnwindSafe(step)).is_err());
        assert_eq!(ANSWERED.get(), Some(true), "forget: {forget}");
    }
}

/// What a load takes is counted from its boarding only if its leader has not waited since.
#[cfg(feature = "cache")]
#[test]
fn one_who_waited_for_its_lead_does_not_count_from_the_boarding() {
    let group: Group<u64, u64, String> = Group::new();
    let now = Moment::now();
    let join = || group.join_by(7, &1, Deadline::NEVER, Some(now));
    let Ok(Join::Lead(lead)) = join() else { unreachable!() };
    assert_eq!(lead.boarded(), Some(now));
    thread::scope(|s| {
        s.spawn(|| {
            let Ok(Join::Lead(next)) = join() else { unreachable!() };
            assert_eq!(next.boarded(), None);
        });
        while group.waiting() == 0 {
            thread::yield_now();
        }
        drop(lead);
    });
}

/// Every reader of a stale value tries, and takes nothing from the allocator for it.
#[cfg(feature = "cache")]
#[test]
fn one_who_only_tries_to_lead_makes_nothing_to_be_shared() {
    let group: Group<u64, u64, String> = Group::new();
    let lead = group.try_lead(7, &1);
    let tried = allocation_counter::measure(|| assert!(group.try_lead(7, &1).is_none()));
    assert_eq!(tried.count_total, 0, "{tried:?}");
    drop(lead);
    assert!(group.is_empty());
}
