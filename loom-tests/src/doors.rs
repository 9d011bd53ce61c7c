//! Doors to the rooms that the library keeps to itself, for scenarios that have one of them alone.

use std::hash::Hash;
use std::sync::Arc;

use crate::deadline::Deadline;
use crate::flight::{self, Group, Join, Lead};
use crate::{admission, error, workers};

/// Who asks for a permit, and who hands a job to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    Foreground,
    Background,
}

impl Lane {
    fn inside(self) -> admission::Lane {
        match self {
            Lane::Foreground => admission::Lane::Foreground,
            Lane::Background => admission::Lane::Background,
        }
    }
}

/// The bound on loaders running at once.
#[derive(Clone, Debug)]
pub struct Admission(Arc<admission::Admission>);

/// Gives its permit back when it is dropped.
#[derive(Debug)]
pub struct Permit<'a> {
    _inside: admission::Permit<'a>,
}

impl Admission {
    pub fn new(permits: usize) -> Admission {
        Admission(Arc::new(admission::Admission::new(permits)))
    }

    /// `None` if the deadline fires first.
    pub fn enter(&self, lane: Lane, deadline: Deadline) -> Option<Permit<'_>> {
        self.0.enter(lane.inside(), deadline).ok().map(|permit| Permit { _inside: permit })
    }

    /// How many permits are out, and how many callers wait for one, over both lanes.
    pub fn gauge(&self) -> (usize, usize) {
        let lanes = [Lane::Foreground, Lane::Background];
        let gauges = lanes.map(|lane| self.0.gauge(lane.inside()));
        (gauges.iter().map(|lane| lane.running).sum(), gauges.iter().map(|lane| lane.waiting).sum())
    }
}

/// What a worker does.
pub type Job = Box<dyn FnOnce() + Send>;

/// The pool of threads.
#[derive(Debug)]
pub struct Workers(workers::Workers);

/// How busy a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    pub queued: usize,
    pub running: usize,
    pub threads: usize,
}

impl Workers {
    /// Of its threads the background may have one.
    pub fn new(threads: usize, queue: usize) -> Workers {
        Workers(workers::Workers::new("model", threads, 1, queue))
    }

    /// Gives the job back if there is no room for it.
    pub fn submit(&self, lane: Lane, job: Job) -> Result<(), Job> {
        self.0.submit(lane.inside(), job).map_err(|rejected| rejected.0)
    }

    pub fn submit_at_once(&self, job: Job) -> Result<(), Job> {
        self.0.submit_at_once(job).map_err(|rejected| rejected.0)
    }

    pub fn close(&self, deadline: Deadline) -> usize {
        self.0.close(deadline)
    }

    pub fn gauge(&self) -> Busy {
        let workers::Gauge { queued, running, threads } = self.0.gauge();
        Busy { queued, running, threads }
    }
}

/// The duty to land a flight, on its way to another thread.
pub struct Detached<V, E>(flight::Detached<V, E>);

/// The right to follow one flight.
pub struct Ticket<V, E>(flight::Ticket<V, E>);

/// Lets go of a flight; without a duty if one of its followers has it now.
pub fn let_go<K, V, E>(mut lead: Lead<'_, K, V, E>) -> (Ticket<V, E>, Option<Detached<V, E>>) {
    let ticket = Ticket(lead.ticket());
    (ticket, lead.detach().map(Detached))
}

/// Leaves a flight to a thread that will come to it when there is nothing else to do; without a duty
/// if somebody needs it now.
pub fn leave_behind<K, V, E>(lead: Lead<'_, K, V, E>) -> Option<Detached<V, E>> {
    lead.detach_behind().map(Detached)
}

impl<V, E> Detached<V, E> {
    /// `None` if another thread has taken the flight over.
    pub fn attach<K>(self, group: &Group<K, V, E>) -> Option<Lead<'_, K, V, E>> {
        self.0.attach(group)
    }
}

impl<V: Clone, E> Ticket<V, E> {
    /// Waits for the flight, as whoever has let go of it does.
    pub fn follow<K: Hash + Eq + Clone>(
        self,
        group: &Group<K, V, E>,
        deadline: Deadline,
    ) -> Result<Option<Join<'_, K, V, E>>, error::Error<E>> {
        group.follow_ticket(self.0, deadline)
    }
}
