//! [`Remote`]: a table's part of the fleet, in terms of the cache: values, not bytes.

use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::error::{CodecError, TierError};
use crate::fleet::envelope::{self, Header, Schema};
use crate::fleet::handle::{Access, Mark, Shared};
use crate::fleet::{
    Acquired, Codec, Committed, Entry, Epoch, Fleet, FleetKey, Held, Key, Lease, Reaction, Seen,
    Stored, Table, Token,
};
use crate::freshness::{Lifetime, Span};
use crate::local::{Kept, Stamp};
use crate::moment::Moment;
use crate::stats::{Counters, Event};

use super::untold::{Due, Untold};

/// What the processes that lost the lease do when they have waited for as long as they may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Losers {
    /// Load for themselves: one load a process, under admission. The result is not stored in the
    /// shared tier, and in L1 for a second.
    LoadAlone,
    /// Fail with [`Error::TimedOut`](crate::Error::TimedOut), or serve a stale value.
    Fail,
}

/// A table's part of a fleet.
pub(super) struct Remote<K, V> {
    pub(super) fleet: Fleet,
    table: Table,
    key: fn(&Table, &K) -> Key,
    codec: Box<dyn Codec<V>>,
    schema: Schema,
    limit: usize,
    untold: Untold,
}

/// Where what is read of a shared table belongs: what a value must be of to be taken, and by what it
/// is told afterwards whether it is current still.
///
/// The mark is the older of the two: whoever hears that a table was invalidated forgets its epoch
/// before it counts the change. So with a mark that knows of that goes an epoch that does, and a
/// value of an epoch that is over is never current.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) mark: Mark,
    epoch: Epoch,
}

/// A value as it was found in the shared tier.
pub(super) struct Found<V> {
    pub(super) kept: Kept<V>,
    /// By which it is told from a newer one.
    pub(super) seen: Option<Seen>,
}

/// What was found.
pub(super) enum Look<V> {
    Found(Found<V>),
    /// Nothing that is of use; perhaps something that is to be replaced.
    Nothing(Option<Seen>),
}

/// What became of asking for the lease.
pub(super) enum Ask<'a, V> {
    Found(Found<V>),
    Won(Held<'a>, Token),
    /// This one has it, for so long at most.
    Held {
        holder: Option<Token>,
        left: Duration,
    },
    /// Something of no use is stored, and is not what was seen: ask again, having seen it.
    Again(Option<Seen>),
}

/// How an attempt to store in the shared tier ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Committing {
    /// It is there.
    Yes,
    /// It is not, and may be nowhere: the lease was lost, or the key was invalidated.
    Refused,
    /// It is not, for reasons that have nothing to do with its being current.
    No,
}

impl<K, V> Remote<K, V> {
    pub(super) fn new(
        fleet: &Fleet,
        table: &str,
        version: u32,
        codec: impl Codec<V> + 'static,
        limit: usize,
    ) -> Self
    where
        K: FleetKey,
    {
        Remote {
            fleet: fleet.clone(),
            table: Table::new(table),
            key: |table, key| Key::new(table, key),
            schema: Schema::new(version, &codec.format()),
            codec: Box::new(codec),
            limit,
            untold: Untold::new(),
        }
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.fleet.shared
    }

    /// For how long L1 may keep what it knows from now on.
    pub(super) fn at_most(&self) -> Duration {
        if self.shared().hears() { Duration::MAX } else { BRIEFLY }
    }

    pub(super) fn key(&self, key: &K) -> Key {
        (self.key)(&self.table, key)
    }

    /// By which it is told whether an entry of this key is current. To be taken before the entry is
    /// read.
    pub(super) fn mark(&self, key: &Key) -> Mark {
        self.shared().mark(key, self.table.fingerprint())
    }

    /// Whether the entry with this mark, which is not current, was said to be out of date.
    pub(super) fn is_void(&self, mark: Mark) -> bool {
        self.shared().is_void(mark, self.table.fingerprint())
    }

