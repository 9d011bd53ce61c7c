//! L1: the values and the absences this process remembers.
//!
//! A map with a size limit and nothing more: what is fresh, stale or expired is for
//! [`freshness`](crate::freshness) to say, and what may be stored is for the flight. Entries are
//! kept by value, not behind a pointer: a hit is the most frequent thing this crate does.

use std::hash::{BuildHasher, Hash, Hasher};
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use quick_cache::sync::{Cache, EntryAction};
use quick_cache::{Equivalent, Lifecycle, OptionsBuilder, Weighter};

use crate::fleet::Mark;
use crate::freshness::Span;
use crate::moment::Moment;
use crate::sync::{EvenHasher, LazyLock};

/// When an entry was loaded, how long it lives, and when to think of refreshing it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    pub(crate) span: Span,
    /// Before this moment no refresh begins: it is not due early, or the last one failed.
    pub(crate) refresh_from: Moment,
    /// What the load took, in microseconds; 0 if it is not known.
    pub(crate) cost: u32,
    /// What it counts towards the capacity. [`Local::store`] sets it; kept, because to ask the
    /// weigher again would run the user's code under a lock.
    pub(crate) weight: u32,
    /// By which it is told whether other processes may have changed it since.
    pub(crate) mark: Mark,
}

/// What is remembered of a key.
#[derive(Clone, Debug)]
pub(crate) struct Kept<V> {
    /// The value, or that there is none.
    pub(crate) found: Option<V>,
    pub(crate) stamp: Stamp,
}

/// A value that is remembered. Not a [`Kept`], which is larger.
#[derive(Clone)]
pub(crate) struct Entry<V> {
    pub(crate) value: V,
    pub(crate) stamp: Stamp,
}

impl<V> From<Entry<V>> for Kept<V> {
    fn from(entry: Entry<V>) -> Self {
        Kept { found: Some(entry.value), stamp: entry.stamp }
    }
}

/// Something to be remembered, and what the user's code had to say of it.
pub(crate) struct Ready<K, V> {
    key: Hashed<K>,
    pub(crate) kept: Kept<V>,
    weight: u32,
}

/// A key that brings its hash along. So no user's `Hash` runs in the maps: they hash what they push
/// out once more, in the middle of it, and a panic there would leave them in pieces.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Hashed<K> {
    hash: u64,
    key: K,
}

impl<K> Hash for Hashed<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl<K> Hashed<K> {
    pub(crate) fn asked(&self) -> Asked<'_, K> {
        Asked { hash: self.hash, key: &self.key }
    }
}

/// A key that is asked for, with its hash: the user's `Hash` runs once in a call, before anything
/// else has begun.
pub(crate) struct Asked<'a, K> {
    pub(crate) hash: u64,
    pub(crate) key: &'a K,
}

impl<K> Clone for Asked<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Asked<'_, K> {}

impl<K: Clone> Asked<'_, K> {
    pub(crate) fn hashed(self) -> Hashed<K> {
        Hashed { hash: self.hash, key: self.key.clone() }
    }
}

impl<K> Hash for Asked<'_, K> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl<K: Eq> Equivalent<Hashed<K>> for Asked<'_, K> {
    #[inline]
    fn equivalent(&self, other: &Hashed<K>) -> bool {
        *self.key == other.key
    }
}

/// Takes the hash that a key brings for what it is.
#[derive(Clone)]
struct AsItIs(u64);

impl BuildHasher for AsItIs {
    type Hasher = AsItIs;

    #[inline]
    fn build_hasher(&self) -> AsItIs {
        AsItIs(0)
    }
}

impl Hasher for AsItIs {
    fn write(&mut self, _: &[u8]) {
        unreachable!("a hash is all that is hashed");
    }

