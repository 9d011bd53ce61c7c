//! Which thread waits for which: the graph in which a cycle is a deadlock.
//!
//! An edge leads from a thread that waits for a flight to the thread that drives it. A thread
//! waits for one flight at a time, so the graph is a set of chains, and a cycle is found by
//! walking one. The graph is one for the whole process, so cycles through several groups are
//! found too.
//!
//! Only a thread that drives a flight itself can have an edge pointing at it, so only such a
//! thread can close a cycle. The members of an ordinary herd drive nothing: they never come here.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::ManuallyDrop;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sync::{Mutex, global, local};

/// Tells threads apart for the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ThreadNo(u64);

impl ThreadNo {
    /// No thread's number: who drives a flight that is on its way from one thread to another. No
    /// edge leads here for longer than it takes a free thread to begin: a thread that drives a
    /// flight takes over one that nobody drives, rather than wait for it.
    pub(super) const NOBODY: ThreadNo = ThreadNo(0);

    /// Whether it is the calling thread.
    pub(super) fn is_here(self) -> bool {
        self == this_thread()
    }
}

local! {
    /// This thread's number, 0 until it is asked for.
    static NUMBER: Cell<u64> = Cell::new(0);
    /// The flights this thread drives. Without a destructor, so that a load in the destructor of
    /// another variable of the thread finds it; while it is empty it owns nothing.
    static DRIVEN: RefCell<ManuallyDrop<AllDriven>> = RefCell::new(ManuallyDrop::new(AllDriven::NONE));
}

/// A flight that a thread drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Driven {
    /// By its address: it is there until the flight is driven no more.
    pub(super) group: usize,
    pub(super) hash: u64,
    pub(super) number: u64,
}

/// The flights a thread drives. One is the rule, and needs no memory of its own; a thread that holds
/// a million guards is to find one among them.
struct AllDriven {
    one: Option<Driven>,
    more: BTreeSet<Driven>,
}

impl AllDriven {
    const NONE: AllDriven = AllDriven { one: None, more: BTreeSet::new() };

    fn is_empty(&self) -> bool {
        self.one.is_none() && self.more.is_empty()
    }
}

/// Looks into what this thread drives. Nobody else's code runs meanwhile, so it is never borrowed.
fn driven_here<R>(look: impl FnOnce(&mut AllDriven) -> R) -> R {
    DRIVEN.with(|all| look(&mut all.borrow_mut()))
}

global! {
    /// Who waits for whom. An edge stands exactly as long as its thread has a seat in a flight
    /// that has not landed; every change is made under the gate of that flight.
    static EDGES: Mutex<BTreeMap<ThreadNo, ThreadNo>> = Mutex::new(BTreeMap::new());
}

/// The calling thread.
pub(super) fn this_thread() -> ThreadNo {
    // Not a model's atomic: the numbers are compared, never ordered by.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        ThreadNo(number.get())
    })
}

/// The calling thread drives one flight more.
pub(super) fn begin_driving(driven: Driven) {
    driven_here(|all| match all.one {
        None => all.one = Some(driven),
        Some(_) => {
            all.more.insert(driven);
        }
    });
}

/// The calling thread drives this flight no more, if it has.
pub(super) fn end_driving(driven: Driven) {
    driven_here(|all| {
        if all.one == Some(driven) {
            all.one = None;
        } else {
            all.more.remove(&driven);
            // An empty one still has a node, which nobody would free when the thread ends.
            if all.more.is_empty() {
                all.more = BTreeSet::new();
            }
        }
    });
}

/// Whether the calling thread drives a flight.
pub(super) fn is_driving() -> bool {
    driven_here(|all| !all.is_empty())
}

/// Whether the calling thread drives more than one.
#[cfg(feature = "cache")]
pub(super) fn is_driving_more() -> bool {
    driven_here(|all| usize::from(all.one.is_some()) + all.more.len() > 1)
}

/// How many flights of a group, of keys with a hash in this range, the calling thread drives that
/// are `such`. No code of the user's may run in it.
pub(super) fn driving(
    group: usize,
    hashes: RangeInclusive<u64>,
    such: impl Fn(&Driven) -> bool,
) -> usize {
    let first = Driven { group, hash: *hashes.start(), number: 0 };
    let last = Driven { group, hash: *hashes.end(), number: u64::MAX };
    driven_here(|all| {
        // Most threads that ask drive none.
        if all.is_empty() {
            return 0;
        }
        let one = all.one.iter().filter(|one| (first..=last).contains(one));
        one.chain(all.more.range(first..=last)).filter(|driven| such(driven)).count()
    })
}

/// Draws the edge from `waiter` to `driver`, unless it would close a cycle.
///
/// Looking and drawing are one step under one lock, so of the threads of a cycle exactly one, the
/// last to come, is told so (seeded bug: `look_and_draw_in_two_steps`).
pub(super) fn draw(waiter: ThreadNo, driver: ThreadNo) -> Result<(), WouldClose> {
    let mut edges = EDGES.lock();
    let mut next = Some(&driver);
    while let Some(thread) = next {
        if *thread == waiter {
            return Err(WouldClose);
        }
        next = edges.get(thread);
    }
    edges.insert(waiter, driver);
    Ok(())
}

/// The edge would have closed a cycle.
pub(super) struct WouldClose;

/// The edges of `waiters` now lead to `driver`, which has just stopped waiting: no cycle can
/// come of it.
pub(super) fn redraw(waiters: impl Iterator<Item = ThreadNo>, driver: ThreadNo) {
    let mut edges = EDGES.lock();
    for waiter in waiters {
        edges.insert(waiter, driver);
    }
}

/// The edges of `waiters` are gone: their waiting has an end.
pub(super) fn erase(waiters: impl Iterator<Item = ThreadNo>) {
    let mut edges = EDGES.lock();
    for waiter in waiters {
        edges.remove(&waiter);
    }
}
