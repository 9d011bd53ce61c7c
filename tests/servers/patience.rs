//! How long the harness waits for what servers do in their own time.

use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything in here takes on a busy machine: past it, something hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `condition` holds.
#[track_caller]
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