    #[inline]
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Gives a value's weight in units of the capacity.
pub(crate) type Weigher<K, V> = Arc<dyn Fn(&K, &V) -> u32 + Send + Sync>;

/// How much L1 may hold.
#[derive(Clone)]
pub(crate) enum Capacity<K, V> {
    /// So many values.
    Entries(usize),
    /// Values up to this weight together.
    Weight(u64, Weigher<K, V>),
}

/// The two shares of L1. Absences have their own, so that a scan for what does not exist cannot
/// push out what does.
///
/// Hashed with more care than a group by itself hashes its keys. The shards of a share divide its
/// capacity among them, and with the fast hasher about one process in a hundred has a seed that puts
/// half of all consecutive numbers, or all of them, into one shard.
pub(crate) struct Local<K, V> {
    hasher: EvenHasher,
    values: Share<K, Entry<V>>,
    absences: Share<K, Stamp>,
    /// Whether an absence was ever remembered: most tables have none, and need not look for any.
    /// Set before the first is stored, so whoever was told of that sees it.
    any_absences: AtomicBool,
    /// Keys whose values are not to be stored, and until when that is remembered.
    alone: Share<K, Moment>,
    weigher: Option<Weigher<K, V>>,
    heaviest: u64,
}

type Share<K, T> = Cache<Hashed<K>, T, ByWeight, AsItIs, PutAside>;

/// What an insertion pushed out, and what became of what was inserted. To be dropped when no lock
/// is held: it holds the user's keys and values.
#[must_use]
pub(crate) struct Displaced<K, V> {
    _values: Evicted<Hashed<K>, Entry<V>>,
    _absences: Evicted<Hashed<K>, Stamp>,
    pub(crate) insertion: Option<Insertion>,
}

/// What became of what was to be remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Insertion {
    Stored,
    TooHeavy,
}

impl<K, V> Default for Displaced<K, V> {
    fn default() -> Self {
        Displaced { _values: Evicted::default(), _absences: Evicted::default(), insertion: None }
    }
}

/// Below this capacity by weight there is one shard, so that the capacity is not cut into parts
/// too small for a heavy value.
const ONE_SHARD_BELOW: u64 = 1 << 20;

/// The part of L1 that is for what has been asked for more than once. The map takes nothing heavier
/// than that.
const PROTECTED: f64 = 0.97;

/// For how many keys it is remembered that their values are not to be stored.
const ALONE: usize = 1_000;

impl<K: Hash + Eq + Clone, V: Clone> Local<K, V> {
    pub(crate) fn new(capacity: &Capacity<K, V>, absences: usize) -> Self {
        let cores = *CORES;
        let (values, weigher) = match capacity {
            Capacity::Entries(entries) => (share_of(*entries, cores), None),
            Capacity::Weight(weight, weigher) => {
                let items = usize::try_from(weight / 64).unwrap_or(usize::MAX);
                let shards = if *weight < ONE_SHARD_BELOW { 1 } else { shards(items, cores) };
                (share(*weight, items, shards), Some(Arc::clone(weigher)))
            }
        };
        let (absences, alone) = (share_of(absences, cores), share_of(ALONE, cores));
        // As the map reckons it.
        let heaviest = (values.shard_capacity() as f64 * PROTECTED) as u64;
        let heaviest = heaviest.clamp(values.capacity().min(1), values.shard_capacity());
        let any_absences = AtomicBool::new(false);
        let hasher = EvenHasher::default();
        Local { hasher, values, absences, any_absences, alone, weigher, heaviest }
    }

