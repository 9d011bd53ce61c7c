//! The ladder: what a call tries, in order, from L1 to the loader.

use std::hash::Hash;
use std::sync::Arc;

use crate::admission::{self, Lane};
use crate::clock::Clock;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::fleet::Mark;
use crate::flight::{Join, Lead};
use crate::freshness::{Phase, Windows};
use crate::local::{Asked, Entry, Kept, Stamp};
use crate::moment::Moment;
use crate::stats::{Counts, End};

use super::leader::{Leader, Storage};
use super::refresh::Handed;
use super::{Answer, Declared, Fill, Filled, Load, Room, Source, Why};

/// What one call asks for: its own options, and for the rest the cache's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) deadline: Deadline,
    pub(super) windows: Windows,
}

/// The loader declared with the cache, or the one that a call brings.
pub(super) enum Loader<'l, K, V, E> {
    Declared(&'l Declared<K, V, E>),
    Borrowed(&'l mut Borrowed<'l, K, V, E>),
    /// Neither.
    None,
}

/// A loader that a call brings.
pub(super) type Borrowed<'l, K, V, E> =
    dyn FnMut(&Load<'_, K, V>) -> std::result::Result<Fill<V>, E> + 'l;

/// A lead, and what L1 has of its key since.
///
/// What a load is to replace is looked for when its flight is boarded, and anew by each thread that
/// comes to lead it. An invalidation that has returned before the look has taken it out of L1, and
/// one that begins after it forgets the flight, which then stores nothing. What was looked for before
/// the flight was boarded could be stored as unchanged though it was invalidated in between (seeded
/// bug: `replaced_by_an_older_look`).
///
/// The lead is dropped first, for what is kept is the user's, and its `Drop` may panic.
pub(super) struct Turn<'g, K, V, E> {
    pub(super) lead: Lead<'g, K, Filled<V>, E>,
    pub(super) kept: Option<Kept<V>>,
}

type Result<T, E> = std::result::Result<T, Error<E>>;

