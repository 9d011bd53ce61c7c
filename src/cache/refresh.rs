//! Loads that run on a worker: refreshes behind their readers, and loads that callers wait for.

use std::hash::Hash;
use std::sync::Arc;

use crossbeam_channel::Sender;

use crate::admission::Lane;
use crate::deadline::Deadline;
use crate::error::{Cap, Error};
use crate::flight::{Detached, Lead, Ticket};
use crate::freshness;
use crate::local::{Asked, Hashed, Kept};
use crate::moment::Moment;
use crate::stats::Event;
use crate::workers::Rejected;

use super::ladder::{Loader, Terms};
use super::{Filled, Room};

/// A load on its way to a worker. Dropped unrun, it abandons its flight: a key is never left
/// marked as being loaded (seeded bug: `dropped_unrun_lands_nothing`).
pub(super) struct Job<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    pub(super) room: Arc<Room<K, V, E>>,
    pub(super) key: Hashed<K>,
    /// Taken when the job is run; `None` if it is to board its key itself.
    pub(super) flight: Option<Detached<Filled<V>, E>>,
    pub(super) terms: Terms,
    pub(super) lane: Lane,
    /// Told how the load has ended, if it was run.
    pub(super) report: Option<Sender<Ended>>,
}

/// How a load behind the callers has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// With a value, or its absence.
    Well,
    /// With an error or a panic.
    Badly,
    /// It is not ours: a caller who could not wait for it loads the key, or another process does.
    Elsewhere,
}

impl<K, V, E> Job<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    pub(super) fn run(mut self) {
        let Some(loader) = &self.room.loader else { return };
        let (room, key) = (&self.room, self.key.asked());
        let mut report = Report { to: self.report.take(), ended: Ended::Badly };
        // A key that is boarded has callers following it, who must not wait for their turn behind
        // the background: a refresh that is not admitted at once is given up, and a prewarm, which
        // can wait, boards its key when it has been.
        let admitted = match (self.lane, &self.flight) {
            (Lane::Foreground, _) => None,
            (Lane::Background, Some(_)) => match room.admission.try_enter(self.lane) {
                Some(permit) => Some(permit),
                None => return room.counters.event(Event::RefreshSkipped),
            },
            (Lane::Background, None) => {
                match room.admission.enter(self.lane, self.terms.deadline) {
                    Ok(permit) => Some(permit),
                    // The budget is spent, and who runs the prewarm asks for no report.
                    Err(_) => return,
                }
            }
        };
        let boards_itself = self.flight.is_none();
        let lead = match self.flight.take() {
            Some(flight) => flight.attach(&room.group),
            None => room.group.try_lead(key.hash, key.key),
        };
        let Some(lead) = lead else {
            report.ended = Ended::Elsewhere;
            return;
        };
        let mut turn = room.turn(lead, key);
        // A caller may have loaded it while this waited for its turn.
        if boards_itself && let Some(fresh) = turn.kept.take_if(|kept| room.is_fresh(kept)) {
            room.give_way(turn.lead, fresh);
            report.ended = Ended::Elsewhere;
            return;
        }
        let mut loader = Loader::Declared(loader.as_ref());
        let loaded = room.load(turn, key, self.terms, self.lane, &mut loader);
        report.ended = match loaded {
            Ok(Filled::With(..)) => Ended::Well,
            Err(Error::WouldBlock) => Ended::Elsewhere,
            _ => Ended::Badly,
        };
        drop(admitted);
    }
}

impl<K, V, E> Drop for Job<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            drop(flight.attach(&self.room.group));
        }
    }
}

/// Reports when dropped, so that a panic is reported as well.
struct Report {
    to: Option<Sender<Ended>>,
    ended: Ended,
}

impl Drop for Report {
    fn drop(&mut self) {
        if let Some(to) = &self.to {
            // Nobody to hear it is nobody who minds.
            let _ = to.send(self.ended);
        }
    }
}

