//! What the parent and its children say to each other.

use std::io;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::way::Way;
use crate::loader::Price;
use crate::tally::Traffic;

/// The first line to a child.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) way: Way,
    /// Of this child, so that no two ask for the same sequence of keys.
    pub(super) number: u64,
    pub(super) threads: usize,
    pub(super) keys: usize,
    pub(super) zipf: f64,
    pub(super) calls: u64,
    pub(super) price: Price,
    /// How much longer loads of the hottest key take.
    pub(super) slow: Duration,
    /// Whether the first load waits for a word of the parent, so that it can do harm meanwhile.
    pub(super) waits: bool,
    pub(super) url: String,
    pub(super) namespace: String,
    pub(super) lease: Duration,
    pub(super) budget: Duration,
    /// How long whatever is not to be given up may take.
    pub(super) patience: Duration,
}

/// To a child.
#[derive(Serialize, Deserialize)]
pub(super) enum Order {
    /// Set out when the clock in common says this.
    Start(Duration),
    /// The first load may go on.
    GoOn,
}

/// From a child.
#[derive(Serialize, Deserialize)]
pub(super) enum Word {
    /// Its threads are there, and it hears what is published.
    Ready,
    /// How many of its calls have returned.
    Calls(u64),
    /// Its first load has begun, of this key, and waits.
    Loading(usize),
    Done(Box<Done>),
    Failed(String),
}

/// What a child has seen.
#[derive(Serialize, Deserialize)]
pub(super) struct Done {
    pub(super) waits: Vec<(u64, u64)>,
    pub(super) leads: Vec<(u64, u64)>,
    pub(super) faults: u64,
    pub(super) fault: Option<String>,
    pub(super) loads: Vec<Seen>,
    pub(super) overlapping: u64,
    pub(super) traffic: Option<Traffic>,
}

/// A load, in nanoseconds since the start.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Seen {
    pub(super) key: usize,
    pub(super) begun: u64,
    pub(super) ended: u64,
}

/// A line that says `what`.
pub(super) fn line(what: &impl Serialize) -> String {
    let mut line = serde_json::to_string(what).expect("all of it can be written");
    line.push('\n');
    line
}

/// What a line says.
pub(super) fn read<T: DeserializeOwned>(line: &str) -> io::Result<T> {
    Ok(serde_json::from_str(line)?)
}