impl<K, V, E> Room<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// One call and its count. What a hit needs is here, and nothing else is: so it can always be part
    /// of its caller, which takes a tenth off a hit.
    #[inline(always)]
    pub(super) fn get<'l>(
        self: &Arc<Self>,
        key: &K,
        terms: impl FnOnce() -> Terms,
        loader: impl FnOnce() -> Loader<'l, K, V, E>,
    ) -> Result<Answer<V>, E> {
        // Before the user's `Hash`, and the `Eq` and `Clone` of the look; and the entry need not be kept
        // while the counters are looked for.
        let mut count = Count { counts: self.counters.here(), end: End::Panicked };
        let key = self.local.asked(key);
        let value = self.local.value(key);
        let now = self.clock.now();
        // What is found is not made a `Kept` before it must be: it would be copied once more.
        match value {
            Some(entry) if self.is_hit(&entry.stamp, now) => {
                count.end = End::Hit;
                let age = entry.stamp.span.age(now);
                Ok(Answer { found: Some(entry.value), source: Source::Local, age })
            }
            value => self.get_otherwise(key, value, now, count, terms, loader),
        }
    }

    /// A call that is no hit of a value.
    #[cold]
    #[inline(never)]
    fn get_otherwise<'l>(
        self: &Arc<Self>,
        key: Asked<'_, K>,
        value: Option<Entry<V>>,
        now: Moment,
        mut count: Count<'_>,
        terms: impl FnOnce() -> Terms,
        loader: impl FnOnce() -> Loader<'l, K, V, E>,
    ) -> Result<Answer<V>, E> {
        let kept = match value {
            Some(entry) => Some(entry.into()),
            None => match self.local.absence(key) {
                Some(absence) if self.is_hit(&absence.stamp, now) => {
                    count.end = End::AbsentHit;
                    return Ok(absence.answer(Source::Local, now));
                }
                absence => absence,
            },
        };
        self.climb_counted(key, terms(), loader(), kept, now, count)
    }

    /// Whether an entry is served and nothing else is done: it is fresh, no refresh need be thought
    /// of, and it is not in doubt.
    #[inline]
    fn is_hit(&self, stamp: &Stamp, now: Moment) -> bool {
        stamp.span.is_fresh(now)
            && now < stamp.refresh_from
            && self.is_current(stamp)
            && !self.is_closed()
    }

    #[cold]
    fn climb_counted(
        self: &Arc<Self>,
        key: Asked<'_, K>,
        terms: Terms,
        loader: Loader<'_, K, V, E>,
        kept: Option<Kept<V>>,
        now: Moment,
        mut count: Count<'_>,
    ) -> Result<Answer<V>, E> {
        let (counts, clock) = (count.counts, &self.clock);
        let mut times = Times { counts, clock, started: Moment::now(), ended: None };
        let mut result = self.climb(key, terms, loader, kept, now, &mut times);
        // All of its waiting, for whatever it was.
        if let Err(Error::TimedOut { waited }) = &mut result {
            *waited = Moment::now().since(times.started);
        }
        count.end = end(&result);
        result
    }

    fn climb(
        self: &Arc<Self>,
        key: Asked<'_, K>,
        terms: Terms,
        mut loader: Loader<'_, K, V, E>,
        kept: Option<Kept<V>>,
        now: Moment,
        times: &mut Times<'_>,
    ) -> Result<Answer<V>, E> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        // L1, fresh. Perhaps it is time to refresh it early.
        let kept = match kept {
            Some(kept) if kept.stamp.span.is_fresh(now) && self.is_current(&kept.stamp) => {
                self.refresh_early(key, &kept, now);
                return Ok(kept.answer(Source::Local, now));
            }
            // Of an absence nothing is left once it is not fresh, and nothing of what was heard to
            // be out of date.
            kept => kept.filter(|kept| kept.found.is_some() && !self.is_void(&kept.stamp)),
        };
        // L1, stale. What another process may have changed must be asked for.
        if let Some(kept) = &kept
            && self.is_current(&kept.stamp)
        {
            match kept.stamp.span.phase(terms.windows, now) {
                // Answer now, refresh behind.
                Phase::Stale => {
                    return self.answer_and_revalidate(key, terms, loader, kept, now);
                }
                // The last load failed, and it is too early for the next.
                Phase::IfError if now < kept.stamp.refresh_from => {
                    return Ok(kept.clone().answer(Source::Stale(Why::Failed), now));
                }
                _ => {}
            }
        }
        if let Loader::None = loader {
            return Err(Error::NoLoader);
        }
        // A load. If nothing comes of it, what there is may do.
        let error = match self.fill(key, terms, &mut loader, times) {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let now = self.clock.now();
        // On a fleet L1 may have learnt meanwhile what the shared tier has.
        let kept = match &self.remote {
            None => kept,
            Some(_) => self.local.get(key).filter(|kept| kept.found.is_some()).or(kept),
        };
        match (kept, why_stale(&error)) {
            (Some(kept), Some(why)) if self.may_stand_in(&kept, terms.windows, now) => {
                Ok(kept.answer(Source::Stale(why), now))
            }
            _ => Err(error),
        }
    }

    /// Whether an entry may be served because a load failed.
    fn may_stand_in(&self, kept: &Kept<V>, windows: Windows, now: Moment) -> bool {
        match kept.stamp.span.phase(windows, now) {
            Phase::Expired => false,
            Phase::Stale | Phase::IfError if self.is_current(&kept.stamp) => true,
            // In doubt: that is as good as stale. What is known to be out of date is not.
            _ => !windows.stale_if_error.is_zero() && !self.is_void(&kept.stamp),
        }
    }

    /// Serves a value from its stale-while-revalidate window.
    fn answer_and_revalidate(
        self: &Arc<Self>,
        key: Asked<'_, K>,
        terms: Terms,
        mut loader: Loader<'_, K, V, E>,
        kept: &Kept<V>,
        now: Moment,
    ) -> Result<Answer<V>, E> {
        if now >= kept.stamp.refresh_from {
            if !matches!(loader, Loader::Borrowed(_)) {
                self.refresh(key, kept);
            } else if let Some(lead) = self.group.try_lead(key.hash, key.key) {
                // A borrowed loader cannot run behind its caller's back. So one caller at a time
                // loads for itself, and the others do not wait for it. Another's load may have ended
                // since this one looked (seeded bug: `borrowed_without_a_second_look`).
                let mut turn = self.turn(lead, key);
                if let Some(newer) = self.overtaken(&mut turn, kept) {
                    return Ok(match self.give_way(turn.lead, newer) {
                        Some(fresh) => fresh.answer(Source::Local, self.clock.now()),
                        None => kept.clone().answer(Source::Stale(Why::Revalidating), now),
                    });
                }
                let lane = Lane::Foreground;
                let loaded = self.load(turn, key, terms, lane, &mut loader);
                // The window may have ended meanwhile.
                let now = self.clock.now();
                match loaded {
                    Ok(Filled::With(filled, from)) => return Ok(filled.answer(from, now)),
                    Ok(_) => {}
                    Err(error) => {
                        return match why_stale(&error) {
                            Some(why) if self.may_stand_in(kept, terms.windows, now) => {
                                Ok(kept.clone().answer(Source::Stale(why), now))
                            }
                            _ => Err(error),
                        };
                    }
                }
            }
        }
        Ok(kept.clone().answer(Source::Stale(Why::Revalidating), now))
    }

    /// The turn of whoever has come to lead.
    pub(super) fn turn<'g>(
        &self,
        mut lead: Lead<'g, K, Filled<V>, E>,
        key: Asked<'_, K>,
    ) -> Turn<'g, K, V, E> {
        let kept = lead.sharing_panics(|_| self.local.get(key));
        Turn { lead, kept }
    }

    /// What L1 has for a caller that has come to lead, if a load of another one has ended since
    /// this one saw `kept`: something else, or a reason to wait with the next (seeded bug:
    /// `refreshed_again_after_a_failure`).
    pub(super) fn overtaken(
        &self,
        turn: &mut Turn<'_, K, V, E>,
        kept: &Kept<V>,
    ) -> Option<Kept<V>> {
        let now = self.clock.now();
        turn.kept
            .take_if(|there| there.stamp.span != kept.stamp.span || now < there.stamp.refresh_from)
    }

    /// Gives up the lead in favour of what another load has brought, and returns that if it is
    /// fresh. If it is not, who waits may not want it: then one of those leads.
    pub(super) fn give_way(
        &self,
        mut lead: Lead<'_, K, Filled<V>, E>,
        newer: Kept<V>,
    ) -> Option<Kept<V>> {
        if !newer.stamp.span.is_fresh(self.clock.now()) {
            return None;
        }
        match lead.land_storing(Ok(Filled::With(newer, Source::Local)), |_| ()) {
            Ok(Filled::With(newer, _)) => Some(newer),
            _ => None,
        }
    }

    /// The flight: another caller's load, or one of this call's own.
    fn fill(
        self: &Arc<Self>,
        key: Asked<'_, K>,
        terms: Terms,
        loader: &mut Loader<'_, K, V, E>,
        times: &mut Times<'_>,
    ) -> Result<Answer<V>, E> {
        let deadline = terms.deadline;
        // Of what was heard before the call began, a load that it joins must know.
        let began = self.remote.as_ref().map(|remote| remote.mark(&remote.key(key.key)));
        // Whether what comes is of a load that this call set off, on whatever thread.
        let mut led = false;
        let mut join = self.join(key, deadline, Some(times.started))?;
        loop {
            let lead = match join {
                Join::Landed(filled) => match self.landed(filled, led, terms, began, times)? {
                    Some(answer) => return Ok(answer),
                    // A value that is too old for this call.
                    None => {
                        join = self.join(key, deadline, None)?;
                        continue;
                    }
                },
                Join::Lead(lead) => lead,
            };
            // Another caller's load may have ended between the look at L1 and the boarding (seeded
            // bug: `lead_without_a_second_look`).
            let mut turn = self.turn(lead, key);
            if let Some(kept) = turn.kept.take_if(|kept| self.is_current(&kept.stamp)) {
                let now = self.clock.now();
                if kept.stamp.span.is_fresh(now) {
                    let copy = turn.lead.sharing_panics(|_| kept.clone());
                    turn.lead.land(Ok(Filled::With(copy, Source::Local)))?;
                    return Ok(kept.answer(Source::Local, now));
                }
                // It may have ended badly, too, and then it is too early for the next (seeded bug:
                // `led_again_after_a_failure`).
                let held_off = now < kept.stamp.refresh_from;
                if held_off && self.may_stand_in(&kept, terms.windows, now) {
                    drop(turn);
                    return Ok(kept.answer(Source::Stale(Why::Failed), now));
                }
                turn.kept = Some(kept);
            }
            led = true;
            let declared = matches!(loader, Loader::Declared(_));
            if declared && self.workers_load && !self.workers.is_worker() {
                let Turn { lead, kept } = turn;
                match self.load_on_worker(lead, key, terms)? {
                    Handed::Back(lead) => turn = Turn { lead, kept },
                    Handed::Over(ticket) => {
                        let _lent = admission::lend();
                        join = match self.group.follow_ticket(ticket, deadline)? {
                            Some(join) => join,
                            None => {
                                led = false;
                                self.join(key, deadline, None)?
                            }
                        };
                        if self.is_closed() && matches!(join, Join::Lead(_)) {
                            return Err(Error::Closed);
                        }
                        continue;
                    }
                }
            }
            let filled = self.load(turn, key, terms, Lane::Foreground, loader)?;
            // On no fleet that was all, and its end has just been noted.
            if let (Filled::With(kept, _), None) = (&filled, &self.remote) {
                times.ended = Some(kept.stamp.span.loaded_at());
            }
            match self.landed(filled, led, terms, began, times)? {
                Some(answer) => return Ok(answer),
                None => join = self.join(key, deadline, None)?,
            }
        }
    }

    /// Waits for the key's flight, or leads one. A permit that this thread holds, because it is a
    /// loader that asks, is lent out for the wait: the load waited for may need it (seeded bug:
    /// `wait_with_a_permit`).
    #[inline]
    fn join(
        &self,
        key: Asked<'_, K>,
        deadline: Deadline,
        now: Option<Moment>,
    ) -> Result<Join<'_, K, Filled<V>, E>, E> {
        let _lent = admission::lend();
        self.group.join_by(key.hash, key.key, deadline, now)
    }

    /// What a leader does, on the calling thread: the fleet, if the cache is on one, then
    /// admission, loader, store, publish.
    #[inline]
    pub(super) fn load(
        &self,
        mut turn: Turn<'_, K, V, E>,
        key: Asked<'_, K>,
        terms: Terms,
        lane: Lane,
        loader: &mut Loader<'_, K, V, E>,
    ) -> Result<Filled<V>, E> {
        let Turn { lead, kept } = &mut turn;
        // An absence is nothing that could be replaced.
        let previous = kept.as_ref().filter(|kept| kept.found.is_some());
        let confirmed = self.remote.is_none();
        let leader = Leader { room: self, key, terms, lane, loader, previous, confirmed };
        // Whatever code of the user's it is that panics.
        lead.sharing_panics(|lead| match &self.remote {
            None => leader.load(lead, Storage::Here),
            Some(remote) => leader.load_in_fleet(lead, remote),
        })
    }

    /// The answer that a landed flight is; `None` if it is stale and the call takes nothing so
    /// stale, or if it was loaded before a change that was heard of before the call began.
    #[inline]
    fn landed(
        &self,
        filled: Filled<V>,
        led: bool,
        terms: Terms,
        began: Option<Mark>,
        times: &Times<'_>,
    ) -> Result<Option<Answer<V>>, E> {
        let now = times.ended.unwrap_or_else(|| self.clock.now());
        let outdated = |kept: &Kept<V>| began.is_some_and(|began| kept.stamp.mark.is_before(began));
        match filled {
            Filled::With(kept, _) | Filled::Stale(kept) if outdated(&kept) => Ok(None),
            Filled::With(kept, from) => {
                Ok(Some(kept.answer(if led { from } else { Source::Followed }, now)))
            }
            Filled::Stale(kept) => {
                let takes = kept.stamp.span.phase(terms.windows, now) == Phase::Stale;
                Ok(takes.then(|| kept.answer(Source::Stale(Why::Revalidating), now)))
            }
            Filled::NothingUnchanged => Err(Error::NothingUnchanged),
            Filled::FailedElsewhere => Err(Error::FailedElsewhere),
            Filled::InVain { waited } => Err(Error::TimedOut { waited }),
        }
    }

    /// Whether what L1 remembers is fresh and not in doubt.
    pub(super) fn is_fresh(&self, kept: &Kept<V>) -> bool {
        kept.stamp.span.is_fresh(self.clock.now()) && self.is_current(&kept.stamp)
    }

    /// Whether no other process has been heard to change it.
    #[inline]
    pub(super) fn is_current(&self, stamp: &Stamp) -> bool {
        match &self.remote {
            None => true,
            Some(remote) => remote.shared().is_current(stamp.mark),
        }
    }

    /// Whether another process has been heard to change it. Not merely to load it anew, and a gap in
    /// what is heard says nothing.
    fn is_void(&self, stamp: &Stamp) -> bool {
        match &self.remote {
            None => false,
            Some(remote) => !self.is_current(stamp) && remote.is_void(stamp.mark),
        }
    }
}

