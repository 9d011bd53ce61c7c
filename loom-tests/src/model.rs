//! Runs scenarios: under every schedule, or every one within a bound, and never fewer than that.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::{Deadline, sync};

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

    let tally = Tally {
        name: name.to_string(),
        callers,
        bound: explorer.preemption_bound,
        begun: Instant::now(),
        executions: Arc::new(AtomicUsize::new(0)),
    };
    let executions = Arc::clone(&tally.executions);
    explorer.check(move || {
        executions.fetch_add(1, Ordering::Relaxed);
        scenario();
    });
    let executions = tally.executions.load(Ordering::Relaxed);
    drop(tally);
    assert!(
        executions >= at_least || overridden,
        "{name}: {executions} executions, but there used to be {at_least}: it was cut short"
    );
}

/// Prints the count however the exploration ends.
struct Tally {
    name: String,
    callers: usize,
    bound: Option<usize>,
    begun: Instant,
    executions: Arc<AtomicUsize>,
}

impl Drop for Tally {
    fn drop(&mut self) {
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

/// Lets the deadlines that [fire late](fires_late) fire.
pub fn landed() {
    sync::landed();
}
