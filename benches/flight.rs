//! How fast flights are, as ratios to their peers in the same run.
//!
//! The peers are what a blocking server would use instead of a [`Group`]: the caches moka (`sync`)
//! and quick_cache (`sync`), each keeping 1,000 entries, and a `Mutex<HashMap<K, Arc<OnceLock>>>`,
//! the coalescing that std alone affords, which knows neither deadlines nor failures. All have
//! `u64` keys and values and whatever hasher they come with.
//!
//! - **A miss**: a key never seen before, whose loader returns at once; from one thread, and from
//!   two at the same time. What is left is the cost of coalescing when there is nothing to
//!   coalesce.
//! - **A herd**: 200 or 1,000 threads ask for one key, one of them loads. Counted from the moment
//!   the loader ends: when the last caller has the value, and when the leader itself has it. Once
//!   without deadlines, and once with one in each call, for those that can: a `Group` and
//!   quick_cache.
//!
//! `cargo bench --bench flight` measures everything, `cargo bench --bench flight -- herd200` what
//! has a ratio of such a name. How is told in [`support`].

mod support;

use std::array;
use std::collections::HashMap;
use std::convert::Infallible;
use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use onefill::Group;
use quick_cache::sync::GuardResult;

use support::{Ratio, Report, medians, ratio};

/// Entries a cache keeps. Nothing is asked for twice, so more would measure the allocator.
const KEPT: usize = 1_000;

/// A deadline that is there, and never fires.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Something that loads a key once for all who ask.
trait Loads: Sync {
    fn load(&self, key: u64, loader: impl FnOnce() -> u64) -> u64;
}

struct OneFill(Group<u64, u64, Infallible>);

impl Loads for OneFill {
    fn load(&self, key: u64, loader: impl FnOnce() -> u64) -> u64 {
        self.0.run(&key, || Ok(loader())).expect("the loader does not fail")
    }
}

struct OneFillDeadline(Group<u64, u64, Infallible>);

impl Loads for OneFillDeadline {
    fn load(&self, key: u64, loader: impl FnOnce() -> u64) -> u64 {
        self.0.run_timeout(&key, TIMEOUT, || Ok(loader())).expect("nor is it as slow as that")
    }
}

struct QuickCache(quick_cache::sync::Cache<u64, u64>);

impl Loads for QuickCache {
    fn load(&self, key: u64, loader: impl FnOnce() -> u64) -> u64 {
        let Ok(value) = self.0.get_or_insert_with(&key, || Ok::<_, Infallible>(loader()));
        value
    }
}

struct QuickCacheDeadline(quick_cache::sync::Cache<u64, u64>);

impl Loads for QuickCacheDeadline {
    fn load(&self, key: u64, loader: impl FnOnce() -> u64) -> u64 {
        match self.0.get_value_or_guard(&key, Some(TIMEOUT)) {
            GuardResult::Value(value) => value,
            GuardResult::Guard(guard) => {
                let value = loader();
                let _ = guard.insert(value);
                value
            }
            GuardResult::Timeout => panic!("the loader is not as slow as that"),
        }
    }
}

struct Moka(moka::sync::Cache<u64, u64>);

impl Loads for Moka {
    fn load(&self, key: u64, loader: impl FnOnce() -> u64) -> u64 {
        self.0.get_with(key, loader)
    }
}

/// Remembers nothing, like a `Group`: whoever loaded takes the cell out again.
#[derive(Default)]
struct OnceLocks(Mutex<HashMap<u64, Arc<OnceLock<u64>>>>);

impl Loads for OnceLocks {
    fn load(&self, key: u64, loader: impl FnOnce() -> u64) -> u64 {
        let cell = Arc::clone(self.0.lock().unwrap().entry(key).or_default());
        let mut loaded = false;
        let value = *cell.get_or_init(|| {
            loaded = true;
            loader()
        });
        if loaded {
            self.0.lock().unwrap().remove(&key);
        }
        value
    }
}

/// [`Loads`] as an object. The loop over the misses is compiled for each kind, so that no
/// indirect call is counted.
trait Contender: Sync {
    fn misses(&self, keys: Range<u64>);
    fn call(&self, key: u64, loader: &dyn Fn() -> u64) -> u64;
}

impl<L: Loads> Contender for L {
    fn misses(&self, keys: Range<u64>) {
        for key in keys {
            black_box(self.load(black_box(key), || key));
        }
    }

    fn call(&self, key: u64, loader: &dyn Fn() -> u64) -> u64 {
        self.load(key, loader)
    }
}

fn onefill() -> OneFill {
    OneFill(Group::new())
}

fn quick_cache() -> QuickCache {
    QuickCache(quick_cache::sync::Cache::new(KEPT))
}

fn moka() -> Moka {
    Moka(moka::sync::Cache::new(KEPT as u64))
}