    /// Runs the user's `Hash`: not under a lock.
    #[inline]
    pub(crate) fn asked<'a>(&self, key: &'a K) -> Asked<'a, K> {
        Asked { hash: self.hasher.hash_one(key), key }
    }

    /// What is remembered of `key`, however old.
    pub(crate) fn get(&self, key: Asked<'_, K>) -> Option<Kept<V>> {
        self.value(key).map(Kept::from).or_else(|| self.absence(key))
    }

    /// The value that is remembered of `key`.
    #[inline]
    pub(crate) fn value(&self, key: Asked<'_, K>) -> Option<Entry<V>> {
        self.values.get(&key)
    }

    /// What is remembered of `key` if that it has no value.
    pub(crate) fn absence(&self, key: Asked<'_, K>) -> Option<Kept<V>> {
        let absence = if self.any_absences() { self.absences.get(&key) } else { None };
        absence.map(|stamp| Kept { found: None, stamp })
    }

    /// What is to be [stored](Local::store). Runs the user's `Clone` of the key and the
    /// weigher of the value: not under a lock.
    pub(crate) fn ready(&self, key: Asked<'_, K>, kept: Kept<V>) -> Ready<K, V> {
        let weight = match (&self.weigher, &kept.found) {
            (Some(weigher), Some(value)) => weigher(key.key, value).max(1),
            _ => 1,
        };
        Ready { key: key.hashed(), kept, weight }
    }

    /// Remembers what is ready in place of whatever was remembered of its key. What that displaces
    /// is put where the caller drops it later.
    ///
    /// The caller holds the registry's lock for this key, so nobody else stores under it.
    pub(crate) fn store(&self, ready: Ready<K, V>, displaced: &mut Displaced<K, V>) {
        let Ready { key, kept, weight } = ready;
        displaced.insertion = Some(Insertion::Stored);
        match kept.found {
            Some(value) => {
                let entry = Entry { value, stamp: Stamp { weight, ..kept.stamp } };
                if self.any_absences() {
                    displaced._absences.first = self.absences.remove(&key);
                }
                if u64::from(weight) > self.heaviest {
                    displaced.insertion = Some(Insertion::TooHeavy);
                }
                // What is refused is displaced itself, along with what it was to replace.
                let displaced = &mut displaced._values;
                self.values.insert_with_lifecycle(key, entry, displaced);
            }
            None => {
                displaced._values.first = self.values.remove(&key);
                self.any_absences.store(true, Ordering::Release);
                let displaced = &mut displaced._absences;
                self.absences.insert_with_lifecycle(key, kept.stamp, displaced);
            }
        }
    }

    /// No refresh of `key` before `at`, if what is remembered of it is still what was `seen`.
    pub(crate) fn hold_off(&self, key: Asked<'_, K>, seen: &Span, at: Moment) {
        if self.values.contains_key(&key) {
            let delay = |_: &Hashed<K>, there: &mut Entry<V>| {
                if there.stamp.span == *seen {
                    there.stamp.refresh_from = at;
                }
                EntryAction::<()>::Retain(())
            };
            drop(self.values.entry(&key.hashed(), None, delay));
        }
    }

    /// Until `until` a load of `key` is not worth a lease: what it comes to is not stored.
    pub(crate) fn go_alone(&self, key: Asked<'_, K>, until: Moment) {
        self.alone.insert(key.hashed(), until);
    }

    pub(crate) fn goes_alone(&self, key: Asked<'_, K>, now: Moment) -> bool {
        self.alone.get(&key).is_some_and(|until| now < until)
    }

    /// Forgets what is remembered of a key.
    pub(crate) fn remove(&self, key: Asked<'_, K>) -> Displaced<K, V> {
        let mut displaced = Displaced::default();
        displaced._values.first = self.values.remove(&key);
        if self.any_absences() {
            displaced._absences.first = self.absences.remove(&key);
        }
        displaced
    }

    #[inline]
    fn any_absences(&self) -> bool {
        self.any_absences.load(Ordering::Acquire)
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) -> Displaced<K, V> {
        let mut displaced = Displaced::default();
        displaced._values.more.extend(self.values.drain());
        displaced._absences.more.extend(self.absences.drain());
        displaced
    }

    /// How many values and how many absences are remembered, expired ones included.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.values.len(), self.absences.len())
    }

    /// The weight of the values remembered.
    pub(crate) fn weight(&self) -> u64 {
        self.values.weight()
    }
}

/// Asked for once: it takes the reading of some files.
static CORES: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, NonZero::get));

