//! What the scenarios have in common: a source to load from, callers, and what may become of them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize as Plain;

use loom::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use loom_tests::model::fires;

use super::onefill::{Deadline, Error, Group};

/// Values and errors are tickets: of two loads, the one that began later has the higher.
pub type Ticket = usize;
pub type Desk = Group<u64, Ticket, Ticket>;

/// The key, where one will do.
pub const KEY: u64 = 1;

/// Where loaders load from: it hands out tickets, and notices a second loader.
pub struct Source {
    /// The model's own atomic, or no two loads would ever be run at the same time.
    loading: AtomicUsize,
    tickets: Plain,
}

impl Source {
    pub fn new() -> Source {
        Source { loading: AtomicUsize::new(0), tickets: Plain::new(0) }
    }

    pub fn load(&self) -> Ticket {
        assert_eq!(self.loading.fetch_add(1, SeqCst), 0, "two loads of one key at once");
        let ticket = self.tickets.fetch_add(1, SeqCst) + 1;
        self.loading.fetch_sub(1, SeqCst);
        ticket
    }
}

/// How a loader ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Value,
    Failure,
    Panic,
    /// The first load fails, later ones do not.
    FirstFails,
}

/// What a loader panics with. Any other panic is an assertion's, or loom's, and goes on.
pub struct Crash;

/// What became of a call.
#[derive(Debug)]
pub struct Call {
    /// The ticket of the load, if this caller led.
    pub led: Option<Ticket>,
    pub got: Got,
    pub deadline: Deadline,
}

pub type Got = Result<Ticket, Unmade>;

/// Why there is no value.
#[derive(Debug)]
pub enum Unmade {
    Error(Error<Ticket>),
    /// The call panicked, with [`Crash`].
    Crashed,
}

impl Call {
    /// The ticket that the call returned with, in a value or an error.
    pub fn ticket(&self) -> Option<Ticket> {
        match &self.got {
            Ok(ticket) => Some(*ticket),
            Err(Unmade::Error(error)) => error.failure().copied(),
            Err(Unmade::Crashed) => None,
        }
    }

    pub fn timed_out(&self) -> bool {
        matches!(&self.got, Err(Unmade::Error(error)) if error.is_timed_out())
    }

    pub fn overloaded(&self) -> bool {
        matches!(&self.got, Err(Unmade::Error(error)) if error.is_overloaded())
    }
}

/// Calls, and loads if it must, from `source`.
pub fn call(desk: &Desk, deadline: Deadline, source: &Source, end: End) -> Call {
    call_for(desk, KEY, deadline, end, || source.load())
}

pub fn call_for(
    desk: &Desk,
    key: u64,
    deadline: Deadline,
    end: End,
    load: impl FnOnce() -> Ticket,
) -> Call {
    let mut led = None;
    let loader = || {
        let ticket = load();
        led = Some(ticket);
        match end {
            End::Panic => resume_unwind(Box::new(Crash)),
            End::Failure => Err(ticket),
            End::FirstFails if ticket == 1 => Err(ticket),
            End::Value | End::FirstFails => Ok(ticket),
        }
    };
    let got = crashing(|| match deadline.instant() {
        None => desk.run(&key, loader),
        Some(at) => desk.run_deadline(&key, at, loader),
    });
    let got = match got {
        Some(got) => got.map_err(Unmade::Error),
        None => Err(Unmade::Crashed),
    };
    Call { led, got, deadline }
}

/// `None` if `f` panicked with [`Crash`].
pub fn crashing<T>(f: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(done) => Some(done),
        Err(payload) if payload.is::<Crash>() => None,
        Err(payload) => resume_unwind(payload),
    }
}

/// Something one thread does and another waits for.
#[derive(Clone)]
pub struct Signal(Arc<(Mutex<bool>, Condvar)>);

impl Signal {
    pub fn new() -> Signal {
        Signal(Arc::new((Mutex::new(false), Condvar::new())))
    }

    pub fn give(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    pub fn wait(&self) {
        let mut given = self.0.0.lock().unwrap();
        while !*given {
            given = self.0.1.wait(given).unwrap();
        }
    }
}

/// In words. A model's threads have 4,096 by default, in which no load fits that is asked for by a
/// loader.
const STACK: usize = 16 * 1024;

/// Runs `callers` at once, of which the first is the thread that asks: its stack is the smallest.
pub fn together<T: Send + 'static>(
    callers: usize,
    caller: impl Fn(usize) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let caller = Arc::new(caller);
    let spawned: Vec<_> = (1..callers)
        .map(|me| {
            let caller = Arc::clone(&caller);
            let roomy = thread::Builder::new().stack_size(STACK);
            roomy.spawn(move || caller(me)).unwrap()
        })
        .collect();
    let first = caller(0);
    // Whatever the callers hold is to be gone when they are.
    drop(caller);
    std::iter::once(first).chain(spawned.into_iter().map(|caller| caller.join().unwrap())).collect()
}

/// Callers of one key, of which the last `late` have deadlines that fire.
pub fn herd(callers: usize, late: usize, end: End) -> impl Fn() + Send + Sync + 'static {
    move || {
        herd_of(Desk::new(), callers, late, end);
    }
}

/// The same, of a group made as is wanted.
pub fn herd_of(desk: Desk, callers: usize, late: usize, end: End) -> Vec<Call> {
    let desk = Arc::new(desk);
    let calls = {
        let (desk, source) = (Arc::clone(&desk), Source::new());
        together(callers, move |me| {
            let deadline = if me + late >= callers { fires() } else { Deadline::NEVER };
            call(&desk, deadline, &source, end)
        })
    };
    check(&calls, end);
    settled(&desk);
    calls
}

/// Everyone who led got what it loaded, and everyone else what somebody who led has loaded.
pub fn check(calls: &[Call], end: End) {
    for call in calls {
        let failed = end == End::Failure || end == End::FirstFails && call.ticket() == Some(1);
        match (&call.got, call.led) {
            (Ok(ticket), Some(own)) => assert!(*ticket == own && !failed, "{call:?}"),
            (Ok(ticket), None) => {
                assert!(
                    calls.iter().any(|other| other.led == Some(*ticket)) && !failed,
                    "{call:?}"
                );
            }
            (Err(Unmade::Error(Error::Failed(ticket))), led) => {
                assert!(led.is_none_or(|own| own == **ticket) && failed, "{call:?}");
            }
            (Err(Unmade::Error(Error::Panicked(_))), None) => assert_eq!(end, End::Panic),
            (Err(Unmade::Error(Error::TimedOut { .. })), None) => {
                assert!(call.deadline != Deadline::NEVER, "timed out without a deadline");
            }
            (Err(Unmade::Crashed), Some(_)) => assert_eq!(end, End::Panic),
            _ => panic!("an end that should not be: {call:?}"),
        }
    }
}

/// Nothing is left when everybody has left.
pub fn settled(desk: &Desk) {
    assert_eq!(desk.len(), 0, "a landed flight is still boarded");
    assert_eq!(desk.waiting(), 0, "nobody waits, but somebody is counted");
}