fn main() {
    let report = Report::asked_for();
    let ratios = [
        misses_of_one(&report),
        misses_of_two(&report),
        herd::<200>(&report, Duration::from_secs(20)),
        herd::<1_000>(&report, Duration::from_secs(40)),
    ];
    report.print(ratios.into_iter().flatten());
}

const MISSERS: [&str; 4] = ["onefill", "quick_cache", "moka", "OnceLock map"];

fn misses_of_one(report: &Report) -> Vec<Ratio> {
    const QUICK_CACHE: &str = "miss_1t_vs_quick_cache";
    const MOKA: &str = "miss_1t_vs_moka";
    if !report.wants(QUICK_CACHE) && !report.wants(MOKA) {
        return Vec::new();
    }
    let figures = misses::<1>(report, 1_000);
    vec![
        ratio(QUICK_CACHE, figures[0], figures[1], 0.80),
        ratio(MOKA, figures[0], figures[2], 0.10),
    ]
}

fn misses_of_two(report: &Report) -> Vec<Ratio> {
    const QUICK_CACHE: &str = "miss_2t_vs_quick_cache";
    if !report.wants(QUICK_CACHE) {
        return Vec::new();
    }
    let figures = misses::<2>(report, 20_000);
    vec![ratio(QUICK_CACHE, figures[0], figures[1], 0.80)]
}

/// Misses from `THREADS` threads at the same time, `count` of each in a round: nanoseconds per miss,
/// over all threads.
///
/// A round of one thread is shorter than a time slice, so that most rounds are not interrupted;
/// one of several is long enough for the barrier not to count.
fn misses<const THREADS: usize>(report: &Report, count: u64) -> [f64; 4] {
    let contenders: [&dyn Contender; 4] =
        [&onefill(), &quick_cache(), &moka(), &OnceLocks::default()];
    let rounds = report.in_turns(1, Duration::from_secs(4), THREADS, |turn| {
        let first = (turn.number * THREADS + turn.thread) as u64 * count;
        contenders[turn.contender].misses(first..first + count);
    });

    let figures = medians(&rounds).map(|turn| turn / (THREADS as u64 * count) as f64);
    println!("misses, {THREADS} thread(s), {} rounds: ns per call", rounds.len());
    for (name, figure) in MISSERS.iter().zip(figures) {
        println!("  {name:<24} {figure:>9.1}");
    }
    println!();
    figures
}

const HERDERS: [&str; 6] = [
    "onefill",
    "quick_cache",
    "moka",
    "OnceLock map",
    "onefill, deadlines",
    "quick_cache, deadlines",
];

/// A herd of `THREADS` threads, the leader included, on one key.
fn herd<const THREADS: usize>(report: &Report, time: Duration) -> Vec<Ratio> {
    let name = |what: &str| format!("herd{THREADS}_{what}");
    let names = ["last_vs_best_cache", "leader_vs_best_cache", "last_vs_oncelock"].map(name);
    let names_with_deadlines =
        ["deadline_last_vs_best_cache", "deadline_leader_vs_best_cache"].map(name);
    if !names.iter().chain(&names_with_deadlines).any(|name| report.wants(name)) {
        return Vec::new();
    }

    let contenders: [&dyn Contender; 6] = [
        &onefill(),
        &quick_cache(),
        &moka(),
        &OnceLocks::default(),
        &OneFillDeadline(onefill().0),
        &QuickCacheDeadline(quick_cache().0),
    ];
    let herd = Herd::new(THREADS);
    let rounds: Vec<[Left; 6]> = thread::scope(|scope| {
        let members: Vec<_> = (0..THREADS)
            .map(|member| {
                let (herd, contenders) = (&herd, &contenders);
                thread::Builder::new()
                    .stack_size(256 * 1024)
                    .spawn_scoped(scope, move || herd.take_part(member, contenders))
                    .expect("as many threads as the herd has members")
            })
            .collect();
        let threads: Vec<&Thread> = members.iter().map(|member| member.thread()).collect();
        let rounds = report.rounds(1, time, || array::from_fn(|_| herd.turn(&threads)));
        herd.end(&threads);
        rounds
    });

    let last = medians(&rounds.iter().map(|round| round.map(|left| left.last)).collect::<Vec<_>>());
    let leader =
        medians(&rounds.iter().map(|round| round.map(|left| left.leader)).collect::<Vec<_>>());
    println!("herd of {THREADS}, {} rounds: µs from the loader's end", rounds.len());
    println!("  {:<24} {:>9} {:>9}", "", "last", "leader");
    for (contender, name) in HERDERS.iter().enumerate() {
        println!("  {name:<24} {:>9.1} {:>9.1}", last[contender], leader[contender]);
    }
    println!();

    let [last_name, leader_name, oncelock_name] = names;
    let [deadline_last_name, deadline_leader_name] = names_with_deadlines;
    let mut ratios = vec![
        ratio(last_name, last[0], last[1].min(last[2]), 0.75),
        ratio(leader_name, leader[0], leader[1].min(leader[2]), 0.05),
        ratio(deadline_last_name, last[4], last[5], 0.75),
        ratio(deadline_leader_name, leader[4], leader[5], 0.05),
    ];
    if THREADS == 1_000 {
        ratios.push(ratio(oncelock_name, last[0], last[3], 1.25));
    }
    ratios
}

