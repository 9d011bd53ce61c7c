//! Flights: concurrent callers of a key share one load.
//!
//! [`Group`] is the entrance. Behind it: the [`registry`] of boarded flights; the [`Flight`]
//! itself, here, with its outcome; the [`seats`] its followers wait in; the [`lead`] that lands
//! it; and the graph of [`waits`], in which a deadlock is a cycle. What a cache needs of all this,
//! and a group's users do not, is in [`seam`].

mod group;
mod lead;
mod registry;
#[cfg(feature = "cache")]
mod seam;
mod seats;
#[cfg(all(test, not(loom)))]
mod tests;
mod waits;

pub use group::{FailurePolicy, Group, GroupBuilder, Join};
pub use lead::Lead;
#[cfg(feature = "cache")]
pub(crate) use seam::{Detached, Ticket, drives_here};

use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::error::{Cap, Error};
use crate::moment::Moment;
use crate::sync::{Arc, AtomicUsize, Mutex, OnceCell, Ordering, age};

use self::seats::{Call, Place, Seats};
use self::waits::{ThreadNo, WouldClose};

/// What a flight lands with, as its followers get it.
#[derive(Debug)]
enum Outcome<V, E> {
    Value(V),
    Failed(Arc<E>),
    Panicked(Option<Arc<str>>),
    Abandoned,
    /// No outcome for the followers: each is to ask the registry again.
    Disbanded,
}

/// What a flight is from its boarding on, whether or not anybody follows it: what its leader knows
/// it by, and what the registry has of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Boarding {
    /// Of the key.
    hash: u64,
    /// Tells it apart from every other flight of its shard.
    number: u64,
    /// The thread that has boarded it.
    driver: ThreadNo,
    /// When, if its boarder had a clock or flights of this group can become overdue.
    at: Option<Moment>,
}

/// One load of one key, as it is shared: by its leader and those who follow.
///
/// Most loads nobody follows. So a flight is a [`Boarding`] at first, and is made out of it by the
/// first follower, under the registry's lock.
///
/// # How the herd leaves
///
/// Waking threads costs system calls. A leader that woke its whole herd would return late by as
/// many calls as it had followers; a condvar that requeues them lets them go one by one. So
/// followers sit in [rows](seats::Row), each of which is woken with one call. The leader calls the first
/// row, in which only one of them sits, and is gone; and each follower that leaves a landed flight
/// owes the next row the same before it does anything else. The herd leaves like a tree.
///
/// Nobody is forgotten. Only rows in which somebody sits are called, and whoever sits there will
/// leave, called or by itself because its deadline fired just then, and then owes a call. So as
/// long as there are rows to call somebody owes one; and the leader owes the first.
#[derive(Debug)]
struct Flight<V, E> {
    /// Written once, by the driver; never after [`Outcome`] was seen by anyone.
    outcome: OnceCell<Outcome<V, E>>,
    /// The gate. Whether the flight has landed is decided under it: a follower sits down only
    /// after it has looked for the outcome here, the driver takes it after it has published.
    seats: Mutex<Seats>,
    boarding: Boarding,
}

/// Who may wait, and for how long.
struct Wait<'a> {
    deadline: Deadline,
    /// When the caller began to wait, if it does not wait for ever.
    started: Option<Instant>,
    max_per_key: usize,
    max_in_all: usize,
    /// Followers in their seats, over all flights of the group.
    parked: &'a AtomicUsize,
    /// Whether a caller that drives a flight leads this one if nobody drives it. Not if a thread is
    /// free for it and about to.
    takes_over: bool,
}

/// How a follower's wait ended.
enum Followed<'f, V, E> {
    Landed(&'f Outcome<V, E>),
    /// The caller drives this flight now.
    Promoted,
    /// The caller was made the driver, and its deadline has passed before it knew. It must not begin
    /// a load, so it has to pass the flight on.
    PromotedLate(Error<E>),
}

impl<V, E> Flight<V, E> {
    /// A flight driven by the thread that has boarded it.
    fn new(boarding: Boarding) -> Self {
        let seats = Mutex::new(Seats::new(boarding.driver));
        Flight { outcome: OnceCell::new(), seats, boarding }
    }

    /// Whether its load takes longer than it should, on another thread than this one; to be asked of a
    /// flight that was boarded that long ago.
    fn is_overdue(&self, max_age: Duration) -> bool {
        let seats = self.seats.lock();
        !seats.driven_here() && seats.handed_over().is_none_or(|since| age(since) >= max_age)
    }

    /// Lands the flight and calls the first of its followers. The flight must not be boarded any
    /// more: a caller that finds it in the registry would join what is over (seeded bug:
    /// `retire_after_landing`).
    fn land(&self, outcome: Outcome<V, E>) {
        // Before anyone is called (seeded bug: `call_before_the_outcome`).
        let published = self.outcome.set(outcome);
        debug_assert!(published.is_ok(), "a flight lands once");
        // Taking the gate only now is what loses no follower: one that did not see the outcome
        // is in its seat by the time the gate is ours (seeded bug: `land_without_gate`).
        self.pass_on(|seats| seats.landed());
    }