    /// Where what is read from now on belongs, and was since this mark was taken.
    pub(super) fn place(&self, mark: Mark, deadline: Deadline) -> Result<Place, TierError> {
        Ok(Place { mark, epoch: self.epoch(deadline)? })
    }

    /// The epoch that values are to have, asking the tier for it if none is known.
    fn epoch(&self, deadline: Deadline) -> Result<Epoch, TierError> {
        let shared = self.shared();
        let fingerprint = self.table.fingerprint();
        let known = shared.epoch_known(fingerprint);
        if let Some((epoch, true)) = known.epoch {
            return Ok(epoch);
        }
        let asked = shared.ask(Access::Read, |tier| tier.epoch(&self.table, deadline));
        match (asked, known.epoch) {
            (Ok(epoch), _) => {
                shared.note_epoch(fingerprint, epoch, &known);
                Ok(epoch)
            }
            // What was known a while ago is likely to be so still.
            (Err(_), Some((epoch, _))) => Ok(epoch),
            (Err(error), None) => Err(error),
        }
    }

    /// What is stored under the key.
    pub(super) fn lookup(
        &self,
        key: &Key,
        at: Place,
        asked: Moment,
        counters: &Counters,
        deadline: Deadline,
    ) -> Result<Look<V>, TierError> {
        let stored = self.shared().ask(Access::Read, |tier| tier.lookup(key, deadline))?;
        Ok(match stored {
            None => Look::Nothing(None),
            Some(stored) => match self.open(key, &stored, at, asked, counters) {
                Some(found) => Look::Found(found),
                None => Look::Nothing(Seen::of(&stored.bytes)),
            },
        })
    }

