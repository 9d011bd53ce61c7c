//! Where followers wait: the [`Seats`] of a flight, in [`Row`]s.

use std::ops::RangeInclusive;

use crate::deadline::Deadline;
use crate::moment::Moment;
use crate::sync::{Arc, Bell, ROW};

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

/// Seats whose sitters are woken together: waking many with one system call costs a fraction of
/// waking each with its own.
///
/// The first seat is a row of its own, for the leader to call; it wakes one and returns. After it
/// come rows of [`ROW`] seats, not one row for all, so that they can be called from several
/// processors and few meet at one lock.
#[derive(Debug)]
pub(super) struct Row {
    called: Bell<Called>,
}

/// What has been called to a row.
#[derive(Debug)]
struct Called {
    landed: bool,
    /// Who was told to lead, last. Nobody else is until that one has left or landed the flight.
    lead: Option<Ticket>,
}

/// Tells apart all who ever took a seat in one flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticket(u64);

impl Row {
    fn new() -> Row {
        Row { called: Bell::new(Called { landed: false, lead: None }) }
    }

    /// The flight has landed: calls all who sit here.
    pub(super) fn call(&self) {
        self.called.ring(|called| called.landed = true);
    }

    fn call_to_lead(&self, ticket: Ticket) {
        self.called.ring(|called| called.lead = Some(ticket));
    }
}

/// A seat, as its sitter knows it.
#[derive(Debug)]
pub(super) struct Place {
    row: Arc<Row>,
    seat: usize,
    ticket: Ticket,
    deadline: Deadline,
}

impl Place {
    /// Until when its sitter waits.
    pub(super) fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Waits until called, or until the deadline fires: then the call is [`Call::None`].
    pub(super) fn wait(&self) -> Call {
        let call = |called: &Called| match called {
            Called { landed: true, .. } => Some(Call::Landed),
            Called { lead: Some(ticket), .. } if *ticket == self.ticket => Some(Call::Lead),
            _ => None,
        };
        self.row.called.wait_until(self.deadline.instant(), call).unwrap_or(Call::None)
    }
}

/// A seat, as the flight knows it.
#[derive(Debug)]
struct Seat {
    ticket: Ticket,
    sitter: ThreadNo,
    /// Whether the sitter drives a flight itself, so that it has an edge in the graph of waits.
    driving: bool,
    deadline: Deadline,
}

/// The seats of one flight, guarded by its gate.
#[derive(Debug)]
pub(super) struct Seats {
    /// Who will land the flight.
    driver: ThreadNo,
    /// When it became so, if it was not the first.
    handed_over: Option<Moment>,
    /// Whether it is on its way to a thread that nobody is to wait for.
    behind: bool,
    /// A sitter keeps its seat until it leaves; seats of those who left are used again.
    seats: Vec<Option<Seat>>,
    vacant: Vec<usize>,
    /// As many as the seats need.
    rows: Vec<Arc<Row>>,
    /// After the landing: how many rows have been called.
    called: usize,
    /// How many tickets were given out.
    tickets: u64,
    /// How many sitters have an edge in the graph of waits.
    edges: usize,
}

impl Seats {
    pub(super) fn new(driver: ThreadNo) -> Seats {
        Seats {
            driver,
            handed_over: None,
            behind: false,
            seats: Vec::new(),
            vacant: Vec::new(),
            rows: Vec::new(),
            called: 0,
            tickets: 0,
            edges: 0,
        }
    }

    /// Whether the calling thread is the one that will land this flight.
    pub(super) fn driven_here(&self) -> bool {
        self.driver.is_here()
    }

    /// When the load that was begun last was begun, if it was not the first.
    pub(super) fn handed_over(&self) -> Option<Moment> {
        self.handed_over
    }

    pub(super) fn taken(&self) -> usize {
        self.seats.len() - self.vacant.len()
    }

    /// Takes a seat, unless waiting in it could never end.
    pub(super) fn sit(&mut self, deadline: Deadline) -> Result<Place, WouldClose> {
        let sitter = waits::this_thread();
        let driving = waits::is_driving();
        if driving {
            waits::draw(sitter, self.driver)?;
            self.edges += 1;
        }
        let seat = self.vacant.pop().unwrap_or_else(|| {
            self.seats.push(None);
            self.seats.len() - 1
        });
        let row = row_of(seat);
        if row == self.rows.len() {
            self.rows.push(Arc::new(Row::new()));
        }
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        self.seats[seat] = Some(Seat { ticket, sitter, driving, deadline });
        Ok(Place { row: Arc::clone(&self.rows[row]), seat, ticket, deadline })
    }

