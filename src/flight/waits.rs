//! Which thread waits for which: the graph in which a cycle is a deadlock.
//!
//! An edge leads from a thread that waits for a flight to the thread that drives it. A thread
//! waits for one flight at a time, so the graph is a set of chains, and a cycle is found by
//! walking one. The graph is one for the whole process, so cycles through several groups are
//! found too.
//!
//! Only a thread that drives a flight itself can have an edge pointing at it, so only such a
//! thread can close a cycle. The members of an ordinary herd drive nothing: they never come here.

use std::cell::Cell;
use std::collections::BTreeMap;
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
}

local! {
    /// This thread's number, 0 until it is asked for.
    static NUMBER: Cell<u64> = Cell::new(0);
    /// How many flights this thread drives.
    static DRIVING: Cell<usize> = Cell::new(0);
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
pub(super) fn begin_driving() {
    DRIVING.with(|driving| driving.set(driving.get() + 1));
}

/// The calling thread drives one flight less.
pub(super) fn end_driving() {
    DRIVING.with(|driving| driving.set(driving.get() - 1));
}

/// Whether the calling thread drives a flight.
pub(super) fn is_driving() -> bool {
    driven_here() > 0
}

/// How many flights the calling thread drives.
pub(super) fn driven_here() -> usize {
    DRIVING.with(Cell::get)
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
