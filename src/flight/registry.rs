//! [`Registry`]: which flight is boarded under which key.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::moment::Moment;
use crate::sync::{Handle, KeyHasher, Mutex, MutexGuard, SHARDS, age};

use super::waits::this_thread;
use super::{Boarding, Flight};

/// A map from key to flight, in shards, each behind its own mutex.
///
/// Each shard is a hash map that keeps its keys' hashes. The user's `Hash` so runs once a call,
/// before any lock is taken. Under the lock run `Eq` and `Clone` of a key that is asked for, and if
/// they panic nothing has been changed yet; and what a cache has to do in the same step, which runs
/// `Eq`, too. Retiring a flight looks for its number: the user has no part in that, and no landing can
/// fail for it.
pub(super) struct Registry<K, V, E> {
    shards: Box<[Door<K, V, E>]>,
    hasher: KeyHasher,
}

type Door<K, V, E> = CachePadded<Mutex<Shard<K, V, E>>>;

struct Shard<K, V, E> {
    boarded: HashTable<Boarded<K, V, E>>,
    /// By number, flights that are boarded no more and have not landed yet, for they were forgotten
    /// or replaced: those that are followed, each until its leader comes for it (seeded bugs:
    /// `forgotten_with_its_followers`, `replaced_with_its_followers`).
    unboarded: BTreeMap<u64, Handle<Flight<V, E>>>,
    /// How many flights there have been.
    count: u64,
}

/// A flight as the registry has it.
pub(super) struct Boarded<K, V, E> {
    boarding: Boarding,
    key: K,
    /// Made by the first who shares it.
    flight: Option<Handle<Flight<V, E>>>,
}

/// What a caller became, with what it has of another's flight.
pub(super) enum Role<F> {
    Lead(Boarding),
    Follow(F),
}

/// An emptied shard keeps room for this many flights and gives more than that back.
const ROOM_KEPT: usize = 256;

impl<K, V, E> Registry<K, V, E> {
    pub(super) fn new() -> Self {
        let shard = || CachePadded::new(Mutex::new(Shard::new()));
        Registry {
            shards: std::iter::repeat_with(shard).take(SHARDS).collect(),
            hasher: KeyHasher::default(),
        }
    }

    pub(super) fn hash(&self, key: &K) -> u64
    where
        K: Hash,
    {
        self.hasher.hash_one(key)
    }

    /// What `follow` makes of the flight that is boarded under `key`, or a new one that the caller
    /// leads. A flight older than `max_age` counts as none: a new one takes its place. `now` is the
    /// time, if it is known.
    #[inline]
    pub(super) fn board<F>(
        &self,
        hash: u64,
        key: &K,
        max_age: Option<Duration>,
        now: Option<Moment>,
        follow: impl FnOnce(&mut Boarded<K, V, E>) -> F,
    ) -> Role<F>
    where
        K: Eq + Clone,
    {
        // Looked and boarded under one lock (seeded bug: `look_then_board`).
        let mut shard = self.shard(hash);
        let Shard { boarded, unboarded, count } = &mut *shard;
        let mut new = || {
            *count += 1;
            let at = now.or_else(|| max_age.map(|_| Moment::now()));
            Boarding { hash, number: *count, driver: this_thread(), at }
        };
        match boarded.entry(hash, |there| there.key == *key, |there| there.boarding.hash) {
            Entry::Vacant(place) => {
                let boarding = new();
                place.insert(Boarded { boarding, key: key.clone(), flight: None });
                Role::Lead(boarding)
            }
            Entry::Occupied(mut there) => {
                let there = there.get_mut();
                if max_age.is_some_and(|max_age| there.is_overdue(max_age)) {
                    unboarded.extend(there.unboarded());
                    there.boarding = new();
                    return Role::Lead(there.boarding);
                }
                Role::Follow(follow(there))
            }
        }
    }

    /// Takes the flight out, if it is still the one boarded: it may have been forgotten, or
    /// replaced when it was overdue, and then the entry is its successor's (seeded bug:
    /// `retire_whoever_is_boarded`). If it is, and only then (seeded bug:
    /// `store_whoever_is_boarded`), `store` is called under the same lock, so that no flight stores
    /// anything once another may be boarded (seeded bug: `store_after_retiring`).
    ///
    /// If anybody shares the flight, `shared` has it afterwards, even if `store` panics. Returns the
    /// key, for the caller to drop when its work is done: the key's Drop is the user's, and neither
    /// the lock nor the followers are to depend on it.
    #[inline]
    pub(super) fn retire(
        &self,
        boarding: &Boarding,
        shared: &mut Option<Handle<Flight<V, E>>>,
        store: impl FnOnce(),
    ) -> Option<K> {
        // Before the lock is taken, or the key would be dropped under it if `store` panics.
        let retired;
        let mut shard = self.shard(boarding.hash);
        let Ok(boarded) = shard.boarded.find_entry(boarding.hash, |there| there.is(boarding))
        else {
            let unboarded = shard.unboarded.remove(&boarding.number);
            *shared = unboarded.or(shared.take());
            return None;
        };
        let Boarded { key, flight, .. } = boarded.remove().0;
        retired = key;
        *shared = flight.or(shared.take());
        store();
        shard.give_room_back();
        Some(retired)
    }

