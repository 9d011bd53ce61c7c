//! The only door to threads and their own variables, locks, condvars, once-cells and channels.
//!
//! Everything in this crate that blocks, or that one thread writes and another reads, is named
//! here and nowhere else, so that one `--cfg loom` puts the whole crate under the model checker.
//! The two halves have the same names and the same shapes: those of parking_lot, once_cell and
//! crossbeam-channel, and of a bell.

#[cfg(not(loom))]
pub(crate) use real::*;

#[cfg(loom)]
pub(crate) use model::*;

/// For what is found out once: the machine's cores, or an origin where the clock is read in one way
/// only. No model waits for that.
pub(crate) use std::sync::LazyLock;

/// The primitives themselves, re-exported.
#[cfg(not(loom))]
mod real {
    #[cfg(feature = "cache")]
    pub(crate) use crossbeam_channel as channel;
    pub(crate) use once_cell::sync::OnceCell;
    #[cfg(feature = "cache")]
    pub(crate) use parking_lot::Condvar;
    pub(crate) use parking_lot::{Mutex, MutexGuard};
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::Arc as Handle;
    #[cfg(feature = "cache")]
    pub(crate) use std::sync::atomic::AtomicBool;
    pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use crate::moment::Moment;

    /// Hashes keys; seeded once per process, so that nobody outside can choose collisions.
    pub(crate) type KeyHasher = foldhash::fast::RandomState;

    /// The same with more care, at some cost: for maps whose shards must be of one size.
    #[cfg(feature = "cache")]
    pub(crate) type EvenHasher = foldhash::quality::RandomState;

