//! [`Leader`]: what the caller does who leads a flight of a cache.

use std::hash::Hash;
use std::time::{Duration, Instant};

use crate::admission::{self, Lane};
use crate::deadline::Deadline;
use crate::error::{Error, TierError};
use crate::fleet::{Heard, Held, Key, Mark, Reaction, Token};
use crate::flight::Lead;
use crate::freshness::{Lifetime, Phase, Span};
use crate::local::{Asked, Displaced, Insertion, Kept, Stamp};
use crate::moment::Moment;
use crate::stats::{Counts, Event};

use super::fill::What;
use super::ladder::{Loader, Terms};
use super::remote::{Ask, BRIEFLY, Committing, Found, Look, Losers, Place, Remote};
use super::{Fill, Filled, Load, Room, Source};

/// A leader and what it brings.
pub(super) struct Leader<'l, 'm, K, V, E> {
    pub(super) room: &'l Room<K, V, E>,
    pub(super) key: Asked<'l, K>,
    pub(super) terms: Terms,
    pub(super) lane: Lane,
    pub(super) loader: &'l mut Loader<'m, K, V, E>,
    /// What is to be replaced, if anything is known.
    pub(super) previous: Option<&'l Kept<V>>,
    /// Whether the loader may be told of that: on a fleet only if the shared tier had it just now.
    /// What was invalidated and not heard of would be as good as new everywhere.
    pub(super) confirmed: bool,
}

/// Where the result of a load is to be stored.
pub(super) enum Storage<'a, K, V> {
    /// In L1, which is all there is.
    Here,
    /// In the shared tier, if the lease is ours still, and then in L1.
    Leased { remote: &'a Remote<K, V>, key: &'a Key, held: Held<'a>, token: Token, at: Place },
    /// In L1 only, and no longer than this.
    Alone { mark: Mark, at_most: Duration },
}

/// How much younger than what is to be replaced a value in the shared tier must be to do. Ages are
/// told in milliseconds, and a value takes a moment to travel.
const YOUNGER: Duration = Duration::from_millis(5);

type Result<T, E> = std::result::Result<T, Error<E>>;

