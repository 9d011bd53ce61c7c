//! [`Admission`]: the bound on loaders running at once, over all keys.
//!
//! A flight bounds the loads of one key to one. A cold cache that is asked for many different keys
//! has as many flights as callers, and only this bound stands between them and the source.
//!
//! # Why no wait for a permit is part of a deadlock
//!
//! A permit is out only while its thread runs. Before a thread waits for anything but its loader,
//! another's flight or another admission, it [`lend`]s its permits, and takes them back without
//! waiting; and while it holds a permit it enters again at once. So whoever waits for a permit
//! waits for code that runs, never for a thread that waits, and circles are left to flights, which
//! know how to find them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::sync::{Arc, Condvar, Mutex, local};

/// Who asks for a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Somebody waits for the load. May use every permit.
    Foreground,
    /// Nobody does: a refresh, a prewarm. May use a quarter of the permits, at least one, and none
    /// while a foreground caller waits for one.
    Background,
}

/// Loaders may run at once, up to a number of permits.
///
/// Within a lane callers are served in the order they came, and foreground before background. A
/// permit that is given back is handed straight to the caller it serves: that caller is the only
/// one woken, and nobody can come in between.
#[derive(Debug)]
pub(crate) struct Admission {
    permits: usize,
    /// How many of them the background lane may use.
    background: usize,
    desk: Mutex<Desk>,
}

/// Who is in and who waits. Whoever may enter has entered: if a permit is free, no foreground
/// caller waits, and a background caller waits only for its lane's share. Every change keeps that
/// true, so a newcomer who finds a permit free for its lane passes nobody by, and a release, which
/// frees one permit, has at most one caller to serve.
#[derive(Debug, Default)]
struct Desk {
    foreground: Queue,
    background: Queue,
    /// The number the next caller who has to wait draws.
    next: u64,
}

#[derive(Debug, Default)]
struct Queue {
    /// Permits that are out. May exceed the bound: see [`Lent`].
    running: usize,
    /// Those who wait, by number. To be taken out of here by another thread is to be given a
    /// permit, which is counted as out from then on.
    waiting: BTreeMap<u64, Arc<Condvar>>,
}

/// How many are in and how many wait, of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gauge {
    /// Loaders that run under a permit of their own; nested ones are not counted again.
    pub(crate) running: usize,
    /// Callers that wait for a permit.
    pub(crate) waiting: usize,
}

/// The deadline passed before a permit was free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotAdmitted {
    /// How long the caller waited.
    pub(crate) waited: Duration,
}

/// The right to run a loader on this thread, given back when dropped, by a panic too.
///
/// It stays on the thread that entered (it is not `Send`): what that thread enters meanwhile, it
/// enters under this permit. One that is leaked is out for good.
#[derive(Debug)]
#[must_use = "dropping it gives the permit back"]
pub(crate) struct Permit<'a> {
    admission: &'a Arc<Admission>,
    _stays_here: PhantomData<*const ()>,
}

/// What this thread knows of a permit it holds.
struct Held {
    admission: Arc<Admission>,
    lane: Lane,
    /// How many [`Permit`]s stand for it: one, and one for each nested load.
    guards: usize,
    /// Whether it is counted as out, or lent.
    out: bool,
}

local! {
    /// The permits this thread holds. Without a destructor, so that a load in the destructor of
    /// another variable of the thread finds it; while it is empty it owns nothing.
    static HELD: RefCell<ManuallyDrop<Holds>> = RefCell::new(ManuallyDrop::new(Holds::NONE));
}

/// The permits a thread holds, one of each admission at most. One is the rule, and needs no memory of
/// its own.
struct Holds {
    one: Option<Held>,
    more: Vec<Held>,
}

impl Holds {
    const NONE: Holds = Holds { one: None, more: Vec::new() };