    /// How long ago `then` was, by the system's clock.
    pub(crate) fn age(then: Moment) -> Duration {
        Moment::now().since(then)
    }

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
        changed: std::sync::Condvar,
    }

    impl<T> Bell<T> {
        pub(crate) fn new(value: T) -> Self {
            Bell { value: std::sync::Mutex::new(value), changed: std::sync::Condvar::new() }
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

    /// Starts a thread. Whoever drops the handle leaves it to itself.
    #[cfg(feature = "cache")]
    pub(crate) fn spawn(
        name: String,
        body: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<std::thread::JoinHandle<()>> {
        std::thread::Builder::new().name(name).spawn(body)
    }
}

/// The same names over [loom](https://docs.rs/loom), which runs a model once for each way its
/// threads can interleave.
///
/// **Deadlines.** loom has no clock, so how a wait ends is decided by how far off its deadline is:
///
/// - within the next hour ([`SOON`]): it fires. The wait gives its lock up, anything may happen,
///   and it takes the lock back timed out.
/// - further off, or never: it does not fire. The wait must be notified, or the model reports a
///   deadlock: no real timer papers over a lost wake-up.
/// - further off than anybody's own ([`LATE`]): it fires late. The lock comes back, timed out, but
///   not before the scenario has called [`landed`].
///
/// **Ages** are those of the real clock, in which a model takes no time, until the scenario calls
/// [`grow_old`].
///
/// **Reference counts** are the real [`Arc`]s, which loom does not see: its own would multiply the
/// schedules, and abort the process where a deadlock is to be reported. Where the code looks at a
/// count it holds a [`Handle`]. Leaks are found by a tracker in each cell.
#[cfg(loom)]
mod model {
    use std::ops::{Deref, DerefMut};
    use std::time::{Duration, Instant};

    use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::Ordering;
    pub(crate) use loom::thread_local as local;
    pub(crate) use std::sync::Arc;

    use crate::moment::Moment;

    /// Unseeded: which shard a key falls into must not differ between two runs of one schedule.
    pub(crate) type KeyHasher = foldhash::fast::FixedState;

    /// Unseeded, for a cache has its flights in a registry under the hash that L1 gave their key.
    #[cfg(feature = "cache")]
    pub(crate) type EvenHasher = foldhash::quality::FixedState;

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

    #[cfg(feature = "cache")]
    #[track_caller]
    pub(crate) fn spawn(
        name: String,
        body: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<loom::thread::JoinHandle<()>> {
        // In words: four times what loom gives its threads, for loaders that ask.
        loom::thread::Builder::new().name(name).stack_size(16 * 1024).spawn(body)
    }

    /// Deadlines no further off than this fire.
    const SOON: Duration = Duration::from_secs(3600);

    /// Deadlines further off than this fire after [`landed`].
    pub(crate) const LATE: Duration = Duration::from_secs(1000 * 365 * 24 * 3600);

    loom::lazy_static! {
        static ref LANDED: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());
    }

    /// Lets the waits whose deadline fires late go on.
    #[allow(dead_code, reason = "for the scenarios, which the library is built without")]
    pub(crate) fn landed() {
        *LANDED.0.lock() = true;
        LANDED.1.0.notify_all();
    }

    loom::lazy_static! {
        static ref AGED: loom::sync::atomic::AtomicUsize = 0.into();
    }

    /// Whatever has an age has aged by a day from now on.
    #[allow(dead_code, reason = "for the scenarios, which the library is built without")]
    pub(crate) fn grow_old() {
        AGED.fetch_add(1, Ordering::Relaxed);
    }

    /// How long ago `then` was, by the system's clock.
    pub(crate) fn age(then: Moment) -> Duration {
        let days = AGED.fetch_add(0, Ordering::Relaxed) as u32;
        Moment::now().since(then) + days * Duration::from_secs(24 * 3600)
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
            let left = deadline.saturating_duration_since(Instant::now());
            if left > SOON && left <= LATE {
                self.wait(guard);
                return WaitTimeoutResult(false);
            }
            guard.held = None; // anything may happen here ...
            if left > LATE {
                let mut landed = LANDED.0.lock();
                while !*landed {
                    LANDED.1.wait(&mut landed);
                }
            }
            guard.held = Some(guard.lock.0.lock().unwrap()); // ... until the lock is ours again
            WaitTimeoutResult(true)
        }

        #[cfg(feature = "cache")]
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

    /// As much of crossbeam-channel as is used: bounded, with one sender.
    #[cfg(feature = "cache")]
    pub(crate) mod channel {
        use std::collections::VecDeque;

        use super::{Arc, Condvar, Mutex};

        struct Shared<T> {
            line: Mutex<Line<T>>,
            changed: Condvar,
        }

        struct Line<T> {
            items: VecDeque<T>,
            room: usize,
            connected: bool,
        }

        pub(crate) struct Sender<T>(Arc<Shared<T>>);

        pub(crate) struct Receiver<T>(Arc<Shared<T>>);

        pub(crate) struct NoItem;

        pub(crate) fn bounded<T>(room: usize) -> (Sender<T>, Receiver<T>) {
            let line = Line { items: VecDeque::new(), room, connected: true };
            let shared = Arc::new(Shared { line: Mutex::new(line), changed: Condvar::new() });
            (Sender(Arc::clone(&shared)), Receiver(shared))
        }

        impl<T> Sender<T> {
            #[track_caller]
            pub(crate) fn try_send(&self, item: T) -> Result<(), T> {
                let mut line = self.0.line.lock();
                if line.items.len() == line.room {
                    return Err(item);
                }
                line.items.push_back(item);
                drop(line);
                self.0.changed.notify_one();
                Ok(())
            }
        }

        impl<T> Drop for Sender<T> {
            fn drop(&mut self) {
                self.0.line.lock().connected = false;
                self.0.changed.notify_all();
            }
        }

        impl<T> Receiver<T> {
            /// Waits for an item, or until there is neither an item nor a sender.
            #[track_caller]
            pub(crate) fn recv(&self) -> Result<T, NoItem> {
                let mut line = self.0.line.lock();
                loop {
                    match line.items.pop_front() {
                        Some(item) => return Ok(item),
                        None if !line.connected => return Err(NoItem),
                        None => self.0.changed.wait(&mut line),
                    }
                }
            }
        }
    }

    /// A count that orders nothing else: relaxed accesses only.
    ///
    /// loom tries a store ahead of the last access before it only. If that is a load of the same
    /// thread's, as in its own `fetch_update`, the store is never tried ahead of anything. So every
    /// access here is one read-modify-write to loom, and the value is kept beside it.
    #[derive(Debug)]
    pub(crate) struct AtomicUsize {
        step: Step,
        value: std::sync::atomic::AtomicUsize,
    }

    impl AtomicUsize {
        pub(crate) fn new(value: usize) -> Self {
            AtomicUsize { step: Step::new(), value: value.into() }
        }

        #[track_caller]
        pub(crate) fn load(&self, order: Ordering) -> usize {
            self.step.take(order);
            self.value.load(order)
        }

        #[track_caller]
        pub(crate) fn fetch_sub(&self, value: usize, order: Ordering) -> usize {
            self.step.take(order);
            self.value.fetch_sub(value, order)
        }

        #[track_caller]
        pub(crate) fn fetch_update(
            &self,
            set_order: Ordering,
            fetch_order: Ordering,
            f: impl FnMut(usize) -> Option<usize>,
        ) -> Result<usize, usize> {
            self.step.take(set_order);
            self.value.fetch_update(set_order, fetch_order, f)
        }
    }

    /// A flag, as a [count](AtomicUsize) is: it orders nothing else.
    #[cfg(feature = "cache")]
    #[derive(Debug)]
    pub(crate) struct AtomicBool {
        step: Step,
        value: std::sync::atomic::AtomicBool,
    }

    #[cfg(feature = "cache")]
    impl AtomicBool {
        pub(crate) fn new(value: bool) -> Self {
            AtomicBool { step: Step::new(), value: value.into() }
        }

        #[track_caller]
        pub(crate) fn load(&self, order: Ordering) -> bool {
            self.step.take(order);
            self.value.load(order)
        }

        #[track_caller]
        pub(crate) fn store(&self, value: bool, order: Ordering) {
            self.step.take(order);
            self.value.store(value, order);
        }
    }

    /// Lets loom run any two threads that take a step here in either order.
    #[derive(Debug)]
    struct Step(loom::sync::atomic::AtomicUsize);

    impl Step {
        fn new() -> Step {
            Step(loom::sync::atomic::AtomicUsize::new(0))
        }

        #[track_caller]
        fn take(&self, order: Ordering) {
            assert_eq!(order, Ordering::Relaxed, "the model of a count orders nothing");
            self.0.fetch_add(1, order);
        }
    }

    /// An `Arc` of which it is looked, once, whether it is the last.
    #[derive(Debug)]
    pub(crate) struct Handle<T> {
        counted: Arc<Counted<T>>,
        /// Nobody cares for when the one goes who has looked.
        has_looked: bool,
    }

    #[derive(Debug)]
    struct Counted<T> {
        value: T,
        /// Going, and looking who is left: loom does not see the plain count.
        step: Step,
    }

    impl<T> Handle<T> {
        pub(crate) fn new(value: T) -> Self {
            let counted = Counted { value, step: Step::new() };
            Handle { counted: Arc::new(counted), has_looked: false }
        }

        #[track_caller]
        pub(crate) fn get_mut(this: &mut Self) -> Option<&mut T> {
            this.counted.step.take(Ordering::Relaxed);
            this.has_looked = true;
            Arc::get_mut(&mut this.counted).map(|counted| &mut counted.value)
        }
    }

    impl<T> Clone for Handle<T> {
        fn clone(&self) -> Self {
            Handle { counted: Arc::clone(&self.counted), has_looked: false }
        }
    }

    impl<T> Deref for Handle<T> {
        type Target = T;
        fn deref(&self) -> &T {
            &self.counted.value
        }
    }

    impl<T> Drop for Handle<T> {
        fn drop(&mut self) {
            // A model that fails is torn down outside of loom.
            if !self.has_looked && !std::thread::panicking() {
                self.counted.step.take(Ordering::Relaxed);
            }
        }
    }

    /// `get` and `set` of once_cell's cell. loom checks that each read is ordered after the write.
    #[derive(Debug)]
    pub(crate) struct OnceCell<T> {
        full: loom::sync::atomic::AtomicBool,
        slot: UnsafeCell<Option<T>>,
        /// What `full` will be to whoever reads its newest value.
        is_full: std::sync::atomic::AtomicBool,
        /// loom fails the model if this is never dropped: a leaked flight.
        _leak: loom::alloc::Track<()>,
    }

    // SAFETY: `slot` is written before `full` is, and read only after it was seen with acquire
    // ordering. Two writers, which nothing here keeps apart, loom finds.
    unsafe impl<T: Send + Sync> Sync for OnceCell<T> {}
    // SAFETY: an owned cell is an owned `Option<T>`.
    unsafe impl<T: Send> Send for OnceCell<T> {}

    impl<T> OnceCell<T> {
        pub(crate) fn new() -> Self {
            OnceCell {
                full: loom::sync::atomic::AtomicBool::new(false),
                slot: UnsafeCell::new(None),
                is_full: false.into(),
                _leak: loom::alloc::Track::new(()),
            }
        }

        #[track_caller]
        pub(crate) fn get(&self) -> Option<&T> {
            // Before the write a read-modify-write, for the reason a [count](AtomicUsize)'s reads
            // are; after it two reads need not be swapped, and may find an older value.
            let full = if self.is_full.load(Ordering::Relaxed) {
                self.full.load(Ordering::Acquire)
            } else {
                self.full.fetch_or(false, Ordering::Acquire)
            };
            // SAFETY: it is full, so nobody writes the slot any more.
            if full { self.slot.with(|slot| unsafe { (*slot).as_ref() }) } else { None }
        }

        #[track_caller]
        pub(crate) fn set(&self, value: T) -> Result<(), T> {
            // SAFETY: a reader or another writer at the same time fails the model.
            self.slot.with_mut(|slot| match unsafe { &mut *slot } {
                Some(_) => Err(value),
                empty => {
                    *empty = Some(value);
                    Ok(())
                }
            })?;
            self.full.swap(true, Ordering::Release);
            self.is_full.store(true, Ordering::Relaxed);
            Ok(())
        }
    }
}

/// Runs a test whose failure may be a hang: after half a minute that is a failure, too.
#[cfg(all(test, not(loom), feature = "cache"))]
pub(crate) fn watched(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel::bounded(1);
    let test = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match ended.recv_timeout(std::time::Duration::from_secs(30)) {
        Err(channel::RecvTimeoutError::Timeout) => panic!("the test hangs"),
        _ => test.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}