impl<V> Kept<V> {
    pub(super) fn answer(self, source: Source, now: Moment) -> Answer<V> {
        Answer { age: self.stamp.span.age(now), found: self.found, source }
    }
}

/// Counts the end of a call: a panic, unless told otherwise before it is dropped.
struct Count<'a> {
    counts: &'a Counts,
    end: End,
}

impl Drop for Count<'_> {
    #[inline]
    fn drop(&mut self) {
        self.counts.end(self.end);
    }
}

/// Notes how long a call took that L1 did not answer, when it is dropped.
struct Times<'a> {
    counts: &'a Counts,
    clock: &'a Clock,
    /// When it was clear that L1 would not do, by the system's clock.
    started: Moment,
    /// When there was an answer, by the cache's clock, if somebody has read it.
    ended: Option<Moment>,
}

impl Drop for Times<'_> {
    fn drop(&mut self) {
        let ended = self.ended.unwrap_or_else(|| self.clock.exact());
        self.counts.call_took(ended.since(self.clock.at(self.started)));
    }
}

/// How a call ended.
fn end<V, E>(result: &Result<Answer<V>, E>) -> End {
    match result {
        Ok(answer) => match answer.source {
            Source::Local if answer.is_absent() => End::AbsentHit,
            Source::Local => End::Hit,
            Source::Fleet => End::FleetHit,
            Source::Stale(_) => End::Stale,
            Source::Loaded | Source::Alone => End::Loaded,
            Source::Followed => End::Followed,
        },
        Err(error) => match error {
            Error::Failed(_)
            | Error::FailedElsewhere
            | Error::NothingUnchanged
            | Error::NoLoader => End::Failed,
            Error::Panicked(_) => End::Panicked,
            Error::Abandoned => End::Abandoned,
            Error::TimedOut { .. } | Error::WouldBlock => End::TimedOut,
            Error::Overloaded { .. } => End::Overloaded,
            Error::WouldDeadlock => End::WouldDeadlock,
            Error::Closed => End::Closed,
        },
    }
}

/// Why this error lets a value from the stale-if-error window be served in its place; `None` if it
/// does not.
fn why_stale<E>(error: &Error<E>) -> Option<Why> {
    match error {
        Error::Failed(_)
        | Error::FailedElsewhere
        | Error::Panicked(_)
        | Error::Abandoned
        | Error::NothingUnchanged => Some(Why::Failed),
        Error::TimedOut { .. } | Error::WouldBlock => Some(Why::TimedOut),
        Error::Overloaded { .. } => Some(Why::Overloaded),
        Error::WouldDeadlock | Error::Closed | Error::NoLoader => None,
    }
}
