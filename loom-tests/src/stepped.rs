//! L1 as a model has it: the library's own, each call of which is one step.
//!
//! The map in there has locks of its own, which loom does not see. So a thread of a model is never
//! stopped inside a call; but neither would loom know that two calls have to do with each other,
//! and try them in either order, if each did not touch something of loom's first.

use std::hash::Hash;

use loom::sync::atomic::{AtomicUsize, Ordering};

pub(crate) use crate::unstepped::{
    Asked, Capacity, Displaced, Entry, Hashed, Insertion, Kept, Ready, Stamp,
};

use crate::freshness::Span;
use crate::moment::Moment;
use crate::unstepped;

pub(crate) struct Local<K, V> {
    own: unstepped::Local<K, V>,
    /// Written by every call, those that only look as well: loom loses schedules where a thread
    /// reads and then writes.
    steps: AtomicUsize,
}

impl<K: Hash + Eq + Clone, V: Clone> Local<K, V> {
    pub(crate) fn new(capacity: &Capacity<K, V>, absences: usize) -> Self {
        Local { own: unstepped::Local::new(capacity, absences), steps: AtomicUsize::new(0) }
    }

    #[track_caller]
    fn step(&self) -> &unstepped::Local<K, V> {
        self.steps.fetch_add(1, Ordering::AcqRel);
        &self.own
    }

    #[track_caller]
    pub(crate) fn get(&self, key: Asked<'_, K>) -> Option<Kept<V>> {
        self.step().get(key)
    }

    #[track_caller]
    pub(crate) fn value(&self, key: Asked<'_, K>) -> Option<Entry<V>> {
        self.step().value(key)
    }

    #[track_caller]
    pub(crate) fn absence(&self, key: Asked<'_, K>) -> Option<Kept<V>> {
        self.step().absence(key)
    }

    #[track_caller]
    pub(crate) fn store(&self, ready: Ready<K, V>, displaced: &mut Displaced<K, V>) {
        self.step().store(ready, displaced);
    }

    /// Looks at nothing that changes.
    pub(crate) fn asked<'a>(&self, key: &'a K) -> Asked<'a, K> {
        self.own.asked(key)
    }

    /// Looks at nothing that changes.
    pub(crate) fn ready(&self, key: Asked<'_, K>, kept: Kept<V>) -> Ready<K, V> {
        self.own.ready(key, kept)
    }

    #[track_caller]
    pub(crate) fn hold_off(&self, key: Asked<'_, K>, seen: &Span, at: Moment) {
        self.step().hold_off(key, seen, at);
    }

    #[track_caller]
    pub(crate) fn go_alone(&self, key: Asked<'_, K>, until: Moment) {
        self.step().go_alone(key, until);
    }

    #[track_caller]
    pub(crate) fn goes_alone(&self, key: Asked<'_, K>, now: Moment) -> bool {
        self.step().goes_alone(key, now)
    }

    #[track_caller]
    pub(crate) fn remove(&self, key: Asked<'_, K>) -> Displaced<K, V> {
        self.step().remove(key)
    }

    #[track_caller]
    pub(crate) fn clear(&self) -> Displaced<K, V> {
        self.step().clear()
    }

    #[track_caller]
    pub(crate) fn len(&self) -> (usize, usize) {
        self.step().len()
    }

    #[track_caller]
    pub(crate) fn weight(&self) -> u64 {
        self.step().weight()
    }
}
