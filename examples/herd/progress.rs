//! Progress on standard error, if that is a terminal; otherwise nothing is shown at all.

use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A line of progress. It is gone when this is dropped, so that errors and tables stand alone.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Counts what is done, without knowing how much there is.
    pub(crate) fn counting(what: &str, unit: &str) -> Progress {
        Progress::new(None, &format!("{{spinner}} {{msg}}: {{human_pos}} {unit}"), what)
    }

    /// A bar of how much of `all` is done.
    pub(crate) fn bar(what: &str, all: usize) -> Progress {
        let template = "{msg:>12} {bar:40} {human_pos} of {human_len}, {eta} left";
        Progress::new(Some(all as u64), template, what)
    }

    fn new(length: Option<u64>, template: &str, what: &str) -> Progress {
        // This target draws nothing unless standard error is a terminal.
        let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr());
        bar.set_style(ProgressStyle::with_template(template).expect("the template is well formed"));
        bar.set_message(what.to_string());
        Progress(bar)
    }

    pub(crate) fn set(&self, done: u64) {
        self.0.set_position(done);
    }

    /// Draws until `finished`, asking every now and then how much is done. The threads that are
    /// measured so have no part in drawing.
    pub(crate) fn follow(&self, done: impl Fn() -> u64, finished: &dyn Fn() -> bool) {
        if self.0.is_hidden() {
            return;
        }
        while !finished() {
            self.set(done());
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