/// When a herd had left, in microseconds from the end of the loader.
#[derive(Clone, Copy)]
struct Left {
    last: f64,
    leader: f64,
}

/// What the members of a herd share. The threads are the same in all rounds; between two they
/// are parked, which is the least a thread can do.
///
/// The thread that counts the turns is none of them, and of them another leads in each turn. A
/// scheduler remembers who has used more than its share of the processor, as one does who wakes a
/// herd, and would put it behind the herd the next time. No leader is charged with what it, or a
/// leader of another contender, did the turn before.
struct Herd {
    members: usize,
    epoch: Instant,
    /// The turns of all contenders are counted; the count is the key, and from it follows the
    /// contender. So far have they come who lead, ...
    leading: AtomicUsize,
    /// ... and who follow, a moment later: when the leader is in its loader, ...
    following: AtomicUsize,
    /// ... and the loader, which ends when all the others wait for it.
    loaded: AtomicUsize,
    let_go: AtomicUsize,
    done: AtomicUsize,
    /// All in nanoseconds from the epoch: when the loader ended, when the leader had the value,
    /// and when the last of the others had it.
    began: AtomicU64,
    leader: AtomicU64,
    last: AtomicU64,
}

const OVER: usize = usize::MAX;

impl Herd {
    fn new(members: usize) -> Herd {
        Herd {
            members,
            epoch: Instant::now(),
            leading: AtomicUsize::new(0),
            following: AtomicUsize::new(0),
            loaded: AtomicUsize::new(0),
            let_go: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            began: AtomicU64::new(0),
            leader: AtomicU64::new(0),
            last: AtomicU64::new(0),
        }
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// One turn, from outside. Each time another of the threads leads.
    fn turn(&self, threads: &[&Thread]) -> Left {
        let turn = self.leading.load(Ordering::Relaxed) + 1;
        let leader = threads[turn % self.members];
        self.let_go.store(0, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        self.last.store(0, Ordering::Relaxed);

        self.leading.store(turn, Ordering::Release);
        leader.unpark();
        wait_for(&self.let_go, 1);
        self.following.store(turn, Ordering::Release);
        threads.iter().for_each(|thread| thread.unpark());
        wait_for(&self.let_go, self.members);
        // The peers do not tell how many wait. By now all of them have been running, and were a
        // few microseconds from their places: this is long enough to get there.
        thread::sleep(Duration::from_millis(5) + Duration::from_micros(15) * self.members as u32);
        self.loaded.store(turn, Ordering::Release);
        leader.unpark();
        wait_for(&self.done, self.members);

        let since_loaded = |at: &AtomicU64| {
            (at.load(Ordering::Relaxed) - self.began.load(Ordering::Relaxed)) as f64 / 1_000.0
        };
        let leader = since_loaded(&self.leader);
        Left { last: leader.max(since_loaded(&self.last)), leader }
    }

    fn end(&self, threads: &[&Thread]) {
        self.leading.store(OVER, Ordering::Release);
        self.following.store(OVER, Ordering::Release);
        threads.iter().for_each(|thread| thread.unpark());
    }

    /// What the thread `member` does, turn by turn.
    fn take_part(&self, member: usize, contenders: &[&dyn Contender]) {
        for turn in 1.. {
            let leads = turn % self.members == member;
            let come = if leads { &self.leading } else { &self.following };
            loop {
                match come.load(Ordering::Acquire) {
                    OVER => return,
                    now if now == turn => break,
                    _ => thread::park(),
                }
            }
            let contender = contenders[(turn - 1) % contenders.len()];
            if leads {
                self.lead(turn, contender);
            } else {
                self.follow(turn, contender);
            }
            self.done.fetch_add(1, Ordering::Release);
        }
    }

    fn lead(&self, turn: usize, contender: &dyn Contender) {
        contender.call(turn as u64, &|| {
            self.let_go.fetch_add(1, Ordering::Relaxed);
            while self.loaded.load(Ordering::Acquire) != turn {
                thread::park();
            }
            self.began.store(self.now(), Ordering::Relaxed);
            turn as u64
        });
        self.leader.store(self.now(), Ordering::Relaxed);
    }

    fn follow(&self, turn: usize, contender: &dyn Contender) {
        self.let_go.fetch_add(1, Ordering::Relaxed);
        contender.call(turn as u64, &|| unreachable!("the key is being loaded"));
        self.last.fetch_max(self.now(), Ordering::Relaxed);
    }
}

/// Sleeps, rather than wait to be called: the herd's time is not to be spent on calling.
fn wait_for(counter: &AtomicUsize, count: usize) {
    while counter.load(Ordering::Acquire) < count {
        thread::sleep(Duration::from_millis(1));
    }
}
