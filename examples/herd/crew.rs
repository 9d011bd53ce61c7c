//! The threads of a herd, which all set out at the same moment.

use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Builder, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::Failure;

/// Thousands of threads are to fit, and all they do is call and wait.
const STACK: usize = 128 * 1024;

/// Runs `work` on so many threads. All of them are there before the first sets out, and each is
/// told its number, from zero, and when that was. Meanwhile this thread runs `watch`, with a way to
/// ask whether all are done.
pub(crate) fn run(
    threads: usize,
    watch: impl FnOnce(&dyn Fn() -> bool),
    work: impl Fn(usize, Instant) + Sync,
) -> Result<(), Failure> {
    run_on_signal(threads, || Ok(Instant::now()), watch, work)
}

/// The same, but once all are there they wait for `signal` to return, with the time it is.
pub(crate) fn run_on_signal(
    threads: usize,
    signal: impl FnOnce() -> Result<Instant, Failure>,
    watch: impl FnOnce(&dyn Fn() -> bool),
    work: impl Fn(usize, Instant) + Sync,
) -> Result<(), Failure> {
    let arrived = AtomicUsize::new(0);
    // Readers do not exclude each other: when the gate opens nobody has to queue to get out, as
    // with a barrier made of a mutex. A gate that opens without a start calls the whole thing off.
    let gate = RwLock::new(None);
    let member = || {
        let number = arrived.fetch_add(1, Ordering::Relaxed);
        let start = *gate.read().expect("nobody panics while holding the gate");
        if let Some(start) = start {
            work(number, start);
        }
    };
    thread::scope(|scope| {
        let mut closed = gate.write().expect("nobody has held the gate yet");
        let mut crew = Vec::new();
        for started in 0..threads {
            let spawned = Builder::new().stack_size(STACK).spawn_scoped(scope, member);
            crew.push(spawned.map_err(|error| {
                Failure::Told(format!("could start only {started} of {threads} threads: {error}"))
            })?);
        }
        while arrived.load(Ordering::Relaxed) < threads {
            thread::sleep(Duration::from_micros(100));
        }
        *closed = Some(signal()?);
        drop(closed);
        watch(&|| crew.iter().all(ScopedJoinHandle::is_finished));
        // All of them, even after a panic: a panic that nobody joined would go on in this thread.
        let panics = crew.into_iter().filter_map(|member| member.join().err()).count();
        match panics {
            0 => Ok(()),
            _ => Err(Failure::Told(format!("{panics} threads of the herd panicked"))),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_sets_out_before_all_are_there() {
        let (numbers, threads) = (AtomicUsize::new(0), 8);
        let herd = run(
            threads,
            |_| (),
            |number, start| {
                assert!(start <= Instant::now());
                numbers.fetch_or(1 << number, Ordering::Relaxed);
            },
        );
        assert!(herd.is_ok());
        assert_eq!(numbers.into_inner(), 0xff, "each number was given once");
    }

    #[test]
    fn without_a_signal_nobody_sets_out() {
        let signal = || Err(Failure::Told("called off".into()));
        let herd = run_on_signal(4, signal, |_| (), |_, _| panic!("it was called off"));
        assert!(matches!(herd, Err(Failure::Told(reason)) if reason == "called off"));
    }

    #[test]
    fn a_panic_is_reported() {
        let herd = run(2, |_| (), |_, _| panic!("this panic belongs to the test"));
        assert!(matches!(herd, Err(Failure::Told(_))));
    }
}