    /// Leaves a seat. Returns whether its sitter was still in it, and not called to lead.
    pub(super) fn leave(&mut self, place: &Place) -> bool {
        let there = &mut self.seats[place.seat];
        match there.take_if(|there| there.ticket == place.ticket) {
            Some(seat) => {
                self.vacant.push(place.seat);
                self.unseated(&seat);
                true
            }
            None => false,
        }
    }

    /// Takes the sitter with the most time left out of its seat and makes it the driver, if there
    /// is any. From here on the others wait for it, those with an edge already and those to come
    /// (seeded bugs: `promotion_redraws_nothing`, `promoted_is_not_the_driver`).
    ///
    /// It is called at once, under the gate: of two calls to lead in one row, the one that comes
    /// second must be the one that was meant to.
    pub(super) fn promote(&mut self) -> bool {
        self.promote_one_of(|_| true)
    }

    /// The same, of those who drive a flight themselves.
    #[cfg(feature = "cache")]
    pub(super) fn promote_a_driver(&mut self) -> bool {
        self.edges > 0 && self.promote_one_of(|seat| seat.driving)
    }

    fn promote_one_of(&mut self, may: impl Fn(&Seat) -> bool) -> bool {
        let may = |seat: &usize| self.seats[*seat].as_ref().is_some_and(&may);
        let patience = |seat: &usize| {
            let seat = self.seats[*seat].as_ref()?;
            // Never is longer than any instant.
            Some((seat.deadline == Deadline::NEVER, seat.deadline.instant()))
        };
        let most = (0..self.seats.len()).rev().filter(may).max_by_key(patience);
        let Some(most) = most else { return false };
        let Some(seat) = self.seats[most].take() else { return false };
        self.vacant.push(most);
        self.unseated(&seat);
        self.driven_by(seat.sitter);
        self.rows[row_of(most)].call_to_lead(seat.ticket);
        true
    }

    /// Another thread will land the flight. It must not be waiting for anything just now.
    pub(super) fn driven_by(&mut self, driver: ThreadNo) {
        self.driver = driver;
        self.behind = false;
        self.handed_over = Some(Moment::now());
        if self.edges > 0 {
            waits::redraw(sitters_with_edges(&self.seats), driver);
        }
    }

    /// Makes the calling thread the driver, if the flight has none: it is on its way to a thread
    /// that has yet to get to it. Looked and taken under one hold of the gate, so one of them drives
    /// it (seeded bug: `taken_over_twice`).
    pub(super) fn take_over(&mut self) -> bool {
        let undriven = self.driver == ThreadNo::NOBODY;
        if undriven {
            self.driven_by(waits::this_thread());
        }
        undriven
    }

    /// Nobody drives the flight until a thread gets to it, behind everything else.
    #[cfg(feature = "cache")]
    pub(super) fn left_behind(&mut self) {
        self.driven_by(ThreadNo::NOBODY);
        self.behind = true;
    }

    /// Whether that is so, still.
    pub(super) fn is_behind(&self) -> bool {
        self.behind
    }

    /// The flight has landed: nobody waits for its driver any more, called or not yet.
    ///
    /// Before the driver can wait for anything else, or it would be taken for part of a cycle
    /// that is no more (seeded bug: `edges_outlive_the_flight`).
    pub(super) fn landed(&mut self) {
        if self.edges > 0 {
            waits::erase(sitters_with_edges(&self.seats));
            self.edges = 0;
        }
    }

    /// After the landing: the next row to be called. Rows in which nobody sits any more are passed
    /// over, for nobody there would call the next.
    pub(super) fn next_to_call(&mut self) -> Option<Arc<Row>> {
        while let Some(row) = self.rows.get(self.called) {
            let mut seats = seats_of(self.called);
            self.called += 1;
            if seats.any(|seat| self.seats.get(seat).is_some_and(Option::is_some)) {
                return Some(Arc::clone(row));
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

fn sitters_with_edges(seats: &[Option<Seat>]) -> impl Iterator<Item = ThreadNo> {
    seats.iter().flatten().filter(|seat| seat.driving).map(|seat| seat.sitter)
}

/// The row that a seat is in.
fn row_of(seat: usize) -> usize {
    seat.div_ceil(ROW)
}

/// The seats of a row.
fn seats_of(row: usize) -> RangeInclusive<usize> {
    match row {
        0 => 0..=0,
        _ => (row - 1) * ROW + 1..=row * ROW,
    }
}