impl<K, V, E> Leader<'_, '_, K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Admission, loader, store, publish, in that order.
    #[inline]
    pub(super) fn load(
        self,
        lead: &mut Lead<'_, K, Filled<V>, E>,
        storage: Storage<'_, K, V>,
    ) -> Result<Filled<V>, E> {
        let Leader { room, key, terms, lane, loader, previous, confirmed } = self;
        let deadline = terms.deadline;
        // When the load begins, if that was noted at boarding and it has waited for nothing since.
        let mut began = lead.boarded().filter(|_| matches!(storage, Storage::Here));
        let permit = match room.admission.try_enter(lane) {
            Some(permit) => permit,
            None => {
                began = None;
                match room.admission.enter(lane, deadline) {
                    Ok(permit) => permit,
                    // The lead is dropped, and the follower with the most time left leads.
                    Err(refused) => return Err(Error::TimedOut { waited: refused.waited }),
                }
            }
        };
        // It may have been closed during the wait, and nobody waits for a refresh.
        if lane == Lane::Background && room.is_closed() {
            return Err(Error::Closed);
        }
        let token = match &storage {
            Storage::Leased { token, .. } => Some(*token),
            _ => None,
        };
        let counts = room.counters.here();
        let mut attempt = Attempt { counts, end: Event::LoadPanicked };
        // What is to be stored, between the loader's end and the store.
        let mut fresh = None;
        let mut displaced = Displaced::default();
        let load = || {
            counts.event(Event::Load);
            let mut back_off = BackOff { room, key, previous };
            let previous = previous
                .filter(|kept| confirmed && room.is_current(&kept.stamp))
                .and_then(|kept| kept.found.as_ref());
            let started = began.map_or_else(|| room.clock.exact(), |at| room.clock.at(at));
            let load = Load { key: key.key, deadline, previous, token };
            let fill = match loader {
                Loader::Declared(loader) => loader(&load),
                Loader::Borrowed(loader) => loader(&load),
                Loader::None => unreachable!("without a loader no call leads"),
            };
            let ended = room.clock.exact();
            let loaded = Loaded { ended, took: ended.since(started) };
            counts.load_took(loaded.took);
            drop(permit);
            let (filled, keep) = room.store_in_fleet(key, fill, previous, loaded, storage)?;
            if let (Filled::With(kept, _), true) = (&filled, keep) {
                // Here, because the store is done under a lock.
                fresh = Some(room.local.ready(key, kept.clone()));
            }
            back_off.previous = None;
            Ok(filled)
        };
        let loaded = load();
        let result = lead.land_storing(loaded, |_| {
            if let Some(ready) = fresh {
                room.local.store(ready, &mut displaced);
            }
        });
        attempt.end = match (&result, displaced.insertion) {
            (Err(_), _) => Event::LoadFailed,
            (Ok(_), None) => Event::NotStored,
            (Ok(_), Some(Insertion::TooHeavy)) => Event::TooHeavy,
            (Ok(_), Some(Insertion::Stored)) => Event::Stored,
        };
        result
    }

    /// The shared tier first: the value, or the lease to load it, or the wait for the process that
    /// has the lease. Whatever trouble there is with the tier, the load goes on without it.
    pub(super) fn load_in_fleet(
        self,
        lead: &mut Lead<'_, K, Filled<V>, E>,
        remote: &Remote<K, V>,
    ) -> Result<Filled<V>, E> {
        let room = self.room;
        let key = &remote.key(self.key.key);
        let shared = remote.shared();
        let mut budget = self.budget(shared.budget);
        let started = Instant::now();
        let bound = self.terms.deadline.earlier(room.loser_wait);

        // The mark before the read: what is heard in between puts what was read in doubt.
        let mut mark = remote.mark(key);
        let asked = room.clock.exact();
        let counters = &room.counters;
        let looked = budget.spend(|deadline| {
            remote.catch_up(key, deadline)?;
            if room.expects_misses && shared.takes_writes() {
                return Ok(Look::Nothing(None));
            }
            let at = remote.place(mark, deadline)?;
            remote.lookup(key, at, asked, counters, deadline)
        });
        let (mut known, mut seen) = match looked {
            Err(_) => return self.load_degraded(lead, mark, remote),
            Ok(Look::Found(found)) => match self.accept(found) {
                Ok(kept) => return self.land(lead, kept, remote),
                Err(found) => (self.adopt(lead, found.kept, remote), found.seen),
            },
            Ok(Look::Nothing(seen)) => (None, seen),
        };
        if room.local.goes_alone(self.key, asked) {
            return self.knowing(&known).load_alone(lead, mark);
        }
        // In line before the lease is asked for, or the notice may come in between.
        let waiting = shared.wait_for(key);
        let poll = Poll { started };
        // Whether another process had the lease when this one last asked.
        let mut waited = false;
        // Whether the bound had passed by then.
        let mut over = false;
        // How many answers in a row were of no use.
        let mut useless = 0;
        loop {
            if useless > USELESS {
                return self.knowing(&known).load_degraded(lead, mark, remote);
            }
            mark = remote.mark(key);
            let asked = room.clock.exact();
            // With each mark its epoch: of what was heard during the last wait both must know.
            let answer = budget.spend(|deadline| {
                let at = remote.place(mark, deadline)?;
                Ok((at, remote.acquire(key, at, seen, asked, counters, deadline)?))
            });
            let (holder, left) = match answer {
                // Out of time while another process is at it: that is no trouble with the tier. What
                // time is left is for its notice.
                Err(_) if waited && self.is_short_of_time(shared.budget) => {
                    let _lent = admission::lend();
                    if waiting.hear(self.terms.deadline).is_some() {
                        budget = self.budget(shared.budget);
                        continue;
                    }
                    return Err(Error::TimedOut { waited: started.elapsed() });
                }
                Err(_) => return self.knowing(&known).load_degraded(lead, mark, remote),
                Ok((at, Ask::Won(held, token))) => {
                    drop(waiting);
                    let storage = Storage::Leased { remote, key, held, token, at };
                    return self.knowing(&known).load(lead, storage);
                }
                Ok((_, Ask::Found(found))) => match self.accept(found) {
                    Ok(kept) => return self.land(lead, kept, remote),
                    Err(found) => {
                        known = self.adopt(lead, found.kept, remote).or(known);
                        seen = found.seen;
                        useless += 1;
                        continue;
                    }
                },
                Ok((_, Ask::Again(again))) => {
                    seen = again;
                    useless += 1;
                    continue;
                }
                Ok((_, Ask::Held { holder, left })) => (holder, left),
            };
            (waited, useless) = (true, 0);
            // Another process is at it. A refresh has no use for a second one, and whoever takes
            // something stale need not wait. Nor does the next caller have to ask again at once.
            if self.lane == Lane::Background {
                self.hold_off(&known, poll.pause(left, shared.hears()));
                return Err(Error::WouldBlock);
            }
            if let Some(stale) = self.stale(&known) {
                self.hold_off(&known, poll.pause(left, shared.hears()));
                return lead.land_storing(Ok(Filled::Stale(stale)), |_| ());
            }
            let heard = {
                let _lent = admission::lend();
                waiting.hear(poll.next(bound, left, shared.hears()))
            };
            // What the wait has cost is not the tier's.
            budget = self.budget(shared.budget);
            // A notice may be late: only that of the very lease that was waited for is an answer.
            // Any other one may be about what was invalidated before this call began.
            match heard {
                Some(Heard::Filled { version, envelope: Some(sent), changes })
                    if holder == Some(version) =>
                {
                    let now = room.clock.exact();
                    // The notice is newer than this turn's epoch may be.
                    let at =
                        budget.spend(|deadline| remote.place(mark.moved_to(changes), deadline));
                    let kept =
                        at.ok().and_then(|at| remote.open_sent(key, &sent, at, now, counters));
                    if let Some(kept) = kept.filter(|kept| kept.stamp.span.is_fresh(now)) {
                        return self.land(lead, kept, remote);
                    }
                }
                Some(Heard::Failed { token, reaction }) if holder == Some(token) => {
                    match reaction {
                        Reaction::TakeOver => {}
                        Reaction::LoadAlone => {
                            return self.knowing(&known).load_alone(lead, mark);
                        }
                        Reaction::BackOff => {
                            self.hold_off(&known, room.policy.refresh_backoff);
                            lead.land_storing(Ok(Filled::FailedElsewhere), |_| ())?;
                            return Err(Error::FailedElsewhere);
                        }
                    }
                }
                // Notices may come as fast as they can be followed by another claim. When the bound
                // has passed there is one more, and no other.
                Some(_) if !over => over = bound.has_passed(),
                _ if over || bound.has_passed() => {
                    let waited = started.elapsed();
                    // The lead is dropped, and the follower with the most time left goes on.
                    if self.terms.deadline.has_passed() {
                        return Err(Error::TimedOut { waited });
                    }
                    // Not so here, or the followers would wait one after another.
                    if room.losers == Losers::Fail {
                        lead.land_storing(Ok(Filled::InVain { waited }), |_| ())?;
                        return Err(Error::TimedOut { waited });
                    }
                    return self.knowing(&known).load_alone(lead, mark);
                }
                _ => {}
            }
        }
    }
}