    /// What the flight landed with, once it has.
    fn outcome(&self) -> Option<&Outcome<V, E>> {
        self.outcome.get()
    }

    /// Pays the debt of everyone who leaves a landed flight: calls the next to go.
    fn pass_on(&self, first: impl FnOnce(&mut Seats)) {
        let next = {
            let mut seats = self.seats.lock();
            first(&mut seats);
            seats.next_to_call()
        };
        if let Some(row) = next {
            row.call();
        }
    }

    /// Makes the follower with the most time left the driver, if there is any.
    fn hand_over(&self) -> bool {
        self.seats.lock().promote()
    }

    /// Waits for the outcome.
    ///
    /// # Errors
    ///
    /// [`Error::WouldDeadlock`], [`Error::Overloaded`] at once; [`Error::TimedOut`] when the
    /// deadline fires first. An outcome that is there is returned even then.
    fn follow(&self, wait: &Wait<'_>) -> Result<Followed<'_, V, E>, Error<E>> {
        let mut seats = self.seats.lock();
        // Under the gate, or the landing may fall between the look and the seat (seeded bug:
        // `look_before_the_gate`).
        if let Some(outcome) = self.outcome.get() {
            return Ok(Followed::Landed(outcome));
        }
        if seats.driven_here() {
            return Err(Error::WouldDeadlock);
        }
        // The thread that is to drive it may wait, at first or second hand, for what this one
        // drives: that is a wait without an edge (seeded bug: `nobody_takes_over`). Or it comes to it
        // when there is nothing else to do, and this caller is to be served now (seeded bug:
        // `wait_behind_a_refresh`).
        let in_need = waits::is_driving() || seats.is_behind();
        if wait.takes_over && in_need && seats.take_over() {
            return Ok(Followed::Promoted);
        }
        // Before the caps: who does not wait takes no seat.
        if wait.started.is_some() && wait.deadline.instant() <= wait.started {
            return Err(Error::TimedOut { waited: Duration::ZERO });
        }
        // Under the same hold of the gate that the seat is taken under (seeded bug:
        // `cap_looked_at_before_the_gate`).
        if seats.taken() >= wait.max_per_key {
            return Err(Error::Overloaded { cap: Cap::PerKey, limit: wait.max_per_key });
        }
        let parked = Parked::count(wait)?;
        let place = seats.sit(wait.deadline).map_err(|WouldClose| Error::WouldDeadlock)?;
        drop(seats);

        let call = place.wait();
        drop(parked);
        self.leave(&place, call, wait.started)
    }

    /// The wait is over.
    fn leave(
        &self,
        place: &Place,
        call: Call,
        started: Option<Instant>,
    ) -> Result<Followed<'_, V, E>, Error<E>> {
        match call {
            // Called before the deadline, and awake after it: a load that begins now would be one
            // for nobody, or one too many where others have more time.
            Call::Lead if place.deadline().has_passed() => {
                Ok(Followed::PromotedLate(timed_out(started)))
            }
            Call::Lead => Ok(Followed::Promoted),
            Call::Landed => Ok(Followed::Landed(self.leave_landed())),
            Call::None => self.leave_late(place, started),
        }
    }

    /// The deadline has fired. What the flight did meanwhile is decided under the gate.
    #[cold]
    fn leave_late(
        &self,
        place: &Place,
        started: Option<Instant>,
    ) -> Result<Followed<'_, V, E>, Error<E>> {
        let seated = self.seats.lock().leave(place);
        let timed_out = timed_out(started);
        match self.outcome.get() {
            // Landed beats late (seeded bug: `late_ignores_the_landing`). In its seat or out of
            // it, this follower owes its calls (seeded bugs: `late_pays_no_debt`,
            // `late_and_disbanded_pays_no_debt`).
            Some(Outcome::Disbanded) => {
                self.leave_landed();
                Err(timed_out)
            }
            Some(_) => Ok(Followed::Landed(self.leave_landed())),
            None if seated => Err(timed_out),
            None => Ok(Followed::PromotedLate(timed_out)),
        }
    }

    /// Leaves the landed flight with its outcome. The debt is paid before the outcome is touched:
    /// cloning it is the user's code, which may be slow or panic (seeded bug:
    /// `pay_after_cloning`).
    fn leave_landed(&self) -> &Outcome<V, E> {
        self.pass_on(|_| ());
        self.outcome.get().expect("a follower is called once the flight has landed")
    }
}

fn timed_out<E>(started: Option<Instant>) -> Error<E> {
    Error::TimedOut { waited: started.map(|at| at.elapsed()).unwrap_or_default() }
}

/// One follower counted against the group's cap, until dropped.
struct Parked<'a>(&'a AtomicUsize);

impl<'a> Parked<'a> {
    fn count<E>(wait: &Wait<'a>) -> Result<Parked<'a>, Error<E>> {
        let below = |parked| (parked < wait.max_in_all).then_some(parked + 1);
        match wait.parked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below) {
            Ok(_) => Ok(Parked(wait.parked)),
            Err(_) => Err(Error::Overloaded { cap: Cap::InAll, limit: wait.max_in_all }),
        }
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
