//! The only door to threads' identities, locks, condvars and once-cells.
//!
//! Everything in this crate that blocks, or that one thread writes and another reads, is named
//! here and nowhere else, so that one `--cfg loom` puts the whole crate under the model checker.
//! The two halves have the same names and the same shapes: those of parking_lot and once_cell, and
//! of a bell.

#[cfg(not(loom))]
pub(crate) use real::*;

#[cfg(loom)]
pub(crate) use model::*;

/// The primitives themselves, re-exported.
#[cfg(not(loom))]
mod real {
    pub(crate) use once_cell::sync::OnceCell;
    pub(crate) use parking_lot::{Mutex, MutexGuard};
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};

    use std::sync::Condvar;
    use std::time::Instant;

    /// Hashes keys; seeded once per process, so that nobody outside can choose collisions.
    pub(crate) type KeyHasher = foldhash::fast::RandomState;

    /// How many followers share a row. More do not make a herd leave sooner.
    pub(crate) const ROW: usize = 32;

    /// Shards of a registry: enough that threads on distinct keys seldom meet, few enough that an
    /// idle registry stays small (a shard is one padded line until it is used).
    pub(crate) const SHARDS: usize = 64;

    /// A value under a lock, and threads that wait for it to change.
    ///
    /// Made of std's primitives, which wake all who wait with one system call. parking_lot's condvar
    /// would hand them over to the mutex, which lets them go one by one.
    #[derive(Debug)]
    pub(crate) struct Bell<T> {
        value: std::sync::Mutex<T>,
        changed: Condvar,
    }

    impl<T> Bell<T> {
        pub(crate) fn new(value: T) -> Self {
            Bell { value: std::sync::Mutex::new(value), changed: Condvar::new() }
        }

        /// Changes the value and wakes all who wait.
        pub(crate) fn ring(&self, change: impl FnOnce(&mut T)) {
            change(&mut self.value.lock().expect(UNPOISONED));
            self.changed.notify_all();
        }

        /// Waits until `heard` finds something in the value; `None` if the deadline fires before.
        pub(crate) fn wait_until<R>(
            &self,
            deadline: Option<Instant>,
            heard: impl Fn(&T) -> Option<R>,
        ) -> Option<R> {
            let mut value = self.value.lock().expect(UNPOISONED);
            loop {
                if let Some(heard) = heard(&value) {
                    return Some(heard);
                }
                value = match deadline {
                    None => self.changed.wait(value).expect(UNPOISONED),
                    Some(at) => {
                        let left = at.checked_duration_since(Instant::now())?;
                        self.changed.wait_timeout(value, left).expect(UNPOISONED).0
                    }
                };
            }
        }
    }

    const UNPOISONED: &str = "nothing that can panic runs under a bell's lock";

    /// A static that both halves can make.
    macro_rules! global {
        ($(#[$doc:meta])* static $name:ident: $type:ty = $value:expr;) => {
            $(#[$doc])*
            static $name: $type = $value;
        };
    }
    pub(crate) use global;

    /// A thread's own variables, which both halves can make.
    macro_rules! local {
        ($($(#[$doc:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
            std::thread_local! { $($(#[$doc])* static $name: $type = const { $value };)* }
        };
    }
    pub(crate) use local;
}

/// The same names over [loom](https://docs.rs/loom), which runs a model once for each way its
/// threads can interleave.
///
/// **Deadlines.** loom has no clock, so a wait's end is decided by its deadline's *fate*. A
/// deadline within the next hour fires: the wait gives its lock up, anything may happen, and it
/// takes the lock back timed out. A deadline further off fires late: the lock comes back only
/// after the scenario has called [`landed`]. A wait without a deadline must be notified, or the
/// model reports a deadlock: no real timer papers over a lost wake-up.
///
/// Reference counts are the real [`Arc`]s: loom's own would multiply the schedules, and abort the
/// process where a deadlock is to be reported. Leaks are found by a tracker in each cell instead.
#[cfg(loom)]
mod model {
    use std::ops::{Deref, DerefMut};
    use std::time::{Duration, Instant};

    use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::{AtomicUsize, Ordering};
    pub(crate) use loom::thread_local as local;
    pub(crate) use std::sync::Arc;

    /// Unseeded: which shard a key falls into must not differ between two runs of one schedule.
    pub(crate) type KeyHasher = foldhash::fast::FixedState;

    /// Two, so that three callers are enough for a woken follower to owe another its call, and four
    /// for a row that is shared.
    pub(crate) const ROW: usize = 2;

    pub(crate) const SHARDS: usize = 2;

    macro_rules! global {
        ($(#[$doc:meta])* static $name:ident: $type:ty = $value:expr;) => {
            loom::lazy_static! { $(#[$doc])* static ref $name: $type = $value; }
        };
    }
    pub(crate) use global;

    loom::lazy_static! {
        static ref LANDED: AtomicUsize = AtomicUsize::new(0);
    }

    /// Lets the waits whose deadline fires late go on.
    pub(crate) fn landed() {
        LANDED.store(1, Ordering::SeqCst);
    }

    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    pub(crate) struct MutexGuard<'a, T> {
        lock: &'a Mutex<T>,
        held: Option<loom::sync::MutexGuard<'a, T>>,
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }

        /// Panics if a panic was caught while the lock was held: user code ran under it.
        #[track_caller]
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard { lock: self, held: Some(self.0.lock().unwrap()) }
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.held.as_ref().unwrap()
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.held.as_mut().unwrap()
        }
    }

    #[derive(Debug)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    pub(crate) struct WaitTimeoutResult(bool);

    impl WaitTimeoutResult {
        pub(crate) fn timed_out(&self) -> bool {
            self.0
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Self {
            Condvar(loom::sync::Condvar::new())
        }

        #[track_caller]
        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            guard.held = Some(self.0.wait(guard.held.take().unwrap()).unwrap());
        }

        #[track_caller]
        pub(crate) fn wait_until<T>(
            &self,
            guard: &mut MutexGuard<'_, T>,
            deadline: Instant,
        ) -> WaitTimeoutResult {
            let late = deadline > Instant::now() + Duration::from_secs(3600);
            guard.held = None; // anything may happen here ...
            while late && LANDED.load(Ordering::SeqCst) == 0 {
                loom::thread::yield_now();
            }
            guard.held = Some(guard.lock.0.lock().unwrap()); // ... until the lock is ours again
            WaitTimeoutResult(true)
        }

        #[track_caller]
        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        #[track_caller]
        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    #[derive(Debug)]
    pub(crate) struct Bell<T> {
        value: Mutex<T>,
        changed: Condvar,
    }

    impl<T> Bell<T> {
        pub(crate) fn new(value: T) -> Self {
            Bell { value: Mutex::new(value), changed: Condvar::new() }
        }

        #[track_caller]
        pub(crate) fn ring(&self, change: impl FnOnce(&mut T)) {
            change(&mut self.value.lock());
            self.changed.notify_all();
        }

        #[track_caller]
        pub(crate) fn wait_until<R>(
            &self,
            deadline: Option<Instant>,
            heard: impl Fn(&T) -> Option<R>,
        ) -> Option<R> {
            let mut value = self.value.lock();
            loop {
                if let Some(heard) = heard(&value) {
                    return Some(heard);
                }
                match deadline {
                    None => self.changed.wait(&mut value),
                    Some(at) => {
                        if self.changed.wait_until(&mut value, at).timed_out() {
                            return heard(&value);
                        }
                    }
                }
            }
        }
    }

    /// `get` and `set` of once_cell's cell. loom checks that each read is ordered after the write.
    #[derive(Debug)]
    pub(crate) struct OnceCell<T> {
        state: AtomicUsize,
        slot: UnsafeCell<Option<T>>,
        /// loom fails the model if this is never dropped: a leaked flight.
        _leak: loom::alloc::Track<()>,
    }

    const EMPTY: usize = 0;
    const WRITING: usize = 1;
    const FULL: usize = 2;

    // SAFETY: `slot` is written only by the one thread that moved `state` from EMPTY to WRITING,
    // and read only after FULL was seen with acquire ordering; loom checks both.
    unsafe impl<T: Send + Sync> Sync for OnceCell<T> {}
    // SAFETY: an owned cell is an owned `Option<T>`.
    unsafe impl<T: Send> Send for OnceCell<T> {}

    impl<T> OnceCell<T> {
        pub(crate) fn new() -> Self {
            OnceCell {
                state: AtomicUsize::new(EMPTY),
                slot: UnsafeCell::new(None),
                _leak: loom::alloc::Track::new(()),
            }
        }

        #[track_caller]
        pub(crate) fn get(&self) -> Option<&T> {
            if self.state.load(Ordering::Acquire) != FULL {
                return None;
            }
            // SAFETY: FULL was seen, so nobody writes the slot any more.
            self.slot.with(|slot| unsafe { (*slot).as_ref() })
        }

        #[track_caller]
        pub(crate) fn set(&self, value: T) -> Result<(), T> {
            let claim =
                self.state.compare_exchange(EMPTY, WRITING, Ordering::AcqRel, Ordering::Acquire);
            if claim.is_err() {
                return Err(value);
            }
            // SAFETY: the claim above succeeds once, and readers wait for FULL.
            self.slot.with_mut(|slot| unsafe { *slot = Some(value) });
            self.state.store(FULL, Ordering::Release);
            Ok(())
        }
    }
}