    fn is_empty(&self) -> bool {
        self.one.is_none() && self.more.is_empty()
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Held> {
        self.one.iter_mut().chain(&mut self.more)
    }

    fn of(&mut self, admission: &Arc<Admission>) -> Option<&mut Held> {
        self.iter_mut().find(|held| Arc::ptr_eq(&held.admission, admission))
    }

    fn add(&mut self, held: Held) {
        match self.one {
            None => self.one = Some(held),
            Some(_) => self.more.push(held),
        }
    }

    fn remove(&mut self, admission: &Arc<Admission>) {
        let is_it = |held: &Held| Arc::ptr_eq(&held.admission, admission);
        if self.one.as_ref().is_some_and(is_it) {
            self.one = None;
        } else {
            self.more.retain(|held| !is_it(held));
            // An empty one still has its room, which nobody would free when the thread ends.
            if self.more.is_empty() {
                self.more = Vec::new();
            }
        }
    }
}

/// Looks into what this thread holds. Nobody else's code runs meanwhile, so it is never borrowed.
fn held_here<R>(look: impl FnOnce(&mut Holds) -> R) -> R {
    HELD.with(|all| look(&mut all.borrow_mut()))
}

impl Admission {
    /// An admission of `permits` loaders at once.
    ///
    /// # Panics
    ///
    /// If `permits` is 0: nothing could ever be loaded.
    pub(crate) fn new(permits: usize) -> Admission {
        assert!(permits > 0, "admission must be at least 1");
        let desk = Mutex::new(Desk::default());
        Admission { permits, background: (permits / 4).max(1), desk }
    }

    /// Enters, waiting for a permit until `deadline` at most.
    ///
    /// A permit that is free is taken even if the deadline has passed, and one that was handed
    /// over in the moment the deadline fired is kept. A thread that holds a permit of this
    /// admission enters under it, at once and in its lane: it would wait for itself otherwise.
    ///
    /// # Errors
    ///
    /// [`NotAdmitted`] if the deadline passes first.
    pub(crate) fn enter(
        self: &Arc<Self>,
        lane: Lane,
        deadline: Deadline,
    ) -> Result<Permit<'_>, NotAdmitted> {
        if let Some(permit) = self.try_enter(lane) {
            return Ok(permit);
        }
        let started = Instant::now();
        if deadline.instant().is_some_and(|at| at <= started) {
            return Err(NotAdmitted { waited: Duration::ZERO });
        }
        // The permits of other admissions, that is: two threads that each wait for what the other
        // one holds would wait for ever (seeded bug: `queue_with_a_permit`).
        let lent = lend();
        let admitted = self.wait(lane, deadline);
        drop(lent);
        if admitted { Ok(self.hold(lane)) } else { Err(NotAdmitted { waited: started.elapsed() }) }
    }

    /// Enters if that takes no waiting.
    pub(crate) fn try_enter(self: &Arc<Self>, lane: Lane) -> Option<Permit<'_>> {
        if let Some(permit) = self.enter_nested() {
            return Some(permit);
        }
        // One hold of the lock (seeded bug: `look_and_enter_in_two_steps`).
        let admitted = self.desk.lock().admit(self, lane);
        admitted.then(|| self.hold(lane))
    }

    /// The permits that are out and the callers that wait, of `lane`, in this moment.
    pub(crate) fn gauge(&self, lane: Lane) -> Gauge {
        let mut desk = self.desk.lock();
        let queue = desk.queue(lane);
        Gauge { running: queue.running, waiting: queue.waiting.len() }
    }

    /// Enters under the permit that this thread holds, if it does. If that is lent, the thread has
    /// stopped waiting: it has it back from now on.
    fn enter_nested(self: &Arc<Self>) -> Option<Permit<'_>> {
        let was_lent = held_here(|all| {
            let held = all.of(self)?;
            held.guards += 1;
            Some((!std::mem::replace(&mut held.out, true)).then_some(held.lane))
        })?;
        if let Some(lane) = was_lent {
            self.take_back(lane);
        }
        Some(Permit { admission: self, _stays_here: PhantomData })
    }

    /// Notes that this thread holds a permit, which is counted as out already.
    fn hold(self: &Arc<Self>, lane: Lane) -> Permit<'_> {
        let held = Held { admission: Arc::clone(self), lane, guards: 1, out: true };
        held_here(|all| all.add(held));
        Permit { admission: self, _stays_here: PhantomData }
    }

    /// Waits until handed a permit; `false` if the deadline fires first.
    fn wait(&self, lane: Lane, deadline: Deadline) -> bool {
        let mut desk = self.desk.lock();
        // Looked at again now that the lock stays held until this caller is in its queue: a permit
        // that was given back since would be handed to nobody (seeded bug:
        // `queue_without_looking_again`).
        if desk.admit(self, lane) {
            return true;
        }
        let number = desk.next;
        desk.next += 1;
        let turn = Arc::new(Condvar::new());
        desk.queue(lane).waiting.insert(number, Arc::clone(&turn));
        while desk.queue(lane).waiting.contains_key(&number) {
            if !deadline.wait(&turn, &mut desk) {
                // Not there any more: handed a permit in this very moment, which would be lost
                // (seeded bug: `late_ignores_the_permit`). And if it is there still it must not
                // stay, or the next would be (seeded bug: `leave_without_leaving_the_queue`).
                return desk.queue(lane).waiting.remove(&number).is_none();
            }
        }
        true
    }

    fn give_back(&self, lane: Lane) {
        let turn = {
            let mut desk = self.desk.lock();
            desk.queue(lane).running -= 1;
            desk.hand_over(self)
        };
        // It looks for its number under the lock, so not before the lock is free. Nobody else wakes
        // it (seeded bug: `release_without_wake`).
        if let Some(turn) = turn {
            turn.notify_one();
        }
    }

    /// Takes a permit that was lent, whether or not one is free.
    fn take_back(&self, lane: Lane) {
        self.desk.lock().queue(lane).running += 1;
    }
}