/// A share of so many entries, which weigh 1 each, on a machine of so many cores.
fn share_of<K, T: Clone>(entries: usize, cores: usize) -> Share<K, T>
where
    K: Hash + Eq,
    ByWeight: Weighter<Hashed<K>, T>,
{
    share(entries as u64, entries, shards(entries, cores))
}

/// A share of such a weight, for about so many items, in so many shards. Never of more than that weight,
/// on whatever machine: the map would round it up, and what cannot be divided is left out.
fn share<K, T: Clone>(weight: u64, items: usize, shards: usize) -> Share<K, T>
where
    K: Hash + Eq,
    ByWeight: Weighter<Hashed<K>, T>,
{
    let weight = weight / shards as u64 * shards as u64;
    let options = OptionsBuilder::new()
        .weight_capacity(weight)
        .estimated_items_capacity(items.min(1 << 20))
        .shards(shards)
        .hot_allocation(PROTECTED)
        .build();
    Cache::with_options(options.expect("both capacities are set"), ByWeight, AsItIs(0), PutAside)
}

/// A power of two, as the map makes it: four for each core at most, and none of fewer than 32 items.
fn shards(items: usize, cores: usize) -> usize {
    1 << (4 * cores).min(items / 32).max(1).ilog2()
}

#[derive(Clone)]
struct ByWeight;

impl<K, V> Weighter<K, Entry<V>> for ByWeight {
    #[inline]
    fn weight(&self, _: &K, entry: &Entry<V>) -> u64 {
        u64::from(entry.stamp.weight)
    }
}

impl<K> Weighter<K, Moment> for ByWeight {
    #[inline]
    fn weight(&self, _: &K, _: &Moment) -> u64 {
        1
    }
}

impl<K> Weighter<K, Stamp> for ByWeight {
    #[inline]
    fn weight(&self, _: &K, _: &Stamp) -> u64 {
        1
    }
}

/// Puts what is evicted aside, so that it is dropped by the caller and not under the map's lock.
#[derive(Clone)]
struct PutAside;

/// One is the rule.
struct Evicted<K, T> {
    first: Option<(K, T)>,
    more: Vec<(K, T)>,
}

impl<K, T> Default for Evicted<K, T> {
    fn default() -> Self {
        Evicted { first: None, more: Vec::new() }
    }
}

impl<K, T> Lifecycle<K, T> for PutAside {
    type RequestState = Evicted<K, T>;

    #[inline]
    fn on_evict(&self, evicted: &mut Evicted<K, T>, key: K, value: T) {
        match evicted.first {
            None => evicted.first = Some((key, value)),
            Some(_) => evicted.more.push((key, value)),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_shards_than_can_be_filled_on_any_machine() {
        for cores in [1, 2, 3, 12, 64, 1_000] {
            for items in (0..20_000).chain([100_000, 1 << 20, usize::MAX]) {
                let shards = shards(items, cores);
                assert!(shards.is_power_of_two() && shards <= 4 * cores);
                assert!(shards == 1 || items / shards >= 32, "{items}: {shards}");
            }
        }
    }

    #[test]
    fn a_share_holds_no_more_than_it_may_on_any_machine_and_little_less() {
        let hasher = EvenHasher::default();
        for cores in [1, 2, 3, 12, 64] {
            for entries in [0, 1, 31, 32, 100, 999, 1_000, 10_000] {
                let share: Share<u64, Moment> = share_of(entries, cores);
                assert!(share.capacity() <= entries as u64);
                assert!(share.capacity() * 33 >= entries as u64 * 32);
                // Every shard is full by then.
                for key in 0..20 * entries as u64 {
                    let asked = Asked { hash: hasher.hash_one(key), key: &key };
                    share.insert(asked.hashed(), Moment(0));
                }
                assert_eq!(share.weight(), share.capacity());
            }
            let weight = (1 << 20) + 1;
            let share: Share<u64, Moment> = share(weight, 1 << 14, shards(1 << 14, cores));
            assert!(share.capacity() <= weight);
        }
    }
}