impl<'l, 'm, K, V, E> Leader<'l, 'm, K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// With what the shared tier knew, if that is more than was known here.
    fn knowing<'s>(self, known: &'s Option<Kept<V>>) -> Leader<'s, 'm, K, V, E>
    where
        'l: 's,
    {
        let Leader { room, key, terms, lane, loader, previous, .. } = self;
        let (confirmed, previous) = (known.is_some(), known.as_ref().or(previous));
        Leader { room, key, terms, lane, loader, previous, confirmed }
    }

    /// Whether what was found does: it is fresh, and newer than what is to be replaced.
    fn accept(&self, found: Found<V>) -> std::result::Result<Kept<V>, Found<V>> {
        let now = self.room.clock.exact();
        let newer = |previous: &Kept<V>| {
            !previous.stamp.span.is_fresh(now)
                || !self.room.is_current(&previous.stamp)
                || found.kept.stamp.span.newer_by(&previous.stamp.span) > YOUNGER
        };
        if found.kept.stamp.span.is_fresh(now) && self.previous.is_none_or(newer) {
            Ok(found.kept)
        } else {
            Err(found)
        }
    }

    /// What was found does not do. But if it is newer than what L1 has it belongs there: for callers
    /// that take something stale, and for all of them if the load fails. Returns what L1 has then,
    /// if the tier has it, too.
    fn adopt(
        &self,
        lead: &Lead<'_, K, Filled<V>, E>,
        found: Kept<V>,
        remote: &Remote<K, V>,
    ) -> Option<Kept<V>> {
        let Leader { room, key, previous, .. } = self;
        let replaces = |previous: &Kept<V>| {
            !room.is_current(&previous.stamp)
                || found.stamp.span.newer_by(&previous.stamp.span) > YOUNGER
        };
        let phase = found.stamp.span.phase(room.policy.windows, room.clock.exact());
        if found.found.is_none() || phase == Phase::Expired {
            return None;
        }
        if let Some(previous) = previous.filter(|previous| !replaces(previous)) {
            // The same, or an older one: what the tier has, under the stamp that L1 knows it by.
            return Some(Kept { stamp: previous.stamp, ..found });
        }
        let kept = self.place(found, remote);
        let ready = room.local.ready(*key, kept.clone());
        let mut displaced = Displaced::default();
        lead.if_boarded(|| room.local.store(ready, &mut displaced));
        Some(kept)
    }

    /// A value of the shared tier as L1 may keep it.
    fn place(&self, found: Kept<V>, remote: &Remote<K, V>) -> Kept<V> {
        let room = self.room;
        let Kept { found, stamp } = found;
        let took = Duration::from_micros(stamp.cost.into());
        let span = stamp.span.kept_at_most(room.clock.exact(), remote.at_most());
        let stamp = room.stamp(span, found.is_some(), took, stamp.mark);
        Kept { found, stamp }
    }

    /// What may be served at once while another process loads.
    fn stale(&self, known: &Option<Kept<V>>) -> Option<Kept<V>> {
        let kept = known.as_ref()?;
        let phase = kept.stamp.span.phase(self.terms.windows, self.room.clock.exact());
        (phase == Phase::Stale).then(|| kept.clone())
    }

    /// No refresh of what L1 has for so long.
    fn hold_off(&self, known: &Option<Kept<V>>, pause: Duration) {
        if let Some(kept) = known.as_ref().or(self.previous) {
            let until = self.room.clock.exact().plus(pause);
            self.room.local.hold_off(self.key, &kept.stamp.span, until);
        }
    }

    /// Lands with what the shared tier had.
    fn land(
        self,
        lead: &mut Lead<'_, K, Filled<V>, E>,
        found: Kept<V>,
        remote: &Remote<K, V>,
    ) -> Result<Filled<V>, E> {
        let kept = self.place(found, remote);
        let ready = self.room.local.ready(self.key, kept.clone());
        let mut displaced = Displaced::default();
        lead.land_storing(Ok(Filled::With(kept, Source::Fleet)), |_| {
            self.room.local.store(ready, &mut displaced);
        })
    }

    /// What may be spent on the tier. A worker loads for all who wait and for those to come: it
    /// takes what any load may, and not what is left to the one call that set it off.
    fn budget(&self, budget: Duration) -> Budget {
        let on_a_worker = self.room.workers.is_worker();
        let deadline = if on_a_worker { Deadline::NEVER } else { self.terms.deadline };
        Budget::new(deadline, budget)
    }

    /// Whether the call ends before a tier need have answered.
    fn is_short_of_time(&self, budget: Duration) -> bool {
        self.terms.deadline.remaining().is_some_and(|left| left < budget)
    }

    /// There is trouble with the shared tier: a load without it, as in a cache of one process.
    fn load_degraded(
        self,
        lead: &mut Lead<'_, K, Filled<V>, E>,
        mark: Mark,
        remote: &Remote<K, V>,
    ) -> Result<Filled<V>, E> {
        self.room.counters.event(Event::Degraded);
        let at_most = remote.at_most();
        self.load(lead, Storage::Alone { mark, at_most })
    }

    /// The process with the lease will not share what it has, or took too long.
    fn load_alone(self, lead: &mut Lead<'_, K, Filled<V>, E>, mark: Mark) -> Result<Filled<V>, E> {
        self.room.counters.event(Event::LoadedAlone);
        self.load(lead, Storage::Alone { mark, at_most: BRIEFLY })
    }
}

