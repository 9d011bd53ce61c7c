//! [`Registry`]: which flight is boarded under which key.

use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::moment::Moment;
use crate::sync::{Handle, KeyHasher, Mutex, MutexGuard, SHARDS};

use super::Flight;

/// A map from key to flight, in shards, each behind its own mutex.
///
/// Each shard is a hash map that keeps its keys' hashes. The user's `Hash` so runs once a call,
/// before any lock is taken; under the lock run only `Eq` and `Clone` of the key, at boarding, and
/// if they panic nothing has been changed yet. Retiring a flight looks for the flight itself and
/// runs no code of the user's: a landing cannot fail.
pub(super) struct Registry<K, V, E> {
    shards: Box<[CachePadded<Shard<K, V, E>>]>,
    hasher: KeyHasher,
}

type Shard<K, V, E> = Mutex<Table<K, V, E>>;
type Table<K, V, E> = HashTable<Boarded<K, V, E>>;

struct Boarded<K, V, E> {
    hash: u64,
    key: K,
    flight: Handle<Flight<V, E>>,
}

/// What a caller became, with its flight.
pub(super) enum Role<V, E> {
    Lead(Handle<Flight<V, E>>),
    Follow(Handle<Flight<V, E>>),
}

/// An emptied shard keeps room for this many flights and gives more than that back.
const ROOM_KEPT: usize = 256;

impl<K, V, E> Registry<K, V, E> {
    pub(super) fn new() -> Self {
        let shard = || CachePadded::new(Mutex::new(HashTable::new()));
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

    /// The flight boarded under `key`, or a new one that the caller leads. A flight older than
    /// `max_age` counts as none: a new one takes its place. `now` is the time, if it is known.
    pub(super) fn board(
        &self,
        hash: u64,
        key: &K,
        max_age: Option<Duration>,
        now: Option<Moment>,
    ) -> Role<V, E>
    where
        K: Eq + Clone,
    {
        let new = || Handle::new(Flight::new(now.or_else(|| max_age.map(|_| Moment::now()))));
        // Looked and boarded under one lock (seeded bug: `look_then_board`).
        let mut shard = self.shard(hash);
        match shard.entry(hash, |boarded| boarded.key == *key, |boarded| boarded.hash) {
            Entry::Vacant(place) => {
                let flight = new();
                place.insert(Boarded { hash, key: key.clone(), flight: Handle::clone(&flight) });
                Role::Lead(flight)
            }
            Entry::Occupied(mut boarded) => {
                let boarded = &mut boarded.get_mut().flight;
                if max_age.is_some_and(|max_age| boarded.is_overdue(max_age)) {
                    *boarded = new();
                    return Role::Lead(Handle::clone(boarded));
                }
                Role::Follow(Handle::clone(boarded))
            }
        }
    }

    /// Takes `flight` out, if it is still the one boarded: it may have been forgotten, or
    /// replaced when it was overdue, and then the entry is its successor's (seeded bug:
    /// `retire_without_ptr_eq`). If it is, and only then (seeded bug: `store_whoever_is_boarded`),
    /// `store` is called under the same lock, so that no flight stores anything once another may be
    /// boarded (seeded bug: `store_after_retiring`).
    ///
    /// Returns the key, for the caller to drop when its work is done: the key's Drop is the
    /// user's, and neither the lock nor the followers are to depend on it.
    pub(super) fn retire(
        &self,
        hash: u64,
        flight: &Handle<Flight<V, E>>,
        store: impl FnOnce(),
    ) -> Option<K> {
        let mut shard = self.shard(hash);
        let boarded =
            shard.find_entry(hash, |boarded| Handle::ptr_eq(&boarded.flight, flight)).ok()?;
        let (retired, _) = boarded.remove();
        store();
        give_room_back(&mut shard);
        Some(retired.key)
    }

    /// Calls `then` if `flight` is the one boarded, and while it stays so; `false` if it is not.
    pub(super) fn while_boarded(
        &self,
        hash: u64,
        flight: &Handle<Flight<V, E>>,
        then: impl FnOnce() -> bool,
    ) -> bool {
        let shard = self.shard(hash);
        shard.find(hash, |boarded| Handle::ptr_eq(&boarded.flight, flight)).is_some() && then()
    }

    /// Whether the flight at this address is boarded.
    pub(super) fn is_boarded(&self, hash: u64, flight: usize) -> bool {
        let is_it = |boarded: &Boarded<K, V, E>| boarded.flight.address() == flight;
        self.shard(hash).find(hash, is_it).is_some()
    }

    /// Takes out whatever flight is boarded under `key`. `then` is called under the same lock,
    /// whether there was one or not: before anybody else can board.
    pub(super) fn forget(&self, hash: u64, key: &K, then: impl FnOnce()) -> bool
    where
        K: Eq,
    {
        let mut shard = self.shard(hash);
        let boarded = shard.find_entry(hash, |boarded| boarded.key == *key);
        let forgotten = boarded.ok().map(|boarded| boarded.remove().0);
        then();
        give_room_back(&mut shard);
        drop(shard);
        forgotten.is_some()
    }

    /// Whether a flight is boarded under `key`.
    #[cfg(feature = "cache")]
    pub(super) fn has(&self, hash: u64, key: &K) -> bool
    where
        K: Eq,
    {
        self.shard(hash).find(hash, |boarded| boarded.key == *key).is_some()
    }

    /// When the oldest flight was boarded, of those that were boarded by a caller with a clock.
    #[cfg(feature = "cache")]
    pub(super) fn oldest(&self) -> Option<Moment> {
        let boarded = |boarded: &Boarded<K, V, E>| boarded.flight.boarded;
        self.shards.iter().filter_map(|shard| shard.lock().iter().filter_map(boarded).min()).min()
    }

    /// Takes out every flight. `then` is called under the locks of all shards. Nobody who holds one
    /// waits for another, so they can be had one after the other.
    #[cfg(feature = "cache")]
    pub(super) fn forget_all(&self, then: impl FnOnce()) {
        let mut shards: Vec<_> = self.shards.iter().map(|shard| shard.lock()).collect();
        let take = |shard: &mut MutexGuard<'_, Table<K, V, E>>| std::mem::take(&mut **shard);
        let forgotten: Vec<_> = shards.iter_mut().map(take).collect();
        then();
        drop(shards);
        drop(forgotten);
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Table<K, V, E>> {
        // The table uses the lowest bits for the place and the highest seven as its tag.
        self.shards[(hash >> 40) as usize % SHARDS].lock()
    }
}

/// A herd over very many keys leaves no table of its size behind.
fn give_room_back<T>(shard: &mut HashTable<T>) {
    if shard.is_empty() && shard.capacity() > ROOM_KEPT {
        *shard = HashTable::new();
    }
}