impl<K, V, E> Room<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Refreshes a fresh entry if the draw says so.
    #[cold]
    pub(super) fn refresh_early(self: &Arc<Self>, key: Asked<'_, K>, kept: &Kept<V>, now: Moment) {
        let cost = std::time::Duration::from_micros(kept.stamp.cost.into());
        let draw = freshness::unit_draw(fastrand::u64(..));
        let eagerness = self.policy.early_refresh;
        if now >= kept.stamp.refresh_from
            && kept.stamp.span.due_early(now, Some(cost), eagerness, draw)
        {
            self.refresh(key, kept);
        }
    }

    /// Has a worker load `key` anew, unless somebody is loading it. The flight is the mark that
    /// a refresh is under way, so there is no mark that could be left behind.
    pub(super) fn refresh(self: &Arc<Self>, key: Asked<'_, K>, kept: &Kept<V>) {
        if self.loader.is_none() {
            return;
        }
        let Some(lead) = self.group.try_lead(key.hash, key.key) else { return };
        // A refresh may have ended between the look at L1 and the boarding (seeded bug:
        // `refresh_without_a_second_look`).
        let mut turn = self.turn(lead, key);
        if let Some(newer) = self.overtaken(&mut turn, kept) {
            self.give_way(turn.lead, newer);
            return;
        }
        let mut lead = turn.lead;
        // Cloned while the lead is a guard: the flight must not be left behind by a panic.
        let key = lead.sharing_panics(|_| key.hashed());
        let Some(flight) = lead.detach_behind() else { return };
        let job = Job {
            room: Arc::clone(self),
            key,
            flight: Some(flight),
            terms: self.behind(),
            // A source that hangs would take every worker (seeded bug: `refresh_in_the_foreground`).
            lane: Lane::Background,
            report: None,
        };
        let event = match self.submit(job) {
            Ok(()) => Event::RefreshStarted,
            Err(_) => Event::RefreshSkipped,
        };
        self.counters.event(event);
    }

    /// The terms of a load that nobody waits for.
    pub(super) fn behind(&self) -> Terms {
        Terms { deadline: Deadline::NEVER, windows: self.policy.windows }
    }

    /// Hands the lead to a worker, if that can be waited for.
    pub(super) fn load_on_worker<'r>(
        self: &'r Arc<Self>,
        mut lead: Lead<'r, K, Filled<V>, E>,
        key: Asked<'_, K>,
        terms: Terms,
    ) -> Result<Handed<'r, K, Filled<V>, E>, Error<E>> {
        // Cloned while the lead is a guard: the flight must not be left behind by a panic.
        let key = lead.sharing_panics(|_| key.hashed());
        let ticket = lead.ticket();
        let asked_by_a_loader = lead.is_nested();
        let Some(flight) = lead.detach() else { return Ok(Handed::Over(ticket)) };
        let job = Job {
            room: Arc::clone(self),
            key,
            flight: Some(flight),
            terms,
            lane: Lane::Foreground,
            report: None,
        };
        // A loader that asks must not wait for the queue: those that are served before it may wait
        // for what that loader loads (seeded bug: `ask_and_queue`).
        if asked_by_a_loader && !self.is_closed() {
            return Ok(match self.workers.submit_at_once(Box::new(|| job.run())) {
                Ok(()) => Handed::Over(ticket),
                Err(Rejected(job)) => {
                    let back = ticket.take_over(&self.group);
                    // Without a flight by now, unless another caller has come in between.
                    drop(job);
                    back.map_or(Handed::Over(ticket), Handed::Back)
                }
            });
        }
        match self.submit(job) {
            Ok(()) => Ok(Handed::Over(ticket)),
            Err(_) if self.is_closed() => Err(Error::Closed),
            Err(_) => Err(Error::Overloaded { cap: Cap::Workers, limit: self.queue }),
        }
    }

    /// Queues the job. One that finds no room is dropped, and with it its flight.
    pub(super) fn submit(&self, job: Job<K, V, E>) -> Result<(), NoRoom> {
        self.workers.submit(job.lane, Box::new(|| job.run())).map_err(|rejected| {
            drop(rejected.0);
            NoRoom
        })
    }
}

/// What became of the attempt to hand a lead to a worker.
pub(super) enum Handed<'g, K, V, E> {
    /// The flight is to be followed.
    Over(Ticket<V, E>),
    /// The caller leads still.
    Back(Lead<'g, K, V, E>),
}

/// The lane's queue is full, or the cache is closed. The job has been dropped.
pub(super) struct NoRoom;