impl<K, V, E> Room<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// A loader's result as a flight carries it, stored in the shared tier if it is to be, and
    /// whether L1 is to store it, too.
    #[inline]
    fn store_in_fleet(
        &self,
        key: Asked<'_, K>,
        fill: std::result::Result<Fill<V>, E>,
        previous: Option<&V>,
        loaded: Loaded,
        storage: Storage<'_, K, V>,
    ) -> std::result::Result<(Filled<V>, bool), E> {
        let (fill, storage) = match (fill, storage) {
            (Ok(fill), storage) => (fill, storage),
            (Err(error), Storage::Leased { mut held, .. }) => {
                held.otherwise(Reaction::BackOff);
                return Err(error);
            }
            (Err(error), _) => return Err(error),
        };
        // For a while the key of what is not stored is not worth a lease.
        let alone = !matches!(storage, Storage::Here);
        let (at_most, mark, from) = match &storage {
            Storage::Here => (Duration::MAX, Mark::LOCAL, Source::Loaded),
            Storage::Alone { mark, at_most } => (*at_most, *mark, Source::Alone),
            Storage::Leased { remote, at, .. } => (remote.at_most(), at.mark, Source::Loaded),
        };
        let filled = self.filled(fill, previous, loaded, at_most, mark);
        if alone && matches!(filled, Some((_, None))) {
            self.local.go_alone(key, self.clock.exact().plus(BRIEFLY));
        }
        let Storage::Leased { remote, key: fleet_key, mut held, token, at } = storage else {
            return Ok(match filled {
                Some((kept, lifetime)) => (Filled::With(kept, from), lifetime.is_some()),
                None => (Filled::NothingUnchanged, false),
            });
        };
        let Some((kept, lifetime)) = filled else {
            // As good as an error: the next process would hear the same.
            held.otherwise(Reaction::BackOff);
            return Ok((Filled::NothingUnchanged, false));
        };
        let Some(lifetime) = lifetime else {
            // For whoever waits in this process, and no other.
            held.otherwise(Reaction::LoadAlone);
            return Ok((Filled::With(kept, from), false));
        };
        let sealed = remote.seal(fleet_key, token, &kept, lifetime, at);
        let Ok(bytes) = sealed else {
            self.counters.event(Event::NotEncoded);
            held.otherwise(Reaction::LoadAlone);
            return Ok((Filled::With(kept, from), true));
        };
        // Refused: the key was invalidated, or another process has loaded it since. What is in
        // hand is for those who wait, and must not be kept.
        let committed = remote.commit(held, token, &bytes, lifetime.kept(), &self.counters);
        Ok((Filled::With(kept, from), committed != Committing::Refused))
    }

    /// A loader's result with its stamp, and how long it may be kept, if at all (seeded bug:
    /// `stored_all_the_same`). `None` if the loader says that nothing changed, and there was nothing.
    pub(super) fn filled(
        &self,
        fill: Fill<V>,
        previous: Option<&V>,
        loaded: Loaded,
        at_most: Duration,
        mark: Mark,
    ) -> Option<(Kept<V>, Option<Lifetime>)> {
        let found = match (fill.what, previous) {
            (What::Value(value), _) => Some(value),
            (What::Absent, _) => None,
            (What::Unchanged, previous) => Some(previous?.clone()),
        };
        let policy = &self.policy;
        let draw = fastrand::u64(..);
        let lifetime = match found {
            Some(_) => policy.lifetime(fill.ttl.unwrap_or(policy.ttl), draw),
            None => policy.absence_lifetime(fill.ttl.unwrap_or(policy.absent_ttl), draw),
        };
        let lives = lifetime.unwrap_or(Lifetime::new(Duration::ZERO, Duration::ZERO));
        let span = Span::loaded(loaded.ended, lives, at_most);
        let stamp = self.stamp(span, found.is_some(), loaded.took, mark);
        Some((Kept { found, stamp }, lifetime.filter(|_| fill.store)))
    }

    fn stamp(&self, span: Span, present: bool, took: Duration, mark: Mark) -> Stamp {
        // Only what is loaded by the declared loader can be refreshed, and absences are not.
        let refreshable = present && self.loader.is_some();
        let eagerness = if refreshable { self.policy.early_refresh } else { 0.0 };
        let refresh_from = span.early_from(took, eagerness);
        let cost = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        Stamp { span, refresh_from, cost, weight: 1, mark }
    }
}

