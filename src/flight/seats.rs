//! Where followers wait: a [`Seat`] each, and the [`Seats`] of a flight.

use std::time::Instant;

use crate::deadline::Deadline;
use crate::sync::{Arc, Condvar, Mutex};

use super::waits::{self, ThreadNo, WouldClose};

/// What a follower's wait ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// Nobody has called: the wait goes on, or its deadline has fired.
    None,
    /// The flight has landed.
    Landed,
    /// The leader left without an outcome, and this follower leads now.
    Lead,
}

/// One follower's place to wait, with a condvar of its own.
///
/// A shared condvar would wake its herd into one mutex, to leave one by one. A seat's mutex is
/// never contended by more than the sitter and the one who calls it.
#[derive(Debug)]
pub(super) struct Seat {
    sitter: ThreadNo,
    /// Whether the sitter drives a flight itself, so that it has an edge in the graph of waits.
    driving: bool,
    deadline: Deadline,
    call: Mutex<Call>,
    called: Condvar,
}

impl Seat {
    pub(super) fn new(deadline: Deadline) -> Seat {
        Seat {
            sitter: waits::this_thread(),
            driving: waits::is_driving(),
            deadline,
            call: Mutex::new(Call::None),
            called: Condvar::new(),
        }
    }

    /// Waits until called, or until the deadline fires: then the call is [`Call::None`].
    pub(super) fn wait(&self) -> Call {
        let mut call = self.call.lock();
        while *call == Call::None {
            match self.deadline.instant() {
                None => self.called.wait(&mut call),
                Some(at) => {
                    if self.called.wait_until(&mut call, at).timed_out() {
                        break;
                    }
                }
            }
        }
        *call
    }

    pub(super) fn call(&self, what: Call) {
        *self.call.lock() = what;
        self.called.notify_one();
    }
}

/// The seats of one flight, guarded by its gate.
#[derive(Debug)]
pub(super) struct Seats {
    /// Who will land the flight.
    driver: ThreadNo,
    /// When it became so, if it was not the first.
    handed_over: Option<Instant>,
    /// A sitter keeps its row until it leaves; rows of those who left are used again.
    rows: Vec<Option<Arc<Seat>>>,
    vacant: Vec<usize>,
    /// How many sitters have an edge in the graph of waits.
    edges: usize,
}

impl Seats {
    pub(super) fn new() -> Seats {
        Seats {
            driver: waits::this_thread(),
            handed_over: None,
            rows: Vec::new(),
            vacant: Vec::new(),
            edges: 0,
        }
    }

    /// Whether the calling thread is the one that will land this flight.
    pub(super) fn driven_here(&self) -> bool {
        self.driver == waits::this_thread()
    }

    /// When the load that was begun last was begun, if it was not the first.
    pub(super) fn handed_over(&self) -> Option<Instant> {
        self.handed_over
    }

    pub(super) fn taken(&self) -> usize {
        self.rows.len() - self.vacant.len()
    }

    /// Takes a seat, unless waiting in it could never end. Returns its row.
    pub(super) fn sit(&mut self, seat: &Arc<Seat>) -> Result<usize, WouldClose> {
        if seat.driving {
            waits::draw(seat.sitter, self.driver)?;
            self.edges += 1;
        }
        let row = self.vacant.pop().unwrap_or_else(|| {
            self.rows.push(None);
            self.rows.len() - 1
        });
        self.rows[row] = Some(Arc::clone(seat));
        Ok(row)
    }

    /// Leaves the seat in `row`; does nothing if its sitter was called out of it already.
    pub(super) fn leave(&mut self, row: usize, seat: &Arc<Seat>) -> bool {
        let there = self.rows.get_mut(row);
        match there.filter(|there| there.as_ref().is_some_and(|there| Arc::ptr_eq(there, seat))) {
            Some(there) => {
                *there = None;
                self.vacant.push(row);
                self.unseated(seat);
                true
            }
            None => false,
        }
    }

    /// Takes the sitter with the most time left out of its seat and makes it the driver. From here
    /// on the others wait for it, those with an edge already and those to come (seeded bugs:
    /// `promotion_redraws_nothing`, `promoted_is_not_the_driver`).
    pub(super) fn promote(&mut self) -> Option<Arc<Seat>> {
        let patience = |row: &usize| {
            let seat = self.rows[*row].as_ref()?;
            // Never is longer than any instant.
            Some((seat.deadline == Deadline::NEVER, seat.deadline.instant()))
        };
        let row = (0..self.rows.len()).rev().max_by_key(patience)?;
        let seat = self.rows[row].take()?;
        self.vacant.push(row);
        self.unseated(&seat);
        self.driver = seat.sitter;
        self.handed_over = Some(Instant::now());
        if self.edges > 0 {
            waits::redraw(sitters_with_edges(&self.rows), self.driver);
        }
        Some(seat)
    }

    /// The flight has landed: nobody waits for its driver any more, called or not yet.
    ///
    /// Before the driver can wait for anything else, or it would be taken for part of a cycle
    /// that is no more (seeded bug: `edges_outlive_the_flight`).
    pub(super) fn landed(&mut self) {
        if self.edges > 0 {
            waits::erase(sitters_with_edges(&self.rows));
            self.edges = 0;
        }
    }

    /// After the landing: takes one who is to be called.
    pub(super) fn next_to_call(&mut self) -> Option<Arc<Seat>> {
        while let Some(row) = self.rows.pop() {
            if row.is_some() {
                return row;
            }
        }
        None
    }

    /// A sitter that left before the landing waits for nobody (seeded bug:
    /// `edge_outlives_its_wait`).
    fn unseated(&mut self, seat: &Seat) {
        if seat.driving && self.edges > 0 {
            self.edges -= 1;
            waits::erase(std::iter::once(seat.sitter));
        }
    }
}

fn sitters_with_edges(rows: &[Option<Arc<Seat>>]) -> impl Iterator<Item = ThreadNo> {
    rows.iter().flatten().filter(|seat| seat.driving).map(|seat| seat.sitter)
}