    /// Calls `then` if the flight is the one boarded, and while it stays so, with what those have of
    /// it who share it; `false` if it is not.
    pub(super) fn while_boarded(
        &self,
        boarding: &Boarding,
        then: impl FnOnce(Option<&Flight<V, E>>) -> bool,
    ) -> bool {
        let shard = self.shard(boarding.hash);
        let boarded = shard.boarded.find(boarding.hash, |there| there.is(boarding));
        boarded.is_some_and(|there| then(there.flight.as_deref()))
    }

    /// The flight, to be shared. One that is boarded no more and that nobody follows is the leader's
    /// alone from now on.
    #[cfg(feature = "cache")]
    pub(super) fn share(&self, boarding: &Boarding) -> Handle<Flight<V, E>> {
        let mut shard = self.shard(boarding.hash);
        if let Some(there) = shard.boarded.find_mut(boarding.hash, |there| there.is(boarding)) {
            return there.shared();
        }
        let unboarded = shard.unboarded.get(&boarding.number);
        unboarded.map_or_else(|| Handle::new(Flight::new(*boarding)), Handle::clone)
    }

    /// Whether the flight of this number is boarded.
    pub(super) fn is_boarded(&self, hash: u64, number: u64) -> bool {
        let is_it = |there: &Boarded<K, V, E>| there.boarding.number == number;
        self.shard(hash).boarded.find(hash, is_it).is_some()
    }

    /// Takes out whatever flight is boarded under `key`. `then` is called under the same lock,
    /// whether there was one or not: before anybody else can board.
    pub(super) fn forget(&self, hash: u64, key: &K, then: impl FnOnce()) -> bool
    where
        K: Eq,
    {
        // Before the lock is taken, for the same reason.
        let mut forgotten = None;
        let mut shard = self.shard(hash);
        let Shard { boarded, unboarded, .. } = &mut *shard;
        if let Ok(boarded) = boarded.find_entry(hash, |there| there.key == *key) {
            let boarded = forgotten.insert(boarded.remove().0);
            unboarded.extend(boarded.unboarded());
        }
        then();
        shard.give_room_back();
        drop(shard);
        forgotten.is_some()
    }

    /// Whether a flight is boarded under `key`.
    #[cfg(feature = "cache")]
    pub(super) fn has(&self, hash: u64, key: &K) -> bool
    where
        K: Eq,
    {
        self.shard(hash).boarded.find(hash, |there| there.key == *key).is_some()
    }

    /// When the oldest flight was boarded, of those that were boarded by a caller with a clock.
    #[cfg(feature = "cache")]
    pub(super) fn oldest(&self) -> Option<Moment> {
        let oldest = |shard: &Door<K, V, E>| {
            shard.lock().boarded.iter().filter_map(|there| there.boarding.at).min()
        };
        self.shards.iter().filter_map(oldest).min()
    }

    /// Takes out every flight. `then` is called under the locks of all shards. Nobody who holds one
    /// waits for another, so they can be had one after the other.
    #[cfg(feature = "cache")]
    pub(super) fn forget_all(&self, then: impl FnOnce()) {
        let forgotten: Vec<_>;
        let mut shards: Vec<_> = self.shards.iter().map(|shard| shard.lock()).collect();
        let take = |shard: &mut MutexGuard<'_, Shard<K, V, E>>| {
            let Shard { boarded, unboarded, .. } = &mut **shard;
            unboarded.extend(boarded.iter_mut().filter_map(Boarded::unboarded));
            std::mem::take(boarded)
        };
        forgotten = shards.iter_mut().map(take).collect();
        then();
        drop(shards);
        drop(forgotten);
    }

    /// How many flights wait for their leaders to come for them.
    #[cfg(all(test, not(loom)))]
    pub(super) fn unboarded(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unboarded.len()).sum()
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().boarded.len()).sum()
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<K, V, E>> {
        // The table uses the lowest bits for the place and the highest seven as its tag.
        self.shards[(hash >> 40) as usize % SHARDS].lock()
    }
}

impl<K, V, E> Shard<K, V, E> {
    fn new() -> Self {
        Shard { boarded: HashTable::new(), unboarded: BTreeMap::new(), count: 0 }
    }

    /// A herd over very many keys leaves no table of its size behind.
    fn give_room_back(&mut self) {
        if self.boarded.is_empty() && self.boarded.capacity() > ROOM_KEPT {
            self.boarded = HashTable::new();
        }
    }
}

impl<K, V, E> Boarded<K, V, E> {
    fn is(&self, boarding: &Boarding) -> bool {
        self.boarding.number == boarding.number
    }

    /// The flight, to be shared.
    pub(super) fn shared(&mut self) -> Handle<Flight<V, E>> {
        let flight = || Handle::new(Flight::new(self.boarding));
        Handle::clone(self.flight.get_or_insert_with(flight))
    }

    /// What is left of it for those who share it, if anybody does.
    fn unboarded(&mut self) -> Option<(u64, Handle<Flight<V, E>>)> {
        self.flight.take().map(|flight| (self.boarding.number, flight))
    }

    /// Whether its load takes longer than it should, and on another thread than this one: to a
    /// thread that asks for what it is loading itself a second load is no help (seeded bug:
    /// `own_flight_is_overdue`).
    fn is_overdue(&self, max_age: Duration) -> bool {
        if self.boarding.at.is_none_or(|at| age(at) < max_age) {
            return false;
        }
        match &self.flight {
            None => !self.boarding.driver.is_here(),
            // It may be another's by now. Few flights get so old that their gate is taken for this.
            Some(flight) => flight.is_overdue(max_age),
        }
    }
}