/// So many answers in a row may be of no use. With more, what is there is replaced faster than it
/// can be looked at, or not as it should be.
const USELESS: u32 = 3;

/// When a load ended, and how long it took.
#[derive(Clone, Copy)]
pub(super) struct Loaded {
    pub(super) ended: Moment,
    pub(super) took: Duration,
}

/// What a call may still spend on the shared tier.
struct Budget {
    deadline: Deadline,
    left: Duration,
}

impl Budget {
    /// Half of the time there is, at most: the other half is for the load.
    fn new(deadline: Deadline, budget: Duration) -> Budget {
        let left = deadline.remaining().map_or(budget, |remaining| budget.min(remaining / 2));
        Budget { deadline, left }
    }

    fn spend<T>(
        &mut self,
        ask: impl FnOnce(Deadline) -> std::result::Result<T, TierError>,
    ) -> std::result::Result<T, TierError> {
        // A question that is not sent says nothing about the tier.
        if self.left.is_zero() {
            return Err(TierError::TooSlow { waited: Duration::ZERO });
        }
        let started = Instant::now();
        let result = ask(self.deadline.earlier(self.left));
        self.left = self.left.saturating_sub(started.elapsed());
        result
    }
}

/// When to ask again if nothing is heard. Notices are what a loser waits for; this is the net below
/// them.
struct Poll {
    started: Instant,
}