impl Desk {
    fn queue(&mut self, lane: Lane) -> &mut Queue {
        match lane {
            Lane::Foreground => &mut self.foreground,
            Lane::Background => &mut self.background,
        }
    }

    /// Whether a permit is free for `lane` (seeded bug: `background_takes_all`).
    fn has_room(&self, admission: &Admission, lane: Lane) -> bool {
        self.foreground.running + self.background.running < admission.permits
            && (lane == Lane::Foreground || self.background.running < admission.background)
    }

    /// Takes a permit for a newcomer, if one is free.
    fn admit(&mut self, admission: &Admission, lane: Lane) -> bool {
        let room = self.has_room(admission, lane);
        if room {
            debug_assert!(self.queue(lane).waiting.is_empty(), "whoever may enter has entered");
            self.queue(lane).running += 1;
        }
        room
    }

    /// Hands the permit that has just been given back to the one caller it serves, if any; the
    /// caller is to be woken.
    fn hand_over(&mut self, admission: &Admission) -> Option<Arc<Condvar>> {
        [Lane::Foreground, Lane::Background].into_iter().find_map(|lane| {
            if !self.has_room(admission, lane) {
                return None;
            }
            let (_, turn) = self.queue(lane).waiting.pop_first()?;
            self.queue(lane).running += 1;
            Some(turn)
        })
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let was_out = held_here(|all| {
            let held = all.of(self.admission)?;
            held.guards -= 1;
            if held.guards > 0 {
                return None;
            }
            let was_out = held.out.then_some(held.lane);
            all.remove(self.admission);
            was_out
        });
        if let Some(lane) = was_out {
            self.admission.give_back(lane);
        }
    }
}

/// Gives back, until the guard is dropped, every permit this thread holds, of whatever admission.
/// To be called before a thread waits for what another thread does; a thread that holds nothing,
/// like the members of an ordinary herd, only learns so from a variable of its own.
pub(crate) fn lend() -> Lent {
    // Most threads that wait hold none.
    if held_here(|all| all.is_empty()) {
        return Lent { lent: Vec::new(), _stays_here: PhantomData };
    }
    let lent: Vec<_> = held_here(|all| {
        let lent = |held: &mut Held| {
            let was_out = std::mem::replace(&mut held.out, false);
            was_out.then(|| (Arc::clone(&held.admission), held.lane))
        };
        all.iter_mut().filter_map(lent).collect()
    });
    for (admission, lane) in &lent {
        admission.give_back(*lane);
    }
    Lent { lent, _stays_here: PhantomData }
}