    /// The lease of the key, or what is stored there meanwhile.
    pub(super) fn acquire<'a>(
        &'a self,
        key: &'a Key,
        at: Place,
        seen: Option<Seen>,
        asked: Moment,
        counters: &Counters,
        deadline: Deadline,
    ) -> Result<Ask<'a, V>, TierError> {
        let shared = self.shared();
        let lease = Lease::new(Token::random(), shared.lease);
        let sent = Instant::now();
        let answer = shared.ask(Access::Write, |tier| tier.acquire(key, lease, seen, deadline));
        // The answer may have been lost, and the lease won: nobody would renew it, and nobody else
        // could have it until it ends.
        if answer.as_ref().is_err_and(TierError::is_transport) {
            let (token, reaction, from) = (lease.token, Reaction::TakeOver, shared.origin);
            let unheard = matches!(answer, Err(TierError::TooSlow { .. }));
            if unheard && deadline.has_passed() {
                shared.disown(key, token);
            } else {
                let _ = shared
                    .ask(Access::Remove, |tier| tier.release(key, token, reaction, from, deadline));
            }
        }
        Ok(match answer? {
            Acquired::Won => Ask::Won(Held::new(shared, key, lease, sent), lease.token),
            Acquired::Held { holder, left } => Ask::Held { holder, left },
            Acquired::Hit(stored) => match self.open(key, &stored, at, asked, counters) {
                Some(found) => Ask::Found(found),
                None => Ask::Again(Seen::of(&stored.bytes)),
            },
        })
    }

    /// Reads what is stored. `None`, and a count, if it is not a value of this key and table that
    /// can be read, or is not to end as it should, so that every reader would find it new; `None`
    /// alone if it is of an epoch that is over.
    fn open(
        &self,
        key: &Key,
        stored: &Stored,
        at: Place,
        asked: Moment,
        counters: &Counters,
    ) -> Option<Found<V>> {
        let kept = self.read(key, &stored.bytes, stored.left, at, asked, counters)?;
        Some(Found { kept, seen: Seen::of(&stored.bytes) })
    }

    fn read(
        &self,
        key: &Key,
        bytes: &[u8],
        left: Option<Duration>,
        at: Place,
        asked: Moment,
        counters: &Counters,
    ) -> Option<Kept<V>> {
        let opened = match envelope::decode(bytes, key.fingerprint(), self.schema) {
            Ok(opened) => opened,
            Err(_) => {
                counters.event(Event::Undecodable);
                return None;
            }
        };
        let header = opened.header;
        if header.epoch != at.epoch {
            return None;
        }
        let lifetime = Lifetime::new(header.ttl, header.life);
        let Some(span) = Span::copied(asked, lifetime, left) else {
            counters.event(Event::Undecodable);
            return None;
        };
        let found = match header.absent {
            true => None,
            false => match self.codec.decode(opened.payload) {
                Ok(value) => Some(value),
                Err(_) => {
                    counters.event(Event::Undecodable);
                    return None;
                }
            },
        };
        let cost = u32::try_from(header.cost.as_micros()).unwrap_or(u32::MAX);
        // When to refresh it and its weight are for the cache to say.
        let refresh_from = span.fresh_until();
        let stamp = Stamp { span, refresh_from, cost, weight: 1, mark: at.mark };
        Some(Kept { found, stamp })
    }

    /// An envelope that another process sent along with its notice: just stored, so as old as its
    /// journey, which is counted as nothing.
    pub(super) fn open_sent(
        &self,
        key: &Key,
        bytes: &[u8],
        at: Place,
        now: Moment,
        counters: &Counters,
    ) -> Option<Kept<V>> {
        let life = envelope::inspect(bytes).ok()?.header.life;
        self.read(key, bytes, Some(life), at, now, counters)
    }

    /// The envelope of a value that was just loaded, or is being put.
    pub(super) fn seal(
        &self,
        key: &Key,
        version: Token,
        kept: &Kept<V>,
        lifetime: Lifetime,
        at: Place,
    ) -> Result<Vec<u8>, CodecError> {
        let header = Header {
            version,
            fingerprint: key.fingerprint(),
            absent: kept.found.is_none(),
            ttl: lifetime.fresh(),
            life: lifetime.kept(),
            cost: Duration::from_micros(kept.stamp.cost.into()),
            schema: self.schema,
            epoch: at.epoch,
        };
        envelope::encode(&header, self.limit, |out| match &kept.found {
            Some(value) => self.codec.encode(value, out),
            None => Ok(()),
        })
    }

    /// Stores what was loaded under a lease.
    pub(super) fn commit(
        &self,
        held: Held<'_>,
        token: Token,
        bytes: &[u8],
        life: Duration,
        counters: &Counters,
    ) -> Committing {
        let entry = Entry::new(token, bytes, life);
        let entry = if bytes.len() <= ANNOUNCED { entry.announced() } else { entry };
        let deadline = Deadline::after(self.shared().budget);
        match held.commit(entry, deadline) {
            Ok(Committed::Stored) => Committing::Yes,
            Ok(Committed::Superseded(there))
                if Seen::of(bytes).is_some_and(|s| s.is(&there.bytes)) =>
            {
                Committing::Yes
            }
            Ok(Committed::Superseded(_) | Committed::Refused) => {
                counters.event(Event::LeaseLost);
                Committing::Refused
            }
            Err(_) => {
                counters.event(Event::FleetWriteFailed);
                Committing::No
            }
        }
    }

    /// Stores what is put, and ends whatever lease there is. What cannot be encoded takes the
    /// place of what was there all the same: there is nothing, then.
    pub(super) fn put_sealed(
        &self,
        key: &Key,
        kept: &Kept<V>,
        lifetime: Lifetime,
        counters: &Counters,
    ) -> Result<(), TierError> {
        let (shared, origin, version) = (self.shared(), self.shared().origin, Token::random());
        let deadline = Deadline::after(shared.budget);
        self.tell(key, || {
            self.tell_of_the_table(deadline)?;
            let at = self.place(kept.stamp.mark, deadline)?;
            let Ok(bytes) = self.seal(key, version, kept, lifetime, at) else {
                counters.event(Event::NotEncoded);
                return self.remove(key, deadline);
            };
            let entry = Entry::new(version, &bytes, lifetime.kept());
            shared.ask(Access::Write, |tier| tier.put(key, entry, origin, deadline))
        })
    }

    /// Removes value and lease.
    pub(super) fn invalidate(&self, key: &Key) -> Result<(), TierError> {
        let deadline = Deadline::after(self.shared().budget);
        self.tell(key, || self.remove(key, deadline))
    }

    /// Makes every value of the table one of an epoch that is over.
    pub(super) fn invalidate_all(&self) -> Result<(), TierError> {
        let since = self.untold.failures();
        let told = self.begin_epoch(Deadline::after(self.shared().budget));
        match &told {
            Ok(()) => self.untold.told_of_the_table(since),
            Err(_) => self.untold.note_the_table(),
        }
        told
    }

    /// Tells the tier what it could not be told when it was so, before anything is read of the key:
    /// it may have what this process has invalidated.
    ///
    /// # Errors
    ///
    /// It has not been told, and what it has of the key must not be taken.
    pub(super) fn catch_up(&self, key: &Key, deadline: Deadline) -> Result<(), TierError> {
        self.tell_of_the_table(deadline)?;
        match self.untold.due(key) {
            Due::Nothing => Ok(()),
            Due::Key => self.tell(key, || self.remove(key, deadline)),
            // Nobody here may ask for it again, but other processes have it until they are told.
            Due::Another(other) => {
                let _ = self.tell(&other, || self.remove(&other, deadline));
                Ok(())
            }
        }
    }

    fn tell_of_the_table(&self, deadline: Deadline) -> Result<(), TierError> {
        if !self.untold.is_the_table_due() {
            return Ok(());
        }
        // One at a time: each begins an epoch of its own, and ends that of the one before.
        let Some(_turn) = self.untold.turn() else {
            return Err(TierError::Unreachable("it is being told what it was not".into()));
        };
        let since = self.untold.failures();
        self.begin_epoch(deadline)?;
        self.untold.told_of_the_table(since);
        Ok(())
    }

    /// Has the tier told of `key`, and keeps in mind whether it was.
    fn tell(
        &self,
        key: &Key,
        ask: impl FnOnce() -> Result<(), TierError>,
    ) -> Result<(), TierError> {
        let since = self.untold.failures();
        let told = ask();
        match &told {
            Ok(()) => self.untold.told(key, since),
            Err(_) => self.untold.note(key),
        }
        told
    }

    fn remove(&self, key: &Key, deadline: Deadline) -> Result<(), TierError> {
        let (shared, origin) = (self.shared(), self.shared().origin);
        shared.ask(Access::Remove, |tier| tier.invalidate(key, origin, deadline))
    }

    /// Always a new one: an old one that comes late could bring back what was stored under it.
    fn begin_epoch(&self, deadline: Deadline) -> Result<(), TierError> {
        let (shared, origin, epoch) = (self.shared(), self.shared().origin, Epoch::random());
        // Known here even if the tier cannot be told: this process trusts nothing of before.
        let table = self.table.fingerprint();
        shared.begin_epoch(table, epoch);
        shared
            .ask(Access::Write, |tier| tier.invalidate_all(&self.table, epoch, origin, deadline))?;
        // Meanwhile another process may have begun one, before or after this one.
        shared.epoch_begun(table, epoch);
        Ok(())
    }
}

/// For how long L1 keeps what was loaded without the lease, or while nothing is heard of other
/// processes.
pub(super) const BRIEFLY: Duration = Duration::from_secs(1);

/// Envelopes up to so many bytes travel with the notice that their key is filled.
const ANNOUNCED: usize = 4 * 1024;