impl Poll {
    /// Until when to listen: the bound, the end of the lease, or the next time to ask. Not so
    /// shortly before the bound that there would be no time for the answer.
    fn next(&self, bound: Deadline, lease_left: Duration, hears: bool) -> Deadline {
        let pause = self.pause(lease_left, hears);
        match bound.remaining() {
            Some(left) if left < pause + Duration::from_millis(10) => bound,
            _ => Deadline::after(pause),
        }
    }

    /// How long the answer that the lease is taken stands. Where nothing is heard that is an eighth
    /// of the time waited so far, from 1 to 50 ms; where notices come, a quarter of a second. Up
    /// to a quarter less, so that the processes of a fleet do not ask in step.
    fn pause(&self, lease_left: Duration, hears: bool) -> Duration {
        let pause = if hears {
            Duration::from_millis(250)
        } else {
            let eighth = self.started.elapsed() / 8;
            eighth.clamp(Duration::from_millis(1), Duration::from_millis(50))
        };
        let pause = pause.mul_f64(1.0 - fastrand::f64() / 4.0);
        // A lease whose end is not known is asked for a little more often.
        let end = if lease_left.is_zero() { Duration::from_millis(50) } else { lease_left };
        pause.min(end.max(Duration::from_millis(1)))
    }
}

/// One call of a loader, counted when it has ended: as a panic, unless told otherwise.
struct Attempt<'a> {
    counts: &'a Counts,
    end: Event,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.counts.event(self.end);
    }
}

/// Unless the load ends well, and if it panics it does not, the next one of what it was to replace
/// is held off. Before the flight lands, or its followers would begin the next at once.
struct BackOff<'a, K: Hash + Eq + Clone, V: Clone, E> {
    room: &'a Room<K, V, E>,
    key: Asked<'a, K>,
    previous: Option<&'a Kept<V>>,
}

impl<K: Hash + Eq + Clone, V: Clone, E> Drop for BackOff<'_, K, V, E> {
    fn drop(&mut self) {
        if let Some(kept) = self.previous {
            let retry = self.room.policy.retry_at(self.room.clock.exact());
            self.room.local.hold_off(self.key, &kept.stamp.span, retry);
        }
    }
}