/// The permits a thread has given back while it waits. Dropped when the wait is over.
///
/// Then the thread takes them again *without waiting*, whoever has them: it goes on with a loader
/// that is half done, which others wait for, and the permit may be in the hands of the one that
/// waits for it: then it would wait for itself. So there can be more loaders running than permits,
/// by as many threads as have come back from such a wait; until they have given theirs back nobody
/// else enters.
#[derive(Debug)]
#[must_use = "dropping it takes the permits again"]
pub(crate) struct Lent {
    lent: Vec<(Arc<Admission>, Lane)>,
    _stays_here: PhantomData<*const ()>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        for (admission, lane) in &self.lent {
            // Not if the last guard is gone, nor if a nested load has taken it back already. Else
            // it is given back once more than it was taken (seeded bug: `lent_is_not_taken_back`).
            let still_lent = held_here(|all| {
                let held = all.of(admission);
                held.is_some_and(|held| !std::mem::replace(&mut held.out, true))
            });
            if still_lent {
                admission.take_back(*lane);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Lane::{Background, Foreground};
    use super::*;
    use crate::sync::channel::{Receiver, Sender, bounded, unbounded};
    use crate::sync::watched;
    use std::sync::Barrier;
    use std::thread::{self, Scope, ScopedJoinHandle};

    fn admission(permits: usize) -> Arc<Admission> {
        Arc::new(Admission::new(permits))
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn running(admission: &Admission) -> usize {
        admission.gauge(Foreground).running + admission.gauge(Background).running
    }

    fn wait_for(what: impl Fn() -> bool) {
        while !what() {
            thread::yield_now();
        }
    }

    /// Callers that have to wait, one after the other, each until it is told to leave.
    struct Callers<'s, 'e> {
        scope: &'s Scope<'s, 'e>,
        admission: &'s Arc<Admission>,
        entered: (Sender<u32>, Receiver<u32>),
    }

    struct Caller<'s> {
        leave: Sender<()>,
        thread: ScopedJoinHandle<'s, ()>,
    }

    impl<'s, 'e> Callers<'s, 'e> {
        fn new(scope: &'s Scope<'s, 'e>, admission: &'s Arc<Admission>) -> Self {
            Callers { scope, admission, entered: unbounded() }
        }

        /// Returns once the caller called `name` waits.
        fn queue(&self, name: u32, lane: Lane) -> Caller<'s> {
            let waiting = self.admission.gauge(lane).waiting;
            let (leave, told) = bounded::<()>(0);
            let (admission, entered) = (self.admission, self.entered.0.clone());
            let thread = self.scope.spawn(move || {
                let _permit = admission.enter(lane, Deadline::NEVER).unwrap();
                entered.send(name).unwrap();
                let _ = told.recv();
            });
            wait_for(|| self.admission.gauge(lane).waiting > waiting);
            Caller { leave, thread }
        }

        /// The name of the next one to enter.
        fn next(&self) -> u32 {
            self.entered.1.recv().unwrap()
        }
    }

    impl Caller<'_> {
        fn leave(self) {
            drop(self.leave);
            self.thread.join().unwrap();
        }
    }

    /// What `f` returns on a thread that holds nothing.
    fn elsewhere<R: Send>(f: impl FnOnce() -> R + Send) -> R {
        thread::scope(|s| s.spawn(f).join().unwrap())
    }

    fn has_room(admission: &Arc<Admission>, lane: Lane) -> bool {
        elsewhere(|| admission.try_enter(lane).is_some())
    }

    #[test]
    fn as_many_enter_as_there_are_permits() {
        watched(|| {
            let admission = admission(3);
            let (all_in, leave) = (Barrier::new(4), Barrier::new(4));
            thread::scope(|s| {
                for _ in 0..3 {
                    s.spawn(|| {
                        let _permit = admission.try_enter(Foreground).unwrap();
                        all_in.wait();
                        leave.wait();
                    });
                }
                all_in.wait();
                assert!(!has_room(&admission, Foreground));
                assert!(!has_room(&admission, Background));
                leave.wait();
            });
            assert_eq!(running(&admission), 0);
            assert!(has_room(&admission, Foreground));
        });
    }

    #[test]
    #[should_panic(expected = "admission must be at least 1")]
    fn an_admission_of_nobody_is_refused() {
        Admission::new(0);
    }

    #[test]
    fn background_never_takes_the_last_foreground_permit() {
        // A quarter of the permits, at least one; all others stay for the foreground.
        for (permits, share) in [(1, 1), (2, 1), (3, 1), (4, 1), (7, 1), (8, 2), (64, 16)] {
            let admission = admission(permits);
            thread::scope(|s| {
                let (leave, told) = bounded::<()>(0);
                let (entered, all) = unbounded();
                let come = |lane| {
                    let (told, entered, admission) = (told.clone(), entered.clone(), &admission);
                    s.spawn(move || {
                        let permit = admission.try_enter(lane);
                        entered.send(permit.is_some()).unwrap();
                        let _ = told.recv();
                    });
                    all.recv().unwrap()
                };
                assert_eq!((0..permits).filter(|_| come(Background)).count(), share, "{permits}");
                assert_eq!((0..permits).filter(|_| come(Foreground)).count(), permits - share);
                drop(leave);
            });
            assert_eq!(running(&admission), 0);
        }
    }

