//! [`Loader`]: a stand-in for the database, which costs what the user says and counts its loads.

use std::fmt;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use crate::duration::{self, Span};
use crate::strategy::Row;

/// What a load costs.
#[derive(Args, Clone, Serialize, Deserialize)]
#[command(next_help_heading = "What is loaded")]
pub(crate) struct Price {
    /// How long one load takes: 50ms, 1.5s, 500us
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = duration::parse)]
    pub(crate) load: Duration,
    /// How the times of loads are spread around that, each drawn anew
    #[arg(long, value_enum, default_value_t = LoadSpread::Fixed)]
    pub(crate) load_spread: LoadSpread,
    /// What a load does in that time
    #[arg(long, value_enum, default_value_t = Cost::Sleep)]
    pub(crate) cost: Cost,
    /// How many loads run at once, as with a pool of connections; the others queue for their turn
    /// [default: no bound]
    #[arg(long, value_name = "N")]
    pub(crate) pool: Option<NonZeroUsize>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum LoadSpread {
    /// Not at all
    Fixed,
    /// Exponentially, with that as the mean: one in a hundred takes 4.6 times as long
    Exp,
    /// Log-normally with a sigma of 1, and that as the median: one in a hundred takes ten times as
    /// long, as with a database that is slow now and then
    Lognormal,
}

impl LoadSpread {
    /// How many times as long the next load takes.
    fn draw(self) -> f64 {
        // Both from a number above zero: no logarithm is infinite.
        let unit = || 1.0 - fastrand::f64();
        match self {
            LoadSpread::Fixed => 1.0,
            LoadSpread::Exp => -unit().ln(),
            LoadSpread::Lognormal => {
                let normal = (-2.0 * unit().ln()).sqrt() * (std::f64::consts::TAU * unit()).cos();
                normal.exp()
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Cost {
    /// Sleep, as a thread does that waits for a database
    Sleep,
    /// Compute, so that the loads compete for the cores
    Cpu,
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = Span(self.load);
        match self.cost {
            Cost::Sleep => write!(f, "a load sleeps for {load}")?,
            Cost::Cpu => write!(f, "a load computes for {load}")?,
        }
        match self.load_spread {
            LoadSpread::Fixed => {}
            LoadSpread::Exp => write!(f, " in the mean, spread exponentially")?,
            LoadSpread::Lognormal => write!(f, " in the median, spread log-normally")?,
        }
        match self.pool {
            Some(pool) => write!(f, ", at most {pool} at once"),
            None => Ok(()),
        }
    }
}

/// Loads rows, and counts what it loads.
pub(crate) struct Loader {
    work: Work,
    spread: LoadSpread,
    pool: Option<Pool>,
    keys: Box<[Loads]>,
    overlapping: AtomicU64,
}

/// The loads of one key.
struct Loads {
    begun: AtomicU64,
    /// By instance.
    running: Box<[AtomicU64]>,
}

#[derive(Clone, Copy)]
enum Work {
    Sleep(Duration),
    Compute { turns: u64 },
}

impl Loader {
    /// A loader of the keys `0..keys`, as one database for all instances.
    pub(crate) fn new(price: &Price, keys: usize, instances: usize) -> Loader {
        let work = match price.cost {
            Cost::Sleep => Work::Sleep(price.load),
            Cost::Cpu => Work::Compute { turns: turns_in(price.load) },
        };
        let counts = || std::iter::repeat_with(AtomicU64::default);
        let loads = || Loads { begun: 0.into(), running: counts().take(instances).collect() };
        let keys = std::iter::repeat_with(loads).take(keys).collect();
        let pool = price.pool.map(Pool::new);
        Loader { work, spread: price.load_spread, pool, keys, overlapping: AtomicU64::new(0) }
    }

    pub(crate) fn load(&self, key: usize, instance: usize) -> Row {
        let loads = &self.keys[key];
        let running = &loads.running[instance];
        loads.begun.fetch_add(1, Ordering::Relaxed);
        if running.fetch_add(1, Ordering::Relaxed) > 0 {
            self.overlapping.fetch_add(1, Ordering::Relaxed);
        }
        let turn = self.pool.as_ref().map(Pool::turn);
        let times = self.spread.draw();
        match self.work {
            Work::Sleep(time) => thread::sleep(time.mul_f64(times)),
            Work::Compute { turns } => compute((turns as f64 * times) as u64),
        }
        drop(turn);
        running.fetch_sub(1, Ordering::Relaxed);
        Row { key }
    }

    /// How many loads there were of each key.
    pub(crate) fn loads(&self) -> Vec<u64> {
        self.keys.iter().map(|loads| loads.begun.load(Ordering::Relaxed)).collect()
    }

    /// How many loads began while another load of their key was running in their instance.
    pub(crate) fn overlapping(&self) -> u64 {
        self.overlapping.load(Ordering::Relaxed)
    }
}

/// Lets only so many loads run at once.
struct Pool {
    free: Mutex<usize>,
    freed: Condvar,
}

impl Pool {
    fn new(size: NonZeroUsize) -> Pool {
        Pool { free: Mutex::new(size.get()), freed: Condvar::new() }
    }

    fn turn(&self) -> Turn<'_> {
        let mut free = self.free.lock();
        self.freed.wait_while(&mut free, |free| *free == 0);
        *free -= 1;
        Turn(self)
    }
}

struct Turn<'a>(&'a Pool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.freed.notify_one();
    }
}

