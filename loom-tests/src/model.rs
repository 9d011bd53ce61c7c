//! Runs scenarios: under every schedule, or every one within a bound, and never fewer than that.

use std::cell::Cell;
use std::env;
use std::io::{self, Write};
use std::panic;
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use crate::{Deadline, sync};

/// The environment variable that says that the library under this process's scenarios has a bug.
pub const SEEDED: &str = "ONEFILL_SEEDED";

/// Explores `scenario` under every schedule that preempts a thread at most `bound` times, or under
/// every schedule there is, and prints how many executions that took.
///
/// `LOOM_MAX_PREEMPTIONS` overrides the bound.
///
/// # Panics
///
/// If an execution does, or deadlocks, or leaks; if there were fewer than `at_least` executions:
/// then the scenario has lost some of what it used to look at.
pub fn explore(
    name: &str,
    callers: usize,
    bound: Option<usize>,
    at_least: usize,
    scenario: impl Fn() + Send + Sync + 'static,
) {
    let mut explorer = loom::model::Builder::new();
    // loom looks at these now and then, and stops: in silence, and green.
    assert!(
        explorer.max_permutations.is_none() && explorer.max_duration.is_none(),
        "LOOM_MAX_PERMUTATIONS and LOOM_MAX_DURATION would cut the exploration short"
    );
    let overridden = explorer.preemption_bound.is_some();
    explorer.preemption_bound = explorer.preemption_bound.or(bound);

    let tally = Arc::new(Tally {
        name: name.to_string(),
        callers,
        bound: explorer.preemption_bound,
        begun: Instant::now(),
        executions: AtomicUsize::new(0),
    });
    tell_of_failures();
    RUNNING.set(Some(Arc::clone(&tally)));
    let counted = Arc::clone(&tally);
    explorer.check(move || {
        counted.executions.fetch_add(1, Ordering::Relaxed);
        scenario();
    });
    RUNNING.set(None);
    tally.print();
    let executions = tally.executions.load(Ordering::Relaxed);
    // With a bug there may be less to look at.
    let seeded = env::var_os(SEEDED).is_some();
    assert!(
        executions >= at_least || overridden || seeded,
        "{name}: {executions} executions, but there used to be {at_least}: it was cut short"
    );
}

struct Tally {
    name: String,
    callers: usize,
    bound: Option<usize>,
    begun: Instant,
    executions: AtomicUsize,
}

impl Tally {
    fn print(&self) {
        let bound = self.bound.map_or("none".to_string(), |bound| bound.to_string());
        // Not `println!`, which a test that passes keeps to itself.
        let _ = writeln!(
            io::stdout(),
            "scenario {} callers {} bound {bound} executions {} in {:.2?}",
            self.name,
            self.callers,
            self.executions.load(Ordering::Relaxed),
            self.begun.elapsed(),
        );
    }
}

thread_local! {
    /// What this thread explores. All threads of a model are this one to the system.
    static RUNNING: Cell<Option<Arc<Tally>>> = const { Cell::new(None) };
}

/// Prints the count at the first panic already: taking a failed model down may abort the process.
/// Or hang it: so where a bug is seeded, which is in a process of its own, that is the end of it.
fn tell_of_failures() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if let Some(tally) = RUNNING.take() {
                tally.print();
            }
            before(info);
            if env::var_os(SEEDED).is_some() {
                process::exit(101);
            }
        }));
    });
}

/// A deadline that fires at any point of its wait.
pub fn fires() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// A deadline that does not fire: whoever waits for it must be called.
pub fn far_off() -> Deadline {
    Deadline::after(Duration::from_secs(24 * 3600))
}

/// A deadline that fires once [`landed`] was called, and not before.
pub fn fires_late() -> Deadline {
    Deadline::after(2 * sync::LATE)
}

/// Makes every flight that is up a day older, and those to come.
pub fn grow_old() {
    sync::grow_old();
}

/// Lets the deadlines that [fire late](fires_late) fire.
pub fn landed() {
    sync::landed();
}