    #[test]
    fn a_lane_is_served_in_the_order_of_arrival() {
        watched(|| {
            for lane in [Foreground, Background] {
                let admission = admission(1);
                thread::scope(|s| {
                    let callers = Callers::new(s, &admission);
                    let permit = admission.try_enter(lane).unwrap();
                    let queue: Vec<_> = (0..5).map(|name| callers.queue(name, lane)).collect();
                    drop(permit);
                    for (name, caller) in (0..).zip(queue) {
                        assert_eq!(callers.next(), name);
                        caller.leave();
                    }
                });
            }
        });
    }

    #[test]
    fn foreground_goes_before_background_that_came_earlier() {
        watched(|| {
            let admission = admission(1);
            thread::scope(|s| {
                let callers = Callers::new(s, &admission);
                let permit = admission.try_enter(Foreground).unwrap();
                let refresh = callers.queue(1, Background);
                let request = callers.queue(2, Foreground);
                drop(permit);
                assert_eq!(callers.next(), 2);
                request.leave();
                assert_eq!(callers.next(), 1);
                refresh.leave();
            });
        });
    }

    #[test]
    fn a_release_serves_exactly_one() {
        watched(|| {
            let admission = admission(1);
            thread::scope(|s| {
                let callers = Callers::new(s, &admission);
                let permit = admission.try_enter(Foreground).unwrap();
                let queue: Vec<_> = (0..3).map(|name| callers.queue(name, Foreground)).collect();
                drop(permit);
                // Counted at the release, before the one who was served has even woken up: nobody
                // can come in between.
                let gauge = admission.gauge(Foreground);
                assert_eq!(gauge, Gauge { running: 1, waiting: 2 });
                assert!(!has_room(&admission, Foreground));
                for caller in queue {
                    callers.next();
                    caller.leave();
                }
            });
            assert_eq!(admission.gauge(Foreground), Gauge { running: 0, waiting: 0 });
        });
    }

    #[test]
    fn a_release_does_not_serve_background_beyond_its_share() {
        watched(|| {
            let admission = admission(2);
            thread::scope(|s| {
                let callers = Callers::new(s, &admission);
                let permit = admission.try_enter(Background).unwrap();
                let refresh = callers.queue(1, Background);
                // A permit comes back, but not one for the background.
                assert!(has_room(&admission, Foreground));
                assert_eq!(admission.gauge(Background), Gauge { running: 1, waiting: 1 });
                drop(permit);
                assert_eq!(callers.next(), 1);
                refresh.leave();
            });
        });
    }

    #[test]
    fn a_deadline_ends_the_wait() {
        watched(|| {
            let admission = admission(1);
            let permit = admission.try_enter(Foreground).unwrap();
            for lane in [Foreground, Background] {
                let late = elsewhere(|| admission.enter(lane, Deadline::after(ms(20))).err());
                assert!(late.unwrap().waited >= ms(20));
                assert_eq!(admission.gauge(lane).waiting, 0);
            }
            drop(permit);
            // What was given back afterwards was not handed to one who had left.
            assert_eq!(running(&admission), 0);
        });
    }

    #[test]
    fn a_deadline_that_has_passed_means_not_to_wait() {
        watched(|| {
            let admission = admission(1);
            let past = Deadline::after(Duration::ZERO);
            let permit = admission.enter(Foreground, past).expect("a free permit is taken");
            let late = elsewhere(|| admission.enter(Foreground, past).err());
            assert_eq!(late, Some(NotAdmitted { waited: Duration::ZERO }));
            drop(permit);
        });
    }