fn compute(turns: u64) {
    let mut number = 1_u64;
    for _ in 0..turns {
        number = black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

/// How many turns of [`compute`] take `time` on a core of their own.
///
/// A load that watched the clock instead would be over in time however many others ran beside it:
/// the work must be the same, not the time.
fn turns_in(time: Duration) -> u64 {
    let enough = Duration::from_millis(20);
    let mut turns = 1 << 16;
    loop {
        let begun = Instant::now();
        compute(turns);
        let took = begun.elapsed();
        if took >= enough {
            return (turns as f64 * time.as_secs_f64() / took.as_secs_f64()) as u64;
        }
        turns *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free_of_charge() -> Price {
        let (load_spread, cost) = (LoadSpread::Fixed, Cost::Sleep);
        Price { load: Duration::ZERO, load_spread, cost, pool: None }
    }

    #[test]
    fn the_times_of_loads_are_spread_as_they_say() {
        fastrand::seed(7);
        let drawn = |spread: LoadSpread| {
            let mut times: Vec<_> = (0..10_001).map(|_| spread.draw()).collect();
            times.sort_by(f64::total_cmp);
            [5_000, 9_900].map(|place| times[place])
        };
        assert_eq!(drawn(LoadSpread::Fixed), [1.0, 1.0]);
        for (spread, median, most) in
            [(LoadSpread::Exp, 0.693, 4.6), (LoadSpread::Lognormal, 1.0, 10.2)]
        {
            let [half, nearly_all] = drawn(spread);
            assert!((half / median - 1.0).abs() < 0.1, "{half}");
            assert!((nearly_all / most - 1.0).abs() < 0.2, "{nearly_all}");
        }
    }

    #[test]
    fn loads_are_counted_by_key() {
        let loader = Loader::new(&free_of_charge(), 3, 2);
        assert_eq!(loader.load(2, 0).key, 2);
        loader.load(2, 1);
        loader.load(0, 0);
        assert_eq!(loader.loads(), [1, 0, 2]);
        assert_eq!(loader.overlapping(), 0);
    }

    #[test]
    fn a_load_beside_another_of_its_key_and_instance_overlaps() {
        let loader = Loader::new(&free_of_charge(), 2, 2);
        loader.keys[1].running[0].store(1, Ordering::Relaxed); // as if one were running
        loader.load(0, 0);
        loader.load(1, 1);
        assert_eq!(loader.overlapping(), 0);
        loader.load(1, 0);
        assert_eq!(loader.overlapping(), 1);
    }

    #[test]
    fn a_pool_gives_its_turns_back() {
        let pool = NonZeroUsize::new(1);
        let loader = Loader::new(&Price { pool, ..free_of_charge() }, 1, 1);
        loader.load(0, 0);
        loader.load(0, 0);
        assert_eq!(loader.loads(), [2]);
    }
}
