//! What a cache needs of flights: a lead that travels to a worker, and stores and forgets that are
//! one step with what the registry does.
//!
//! A cache hashes a key once, for all it has to do with it. So it brings the hash along, of one hasher
//! for all calls of a group.

use std::hash::Hash;
use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::error::Error;
use crate::moment::Moment;
use crate::sync::{Handle, age};

use super::Flight;
use super::group::{Group, Join};
use super::lead::Lead;
use super::registry::Role;
use super::waits::{self, ThreadNo};

impl<K: Hash + Eq + Clone, V: Clone, E> Group<K, V, E> {
    /// Makes the caller lead, if nobody does.
    pub(crate) fn try_lead(&self, hash: u64, key: &K) -> Option<Lead<'_, K, V, E>> {
        match self.board(hash, key, Some(Moment::now()), |_| ()) {
            Ok(Role::Lead(boarding)) => Some(Lead::first(self, boarding)),
            _ => None,
        }
    }

    /// Whether a flight is boarded under `key`.
    pub(crate) fn is_flying(&self, hash: u64, key: &K) -> bool {
        self.registry.has(hash, key)
    }

    /// Waits for the flight that the ticket is for; `None` if the key is to be asked for anew.
    pub(crate) fn follow_ticket(
        &self,
        ticket: Ticket<V, E>,
        deadline: Deadline,
    ) -> Result<Option<Join<'_, K, V, E>>, Error<E>> {
        let started = deadline.instant().map(|_| Instant::now());
        self.follow(ticket.0, deadline, started, false)
    }

    /// [`forget`](Group::forget), and calls `then` before anybody else can board the key.
    pub(crate) fn forget_and(&self, hash: u64, key: &K, then: impl FnOnce()) -> bool {
        self.registry.forget(hash, key, then)
    }
}

impl<K, V, E> Group<K, V, E> {
    /// How long ago the oldest flight was boarded that is still in the air.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.registry.oldest().map(age)
    }

    /// Whether this thread drives a flight of this group.
    pub(crate) fn is_driven_here(&self) -> bool {
        waits::driving(self.address(), 0..=u64::MAX, |_| true) > 0
    }

    /// Forgets every flight, and calls `then` before anybody can board a key.
    pub(crate) fn forget_all(&self, then: impl FnOnce()) {
        self.registry.forget_all(then);
    }
}

impl<K, V, E> Lead<'_, K, V, E> {
    /// Calls `store` under the registry's lock, if the flight is the boarded one still. It goes on.
    pub(crate) fn if_boarded(&self, store: impl FnOnce()) {
        self.group.registry.while_boarded(&self.boarding, |_| {
            store();
            true
        });
    }

    /// When the holder boarded the flight, if it did and has read the clock for it. It has not waited
    /// since, or not for this flight.
    pub(crate) fn boarded(&self) -> Option<Moment> {
        self.boarding.at
    }

    /// Whether this thread drives another flight besides: it runs a loader that asks.
    pub(crate) fn is_nested(&self) -> bool {
        waits::is_driving_more()
    }

    /// A ticket to follow the flight by.
    pub(crate) fn ticket(&mut self) -> Ticket<V, E> {
        let share = || self.group.registry.share(&self.boarding);
        Ticket(Handle::clone(self.flight.get_or_insert_with(share)))
    }

    /// Gives the duty up without ending the flight, for another thread to take with
    /// [`attach`](Detached::attach). Until then nobody drives the flight, and a caller that must
    /// not wait for that thread may take it. `None` if one of the followers is such a caller: it
    /// has the duty now.
    pub(crate) fn detach(mut self) -> Option<Detached<V, E>> {
        let ticket = self.ticket();
        let let_go = ticket.0.let_go();
        self.driven_no_more();
        let_go.then_some(Detached(ticket))
    }

    /// The same, for a thread that will come to it when there is nothing else to do: any caller may
    /// take it. `None` if there is one already.
    pub(crate) fn detach_behind(mut self) -> Option<Detached<V, E>> {
        let ticket = self.ticket();
        let left = ticket.0.leave_behind();
        self.driven_no_more();
        left.then_some(Detached(ticket))
    }
}

impl<V, E> Flight<V, E> {
    /// Leaves the flight to whoever [takes it over](Flight::take_over): `true`. Not if among the
    /// followers is one that drives a flight itself: then it is that one's from now on. It may be
    /// what holds up the thread that the flight is meant for (seeded bug: `let_go_past_a_driver`).
    /// And whoever lets go drives it no longer (seeded bug: `let_go_keeps_the_driver`).
    fn let_go(&self) -> bool {
        let mut seats = self.seats.lock();
        if seats.promote_a_driver() {
            return false;
        }
        seats.driven_by(ThreadNo::NOBODY);
        true
    }

    /// The same, for as long as nobody needs it: a follower that is there already has the duty now,
    /// and one that comes takes it (seeded bugs: `left_behind_with_a_follower`,
    /// `wait_behind_a_refresh`).
    fn leave_behind(&self) -> bool {
        let mut seats = self.seats.lock();
        if seats.promote() {
            return false;
        }
        seats.left_behind();
        true
    }

    /// Makes the calling thread the driver, if nobody drives the flight.
    fn take_over(&self) -> bool {
        self.seats.lock().take_over()
    }
}

/// The duty to land a flight, on its way to another thread. It does not know its group, so it
/// abandons nothing when it is dropped: whoever has it attaches it first.
pub(crate) struct Detached<V, E>(Ticket<V, E>);

/// The right to follow one flight.
pub(crate) struct Ticket<V, E>(Handle<Flight<V, E>>);

impl<V, E> Detached<V, E> {
    /// The calling thread drives the flight, which is one of `group`'s; `None` if another has
    /// taken it over.
    pub(crate) fn attach<K>(self, group: &Group<K, V, E>) -> Option<Lead<'_, K, V, E>> {
        self.0.take_over(group)
    }
}

impl<V, E> Ticket<V, E> {
    /// The calling thread drives the flight, which is one of `group`'s, if nobody else does.
    pub(crate) fn take_over<'g, K>(&self, group: &'g Group<K, V, E>) -> Option<Lead<'g, K, V, E>> {
        self.0.take_over().then(|| Lead::next(group, Handle::clone(&self.0)))
    }
}

/// Whether this thread drives a flight: it runs a loader, which asks.
pub(crate) fn drives_here() -> bool {
    waits::is_driving()
}