    #[test]
    fn a_permit_handed_over_as_the_deadline_fires_is_kept() {
        watched(|| {
            let admission = admission(1);
            let handed_over = || {
                let permit = admission.try_enter(Foreground).unwrap();
                thread::scope(|s| {
                    let late = s.spawn(|| {
                        let permit = admission.enter(Foreground, Deadline::after(ms(20)));
                        permit.is_ok().then(|| running(&admission))
                    });
                    wait_for(|| admission.gauge(Foreground).waiting == 1 || late.is_finished());
                    // Handed over, and not woken before its deadline does.
                    let mut desk = admission.desk.lock();
                    desk.foreground.running -= 1;
                    let handed_over = desk.hand_over(&admission).is_some();
                    desk.foreground.running += usize::from(!handed_over);
                    drop(desk);
                    assert_eq!(late.join().unwrap(), handed_over.then_some(1));
                    if handed_over {
                        admission.take_back(Foreground);
                    }
                    drop(permit);
                    handed_over
                })
            };
            wait_for(handed_over); // not if the deadline was quicker than this thread
            assert_eq!(running(&admission), 0);
        });
    }

    #[test]
    fn a_permit_that_came_back_on_the_way_to_the_queue_is_taken() {
        watched(|| {
            let admission = admission(1);
            assert!(admission.wait(Foreground, Deadline::NEVER));
            assert_eq!(admission.gauge(Foreground), Gauge { running: 1, waiting: 0 });
        });
    }

    #[test]
    fn permits_come_back_however_the_waits_end() {
        watched(|| {
            let admission = admission(1);
            thread::scope(|s| {
                for lane in [Foreground, Foreground, Background, Background] {
                    let admission = &admission;
                    s.spawn(move || {
                        for round in 0..2_000 {
                            let deadline = Deadline::after(Duration::from_micros(round % 50));
                            if let Ok(_permit) = admission.enter(lane, deadline) {
                                assert_eq!(running(admission), 1);
                            }
                        }
                    });
                }
            });
            for lane in [Foreground, Background] {
                assert_eq!(admission.gauge(lane), Gauge { running: 0, waiting: 0 });
            }
        });
    }

    #[test]
    fn a_permit_is_given_back_on_panic() {
        watched(|| {
            let admission = admission(1);
            let loader = std::panic::AssertUnwindSafe(|| {
                let _permit = admission.try_enter(Foreground).unwrap();
                let _nested = admission.try_enter(Foreground).unwrap();
                let _lent = lend();
                std::panic::resume_unwind(Box::new("the loader's"));
            });
            assert!(std::panic::catch_unwind(loader).is_err());
            assert_eq!(running(&admission), 0);
            assert!(has_room(&admission, Foreground));
            // Nor does this thread think that it still holds one.
            let permit = admission.try_enter(Foreground).unwrap();
            assert_eq!(running(&admission), 1);
            drop(permit);
        });
    }

    #[test]
    fn a_nested_load_enters_under_the_permit_it_holds() {
        watched(|| {
            let admission = admission(1);
            let outer = admission.enter(Background, Deadline::NEVER).unwrap();
            let inner = admission.enter(Foreground, Deadline::NEVER).unwrap();
            let innermost = admission.enter(Foreground, Deadline::NEVER).unwrap();
            // In its lane, and not counted again.
            assert_eq!(admission.gauge(Background).running, 1);
            assert_eq!(admission.gauge(Foreground).running, 0);
            // The permit is out until the last of them is gone, in whatever order they go.
            drop(outer);
            drop(innermost);
            assert_eq!(running(&admission), 1);
            drop(inner);
            assert_eq!(running(&admission), 0);
        });
    }

    #[test]
    fn a_permit_of_one_admission_is_none_of_another() {
        watched(|| {
            let (a, b) = (admission(1), admission(1));
            let of_a = a.try_enter(Foreground).unwrap();
            let of_b = b.try_enter(Foreground).unwrap();
            assert_eq!((running(&a), running(&b)), (1, 1));
            drop(of_b);
            assert_eq!((running(&a), running(&b)), (1, 0));
            elsewhere(|| {
                let _of_b = b.try_enter(Foreground).unwrap();
                assert!(a.try_enter(Foreground).is_none());
            });
            drop(of_a);
        });
    }

    #[test]
    fn a_lent_permit_serves_another_and_is_taken_back_without_waiting() {
        watched(|| {
            let admission = admission(1);
            thread::scope(|s| {
                let callers = Callers::new(s, &admission);
                let permit = admission.try_enter(Foreground).unwrap();
                let first = callers.queue(1, Foreground);
                let lent = lend();
                assert_eq!(callers.next(), 1);
                let second = callers.queue(2, Foreground);

                drop(lent); // does not wait for the first one
                assert_eq!(admission.gauge(Foreground), Gauge { running: 2, waiting: 1 });

                // One of the two who are in leaves, and the bound is kept again: nobody is served.
                first.leave();
                assert_eq!(admission.gauge(Foreground), Gauge { running: 1, waiting: 1 });
                drop(permit);
                assert_eq!(callers.next(), 2);
                second.leave();
            });
            assert_eq!(running(&admission), 0);
        });
    }

