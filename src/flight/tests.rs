//! Moments of a flight that are too short to be hit from outside: it is taken through them by hand.

use std::thread;
use std::time::{Duration, Instant};

use super::*;

type Numbers = Flight<u64, String>;

/// A flight led by another thread than this one, so that this one may follow it.
fn flight() -> Numbers {
    thread::spawn(|| Flight::new(None)).join().unwrap()
}

/// Takes a seat for this thread, with a deadline that has passed.
fn sit(flight: &Numbers) -> (usize, Arc<Seat>) {
    let seat = Arc::new(Seat::new(Deadline::at(Instant::now())));
    let row = flight.seats.lock().sit(&seat).ok().unwrap();
    (row, seat)
}

/// Whether its sitter would find that it was called. It does not wait: it is late.
fn is_called(seat: &Seat) -> bool {
    seat.wait() != Call::None
}

/// Its deadline has fired, it was called before it could say so, and nobody else will call those
/// it was to call.
#[test]
fn one_who_is_late_for_a_landing_gets_the_outcome_and_calls_the_next() {
    let flight = flight();
    let others = [(); FAN_OUT].map(|()| sit(&flight).1);
    let late = [(); FAN_OUT].map(|()| sit(&flight));

    flight.land(Outcome::Value(1));
    assert!(late.iter().all(|(_, seat)| is_called(seat)), "last to come, first to go");
    assert!(others.iter().all(|seat| !is_called(seat)));

    let (row, seat) = &late[0];
    let end = flight.leave_late(*row, seat, None).ok().unwrap();
    assert!(matches!(end, Followed::Landed(Outcome::Value(1))), "landed beats late");
    assert!(others.iter().all(|seat| is_called(seat)));
}

/// Its deadline has fired, the flight has landed, and nobody has called it yet.
#[test]
fn one_who_leaves_its_seat_in_a_landed_flight_calls_the_next() {
    let flight = flight();
    let (row, late) = sit(&flight);
    let others = [(); FAN_OUT].map(|()| sit(&flight).1);

    // Published, but the driver has yet to come through the gate.
    flight.outcome.set(Outcome::Value(1)).unwrap();
    let end = flight.leave_late(row, &late, None).ok().unwrap();
    assert!(matches!(end, Followed::Landed(Outcome::Value(1))));
    assert!(others.iter().all(|seat| is_called(seat)));
}

/// There is nothing to return, but the others are to be called all the same.
#[test]
fn one_who_is_late_and_has_to_ask_anew_is_late_and_calls_the_next() {
    let flight = flight();
    let others = [(); FAN_OUT].map(|()| sit(&flight).1);
    let late = [(); FAN_OUT].map(|()| sit(&flight));

    flight.land(Outcome::Disbanded);
    let (row, seat) = &late[0];
    let end = flight.leave_late(*row, seat, None);
    assert!(matches!(end, Err(Error::TimedOut { .. })));
    assert!(others.iter().all(|seat| is_called(seat)));
}

#[test]
fn one_who_is_promoted_as_its_deadline_fires_has_to_pass_the_flight_on() {
    let flight = flight();
    let (row, late) = sit(&flight);
    assert!(flight.hand_over());
    let end = flight.leave_late(row, &late, None).ok().unwrap();
    assert!(matches!(end, Followed::PromotedLate(Error::TimedOut { .. })));
    assert!(flight.seats.lock().driven_here(), "until it has");
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
            let wait = Wait { deadline, started, max_per_key: 1, max_in_all: 1, parked: &parked };
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
