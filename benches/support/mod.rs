//! How the benchmarks measure: contenders in turns, medians over rounds, ratios within one run.
//!
//! Absolute figures mean little on a shared machine. So the contenders take turns, one round each
//! and then the next, until the time is up; figures are medians over the rounds, and what is
//! compared are the medians of the same run. Lower is better:
//!
//! ```text
//! RATIO name value target <=x
//! ```
//!
//! Without cargo's own `--bench` (under `cargo test --benches`) there is one round of each, to see
//! that it runs.

#![allow(dead_code, reason = "each benchmark uses a part of it")]

use std::array;
use std::sync::{Barrier, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// What is asked for, and whether it is to be measured or only run.
pub(crate) struct Report {
    filter: Option<String>,
    pub(crate) in_earnest: bool,
}

impl Report {
    /// As the command line has it: a part of the names of the ratios that are wanted.
    pub(crate) fn asked_for() -> Report {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        Report {
            filter: arguments.iter().find(|argument| !argument.starts_with('-')).cloned(),
            in_earnest: arguments.iter().any(|argument| argument == "--bench"),
        }
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| name.contains(filter))
    }

    pub(crate) fn print(&self, ratios: impl IntoIterator<Item = Ratio>) {
        for ratio in ratios.into_iter().filter(|ratio| self.wants(&ratio.name)) {
            println!("RATIO {} {:.3} target <={}", ratio.name, ratio.value, ratio.target);
        }
    }

    /// Calls `round` until there are `least` rounds and the time is up. The first time warms
    /// everything up and does not count, if it is not the only one.
    pub(crate) fn rounds<T>(
        &self,
        least: usize,
        time: Duration,
        mut round: impl FnMut() -> T,
    ) -> Vec<T> {
        let first = round();
        if !self.in_earnest {
            return vec![first];
        }
        let began = Instant::now();
        let mut rounds = vec![round()];
        while rounds.len() < least || began.elapsed() < time {
            rounds.push(round());
        }
        rounds
    }

    /// Rounds in which each of `N` contenders takes its turn, on `threads` threads at the same
    /// time: how long each took, in nanoseconds.
    pub(crate) fn in_turns<const N: usize>(
        &self,
        least: usize,
        time: Duration,
        threads: usize,
        take: impl Fn(Turn) + Sync,
    ) -> Vec<[f64; N]> {
        let start = Barrier::new(threads);
        let finish = Barrier::new(threads);
        let over = OnceLock::new();
        // From each thread: the first to start and the last to end are what a turn took.
        let spans = Mutex::new(Vec::new());

        let turn = |thread: usize, number: usize| {
            start.wait();
            if over.get().is_some() {
                return false;
            }
            let began = Instant::now();
            take(Turn { number, contender: number % N, thread });
            let ended = Instant::now();
            spans.lock().unwrap().push((began, ended));
            finish.wait();
            true
        };
        thread::scope(|scope| {
            for thread in 1..threads {
                let turn = &turn;
                scope.spawn(move || (0..).take_while(|&number| turn(thread, number)).count());
            }
            let mut turns = 0..;
            let rounds = self.rounds(least, time, || {
                array::from_fn(|_| {
                    turn(0, turns.next().unwrap());
                    let spans = std::mem::take(&mut *spans.lock().unwrap());
                    let began = spans.iter().map(|span| span.0).min().unwrap();
                    let ended = spans.iter().map(|span| span.1).max().unwrap();
                    (ended - began).as_nanos() as f64
                })
            });
            let _ = over.set(());
            start.wait();
            rounds
        })
    }
}

/// One thread's part in one contender's turn.
pub(crate) struct Turn {
    /// How many turns there were before, of whichever contender.
    pub(crate) number: usize,
    pub(crate) contender: usize,
    pub(crate) thread: usize,
}

pub(crate) struct Ratio {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) target: f64,
}

pub(crate) fn ratio(name: impl Into<String>, ours: f64, theirs: f64, target: f64) -> Ratio {
    Ratio { name: name.into(), value: ours / theirs, target }
}

/// The median over the rounds of each contender's figure.
pub(crate) fn medians<const N: usize>(rounds: &[[f64; N]]) -> [f64; N] {
    array::from_fn(|contender| {
        let mut figures: Vec<f64> = rounds.iter().map(|round| round[contender]).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    })
}