    #[test]
    fn a_lent_permit_is_back_in_its_lane() {
        watched(|| {
            let admission = admission(8);
            let permit = admission.try_enter(Background).unwrap();
            let lent = lend();
            assert_eq!(running(&admission), 0);
            drop(lent);
            assert_eq!(admission.gauge(Background).running, 1);
            assert_eq!(admission.gauge(Foreground).running, 0);
            drop(permit);
            assert_eq!(running(&admission), 0);
        });
    }

    #[test]
    fn all_permits_of_a_thread_are_lent_once() {
        watched(|| {
            let (a, b) = (admission(1), admission(1));
            drop(lend()); // it holds none
            let permits = (a.try_enter(Foreground), b.try_enter(Foreground));
            let outer = lend();
            assert_eq!((running(&a), running(&b)), (0, 0));
            drop(lend()); // there is nothing left to lend, so nothing to take back
            assert_eq!((running(&a), running(&b)), (0, 0));
            drop(outer);
            assert_eq!((running(&a), running(&b)), (1, 1));
            drop(permits);
            assert_eq!((running(&a), running(&b)), (0, 0));
        });
    }

    #[test]
    fn a_load_after_the_wait_has_its_lent_permit_back() {
        watched(|| {
            let admission = admission(1);
            let permit = admission.try_enter(Foreground).unwrap();
            let lent = lend();
            let nested = admission.enter(Foreground, Deadline::NEVER).unwrap();
            assert_eq!(running(&admission), 1);
            drop(lent);
            assert_eq!(running(&admission), 1);
            drop(nested);
            assert_eq!(running(&admission), 1);
            drop(permit);
            assert_eq!(running(&admission), 0);
        });
    }

    #[test]
    fn a_permit_that_goes_while_it_is_lent_goes_once() {
        watched(|| {
            let admission = admission(1);
            let permit = admission.try_enter(Foreground).unwrap();
            let lent = lend();
            drop(permit);
            assert_eq!(running(&admission), 0);
            drop(lent);
            assert_eq!(running(&admission), 0);
        });
    }

    #[test]
    fn two_threads_that_need_each_others_admission_get_it() {
        watched(|| {
            let (a, b) = (admission(1), admission(1));
            let both_in = Barrier::new(2);
            let cross = |first: &Arc<Admission>, then: &Arc<Admission>| {
                let _outer = first.enter(Foreground, Deadline::NEVER).unwrap();
                both_in.wait();
                let _inner = then.enter(Foreground, Deadline::NEVER).unwrap();
            };
            thread::scope(|s| {
                s.spawn(|| cross(&a, &b));
                s.spawn(|| cross(&b, &a));
            });
            assert_eq!((running(&a), running(&b)), (0, 0));
        });
    }

    #[test]
    fn a_load_in_a_dying_thread_enters_too() {
        struct LoadsLate(Arc<Admission>, Sender<bool>);
        impl Drop for LoadsLate {
            fn drop(&mut self) {
                let permit = self.0.try_enter(Foreground);
                let nested = self.0.try_enter(Foreground);
                self.1.send(permit.is_some() && nested.is_some()).unwrap();
            }
        }
        thread_local! {
            static BEFORE: RefCell<Option<LoadsLate>> = const { RefCell::new(None) };
            static AFTER: RefCell<Option<LoadsLate>> = const { RefCell::new(None) };
        }
        watched(|| {
            let admission = admission(1);
            let (entered, both) = unbounded();
            elsewhere(|| {
                let late = || Some(LoadsLate(Arc::clone(&admission), entered.clone()));
                // Whichever way the variables of a thread go, one of these outlives the other's.
                BEFORE.set(late());
                drop(admission.try_enter(Foreground));
                AFTER.set(late());
            });
            assert_eq!((both.recv(), both.recv()), (Ok(true), Ok(true)));
            wait_for(|| Arc::strong_count(&admission) == 1);
            assert_eq!(running(&admission), 0);
        });
    }
}
