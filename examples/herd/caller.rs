//! [`Caller`]: one thread of the herd, calling and keeping watch on its calls.

use std::cell::Cell;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::loader::Loader;
use crate::strategy::{Column, Strategy};
use crate::tally::{Sample, Tally};

/// Samples a caller collects before it takes them to the tally: a lock taken after every call
/// would be a herd of its own.
const BATCH: usize = 1024;

pub(crate) struct Caller<'a> {
    strategy: &'a dyn Strategy,
    /// In which it calls.
    instance: usize,
    loader: &'a Loader,
    tally: &'a Mutex<Tally>,
    samples: Vec<Sample>,
}

impl<'a> Caller<'a> {
    /// The caller of this number: its instance is the next one after that of the caller before.
    pub(crate) fn new(
        number: usize,
        column: &'a Column,
        loader: &'a Loader,
        tally: &'a Mutex<Tally>,
    ) -> Caller<'a> {
        let instance = number % column.instances.len();
        let strategy = column.instances[instance].as_ref();
        Caller { strategy, instance, loader, tally, samples: Vec::new() }
    }

    /// Asks for the row of `key`, which was due `behind` ago.
    pub(crate) fn call(&mut self, key: usize, behind: Option<Duration>) {
        let loaded = Cell::new(None);
        let called = Instant::now();
        let row = self.strategy.get(key, &|| {
            let row = self.loader.load(key, self.instance);
            loaded.set(Some(Instant::now()));
            row
        });
        let returned = Instant::now();
        self.samples.push(Sample {
            waited: returned - called,
            led: loaded.get().map(|loaded| returned - loaded),
            behind,
        });
        let fault = match row {
            Ok(row) if row.key == key => None,
            Ok(row) => Some(format!("asked for key {key}, got the row of key {}", row.key)),
            Err(error) => Some(error.to_string()),
        };
        if let Some(fault) = fault {
            self.tally.lock().wrong(fault);
        }
        if self.samples.len() == BATCH {
            self.hand_in();
        }
    }

    fn hand_in(&mut self) {
        let mut tally = self.tally.lock();
        for sample in self.samples.drain(..) {
            tally.add(&sample);
        }
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.hand_in();
    }
}
